//! Which of several equal ports a packet takes.
//!
//! Every switch has a [`Balancer`]. It reads no clock and sees no packets: a [`Question`] says what it has to know of a
//! packet, and [`Loads`] what a switch knows of its ports. The same settings, seed and questions give the same answers.
//!
//! [`BalanceConfig`] names the rules, and says where their numbers come from.

mod adaptive;
mod config;
mod drill;
mod ecmp;
mod flowlets;
mod hash;
mod quality;
mod spray;
#[cfg(test)]
mod tests;
mod words;

pub use config::{
    Adaptive, BalanceConfig, Compare, ConfigError, Drill, Ecmp, Flowlet, Letflow, Order, Quality, Seed,
    Spray, Unit, Weighted,
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
            Mode::Drill(state) => state.choose(question, loads),
            Mode::Spray(state) => state.choose(question),
            Mode::Adaptive(state) => state.choose(question, loads),
        }
    }
}

/// A setting in picoseconds.
fn picos(time: Duration) -> Picos {
    Picos::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(Picos::MAX)
}
