//! Our queue pair in place of Linux rxe: in every golden capture, of every service, each side is replaced by ours,
//! once as responder and once as requester. It must send byte for byte what rxe sent, and store what was sent to
//! it.
//!
//! The captures represent a peer that is independent of rnic. The tests compare whole packets from the BTH to the
//! ICRC, their order and their number, but not times, because the captures were taken on slow emulated machines.
//! Permitted differences are listed in one place with their reasons: [`freedom`].

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capture;
mod connections;
mod facts;
mod host;
mod requester;
mod responder;

use capture::{Capture, Captured};
use qp::attr::{AddressVector, Limits};
use qp::queue_pair::{Budget, QpConfig, Tuning};
use qp::wire::{Opcode, Operation, Packet};
use qp::{Access, Gid, Host, Mtu, PdId, QKey, QpAttr, QpCap, QpState, QpType, Qpn, QueuePair, Train};
use rnic::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The Q_Key of the programs that send datagrams.
const QKEY: QKey = QKey(0x1111_1111);

/// rxe and rnic deliberately differ in two places. Returns our packet converted to what rxe sends, and the reason
/// for the difference.
fn freedom(capture: &Capture, theirs: &[u8], ours: &[u8]) -> Option<(Vec<u8>, &'static str)> {
    /// Offset of an acknowledgement's syndrome: after the BTH.
    const SYNDROME: usize = 12;
    /// Offset of AckReq: in front of the PSN.
    const ACK_REQ: usize = 8;
    // A SEND longer than its receive is an invalid request according to the specification (IBTA 9.7.4.1.7); rxe
    // reports a remote operational error.
    let refused = |packet: &[u8], syndrome: u8| {
        packet[0] == Opcode::RcAcknowledge as u8 && packet[SYNDROME] == syndrome
    };
    if refused(theirs, 0x63) && refused(ours, 0x61) {
        let mut rxe = ours.to_vec();
        rxe[SYNDROME] = 0x63;
        return Some((rxe, "NAK 0x61 where rxe says 0x63"));
    }
    // rxe asks for acknowledgements of management datagrams, which do not exist (IBTA 9.2.8; fixed in Linux 6.11).
    if capture.qp_type() == QpType::Gsi && ours[ACK_REQ] & 0x80 == 0 {
        let mut rxe = ours.to_vec();
        rxe[ACK_REQ] |= 0x80;
        return Some((rxe, "no AckReq where rxe asks nobody"));
    }
    None
}

/// The result of a comparison.
#[derive(Default)]
struct Tally {
    exact: usize,
    /// Permitted differences, with their reasons.
    free: Vec<&'static str>,
}

