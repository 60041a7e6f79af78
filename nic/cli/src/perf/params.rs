//! The parameters of a measurement.

use super::Failure;
use super::service::Service;
use clap::ValueEnum;
use rnic::cc::quantity;
use rnic::{Mtu, ParseMtuError};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The largest message, in bytes. A region holds it twice for each queue pair: to send from and to receive into.
pub(super) const MAX_SIZE: u32 = 1 << 30;

/// The largest region, in bytes. A peer that requests more is refused.
const MAX_REGION: u64 = 4 << 30;

/// The most outstanding send work requests: half of a send queue's limit.
const MAX_DEPTH: u32 = 1 << 13;

/// The most queue pairs.
const MAX_QPS: u32 = 1 << 10;

/// The fewest receives to post, perftest's default of `--rx-depth`.
const MIN_RECV_DEPTH: u32 = 512;

/// The offset of a message in its slot of the region: a cache line, so that queue pairs share none, and room for the
/// network header in front of a datagram.
pub(super) const HEADROOM: usize = 64;

/// Where the upper three bits of the DSCP, the priority, begin in a traffic class.
const PRIORITY_SHIFT: u32 = 5;

/// The highest service level. On RoCE a service level is a priority, which has three bits.
pub(super) const MAX_SL: i64 = 7;

/// The traffic class of service level `sl`, for `--sl`.
pub(super) fn tclass_of(sl: u8) -> u8 {
    sl << PRIORITY_SHIFT
}

/// A traffic class for `--tclass`, decimal or with `0x`.
pub(super) fn parse_tclass(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a number from 0 to 255, such as 96 or 0x60".to_owned())
}

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND, consumed by a receive.
    Send,
    /// Atomic fetch and add on 8 bytes.
    FetchAdd,
    /// Atomic compare and swap on 8 bytes.
    CmpSwap,
}

impl Op {
    /// The name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::Read => "RDMA READ",
            Self::Send => "SEND",
            Self::FetchAdd => "FETCH_ADD",
            Self::CmpSwap => "CMP_SWAP",
        }
    }

    /// Whether the responder returns data.
    pub(super) fn is_answered(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

/// The quantity that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Test {
    /// Bandwidth.
    Bw,
    /// Latency.
    Lat,
}

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Limit {
    /// After this number of messages on each queue pair.
    Iterations(u64),
    /// After this number of seconds.
    Seconds(f64),
}

impl Limit {
    /// Whether another message may start when `started` have been sent and `elapsed` has passed.
    pub(super) fn allows(self, started: u64, elapsed: Duration) -> bool {
        match self {
            Self::Iterations(iterations) => started < iterations,
            Self::Seconds(seconds) => elapsed.as_secs_f64() < seconds,
        }
    }
}

/// All parameters. The client sends them to the server and includes them in the JSON report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Params {
    pub(super) service: Service,
    pub(super) op: Op,
    /// SEND and WRITE carry immediate data.
    pub(super) imm: bool,
    /// All queue pairs receive through one shared receive queue.
    pub(super) srq: bool,
    pub(super) test: Test,
    /// Message sizes in bytes; each is a run of its own.
    pub(super) sizes: Vec<u32>,
    /// The most outstanding messages per queue pair.
    pub(super) depth: u32,
    /// One send in every `cq_mod` is signalled.
    pub(super) cq_mod: u32,
    pub(super) qps: u32,
    pub(super) limit: Limit,
    /// The path MTU in bytes; `None` for the largest that both ports support.
    pub(super) mtu: Option<u32>,
    /// The traffic class (IPv4 TOS, IPv6 traffic class) of all packets, in both directions.
    pub(super) tclass: u8,
    /// Sleep on a completion channel instead of polling.
    pub(super) events: bool,
    pub(super) bidirectional: bool,
    /// Compare the received data with the data sent.
    pub(super) verify: bool,
}

