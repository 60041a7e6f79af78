//! The link: what lies between the engine and the wire.
//!
//! A port's link has two layers that change packets, each of which may be absent: the [fault rules](faults), which are
//! the wire, and the [emulation] of the port and cable behind it. [`Observer`]s see the fate of every packet
//! (a capture). All are sans-IO: time is an argument, randomness a seed, and so the same stack works on real sockets
//! and in a simulation.
//!
//! ```text
//!           egress            ingress
//! engine --> faults --> wire --> faults --> emulation --> engine
//!       \____ observers see every packet once, with its fate ____/
//! ```
//!
//! An unused stack costs nothing: an engine asks [`LinkStack::transforms`] and, where that is false, sends its trains
//! whole and shows each packet to the observers in place ([`LinkStack::observe`], no copy). Where it is true every
//! packet travels alone, as a [`Frame`]: the engine then makes trains of one packet, so that the identification used
//! to compute the ICRC is also the one on the packet.

mod agreement;
pub mod capture;
mod config;
pub mod emulation;
pub mod faults;
mod size;
mod telemetry;

pub use agreement::{Buffer, STOCK_BUFFER};
pub use size::wire_bytes;
pub use telemetry::{collects, telemetry_bytes};

pub use config::size;
pub use config::{HOST_RATE, LARGEST_HEADERS, LinkConfig, LinkConfigError, LinkProfile, Model};

use cc::hpcc::Telemetry;
use emulation::Emulation;
use faults::FaultLayer;
use qp::wire::IpHeader;
use std::any::Any;
use std::sync::Arc;
use time::{Duration, Instant};

/// The direction of a packet, as seen from the port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the engine to the wire.
    Tx,
    /// From the wire to the engine.
    Rx,
}

/// A point in time, on both clocks that a link needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The monotonic clock: delays and windows. Virtual in a simulation.
    pub instant: Instant,
    /// Time since the UNIX epoch: stamps in captures.
    pub wall: Duration,
}

/// The fate of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// Still on its way through the layers.
    #[default]
    Pending,
    /// The packet left the stack: towards the wire, or into the engine.
    Delivered,
    /// A layer dropped the packet.
    Dropped {
        /// The rule or layer that dropped it.
        by: Arc<str>,
    },
}

/// A packet on its way through the layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The direction.
    pub direction: Direction,
    /// The headers around it.
    pub ip: IpHeader,
    /// The packet: BTH to ICRC.
    pub bytes: Vec<u8>,
    /// The fate of the packet.
    pub fate: Fate,
    /// Notes of the layers on what they did to it, for captures and listings.
    pub notes: Vec<String>,
    /// What the ports on its way said, if it collects that.
    pub telemetry: Option<Box<Telemetry>>,
}

impl Frame {
    /// A packet that no layer has seen yet.
    #[must_use]
    pub const fn new(direction: Direction, ip: IpHeader, bytes: Vec<u8>) -> Self {
        Self { direction, ip, bytes, fate: Fate::Pending, notes: Vec::new(), telemetry: None }
    }

    /// Borrows the frame.
    #[must_use]
    pub fn view(&self) -> FrameRef<'_> {
        FrameRef {
            direction: self.direction,
            ip: &self.ip,
            bytes: &self.bytes,
            fate: &self.fate,
            notes: &self.notes,
        }
    }
}

/// A packet as observers see it; the fields are those of [`Frame`].
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The direction.
    pub direction: Direction,
    /// The headers around it.
    pub ip: &'a IpHeader,
    /// The packet: BTH to ICRC.
    pub bytes: &'a [u8],
    /// The fate of the packet.
    pub fate: &'a Fate,
    /// Notes of the layers on what they did to it.
    pub notes: &'a [String],
}

impl<'a> FrameRef<'a> {
    /// A packet that no layer has changed.
    #[must_use]
    pub const fn new(direction: Direction, ip: &'a IpHeader, bytes: &'a [u8], fate: &'a Fate) -> Self {
        Self { direction, ip, bytes, fate, notes: &[] }
    }
}

/// Sees every packet once, after all layers, when its fate is known.
pub trait Observer: Any + Send {
    /// The name of the observer.
    fn name(&self) -> &str;

