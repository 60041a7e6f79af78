//! A scenario: a fabric, a load, and what must come out.
//!
//! Scenarios are TOML files. `about` says what one shows. Each entry of `expect` names a metric, its bounds and where they come
//! from; a run checks them and says pass or fail with the numbers.
//!
//! A scenario may have variants: each names settings that differ from those of the file, as a table that is laid over it. Metrics
//! of a variant have its name in front: `spray.fct.max_us`.

mod builtin;
mod capture;
mod changes;
mod expect;
mod keys;
mod variants;

pub use builtin::{BUILTIN, Builtin, builtin};
pub use capture::PortCapture;
pub use changes::{ChangeConfig, ChangeError};
pub use expect::{Bound, Expect, Verdict};
pub use keys::set_key;
pub use variants::Outcome;

use crate::network::{Fabric, Forwarding, HostConfig, SetupError};
use crate::report::{Report, Sampler};
use crate::routing::{self, Routes, RoutingError};
use crate::run::{NicConfig, Run, RunError};
use crate::subnet::TablesError;
use crate::switch::SwitchConfig;
use crate::topology::{self, NodeId, Shape, Topology, TopologyError};
use crate::words;
use crate::workload::{Pattern, Workload, WorkloadError};
use capture::Going;
use rnic_core::sim::BEGINNING;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use time::Duration;

/// A scenario, as in a file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows, in some sentences.
    pub about: String,
    /// How long it runs at most, in virtual time.
    #[serde(with = "words::duration")]
    pub until: Duration,
    /// The seeds that a check runs: the first one, or all of them.
    #[serde(default = "one")]
    pub seeds: Vec<u64>,
    /// Nodes and cables.
    pub topology: topology::Config,
    /// The switches.
    #[serde(default)]
    pub switch: SwitchConfig,
    /// Switches that differ, by name: they have these settings, and defaults otherwise.
    #[serde(default)]
    pub switches: std::collections::BTreeMap<String, SwitchConfig>,
    /// The NICs.
    #[serde(default)]
    pub host: HostConfig,
    /// The devices of the hosts.
    #[serde(default)]
    pub nic: NicConfig,
    /// The ways that packets may take.
    #[serde(default)]
    pub routing: routing::Config,
    /// Ways, lanes and turns that a subnet manager has written. They take the place of `routing`.
    #[serde(default)]
    pub subnet: Option<SubnetConfig>,
    /// The load.
    #[serde(default)]
    pub workload: Vec<Workload>,
    /// What happens to the fabric meanwhile.
    #[serde(default)]
    pub change: Vec<ChangeConfig>,
    /// What is sampled for plots.
    #[serde(default)]
    pub sample: SampleConfig,
    /// From when on goodputs, loads of ports and samples count, for what has to settle first.
    #[serde(default, with = "words::duration")]
    pub measure_from: Duration,
    /// How often it is run, with seeds of its own: metrics are means.
    #[serde(default = "once")]
    pub repeat: u32,
    /// Settings that differ: tables that are laid over the file, each with a `name`.
    #[serde(default)]
    pub variant: Vec<toml::Table>,
    /// What must come out.
    #[serde(default)]
    pub expect: Vec<Expect>,
    /// The scenarios of the variants, each with its name.
    #[serde(skip)]
    pub variants: Vec<(String, Self)>,
    /// Ports that are captured.
    #[serde(skip)]
    pub captures: Vec<PortCapture>,
}

/// What a subnet manager has written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetConfig {
    /// The file of `rnic fabric serve --save`, relative to the folder of this one.
    pub tables: PathBuf,
}

const fn once() -> u32 {
    1
}

fn one() -> Vec<u64> {
    vec![1]
}

/// What is sampled for plots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// The time between two samples.
    #[serde(with = "words::duration_or_none")]
    pub interval: Option<Duration>,
    /// Ports, such as `leaf3>spine1`.
    pub ports: Vec<String>,
    /// Flows by name.
    pub flows: Vec<String>,
}

