//! Shared receive queues under traffic: in virtual time, and with many threads over sockets.

mod hub;

use hub::{Hub, Ledger, PATIENCE, SLOT, Sender};
use rnic::engine::{AsyncEvent, ResourceError};
use rnic::sim::Net;
use rnic::{
    Access, ConnectOptions, Device, Error, Gather, Operation, PostError, ProtectionDomain, QpAttr, QpEvent,
    QpInit, QpState, RcEnd, SrqInit, SrqModify, WcOpcode, WcStatus,
};
use rnic_tests::{open, pattern};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn queue_pairs_share_a_queue_and_nothing_is_lost_or_out_of_order() -> Result<(), Error> {
    const EACH: u64 = 1000;
    for faults in [&[][..], &["tx p=0.01 drop", "rx p=0.01 drop", "tx p=0.01 reorder 3", "rx p=0.01 dup"]] {
        let net = Net::with_seed(5);
        let hub = Hub::new(&net.device(), SrqInit { max_wr: 24, ..SrqInit::default() })?;
        let options = ConnectOptions { timeout: 8, ..ConnectOptions::default() };
        let mut qps = Vec::new();
        let mut senders = Vec::new();
        for number in 0..6 {
            // Two queue pairs to a peer.
            let peer = if number % 2 == 0 { net.device() } else { senders_device(&senders) };
            let (end, qp) = hub.join(&peer, &options)?;
            if number % 2 == 0 {
                for fault in faults {
                    peer.add_fault(fault)?;
                }
            }
            qps.push(qp);
            senders.push((peer, Sender::new(end, number, EACH)?));
        }
        for slot in 0..24 {
            hub.post(slot)?;
        }
        let mut ledger = Ledger::default();
        while ledger.total() < 6 * EACH {
            let wc = hub.wait_while(&net, || senders.iter_mut().try_for_each(|(_, sender)| sender.work()))?;
            ledger.note(&hub, &wc)?;
            hub.post(wc.wr_id)?;
        }
        assert_eq!(ledger.seen.len(), 6, "completions name the queue pair");
        assert_eq!((hub.srq.outstanding(), hub.cq.poll_one()), (24, None), "nothing came twice");
        for (peer, _) in senders.iter().step_by(2) {
            assert!(peer.faults().iter().all(|fault| fault.hits > 0), "{:?}", peer.faults());
        }
    }
    Ok(())
}

fn senders_device(senders: &[(Device, Sender)]) -> Device {
    senders.last().expect("an earlier sender").0.clone()
}

#[test]
fn the_limit_event_comes_once_and_again_when_it_is_set_again() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit { max_wr: 16, limit: 4, ..SrqInit::default() })?;
    let (left, _a) = hub.join(&net.device(), &ConnectOptions::default())?;
    let (right, _b) = hub.join(&net.device(), &ConnectOptions::default())?;
    let reached = AsyncEvent::SrqLimitReached(hub.srq.srqn());
    for slot in 0..8 {
        hub.post(slot)?;
    }
    // Receives count, whichever queue pair consumes them.
    for (end, events) in
        [(&left, 0), (&right, 0), (&left, 0), (&right, 0), (&left, 1), (&right, 0), (&left, 0)]
    {
        end.qp.send(0, Gather::Empty)?;
        assert_eq!(hub.wait()?.status, WcStatus::Success);
        assert_eq!(hub.events(), vec![reached; events], "{} left", hub.srq.outstanding());
    }
    assert_eq!((hub.srq.outstanding(), hub.srq.query()?.limit), (1, 0));
    // Rearmed: with a limit above the remaining receives, the event comes at once.
    hub.srq.modify(SrqModify::limit(2))?;
    assert_eq!(hub.events(), [reached]);
    hub.post(0)?;
    hub.srq.modify(SrqModify::limit(2))?;
    assert_eq!((hub.events(), hub.srq.query()?.limit), (Vec::new(), 2));
    right.qp.send(0, Gather::Empty)?;
    assert_eq!(hub.wait()?.status, WcStatus::Success);
    assert_eq!(hub.events(), [reached]);
    Ok(())
}

