//! Schedules in steps, in each of which a rank sends to one other at most, and receives from one. Only for `schedule`.

use super::{Kind, Op};
use crate::plan::{Algorithm, Collective, Plan, PlanError};
use std::ops::Range;

/// What a rank does in one step.
#[derive(Clone, Debug, Default)]
struct Step {
    send: Option<(usize, Range<usize>)>,
    receive: Option<(usize, Range<usize>, Kind)>,
}

/// The algorithms that have steps.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// A reduce-scatter, an all-gather, or one behind the other.
    Ring {
        reduces: bool,
        gathers: bool,
    },
    Doubling,
    Halving,
    Pairwise,
}

/// A schedule in steps. A step is a function of its number; the messages of one are cut into pieces.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    plan: Plan,
    rank: usize,
    ranks: usize,
    piece: usize,
    rule: Rule,
    /// The number of the next step.
    next: usize,
    step: Step,
    /// Bytes of the step that operations were made for.
    sent: usize,
    received: usize,
}

impl Steps {
    pub(super) fn new(plan: &Plan, rank: usize, ranks: usize, piece: usize) -> Result<Self, PlanError> {
        let rule = match (plan.algorithm, plan.collective) {
            (Algorithm::Ring, Collective::AllReduce) => Rule::Ring { reduces: true, gathers: true },
            (Algorithm::Ring, Collective::ReduceScatter) => Rule::Ring { reduces: true, gathers: false },
            (Algorithm::Ring, Collective::AllGather) => Rule::Ring { reduces: false, gathers: true },
            (Algorithm::RecursiveDoubling, Collective::AllReduce) => Rule::Doubling,
            (Algorithm::HalvingDoubling, Collective::AllReduce) => Rule::Halving,
            (Algorithm::Pairwise, Collective::AllToAll) => Rule::Pairwise,
            (algorithm, collective) => {
                let advice = match collective {
                    Collective::AllReduce => "ring, tree, recursive-doubling or halving-doubling",
                    Collective::AllToAll => "pairwise",
                    _ => "ring",
                };
                return Err(PlanError::NoAlgorithm { collective, algorithm, advice });
            }
        };
        let step = Step::default();
        Ok(Self { plan: *plan, rank, ranks, piece, rule, next: 0, step, sent: 0, received: 0 })
    }

    /// The largest power of two that is not above the number of ranks: so many take part between folding in and out.
    const fn core(&self) -> usize {
        1 << self.ranks.ilog2()
    }

    const fn levels(&self) -> usize {
        self.ranks.ilog2() as usize
    }

    fn count(&self) -> usize {
        let others = self.ranks - 1;
        match self.rule {
            Rule::Ring { reduces, gathers } => others * (usize::from(reduces) + usize::from(gathers)),
            Rule::Doubling => self.levels() + 2,
            Rule::Halving => 2 * self.levels() + 2,
            Rule::Pairwise => self.ranks,
        }
    }

    fn at(&self, number: usize) -> Step {
        match self.rule {
            Rule::Ring { reduces, .. } => self.ring(number, reduces),
            Rule::Doubling => self.folded(number, Self::doubling),
            Rule::Halving => self.folded(number, Self::halving),
            Rule::Pairwise => self.pairwise(number),
        }
    }

    /// In step s of a reduce-scatter a rank sends part r - 1 - s, and adds part r - 2 - s, so that its own is the last. In that
    /// of an all-gather it sends part r - s, and receives part r - 1 - s.
    fn ring(&self, number: usize, reduces: bool) -> Step {
        let (rank, ranks) = (self.rank, self.ranks);
        let others = ranks - 1;
        let adds = reduces && number < others;
        let back = if adds { number + 1 } else { number % others };
        let part = |back: usize| self.plan.part((rank + 2 * ranks - back) % ranks, ranks);
        let kind = if adds { Kind::Add } else { Kind::Replace };
        Step {
            send: Some(((rank + 1) % ranks, part(back))),
            receive: Some(((rank + others) % ranks, part(back + 1), kind)),
        }
    }

