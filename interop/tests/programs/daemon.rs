//! Programs that share an address by `rnic daemon`.

use crate::lab::{self, Ended, Folder, LIMIT, Running, built, faults, has, installed_library, matrix};
use crate::rdma_cm::LIBRARY;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A daemon, at an address of its own.
pub(crate) struct Daemon {
    folder: Folder,
    address: String,
    running: Running,
}

/// The name of its configuration file, if it has one.
const CONFIG: &str = "daemon.toml";

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_in(Folder::new())
    }

    /// One with settings from a configuration file.
    pub(crate) fn with_config(config: &str) -> Self {
        let folder = Folder::new();
        fs::write(folder.path().join(CONFIG), config).expect("a file");
        Self::start_in(folder)
    }

    fn start_in(folder: Folder) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.92.{}.{number}", std::process::id() % 250 + 1);
        let running = Self::run(&folder, &address);
        Self { folder, address, running }
    }

    fn run(folder: &Folder, address: &str) -> Running {
        let mut command = lab::rnic(folder);
        command.args(["daemon", "--addr", address, "--socket"]).arg(socket(folder));
        let config = folder.path().join(CONFIG);
        if config.exists() {
            command.arg("--config").arg(config);
        }
        let mut running = Running::start(folder, &mut command);
        let begin = Instant::now();
        while UnixStream::connect(socket(folder)).is_err() {
            assert!(begin.elapsed() < LIMIT && !running.has_ended(), "the daemon does not listen");
            sleep(Duration::from_millis(2));
        }
        running
    }

    /// Ends it without a word. Its keeper is left.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }

    /// Starts the next one, which finds what the keeper holds.
    pub(crate) fn start_again(&mut self) {
        self.running = Self::run(&self.folder, &self.address);
    }

    /// Where programs find it.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    /// A program with its arguments, as in a shell; `@` stands for the address.
    fn program(&self, line: &str) -> Command {
        let mut words = line.split(' ').map(|word| word.replace('@', &self.address));
        let mut command = lab::run(&self.folder, &[], words.next().expect("a program"));
        command.args(words).env("RNIC_DAEMON", socket(&self.folder)).env("RNIC_EXPLAIN", "1");
        command
    }

    pub(crate) fn begin(&self, line: &str) -> Running {
        Running::start(&self.folder, &mut self.program(line))
    }

    /// Runs a server and a client that meet at a TCP port, which replaces `&` in their lines.
    pub(crate) fn pair(&self, server: &str, client: &str) -> [Ended; 2] {
        let port = lab::free_port().to_string();
        let server = self.begin(&server.replace('&', &port));
        sleep(Duration::from_millis(500));
        let client = self.begin(&client.replace('&', &port)).wait(LIMIT);
        let patience =
            if client.fault().is_some() { Duration::from_secs(2) } else { Duration::from_secs(20) };
        let limit = server.elapsed() + patience;
        [server.wait(limit), client]
    }

    /// What `rnic show` prints.
    pub(crate) fn shows(&self, what: &[&str]) -> Vec<serde_json::Value> {
        let mut command = lab::rnic(&self.folder);
        command.args(["show", "-j"]).args(what).env("RNIC_DAEMON", socket(&self.folder));
        let output = command.output().expect("rnic");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The sum of a counter of all programs so far.
    pub(crate) fn counted(&self, counter: &str) -> u64 {
        lab::counted(&self.folder, counter).0
    }

    /// Waits until this many programs have slots.
    fn await_programs(&self, count: usize) {
        let begin = Instant::now();
        let running = || {
            let all = rnic::daemon::programs(&self.socket()).expect("it answers");
            all.iter().filter(|watched| watched.program.running).count()
        };
        while running() < count {
            assert!(begin.elapsed() < LIMIT, "{} of {count} programs have slots", running());
            sleep(Duration::from_millis(20));
        }
    }

    fn keeper(&self) -> Option<i32> {
        let wanted = format!("keeper\0{}.keeper\0", socket(&self.folder).display());
        pids().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).ends_with(&wanted)
        })
    }

    /// The daemon's resident memory, and its descriptors.
    pub(crate) fn size(&self) -> (u64, usize) {
        let pid = self.running.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
        let kilobytes = rss.split_whitespace().next().and_then(|number| number.parse().ok());
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
        (kilobytes.expect("a number"), descriptors)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It ends its keeper.
        if !self.running.has_ended() {
            self.running.terminate();
        }
        let begin = Instant::now();
        while self.keeper().is_some() && begin.elapsed() < Duration::from_secs(5) {
            sleep(Duration::from_millis(10));
        }
        if let Some(keeper) = self.keeper() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::SIGKILL);
        }
    }
}

