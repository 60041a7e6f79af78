//! Departure times of packets.

use super::*;
use crate::engine::{CreditSetup, PartnerSetup};
use crate::{AddressVector, Gid, Mtu, Operation, QKey, QpAttr, QpState, SendWr, WcStatus};
use qp::wire::mad::hello::{Counting, Features};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const GIGABIT: Rate = Rate::from_gbps(1);

#[test]
fn a_queue_pair_keeps_its_rate_within_a_train() -> Result<()> {
    for (train_time, most) in [(Duration::ZERO, 1), (us(20), 1), (us(100), 2), (us(500), 14)] {
        let net = Net::new();
        let a = device(&net, "a", &RateConfig { train_time, ..fixed(GIGABIT) });
        let b = net.named_device("b");
        let log = Log::of(&a);
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 20)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        let sent = log.sent(|_| true);
        assert_paced(&sent, GIGABIT);
        let bytes: u64 = sent.iter().map(|s| s.size).sum();
        let packet = u64::from(wire_bytes(12 + 4096 + 4, false));
        // All but the last train, and 2 us in transit.
        let least = GIGABIT.time_for(bytes - most * (packet + 16));
        assert!(net.elapsed() >= least && net.elapsed() < GIGABIT.time_for(bytes) + us(3));
        let largest = departures(&sent).iter().map(|(_, bytes)| *bytes).max();
        let trains = largest.expect("trains") / packet;
        assert!(trains == most, "{trains} packets of {most} in {train_time:?}");
        assert_eq!(
            flow(&a, &left.qp).map(|f| (f.sent_bytes, f.rate, f.limited)),
            Some((bytes, GIGABIT, false))
        );
        assert_eq!(left.qp.rate(), Some(GIGABIT));
        assert_eq!(right.qp.rate(), None, "no congestion control there");
    }
    Ok(())
}

#[test]
fn small_messages_are_paced_by_what_they_take_on_the_wire() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &fixed(GIGABIT)), net.named_device("b"));
    let log = Log::of(&a);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 8)?;
    for id in 0..4 * 128 {
        left.qp.write(id, from.all(), to.remote(0))?;
        if id % 128 == 127 {
            for _ in 0..128 {
                left.wait()?;
            }
        }
    }
    let sent = log.sent(|_| true);
    assert_eq!(sent.len(), 512);
    // Each round begins with a pause, during which no burst accumulates.
    for round in sent.chunks(128) {
        let all = departures(round);
        let (mut debt, start) = (0, all[0].0);
        for (at, bytes) in all {
            assert!(debt <= GIGABIT.bytes_in(at - start) + 64);
            assert!(bytes <= 2500, "a train takes 20 us at the most: {bytes}");
            debt += bytes;
        }
    }
    Ok(())
}

#[test]
fn acknowledgements_are_not_held_by_pacing() -> Result<()> {
    let net = Net::new();
    // 4 KiB take 33 ms.
    let (a, b) = (device(&net, "a", &fixed(Rate::from_mbps(1))), net.named_device("b"));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    net.run_for(us(10));
    let (back, target) = memory(&right, &left, 1 << 16)?;
    let begin = net.elapsed();
    for id in 0..100 {
        right.qp.write(id, back.slice(0..8)?, target.remote(0))?;
        assert_eq!(right.wait()?.status, WcStatus::Success);
    }
    assert!(net.elapsed() - begin < us(300), "{:?} for a hundred round trips of 2 us", net.elapsed() - begin);
    assert!(left.cq().poll_one().is_none(), "its own data goes on leaving");
    assert_eq!(left.wait()?.status, WcStatus::Success);
    // 16 packets of its own.
    assert!(net.elapsed() > Duration::from_millis(500));
    assert_eq!(left.qp.counters().retransmitted_pkts, 0);
    Ok(())
}

