//! Our requester in place of rxe's: it gets the work requests of the capture and rxe's responses, and must send the
//! requests of the capture, including retransmissions.
//!
//! The capture at the other side does not show when a response reached rxe's requester, nor when its timer expired.
//! Both follow from the next packet that it sent: it continues, or goes back to the oldest packet that it considers
//! lost.

use crate::host::ReplayHost;
use crate::{Capture, Captured, Side, Tally};
use qp::attr::AddressVector;
use qp::wire::{IpHeader, NakCode, Operation as Wire, Packet, Syndrome};
use qp::{Destination, Gather, Operation, Psn, QueuePair, Remote, SendFlags, SendWr, Sge, WcStatus};
use rnic::time::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// Key of the local buffers.
const LOCAL: u32 = 1;

/// Number of packets of a capture that the network duplicated: copies with the IPv4 identification of the previous
/// packet. The requester sent only one of each two.
pub(crate) fn doubled(capture: &Capture) -> usize {
    capture.packets.iter().filter(|p| is_copy(capture, p)).count()
}

fn is_copy(capture: &Capture, packet: &Captured) -> bool {
    // rxe draws a new identification for each packet, also when it sends one again. IPv6 has none: there, copies would look
    // like retransmissions.
    let same = |p: &&Captured| p.bytes == packet.bytes && p.ident == packet.ident && p.flow.src.is_ipv4();
    capture.packets.iter().find(same).is_some_and(|first| !std::ptr::eq(first, packet))
}

/// A work request, reconstructed from its packets.
struct Message {
    psn: Psn,
    operation: Operation,
    flags: SendFlags,
    /// The destination of a datagram.
    to: Destination,
    /// The data that it sends, or the number of bytes that it receives.
    payload: Vec<u8>,
    brings: usize,
}

pub(crate) fn replay(side: &Side<'_>, tally: &mut Tally) {
    let requests: Vec<_> = side.sent(true).filter(|p| !is_copy(side.capture, p)).collect();
    let mut host = ReplayHost::default();
    let mut qp = side.queue_pair(&mut host);
    let messages = messages(side, &requests);
    post(&mut qp, &mut host, &messages);
    let answers = side.received(false).collect();
    let mut driver = Driver { side, qp, host, answers, now: Instant::EPOCH };
    for request in requests {
        driver.until_next_is(request);
        let ours = driver.poll().expect("it said that it wants to send");
        tally.compare(side.capture, request, &ours);
    }
    driver.finish(&messages);
}

/// The work requests that explain the first transmissions of the packets.
fn messages(side: &Side<'_>, requests: &[&Captured]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut fresh = requests.first().map(|p| p.packet().psn());
    for packet in requests.iter().map(|p| p.packet()) {
        if Some(packet.psn()) != fresh {
            continue;
        }
        let brings = match packet.info().operation {
            Wire::ReadRequest => packet.reth().map_or(0, |r| r.length as usize),
            Wire::FetchAdd | Wire::CompareSwap => 8,
            _ => 0,
        };
        let psns = side.mtu().packets(brings as u32);
        fresh = Some(packet.psn().plus(psns));
        if packet.info().position.starts() {
            let operation = operation(&packet);
            let flags = SendFlags::SIGNALED;
            messages.push(Message {
                psn: packet.psn(),
                operation,
                flags,
                to: to(&packet),
                payload: vec![],
                brings,
            });
        }
        let message = messages.last_mut().unwrap();
        message.payload.extend(packet.payload());
        if packet.solicited() {
            message.flags |= SendFlags::SOLICITED;
        }
        // A key to invalidate, and immediate data, arrive with the last packet.
        if let (Some(key), Operation::Send { invalidate, .. }) = (packet.ieth(), &mut message.operation) {
            *invalidate = Some(key);
        }
        if let (Some(value), Operation::Send { imm, .. } | Operation::Write { imm, .. }) =
            (packet.imm(), &mut message.operation)
        {
            *imm = Some(value);
        }
    }
    messages
}

fn operation(packet: &Packet<'_>) -> Operation {
    let reth = packet.reth().unwrap_or_default();
    let remote = Remote { addr: reth.va, rkey: reth.rkey };
    let atomic = packet.atomic_eth().unwrap_or_default();
    let place = Remote { addr: atomic.va, rkey: atomic.rkey };
    match packet.info().operation {
        Wire::Send => Operation::Send { imm: None, invalidate: None },
        Wire::Write => Operation::Write { remote, imm: None },
        Wire::ReadRequest => Operation::Read { remote },
        Wire::CompareSwap => {
            Operation::CompareSwap { remote: place, compare: atomic.compare, swap: atomic.swap_add }
        }
        Wire::FetchAdd => Operation::FetchAdd { remote: place, add: atomic.swap_add },
        other => panic!("{other:?} is no request of the captures"),
    }
}

fn to(packet: &Packet<'_>) -> Destination {
    match packet.deth() {
        None => Destination::Connected,
        Some(deth) => Destination::Datagram {
            path: Arc::new(AddressVector::default()),
            qpn: packet.dest_qpn(),
            qkey: deth.qkey,
        },
    }
}

