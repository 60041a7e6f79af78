//! Pauses: a partner whose port is full stops us, priority by priority.

use super::{Message, Partners};
use crate::engine::Engine;
use crate::engine::PriorityPauses;
use crate::engine::schedule::{Due, Gate};
use cc::pfc::{Action, PRIORITIES, PauseCounters, PauseFrame, Paused, Quanta, Verdict, Watchdog};
use qp::wire::PauseTimes;
use qp::wire::mad::hello::Features;
use std::net::IpAddr;
use time::{Duration, Instant};

/// A priority that a partner has paused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PausedPriority {
    pub(crate) peer: IpAddr,
    pub(crate) priority: u8,
    pub(crate) paused: Duration,
}

/// What may be done with packets of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum PauseGate {
    /// They may be sent.
    Open,
    /// They have to wait.
    Shut,
    /// They are dropped: the pause counts as a storm.
    Drop,
}

/// Totals of a partner's pauses.
fn counts(paused: &Paused) -> [PauseCounters; PRIORITIES] {
    std::array::from_fn(|priority| paused.counters(priority as u8))
}

/// Adds the difference between two readings of a partner's totals.
fn note(
    all: &mut [PriorityPauses; PRIORITIES],
    before: [PauseCounters; PRIORITIES],
    after: [PauseCounters; PRIORITIES],
) {
    for (of, (before, after)) in all.iter_mut().zip(before.into_iter().zip(after)) {
        of.rx_pause += after.pause - before.pause;
        of.rx_pause_duration += after.pause_duration.saturating_sub(before.pause_duration);
        of.rx_pause_transition += after.pause_transition - before.pause_transition;
    }
}

impl Engine {
    /// Pauses every partner at an address, or ends the pauses.
    pub(crate) fn send_pause(&mut self, to: IpAddr, frame: &PauseFrame) {
        let times = match frame {
            PauseFrame::Link(quanta) => PauseTimes([Some(quanta.0); 8]),
            PauseFrame::Priorities(each) => PauseTimes(each.map(|time| time.map(|quanta| quanta.0))),
        };
        for id in self.peers.at(to) {
            let understands =
                Partners::partner(&mut self.peers, id).is_some_and(|p| p.understands(Features::PAUSE));
            if understands {
                // A partner that does not know us does not obey it, but asks who we are.
                self.counters.tx_pause += 1;
                for (of, time) in self.counters.pauses.iter_mut().zip(times.0) {
                    of.tx_pause += u64::from(time.is_some());
                }
                self.partners.outbox.push_back(Message::Pause { to: id, times });
            }
        }
    }

    /// Processes a pause from a partner.
    pub(in crate::engine) fn handle_pause(&mut self, now: Instant, id: usize, times: &PauseTimes) {
        self.counters.rx_pause += 1;
        self.confirmed(now, id);
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        (partner.heard, partner.silent_since) = (now, None);
        let before = counts(&partner.paused);
        partner.paused.handle_frame(now, &PauseFrame::Priorities(times.0.map(|time| time.map(Quanta))));
        note(&mut self.counters.pauses, before, counts(&partner.paused));
        self.end_pauses(now, id);
    }

    /// What a partner's pauses imply for a packet with this TOS to that partner. A pause that does not end is a storm;
    /// how to treat it depends on the watchdog.
    pub(in crate::engine) fn pause_gate(&mut self, now: Instant, id: usize, tos: u8) -> PauseGate {
        let config = self.partners.setup.watchdog;
        let priority = tos >> 5;
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return PauseGate::Open };
        let paused = !partner.paused.may_send(now, priority);
        if !paused && partner.watchdogs.is_none() {
            return PauseGate::Open;
        }
        let watchdogs = partner.watchdogs.get_or_insert_with(|| Box::new([Watchdog::new(config); 8]));
        let Some(watchdog) = watchdogs.get_mut(usize::from(priority)) else { return PauseGate::Open };
        let before = watchdog.storms();
        let verdict = watchdog.look(now, paused, true);
        self.counters.pause_storms += watchdog.storms() - before;
        match verdict {
            Verdict::Storm(Action::Drop) => PauseGate::Drop,
            Verdict::Storm(Action::Forward) => PauseGate::Open,
            Verdict::Storm(Action::Alert) | Verdict::Obey if paused => PauseGate::Shut,
            Verdict::Storm(Action::Alert) | Verdict::Obey => PauseGate::Open,
        }
    }

    /// Lets the watchdogs that saw a waiting packet examine the pause.
    fn watch_pauses(&mut self, now: Instant, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        for (watchdog, priority) in partner.watchdogs.iter_mut().flat_map(|all| all.iter_mut()).zip(0..) {
            if watchdog.poll_timeout().is_some() || watchdog.verdict() != Verdict::Obey {
                let before = watchdog.storms();
                watchdog.look(now, !partner.paused.may_send(now, priority), true);
                self.counters.pause_storms += watchdog.storms() - before;
            }
        }
    }

    /// Ends the pauses whose time is over: queue pairs that waited try again.
    pub(super) fn end_pauses(&mut self, now: Instant, id: usize) {
        self.watch_pauses(now, id);
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let before = counts(&partner.paused);
        partner.paused.handle_timeout(now);
        note(&mut self.counters.pauses, before, counts(&partner.paused));
        partner.pause_timer.expires(now);
        for priority in 0..PRIORITIES as u8 {
            self.places.open(Gate::Pause { peer: id, priority });
        }
        self.arm_pause(id);
    }

    /// The priorities that partners have paused, and for how long, including the current pause.
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

    /// Sets the timer for the end of a pause, or for the patience of a watchdog.
    pub(in crate::engine) fn arm_pause(&mut self, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let watched = partner.watchdogs.iter().flat_map(|all| all.iter().filter_map(Watchdog::poll_timeout));
        let due = watched.chain(partner.paused.poll_timeout()).min();
        if let Some(at) = due {
            self.timers.set(&mut partner.pause_timer, at, Due::Partner(id));
        }
    }
}
