//! Our responder in the place of rxe's: the requests of a capture go in, its answers must come out.

use crate::host::ReplayHost;
use crate::{BAD_KEYS, Captured, Side, Tally, takes_receive};
use qp::wire::{Arrival, Operation, Packet};
use qp::{RecvWr, Sge};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Key of the receive buffers: none of the captures has it.
const RECEIVES: u32 = 0xffff_0000;
/// Room for each receive: more than the largest message.
const RECEIVE_LEN: u32 = 1 << 17;

pub(crate) fn replay(side: &Side<'_>, tally: &mut Tally) {
    let mut host = ReplayHost::default();
    let requests: Vec<_> = side.received(true).collect();
    prepare_memory(side, &requests, &mut host);
    let mut qp = side.queue_pair(&mut host);
    let mut receives = receives(side, &requests);
    let now = Instant::now();
    let mut answers = side.sent(false);
    for request in &requests {
        while receives.first().is_some_and(|(at, _)| *at <= request.at) {
            let (_, length) = receives.remove(0);
            let wr_id = receives.len() as u64;
            let sge = Sge { addr: wr_id * u64::from(RECEIVE_LEN), length, lkey: RECEIVES };
            host.map(RECEIVES, sge.addr, length as usize);
            qp.post_recv(RecvWr { wr_id, data: sge.into() }, &mut host).unwrap();
        }
        let outcome = qp.handle_packet(now, &Arrival::default(), &request.packet(), &mut host);
        while let Some(ours) = side.poll(&mut qp, now, &mut host) {
            let packet = Packet::parse(&ours).unwrap();
            let theirs = answers.next().unwrap_or_else(|| {
                panic!("{}: {packet} in answer to {}, {outcome:?}", side.capture.name, request.packet())
            });
            tally.compare(side.capture, theirs, &ours);
        }
    }
    let missing = answers.next().map(Captured::packet);
    assert!(missing.is_none(), "{}: we do not send {missing:?}", side.capture.name);
}

/// When which receives are posted, and how long they are.
fn receives(side: &Side<'_>, requests: &[&Captured]) -> Vec<(Duration, u32)> {
    // Retransmissions take no second one.
    let messages: BTreeSet<u32> =
        requests.iter().map(|p| p.packet()).filter(takes_receive).map(|p| p.psn().value()).collect();
    let (at, length) = match side.capture.name.as_str() {
        // `-z 60`: posted after 60 ms.
        "rg_rnr_nak" => (Duration::from_millis(60), RECEIVE_LEN),
        // `-z 3000`: posted long after the other side had given up.
        "rg_rnr_exceeded" => (Duration::from_secs(3), RECEIVE_LEN),
        // `-b 100`: buffers of 100 bytes.
        "rg_nak_send_toolong" => (Duration::ZERO, 100),
        _ => (Duration::ZERO, RECEIVE_LEN),
    };
    messages.iter().map(|_| (at, length)).collect()
}

/// Registers what the requests touch, with the content that the answers reveal.
fn prepare_memory(side: &Side<'_>, requests: &[&Captured], host: &mut ReplayHost) {
    let bad = BAD_KEYS.contains(&side.capture.name.as_str());
    let mut written: BTreeSet<(u32, u64)> = BTreeSet::new();
    let last = requests.len().saturating_sub(1);
    for (i, request) in requests.iter().map(|p| p.packet()).enumerate() {
        if bad && i == last {
            continue;
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
            let original = side.sent(false).find(same).and_then(|p| p.packet().atomic_ack()).unwrap();
            reveal(host, &mut written, atomic.rkey, atomic.va, &original.to_ne_bytes());
            written.extend((atomic.va..atomic.va + 8).map(|va| (atomic.rkey, va)));
        }
    }
}

/// Stores what a request found, save where an earlier request had changed or found it: that the replay must do itself.
fn reveal(host: &mut ReplayHost, known: &mut BTreeSet<(u32, u64)>, key: u32, va: u64, data: &[u8]) {
    for (at, byte) in (va..).zip(data) {
        if known.insert((key, at)) {
            host.store(key, at, &[*byte]);
        }
    }
}

/// The bytes that rxe sent in answer to a READ.
fn read_data(side: &Side<'_>, request: &Packet<'_>, len: usize) -> Vec<u8> {
    let packets = i32::try_from(side.mtu().packets(len as u32)).unwrap();
    let belongs = |p: &&Captured| (0..packets).contains(&p.packet().psn().distance_from(request.psn()));
    side.sent(false).filter(belongs).flat_map(|p| p.packet().payload().to_vec()).take(len).collect()
}
