//! Tools that look at devices from outside: infiniband-diags, `rdma` of iproute2, and the Prometheus node_exporter.

use crate::lab::{self, Folder, LIMIT, Running, built, has, rnic};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The value behind a name and a colon.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

#[test]
fn ibstat_tells_of_the_port() {
    if !has("ibstat") {
        return;
    }
    let folder = Folder::new();
    let options = ["--addr", "127.90.5.1", "--device-name", "mlx5_0"];
    let ended = Running::start(&folder, &mut lab::run(&folder, &options, "ibstat")).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.starts_with("CA 'mlx5_0'"), "{}", ended.text);
    for (name, expected) in [
        ("Number of ports", "1"),
        ("Node GUID", "0x504e7ffffe5a0501"),
        ("State", "Active"),
        ("Physical state", "LinkUp"),
        ("Rate", "100"),
        ("Link layer", "Ethernet"),
    ] {
        assert_eq!(value(&ended.text, name), Some(expected), "{name} in:\n{}", ended.text);
    }
}

/// What `rdma` prints for two devices, and whether it succeeds.
fn rdma(folder: &Folder, arguments: &[&str]) -> (String, bool) {
    let options = ["--addr", "127.90.5.6,127.90.5.7"];
    let ended = Running::start(folder, lab::run(folder, &options, "rdma").args(arguments)).wait(LIMIT);
    assert!(ended.status.is_some(), "rdma {arguments:?} took too long:\n{}", ended.text);
    (ended.text.clone(), ended.fault().is_none())
}

/// iproute2 asks the kernel by netlink. The answers agree with the file system.
#[test]
fn rdma_lists_devices_and_links() {
    if !has("rdma") {
        return;
    }
    let folder = Folder::new();
    let json = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let (text, succeeds) = rdma(&folder, arguments);
        assert!(succeeds, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
    };
    let devices = json(&["-j", "dev"]);
    let names: Vec<_> = devices.iter().map(|device| (&device["ifindex"], &device["ifname"])).collect();
    assert_eq!(names, [(&0.into(), &"rnic0".into()), (&1.into(), &"rnic1".into())]);
    let options = ["--addr", "127.90.5.6,127.90.5.7"];
    for (file, key) in [("node_guid", "node_guid"), ("sys_image_guid", "sys_image_guid"), ("fw_ver", "fw")] {
        let mut cat = lab::run(&folder, &options, "cat");
        let shown =
            Running::start(&folder, cat.arg(format!("/sys/class/infiniband/rnic1/{file}"))).wait(LIMIT);
        assert_eq!(devices[1][key], shown.text.trim_end(), "{key}");
    }
    let links = json(&["-j", "-d", "link"]);
    let [first, second] = links.as_slice() else { panic!("two links, not {links:?}") };
    assert_eq!(json(&["-j", "-d", "link", "show", "rnic0/1"]), std::slice::from_ref(first));
    for (key, value) in
        [("ifname", "rnic1"), ("state", "ACTIVE"), ("physical_state", "LINK_UP"), ("netdev", "lo")]
    {
        assert_eq!(second[key], value, "{key}");
    }
    let (plain, succeeds) = rdma(&folder, &["link"]);
    let lines: Vec<_> = plain.lines().map(str::trim_end).collect();
    let line = |name| format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev lo");
    assert_eq!((lines, succeeds), (vec![&*line("rnic0"), &*line("rnic1")], true));
    let (detailed, succeeds) = rdma(&folder, &["-d", "dev", "show", "rnic0"]);
    assert!(detailed.starts_with("0: rnic0: node_type ca ") && succeeds, "{detailed}");
    assert!(detailed.contains("RC_RNR_NAK_GEN"), "{detailed}");
    let (system, succeeds) = rdma(&folder, &["system"]);
    assert!(system.contains("netns shared") && succeeds, "{system}");
}

#[test]
fn rdma_is_refused_what_no_device_here_does() {
    if !has("rdma") {
        return;
    }
    let folder = Folder::new();
    for arguments in [
        &["resource", "show", "mr"][..],
        &["resource", "show", "cq"],
        &["resource", "show", "cm_id"],
        &["statistic", "mode"],
        &["link", "add", "rxe0", "type", "rxe", "netdev", "lo"],
        &["dev", "set", "rnic0", "name", "other"],
    ] {
        let (text, succeeds) = rdma(&folder, arguments);
        assert!(!succeeds && text.contains("Operation not supported"), "rdma {arguments:?}: {text}");
    }
}

