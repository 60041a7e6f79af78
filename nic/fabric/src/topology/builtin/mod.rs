//! The usual shapes, by their parameters.
//!
//! Hosts are `host0`, `host1` and so on in all of them, and hosts of one switch have successive numbers. Switches are named by
//! what they are. The first cables are those of the hosts, in the order of hosts; so a leaf's first ports lead to its hosts.

mod flat;
mod trees;

pub use flat::{Direct, Dragonfly, Dumbbell, Ring, Star};
pub use trees::{FatTree, LeafSpine, Rail};
