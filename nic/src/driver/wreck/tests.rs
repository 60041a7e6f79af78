//! Panics in calls on a device, and in its thread.

use crate::driver::SocketPort;
use crate::{AsyncEvent, Device, DeviceConfig, Error, Gather, QpState, RcEnd, Result, WcStatus};
use rnic_core::engine::ResourceError;
use rnic_core::link::{FrameRef, Now, Observer};
use rnic_core::sim::Net;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call on the engine that panics under the lock; the caller catches it.
fn panic_in_a_call(device: &Device) {
    let port = rnic_core::port::of(device);
    catch_unwind(AssertUnwindSafe(|| port.control(|_| panic!("on purpose")))).expect_err("it panics");
}

/// Whether a call was refused because the device has failed.
fn refused<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Resource(ResourceError::DeviceFailed)))
}

/// What is true of a device after a panic. `end` had a receive posted.
fn has_failed(device: &Device, end: &RcEnd) {
    assert!(device.has_panicked());
    assert_eq!(device.poll_event().expect("ours"), Some(AsyncEvent::DeviceFatal));
    assert_eq!(device.poll_event().expect("ours"), None, "once");
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.wait().expect("a completion").status, WcStatus::WrFlushErr);
    assert!(refused(end.wait()), "nothing can come any more");
    assert!(refused(end.qp.send(7, Gather::Empty)) && refused(end.qp.recv(7, Gather::Empty)));
    assert!(matches!(end.qp.post_sends([]), Err((0, Error::Resource(ResourceError::DeviceFailed)))));
    assert!(refused(end.cq().arm(false)) && refused(device.create_cq(4)) && refused(end.register(b"more")));
}

/// Two connected ends in virtual time, the left one with a receive.
fn pair() -> Result<(Net, Device, RcEnd, RcEnd)> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;
    left.qp.recv(1, Gather::Empty)?;
    Ok((net, a, left, right))
}

#[test]
fn a_panic_under_the_lock_fails_the_device_even_if_nobody_reports_it() -> Result<()> {
    let (net, device, left, right) = pair()?;
    panic_in_a_call(&device);
    assert!(!device.has_panicked(), "nobody has looked yet");
    std::thread::scope(|scope| {
        // The next holder of the lock may be any thread.
        scope.spawn(|| device.counters());
    });
    has_failed(&device, &left);
    // Nothing drives it any more: the peer is on its own.
    right.qp.send(1, Gather::Empty)?;
    net.run_until_idle(PATIENCE);
    assert_eq!(right.wait()?.status, WcStatus::RetryExcErr);
    assert_eq!(device.counters().port.rx_packets, 0);
    // Objects can be destroyed.
    left.qp.destroy().expect("as ever");
    Ok(())
}

#[test]
fn a_panic_outside_of_the_lock_is_reported() -> Result<()> {
    let (_net, device, left, _right) = pair()?;
    device.fail_after_panic();
    device.fail_after_panic();
    has_failed(&device, &left);
    Ok(())
}

#[test]
fn a_poll_is_refused_only_when_all_is_flushed() -> Result<()> {
    let (device, peer) = (crate::open()?, crate::open()?);
    // Many, so that a reader is refused long before the last is flushed if the order is wrong.
    let pairs: Vec<_> = (0..200).map(|_| RcEnd::pair(&device, &peer)).collect::<Result<_>>()?;
    for (left, _) in &pairs {
        left.qp.recv(1, Gather::Empty)?;
    }
    let last = &pairs.last().expect("some").0;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| last.wait());
        device.fail_after_panic();
        let first = reader.join().expect("no panic").expect("a completion precedes the refusal");
        assert_eq!(first.status, WcStatus::WrFlushErr);
    });
    assert!(refused(last.wait()));
    Ok(())
}

/// Another thread posts while a call holds the lock, which then panics after `before`. Both requests are flushed.
fn post_and_panic(before: impl Fn(&SocketPort)) -> Result<()> {
    let ((device, port), peer) = (DeviceConfig::default().open_as("rnic0")?, crate::open()?);
    let (left, _right) = RcEnd::pair(&device, &peer)?;
    left.qp.recv(1, Gather::Empty)?;
    let engine = rnic_core::port::of(&device);
    let posted = catch_unwind(AssertUnwindSafe(|| {
        engine.control(|_| {
            std::thread::scope(|scope| {
                scope.spawn(|| left.qp.send(2, Gather::Empty).expect("it waits in the inbox"));
            });
            before(&port);
            panic!("on purpose");
        })
    }));
    posted.expect_err("it panics");
    device.fail_after_panic();
    let flushed = left.wait()?;
    assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
    has_failed(&device, &left);
    Ok(())
}

#[test]
fn work_that_threads_left_while_the_lock_was_held_is_flushed() -> Result<()> {
    post_and_panic(|_| {})
}

/// As if the call had taken the doorbells, and panicked before it had answered them.
#[test]
fn work_whose_doorbell_a_panic_swallowed_is_flushed() -> Result<()> {
    post_and_panic(|port| port.doorbells.forget())
}

/// An observer with a bug. It runs in whatever thread drives the port, under the lock.
struct Panics;

impl Observer for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn observe(&mut self, _now: Now, _frame: &FrameRef<'_>) {
        panic!("on purpose");
    }
}

#[test]
fn a_panic_in_the_background_thread_fails_the_device_and_ends_the_thread() -> Result<()> {
    let ((a, port), b) = (DeviceConfig::default().open_as("rnic0")?, crate::open()?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    left.qp.recv(1, Gather::Empty)?;
    let events = a.events()?;
    a.observe(Panics)?;
    // Nobody polls on the left side.
    right.qp.send(1, Gather::Empty)?;
    let deadline = Instant::now() + PATIENCE;
    while !a.has_panicked() {
        assert!(Instant::now() < deadline, "the thread did not take the packet");
        b.progress();
    }
    while !port.background.has_ended() {
        assert!(Instant::now() < deadline, "the thread goes on");
        std::thread::yield_now();
    }
    let mut fds = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&events), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO), Ok(1), "the event is announced");
    has_failed(&a, &left);
    drop((left, right, events));
    Ok(())
}
