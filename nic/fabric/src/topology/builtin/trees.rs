//! Shapes with several tiers of switches.

use crate::topology::builder::{Builder, all_positive, product, sum};
use crate::topology::link::{DEFAULT_RATE, Wire};
use crate::topology::{Link, Topology, TopologyError};
use serde::Deserialize;

const fn one() -> usize {
    1
}

/// Leaves with hosts, and spines above them: every leaf is connected to every spine.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafSpine {
    /// The number of leaves, `leaf0` and so on.
    pub leaves: usize,
    /// The number of spines, `spine0` and so on.
    pub spines: usize,
    /// The hosts of each leaf.
    pub hosts_per_leaf: usize,
    /// The cables from each leaf to each spine.
    #[serde(default = "one")]
    pub bundle: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cables between leaves and spines.
    #[serde(default)]
    pub uplink: Link,
}

impl LeafSpine {
    /// So many leaves, spines and hosts per leaf, with single cables of the defaults.
    #[must_use]
    pub fn new(leaves: usize, spines: usize, hosts_per_leaf: usize) -> Self {
        let link = Link::default();
        Self { leaves, spines, hosts_per_leaf, bundle: 1, link, uplink: link }
    }

    /// How many times the rate of a leaf's uplinks its hosts can send together: 1 or less blocks nothing.
    #[must_use]
    pub fn oversubscription(&self) -> f64 {
        let link = self.link.rate.unwrap_or(DEFAULT_RATE);
        let uplink = self.uplink.rate.unwrap_or(link);
        let uplinks = product(&[self.spines, self.bundle]) as f64;
        self.hosts_per_leaf as f64 * link.as_f64() / (uplinks * uplink.as_f64())
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let Self { leaves, spines, hosts_per_leaf, bundle, .. } = *self;
        all_positive(&[
            ("leaves", leaves),
            ("spines", spines),
            ("hosts_per_leaf", hosts_per_leaf),
            ("bundle", bundle),
        ])?;
        let hosts = product(&[leaves, hosts_per_leaf]);
        two_tiers(hosts, (leaves, spines, bundle), (&self.link, &self.uplink), |host| host / hosts_per_leaf)
    }
}

/// Hosts at leaves, and every leaf connected to every spine by a bundle of cables. `leaf_of` says at which leaf a host is.
fn two_tiers(
    hosts: usize,
    (leaves, spines, bundle): (usize, usize, usize),
    (link, uplink): (&Link, &Link),
    leaf_of: impl Fn(usize) -> usize,
) -> Result<Topology, TopologyError> {
    let link = link.over(Wire::default(), "link")?;
    let uplink = uplink.over(link, "uplink")?;
    let uplinks = product(&[leaves, spines, bundle]);
    let mut builder = Builder::new(hosts, sum(&[leaves, spines]), sum(&[hosts, uplinks]))?;
    let hosts = builder.hosts(hosts);
    let (leaves, spines) = (builder.switches("leaf", 1, leaves), builder.switches("spine", 2, spines));
    for host in hosts {
        builder.cable(host, leaves.start + leaf_of(host), link);
    }
    builder.mesh(leaves, spines, bundle, uplink);
    builder.finish()
}

/// A fat tree of switches that have all the same number of ports, `k`: `k` pods of `k / 2` edge switches (`edge0` and so on)
/// and as many aggregation switches (`agg0`), and `(k / 2)²` core switches (`core0`). It has `k³ / 4` hosts.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatTree {
    /// The ports of a switch, an even number.
    pub k: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cables between edge and aggregation switches.
    #[serde(default)]
    pub uplink: Link,
    /// The cables between aggregation and core switches. What is not said is as below them.
    #[serde(default)]
    pub core: Link,
}

impl FatTree {
    /// A fat tree of switches with `k` ports and cables of the defaults.
    #[must_use]
    pub fn new(k: usize) -> Self {
        let link = Link::default();
        Self { k, link, uplink: link, core: link }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let k = self.k;
        all_positive(&[("k", k)])?;
        if !k.is_multiple_of(2) {
            return Err(TopologyError::Odd { k });
        }
        let link = self.link.over(Wire::default(), "link")?;
        let uplink = self.uplink.over(link, "uplink")?;
        let core = self.core.over(uplink, "core")?;
        let half = k / 2;
        let (in_tier, cores) = (product(&[k, half]), product(&[half, half]));
        let hosts = product(&[in_tier, half]);
        let mut builder = Builder::new(hosts, sum(&[in_tier, in_tier, cores]), product(&[3, hosts]))?;
        let hosts = builder.hosts(hosts);
        let edges = builder.switches("edge", 1, in_tier);
        let aggs = builder.switches("agg", 2, in_tier);
        let cores = builder.switches("core", 3, cores);
        builder.spread(hosts, edges.clone(), link);
        for pod in 0..k {
            let of_pod = |first: usize| first + pod * half..first + (pod + 1) * half;
            builder.mesh(of_pod(edges.start), of_pod(aggs.start), 1, uplink);
        }
        for (number, agg) in aggs.enumerate() {
            let group = cores.start + number % half * half;
            builder.mesh(agg..agg + 1, group..group + half, 1, core);
        }
        builder.finish()
    }
}

/// Servers with several NICs, one for each rail: NIC `i` of every server is at `leaf` `i`, and spines connect the leaves.
/// NIC `i` of server `s` is the host number `s * nics + i`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// The number of servers.
    pub servers: usize,
    /// The NICs of each server, which is the number of leaves.
    pub nics: usize,
    /// The number of spines.
    pub spines: usize,
    /// The cables from each leaf to each spine.
    #[serde(default = "one")]
    pub bundle: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cables between leaves and spines.
    #[serde(default)]
    pub uplink: Link,
}

impl Rail {
    /// So many servers, NICs per server and spines, with single cables of the defaults.
    #[must_use]
    pub fn new(servers: usize, nics: usize, spines: usize) -> Self {
        let link = Link::default();
        Self { servers, nics, spines, bundle: 1, link, uplink: link }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let Self { servers, nics, spines, bundle, .. } = *self;
        all_positive(&[("servers", servers), ("nics", nics), ("spines", spines), ("bundle", bundle)])?;
        let hosts = product(&[servers, nics]);
        two_tiers(hosts, (nics, spines, bundle), (&self.link, &self.uplink), |host| host % nics)
    }
}
