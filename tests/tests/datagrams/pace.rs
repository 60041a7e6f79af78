//! The pacing of unacknowledged traffic, in virtual time.

use rnic::sim::Net;
use rnic::{Access, ConnectOptions, Device, QpAttr, QpInit, QpState, WcStatus};
use rnic_tests::counter;
use rnic_tests::datagram::{QKEY, UdEnd};
use std::time::Duration;

/// Bytes of socket buffer charge per second: a full packet every 4.2 us.
const RATE: u64 = 1_000_000_000;

/// Posts `count` datagrams of 4 KiB.
fn flood(from: &UdEnd, to: &UdEnd, count: u64) {
    let source = from.pd.register(4096, Access::LOCAL_WRITE).expect("memory");
    let ah = from.ah(to.device.gid());
    for id in 0..count {
        from.qp.send_to(id, source.all(), &ah, to.qp.qpn(), QKEY).expect("room");
    }
    // The region may be dropped once everything has been sent.
    for _ in 0..count {
        assert_eq!(from.sent().status, WcStatus::Success);
    }
}

/// Sends 1000 datagrams to a receiver that polls every 100 us and has 64 receives. Returns how many arrived.
fn slow_receiver(rate: Option<u64>) -> (usize, Device, Device) {
    let net = Net::new();
    net.set_unacked_rate(rate);
    let (a, b) = (net.device(), net.device());
    let cq = || b.create_cq(4096).expect("a completion queue");
    let mut init = QpInit::ud(&cq(), &cq());
    init.cap.max_recv_wr = 128;
    let (from, to) = (UdEnd::new(&a), UdEnd::of(&b, &init, QKEY));
    to.post(128);
    let source = from.pd.register(4096, Access::LOCAL_WRITE).expect("memory");
    let ah = from.ah(b.gid());
    for id in 0..1000 {
        from.qp.send_to(id, source.all(), &ah, to.qp.qpn(), QKEY).expect("room");
    }
    let mut arrived = 0;
    for _ in 0..100 {
        net.run_for(Duration::from_micros(100));
        let new = to.drain().len();
        to.post(new as u64);
        arrived += new;
    }
    (arrived, a, b)
}

#[test]
fn without_a_pace_a_slow_receiver_is_overrun() {
    let (arrived, a, b) = slow_receiver(Some(0));
    assert_eq!((arrived, counter(&b, "dropped_no_receive")), (128, 872));
    assert_eq!(counter(&a, "pace_stalls"), 0);
}

#[test]
fn with_a_pace_a_slow_receiver_keeps_up() {
    let (arrived, a, b) = slow_receiver(Some(RATE));
    assert_eq!((arrived, counter(&b, "dropped_no_receive")), (1000, 0));
    assert!(counter(&a, "pace_stalls") > 10);
}

#[test]
fn traffic_beyond_a_burst_is_sent_at_the_configured_rate() {
    let net = Net::new();
    net.set_unacked_rate(Some(RATE));
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(500);
    flood(&a, &b, 500);
    // A full packet is charged its 4120 bytes (BTH, DETH, payload, ICRC) and 110 bytes in a train of 15: a
    // nanosecond per byte. Everything except a burst of 7/8 of a stock buffer of 425,984 bytes has to wait.
    let expected = 500 * 4230 - 425_984 * 7 / 8;
    let took = net.elapsed().as_nanos() as i64;
    assert!((expected - 70_000..=expected + 70_000).contains(&took), "{took} ns, not {expected}");
    let run_again = || {
        let net = Net::new();
        net.set_unacked_rate(Some(RATE));
        let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
        b.post(500);
        flood(&a, &b, 500);
        net.elapsed().as_nanos() as i64
    };
    assert_eq!(run_again(), took, "the same every time");
}

#[test]
fn receivers_have_a_pace_each() {
    let net = Net::new();
    net.set_unacked_rate(Some(RATE));
    let a = UdEnd::new(&net.device());
    let others: Vec<UdEnd> = (0..100).map(|_| UdEnd::new(&net.device())).collect();
    for other in &others {
        other.post(10);
        flood(&a, other, 10);
    }
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(counter(&a.device, "pace_stalls"), 0, "each has room for a burst of its own");
    assert!(net.elapsed() < Duration::from_millis(1));
    assert!(others.iter().all(|other| other.drain().len() == 10));
}

