//! How programs receive events.

use super::events;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::engine::MAX_EVENTS;
use rnic::sim::Net;
use rnic::{
    AsyncEvent, Error, EventSource, Gather, QpAttr, QpEvent, QpInit, QpState, RcEnd, Remote, SrqInit,
    WcStatus,
};
use rnic_tests::{counter, open};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn readable(events: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
}

/// One WRITE, from posting it to its completion.
fn write(left: &RcEnd, right: &RcEnd) -> Result<WcStatus, Error> {
    let source = left.register(b"news")?;
    let target = right.register_remote(4)?;
    left.qp.write(1, source.all(), target.remote(0))?;
    Ok(left.wait()?.status)
}

#[test]
fn events_of_queue_pairs_name_them() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = (RcEnd::new(&a)?, RcEnd::new(&b)?);
    left.qp.connect(&right.qp.address(), &Default::default())?;
    // Right is in RTR when the first packet arrives.
    let mut way = rnic::AddressVector::new(a.gid(), 0);
    way.port_num = 1;
    let peer = left.qp.address();
    right.qp.modify(&QpAttr::to_init(1, 0, rnic::Access::REMOTE_WRITE))?;
    let rtr = QpAttr::to_rtr(way, rnic::Mtu::B1024, left.qp.qpn(), rnic::Psn::new(peer.psn));
    right.qp.modify(&rtr.max_dest_rd_atomic(1).min_rnr_timer(12))?;
    assert_eq!(write(&left, &right)?, WcStatus::Success);
    let established = AsyncEvent::QueuePair(right.qp.qpn(), QpEvent::CommunicationEstablished);
    assert_eq!(b.poll_event()?, Some(established));
    assert_eq!(established.source(), EventSource::QueuePair(right.qp.qpn()));
    // The send queue of the other side is drained on request.
    left.qp.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true))?;
    assert_eq!(a.poll_event()?, Some(AsyncEvent::QueuePair(left.qp.qpn(), QpEvent::SendQueueDrained)));
    left.qp.modify(&QpAttr::to_state(QpState::Rts))?;
    // An unknown key: the requester learns of it from its completion, the responder from the event.
    let source = left.register(b"x")?;
    left.qp.write(2, source.all(), Remote { addr: 0, rkey: 0xdead })?;
    assert_eq!(left.wait()?.status, WcStatus::RemAccessErr);
    assert_eq!(b.poll_event()?, Some(AsyncEvent::QueuePair(right.qp.qpn(), QpEvent::AccessError)));
    assert_eq!((events(&a), events(&b)), (vec![], vec![]));
    Ok(())
}

#[test]
fn an_overrun_is_told_of_the_queue_and_of_each_queue_pair_that_it_ends() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let small = a.create_cq(1)?;
    let pd = a.alloc_pd()?;
    let make = || pd.create_qp(&QpInit::rc(&small, &small));
    let (first, second, idle) = (make()?, make()?, make()?);
    let far = [RcEnd::new(&b)?, RcEnd::new(&b)?];
    for (near, far) in [&first, &second].into_iter().zip(&far) {
        near.connect(&far.qp.address(), &Default::default())?;
        far.qp.connect(&near.address(), &Default::default())?;
    }
    for id in 0..2 {
        first.write(id, Gather::Empty, Remote::default())?;
    }
    net.run_for(Duration::from_millis(1));
    assert!(small.is_overrun());
    let states = [first.state(), second.state(), idle.state()];
    assert_eq!(states, [QpState::Err, QpState::Err, QpState::Reset]);
    let told: Vec<_> = std::iter::from_fn(|| a.poll_event().expect("not forked")).collect();
    let fatal = |qp: &rnic::QueuePair| AsyncEvent::QueuePair(qp.qpn(), QpEvent::Fatal);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[0].name(), "CQ_ERR");
    assert_eq!(told[1..], [fatal(&first), fatal(&second)]);
    // Entering ERR deliberately is not an event.
    far[0].qp.modify(&QpAttr::to_state(QpState::Err))?;
    assert!(!events(&b).contains(&"QP_FATAL"));
    Ok(())
}

#[test]
fn events_of_destroyed_objects_are_taken_back() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let told = a.events()?;
    left.qp.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true))?;
    assert!(readable(&told));
    drop(left);
    assert!(!readable(&told), "nothing is left to read");
    assert_eq!(told.poll()?, None);
    drop(right);
    // Destroying a completion queue withdraws its events, and leaves those of others.
    let (left, right) = RcEnd::pair(&a, &b)?;
    let tiny = a.create_cq(1)?;
    let qp = left.pd().create_qp(&QpInit::rc(&tiny, &tiny))?;
    qp.connect(&right.qp.address(), &Default::default())?;
    right.qp.modify(&QpAttr::to_state(QpState::Reset))?;
    right.qp.connect(&qp.address(), &Default::default())?;
    for id in 0..2 {
        qp.write(id, Gather::Empty, Remote::default())?;
    }
    net.run_for(Duration::from_millis(1));
    left.qp.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true))?;
    // The same for a shared receive queue: an empty one has reached its limit.
    let srq = left.pd().create_srq(&SrqInit { limit: 1, ..SrqInit::default() })?;
    let waiting = [AsyncEvent::CompletionQueueError(tiny.number()), AsyncEvent::SrqLimitReached(srq.srqn())];
    drop((qp, tiny, srq));
    let left: Vec<_> = std::iter::from_fn(|| a.poll_event().expect("not forked")).collect();
    assert!(left.iter().all(|event| !waiting.contains(event)), "{left:?}");
    assert_eq!(left.iter().map(|event| event.name()).collect::<Vec<_>>(), ["SQ_DRAINED"]);
    Ok(())
}

