//! Completions for tasks that await them, in any runtime.
//!
//! The thread that drives the engine when the completion arrives wakes the task through its waker. No descriptor is
//! involved, so it works in every runtime, whatever features it was built with, and in several at once.

use super::CompletionQueue;
use crate::error::{Error, Result};
use crate::port::Port;
use crate::queue::Wish;
use crate::sim::World;
use qp::WorkCompletion;
use std::future::poll_fn;
use std::task::{Context, Poll};
use time::Duration;

/// In virtual time: the number of turns that other tasks get while nothing is in flight before a wait is given up.
/// One task may have to wake another before a work request is posted; longer chains than this are not expected.
const IDLE_TURNS: u32 = 64;

impl CompletionQueue {
    /// Awaits the next completion: the task drives the engine while it checks, then leaves that to the background
    /// thread and sleeps.
    ///
    /// Dropping the future loses nothing: a completion is taken only as it is returned. Several tasks may await
    /// completions of one queue; each completion goes to one of them.
    ///
    /// In virtual time it advances the simulation, by one event each time that the other tasks of a single-threaded
    /// runtime have had their turn.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rnic::Error> {
    /// let net = rnic::sim::Net::new(); // or `(rnic::open()?, rnic::open()?)`, on the network
    /// let (a, b) = (net.device(), net.device());
    /// let (left, right) = rnic::RcEnd::pair(&a, &b)?;
    /// let source = left.register(b"hello rdma")?;
    /// let target = right.register_remote(10)?;
    /// left.qp.write(7, source.all(), target.remote(0))?;
    /// assert_eq!(left.cq().next().await?.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Overrun`] when the queue is in error and empty; [`Error::Forked`]; in virtual time [`Error::Stalled`]
    /// when nothing is in flight and no other task changes that.
    pub async fn next(&self) -> Result<WorkCompletion> {
        let mut completions = self.completions();
        poll_fn(|cx| completions.poll_next(cx)).await
    }

    /// All completions from now on, one by one: [`next`](Self::next) for code that implements its own streams and
    /// futures.
    #[must_use]
    pub fn completions(&self) -> Completions {
        Completions { place: self.inner.shared.waiters.place(), cq: self.clone(), asleep: false, idle: 0 }
    }
}

/// The completions of a queue as they arrive, see [`CompletionQueue::completions`].
#[derive(Debug)]
pub struct Completions {
    cq: CompletionQueue,
    place: u64,
    /// Whether a waker may be registered in the queue.
    asleep: bool,
    /// In virtual time: consecutive checks during which nothing was in flight.
    idle: u32,
}

impl Completions {
    /// Polls for the next completion; otherwise arranges to wake the task of `cx` when it is worth polling again.
    ///
    /// # Errors
    /// As [`CompletionQueue::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<WorkCompletion>> {
        let port = match self.cq.inner.device.port() {
            Ok(port) => port,
            Err(forked) => return Poll::Ready(Err(forked)),
        };
        if self.cq.inner.shared.waiters.is_greedy() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(result) = self.cq.poll_result() {
            self.idle = 0;
            return Poll::Ready(result);
        }
        match port.sim() {
            None => {
                self.asleep = true;
                sleep(&self.cq, &**port, self.place, cx)
            }
            Some(port) => step(port.world(), &mut self.idle, cx, || self.cq.poll_result()),
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // In a forked child the list may stay locked indefinitely.
        if self.asleep && self.cq.inner.device.port.is_ours() {
            self.cq.inner.shared.waiters.leave(self.place);
        }
    }
}

/// Registers the waker, then checks once more: a completion from before the wish wakes no task.
fn sleep(
    cq: &CompletionQueue,
    port: &dyn Port,
    place: u64,
    cx: &Context<'_>,
) -> Poll<Result<WorkCompletion>> {
    cq.inner.shared.waiters.sleep(place, cx.waker());
    cq.inner.shared.wish(Wish::AWAITED);
    port.hand_over();
    match cq.poll_result() {
        Some(result) => {
            cq.inner.shared.waiters.leave(place);
            Poll::Ready(result)
        }
        None => Poll::Pending,
    }
}

/// Advances virtual time, once every other task has had a turn: they may have work to post at this instant.
pub(crate) fn step<R>(
    world: &World,
    idle: &mut u32,
    cx: &Context<'_>,
    look: impl FnOnce() -> Option<Result<R>>,
) -> Poll<Result<R>> {
    let end = world.now() + Duration::from_secs(u64::from(u32::MAX));
    if *idle > 0 && world.step_until(end) {
        *idle = 0;
        if let Some(result) = look() {
            return Poll::Ready(result);
        }
    }
    *idle += 1;
    if *idle > IDLE_TURNS {
        *idle = 0;
        return Poll::Ready(Err(Error::Stalled));
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}
