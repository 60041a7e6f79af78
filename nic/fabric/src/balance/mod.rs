//! Which of several equal ports a packet takes.
//!
//! Every switch has a [`Balancer`]. It reads no clock and sees no packets: a [`Question`] says what it has to know of a
//! packet, and [`Loads`] what a switch knows of its ports. The same settings, seed and questions give the same answers.
//!
//! [`BalanceConfig`] names the rules, and says where their numbers come from.
//!
//! [`conweave`] needs more of a switch, which holds packets back. [`entropy`] is what senders do instead: they change what
//! switches hash.
//!
//! # Who calls what when
//!
//! A switch that a packet comes to, and that has several ports to its destination, calls [`Balancer::choose`]. Two modes need
//! more; for the others these calls do nothing.
//!
//! CONGA: packets that go from one leaf to another carry a [`Tag`], acknowledgements too. The leaf at the source makes it
//! with [`Tag::between`]. Then each switch but the last calls [`Balancer::on_forward`] when it puts the packet into the queue
//! of a port, even if it has no other. The last one, at the destination host, calls [`Balancer::on_delivered`] instead. A
//! packet between two hosts of one leaf has no tag. [`Balancer::uses_tags`] says whether this is worth a place in packets.
//!
//! Global load balancing: once in [`Balancer::report_interval`], a switch sends each neighbouring switch what
//! [`Balancer::report`] returns. When that has arrived, the neighbour calls [`Balancer::on_report`].

mod adaptive;
mod config;
mod conga;
pub mod conweave;
mod drill;
mod ecmp;
pub mod entropy;
mod flowlets;
mod glb;
mod hash;
mod quality;
mod spray;
#[cfg(test)]
mod tests;

pub use config::{
    Adaptive, BalanceConfig, Compare, ConfigError, Conga, Drill, Ecmp, Flowlet, Glb, Letflow, Order, Quality,
    Seed, Spray, Unit, Weighted,
};

use time::Duration;

/// Picoseconds since the fabric began.
pub type Picos = u64;

/// What a switch knows of its ports.
pub trait Loads {
    /// Bytes that wait at a port to leave, of all classes.
    fn queued(&self, port: u16) -> u64;
    /// Bytes that have left through it since the beginning.
    fn sent(&self, port: u16) -> u64;
    /// Its rate, in bits per second.
    fn rate(&self, port: u16) -> u64;
    /// Whether the port may not send the class now: it is paused, or has no credit.
    fn blocked(&self, port: u16, class: u8) -> bool;
}

/// A packet that comes to a switch with more than one way to its destination.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The time.
    pub now: Picos,
    /// A hash of addresses, protocol and ports, without a switch's seed.
    pub flow: u64,
    /// The number of the destination queue pair, or 0.
    pub qp: u32,
    /// The number of the destination host.
    pub dst: usize,
    /// The number of the switch at the source host, as in [`Balancer::new`].
    pub src_leaf: u32,
    /// The number of the switch at the destination host.
    pub dst_leaf: u32,
    /// Bytes of the packet on the wire.
    pub bytes: u32,
    /// Its class.
    pub class: u8,
    /// The ports to choose from: at least two.
    pub ports: &'a [u16],
}

/// The load balancing of a switch.
#[derive(Clone, Debug)]
pub struct Balancer(Mode);

#[derive(Clone, Debug)]
enum Mode {
    Ecmp(ecmp::State),
    Weighted(ecmp::WeightedState),
    Letflow(flowlets::LetflowState),
    Flowlet(flowlets::DlbState),
    // Larger than the others, and of one mode.
    Conga(Box<conga::State>),
    Glb(glb::State),
    Drill(drill::State),
    Spray(spray::State),
    Adaptive(adaptive::State),
}

