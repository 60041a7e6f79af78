//! Three hosts with a daemon each: network namespaces that a bridge joins. Trains of packets are really split there.

use crate::lab::{self, Folder, LIMIT, Running, built, faults, has, installed_library};
use crate::rdma_cm::LIBRARY;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const HOSTS: usize = 3;

/// Programs of a pair of hosts, which meet at a TCP port (`&`): by rdma_cm, and by exchange of GIDs.
const KINDS: [&str; 4] = [
    "rping -V -C 20 -p &",
    "ib_write_bw -n 300 -p &",
    "ib_send_bw -R -n 300 -p &",
    "ib_read_lat -n 300 -p &",
];

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().expect("iproute2");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The network: each host is a namespace with an interface `eth0` and a daemon that shares its IPv4 address.
pub(crate) struct Network {
    folder: Folder,
    name: String,
    daemons: Vec<Running>,
}

impl Network {
    pub(crate) fn start(mtu: u32) -> Self {
        let name = format!("rnic{}", std::process::id());
        let mut network = Self { folder: Folder::new(), name, daemons: Vec::new() };
        let bridge = network.host(HOSTS);
        ip(&format!("netns add {bridge}"));
        ip(&format!("-n {bridge} link add br0 mtu {mtu} type bridge"));
        ip(&format!("-n {bridge} link set br0 up"));
        for at in 0..HOSTS {
            let host = network.host(at);
            ip(&format!("netns add {host}"));
            ip(&format!("-n {host} link set lo up"));
            ip(&format!(
                "-n {host} link add eth0 mtu {mtu} type veth peer name p{at} mtu {mtu} netns {bridge}"
            ));
            ip(&format!("-n {bridge} link set p{at} master br0 up"));
            ip(&format!("-n {host} addr add {}/24 dev eth0", address(at)));
            ip(&format!("-n {host} link set eth0 up"));
        }
        for at in 0..HOSTS {
            let mut command = network.inside(at);
            command.arg(built().join("rnic")).args(["daemon", "--addr", &address(at), "--socket"]);
            let daemon = Running::start(&network.folder, command.arg(network.socket(at)));
            network.daemons.push(daemon);
        }
        let begin = Instant::now();
        for at in 0..HOSTS {
            while UnixStream::connect(network.socket(at)).is_err() {
                assert!(begin.elapsed() < LIMIT, "the daemon of host {at} does not listen");
                sleep(Duration::from_millis(5));
            }
        }
        network
    }

    /// The namespace of a host; that after the last is the bridge's.
    fn host(&self, at: usize) -> String {
        format!("{}-{at}", self.name)
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("host{at}.sock"))
    }

    fn inside(&self, at: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(at)]);
        command
    }

    /// A program on a host, under `rnic run`.
    pub(crate) fn begin(&self, at: usize, line: &str) -> Running {
        let mut command = self.inside(at);
        command.arg(built().join("rnic")).args(["run", "--explain", "--"]).args(line.split(' '));
        command
            .env("RNIC_DAEMON", self.socket(at))
            .env("RNIC_RUN_DIR", self.folder.path().join(format!("run{at}")));
        Running::start(&self.folder, &mut command)
    }

    /// The sum of a counter on a host.
    pub(crate) fn counted(&self, at: usize, counter: &str) -> (u64, usize) {
        let mut command = lab::rnic(&self.folder);
        command.args(["show", "counters", "-j"]).env("RNIC_DAEMON", self.socket(at));
        let output = command.output().expect("rnic");
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        (rows.iter().filter_map(|row| row[counter].as_u64()).sum(), rows.len())
    }

    /// Waits until something that is printed, by a daemon or a program, contains a text.
    fn await_text(&self, text: &str) {
        let begin = Instant::now();
        loop {
            let files = fs::read_dir(self.folder.path()).expect("a folder").flatten();
            let mut texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            if texts.any(|printed| printed.contains(text)) {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "nobody says `{text}`");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            if !daemon.has_ended() {
                daemon.terminate();
            }
        }
        let begin = Instant::now();
        while self.daemons.iter_mut().any(|daemon| !daemon.has_ended()) && begin.elapsed() < LIMIT {
            sleep(Duration::from_millis(5));
        }
        for at in 0..=HOSTS {
            // One that was not made yet cannot be deleted.
            let _ = Command::new("ip").args(["netns", "del", &self.host(at)]).output();
        }
    }
}

fn address(at: usize) -> String {
    format!("10.9.0.{}", at + 1)
}

