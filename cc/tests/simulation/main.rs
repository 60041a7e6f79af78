//! The parts of the crate together, in virtual time: many flows into one queue, pauses and credits over a cable.

mod bottleneck;
mod credits;
mod dcqcn;
mod hpcc;
mod others;
mod pfc;
