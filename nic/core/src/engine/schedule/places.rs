//! Where every queue pair is: the table of turns and waiters.
//!
//! A queue pair has two turns. Its own turn sends whatever it has, answers first. Its answers have another turn while
//! something holds back its requests only, because a peer waits for the answers, and they need no room there. Each
//! turn is in exactly one [`Place`]. Those at one gate wait in order of arrival; the gate itself is in the ready list
//! while its waiters may be able to go on, so that a gate that opens costs the same however many wait at it.

use super::Gate;
use std::collections::BTreeMap;
use time::Instant;

/// A turn that comes up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::engine) enum Turn {
    /// A queue pair, by table index: everything that it has to send.
    Own(usize),
    /// A queue pair, by table index: answers only.
    Answers(usize),
}

impl Turn {
    /// The queue pair's table index.
    pub(in crate::engine) const fn index(self) -> usize {
        match self {
            Self::Own(index) | Self::Answers(index) => index,
        }
    }
}

/// Where a turn is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::engine) enum Place {
    /// There is nothing to send.
    #[default]
    Idle,
    /// It comes up in order.
    Ready,
    /// It waits at a gate.
    Waits(Gate),
    /// It waits for its departure time.
    Paced(Instant),
}

/// What the ready list holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Next {
    /// A turn.
    Turn(Turn),
    /// A gate whose waiters may be able to go on.
    Gate(Gate),
}

impl Next {
    /// The gate, if it is one.
    pub(in crate::engine) const fn gate(self) -> Option<Gate> {
        match self {
            Self::Turn(_) => None,
            Self::Gate(gate) => Some(gate),
        }
    }
}

/// No node.
const NONE: u32 = u32::MAX;

/// The neighbours of a node in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// A doubly linked list of nodes.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE, len: 0 };
}

/// Those that wait at one gate.
#[derive(Clone, Copy, Debug)]
struct Waiters {
    gate: Gate,
    list: List,
    /// Whether the gate is in the ready list.
    is_ready: bool,
}

/// The places of all turns.
#[derive(Debug)]
pub(in crate::engine) struct Places {
    /// Nodes: the own turn of queue pair `n` is node `3n`, its answers are `3n + 1`, and gate `n` is `3n + 2`.
    links: Vec<Link>,
    /// Places of both turns of each queue pair.
    turns: Vec<[Place; 2]>,
    ready: List,
    /// Gates at which something waits.
    gates: slab::Slab<Waiters>,
    /// Few at a time, so that looking one up takes a comparison or two.
    by_gate: BTreeMap<Gate, usize>,
}

const fn node_of(turn: Turn) -> usize {
    match turn {
        Turn::Own(index) => 3 * index,
        Turn::Answers(index) => 3 * index + 1,
    }
}

impl Places {
    pub(in crate::engine) fn new() -> Self {
        Self {
            links: Vec::new(),
            turns: Vec::new(),
            ready: List::EMPTY,
            gates: slab::Slab::new(),
            by_gate: BTreeMap::new(),
        }
    }

    /// Where a turn is.
    pub(in crate::engine) fn of(&self, turn: Turn) -> Place {
        let places = self.turns.get(turn.index()).copied().unwrap_or_default();
        places[usize::from(matches!(turn, Turn::Answers(_)))]
    }

    /// Moves a turn to the end of the line at another place. Whoever is made ready needs no separate turn for answers.
    pub(in crate::engine) fn put(&mut self, turn: Turn, place: Place) {
        let old = self.of(turn);
        if old == place {
            return;
        }
        self.take_out(turn, old);
        self.record(turn, place);
        match place {
            Place::Idle | Place::Paced(_) => {}
            Place::Ready => self.append(None, node_of(turn)),
            Place::Waits(gate) => {
                let number = self.number(gate);
                self.append(Some(number), node_of(turn));
            }
        }
        if let (Turn::Own(index), Place::Ready | Place::Idle) = (turn, place) {
            self.put(Turn::Answers(index), Place::Idle);
        }
    }

    /// Removes and returns what comes up next.
    pub(in crate::engine) fn next(&mut self) -> Option<Next> {
        let next = self.at(self.ready.first)?;
        self.take(next);
        Some(next)
    }

    /// Takes something out of the ready list. A turn is idle for as long as it lasts.
    pub(in crate::engine) fn take(&mut self, next: Next) {
        match next {
            Next::Turn(turn) => {
                self.take_out(turn, Place::Ready);
                self.record(turn, Place::Idle);
            }
            Next::Gate(gate) => {
                if let Some(number) = self.by_gate.get(&gate).copied() {
                    self.unlink(None, 3 * number + 2);
                    self.gates[number].is_ready = false;
                }
            }
        }
    }

