//! Workloads in scenario files.

use super::collective::CollectiveConfig;
use super::trace::{self, Format};
use super::{Flow, Group, Operation, Service, Sizes, Start};
use crate::topology::Topology;
use crate::words;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use time::Duration;

/// How flows are carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Common {
    /// The operation.
    pub operation: Operation,
    /// The service of the queue pairs.
    pub service: Service,
    /// The priority, 0 to 7: the upper three bits of the DSCP.
    pub priority: u8,
    /// The most bytes of a message. Longer flows are several messages.
    #[serde(with = "words::size")]
    pub message: u64,
    /// The messages that a flow has outstanding.
    pub depth: u32,
    /// When the first flow begins.
    #[serde(with = "words::duration")]
    pub start: Duration,
    /// No flow begins together with another: each waits a random part of this time.
    #[serde(with = "words::duration")]
    pub spread: Duration,
    /// The time to live of the packets.
    pub hop_limit: u8,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            operation: Operation::Write,
            service: Service::Rc,
            priority: 3,
            message: 1 << 20,
            depth: 4,
            start: Duration::ZERO,
            spread: Duration::ZERO,
            hop_limit: 64,
        }
    }
}

/// A part of the load of a fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Who sends to whom.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// How.
    #[serde(flatten)]
    pub common: Common,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowConfig {
    /// The host that sends, by name.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// Its bytes. `None`: it goes on until the run ends.
    #[serde(default, with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// When it begins, after the start of the workload.
    #[serde(default, with = "words::duration")]
    pub start: Duration,
    /// Its name in reports. The default is `from>to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Who sends to whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "pattern", rename_all = "kebab-case")]
pub enum Pattern {
    /// These flows.
    Flows {
        /// They.
        flow: Vec<FlowConfig>,
    },
    /// Many hosts send to one.
    Incast {
        /// The host that receives.
        to: String,
        /// The number of hosts that send: the first ones beside it. The default is all.
        #[serde(default)]
        senders: Option<usize>,
        /// The bytes of each. `None`: they go on until the run ends.
        #[serde(default, with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// Every host sends to one other, and receives from one: a random permutation without fixed points.
    Permutation {
        /// The bytes of each. `None`: they go on until the run ends.
        #[serde(default, with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// Every host sends to every other.
    AllToAll {
        /// The bytes for each.
        #[serde(with = "words::size")]
        bytes: u64,
    },
    /// Flows of random sizes between random hosts at random times: a Poisson process.
    Poisson {
        /// The share of the hosts' links that the flows use, without headers: 0 to 1.
        load: f64,
        /// The distribution of their sizes.
        sizes: Sizes,
        /// For how long flows begin.
        #[serde(with = "words::duration")]
        time: Duration,
    },
    /// The flows of a file of another simulator. Their names, times and sizes are its own, everything else that of the workload.
    Trace {
        /// The file, relative to the folder of the scenario.
        file: PathBuf,
        /// Its form.
        format: Format,
    },
    /// Hosts compute one result together.
    Collective(CollectiveConfig),
    /// Hosts ask one for data, each again when it has its answer: a READ of so many bytes, or a SEND of a request and one of
    /// the response.
    RequestResponse {
        /// The host that answers.
        server: String,
        /// The number of hosts that ask: the first ones beside it.
        clients: usize,
        /// Bytes of a request, unless the operation is READ.
        #[serde(with = "words::size")]
        request: u64,
        /// Bytes of a response.
        #[serde(with = "words::size")]
        response: u64,
        /// How often each asks.
        count: u32,
        /// The time between an answer and the next request.
        #[serde(default, with = "words::duration")]
        think: Duration,
    },
}

/// Why a workload cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A host of this name does not exist.
    #[error("there is no host {name}: {advice}")]
    NoHost {
        /// The name.
        name: String,
        /// What to write instead.
        advice: String,
    },
    /// It needs at least two hosts.
    #[error("a workload needs two hosts at least")]
    TooFewHosts,
    /// A flow from a host to itself.
    #[error("{0} sends to itself: that does not enter the fabric")]
    Itself(String),
    /// More senders than hosts.
    #[error("{wanted} hosts are to send, and there are {there} beside the receiver")]
    Senders {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        there: usize,
    },
    /// A share that is none.
    #[error("the load is {0}: write a number above 0, and up to 1")]
    Load(f64),
    /// A number that is out of its range.
    #[error("{what} is {value}: {advice}")]
    Range {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What to write instead.
        advice: &'static str,
    },
    /// The service does not have the operation.
    #[error("{service:?} has no {operation:?}: {advice}")]
    NoOperation {
        /// The service.
        service: Service,
        /// The operation.
        operation: Operation,
        /// What to write instead.
        advice: &'static str,
    },
    /// A file of flows.
    #[error("{0}")]
    Trace(String),
    /// An operation of many hosts.
    #[error("{0}")]
    Collective(#[from] rnic_collectives::PlanError),
    /// Too many flows.
    #[error("{0} flows are more than {MOST_FLOWS}")]
    TooMany(usize),
}

/// The most flows of a scenario: their records take some hundred megabytes.
pub const MOST_FLOWS: usize = 1 << 20;

impl Workload {
    /// The flows. Random choices follow from `seed`; `number` is the number of flows before these, and `base` the folder from
    /// which files are named.
    ///
    /// # Errors
    /// The workload does not fit the topology.
    pub fn flows(
        &self,
        topology: &Topology,
        base: &Path,
        seed: u64,
        number: usize,
    ) -> Result<Vec<Flow>, WorkloadError> {
        self.check()?;
        let hosts = topology.hosts();
        if hosts < 2 {
            return Err(WorkloadError::TooFewHosts);
        }
        let mut plan = Plan {
            topology,
            common: &self.common,
            lots: ChaCha8Rng::seed_from_u64(seed ^ (number as u64) << 32),
            flows: Vec::new(),
        };
        match &self.pattern {
            Pattern::Flows { flow } => {
                for of in flow {
                    let (src, dst) = (plan.host(&of.from)?, plan.host(&of.to)?);
                    plan.add(of.name.clone(), src, dst, of.bytes, of.start)?;
                }
            }
            Pattern::Incast { to, senders, bytes } => {
                let dst = plan.host(to)?;
                for src in plan.beside(dst, *senders)? {
                    plan.add(None, src, dst, *bytes, Duration::ZERO)?;
                }
            }
            Pattern::Permutation { bytes } => {
                for (src, dst) in permutation(hosts, &mut plan.lots).into_iter().enumerate() {
                    plan.add(None, src, dst, *bytes, Duration::ZERO)?;
                }
            }
            Pattern::AllToAll { bytes } => {
                // Each begins with its neighbour, so that no receiver is everyone's first.
                for step in 1..hosts {
                    for src in 0..hosts {
                        plan.add(None, src, (src + step) % hosts, Some(*bytes), Duration::ZERO)?;
                    }
                }
            }
            Pattern::Poisson { load, sizes, time } => plan.poisson(*load, *sizes, *time)?,
            Pattern::Trace { file, format } => {
                let traffic = format.read(&base.join(file), topology)?;
                let name_of = |host: usize| topology.nodes[host].name.clone();
                plan.flows = trace::flows(&traffic, hosts, &self.common, number, name_of)?;
            }
            // Its messages are no flows: they follow from one another.
            Pattern::Collective(_) => {}
            Pattern::RequestResponse { server, clients, request, response, count, think } => {
                let server = plan.host(server)?;
                for client in plan.beside(server, Some(*clients))? {
                    plan.conversation((client, server), (*request, *response), *count, *think, number)?;
                }
            }
        }
        Ok(plan.flows)
    }

    /// The hosts that compute together, if that is the pattern. A random placement follows from `seed`; `number` is the number
    /// of the workload.
    ///
    /// # Errors
    /// The workload does not fit the topology.
    pub fn group(
        &self,
        topology: &Topology,
        seed: u64,
        number: usize,
    ) -> Result<Option<Group>, WorkloadError> {
        let Pattern::Collective(config) = &self.pattern else { return Ok(None) };
        self.check()?;
        let mut lots = ChaCha8Rng::seed_from_u64(seed ^ (number as u64) << 48);
        Ok(Some(config.group(topology.hosts(), &self.common, &mut lots)?))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let Common { operation, service, priority, message, depth, hop_limit, .. } = &self.common;
        let range = |what, value, ok, advice| {
            if ok { Ok(()) } else { Err(WorkloadError::Range { what, value, advice }) }
        };
        range("priority", (*priority).into(), *priority < 8, "write 0 to 7")?;
        range("message", *message, (1..=1 << 30).contains(message), "write 1 to 1 GiB")?;
        range("depth", (*depth).into(), (1..=1024).contains(depth), "write 1 to 1024")?;
        range("hop_limit", (*hop_limit).into(), *hop_limit >= 2, "write 2 to 255")?;
        let (service, operation) = (*service, *operation);
        let advice = match (service, operation) {
            (Service::Uc, Operation::Read) => "write `write` or `send`, or `service = \"rc\"`",
            (Service::Ud, Operation::Write | Operation::Read) => "write `operation = \"send\"`",
            _ => return Ok(()),
        };
        Err(WorkloadError::NoOperation { service, operation, advice })
    }
}

/// Flows in the making.
struct Plan<'a> {
    topology: &'a Topology,
    common: &'a Common,
    lots: ChaCha8Rng,
    flows: Vec<Flow>,
}

impl Plan<'_> {
    fn host(&self, name: &str) -> Result<usize, WorkloadError> {
        let hosts = &self.topology.nodes[..self.topology.hosts()];
        hosts.iter().position(|host| host.name == name).ok_or_else(|| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            let advice = match names.as_slice() {
                [first, .., last] if names.len() > 8 => format!("they are {first} to {last}"),
                _ => cc::unknown(name, &names),
            };
            WorkloadError::NoHost { name: name.to_owned(), advice }
        })
    }

    /// The first hosts beside one.
    fn beside(&self, host: usize, wanted: Option<usize>) -> Result<Vec<usize>, WorkloadError> {
        let there = self.topology.hosts() - 1;
        let wanted = wanted.unwrap_or(there);
        if wanted > there || wanted == 0 {
            return Err(WorkloadError::Senders { wanted, there });
        }
        Ok((0..=there).filter(|other| *other != host).take(wanted).collect())
    }

    fn add(
        &mut self,
        name: Option<String>,
        src: usize,
        dst: usize,
        bytes: Option<u64>,
        start: Duration,
    ) -> Result<(), WorkloadError> {
        let name_of = |host: usize| self.topology.nodes[host].name.clone();
        if src == dst {
            return Err(WorkloadError::Itself(name_of(src)));
        }
        let name = name.unwrap_or_else(|| format!("{}>{}", name_of(src), name_of(dst)));
        let spread = u64::try_from(self.common.spread.as_nanos()).unwrap_or(u64::MAX);
        let wait = if spread == 0 { 0 } else { self.lots.next_u64() % spread };
        let start = Start::At(self.common.start + start + Duration::from_nanos(wait));
        self.push(name, src, dst, bytes, start)
    }

    fn push(
        &mut self,
        name: String,
        src: usize,
        dst: usize,
        bytes: Option<u64>,
        start: Start,
    ) -> Result<(), WorkloadError> {
        if self.flows.len() >= MOST_FLOWS {
            return Err(WorkloadError::TooMany(self.flows.len() + 1));
        }
        // 20 bits, and not 0, which means that the destination chooses.
        let label = (self.lots.next_u32() >> 12).max(1);
        self.flows.push(Flow { name, src, dst, bytes, start, common: self.common.clone(), label });
        Ok(())
    }

    /// Flows that begin at random times, so many that they use the share `load` of all hosts' links.
    fn poisson(&mut self, load: f64, sizes: Sizes, time: Duration) -> Result<(), WorkloadError> {
        if !(load > 0.0 && load <= 1.0) {
            return Err(WorkloadError::Load(load));
        }
        let hosts = self.topology.hosts();
        let rate = self.topology.cables.iter().filter(|cable| cable.ends.iter().any(|end| *end < hosts));
        let bits: f64 = rate.map(|cable| cable.rate.as_f64()).sum();
        let mean = 8.0 * sizes.mean() / (load * bits);
        let mut at = 0.0;
        loop {
            let unit = ((self.lots.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            at -= mean * libm::log(unit);
            if at >= time.as_secs_f64() {
                return Ok(());
            }
            let src = (self.lots.next_u64() % hosts as u64) as usize;
            let dst = (src + 1 + (self.lots.next_u64() % (hosts as u64 - 1)) as usize) % hosts;
            let bytes = sizes.draw(&mut self.lots);
            self.add(
                Some(sizes.name().to_owned()),
                src,
                dst,
                Some(bytes),
                Duration::from_nanos((at * 1e9) as u64),
            )?;
        }
    }

    /// Requests and responses of one client, each behind the other.
    fn conversation(
        &mut self,
        (client, server): (usize, usize),
        (request, response): (u64, u64),
        count: u32,
        think: Duration,
        number: usize,
    ) -> Result<(), WorkloadError> {
        for turn in 0..count {
            let last = number + self.flows.len();
            let start = match turn {
                0 => Start::At(self.common.start),
                _ => Start::After { flows: vec![last - 1], needed: 1, delay: think },
            };
            if self.common.operation == Operation::Read {
                self.push("read".to_owned(), client, server, Some(response), start)?;
                continue;
            }
            self.push("request".to_owned(), client, server, Some(request), start)?;
            let answer = Start::After { flows: vec![last], needed: 1, delay: Duration::ZERO };
            self.push("response".to_owned(), server, client, Some(response), answer)?;
        }
        Ok(())
    }
}

/// A random permutation without fixed points.
fn permutation(hosts: usize, lots: &mut ChaCha8Rng) -> Vec<usize> {
    loop {
        let mut order: Vec<usize> = (0..hosts).collect();
        // Fisher and Yates.
        for last in (1..hosts).rev() {
            order.swap(last, (lots.next_u64() % (last as u64 + 1)) as usize);
        }
        // One in e has no fixed point.
        if order.iter().enumerate().all(|(src, dst)| src != *dst) {
            return order;
        }
    }
}
