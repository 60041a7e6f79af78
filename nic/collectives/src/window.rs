//! The operations of a schedule that are under way. Only for the communicator.
//!
//! An operation may begin when no earlier one that is not done uses the same bytes and changes them, or uses bytes that it
//! changes. Additions to the same bytes may come in any order. Each operation counts those that it waits for when it comes
//! in, so nothing is searched when one is done.

use crate::schedule::{Kind, Op};
use std::collections::VecDeque;

#[derive(Debug)]
struct Entry {
    op: Op,
    is_done: bool,
    /// How many earlier ones it waits for.
    waits: u32,
    /// Those that wait for it.
    followers: Vec<u64>,
}

/// Operations in their order, each with a number.
#[derive(Debug, Default)]
pub(crate) struct Window {
    entries: VecDeque<Entry>,
    /// The number of the first.
    first: u64,
}

/// Whether the later of two operations has to wait for the earlier one.
fn collide(earlier: &Op, later: &Op) -> bool {
    let meet = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| a.start < b.end && b.start < a.end;
    let writes = |op: &Op| op.kind != Kind::Send;
    let source = |op: &Op| match op.kind {
        Kind::Copy { from } => from..from + op.range.len(),
        _ => 0..0,
    };
    let is_sum = earlier.kind == Kind::Add && later.kind == Kind::Add;
    meet(&earlier.range, &later.range) && (writes(earlier) || writes(later)) && !is_sum
        || meet(&source(earlier), &later.range) && writes(later)
        || meet(&earlier.range, &source(later)) && writes(earlier)
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the next operation of the schedule. Its number.
    pub(crate) fn push(&mut self, op: Op) -> u64 {
        let number = self.first + self.entries.len() as u64;
        let mut waits = 0;
        for earlier in self.entries.iter_mut().filter(|entry| !entry.is_done && collide(&entry.op, &op)) {
            earlier.followers.push(number);
            waits += 1;
        }
        self.entries.push_back(Entry { op, is_done: false, waits, followers: Vec::new() });
        number
    }

    fn at(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The operation with this number, if it waits for no other.
    pub(crate) fn ready(&mut self, number: u64) -> Option<Op> {
        self.at(number).filter(|entry| entry.waits == 0).map(|entry| entry.op.clone())
    }

    /// An operation is done.
    pub(crate) fn finish(&mut self, number: u64) {
        let Some(entry) = self.at(number) else { return };
        entry.is_done = true;
        for follower in std::mem::take(&mut entry.followers) {
            if let Some(entry) = self.at(follower) {
                entry.waits -= 1;
            }
        }
        while self.entries.front().is_some_and(|entry| entry.is_done) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(kind: Kind, range: std::ops::Range<usize>) -> Op {
        Op { kind, peer: 1, range }
    }

    #[test]
    fn an_operation_waits_for_those_whose_bytes_it_needs() {
        let mut window = Window::default();
        let sum = window.push(op(Kind::Add, 0..8));
        let send = window.push(op(Kind::Send, 0..8));
        let other = window.push(op(Kind::Send, 8..16));
        let replace = window.push(op(Kind::Replace, 4..12));
        assert!(window.ready(sum).is_some() && window.ready(other).is_some());
        assert!(window.ready(send).is_none() && window.ready(replace).is_none());
        window.finish(sum);
        assert!(window.ready(send).is_some() && window.ready(replace).is_none(), "a source stays as it is");
        window.finish(other);
        assert!(window.ready(replace).is_none());
        assert_eq!(window.len(), 3, "what is done leaves in order");
        window.finish(send);
        assert!(window.ready(replace).is_some());
        window.finish(replace);
        assert!(window.is_empty());
    }

    #[test]
    fn sums_and_sends_of_the_same_bytes_do_not_wait_for_each_other() {
        for kind in [Kind::Add, Kind::Send] {
            let mut window = Window::default();
            let both = [window.push(op(kind, 0..8)), window.push(op(kind, 4..12))];
            assert!(both.into_iter().all(|number| window.ready(number).is_some()));
        }
        let mut window = Window::default();
        let copy = window.push(op(Kind::Copy { from: 16 }, 0..8));
        let over = [window.push(op(Kind::Replace, 20..28)), window.push(op(Kind::Send, 7..9))];
        let reads = window.push(op(Kind::Send, 16..20));
        assert!(over.into_iter().all(|number| window.ready(number).is_none()));
        assert!(window.ready(reads).is_some() && window.ready(copy).is_some());
    }
}
