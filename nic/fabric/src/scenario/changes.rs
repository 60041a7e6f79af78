//! What happens to a fabric while it runs.

use crate::network::Change;
use crate::routing::Routes;
use crate::topology::{Topology, TopologyError};
use crate::words;
use serde::Deserialize;
use std::sync::Arc;
use time::Duration;

/// A change at a time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChangeConfig {
    /// A cable is cut, and repaired later. The switches route around it after their reaction time.
    Cut {
        /// The cable, such as `leaf0-spine1`.
        cable: String,
        /// When.
        #[serde(with = "words::duration")]
        at: Duration,
        /// When it is whole again. `None`: never.
        #[serde(default, with = "words::duration_or_none")]
        until: Option<Duration>,
        /// How long the switches take to use other ways.
        #[serde(default, with = "words::duration")]
        reaction: Duration,
    },
    /// A host pauses classes, however empty its buffer is.
    Storm {
        /// The host.
        host: String,
        /// The classes.
        classes: Vec<u8>,
        /// When.
        #[serde(with = "words::duration")]
        at: Duration,
        /// When it stops. `None`: never.
        #[serde(default, with = "words::duration_or_none")]
        until: Option<Duration>,
    },
}

/// Why a change cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// No such cable.
    #[error("{0}")]
    Cable(#[from] TopologyError),
    /// No such host.
    #[error("there is no host {name}: {advice}")]
    Host {
        /// The name.
        name: String,
        /// What to write instead.
        advice: String,
    },
    /// No such class.
    #[error("there is no class {0}: write 0 to 7")]
    Class(u8),
}

/// What is planned.
#[derive(Clone, Debug)]
pub(super) enum Planned {
    /// A change.
    Change(Change),
    /// The switches know of a cable that it was cut or repaired.
    Known { cable: usize, is_up: bool },
}

/// The changes in the order of their times. What switches know adds up: their routes avoid all cables of which they know that
/// they are cut.
pub(super) fn in_order(
    mut plan: Vec<(Duration, Planned)>,
    topology: &Topology,
    routes: &Routes,
) -> Vec<(Duration, Change)> {
    // Stable: what happens at the same time keeps its order.
    plan.sort_by_key(|(at, _)| *at);
    let mut known = routes.clone();
    let change = |(at, planned)| match planned {
        Planned::Change(change) => (at, change),
        Planned::Known { cable, is_up } => {
            if is_up {
                known.up(topology, cable);
            } else {
                known.down(topology, cable);
            }
            (at, Change::Routes(Arc::new(known.clone())))
        }
    };
    plan.into_iter().map(change).collect()
}

impl ChangeConfig {
    /// The changes of a fabric with this topology.
    pub(super) fn plan(&self, topology: &Topology) -> Result<Vec<(Duration, Planned)>, ChangeError> {
        match self {
            Self::Cut { cable, at, until, reaction } => {
                let mut plan = Vec::new();
                for cable in topology.cables_named(cable)? {
                    for (at, is_up) in [(Some(*at), false), (*until, true)] {
                        let Some(at) = at else { continue };
                        plan.push((at, Planned::Change(Change::Cable { cable, is_up })));
                        plan.push((at + *reaction, Planned::Known { cable, is_up }));
                    }
                }
                Ok(plan)
            }
            Self::Storm { host, classes, at, until } => {
                let hosts = &topology.nodes[..topology.hosts()];
                let found = hosts.iter().position(|node| node.name == *host);
                let Some(host) = found else {
                    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
                    return Err(ChangeError::Host { name: host.clone(), advice: cc::unknown(host, &names) });
                };
                if let Some(class) = classes.iter().find(|class| **class > 7) {
                    return Err(ChangeError::Class(*class));
                }
                let classes = classes.iter().fold(0, |all, class| all | 1 << class);
                let storm = |at, classes| (at, Planned::Change(Change::Storm { host, classes }));
                let end = until.map(|until| storm(until, 0));
                Ok([storm(*at, classes)].into_iter().chain(end).collect())
            }
        }
    }
}
