//! Pause storms: peers are told to pause for as long as a rule requires.

use cc::Rate;
use cc::pfc::{PRIORITIES, PauseFrame, Quanta};
use std::collections::VecDeque;
use std::net::IpAddr;
use time::{Duration, Instant};

/// The maximum number of concurrent storms, one per peer and rule, and of pauses waiting to be sent. A storm beyond
/// that does not begin.
const MOST: usize = 1024;

/// A continuing storm.
#[derive(Debug)]
struct Storm {
    /// The number of its rule.
    rule: u64,
    peer: IpAddr,
    priorities: u8,
    began: Instant,
    /// When the port asks for the pause again.
    next: Instant,
    /// When it ends; `None` if it ends with its rule.
    end: Option<Instant>,
}

/// The storms of a link.
#[derive(Debug, Default)]
pub(super) struct Storms {
    lasting: Vec<Storm>,
    /// Pauses to send: the peer, the priorities, and whether they begin or end.
    due: VecDeque<(IpAddr, u8, bool)>,
}

impl Storms {
    /// Makes a peer pause once, for the longest possible time.
    pub(super) fn pause_once(&mut self, peer: IpAddr, priorities: u8) {
        if self.due.len() < MOST {
            self.due.push_back((peer, priorities, true));
        }
    }

    /// Makes a peer pause until `end`, or until the rule is removed.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        rule: u64,
        peer: IpAddr,
        priorities: u8,
        end: Option<Instant>,
    ) {
        let lasts = self.lasting.iter().any(|storm| storm.rule == rule && storm.peer == peer);
        if !lasts && self.lasting.len() < MOST {
            self.lasting.push(Storm { rule, peer, priorities, began: now, next: now, end });
        }
    }

    /// Ends the storms of rules that `keeps` rejects.
    pub(super) fn retain(&mut self, keeps: impl Fn(u64) -> bool) {
        for storm in self.lasting.iter_mut().filter(|storm| !keeps(storm.rule)) {
            // Its peer is told at the next poll.
            (storm.next, storm.end) = (storm.began, Some(storm.began));
        }
    }

    /// The next pause that is due, from a port of rate `rate`. A continuing pause is renewed when half of its time is
    /// over, as by a port whose buffer is full.
    pub(super) fn poll(&mut self, now: Instant, rate: Rate) -> Option<(IpAddr, PauseFrame)> {
        let again = (Quanta::MAX.time(rate) / 2).max(Duration::from_nanos(1));
        if self.due.is_empty() {
            let due = &mut self.due;
            self.lasting.retain_mut(|storm| {
                if storm.next > now {
                    return true;
                }
                let lasts = storm.end.is_none_or(|end| now < end);
                due.push_back((storm.peer, storm.priorities, lasts));
                let next = now.checked_add(again).unwrap_or(now);
                storm.next = storm.end.map_or(next, |end| end.min(next));
                lasts
            });
        }
        let (peer, priorities, begins) = self.due.pop_front()?;
        let time = if begins { Quanta::MAX } else { Quanta(0) };
        let times = std::array::from_fn(|priority| (priorities >> priority & 1 == 1).then_some(time));
        const { assert!(PRIORITIES <= u8::BITS as usize) };
        Some((peer, PauseFrame::Priorities(times)))
    }

    /// When a continuing pause is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.lasting.iter().map(|storm| storm.next).min()
    }
}