#[test]
fn the_size_changes_under_traffic() -> Result<(), Error> {
    const TOTAL: u64 = 2000;
    let net = Net::new();
    let init = SrqInit { max_wr: 64, ..SrqInit::default() };
    let hub = Hub::new(&net.device(), init)?;
    let (end, _qp) = hub.join(&net.device(), &ConnectOptions::default())?;
    let mut sender = Sender::new(end, 1, TOTAL)?;
    hub.srq.modify(SrqModify::max_wr(8))?;
    let mut free: Vec<u64> = (0..64).rev().collect();
    let (mut ledger, mut order, mut refused) = (Ledger::default(), Vec::new(), 0);
    while ledger.total() < TOTAL {
        // As many buffers as the queue accepts.
        while let Some(slot) = free.pop() {
            if hub.post(slot).is_err() {
                free.push(slot);
                break;
            }
            order.push(slot);
        }
        let wc = hub.wait_while(&net, || sender.work())?;
        ledger.note(&hub, &wc)?;
        assert_eq!(wc.wr_id, order.remove(0), "in the order in which they were posted");
        free.insert(0, wc.wr_id);
        let (now, there) = (hub.srq.query()?.max_wr, hub.srq.outstanding());
        assert!(there <= now);
        let next = [8, 20, 64, 3][(ledger.total() % 4) as usize];
        match hub.srq.modify(SrqModify::max_wr(next)) {
            Ok(()) => assert_eq!(hub.srq.query()?.max_wr, next),
            Err(Error::Resource(ResourceError::Size { what: "max_wr", given, min, .. })) => {
                assert!(given == next && min > next && min == hub.srq.outstanding());
                assert_eq!(hub.srq.query()?.max_wr, now, "as it was");
                refused += 1;
            }
            Err(error) => return Err(error),
        }
    }
    assert!(refused > 0, "a queue that is never too full proves nothing");
    Ok(())
}

#[test]
fn peers_wait_while_the_queue_is_empty() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit { max_wr: 16, ..SrqInit::default() })?;
    let (left, a) = hub.join(&net.device(), &ConnectOptions::default())?;
    let (right, b) = hub.join(&net.device(), &ConnectOptions::default())?;
    for end in [&left, &right] {
        for id in 0..4 {
            end.qp.send(id, Gather::Empty)?;
        }
    }
    net.run_for(Duration::from_millis(5));
    assert!(hub.cq.is_empty());
    for (end, qp) in [(&left, &a), (&right, &b)] {
        // 5 ms of RNR waits of 0.64 ms each.
        let refusals = qp.counters().send_rnr_err;
        assert!((6..=8).contains(&refusals), "{refusals}");
        assert_eq!(end.qp.counters().rcvd_rnr_err, refusals);
    }
    // One at a time: the next peer to retry gets it, the other keeps waiting.
    for slot in 0..8 {
        hub.post(slot)?;
        let wc = hub.wait()?;
        assert_eq!((wc.wr_id, wc.status), (slot, WcStatus::Success));
    }
    for end in [&left, &right] {
        for id in 0..4 {
            let wc = end.wait()?;
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
    }
    // A peer with few retries gives up, which affects only itself.
    let brief = ConnectOptions { rnr_retry: 1, ..ConnectOptions::default() };
    let (third, _c) = hub.join(&net.device(), &brief)?;
    third.qp.send(9, Gather::Empty)?;
    assert_eq!(third.wait()?.status, WcStatus::RnrRetryExcErr);
    hub.post(0)?;
    left.qp.send(5, Gather::Empty)?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    Ok(())
}