fn socket(folder: &Folder) -> PathBuf {
    folder.path().join("daemon.sock")
}

fn pids() -> impl Iterator<Item = i32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The programs of one pair, which both end.
const PAIRS: &[[&str; 2]] = &[
    ["ib_write_bw -p & -n 1000", "ib_write_bw -p & -n 1000 @"],
    ["ib_read_bw -p & -n 1000", "ib_read_bw -p & -n 1000 @"],
    ["ib_send_bw -p & -n 1000 -c UD", "ib_send_bw -p & -n 1000 -c UD @"],
    ["ib_send_bw -p & -n 1000 -c UC", "ib_send_bw -p & -n 1000 -c UC @"],
    ["ib_send_lat -p & -n 1000 -e", "ib_send_lat -p & -n 1000 -e @"],
    ["ib_atomic_bw -p & -n 1000", "ib_atomic_bw -p & -n 1000 @"],
    ["ibv_rc_pingpong -p & -g 0 -c", "ibv_rc_pingpong -p & -g 0 -c @"],
    ["ibv_ud_pingpong -p & -g 0", "ibv_ud_pingpong -p & -g 0 @"],
];

/// The same for programs that connect by librdmacm.
const CONNECTING: &[[&str; 2]] = &[
    ["rping -s -C 100 -V", "rping -c -a @ -C 100 -V"],
    ["ucmatose", "ucmatose -s @"],
    ["udaddy", "udaddy -s @"],
    ["rdma_server", "rdma_client -s @"],
    ["ib_write_bw -R -p & -n 1000", "ib_write_bw -R -p & -n 1000 @"],
];