pub(crate) fn possible() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root can make network namespaces with addresses");
    }
    is_root
        && installed_library(LIBRARY)
        && ["ip", "rping", "ib_write_bw", "ibv_devinfo"].into_iter().all(has)
}

/// Eight programs on each host, all at once: each pair of hosts runs four kinds.
fn all_pairs_talk(mtu: u32, path_mtu: &str) {
    if !possible() {
        return;
    }
    let _alone = lab::alone();
    let network = Network::start(mtu);
    let shown = network.begin(0, "ibv_devinfo -v").wait(LIMIT);
    assert!(shown.text.contains(&format!("active_mtu:\t\t{path_mtu} ")), "{}", shown.text);
    let pairs = (0..HOSTS).flat_map(|at| KINDS.map(|kind| (at, (at + 1) % HOSTS, kind)));
    let server = |(at, to, kind): (usize, usize, &str)| {
        let line = kind.replace('&', &lab::free_port().to_string());
        let role = if line.starts_with("rping") { " -s" } else { "" };
        (network.begin(to, &format!("{line}{role}")), at, to, line)
    };
    let servers: Vec<_> = pairs.map(server).collect();
    // Twelve servers start at once, on two processors. Some of them listen for connections of RDMA, which nothing shows.
    sleep(Duration::from_secs(6));
    let client = |(server, at, to, line): (Running, usize, usize, String)| {
        let role = if line.starts_with("rping") { " -c -a" } else { "" };
        let client = network.begin(at, &format!("{line}{role} {}", address(to)));
        (server, client, format!("{at} to {to}: {line}"))
    };
    let all: Vec<_> = servers.into_iter().map(client).collect();
    for (server, client, line) in all {
        let client = client.wait(LIMIT);
        let text = client.text.clone();
        let ends = [server.wait(LIMIT), client];
        assert_eq!(faults(&ends, |_, _| None), None, "{line}; the client: {text}");
    }
    for at in 0..HOSTS {
        // ibv_devinfo was another one on the first.
        assert_eq!(network.counted(at, "tx_packets").1, 8 + usize::from(at == 0));
        assert_eq!(network.counted(at, "dropped_misrouted").0 + network.counted(at, "dropped_bad_icrc").0, 0);
        let (sent, segments) = (network.counted(at, "rx_bytes").0, network.counted(at, "rx_packets").0);
        assert!(sent > 30 << 20 && segments > sent / 4200, "{sent} bytes in {segments} packets");
    }
}

#[test]
fn three_hosts_with_daemons_and_eight_programs_each_talk_over_ethernet() {
    all_pairs_talk(1500, "1024");
}

#[test]
fn three_hosts_with_daemons_and_eight_programs_each_talk_over_jumbo_frames() {
    all_pairs_talk(9000, "4096");
}

#[test]
fn a_link_that_is_down_for_a_second_is_survived_or_told_and_an_address_that_goes_is_reported() {
    if !possible() {
        return;
    }
    let _alone = lab::alone();
    let network = Network::start(1500);
    let port = lab::free_port();
    let server = network.begin(1, &format!("ib_write_bw -D 6 -p {port}"));
    sleep(Duration::from_millis(1000));
    let client = network.begin(0, &format!("ib_write_bw -D 6 -p {port} {}", address(1)));
    // Retries for longer than a second: that is what the option is for.
    let patient = lab::free_port();
    let patient_server = network.begin(1, &format!("ib_write_bw -u 18 -D 6 -p {patient}"));
    sleep(Duration::from_millis(1000));
    let patient_client = network.begin(0, &format!("ib_write_bw -u 18 -D 6 -p {patient} {}", address(1)));
    sleep(Duration::from_millis(1500));
    ip(&format!("-n {} link set eth0 down", network.host(0)));
    network.await_text("up=false");
    sleep(Duration::from_secs(1));
    ip(&format!("-n {} link set eth0 up", network.host(0)));
    let ends = [patient_server.wait(LIMIT), patient_client.wait(LIMIT)];
    assert_eq!(faults(&ends, |_, _| None), None);
    // With the default, seven retries after 67 ms and more, it may go either way.
    let client = client.wait(LIMIT);
    assert!(client.fault().is_none() || client.text.contains("RETRY_EXC_ERR"), "{}", client.text);
    drop(server);
    let shown = || network.begin(0, "ibv_devinfo").wait(LIMIT).text;
    assert!(shown().contains("PORT_ACTIVE"), "{}", shown());
    ip(&format!("-n {} addr del {}/24 dev eth0", network.host(0), address(0)));
    network.await_text("there=false");
    assert!(shown().contains("is not an address of this host"), "{}", shown());
}
