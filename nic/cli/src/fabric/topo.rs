//! `rnic fabric topo`.

use super::Output;
use super::error::{Problem, Status};
use super::set::Changes;
use super::source::Source;
use super::table::Table;
use rnic_fabric::routing::Routes;
use rnic_fabric::run::address;
use rnic_fabric::topology::{Topology, emit};
use std::fmt::Write as _;

/// How many hosts are named.
const HOSTS: usize = 16;

/// Describe a scenario's topology: hosts, switches, cables, ways, and whether buffers can wait in a circle.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Buffers that can wait for one another in a circle are a danger to lossless traffic: once they \
                        are full, nothing moves any more.\n\n\
                        Example:\n  rnic fabric topo incast --dot | dot -Tsvg -o incast.svg"
)]
pub(super) struct Args {
    /// The name of a scenario of `rnic fabric list`, or a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    #[command(flatten)]
    changes: Changes,
    /// Print it for Graphviz.
    #[arg(long, conflicts_with = "ibnet")]
    dot: bool,
    /// Print it as ibnetdiscover(8) does, which ibsim reads.
    #[arg(long)]
    ibnet: bool,
    /// Name all hosts, not only the first few.
    #[arg(long, short)]
    all: bool,
}

/// Describes the topology.
pub(super) fn run(args: &Args, out: &mut Output<'_>) -> Result<Status, Problem> {
    let source = Source::find(&args.scenario)?;
    let scenario = source.with(&args.changes)?;
    let failed = |error| Problem::scenario(&*source.name, &error);
    let topology = scenario.topology(&source.base).map_err(failed)?;
    let text = if args.dot {
        emit::dot(&topology)
    } else if args.ibnet {
        emit::ibnetdiscover(&topology)
    } else {
        let routes = scenario.routes(&source.base, &topology).map_err(failed)?;
        let hosts = hosts(&topology, if args.all { usize::MAX } else { HOSTS });
        let name = &scenario.name;
        format!("{name}\n\n{}\n\nHosts\n{hosts}\nRoutes\n{}", topology.describe(), circle(&topology, &routes))
    };
    out.print(&text)?;
    Ok(Status::Passed)
}

/// The addresses of the first hosts.
fn hosts(topology: &Topology, most: usize) -> String {
    let mut table = Table::plain(3);
    let ports = topology.ports();
    for (host, node) in topology.nodes.iter().take(topology.hosts()).enumerate().take(most) {
        let at = ports.get(host).and_then(|ports| ports.first());
        let at = at.map_or(String::new(), |(_, other)| format!("at {}", topology.name(*other)));
        table.row([node.name.clone(), address(host).to_string(), at]);
    }
    let mut text = table.to_string();
    let left = topology.hosts().saturating_sub(most);
    if left > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  and {left} more (--all names them)");
    }
    text
}

/// Whether buffers can wait for one another in a circle.
fn circle(topology: &Topology, routes: &Routes) -> String {
    let dependencies = routes.dependencies(topology);
    let verdict = match dependencies.describe_cycle(topology) {
        None => {
            "no buffers can wait for one another in a circle: lossless traffic cannot deadlock".to_owned()
        }
        Some(cycle) => {
            format!("buffers can wait for one another in a circle: {cycle}; lossless traffic can deadlock")
        }
    };
    format!("  {dependencies}\n  {verdict}\n")
}
