//! The cases.

use super::fabric::{Fabric, installed, rnic, text};
use super::graph::{Graph, Tables};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const LEAF_SPINE: &str = r#"
name = "managed"
about = "Two leaves and two spines that a subnet manager configures."
until = "10 ms"

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2

[switch]
model = "infiniband"

[[workload]]
pattern = "incast"
to = "host3"
bytes = "1 MB"
priority = 0
"#;

const FAT_TREE: &str = r#"
name = "fat-tree"
about = "A fat tree that a subnet manager configures."
until = "1 ms"

[topology]
kind = "fat-tree"
k = 4
"#;

/// Five switches in a ring, each with a host, which sends to the second next. Shortest ways form a circle.
const RING: &str = r#"
name = "ring"
about = "A ring that a subnet manager configures."
until = "5 ms"

[topology]
kind = "ring"
switches = 5
hosts_per_switch = 1

[switch]
model = "infiniband"

[nic]
timeout = 8

[[workload]]
pattern = "flows"
priority = 0
flow = [
    { from = "host0", to = "host2", name = "a" },
    { from = "host1", to = "host3", name = "b" },
    { from = "host2", to = "host4", name = "c" },
    { from = "host3", to = "host0", name = "d" },
    { from = "host4", to = "host1", name = "e" },
]
"#;

/// The subnet as ibnetdiscover sees it from a host, which has to be what rnic says of the topology.
pub(crate) fn discover(fabric: &Fabric, host: &str) -> Graph {
    let seen = Graph::read(&fabric.program(host, "ibnetdiscover", &[]));
    let topo = rnic(fabric.folder(), &["fabric", "topo", "fabric.toml", "--ibnet"]);
    let told = Graph::read(&text(&topo.stdout));
    assert!(!told.cables.is_empty());
    assert_eq!((&seen.cables, &seen.guids, &seen.switches), (&told.cables, &told.guids, &told.switches));
    seen
}

fn tables(fabric: &Fabric) -> Tables {
    Tables::read(&fabric.folder().join("tables.toml")).expect("tables were saved")
}

/// Whether all walks of all pairs of hosts arrive over this many cables at most.
fn all_arrive(graph: &Graph, tables: &Tables, most: usize) -> Result<(), String> {
    for from in graph.hosts() {
        for to in graph.hosts().into_iter().filter(|to| *to != from) {
            let way = graph.walk(tables, &from, &to);
            if way.as_ref().is_none_or(|way| way.len() > most) {
                return Err(format!("{from} to {to}: {way:?}"));
            }
        }
    }
    Ok(())
}

fn have_lids(graph: &Graph) {
    let lids: BTreeSet<u16> = graph.lids.values().copied().collect();
    assert_eq!(
        (lids.len(), graph.lids.len()),
        (graph.guids.len(), graph.guids.len()),
        "LIDs are unique: {lids:?}"
    );
    assert!(!lids.contains(&0));
}

/// OpenSM configures a scenario's fabric once, and all pairs of hosts reach each other.
fn configured(test: &str, scenario: &str, most: usize) -> Option<(Fabric, Graph)> {
    let library = installed(&["opensm", "ibnetdiscover"])?;
    let fabric = Fabric::serve(test, scenario, library);
    let log = fabric.configure(&[]);
    assert!(log.contains("SUBNET UP"), "{log}");
    fabric.until("All links are active");
    let graph = discover(&fabric, "host1");
    have_lids(&graph);
    all_arrive(&graph, &tables(&fabric), most).unwrap();
    Some((fabric, graph))
}

