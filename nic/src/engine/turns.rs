//! Scheduling of turns: the consequences of a queue pair's actions, for itself and for the queue pairs that wait.

use super::peers::FLIGHT_LIFE;
use super::{AsyncEvent, Due, Engine, QpEntry};
use crate::queue::Direction;
use qp::QpState;
use qp::memory::QpEvent;
use std::cmp::Reverse;
use std::time::Instant;

impl Engine {
    /// Updates the engine after any action of a queue pair: completed work, readiness, timer, window, and the
    /// consequences for other queue pairs.
    pub(super) fn settle(&mut self, index: usize) {
        self.settle_one(index);
        self.fail_overrun();
    }

    pub(super) fn settle_one(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let outstanding = [entry.qp.sends_outstanding(), entry.qp.recvs_outstanding()];
        for (direction, outstanding) in [Direction::Send, Direction::Recv].into_iter().zip(outstanding) {
            let accepted = &mut entry.accepted[direction as usize];
            let finished = accepted.wrapping_sub(u32::try_from(outstanding).unwrap_or(u32::MAX));
            if finished > 0 {
                entry.shared.finish(direction, finished);
                *accepted = accepted.wrapping_sub(finished);
            }
        }
        let state = entry.shared.state();
        if state != entry.qp.state() {
            entry.shared.set_state(entry.qp.state());
            self.note_state(index, state);
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        if entry.qp.failure().is_some() && !entry.explained.failure {
            self.explain_failure(index);
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        if let Some(peer) = entry.remote.as_ref().and_then(|remote| remote.peer) {
            let freed = match entry.qp.state() {
                // No acknowledgement is expected any more: what is in flight must not occupy the window indefinitely.
                QpState::Err | QpState::Reset => entry.flights.clear(),
                _ => entry.flights.arrive(entry.qp.unacked_psn(), entry.qp.next_psn()),
            };
            if freed > 0 {
                self.peers.get_mut(peer).window.give_back(freed);
                self.call_waiting(peer);
            }
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        if !entry.ready && entry.wants_a_turn() && entry.waits_at.is_none() {
            // A queue pair that waits for room in a window may still have responses to send, which need no room.
            entry.ready = true;
            self.ready.push_back(index);
        }
        if let Some(due) = entry.qp.poll_timeout()
            && entry.timer.is_none_or(|t| due < t)
        {
            entry.timer = Some(due);
            self.timers.push(Reverse((due, Due::Qp(index))));
        }
        if let Some(receiver) = entry.waits_at
            && !entry.qp.wants_to_transmit()
        {
            // It was reset, or its work requests were flushed.
            entry.waits_at = None;
            self.leave_drain(index, receiver);
        }
    }

    /// Gives a turn to the queue pair that has waited longest for room in a peer's window; after its turn it calls the
    /// next.
    pub(super) fn call_waiting(&mut self, peer: usize) {
        while let Some(index) = self.peers.get_mut(peer).waiting.pop_front() {
            if self.call(index) {
                return;
            }
        }
    }

    /// Sets a timer if a queue pair waits for room in a peer's window: the room must not stay occupied indefinitely.
    pub(super) fn watch_window(&mut self, now: Instant, peer: usize) {
        if let Some(waited_for) = self.peers.find_mut(peer)
            && !std::mem::replace(&mut waited_for.is_watched, true)
        {
            self.timers.push(Reverse((now + FLIGHT_LIFE, Due::Window(peer))));
        }
    }

    /// A queue pair has waited for room in a peer's window for a while: releases the room of what left long ago.
    pub(super) fn window_timeout(&mut self, now: Instant, peer: usize) {
        let Some(waited_for) = self.peers.find_mut(peer) else { return };
        waited_for.is_watched = false;
        if waited_for.waiting.is_empty() {
            return;
        }
        let limit = now.checked_sub(FLIGHT_LIFE);
        let of_peer =
            |entry: &&mut Box<QpEntry>| entry.remote.is_some_and(|remote| remote.peer == Some(peer));
        for entry in self.qps.iter_mut().flatten().filter(of_peer) {
            waited_for.window.give_back(limit.map_or(0, |limit| entry.flights.expire(limit)));
        }
        self.call_waiting(peer);
        self.watch_window(now, peer);
    }

    /// Gives a turn to the queue pairs that wait for room in a peer's window.
    pub(super) fn call_all_waiting(&mut self, peer: usize) {
        for index in std::mem::take(&mut self.peers.get_mut(peer).waiting) {
            self.stop_waiting(index);
        }
    }

    /// Gives a waiting queue pair a turn before all others that wait; returns whether it exists.
    pub(super) fn call(&mut self, index: usize) -> bool {
        let Some(entry) = self.qps[index].as_mut() else { return false };
        (entry.waiting, entry.called) = (false, true);
        self.make_ready(index);
        true
    }

    /// Gives a queue pair that waited a turn like any other.
    pub(super) fn stop_waiting(&mut self, index: usize) {
        if let Some(entry) = self.qps[index].as_mut() {
            entry.waiting = false;
            self.make_ready(index);
        }
    }

    pub(super) fn make_ready(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        if !std::mem::replace(&mut entry.ready, true) {
            self.ready.push_back(index);
        }
    }

    /// Moves queue pairs of a completion queue that overran to ERR: their completions are lost (IBTA C11-37). No
    /// completion can report the failure, so an event does (IBTA 11.6.3.1, local work queue catastrophic error). Shared
    /// receive queues of this completion queue fail as well, since their completions would be lost too.
    pub(super) fn fail_overrun(&mut self) {
        while let Some(cq) = self.host.overrun.pop() {
            for number in self.host.srqs.fail_of(cq) {
                self.host.events.push(AsyncEvent::SrqError(number));
            }
            for index in 0..self.qps.len() {
                let Some(entry) = self.qps[index].as_ref() else { continue };
                let qpn = entry.qp.qpn();
                if entry.links.cqs().any(|of| of == cq) && self.fail_qp(index) {
                    self.explain_overrun(qpn, cq.0);
                    self.host.events.push(AsyncEvent::QueuePair(qpn, QpEvent::Fatal));
                }
            }
        }
    }
}
