//! A small fabric for the page: hosts that send to one, behind a switch or two, and what waits where.
//!
//! It is a scenario of `rnic_fabric`, with the engine of rnic on every host. Whatever a slider says is part of the set-up, so the
//! page shows what would have happened until now with other settings: it runs everything again up to the same virtual time.

use crate::words;
use rnic_fabric::network::{PortStats, Tally};
use rnic_fabric::run::{FlowOutcome, Run};
use rnic_fabric::scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use time::Duration;

/// The time between two samples: some four packets of 4 KiB at [`LINK`].
const INTERVAL: Duration = Duration::from_micros(5);

/// The longest run in microseconds: 4,000 samples, which a page draws without delay.
const LONGEST: f64 = 20_000.0;

/// The rates of the hosts' cables and of that between two switches, in the proportion of the scenario `victim-flow`.
const LINK: &str = "25 Gb/s";
const UPLINK: &str = "100 Gb/s";

/// Time goes in these parts, however a page asks, so that what happens depends on nothing but the set-up. A packet of 4 KiB takes
/// longer.
const PART: Duration = Duration::from_nanos(500);

/// The longest way of a step that waits for a packet.
const STEP: Duration = Duration::from_millis(1);

/// The traffic pattern, and the topology that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scene {
    /// The senders and the receiver are at one switch.
    Incast,
    /// The senders are at another switch than the receiver, and a flow from there goes to an idle host beside it.
    Victim,
}

/// The set-up of a fabric, which a URL carries.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricSetup {
    /// The seed of everything random.
    pub seed: u64,
    /// The traffic pattern.
    pub scene: Scene,
    /// How many hosts send to the receiver.
    pub senders: usize,
    /// The buffer that the ports of a switch share, in KB.
    pub buffer: u64,
    /// Whether switches pause their senders before they would lose packets.
    pub pfc: bool,
    /// Whether switches mark packets, and from which queue on, in KB.
    pub ecn: bool,
    /// See `ecn`.
    pub kmin: u64,
    /// Where everything is marked, in KB.
    pub kmax: u64,
    /// The probability at `kmax`, in percent.
    pub pmax: f64,
    /// Congestion control of the hosts, such as `dcqcn:preset=paper`.
    pub cc: String,
    /// How far the page had come, in microseconds. It changes nothing.
    pub at: f64,
}

impl Default for FabricSetup {
    fn default() -> Self {
        Self {
            seed: 1,
            scene: Scene::Victim,
            senders: 3,
            buffer: 1000,
            pfc: true,
            ecn: false,
            kmin: 20,
            kmax: 100,
            pmax: 20.0,
            cc: "off".to_owned(),
            at: 0.0,
        }
    }
}

impl FabricSetup {
    /// The scenario.
    fn scenario(&self) -> Result<Scenario, String> {
        let is_valid = (1..=8).contains(&self.senders)
            && (20..=100_000).contains(&self.buffer)
            && (0.0..=100.0).contains(&self.pmax)
            && self.kmin <= self.kmax
            && self.kmax <= 100_000;
        if !is_valid {
            return Err("there are 1 to 8 senders, 20 to 100,000 KB of buffer, Kmin is up to Kmax, and Pmax 0 to 100 %".to_owned());
        }
        // A lossless class as in HPCC's simulation. A lossy one takes half of what is free for one port at most, so that a full
        // port leaves some for the others.
        let mut text = format!(
            "name = \"page\"\nabout = \"A page.\"\nuntil = \"1 s\"\n[nic]\ncc = {}\ntimeout = 8\n\
             [switch]\nbuffer = {{ shared = \"{} KB\" }}\nclass = [{{}}, {{}}, {{}}, {{ {} }}]\n",
            toml_text(&self.cc),
            self.buffer,
            if self.pfc { "lossless = true, alpha = 0.125" } else { "egress_alpha = 1.0" },
        );
        if self.ecn {
            let (kmin, kmax, pmax) = (self.kmin * 1000, self.kmax * 1000, self.pmax / 100.0);
            let _ = writeln!(text, "red = {{ kmin = {kmin}, kmax = {kmax}, pmax = {pmax:?} }}");
        }
        let _ = writeln!(
            text,
            "[topology]\nkind = \"custom\"\nlink = {{ rate = \"{LINK}\", delay = \"500 ns\" }}"
        );
        let mut hosts = vec!["receiver".to_owned()];
        let (near, far) = match self.scene {
            Scene::Incast => ("switch", "switch"),
            Scene::Victim => {
                hosts.extend(["idle", "victim"].map(str::to_owned));
                ("left", "right")
            }
        };
        hosts.extend((1..=self.senders).map(|number| format!("sender{number}")));
        let (mut nodes, mut cables) = (String::new(), String::new());
        for host in &hosts {
            let at = if matches!(&**host, "receiver" | "idle") { far } else { near };
            let _ = writeln!(nodes, "[[topology.node]]\nname = \"{host}\"");
            let _ = writeln!(cables, "[[topology.cable]]\nends = [\"{host}\", \"{at}\"]");
        }
        let _ = writeln!(nodes, "[[topology.node]]\nname = \"{near}\"\nkind = \"switch\"");
        if near != far {
            let _ = writeln!(nodes, "[[topology.node]]\nname = \"{far}\"\nkind = \"switch\"");
            let _ =
                writeln!(cables, "[[topology.cable]]\nends = [\"{near}\", \"{far}\"]\nrate = \"{UPLINK}\"");
        }
        text += &nodes;
        text += &cables;
        text += "[[workload]]\npattern = \"flows\"\npriority = 3\nspread = \"2 us\"\nflow = [\n";
        if self.scene == Scene::Victim {
            text += "{ from = \"victim\", to = \"idle\", name = \"victim\" },\n";
        }
        for number in 1..=self.senders {
            let _ = writeln!(
                text,
                "{{ from = \"sender{number}\", to = \"receiver\", name = \"sender{number}\" }},"
            );
        }
        text += "]\n";
        Scenario::read(&text).map_err(words)
    }
}

