//! Packets that wait: for a time, or for others to overtake them.

use super::track::QpFlow;
use crate::link::Frame;
use std::collections::BTreeMap;
use time::{Duration, Instant};

/// Bytes that may wait: what a 100 Gb/s link sends in 5 ms.
const MAX_BYTES: usize = 64 << 20;

/// Packets that may wait to be overtaken.
const MAX_HELD: usize = 1024;

/// The longest wait of a packet for others to overtake it: longer than the gaps between packets of a burst, shorter
/// than any retry timeout in use (4.096 us * 2^14 = 67 ms is the usual one), so that the end of a burst is late and
/// not lost.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// How frames are to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// The queue pair whose packets count as overtaking.
    pub(super) flow: QpFlow,
    /// First, for this many packets to overtake it, by the rule with this number.
    pub(super) overtakers: Option<(u64, u32)>,
    /// Then, for this long.
    pub(super) delay: Duration,
}

#[derive(Debug)]
struct Held {
    frames: Vec<Frame>,
    rule: u64,
    wait: Wait,
    left: u32,
    deadline: Instant,
}

/// The packets that a layer holds.
#[derive(Debug, Default)]
pub(super) struct Hold {
    held: Vec<Held>,
    /// By time and, among equals, by arrival.
    delayed: BTreeMap<(Instant, u64), (QpFlow, Frame)>,
    arrivals: u64,
    bytes: usize,
}

impl Hold {
    /// Whether packets wait to be overtaken.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether this rule holds a packet of this flow.
    pub(super) fn holds(&self, rule: u64, flow: QpFlow) -> bool {
        self.held.iter().any(|h| h.rule == rule && h.wait.flow == flow)
    }

    /// Whether there is room for this many frames like this one to wait.
    pub(super) fn has_room(&self, wait: &Wait, frame: &Frame, count: usize) -> bool {
        (wait.overtakers.is_none() || self.held.len() < MAX_HELD)
            && self.bytes.saturating_add(frame.bytes.len().saturating_mul(count)) <= MAX_BYTES
    }

    /// Makes frames wait.
    pub(super) fn put(&mut self, now: Instant, wait: Wait, frames: Vec<Frame>) {
        self.bytes += frames.iter().map(|f| f.bytes.len()).sum::<usize>();
        match wait.overtakers {
            Some((rule, left)) => {
                self.held.push(Held { frames, rule, wait, left, deadline: now + PATIENCE });
            }
            None => self.delay(now, wait, frames),
        }
    }

    fn delay(&mut self, now: Instant, wait: Wait, frames: Vec<Frame>) {
        for frame in frames {
            self.arrivals += 1;
            self.delayed.insert((now + wait.delay, self.arrivals), (wait.flow, frame));
        }
    }

    /// Records that a packet went out in a flow: held packets that were overtaken often enough follow it.
    pub(super) fn overtaken(&mut self, now: Instant, flow: QpFlow, out: &mut dyn FnMut(Frame)) {
        for held in self.held.iter_mut().filter(|h| h.wait.flow == flow) {
            held.left = held.left.saturating_sub(1);
        }
        self.free(now, |held| held.left == 0, out);
    }

    /// Releases the held packets that `ready` selects: they go out, or go on to their delay.
    fn free(&mut self, now: Instant, ready: impl Fn(&Held) -> bool, out: &mut dyn FnMut(Frame)) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            if !ready(held) {
                at += 1;
                continue;
            }
            // Not `swap_remove`: waiting packets leave in the order in which they arrived.
            let Held { frames, wait, .. } = self.held.remove(at);
            if wait.delay.is_zero() {
                for frame in frames {
                    self.bytes = self.bytes.saturating_sub(frame.bytes.len());
                    out(frame);
                }
            } else {
                self.delay(now, wait, frames);
            }
        }
    }

    /// When [`Hold::release`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let delayed = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let held = self.held.iter().map(|h| h.deadline).min();
        delayed.into_iter().chain(held).min()
    }

    /// Releases all packets that are due.
    pub(super) fn release(&mut self, now: Instant, out: &mut dyn FnMut(Frame)) {
        self.free(now, |held| held.deadline <= now, out);
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let (flow, frame) = entry.remove();
            self.bytes = self.bytes.saturating_sub(frame.bytes.len());
            out(frame);
            self.overtaken(now, flow, out);
        }
    }
}