#[test]
fn a_queue_pair_that_is_destroyed_leaves_the_queue_to_others() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit { max_wr: 16, ..SrqInit::default() })?;
    let options = ConnectOptions { timeout: 8, retry_cnt: 1, ..ConnectOptions::default() };
    let peer = net.device();
    let (left, gone) = hub.join(&peer, &options)?;
    let (right, stays) = hub.join(&net.device(), &options)?;
    // The third message, of two packets like the others, is in progress when the queue pair is destroyed.
    peer.add_fault("tx psn=#5 drop")?;
    for slot in 0..16 {
        hub.post(slot)?;
    }
    let source = left.register(&pattern::bytes(1, SLOT))?;
    for id in 0..3 {
        left.qp.send(id, source.all())?;
    }
    for slot in 0..2 {
        let wc = hub.wait()?;
        assert_eq!((wc.wr_id, wc.status, wc.qpn), (slot, WcStatus::Success, gone.qpn()));
    }
    drop(gone);
    let rest = [left.wait()?.status, left.wait()?.status, left.wait()?.status];
    assert_eq!(rest, [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::WrFlushErr]);
    // The receive of the third message is gone with the queue pair, without a completion.
    assert_eq!((hub.srq.outstanding(), hub.cq.poll_one()), (13, None));
    let refused = hub.srq.clone().destroy().expect_err("in use");
    let busy = ResourceError::Busy { what: "shared receive queue", users: 1, by: "queue pairs" };
    assert!(matches!(&refused.error, Error::Resource(e) if *e == busy), "{refused:?}");
    assert_eq!(refused.object.srqn(), hub.srq.srqn(), "it comes back");
    drop(refused);
    for slot in 3..16 {
        right.qp.send(slot, Gather::Empty)?;
        let wc = hub.wait()?;
        assert_eq!((wc.wr_id, wc.status, wc.qpn), (slot, WcStatus::Success, stays.qpn()));
    }
    drop(stays);
    hub.post(0)?;
    let Hub { srq, pd, cq, .. } = hub;
    let copy = srq.clone();
    srq.destroy()?;
    let unknown = |r: Result<(), Error>| {
        matches!(r, Err(Error::Resource(ResourceError::Unknown { what: "shared receive queue" })))
    };
    assert!(unknown(copy.recv(0, Gather::Empty)));
    assert!(unknown(copy.modify(SrqModify::limit(1))));
    assert!(unknown(copy.query().map(drop)));
    assert!(unknown(copy.clone().destroy().map_err(Error::from)));
    assert!(unknown(pd.create_qp(&QpInit::rc(&cq, &cq).with_srq(&copy)).map(drop)));
    assert_eq!(cq.poll_one(), None, "what was in it ended without a completion");
    Ok(())
}

#[test]
fn a_queue_pair_in_error_reports_its_last_request_and_leaves_the_rest() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit { max_wr: 16, ..SrqInit::default() })?;
    let peer = net.device();
    let (end, qp) = hub.join(&peer, &ConnectOptions::default())?;
    let (other, _stays) = hub.join(&net.device(), &ConnectOptions::default())?;
    for slot in 0..4 {
        hub.post(slot)?;
    }
    // The second packet of a message never arrives.
    peer.add_fault("tx send.last drop")?;
    let source = end.register(&pattern::bytes(1, SLOT))?;
    end.qp.send(1, source.all())?;
    net.run_for(Duration::from_micros(50));
    assert_eq!((hub.srq.outstanding(), hub.cq.poll_one()), (3, None), "taken and not done");
    assert_eq!(hub.events(), []);
    qp.modify(&QpAttr::to_state(QpState::Err))?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (0, WcStatus::WrFlushErr, qp.qpn()));
    assert_eq!(hub.events(), [AsyncEvent::QueuePair(qp.qpn(), QpEvent::LastWqeReached)]);
    assert_eq!((hub.srq.outstanding(), hub.cq.poll_one()), (3, None), "what it did not take stays");
    for slot in 1..4 {
        other.qp.send(0, Gather::Empty)?;
        assert_eq!(hub.wait()?.wr_id, slot);
    }
    // Without a message in progress, only the event is reported.
    let (_end, qp) = hub.join(&peer, &ConnectOptions::default())?;
    qp.modify(&QpAttr::to_state(QpState::Err))?;
    assert_eq!(hub.events(), [AsyncEvent::QueuePair(qp.qpn(), QpEvent::LastWqeReached)]);
    assert_eq!(hub.cq.poll_one(), None);
    Ok(())
}

