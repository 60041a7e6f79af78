//! Starts this program again on the network of a guest, as the current user and as an unprivileged one.

use crate::{Test, guest};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The exit status of a run whose guest lost its network, plus the number of the test at which it did.
pub(crate) const DIED_AT: u8 = 100;

/// How many guests may lose their network in one run.
const MOST_DEAD: usize = 2;

/// One run of the program.
struct Run {
    what: &'static str,
    /// How `interop/rxe/boot` creates the network; `None` leaves the choice to it.
    network: Option<&'static str>,
    /// The tests to run; `None` stands for all.
    tests: Option<&'static [&'static str]>,
    /// Whether to drop all privileges, if this is root.
    nobody: bool,
}

const RUNS: [Run; 3] = [
    Run { what: "as who this is", network: None, tests: None, nobody: false },
    Run {
        what: "without rights, in a namespace, with Ethernet over Unix sockets",
        network: Some("socket"),
        // Long messages that arrive in bursts, losses, programs that also use TCP, counts on the wire.
        tests: Some(&[
            "data::rust_messages_of_all_sizes_over_ipv4_with_mtu_4096",
            "data::program_messages_of_all_sizes_over_ipv6_with_mtu_1024",
            "data::program_atomics",
            "datagrams::rust_over_ipv6",
            "loss::rust_responses_that_the_guest_drops",
            "programs::pingpongs_with_rxe_as_client_over_ipv6",
            "wire::rnic_says_nothing_but_rocev2_to_rxe",
            "congestion::notifications_do_not_harm_rxe_over_ipv4",
        ]),
        nobody: true,
    },
    Run {
        what: "without rights or namespaces, in a machine, with Ethernet over Unix sockets",
        network: Some("machines"),
        // This side's kernel is the guest's, too: its devices reject features that those here accept (UDP_SEGMENT).
        tests: Some(&[
            "data::rust_unreliable_connections_over_ipv4",
            "data::program_atomics",
            "data::program_windows_and_sends_that_invalidate_them",
            "datagrams::rust_over_ipv6",
        ]),
        nobody: true,
    },
];

impl Run {
    /// A command that runs as the user of this run.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if !(self.nobody && guest::is_root()) {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        // 65534 is nobody.
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]).arg(program);
        command
    }

    /// Its tests among the chosen ones.
    fn chosen(&self, chosen: &[Test]) -> Vec<&'static str> {
        let names = chosen.iter().map(|(name, _)| *name);
        names.filter(|name| self.tests.is_none_or(|tests| tests.contains(name))).collect()
    }

    /// What the host lacks for this run.
    fn missing(&self) -> Option<String> {
        let image = guest::folder().join("initramfs");
        for file in [boot(), this(), image] {
            let readable = self.command("test").arg("-r").arg(&file).status();
            if !readable.is_ok_and(|status| status.success()) {
                return Some(format!("{} may not be read", file.display()));
            }
        }
        match self.network {
            Some("socket") => self.no_namespace(),
            Some(_) => no_machines(),
            None => {
                self.no_namespace().and_then(|namespace| Some(format!("{namespace}; {}", no_machines()?)))
            }
        }
    }

    /// Why a network namespace cannot be created.
    fn no_namespace(&self) -> Option<String> {
        let spaces = if guest::is_root() && !self.nobody { "-n" } else { "-Urn" };
        let veth = ["ip", "link", "add", "guest0", "type", "veth", "peer", "name", "end0"];
        let output = self.command("unshare").arg(spaces).args(veth).output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!(
                "no network of its own: {}",
                String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
            )),
            Err(error) => Some(format!("unshare: {error}")),
        }
    }

    /// Runs these tests with a guest, and again from where a guest lost its network; returns whether all passed.
    fn run(&self, mut names: &[&str]) -> bool {
        println!("\n{}:", self.what);
        for _ in 0..MOST_DEAD {
            let status = self.boot(names);
            let died = status.and_then(|status| status.checked_sub(i32::from(DIED_AT)));
            let Some(rest) = died.and_then(|at| names.get(usize::try_from(at).ok()?..)) else {
                return status == Some(0);
            };
            println!(
                "\nWARNING: the network of the guest died in {}: it continues with a new guest",
                rest[0]
            );
            names = rest;
        }
        self.boot(names) == Some(0)
    }

    /// Runs these tests with a guest; returns the exit status.
    fn boot(&self, names: &[&str]) -> Option<i32> {
        let mut command = self.command(boot());
        command.arg(this()).args(std::env::args_os().skip(1).filter(|word| is_option(word))).args(names);
        if let Some(network) = self.network {
            command.env("RXE_NETWORK", network);
        }
        let target = guest::folder().parent().expect("a target folder").to_path_buf();
        command.env("CARGO_TARGET_DIR", target).status().expect("interop/rxe/boot").code()
    }
}

/// Why two machines cannot be connected.
fn no_machines() -> Option<String> {
    let output = Command::new("qemu-system-x86_64").args(["-machine", "none", "-netdev", "help"]).output();
    let joins = output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("dgram"));
    (!joins).then(|| "QEMU is older than 7.2".to_owned())
}

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

fn boot() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rxe/boot")
}

fn this() -> PathBuf {
    std::env::current_exe().expect("the path of this test")
}

/// Programs that are needed before permissions can be checked.
fn missing_programs() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let program = ["qemu-system-x86_64", "unshare", "setpriv", "ip"].into_iter().find(|p| !has(p));
    if let Some(program) = program {
        return Some(format!("{program} is not installed"));
    }
    let installed = guest::folder().join("initramfs").is_file();
    (!installed).then(|| "interop/rxe/install has not been run".to_owned())
}

/// Runs these tests with a guest, and some of them again without privileges.
pub(crate) fn beside_guests(chosen: &[Test]) -> ExitCode {
    let missing = missing_programs();
    if missing.is_none() {
        // Everything is built outside: inside there is no network.
        guest::build();
    }
    let mut passed = true;
    for run in &RUNS {
        let names = run.chosen(chosen);
        if names.is_empty() {
            continue;
        }
        if let Some(what) = missing.clone().or_else(|| run.missing()) {
            println!("SKIPPED: {} tests against Linux rxe, {}: {what}", names.len(), run.what);
            println!("test result: ok. 0 passed; 0 failed; {} ignored", names.len());
        } else {
            passed &= run.run(&names);
        }
    }
    ExitCode::from(u8::from(!passed))
}
