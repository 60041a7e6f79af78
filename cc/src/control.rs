//! Congestion control, independent of the algorithm: one interface for all that a NIC has to report to it and ask it.

use crate::dcqcn::{self, Notification, ReactionPoint, Red};
use crate::dctcp::{self, Dctcp};
use crate::hpcc::{self, Hpcc, Telemetry};
use crate::ibcc::{self, Ibcc};
use crate::nscc::{self, Nscc};
use crate::rate::Rate;
use crate::setting::SettingError;
use crate::swift::{self, Swift};
use crate::timely::{self, Timely};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;
use time::{Duration, Instant};

/// What an acknowledgement reveals about the path of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Bytes that it acknowledges and no earlier acknowledgement did.
    pub bytes: u64,
    /// Those of them whose packets were marked as having met congestion.
    pub marked: u64,
    /// The round-trip time, if it was measured.
    pub rtt: Option<Duration>,
}

/// The choice of an algorithm and its settings. In a configuration file a table with `algorithm`; on a command line
/// `dcqcn:preset=paper,rpg_ai_rate=10`, with the same words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "kebab-case")]
pub enum Algorithm {
    /// None: every flow sends at the rate of the port.
    #[default]
    Off,
    /// DCQCN.
    Dcqcn(dcqcn::Options),
    /// DCTCP.
    Dctcp(dctcp::Config),
    /// TIMELY.
    Timely(timely::Config),
    /// Swift.
    Swift(swift::Config),
    /// NSCC.
    Nscc(nscc::Config),
    /// InfiniBand's own.
    Ibcc(ibcc::Config),
    /// HPCC.
    Hpcc(hpcc::Config),
}

/// What can be chosen.
const NAMES: [&str; 8] = ["off", "dcqcn", "dctcp", "timely", "swift", "nscc", "ibcc", "hpcc"];

impl FromStr for Algorithm {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match (name.trim(), settings) {
            ("off", "") => Ok(Self::Off),
            ("off", settings) => Err(SettingError::Malformed {
                word: "algorithm".to_owned(),
                value: text.to_owned(),
                why: format!("`off` takes no settings; leave out `:{settings}`"),
            }),
            ("dcqcn", settings) => settings.parse().map(Self::Dcqcn),
            ("dctcp", settings) => settings.parse().map(Self::Dctcp),
            ("timely", settings) => settings.parse().map(Self::Timely),
            ("swift", settings) => settings.parse().map(Self::Swift),
            ("nscc", settings) => settings.parse().map(Self::Nscc),
            ("ibcc", settings) => settings.parse().map(Self::Ibcc),
            ("hpcc", settings) => settings.parse().map(Self::Hpcc),
            (unknown, _) => Err(SettingError::Malformed {
                word: "algorithm".to_owned(),
                value: unknown.to_owned(),
                why: crate::unknown(unknown, &NAMES),
            }),
        }
    }
}

impl Algorithm {
    /// A caveat about its use at a port of rate `line`; `None` if it suits the port.
    #[must_use]
    pub fn advice(&self, line: Rate) -> Option<String> {
        match self {
            Self::Dcqcn(options) => options.preset.advice(line),
            _ => None,
        }
    }

    /// A caveat about its use on a network whose switches are not rnic's, by a device that emulates no port; `None` if it works
    /// there.
    #[must_use]
    pub const fn advice_without_port(&self) -> Option<&'static str> {
        match self {
            Self::Hpcc(_) => Some(
                "hpcc hears of nothing: no port on the way writes telemetry, and this device emulates none; give the receiver one, \
                 such as `ethernet:rate=10Gb/s`",
            ),
            _ => None,
        }
    }

    /// Resolves the settings for a port of rate `line`.
    ///
    /// # Errors
    ///
    /// A setting does not exist or is out of range.
    pub fn at(&self, line: Rate) -> Result<Policy, SettingError> {
        let method = match self {
            Self::Off => Method::Off,
            Self::Dcqcn(options) => {
                let settings = options.settings(line)?;
                Method::Dcqcn {
                    reaction: Arc::new(settings.roce_rp),
                    notification: settings.roce_np,
                    red: settings.red,
                }
            }
            Self::Dctcp(config) => {
                config.check()?;
                Method::Dctcp(Arc::new(config.clone()))
            }
            Self::Timely(config) => {
                config.check()?;
                Method::Timely(Arc::new(config.clone()))
            }
            Self::Swift(config) => {
                config.check()?;
                Method::Swift(Arc::new(config.clone()))
            }
            Self::Nscc(config) => {
                config.check()?;
                Method::Nscc(Arc::new(config.clone()))
            }
            Self::Ibcc(config) => {
                config.check()?;
                Method::ibcc(config, Arc::new(config.reaction()))
            }
            Self::Hpcc(config) => {
                config.check()?;
                Method::Hpcc(Arc::new(config.clone()))
            }
        };
        Ok(Policy { line, method })
    }
}

