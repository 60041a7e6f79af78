//! An all-reduce by two binary trees, as in NCCL. Only for `schedule`.

use super::{Kind, Op};
use crate::plan::Plan;
use std::ops::Range;

/// The neighbours of a rank in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `None` at the root.
    pub(super) parent: Option<usize>,
    pub(super) children: [Option<usize>; 2],
}

/// The place of a rank in the first tree: odd ranks are leaves, and the lowest bit of a rank is the level of it.
fn place(rank: usize, ranks: usize) -> Place {
    if rank == 0 {
        // Below the root there is the largest power of two.
        let child = (ranks > 1).then(|| 1 << (ranks - 1).ilog2());
        return Place { parent: None, children: [child, None] };
    }
    let bit = 1 << rank.trailing_zeros();
    let above = (rank ^ bit) | bit << 1;
    let parent = if above < ranks { above } else { rank ^ bit };
    let lower = (bit > 1).then(|| rank - bit / 2);
    let mut step = bit / 2;
    while step > 0 && rank + step >= ranks {
        step /= 2;
    }
    let upper = (step > 0).then(|| rank + step);
    Place { parent: Some(parent), children: [lower, upper] }
}

/// The place of a rank in tree 0 or 1. The second one is the first, mirrored if the number of ranks is even, shifted by one
/// rank otherwise: so its inner nodes are leaves of the first.
pub(super) fn place_in(tree: usize, rank: usize, ranks: usize) -> Place {
    if tree == 0 {
        return place(rank, ranks);
    }
    let is_even = ranks.is_multiple_of(2);
    let there = if is_even { ranks - 1 - rank } else { (rank + ranks - 1) % ranks };
    let back = |other: usize| if is_even { ranks - 1 - other } else { (other + 1) % ranks };
    let Place { parent, children } = place(there, ranks);
    Place { parent: parent.map(back), children: children.map(|child| child.map(back)) }
}

/// The operations of a turn: sums from two children, and up; then another piece down, and to two children.
const STAGES: usize = 6;

/// After how many turns for each level of the tree a piece goes down. While all pieces go up, a turn takes as long as two pieces
/// on the wire: so these are sixteen pieces, for a message to the next level and one back. That is enough if the latency of
/// a message is up to seven times as long as a piece: 2.3 us for 4 KiB at 100 Gb/s. With many more, a long vector ends
/// later: a rank that is ahead of its neighbours going up has to wait for them before anything goes down.
const TURNS_OF_LEVEL: usize = 8;

/// A schedule of turns, in each of which one piece of the first tree goes up and another one down, and then the same in the
/// second tree.
///
/// Messages from one rank to another come in one order, and those of a piece that goes down in one tree would hold up those of
/// the next piece that goes up in the other. So a piece goes down some [turns](TURNS_OF_LEVEL) after it has gone up. The wires of
/// an inner node are full meanwhile, in both directions, whether pieces go up, or down, or both: so the delay costs nothing,
/// and a piece that is not there yet when its turn comes costs as much time as it is late.
#[derive(Clone, Debug)]
pub(super) struct Trees {
    places: [Place; 2],
    halves: [Range<usize>; 2],
    piece: usize,
    /// Turns between the way up and the way down.
    delay: usize,
    turns: usize,
    /// The next operation: its turn, tree and stage.
    turn: usize,
    tree: usize,
    stage: usize,
}

impl Trees {
    pub(super) fn new(plan: &Plan, rank: usize, ranks: usize, piece: usize) -> Self {
        let places = [0, 1].map(|tree| place_in(tree, rank, ranks));
        let halves = [0, 1].map(|tree| plan.part(tree, 2));
        // The second half is never shorter than the first.
        let pieces = halves[1].len().div_ceil(piece);
        let delay = pieces.min(TURNS_OF_LEVEL * ranks.ilog2() as usize);
        Self { places, halves, piece, delay, turns: pieces + delay, turn: 0, tree: 0, stage: 0 }
    }

    /// The bytes of a piece; none if there is no such piece.
    fn range(&self, piece: usize) -> Range<usize> {
        let half = &self.halves[self.tree];
        let start = half.start.saturating_add(piece.saturating_mul(self.piece)).min(half.end);
        start..half.end.min(start.saturating_add(self.piece))
    }

    pub(super) fn next(&mut self) -> Option<Op> {
        while self.turn < self.turns {
            let Place { parent, children: [one, other] } = self.places[self.tree];
            let (kind, peer) = match self.stage {
                0 => (Kind::Add, one),
                1 => (Kind::Add, other),
                2 => (Kind::Send, parent),
                3 => (Kind::Replace, parent),
                4 => (Kind::Send, one),
                _ => (Kind::Send, other),
            };
            let piece = if self.stage < 3 { Some(self.turn) } else { self.turn.checked_sub(self.delay) };
            let range = piece.map_or(0..0, |piece| self.range(piece));
            self.stage += 1;
            if self.stage == STAGES {
                self.stage = 0;
                self.turn += self.tree;
                self.tree ^= 1;
            }
            if let Some(peer) = peer
                && !range.is_empty()
            {
                return Some(Op { kind, peer, range });
            }
        }
        None
    }
}