    /// Takes note of a packet. It must not fail: problems of an observer must not affect the traffic.
    fn observe(&mut self, now: Now, frame: &FrameRef<'_>);

    /// Takes note of a packet at the moment at which the engine sends it, before the layers, with [`Fate::Pending`]. They
    /// may hold it, so it can be observed much later, or drop it.
    fn observe_departure(&mut self, _now: Now, _frame: &FrameRef<'_>) {}
}

/// The layers and observers of one port.
#[derive(Default)]
pub struct LinkStack {
    /// The emulated port and cable, if the port has them.
    pub emulation: Option<Emulation>,
    /// The fault rules, once there was one.
    pub faults: Option<FaultLayer>,
    observers: Vec<Box<dyn Observer>>,
}

impl LinkStack {
    /// A link that does nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an observer.
    pub fn push_observer(&mut self, observer: impl Observer) {
        self.observers.push(Box::new(observer));
    }

    /// Removes the observers with this name, and returns how many it removed.
    pub fn remove_observers(&mut self, name: &str) -> usize {
        let before = self.observers.len();
        self.observers.retain(|o| o.name() != name);
        before - self.observers.len()
    }

    /// Whether packets can pass without any call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.emulation.is_none() && self.faults.is_none() && self.observers.is_empty()
    }

    /// Whether packets of this direction must go through [`LinkStack::egress`] or [`LinkStack::ingress`]. It can
    /// change with every call: rules are added, and used up. Packets that leave do not pass the emulation: the queue
    /// behind them is that of the peer's port.
    #[must_use]
    pub fn transforms(&self, direction: Direction) -> bool {
        let is_emulated = direction == Direction::Rx && self.emulation.is_some();
        is_emulated || self.faults.as_ref().is_some_and(|faults| faults.applies_to(direction))
    }

    /// Whether the link has observers.
    #[must_use]
    pub fn observes(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Shows the observers a packet that passes without layers.
    pub fn observe(&mut self, now: Now, frame: &FrameRef<'_>) {
        for observer in &mut self.observers {
            observer.observe(now, frame);
        }
    }

    /// Shows the observers a packet that the engine sends, before the layers.
    pub fn observe_departure(&mut self, now: Now, frame: &FrameRef<'_>) {
        for observer in &mut self.observers {
            observer.observe_departure(now, frame);
        }
    }

    /// Sends a packet towards the wire. The resulting packets go to `sink`, possibly later.
    pub fn egress(&mut self, now: Now, frame: Frame, sink: &mut dyn FnMut(Frame)) {
        let Self { faults, observers, .. } = self;
        let mut end = |frame| finish(observers, now, frame, sink);
        through_faults(faults.as_mut(), now, frame, &mut end);
    }

    /// Takes a packet from the wire, which arrived at `arrived`, if that is known. The resulting packets go to `sink`,
    /// possibly later.
    pub fn ingress(&mut self, now: Now, arrived: Option<Instant>, frame: Frame, sink: &mut dyn FnMut(Frame)) {
        let Self { emulation, faults, observers } = self;
        let mut end = |frame| finish(observers, now, frame, sink);
        let mut behind = |frame| through_emulation(emulation.as_mut(), now, arrived, frame, &mut end);
        through_faults(faults.as_mut(), now, frame, &mut behind);
    }

    /// When to call [`LinkStack::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let emulation = self.emulation.as_ref().and_then(Emulation::poll_timeout);
        let faults = self.faults.as_ref().and_then(FaultLayer::poll_timeout);
        [emulation, faults].into_iter().flatten().min()
    }

    /// Releases packets that were held back. The sink gets those of both directions.
    pub fn handle_timeout(&mut self, now: Now, sink: &mut dyn FnMut(Frame)) {
        let Self { emulation, faults, observers } = self;
        let mut end = |frame| finish(observers, now, frame, sink);
        if let Some(emulation) = emulation {
            emulation.handle_timeout(now.instant, &mut end);
        }
        if let Some(faults) = faults {
            faults.handle_timeout(now.instant, &mut |frame| match frame.direction {
                Direction::Tx => end(frame),
                Direction::Rx => through_emulation(emulation.as_mut(), now, None, frame, &mut end),
            });
        }
    }
}

fn through_faults(faults: Option<&mut FaultLayer>, now: Now, frame: Frame, out: &mut dyn FnMut(Frame)) {
    match faults.filter(|faults| faults.applies_to(frame.direction)) {
        Some(faults) => faults.handle(now.instant, frame, out),
        None => out(frame),
    }
}

/// A packet that was dropped on the wire does not reach the emulated port.
fn through_emulation(
    emulation: Option<&mut Emulation>,
    now: Now,
    arrived: Option<Instant>,
    frame: Frame,
    out: &mut dyn FnMut(Frame),
) {
    match emulation.filter(|_| frame.fate == Fate::Pending) {
        Some(emulation) => emulation.handle(now.instant, arrived, frame, out),
        None => out(frame),
    }
}

/// The end of a packet's path: settles its fate, shows it to the observers and hands it over unless it was dropped.
fn finish(observers: &mut [Box<dyn Observer>], now: Now, mut frame: Frame, sink: &mut dyn FnMut(Frame)) {
    if frame.fate == Fate::Pending {
        frame.fate = Fate::Delivered;
    }
    for observer in observers {
        observer.observe(now, &frame.view());
    }
    if frame.fate == Fate::Delivered {
        sink(frame);
    }
}

#[cfg(test)]
mod tests;