#[test]
fn buffers_are_of_the_protection_domain_of_the_queue() -> Result<(), Error> {
    let net = Net::new();
    let device = net.device();
    let hub = Hub::new(&device, SrqInit::default())?;
    let elsewhere = device.alloc_pd()?;
    let inside = |pd: &ProtectionDomain| -> Result<_, Error> {
        let qp = pd.create_qp(&QpInit::rc(&hub.cq, &hub.cq).with_srq(&hub.srq))?;
        let end = RcEnd::new(&net.device())?;
        end.qp.connect(&qp.address(), &ConnectOptions::default())?;
        qp.connect(&end.qp.address(), &ConnectOptions::default())?;
        Ok((end, qp))
    };
    let (end, qp) = inside(&elsewhere)?;
    let source = end.register(b"for the domain of the queue")?;
    hub.post(0)?;
    end.qp.send(1, source.all())?;
    let wc = hub.wait()?;
    assert_eq!((wc.status, wc.qpn), (WcStatus::Success, qp.qpn()));
    assert_eq!(hub.message(&wc)?, b"for the domain of the queue");
    // A buffer in the queue pair's own domain is in the wrong domain.
    let theirs = elsewhere.register(64, Access::LOCAL_WRITE)?;
    hub.srq.recv(7, theirs.all())?;
    end.qp.send(2, source.all())?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::LocProtErr));
    assert_eq!(theirs.to_vec()?, [0; 64]);
    // Memory that peers access belongs to the queue pair's domain, as always.
    let (end, _qp) = inside(&elsewhere)?;
    let target = elsewhere.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let source = end.register(b"by key")?;
    end.qp.write(3, source.all(), target.remote(0))?;
    assert_eq!(end.wait()?.status, WcStatus::Success);
    let wrong = hub.pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    end.qp.write(4, source.all(), wrong.remote(0))?;
    assert_eq!(end.wait()?.status, WcStatus::RemAccessErr);
    Ok(())
}

#[test]
fn a_bad_request_in_the_queue_hurts_only_the_queue_pair_that_takes_it() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit::default())?;
    let (unlucky, a) = hub.join(&net.device(), &ConnectOptions::default())?;
    let (lucky, b) = hub.join(&net.device(), &ConnectOptions::default())?;
    hub.srq.recv(100, rnic::Sge { lkey: 0xdead_beef, ..hub.buffers.slice(0..64)? })?;
    hub.post(1)?;
    hub.srq.recv(101, hub.buffers.slice(0..4)?)?;
    hub.post(2)?;
    let source = unlucky.register(b"8 bytes!")?;
    unlucky.qp.send(1, source.all())?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (100, WcStatus::LocProtErr, a.qpn()));
    assert_eq!(unlucky.wait()?.status, WcStatus::RemOpErr);
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Rts));
    let source = lucky.register(b"8 bytes!")?;
    lucky.qp.send(2, source.all())?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (1, WcStatus::Success, b.qpn()));
    // One that is too short for the message: that queue pair fails, another is served.
    assert_eq!(lucky.wait()?.status, WcStatus::Success);
    lucky.qp.send(3, source.all())?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (101, WcStatus::LocLenErr, b.qpn()));
    assert_eq!(lucky.wait()?.status, WcStatus::RemInvReqErr);
    let (third, c) = hub.join(&net.device(), &ConnectOptions::default())?;
    third.qp.send(4, Gather::Empty)?;
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (2, WcStatus::Success, c.qpn()));
    Ok(())
}

