//! Queues between the engine, which runs in whatever thread drives the port, and the program's threads.

mod ring;

pub(crate) use ring::{Consumer, Producer, ring};
