//! Collective operations over verbs: many ranks compute one result together.
//!
//! This is an example library. It uses the objects that `rnic` re-exports and nothing else, so the same code runs over
//! sockets and in a simulation. It reads no clock and never waits: a program calls [`Communicator::start`], and then
//! [`Communicator::poll`] until that returns true. Both take the time, counted from whatever the program likes.
//!
//! When a rank is gone, every other one ends with an error ([`CollectiveError::Failed`] or [`CollectiveError::Lost`]). A rank
//! that waits for a silent neighbour asks it with an empty WRITE, which the transport of the other end acknowledges; whoever has
//! no answer, however often it was asked, tells its own neighbours, and they tell theirs. A rank that is there but does not poll
//! is waited for without end: nobody can tell it from a slow one.
//!
//! - [`plan`]: what is computed, and how.
//! - [`schedule`]: who sends which bytes to whom, and in what order. A [`Schedule`] is a state machine without input or
//!   output: it holds a few numbers, and makes one [`Op`](schedule::Op) after the other.
//! - [`Communicator`]: one rank. It has one RC queue pair for each neighbour that its schedules need.
//! - [`InNetwork`]: one rank of an all-reduce that switches compute; [`block`] has the format of its packets.
//!
//! ```
//! use rnic_collectives::{Algorithm, Collective, Communicator, Element, Plan, Settings, peers};
//! use rnic_core::ConnectOptions;
//!
//! let net = rnic_core::sim::Net::new();
//! let plan = Plan { collective: Collective::AllReduce, algorithm: Algorithm::Ring, element: Element::U64, count: 1000 };
//! let mut ranks = Vec::new();
//! for rank in 0..3 {
//!     let neighbours = peers(&plan, rank, 3)?;
//!     let ours = Communicator::new(&net.device(), rank, 3, &neighbours, plan.bytes(rank, 3), &Settings::default())?;
//!     for index in 0..plan.count {
//!         ours.data().store_u64(8 * index, (rank + index) as u64)?;
//!     }
//!     ranks.push(ours);
//! }
//! for rank in 0..3 {
//!     for peer in peers(&plan, rank, 3)? {
//!         let offer = ranks[peer.rank].offer(rank)?;
//!         ranks[rank].connect(&offer, &ConnectOptions::default())?;
//!     }
//! }
//! ranks.iter_mut().try_for_each(|rank| rank.start(&plan, net.elapsed()))?;
//! let mut left = 3;
//! while left > 0 {
//!     left = 0;
//!     for rank in &mut ranks {
//!         left += usize::from(!rank.poll(net.elapsed())?);
//!     }
//!     net.step();
//! }
//! assert_eq!(ranks[2].data().load_u64(8 * 10)?, 10 + 11 + 12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod block;
mod communicator;
mod in_network;
mod link;
pub mod plan;
pub mod schedule;
mod window;

pub use communicator::{CollectiveError, Communicator, Counts, Settings};
pub use in_network::{InNetwork, InNetworkSettings};
pub use link::Offer;
pub use plan::{Algorithm, Collective, Element, Plan, PlanError};
pub use schedule::{Peer, Schedule, peers};