#[test]
fn opensm_configures_a_leaf_spine() {
    let Some((mut fabric, graph)) = configured("leaf-spine", LEAF_SPINE, 4) else { return };
    assert_eq!((graph.cables.len(), graph.switches.len()), (16, 4));
    if installed(&["iblinkinfo", "ibstat", "perfquery"]).is_none() {
        return;
    }
    let links = fabric.program("host2", "iblinkinfo", &["-l"]);
    let active = links.lines().filter(|line| line.contains("Active/  LinkUp")).count();
    assert_eq!(active, 16, "each end of each cable\n{links}");
    let state = fabric.program("host3", "ibstat", &[]);
    let lid = format!("Base lid: {}", graph.lids["host3"]);
    assert!(state.contains("State: Active") && state.contains(&lid), "{state}");
    // A megabyte from each of the others to host3, and not before virtual time moves on.
    let counters = |fabric: &Fabric, host: &str| {
        let printed = fabric.program("host1", "perfquery", &["-x", &graph.lids[host].to_string(), "1"]);
        let number = |name: &str| -> u64 {
            let line = printed
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name}\n{printed}"));
            line.rsplit('.').next().unwrap().trim().parse().unwrap()
        };
        (number("PortXmitData"), number("PortRcvData"))
    };
    let before = [counters(&fabric, "host0"), counters(&fabric, "host3")];
    let told = fabric.tell("run 5 ms", "at 5ms");
    assert!(told.contains(" 0 dropped") && told.contains("3 flows finished"), "{told}");
    let after = [counters(&fabric, "host0"), counters(&fabric, "host3")];
    let (sent, came) = (after[0].0 - before[0].0, after[1].1 - before[1].1);
    // 250,000 words of data in packets of 4 KiB, each with headers of 8 + 12 bytes and 4 of ICRC, the first with 16 more.
    let least = 250_000 + 245 * 24 / 4;
    assert!((least..least + 2_000).contains(&sent), "{sent}");
    assert!((3 * least..3 * (least + 2_000)).contains(&came), "{came}");
}

#[test]
fn opensm_configures_a_fat_tree() {
    let Some((_, graph)) = configured("fat-tree", FAT_TREE, 6) else { return };
    assert_eq!((graph.cables.len(), graph.switches.len()), (96, 20));
}

#[test]
fn opensm_routes_around_a_cut_cable_and_answers_queries() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "sminfo", "saquery", "ibqueryerrors"]) else {
        return;
    };
    let mut fabric = Fabric::serve("cut", LEAF_SPINE, library);
    // Sweeps only when a trap tells that something has changed.
    let _opensm = fabric.manage("host0", &["-s", "0"]);
    fabric.until("All links are active");
    let graph = discover(&fabric, "host1");
    have_lids(&graph);
    all_arrive(&graph, &tables(&fabric), 4).unwrap();
    let manager = fabric.program("host3", "sminfo", &[]);
    assert!(
        manager.contains("SMINFO_MASTER") && manager.contains(&format!("sm lid {}", graph.lids["host0"])),
        "{manager}"
    );
    let nodes = fabric.program("host3", "saquery", &["NR", &graph.lids["host2"].to_string()]);
    assert!(nodes.contains("host2 rnic0"), "{nodes}");
    let errors = fabric.program("host1", "ibqueryerrors", &[]);
    assert!(errors.contains("8 nodes checked, 0 bad nodes found"), "{errors}");
    cut_and_wait(&mut fabric, &graph);
}

/// Whether walks between hosts use the cable between a leaf and a spine.
fn uses(graph: &Graph, tables: &Tables, leaf: &str, spine: &str) -> bool {
    let hosts = graph.hosts();
    let pairs =
        hosts.iter().flat_map(|from| hosts.iter().map(move |to| (from, to))).filter(|(from, to)| from != to);
    pairs.filter_map(|(from, to)| graph.walk(tables, from, to)).flatten().any(|end| {
        let far = &graph.cables[&end].0;
        end.0 == leaf && far == spine || end.0 == spine && far == leaf
    })
}