#[test]
fn acknowledgements_do_not_put_off_what_waits_for_its_time() -> Result<()> {
    let net = Net::new();
    // An acknowledgement takes 0.7 ms.
    let (a, b) = (net.named_device("a"), device(&net, "b", &fixed(Rate::from_mbps(1))));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (near, far) = memory(&left, &right, 64)?;
    for id in 0..100 {
        left.qp.write(id, near.all(), far.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
    }
    let begin = net.elapsed();
    left.qp.read(100, near.all(), far.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert!(net.elapsed() - begin < Duration::from_millis(2), "{:?}", net.elapsed() - begin);
    assert_eq!(left.qp.counters().retransmitted_pkts, 0);
    Ok(())
}

#[test]
fn read_responses_are_paced_where_they_come_from() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.named_device("a"), device(&net, "b", &fixed(GIGABIT)));
    let log = Log::of(&b);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (to, from) = memory(&left, &right, 1 << 20)?;
    from.write_at(0, &[7; 1 << 20])?;
    left.qp.read(1, to.all(), from.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert!(to.to_vec()?.iter().all(|b| *b == 7));
    let sent = log.sent(|_| true);
    assert_eq!(sent.len(), 256);
    assert_paced(&sent, GIGABIT);
    Ok(())
}

#[test]
fn an_answer_behind_a_read_response_waits_for_it() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.named_device("a"), device(&net, "b", &fixed(Rate::from_mbps(100))));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (to, from) = memory(&left, &right, 1 << 16)?;
    left.qp.read(1, to.all(), from.remote(0))?;
    left.qp.write(2, to.slice(0..8)?, from.remote(0))?;
    assert_eq!((left.wait()?.wr_id, left.wait()?.wr_id), (1, 2), "in order");
    assert!(net.elapsed() > Duration::from_millis(5));
    assert_eq!(left.qp.counters().retransmitted_pkts, 0);
    Ok(())
}

#[test]
fn read_responses_behind_an_acknowledgement_wait_for_their_time() -> Result<()> {
    let net = Net::new();
    // A train of 100 us: its successor's time is far ahead when the last response has left.
    let rate = RateConfig { train_time: us(100), ..fixed(GIGABIT) };
    let (a, b) = (net.named_device("a"), device(&net, "b", &rate));
    let log = Log::of(&b);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (to, from) = memory(&left, &right, 1 << 16)?;
    for round in 0..10 {
        right.qp.recv(round, crate::Gather::Empty)?;
        left.qp.send(round, crate::Gather::Empty)?;
        left.qp.read(round, to.all(), from.remote(0))?;
        for _ in 0..2 {
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
    }
    let responses = log.sent(|s| s.size > 1000);
    assert_eq!(responses.len(), 160);
    let start = responses[0].at;
    let mut sent = 0;
    for response in &responses {
        let allowed = GIGABIT.bytes_in(response.at - start);
        assert!(sent <= allowed + 2 * response.size + 100, "{sent} of {allowed} bytes");
        sent += response.size;
    }
    Ok(())
}

#[test]
fn queue_pairs_share_the_rate_of_the_port() -> Result<()> {
    for same_peer in [true, false] {
        let net = Net::new();
        let a = device(&net, "a", &RateConfig { port_rate: Some(GIGABIT), ..RateConfig::default() });
        let (b, c) = (net.named_device("b"), net.named_device("c"));
        let log = Log::of(&a);
        let mut ends = Vec::new();
        for peer in [&b, if same_peer { &b } else { &c }] {
            let (left, right) = RcEnd::pair(&a, peer)?;
            let (from, to) = memory(&left, &right, 1 << 20)?;
            for id in 0..4 {
                left.qp.write(id, from.all(), to.remote(0))?;
            }
            ends.push((left, right, from, to));
        }
        net.run_for(Duration::from_millis(20));
        let sent = log.sent(|_| true);
        assert_paced(&sent, GIGABIT);
        let mut shares = BTreeMap::new();
        for packet in &sent {
            *shares.entry((packet.dst, packet.to)).or_insert(0) += packet.size;
        }
        let shares: Vec<u64> = shares.into_values().collect();
        assert_eq!(shares.len(), 2);
        // A turn is at most one train of 15 packets.
        assert!(shares[0].abs_diff(shares[1]) <= 15 * 4200, "{shares:?}");
        for (left, ..) in &ends {
            for _ in 0..4 {
                assert_eq!(left.wait()?.status, WcStatus::Success);
            }
        }
        assert_eq!(flow(&a, &ends[0].0.qp), None, "no queue pair has a rate of its own");
        assert_paced(&log.sent(|_| true), GIGABIT);
    }
    Ok(())
}

#[test]
fn the_rate_of_the_port_holds_for_paced_queue_pairs_too() -> Result<()> {
    let net = Net::new();
    let a = device(&net, "a", &RateConfig { port_rate: Some(GIGABIT), ..fixed(Rate::from_gbps(2)) });
    let b = net.named_device("b");
    let log = Log::of(&a);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 20)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    left.wait()?;
    assert_paced(&log.sent(|_| true), GIGABIT);
    Ok(())
}

