//! Who sends which bytes to whom, and in what order.
//!
//! A [`Schedule`] makes the operations of one rank, one after the other, from a few numbers: a ring of 1,024 ranks has two
//! million messages, and none of them is in a list. The order of the operations is that of a program; a
//! [`Communicator`](crate::Communicator) runs those at the same time that do not depend on each other.
//!
//! The operations of all ranks have one common order, in which each receive comes behind its send. Every rank's schedule is a
//! part of that order. So the first operation in it that is not done yet can always go on, and no schedule deadlocks.

mod steps;
#[cfg(test)]
mod tests;
mod tree;

use crate::plan::{Algorithm, Collective, Plan, PlanError};
use std::collections::BTreeMap;
use std::ops::Range;
use steps::Steps;
use tree::Trees;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes go to a peer.
    Send,
    /// The next bytes from a peer are added to them.
    Add,
    /// The next bytes from a peer replace them.
    Replace,
    /// The bytes that begin at this place of our own data replace them.
    Copy {
        /// The place.
        from: usize,
    },
}

/// An operation on a range of a rank's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// The other rank.
    pub peer: usize,
    /// The bytes, never none.
    pub range: Range<usize>,
}

#[derive(Clone, Debug)]
enum Rule {
    Steps(Steps),
    Trees(Trees),
}

/// The operations of one rank, in their order.
#[derive(Clone, Debug)]
pub struct Schedule(Rule);

impl Schedule {
    /// The schedule of a rank. Messages have `piece` bytes at most.
    ///
    /// # Errors
    /// The algorithm does not compute what the plan says, or there is no such rank.
    pub fn new(plan: &Plan, rank: usize, ranks: usize, piece: usize) -> Result<Self, PlanError> {
        if rank >= ranks {
            return Err(PlanError::NoRank { rank, ranks });
        }
        let size = plan.element.size();
        let piece = (piece / size).max(1) * size;
        let rule = match plan.algorithm {
            Algorithm::Tree if plan.collective == Collective::AllReduce => {
                Rule::Trees(Trees::new(plan, rank, ranks, piece))
            }
            _ => Rule::Steps(Steps::new(plan, rank, ranks, piece)?),
        };
        Ok(Self(rule))
    }
}

impl Iterator for Schedule {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        match &mut self.0 {
            Rule::Steps(steps) => steps.next(),
            Rule::Trees(trees) => trees.next(),
        }
    }
}

/// A rank with which another one exchanges messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// The bytes of the longest message in either direction, before it is cut into pieces: the same at both ends.
    pub longest: usize,
}

/// The ranks with which a rank exchanges messages, in order.
///
/// # Errors
/// The algorithm does not compute what the plan says, or there is no such rank.
pub fn peers(plan: &Plan, rank: usize, ranks: usize) -> Result<Vec<Peer>, PlanError> {
    let mut longest = BTreeMap::new();
    for op in Schedule::new(plan, rank, ranks, usize::MAX)? {
        if !matches!(op.kind, Kind::Copy { .. }) {
            let longest = longest.entry(op.peer).or_insert(0);
            *longest = op.range.len().max(*longest);
        }
    }
    Ok(longest.into_iter().map(|(rank, longest)| Peer { rank, longest }).collect())
}
