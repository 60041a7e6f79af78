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
mod tests {
    use super::*;
    use crate::dcqcn::{Options, Preset};

    const LINE: Rate = Rate::from_gbps(10);

    fn policy_of(text: &str) -> Policy {
        text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order")
    }

    #[test]
    fn an_algorithm_is_chosen_in_a_file_on_a_command_line_and_in_rust() {
        let cases = [
            ("algorithm = \"off\"", "off", Algorithm::Off),
            (
                "algorithm = \"dcqcn\"\npreset = \"laptop\"",
                "dcqcn:preset=laptop",
                Algorithm::Dcqcn(Options::new(Preset::Laptop)),
            ),
            (
                "algorithm = \"dctcp\"\nmss = 4096",
                "dctcp:mss=4096",
                Algorithm::Dctcp(dctcp::Config { mss: 4096, ..dctcp::Config::default() }),
            ),
            (
                "algorithm = \"timely\"\nvariant = \"original\"\nbeta = 0.8",
                "timely:variant=original,beta=0.8",
                Algorithm::Timely(timely::Config::original()),
            ),
            (
                "algorithm = \"swift\"\nbase_target = 30",
                "swift:base_target=30",
                Algorithm::Swift(swift::Config { base_target: 30, ..swift::Config::default() }),
            ),
            (
                "algorithm = \"nscc\"\nrtt = 8",
                "nscc:rtt=8",
                Algorithm::Nscc(nscc::Config { rtt: 8, ..nscc::Config::default() }),
            ),
            (
                "algorithm = \"hpcc\"\neta = 0.9",
                "hpcc:eta=0.9",
                Algorithm::Hpcc(hpcc::Config { eta: 0.9, ..hpcc::Config::default() }),
            ),
            (
                "algorithm = \"ibcc\"\nccti_timer = 10",
                "ibcc:ccti_timer=10",
                Algorithm::Ibcc(ibcc::Config { ccti_timer: 10, ..ibcc::Config::default() }),
            ),
        ];
        for (file, line, algorithm) in cases {
            assert_eq!(toml::from_str(file), Ok(algorithm.clone()));
            assert_eq!(line.parse(), Ok(algorithm.clone()));
            assert!(algorithm.at(LINE).is_ok());
        }
        for wrong in ["", "bbr", "off:x=1", "dctcp:preset=paper", "timely:variant=new", "dcqcn:preset"] {
            assert!(wrong.parse::<Algorithm>().is_err(), "{wrong}");
        }
        for wrong in ["algorithm = \"bbr\"", "algorithm = \"dctcp\"\nk = 1"] {
            assert!(toml::from_str::<Algorithm>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let all = [
            ["dcqcn:pmax=2", "dctcp:ewma_gain=2", "dctcp:mss=0", "timely:t_low=501", "timely:beta=-1"],
            [
                "swift:beta=2",
                "swift:fs_min_cwnd=100",
                "swift:min_cwnd=2000",
                "swift:mss=0",
                "swift:fs_max_cwnd=NaN",
            ],
            ["hpcc:eta=0", "hpcc:eta=1.1", "hpcc:rtt=0", "hpcc:max_stage=1001", "hpcc:min_rate=2000000"],
            ["nscc:rtt=0", "nscc:gamma=-1", "nscc:target=0", "ibcc:ccti_timer=0", "ibcc:ccti_limit=0"],
        ];
        for wrong in all.into_iter().flatten() {
            let algorithm: Algorithm = wrong.parse().expect("words and values");
            assert!(matches!(algorithm.at(LINE), Err(SettingError::OutOfRange { .. })), "{wrong}");
        }
    }

    /// Each signal moves the algorithms that use it, and no other.
    #[test]
    fn controllers_react_to_their_own_signals() {
        let now = Instant::EPOCH;
        let after = |text: &str, signal: &dyn Fn(&mut Controller)| {
            let policy = text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
            let mut controller = policy.controller(0);
            assert_eq!(controller.rate(), LINE, "{text}: no slow start");
            signal(&mut controller);
            controller.rate() < LINE
        };
        let cnp = |c: &mut Controller| _ = c.on_cnp(now);
        let marks = |c: &mut Controller| {
            c.on_ack(now, &Ack { bytes: 20_000, marked: 20_000, rtt: Some(Duration::from_micros(10)) });
        };
        let delay = |c: &mut Controller| {
            for ms in 1..3 {
                let ack = Ack { bytes: 20_000, marked: 0, rtt: Some(Duration::from_millis(ms)) };
                c.on_ack(now + Duration::from_millis(ms), &ack);
            }
        };
        let reactions = |text| [after(text, &cnp), after(text, &marks), after(text, &delay)];
        assert_eq!(reactions("off"), [false, false, false]);
        assert_eq!(reactions("dcqcn"), [true, false, false]);
        assert_eq!(reactions("dctcp"), [false, true, false]);
        assert_eq!(reactions("timely"), [false, false, true]);
        assert_eq!(reactions("ibcc"), [true, false, false]);
        assert_eq!(reactions("hpcc"), [false, false, false]);
        let full = |c: &mut Controller| {
            for n in 0..3 {
                let hop =
                    hpcc::Hop::new(LINE, now + Duration::from_micros(20) * n, u64::from(n) * 25_000, 90_000);
                c.on_telemetry(now, 1, 2, &Telemetry::of(&[hop]).expect("room"));
            }
        };
        for text in ["off", "dcqcn", "dctcp", "timely", "swift", "nscc", "ibcc", "hpcc"] {
            assert_eq!(after(text, &full), text == "hpcc", "{text}");
            assert_eq!(policy_of(text).uses_telemetry(), text == "hpcc", "{text}");
        }
        // Windows: the rate stays that of the port.
        let window = |text: &str, signal: &dyn Fn(&mut Controller)| {
            let policy = text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
            let mut controller = policy.controller(0);
            let before = controller.window().expect("it has one");
            signal(&mut controller);
            controller.window().expect("as before") < before
        };
        let late = |c: &mut Controller| {
            for ms in 1..5 {
                let rtt = if ms == 1 { Duration::from_micros(10) } else { Duration::from_millis(1) };
                let ack = Ack { bytes: 0, marked: 1, rtt: Some(rtt) };
                c.on_ack(now + Duration::from_millis(ms), &ack);
            }
        };
        let loss = |c: &mut Controller| c.on_loss(now);
        for text in ["swift", "nscc"] {
            assert_eq!(
                [window(text, &cnp), window(text, &late), window(text, &loss)],
                [false, true, true],
                "{text}"
            );
            assert!(policy_of(text).controller(0).uses_acks());
        }
        for text in ["off", "dcqcn", "dctcp", "timely", "ibcc"] {
            assert_eq!(policy_of(text).controller(0).window(), None, "{text}");
        }
        let hpcc = policy_of("hpcc").controller(0);
        assert_eq!((hpcc.window(), hpcc.uses_acks()), (Some(16_250), true));
    }

    #[test]
    fn presets_warn_of_ports_far_below_those_that_they_are_made_for() {
        let advice = |text: &str, gbps| {
            text.parse::<Algorithm>().expect("an algorithm").advice(Rate::from_gbps(gbps)).unwrap_or_default()
        };
        for preset in ["paper", "ns3-rdma", "hpcc-sim", "nvidia"] {
            let text = format!("dcqcn:preset={preset}");
            assert!(advice(&text, 1).contains("preset=laptop"), "{preset}");
            assert_eq!(advice(&text, 10), "", "{preset}");
        }
        assert!(advice("dcqcn:preset=paper-strawman", 40).contains("preset=paper has"));
        for (text, needs_port) in [("hpcc", true), ("off", false), ("dcqcn", false), ("swift", false)] {
            let algorithm: Algorithm = text.parse().expect("an algorithm");
            assert_eq!(algorithm.advice_without_port().is_some(), needs_port, "{text}");
        }
        for text in ["off", "dctcp", "timely", "dcqcn:preset=laptop"] {
            assert_eq!(advice(text, 1), "", "{text}");
        }
    }

    #[test]
    fn queues_have_room_for_a_few_packets_before_they_mark() {
        let kmin = |text: &str, mbps| {
            let policy =
                text.parse::<Algorithm>().and_then(|a| a.at(Rate::from_mbps(mbps))).expect("in order");
            policy.red().expect("marks").kmin
        };
        for mbps in [10, 100, 1000, 5000] {
            for text in ["dctcp", "dcqcn:preset=nvidia", "dcqcn:preset=hpcc-sim"] {
                assert!(kmin(text, mbps) >= 20_000, "{text} at {mbps} Mb/s");
            }
        }
        assert_eq!((kmin("dctcp", 10_000), kmin("dctcp", 25_000)), (30_000, 75_000), "as published");
    }

    #[test]
    fn a_policy_says_what_queues_and_receivers_do() {
        let policy = |text: &str| text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
        assert_eq!(policy("dcqcn").red().map(|r| r.kmax), Some(200_000));
        assert_eq!(policy("dctcp").red().map(|r| (r.kmin, r.kmax)), Some((30_000, 30_000)));
        assert_eq!(policy("timely").red(), None);
        assert_eq!(policy("dcqcn").notification().map(|n| n.min_time_between_cnps), Some(50));
        assert!(policy("off").notification().is_none() && policy("dctcp").notification().is_none());
        assert_eq!(policy("swift").red(), None);
        assert_eq!(policy("nscc:rtt=100").red().map(|r| (r.kmin, r.kmax)), Some((25_000, 100_000)));
        assert_eq!(policy("ibcc").red().map(|r| (r.kmin, r.kmax)), Some((65_536, 65_536)));
        assert_eq!(policy("ibcc").notification().map(|n| n.cnp_dscp), Some(48));
        assert_eq!(policy("off").line(), LINE);
    }
}
