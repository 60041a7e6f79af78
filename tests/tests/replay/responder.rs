//! Our responder in place of rxe's: it gets the requests of a capture, and must send its responses.

use crate::facts::{Failure, syndrome};
use crate::host::ReplayHost;
use crate::{Captured, QKEY, Side, Tally, freedom, takes_receive};
use qp::wire::{Operation, Packet, Syndrome};
use qp::{Psn, QKey, QpType, RecvWr, Sge, WcOpcode, WcStatus};
use rnic::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Key of the receive buffers; no capture uses it.
const RECEIVES: u32 = 0xffff_0000;
/// Length of each receive: more than the largest message.
const RECEIVE_LEN: u32 = 1 << 17;

/// A packet that we send, and the request that led to it.
struct Answer<'c> {
    ours: Vec<u8>,
    to: &'c Captured,
    outcome: String,
}

pub(crate) fn replay(side: &Side<'_>, tally: &mut Tally) {
    let requests = side.arrived();
    let (host, sent) = drive(side, &requests);
    let mut answers = side.sent(false);
    for Answer { ours, to, outcome } in &sent {
        let theirs = answers.next().unwrap_or_else(|| {
            let packet = Packet::parse(ours).unwrap();
            panic!("{}: {packet} in answer to {}, {outcome}", side.capture.name, to.packet())
        });
        tally.compare(side.capture, theirs, ours);
    }
    let missing = answers.next().map(Captured::packet);
    assert!(missing.is_none(), "{}: we do not send {missing:?}", side.capture.name);
    compare_messages(side, &requests, &host);
    compare_writes(side, &requests, &host);
}

/// Whether these requests lead to the answers of the capture.
pub(crate) fn explains(side: &Side<'_>, requests: &[&Captured]) -> bool {
    let (_, sent) = drive(side, requests);
    let theirs: Vec<_> = side.sent(false).collect();
    let fits = |(theirs, answer): (&&Captured, &Answer<'_>)| {
        let freedom = freedom(side.capture, &theirs.bytes, &answer.ours);
        theirs.equals(&answer.ours) || freedom.is_some_and(|(changed, _)| theirs.equals(&changed))
    };
    theirs.len() == sent.len() && theirs.iter().zip(&sent).all(fits)
}

/// Gives our queue pair these requests; returns what it sends.
fn drive<'c>(side: &Side<'c>, requests: &[&'c Captured]) -> (ReplayHost, Vec<Answer<'c>>) {
    let mut host = ReplayHost::default();
    prepare_memory(side, requests, &mut host);
    let mut qp = side.queue_pair(&mut host);
    let mut receives = receives(side, requests);
    let now = Instant::EPOCH;
    let (mut sent, mut written) = (Vec::new(), BTreeSet::new());
    for &request in requests {
        while receives.first().is_some_and(|(at, _)| *at <= request.at) {
            let (_, length) = receives.remove(0);
            let wr_id = receives.len() as u64;
            let sge = Sge { addr: wr_id * u64::from(RECEIVE_LEN), length, lkey: RECEIVES };
            host.map(RECEIVES, sge.addr, length as usize);
            qp.post_recv(RecvWr { wr_id, data: sge.into() }, &mut host).unwrap();
        }
        let packet = request.packet();
        if packet.info().operation == Operation::ReadRequest {
            fill_anew(side, &packet, &written, &mut host);
        }
        written.extend(packet.reth().filter(|_| packet.info().operation == Operation::Write).map(|r| r.rkey));
        written.extend(packet.atomic_eth().map(|atomic| atomic.rkey));
        let outcome = qp.handle_packet(now, &request.arrival(), &packet, &mut host);
        while let Some(ours) = side.poll(&mut qp, now, &mut host) {
            sent.push(Answer { ours, to: request, outcome: format!("{outcome:?}") });
        }
    }
    (host, sent)
}