/// A tool that knows nothing of rnic sees one port, with what all programs at the address count and have.
#[test]
fn tools_see_one_port_for_all_programs_at_an_address() {
    if !has("rdma") || !has("ibv_rc_pingpong") {
        return;
    }
    let daemon = Daemon::start();
    let port = lab::free_port();
    let line = format!("ibv_rc_pingpong -g 0 -n 100000000 -p {port}");
    let mut server = daemon.begin(&line);
    assert!(lab::await_listener(port, &mut server), "{}", server.text());
    let mut client = daemon.begin(&format!("{line} 127.0.0.1"));
    let sent = || -> Vec<u64> {
        daemon.shows(&["counters"]).iter().filter_map(|row| row["sent_pkts"].as_u64()).collect()
    };
    let begin = Instant::now();
    while sent().iter().filter(|sent| **sent > 100).count() < 2 {
        assert!(!client.has_ended() && begin.elapsed() < LIMIT, "{}", client.text());
        sleep(Duration::from_millis(20));
    }
    let tool = |line: &str| -> Vec<serde_json::Value> {
        let ended = daemon.begin(line).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{line}: {}", ended.text);
        // `rnic run` has said before which daemon it is.
        let json = ended.text.find('[').map_or("", |start| &ended.text[start..]);
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{line}: {error} in {}", ended.text))
    };
    let before = daemon.counted("sent_pkts");
    let told = tool("rdma -j statistic show link rnic0/1")[0]["sent_pkts"].as_u64().expect("a counter");
    let after = daemon.counted("sent_pkts");
    assert!((before..=after).contains(&told), "{told} is not between {before} and {after}");
    let qps = tool("rdma -j resource show qp");
    let mut pids: Vec<_> = qps.iter().filter_map(|qp| qp["pid"].as_u64()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!((qps.len(), pids.len()), (2, 2), "{qps:?}");
    client.kill();
    server.kill();
}

#[test]
fn programs_of_all_kinds_share_an_address() {
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let connecting = if installed_library(LIBRARY) { CONNECTING } else { &[] };
    let there =
        PAIRS.iter().chain(connecting).filter(|[server, _]| has(server.split(' ').next().unwrap_or("")));
    let rows = there.map(|[server, client]| {
        (format!("{server} | {client}"), faults(&daemon.pair(server, client), |_, _| None))
    });
    matrix("pairs of programs at one address", rows);
    // On a busy machine a peer may repeat what was for a queue pair that is gone by then.
    for counter in ["dropped_misrouted", "dropped_bad_icrc"] {
        assert_eq!(daemon.counted(counter), 0, "{counter}");
    }
    assert!(daemon.counted("tx_packets") > 10_000, "they used the network");
}

#[test]
fn a_port_is_in_use_for_all_programs_of_the_daemon() {
    if !installed_library(LIBRARY) || !has("rping") {
        return;
    }
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let first = daemon.begin("rping -s -C 1 -a @");
    sleep(Duration::from_millis(500));
    let second = daemon.begin("rping -s -C 1 -a @").wait(LIMIT);
    assert!(second.text.contains("rdma_bind_addr: Address already in use"), "{}", second.text);
    // It is given back when its program ends, however it ends.
    drop(first);
    let third = daemon.begin("rping -s -C 1 -a @");
    sleep(Duration::from_millis(500));
    let client = daemon.begin("rping -c -C 1 -a @").wait(LIMIT);
    assert_eq!(client.fault(), None, "{}", client.text);
    assert_eq!(third.wait(LIMIT).fault(), None);
    let none = daemon.begin("rping -c -C 1 -a @").wait(LIMIT);
    assert!(none.text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "nobody listens: {}", none.text);
}

/// Waits until a program's output contains a text.
fn says(folder: &Folder, text: &str, limit: Duration) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        let files = fs::read_dir(folder.path()).expect("a folder").flatten();
        if files
            .filter_map(|file| fs::read(file.path()).ok())
            .any(|b| String::from_utf8_lossy(&b).contains(text))
        {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_program_that_is_killed_is_noticed_by_its_peer_at_once() {
    if !installed_library(LIBRARY) || !has("rping") {
        return;
    }
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let server = daemon.begin("rping -s -v -C 1000000");
    sleep(Duration::from_millis(500));
    let mut client = daemon.begin("rping -c -C 1000000 -a @");
    assert!(says(&daemon.folder, "server ping data: rdma-ping-100:", LIMIT), "they talk");
    client.kill();
    // Its own timeouts would take half a second and more; the connection is idle in between.
    assert!(says(&daemon.folder, "DISCONNECT EVENT", Duration::from_secs(20)), "the daemon tells the peer");
    drop(server);
    drop(client);
}

#[test]
fn a_daemon_that_is_killed_costs_no_connection_and_the_next_one_goes_on() {
    if !installed_library(LIBRARY) || !has("ib_write_bw") || !has("rping") {
        return;
    }
    let _alone = lab::alone();
    let mut daemon = Daemon::start();
    let port = lab::free_port();
    let server = daemon.begin(&format!("ib_write_bw -p {port} -s 65536 -D 5"));
    let pings = daemon.begin("rping -s -V -C 1000000 -p 7175");
    sleep(Duration::from_millis(500));
    let client = daemon.begin(&format!("ib_write_bw -p {port} -s 65536 -D 5 @"));
    let mut pinged = daemon.begin("rping -c -V -C 1000000 -p 7175 -a @");
    sleep(Duration::from_secs(1));
    daemon.kill();
    sleep(Duration::from_millis(300));
    assert!(!pinged.has_ended(), "packets do not pass through the daemon");
    // Whoever begins now waits for the next one.
    let early = daemon.begin("ibv_devinfo");
    sleep(Duration::from_millis(300));
    daemon.start_again();
    let back = Instant::now();
    // A new program, and connections again.
    let listener = daemon.begin("rping -s -V -C 10 -p 7176");
    sleep(Duration::from_millis(300));
    let newcomer = daemon.begin("rping -c -V -C 10 -p 7176 -a @").wait(LIMIT);
    assert_eq!(newcomer.fault(), None, "{}", newcomer.text);
    println!("a new program was done {:?} after the daemon was back", back.elapsed());
    let early = early.wait(LIMIT);
    assert!(early.fault().is_none() && early.text.contains("PORT_ACTIVE"), "{}", early.text);
    assert_eq!(listener.wait(LIMIT).fault(), None);
    // The port of a program that was there before is still its own.
    let second = daemon.begin("rping -s -C 1 -p 7175").wait(LIMIT);
    assert!(second.text.contains("rdma_bind_addr: "), "{}", second.text);
    // Those who were there before end as if nothing had happened.
    let ends = [server.wait(LIMIT), client.wait(LIMIT)];
    assert_eq!(faults(&ends, |_, _| None), None);
    assert!(!pinged.has_ended(), "it goes on");
    // And the next daemon knows their connections: the peer of a program that is killed learns of it.
    pinged.kill();
    assert!(says(&daemon.folder, "DISCONNECT EVENT", Duration::from_secs(20)), "the daemon tells the peer");
    drop(pings);
    let dropped = ["dropped_misrouted", "dropped_bad_icrc"].map(|name| daemon.counted(name));
    assert_eq!(dropped, [0; 2]);
}

#[test]
fn programs_say_so_when_the_daemon_and_its_keeper_are_gone() {
    if !has("ib_write_bw") {
        return;
    }
    let _alone = lab::alone();
    let mut daemon = Daemon::start();
    let port = lab::free_port();
    let server = daemon.begin(&format!("ib_write_bw -p {port} -D 60"));
    sleep(Duration::from_millis(500));
    let client = daemon.begin(&format!("ib_write_bw -p {port} -D 60 @"));
    sleep(Duration::from_secs(1));
    let keeper = daemon.keeper().expect("a keeper");
    daemon.kill();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::SIGKILL).expect("a process");
    for end in [server, client] {
        let ended = end.wait(LIMIT);
        assert!(ended.status.is_some_and(|status| !status.success()), "{}", ended.text);
        let said = format!("rnic: the device at {} has failed: the daemon and the keeper", daemon.address);
        assert!(ended.text.contains(&said), "{}", ended.text);
    }
}

#[test]
fn a_daemon_that_ends_leaves_nothing_and_a_killed_keeper_is_replaced() {
    let _alone = lab::alone();
    let mut daemon = Daemon::start();
    let first = daemon.keeper().expect("a keeper");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::SIGKILL).expect("a process");
    let begin = Instant::now();
    while daemon.keeper().is_none_or(|keeper| keeper == first) {
        assert!(begin.elapsed() < LIMIT, "no other keeper");
        sleep(Duration::from_millis(20));
    }
    // The second knows as much as the first.
    sleep(Duration::from_millis(200));
    daemon.kill();
    daemon.start_again();
    assert!(says(&daemon.folder, "the address of an earlier daemon", LIMIT));
    // A second daemon takes neither the socket nor somebody's file.
    let second = |path: &Path| {
        let mut command = lab::rnic(&daemon.folder);
        command.args(["daemon", "--addr", "127.92.251.2", "--socket"]).arg(path);
        Running::start(&daemon.folder, &mut command).wait(LIMIT).text
    };
    let running = second(&socket(&daemon.folder));
    assert!(running.contains("a daemon runs already"), "{running}");
    let file = daemon.folder.path().join("file");
    fs::write(&file, "precious").expect("a file");
    let refused = second(&file);
    assert!(refused.contains("there is a file that is no socket"), "{refused}");
    assert_eq!(fs::read_to_string(&file).expect("the file"), "precious");
    // The other way to end.
    let folder = Folder::new();
    let running = std::mem::replace(&mut daemon.running, Daemon::run(&folder, "127.92.251.1"));
    running.terminate();
    let ended = running.wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let left: Vec<_> = fs::read_dir(daemon.folder.path()).expect("a folder").flatten().collect();
    assert!(left.iter().all(|file| !file.file_name().to_string_lossy().contains("sock")), "{left:?}");
    daemon.folder = folder;
}

