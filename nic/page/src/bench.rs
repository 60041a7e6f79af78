//! Two NICs at a cable, and what they do: set up by a text, driven step by step.

use crate::packets::{Known, decoded, know};
use crate::wire::{Fate, Settings, Wire};
use crate::words;
use cc::{Algorithm, Rate};
use rnic_core::engine::{PartnerSetup, RateConfig};
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{ConnectOptions, Device, MemoryRegion, Mtu, Operation, RcEnd, WcStatus, WorkCompletion};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use time::{Duration, Instant};

/// The set-up of a page, which a URL carries.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// The seed of everything random.
    pub seed: u64,
    /// What the requester does: `write`, `send` or `read`.
    pub operation: String,
    /// Bytes of a message.
    pub bytes: usize,
    /// How many messages there are, and how many are posted at a time.
    pub messages: u32,
    /// See `messages`.
    pub depth: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Attributes of both queue pairs.
    pub timeout: u8,
    /// See `timeout`.
    pub retry_cnt: u8,
    /// How long the responder waits before it posts a receive again.
    pub receiver_us: f64,
    /// Congestion control, such as `dcqcn:preset=laptop`.
    pub cc: String,
    /// Whether only what was lost is sent again.
    pub selective_repeat: bool,
    /// The sliders at the beginning.
    pub sliders: Sliders,
    /// What was done by hand, in the order in which it was done.
    pub actions: Vec<Action>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            operation: "write".to_owned(),
            bytes: 8192,
            messages: 4,
            depth: 4,
            mtu: 1024,
            timeout: 8,
            retry_cnt: 7,
            receiver_us: 0.0,
            cc: "off".to_owned(),
            selective_repeat: false,
            sliders: Sliders::default(),
            actions: Vec::new(),
        }
    }
}

/// The sliders.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sliders {
    /// Time on the cable in microseconds.
    pub latency_us: f64,
    /// Packets that are lost, in percent.
    pub loss: f64,
    /// The rate of the port in Gb/s.
    pub rate_gbps: f64,
    /// The rate that somebody sets for the sender, in Gb/s; 0 for none.
    pub sender_gbps: f64,
    /// Bytes of the port's queue.
    pub buffer: u64,
    /// Where marking begins.
    pub kmin: u64,
    /// Where everything is marked.
    pub kmax: u64,
    /// The probability at `kmax`, in percent.
    pub pmax: f64,
}

impl Default for Sliders {
    fn default() -> Self {
        Self {
            latency_us: 10.0,
            loss: 0.0,
            rate_gbps: 1.0,
            sender_gbps: 0.0,
            buffer: 100_000,
            kmin: 10_000,
            kmax: 40_000,
            pmax: 20.0,
        }
    }
}

/// Something done by hand.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Loses a packet.
    Drop {
        /// When, in microseconds.
        at: f64,
        /// The number of the packet.
        packet: usize,
    },
    /// Makes a packet late.
    Delay {
        /// When, in microseconds.
        at: f64,
        /// The number of the packet.
        packet: usize,
        /// By how much, in microseconds.
        by: f64,
    },
    /// Marks a packet.
    Mark {
        /// When, in microseconds.
        at: f64,
        /// The number of the packet.
        packet: usize,
    },
    /// Moves the sliders.
    Set {
        /// When, in microseconds.
        at: f64,
        /// All of them.
        sliders: Sliders,
    },
}

impl Action {
    const fn at(&self) -> f64 {
        match self {
            Self::Drop { at, .. } | Self::Delay { at, .. } | Self::Mark { at, .. } | Self::Set { at, .. } => {
                *at
            }
        }
    }
}

/// A packet for the page.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Its number.
    pub id: usize,
    /// 0: from the requester.
    pub from: usize,
    /// When it was sent, in microseconds.
    pub sent: f64,
    /// When it left its port, or was lost; nothing while it waits.
    pub left: Option<f64>,
    /// When it arrives, or has arrived.
    pub arrives: Option<f64>,
    /// `queued`, `flying`, `arrived`, `lost` or `dropped`.
    pub fate: &'static str,
    /// Its name, such as `WRITE_FIRST`.
    pub name: String,
    /// `data`, `ack`, `nak`, `cnp` or `other`.
    pub kind: &'static str,
    /// Its PSN, from the first.
    pub psn: i32,
    /// Whether the PSN was sent before.
    pub again: bool,
    /// Whether it carries a mark.
    pub marked: bool,
    /// Bytes on the wire.
    pub bytes: u32,
    /// All of its fields.
    pub fields: serde_json::Value,
}