    /// Puts what was taken out back into the ready list, in front: it comes up next.
    pub(in crate::engine) fn put_back(&mut self, next: Next) {
        let node = match next {
            Next::Turn(turn) => {
                self.record(turn, Place::Ready);
                node_of(turn)
            }
            Next::Gate(gate) => {
                let Some(number) = self.by_gate.get(&gate).copied() else { return };
                if std::mem::replace(&mut self.gates[number].is_ready, true) {
                    self.unlink(None, 3 * number + 2);
                }
                3 * number + 2
            }
        };
        self.prepend(node);
    }

    /// The turn that has waited longest at a gate.
    pub(in crate::engine) fn front(&self, gate: Gate) -> Option<Turn> {
        let waiters = &self.gates[*self.by_gate.get(&gate)?];
        match self.at(waiters.list.first)? {
            Next::Turn(turn) => Some(turn),
            Next::Gate(_) => None,
        }
    }

    /// The number of turns that wait at a gate.
    pub(in crate::engine) fn waiting_at(&self, gate: Gate) -> usize {
        self.by_gate.get(&gate).map_or(0, |number| self.gates[*number].list.len)
    }

    /// Whether something waits at a gate.
    pub(in crate::engine) fn has_waiters(&self, gate: Gate) -> bool {
        !self.by_gate.is_empty() && self.by_gate.contains_key(&gate)
    }

    /// Whether something waits at a gate that this peer can open.
    pub(in crate::engine) fn has_waiters_for(&self, peer: usize) -> bool {
        self.gates.iter().any(|(_, waiters)| waiters.gate.peer() == Some(peer))
    }

    /// A gate has more room than before: those that wait there try again, in order. Costs nothing if nothing waits.
    pub(in crate::engine) fn open(&mut self, gate: Gate) {
        if self.by_gate.is_empty() {
            return;
        }
        let Some(number) = self.by_gate.get(&gate).copied() else { return };
        if !std::mem::replace(&mut self.gates[number].is_ready, true) {
            self.append(None, 3 * number + 2);
        }
    }

    /// Whether nothing is ready.
    pub(in crate::engine) const fn is_quiet(&self) -> bool {
        self.ready.first == NONE
    }

    /// What is ready, in order.
    pub(in crate::engine) fn ready(&self) -> impl Iterator<Item = Next> {
        std::iter::successors(self.at(self.ready.first), |last| {
            let node = match last {
                Next::Turn(turn) => node_of(*turn),
                Next::Gate(gate) => 3 * *self.by_gate.get(gate)? + 2,
            };
            self.at(self.links.get(node)?.next)
        })
    }

    /// Removes both turns of a queue pair.
    pub(in crate::engine) fn forget(&mut self, index: usize) {
        self.put(Turn::Own(index), Place::Idle);
    }

    fn record(&mut self, turn: Turn, place: Place) {
        let index = turn.index();
        if self.turns.len() <= index {
            self.turns.resize(index + 1, [Place::Idle; 2]);
        }
        self.turns[index][usize::from(matches!(turn, Turn::Answers(_)))] = place;
    }

    /// Removes a turn from the list of its place.
    fn take_out(&mut self, turn: Turn, place: Place) {
        match place {
            Place::Idle | Place::Paced(_) => {}
            Place::Ready => self.unlink(None, node_of(turn)),
            Place::Waits(gate) => {
                let Some(number) = self.by_gate.get(&gate).copied() else { return };
                let node = node_of(turn);
                let was_first = self.gates[number].list.first as usize == node;
                self.unlink(Some(number), node);
                if self.gates[number].list.len == 0 {
                    self.close(number);
                } else if was_first {
                    // The next in line may need less room.
                    self.open(gate);
                }
            }
        }
    }

    /// The number of a gate, which it keeps while something waits there.
    fn number(&mut self, gate: Gate) -> usize {
        let gates = &mut self.gates;
        *self
            .by_gate
            .entry(gate)
            .or_insert_with(|| gates.insert(Waiters { gate, list: List::EMPTY, is_ready: false }))
    }

    /// Nothing waits at a gate any more.
    fn close(&mut self, number: usize) {
        if self.gates[number].is_ready {
            self.unlink(None, 3 * number + 2);
        }
        let waiters = self.gates.remove(number);
        self.by_gate.remove(&waiters.gate);
    }

