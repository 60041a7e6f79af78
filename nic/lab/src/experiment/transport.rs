//! Two NICs and a cable: work requests, faults, and what they make of the packets.

use super::{Picture, Ran, duration, read, verb};
use crate::definition::ExperimentConfig;
use crate::error::LabError;
use crate::value::Values;
use qp::Mtu;
use qp::wire::{Headers, Opcode, Syndrome};
use rnic_core::ladder::{Ladder, Record, Style};
use rnic_core::link::{Direction, Fate};
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{ConnectOptions, Device, RcEnd, WcStatus, WorkCompletion};
use serde::Deserialize;
use std::collections::BTreeSet;
use time::{Duration, Instant};
use toml::Table;

/// The most packets that are recorded.
const PACKETS: usize = 20_000;

/// The file of an experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The time from one NIC to the other.
    #[serde(deserialize_with = "duration")]
    latency: Duration,
    /// The path MTU in bytes.
    mtu: u32,
    /// Attributes of both queue pairs.
    #[serde(default)]
    connection: Connection,
    /// The work requests, in the order in which they are posted, all at once.
    request: Vec<Request>,
    /// How long the responder waits before it posts receives.
    #[serde(default, deserialize_with = "duration")]
    receives_after: Duration,
    /// The responder is gone from this time on.
    #[serde(default)]
    gone_after: Option<Text>,
    /// Fault rules of each side.
    #[serde(default)]
    faults: Faults,
    /// How long to look at most.
    #[serde(deserialize_with = "duration")]
    until: Duration,
}

/// A time in text.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Text(#[serde(deserialize_with = "duration")] Duration);

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Connection {
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
}

impl Default for Connection {
    fn default() -> Self {
        let ConnectOptions { timeout, retry_cnt, rnr_retry, min_rnr_timer, .. } = ConnectOptions::default();
        Self { timeout, retry_cnt, rnr_retry, min_rnr_timer }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    op: Op,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Op {
    Write,
    Read,
    Send,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    requester: Vec<String>,
    responder: Vec<String>,
}

/// What a picture shows of two NICs.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Packets, in the order in which the requester's port saw them.
    pub packets: Vec<Step>,
    /// When the last work request completed, in microseconds since the first packet, and how. Nothing, if one has not.
    pub end: Option<(f64, &'static str)>,
}

/// A packet of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When it left or came to the requester, in microseconds since the first one.
    pub at_us: f64,
    /// Its PSN, from 0.
    pub psn: i32,
    /// What it is: `data`, `sent again`, `acknowledged`, `NAK` or `RNR NAK`.
    pub what: &'static str,
    /// Whether it was lost.
    pub is_lost: bool,
}

pub(super) fn run(config: &ExperimentConfig, table: &Table) -> Result<Ran, LabError> {
    let setup: Config = read(config, table)?;
    Bench::new(&setup).and_then(|bench| bench.measure(&setup)).map_err(verb(config))
}

/// The NICs of an experiment.
struct Bench {
    net: Net,
    requester: RcEnd,
    responder: RcEnd,
    devices: [Device; 2],
    ladder: Ladder,
}

impl Bench {
    fn new(setup: &Config) -> rnic_core::Result<Self> {
        let net = Net::with_seed(1);
        // As NICs that are not rnic: every packet is one of the standard.
        let device = |name: &str| {
            let mut setup = DeviceSetup { name: Some(name.to_owned()), ..DeviceSetup::default() };
            setup.partner.is_foreign = true;
            net.device_with(&setup)
        };
        let devices = [device("requester")?, device("responder")?];
        net.set_latency(setup.latency);
        let add = |device: &Device, rules: &[String]| {
            rules.iter().try_for_each(|rule| device.add_fault(rule).map(|_| ()))
        };
        add(&devices[0], &setup.faults.requester)?;
        add(&devices[1], &setup.faults.responder)?;
        let ladder = Ladder::new("requester", "responder", PACKETS);
        devices[0].observe(ladder.observer())?;
        let Connection { timeout, retry_cnt, rnr_retry, min_rnr_timer } = setup.connection;
        let mtu = Mtu::from_bytes(setup.mtu);
        let options =
            ConnectOptions { timeout, retry_cnt, rnr_retry, min_rnr_timer, mtu, ..ConnectOptions::default() };
        let (requester, responder) = RcEnd::pair_with(&devices[0], &devices[1], &options)?;
        Ok(Self { net, requester, responder, devices, ladder })
    }

