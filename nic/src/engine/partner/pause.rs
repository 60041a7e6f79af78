//! Pauses: a partner whose port is full has us stop, priority by priority.

use super::{Message, Partners};
use crate::engine::{Due, Engine};
use cc::pfc::{PauseFrame, Quanta};
use qp::wire::PauseTimes;
use qp::wire::mad::hello::Features;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A priority that a partner has had us pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PausedPriority {
    pub(crate) peer: IpAddr,
    pub(crate) priority: u8,
    pub(crate) paused: Duration,
}

impl Engine {
    /// Has every partner at an address pause, or go on.
    pub(crate) fn send_pause(&mut self, to: IpAddr, frame: &PauseFrame) {
        let times = match frame {
            PauseFrame::Link(quanta) => PauseTimes([Some(quanta.0); 8]),
            PauseFrame::Priorities(each) => PauseTimes(each.map(|time| time.map(|quanta| quanta.0))),
        };
        for id in self.peers.at(to) {
            let understands =
                Partners::partner(&mut self.peers, id).is_some_and(|p| p.understands(Features::PAUSE));
            if understands {
                self.counters.tx_pause += 1;
                self.partners.outbox.push_back(Message::Pause { to: id, times });
            }
        }
    }

    /// A pause arrived from a partner.
    pub(in crate::engine) fn handle_pause(&mut self, now: Instant, id: usize, times: &PauseTimes) {
        self.counters.rx_pause += 1;
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        (partner.heard, partner.silent_since) = (now, None);
        partner.paused.handle_frame(now, &PauseFrame::Priorities(times.0.map(|time| time.map(Quanta))));
        self.end_pauses(now, id);
        self.arm_pause(id);
    }

    /// Whether packets with this TOS may go to a peer.
    pub(in crate::engine) fn is_paused(&mut self, now: Instant, id: usize, tos: u8) -> bool {
        Partners::partner(&mut self.peers, id).is_some_and(|p| !p.paused.may_send(now, tos >> 5))
    }

    /// A queue pair waits for the end of a pause.
    pub(in crate::engine) fn wait_for_pause(&mut self, index: usize, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        if !partner.pausing.contains(&index) {
            partner.pausing.push_back(index);
            self.counters.pause_stalls += 1;
        }
        self.arm_pause(id);
    }

    /// Ends the pauses whose time is over: whoever waited looks again.
    pub(super) fn end_pauses(&mut self, now: Instant, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        partner.paused.handle_timeout(now);
        for index in std::mem::take(&mut partner.pausing) {
            self.make_ready(index);
        }
    }

    /// What partners have had us pause, and for how long, the pause that lasts included.
    pub(crate) fn paused_priorities(&self, now: Instant) -> impl Iterator<Item = PausedPriority> {
        self.peers.iter().flat_map(move |peer| {
            let each =
                peer.partner.iter().flat_map(|partner| (0..8).map(move |priority| (partner, priority)));
            let seen = each.filter(|(partner, priority)| partner.paused.counters(*priority).pause > 0);
            seen.map(move |(partner, priority)| {
                let since = partner.paused.paused_since(now, priority);
                let lasts = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                let paused = partner.paused.counters(priority).pause_duration + lasts;
                PausedPriority { peer: peer.address, priority, paused }
            })
        })
    }

    fn arm_pause(&mut self, id: usize) {
        let due = Partners::partner(&mut self.peers, id).and_then(|p| p.paused.poll_timeout());
        if let Some(at) = due {
            self.timers.push(Reverse((at, Due::Partner(id))));
        }
    }
}
