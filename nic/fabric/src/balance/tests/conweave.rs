//! ConWeave: epochs, changes of the way, and the order at the destination.

use super::{US, packet, ports};
use crate::balance::conweave::{Answer, Conweave, Destination, Kind, Label, Reply, Source};
use crate::balance::{Picos, Question};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The round trip without queues.
const RTT: Picos = 10 * US;

fn source() -> Source {
    Source::new(&Conweave::default(), 1, 7)
}

fn destination() -> Destination<u32> {
    Destination::new(&Conweave::default(), 7)
}

fn send(source: &mut Source, now: Picos, ports: &[u16]) -> Label {
    let (way, label) = source.send(&packet(now, 5, ports), RTT);
    let label = label.unwrap();
    assert_eq!(label.way, way);
    label
}

fn delivered(destination: &mut Destination<u32>, now: Picos) -> Vec<u32> {
    std::iter::from_fn(|| destination.poll(now)).collect()
}

const fn label(epoch: u64, rerouted: bool, kind: Kind, sent: Picos, tail: Picos) -> Label {
    Label { epoch, rerouted, kind, way: 3, sent, tail }
}

#[test]
fn replies_in_time_keep_a_flow_on_its_way() {
    let (mut source, ports) = (source(), ports(8));
    let first = send(&mut source, 0, &ports);
    assert_eq!((first.epoch, first.kind), (1, Kind::Request));
    for n in 1..50 {
        let now = n * 13 * US;
        source.on_reply(5, Reply { epoch: n, tail: false });
        let next = send(&mut source, now, &ports);
        assert_eq!(next, Label { epoch: n + 1, kind: Kind::Request, sent: now, ..first });
        let data = send(&mut source, now + US, &ports);
        assert_eq!(data, Label { kind: Kind::Data, sent: now + US, ..next });
    }
    assert_eq!(source.reroutes(), 0);
}

#[test]
fn a_late_reply_moves_a_flow_once() {
    let (mut source, ports) = (source(), ports(64));
    let first = send(&mut source, 0, &ports);
    // 10 us and 4 us are still in time.
    assert_eq!(send(&mut source, 14 * US, &ports).kind, Kind::Data);
    let tail = send(&mut source, 14 * US + 1, &ports);
    assert_eq!((tail.kind, tail.rerouted, tail.way, tail.tail), (Kind::Tail, false, first.way, 14 * US + 1));
    let moved = send(&mut source, 15 * US, &ports);
    assert_eq!((moved.kind, moved.rerouted, moved.epoch, moved.tail), (Kind::Data, true, 1, tail.tail));
    assert_ne!(moved.way, first.way);
    // The reply to the request comes after all. The flow stays on its new way, and cannot leave it yet.
    source.on_reply(5, Reply { epoch: 1, tail: false });
    for n in 16..300 {
        let next = send(&mut source, n * US, &ports);
        assert_eq!(next, Label { sent: n * US, ..moved });
    }
    source.on_reply(5, Reply { epoch: 1, tail: true });
    let next = send(&mut source, 301 * US, &ports);
    assert_eq!((next.epoch, next.rerouted, next.kind, next.way), (2, false, Kind::Request, moved.way));
    assert_eq!(source.reroutes(), 1);
}

#[test]
fn an_idle_flow_takes_another_way_free_of_charge() {
    let (mut source, ports) = (source(), ports(8));
    let ways: BTreeSet<u16> = (0..200)
        .map(|n| {
            let label = send(&mut source, n * (300 * US + 1), &ports);
            assert_eq!((label.kind, label.epoch), (Kind::Request, n + 1));
            label.way
        })
        .collect();
    assert_eq!(ways.len(), 8);
}

#[test]
fn marked_ways_are_avoided_for_a_while() {
    let ports = ports(2);
    let mut left = 0;
    for switch in 0..200 {
        let mut source = Source::new(&Conweave::default(), switch, 7);
        source.on_notify(0, 2, 0);
        if send(&mut source, 0, &ports).way == 1 {
            // The other way is bad, so there is none to go to until 16 us have passed.
            assert_eq!(send(&mut source, 16 * US - 1, &ports).kind, Kind::Data);
            left += u32::from(send(&mut source, 16 * US, &ports).kind == Kind::Tail);
        }
    }
    // Three of four flows find it: about 150 began on the good way.
    assert!((80..140).contains(&left), "{left}");
    // Only if both samples are the bad way does a new flow take it: once in four times.
    let mut source = source();
    source.on_notify(0, 2, 0);
    let bad =
        (0..4000).filter(|flow| source.send(&Question { flow: *flow, ..packet(0, 0, &ports) }, RTT).0 == 0);
    // Some of 1000, because flows without a place in the table take the port of their hash.
    assert!((850..1200).contains(&bad.count()));
    let other = Question { dst_leaf: 3, ..packet(0, 0, &ports) };
    let used: BTreeSet<u16> =
        (5000..5100).map(|flow| source.send(&Question { flow, ..other }, RTT).0).collect();
    assert_eq!(used.len(), 2);
}