    fn measure(&self, setup: &Config) -> rnic_core::Result<Ran> {
        let most = setup.request.iter().map(|request| request.bytes).max().unwrap_or(0).max(1);
        let data: Vec<u8> = (0..most).map(|at| at as u8).collect();
        let (source, target) = (self.requester.register(&data)?, self.responder.register_remote(most)?);
        for (id, Request { op, bytes }) in (0..).zip(&setup.request) {
            let local = source.slice(0..*bytes)?;
            match op {
                Op::Write => self.requester.qp.write(id, local, target.remote(0))?,
                Op::Read => self.requester.qp.read(id, local, target.remote(0))?,
                Op::Send => self.requester.qp.send(id, local)?,
            }
        }
        let (begin, mut receives, mut is_gone) = (self.net.elapsed(), false, false);
        let (mut statuses, mut last) = (Vec::new(), Duration::ZERO);
        while statuses.len() < setup.request.len() {
            let now = self.net.elapsed() - begin;
            if !receives && now >= setup.receives_after {
                for (id, _) in (0..).zip(setup.request.iter().filter(|request| request.op == Op::Send)) {
                    self.responder.qp.recv(id, target.all())?;
                }
                receives = true;
            }
            if let Some(Text(after)) = &setup.gone_after
                && !is_gone
                && now >= *after
            {
                self.devices[1].add_fault("* drop")?;
                is_gone = true;
            }
            if now >= setup.until {
                break;
            }
            let next = [
                (!receives).then_some(setup.receives_after),
                setup.gone_after.as_ref().filter(|_| !is_gone).map(|Text(after)| *after),
            ];
            let next = next.into_iter().flatten().fold(setup.until, Duration::min);
            if !self.net.step_within(next - now) {
                self.net.run_for(next - now);
            }
            let mut done = [WorkCompletion::default(); 16];
            let count = self.requester.cq().poll(&mut done);
            if count > 0 {
                last = self.net.elapsed() - begin;
            }
            statuses.extend(done[..count].iter().map(|wc| wc.status));
        }
        // Acknowledgements on their way.
        self.net.run_for(setup.latency * 2);
        Ok(self.ran(&statuses, last, setup))
    }

    fn ran(&self, statuses: &[WcStatus], last: Duration, setup: &Config) -> Ran {
        let records = self.ladder.records();
        let steps = steps(&records);
        let mut values = Values::default();
        let count = |what: &str| steps.iter().filter(|step| step.what == what).count() as f64;
        let again: BTreeSet<i32> =
            steps.iter().filter(|step| step.what == "sent again").map(|step| step.psn).collect();
        let words: Vec<String> = again.iter().map(ToString::to_string).collect();
        values.set("psns_sent_again", if words.is_empty() { "none".to_owned() } else { words.join(",") });
        values.set("sent_again", count("sent again"));
        values.set("packets", count("data") + count("sent again"));
        values.set("naks", count("NAK"));
        values.set("rnr_naks", count("RNR NAK"));
        values.set("acks", count("acknowledged"));
        values.set("timeouts", self.requester.qp.counters().local_ack_timeout_err as f64);
        values.set("duplicates", self.responder.qp.counters().duplicate_request as f64);
        let failed = statuses.iter().find(|status| **status != WcStatus::Success);
        let is_done = statuses.len() == setup.request.len();
        values.set(
            "status",
            match failed {
                Some(status) => status.name(),
                None if is_done => WcStatus::Success.name(),
                None => "none",
            },
        );
        values.set("success", f64::from(u8::from(is_done && failed.is_none())));
        values.set("ended", f64::from(u8::from(is_done)));
        values.set("completion_us", last.as_nanos() as f64 / 1e3);
        values.set("completion_ms", last.as_nanos() as f64 / 1e6);
        let end =
            is_done.then(|| (last.as_nanos() as f64 / 1e3, failed.unwrap_or(&WcStatus::Success).name()));
        let text = self.ladder.render(&Style::narrow());
        Ran { values, picture: Picture::Steps(Steps { packets: steps, end }), text }
    }
}

/// The packets of a reliable connection, as the requester's port saw them.
fn steps(records: &[Record]) -> Vec<Step> {
    let mut seen = BTreeSet::new();
    let mut first: Option<Instant> = None;
    let mut steps = Vec::new();
    for record in records {
        let (Ok(headers), Some(psn)) = (&record.content, record.relative_psn) else { continue };
        let first = *first.get_or_insert(record.at);
        let what = match record.direction {
            Direction::Tx if !seen.insert(psn) => "sent again",
            Direction::Tx => "data",
            Direction::Rx => answer(headers),
        };
        let at_us = record.at.saturating_duration_since(first).as_nanos() as f64 / 1e3;
        steps.push(Step { at_us, psn, what, is_lost: matches!(record.fate, Fate::Dropped { .. }) });
    }
    steps
}

/// What an answer says.
fn answer(headers: &Headers) -> &'static str {
    if headers.opcode != Opcode::RcAcknowledge {
        return "acknowledged";
    }
    match headers.aeth.kind() {
        Syndrome::Nak(_) => "NAK",
        Syndrome::Rnr { .. } => "RNR NAK",
        _ => "acknowledged",
    }
}
