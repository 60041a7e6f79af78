//! What an operator sees of programs at a daemon: `rnic show`, `rnic top` and metrics.

use crate::daemon::{as_user, for_everybody};
use crate::lab::{self, Folder, LIMIT, Running, has};
use crate::tools::{metrics, node_exporter};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A daemon with a configuration, in a folder that every user may enter.
struct Site {
    folder: Folder,
    socket: PathBuf,
    running: Running,
}

impl Site {
    fn start(address: &str, config: &str) -> Self {
        let folder = Folder::new();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("rights");
        let (socket, file) = (folder.path().join("watched.sock"), folder.path().join("daemon.toml"));
        fs::write(&file, format!("addresses = [\"{address}\"]\n{config}")).expect("a file");
        let running = Self::run(&folder, &socket);
        Self { folder, socket, running }
    }

    fn run(folder: &Folder, socket: &Path) -> Running {
        let mut command = lab::rnic(folder);
        command.args(["daemon", "--config"]).arg(folder.path().join("daemon.toml"));
        let mut running = Running::start(folder, command.arg("--socket").arg(socket));
        let begin = Instant::now();
        while UnixStream::connect(socket).is_err() {
            if running.has_ended() {
                panic!("the daemon has ended: {}", running.wait(LIMIT).text);
            }
            assert!(begin.elapsed() < LIMIT, "the daemon does not listen");
            sleep(Duration::from_millis(5));
        }
        running
    }

    fn begin(&self, line: &str) -> Running {
        let mut words = line.split(' ');
        let mut command = lab::run(&self.folder, &[], words.next().expect("a program"));
        Running::start(&self.folder, command.args(words).env("RNIC_DAEMON", &self.socket))
    }

    /// What rnic prints.
    fn rnic(&self, args: &[&str]) -> String {
        let mut command = lab::rnic(&self.folder);
        printed(command.args(args).env("RNIC_DAEMON", &self.socket))
    }

    /// The rows of `rnic show`.
    fn rows(&self, args: &[&str]) -> Vec<Value> {
        serde_json::from_str(&self.rnic(&[&["show", "-j"], args].concat())).expect("JSON")
    }