/// What a page is told.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// Virtual time in microseconds.
    pub now: f64,
    /// Packets that are new or changed.
    pub packets: Vec<Shown>,
    /// Bytes in the queue of the requester's port.
    pub queue: u64,
    /// The rate that the sender may use, in Gb/s.
    pub rate: f64,
    /// Messages that are done.
    pub done: u32,
    /// The status of the first that failed, or of the last.
    pub status: String,
    /// Whether nothing more is to happen.
    pub ended: bool,
    /// Counters that are not 0.
    pub counters: Vec<(String, u64)>,
}

/// Two NICs at a cable.
pub struct Bench {
    setup: Setup,
    net: Net,
    wire: Wire,
    devices: [Device; 2],
    requester: RcEnd,
    responder: RcEnd,
    source: MemoryRegion,
    target: MemoryRegion,
    begin: Duration,
    epoch: Instant,
    posted: u32,
    done: u32,
    status: Option<WcStatus>,
    /// When receives are posted next.
    receives: Vec<Duration>,
    known: Vec<Known>,
    /// The highest PSN of a request so far.
    highest: i32,
    acted: usize,
}

type Outcome<T> = Result<T, String>;

fn gbps(rate: f64) -> Rate {
    Rate::from_bits_per_second((rate.clamp(0.001, 1000.0) * 1e9) as u64)
}

fn micros(time: f64) -> Duration {
    Duration::from_nanos((time.clamp(0.0, 1e9) * 1e3).round() as u64)
}

fn settings(sliders: &Sliders) -> Settings {
    Settings {
        latency: micros(sliders.latency_us.max(0.1)),
        loss: (sliders.loss / 100.0).clamp(0.0, 1.0),
        rate: gbps(sliders.rate_gbps),
        sender: (sliders.sender_gbps > 0.0).then(|| gbps(sliders.sender_gbps)),
        buffer: sliders.buffer.max(2_000),
        kmin: sliders.kmin,
        kmax: sliders.kmax.max(sliders.kmin + 1),
        pmax: (sliders.pmax / 100.0).clamp(0.0, 1.0),
    }
}

impl Bench {
    /// Sets everything up.
    ///
    /// # Errors
    /// Says what is wrong in the set-up.
    pub fn new(text: &str) -> Outcome<Self> {
        let setup: Setup = serde_json::from_str(text).map_err(words)?;
        if setup.bytes == 0 || setup.bytes > 1 << 20 || setup.messages > 100_000 {
            return Err("a message has 1 byte to 1 MiB, and there are up to 100,000".to_owned());
        }
        let wire = Wire::new(settings(&setup.sliders), setup.seed);
        let net = Net::joined_by(Box::new(wire.clone()), setup.seed);
        let algorithm: Algorithm = setup.cc.parse().map_err(words)?;
        let line = gbps(setup.sliders.rate_gbps);
        let policy = match algorithm {
            Algorithm::Off => None,
            ref some => Some(some.at(line).map_err(words)?),
        };
        let mut partner = PartnerSetup::offering(setup.selective_repeat);
        // Without selective repeat every packet is one of the standard.
        partner.is_foreign = !setup.selective_repeat;
        let device = |name: &str| {
            let rate = RateConfig { policy: policy.clone(), foreign_cnp: true, ..RateConfig::default() };
            let (name, cc) = (Some(name.to_owned()), algorithm.clone());
            let partner = partner.clone();
            net.device_with(&DeviceSetup { name, rate, cc, partner, ..DeviceSetup::default() }).map_err(words)
        };
        let devices = [device("requester")?, device("responder")?];
        let options = ConnectOptions {
            mtu: Mtu::from_bytes(setup.mtu),
            timeout: setup.timeout.min(31),
            retry_cnt: setup.retry_cnt.min(7),
            ..ConnectOptions::default()
        };
        let (requester, responder) = RcEnd::pair_with(&devices[0], &devices[1], &options).map_err(words)?;
        let data: Vec<u8> = (0..setup.bytes).map(|at| (at % 251) as u8).collect();
        let source = requester.register(&data).map_err(words)?;
        let target = responder.register_remote(setup.bytes).map_err(words)?;
        let begin = net.elapsed();
        let receives =
            if setup.operation == "send" { vec![Duration::ZERO; setup.depth as usize] } else { Vec::new() };
        let epoch = rnic_core::sim::BEGINNING + begin;
        Ok(Self {
            setup,
            net,
            wire,
            devices,
            requester,
            responder,
            source,
            target,
            begin,
            epoch,
            posted: 0,
            done: 0,
            status: None,
            receives,
            known: Vec::new(),
            highest: -1,
            acted: 0,
        })
    }

