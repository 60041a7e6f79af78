//! The effective settings of a link at a port.

use super::error::LinkConfigError;
use super::words::Time;
use super::{LinkConfig, Model};
use crate::link::wire_bytes;
use cc::dcqcn::Red;
use cc::inflight::{STOCK_RECEIVE_BUFFER, without_reserve};
use cc::pfc::{PRIORITIES, Span, Thresholds, WatchdogConfig};
use cc::{Algorithm, Policy, Rate, ets, vl};
use qp::Mtu;
use time::Duration;

/// The rate that congestion control assumes for a port without one: more than UDP sockets of a host carry, so that a
/// flow without congestion is not held back.
pub const HOST_RATE: Rate = Rate::from_gbps(100);

/// The most bytes around the payload of a packet: BTH, XRCETH, RETH, immediate data and ICRC, of an RDMA WRITE with
/// immediate data over XRC.
pub const LARGEST_HEADERS: usize = 12 + 4 + 16 + 4 + 4;

/// The most bytes that an emulated queue may hold: its packets are in this program's memory.
const LARGEST_BUFFER: u64 = 1 << 30;

/// The longest delay: twice around the earth in fibre take 0.4 s.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The time for which the default buffer holds what the port carries. Our choice: at 10 Gb/s this gives 1.25 MB,
/// about a port's part of the buffer of a switch.
const BUFFER_TIME: Duration = Duration::from_millis(1);

/// The least default buffer with congestion control: flows begin at the rate of the port, and until they learn of
/// congestion each of them has a window of some 370 KB in flight. The larger buffer adds no delay to a queue under
/// control. Our choice.
const CONTROLLED_BUFFER: u64 = 1_000_000;

/// The default limit on what one peer has in flight, in bytes: what a stock socket buffer holds.
const PEER_WINDOW: u64 = without_reserve(STOCK_RECEIVE_BUFFER) as u64;

/// The settings of a link at one port, with every default filled in.
#[derive(Clone, Debug)]
pub struct LinkProfile {
    /// The kind of link.
    pub model: Model,
    /// The rate of the emulated port, if there is one.
    pub rate: Option<Rate>,
    /// The largest packet, in its size on Ethernet ([`wire_bytes`]).
    pub largest_packet: u32,
    /// The time on the cable to this port.
    pub delay: Duration,
    /// The rate at which the receiver reads its socket, if it is slow.
    pub receiver_rate: Option<Rate>,
    /// Bytes of the queue, for lossy priorities.
    pub buffer: u64,
    /// How the queue marks, if it does.
    pub red: Option<Red>,
    /// The buffers of lossless priorities, for each peer.
    pub thresholds: [Option<Thresholds>; PRIORITIES],
    /// The congestion control at the rate of the port, or [`HOST_RATE`].
    pub policy: Policy,
    /// How priorities share the port.
    pub ets: ets::Config,
    /// How virtual lanes share the port.
    pub vl: vl::Config,
    /// Data lanes.
    pub vls: u8,
    /// The watchdog for pauses that do not end.
    pub watchdog: WatchdogConfig,
}

impl LinkProfile {
    /// Whether arriving packets pass an emulated port or cable.
    #[must_use]
    pub const fn emulates(&self) -> bool {
        self.rate.is_some() || !self.delay.is_zero()
    }
}

impl LinkConfig {
    /// The rate of the port: `rate`, or [`HOST_RATE`].
    #[must_use]
    pub fn line(&self) -> Rate {
        self.rate.unwrap_or(HOST_RATE)
    }

    /// `detection_time`, `restoration_time` and `action`.
    #[must_use]
    pub const fn watchdog(&self) -> WatchdogConfig {
        WatchdogConfig {
            detection_time: self.detection_time,
            restoration_time: self.restoration_time,
            action: self.action,
        }
    }

    /// `tsa` and `tc_bw`.
    #[must_use]
    pub const fn ets(&self) -> ets::Config {
        ets::Config { tsa: self.tsa, tc_bw: self.tc_bw }
    }

