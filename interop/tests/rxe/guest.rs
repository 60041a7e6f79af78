//! The guest: commands that run in it, and addresses and directories on this side.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The time limit of one action. The guest's processor is emulated on a machine that may be busy; an action that hangs
/// is ended.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The IP version that connects the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ip {
    V4,
    V6,
}

impl Ip {
    fn host(self, number: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 77, 0, number).into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()).into(),
        }
    }

    /// The address of this process's own device.
    pub(crate) fn ours(self) -> IpAddr {
        self.host(1)
    }

    /// The address of devices of programs under `rnic run`.
    pub(crate) fn program(self) -> IpAddr {
        self.host(3)
    }

    pub(crate) fn guest(self) -> IpAddr {
        self.host(2)
    }

    /// The index of the guest's address in its GID table: after the link-local address that the kernel created.
    pub(crate) fn guest_gid_index(self) -> u8 {
        match self {
            Self::V4 => 1,
            Self::V6 => 2,
        }
    }
}

/// The directory in which cargo puts its build output: target/PROFILE.
pub(crate) fn built() -> PathBuf {
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors().nth(2).expect("a folder of a profile").to_path_buf()
}

/// The directory in which `interop/rxe/install` puts its output.
pub(crate) fn folder() -> PathBuf {
    built().parent().expect("a target folder").join("rxe")
}

/// Builds `rnic` and its libraries: a test cannot depend on C libraries.
pub(crate) fn build() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // The same features as for the tests, or everything would be compiled once more.
    build.args(["build", "--quiet", "--workspace", "--lib", "--bins", "--tests"]);
    if built().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success(), "what is to be tested cannot be built");
}

pub(crate) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// The console output of the guest's kernel.
pub(crate) fn console() -> String {
    let log = std::env::var_os("RXE_LOG").unwrap_or_default();
    String::from_utf8_lossy(&std::fs::read(Path::new(&log)).unwrap_or_default()).into_owned()
}

/// Whether the guest's network under test carries nothing any more, not even pings. About one boot in a hundred ends that
/// way on a busy host, with TCP as well as with RoCE: a fault of the emulated network card.
pub(crate) fn network_is_dead() -> bool {
    Remote::start("ping -c 3 -W 3 10.77.0.1").end().0 != 0
}

/// What an engineer would look at if the guest no longer answered: whether its network carries a packet, what its
/// interfaces and rxe counted, and which interrupts it took.
pub(crate) fn state() -> String {
    let looks = [
        "ping -c 2 -W 2 10.77.0.1",
        "cat /proc/net/dev",
        "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *",
        "cat /proc/interrupts",
        "ps",
    ];
    let here =
        Command::new("ip").args(["-s", "link"]).output().map(|output| output.stdout).unwrap_or_default();
    let there = looks.map(|look| Remote::start(look).end().1);
    format!("{}\n---- this side ----\n{}", there.join("\n"), String::from_utf8_lossy(&here))
}

/// A connection to the agent, which begins with a command. The command runs until it ends or the connection is closed.
pub(crate) fn connect(command: &str) -> TcpStream {
    let agent = SocketAddr::from(([10, 78, 0, 2], 7));
    let mut stream = TcpStream::connect_timeout(&agent, LIMIT).expect("the agent of the guest");
    stream.set_nodelay(true).expect("a socket option");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket option");
    stream.write_all(format!("{command}\n").as_bytes()).expect("the agent takes a command");
    stream
}

/// A command that runs in the guest. It is killed when this is dropped.
pub(crate) struct Remote {
    stream: TcpStream,
    command: String,
}

impl Remote {
    pub(crate) fn start(command: &str) -> Self {
        Self { stream: connect(command), command: command.to_owned() }
    }

    /// Waits until it ends. Returns its exit status and its output.
    pub(crate) fn end(mut self) -> (i32, String) {
        let mut bytes = Vec::new();
        let deadline = Instant::now() + LIMIT;
        let mut part = [0; 4096];
        loop {
            assert!(Instant::now() < deadline, "in the guest, `{}` took too long", self.command);
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("in the guest, `{}`: {error}", self.command),
            }
        }
        // A zero byte precedes the exit status.
        let at = bytes.iter().rposition(|&byte| byte == 0).expect("the agent tells how a command ended");
        let status = String::from_utf8_lossy(&bytes[at + 1..]).parse().expect("a status");
        (status, String::from_utf8_lossy(&bytes[..at]).into_owned())
    }
}

/// Runs a command in the guest, which must succeed; returns its output.
pub(crate) fn run(command: &str) -> String {
    let (status, text) = Remote::start(command).end();
    assert_eq!(status, 0, "in the guest, `{command}`: {text}");
    text
}

/// The packet counters of a packet filter's rules, in the order of the rules.
pub(crate) fn packets(rules: &str) -> Vec<u64> {
    let words: Vec<_> = rules.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[0] == "packets").map(|pair| pair[1].parse());
    counts.collect::<Result<_, _>>().expect("counters")
}

/// A counter of rxe0.
pub(crate) fn counter(name: &str) -> u64 {
    let text = run(&format!("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{name}"));
    text.trim().parse().expect("a counter")
}