/// Why a scenario cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file is not a scenario.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A variant is no scenario.
    #[error("variant {name}: {why}")]
    Variant {
        /// Its name.
        name: String,
        /// What is wrong.
        why: toml::de::Error,
    },
    /// The topology.
    #[error("topology: {0}")]
    Topology(#[from] TopologyError),
    /// The ways.
    #[error("routing: {0}")]
    Routing(#[from] RoutingError),
    /// The tables of a subnet manager.
    #[error("subnet: {0}")]
    Subnet(#[from] TablesError),
    /// A workload.
    #[error("workload {number}: {why}")]
    Workload {
        /// Its number, from 1.
        number: usize,
        /// What is wrong.
        why: WorkloadError,
    },
    /// The switches and hosts.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// A change.
    #[error("change {number}: {why}")]
    Change {
        /// Its number, from 1.
        number: usize,
        /// What is wrong.
        why: ChangeError,
    },
    /// A setting names something that is not there.
    #[error("{setting}: {advice}")]
    Unknown {
        /// The setting.
        setting: String,
        /// What to write instead.
        advice: String,
    },
    /// A capture.
    #[error("cannot capture into {}: {why}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The run.
    #[error("{0}")]
    Run(#[from] RunError),
}

impl Scenario {
    /// Reads a scenario, and checks its variants.
    ///
    /// # Errors
    /// Says where the text is wrong, and what to write instead.
    pub fn read(text: &str) -> Result<Self, ScenarioError> {
        Self::from_table(&toml::from_str(text)?).map_err(|error| match error {
            // The text says where: tables, which presets and variants need, do not.
            ScenarioError::Syntax(syntax) => {
                ScenarioError::Syntax(toml::from_str::<Self>(text).err().unwrap_or(syntax))
            }
            other => other,
        })
    }

    /// Builds the topology. `base`: the folder of the file, from which it names others.
    ///
    /// # Errors
    /// Its parameters are impossible.
    pub fn topology(&self, base: &Path) -> Result<Topology, ScenarioError> {
        Ok(self.topology.build(base)?)
    }

    /// The files that it and its variants name, as they name them: topologies and traces of other simulators, and
    /// the tables of subnet managers.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let topology = match &self.topology.shape {
            Shape::Htsim(imported) | Shape::Ns3(imported) => Some(&*imported.file),
            _ => None,
        };
        let traces = self.workload.iter().filter_map(|workload| match &workload.pattern {
            Pattern::Trace { file, .. } => Some(&**file),
            _ => None,
        });
        let tables = self.subnet.as_ref().map(|subnet| &*subnet.tables);
        let own = topology.into_iter().chain(traces).chain(tables);
        let variants = self.variants.iter().flat_map(|(_, variant)| variant.files());
        own.chain(variants).collect()
    }

    /// A run of the scenario with this seed, before its beginning.
    ///
    /// # Errors
    /// Something in it does not fit together.
    pub fn prepare(&self, base: &Path, seed: u64) -> Result<Run, ScenarioError> {
        let fabric = self.fabric(base, seed)?;
        let (mut flows, mut groups) = (Vec::new(), Vec::new());
        for (number, workload) in (1..).zip(&self.workload) {
            let more = workload.flows(fabric.topology(), base, seed, flows.len());
            flows.extend(more.map_err(|why| ScenarioError::Workload { number, why })?);
            let group = workload.group(fabric.topology(), seed, number);
            groups.extend(group.map_err(|why| ScenarioError::Workload { number, why })?);
        }
        Ok(Run::with_groups(fabric, &self.nic, flows, groups, seed)?)
    }

    /// The fabric of the scenario, with what will change in it, for devices of one's own
    /// ([`Net::joined_by`](rnic_core::sim::Net::joined_by)).
    ///
    /// # Errors
    /// Something in it does not fit together.
    pub fn fabric(&self, base: &Path, seed: u64) -> Result<Fabric, ScenarioError> {
        let topology = self.topology(base)?;
        let forwarding = self.forwarding(base, &topology)?;
        let routes = self.routes_by(forwarding.as_ref(), &topology)?;
        let mut changes = Vec::new();
        for (number, change) in (1..).zip(&self.change) {
            let planned = change.plan(&topology);
            changes.extend(planned.map_err(|why| ScenarioError::Change { number, why })?);
        }
        let changes = changes::in_order(changes, &topology, &routes);
        let (configs, of_node) = self.switch_configs(&topology)?;
        let of_node = |node: NodeId| of_node.get(node).copied().unwrap_or(0);
        let mut fabric = Fabric::new(topology, routes, self.host.clone(), configs, of_node, seed)?;
        if let Some(forwarding) = &forwarding {
            fabric.forward_by(forwarding);
        }
        changes.into_iter().for_each(|(at, change)| fabric.plan(BEGINNING + at, change));
        Ok(fabric)
    }

    /// The ways of the scenario in this topology, which is its own.
    ///
    /// # Errors
    /// They name what the topology does not have.
    pub fn routes(&self, base: &Path, topology: &Topology) -> Result<Routes, ScenarioError> {
        self.routes_by(self.forwarding(base, topology)?.as_ref(), topology)
    }

    fn routes_by(
        &self,
        forwarding: Option<&Forwarding>,
        topology: &Topology,
    ) -> Result<Routes, ScenarioError> {
        match forwarding {
            Some(forwarding) => Ok(forwarding.routes(topology)),
            None => Ok(Routes::new(topology, &self.routing)?),
        }
    }

    fn forwarding(&self, base: &Path, topology: &Topology) -> Result<Option<Forwarding>, ScenarioError> {
        let read = |subnet: &SubnetConfig| Forwarding::read(&base.join(&subnet.tables), topology);
        Ok(self.subnet.as_ref().map(read).transpose()?)
    }

    /// The settings of all kinds of switches, and the kind of each node.
    fn switch_configs(&self, topology: &Topology) -> Result<(Vec<SwitchConfig>, Vec<usize>), ScenarioError> {
        let mut configs = vec![self.switch.clone()];
        let mut of_node = vec![0; topology.nodes.len()];
        for (name, config) in &self.switches {
            let found = topology
                .nodes
                .iter()
                .position(|node| node.name == *name)
                .filter(|node| *node >= topology.hosts());
            let Some(node) = found else {
                let names: Vec<&str> =
                    topology.nodes[topology.hosts()..].iter().map(|node| node.name.as_str()).collect();
                let setting = format!("switches.{name}");
                return Err(ScenarioError::Unknown { setting, advice: cc::unknown(name, &names) });
            };
            of_node[node] = configs.len();
            configs.push(config.clone());
        }
        Ok((configs, of_node))
    }

    /// Runs the scenario with a seed. `goes_on` is asked from time to time, with the share of the time that has passed.
    ///
    /// # Errors
    /// Something in it does not fit together, or a verb fails that should not.
    pub fn run(
        &self,
        base: &Path,
        seed: u64,
        goes_on: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Report, ScenarioError> {
        let mut run = self.prepare(base, seed)?;
        let captures = self.begin_captures(&mut run.fabric().lock())?;
        let mut sampler = self.sample.interval.map(|interval| {
            let flows = run.flows().to_vec();
            let fabric = run.fabric().lock();
            Sampler::new(&fabric, &flows, &self.sample.ports, &self.sample.flows, interval, self.until)
        });
        let until = self.until;
        let mut go_on = |run: &Run| goes_on(run.elapsed().as_secs_f64() / until.as_secs_f64().max(1e-12));
        let mut has_marked = self.measure_from.is_zero();
        let is_whole = loop {
            let mut pause = sampler.as_ref().map_or(until, |sampler| sampler.next().min(until));
            if !has_marked {
                pause = pause.min(self.measure_from);
            }
            let at_pause = run.run(pause, &mut go_on)?;
            let now = run.elapsed();
            if !has_marked && now >= self.measure_from {
                has_marked = true;
                run.mark();
            }
            if let Some(sampler) = &mut sampler {
                let fabric = run.fabric().clone();
                sampler.look(now, &fabric, run.flows());
            }
            if !at_pause || now >= until || now < pause {
                break at_pause;
            }
        };
        run.fabric().lock().check();
        run.fabric().lock().flush_captures();
        captures.iter().try_for_each(Going::check)?;
        let series = sampler.map(Sampler::finish);
        let mut report = Report::of(&self.name, seed, self.nic.mtu, &mut run, series, is_whole);
        report.metrics.of_series(report.series.as_ref(), self.measure_from);
        report.inputs.insert("congestion control".to_owned(), self.nic.cc.clone());
        report.inputs.insert("path MTU".to_owned(), format!("{} bytes", self.nic.mtu));
        Ok(report)
    }
}