    /// What a node stands for.
    fn at(&self, node: u32) -> Option<Next> {
        if node == NONE {
            return None;
        }
        let number = node as usize / 3;
        Some(match node % 3 {
            0 => Next::Turn(Turn::Own(number)),
            1 => Next::Turn(Turn::Answers(number)),
            _ => Next::Gate(self.gates.get(number)?.gate),
        })
    }

    fn list(&mut self, of: Option<usize>) -> &mut List {
        match of {
            None => &mut self.ready,
            Some(number) => &mut self.gates[number].list,
        }
    }

    /// Appends a node to the ready list, or to the list of a gate.
    fn append(&mut self, to: Option<usize>, node: usize) {
        if self.links.len() <= node {
            self.links.resize(node + 1, Link { previous: NONE, next: NONE });
        }
        // There are fewer than 2^17 queue pairs.
        let number = u32::try_from(node).unwrap_or(NONE);
        let list = self.list(to);
        let previous = std::mem::replace(&mut list.last, number);
        list.len += 1;
        if previous == NONE {
            list.first = number;
        }
        self.links[node] = Link { previous, next: NONE };
        if let Some(link) = self.links.get_mut(previous as usize) {
            link.next = number;
        }
    }

    /// Puts a node in front of the ready list.
    fn prepend(&mut self, node: usize) {
        let number = u32::try_from(node).unwrap_or(NONE);
        let next = std::mem::replace(&mut self.ready.first, number);
        self.ready.len += 1;
        self.links[node] = Link { previous: NONE, next };
        match self.links.get_mut(next as usize) {
            Some(link) => link.previous = number,
            None => self.ready.last = number,
        }
    }

    /// Removes a node from the ready list, or from the list of a gate.
    fn unlink(&mut self, from: Option<usize>, node: usize) {
        let Link { previous, next } = self.links[node];
        let list = self.list(from);
        list.len -= 1;
        if previous == NONE {
            list.first = next;
        }
        if next == NONE {
            list.last = previous;
        }
        if let Some(link) = self.links.get_mut(previous as usize) {
            link.next = next;
        }
        if let Some(link) = self.links.get_mut(next as usize) {
            link.previous = previous;
        }
    }

