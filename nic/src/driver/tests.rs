//! Posting work while another thread holds the lock.

use super::SocketPort;
use crate::port::Port;
use crate::{Device, DeviceConfig, Gather, RcEnd, Result};
use std::sync::Arc;

/// Posts from another thread; returns once the post has returned.
fn post_elsewhere(end: &RcEnd) {
    std::thread::scope(|scope| {
        let posted = scope.spawn(|| end.qp.send(1, Gather::Inline(Box::from(*b"word"))));
        posted.join().expect("no panic").expect("there is room");
    });
}

/// A queue pair that can send, and its port, which no thread drives.
fn sender() -> Result<(RcEnd, RcEnd, Arc<SocketPort>)> {
    let (a, port) = Device::open_with_port("rnic0", &DeviceConfig::default())?;
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