    /// Virtual time since the beginning. Times are compared as whole nanoseconds: microseconds that a page has added up are not
    /// exact.
    fn time(&self) -> Duration {
        self.net.elapsed() - self.begin
    }

    fn now(&self) -> f64 {
        self.time().as_nanos() as f64 / 1e3
    }

    /// Goes on up to this virtual time, in microseconds, with all actions that lie before it.
    ///
    /// # Errors
    /// A verb failed: that is a bug.
    pub fn run(&mut self, until: f64) -> Outcome<()> {
        loop {
            let next =
                self.setup.actions.get(self.acted).map(Action::at).filter(|at| micros(*at) <= micros(until));
            self.run_to(micros(next.unwrap_or(until)))?;
            if next.is_none() {
                return Ok(());
            }
            let action = self.setup.actions[self.acted].clone();
            self.acted += 1;
            self.apply(&action);
        }
    }

    /// Goes on to the next packet that is sent or arrives; up to `most` microseconds later.
    ///
    /// # Errors
    /// A verb failed: that is a bug.
    pub fn step(&mut self, most: f64) -> Outcome<()> {
        let end = self.time() + micros(most);
        let before = self.state();
        while self.time() < end && self.state() == before {
            self.turn(end)?;
        }
        Ok(())
    }

    fn state(&self) -> (usize, usize) {
        let cable = self.wire.lock();
        (cable.sent.len(), cable.sent.iter().filter(|sent| matches!(sent.fate, Fate::Arrived { .. })).count())
    }

    /// Does something by hand, now. Returns whether it could be done; then it is part of the set-up from now on.
    ///
    /// # Errors
    /// It is no action.
    pub fn act(&mut self, text: &str) -> Outcome<bool> {
        let action: Action = serde_json::from_str(text).map_err(words)?;
        let could = self.apply(&action);
        if could {
            self.setup.actions.insert(self.acted, action);
            self.acted += 1;
        }
        Ok(could)
    }

    fn apply(&mut self, action: &Action) -> bool {
        let now = self.epoch + self.time();
        let mut cable = self.wire.lock();
        match action {
            Action::Drop { packet, .. } => cable.lose(*packet, now),
            Action::Delay { packet, by, .. } => cable.delay(*packet, micros(*by)),
            Action::Mark { packet, .. } => cable.mark(*packet),
            Action::Set { sliders, .. } => {
                cable.settings = settings(sliders);
                true
            }
        }
    }

    fn run_to(&mut self, until: Duration) -> Outcome<()> {
        while self.time() < until {
            self.turn(until)?;
        }
        Ok(())
    }

    /// Lets the programs do what they can, and time pass up to the next event.
    fn turn(&mut self, until: Duration) -> Outcome<()> {
        self.programs()?;
        let now = self.time();
        let rest = until - now;
        let receive = self.receives.iter().min().map(|at| at.saturating_sub(now));
        let rest = receive.filter(|wait| !wait.is_zero()).map_or(rest, |wait| wait.min(rest));
        if !self.net.step_within(rest) {
            self.net.run_for(rest);
        }
        self.programs()
    }