/// Under systemd its store of descriptors takes the place of the keeper. A stand-in plays its part.
#[test]
fn systemd_holds_the_sockets_where_it_runs_the_daemon() {
    if !installed_library(LIBRARY) || !has("rping") || !has("python3") {
        return;
    }
    let _alone = lab::alone();
    let (folder, address) = (Folder::new(), "127.92.254.1".to_owned());
    let supervisor = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/py/supervisor.py");
    let mut command = Command::new("python3");
    command.arg(supervisor).arg(folder.path().join("notify")).arg(built().join("rnic"));
    command.args(["daemon", "--systemd-store", "--addr", &address, "--socket"]).arg(socket(&folder));
    let running = Running::start(&folder, &mut command);
    let daemon = Daemon { folder, address, running };
    assert!(says(&daemon.folder, "the service is ready", LIMIT));
    let pings = daemon.begin("rping -s -V -C 1000000 -p 7401");
    sleep(Duration::from_millis(500));
    let mut pinged = daemon.begin("rping -c -V -C 1000000 -p 7401 -a @");
    // A program without a slot would have nothing to come back to.
    daemon.await_programs(2);
    assert_eq!(daemon.keeper(), None, "systemd takes its place");
    let parent = daemon.running.id();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("children");
    let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("the service");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::SIGKILL).expect("a process");
    assert!(says(&daemon.folder, "a program is back", LIMIT), "the next one takes over");
    let listener = daemon.begin("rping -s -V -C 10 -p 7402");
    sleep(Duration::from_millis(300));
    let newcomer = daemon.begin("rping -c -V -C 10 -p 7402 -a @").wait(LIMIT);
    assert_eq!(newcomer.fault(), None, "{}", newcomer.text);
    assert_eq!(listener.wait(LIMIT).fault(), None);
    assert!(!pinged.has_ended(), "it goes on");
    drop((pings, pinged));
    sleep(Duration::from_millis(300));
    daemon.running.terminate();
    assert!(says(&daemon.folder, "the service ended; 0 descriptors are left", LIMIT));
}