#[test]
fn events_that_nobody_reads_are_lost_oldest_first_and_counted() -> Result<(), Error> {
    let net = Net::new();
    let device = net.device();
    for _ in 0..MAX_EVENTS / 2 {
        device.inject_port_state(false)?;
        device.inject_port_state(true)?;
    }
    assert_eq!(counter(&device, "async_events_lost"), 0, "the bound itself");
    device.inject_port_state(false)?;
    assert_eq!(counter(&device, "async_events_lost"), 1);
    let left = events(&device);
    assert_eq!(left.len(), MAX_EVENTS);
    assert_eq!((left[0], left[MAX_EVENTS - 1]), ("PORT_ACTIVE", "PORT_ERR"), "the first PORT_ERR gave way");
    Ok(())
}

#[test]
fn the_descriptor_is_readable_while_events_wait() -> Result<(), Error> {
    let net = Net::new();
    let device = net.device();
    device.inject_port_state(false)?;
    let told = device.events()?;
    assert!(readable(&told), "made after the event came");
    let again = device.clone().events()?;
    device.inject_port_state(true)?;
    assert_eq!(again.poll()?.map(AsyncEvent::name), Some("PORT_ERR"));
    assert!(readable(&told) && readable(&again), "one is left");
    assert_eq!(device.poll_event()?.map(AsyncEvent::name), Some("PORT_ACTIVE"));
    assert!(!readable(&told) && !readable(&again));
    assert_eq!(told.poll()?, None);
    Ok(())
}

#[test]
fn waiting_for_an_event_moves_virtual_time() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let options = rnic::ConnectOptions { timeout: 10, retry_cnt: 1, ..Default::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    let before = net.elapsed();
    assert_eq!(b.wait_event(Duration::from_secs(5))?, None);
    assert_eq!(net.elapsed(), before, "nothing is under way");
    let bad = Remote { addr: 0, rkey: 0xdead };
    let source = left.register(b"x")?;
    left.qp.write(1, source.all(), bad)?;
    let event = b.wait_event(Duration::MAX)?;
    assert_eq!(event, Some(AsyncEvent::QueuePair(right.qp.qpn(), QpEvent::AccessError)));
    let took = net.elapsed() - before;
    assert!(took > Duration::ZERO && took < Duration::from_micros(100), "{took:?}");
    Ok(())
}

#[test]
fn waiting_for_an_event_sleeps_until_one_comes() {
    let device = open();
    let begun = Instant::now();
    assert_eq!(device.wait_event(Duration::from_millis(20)).expect("events"), None);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let other = device.clone();
    let thread = std::thread::spawn(move || other.wait_event(PATIENCE));
    // Whether it is already asleep or not, it must wake up.
    std::thread::sleep(Duration::from_millis(5));
    device.inject_port_state(false).expect("not forked");
    let event = thread.join().expect("no panic").expect("events");
    assert_eq!(event, Some(AsyncEvent::PortError));
    assert!(begun.elapsed() < PATIENCE, "it woke because of the event");
}

/// A runtime with `threads` threads besides this one.
fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build().expect("a runtime")
}

#[test]
fn tasks_await_events() {
    let device = open();
    runtime(2).block_on(async {
        // Whether they are already asleep or not, each gets one event.
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let device = device.clone();
                tokio::spawn(async move { device.next_event().await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(5)).await;
        device.inject_port_state(false).expect("not forked");
        device.inject_port_state(true).expect("not forked");
        let mut told = Vec::new();
        for task in tasks {
            let event = tokio::time::timeout(PATIENCE, task).await.expect("in time").expect("no panic");
            told.push(event.expect("an event").name());
        }
        told.sort_unstable();
        assert_eq!(told, ["PORT_ACTIVE", "PORT_ERR"]);
        // A wait that was dropped consumes nothing.
        let wait = tokio::time::timeout(Duration::from_millis(1), device.next_event());
        assert!(wait.await.is_err());
        device.inject_port_state(false).expect("not forked");
        assert_eq!(device.next_event().await.expect("an event"), AsyncEvent::PortError);
    });
}

#[test]
fn tasks_await_events_through_the_descriptor() {
    let device = open();
    runtime(0).block_on(async {
        // SAFETY: the device keeps its descriptor open, and always returns the same one.
        let told = unsafe { AsyncFd::register(device.events().expect("a descriptor")) }.expect("registered");
        for up in [false, true, false] {
            let other = device.clone();
            std::thread::spawn(move || other.inject_port_state(up).expect("not forked"));
            let event = loop {
                let mut ready = told.readable().await.expect("readable");
                match ready.get_inner().poll().expect("not forked") {
                    Some(event) => break event,
                    None => ready.clear_ready(),
                }
            };
            assert_eq!(event, if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    });
}

#[test]
fn tasks_that_await_events_move_virtual_time() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    runtime(0).block_on(async {
        let source = left.register(b"x").expect("memory");
        left.qp.write(1, source.all(), Remote { addr: 0, rkey: 0xdead }).expect("posted");
        let event = b.next_event().await.expect("an event");
        assert_eq!(event, AsyncEvent::QueuePair(right.qp.qpn(), QpEvent::AccessError));
        assert!(matches!(b.next_event().await, Err(Error::Stalled)), "nothing is under way any more");
    });
}
