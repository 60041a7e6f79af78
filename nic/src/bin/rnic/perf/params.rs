//! What is measured, and how.

use super::Failure;
use super::service::Service;
use clap::ValueEnum;
use rnic::Mtu;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest message: what one region of this tool, with a part to send from and one to receive into, holds.
pub(super) const MAX_SIZE: u32 = 1 << 30;

/// Largest region, whatever the peer asks for.
const MAX_REGION: u64 = 4 << 30;

/// Send work requests outstanding at most: half of what a queue of the device takes.
const MAX_DEPTH: u32 = 1 << 13;

/// Queue pairs at most.
const MAX_QPS: u32 = 1 << 10;

/// Receives posted at least, as by perftest (`--rx-depth`).
const MIN_RECV_DEPTH: u32 = 512;

/// Where a message begins in its part of the region: a cache line, so that queue pairs share none, and enough for the
/// network header in front of a datagram.
pub(super) const HEADROOM: usize = 64;

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND and receive.
    Send,
    /// Atomic addition to 8 bytes.
    FetchAdd,
    /// Atomic compare and swap of 8 bytes.
    CmpSwap,
}

impl Op {
    /// As the field spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::Read => "RDMA READ",
            Self::Send => "SEND",
            Self::FetchAdd => "FETCH_ADD",
            Self::CmpSwap => "CMP_SWAP",
        }
    }

    /// Whether the peer answers each request with data.
    pub(super) fn is_answered(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

/// What is measured of it.
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
    /// After so many messages of each queue pair.
    Iterations(u64),
    /// After so many seconds.
    Seconds(f64),
}

impl Limit {
    /// Whether another message may be started, `started` after `elapsed`.
    pub(super) fn allows(self, started: u64, elapsed: Duration) -> bool {
        match self {
            Self::Iterations(iterations) => started < iterations,
            Self::Seconds(seconds) => elapsed.as_secs_f64() < seconds,
        }
    }
}

/// All parameters. The client sends them to the server; they stand in the JSON report as they are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Params {
    pub(super) service: Service,
    pub(super) op: Op,
    /// SENDs and WRITEs carry immediate data.
    pub(super) imm: bool,
    /// One shared receive queue for all queue pairs.
    pub(super) srq: bool,
    pub(super) test: Test,
    /// Bytes of the messages, one run for each.
    pub(super) sizes: Vec<u32>,
    /// Messages outstanding for each queue pair.
    pub(super) depth: u32,
    /// Every so many sends one is signalled.
    pub(super) cq_mod: u32,
    pub(super) qps: u32,
    pub(super) limit: Limit,
    /// Bytes of the path MTU, if one was asked for.
    pub(super) mtu: Option<u32>,
    /// Sleep on a completion channel instead of polling.
    pub(super) events: bool,
    pub(super) bidirectional: bool,
    /// Compare what arrived with what was sent.
    pub(super) verify: bool,
}

impl Params {
    /// Whether these parameters make sense together, on either side.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let in_range = |what: &str, given: u32, max: u32| {
            if (1..=max).contains(&given) {
                Ok(())
            } else {
                Err(Failure::from(format!("{what} {given} is out of range: 1 to {max}")))
            }
        };
        if self.sizes.is_empty() {
            return Err("no message size was given".into());
        }
        for size in &self.sizes {
            in_range("--size", *size, MAX_SIZE)?;
        }
        in_range("--depth", self.depth, MAX_DEPTH)?;
        in_range("--qps", self.qps, MAX_QPS)?;
        in_range("--cq-mod", self.cq_mod, self.depth)
            .map_err(|error| format!("{error}, the depth; completions are what makes room for more"))?;
        if self.region_len() > MAX_REGION {
            let region = self.region_len();
            return Err(format!("{region} bytes of memory for all queue pairs: at most {MAX_REGION}").into());
        }
        match self.limit {
            Limit::Iterations(0) => return Err("--iterations 0: at least 1".into()),
            Limit::Seconds(s) if !(s > 0.0 && s.is_finite()) => {
                return Err(format!("--duration {s}: a number of seconds above 0").into());
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
            return Err("--qps: latency is measured on one queue pair".into());
        }
        if self.bidirectional {
            return Err("--bidirectional: latency is measured with one message at a time".into());
        }
        if self.events && self.polls_memory() {
            return Err("--events: the latency of WRITE is measured by polling memory; a WRITE completes \
                        nothing at its target that one could wait for"
                .into());
        }
        Ok(())
    }

    /// The path MTU that was asked for.
    pub(super) fn path_mtu(&self) -> Result<Option<Mtu>, Failure> {
        let Some(bytes) = self.mtu else { return Ok(None) };
        match Mtu::from_bytes(bytes) {
            Some(mtu) => Ok(Some(mtu)),
            None => {
                Err(format!("--mtu {bytes}: there are path MTUs of 256, 512, 1024, 2048 and 4096 bytes")
                    .into())
            }
        }
    }

    /// Receives posted for each queue pair: twice what may be outstanding, so that a receiver that is a little
    /// late makes no sender wait.
    pub(super) fn recv_depth(&self) -> u32 {
        (2 * self.depth).max(MIN_RECV_DEPTH)
    }

    /// Bytes of the longest message.
    pub(super) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(1) as usize
    }

    /// Bytes of a part of the region, from which, or into which, one queue pair sends or receives. In front of the message
    /// there is room for a network header.
    pub(super) fn slot(&self) -> usize {
        HEADROOM + self.largest().next_multiple_of(HEADROOM)
    }

    /// Bytes of the region: a part to send from and a part to receive into for each queue pair.
    pub(super) fn region_len(&self) -> u64 {
        2 * u64::from(self.qps) * self.slot() as u64
    }

    /// Whether the server sends, too.
    pub(super) fn server_is_active(&self) -> bool {
        self.test == Test::Bw && self.bidirectional
    }

    /// In a few words, for titles and logs.
    pub(super) fn title(&self) -> String {
        let test = match (self.test, self.bidirectional) {
            (Test::Bw, false) => "bandwidth",
            (Test::Bw, true) => "bidirectional bandwidth",
            (Test::Lat, _) => "latency",
        };
        let imm = if self.imm { " with immediate" } else { "" };
        let srq = if self.srq { ", shared receive queue" } else { "" };
        format!("{} {}{imm} {test}{srq}", self.service.name(), self.op.name())
    }
}

/// A size on the command line: bytes, or KiB or MiB with the letter K or M.
pub(super) fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        _ => (text, 0),
    };
    let number: u32 =
        digits.parse().map_err(|_| "a number of bytes, or one with K or M behind it".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|size| (1..=MAX_SIZE).contains(size))
        .ok_or_else(|| format!("1 to {MAX_SIZE} bytes are possible"))
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
        assert!(refusal(&Params { mtu: Some(1500), ..params() }).contains("--mtu 1500"));
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