/// `rdma statistic` shows what programs count that run at the address, as files do: what belongs to one priority, to
/// connection management or to the simulated link is in files only.
#[test]
fn rdma_tells_of_the_counters_of_running_programs() {
    if !has("rdma") || !has("ibv_rc_pingpong") {
        return;
    }
    let folder = Folder::new();
    let port = lab::free_port();
    let pingpong = |address: &str, peer: &[&str]| {
        let mut command = lab::run(&folder, &["--addr", address], "ibv_rc_pingpong");
        command.args(["-e", "-g", "0", "-n", "100000000", "-p", &port.to_string()]).args(peer);
        Running::start(&folder, &mut command)
    };
    let mut server = pingpong("127.90.5.8", &[]);
    assert!(lab::await_listener(port, &mut server), "{}", server.text());
    let mut client = pingpong("127.90.5.9", &["127.0.0.1"]);
    let tool = |program: &str, arguments: &[&str]| {
        let mut command = lab::run(&folder, &["--addr", "127.90.5.9"], program);
        let ended = Running::start(&folder, command.args(arguments)).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{}", ended.text);
        ended.text.clone()
    };
    let statistic = || -> serde_json::Map<String, serde_json::Value> {
        let text = tool("rdma", &["-j", "statistic", "show", "link", "rnic0/1"]);
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        let [serde_json::Value::Object(one)] = all.as_slice() else { panic!("not one link: {text}") };
        one.clone()
    };
    let start = Instant::now();
    let counted = loop {
        let counters = statistic();
        if counters["sent_pkts"].as_u64().is_some_and(|sent| sent > 100) {
            break counters;
        }
        assert!(!client.has_ended() && start.elapsed() < LIMIT, "never counted: {counters:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(counted["rdma_sends"].as_u64() > Some(0) && counted["dropped_stranger"] == 0, "{counted:?}");
    let files = tool("ls", &["/sys/class/infiniband/rnic0/ports/1/hw_counters"]);
    let mut expected: Vec<_> = files.split_whitespace().filter(|name| !name.contains("_prio")).collect();
    expected.retain(|name| !["cm_", "link_", "lifespan"].iter().any(|in_files| name.starts_with(in_files)));
    let mut told: Vec<_> = counted.keys().filter(|key| !["ifname", "port"].contains(&key.as_str())).collect();
    told.sort();
    assert!(told.len() > 50 && told == expected, "{told:?}\n{expected:?}");
    assert!(tool("rdma", &["statistic"]).starts_with("link rnic0/1 "));
    assert_eq!(tool("rdma", &["statistic", "qp", "show"]), "", "no counter is bound to a queue pair");

    // The queue pairs, as `rnic show` has them.
    let json = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let text = tool("rdma", arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
    };
    let listed = json(&["-j", "resource", "show", "qp"]);
    let [one] = listed.as_slice() else { panic!("not one queue pair: {listed:?}") };
    for (key, value) in [("ifname", "rnic0"), ("type", "RC"), ("state", "RTS"), ("comm", "ibv_rc_pingpong")] {
        assert_eq!(one[key], value, "{key} in {one}");
    }
    let shown = rnic(&folder).args(["show", "qp", "--json"]).output().expect("rnic").stdout;
    let shown: Vec<serde_json::Value> = serde_json::from_slice(&shown).expect("JSON");
    let same = shown.iter().find(|row| row["pid"] == one["pid"]).expect("the program of the queue pair");
    let number = |text: &serde_json::Value| {
        let digits = text.as_str().and_then(|text| text.strip_prefix("0x")).expect("a hexadecimal number");
        u64::from_str_radix(digits, 16).expect("a number")
    };
    let told = [&one["lqpn"], &one["rqpn"]].map(|value| value.as_u64());
    assert_eq!(told, [Some(number(&same["lqpn"])), Some(number(&same["peer_qpn"]))]);
    let filter = format!("{}", one["lqpn"]);
    let found = json(&["-j", "resource", "show", "qp", "link", "rnic0/1", "lqpn", &filter]);
    assert!(found.len() == 1 && found[0]["pid"] == one["pid"], "{found:?}");
    assert_eq!(json(&["-j", "resource"])[0]["qp"], 1);
    client.kill();
    server.kill();
}

/// Programs name a device. Verbs, the file system and `rnic show` agree about it.
#[test]
fn devices_have_the_names_that_they_are_given() {
    if !has("ibv_rc_pingpong") {
        return;
    }
    let folder = Folder::new();
    let options = ["--addr", "127.90.5.2,127.90.5.3", "--device-name", "mlx5_%d"];
    let ends = lab::meet(&folder, [&(), &()], |port, ()| {
        let mut command =
            lab::run(&folder, &["--addr", "127.90.5.4,127.90.5.5", "--devices", "1"], "ibv_rc_pingpong");
        command.env("RNIC_DEVICE_NAME", "mlx5_7").args(["-d", "mlx5_7", "-g", "3", "-p", port]);
        command
    });
    assert_eq!(lab::faults(&ends, |_, _| None), None);
    let listed =
        Running::start(&folder, lab::run(&folder, &options, "ls").arg("/sys/class/infiniband")).wait(LIMIT);
    assert_eq!((listed.fault(), &*listed.text), (None, "mlx5_0\nmlx5_1\n"));
    let shown = rnic(&folder).args(["show", "gid", "--json"]).args(options).output().expect("rnic").stdout;
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown).expect("JSON");
    let names: Vec<_> = rows.iter().map(|row| (&row["ifname"], &row["address"])).collect();
    assert_eq!(names, [(&"mlx5_0".into(), &"127.90.5.2".into()), (&"mlx5_1".into(), &"127.90.5.3".into())]);
}

/// The two also agree without options: a program's device has the first free loopback address.
#[test]
fn show_names_the_device_that_a_program_would_get() {
    if !has("ibv_devinfo") {
        return;
    }
    let _alone = lab::alone();
    let folder = Folder::new();
    let shown = || {
        let shown = rnic(&folder).args(["show", "link", "--json"]).output().expect("rnic").stdout;
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown).expect("JSON");
        let named: Vec<_> = rows.iter().filter(|row| !row["ifname"].is_null()).collect();
        let [device] = named.as_slice() else { panic!("one device has a name, not {named:?}") };
        assert_eq!((&device["ifname"], &device["port_state"]), (&"rnic0".into(), &"free".into()));
        device["address"].as_str().expect("an address").to_owned()
    };
    // Another program may take the address, or leave it, in between.
    for _ in 0..20 {
        let address = shown();
        let ended = Running::start(&folder, lab::run(&folder, &[], "ibv_devinfo").arg("-v")).wait(LIMIT);
        if shown() == address {
            assert!(
                ended.text.contains(&format!("::ffff:{address}, RoCE v2")),
                "{address} in {}",
                ended.text
            );
            return;
        }
    }
    panic!("addresses come and go all the time");
}

