//! A peer is killed in the middle of everything.

use rnic::{RcEnd, WcStatus};
use rnic_tests::peer::{Peer, connect_local};
use rnic_tests::protocol::{Command, Connection, Opening};
use rnic_tests::{counter, open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_dead_peer_is_given_up_in_time() {
    let device = open();
    for options in [Connection::brief(), Connection { timeout: 14, retry_cnt: 1, ..Connection::default() }] {
        let mut peer = Peer::start();
        let (end, _) = connect_local(&device, &mut peer, options);
        let target = peer.register_zeroes(4096);
        let source = end.register(&[7; 4096]).expect("memory");
        end.qp.write(1, source.all(), target.place.into()).expect("posted");
        assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
        peer.kill();
        let start = Instant::now();
        end.qp.write(2, source.all(), target.place.into()).expect("posted");
        end.qp.write(3, source.all(), target.place.into()).expect("posted");
        let wc = end.wait().expect("a completion");
        let took = start.elapsed();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RetryExcErr));
        // How much longer depends on the machine: the number of tries, which is checked below, does not.
        assert!(took >= options.patience(), "given up after {took:?}, before {:?}", options.patience());
        let wc = end.wait().expect("a completion");
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr));
        let counters = end.qp.counters();
        assert_eq!(counters.local_ack_timeout_err, u64::from(options.retry_cnt) + 1);
        assert_eq!((counters.retry_exceeded_err, counters.req_cqe_flush_error), (1, 1));
        assert!(counters.retransmitted_pkts >= u64::from(options.retry_cnt));
    }
}

/// Writes and compares until told to stop; returns the number of rounds.
fn work_undisturbed(end: &RcEnd, peer: &mut Peer, stop: &AtomicBool) -> u64 {
    const LEN: usize = 200_000;
    let target = peer.register_zeroes(LEN);
    let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 5);
    let back = end.register(&vec![0; LEN]).expect("memory");
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        end.qp.write(1, source.all(), target.place.into()).expect("posted");
        assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
        end.qp.read(2, back.all(), target.place.into()).expect("posted");
        assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
        rounds += 1;
    }
    assert_eq!(back.to_vec().expect("mapped"), source.to_vec().expect("mapped"));
    rounds
}

#[test]
fn killed_in_mid_transfer() {
    const LEN: usize = 1 << 20;
    const COUNT: u64 = 64;
    let device = open();
    let options = Connection::brief();
    let (mut victim, mut other) = (Peer::start(), Peer::start());
    let address = victim.address();
    let (end, _) = connect_local(&device, &mut victim, options);
    // 4.3 s: it times out only if something is lost, however busy the machine is.
    let (undisturbed, _) =
        connect_local(&device, &mut other, Connection { timeout: 20, ..Connection::default() });
    let target = victim.register_zeroes(LEN);
    let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work_undisturbed(&undisturbed, &mut other, &stop));
        for id in 0..COUNT {
            end.qp.write(id, source.all(), target.place.into()).expect("posted");
        }
        // Some arrive, so that the connection is busy.
        for id in 0..4 {
            let wc = end.wait().expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
        victim.kill();
        let mut statuses = Vec::new();
        for id in 4..COUNT {
            let wc = end.wait().expect("a completion");
            assert_eq!(wc.wr_id, id, "in order");
            statuses.push(wc.status);
        }
        let failed = statuses.iter().position(|s| *s != WcStatus::Success).expect("a failure");
        assert_eq!(statuses[failed], WcStatus::RetryExcErr);
        assert!(statuses[failed + 1..].iter().all(|s| *s == WcStatus::WrFlushErr), "{statuses:?}");
        assert!(failed + 1 < statuses.len(), "the peer died after the transfer");
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        assert!(worker.join().expect("undisturbed") > 0);
    });
    let counters = end.qp.counters();
    // Earlier tries ended with an answer, if the machine was busy.
    assert!(counters.local_ack_timeout_err > u64::from(options.retry_cnt), "{counters:?}");
    assert_eq!(counters.retry_exceeded_err, 1);
    assert_eq!(undisturbed.qp.counters().local_ack_timeout_err, 0);
    assert!(end.qp.failure().is_some_and(|f| f.status == WcStatus::RetryExcErr));

    // The next process takes over the address, and new connections work.
    let mut next = Peer::open(&Opening::at(address));
    let (end, _) = connect_local(&device, &mut next, options);
    let target = next.register_zeroes(LEN);
    let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 9);
    end.qp.write(1, source.all(), target.place.into()).expect("posted");
    assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
    next.check(target.all(), 9, 0);
}

#[test]
fn a_requester_that_dies_leaves_the_responder_whole() {
    let device = open();
    let mut peer = Peer::start();
    let (end, qp) = connect_local(&device, &mut peer, Connection::default());
    let target = end.register_remote(1 << 20).expect("memory");
    let source = peer.register(1 << 20, 3);
    let place = rnic_tests::protocol::Place { addr: target.addr(), rkey: target.rkey() };
    peer.tell(&Command::Run(
        qp,
        rnic_tests::protocol::Traffic {
            verb: rnic_tests::protocol::Verb::Write(place, None),
            region: source.id,
            size: 1 << 20,
            count: 1 << 20,
            depth: 8,
            slots: 1,
        },
    ));
    let deadline = Instant::now() + Duration::from_secs(30);
    while counter(&device, "rx_write_requests") < 4 {
        assert!(Instant::now() < deadline, "no traffic");
    }
    let address = peer.address();
    peer.kill();
    // The responder waits for nothing: it stays in RTS, and a new connection works beside it.
    assert_eq!(end.qp.state(), rnic::QpState::Rts);
    let mut next = Peer::open(&Opening::at(address));
    let (second, _) = connect_local(&device, &mut next, Connection::default());
    let there = next.register(5000, 4);
    let here = second.register(&[0; 5000]).expect("memory");
    second.qp.read(1, here.all(), there.place.into()).expect("posted");
    assert_eq!(second.wait().expect("a completion").status, WcStatus::Success);
    assert_eq!(here.to_vec().expect("mapped"), rnic_tests::pattern::bytes(4, 5000));
}