/// The address of the buffer of work request number `i`.
fn buffer(i: usize) -> u64 {
    (i as u64) << 32
}

fn post(qp: &mut QueuePair, host: &mut ReplayHost, messages: &[Message]) {
    for (i, message) in messages.iter().enumerate() {
        let addr = buffer(i);
        host.store(LOCAL, addr, &message.payload);
        host.map(LOCAL, addr, message.brings);
        let length = (message.payload.len() + message.brings) as u32;
        let data = Gather::One(Sge { addr, length, lkey: LOCAL });
        let wr = SendWr::new(i as u64, message.operation, data).flags(message.flags).to(message.to.clone());
        qp.post_send(wr, host).unwrap();
    }
}

struct Driver<'c, 's> {
    side: &'s Side<'c>,
    qp: QueuePair,
    host: ReplayHost,
    /// Responses that the requester has not received yet.
    answers: VecDeque<&'c Captured>,
    now: Instant,
}

impl Driver<'_, '_> {
    fn poll(&mut self) -> Option<Vec<u8>> {
        self.side.poll(&mut self.qp, self.now, &mut self.host)
    }

    /// Makes the requester send `request` next: delivers responses that had been sent by then, and lets its timer
    /// expire, both as little as necessary.
    fn until_next_is(&mut self, request: &Captured) {
        let psn = request.packet().psn();
        // Every iteration delivers a response or uses up a retry.
        for _ in 0..200 {
            let ready = self.qp.wants_to_transmit();
            let ahead = self.qp.next_psn().distance_from(psn);
            let answer = self.answers.front().filter(|p| p.at <= request.at).copied();
            let lost = answer.is_some_and(|p| asks_again(&p.packet(), psn));
            if ready && ahead == 0 && !lost {
                return;
            }
            let unacked = self.qp.unacked_psn();
            if lost || unacked != psn && answer.is_some() {
                self.feed();
            } else {
                assert!(ahead >= 0, "{}: nothing leads to {}", self.side.capture.name, request.packet());
                self.timer();
            }
        }
        panic!("{}: nothing leads to {}", self.side.capture.name, request.packet());
    }

    fn feed(&mut self) {
        let Some(answer) = self.answers.pop_front() else { return };
        let packet = answer.packet();
        // A second response, to a duplicate request, is a ghost.
        let _ = self.qp.handle_packet(self.now, &IpHeader::default(), &packet, &mut self.host);
    }

    fn timer(&mut self) {
        let at = self.qp.poll_timeout();
        self.now = at.unwrap_or_else(|| panic!("{}: no timer runs", self.side.capture.name));
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    /// Delivers the remaining responses; then every work request has the expected outcome, and nothing is sent.
    fn finish(&mut self, messages: &[Message]) {
        let name = self.side.capture.name.as_str();
        while !self.answers.is_empty() {
            self.feed();
        }
        let failure = self.side.failure(true);
        if failure.is_some_and(|f| f.status == WcStatus::RetryExcErr) && self.qp.sends_outstanding() > 0 {
            self.timer();
        }
        let ours = self.poll();
        assert!(ours.is_none(), "{name}: {} was not sent", Packet::parse(&ours.unwrap()).unwrap());
        let mut expected: Vec<_> = (0..messages.len() as u64).map(|id| (id, WcStatus::Success)).collect();
        if let Some(failure) = failure {
            // The failed request may have several packets. Those behind it are flushed.
            let failed =
                messages.iter().rposition(|m| m.psn.distance_from(failure.psn) <= 0).unwrap_or_default();
            expected[failed].1 = failure.status;
            expected[failed + 1..].iter_mut().for_each(|(_, status)| *status = WcStatus::WrFlushErr);
        }
        assert_eq!(self.host.sends, expected, "{name}");
        self.compare_results(messages);
    }

    /// The data that READs received must be what rxe's responses carried.
    fn compare_results(&self, messages: &[Message]) {
        let brought = messages
            .iter()
            .enumerate()
            .filter(|(_, m)| m.brings > 0)
            .flat_map(|(i, message)| self.host.load(LOCAL, buffer(i), message.brings).unwrap());
        let mut seen: Vec<Psn> = Vec::new();
        let carried = self.side.received(false).filter_map(|p| {
            let packet = p.packet();
            let data = match packet.atomic_ack() {
                Some(original) => original.to_ne_bytes().to_vec(),
                None => packet.payload().to_vec(),
            };
            let again = seen.contains(&packet.psn());
            seen.push(packet.psn());
            (!again && !data.is_empty()).then_some(data)
        });
        let failed = self.side.failure(true).is_some();
        assert!(failed || brought.eq(carried.flatten()), "{}: other data", self.side.capture.name);
    }
}

/// Whether a response makes a requester send this PSN (again).
fn asks_again(answer: &Packet<'_>, psn: Psn) -> bool {
    let syndrome = answer.aeth().map(|a| a.kind());
    let again = matches!(syndrome, Some(Syndrome::Rnr { .. } | Syndrome::Nak(NakCode::PsnSequenceError)));
    again && answer.psn() == psn
}
