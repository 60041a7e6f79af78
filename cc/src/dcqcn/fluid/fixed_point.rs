//! Where the fluid model rests.

use super::Model;
use crate::rate::Rate;
use std::fmt;

/// The state in which nothing changes: every flow has its fair share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    /// The probability of a mark (p*).
    pub p: f64,
    /// Alpha of every flow.
    pub alpha: f64,
    /// The rate of every flow (R_C*): its share of the port.
    pub current: Rate,
    /// The target rate of every flow (R_T*).
    pub target: Rate,
    /// The length of the queue (q*), in bytes, on the line that RED has below `kmax`.
    pub queue: f64,
}

/// Why a port cannot rest at its fixed point: it needs more marks than the linear part of RED gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// The probability that the fixed point needs.
    pub p: f64,
    /// The highest probability of the linear part; 0 if it has no linear part (`kmin` and `kmax` are equal).
    pub pmax: f64,
    /// The length of the queue, in bytes, above which every packet is marked.
    pub kmax: u64,
    /// The number of flows in question.
    pub flows: u32,
    /// The rate of the port.
    pub capacity: Rate,
    /// The most flows for which the linear part is enough; 0 if it is not enough for any.
    pub most_flows: u32,
}

impl fmt::Display for Saturation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p, pmax, kmax, flows, capacity, most_flows } = self;
        write!(
            f,
            "{flows} flows at {capacity} need {:.3} % of the packets marked, but RED marks at most {:.3} % below \
             kmax = {kmax} bytes and all of them above it: the queue will swing around kmax, and rates with it. ",
            p * 100.0,
            pmax * 100.0
        )?;
        match most_flows {
            0 => f.write_str("This holds for any number of flows. ")?,
            n => write!(f, "Up to {n} flows are in order. ")?,
        }
        f.write_str("Raise pmax and kmax, or lower rpg_ai_rate")
    }
}

impl std::error::Error for Saturation {}

/// Halvings of the interval of ln(p): enough for all 53 bits of p, wherever it lies.
const HALVINGS: u32 = 80;

impl Model {
    /// The fixed point of `flows` flows, if the port's RED can hold it.
    ///
    /// It is the root of `a^2 alpha / ((b+d)(c+e)) = tau^2 R_AI R_C`, whose left side grows with p: found by
    /// bisection, not by the cube root that is published as an approximation (which is 19 to 32 % too large for 2 to
    /// 10 flows at 40 Gb/s).
    ///
    /// # Errors
    ///
    /// [`Saturation`] if p* is not below `pmax`.
    pub fn fixed_point(&self, flows: u32) -> Result<FixedPoint, Saturation> {
        let point = self.unbounded_fixed_point(flows);
        if point.p < self.linear_part() {
            return Ok(point);
        }
        Err(Saturation {
            p: point.p,
            pmax: self.linear_part(),
            kmax: self.red.kmax,
            flows,
            capacity: self.rate(self.capacity),
            most_flows: self.most_flows(flows),
        })
    }

    /// The highest probability of the linear part of RED; 0 if everything or nothing is marked.
    const fn linear_part(&self) -> f64 {
        if self.red.kmin < self.red.kmax { self.red.pmax } else { 0.0 }
    }

    /// The most flows, fewer than `saturated`, whose fixed point is below `pmax`. p* grows with the number of flows.
    fn most_flows(&self, saturated: u32) -> u32 {
        let (mut holds, mut not) = (0, saturated);
        while not - holds > 1 {
            let n = holds + (not - holds) / 2;
            if self.unbounded_fixed_point(n).p < self.linear_part() { holds = n } else { not = n }
        }
        holds
    }

    /// The fixed point on a line of RED that continues beyond `kmax`.
    pub(super) fn unbounded_fixed_point(&self, flows: u32) -> FixedPoint {
        let rate = self.capacity / f64::from(flows.max(1));
        let wanted = self.tau * self.tau * self.additive * rate;
        let too_high = |ln_p: f64| {
            let p = libm::exp(ln_p);
            let t = self.terms(p, rate);
            t.a * t.a * self.alpha_goal(p, rate) > wanted * t.b_plus_d * t.c_plus_e
        };
        let (mut low, mut high) = (libm::log(1e-15), libm::log(1.0 - 1e-12));
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if too_high(middle) { high = middle } else { low = middle }
        }
        let p = libm::exp(low);
        let t = self.terms(p, rate);
        let target = rate * (1.0 + t.c_plus_e * self.tau * self.additive / t.a);
        let (kmin, kmax) = (self.red.kmin as f64, self.red.kmax as f64);
        FixedPoint {
            p,
            alpha: self.alpha_goal(p, rate),
            current: self.rate(rate),
            target: self.rate(target),
            queue: kmin + p / self.red.pmax * (kmax - kmin),
        }
    }
}
