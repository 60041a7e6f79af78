//! A topology in a file.
//!
//! ```
//! # use rnic_fabric::topology::Config;
//! # use std::path::Path;
//! let config: Config = toml::from_str(
//!     r#"
//!     kind = "leaf-spine"
//!     leaves = 4
//!     spines = 4
//!     hosts_per_leaf = 16
//!     link = { rate = "100 Gb/s", length = 3 }
//!     uplink = { rate = "400 Gb/s", delay = "150 ns" }
//!     latency = "400 ns"
//!
//!     [[change]]
//!     cable = "leaf0-spine1"
//!     rate = "100 Gb/s"
//!     "#,
//! )?;
//! assert_eq!(config.build(Path::new("."))?.hosts(), 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::builder::Builder;
use super::builtin::{Direct, Dragonfly, Dumbbell, FatTree, LeafSpine, Rail, Ring, Star};
use super::link::{Wire, time};
use super::{Kind, Link, MAX_DELAY, Node, Topology, TopologyError, htsim, no_node, ns3, within_limits};
use cc::Rate;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use time::Duration;

/// The table `[topology]` of a file: a shape with its parameters, and what is common to all shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it looks like.
    pub shape: Shape,
    /// The latency of all switches, over what the shape says.
    pub latency: Option<Duration>,
    /// Cables that differ from the others of their tier, in the order in which they are changed.
    pub changes: Vec<Change>,
}

/// What a topology looks like: the key `kind` and the parameters of the kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// Hosts at one switch.
    Star(Star),
    /// Two hosts and a cable.
    Direct(Direct),
    /// Two switches that share a cable.
    Dumbbell(Dumbbell),
    /// Leaves and spines.
    LeafSpine(LeafSpine),
    /// A fat tree of equal switches.
    FatTree(FatTree),
    /// A leaf for each NIC of the servers.
    Rail(Rail),
    /// A ring of switches.
    Ring(Ring),
    /// Groups of routers, each connected to each.
    Dragonfly(Dragonfly),
    /// Nodes and cables one by one.
    Custom(Custom),
    /// A topology of htsim.
    Htsim(Imported),
    /// A topology of the ns-3 simulations of HPCC and ConWeave.
    Ns3(Imported),
}

/// A file of another simulator.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imported {
    /// Its name, relative to the folder of the file that names it.
    pub file: PathBuf,
}

/// A change of the cables between two nodes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The cable's name, as in [`Topology::cables_named`].
    pub cable: String,
    /// The new rate.
    pub rate: Option<Rate>,
    /// The new delay.
    #[serde(default, deserialize_with = "time")]
    pub delay: Option<Duration>,
    /// The new length in metres, instead of the delay.
    pub length: Option<f64>,
    /// The new probability that a bit is wrong.
    pub bit_errors: Option<f64>,
}

/// Nodes and cables one by one. Hosts are numbered in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Custom {
    /// What cables have of which less is said.
    pub link: Link,
    /// The nodes.
    #[serde(rename = "node")]
    pub nodes: Vec<CustomNode>,
    /// The cables.
    #[serde(rename = "cable")]
    pub cables: Vec<CustomCable>,
}

/// A node of a [`Custom`] topology.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomNode {
    /// Its name: letters, digits and `_`.
    pub name: String,
    /// What it is: a host unless said otherwise.
    #[serde(default)]
    pub kind: CustomKind,
    /// How many tiers above the hosts a switch is.
    #[serde(default = "lowest")]
    pub tier: u8,
    /// The latency of a switch.
    #[serde(default, deserialize_with = "time")]
    pub latency: Option<Duration>,
}

/// What a node of a [`Custom`] topology is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CustomKind {
    /// A host with one NIC.
    #[default]
    Host,
    /// A switch.
    Switch,
}

/// A cable of a [`Custom`] topology.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomCable {
    /// The names of the nodes at its ends.
    pub ends: [String; 2],
    /// Its rate.
    pub rate: Option<Rate>,
    /// Its delay.
    #[serde(default, deserialize_with = "time")]
    pub delay: Option<Duration>,
    /// Its length in metres, instead of the delay.
    pub length: Option<f64>,
    /// The probability that a bit is wrong when it arrives.
    pub bit_errors: Option<f64>,
}

/// The tier of a leaf.
const fn lowest() -> u8 {
    1
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// What every shape may have beside its own parameters.
        #[derive(Deserialize)]
        struct Common {
            #[serde(default, deserialize_with = "time")]
            latency: Option<Duration>,
            #[serde(default)]
            change: Vec<Change>,
        }
        // Serde cannot both flatten a shape into a table and refuse unknown keys, so the common keys are taken out first.
        let mut of_shape = toml::Table::deserialize(deserializer)?;
        let common = ["latency", "change"].into_iter().filter_map(|key| of_shape.remove_entry(key)).collect();
        let Common { latency, change: changes } = toml::Table::try_into(common).map_err(D::Error::custom)?;
        let shape = of_shape.try_into().map_err(D::Error::custom)?;
        Ok(Self { shape, latency, changes })
    }
}

