//! HPCC: every switch on the way writes into each packet how much it has sent and how much waits, and the sender computes
//! from that, without a search, the rate at which the busiest of them is used to a target just below its capacity.
//!
//! A [`Hop`] is what one egress port writes. From two of them follow the rate at which the port sent and the queue that was
//! there at both times: `u = rate sent / B + queue / (B T)`. The largest of all hops, averaged over a round-trip time, is
//! the utilisation `U`. Above the target, or after `max_stage` steps of plain growth, the rate is divided by `U / eta`;
//! otherwise it only grows. The rate from which this is computed changes once in a round-trip time, so one queue is not
//! answered twice. The window is the bandwidth-delay product in the proportion of the rate, and the flow is paced too.
//!
//! Rules and parameters are those of the HPCC authors' simulator (Li et al., SIGCOMM 2019), with one rate for all hops.

mod hop;

pub use hop::{HEADER_LEN, Hop, MAX_HOPS, Telemetry};

use crate::rate::Rate;
use crate::setting::{SettingError, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, Instant};

/// Settings of HPCC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The utilisation that is aimed at: 0.95 in the paper and in the simulator.
    pub eta: f64,
    /// Steps of plain growth before the rate follows the utilisation again: 0 in the simulator, 5 in the paper's text.
    pub max_stage: u32,
    /// The largest round-trip time of the network when nothing is queued, in microseconds: the same for all flows. 13 in
    /// the paper's larger topology.
    pub rtt: u32,
    /// The additive increase, in Mb/s; 0 for the simulator's, 10 Mb/s for each 25 Gb/s of the port.
    pub rate_ai: u32,
    /// The lowest rate, in Mb/s; 0 for the simulator's, 100 Mb/s at 100 Gb/s and in proportion at other ports.
    pub min_rate: u32,
}

settable!(Config: eta max_stage rtt rate_ai min_rate);

impl Default for Config {
    fn default() -> Self {
        Self { eta: 0.95, max_stage: 0, rtt: 13, rate_ai: 0, min_rate: 0 }
    }
}

impl Config {
    /// The bandwidth-delay product at a port, in bytes: the window at the rate of the port.
    #[must_use]
    pub fn bdp(&self, line: Rate) -> f64 {
        line.as_f64() / 8.0 * f64::from(self.rtt) * 1e-6
    }

    /// The additive increase at a port, in bits per second.
    #[must_use]
    pub fn increase(&self, line: Rate) -> f64 {
        match self.rate_ai {
            0 => line.as_f64() * 10e6 / 25e9,
            mbps => f64::from(mbps) * 1e6,
        }
    }

    /// The lowest rate at a port, in bits per second.
    fn least(&self, line: Rate) -> f64 {
        let least = match self.min_rate {
            0 => line.as_f64() * 100e6 / 100e9,
            mbps => f64::from(mbps) * 1e6,
        };
        least.min(line.as_f64())
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("eta", self.eta, 0.01, 1.0)?;
        SettingError::unless_between("max_stage", self.max_stage, 0, 1000)?;
        SettingError::unless_between("rtt", self.rtt, 1, 1_000_000)?;
        SettingError::unless_between("rate_ai", self.rate_ai, 0, 1_000_000)?;
        SettingError::unless_between("min_rate", self.min_rate, 0, 1_000_000)
    }
}

/// A hop that seems to have sent more than this part of what its line carries is not the one that wrote the last record:
/// the path has changed.
const ANOTHER_PORT: f64 = 2.0;

/// The rate and window of one flow.
#[derive(Clone, Debug)]
pub struct Hpcc {
    config: Arc<Config>,
    line: Rate,
    /// In bits per second: the rate, and the one from which it is computed for a round-trip time.
    rate: f64,
    current: f64,
    stage: u32,
    /// `U`.
    utilisation: f64,
    /// What the path said last, and when that was heard.
    last: Telemetry,
    heard: Option<Instant>,
    /// What was sent next when `current` last changed: a round-trip time is over when it is acknowledged.
    round_ends: u64,
}

impl Hpcc {
    /// A flow at a port of rate `line`, at which it begins.
    #[must_use]
    pub fn new(config: Arc<Config>, line: Rate) -> Self {
        Self {
            config,
            line,
            rate: line.as_f64(),
            current: line.as_f64(),
            stage: 0,
            utilisation: 1.0,
            last: Telemetry::default(),
            heard: None,
            round_ends: 0,
        }
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::from_bits_per_second(self.rate as u64)
    }

    /// The bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        ((self.config.bdp(self.line) * self.rate / self.line.as_f64().max(1.0)) as u64).max(1)
    }

    /// The average utilisation of the busiest hop.
    #[must_use]
    pub const fn utilisation(&self) -> f64 {
        self.utilisation
    }

    /// Handles what a packet's path said, returned with its acknowledgement. `acked` is the number of the packet after that
    /// one, and `next` that of the next packet to be sent: both count on without wrapping.
    pub fn on_telemetry(&mut self, now: Instant, acked: u64, next: u64, path: &Telemetry) {
        // A clock of 24 bits does not say how often it wrapped.
        let is_old = self.heard.is_none_or(|at| now.saturating_duration_since(at) >= hop::CLOCK);
        self.heard = Some(now);
        let last = std::mem::replace(&mut self.last, *path);
        if is_old || !last.is_along(path) {
            // The first record of a path says nothing yet.
            self.round_ends = next;
            return;
        }
        let Some((used, tau)) = self.busiest(&last, path) else { return };
        let rtt = f64::from(self.config.rtt) * 1e-6;
        let tau = tau.as_secs_f64().min(rtt);
        self.utilisation = (self.utilisation * (rtt - tau) + used * tau) / rtt;
        let excess = self.utilisation / self.config.eta;
        let follows = excess >= 1.0 || self.stage >= self.config.max_stage;
        let base = if follows { self.current / excess.max(1e-9) } else { self.current };
        let rate = base + self.config.increase(self.line);
        self.rate = rate.clamp(self.config.least(self.line), self.line.as_f64());
        if acked > self.round_ends {
            self.current = self.rate;
            self.stage = if follows { 0 } else { self.stage + 1 };
            self.round_ends = next;
        }
    }

    /// The utilisation of the busiest hop since the last record, and the time between the two records of that hop. `None` if
    /// they tell nothing.
    fn busiest(&self, last: &Telemetry, path: &Telemetry) -> Option<(f64, Duration)> {
        let rtt = f64::from(self.config.rtt) * 1e-6;
        let mut busiest = None;
        for (old, new) in last.hops().iter().zip(path.hops()) {
            let (time, line) = (new.time_since(*old), new.rate().as_f64() / 8.0);
            let tau = time.as_secs_f64();
            if tau <= 0.0 {
                continue;
            }
            let sent = new.bytes_since(*old) as f64;
            if sent - new.byte_unit() as f64 > ANOTHER_PORT * line * tau {
                return None;
            }
            let used = sent / tau / line + new.queue().min(old.queue()) as f64 / (line * rtt);
            if busiest.is_none_or(|(most, _)| used > most) {
                busiest = Some((used, time));
            }
        }
        busiest
    }
}

#[cfg(test)]
mod tests;