/// A text in quotation marks: JSON's are TOML's.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A port at which something can be seen.
#[derive(Clone, Debug)]
struct Watched {
    node: usize,
    port: usize,
    /// The other end of its cable, where packets are dropped for which there is no room.
    far: (usize, usize),
    last: PortStats,
    dropped: u64,
}

/// What a port did in an interval: bytes that wait at its end, bytes that it sent, nanoseconds of pause, packets that it marked,
/// and packets that were dropped at either end of its cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortSample(pub u64, pub u64, pub u64, pub u64, pub u64);

/// What the fabric did in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The end of the interval, in microseconds.
    pub at: f64,
    /// By port.
    pub ports: Vec<PortSample>,
    /// By flow: bytes that its receiver has accepted since the beginning.
    pub flows: Vec<u64>,
}

/// What there is: names, in the order in which samples have them.
#[derive(Clone, Debug, Serialize)]
pub struct Parts {
    /// Ports by direction, such as `left>right`: those of switches, and those of hosts that send.
    pub ports: Vec<String>,
    /// Rates of the ports in Gb/s.
    pub rates: Vec<f64>,
    /// Flows.
    pub flows: Vec<String>,
    /// Switches.
    pub switches: Vec<String>,
    /// The time between two samples in microseconds.
    pub interval: f64,
}

/// What a page is told.
#[derive(Clone, Debug, Serialize)]
pub struct FabricTold {
    /// Virtual time in microseconds.
    pub now: f64,
    /// New samples.
    pub samples: Vec<Sample>,
    /// Bytes that wait now, by port.
    pub queues: Vec<u64>,
    /// Bytes that each switch holds now.
    pub held: Vec<u64>,
    /// What has become of all packets.
    pub tally: Tally,
    /// Pause frames until the last sample.
    pub pauses: u64,
    /// Packets that were marked until then.
    pub marked: u64,
    /// What had become of each flow then.
    pub outcomes: Vec<FlowOutcome>,
    /// Whether nothing more is shown.
    pub ended: bool,
}

