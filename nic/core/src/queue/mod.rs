//! Queues between the engine, which runs in the thread that drives the port, and the program's threads.

mod channel;
mod completions;
mod inbox;
mod linger;
#[cfg(test)]
mod model;
mod primitives;
mod ring;
mod shared_recv;
#[cfg(test)]
mod tests;
mod waiters;
mod wishes;

pub(crate) use channel::ChannelShared;
pub use completions::locked;
pub(crate) use completions::{CqProducer, CqRoom, CqShared, Pushed, completion_queue};
pub use inbox::{QpShared, Work, WorkQueue};
pub(crate) use linger::LINGER;
pub(crate) use shared_recv::SrqShared;
pub use waiters::Waiters;
pub(crate) use wishes::Wish;