    /// `sl2vl`, `vlarb_low`, `vlarb_high` and `high_limit`.
    #[must_use]
    pub fn vl(&self) -> vl::Config {
        vl::Config {
            sl2vl: self.sl2vl,
            vlarb_low: self.vlarb_low.clone(),
            vlarb_high: self.vlarb_high.clone(),
            high_limit: self.high_limit,
        }
    }

    /// Checks that every value is within its range and validates the combination.
    ///
    /// # Errors
    /// Names the setting, its value and the range.
    pub fn check(&self) -> Result<(), LinkConfigError> {
        for (word, rate) in [("rate", self.rate), ("receiver_rate", self.receiver_rate)] {
            if rate == Some(Rate::default()) {
                return Err(LinkConfigError::unfit(word, Rate::default(), "it must be above 0"));
            }
        }
        if self.delay > LONGEST_DELAY {
            return Err(LinkConfigError::unfit("delay", Time(self.delay), "the maximum is 1 s"));
        }
        for (word, size) in
            [("buffer", self.buffer), ("xoff", self.xoff), ("headroom", self.headroom), ("kmax", self.kmax)]
        {
            if let Some(size) = size.filter(|size| *size > LARGEST_BUFFER) {
                let why = format!("the maximum is {LARGEST_BUFFER} bytes");
                return Err(LinkConfigError::unfit(word, size, why));
            }
        }
        self.check_marking()?;
        self.check_pfc()?;
        self.check_rate()?;
        self.check_selection()
    }