impl Balancer {
    /// The balancer of the switch with this number, in a fabric whose random choices begin with `seed`.
    ///
    /// Settings that [`BalanceConfig::check`] refuses are no reason to panic: a number out of range counts as the nearest
    /// one that makes sense.
    #[must_use]
    pub fn new(config: &BalanceConfig, switch: u32, seed: u64) -> Self {
        let own = hash::mix(seed ^ hash::mix(u64::from(switch).wrapping_add(1)));
        Self(match config {
            BalanceConfig::Ecmp(config) => Mode::Ecmp(ecmp::State::new(config, own, seed)),
            BalanceConfig::Weighted(config) => Mode::Weighted(ecmp::WeightedState::new(config, own)),
            BalanceConfig::Letflow(config) => Mode::Letflow(flowlets::LetflowState::new(config, own)),
            BalanceConfig::Flowlet(config) => Mode::Flowlet(flowlets::DlbState::new(config, own)),
            BalanceConfig::Conga(config) => Mode::Conga(Box::new(conga::State::new(config, switch, own))),
            BalanceConfig::Glb(config) => Mode::Glb(glb::State::new(config, own)),
            BalanceConfig::Drill(config) => Mode::Drill(drill::State::new(config, own)),
            BalanceConfig::Spray(config) => Mode::Spray(spray::State::new(config, own)),
            BalanceConfig::Adaptive(config) => Mode::Adaptive(adaptive::State::new(config, own)),
        })
    }

    /// The port that the packet takes: one of [`Question::ports`], or 0 if there are none.
    pub fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        match &mut self.0 {
            Mode::Ecmp(state) => state.choose(question),
            Mode::Weighted(state) => state.choose(question, loads),
            Mode::Letflow(state) => state.choose(question),
            Mode::Flowlet(state) => state.choose(question, loads),
            Mode::Conga(state) => state.choose(question, loads),
            Mode::Glb(state) => state.choose(question, loads),
            Mode::Drill(state) => state.choose(question, loads),
            Mode::Spray(state) => state.choose(question),
            Mode::Adaptive(state) => state.choose(question, loads),
        }
    }

    /// Whether [`on_forward`](Self::on_forward) and [`on_delivered`](Self::on_delivered) do anything.
    #[must_use]
    pub const fn uses_tags(&self) -> bool {
        matches!(self.0, Mode::Conga(_))
    }

    /// The switch has put a packet of so many bytes into the queue of a port. It is not the last switch of the packet.
    pub fn on_forward(&mut self, now: Picos, port: u16, bytes: u32, loads: &dyn Loads, tag: &mut Tag) {
        if let Mode::Conga(state) = &mut self.0 {
            state.on_forward(now, port, bytes, loads, tag);
        }
    }

    /// A packet has come to the last switch on its way.
    pub fn on_delivered(&mut self, now: Picos, tag: &Tag) {
        if let Mode::Conga(state) = &mut self.0 {
            state.on_delivered(now, tag);
        }
    }

    /// Picoseconds from one report to the next, if this mode has reports.
    #[must_use]
    pub const fn report_interval(&self) -> Option<Picos> {
        if let Mode::Glb(state) = &self.0 { Some(state.interval()) } else { None }
    }

    /// What to tell neighbours. `ways` has leaves with the ports that lead to them, without the leaf that this switch is.
    pub fn report<'a>(
        &mut self,
        now: Picos,
        ways: impl IntoIterator<Item = (u32, &'a [u16])>,
        loads: &dyn Loads,
    ) -> Vec<LeafQuality> {
        let Mode::Glb(state) = &mut self.0 else { return Vec::new() };
        ways.into_iter().filter_map(|(leaf, ports)| state.report(now, leaf, ports, loads)).collect()
    }

    /// The neighbour at a port has told this.
    pub fn on_report(&mut self, from_port: u16, report: &[LeafQuality]) {
        if let Mode::Glb(state) = &mut self.0 {
            state.on_report(from_port, report);
        }
    }
}

/// What a packet carries between two leaves, and switches write to it on its way (mode `conga`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The switch at the source host.
    pub src_leaf: u32,
    /// The switch at the destination host.
    pub dst_leaf: u32,
    /// The port of the source leaf that the packet took.
    pub way: u16,
    /// The highest level of congestion on its way so far.
    pub congestion: u8,
    /// What the source leaf tells the destination leaf of a way from there.
    pub feedback: Option<Feedback>,
}

/// What a leaf tells another of a way that starts there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The port of that leaf.
    pub way: u16,
    /// The highest level of congestion on the way.
    pub congestion: u8,
}

impl Tag {
    /// The tag of a packet that comes to its first switch.
    #[must_use]
    pub const fn between(src_leaf: u32, dst_leaf: u32) -> Self {
        Self { src_leaf, dst_leaf, way: 0, congestion: 0, feedback: None }
    }
}

/// How good the ways from a switch to a leaf are (mode `glb`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafQuality {
    /// The number of the leaf.
    pub leaf: u32,
    /// Its level: 0 is the best.
    pub level: u8,
}

/// A setting in picoseconds.
fn picos(time: Duration) -> Picos {
    Picos::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(Picos::MAX)
}