#[test]
fn unreliable_connections_and_datagrams_are_paced() -> Result<()> {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let net = Net::new();
        net.set_unacked_rate(Some(0));
        let (a, b) = (device(&net, "a", &fixed(GIGABIT)), net.named_device("b"));
        let log = Log::of(&a);
        let [(left, from), (right, to)] = unreliable(&a, &b, qp_type)?;
        let path = a.alloc_pd()?.create_ah(&AddressVector::new(b.gid(), 0))?;
        for id in 0..100 {
            let wr = if qp_type == QpType::Ud {
                let send = Operation::Send { imm: None, invalidate: None };
                SendWr::new(id, send, from.slice(0..4096)?).to(path.datagram(right.qpn(), QKey(1)))
            } else {
                SendWr::new(id, Operation::Write { remote: to.remote(0), imm: None }, from.slice(0..8192)?)
            };
            left.post_send(wr)?;
        }
        assert!(net.run_until_idle(Duration::from_secs(1)));
        let sent = log.sent(|_| true);
        assert_eq!(sent.len(), if qp_type == QpType::Ud { 100 } else { 200 });
        assert_paced(&sent, GIGABIT);
    }
    Ok(())
}

#[test]
fn what_is_sent_again_counts() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &fixed(GIGABIT)), net.named_device("b"));
    let log = Log::of(&a);
    let (left, right) = RcEnd::pair(&a, &b)?;
    b.add_fault("rx data p=0.05 drop")?;
    let (from, to) = memory(&left, &right, 1 << 20)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    let sent = log.sent(|_| true);
    assert!(left.qp.counters().retransmitted_pkts > 0 && sent.len() > 256);
    let bytes: u64 = sent.iter().map(|s| s.size).sum();
    assert_eq!(flow(&a, &left.qp).map(|f| f.sent_bytes), Some(bytes));
    let (mut before, start) = (0, sent[0].at);
    for (at, bytes) in departures(&sent) {
        assert!(before <= GIGABIT.bytes_in(at - start) + 64, "faster than its rate");
        before += bytes;
    }
    Ok(())
}

#[test]
fn a_queue_pair_that_waits_can_be_reset_and_destroyed() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &fixed(Rate::from_mbps(1))), net.named_device("b"));
    let log = Log::of(&a);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    net.run_for(us(10));
    assert_eq!(log.sent(|_| true).len(), 1, "the second packet comes after 33 ms");
    left.qp.modify(&QpAttr::to_state(QpState::Reset))?;
    assert_eq!(left.qp.rate(), None);
    assert!(net.run_until_idle(Duration::from_millis(100)) && log.sent(|_| true).len() == 1);
    let begin = net.elapsed();
    right.qp.modify(&QpAttr::to_state(QpState::Reset))?;
    right.qp.connect(&left.qp.address(), &ConnectOptions::default())?;
    left.qp.connect(&right.qp.address(), &ConnectOptions::default())?;
    left.qp.write(2, from.slice(0..8)?, to.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert!(net.elapsed() - begin < us(10), "what it sent before is forgotten");
    left.qp.write(3, from.all(), to.remote(0))?;
    net.run_for(us(10));
    drop(left);
    assert!(net.run_until_idle(Duration::from_millis(100)));
    assert_eq!(log.sent(|_| true).len(), 2);
    // Its index in the table is free for others, though the heap of timers still has an entry with it.
    let (other, end) = RcEnd::pair(&a, &b)?;
    let target = end.register_remote(8)?;
    other.qp.write(4, other.register(&[0; 8])?.all(), target.remote(0))?;
    assert_eq!(other.wait()?.status, WcStatus::Success);
    Ok(())
}

#[test]
fn a_queue_pair_that_waits_can_fail() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &fixed(Rate::from_mbps(1))), net.named_device("b"));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    net.run_for(us(10));
    left.qp.modify(&QpAttr::to_state(QpState::Err))?;
    assert_eq!(left.wait()?.status, WcStatus::WrFlushErr);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    Ok(())
}

#[test]
fn ten_thousand_queue_pairs_are_paced_in_order() -> Result<()> {
    const MANY: usize = 10_000;
    let net = Net::new();
    net.set_unacked_rate(Some(0));
    let rate = Rate::from_mbps(10);
    let a = net.device_with(&DeviceSetup { mtu: Mtu::B256, rate: fixed(rate), ..DeviceSetup::default() })?;
    let log = Log::of(&a);
    let (cq, pd) = (a.create_cq(4096)?, a.alloc_pd()?);
    let data = pd.register(256, Access::LOCAL_WRITE)?;
    let path = pd.create_ah(&AddressVector::new(Gid::from(Ipv4Addr::new(10, 9, 9, 9)), 0))?;
    let mut qps = Vec::new();
    for _ in 0..MANY {
        let mut init = QpInit::ud(&cq, &cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 0);
        let qp = pd.create_qp(&init)?;
        qp.activate(QKey(1))?;
        for id in 0..3 {
            let wr = SendWr::new(id, Operation::Send { imm: None, invalidate: None }, data.all());
            qp.post_send(wr.to(path.datagram(Qpn::new(9), QKey(1))))?;
        }
        qps.push(qp);
    }
    assert!(net.run_until_idle(Duration::from_secs(1)));
    let sent = log.sent(|_| true);
    // Datagrams name their sender in the DETH.
    let sender = |seen: &Seen| u32::from_be_bytes([0, seen.bytes[17], seen.bytes[18], seen.bytes[19]]);
    let numbers: Vec<u32> = qps.iter().map(|qp| qp.qpn().value()).collect();
    let each = rate.time_for(u64::from(wire_bytes(12 + 8 + 256 + 4, false)));
    let mut due = Duration::ZERO;
    assert_eq!(sent.len(), 3 * MANY);
    for round in sent.chunks(MANY) {
        assert!(round.iter().map(sender).eq(numbers.iter().copied()), "each in its turn");
        let late = round.iter().map(|s| s.at - sent[0].at).map(|at| at.checked_sub(due));
        assert!(late.into_iter().all(|late| late.is_some_and(|late| late <= us(1))), "and at its time");
        due += each;
    }
    Ok(())
}

