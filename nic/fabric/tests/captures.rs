//! Captures of ports of switches: they hold what the ports counted, and are the same in every run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rnic_fabric::report::Report;
use rnic_fabric::scenario::{PortCapture, Scenario, ScenarioError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Three hosts send to a fourth through a switch with a small buffer that marks: packets wait, are marked, and are lost.
const TEXT: &str = r#"
name = "captured"
about = "Three senders and a small buffer."
until = "20 ms"
[topology]
kind = "star"
hosts = 4
[switch]
[switch.buffer]
shared = "30 KB"
[switch.red]
kmin = 4000
kmax = 20000
pmax = 1.0
[nic]
cc = "dcqcn:preset=laptop"
timeout = 7
[[workload]]
pattern = "incast"
to = "host0"
bytes = "300 KB"
[[variant]]
name = "plain"
[[variant]]
name = "small"
[variant.nic]
mtu = 1024
"#;

/// What a file says of a port.
#[derive(Default, Debug, PartialEq, Eq)]
struct Seen {
    out: u64,
    marked: u64,
    inbound: u64,
    dropped: u64,
    last: Duration,
}

fn read(path: &Path) -> Seen {
    let mut reader = PcapNgReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut seen = Seen::default();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        // Bit 1: outbound.
        let is_out = packet
            .options
            .iter()
            .any(|option| matches!(option, EnhancedPacketOption::Flags(flags) if flags & 3 == 2));
        let says = |what: &str| {
            packet.options.iter().any(
                |option| matches!(option, EnhancedPacketOption::Comment(comment) if comment.contains(what)),
            )
        };
        seen.out += u64::from(is_out);
        seen.inbound += u64::from(!is_out);
        // IPv4 without a link layer: the second byte is the TOS.
        seen.marked += u64::from(is_out && packet.data[1] & 3 == 3);
        seen.dropped += u64::from(says("dropped: "));
        assert!(packet.timestamp >= seen.last, "in the order of time");
        seen.last = packet.timestamp;
    }
    seen
}

fn run(ports: &[&str], folder: &Path) -> Vec<(String, Report)> {
    std::fs::create_dir_all(folder).unwrap();
    let mut scenario = Scenario::read(TEXT).unwrap();
    let capture = |port: &&str| PortCapture {
        port: (*port).to_owned(),
        path: folder.join(format!("{}.pcapng", port.replace('>', "-"))),
    };
    scenario.capture(&ports.iter().map(capture).collect::<Vec<_>>());
    scenario.run_all(Path::new("."), 1, &mut |_| true).unwrap().reports
}

#[test]
fn a_capture_holds_what_the_port_counted() {
    let folder: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("captures");
    let reports = run(&["s0>host0", "s0>host1", "host1>s0"], &folder);
    let mut lost = 0;
    for (variant, report) in &reports {
        let of = |name: &str| report.ports.iter().find(|port| port.name == name).unwrap().stats.clone();
        let file = |port: &str| read(&folder.join(format!("{port}-{variant}.pcapng")));
        let (down, side, host) = (file("s0-host0"), file("s0-host1"), file("host1-s0"));
        // What a port sends is what its peer receives.
        assert_eq!(
            (down.out, side.out, host.out),
            (of("s0>host0").packets, of("s0>host1").packets, of("host1>s0").packets)
        );
        assert_eq!((side.inbound, host.inbound, down.inbound), (host.out, side.out, of("host0>s0").packets));
        assert_eq!(down.marked, of("s0>host0").marked);
        assert!(down.marked > 0 && down.out > 100, "{down:?}");
        // Drops are counted where the packet came in.
        assert_eq!(side.dropped, of("s0>host1").drops.values().sum::<u64>());
        lost += side.dropped;
        assert_eq!((down.dropped, host.dropped), (0, 0));
        assert!(down.last > Duration::from_micros(70) && down.last < Duration::from_millis(20), "{down:?}");
    }
    assert!(lost > 0, "a comment about drops was never due");

    let again = folder.join("again");
    run(&["s0>host0"], &again);
    for variant in ["plain", "small"] {
        let name = format!("s0-host0-{variant}.pcapng");
        assert_eq!(std::fs::read(folder.join(&name)).unwrap(), std::fs::read(again.join(&name)).unwrap());
    }
}

#[test]
fn a_port_that_is_not_there_is_named_with_one_that_is() {
    let mut scenario = Scenario::read(TEXT).unwrap();
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("none.pcapng");
    scenario.capture(&[PortCapture { port: "s0>host9".to_owned(), path }]);
    let error = scenario.run_all(Path::new("."), 1, &mut |_| true).unwrap_err().to_string();
    assert!(error.starts_with("capture of s0>host9: "), "{error}");
    scenario.capture(&[PortCapture { port: "s0>host0".to_owned(), path: "/no/such/folder/x".into() }]);
    let error = scenario.run_all(Path::new("."), 1, &mut |_| true).unwrap_err();
    assert!(matches!(error, ScenarioError::Capture { .. }), "{error}");
}
