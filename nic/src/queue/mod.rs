//! Queues between the engine, which runs in whatever thread drives the port, and the program's threads.

mod completions;
mod inbox;
mod ring;
mod shared_recv;

pub(crate) use completions::{ChannelShared, CqProducer, CqShared, Pushed, completion_queue, locked};
pub(crate) use inbox::{Direction, QpShared, Work};
pub(crate) use shared_recv::SrqShared;