/// Cuts a cable that is used, and waits until the subnet manager has written tables that do without it.
fn cut_and_wait(fabric: &mut Fabric, graph: &Graph) {
    assert!(uses(graph, &tables(fabric), "leaf0", "spine1"), "so that it matters whether the cable is there");
    fabric.tell("cut leaf0>spine1", "cut leaf0-spine1");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let arrive = Tables::read(&fabric.folder().join("tables.toml"));
        let arrive = arrive
            .filter(|tables| all_arrive(graph, tables, 4).is_ok() && !uses(graph, tables, "leaf0", "spine1"));
        if arrive.is_some() {
            break;
        }
        assert!(Instant::now() < end, "OpenSM does not route around the cable");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes a file of options of OpenSM; gives its path.
pub(crate) fn options_of_opensm(fabric: &Fabric, options: &str) -> String {
    let path = fabric.folder().join("opensm.conf");
    std::fs::write(&path, options).unwrap();
    path.to_str().unwrap().to_owned()
}

/// How OpenSM looks after the master while it stands by: often, so that a test need not wait for minutes.
const STANDBY: &str = "sminfo_polling_timeout 500\npolling_retry_number 2\ntransaction_timeout 200\n";

#[test]
fn of_two_subnet_managers_one_is_master_and_the_other_takes_over() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "sminfo"]) else { return };
    let mut fabric = Fabric::serve("two-managers", LEAF_SPINE, library);
    let options = options_of_opensm(&fabric, STANDBY);
    let high = fabric.manage("host3", &["-F", &options, "-s", "1", "-p", "9"]);
    fabric.until("All links are active");
    fabric.until_printed("host1", "sminfo", &[], "priority 9 state 3 SMINFO_MASTER");
    let graph = discover(&fabric, "host1");
    have_lids(&graph);
    // One of a lower priority finds the master, and stands by.
    let _low = fabric.manage("host0", &["-F", &options, "-s", "1", "-p", "3"]);
    let second = graph.lids["host0"].to_string();
    fabric.until_printed("host1", "sminfo", &[&second], "priority 3 state 2 SMINFO_STANDBY");
    fabric.until_printed("host1", "sminfo", &[], "priority 9 state 3 SMINFO_MASTER");
    // The master dies: the one that stands by finds out, and heals the subnet from then on.
    drop(high);
    fabric.until_printed("host1", "sminfo", &[], "priority 3 state 3 SMINFO_MASTER");
    cut_and_wait(&mut fabric, &graph);
    // A second one at the same node is refused, and people hear of it.
    let _second = fabric.manage("host0", &["-s", "0"]);
    fabric.until("refused: a second subnet manager at one node");
}

/// How OpenSM does not look after the other one at all: in the test that uses it, only a handover makes one master.
const NO_POLLING: &str = "sminfo_polling_timeout 600000\n";

#[test]
fn a_master_hands_over_to_one_of_a_higher_priority_that_comes_later() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "sminfo"]) else { return };
    let mut fabric = Fabric::serve("handover", LEAF_SPINE, library);
    let options = options_of_opensm(&fabric, NO_POLLING);
    // Neither sweeps by itself: what happens follows from traps.
    let _low = fabric.manage("host0", &["-F", &options, "-s", "0", "-p", "3"]);
    fabric.until("All links are active");
    fabric.until_printed("host1", "sminfo", &[], "priority 3 state 3 SMINFO_MASTER");
    let graph = discover(&fabric, "host1");
    let _high = fabric.manage("host3", &["-F", &options, "-s", "0", "-p", "9"]);
    fabric.until_printed("host1", "sminfo", &[], "priority 9 state 3 SMINFO_MASTER");
    let first = graph.lids["host0"].to_string();
    fabric.until_printed("host1", "sminfo", &[&first], "priority 3 state 2 SMINFO_STANDBY");
    // The new one is master in fact: switches tell it of their links, and it heals the subnet.
    cut_and_wait(&mut fabric, &graph);
}

const ALL_REDUCE: &str = r#"
name = "all-reduce"
about = "Switches add along the tree that a subnet manager has written."
until = "5 ms"

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2

[switch]
model = "infiniband"
reduction = { slots = 64 }

[[workload]]
pattern = "collective"
collective = "all-reduce"
algorithm = "in-network"
bytes = "64 KiB"
priority = 0
"#;

