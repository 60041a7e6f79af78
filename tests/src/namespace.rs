//! A network namespace with two IPv6 addresses, so that two processes of one machine can talk over IPv6: the
//! loopback interface has one such address only.

use crate::peer::Peer;
use crate::protocol::Opening;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr};
use std::process::{Child, Command, Stdio};

/// Two addresses of a unique local prefix (RFC 4193), on the loopback interface of the namespace.
pub const ADDRESSES: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];

/// Runs `test` in a thread with a network namespace of its own, in which the loopback interface has the [`ADDRESSES`].
/// Says that the test was skipped where that is not allowed: it takes root.
///
/// # Panics
/// If the test does.
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

/// A network namespace, kept by a process that is killed when this is dropped.
pub struct Namespace {
    keeper: Child,
    user: bool,
}

impl Namespace {
    /// A new namespace, as an ordinary user or as root.
    ///
    /// # Errors
    /// Why there is none: namespaces are not allowed here, or a program is missing.
    pub fn new() -> Result<Self, String> {
        Self::with(true).or_else(|user| Self::with(false).map_err(|root| format!("{user}; as root: {root}")))
    }

    fn with(user: bool) -> Result<Self, String> {
        let script = "ip link set lo up && ip -6 addr add fd00::1/64 dev lo nodad \
                      && ip -6 addr add fd00::2/64 dev lo nodad && echo ready && exec cat";
        let mut keeper = Command::new("unshare")
            .arg(if user { "-Urn" } else { "-n" })
            .args(["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let output = keeper.stdout.take().ok_or("no pipe")?;
        // Ends at the latest when the shell does.
        let read = BufReader::new(output).read_line(&mut line);
        let namespace = Self { keeper, user };
        if read.is_err() || line.trim() != "ready" {
            return Err("a network namespace with IPv6 addresses cannot be made".to_owned());
        }
        Ok(namespace)
    }

    /// A peer inside, at one of the [`ADDRESSES`].
    #[must_use]
    pub fn peer(&self, which: usize, opening: &Opening) -> Peer {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.keeper.id().to_string(), "-n"]);
        if self.user {
            enter.args(["-U", "--preserve-credentials"]);
        }
        let address = Some(IpAddr::V6(ADDRESSES[which]));
        Peer::open_through(enter, &Opening { address, ..opening.clone() })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
