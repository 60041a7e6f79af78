//! Two unreliable queue pairs over a network that loses, duplicates and reorders packets: what arrives is a
//! complete message that was sent, or nothing.
//!
//! Every run is a function of its seed, which a failure names.

use super::pair::{CALM, Pair, Rng, SOURCE, TARGET, Weather, remote, rough, sge, split};
use super::*;
use crate::wire::headers::GRH_LEN;
use std::sync::Arc;

/// Number of messages in a run, and the room for each: in the source, in the target of WRITEs, and in the receives
/// after it.
const MESSAGES: usize = 60;
const ROOM: usize = 5000;
const RECEIVES: usize = MESSAGES * ROOM;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    WriteImm,
}

struct Message {
    kind: Kind,
    /// Offset in the source, and in the target of a WRITE.
    at: usize,
    payload: Vec<u8>,
}

/// Runs with this weather and seed; returns the number of messages that arrived.
fn run(qp_type: QpType, weather: Weather, seed: u64) -> usize {
    let what = format!("{qp_type}, {weather:?}, seed {seed}");
    let mtu = Mtu::ALL[(seed % 5) as usize];
    let setup = Setup { qp_type, ..rough(mtu, seed) };
    let mut pair = Pair::of(&setup, &setup, weather, seed);
    let mut rng = Rng(seed ^ 3);
    let datagrams = qp_type == QpType::Ud;
    let longest = if datagrams { mtu.bytes() as usize } else { ROOM - GRH_LEN };
    let messages: Vec<_> = (0..MESSAGES)
        .map(|i| {
            let kind = match rng.below(4) {
                0 if !datagrams => Kind::Write,
                1 if !datagrams => Kind::WriteImm,
                _ => Kind::Send,
            };
            let (at, len) = (i * ROOM, rng.below(longest + 1));
            let payload = pair.sides[0].host.bytes(SOURCE)[at..at + len].to_vec();
            Message { kind, at, payload }
        })
        .collect();
    for i in 0..MESSAGES {
        pair.sides[1].post_recv(i as u64, &split(&mut rng, TARGET, RECEIVES + i * ROOM, ROOM));
    }
    let path = Arc::new(AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0));
    let mut posted = 0;
    let mut post = |pair: &mut Pair| {
        while posted < MESSAGES && rng.percent(50) {
            let Message { kind, at, payload } = &messages[posted];
            let imm = Some(posted as u32);
            let operation = match kind {
                Kind::Send => Operation::Send { imm, invalidate: None },
                Kind::Write => Operation::Write { remote: remote(TARGET, *at), imm: None },
                Kind::WriteImm => Operation::Write { remote: remote(TARGET, *at), imm },
            };
            let data = split(&mut rng, SOURCE, *at, payload.len());
            let wr = SendWr::new(posted as u64, operation, &data[..]).flags(SendFlags::SIGNALED);
            let to = Destination::Datagram { path: Arc::clone(&path), qpn: OURS, qkey: QKEY };
            let wr = if datagrams { wr.to(to) } else { wr };
            let side = &mut pair.sides[0];
            side.qp.post_send(wr, &mut side.host).unwrap();
            posted += 1;
        }
        posted < MESSAGES
    };
    // Once everything posted is delivered or lost, nothing happens any more.
    let mut more = true;
    while more {
        more = post(&mut pair);
        pair.run(|pair| _ = post(pair));
    }
    let [ours, theirs] = &pair.sides;
    let sent: Vec<_> = ours.host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let all: Vec<_> = (0..MESSAGES as u64).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(sent, all, "{what}");
    assert_eq!((ours.qp.counters().retransmitted_pkts, theirs.qp.state()), (0, QpState::Rts), "{what}");
    let mut arrived = Vec::new();
    for (i, (wc, _)) in theirs.host.recvs.iter().enumerate() {
        let number = wc.imm().unwrap() as usize;
        let Message { kind, at, payload } = &messages[number];
        assert_eq!(
            (wc.wr_id, wc.status),
            (i as u64, WcStatus::Success),
            "{what}: receives are used in order"
        );
        let (header, place) = match kind {
            Kind::Send if datagrams => (GRH_LEN, RECEIVES + i * ROOM + GRH_LEN),
            Kind::Send => (0, RECEIVES + i * ROOM),
            _ => (0, *at),
        };
        assert_eq!(wc.byte_len as usize, header + payload.len(), "{what}: message {number}");
        let stored = theirs.host.behind(sge(TARGET, place, payload.len()));
        assert!(stored == payload, "{what}: message {number} is corrupt");
        arrived.push(number);
    }
    for Message { kind, at, payload } in &messages {
        // The target of a WRITE contains whole packets from the start of the message on.
        let stored = theirs.host.behind(sge(TARGET, *at, ROOM));
        let same = stored.iter().zip(payload).take_while(|(a, b)| a == b).count();
        assert!(stored[same..].iter().all(|b| *b == 0), "{what}: a piece of another message");
        assert!(*kind != Kind::Send || same == 0 || stored[0] == 0 || payload[0] == 0, "{what}");
    }
    if weather.reorder == 0 && weather.double == 0 {
        assert!(arrived.is_sorted_by(|a, b| a < b), "{what}: out of order");
    }
    if weather.loss + weather.double + weather.reorder == 0 {
        let expected: Vec<_> = (0..MESSAGES).filter(|i| messages[*i].kind != Kind::Write).collect();
        assert_eq!(arrived, expected, "{what}");
    }
    arrived.sort_unstable();
    arrived.dedup();
    arrived.len()
}

fn runs(qp_type: QpType, weather: Weather, seeds: u64) -> usize {
    (0..seeds).map(|seed| run(qp_type, weather, seed)).sum()
}

#[test]
fn unreliable_connections_deliver_whole_messages_or_nothing() {
    let calm = runs(QpType::Uc, CALM, 40);
    for weather in [
        Weather { loss: 1, ..CALM },
        Weather { loss: 20, ..CALM },
        Weather { double: 20, ..CALM },
        Weather { reorder: 20, ..CALM },
        Weather { loss: 5, double: 10, reorder: 10 },
    ] {
        let arrived = runs(QpType::Uc, weather, 40);
        assert!(arrived > 0, "{weather:?}");
        // Duplication alone also loses messages: the second copy of a packet breaks its message.
        assert!(arrived < calm, "{weather:?}: {arrived} of {calm}");
    }
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    let calm = runs(QpType::Ud, CALM, 20);
    assert_eq!(calm, 20 * MESSAGES);
    let lost = runs(QpType::Ud, Weather { loss: 20, ..CALM }, 20);
    assert!(lost > 0 && lost < calm);
    // Datagrams are independent: neither duplication nor reordering loses any, as long as receives are posted.
    assert_eq!(runs(QpType::Ud, Weather { reorder: 50, ..CALM }, 20), calm);
}