/// What a local process can do that wants no good.
/// An interface gets its address later than the host starts, perhaps.
#[test]
fn a_daemon_without_an_address_says_so_and_so_does_a_program() {
    // The loopback interface of a new network namespace is down.
    const SCRIPT: &str = r#"
"$0" daemon --addr lo --socket "$1" & daemon=$!
until [ -S "$1" ]; do sleep 0.05; done
"$0" run --daemon "$1" -- true; echo "before: $?"
ip link set lo up
until "$0" run --daemon "$1" -- true; do sleep 0.1; done; echo "after: $?"
kill $daemon; wait $daemon
"#;
    if !has("unshare") || !has("ip") {
        return;
    }
    if !Command::new("unshare").args(["-Urn", "true"]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: no network namespaces can be made");
        return;
    }
    let folder = Folder::new();
    let socket = folder.path().join("bare.sock");
    let mut command = Command::new("unshare");
    command.args(["-Urn", "sh", "-c", SCRIPT]).arg(built().join("rnic")).arg(&socket);
    command.env("RNIC_RUN_DIR", folder.path().join("run")).stdin(std::process::Stdio::null());
    let ended = Running::start(&folder, &mut command).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let refused = format!("the daemon at {} shares no address with this user yet", socket.display());
    let said = ["until the interface has an address", &refused, "before: 125", "after: 0"];
    for text in said {
        assert!(ended.text.contains(text), "no `{text}`: {}", ended.text);
    }
}

