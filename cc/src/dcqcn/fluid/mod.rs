//! The fluid model of DCQCN: the rates, alpha and queue that theory predicts.
//!
//! The equations, their fixed point and the reference parameters are those of the authors of DCQCN (Zhu, Ghobadi,
//! Misra, Padhye: "ECN or Delay", CoNEXT 2016, section 3; also in the sources and MATLAB files of their repository
//! `jitupadhye-zz/rdma`). As there, everything is counted in packets of one size, and hyper increase does not occur.
//!
//! For N flows through one queue, where p' and R' are the marking probability and the rate of a loop delay ago:
//!
//! ```text
//! dq/dt     = sum R - C
//! dalpha/dt = g/tau' ((1 - (1-p')^(tau' R')) - alpha)
//! dRT/dt    = -(RT - R)/tau a + R_AI R' (c + e)
//! dR/dt     = -R alpha/(2 tau) a + (RT - R)/2 R' (b + d)
//!
//! a = 1 - (1-p)^(tau R)          a cut is due within tau
//! b = p / ((1-p)^-B - 1)         expiries of the byte counter, per packet;  c = b (1-p)^(F B) beyond the F-th
//! d = p / ((1-p)^-(T R) - 1)     expiries of the timer, per packet;         e = d (1-p)^(F T R)
//! ```

mod fixed_point;
mod integrate;
#[cfg(test)]
mod tests;

pub use fixed_point::{FixedPoint, Saturation};
pub use integrate::{Group, Trajectory};

use super::settings::{Red, Settings};
use crate::rate::Rate;
use time::Duration;

/// The model's constants: settings, the rate of the port, and the size of packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The rate of the port (C), in packets per second.
    pub capacity: f64,
    /// The size of every packet, in bytes: all that the port transmits and the counters count.
    pub packet: f64,
    /// The least time between two cuts (tau), in seconds.
    pub tau: f64,
    /// The period of alpha's updates (tau'), in seconds.
    pub alpha_period: f64,
    /// The increase timer (T), in seconds; infinite if off.
    pub timer: f64,
    /// The byte counter (B), in packets; infinite if off.
    pub byte_counter: f64,
    /// Expiries that only recover (F).
    pub threshold: f64,
    /// The gain of alpha (g).
    pub gain: f64,
    /// The additive increase (R_AI), in packets per second.
    pub additive: f64,
    /// The lowest rate, in packets per second.
    pub min_rate: f64,
    /// The marking at the port; its lengths are in bytes.
    pub red: Red,
}

/// How the events of a flow depend on marks: the letters of the equations.
#[derive(Clone, Copy, Debug)]
struct Terms {
    a: f64,
    b_plus_d: f64,
    c_plus_e: f64,
}

impl Model {
    /// The model of `settings` at a port of rate `capacity`, with packets of `packet` bytes each.
    ///
    /// The model ignores the variants ([`FirstIncrease`](super::FirstIncrease) and the like). If cuts have their own
    /// minimum interval, tau is the larger of that and the CNP interval.
    #[must_use]
    pub fn new(settings: &Settings, capacity: Rate, packet: u32) -> Self {
        let rp = &settings.roce_rp;
        let packet = f64::from(packet.max(1));
        let per_second = |mbps: u32| f64::from(mbps) * 1e6 / 8.0 / packet;
        // Without a minimum interval every mark cuts: the limit of the equations for tau towards 0.
        let tau = settings.roce_np.interval().max(rp.cut_period()).max(Duration::from_nanos(1));
        Self {
            capacity: capacity.as_f64() / 8.0 / packet,
            packet,
            tau: tau.as_secs_f64(),
            alpha_period: rp.alpha_period().as_secs_f64(),
            timer: rp.timer().map_or(f64::INFINITY, |t| t.as_secs_f64()),
            byte_counter: rp.byte_counter().map_or(f64::INFINITY, |b| b as f64 / packet),
            threshold: f64::from(rp.rpg_threshold),
            gain: rp.gain(),
            additive: per_second(rp.rpg_ai_rate),
            min_rate: per_second(rp.rpg_min_rate),
            red: settings.red.clone(),
        }
    }

    /// Converts packets per second to a rate.
    fn rate(&self, packets_per_second: f64) -> Rate {
        Rate::from_bits_per_second((packets_per_second * self.packet * 8.0).round() as u64)
    }

    /// The terms at a marking probability of `p` for a flow of `rate` packets per second.
    fn terms(&self, p: f64, rate: f64) -> Terms {
        let unmarked = libm::log1p(-p);
        let per_timer = self.timer * rate;
        let (b, c) = self.expiries(p, unmarked, self.byte_counter);
        let (d, e) = self.expiries(p, unmarked, per_timer);
        Terms { a: -libm::expm1(self.tau * rate * unmarked), b_plus_d: b + d, c_plus_e: c + e }
    }

    /// Expiries, per packet, of a counter that expires after `every` packets without a cut: all of them, and those
    /// beyond the F-th. `unmarked` is ln(1 - p).
    fn expiries(&self, p: f64, unmarked: f64, every: f64) -> (f64, f64) {
        // Below this, p / ((1-p)^-x - 1) is 1/x to 12 digits for every counter in use.
        if p < 1e-18 {
            return (1.0 / every, 1.0 / every);
        }
        let all = p / libm::expm1(-every * unmarked);
        (all, all * libm::exp(self.threshold * every * unmarked))
    }

    /// The value that alpha tends to: the probability that a mark comes within the period of its updates.
    fn alpha_goal(&self, p: f64, rate: f64) -> f64 {
        -libm::expm1(self.alpha_period * rate * libm::log1p(-p))
    }
}