/// Memory must contain the data last written to it.
fn compare_writes(side: &Side<'_>, requests: &[&Captured], host: &ReplayHost) {
    let mut memory: BTreeMap<(u32, u64), u8> = BTreeMap::new();
    let mut place = (0, 0, Psn::default());
    let failed = side.failure(false).map(|failure| failure.psn);
    let executed = |p: &Packet<'_>| failed.is_none_or(|failed| p.psn().distance_from(failed) < 0);
    let writes = requests.iter().map(|p| p.packet()).filter(|p| p.info().operation == Operation::Write);
    for packet in writes.filter(executed) {
        place = packet.reth().map_or(place, |reth| (reth.rkey, reth.va, packet.psn()));
        let (key, va, first) = place;
        // By PSN, not by the previous packet, which may be lost or repeated.
        let index = u64::from(packet.psn().distance_from(first).unsigned_abs());
        let va = va + index * u64::from(side.mtu().bytes());
        memory.extend((va..).map(|va| (key, va)).zip(packet.payload().iter().copied()));
    }
    for atomic in requests.iter().filter_map(|p| p.packet().atomic_eth()) {
        // The responses contain the effect of these.
        (atomic.va..atomic.va + 8).for_each(|va| _ = memory.remove(&(atomic.rkey, va)));
    }
    let wrong = memory.iter().find(|((key, va), byte)| host.load(*key, *va, 1) != Some(vec![**byte]));
    assert!(wrong.is_none(), "{}: {wrong:x?} was written otherwise", side.capture.name);
}

/// A message that consumes a receive, reconstructed from its packets.
#[derive(PartialEq, Debug)]
struct Received {
    imm: Option<u32>,
    byte_len: usize,
    stored: Vec<u8>,
}

/// The received messages must be those that were sent: in order, and datagrams after their network header.
fn compare_messages(side: &Side<'_>, requests: &[&Captured], host: &ReplayHost) {
    let mut expected: Vec<Received> = Vec::new();
    let (mut message, mut next) = (Vec::new(), requests.first().map(|p| p.packet().psn()));
    let mut written = 0;
    for captured in requests {
        let packet = captured.packet();
        let brings = if packet.info().operation == Operation::ReadRequest { packet.reth() } else { None };
        let psns = side.mtu().packets(brings.map_or(0, |reth| reth.length));
        if next != Some(packet.psn()) || packet.deth().is_some_and(|deth| !is_ours(side, deth.qkey)) {
            // A retransmission; or a datagram that is not for us, but has a PSN anyway.
            next = next.map(|psn| if packet.deth().is_some() { packet.psn().plus(1) } else { psn });
            continue;
        }
        next = Some(packet.psn().plus(psns));
        if packet.info().position.starts() {
            message.clear();
            written = packet.reth().map_or(0, |reth| reth.length as usize);
            message.extend(packet.deth().iter().flat_map(|_| captured.network));
        }
        message.extend(packet.payload());
        let (operation, imm) = (packet.info().operation, packet.imm());
        if packet.info().position.ends() && (operation == Operation::Send || imm.is_some()) {
            let stored = if operation == Operation::Send { message.clone() } else { Vec::new() };
            expected.push(Received { imm, byte_len: stored.len().max(written), stored });
            written = 0;
        }
    }
    let got: Vec<_> = host
        .recvs
        .iter()
        .filter(|wc| wc.status == WcStatus::Success)
        .map(|wc| {
            let byte_len = wc.byte_len as usize;
            let len = if wc.opcode == WcOpcode::Recv { byte_len } else { 0 };
            let stored = host.load(RECEIVES, wc.wr_id * u64::from(RECEIVE_LEN), len).unwrap();
            Received { imm: wc.imm(), byte_len, stored }
        })
        .collect();
    if side.failure(false).is_some() {
        expected.truncate(got.len());
    }
    assert_eq!(got, expected, "{}: other messages", side.capture.name);
}

/// Whether a datagram with this key is for our queue pair.
fn is_ours(side: &Side<'_>, qkey: QKey) -> bool {
    qkey == if side.capture.qp_type() == QpType::Gsi { QKey::GSI } else { QKEY }
}

