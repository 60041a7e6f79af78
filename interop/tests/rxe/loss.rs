//! Packets get lost in either direction, in the guest or by fault rules here. Everything arrives once and unchanged,
//! and the counters of retransmissions show that packets were lost.

use crate::Test;
use crate::api::Api;
use crate::case::{Kind, Talk};
use crate::end::{End, Options};
use crate::guest::{self, Ip};
use crate::lines::Lines;
use rnic::{DeviceConfig, QpType};

pub(crate) const TESTS: &[Test] = &[
    ("loss::rust_requests_that_the_guest_drops", || to_guest(Ip::V4, Way::Out)),
    ("loss::rust_responses_that_the_guest_drops", || to_guest(Ip::V6, Way::Back)),
    ("loss::rust_requests_and_responses_that_get_lost_behind_the_guest", || from_guest(Ip::V4)),
    ("loss::rust_packets_that_faults_drop", || faults(Ip::V6)),
    ("loss::program_packets_that_faults_drop", program_faults),
];

/// Whether requests or responses of rnic get lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    Back,
}

/// A short timeout, 4.096 us x 2^15 = 134 ms: only the timer detects the loss of the last packet of a message.
fn options() -> Options {
    Options { timeout: 15, ..Options::default() }
}

/// Messages of every kind; each is 17 packets of 1 KiB.
fn messages(requester: &mut dyn End, responder: &mut dyn End) -> crate::end::Qp {
    let mut talk = Talk::new(requester, responder, QpType::Rc, &options(), 17_000);
    for _ in 0..3 {
        for kind in Kind::ALL {
            talk.message(kind, 17_000);
        }
    }
    talk.qps[0]
}

/// A packet filter rule in the guest that drops every 19th RoCE packet that arrives. 19 and 17 are coprime, so every
/// packet of a message gets lost at some time. Retransmissions are shorter, so the same packet does not get lost each
/// time.
fn drop_arriving() {
    guest::run("modprobe crc32c_generic && modprobe nf_tables && modprobe nft_numgen");
    guest::run(
        "nft add table inet loss && nft 'add chain inet loss in { type filter hook input priority 0; }' && \
         nft add rule inet loss in udp dport 4791 numgen inc mod 19 9 counter drop",
    );
}

/// Stops dropping. Returns the number of packets dropped.
fn stop_dropping() -> u64 {
    let rules = guest::run("nft list table inet loss; nft delete table inet loss");
    *guest::packets(&rules).first().expect("the counter of a rule")
}

/// How often rxe had to retransmit.
fn repeated_by_guest() -> u64 {
    guest::counter("completer_retry_err") + guest::counter("rcvd_seq_err")
}

fn to_guest(ip: Ip, way: Way) {
    let (mut ours, mut guest) = (Api::new(ip), Lines::in_guest(ip));
    drop_arriving();
    let repeated = if way == Way::Out {
        let qp = messages(&mut ours, &mut guest);
        ours.qp_of(qp).counters().completer_retry_err
    } else {
        let before = repeated_by_guest();
        messages(&mut guest, &mut ours);
        repeated_by_guest() - before
    };
    let dropped = stop_dropping();
    assert!(dropped >= 2, "the guest dropped {dropped} packets only");
    assert!(repeated > 0, "{dropped} packets were dropped, and nothing was repeated");
}

/// The guest's network drops outgoing packets at random.
fn from_guest(ip: Ip) {
    let (mut ours, mut guest) = (Api::new(ip), Lines::in_guest(ip));
    guest::run("modprobe sch_netem && /bin/tc qdisc replace dev eth0 root netem limit 10000 loss 8%");
    let qp = messages(&mut ours, &mut guest);
    messages(&mut guest, &mut ours);
    let statistics = guest::run("/bin/tc -s qdisc show dev eth0; /bin/tc qdisc delete dev eth0 root");
    let dropped = statistics.split("(dropped ").nth(1).and_then(|rest| rest.split(',').next());
    let dropped: u64 = dropped.and_then(|number| number.parse().ok()).expect("a number");
    assert!(dropped > 0, "{statistics}");
    println!("the guest lost {dropped}, we repeated {}", ours.qp_of(qp).counters().completer_retry_err);
}

/// Rules that hit packets in both directions, and both roles.
const FAULTS: [&str; 4] =
    ["tx data p=0.05 drop", "rx data p=0.05 drop", "tx ack p=0.05 drop", "rx ack p=0.05 drop"];

fn faults(ip: Ip) {
    let config = DeviceConfig { faults: FAULTS.map(str::to_owned).to_vec(), ..DeviceConfig::at(ip.ours()) };
    let (mut ours, mut guest) = (Api::with(&config), Lines::in_guest(ip));
    let qp = messages(&mut ours, &mut guest);
    messages(&mut guest, &mut ours);
    for (rule, report) in FAULTS.iter().zip(ours.device.faults()) {
        assert!(report.hits > 0 || rule.contains("ack"), "{rule}: hit nothing");
    }
    assert!(ours.qp_of(qp).counters().completer_retry_err > 0);
}

fn program_faults() {
    let options: Vec<_> = FAULTS.iter().flat_map(|rule| ["--fault", *rule]).chain(["--seed", "7"]).collect();
    let (mut ours, mut guest) = (Lines::on_rnic(Ip::V4, &options), Lines::in_guest(Ip::V4));
    let before = repeated_by_guest();
    messages(&mut ours, &mut guest);
    messages(&mut guest, &mut ours);
    assert!(repeated_by_guest() > before, "rxe has repeated nothing");
}
