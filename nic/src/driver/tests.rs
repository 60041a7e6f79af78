//! Several threads at one port: posting work while another holds the lock, destroying what a packet fails.

use super::SocketPort;
use crate::{Access, ConnectOptions, DeviceConfig, Gather, QpInit, QueuePair, RcEnd, Remote, Result};
use rnic_core::port::Port;
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
