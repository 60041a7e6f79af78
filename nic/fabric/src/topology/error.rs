//! What can be wrong with a description of a topology.

use super::{MAX_CABLES, MAX_DELAY, MAX_METRES};
use std::path::PathBuf;

/// Why there is no topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A number is zero that may not be.
    #[error("`{name}` is 0; write 1 or more")]
    Zero {
        /// The parameter.
        name: &'static str,
    },
    /// A fat tree halves the ports of its switches.
    #[error("a fat tree has switches of an even number of ports, and `k` is {k}; write {}", k.saturating_add(1))]
    Odd {
        /// The ports of a switch.
        k: usize,
    },
    /// A ring of fewer than three switches would have two cables between the same switches, or a cable to itself.
    #[error("a ring has at least 3 switches, and `switches` is {switches}; write 3 or more")]
    Ring {
        /// The number of switches.
        switches: usize,
    },
    /// It would not fit into memory.
    #[error("the topology has {number} {what}, and at most {most} are possible; make it smaller")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        number: usize,
        /// How many there may be.
        most: usize,
    },
    /// A parameter of a cable is wrong.
    #[error("`{cable}`: {why}")]
    Cable {
        /// The cable, or the setting for a tier of cables.
        cable: String,
        /// What is wrong.
        #[source]
        why: LinkError,
    },
    /// A switch's latency is too long.
    #[error("`latency` is longer than {} s; write a shorter time", MAX_DELAY.as_secs())]
    Latency,
    /// A name that could not be told from other words in rules.
    #[error("a node cannot have the name `{name}`; use letters, digits and `_`")]
    Name {
        /// The name.
        name: String,
    },
    /// Two nodes have one name.
    #[error("two nodes have the name `{name}`; rename one")]
    Twice {
        /// The name.
        name: String,
    },
    /// A cable ends at a node that there is not.
    #[error("no node has the name `{name}`; {hint}")]
    NoNode {
        /// The name.
        name: String,
        /// A similar name, or what else to do.
        hint: String,
    },
    /// There is no such cable.
    #[error(
        "there is no cable `{name}`; write the names of the nodes at its ends, as in `leaf0-spine1`, and `leaf0-spine1.2` for the third of several"
    )]
    NoCable {
        /// The name.
        name: String,
    },
    /// Both ends of a cable are at one node.
    #[error("both ends of a cable are at `{name}`; connect it to another node")]
    Loop {
        /// The node.
        name: String,
    },
    /// A host without a cable.
    #[error("the host `{name}` has no cable; connect it or remove it")]
    Alone {
        /// The host.
        name: String,
    },
    /// There are no hosts.
    #[error("the topology has no hosts; add some")]
    NoHosts,
    /// A node has more ports than port numbers have values.
    #[error("`{name}` has more than 65,536 ports; use several switches")]
    Ports {
        /// The node.
        name: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file is longer than any that is read.
    #[error("{} is longer than {most} bytes; it cannot describe a topology of at most {MAX_CABLES} cables", file.display())]
    LongFile {
        /// The file.
        file: PathBuf,
        /// The most bytes that are read.
        most: u64,
    },
    /// A line of a file is not as expected.
    #[error("{}, line {line}: expected {expected}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// What should be there.
        expected: String,
    },
}

/// What is wrong with a cable.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Delay and length say the same.
    #[error("it has both `delay` and `length`; write one of them")]
    Both,
    /// It carries nothing.
    #[error("its rate is 0; write a rate such as `100 Gb/s`")]
    NoRate,
    /// The delay is too long.
    #[error("its delay is longer than {} s; write a shorter time", MAX_DELAY.as_secs())]
    Delay,
    /// The length is not a length on earth.
    #[error("its length of {0} m is impossible; write 0 to {MAX_METRES} (metres)")]
    Length(f64),
    /// The probability is none.
    #[error("`bit_errors` of {0} is no probability; write a number from 0 to less than 1, such as 1e-12")]
    BitErrors(f64),
}