#[test]
fn without_a_policy_nothing_changes_on_the_wire() -> Result<()> {
    type Sight = (Duration, u8, u16, Vec<u8>);
    let run = |rate: &RateConfig| -> Result<Vec<Sight>> {
        let net = Net::with_seed(3);
        let (a, b) = (device(&net, "a", rate), device(&net, "b", rate));
        let log = Log::of(&a);
        b.add_fault("rx data every=5 mark ce")?;
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 18)?;
        for id in 0..4 {
            left.qp.write(id, from.all(), to.remote(0))?;
        }
        left.qp.read(5, from.all(), to.remote(0))?;
        for _ in 0..5 {
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
        let seen = log.0.lock().expect("no panic").clone();
        let start = seen[0].at;
        Ok(seen.into_iter().map(|s| (s.at - start, s.tos, s.src_port, s.bytes)).collect())
    };
    let plain = run(&RateConfig::default())?;
    let other = RateConfig { foreign_cnp: true, train_time: Duration::ZERO, ..RateConfig::default() };
    assert!(plain == run(&other)?);
    assert!(plain.iter().all(|(_, tos, ..)| *tos == 0));
    let paced = run(&algorithm("dcqcn"))?;
    assert!(plain != paced, "with one, it does");
    Ok(())
}

/// Each queue pair waits for its own reason, and both limits are kept.
#[test]
fn pacing_and_link_credits_go_together() -> Result<()> {
    for (rate, buffer) in [(GIGABIT, 100_000), (Rate::from_gbps(100), 30_000), (GIGABIT, 9000)] {
        let net = Net::new();
        let partner = PartnerSetup {
            features: Features::CREDITS,
            credits: Some(CreditSetup {
                lanes: 1,
                sl2vl: [0; 16],
                buffer,
                block: 64,
                counting: Counting::PacketBytes,
                local_counting: Counting::PacketBytes,
                lag: 64,
                said: 0,
                reserve: 0,
                held_back: 0,
                newcomers: 0,
            }),
            rate: Rate::from_gbps(10),
            ..PartnerSetup::default()
        };
        let make = || {
            let (partner, rate) = (partner.clone(), fixed(rate));
            net.device_with(&DeviceSetup { partner, rate, ..DeviceSetup::default() })
        };
        let (a, b) = (make()?, make()?);
        let log = Log::of(&a);
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (left, right) = RcEnd::pair(&a, &b)?;
            let (from, to) = memory(&left, &right, 1 << 18)?;
            for id in 0..2 {
                left.qp.write(id, from.all(), to.remote(0))?;
                left.qp.read(2 + id, from.all(), to.remote(0))?;
            }
            ends.push((left, right, from, to));
        }
        for (left, ..) in &ends {
            for _ in 0..4 {
                assert_eq!(left.wait()?.status, WcStatus::Success);
            }
            assert_eq!(left.qp.counters().retransmitted_pkts, 0);
            let own = log.sent(|s| s.dst == b.address() && s.to == ends[0].1.qp.qpn());
            let (mut before, start) = (0, own[0].at);
            for (at, bytes) in departures(&own) {
                assert!(before <= rate.bytes_in(at - start) + 64, "faster than its rate");
                before += bytes;
            }
        }
        let [ours, theirs] = [&a, &b].map(counters);
        assert!(ours.tx_flow_control > 0 && ours.dropped_total() + theirs.dropped_total() == 0);
        assert_eq!(ours.excessive_buffer_overrun_errors + theirs.excessive_buffer_overrun_errors, 0);
        assert!(net.run_until_idle(Duration::from_secs(10)));
    }
    Ok(())
}
