//! Network namespaces: private hosts, whose addresses and links a test may remove.
//!
//! Two processes on one machine also need a namespace to communicate over IPv6, because the loopback interface has
//! only one IPv6 address.

use crate::peer::Peer;
use crate::protocol::Opening;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the kernel may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two addresses of a unique local prefix (RFC 4193), on the loopback interface of the namespace.
pub const ADDRESSES: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];

/// Runs `test` in a thread with its own network namespace, whose loopback interface has the [`ADDRESSES`]. Creating
/// the namespace needs root; without permission the test is reported as skipped.
///
/// # Panics
///
/// Panics if the test does.
pub fn in_own_network(test: impl FnOnce() + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let run = move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            crate::skipped(&format!("needs root for a network namespace: {error}"));
            return;
        }
        for step in [
            &["link", "set", "lo", "up"][..],
            &["-6", "addr", "add", "fd00::1/64", "dev", "lo", "nodad"],
            &["-6", "addr", "add", "fd00::2/64", "dev", "lo", "nodad"],
        ] {
            if !Command::new("ip").args(step).status().is_ok_and(|status| status.success()) {
                crate::skipped(&format!("needs iproute2 and IPv6: `ip {}` failed", step.join(" ")));
                return;
            }
        }
        test();
    };
    let thread = std::thread::Builder::new().name(name).spawn(run).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A network namespace, held by a process that is killed on drop.
pub struct Namespace {
    keeper: Child,
    user: bool,
}

impl Namespace {
    /// A new namespace, created as an ordinary user or as root.
    ///
    /// # Errors
    ///
    /// Why it cannot be created: namespaces are not permitted, or a program is missing.
    pub fn new() -> Result<Self, String> {
        let new = |user| {
            let mut unshare = Command::new("unshare");
            unshare.arg(if user { "-Urn" } else { "-n" });
            Self::kept_by(unshare, user)
        };
        new(true).or_else(|user| new(false).map_err(|root| format!("{user}; as root: {root}")))
    }

    /// Another namespace with the same owner: links can connect the two.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn sibling(&self) -> Result<Self, String> {
        if !self.user {
            let mut unshare = Command::new("unshare");
            unshare.arg("-n");
            return Self::kept_by(unshare, false);
        }
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.keeper.id().to_string(), "-U", "--preserve-credentials", "unshare", "-n"]);
        Self::kept_by(enter, true)
    }

    fn kept_by(mut launcher: Command, user: bool) -> Result<Self, String> {
        let script = "ip link set lo up && ip -6 addr add fd00::1/64 dev lo nodad \
                      && ip -6 addr add fd00::2/64 dev lo nodad && echo ready && exec cat";
        let mut keeper = launcher
            .args(["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", launcher.get_program().display()))?;
        let mut line = String::new();
        let output = keeper.stdout.take().ok_or("no pipe")?;
        // Ends at the latest when the shell exits.
        let read = BufReader::new(output).read_line(&mut line);
        let namespace = Self { keeper, user };
        if read.is_err() || line.trim() != "ready" {
            return Err("a network namespace with IPv6 addresses cannot be made".to_owned());
        }
        Ok(namespace)
    }

    /// A command that runs a program in the namespace.
    fn enter(&self) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.keeper.id().to_string(), "-n"]);
        if self.user {
            enter.args(["-U", "--preserve-credentials"]);
        }
        enter
    }

    /// A peer in the namespace, at one of the [`ADDRESSES`].
    #[must_use]
    pub fn peer(&self, which: usize, opening: &Opening) -> Peer {
        self.peer_at(ADDRESSES[which].into(), opening)
    }

    /// A peer in the namespace, at an existing address.
    #[must_use]
    pub fn peer_at(&self, address: IpAddr, opening: &Opening) -> Peer {
        Peer::open_through(self.enter(), &Opening { address: Some(address), ..opening.clone() })
    }

    /// Runs `ip` in the namespace, with the words of `line`; returns its output.
    ///
    /// # Errors
    ///
    /// Its error output.
    pub fn try_ip(&self, line: &str) -> Result<String, String> {
        let output = self.enter().arg("ip").args(line.split_whitespace()).output();
        let output = output.map_err(|e| format!("nsenter: {e}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Runs `ip` in the namespace.
    ///
    /// # Panics
    ///
    /// Panics if `ip` fails.
    pub fn ip(&self, line: &str) {
        let _ = self.try_ip(line).unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // An error means that it has already exited.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Two namespaces connected by a cable; the interface is called `eth0` at both ends.
pub struct Cable {
    /// The two ends.
    pub ends: [Namespace; 2],
}

impl Cable {
    /// The IPv4 addresses of the ends, with prefixes of 24 bits.
    pub const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
    /// The IPv6 addresses of the ends, with prefixes of 64 bits.
    pub const V6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)];

    /// A new cable: both links are up and have both addresses.
    ///
    /// # Errors
    ///
    /// As [`Namespace::new`], and if the kernel has no virtual cables (veth).
    pub fn new() -> Result<Self, String> {
        let left = Namespace::new()?;
        let right = left.sibling()?;
        left.try_ip(&format!("link add eth0 type veth peer name eth0 netns {}", right.keeper.id()))?;
        let ends = [left, right];
        for (end, (v4, v6)) in ends.iter().zip(Self::V4.iter().zip(Self::V6)) {
            end.try_ip(&format!("addr add {v4}/24 dev eth0"))?;
            end.try_ip(&format!("addr add {v6}/64 dev eth0 nodad"))?;
            end.try_ip("link set eth0 up")?;
        }
        let cable = Self { ends };
        cable.settle()?;
        Ok(cable)
    }

    /// Waits until both ends have a carrier, which the kernel reports a little later.
    fn settle(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        for end in &self.ends {
            while !end.try_ip("link show eth0")?.contains("state UP") {
                if Instant::now() > deadline {
                    return Err("a virtual cable stays without carrier".to_owned());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}