    /// Ranks beyond the largest power of two give their vectors to partners before the others begin, and get the result from
    /// them afterwards.
    fn folded(&self, number: usize, step: impl Fn(&Self, usize) -> Step) -> Step {
        let (core, last) = (self.core(), self.count() - 1);
        let all = || 0..self.plan.vector();
        let is_extra = self.rank >= core;
        let partner = if is_extra { self.rank - core } else { self.rank + core };
        if number != 0 && number != last {
            return if is_extra { Step::default() } else { step(self, number - 1) };
        }
        if partner >= self.ranks {
            return Step::default();
        }
        // The extra ranks send first, and receive at the end.
        if is_extra == (number == 0) {
            return Step { send: Some((partner, all())), receive: None };
        }
        let kind = if number == 0 { Kind::Add } else { Kind::Replace };
        Step { send: None, receive: Some((partner, all(), kind)) }
    }

    fn doubling(&self, level: usize) -> Step {
        let (partner, all) = (self.rank ^ 1 << level, 0..self.plan.vector());
        Step { send: Some((partner, all.clone())), receive: Some((partner, all, Kind::Add)) }
    }

    /// At each level the parts in which a rank still takes part are halved: it sends one half, and adds the other. Then the
    /// levels come in the opposite order, and halves become whole again.
    fn halving(&self, number: usize) -> Step {
        let levels = self.levels();
        let gathers = number >= levels;
        let level = if gathers { 2 * levels - 1 - number } else { number };
        let (mut first, mut size) = (0, self.core());
        let (mut kept, mut given) = (0..size, 0..0);
        for above in 0..=level {
            size /= 2;
            let (low, high) = (first..first + size, first + size..first + 2 * size);
            (kept, given) = if self.rank >> above & 1 == 0 { (low, high) } else { (high, low) };
            first = kept.start;
        }
        let bytes = |parts: Range<usize>| {
            let of = |part: usize| self.plan.part(part, self.core()).start;
            of(parts.start)..of(parts.end)
        };
        let (partner, kept, given) = (self.rank ^ 1 << level, bytes(kept), bytes(given));
        if gathers {
            return Step { send: Some((partner, kept)), receive: Some((partner, given, Kind::Replace)) };
        }
        Step { send: Some((partner, given)), receive: Some((partner, kept, Kind::Add)) }
    }

    /// In step s a rank sends to r + s, and receives from r - s. In step 0 it copies its own part.
    fn pairwise(&self, number: usize) -> Step {
        let (rank, ranks) = (self.rank, self.ranks);
        let (to, from) = ((rank + number) % ranks, (rank + ranks - number) % ranks);
        let own = self.plan.part(rank, ranks);
        let place = self.plan.vector() + from * own.len();
        let target = place..place + own.len();
        if number == 0 {
            return Step { send: None, receive: Some((rank, target, Kind::Copy { from: own.start })) };
        }
        Step { send: Some((to, self.plan.part(to, ranks))), receive: Some((from, target, Kind::Replace)) }
    }

    /// The next piece of a message, from the byte `done` on.
    fn piece(&self, range: &Range<usize>, done: usize) -> Range<usize> {
        let start = range.start + done;
        start..range.end.min(start.saturating_add(self.piece))
    }

    /// The next operation of the step: a piece to send, one to receive, and so on.
    fn next_of_step(&mut self) -> Option<Op> {
        let to_send = self.step.send.as_ref().filter(|(_, range)| self.sent < range.len());
        let to_receive = self.step.receive.as_ref().filter(|(_, range, _)| self.received < range.len());
        if let Some((peer, range)) = to_send
            && (self.sent <= self.received || to_receive.is_none())
        {
            let range = self.piece(range, self.sent);
            let op = Op { kind: Kind::Send, peer: *peer, range };
            self.sent += op.range.len();
            return Some(op);
        }
        let (peer, range, kind) = to_receive?;
        let range = self.piece(range, self.received);
        let kind = match *kind {
            Kind::Copy { from } => Kind::Copy { from: from + self.received },
            kind => kind,
        };
        let op = Op { kind, peer: *peer, range };
        self.received += op.range.len();
        Some(op)
    }

    pub(super) fn next(&mut self) -> Option<Op> {
        loop {
            if let Some(op) = self.next_of_step() {
                return Some(op);
            }
            // A rank alone has nobody to fold or to send to.
            if self.next >= self.count() || self.ranks == 1 && !matches!(self.rule, Rule::Pairwise) {
                return None;
            }
            self.step = self.at(self.next);
            self.next += 1;
            (self.sent, self.received) = (0, 0);
        }
    }
}
