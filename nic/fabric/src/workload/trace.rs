//! Flows from files of other simulators.

use super::config::{Common, WorkloadError};
use super::{Flow, Start};
use crate::topology::traffic::{self, Traffic, TriggerKind};
use crate::topology::{Topology, htsim, ns3};
use serde::{Deserialize, Serialize};
use std::path::Path;
use time::Duration;

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// A connection matrix of htsim, with triggers.
    Htsim,
    /// A flow file of the ns-3 simulations of HPCC and ConWeave.
    Ns3,
}

impl Format {
    /// Reads a file.
    pub(super) fn read(self, file: &Path, topology: &Topology) -> Result<Traffic, WorkloadError> {
        let read = match self {
            Self::Htsim => htsim::traffic(file),
            Self::Ns3 => ns3::flows(file, topology),
        };
        read.map_err(|why| WorkloadError::Trace(why.to_string()))
    }
}

/// The flows of a file. `number` is that of the first, in the whole scenario. `name_of` names hosts.
pub(super) fn flows(
    traffic: &Traffic,
    hosts: usize,
    common: &Common,
    number: usize,
    name_of: impl Fn(usize) -> String,
) -> Result<Vec<Flow>, WorkloadError> {
    let mut flows = Vec::new();
    for (index, of) in traffic.flows.iter().enumerate() {
        if let Some(host) = [of.from, of.to].into_iter().find(|host| *host >= hosts) {
            return Err(WorkloadError::Trace(format!(
                "it has a host {host}, and the topology has {hosts} hosts"
            )));
        }
        if of.from == of.to {
            return Err(WorkloadError::Itself(name_of(of.from)));
        }
        let start = match of.start {
            traffic::Start::At(picos) => Start::At(common.start + Duration::from_nanos(picos / 1000)),
            traffic::Start::Trigger(id) => after(traffic, index, id, number)?,
        };
        let priority = of.priority.and_then(|of| u8::try_from(of).ok()).filter(|of| *of < 8);
        // Files name priorities of their own: what is none of ours keeps that of the scenario.
        let common = Common { priority: priority.unwrap_or(common.priority), ..common.clone() };
        let (src, dst) = (of.from, of.to);
        let name = format!("{}>{}", name_of(src), name_of(dst));
        // 20 bits, and not 0, which means that the destination chooses.
        let label = u32::try_from(index % 0xf_ffff).unwrap_or(0) + 1;
        flows.push(Flow { name, src, dst, bytes: Some(of.bytes), start, common, label });
    }
    Ok(flows)
}

/// When a flow begins that waits for a trigger.
fn after(traffic: &Traffic, index: usize, id: u32, number: usize) -> Result<Start, WorkloadError> {
    let activates = |of: &traffic::TrafficFlow| of.send_done == Some(id) || of.receive_done == Some(id);
    let sources = traffic.flows.iter().enumerate().filter(|(_, of)| activates(of));
    let flows: Vec<usize> = sources.map(|(source, _)| number + source).collect();
    let kind = traffic.triggers.iter().find(|trigger| trigger.id == id).map(|trigger| trigger.kind);
    let needed = match kind {
        None | Some(TriggerKind::OneShot) => 1,
        Some(TriggerKind::Barrier { count }) => count.max(1),
        // Each activation starts the next one.
        Some(TriggerKind::MultiShot) => {
            let before = traffic.flows[..index].iter().filter(|of| of.start == traffic::Start::Trigger(id));
            u32::try_from(before.count() + 1).unwrap_or(u32::MAX)
        }
    };
    if usize::try_from(needed).unwrap_or(usize::MAX) > flows.len() {
        let why = format!("trigger {id} needs {needed} activations, and {} flows activate it", flows.len());
        return Err(WorkloadError::Trace(why));
    }
    Ok(Start::After { flows, needed, delay: Duration::ZERO })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Flow>, WorkloadError> {
        let traffic = htsim::parse_traffic(text, Path::new("test.cm")).expect("a connection matrix");
        flows(&traffic, 4, &Common::default(), 10, |host| format!("host{host}"))
    }

    #[test]
    fn flows_wait_for_those_that_trigger_them() {
        let text = "Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 5000 size 1000 send_done_trigger 7\n\
                    1->2 id 2 trigger 7 size 2000\n2->3 id 3 start 0 size 3000 recv_done_trigger 7\ntrigger id 7 oneshot\n";
        let flows = read(text).expect("they fit");
        assert_eq!(flows[0].start, Start::At(Duration::from_nanos(5)));
        assert_eq!(flows[1].start, Start::After { flows: vec![10, 12], needed: 1, delay: Duration::ZERO });
        assert_eq!((flows[2].name.as_str(), flows[2].bytes), ("host2>host3", Some(3000)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = |text| read(text).expect_err("it does not fit").to_string();
        assert!(error("Nodes 9\nConnections 1\n0->8 start 0 size 1\n").contains("host 8"));
        let unheard =
            "Nodes 4\nConnections 1\nTriggers 1\n0->1 id 1 trigger 3 size 1\ntrigger id 3 oneshot\n";
        assert!(error(unheard).contains("trigger 3 needs 1 activations, and 0 flows activate it"));
    }
}