    /// Checks that every turn is in the list of its place, and in no other.
    #[cfg(any(debug_assertions, test))]
    pub(in crate::engine) fn check(&self) {
        let mut seen = BTreeMap::new();
        for next in self.ready() {
            match next {
                Next::Turn(turn) => {
                    assert_eq!(seen.insert(turn, Place::Ready), None, "{turn:?} is ready twice")
                }
                Next::Gate(gate) => {
                    assert!(self.has_waiters(gate), "nothing waits at {gate:?}, which is ready")
                }
            }
        }
        for (_, waiters) in &self.gates {
            let mut node = waiters.list.first;
            let mut len = 0;
            while let Some(Next::Turn(turn)) = self.at(node) {
                assert_eq!(seen.insert(turn, Place::Waits(waiters.gate)), None, "{turn:?} is in two lists");
                node = self.links[node as usize].next;
                len += 1;
            }
            assert_eq!((len, node), (waiters.list.len, NONE), "at {:?}", waiters.gate);
            assert!(len > 0, "nothing waits at {:?}", waiters.gate);
        }
        for index in 0..self.turns.len() {
            for turn in [Turn::Own(index), Turn::Answers(index)] {
                let place = self.of(turn);
                let listed = seen.get(&turn).copied();
                let expected = matches!(place, Place::Ready | Place::Waits(_)).then_some(place);
                assert_eq!(listed, expected, "{turn:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const GATES: [Gate; 3] = [Gate::Window(0), Gate::Credit { peer: 0, vl: 0 }, Gate::Drain(7)];

    fn drain(places: &mut Places) -> Vec<Next> {
        std::iter::from_fn(|| places.next()).collect()
    }

    #[test]
    fn turns_come_up_in_order() {
        let mut places = Places::new();
        for index in [4, 0, 9] {
            places.put(Turn::Own(index), Place::Ready);
        }
        places.put(Turn::Own(0), Place::Ready);
        assert_eq!(drain(&mut places), [4, 0, 9].map(|index| Next::Turn(Turn::Own(index))));
        assert!(places.is_quiet());
        assert_eq!(places.of(Turn::Own(4)), Place::Idle);
    }

    #[test]
    fn waiters_keep_their_order_and_a_gate_is_ready_once() {
        let (mut places, gate) = (Places::new(), GATES[0]);
        for index in 0..4 {
            places.put(Turn::Own(index), Place::Waits(gate));
        }
        places.put(Turn::Own(9), Place::Ready);
        places.open(gate);
        places.open(gate);
        assert_eq!(drain(&mut places), [Next::Turn(Turn::Own(9)), Next::Gate(gate)]);
        assert_eq!((places.front(gate), places.waiting_at(gate)), (Some(Turn::Own(0)), 4));
        // A waiter that leaves from the middle of the queue changes nothing. When the first leaves, the gate is ready for the
        // next one.
        places.put(Turn::Own(2), Place::Idle);
        assert!(places.is_quiet());
        places.put(Turn::Own(0), Place::Paced(Instant::EPOCH));
        assert_eq!(places.next(), Some(Next::Gate(gate)));
        assert_eq!(places.front(gate), Some(Turn::Own(1)));
        places.open(gate);
        for index in [1, 3] {
            places.put(Turn::Own(index), Place::Idle);
        }
        assert!(places.is_quiet() && !places.has_waiters(gate), "nobody is left");
        places.check();
    }

    #[test]
    fn answers_need_no_turn_of_their_own_once_the_queue_pair_has_one() {
        let (mut places, gate) = (Places::new(), GATES[0]);
        places.put(Turn::Own(1), Place::Waits(gate));
        places.put(Turn::Answers(1), Place::Ready);
        places.put(Turn::Own(1), Place::Ready);
        assert_eq!(drain(&mut places), [Next::Turn(Turn::Own(1))]);
    }

    /// Against plain queues, with random moves.
    #[test]
    fn the_lists_are_what_plain_queues_would_be() {
        let now = Instant::EPOCH;
        for seed in 1..200_u64 {
            // George Marsaglia's xorshift.
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut draw = |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % n) as usize
            };
            let mut places = Places::new();
            let mut ready: VecDeque<Next> = VecDeque::new();
            let mut queues: [VecDeque<Turn>; 3] = Default::default();
            for _ in 0..300 {
                let turn = Turn::Own(draw(6));
                let to = draw(9);
                if to == 8 {
                    // One of those that are ready leaves out of order.
                    if let Some(next) = ready.remove(draw(8)) {
                        places.take(next);
                    }
                    continue;
                }
                if to == 7 {
                    let next = places.next();
                    assert_eq!(next, ready.pop_front(), "seed {seed}");
                    if let Some(next) = next {
                        places.put_back(next);
                        ready.push_front(next);
                    }
                    continue;
                }
                if to == 6 {
                    let next = places.next();
                    assert_eq!(next, ready.pop_front(), "seed {seed}");
                    continue;
                }
                if to == 5 {
                    let which = draw(3);
                    places.open(GATES[which]);
                    if !queues[which].is_empty() && !ready.contains(&Next::Gate(GATES[which])) {
                        ready.push_back(Next::Gate(GATES[which]));
                    }
                    continue;
                }
                let place = match to {
                    0 => Place::Idle,
                    1 => Place::Ready,
                    2 => Place::Paced(now),
                    _ => Place::Waits(GATES[to - 3]),
                };
                if places.of(turn) == place {
                    continue;
                }
                ready.retain(|next| *next != Next::Turn(turn));
                for (queue, gate) in queues.iter_mut().zip(GATES) {
                    let was_first = queue.front() == Some(&turn);
                    queue.retain(|waiting| *waiting != turn);
                    if queue.is_empty() {
                        ready.retain(|next| *next != Next::Gate(gate));
                    } else if was_first && !ready.contains(&Next::Gate(gate)) {
                        ready.push_back(Next::Gate(gate));
                    }
                }
                places.put(turn, place);
                match place {
                    Place::Ready => ready.push_back(Next::Turn(turn)),
                    Place::Waits(gate) => {
                        let which = GATES.iter().position(|of| *of == gate).expect("one of them");
                        queues[which].push_back(turn);
                    }
                    Place::Idle | Place::Paced(_) => {}
                }
                places.check();
                assert!(places.ready().eq(ready.iter().copied()), "seed {seed}");
                for (queue, gate) in queues.iter().zip(GATES) {
                    assert_eq!(
                        (places.front(gate), places.waiting_at(gate)),
                        (queue.front().copied(), queue.len())
                    );
                }
            }
        }
    }
}