impl Params {
    /// Checks that every parameter is in range and that the combination is possible. Both sides do.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let in_range = |what: &str, given: u32, max: u32| {
            if (1..=max).contains(&given) {
                Ok(())
            } else {
                Err(Failure::from(format!("{what} {given} is out of range; the range is 1 to {max}")))
            }
        };
        if self.sizes.is_empty() {
            return Err("no message size was given; use --size".into());
        }
        for size in &self.sizes {
            in_range("--size", *size, MAX_SIZE)?;
        }
        in_range("--depth", self.depth, MAX_DEPTH)?;
        in_range("--qps", self.qps, MAX_QPS)?;
        in_range("--cq-mod", self.cq_mod, self.depth)
            .map_err(|error| format!("{error}: it must not exceed --depth"))?;
        if self.region_len() > MAX_REGION {
            let region = self.region_len();
            return Err(format!(
                "the queue pairs need {region} bytes of memory, more than the maximum of {MAX_REGION}; lower --size or --qps"
            )
            .into());
        }
        match self.limit {
            Limit::Iterations(0) => return Err("--iterations must be at least 1".into()),
            Limit::Seconds(s) if !(s > 0.0 && s.is_finite()) => {
                return Err("--duration must be longer than 0".into());
            }
            _ => {}
        }
        self.path_mtu()?;
        self.check_service()?;
        if self.test == Test::Lat {
            self.check_latency()?;
        }
        Ok(())
    }

    fn check_latency(&self) -> Result<(), Failure> {
        if self.qps != 1 {
            return Err("--qps: a latency test uses one queue pair".into());
        }
        if self.bidirectional {
            return Err("--bidirectional: a latency test has one message at a time in flight".into());
        }
        if self.events && self.polls_memory() {
            return Err("--events: a WRITE without immediate data completes nothing at its target, so its latency is \
                        measured by polling memory; add --imm or leave out --events"
                .into());
        }
        Ok(())
    }

    /// The path MTU that the user chose.
    pub(super) fn path_mtu(&self) -> Result<Option<Mtu>, Failure> {
        let Some(bytes) = self.mtu else { return Ok(None) };
        let invalid = || ParseMtuError(bytes.to_string());
        Ok(Some(Mtu::from_bytes(bytes).ok_or_else(invalid)?))
    }

    /// The priority of the packets on an emulated link: the upper three bits of their DSCP.
    pub(super) fn priority(&self) -> u8 {
        self.tclass >> PRIORITY_SHIFT
    }

    /// Receives posted per queue pair: twice the depth, so that a receiver that is slightly late delays no sender.
    pub(super) fn recv_depth(&self) -> u32 {
        (2 * self.depth).max(MIN_RECV_DEPTH)
    }

    /// The size of the largest message, in bytes.
    pub(super) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(1) as usize
    }

    /// The size of a slot of the region, in bytes: one queue pair's source or target, with room for a network header in
    /// front of the message.
    pub(super) fn slot(&self) -> usize {
        HEADROOM + self.largest().next_multiple_of(HEADROOM)
    }

    /// The size of the region, in bytes: a source slot and a target slot for each queue pair.
    pub(super) fn region_len(&self) -> u64 {
        2 * u64::from(self.qps) * self.slot() as u64
    }

    /// Whether the server sends as well.
    pub(super) fn server_is_active(&self) -> bool {
        self.test == Test::Bw && self.bidirectional
    }

    /// A short description for titles and logs.
    pub(super) fn title(&self) -> String {
        let test = match (self.test, self.bidirectional) {
            (Test::Bw, false) => "bandwidth",
            (Test::Bw, true) => "bidirectional bandwidth",
            (Test::Lat, _) => "latency",
        };
        let imm = if self.imm { " with immediate" } else { "" };
        let srq = if self.srq { ", shared receive queue" } else { "" };
        let class = match self.tclass {
            0 => String::new(),
            tclass => format!(", traffic class {tclass:#04x} (priority {})", self.priority()),
        };
        format!("{} {}{imm} {test}{srq}{class}", self.service.name(), self.op.name())
    }
}