/// The ports of switches that lead to the members of the only group, by the names of the switches.
fn group_ports(fabric: &Fabric) -> Option<BTreeMap<String, Vec<i64>>> {
    let table: toml::Table =
        toml::from_str(&std::fs::read_to_string(fabric.folder().join("tables.toml")).ok()?).ok()?;
    let (_, lid) = table.get("group")?.as_table()?.iter().next()?;
    let ports = |switch: &toml::Value| {
        let ports = switch.get("mft").and_then(|mft| mft.get(lid.as_str()?)?.as_array());
        ports.into_iter().flatten().filter_map(toml::Value::as_integer).collect()
    };
    let switches = table.get("switch")?.as_table()?.iter();
    Some(switches.map(|(name, switch)| (name.clone(), ports(switch))).collect())
}

/// Hosts join the group at subnet administration. OpenSM cannot use the first spine, over which the fabric's own tree leads.
#[test]
fn a_group_goes_along_the_multicast_tables_of_opensm() {
    let Some(library) = installed(&["opensm"]) else { return };
    let mut fabric = Fabric::serve("multicast", ALL_REDUCE, library);
    fabric.tell("cut leaf0>spine0", "cut leaf0-spine0");
    let _opensm = fabric.manage("host0", &["-s", "0"]);
    fabric.until("All links are active");
    let end = Instant::now() + Duration::from_secs(60);
    let tree = |leaf: &[i64], spine: &[i64]| {
        let names = [("leaf0", leaf), ("leaf1", leaf), ("spine0", &[]), ("spine1", spine)];
        Some(names.map(|(name, ports)| (name.to_owned(), ports.to_vec())).into_iter().collect())
    };
    while group_ports(&fabric) != tree(&[1, 2, 4], &[1, 2]) {
        assert!(Instant::now() < end, "{:?}", group_ports(&fabric));
        std::thread::sleep(Duration::from_millis(50));
    }
    let told = fabric.tell("run 5 ms", "at 5ms");
    assert!(told.contains(" 0 dropped") && told.contains("1 of 1 collective operations finished"), "{told}");
    fabric.tell("status", "multicast group 239.192.0.1 lid 0xc0");
    // The saved tables say the same.
    let replay = format!("{ALL_REDUCE}\n[subnet]\ntables = \"tables.toml\"\n")
        + "\n[[expect]]\nmetric = \"drops.total\"\nis = 0\nsource = \"the tables\"\n"
        + "\n[[expect]]\nmetric = \"all-reduce.fell_back\"\nis = 0\nsource = \"the tables\"\n"
        + "\n[[expect]]\nmetric = \"all-reduce.verified\"\nis = 1\nsource = \"the tables\"\n";
    std::fs::write(fabric.folder().join("replay.toml"), replay).unwrap();
    let output = rnic(fabric.folder(), &["fabric", "run", "replay.toml"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// What a run of the ring with saved tables says: the number of ports that are stuck, and its packets' hops.
fn run_ring(folder: &Path, tables: &str) -> (f64, String) {
    let scenario = format!(
        "{RING}\n[subnet]\ntables = \"{tables}\"\n\n[[expect]]\nmetric = \"stuck\"\nmin = 0\nsource = \"any\"\n"
    );
    std::fs::write(folder.join("replay.toml"), scenario).unwrap();
    let run = || rnic(folder, &["fabric", "run", "replay.toml", "--json", "-"]);
    let output = run();
    assert_eq!(output.stdout, run().stdout, "the same tables and the same seed give the same bytes");
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let told = text(&rnic(folder, &["fabric", "topo", "replay.toml"]).stdout);
    let stuck = find(&document, "stuck").unwrap_or_else(|| panic!("{document}"));
    (stuck, told)
}

/// The first number of this name in a document.
fn find(value: &serde_json::Value, name: &str) -> Option<f64> {
    match value {
        serde_json::Value::Object(entries) => entries
            .get(name)
            .and_then(serde_json::Value::as_f64)
            .or_else(|| entries.values().find_map(|of| find(of, name))),
        serde_json::Value::Array(entries) => entries.iter().find_map(|of| find(of, name)),
        _ => None,
    }
}

#[test]
fn tables_with_a_credit_loop_deadlock_and_others_do_not() {
    let Some(library) = installed(&["opensm", "ibnetdiscover"]) else { return };
    for (engine, has_circle) in [("minhop", true), ("updn", false)] {
        let mut fabric = Fabric::serve(&format!("ring-{engine}"), RING, library);
        // In a ring no switch is a root by itself.
        let topo = rnic(fabric.folder(), &["fabric", "topo", "fabric.toml", "--ibnet"]);
        let root = Graph::read(&text(&topo.stdout)).guids["s0"];
        let roots = fabric.folder().join("roots");
        std::fs::write(&roots, format!("{root:#018x}\n")).unwrap();
        let log = fabric.configure(&["-R", engine, "-a", roots.to_str().unwrap()]);
        assert!(log.contains("SUBNET UP"), "{log}");
        fabric.until("All links are active");
        let graph = discover(&fabric, "host1");
        let tables = tables(&fabric);
        all_arrive(&graph, &tables, 6).unwrap();
        assert_eq!(graph.has_circle(&tables), has_circle, "{engine}");
        let told = fabric.tell("run 5 ms", "at 5ms");
        assert_eq!(told.contains("deadlocked"), has_circle, "{engine}: {told}");
        let (stuck, topo) = run_ring(fabric.folder(), "tables.toml");
        assert_eq!(stuck > 0.0, has_circle, "{engine}: {stuck} ports");
        assert_eq!(topo.contains("lossless traffic can deadlock"), has_circle, "{topo}");
    }
}

#[test]
fn a_subnet_with_a_key_is_closed_to_those_who_do_not_know_it() {
    let Some(library) = installed(&["opensm", "ibnetdiscover"]) else { return };
    let fabric = Fabric::serve("key", LEAF_SPINE, library);
    let options = options_of_opensm(&fabric, "m_key 0x77\nm_key_protection_level 2\n");
    let log = fabric.configure(&["-F", &options]);
    assert!(log.contains("SUBNET UP"), "{log}");
    fabric.until("All links are active");
    let seen = Graph::read(&fabric.program("host1", "ibnetdiscover", &["-y", "0x77"]));
    assert_eq!((seen.cables.len(), seen.switches.len()), (16, 4));
    let blind = fabric.try_program("host1", "ibnetdiscover", &[]).unwrap_or_else(|printed| printed);
    assert!(!blind.contains("spine0"), "{blind}");
}

/// A program whose socket for datagrams is not there (or belongs to another connection) waits for the answer to its first words without a
/// timeout: it is told that it cannot take part.
#[test]
fn a_program_that_cannot_be_reached_is_told() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let fabric = Fabric::serve("unreachable", LEAF_SPINE, "");
    let address = |end: &str| SocketAddr::from_abstract_name(format!("{}:{end}\0", fabric.socket())).unwrap();
    let control = UnixDatagram::bind_addr(&address("ctl7")).unwrap();
    control.connect_addr(&address("ctl")).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // In the order of the machine: a magic number, no slot yet, CONNECT, the length, and the number of the process.
    let mut connect = [0; 80];
    for (at, number) in [(0, 0xDEAD_BEEF_u32), (8, 1), (12, 44), (16, 7)] {
        connect[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    let ask = || {
        control.send(&connect).unwrap();
        let mut answer = [0; 80];
        let length = control.recv(&mut answer).expect("an answer");
        assert_eq!(length, 80);
        u32::from_ne_bytes([answer[8], answer[9], answer[10], answer[11]])
    };
    assert_eq!(ask(), 0, "an error");
    let _in = UnixDatagram::bind_addr(&address("in7")).unwrap();
    assert_eq!(ask(), 1, "it takes part");
}