/// The response of an HTTP server to a request for `/metrics`; `None` while nothing listens at the port.
pub(crate) fn metrics(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// node_exporter with its infiniband collector on this folder, and its TCP port.
pub(crate) fn node_exporter(folder: &Folder, sys: &Path) -> (u16, Running) {
    let port = lab::free_port();
    let mut exporter = Command::new("prometheus-node-exporter");
    exporter.args(["--collector.disable-defaults", "--collector.infiniband"]);
    exporter.arg(format!("--path.sysfs={}", sys.display()));
    exporter.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    (port, Running::start(folder, &mut exporter))
}

/// node_exporter is written in Go, so its system calls cannot be redirected: an option points it to a directory.
#[test]
fn node_exporter_reads_the_counters_of_running_programs() {
    if !has("prometheus-node-exporter") || !has("ib_write_bw") {
        return;
    }
    let _alone = lab::alone();
    let folder = Folder::new();
    let sys = folder.path().join("sys");
    let mut sysfs = Command::new(built().join("rnic"));
    sysfs.env("RNIC_RUN_DIR", folder.path().join("run")).arg("sysfs").arg(&sys);
    let sysfs = Running::start(&folder, &mut sysfs);
    let (port, mut exporter) = node_exporter(&folder, &sys);
    let meeting = lab::free_port().to_string();
    let bandwidth = |address: &str, peer: &[&str]| {
        let mut command = lab::run(&folder, &["--addr", address], "ib_write_bw");
        command.args(["-F", "-D", "4", "-p", &meeting]).args(peer);
        Running::start(&folder, &mut command)
    };
    let server = bandwidth("127.90.6.1", &[]);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = bandwidth("127.90.6.2", &["127.0.0.1"]);
    let name = "node_infiniband_port_data_transmitted_bytes_total{device=\"rnic0_127.90.6.2\",port=\"1\"} ";
    let start = Instant::now();
    let sent = loop {
        let text = metrics(port).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        if let Some(sent) = value.filter(|sent| *sent > 1e6) {
            break sent;
        }
        assert!(!client.has_ended() && start.elapsed() < LIMIT, "never counted: {text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("{sent} bytes by then");
    let ends = [server.wait(LIMIT), client.wait(LIMIT)];
    assert_eq!(lab::faults(&ends, |_, _| None), None);
    exporter.kill();
    sysfs.terminate();
    let ended = sysfs.wait(LIMIT);
    assert_eq!((ended.fault(), sys.exists()), (None, false), "{}", ended.text);
}