    /// Waits until what `rnic show` prints is as it should be.
    fn await_rows(&self, args: &[&str], fits: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let rows = self.rows(args);
            if fits(&rows) {
                return rows;
            }
            assert!(begin.elapsed() < LIMIT, "{args:?}: {rows:?}");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Site {
    /// The keeper ends too, and leaves the address, if the daemon is told to end.
    fn drop(&mut self) {
        if !self.running.has_ended() {
            self.running.terminate();
            let begin = Instant::now();
            while !self.running.has_ended() && begin.elapsed() < LIMIT {
                sleep(Duration::from_millis(5));
            }
        }
    }
}

fn printed(command: &mut Command) -> String {
    let output = command.output().expect("rnic");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The value of a metric with these labels.
fn value(text: &str, metric: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {metric} in {text}"))
}

/// The names of metrics that begin with a word.
fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    lines.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

#[test]
fn programs_at_a_daemon_are_seen_with_their_queue_pairs_rates_and_sums() {
    const SENT: &str = "node_infiniband_port_data_transmitted_bytes_total{device=\"rnic0\",port=\"1\"}";
    const RECEIVED: &str = "node_infiniband_port_data_received_bytes_total{device=\"rnic0\",port=\"1\"}";
    const PROGRAMS: &str = "rnic_programs{device=\"rnic0\",port=\"1\"}";
    if !has("ib_write_bw") || !has("ib_read_lat") {
        return;
    }
    let _alone = lab::alone();
    let address = "127.92.249.1";
    let page = lab::free_port();
    let mut site = Site::start(address, &format!("metrics = \"127.0.0.1:{page}\"\n"));
    let sums = || metrics(page).expect("a page");
    assert_eq!((value(&sums(), SENT), value(&sums(), PROGRAMS)), (0, 0));
    let (first, second) = (lab::free_port(), lab::free_port());
    let server = site.begin(&format!("ib_write_bw -p {first} -D 600"));
    sleep(Duration::from_millis(500));
    let client = site.begin(&format!("ib_write_bw -p {first} -D 600 {address}"));
    // One that shares the address with nobody.
    let mut own = lab::run(&site.folder, &["--addr", "127.92.249.2"], "ib_read_lat");
    let own = Running::start(&site.folder, own.args(["-p", &second.to_string()]).env("RNIC_DAEMON", "off"));
    // What each of them publishes is a tenth of a second old at most.
    let busy = |rows: &[Value]| {
        let sends = |row: &Value| row["pid"] == client.id() && row["sends"].as_u64() > Some(0);
        rows.iter().any(sends) && rows.len() > 1 && rows.iter().all(|row| row["peer"] != "-")
    };
    let rows = site.await_rows(&["qp", "--program", "ib_write*"], busy);
    let slots: BTreeSet<_> = rows.iter().filter_map(|row| row["slot"].as_u64()).collect();
    assert_eq!(
        (rows.len(), slots.len()),
        (2, 2),
        "each once, although they publish in the run folder too: {rows:?}"
    );
    for row in &rows {
        assert_eq!(row["peer"], address);
        let peer = rows.iter().find(|of| of["lqpn"] == row["peer_qpn"]).expect("the other one");
        assert_ne!(peer["pid"], row["pid"]);
    }
    let number = rows[0]["lqpn"].as_str().expect("a number");
    let only = site.rows(&["qp", "--lqpn", number, "--user", "root", "--type", "RC", "--peer", "127.92.*"]);
    assert_eq!(only.len(), usize::from(nix::unistd::geteuid().is_root()), "{only:?}");
    assert!(site.rows(&["qp", "--state", "ERR"]).is_empty());
    let all = site.await_rows(&["counters", "--running"], |rows| rows.len() == 3);
    let without: Vec<_> = all.iter().filter(|row| row["slot"].is_null()).collect();
    assert!(without.len() == 1 && without[0]["address"] == "127.92.249.2", "{without:?}");
    // Rates.
    let top = site.rnic(&["top", "--batch", "-n", "1"]);
    let line = top.lines().find(|line| line.starts_with(&client.id().to_string())).expect("the client");
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[3..5], ["ib_write_bw", address], "{top}");
    assert!(words[7].ends_with('G') || words[7].ends_with('M'), "it sends: {top}");
    assert!(top.contains("3 programs, "), "{top}");
    // Sums go on when a program has ended, and when the daemon is another.
    let before = value(&sums(), SENT);
    assert!(before > 1 << 20 && value(&sums(), PROGRAMS) == 2, "{before}");
    client.terminate();
    let pid = client.id();
    let _ = client.wait(LIMIT);
    let gone = site.await_rows(&["counters"], |rows| {
        rows.iter().any(|row| row["pid"] == pid && row["program"] == "ended" && !row["slot"].is_null())
    });
    assert_eq!(gone.iter().filter(|row| row["pid"] == pid).count(), 1);
    server.terminate();
    let _ = server.wait(LIMIT);
    let begin = Instant::now();
    while value(&sums(), PROGRAMS) > 0 {
        assert!(begin.elapsed() < LIMIT, "they have ended");
        sleep(Duration::from_millis(20));
    }
    // What a program that is killed did within its last tenth of a second is not known; nothing else is missing.
    assert!(value(&sums(), SENT) >= before, "a sum never falls");
    let (sent, received) = (value(&sums(), SENT), value(&sums(), RECEIVED));
    let port = lab::free_port();
    let server = site.begin(&format!("ib_write_bw -p {port} -n 1000"));
    sleep(Duration::from_millis(500));
    let ended = site.begin(&format!("ib_write_bw -p {port} -n 1000 {address}")).wait(LIMIT);
    assert_eq!((ended.fault(), server.wait(LIMIT).fault()), (None, None), "{}", ended.text);
    let (sent, received) = (value(&sums(), SENT) - sent, value(&sums(), RECEIVED) - received);
    assert!(sent == received && sent > 1000 << 16, "{sent} {received}");
    own.terminate();
    let _ = own.wait(LIMIT);
    // After a crash of the daemon, a program publishes for the next one.
    let listener = site.begin("ibv_asyncwatch");
    let pid = listener.id();
    let has_slot = |rows: &[Value]| rows.iter().any(|row| row["pid"] == pid && !row["slot"].is_null());
    let seen = site.await_rows(&["counters", "--running"], has_slot);
    let slot = &seen.iter().find(|row| row["pid"] == pid).expect("a row")["slot"];
    site.running.kill();
    site.running = Site::run(&site.folder, &site.socket);
    let seen = site.await_rows(&["counters", "--running"], has_slot);
    assert_eq!(&seen.iter().find(|row| row["pid"] == pid).expect("a row")["slot"], slot);
}

#[test]
fn metrics_have_the_names_of_node_exporter_where_it_has_them() {
    if !has("prometheus-node-exporter") {
        return;
    }
    let _alone = lab::alone();
    let page = lab::free_port();
    let site = Site::start("127.92.249.3", &format!("metrics = \"127.0.0.1:{page}\"\n"));
    let sys = site.folder.path().join("sys");
    let mut sysfs = lab::rnic(&site.folder);
    let sysfs = Running::start(&site.folder, sysfs.arg("sysfs").arg(&sys));
    let mut device = lab::run(&site.folder, &["--addr", "127.92.249.4"], "ibv_asyncwatch");
    let _device = Running::start(&site.folder, device.env("RNIC_DAEMON", "off"));
    let (port, _exporter) = node_exporter(&site.folder, &sys);
    let begin = Instant::now();
    let theirs = loop {
        let text = metrics(port).unwrap_or_default();
        if text.contains("node_infiniband_port_data_transmitted_bytes_total{") {
            break names(&text, "node_infiniband_");
        }
        assert!(begin.elapsed() < LIMIT, "{text}");
        sleep(Duration::from_millis(50));
    };
    let ours = metrics(page).expect("a page");
    assert_eq!(names(&ours, "node_infiniband_"), theirs);
    // What else is served, and to whom.
    assert!(ours.contains("openmetrics-text") && ours.ends_with("# EOF\n"), "{ours}");
    drop(sysfs);
}

#[test]
fn users_see_their_own_programs_unless_they_are_observers() {
    if !nix::unistd::geteuid().is_root() || !has("setpriv") || !has("ibv_asyncwatch") {
        println!("SKIPPED: only root can run programs as several users");
        return;
    }
    let _alone = lab::alone();
    let (first, second, observer) = (64_011, 64_012, 64_013);
    let site = Site::start(
        "127.92.249.5",
        &format!("users = [\"{first}\", \"{second}\"]\nobservers = [\"{observer}\"]\n"),
    );
    let rnic = for_everybody(&site.folder).join("rnic");
    fs::set_permissions(&site.socket, fs::Permissions::from_mode(0o666)).expect("rights");
    let command = |uid, args: &[&str]| {
        let mut command = as_user(uid, &rnic);
        let run = site.folder.path().join(format!("run-{uid}"));
        command.args(args).env("RNIC_DAEMON", &site.socket).env("RNIC_RUN_DIR", run);
        command
    };
    let begin = |uid| Running::start(&site.folder, &mut command(uid, &["run", "--", "ibv_asyncwatch"]));
    let running = [begin(first), begin(second)];
    site.await_rows(&["counters", "--running"], |rows| rows.len() == 2);
    let sees = |uid| -> Vec<u64> {
        let text = printed(&mut command(uid, &["show", "counters", "-j"]));
        let rows: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let mut pids: Vec<_> = rows.iter().filter_map(|row| row["pid"].as_u64()).collect();
        pids.sort_unstable();
        pids
    };
    let [one, other] = running.each_ref().map(|running| u64::from(running.id()));
    assert_eq!((sees(first), sees(second)), (vec![one], vec![other]));
    let mut both = vec![one, other];
    both.sort_unstable();
    assert_eq!(sees(observer), both);
    let refused = command(64_014, &["show", "counters"]).output().expect("rnic");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("the daemon does not serve user 64014"), "{text}");
}