#[test]
fn queue_pairs_that_wait_for_one_receiver_take_turns() {
    let net = Net::new();
    net.set_unacked_rate(Some(RATE));
    let (a, b) = (net.device(), net.device());
    let senders: Vec<UdEnd> = (0..4).map(|_| UdEnd::new(&a)).collect();
    let to = UdEnd::new(&b);
    to.post(2000);
    let sources: Vec<_> =
        senders.iter().map(|s| s.pd.register(4096, Access::LOCAL_WRITE).expect("memory")).collect();
    for (sender, source) in senders.iter().zip(&sources) {
        let ah = sender.ah(b.gid());
        for id in 0..400 {
            sender.qp.send_to(id, source.all(), &ah, to.qp.qpn(), QKEY).expect("room");
        }
    }
    // Half of the total time (1600 packets of 4.2 us).
    net.run_for(Duration::from_micros(3400));
    let done: Vec<u64> = senders.iter().map(|s| s.qp.counters().rdma_sends).collect();
    let (least, most) = (done.iter().min().expect("four"), done.iter().max().expect("four"));
    // The first queue pair had the burst to itself, 85 packets; after that they differ by at most a train.
    assert!(*least > 150 && most - least <= 90 + 15, "{done:?}");
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(to.drain().len(), 1600);
    assert!(senders.iter().all(|s| s.qp.counters().rdma_sends == 400));
}

#[test]
fn one_that_waits_can_go_away() {
    let net = Net::new();
    net.set_unacked_rate(Some(RATE));
    let (a, b) = (net.device(), net.device());
    let to = UdEnd::new(&b);
    to.post(2000);
    let senders: Vec<UdEnd> = (0..4).map(|_| UdEnd::new(&a)).collect();
    let source = |s: &UdEnd| s.pd.register(4096, Access::LOCAL_WRITE).expect("memory");
    let sources: Vec<_> = senders.iter().map(source).collect();
    for (sender, source) in senders.iter().zip(&sources) {
        let ah = sender.ah(b.gid());
        for id in 0..200 {
            sender.qp.send_to(id, source.all(), &ah, to.qp.qpn(), QKEY).expect("room");
        }
    }
    net.run_for(Duration::from_micros(10));
    assert!(counter(&a, "pace_stalls") >= 4, "all wait");
    let mut senders = senders.into_iter();
    let mut next = || senders.next().expect("four");
    let (reset, failed, gone, last) = (next(), next(), next(), next());
    reset.qp.modify(&QpAttr::to_state(QpState::Reset)).expect("any state leads to RESET");
    failed.qp.modify(&QpAttr::to_state(QpState::Err)).expect("RTS leads to ERR");
    drop(gone);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(last.qp.counters().rdma_sends, 200, "it was not forgotten");
    let flushed = std::iter::from_fn(|| failed.send_cq.poll_one());
    assert!(flushed.filter(|wc| wc.status == WcStatus::WrFlushErr).count() > 0);
    // A queue pair that was reset starts anew.
    reset.qp.activate(QKEY).expect("RTS");
    reset.send(1, b"again", &to);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(to.drain().last().map(|m| m.data.clone()), Some(b"again".to_vec()));
}

#[test]
fn unreliable_connections_keep_the_pace_too() {
    let net = Net::new();
    net.set_unacked_rate(Some(RATE));
    let (a, b) = (net.device(), net.device());
    let make = |device: &Device| {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(64).expect("a completion queue");
        let qp = pd.create_qp(&QpInit::uc(&cq, &cq)).expect("a queue pair");
        (qp, cq, pd)
    };
    let ((left, left_cq, left_pd), (right, _right_cq, right_pd)) = (make(&a), make(&b));
    left.connect(&right.address(), &ConnectOptions::default()).expect("connects");
    right.connect(&left.address(), &ConnectOptions::default()).expect("connects");
    const LEN: usize = 4 << 20;
    let source = left_pd.register(LEN, Access::LOCAL_WRITE).expect("memory");
    let target = right_pd.register(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
    left.write(1, source.all(), target.remote(0)).expect("posted");
    let wc = left_cq.wait(Duration::from_secs(1)).expect("a completion");
    assert_eq!(wc.status, WcStatus::Success);
    assert!(counter(&a, "pace_stalls") > 10 && counter(&a, "window_stalls") == 0);
    // 4 MiB and the charges beyond the payload, less a burst: 3.9 ms at one byte per nanosecond.
    let took = net.elapsed();
    assert!((Duration::from_micros(3800)..Duration::from_micros(4100)).contains(&took), "{took:?}");
}
