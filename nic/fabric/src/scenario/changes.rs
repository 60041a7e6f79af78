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

impl ChangeConfig {
    /// The changes of a fabric with this topology and these routes.
    pub(super) fn plan(
        &self,
        topology: &Topology,
        routes: &Routes,
    ) -> Result<Vec<(Duration, Change)>, ChangeError> {
        match self {
            Self::Cut { cable, at, until, reaction } => {
                let cables = topology.cables_named(cable)?;
                let cut = |is_up| cables.iter().map(move |cable| Change::Cable { cable: *cable, is_up });
                let mut around = routes.clone();
                cables.iter().for_each(|cable| around.down(topology, *cable));
                let mut changes: Vec<_> = cut(false).map(|change| (*at, change)).collect();
                changes.push((*at + *reaction, Change::Routes(Arc::new(around))));
                if let Some(until) = until {
                    changes.extend(cut(true).map(|change| (*until, change)));
                    changes.push((*until + *reaction, Change::Routes(Arc::new(routes.clone()))));
                }
                Ok(changes)
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
                let end = until.map(|until| (until, Change::Storm { host, classes: 0 }));
                Ok([(*at, Change::Storm { host, classes })].into_iter().chain(end).collect())
            }
        }
    }
}
