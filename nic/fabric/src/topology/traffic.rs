//! Flows between hosts, as the files of other simulators describe them.

/// What is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of hosts that the file is for; 0 if it does not say.
    pub hosts: usize,
    /// The flows, in the order of the file.
    pub flows: Vec<TrafficFlow>,
    /// What starts flows after others, in the order of the file.
    pub triggers: Vec<Trigger>,
}

/// A flow: bytes from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficFlow {
    /// The number of the sending host.
    pub from: usize,
    /// The number of the receiving host.
    pub to: usize,
    /// How many bytes.
    pub bytes: u64,
    /// When it starts.
    pub start: Start,
    /// The flow's own number in the file.
    pub id: Option<u32>,
    /// The trigger to activate when all is sent and acknowledged.
    pub send_done: Option<u32>,
    /// The trigger to activate when all has arrived.
    pub receive_done: Option<u32>,
    /// The priority: a priority group of ns-3, or the order in which htsim's sender serves its flows.
    pub priority: Option<u32>,
    /// The destination port.
    pub port: Option<u16>,
}

/// When a flow starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a time, in picoseconds.
    At(u64),
    /// When the trigger of this number fires.
    Trigger(u32),
}

/// What starts flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its number.
    pub id: u32,
    /// When it fires.
    pub kind: TriggerKind,
}

/// When a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// At its first activation, and never again.
    OneShot,
    /// At every activation: each starts the next of its flows.
    MultiShot,
    /// At the activation that is the last of so many.
    Barrier {
        /// The number of activations.
        count: u32,
    },
}