    fn programs(&mut self) -> Outcome<()> {
        let now = self.time();
        let due = self.receives.iter().filter(|at| **at <= now).count();
        self.receives.retain(|at| *at > now);
        for _ in 0..due {
            self.responder.qp.recv(0, self.target.all()).map_err(words)?;
        }
        let mut done = [WorkCompletion::default(); 16];
        let count = self.responder.cq().poll(&mut done);
        self.receives.extend((0..count).map(|_| now + micros(self.setup.receiver_us)));
        let count = self.requester.cq().poll(&mut done);
        for wc in &done[..count] {
            self.done += 1;
            if self.status.is_none_or(|status| status == WcStatus::Success) {
                self.status = Some(wc.status);
            }
        }
        let failed = self.status.is_some_and(|status| status != WcStatus::Success);
        while !failed
            && self.posted < self.setup.messages
            && self.posted - self.done < self.setup.depth.max(1)
        {
            let (id, local, remote) = (u64::from(self.posted), self.source.all(), self.target.remote(0));
            let operation = match &*self.setup.operation {
                "send" => Operation::Send { imm: None, invalidate: None },
                "read" => Operation::Read { remote },
                _ => Operation::Write { remote, imm: None },
            };
            self.requester.qp.post(id, operation, local).map_err(words)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// What has changed since the page was told last.
    pub fn tell(&mut self) -> Told {
        let wire = self.wire.clone();
        let mut cable = wire.lock();
        let mut packets = Vec::new();
        let us = |at: Instant| at.saturating_duration_since(self.epoch).as_nanos() as f64 / 1e3;
        for (id, sent) in cable.sent.iter_mut().enumerate() {
            if id == self.known.len() {
                let known = know(sent.from, &sent.packet, &mut self.highest);
                self.known.push(known);
            }
            if !std::mem::take(&mut sent.is_new) {
                continue;
            }
            let (fate, left, arrives) = match sent.fate {
                Fate::Queued => ("queued", None, None),
                Fate::Flying { until } => ("flying", sent.left, Some(until)),
                Fate::Arrived { at } => ("arrived", sent.left, Some(at)),
                Fate::Lost { at } => ("lost", sent.left.or(Some(at)), None),
                Fate::Dropped { at } => ("dropped", Some(at), None),
            };
            if sent.marked && !std::mem::replace(&mut self.known[id].marked, true) {
                self.known[id].fields = decoded(&sent.packet);
            }
            let Known { name, kind, psn, again, fields, .. } = &self.known[id];
            packets.push(Shown {
                id,
                from: sent.from,
                sent: us(sent.at),
                left: left.map(us),
                arrives: arrives.map(us),
                fate,
                name: name.clone(),
                kind,
                psn: *psn,
                again: *again,
                marked: sent.marked,
                bytes: sent.packet.wire_bytes(),
                fields: fields.clone(),
            });
        }
        let queue = cable.queued(0);
        let flying = cable.sent.iter().any(|sent| matches!(sent.fate, Fate::Queued | Fate::Flying { .. }));
        drop(cable);
        let failed = self.status.is_some_and(|status| status != WcStatus::Success);
        let counters = self.devices[0].counters();
        let counters = counters.iter().filter(|(_, count)| *count > 0);
        let rate = self.requester.qp.rate().map_or(0.0, |rate| rate.as_f64() / 1e9);
        Told {
            now: self.now(),
            packets,
            queue,
            rate,
            done: self.done,
            status: self.status.map_or_else(String::new, |status| status.name().to_owned()),
            ended: !flying && (failed || self.done == self.setup.messages),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }

    /// Everything that happened up to this time, as lines: the same on every machine.
    ///
    /// # Errors
    /// The set-up is wrong, or a verb failed.
    pub fn log(text: &str, until: f64) -> Outcome<String> {
        let mut bench = Self::new(text)?;
        bench.run(until)?;
        let told = bench.tell();
        let mut log = String::new();
        for packet in &told.packets {
            let _ = writeln!(log, "{}", serde_json::to_string(packet).map_err(words)?);
        }
        let _ = writeln!(
            log,
            "{}",
            serde_json::json!({ "now": told.now, "done": told.done, "status": told.status,
            "queue": told.queue, "rate": told.rate, "counters": told.counters })
        );
        Ok(log)
    }
}
