//! Worlds of connections, and an oracle that defines what their programs may learn.
//!
//! A seed decides everything: hosts whose programs connect, listen, accept, refuse, forget to answer, send, disconnect and
//! drop; hosts that are killed or closed and start again at their address; messages that are lost, repeated, delayed and
//! overtaken; links with credits; strangers who speak in the name of others (`stranger.rs`). In the end the network is whole
//! again, time passes, and then holds:
//!
//! * a request reaches each life of a program once at most; again only if it was refused, and the refusal was lost until it was
//!   forgotten;
//! * a connection is told of in order: established or not, once; over, once;
//! * both sides are connected, to each other, or both were told that they are not. Three things may leave a side unaware
//!   until it sends, and then it learns: its peer was killed or closed; or the passive side gave up, all RTUs were lost, and
//!   the REJ as well; or all sixteen DREQs were lost;
//! * what is sent arrives at the peer of the connection, once;
//! * a request that a stranger made never becomes a connection;
//! * nobody is connected whose program refused, and nobody is told that nobody listens where somebody does;
//! * once the programs have let go, neither connections nor queue pairs are left, nor ports.

mod judge;
mod side;
mod stranger;
mod world;

use std::collections::BTreeMap;

/// The outcome of a world.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be, if it was seen.
    pub violation: Option<String>,
    /// How often each situation was reached.
    pub reached: BTreeMap<&'static str, u64>,
    /// A hash of all that programs learned, and when.
    pub hash: u64,
}

/// What every set of worlds must reach.
pub const SITUATIONS: &[&str] = &[
    "a connection is established",
    "a program refuses",
    "a program drops a request",
    "a program answers late",
    "a peer gives up before it is answered",
    "nobody listens",
    "nobody answers",
    "a side disconnects",
    "a side drops its connection",
    "a queue pair is destroyed first",
    "both sides know of the end",
    "a host is killed",
    "a host is closed",
    "a side learns of a lost peer by sending",
    "a message arrives",
    "a message is repeated by a timer",
    "a message is repeated because its cause came again",
    "a connection survives to the end",
    "messages are later than ports assume",
    "ports have credits",
    "a stranger's request is accepted, and fails",
    "a stranger repeats a message in another name",
    "a stranger guesses the numbers of a message",
    "a stranger asks in the name of a queue pair",
    "a stranger asks for a connection",
    "a stranger makes a message up",
];

/// Plays the world of a seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let mut world = world::World::new(seed);
    let violation = world.play().err();
    Outcome { violation: violation.map(|what| format!("seed {seed}: {what}")), ..world.outcome() }
}
