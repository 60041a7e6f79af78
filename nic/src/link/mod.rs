//! The link: what lies between the engine and the wire.
//!
//! A port's link is a stack of [`Layer`]s that change packets (faults, an emulated cable) and of [`Observer`]s that
//! see the fate of every packet (a capture). Both are sans-IO: time is an argument, randomness a seed, and so the
//! same stack works on real sockets and in a simulation.
//!
//! ```text
//!            egress                        ingress
//! engine --> layer 0 --> layer 1 --> wire --> layer 1 --> layer 0 --> engine
//!                  \________ observers see every packet once, with its fate ________/
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

pub(crate) use agreement::{Buffer, STOCK_BUFFER};
pub use size::wire_bytes;

pub use config::{HOST_RATE, LARGEST_HEADERS, LinkConfig, LinkConfigError, LinkProfile, Model};

use qp::wire::icrc::Flow;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Addresses and ports.
    pub flow: Flow,
    /// IPv4 type of service or IPv6 traffic class: DSCP and ECN.
    pub tos: u8,
    /// Time to live, or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label; 0 with IPv4.
    pub flow_label: u32,
    /// The IPv4 identification of the packet, or the one that its ICRC was computed with; 0 if unknown.
    pub ident: u16,
    /// The packet: BTH to ICRC.
    pub bytes: Vec<u8>,
    /// The fate of the packet.
    pub fate: Fate,
    /// Notes of the layers on what they did to it, for captures and listings.
    pub notes: Vec<String>,
}

impl Frame {
    /// Borrows the frame.
    #[must_use]
    pub fn view(&self) -> FrameRef<'_> {
        FrameRef {
            direction: self.direction,
            flow: &self.flow,
            tos: self.tos,
            ttl: self.ttl,
            flow_label: self.flow_label,
            ident: self.ident,
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
    /// Addresses and ports.
    pub flow: &'a Flow,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// Time to live, or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label; 0 with IPv4.
    pub flow_label: u32,
    /// IPv4 identification.
    pub ident: u16,
    /// The packet: BTH to ICRC.
    pub bytes: &'a [u8],
    /// The fate of the packet.
    pub fate: &'a Fate,
    /// Notes of the layers on what they did to it.
    pub notes: &'a [String],
}

/// Changes passing packets: drops, delays, copies, marks.
pub trait Layer: Any + Send {
    /// The name of the layer.
    fn name(&self) -> &str;

    /// Whether packets of this direction must pass through the layer at all.
    fn transforms(&self, direction: Direction) -> bool;

    /// Takes a packet and passes zero or more packets on through `out`, now or in a later call. A dropped packet is
    /// passed on as well, with [`Fate::Dropped`]: later layers do not see it, but the observers do.
    fn handle(&mut self, now: Instant, frame: Frame, out: &mut dyn FnMut(Frame));

    /// When to call [`Layer::handle_timeout`] next.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Releases packets that were held back, of either direction.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut dyn FnMut(Frame)) {}
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
    /// Nearest to the engine first.
    layers: Vec<Box<dyn Layer>>,
    observers: Vec<Box<dyn Observer>>,
}

impl LinkStack {
    /// A link that does nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer at the end nearest to the wire.
    pub fn push_layer(&mut self, layer: impl Layer) {
        self.layers.push(Box::new(layer));
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

    /// The first layer of a type, for reading its counters or changing its rules.
    pub fn layer_mut<T: Layer>(&mut self) -> Option<&mut T> {
        self.layers.iter_mut().find_map(|layer| {
            let any: &mut dyn Any = &mut **layer;
            any.downcast_mut()
        })
    }

    /// Whether packets can pass without any call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.observers.is_empty()
    }

    /// Whether packets of this direction must go through [`LinkStack::egress`] or [`LinkStack::ingress`]. It can
    /// change with every call: rules are added, and used up.
    #[must_use]
    pub fn transforms(&self, direction: Direction) -> bool {
        self.layers.iter().any(|l| l.transforms(direction))
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
        let Self { layers, observers } = self;
        outward(layers, now.instant, frame, &mut |f| finish(observers, now, f, sink));
    }

    /// Takes a packet from the wire. The resulting packets go to `sink`, possibly later.
    pub fn ingress(&mut self, now: Now, frame: Frame, sink: &mut dyn FnMut(Frame)) {
        let Self { layers, observers } = self;
        inward(layers, now.instant, frame, &mut |f| finish(observers, now, f, sink));
    }

    /// When to call [`LinkStack::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.layers.iter().filter_map(|l| l.poll_timeout()).min()
    }

    /// Releases packets that were held back. The sink gets those of both directions.
    pub fn handle_timeout(&mut self, now: Now, sink: &mut dyn FnMut(Frame)) {
        let Self { layers, observers } = self;
        for at in 0..layers.len() {
            let (inner, rest) = layers.split_at_mut(at);
            let Some((layer, outer)) = rest.split_first_mut() else { return };
            layer.handle_timeout(now.instant, &mut |frame| match frame.direction {
                Direction::Tx => {
                    outward(outer, now.instant, frame, &mut |f| finish(observers, now, f, sink));
                }
                Direction::Rx => {
                    inward(inner, now.instant, frame, &mut |f| finish(observers, now, f, sink));
                }
            });
        }
    }
}

/// Passes a frame through `layers`, first to last.
fn outward(layers: &mut [Box<dyn Layer>], now: Instant, frame: Frame, out: &mut dyn FnMut(Frame)) {
    match layers.split_first_mut() {
        Some((layer, rest)) if wants(&**layer, &frame) => {
            layer.handle(now, frame, &mut |f| outward(rest, now, f, out));
        }
        Some((_, rest)) => outward(rest, now, frame, out),
        None => out(frame),
    }
}

/// Passes a frame through `layers`, last to first.
fn inward(layers: &mut [Box<dyn Layer>], now: Instant, frame: Frame, out: &mut dyn FnMut(Frame)) {
    match layers.split_last_mut() {
        Some((layer, rest)) if wants(&**layer, &frame) => {
            layer.handle(now, frame, &mut |f| inward(rest, now, f, out));
        }
        Some((_, rest)) => inward(rest, now, frame, out),
        None => out(frame),
    }
}

fn wants(layer: &dyn Layer, frame: &Frame) -> bool {
    frame.fate == Fate::Pending && layer.transforms(frame.direction)
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