#[test]
fn writes_with_immediate_data_take_receives_and_other_operations_do_not() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit::default())?;
    let (end, qp) = hub.join(&net.device(), &ConnectOptions::default())?;
    let target = hub.pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let source = end.register(b"written")?;
    hub.post(3)?;
    end.qp.write(1, source.all(), target.remote(0))?;
    end.qp.read(2, source.all(), target.remote(0))?;
    end.qp.post(3, Operation::Write { remote: target.remote(8), imm: Some(77) }, source.all())?;
    for id in 1..4 {
        let wc = end.wait()?;
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
    }
    let wc = hub.wait()?;
    assert_eq!((wc.wr_id, wc.opcode, wc.imm()), (3, WcOpcode::RecvRdmaWithImm, Some(77)));
    assert_eq!((wc.byte_len, wc.qpn, hub.srq.outstanding()), (7, qp.qpn(), 0));
    assert_eq!(target.to_vec()?[..15], *b"written\0written");
    Ok(())
}

#[test]
fn a_queue_pair_with_a_shared_receive_queue_has_none_of_its_own() -> Result<(), Error> {
    let net = Net::new();
    let hub = Hub::new(&net.device(), SrqInit { max_wr: 2, max_sge: 1, limit: 0 })?;
    let init = QpInit::rc(&hub.cq, &hub.cq).with_srq(&hub.srq);
    // The sizes of the receive queue are ignored, however large.
    let cap = rnic::QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..init.cap };
    let qp = hub.pd.create_qp(&QpInit { cap, ..init })?;
    assert_eq!(qp.query().cap.map(|cap| (cap.max_recv_wr, cap.max_recv_sge)), Some((0, 0)));
    for state in [QpAttr::to_init(1, 0, Access::empty()), QpAttr::to_state(QpState::Err)] {
        qp.modify(&state)?;
        let refused = qp.recv(1, Gather::Empty);
        assert!(matches!(refused, Err(Error::Post(PostError::UsesSharedReceiveQueue))), "{refused:?}");
    }
    // The bounds are those of the shared queue.
    let element = hub.buffers.slice(0..8)?;
    let two = hub.srq.recv(1, &[element, element][..]);
    assert!(matches!(two, Err(Error::Post(PostError::TooManySges { given: 2, max: 1 }))), "{two:?}");
    hub.post(0)?;
    hub.post(1)?;
    let full = PostError::QueueFull { queue: "shared receive", max: 2 };
    let third = hub.post(0);
    assert!(matches!(third, Err(Error::Post(error)) if error == full), "{third:?}");
    // Objects of another device.
    let other = net.device().alloc_pd()?;
    assert!(other.create_qp(&QpInit::rc(&hub.cq, &hub.cq).with_srq(&hub.srq)).is_err());
    let attr = hub.device.attr();
    assert!(attr.max_srq > 0 && attr.max_srq_wr > 0 && attr.max_srq_sge > 0);
    for (init, accepted) in [
        (SrqInit { max_wr: attr.max_srq_wr, max_sge: attr.max_srq_sge, limit: attr.max_srq_wr }, true),
        (SrqInit { max_wr: attr.max_srq_wr + 1, max_sge: 1, limit: 0 }, false),
        (SrqInit { max_wr: 1, max_sge: attr.max_srq_sge + 1, limit: 0 }, false),
    ] {
        assert_eq!(hub.pd.create_srq(&init).is_ok(), accepted, "{init:?}");
    }
    Ok(())
}