/// An algorithm at a port: makes a [`Controller`] for each flow.
#[derive(Clone, Debug)]
pub struct Policy {
    line: Rate,
    method: Method,
}

#[derive(Clone, Debug)]
enum Method {
    Off,
    Dcqcn { reaction: Arc<dcqcn::Reaction>, notification: Notification, red: Red },
    Dctcp(Arc<dctcp::Config>),
    Timely(Arc<timely::Config>),
    Swift(Arc<swift::Config>),
    Nscc(Arc<nscc::Config>),
    Ibcc { reaction: Arc<ibcc::Reaction>, notification: Notification, red: Red },
    Hpcc(Arc<hpcc::Config>),
}

impl Method {
    const fn ibcc(config: &ibcc::Config, reaction: Arc<ibcc::Reaction>) -> Self {
        Self::Ibcc { reaction, notification: config.notification(), red: config.red() }
    }
}

impl Policy {
    /// InfiniBand's congestion control as a manager has written it, at a port of rate `line`. What a manager does not write is
    /// that of `config`.
    #[must_use]
    pub const fn managed(line: Rate, config: &ibcc::Config, reaction: Arc<ibcc::Reaction>) -> Self {
        Self { line, method: Method::ibcc(config, reaction) }
    }

    /// The rate of the port.
    #[must_use]
    pub const fn line(&self) -> Rate {
        self.line
    }

    /// The controller of a new flow of a service level.
    #[must_use]
    pub fn controller(&self, level: u8) -> Controller {
        match &self.method {
            Method::Off => Controller::Off(self.line),
            Method::Dcqcn { reaction, .. } => {
                Controller::Dcqcn(ReactionPoint::new(Arc::clone(reaction), self.line))
            }
            Method::Dctcp(config) => Controller::Dctcp(Dctcp::new(Arc::clone(config), self.line)),
            Method::Timely(config) => Controller::Timely(Timely::new(Arc::clone(config), self.line)),
            Method::Swift(config) => Controller::Swift(Swift::new(Arc::clone(config), self.line)),
            Method::Nscc(config) => Controller::Nscc(Nscc::new(Arc::clone(config), self.line)),
            Method::Ibcc { reaction, .. } => {
                Controller::Ibcc(Ibcc::new(Arc::clone(reaction), level, self.line))
            }
            Method::Hpcc(config) => Controller::Hpcc(Hpcc::new(Arc::clone(config), self.line)),
        }
    }

    /// The controller of a flow that goes on under this policy: where it was, if the algorithm is InfiniBand's as before, and else
    /// as a new one.
    #[must_use]
    pub fn successor(&self, now: Instant, of: Controller, level: u8) -> Controller {
        match (&self.method, of) {
            (Method::Ibcc { reaction, .. }, Controller::Ibcc(flow)) => {
                Controller::Ibcc(flow.goes_on(now, Arc::clone(reaction), level))
            }
            _ => self.controller(level),
        }
    }

    /// Whether the flows of a service level slow down together.
    #[must_use]
    pub fn is_by_level(&self) -> bool {
        matches!(&self.method, Method::Ibcc { reaction, .. } if reaction.by_level)
    }

    /// How receivers respond to marks; `None` if the algorithm has no CNPs.
    #[must_use]
    pub const fn notification(&self) -> Option<&Notification> {
        match &self.method {
            Method::Dcqcn { notification, .. } | Method::Ibcc { notification, .. } => Some(notification),
            Method::Off
            | Method::Dctcp(_)
            | Method::Timely(_)
            | Method::Swift(_)
            | Method::Nscc(_)
            | Method::Hpcc(_) => None,
        }
    }

    /// How queues mark; `None` if the algorithm needs no marks.
    #[must_use]
    pub fn red(&self) -> Option<Red> {
        match &self.method {
            Method::Dcqcn { red, .. } | Method::Ibcc { red, .. } => Some(red.clone()),
            Method::Dctcp(_) => Some(dctcp::Config::red(self.line)),
            Method::Nscc(config) => Some(config.red(self.line)),
            Method::Off | Method::Timely(_) | Method::Swift(_) | Method::Hpcc(_) => None,
        }
    }

    /// Whether packets are to collect what the ports on their way say, and receivers return it.
    #[must_use]
    pub const fn uses_telemetry(&self) -> bool {
        matches!(self.method, Method::Hpcc(_))
    }
}

/// What one flow may send: how fast, and how much may be in flight. Each algorithm ignores the signals that it does not use.
#[derive(Clone, Debug)]
pub enum Controller {
    /// None: the rate of the port.
    Off(Rate),
    /// DCQCN: uses CNPs and the bytes sent.
    Dcqcn(ReactionPoint),
    /// DCTCP: uses the marks and round-trip times of acknowledgements.
    Dctcp(Dctcp),
    /// TIMELY: uses the round-trip times of acknowledgements.
    Timely(Timely),
    /// Swift: uses the round-trip times of acknowledgements, and losses.
    Swift(Swift),
    /// NSCC: uses the marks and round-trip times of acknowledgements, and losses.
    Nscc(Nscc),
    /// InfiniBand's: uses CNPs.
    Ibcc(Ibcc),
    /// HPCC: uses what the ports on the way say.
    Hpcc(Hpcc),
}