#[test]
fn a_user_gets_as_many_slots_as_the_configuration_says() {
    if !has("ibv_asyncwatch") || !has("ibv_devinfo") {
        return;
    }
    let _alone = lab::alone();
    let folder = Folder::new();
    let config = folder.path().join("daemon.toml");
    let text = format!(
        "addresses = [\"127.92.253.1\"]\nsocket = \"{}\"\n[limits]\nslots = 2\n[device]\nmtu = 1024\n",
        socket(&folder).display()
    );
    fs::write(&config, text).expect("a file");
    let mut command = lab::rnic(&folder);
    command.args(["daemon", "--log", "json", "--config"]).arg(&config);
    let running = Running::start(&folder, &mut command);
    let daemon = Daemon { folder, address: "127.92.253.1".to_owned(), running };
    let begin = Instant::now();
    while UnixStream::connect(socket(&daemon.folder)).is_err() {
        assert!(begin.elapsed() < LIMIT, "the daemon does not listen");
        sleep(Duration::from_millis(5));
    }
    let holders = [daemon.begin("ibv_asyncwatch"), daemon.begin("ibv_asyncwatch")];
    sleep(Duration::from_millis(700));
    let third = daemon.begin("ibv_devinfo").wait(LIMIT);
    assert!(third.text.contains("this user has 2 slots, and the daemon allows no more"), "{}", third.text);
    drop(holders);
    sleep(Duration::from_millis(300));
    let fourth = daemon.begin("ibv_devinfo").wait(LIMIT);
    assert!(fourth.text.contains("active_mtu:\t\t1024"), "the settings are the daemon's: {}", fourth.text);
    // The log says the same, to programs.
    daemon.running.terminate();
    assert!(says(&daemon.folder, "the daemon ends", LIMIT));
    let files = fs::read_dir(daemon.folder.path()).expect("a folder").flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let log = texts.into_iter().find(|text| text.contains("the daemon ends")).expect("the log");
    let lines =
        log.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str::<serde_json::Value>);
    let entries: Vec<_> = lines.collect::<Result<_, _>>().expect("JSON");
    let refused = entries.iter().any(|entry| {
        let is = |key: &str, text: &str| entry[key].as_str().is_some_and(|value| value.contains(text));
        is("message", "a program is refused") && is("refusal", "2 slots") && is("level", "INFO")
    });
    assert!(refused && entries.iter().all(|entry| entry["timestamp"].is_string()), "{log}");
}

/// Copies rnic and its libraries to where every user may read them.
pub(crate) fn for_everybody(folder: &Folder) -> PathBuf {
    let bin = folder.path().join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let names = ["rnic", "dropin", "librnic_dropin.so", "librnic_shim.so", "librnic_rdmacm.so"];
    for name in names {
        let from = built().join(name);
        if from.exists() {
            let done = Command::new("cp").arg("-r").arg(&from).arg(&bin).status().expect("cp");
            assert!(done.success(), "{name}");
        }
    }
    bin
}

pub(crate) fn as_user(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
    command
        .arg("--no-new-privs")
        .arg(program)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

#[test]
fn ordinary_users_share_an_address_and_others_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    if !nix::unistd::geteuid().is_root() || !has("setpriv") || !has("ibv_devinfo") {
        println!("SKIPPED: only root can run programs as several users");
        return;
    }
    let folder = Folder::new();
    let open =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("rights");
    open(folder.path(), 0o777);
    let rnic = for_everybody(&folder).join("rnic");
    let (socket, own, other) = (folder.path().join("user.sock"), 64_001, 64_002);
    let mut daemon = as_user(own, &rnic);
    daemon.args(["daemon", "--addr", "127.92.252.1", "--socket"]).arg(&socket);
    let running = Running::start(&folder, &mut daemon);
    let begin = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(begin.elapsed() < LIMIT, "the daemon does not listen");
        sleep(Duration::from_millis(5));
    }
    let shown = |uid| {
        let mut command = as_user(uid, &rnic);
        command.args(["run", "--", "ibv_devinfo", "-v"]).env("RNIC_DAEMON", &socket);
        command.env("RNIC_RUN_DIR", folder.path().join("run"));
        Running::start(&folder, &mut command).wait(LIMIT)
    };
    let found = shown(own);
    assert!(found.fault().is_none() && found.text.contains("127.92.252.1"), "{}", found.text);
    // The file keeps others out.
    let refused = shown(other);
    assert!(refused.text.contains("its socket is for its own user and group"), "{}", refused.text);
    // And if the file does not, the daemon does.
    open(&socket, 0o666);
    let refused = shown(other);
    assert!(refused.text.contains(&format!("the daemon does not serve user {other}")), "{}", refused.text);
    running.terminate();
    assert_eq!(running.wait(LIMIT).fault(), None);
}