    fn check_marking(&self) -> Result<(), LinkConfigError> {
        if let Some(pmax) = self.pmax.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(LinkConfigError::unfit("pmax", pmax, "the range is 0 to 1"));
        }
        match (self.kmin, self.kmax) {
            (Some(kmin), Some(kmax)) if kmin > kmax => {
                Err(LinkConfigError::unfit("kmin", kmin, format!("it must not exceed `kmax`, {kmax}")))
            }
            _ => Ok(()),
        }
    }

    fn check_pfc(&self) -> Result<(), LinkConfigError> {
        if let Some(wrong) = self.pfc.iter().find(|p| usize::from(**p) >= PRIORITIES) {
            return Err(LinkConfigError::unfit("pfc", wrong, "priorities range from 0 to 7"));
        }
        if !self.pfc.is_empty() && self.model == Model::IbCredits {
            let why = "only `ethernet` pauses priorities; `ib-credits` is lossless without";
            return Err(LinkConfigError::unfit("pfc", list(&self.pfc), why));
        }
        for (word, size) in [("xoff", self.xoff), ("xon", self.xon), ("headroom", self.headroom)] {
            if let Some(size) = size.filter(|_| self.pfc.is_empty()) {
                let why = "it applies to lossless priorities; name them with `pfc`";
                return Err(LinkConfigError::unfit(word, size, why));
            }
        }
        if let (Some(xon), Some(xoff)) = (self.xon, self.xoff)
            && xon > xoff
        {
            return Err(LinkConfigError::unfit("xon", xon, format!("it must not exceed `xoff`, {xoff}")));
        }
        let watchdog = self.watchdog();
        watchdog.check().map_err(|error| match error {
            cc::SettingError::OutOfRange { word, value, why } => LinkConfigError::unfit(word, value, why),
            other => LinkConfigError::Cc(other),
        })
    }

    /// Rejects settings of the queue if there is no rate: without a rate there is no queue.
    fn check_rate(&self) -> Result<(), LinkConfigError> {
        if self.rate.is_some() {
            return Ok(());
        }
        let ets = ets::Config::default();
        let given = [
            ("buffer", self.buffer.map(|v| v.to_string())),
            ("kmin", self.kmin.map(|v| v.to_string())),
            ("kmax", self.kmax.map(|v| v.to_string())),
            ("pmax", self.pmax.map(|v| v.to_string())),
            ("pfc", (!self.pfc.is_empty()).then(|| list(&self.pfc))),
            ("tsa", (self.tsa != ets.tsa).then(|| list(&self.tsa))),
            ("tc_bw", (self.tc_bw != ets.tc_bw).then(|| list(&self.tc_bw))),
        ];
        match given.into_iter().find_map(|(word, value)| Some((word, value?))) {
            Some((word, value)) => {
                let why = "a port without `rate` has no queue; set a rate too, such as `5 Gb/s`";
                Err(LinkConfigError::unfit(word, value, why))
            }
            None => Ok(()),
        }
    }

    fn check_selection(&self) -> Result<(), LinkConfigError> {
        between("vls", u32::from(self.vls), 1, 15)?;
        let (ets, vl) = (self.ets(), self.vl());
        let is_ethernet = self.model == Model::Ethernet;
        if !is_ethernet && ets != ets::Config::default() {
            let why = "only `ethernet` has traffic classes; `ib-credits` has virtual lanes";
            return Err(LinkConfigError::unfit("tsa", list(&self.tsa), why));
        }
        if is_ethernet && (self.vls != 1 || vl != vl::Config::default()) {
            let why = "only `ib-credits` has virtual lanes";
            return Err(LinkConfigError::unfit("vls", self.vls, why));
        }
        ets::Scheduler::new(&ets, 1)
            .map_err(|error| LinkConfigError::unfit("tc_bw", list(&self.tc_bw), error.to_string()))?;
        vl::Arbiter::new(&vl).map_err(|error| {
            let (word, value) = match error {
                vl::ConfigError::NoLane { .. } => ("sl2vl", list(&self.sl2vl)),
                _ if vl.vlarb_high.len() > 64 || vl.vlarb_high.iter().any(|e| e.vl > 14) => {
                    ("vlarb_high", "this".to_owned())
                }
                _ => ("vlarb_low", "this".to_owned()),
            };
            LinkConfigError::unfit(word, value, error.to_string())
        })?;
        Ok(())
    }

    /// Resolves the settings for a port whose packets carry up to `mtu` bytes, with this congestion control.
    ///
    /// # Errors
    /// As [`check`](Self::check), and if the settings do not fit the congestion control or the packets.
    pub fn at(&self, cc: &Algorithm, mtu: Mtu) -> Result<LinkProfile, LinkConfigError> {
        self.check()?;
        let policy = cc.at(self.line()).map_err(LinkConfigError::Cc)?;
        let packet = LARGEST_HEADERS + mtu.bytes() as usize;
        // The headers of IPv6 are the longer ones.
        let largest_packet = wire_bytes(packet, true);
        let red = self.red(&policy)?;
        let buffer = match (self.buffer, self.rate) {
            (Some(buffer), _) => buffer,
            (None, Some(rate)) => {
                let marking = red.as_ref().map_or(0, |red| red.kmax.saturating_mul(4));
                let controlled = if *cc == Algorithm::Off { 0 } else { CONTROLLED_BUFFER };
                let least = marking.max(controlled).max(2 * u64::from(largest_packet));
                rate.bytes_in(BUFFER_TIME).max(least).min(LARGEST_BUFFER)
            }
            (None, None) => 0,
        };
        if self.rate.is_some() && buffer < u64::from(largest_packet) {
            let why =
                format!("it is less than one packet: {largest_packet} bytes at path MTU {}", mtu.bytes());
            return Err(LinkConfigError::unfit("buffer", buffer, why));
        }
        Ok(LinkProfile {
            model: self.model,
            rate: self.rate,
            largest_packet,
            delay: self.delay,
            receiver_rate: self.receiver_rate,
            buffer,
            red,
            thresholds: self.thresholds(buffer, largest_packet, mtu)?,
            policy,
            ets: self.ets(),
            vl: self.vl(),
            vls: self.vls,
            watchdog: self.watchdog(),
        })
    }

    fn red(&self, policy: &Policy) -> Result<Option<Red>, LinkConfigError> {
        let Some(_) = self.rate else { return Ok(None) };
        let base = policy.red();
        let of = |word: &str, own: Option<u64>, base: Option<u64>| {
            own.or(base).ok_or_else(|| LinkConfigError::Missing {
                word: word.to_owned(),
                why: "without congestion control, marking requires `kmin`, `kmax` and `pmax`".to_owned(),
            })
        };
        if base.is_none() && self.kmin.is_none() && self.kmax.is_none() && self.pmax.is_none() {
            return Ok(None);
        }
        let kmin = of("kmin", self.kmin, base.as_ref().map(|r| r.kmin))?;
        let kmax = of("kmax", self.kmax, base.as_ref().map(|r| r.kmax))?;
        let Some(pmax) = self.pmax.or(base.map(|r| r.pmax)) else {
            return of("pmax", None, None).map(|_| None);
        };
        if kmin > kmax {
            return Err(LinkConfigError::unfit("kmin", kmin, format!("it must not exceed `kmax`, {kmax}")));
        }
        Ok(Some(Red { kmin, kmax, pmax }))
    }

    fn thresholds(
        &self,
        buffer: u64,
        largest_packet: u32,
        mtu: Mtu,
    ) -> Result<[Option<Thresholds>; PRIORITIES], LinkConfigError> {
        // Half of what one peer has in flight, so that a peer whose window fills the queue is told to pause.
        let xoff = self.xoff.unwrap_or((buffer / 2).min(PEER_WINDOW / 2));
        let xon = self.xon.unwrap_or(xoff.saturating_sub(u64::from(largest_packet)));
        if xon > xoff {
            return Err(LinkConfigError::unfit("xon", xon, format!("it must not exceed `xoff`, {xoff}")));
        }
        let headroom = self.headroom.unwrap_or_else(|| self.headroom(largest_packet, mtu));
        let lossless = Thresholds { xoff, xon, headroom };
        let mut thresholds = [None; PRIORITIES];
        for (priority, threshold) in (0u8..).zip(&mut thresholds) {
            *threshold = self.pfc.contains(&priority).then_some(lossless);
        }
        Ok(thresholds)
    }

    /// The settings at a port on sockets, whose kernel grants `granted` bytes of receive buffer.
    ///
    /// A peer that is a program reacts to a pause when it gets to run, which no headroom in time covers. But until
    /// then no more can arrive than it had credit for, which is what the receive buffer holds. So the headroom of a
    /// lossless priority has room for all of that.
    ///
    /// # Errors
    /// As [`at`](Self::at), and where `headroom` is given and smaller.
    pub fn at_socket(&self, cc: &Algorithm, mtu: Mtu, granted: u32) -> Result<LinkProfile, LinkConfigError> {
        let mut profile = self.at(cc, mtu)?;
        // Small packets take up to a quarter more on Ethernet than the kernel charges for them in a train.
        let on_the_way = u64::from(granted) + u64::from(granted / 4);
        let least = on_the_way.saturating_add(self.cable_headroom(profile.largest_packet, mtu));
        if let Some(headroom) = self.headroom.filter(|headroom| *headroom < least) {
            let wanted = format!(
                "peers may have {on_the_way} bytes on the way when they are told to pause, as much as the receive \
                 buffer of the socket holds; nothing is lost with {least} bytes or more, the default"
            );
            return Err(LinkConfigError::unfit("headroom", headroom, wanted));
        }
        for thresholds in profile.thresholds.iter_mut().flatten() {
            thresholds.headroom = thresholds.headroom.max(least);
        }
        Ok(profile)
    }

    /// The most that may arrive from a peer after it was told to pause, in a simulation: what the cable holds, and
    /// what the peer sends at once, which is a window of requests and one of READ responses.
    fn headroom(&self, largest_packet: u32, mtu: Mtu) -> u64 {
        self.cable_headroom(largest_packet, mtu).saturating_add(2 * PEER_WINDOW)
    }

    /// The most that may arrive after a pause was asked for, from a peer that is paced to the rate of this port and
    /// reacts as fast as a hardware port.
    pub(crate) fn cable_headroom(&self, largest_packet: u32, mtu: Mtu) -> u64 {
        let rate = self.line();
        let mut span = Span::new(rate, self.cable_m, largest_packet);
        // The pause takes the delay as well.
        span.reaction = span.reaction.saturating_add(self.delay.saturating_mul(2));
        let mut headroom = span.headroom();
        let train = cc::train_bytes(rate, mtu.bytes()) / u64::from(mtu.bytes());
        headroom.finishing = train.saturating_mul(u64::from(largest_packet));
        headroom.bytes().min(LARGEST_BUFFER)
    }
}

fn between(word: &str, value: u32, least: u32, most: u32) -> Result<(), LinkConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(LinkConfigError::unfit(word, value, format!("the range is {least} to {most}")))
}

/// A list in command-line form.
fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