impl Tally {
    /// Compares one of our packets with the captured one in its place.
    fn compare(&mut self, capture: &Capture, theirs: &Captured, ours: &[u8]) {
        if theirs.equals(ours) {
            self.exact += 1;
            return;
        }
        match freedom(capture, &theirs.bytes, ours) {
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

/// One side of a capture, from the point of view of our queue pair.
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

    /// Packets that we (rxe in our place) sent, either requests or responses.
    fn sent(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        let us = self.us;
        self.of_kind(requests).filter(move |p| p.flow.src == us)
    }

    /// Packets that we received.
    fn received(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        let us = self.us;
        self.of_kind(requests).filter(move |p| p.flow.dst == us)
    }

    fn of_kind(&self, requests: bool) -> impl Iterator<Item = &'c Captured> {
        self.capture.packets.iter().filter(move |p| p.packet().info().is_request == requests)
    }

    fn mtu(&self) -> Mtu {
        self.capture.scenario.mtu()
    }

    /// A queue pair in RTS with the numbers of this side.
    fn queue_pair(&self, host: &mut impl Host) -> QueuePair {
        let qp_type = self.capture.qp_type();
        let to = |us: bool| self.capture.packets.iter().find(|p| (p.flow.dst == self.us) == us);
        let qpn = |p: Option<&Captured>| p.map_or(Qpn::new(0xdead), |p| p.packet().dest_qpn());
        // Without acknowledgements, one side may never receive a packet: its number is then known from the packets
        // it sends.
        let named = self.sent(true).find_map(|p| p.packet().deth()).map(|deth| deth.src_qpn);
        let mut qp = QueuePair::new(QpConfig {
            qpn: named.unwrap_or_else(|| qpn(to(true))),
            qp_type,
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
            least_timeout: 0,
            tuning: Tuning {
                // rxe asks for an acknowledgement after 64 packets in a row that did not ask, and does not count
                // the packet that ends the row: RXE_MAX_PKT_PER_ACK in rxe_req.c.
                ack_interval: 66,
                read_chunk: 0,
                e2e_credits: false,
                adaptive_timeout: false,
                selective_repeat: false,
                max_in_flight: 0,
                reorder_tolerance: 0,
                mig_req: false,
            },
        });
        let limits = Limits { path_mtu: self.mtu(), ..Limits::default() };
        for attr in self.attributes(qp_type, qpn(to(false))) {
            qp.modify(&attr, &limits, host).unwrap();
        }
        qp
    }

    /// The attributes that bring a queue pair to RTS.
    fn attributes(&self, qp_type: QpType, peer: Qpn) -> [QpAttr; 3] {
        let first = |mut packets: Vec<&Captured>| packets.drain(..).next().map(|p| p.packet().psn());
        let theirs =
            first(self.of_kind(true).filter(|p| p.flow.dst == self.us).collect()).unwrap_or_default();
        let ours = first(self.sent(true).collect()).unwrap_or_default();
        let scenario = &self.capture.scenario;
        let option = |name| {
            let value = if self.server { scenario.of_server(name) } else { scenario.of_client(name) };
            value.map(|v| u8::try_from(v).unwrap())
        };
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let path = AddressVector::new(Gid::from(self.capture.packets[0].flow.src), 0);
        let init = QpAttr::to_init(1, 0, rights);
        let rtr = QpAttr::to_rtr(path, self.mtu(), peer, theirs);
        let rts = QpAttr::to_rts(ours);
        match qp_type {
            QpType::Uc => [init, rtr, rts],
            // perftest, the pingpongs and rgold all use this key.
            QpType::Ud => [QpAttr::to_init_datagram(1, 0, QKEY), QpAttr::to_state(QpState::Rtr), rts],
            QpType::Gsi => {
                let init = QpAttr::to_state(QpState::Init).pkey_index(0).qkey(QKey::GSI);
                [init, QpAttr::to_state(QpState::Rtr), rts]
            }
            _ => [
                init,
                rtr.max_dest_rd_atomic(128).min_rnr_timer(option("-y").unwrap_or(12)),
                rts.timeout(option("-o").unwrap_or(14))
                    .retry_cnt(option("-r").unwrap_or(7))
                    .rnr_retry(option("-R").unwrap_or(7))
                    .max_rd_atomic(128),
            ],
        }
    }

    /// One packet that the queue pair has to send, if any.
    fn poll(&self, qp: &mut QueuePair, now: Instant, host: &mut impl Host) -> Option<Vec<u8>> {
        let mut buf = [0; 8192];
        let mut train = Train::new(&mut buf, self.capture.packets[0].flow, 1);
        qp.poll_transmit(now, &mut train, &mut Budget::default(), host);
        (train.packets() > 0).then(|| train.bytes().to_vec())
    }
}

/// Whether a packet belongs to a message that consumes a receive: a SEND, or the end of a WRITE with immediate.
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
    let mut covered: BTreeMap<&str, usize> = BTreeMap::new();
    println!("{:24} {:5} {:>7} {:>8}  differing", "capture", "type", "answers", "requests");
    let captures = capture::captures();
    let number = captures.len();
    for conversation in captures.into_iter().flat_map(Capture::conversations) {
        let (mut answered, mut requested) = (Tally::default(), Tally::default());
        for side in Side::both(&conversation) {
            responder::replay(&side, &mut answered);
            requester::replay(&side, &mut requested);
        }
        let qp_type = conversation.qp_type().name();
        let free: BTreeSet<_> = answered.free.iter().chain(&requested.free).copied().collect();
        let free: Vec<_> = free.into_iter().collect();
        let name = &conversation.name;
        println!("{name:24} {qp_type:5} {:>7} {:>8}  {}", answered.exact, requested.exact, free.join(", "));
        let all = conversation.packets.len() - requester::doubled(&conversation);
        let free = answered.free.len() + requested.free.len();
        assert_eq!(answered.exact + requested.exact + free, all, "{name}: packets were left out");
        answers.add(&answered);
        requests.add(&requested);
        *covered.entry(qp_type).or_default() += 1;
    }
    println!("{number} captures: {} answers and {} requests exact", answers.exact, requests.exact);
    // Three captures of connection management contain three reliable connections.
    assert_eq!(covered, BTreeMap::from([("RC", 44 + 3), ("UC", 4), ("UD", 4), ("GSI", 3)]));
    assert!(answers.exact > 400 && requests.exact > 1200);
    // The documented differences: one NAK, and every management datagram.
    assert_eq!((answers.free.len(), requests.free.len()), (1, 17));
}
