//! Our queue pair in the place of Linux rxe: in every golden capture of a reliable connection each side is replaced by
//! ours, once as responder and once as requester, and must send byte for byte what rxe sent.
//!
//! The captures stand for a peer that was not made by us. Compared are whole packets from the BTH to the ICRC, their
//! order and their number; times are not, because the captures were taken on slow emulated machines. What may
//! differ stands in one list with its reason: [`freedom`].

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capture;
mod host;
mod requester;
mod responder;

use capture::{Capture, Captured};
use qp::attr::{AddressVector, Limits};
use qp::queue_pair::{QpConfig, Tuning};
use qp::wire::{Operation, Packet};
use qp::{Access, Gid, Host, Mtu, PdId, Psn, QpAttr, QpCap, QpType, Qpn, QueuePair, Train, WcStatus};
use std::net::IpAddr;
use std::time::Instant;

/// Packets that were lost behind the point of capture, which is A's network interface: the README says that rules
/// dropped them at the receiver's input, after the tap.
///
/// Capture, opcode in the BTH or `None` for all, how many such packets came before. The rules count with
/// `numgen inc mod 1000 n`, so one packet each is dropped.
const LOST: [(&str, Option<u8>, usize); 5] = [
    // At B, answers.
    ("rg_loss_ack", Some(0x11), 1),
    ("rg_loss_atomicresp", Some(0x12), 0),
    // At A, requests: the third WRITE_MIDDLE, the first SEND_ONLY, everything.
    ("rg_loss_reqmiddle", Some(0x07), 2),
    ("rg_loss_reqlast", Some(0x04), 0),
    ("rg_dead_peer", None, 0),
];

/// Captures that are not replayed, and why.
const SKIPPED: [(&str, &str); 11] = [
    ("cm_reject", CONNECTION_MANAGEMENT),
    ("cm_rping", CONNECTION_MANAGEMENT),
    ("cm_ucmatose", CONNECTION_MANAGEMENT),
    ("pt_send_uc_5000", UNRELIABLE),
    ("pt_send_ud_1000", UNRELIABLE),
    ("pt_write_uc_5000", UNRELIABLE),
    ("rg_ud", UNRELIABLE),
    ("uc_pp_1025_m1024", UNRELIABLE),
    ("uc_pp_3_m1024", UNRELIABLE),
    ("ud_pp_1000", UNRELIABLE),
    ("ud_pp_13_v6", UNRELIABLE),
];
const CONNECTION_MANAGEMENT: &str =
    "numbers of its queue pairs travel in datagrams of the connection manager";
const UNRELIABLE: &str = "unreliable connections and datagrams: this test replays reliable connections";

/// Captures whose last work request fails, and how.
const FAILURES: [(&str, WcStatus); 7] = [
    ("rg_rnr_exceeded", WcStatus::RnrRetryExcErr),
    ("rg_dead_peer", WcStatus::RetryExcErr),
    ("rg_nak_write_badrkey", WcStatus::RemAccessErr),
    ("rg_nak_read_badrkey", WcStatus::RemAccessErr),
    ("rg_nak_faa_badrkey", WcStatus::RemAccessErr),
    ("rg_nak_noaccess", WcStatus::RemAccessErr),
    ("rg_nak_send_toolong", WcStatus::RemOpErr),
];

/// Captures whose last request names a key that must not work: the README says "badrkey", or a region without
/// remote rights.
const BAD_KEYS: [&str; 4] =
    ["rg_nak_write_badrkey", "rg_nak_read_badrkey", "rg_nak_faa_badrkey", "rg_nak_noaccess"];

/// In one place rxe and we differ on purpose. Returns our packet turned into what rxe sends, and why we do not.
fn freedom(capture: &Capture, ours: &[u8]) -> Option<(Vec<u8>, &'static str)> {
    /// Where the syndrome of an acknowledge stands: behind the BTH.
    const SYNDROME: usize = 12;
    // A SEND that is longer than the receive is an invalid request for the specification (IBTA 9.7.4.1.7); rxe says
    // remote operational error.
    if capture.name == "rg_nak_send_toolong" && ours[SYNDROME] == 0x61 {
        let mut rxe = ours.to_vec();
        rxe[SYNDROME] = 0x63;
        return Some((rxe, "NAK 0x61 where rxe says 0x63"));
    }
    None
}

/// How a comparison ended.
#[derive(Default)]
struct Tally {
    exact: usize,
    /// Packets that differ, and why they may.
    free: Vec<&'static str>,
}

impl Tally {
    /// Compares a packet of ours with the captured one in its place.
    fn compare(&mut self, capture: &Capture, theirs: &Captured, ours: &[u8]) {
        if theirs.equals(ours) {
            self.exact += 1;
            return;
        }
        match freedom(capture, ours) {
            Some((changed, why)) if theirs.equals(&changed) => self.free.push(why),
            _ => panic!(
                "{} at {:?}:\nrxe sent {}\nwe send  {}",
                capture.name,
                theirs.at,
                theirs.packet(),
                Packet::parse(ours).unwrap()
            ),
        }
    }

    fn add(&mut self, other: &Self) {
        self.exact += other.exact;
        self.free.extend(&other.free);
    }
}

/// One side of a capture, as our queue pair sees it.
struct Side<'c> {
    capture: &'c Capture,
    us: IpAddr,
    /// Whether we are A, the server.
    server: bool,
}

impl<'c> Side<'c> {
    fn both(capture: &'c Capture) -> [Self; 2] {
        let [a, b] = capture.sides();
        [Self { capture, us: a, server: true }, Self { capture, us: b, server: false }]
    }