impl Controller {
    /// The rate at which the flow may send.
    #[must_use]
    pub fn rate(&self) -> Rate {
        match self {
            Self::Off(rate) => *rate,
            Self::Dcqcn(c) => c.rate(),
            Self::Dctcp(c) => c.rate(),
            Self::Timely(c) => c.rate(),
            Self::Swift(c) => c.rate(),
            Self::Nscc(c) => c.rate(),
            Self::Ibcc(c) => c.rate(),
            Self::Hpcc(c) => c.rate(),
        }
    }

    /// The bytes that the flow may have in flight, as on Ethernet; `None` if only the rate limits it. A packet may always be.
    #[must_use]
    pub fn window(&self) -> Option<u64> {
        match self {
            Self::Swift(c) => Some(c.window()),
            Self::Nscc(c) => Some(c.window()),
            Self::Hpcc(c) => Some(c.window()),
            Self::Off(_) | Self::Dcqcn(_) | Self::Dctcp(_) | Self::Timely(_) | Self::Ibcc(_) => None,
        }
    }

    /// Whether acknowledgements are its signal: it wants one for each train.
    #[must_use]
    pub const fn uses_acks(&self) -> bool {
        match self {
            Self::Dctcp(_) | Self::Timely(_) | Self::Swift(_) | Self::Nscc(_) | Self::Hpcc(_) => true,
            Self::Off(_) | Self::Dcqcn(_) | Self::Ibcc(_) => false,
        }
    }

    /// The estimate of congestion, where the algorithm has one.
    #[must_use]
    pub fn alpha(&self, now: Instant) -> Option<f64> {
        match self {
            Self::Dcqcn(c) => c.alpha(now),
            Self::Dctcp(c) => Some(c.alpha()),
            _ => None,
        }
    }

    /// The rate to which the flow recovers, where the algorithm has one.
    #[must_use]
    pub fn target_rate(&self) -> Option<Rate> {
        match self {
            Self::Dcqcn(c) => Some(c.target_rate()),
            _ => None,
        }
    }

    /// Handles an acknowledgement.
    #[inline]
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        match self {
            Self::Off(_) | Self::Dcqcn(_) | Self::Ibcc(_) | Self::Hpcc(_) => {}
            Self::Dctcp(c) => c.on_ack(now, ack),
            Self::Timely(c) => c.on_ack(now, ack),
            Self::Swift(c) => c.on_ack(now, ack),
            Self::Nscc(c) => c.on_ack(now, ack),
        }
    }

    /// Something was lost: the flow sends it again. Called once, however much that is.
    pub fn on_loss(&mut self, now: Instant) {
        match self {
            Self::Swift(c) => c.on_loss(now),
            Self::Nscc(c) => c.on_loss(now),
            Self::Off(_)
            | Self::Dcqcn(_)
            | Self::Dctcp(_)
            | Self::Timely(_)
            | Self::Ibcc(_)
            | Self::Hpcc(_) => {}
        }
    }

    /// Handles what the ports on the way of a packet said. `acked` counts the packets up to that one, and `next` those that were
    /// sent. Returns whether it was obeyed.
    pub fn on_telemetry(&mut self, now: Instant, acked: u64, next: u64, path: &Telemetry) -> bool {
        let Self::Hpcc(c) = self else { return false };
        c.on_telemetry(now, acked, next, path);
        true
    }

    /// Handles a CNP. Returns whether it was obeyed: algorithms without CNPs ignore it.
    pub fn on_cnp(&mut self, now: Instant) -> bool {
        match self {
            Self::Dcqcn(c) => c.on_cnp(now),
            Self::Ibcc(c) => c.on_becn(now),
            Self::Off(_)
            | Self::Dctcp(_)
            | Self::Timely(_)
            | Self::Swift(_)
            | Self::Nscc(_)
            | Self::Hpcc(_) => return false,
        }
        true
    }

    /// Whether a CNP is to be logged that has come to where the flow is now.
    #[must_use]
    pub fn is_beyond_threshold(&self) -> bool {
        matches!(self, Self::Ibcc(c) if c.is_beyond_threshold())
    }

    /// Records that the flow has sent `bytes`.
    #[inline]
    pub fn on_bytes_sent(&mut self, now: Instant, bytes: u64) {
        if let Self::Dcqcn(c) = self {
            c.on_bytes_sent(now, bytes);
        }
    }

    /// When the rate changes next if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Dcqcn(c) => c.poll_timeout(),
            Self::Ibcc(c) => c.poll_timeout(),
            _ => None,
        }
    }

    /// Handles the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Dcqcn(c) => c.handle_timeout(now),
            Self::Ibcc(c) => c.handle_timeout(now),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
