//! What a topology amounts to.

use super::flow::Network;
use super::{Kind, Topology};
use cc::Rate;
use std::collections::BTreeMap;
use std::fmt;
use time::Duration;

/// The numbers of a topology. Its text is a summary for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The number of hosts.
    pub hosts: usize,
    /// The tiers of switches, from below.
    pub tiers: Vec<TierDescription>,
    /// The kinds of cables, from below.
    pub cables: Vec<CablesDescription>,
    /// The pairs of hosts, from one to the other, by the number of cables between them on the shortest way.
    pub lengths: BTreeMap<usize, u64>,
    /// The pairs of hosts without a way between them.
    pub unreachable: u64,
    /// What the first half of the hosts can send to the second at most, in bits per second. In the usual shapes this is the
    /// bisection bandwidth, because hosts that are near each other have successive numbers.
    pub bisection: u64,
    /// What the first half of the hosts could send if there were only their own cables.
    pub half: u64,
}

/// A tier of switches.
#[derive(Clone, Debug, PartialEq)]
pub struct TierDescription {
    /// How many tiers above the hosts it is.
    pub tier: u8,
    /// The number of switches.
    pub switches: usize,
    /// The most ports of a switch.
    pub ports: usize,
    /// How many times the rate of its cables up a switch's cables down have together: the largest. None if none leads up.
    pub oversubscription: Option<f64>,
    /// The longest latency of a switch.
    pub latency: Duration,
}

/// Cables that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct CablesDescription {
    /// The tiers of their ends; 0 for hosts.
    pub between: [u8; 2],
    /// The rate.
    pub rate: Rate,
    /// The delay.
    pub delay: Duration,
    /// How many.
    pub number: usize,
}

impl Topology {
    /// What it amounts to.
    #[must_use]
    pub fn describe(&self) -> Description {
        let hosts = self.hosts();
        let lengths = crate::routing::lengths(self);
        let all = hosts as u64 * (hosts as u64).saturating_sub(1);
        Description {
            hosts,
            tiers: (1..=self.tiers()).filter_map(|tier| self.describe_tier(tier)).collect(),
            cables: self.describe_cables(),
            unreachable: all.saturating_sub(lengths.values().sum()),
            lengths,
            bisection: self.bisection(hosts),
            half: self.half(hosts),
        }
    }

    fn describe_tier(&self, tier: u8) -> Option<TierDescription> {
        let kind = Kind::Switch { tier };
        let (mut switches, mut most, mut latency) = (0, 0, Duration::ZERO);
        let mut oversubscription: Option<f64> = None;
        for (node, ports) in self.nodes.iter().zip(self.ports()).filter(|(node, _)| node.kind == kind) {
            (switches, most, latency) = (switches + 1, most.max(ports.len()), latency.max(node.latency));
            let (mut down, mut up) = (0.0, 0.0);
            for (cable, other) in ports {
                let rate = self.cables.get(cable).map_or(0.0, |cable| cable.rate.as_f64());
                match self.nodes.get(other).map_or(tier, |other| other.kind.tier()) {
                    other if other < tier => down += rate,
                    other if other > tier => up += rate,
                    _ => {}
                }
            }
            if up > 0.0 {
                oversubscription = Some(oversubscription.unwrap_or_default().max(down / up));
            }
        }
        (switches > 0).then_some(TierDescription { tier, switches, ports: most, oversubscription, latency })
    }

    fn describe_cables(&self) -> Vec<CablesDescription> {
        let mut kinds = BTreeMap::<_, usize>::new();
        for cable in &self.cables {
            let mut between = cable.ends.map(|end| self.nodes.get(end).map_or(0, |node| node.kind.tier()));
            between.sort_unstable();
            *kinds.entry((between, cable.rate, cable.delay)).or_default() += 1;
        }
        let kinds = kinds.into_iter();
        kinds
            .map(|((between, rate, delay), number)| CablesDescription { between, rate, delay, number })
            .collect()
    }

    /// The most that the first half of the hosts can send to the second.
    fn bisection(&self, hosts: usize) -> u64 {
        // Two more nodes: where everything begins, and where it ends.
        let (source, sink) = (self.nodes.len(), self.nodes.len() + 1);
        let mut network = Network::new(self.nodes.len() + 2);
        for cable in &self.cables {
            let rate = cable.rate.bits_per_second();
            network.edge(cable.ends[0], cable.ends[1], rate, rate);
        }
        for host in 0..hosts {
            match host < hosts / 2 {
                true => network.edge(source, host, u64::MAX, 0),
                false => network.edge(host, sink, u64::MAX, 0),
            }
        }
        network.max_flow(source, sink)
    }

    /// The rates of the cables of the first half of the hosts.
    fn half(&self, hosts: usize) -> u64 {
        let of_half = |cable: &&super::Cable| cable.ends.iter().any(|end| *end < hosts / 2);
        self.cables
            .iter()
            .filter(of_half)
            .map(|cable| cable.rate.bits_per_second())
            .fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switches: usize = self.tiers.iter().map(|tier| tier.switches).sum();
        let cables: usize = self.cables.iter().map(|cables| cables.number).sum();
        let (switches, cables) = (count(switches, "switch", "switches"), count(cables, "cable", "cables"));
        writeln!(f, "{}, {switches}, {cables}", count(self.hosts, "host", "hosts"))?;
        for TierDescription { tier, switches, ports, oversubscription, latency } in &self.tiers {
            let (switches, ports) = (count(*switches, "switch", "switches"), count(*ports, "port", "ports"));
            write!(f, "tier {tier}: {switches} of {ports}")?;
            if !latency.is_zero() {
                write!(f, ", latency {latency:?}")?;
            }
            match oversubscription {
                Some(ratio) => writeln!(f, ", oversubscription {ratio:.2}")?,
                None => writeln!(f)?,
            }
        }
        for CablesDescription { between, rate, delay, number } in &self.cables {
            let [low, high] =
                between.map(|tier| if tier == 0 { "hosts".to_owned() } else { format!("tier {tier}") });
            writeln!(f, "{low} to {high}: {}, {rate}, {delay:?}", count(*number, "cable", "cables"))?;
        }
        let pairs: u64 = self.lengths.values().sum::<u64>() + self.unreachable;
        for (cables, number) in &self.lengths {
            let cables = count(*cables, "cable", "cables");
            writeln!(f, "{cables} between {:.1} % of all pairs of hosts", share(*number, pairs))?;
        }
        if self.unreachable > 0 {
            writeln!(f, "no way between {:.1} % of all pairs of hosts", share(self.unreachable, pairs))?;
        }
        let bisection = Rate::from_bits_per_second(self.bisection);
        write!(
            f,
            "between halves: {bisection}, {:.1} % of what the hosts can send",
            share(self.bisection, self.half)
        )
    }
}

/// A number of things.
fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// In percent.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}