/// A fabric, driven step by step.
pub struct FabricBench {
    run: Run,
    parts: Parts,
    watched: Vec<Watched>,
    switches: Vec<usize>,
    samples: Vec<Sample>,
    outcomes: Vec<FlowOutcome>,
    told: usize,
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl FabricBench {
    /// Sets everything up.
    ///
    /// # Errors
    /// Says what is wrong in the set-up.
    pub fn new(text: &str) -> Result<Self, String> {
        let setup: FabricSetup = serde_json::from_str(text).map_err(words)?;
        let mut run = setup.scenario()?.prepare(Path::new(""), setup.seed).map_err(words)?;
        let flows: Vec<String> = run.flows().iter().map(|state| state.flow.name.clone()).collect();
        let (mut ports, mut rates, mut watched) = (Vec::new(), Vec::new(), Vec::new());
        let topology = run.fabric().lock().topology().clone();
        let cables = topology.ports();
        for (node, names) in topology.port_names().into_iter().enumerate() {
            let is_sender = flows.iter().any(|flow| *flow == topology.name(node));
            for (port, name) in names.into_iter().enumerate() {
                // Acknowledgements never wait: ports that send nothing else are left out.
                let (cable, to) = cables[node][port];
                let leads_on = to >= topology.hosts() || ["receiver", "idle"].contains(&topology.name(to));
                let goes_back = topology.name(node) == "right" && to >= topology.hosts();
                if (is_sender || node >= topology.hosts()) && leads_on && !goes_back {
                    ports.push(name);
                    rates.push(topology.cables[cable].rate.as_f64() / 1e9);
                    let far = (to, cables[to].iter().position(|(other, _)| *other == cable).unwrap_or(0));
                    watched.push(Watched { node, port, far, last: PortStats::default(), dropped: 0 });
                }
            }
        }
        let switches: Vec<usize> = (topology.hosts()..topology.nodes.len()).collect();
        let names = switches.iter().map(|node| topology.name(*node).to_owned()).collect();
        let parts = Parts { ports, rates, flows, switches: names, interval: micros(INTERVAL) };
        let outcomes = vec![FlowOutcome::Waiting; parts.flows.len()];
        Ok(Self { run, parts, watched, switches, samples: Vec::new(), outcomes, told: 0 })
    }

    /// What there is.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Goes on up to this virtual time, in microseconds, or to the last part before it.
    ///
    /// # Errors
    /// A verb failed: that is a bug.
    pub fn run(&mut self, until: f64) -> Result<(), String> {
        let until = Duration::from_nanos((until.clamp(0.0, LONGEST) * 1e3).round() as u64);
        while self.run.elapsed() + PART <= until {
            self.go_on()?;
        }
        Ok(())
    }

    /// Goes on until a packet reaches a host.
    ///
    /// # Errors
    /// A verb failed: that is a bug.
    pub fn step(&mut self) -> Result<(), String> {
        let delivered = |bench: &Self| bench.run.fabric().lock().tally().delivered;
        let (before, end) = (delivered(self), self.run.elapsed() + STEP);
        while delivered(self) == before && self.run.elapsed() < end && micros(self.run.elapsed()) < LONGEST {
            self.go_on()?;
        }
        Ok(())
    }

    /// A part of time passes.
    fn go_on(&mut self) -> Result<(), String> {
        let end = self.run.elapsed() + PART;
        self.run.run(end, &mut |_| true).map_err(words)?;
        // A run of which all flows have failed stays where it is.
        let rest = end.saturating_sub(self.run.elapsed());
        if !rest.is_zero() {
            self.run.net().run_for(rest);
        }
        if end >= INTERVAL * (self.samples.len() as u32 + 1) {
            self.sample();
        }
        Ok(())
    }

    /// Asking for flows lets the engines go on, so this happens at times that no page chooses.
    fn sample(&mut self) {
        let states = self.run.flows();
        let flows = states.iter().map(|state| state.delivered()).collect();
        self.outcomes = states.iter().map(|state| state.outcome()).collect();
        let mut fabric = self.run.fabric().lock();
        let mut ports = Vec::with_capacity(self.watched.len());
        for of in &mut self.watched {
            let stats = fabric.port_stats(of.node, of.port).unwrap_or_default();
            let last = std::mem::replace(&mut of.last, stats);
            let paused = |stats: &PortStats| stats.paused_ns.iter().sum::<u64>();
            let ends = [Some(of.last.clone()), fabric.port_stats(of.far.0, of.far.1)];
            let dropped = ends.iter().flatten().flat_map(|stats| stats.drops.values()).sum();
            let before = std::mem::replace(&mut of.dropped, dropped);
            ports.push(PortSample(
                fabric.queued_at(of.node, of.port),
                of.last.bytes - last.bytes,
                paused(&of.last) - paused(&last),
                of.last.marked - last.marked,
                dropped - before,
            ));
        }
        drop(fabric);
        self.samples.push(Sample { at: micros(self.run.elapsed()), ports, flows });
    }

    /// What has changed since the page was told last. Nothing happens by that.
    pub fn tell(&mut self) -> FabricTold {
        let now = micros(self.run.elapsed());
        let fabric = self.run.fabric().lock();
        let last = || self.watched.iter().map(|of| &of.last);
        let samples = self.samples[self.told..].to_vec();
        self.told = self.samples.len();
        FabricTold {
            now,
            samples,
            queues: self.watched.iter().map(|of| fabric.queued_at(of.node, of.port)).collect(),
            held: self.switches.iter().map(|node| fabric.held(*node).0).collect(),
            tally: fabric.tally(),
            pauses: last().map(|stats| stats.pauses_received.iter().sum::<u64>()).sum(),
            marked: last().map(|stats| stats.marked).sum(),
            outcomes: self.outcomes.clone(),
            ended: now >= LONGEST,
        }
    }

    /// Everything that happened up to this time, as lines: the same on every machine.
    ///
    /// # Errors
    /// The set-up is wrong, or a verb failed.
    pub fn log(text: &str, until: f64) -> Result<String, String> {
        let mut bench = Self::new(text)?;
        bench.run(until)?;
        let mut told = bench.tell();
        let mut log = serde_json::to_string(&bench.parts).map_err(words)? + "\n";
        for sample in std::mem::take(&mut told.samples) {
            let _ = writeln!(log, "{}", serde_json::to_string(&sample).map_err(words)?);
        }
        let mut fabric = bench.run.fabric().lock();
        for of in &bench.watched {
            let stats = fabric.port_stats(of.node, of.port).unwrap_or_default();
            let _ = writeln!(log, "{}", serde_json::to_string(&stats).map_err(words)?);
        }
        let _ = writeln!(log, "{}", serde_json::to_string(&told).map_err(words)?);
        Ok(log)
    }
}

#[cfg(test)]
mod tests;
