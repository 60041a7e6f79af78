//! The state of the port: whether packets can flow, and whether the device works at all.
//!
//! Two parties determine the state of the port: the driver, which reports the host's link and address, and the test
//! harness, which takes them away on purpose. Packets flow while both agree. A port that is down does not change the
//! state of any queue pair: packets sent meanwhile count as lost, and are retransmitted when the port is back, if the
//! retries last that long.

use super::{AsyncEvent, Engine, ResourceError};
use qp::memory::QpEvent;
use qp::{Mtu, QpAttr, QpState, Qpn};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What connects a port to the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortState {
    /// The address is configured on the host.
    pub address: bool,
    /// The link is up.
    pub link: bool,
}

impl PortState {
    /// Link and address are both present.
    pub const ACTIVE: Self = Self { address: true, link: true };

    const fn is_active(self) -> bool {
        self.address && self.link
    }

    const fn and(self, other: Self) -> Self {
        Self { address: self.address && other.address, link: self.link && other.link }
    }
}

/// The state of the port as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// As reported by the host.
    watched: PortState,
    /// As set by tests.
    injected: PortState,
    failed: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self { watched: PortState::ACTIVE, injected: PortState::ACTIVE, failed: false }
    }
}

impl Life {
    /// Whether no packet may pass. The host itself enforces its own state: if its report of the link is wrong, packets
    /// still flow.
    pub(super) const fn is_cut_off(&self) -> bool {
        self.failed || !self.injected.is_active()
    }

    /// Link and address as programs see them.
    const fn state(&self) -> PortState {
        self.watched.and(self.injected)
    }
}

impl Engine {
    /// Link and address of the port. A failed device has neither.
    #[must_use]
    pub fn port_state(&self) -> PortState {
        if self.life.failed { PortState { address: false, link: false } } else { self.life.state() }
    }

    /// Returns whether packets can flow.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.port_state().is_active()
    }

    /// Returns whether the device is permanently unusable.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.life.failed
    }

    /// Returns whether departing packets are to be dropped; if so, they are counted.
    pub(crate) fn loses(&mut self, packets: u32) -> bool {
        let lost = self.life.is_cut_off();
        if lost {
            self.counters.tx_port_down += u64::from(packets);
        }
        lost
    }

    /// Sets the initial state of the host's port, which causes no event.
    pub fn begin_port_state(&mut self, state: PortState) {
        self.life.watched = state;
    }

    /// Updates the state of the host's port.
    pub fn handle_port_state(&mut self, state: PortState) {
        let before = self.life.state();
        self.life.watched = state;
        self.tell_change(before);
    }

    /// Takes parts of the port away on purpose, or restores them: unless all are present, no packet leaves or arrives.
    pub fn inject_port_state(&mut self, state: PortState) {
        let before = self.life.state();
        self.life.injected = state;
        self.tell_change(before);
    }

    /// The parts of the port that tests left in place.
    #[must_use]
    pub fn injected_port_state(&self) -> PortState {
        self.life.injected
    }

    /// Reports a change as events. The GID is removed after the port goes down, and is restored before the port comes
    /// up.
    fn tell_change(&mut self, before: PortState) {
        if self.life.failed {
            return;
        }
        let now = self.life.state();
        if before.is_active() && !now.is_active() {
            self.host.events.push(AsyncEvent::PortError);
        }
        if before.address != now.address {
            self.host.events.push(AsyncEvent::GidChange);
        }
        if !before.is_active() && now.is_active() {
            self.host.events.push(AsyncEvent::PortActive);
        }
    }

    /// Updates the MTU of the interface: the largest path MTU of queue pairs that are connected from now on.
    pub fn handle_mtu(&mut self, active_mtu: Mtu) {
        self.limits.path_mtu = active_mtu;
        self.set_connection_mtu(active_mtu);
    }

    /// Largest path MTU that the interface supports.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        self.limits.path_mtu
    }

    /// Marks the device as permanently unusable: every queue pair goes to ERR, which flushes its work requests (IBTA
    /// 11.6.3.1, local catastrophic error).
    pub fn fail(&mut self) {
        if self.begin_failure() {
            for index in 0..self.qps.len() {
                self.fail_qp(index);
            }
            self.fail_overrun();
            self.tell_failure();
        }
    }

    /// As [`fail`](Self::fail), after a panic that may have left a queue pair half changed: what cannot be flushed
    /// without another panic is left as it is.
    pub(crate) fn fail_after_panic(&mut self) {
        if self.begin_failure() {
            for index in 0..self.qps.len() {
                // The panic hook has printed the message.
                let _ = catch_unwind(AssertUnwindSafe(|| self.fail_qp(index)));
                self.flush_inbox(index);
            }
            let _ = catch_unwind(AssertUnwindSafe(|| self.fail_overrun()));
            let _ = catch_unwind(AssertUnwindSafe(|| self.tell_failure()));
        }
    }

    /// After a panic, flushes what threads left in the inbox of a queue pair: they were told that it is queued.
    pub(crate) fn ring_after_panic(&mut self, qpn: Qpn) {
        if let Some(index) = self.index(qpn) {
            self.flush_inbox(index);
        }
    }

    fn flush_inbox(&mut self, index: usize) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.collect(index)));
    }

    /// Returns whether this is the first failure of the device.
    fn begin_failure(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.life.failed, true);
        if first {
            self.host.events.push(AsyncEvent::DeviceFatal);
        }
        first
    }

    /// Moves a queue pair to ERR, unless it is in RESET, where there is nothing to flush. Returns whether it was in
    /// neither state.
    pub(super) fn fail_qp(&mut self, index: usize) -> bool {
        let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { return false };
        let state = entry.qp.state();
        if state == QpState::Reset {
            return false;
        }
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.taken);
        // The transition to ERR is allowed from every other state, so it cannot be refused.
        let _ = entry.qp.modify(&QpAttr::to_state(QpState::Err), &self.limits, &mut host);
        self.settle_one(index);
        state != QpState::Err
    }

    /// Fails if the device cannot create new objects.
    pub(crate) fn usable(&self) -> Result<(), ResourceError> {
        if self.life.failed { Err(ResourceError::DeviceFailed) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Net;
    use crate::{Gather, RcEnd, Result, WcStatus};

    #[test]
    fn a_device_that_fails_flushes_what_was_posted_and_says_so_once() -> Result<()> {
        let ways: [fn(&mut Engine); 2] = [Engine::fail, Engine::fail_after_panic];
        for fail in ways {
            let net = Net::new();
            let (a, b) = (net.device(), net.device());
            let (left, _right) = RcEnd::pair(&a, &b)?;
            left.qp.recv(1, Gather::Empty)?;
            a.inner.port()?.with_datapath(|datapath| {
                let engine = &mut datapath.engine;
                assert!(!engine.has_failed() && engine.is_active());
                fail(engine);
                fail(engine);
                assert!(engine.has_failed() && !engine.is_active());
                assert_eq!(engine.usable(), Err(ResourceError::DeviceFailed));
                let events: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
                assert_eq!(events, [AsyncEvent::DeviceFatal]);
            });
            assert_eq!(left.qp.state(), QpState::Err);
            let flushed = left.cq().poll_one().expect("the receive");
            assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
            assert!(left.cq().poll_one().is_none());
        }
        Ok(())
    }
}