    /// Packets that we (rxe in our place) sent, requests or answers.
    fn sent(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        let us = self.us;
        self.of_kind(requests).filter(move |p| p.flow.src == us)
    }

    /// Packets that reached us.
    fn received(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        let us = self.us;
        let lost = LOST.iter().filter(|(name, _, _)| *name == self.capture.name).collect::<Vec<_>>();
        let mut seen = 0;
        self.of_kind(requests).filter(move |p| p.flow.dst == us).filter(move |p| {
            let hit = |(_, opcode, nth): &(&str, Option<u8>, usize)| match opcode {
                Some(opcode) if p.bytes[0] != *opcode => false,
                Some(_) => {
                    seen += 1;
                    seen == nth + 1
                }
                None => true,
            };
            !lost.iter().copied().any(hit)
        })
    }

    fn of_kind(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        self.capture.packets.iter().filter(move |p| p.packet().info().is_request == requests)
    }

    fn mtu(&self) -> Mtu {
        // Every command of a reliable connection names it.
        let bytes = self.capture.scenario.of_server("-m").unwrap();
        Mtu::from_bytes(bytes).unwrap()
    }

    /// A queue pair in RTS with the numbers of this side.
    fn queue_pair(&self, host: &mut impl Host) -> QueuePair {
        let to = |us: bool| self.capture.packets.iter().find(|p| (p.flow.dst == self.us) == us);
        let first = |mut packets: Vec<&Captured>| packets.drain(..).next().map(|p| p.packet().psn());
        let qpn = |p: Option<&Captured>| p.map_or(Qpn::new(0xdead), |p| p.packet().dest_qpn());
        let theirs = self.of_kind(true).filter(|p| p.flow.dst == self.us).collect();
        let ours = self.sent(true).collect();
        let scenario = &self.capture.scenario;
        let option = |name| {
            let value = if self.server { scenario.of_server(name) } else { scenario.of_client(name) };
            value.map(|v| u8::try_from(v).unwrap())
        };
        let mut qp = QueuePair::new(QpConfig {
            qpn: qpn(to(true)),
            qp_type: QpType::Rc,
            pd: PdId(1),
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
            has_srq: false,
            tuning: Tuning {
                // rxe asks once 64 packets in a row did not ask, and the packet that ends the count is not counted:
                // RXE_MAX_PKT_PER_ACK in rxe_req.c.
                ack_interval: 66,
                read_chunk: 0,
                e2e_credits: false,
                mig_req: false,
            },
        });
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let path = AddressVector::new(Gid::from(self.capture.packets[0].flow.src), 0);
        let none = Psn::default();
        for attr in [
            QpAttr::to_init(1, 0, rights),
            QpAttr::to_rtr(path, self.mtu(), qpn(to(false)), first(theirs).unwrap_or(none))
                .max_dest_rd_atomic(128)
                .min_rnr_timer(option("-y").unwrap_or(12)),
            QpAttr::to_rts(first(ours).unwrap_or(none))
                .timeout(option("-o").unwrap_or(14))
                .retry_cnt(option("-r").unwrap_or(7))
                .rnr_retry(option("-R").unwrap_or(7))
                .max_rd_atomic(128),
        ] {
            qp.modify(&attr, &Limits::default(), host).unwrap();
        }
        qp
    }

    /// One packet that the queue pair has to send, if there is one.
    fn poll(&self, qp: &mut QueuePair, now: Instant, host: &mut impl Host) -> Option<Vec<u8>> {
        let mut buf = [0; 8192];
        let mut train = Train::new(&mut buf, self.capture.packets[0].flow, 1);
        qp.poll_transmit(now, &mut train, &mut u32::MAX.clone(), host);
        (train.packets() > 0).then(|| train.bytes().to_vec())
    }
}

/// Whether a packet is part of a message that takes a receive: a SEND, or the end of a WRITE with immediate.
fn takes_receive(packet: &Packet<'_>) -> bool {
    let info = packet.info();
    match info.operation {
        Operation::Send => info.position.starts(),
        _ => packet.imm().is_some(),
    }
}

#[test]
fn captures_of_linux_rxe() {
    let (mut answers, mut requests) = (Tally::default(), Tally::default());
    let (mut covered, mut skips) = (0, 0);
    println!("{:24} {:>7} {:>8}  differing", "capture", "answers", "requests");
    for capture in capture::captures() {
        let skipped = SKIPPED.iter().find(|(name, _)| *name == capture.name);
        assert_eq!(skipped.is_none(), capture.is_rc(), "{}", capture.name);
        if let Some((_, why)) = skipped {
            println!("{:24} skipped: {why}", capture.name);
            skips += 1;
            continue;
        }
        let (mut answered, mut requested) = (Tally::default(), Tally::default());
        for side in Side::both(&capture) {
            responder::replay(&side, &mut answered);
            requester::replay(&side, &mut requested);
        }
        let free: Vec<_> = answered.free.iter().chain(&requested.free).copied().collect();
        println!("{:24} {:>7} {:>8}  {}", capture.name, answered.exact, requested.exact, free.join(", "));
        let all = capture.packets.len() - requester::doubled(&capture);
        let compared = answered.exact + requested.exact + free.len();
        assert_eq!(compared, all, "{}: packets were left out", capture.name);
        answers.add(&answered);
        requests.add(&requested);
        covered += 1;
    }
    println!("{covered} captures: {} answers and {} requests exact", answers.exact, requests.exact);
    assert_eq!((covered, skips), (44, SKIPPED.len()), "captures of reliable connections, and others");
    assert!(answers.exact > 400 && requests.exact > 1200);
    assert_eq!(answers.free.len() + requests.free.len(), 1, "only the freedom that is documented");
}