/// A message size for `--size`.
pub(super) fn parse_size(text: &str) -> Result<u32, String> {
    let size = quantity::parse_size(text).map_err(|error| error.to_string())?;
    let size = u32::try_from(size).ok().filter(|size| (1..=MAX_SIZE).contains(size));
    size.ok_or_else(|| format!("the range is 1 to {MAX_SIZE} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Params {
        Params {
            service: Service::Rc,
            op: Op::Write,
            imm: false,
            srq: false,
            test: Test::Bw,
            sizes: vec![64],
            depth: 128,
            cq_mod: 32,
            qps: 1,
            limit: Limit::Iterations(10),
            mtu: None,
            tclass: 0,
            events: false,
            bidirectional: false,
            verify: true,
        }
    }

    fn refusal(params: &Params) -> String {
        params.check().unwrap_err().to_string()
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("8m"), Ok(8 << 20));
        assert_eq!(parse_size("1 MB"), Ok(1_000_000));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("1024M"), Ok(MAX_SIZE));
        for wrong in ["", "K", "x", "-1", "0", "1025M", "5000M", "64é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bounds_hold_on_both_sides_of_the_wire() {
        params().check().unwrap();
        assert!(refusal(&Params { sizes: vec![], ..params() }).contains("size"));
        assert!(refusal(&Params { sizes: vec![1, 0], ..params() }).contains("--size 0"));
        assert!(refusal(&Params { depth: MAX_DEPTH + 1, ..params() }).contains("--depth"));
        assert!(refusal(&Params { cq_mod: 129, ..params() }).contains("--cq-mod"));
        assert!(refusal(&Params { qps: 0, ..params() }).contains("--qps"));
        assert!(refusal(&Params { qps: 8, sizes: vec![MAX_SIZE], ..params() }).contains("memory"));
        assert!(refusal(&Params { limit: Limit::Iterations(0), ..params() }).contains("--iterations"));
        assert!(refusal(&Params { limit: Limit::Seconds(f64::NAN), ..params() }).contains("--duration"));
        assert!(refusal(&Params { mtu: Some(1500), ..params() }).contains("invalid MTU 1500"));
    }

    #[test]
    fn a_service_level_is_the_upper_three_bits_of_the_traffic_class() {
        for sl in 0..=7 {
            let params = Params { tclass: tclass_of(sl), ..params() };
            assert_eq!(params.priority(), sl);
        }
        assert_eq!([parse_tclass("96"), parse_tclass("0x60")], [Ok(96), Ok(96)]);
        assert_eq!(Params { tclass: 0x6a, ..params() }.priority(), 3);
        for wrong in ["", "256", "-1", "0x100", "high"] {
            assert!(parse_tclass(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn latency_is_of_one_message_at_a_time() {
        let lat = || Params { test: Test::Lat, ..params() };
        lat().check().unwrap();
        assert!(refusal(&Params { qps: 2, ..lat() }).contains("--qps"));
        assert!(refusal(&Params { bidirectional: true, ..lat() }).contains("--bidirectional"));
        assert!(refusal(&Params { events: true, ..lat() }).contains("--events"));
        Params { events: true, op: Op::Send, ..lat() }.check().unwrap();
    }

    #[test]
    fn services_do_what_they_can() {
        let refused = |service, op, change: fn(&mut Params)| {
            let mut params = Params { service, op, sizes: vec![8], ..params() };
            change(&mut params);
            refusal(&params)
        };
        for op in [Op::Read, Op::FetchAdd, Op::CmpSwap] {
            assert!(refused(Service::Uc, op, |_| {}).contains(&format!("{} over UC", op.name())));
            assert!(refused(Service::Ud, op, |_| {}).contains("over UD"));
            assert!(refused(Service::Rc, op, |p| p.imm = true).contains("--imm"));
        }
        assert!(refused(Service::Ud, Op::Write, |_| {}).contains("--op send"));
        assert!(refused(Service::Ud, Op::Send, |p| p.sizes = vec![8, 5000]).contains("--size 5000 over UD"));
        assert!(refused(Service::Ud, Op::Send, |p| p.mtu = Some(1024)).contains("--mtu"));
        assert!(refused(Service::Uc, Op::Send, |p| p.bidirectional = true).contains("--bidirectional"));
        assert!(refused(Service::Rc, Op::Write, |p| p.srq = true).contains("--srq"));
        assert!(refused(Service::Uc, Op::Send, |p| p.srq = true).contains("--srq"));
        assert!(refused(Service::Xrc, Op::Send, |p| p.srq = true).contains("--srq"));
        assert!(refused(Service::Xrc, Op::CmpSwap, |p| p.sizes = vec![16]).contains("--size 16"));
        for service in [Service::Rc, Service::Xrc] {
            for op in [Op::Write, Op::Read, Op::Send, Op::FetchAdd, Op::CmpSwap] {
                Params { service, op, sizes: vec![8], ..params() }.check().unwrap();
            }
        }
    }

    #[test]
    fn regions_hold_both_directions() {
        let params = Params { sizes: vec![1, 100, 7], qps: 3, ..params() };
        assert_eq!(params.slot(), 64 + 128);
        assert_eq!(params.region_len(), 2 * 3 * (64 + 128));
        assert_eq!(params.recv_depth(), MIN_RECV_DEPTH);
    }
}
