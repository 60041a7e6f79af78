//! Several threads at one port: posting work while another holds the lock, destroying what a packet fails.

use super::SocketPort;
use super::burst::{Burst, WAITING};
use super::hold::Caller;
use crate::{
    Access, ConnectOptions, DeviceConfig, Gather, Operation, QpInit, QueuePair, RcEnd, Remote, Result, SendWr,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::engine::Engine;
use rnic_core::port::Port;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

/// Posts from another thread; returns once the post has returned.
fn post_elsewhere(end: &RcEnd) {
    std::thread::scope(|scope| {
        let posted = scope.spawn(|| end.qp.send(1, Gather::Inline(Box::from(*b"word"))));
        posted.join().expect("no panic").expect("there is room");
    });
}

/// A queue pair that can send, and its port, which no thread drives.
fn sender() -> Result<(RcEnd, RcEnd, Arc<SocketPort>)> {
    let (a, port) = DeviceConfig::default().open_as("rnic0")?;
    let (left, right) = RcEnd::pair(&a, &crate::open()?)?;
    port.background.stop();
    Ok((left, right, port))
}

/// Number of work requests that the engine knows of.
fn taken_in(port: &SocketPort, end: &RcEnd) -> usize {
    let qpn = end.qp.qpn();
    port.lock().datapath.engine.qp(qpn).map_or(0, qp::QueuePair::sends_outstanding)
}

#[test]
fn what_is_posted_while_somebody_looks_at_the_engine_is_taken_in() -> Result<()> {
    let (left, _right, port) = sender()?;
    (&*port as &dyn Port).inspect(|_| post_elsewhere(&left));
    assert_eq!(taken_in(&port, &left), 1);
    Ok(())
}

/// A request that changes nothing at the peer.
fn post_empty_write(end: &RcEnd) -> Result<()> {
    end.qp.write(1, Gather::Empty, Remote::default())
}

/// Waits for a packet, without reading it.
fn wait_for_packet(port: &SocketPort) {
    #[expect(unsafe_code, reason = "the number of a descriptor, which the port keeps open")]
    // SAFETY: the port, which owns it, outlives the call.
    let socket = unsafe { BorrowedFd::borrow_raw(port.lock().udp.receive_fd()) };
    let mut wanted = [PollFd::new(socket, PollFlags::POLLIN)];
    assert_eq!(poll(&mut wanted, PollTimeout::from(10_000u16)), Ok(1), "a packet");
}

#[test]
fn requests_behind_packets_in_flight_wait_together_for_the_next_turn() -> Result<()> {
    let (left, _right, port) = sender()?;
    post_empty_write(&left)?;
    assert_eq!(taken_in(&port, &left), 1, "it left at once");
    wait_for_packet(&port);
    for _ in 0..5 {
        post_empty_write(&left)?;
    }
    assert_eq!(taken_in(&port, &left), 1, "nobody has looked into the inbox");
    assert!(
        port.next_wanted().0.is_some_and(|at| at <= crate::clock::now()),
        "a thread that drives stays awake"
    );
    let before = port.lock().udp.counters().sends;
    let look = |engine: &Engine| engine.qp(left.qp.qpn()).map(qp::QueuePair::sends_outstanding);
    assert_eq!((&*port as &dyn Port).inspect(look), Some(Some(6)), "whoever looks at the engine finds them");
    assert!(port.background_turn().0);
    assert_eq!(port.lock().udp.counters().sends - before, 1, "they leave in one train");
    assert_eq!(taken_in(&port, &left), 5, "the first is acknowledged");
    // Once nothing is in flight, the next one leaves at once again.
    while taken_in(&port, &left) > 0 {
        port.background_turn();
    }
    post_empty_write(&left)?;
    assert_eq!(taken_in(&port, &left), 1);
    Ok(())
}

/// Queue pairs that can send, those with which they are connected, and the port of the former.
fn senders(count: usize) -> Result<(Vec<RcEnd>, Vec<RcEnd>, Arc<SocketPort>)> {
    let (a, port) = DeviceConfig::default().open_as("rnic0")?;
    let b = crate::open()?;
    let pairs = (0..count).map(|_| RcEnd::pair(&a, &b)).collect::<Result<Vec<_>>>()?;
    let (ends, peers) = pairs.into_iter().unzip();
    Ok((ends, peers, port))
}

#[test]
fn requests_of_many_queue_pairs_leave_together_behind_the_first() -> Result<()> {
    let (ends, _peers, port) = senders(10)?;
    port.background.stop();
    let sends = || port.lock().udp.counters().sends;
    let [background, program]: [fn(&SocketPort); 2] =
        [|port| _ = port.background_turn(), |port| _ = port.drive(Caller::Program)];
    for turn in [SocketPort::sweep, background, program, background] {
        let before = sends();
        port.lock().burst = Burst::usual();
        ends.iter().try_for_each(post_empty_write)?;
        assert_eq!(sends() - before, 1, "the first left at once");
        let known: Vec<_> = ends.iter().map(|end| taken_in(&port, end)).collect();
        assert_eq!((known[0], known.iter().sum::<usize>()), (1, 1), "the others wait in their inboxes");
        turn(&port);
        assert_eq!(sends() - before, 2, "they leave in one train");
        // The next burst begins once nothing is in flight, and with its first request.
        while ends.iter().any(|end| taken_in(&port, end) > 0) {
            port.lock().turn(crate::clock::now(), Caller::Background, &port.doorbells);
        }
    }
    Ok(())
}

/// A program may post for as long as it likes before it polls.
#[test]
fn a_burst_of_many_queue_pairs_leaves_without_a_turn() -> Result<()> {
    let (ends, _peers, port) = senders(70)?;
    port.background.stop();
    port.lock().burst = Burst::usual();
    let before = port.lock().udp.counters().sends;
    for (count, end) in ends.iter().enumerate() {
        post_empty_write(end)?;
        // The 64 behind the first leave with the 66th.
        let sends = port.lock().udp.counters().sends - before;
        assert_eq!(sends, if count < 65 { 1 } else { 3 }, "request {count}: 65 packets need two trains");
    }
    Ok(())
}

/// Waking it takes longer than sending does.
#[test]
fn a_thread_that_is_blocked_is_not_woken_for_a_burst() -> Result<()> {
    let (ends, _peers, port) = senders(1)?;
    while !port.background.sleeper().has_to_know() {
        std::thread::yield_now();
    }
    // Another queue pair has just sent something.
    port.lock().burst = Burst::usual();
    port.may_join.store(5, Ordering::Relaxed);
    ends.iter().try_for_each(post_empty_write)?;
    // A turn of the thread may have ended the burst since.
    assert!(
        [WAITING, 0].contains(&port.may_join.load(Ordering::Relaxed)),
        "it left at once, and does not wait"
    );
    Ok(())
}

/// The kernel hands over a train as one datagram. A single message in it may be the next one of a conversation; several are a
/// stream, whose sender waits for nothing but acknowledgements.
#[test]
fn many_messages_in_one_train_are_no_conversation() -> Result<()> {
    let (_right, left, port) = sender()?;
    for (count, is_conversation) in [(1, true), (6, false)] {
        while port.background_turn().0 {}
        let write = Operation::Write { remote: Remote::default(), imm: None };
        let posts = (0..count).map(|wr_id| SendWr::new(wr_id, write, Gather::Empty));
        left.qp.post_sends(posts).map_err(|(_, error)| error)?;
        wait_for_packet(&port);
        port.background_turn();
        assert_eq!(port.lock().converses(), is_conversation, "{count} messages");
    }
    Ok(())
}

/// What is left in an inbox of a port whose program polls is sent by the standby, and at the end.
#[test]
fn what_waits_for_the_next_turn_leaves_also_if_the_program_takes_none() -> Result<()> {
    for act in [SocketPort::sweep, |port: &SocketPort| port.flush()] {
        let (left, _right, port) = sender()?;
        post_empty_write(&left)?;
        post_empty_write(&left)?;
        assert_eq!(taken_in(&port, &left), 1);
        let next_psn = || port.lock().datapath.engine.qp(left.qp.qpn()).map(qp::QueuePair::next_psn);
        let before = next_psn().expect("it is there");
        act(&port);
        assert_eq!(next_psn(), Some(before.plus(1)));
    }
    Ok(())
}

#[test]
fn a_receive_that_was_posted_before_the_message_is_there_for_it() -> Result<()> {
    let (right, left, port) = sender()?;
    for wr_id in 0..3 {
        assert!(!port.background.sleeper().has_to_know(), "its thread has ended");
        // The next packet is the message.
        while port.background_turn().0 {}
        right.qp.recv(wr_id, Gather::Empty)?;
        let known = || port.lock().datapath.engine.qp(right.qp.qpn()).map(qp::QueuePair::recvs_outstanding);
        assert_eq!(known(), Some(0), "it waits in the inbox");
        left.qp.send(7, Gather::Empty)?;
        wait_for_packet(&port);
        port.background_turn();
        assert_eq!(right.wait()?.wr_id, wr_id);
        assert_eq!(left.wait()?.status, crate::WcStatus::Success);
    }
    assert_eq!(port.with_driven(|driven| driven.datapath.engine.qp_counters().send_rnr_err), 0);
    Ok(())
}

#[test]
fn what_is_posted_while_the_thread_asks_how_long_it_may_sleep_keeps_it_awake() -> Result<()> {
    let (left, _right, port) = sender()?;
    assert!(port.next_wanted().0.is_none(), "nothing is under way");
    // As in the thread: the lock is taken only for the check.
    let look = port.lock();
    post_elsewhere(&left);
    drop(look);
    assert_eq!(taken_in(&port, &left), 0, "it came too late for whoever had the lock");
    let wanted = port.next_wanted().0.expect("a turn");
    assert!(wanted <= crate::clock::now(), "at once");
    port.background_turn();
    assert_eq!(taken_in(&port, &left), 1);
    Ok(())
}

/// The cause of an error may arrive just before a queue pair is destroyed: the completions flushed then are not seen
/// either.
#[test]
fn nothing_is_seen_of_a_queue_pair_that_was_destroyed_with_its_completions() -> Result<()> {
    let (a, b) = (crate::open()?, crate::open()?);
    let (a_pd, b_pd) = (a.alloc_pd()?, b.alloc_pd()?);
    let (a_cq, b_cq) = (a.create_cq(16)?, b.create_cq(16)?);
    let source = a_pd.register_bytes(b"x", Access::LOCAL_WRITE)?;
    let (to_writer, writes) = mpsc::sync_channel::<QueuePair>(0);
    std::thread::scope(|scope| {
        // The key does not exist: the responder's end enters the error state.
        scope.spawn(|| writes.into_iter().for_each(|qp| _ = qp.write(1, source.all(), Remote::default())));
        for round in 0..4000_u32 {
            // The writer may complete before it goes, if its thread loses the processor: the queue must not overrun.
            while a_cq.poll_one().is_some() {}
            let left = a_pd.create_qp(&QpInit::rc(&a_cq, &a_cq))?;
            let right = b_pd.create_qp(&QpInit::rc(&b_cq, &b_cq))?;
            left.connect(&right.address(), &ConnectOptions::default())?;
            right.connect(&left.address(), &ConnectOptions::default())?;
            for id in 0..6 {
                right.recv(id, Gather::Empty)?;
            }
            to_writer.send(left).expect("it waits for more");
            (0..round % 400 * 10).for_each(|_| std::hint::spin_loop());
            right.destroy_with_completions()?;
            if let Some(wc) = b_cq.poll_one() {
                panic!("round {round}: {wc:?}");
            }
        }
        drop(to_writer);
        Ok(())
    })
}
