//! Shapes whose switches are all of one tier.

use crate::topology::builder::{Builder, all_positive, product, sum};
use crate::topology::link::Wire;
use crate::topology::{Link, Topology, TopologyError};
use serde::Deserialize;

/// Hosts at one switch, `s0`: the shape of an incast.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Star {
    /// The number of hosts.
    pub hosts: usize,
    /// The cables.
    #[serde(default)]
    pub link: Link,
}

impl Star {
    /// So many hosts, with cables of the defaults.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self { hosts, link: Link::default() }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        all_positive(&[("hosts", self.hosts)])?;
        let link = self.link.over(Wire::default(), "link")?;
        let mut builder = Builder::new(self.hosts, 1, self.hosts)?;
        let (hosts, switch) = (builder.hosts(self.hosts), builder.switches("s", 1, 1));
        builder.spread(hosts, switch, link);
        builder.finish()
    }
}

/// Two hosts and a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Direct {
    /// The cable.
    pub link: Link,
}

impl Direct {
    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let link = self.link.over(Wire::default(), "link")?;
        let mut builder = Builder::new(2, 0, 1)?;
        builder.hosts(2);
        builder.cable(0, 1, link);
        builder.finish()
    }
}

/// Two switches, `s0` and `s1`, with a cable between them that all hosts of one side share to reach the other.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dumbbell {
    /// The hosts of each switch.
    pub hosts_per_side: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cable between the switches.
    #[serde(default)]
    pub uplink: Link,
}

impl Dumbbell {
    /// So many hosts on each side, with cables of the defaults.
    #[must_use]
    pub fn new(hosts_per_side: usize) -> Self {
        Self { hosts_per_side, link: Link::default(), uplink: Link::default() }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        all_positive(&[("hosts_per_side", self.hosts_per_side)])?;
        let link = self.link.over(Wire::default(), "link")?;
        let uplink = self.uplink.over(link, "uplink")?;
        let hosts = product(&[2, self.hosts_per_side]);
        let mut builder = Builder::new(hosts, 2, sum(&[hosts, 1]))?;
        let (hosts, switches) = (builder.hosts(hosts), builder.switches("s", 1, 2));
        builder.spread(hosts, switches.clone(), link);
        builder.cable(switches.start, switches.start + 1, uplink);
        builder.finish()
    }
}

/// A ring of switches, `s0`, `s1` and so on, each with hosts: the shape in which buffers wait for each other.
///
/// The ports of a switch are its hosts', and then in `s0` those to the next and to the last switch, in every other switch those
/// to the switch before it and to the next.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// The number of switches, at least 3.
    pub switches: usize,
    /// The hosts of each.
    pub hosts_per_switch: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cables between the switches.
    #[serde(default)]
    pub uplink: Link,
}

impl Ring {
    /// So many switches with so many hosts each, and cables of the defaults.
    #[must_use]
    pub fn new(switches: usize, hosts_per_switch: usize) -> Self {
        Self { switches, hosts_per_switch, link: Link::default(), uplink: Link::default() }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        all_positive(&[("hosts_per_switch", self.hosts_per_switch)])?;
        if self.switches < 3 {
            return Err(TopologyError::Ring { switches: self.switches });
        }
        let link = self.link.over(Wire::default(), "link")?;
        let uplink = self.uplink.over(link, "uplink")?;
        let hosts = product(&[self.switches, self.hosts_per_switch]);
        let mut builder = Builder::new(hosts, self.switches, sum(&[hosts, self.switches]))?;
        let (hosts, switches) = (builder.hosts(hosts), builder.switches("s", 1, self.switches));
        builder.spread(hosts, switches.clone(), link);
        for (number, switch) in switches.clone().enumerate() {
            builder.cable(switch, switches.start + (number + 1) % self.switches, uplink);
        }
        builder.finish()
    }
}

/// A dragonfly: groups of routers (`router0`, `router1` and so on), each router connected to all others of its group, and each
/// group to each other group by one cable. There are as many groups as that allows, `a * h + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dragonfly {
    /// The hosts of each router.
    pub p: usize,
    /// The routers of each group. A balanced dragonfly has `a = 2p = 2h`.
    pub a: usize,
    /// The cables of each router to other groups.
    pub h: usize,
    /// The cables of the hosts.
    #[serde(default)]
    pub link: Link,
    /// The cables within a group.
    #[serde(default)]
    pub uplink: Link,
    /// The cables between groups. What is not said is as within a group.
    #[serde(default)]
    pub global: Link,
}

impl Dragonfly {
    /// A dragonfly with cables of the defaults.
    #[must_use]
    pub fn new(p: usize, a: usize, h: usize) -> Self {
        let link = Link::default();
        Self { p, a, h, link, uplink: link, global: link }
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        sum(&[product(&[self.a, self.h]), 1])
    }

    /// Builds it.
    ///
    /// # Errors
    /// A parameter is impossible.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let Self { p, a, h, .. } = *self;
        all_positive(&[("p", p), ("a", a), ("h", h)])?;
        let link = self.link.over(Wire::default(), "link")?;
        let local = self.uplink.over(link, "uplink")?;
        let global = self.global.over(local, "global")?;
        let groups = self.groups();
        let routers = product(&[groups, a]);
        let hosts = product(&[routers, p]);
        let within = product(&[groups, product(&[a, a - 1]) / 2]);
        let between = product(&[groups, groups - 1]) / 2;
        let mut builder = Builder::new(hosts, routers, sum(&[hosts, within, between]))?;
        let (hosts, routers) = (builder.hosts(hosts), builder.switches("router", 1, routers));
        builder.spread(hosts, routers.clone(), link);
        let router = |group: usize, number: usize| routers.start + group * a + number;
        for group in 0..groups {
            for one in 0..a {
                for other in one + 1..a {
                    builder.cable(router(group, one), router(group, other), local);
                }
            }
        }
        // Seen from each group, its global cable number `n` leads to the group `n + 1` further on; from the other end it is
        // number `groups - 2 - n`.
        for group in 0..groups {
            for further in 1..groups - group {
                let (one, other) = (further - 1, groups - 1 - further);
                builder.cable(router(group, one / h), router(group + further, other / h), global);
            }
        }
        builder.finish()
    }
}
