//! Congestion control by OpenSM and the programs of infiniband-diags.

use crate::cases::{LEAF_SPINE, discover, options_of_opensm};
use crate::fabric::{Fabric, installed, rnic, text};

/// What ibccquery prints, in lower case: names and values, without the dots between them.
fn query(fabric: &Fabric, args: &[&str]) -> Vec<String> {
    let printed = fabric.program("host1", "ibccquery", args).to_lowercase();
    let lines = printed.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| format!("{name}={}", value.trim_start_matches('.').trim())).collect()
}

fn has(lines: &[String], wanted: &[&str]) {
    for line in wanted {
        assert!(lines.iter().any(|there| there == line), "{line}: {lines:#?}");
    }
}

/// The value of a line.
fn number(lines: &[String], name: &str) -> u64 {
    let value = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = value.unwrap_or_else(|| panic!("{name}: {lines:#?}"));
    let hex = value.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
    hex.unwrap_or_else(|| value.parse()).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// OpenSM programs congestion control. The most aggressive threshold, packets from 512 bytes on, one in four; a table that counts.
const CONGESTION: &str = "congestion_control TRUE
cc_sw_cong_setting_control_map 0x14
cc_sw_cong_setting_threshold 0x0F
cc_sw_cong_setting_packet_size 8
cc_sw_cong_setting_marking_rate 3
cc_ca_cong_setting_control_map 0x0001
cc_ca_cong_setting_ccti_timer 0 150
cc_ca_cong_setting_ccti_increase 0 1
cc_cct 0:0,0:1,0:2,1:6
";

#[test]
fn opensm_programs_congestion_control() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "ibccquery"]) else { return };
    let scenario = LEAF_SPINE.replace("[switch]", "[nic]\ncc = \"ibcc\"\n\n[switch]");
    let fabric = Fabric::serve("congestion", &scenario, library);
    let options = options_of_opensm(&fabric, CONGESTION);
    let log = fabric.configure(&["-F", &options]);
    assert!(log.contains("SUBNET UP") && !log.contains("ERR C1"), "{log}");
    fabric.until("All links are active");
    let graph = discover(&fabric, "host1");
    let query = |what: &str, node: &str| query(&fabric, &[what, &graph.lids[node].to_string()]);
    let switch = query("SwitchCongestionSetting", "spine1");
    has(&switch, &["threshold=0x0f", "packet_size=8", "marking_rate=3"]);
    let host = query("CACongestionSetting", "host2");
    has(&host, &["ccti_timer=150", "ccti_increase=1"]);
    let table = query("CongestionControlTable", "host2");
    has(&table, &["ccti_limit=3"]);
    // Without tables nothing is marked: the scenario says nothing of it.
    let marks = |tables: &str, bound: &str| {
        let expect = format!("[[expect]]\nmetric = \"marked\"\n{bound}\nsource = \"the switches\"\n");
        std::fs::write(fabric.folder().join("replay.toml"), format!("{scenario}\n{tables}\n{expect}"))
            .unwrap();
        let output = rnic(fabric.folder(), &["fabric", "run", "replay.toml"]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    };
    marks("", "is = 0");
    marks("[subnet]\ntables = \"tables.toml\"\n", "min = 10");
}

/// How OpenSM programs a table for service level 0 whose notifications are logged at once. The timer expires after 67 ms.
fn options_with(table: &str) -> String {
    format!(
        "congestion_control TRUE\ncc_sw_cong_setting_control_map 0x14\ncc_sw_cong_setting_threshold 0x0F\n\
         cc_sw_cong_setting_marking_rate 0\ncc_ca_cong_setting_control_map 0x0001\n\
         cc_ca_cong_setting_ccti_timer 0 65535\ncc_ca_cong_setting_ccti_increase 0 1\n\
         cc_ca_cong_setting_trigger_threshold 0 1\ncc_cct {table}\n"
    )
}

/// Three hosts send a megabyte each to a fourth, in 250 us at 100 Gb/s. With the other table each sends at a tenth of the rate as soon
/// as a packet was marked, for 840 us.
#[test]
fn hosts_slow_down_by_the_table_that_opensm_writes() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "ibccquery"]) else { return };
    for (name, table, least, most) in [("free", "0:0,0:0", 240, 320), ("slow", "0:0,0:9", 700, 900)] {
        let mut fabric = Fabric::serve(&format!("congestion-{name}"), LEAF_SPINE, library);
        let options = options_of_opensm(&fabric, &options_with(table));
        let log = fabric.configure(&["-F", &options]);
        assert!(log.contains("SUBNET UP") && !log.contains("ERR C1"), "{log}");
        fabric.until("All links are active");
        let graph = discover(&fabric, "host1");
        let told = fabric.tell("run 2 ms", "at 2ms");
        assert!(told.contains(" 0 dropped") && told.contains("3 flows finished"), "{told}");
        // The same with the saved tables.
        let expect = format!("min = {least}\nmax = {most}\nsource = \"the table\"\n");
        let replay = format!(
            "{LEAF_SPINE}\n[subnet]\ntables = \"tables.toml\"\n\n[[expect]]\nmetric = \"fct.max_us\"\n{expect}"
        );
        std::fs::write(fabric.folder().join("replay.toml"), replay).unwrap();
        let output = rnic(fabric.folder(), &["fabric", "run", "replay.toml"]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        // What the run has logged. Virtual time stands at 2 ms.
        let lid = |node: &str| graph.lids[node].to_string();
        let stamp = query(&fabric, &["Timestamp", &lid("leaf1")]);
        assert_eq!(number(&stamp, "timestamp"), 2_000_000 / 1024, "{stamp:?}");
        let leaf = query(&fabric, &["CongestionLog", &lid("leaf1")]);
        assert!(number(&leaf, "logeventscounter") > 0, "{leaf:#?}");
        // The second port of the leaf leads to host3.
        has(&leaf, &["logtype=1", &format!("portmap={:064x}", 1 << 2), &format!("dlid={}", lid("host3"))]);
        let host = query(&fabric, &["CongestionLog", &lid("host0")]);
        assert!(number(&host, "thresholdeventcounter") > 0, "{host:#?}");
        has(&host, &["logtype=2", "thresholdcongestioneventmap=0x0001"]);
        // OpenSM's ib_types.h has the LID of the other end where ibccquery says that of this end.
        has(&host, &[&format!("local_lid_cn={}", lid("host3"))]);
        let again = query(&fabric, &["CongestionLog", &lid("host0")]);
        assert_eq!(number(&again, "thresholdeventcounter"), 0, "it was read");
    }
}

/// A port of a switch has a setting of its own, which the tables have.
#[test]
fn a_port_has_a_setting_of_its_own() {
    let Some(library) = installed(&["opensm", "ibnetdiscover", "ibccquery", "ibccconfig"]) else { return };
    let fabric = Fabric::serve("congestion-port", LEAF_SPINE, library);
    let log = fabric.configure(&[]);
    assert!(log.contains("SUBNET UP"), "{log}");
    fabric.until("All links are active");
    let lid = discover(&fabric, "host1").lids["leaf1"].to_string();
    fabric.program(
        "host1",
        "ibccconfig",
        &["SwitchPortCongestionSetting", &lid, "2", "1", "0", "15", "8", "3"],
    );
    let of = |port: &str| query(&fabric, &["SwitchPortCongestionSetting", &lid, port]);
    has(&of("2"), &["valid=1", "threshold=0x0f", "packet_size=8", "cong_parm_marking_rate=3"]);
    has(&of("1"), &["valid=0"]);
}