impl From<Shape> for Config {
    fn from(shape: Shape) -> Self {
        Self { shape, latency: None, changes: Vec::new() }
    }
}

impl Config {
    /// Builds the topology. Names of files are relative to `base`.
    ///
    /// # Errors
    /// A parameter is impossible, or a file cannot be read.
    pub fn build(&self, base: &Path) -> Result<Topology, TopologyError> {
        let mut topology = self.shape.build(base)?;
        if self.latency.is_some_and(|latency| latency > MAX_DELAY) {
            return Err(TopologyError::Latency);
        }
        let switches = topology.nodes.iter_mut().filter(|node| node.kind != Kind::Host);
        for (node, latency) in switches.zip(self.latency.into_iter().cycle()) {
            node.latency = latency;
        }
        for change in &self.changes {
            change.apply(&mut topology)?;
        }
        Ok(topology)
    }
}

impl Shape {
    /// Builds the topology. Names of files are relative to `base`.
    ///
    /// # Errors
    /// A parameter is impossible, or a file cannot be read.
    pub fn build(&self, base: &Path) -> Result<Topology, TopologyError> {
        match self {
            Self::Star(star) => star.build(),
            Self::Direct(direct) => direct.build(),
            Self::Dumbbell(dumbbell) => dumbbell.build(),
            Self::LeafSpine(leaf_spine) => leaf_spine.build(),
            Self::FatTree(fat_tree) => fat_tree.build(),
            Self::Rail(rail) => rail.build(),
            Self::Ring(ring) => ring.build(),
            Self::Dragonfly(dragonfly) => dragonfly.build(),
            Self::Custom(custom) => custom.build(),
            Self::Htsim(Imported { file }) => htsim::topology(&base.join(file)),
            Self::Ns3(Imported { file }) => ns3::topology(&base.join(file)),
        }
    }
}

impl Change {
    /// Changes the cables.
    ///
    /// # Errors
    /// There is no such cable, or a value is impossible.
    pub fn apply(&self, topology: &mut Topology) -> Result<(), TopologyError> {
        let Self { rate, delay, length, bit_errors, .. } = *self;
        let link = Link { rate, delay, length, bit_errors };
        for index in topology.cables_named(&self.cable)? {
            let Some(cable) = topology.cables.get_mut(index) else { continue };
            let old = Wire { rate: cable.rate, delay: cable.delay, bit_errors: cable.bit_errors };
            let new = link.over(old, &self.cable)?;
            (cable.rate, cable.delay, cable.bit_errors) = (new.rate, new.delay, new.bit_errors);
        }
        Ok(())
    }
}

impl Custom {
    /// Builds it.
    ///
    /// # Errors
    /// A name or a parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let base = self.link.over(Wire::default(), "link")?;
        let hosts = self.nodes.iter().filter(|node| node.kind == CustomKind::Host).count();
        within_limits(hosts, self.nodes.len() - hosts, self.cables.len())?;
        let mut builder = Builder::new(hosts, self.nodes.len() - hosts, self.cables.len())?;
        let mut numbers = BTreeMap::new();
        for kind in [CustomKind::Host, CustomKind::Switch] {
            for node in self.nodes.iter().filter(|node| node.kind == kind) {
                let number = builder.node(node.build()?);
                if numbers.insert(&*node.name, number).is_some() {
                    return Err(TopologyError::Twice { name: node.name.clone() });
                }
            }
        }
        for cable in &self.cables {
            let CustomCable { ends: [a, b], rate, delay, length, bit_errors } = cable;
            let (rate, delay, length, bit_errors) = (*rate, *delay, *length, *bit_errors);
            let wire = Link { rate, delay, length, bit_errors }.over(base, &format!("{a}-{b}"))?;
            let number = |name: &String| {
                let number = numbers.get(&**name).copied();
                number.ok_or_else(|| no_node(name, self.nodes.iter().map(|node| &*node.name)))
            };
            builder.cable(number(a)?, number(b)?, wire);
        }
        builder.finish()
    }
}

impl CustomNode {
    fn build(&self) -> Result<Node, TopologyError> {
        let Self { name, kind, tier, latency } = self;
        let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(letters) {
            return Err(TopologyError::Name { name: name.clone() });
        }
        let latency = latency.unwrap_or_default();
        if latency > MAX_DELAY {
            return Err(TopologyError::Latency);
        }
        let kind = match kind {
            CustomKind::Host => Kind::Host,
            CustomKind::Switch if *tier == 0 => return Err(TopologyError::Zero { name: "tier" }),
            CustomKind::Switch => Kind::Switch { tier: *tier },
        };
        Ok(Node { name: name.clone(), kind, latency })
    }
}
