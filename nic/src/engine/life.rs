//! The life of the port: whether packets can flow, and whether the device works at all.
//!
//! Two watch over the port: the driver, which tells what the host's link and address are doing, and the test harness,
//! which takes them away on purpose. Packets flow while both say so. A port that is down changes no queue pair: what
//! is sent meanwhile counts as lost, and goes out again when the port is back, if retries last that long.

use super::{AsyncEvent, Engine, ResourceError};
use qp::{Mtu, QpAttr, QpState};

/// What the way of a port to the network is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortState {
    /// The address is on the host.
    pub address: bool,
    /// The link is up.
    pub link: bool,
}

impl PortState {
    /// Nothing is missing.
    pub const ACTIVE: Self = Self { address: true, link: true };

    const fn is_active(self) -> bool {
        self.address && self.link
    }

    const fn and(self, other: Self) -> Self {
        Self { address: self.address && other.address, link: self.link && other.link }
    }
}

/// What is known of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// What the host does.
    watched: PortState,
    /// What tests do.
    injected: PortState,
    failed: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self { watched: PortState::ACTIVE, injected: PortState::ACTIVE, failed: false }
    }
}

impl Life {
    /// Whether no packet may pass. What the host does to the port is left to the host: where it is wrong about its
    /// link, packets still flow.
    pub(super) const fn is_cut_off(&self) -> bool {
        self.failed || !self.injected.is_active()
    }

    /// What there is of the port, as programs see it.
    const fn state(&self) -> PortState {
        self.watched.and(self.injected)
    }
}

impl Engine {
    /// What there is of the port. A device that failed has nothing.
    #[must_use]
    pub fn port_state(&self) -> PortState {
        if self.life.failed { PortState { address: false, link: false } } else { self.life.state() }
    }

    /// Whether packets can flow.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.port_state().is_active()
    }

    /// Whether the device is unusable for good.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.life.failed
    }

    /// Whether packets that are about to leave are lost instead; they are counted then.
    pub(crate) fn loses(&mut self, packets: u32) -> bool {
        let lost = self.life.is_cut_off();
        if lost {
            self.counters.tx_port_down += u64::from(packets);
        }
        lost
    }

    /// The state in which the host has the port at the beginning, which is no change.
    pub(crate) fn begin_port_state(&mut self, state: PortState) {
        self.life.watched = state;
    }

    /// Takes in what the host does to the port.
    pub fn handle_port_state(&mut self, state: PortState) {
        let before = self.life.state();
        self.life.watched = state;
        self.tell_change(before);
    }

    /// Takes parts of the port away on purpose, or gives them back: without all of them no packet leaves or arrives.
    pub fn inject_port_state(&mut self, state: PortState) {
        let before = self.life.state();
        self.life.injected = state;
        self.tell_change(before);
    }

    /// What tests left of the port.
    #[must_use]
    pub fn injected_port_state(&self) -> PortState {
        self.life.injected
    }

    /// The events of a change. A GID is gone after the port is down, and is there before the port is up.
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

    /// Takes in how much the interface carries now: the largest path MTU of queue pairs that are connected from here on.
    pub fn handle_mtu(&mut self, active_mtu: Mtu) {
        self.limits.path_mtu = active_mtu;
    }

    /// Largest path MTU that the interface carries.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        self.limits.path_mtu
    }

    /// The device is unusable for good: every queue pair goes to ERR, which flushes its work requests (IBTA 11.6.3.1,
    /// local catastrophic error).
    pub fn fail(&mut self) {
        if self.life.failed {
            return;
        }
        self.life.failed = true;
        self.host.events.push(AsyncEvent::DeviceFatal);
        for index in 0..self.qps.len() {
            self.fail_qp(index);
        }
        self.fail_overrun();
    }

    /// Takes a queue pair to ERR, unless it is in RESET, where there is nothing to flush. Returns whether it was in
    /// neither state.
    pub(super) fn fail_qp(&mut self, index: usize) -> bool {
        let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { return false };
        let state = entry.qp.state();
        if state == QpState::Reset {
            return false;
        }
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        // Any state leads to ERR, so this cannot be refused.
        let _ = entry.qp.modify(&QpAttr::to_state(QpState::Err), &self.limits, &mut host);
        self.settle_one(index);
        state != QpState::Err
    }

    /// Whether new objects can be had.
    pub(crate) fn usable(&self) -> Result<(), ResourceError> {
        if self.life.failed { Err(ResourceError::DeviceFailed) } else { Ok(()) }
    }
}