#[test]
fn rerouted_packets_wait_for_the_tail() {
    let mut destination = destination();
    let reply = |tail| Answer { reply: Some(Reply { epoch: 1, tail }), notify: None };
    let handle = |destination: &mut Destination<u32>, now, label: &Label, number| {
        (destination.handle(now, 5, label, false, number), delivered(destination, now))
    };
    let request = label(1, false, Kind::Request, 0, 0);
    assert_eq!(handle(&mut destination, 100 * US, &request, 1), (reply(false), vec![1]));
    let moved = label(1, true, Kind::Data, 31 * US, 30 * US);
    assert_eq!(handle(&mut destination, 110 * US, &moved, 3), (Answer::default(), vec![]));
    assert_eq!(handle(&mut destination, 111 * US, &moved, 4), (Answer::default(), vec![]));
    // The request took 100 us, so the TAIL should come at 130 us; and there are 16 us more.
    assert_eq!(destination.deadline(), Some(146 * US));
    let tail = label(1, false, Kind::Tail, 30 * US, 30 * US);
    assert_eq!(handle(&mut destination, 140 * US, &tail, 2), (reply(true), vec![2, 3, 4]));
    assert_eq!(destination.deadline(), None);
    assert_eq!(handle(&mut destination, 141 * US, &moved, 5), (Answer::default(), vec![5]));
}

#[test]
fn packets_on_the_old_way_put_off_the_deadline() {
    let mut destination = destination();
    destination.handle(0, 5, &label(1, true, Kind::Data, 0, 30 * US), false, 9);
    // Nothing is known of the old way: 200 us and 16 us.
    assert_eq!(destination.deadline(), Some(216 * US));
    destination.handle(50 * US, 5, &label(1, false, Kind::Data, 10 * US, 0), false, 1);
    assert_eq!(destination.deadline(), Some((50 + 20 + 16) * US));
    assert_eq!(delivered(&mut destination, 86 * US - 1), [1]);
    assert_eq!(delivered(&mut destination, 86 * US), [9]);
    // The TAIL is given up, so nothing waits any more; if it comes, it is answered.
    destination.handle(90 * US, 5, &label(1, true, Kind::Data, 0, 30 * US), false, 10);
    let answer = destination.handle(91 * US, 5, &label(1, false, Kind::Tail, 30 * US, 30 * US), true, 2);
    assert_eq!(answer, Answer { reply: Some(Reply { epoch: 1, tail: true }), notify: Some(3) });
    assert_eq!(delivered(&mut destination, 91 * US), [10, 2]);
}

#[test]
fn a_new_epoch_ends_waiting_and_an_old_packet_does_not_wait() {
    let mut destination = destination();
    destination.handle(0, 5, &label(1, true, Kind::Data, 0, 30 * US), false, 1);
    destination.handle(US, 5, &label(2, false, Kind::Request, 0, 0), false, 2);
    assert_eq!(delivered(&mut destination, US), [1, 2]);
    let answer = destination.handle(2 * US, 5, &label(1, false, Kind::Tail, 0, 0), false, 3);
    assert_eq!((answer, delivered(&mut destination, 2 * US)), (Answer::default(), vec![3]));
}

/// What travels.
enum Event {
    Send(u32),
    Packet(Label, u32),
    Reply(Reply),
}

/// What has become of the packets of a flow.
struct Run {
    arrived: Vec<u32>,
    delivered: Vec<u32>,
    /// How often the flow left a way.
    reroutes: u64,
}

/// Runs a flow whose packets leave after these waits, over ways with these delays.
fn run(waits: &[Picos], delays: &[Picos]) -> Run {
    let (mut source, mut destination) = (source(), destination());
    let (mut arrived, mut order) = (Vec::new(), Vec::new());
    let ports = ports(u16::try_from(delays.len()).unwrap());
    let (mut events, mut numbers, mut at) = (BTreeMap::new(), 0_u64.., 0);
    for (number, wait) in (0_u32..).zip(waits) {
        at += wait;
        events.insert((at, numbers.next()), Event::Send(number));
    }
    loop {
        let next = events.keys().next().map(|(at, _)| *at);
        let Some(now) = next.into_iter().chain(destination.deadline()).min() else { break };
        match events.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove()) {
            Some(Event::Send(number)) => {
                let label = send(&mut source, now, &ports);
                let arrival = now + delays[usize::from(label.way)];
                events.insert((arrival, numbers.next()), Event::Packet(label, number));
            }
            Some(Event::Packet(label, number)) => {
                arrived.push(number);
                if let Some(reply) = destination.handle(now, 5, &label, false, number).reply {
                    events.insert((now + RTT / 2, numbers.next()), Event::Reply(reply));
                }
            }
            Some(Event::Reply(reply)) => source.on_reply(5, reply),
            None => {}
        }
        order.extend(delivered(&mut destination, now));
    }
    Run { arrived, delivered: order, reroutes: source.reroutes() }
}

proptest! {
    /// Ways of any delay up to 150 us, which is less than a TAIL of which nothing is known is waited for.
    #[test]
    fn packets_are_delivered_in_their_order(
        waits in prop::collection::vec(0_u64..30 * US, 1..300),
        delays in prop::collection::vec(US..150 * US, 2..8),
    ) {
        let order = run(&waits, &delays).delivered;
        prop_assert!(order.iter().copied().eq(0..u32::try_from(waits.len()).unwrap()), "{order:?}");
    }
}

#[test]
fn a_flow_leaves_slow_ways() {
    let delays = [100, 5, 120, 140].map(|delay| delay * US);
    let Run { arrived, delivered, reroutes } = run(&[US; 2000], &delays);
    assert!(!arrived.is_sorted());
    assert_eq!(delivered, (0..2000).collect::<Vec<_>>());
    // It ends on the fast way, on which replies come in time; and then it stays.
    assert!((1..10).contains(&reroutes), "{reroutes}");
}