/// The maximum number of elements in a work request, filled by one message, and the maximum number of work requests
/// in a queue.
#[test]
fn the_largest_queue_is_filled_and_emptied() -> Result<(), Error> {
    let net = Net::new();
    let device = net.device();
    let attr = device.attr();
    let (count, elements) = (attr.max_srq_wr, attr.max_srq_sge as usize);
    let small = Hub::new(&device, SrqInit { max_wr: 1, ..SrqInit::default() })?;
    let srq = small.pd.create_srq(&SrqInit { max_wr: count, max_sge: attr.max_srq_sge, limit: 0 })?;
    let hub = Hub { srq, ..small };
    let (end, _qp) = hub.join(&net.device(), &ConnectOptions::default())?;
    let list: Vec<_> =
        (0..elements).map(|i| hub.buffers.slice(10 * i..10 * i + 10)).collect::<Result<_, _>>()?;
    hub.srq.recv(0, &list[..])?;
    for id in 1..count {
        hub.srq.recv(u64::from(id), Gather::Empty)?;
    }
    assert!(matches!(hub.srq.recv(0, Gather::Empty), Err(Error::Post(PostError::QueueFull { .. }))));
    let message = pattern::bytes(4, 10 * elements);
    let source = end.register(&message)?;
    end.qp.send(0, source.all())?;
    let mut posted = 1;
    for id in 0..count {
        let wc = hub.wait_while(&net, || {
            while end.cq().poll_one().is_some() {}
            while posted < count && end.qp.send(0, Gather::Empty).is_ok() {
                posted += 1;
            }
            Ok(())
        })?;
        assert_eq!((wc.wr_id, wc.status), (u64::from(id), WcStatus::Success));
    }
    assert!(hub.buffers.to_vec()?[..message.len()] == message);
    assert_eq!((hub.srq.outstanding(), hub.cq.poll_one()), (0, None));
    Ok(())
}

/// Threads post to one queue, over sockets, while others send and one receives: no thread blocks another, and
/// nothing is lost.
#[test]
fn many_threads_post_to_one_queue() -> Result<(), Error> {
    const THREADS: u64 = 4;
    const SENDERS: u64 = 3;
    const EACH: u64 = 4000;
    let (a, b) = (open(), open());
    let hub = Hub::new(&b, SrqInit { max_wr: 64, ..SrqInit::default() })?;
    // A second: no working connection takes that long, even on a busy machine.
    let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
    let mut qps = Vec::new();
    let mut senders = Vec::new();
    for number in 0..SENDERS {
        let (end, qp) = hub.join(&a, &options)?;
        qps.push(qp);
        senders.push(Sender::new(end, number, EACH)?);
    }
    // Each poster has 16 buffers, and posts one again when it is returned.
    let returned: Vec<std::sync::mpsc::Sender<u64>> = Vec::new();
    let posts = AtomicU64::new(0);
    let mut ledger = Ledger::default();
    std::thread::scope(|scope| {
        let mut returned = returned;
        for thread in 0..THREADS {
            let (give_back, free) = std::sync::mpsc::channel::<u64>();
            for slot in 0..16 {
                give_back.send(thread * 16 + slot).expect("it listens");
            }
            returned.push(give_back);
            let (hub, posts) = (&hub, &posts);
            scope.spawn(move || {
                for slot in free {
                    hub.post(slot).expect("there are as many buffers as places");
                    posts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for sender in &mut senders {
            scope.spawn(move || {
                let deadline = Instant::now() + 6 * PATIENCE;
                while sender.done < EACH {
                    sender.work().expect("posted");
                    assert!(Instant::now() < deadline, "{} of {EACH}", sender.done);
                }
            });
        }
        while ledger.total() < SENDERS * EACH {
            let wc = hub.cq.wait(6 * PATIENCE).expect("a message");
            ledger.note(&hub, &wc).expect("readable");
            returned[(wc.wr_id / 16) as usize].send(wc.wr_id).expect("it listens");
        }
        drop(returned);
    });
    assert_eq!(ledger.seen.len() as u64, SENDERS);
    assert_eq!(posts.load(Ordering::Relaxed), SENDERS * EACH + 64);
    assert_eq!(hub.srq.outstanding(), 64);
    Ok(())
}
