//! Packets that arrive from rxe with congestion marks. rnic sends CNPs to rxe if configured to, and never otherwise.

use crate::Test;
use crate::api::Api;
use crate::case::{Kind, Talk};
use crate::end::Options;
use crate::guest::{self, Ip};
use crate::lines::Lines;
use rnic::engine::DropReason;
use rnic::{DeviceConfig, QpType};

/// These run after those of `wire`, which checks that no such packets were sent.
pub(crate) const TESTS: &[Test] = &[
    ("congestion::marks_are_not_answered_by_default_over_ipv4", || silence(Ip::V4, "off", false)),
    ("congestion::marks_are_not_answered_by_default_over_ipv6", || silence(Ip::V6, "dcqcn", false)),
    ("congestion::notifications_do_not_harm_rxe_over_ipv4", || notified(Ip::V4)),
    ("congestion::notifications_do_not_harm_rxe_over_ipv6", || notified(Ip::V6)),
];

/// The rules of the guest's packet filter: it marks all packets that leave for rnic, and counts those that come from
/// there. The opcode is the first byte of a BTH, 64 bits into the transport header; CNPs have 0x81 (IBTA A17.9.3).
const RULES: &str = "table inet congestion {\\n\
    chain out {\\ntype filter hook output priority 0\\n\
    udp dport 4791 ip ecn set ce counter\\nudp dport 4791 ip6 ecn set ce counter\\n}\\n\
    chain in {\\ntype filter hook prerouting priority 0\\n\
    udp dport 4791 @th,64,8 0x81 counter\\nudp dport 4791 ip ecn ect0 counter\\nudp dport 4791 ip6 ecn ect0 counter\\n}\\n}\\n";

/// The counts of the filter.
struct Seen {
    marked: u64,
    cnps: u64,
    /// Packets whose sender is ECN-capable.
    capable: u64,
}

fn mark() {
    guest::run(&format!("modprobe crc32c_generic && modprobe nf_tables && printf '{RULES}' | nft -f -"));
}

fn stop_marking() -> Seen {
    let rules = guest::run("nft list table inet congestion; nft delete table inet congestion");
    let counts = guest::packets(&rules);
    let [v4, v6, cnps, ect_v4, ect_v6] = counts[..] else { panic!("{rules}") };
    Seen { marked: v4 + v6, cnps, capable: ect_v4 + ect_v6 }
}

/// Messages of every kind, of many packets and of one, in both directions, with one connection for each direction.
fn exchange(ours: &mut Api, guest: &mut Lines) {
    let options = Options::default();
    for turn in 0..2 {
        let mut talk = if turn == 0 {
            Talk::new(ours, guest, QpType::Rc, &options, 100_000)
        } else {
            Talk::new(guest, ours, QpType::Rc, &options, 100_000)
        };
        for length in [1, 30_000, 100_000] {
            for kind in Kind::ALL {
                talk.message(kind, length);
            }
        }
        talk.end();
    }
}

/// Exchanges messages; those of the guest are marked. Returns the counts of both sides.
fn marked(ip: Ip, cc: &str, foreign_cnp: bool) -> (Seen, Api) {
    let cc = cc.parse().expect("an algorithm");
    let config = DeviceConfig { cc, foreign_cnp, ..DeviceConfig::at(ip.ours()) };
    let (mut ours, mut guest) = (Api::with(&config), Lines::in_guest(ip));
    mark();
    exchange(&mut ours, &mut guest);
    let seen = stop_marking();
    let port = ours.device.counters().port;
    assert!(seen.marked > 100, "the guest marked {} packets only", seen.marked);
    assert!(port.np_ecn_marked_roce_packets > 100, "{port:?}");
    assert_eq!((port.np_cnp_sent, port.rp_cnp_handled), (seen.cnps, 0), "{port:?}");
    (seen, ours)
}

fn silence(ip: Ip, cc: &str, foreign_cnp: bool) {
    let (seen, _) = marked(ip, cc, foreign_cnp);
    assert_eq!((seen.cnps, seen.capable), (0, 0));
}

/// rxe does not know CNPs. It drops them, and the connection continues.
fn notified(ip: Ip) {
    let (seen, ours) = marked(ip, "dcqcn", true);
    assert!(seen.cnps > 0 && seen.capable > 0, "{} CNPs, {} packets with ECT", seen.cnps, seen.capable);
    let port = ours.device.counters().port;
    // The last packets of the guest may have arrived after the queue pair was destroyed.
    assert_eq!(port.dropped_total(), port.dropped(DropReason::NoQp), "{port:?}");
    let complaints =
        guest::run("dmesg | grep -E 'Oops|BUG: |WARNING: |Call Trace|general protection' || true");
    assert_eq!(complaints, "");
    println!("  {} marked packets, {} CNPs", seen.marked, seen.cnps);
}