/// A program may change memory before a peer READs it, as rping does in each round. Memory that the peer writes must hold
/// what it wrote.
fn fill_anew(side: &Side<'_>, request: &Packet<'_>, written: &BTreeSet<u32>, host: &mut ReplayHost) {
    let changed = request.reth().filter(|reth| !written.contains(&reth.rkey) && !is_refused(side, request));
    if let Some(reth) = changed {
        host.store(reth.rkey, reth.va, &read_data(side, request, reth.length as usize));
    }
}

/// Whether the key of a request was refused.
fn is_refused(side: &Side<'_>, request: &Packet<'_>) -> bool {
    side.failure(false) == Some(Failure { psn: request.psn(), status: WcStatus::RemAccessErr })
}

/// When each receive is posted, and its length.
fn receives(side: &Side<'_>, requests: &[&Captured]) -> Vec<(Duration, u32)> {
    // Retransmissions consume no second one.
    let mut messages: BTreeMap<u32, &Captured> = BTreeMap::new();
    for request in requests.iter().filter(|p| takes_receive(&p.packet())) {
        messages.entry(request.packet().psn().value()).or_insert(request);
    }
    let failure = side.failure(false);
    let receive = |request: &Captured| {
        let psn = request.packet().psn();
        let failed = failure.filter(|failure| failure.psn == psn).map(|failure| failure.status);
        let is_rnr =
            |p: &&Captured| matches!(syndrome(p), Some(Syndrome::Rnr { .. })) && p.packet().psn() == psn;
        let at = match side.sent(false).filter(is_rnr).map(|p| p.at).max() {
            // Posted after the other side has given up, or between the last RNR NAK and the request that found it.
            Some(_) if failed == Some(WcStatus::RnrRetryExcErr) => Duration::MAX,
            Some(at) => at + Duration::from_nanos(1),
            None => Duration::ZERO,
        };
        let length = match failed {
            // Too short for the message.
            Some(WcStatus::RemOpErr | WcStatus::RemInvReqErr) => request.packet().payload().len() as u32 - 1,
            _ => RECEIVE_LEN,
        };
        (at, length)
    };
    messages.into_values().map(receive).collect()
}

/// Registers the memory that the requests access, with the content that the responses reveal.
fn prepare_memory(side: &Side<'_>, requests: &[&Captured], host: &mut ReplayHost) {
    let mut written: BTreeSet<(u32, u64)> = BTreeSet::new();
    for request in requests.iter().map(|p| p.packet()) {
        if is_refused(side, &request) {
            continue;
        }
        if let Some(key) = request.ieth() {
            host.map(key, 0, 0);
        }
        if let Some(reth) = request.reth() {
            let len = reth.length as usize;
            host.map(reth.rkey, reth.va, len);
            if request.info().operation == Operation::ReadRequest {
                reveal(host, &mut written, reth.rkey, reth.va, &read_data(side, &request, len));
            } else {
                written.extend((reth.va..reth.va + len as u64).map(|va| (reth.rkey, va)));
            }
        } else if let Some(atomic) = request.atomic_eth() {
            let same = |p: &&Captured| p.packet().psn() == request.psn();
            let original = side.sent(false).find(same).and_then(|p| p.packet().atomic_ack()).unwrap_or(0);
            reveal(host, &mut written, atomic.rkey, atomic.va, &original.to_ne_bytes());
            written.extend((atomic.va..atomic.va + 8).map(|va| (atomic.rkey, va)));
        }
    }
}

/// Stores what a request found, except where an earlier request had changed or read it: there the replay itself
/// must produce the content.
fn reveal(host: &mut ReplayHost, known: &mut BTreeSet<(u32, u64)>, key: u32, va: u64, data: &[u8]) {
    for (at, byte) in (va..).zip(data) {
        if known.insert((key, at)) {
            host.store(key, at, &[*byte]);
        }
    }
}

/// The data that rxe sent in response to a READ.
fn read_data(side: &Side<'_>, request: &Packet<'_>, len: usize) -> Vec<u8> {
    let packets = i32::try_from(side.mtu().packets(len as u32)).unwrap();
    let belongs = |p: &&Captured| (0..packets).contains(&p.packet().psn().distance_from(request.psn()));
    side.sent(false).filter(belongs).flat_map(|p| p.packet().payload().to_vec()).take(len).collect()
}
