//! What a requester knows of each PSN in flight.
//!
//! Two things get lost: requests, and the data that answers some of them (READ responses, and those to atomics). Of requests
//! the responder tells ([`report`](Flight::report)). Data shows by itself: it says by its PSN where it belongs
//! ([`arrive`](Flight::arrive)). A responder answers in the order of PSNs, those first whose answer it has to repeat. So when
//! data comes, what is missing before it is lost, unless that was asked for later than what came.

#[cfg(test)]
mod tests;

use super::{Empty, Held};
use crate::wire::selective::SelectiveAck;
use std::collections::VecDeque;
use time::Instant;

/// The greatest number of later packets that may overtake one before it counts as lost.
const MAX_TOLERANCE: u64 = 256;

/// After so many reports without needless duplicates the tolerance is halved: after 16 recoveries RFC 8985 forgets what it knew,
/// and a recovery has several reports.
const CALM: u32 = 64;

/// What is known of a PSN in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Flying,
    /// The responder holds it.
    Held,
    /// It is done but for data that is missing before it: its own data is here, or it was executed and has none.
    Here,
    /// It has to be sent again.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// When it left, if only once: the answer to a repetition may be that to the first (Karn).
    at: Option<Instant>,
    /// Its number in the order of departures, repetitions included. Each PSN that a READ asks for counts as one.
    order: u64,
    state: State,
    /// It has no packet of its own: the READ request before it asks for it.
    joined: bool,
    /// The answer is data, which may be lost after the responder executed what it held.
    wants_data: bool,
}

/// The PSNs in flight, from the oldest unanswered one on.
#[derive(Debug, Default)]
pub(in crate::queue_pair) struct Flight {
    sent: VecDeque<Sent>,
    /// Answers that came while data before them was missing.
    pub(in crate::queue_pair) kept: Held,
    /// The number of departures.
    departures: u64,
    /// The latest departure of those that have arrived.
    newest: u64,
    /// PSNs that count as lost, and such that are here or held by the responder.
    lost: u32,
    landed: u32,
    /// PSNs that are answered by data, and so many of the oldest PSNs that are known to be executed.
    awaited: u32,
    executed: usize,
    /// So many later packets may overtake one.
    tolerance: u64,
    /// Duplicates that the responder has counted, and those that will come because of timeouts.
    duplicates: u32,
    forgiven: u32,
    /// Reports since the last duplicate that nothing explains.
    calm: u32,
    /// The answer to a repetition came before that of packets which left earlier.
    suspects: bool,
    /// Whether something was lost since the last question.
    noticed: bool,
}

impl Empty for Flight {
    const EMPTY: &'static Self = &Self {
        sent: VecDeque::new(),
        kept: Held::NONE,
        departures: 0,
        newest: 0,
        lost: 0,
        landed: 0,
        awaited: 0,
        executed: 0,
        tolerance: 0,
        duplicates: 0,
        forgiven: 0,
        calm: 0,
        suspects: false,
        noticed: false,
    };
}

impl Flight {
    /// A request departs that takes so many PSNs. `wants_data`: it is answered by a response of its own.
    pub(in crate::queue_pair) fn depart(&mut self, now: Instant, psns: u32, wants_data: bool) {
        let (at, state, departures) = (Some(now), State::Flying, self.departures);
        let sent = |number: u32| Sent {
            at,
            order: departures + u64::from(number),
            state,
            joined: number > 1,
            wants_data,
        };
        self.sent.extend((1..=psns).map(sent));
        self.departures += u64::from(psns);
        self.awaited += if wants_data { psns } else { 0 };
    }

    /// The oldest PSNs are answered. Returns when the last of them left, if that tells how long answers take.
    pub(in crate::queue_pair) fn answer(&mut self, psns: u32) -> Option<Instant> {
        let mut left = None;
        self.suspects = false;
        self.executed = self.executed.saturating_sub(usize::try_from(psns).unwrap_or(usize::MAX));
        self.kept.advance(psns);
        for _ in 0..psns {
            let Some(sent) = self.sent.pop_front() else { return left };
            self.newest = self.newest.max(sent.order);
            self.count(sent.state, -1);
            self.awaited -= u32::from(sent.wants_data);
            left = sent.at.filter(|_| sent.state == State::Flying);
        }
        if let Some(first) = self.sent.front_mut() {
            // What is left of a READ is asked for by a request of its own.
            first.joined = false;
            self.suspects = first.state == State::Flying && first.order < self.newest;
        }
        left
    }

    /// Nothing was heard for so long that everything is sent anew. What comes twice then does not make the requester more tolerant.
    pub(in crate::queue_pair) fn give_up(&mut self) {
        let all = u32::try_from(self.sent.len()).unwrap_or(u32::MAX);
        self.forgiven = self.forgiven.saturating_add(all);
        self.clear();
    }

    /// Everything is sent anew.
    pub(in crate::queue_pair) fn clear(&mut self) {
        self.sent.clear();
        self.kept = Held::NONE;
        (self.lost, self.landed, self.awaited, self.executed) = (0, 0, 0, 0);
        self.suspects = false;
    }

    fn count(&mut self, state: State, by: i32) {
        match state {
            State::Flying => {}
            State::Held | State::Here => self.landed = self.landed.saturating_add_signed(by),
            State::Lost => self.lost = self.lost.saturating_add_signed(by),
        }
    }

    fn set_one(&mut self, at: usize, state: State) {
        if let Some(sent) = self.sent.get_mut(at) {
            let before = std::mem::replace(&mut sent.state, state);
            self.count(before, -1);
            self.count(state, 1);
        }
    }

    /// Whether the PSN at a place is, of those in its state, the first that one request asks for.
    fn begins(&self, at: usize) -> bool {
        let sent = &self.sent[at];
        !sent.joined || at == 0 || self.sent[at - 1].state != sent.state
    }

    /// How many PSNs from a place on are in the same state and asked for by one request.
    fn run(&self, at: usize) -> usize {
        let Some(first) = self.sent.get(at) else { return 0 };
        let joined = |sent: &&Sent| sent.joined && sent.state == first.state;
        1 + self.sent.range(at + 1..).take_while(joined).count()
    }

    /// Changes the state of the packet at a place, with the PSNs that it asks for. Returns how many they are.
    fn set(&mut self, at: usize, state: State) -> usize {
        let run = self.run(at);
        (at..at + run).for_each(|at| self.set_one(at, state));
        run
    }

    /// The responder tells what it holds. `skipped`: how far its expected PSN is beyond the oldest unanswered one. `executed`: so
    /// many of the oldest PSNs are executed, and what is missing of their data can be asked for alone. `tolerance`: the least
    /// number of later packets that may overtake one.
    pub(in crate::queue_pair) fn report(
        &mut self,
        ack: &SelectiveAck,
        skipped: usize,
        executed: usize,
        tolerance: u32,
    ) {
        for ahead in ack.held() {
            let at = skipped + ahead;
            let is_news = |sent: &&Sent| matches!(sent.state, State::Flying | State::Lost) && !sent.joined;
            let Some(sent) = self.sent.get(at).filter(is_news) else { continue };
            self.newest = self.newest.max(sent.order);
            self.set(at, State::Held);
        }
        let again = ack.duplicates.wrapping_sub(self.duplicates);
        // A report that was overtaken knows of fewer.
        if again > 0 && again < u32::MAX / 2 {
            self.duplicates = ack.duplicates;
            self.came_again(again);
        }
        self.calm_down();
        self.suspects = false;
        // It leaves behind all data: what of that left before the newest that arrived is lost, wherever it is.
        let (newest, tolerance) = (self.newest, self.tolerance.max(tolerance.into()));
        self.executed = self.executed.max(executed);
        self.pass(executed, newest, tolerance);
        self.find_lost(tolerance);
    }

    /// So many packets came again, the responder's or ours. If no timeout explains it, some had only been overtaken.
    pub(in crate::queue_pair) fn came_again(&mut self, again: u32) {
        let forgiven = again.min(self.forgiven);
        self.forgiven -= forgiven;
        if again > forgiven {
            self.tolerance = (2 * self.tolerance).clamp(1, MAX_TOLERANCE);
            self.calm = 0;
        }
    }

    fn calm_down(&mut self) {
        self.calm += 1;
        if self.calm == CALM {
            (self.tolerance, self.calm) = (self.tolerance / 2, 0);
        }
    }

    /// Whether data is missing among so many of the oldest PSNs. What is here is taken out as soon as nothing is missing before
    /// it, so that it is enough to see that data is awaited.
    pub(in crate::queue_pair) fn misses_data(&self, among: usize) -> bool {
        self.awaited > 0 && self.sent.iter().take(among).any(|sent| sent.wants_data)
    }

    /// Whether the PSN at this place is done; `None` if it is not in flight.
    pub(in crate::queue_pair) fn is_here(&self, at: usize) -> Option<bool> {
        self.sent.get(at).map(|sent| sent.state == State::Here)
    }

    /// An answer came, and data before it is missing. It is to the PSN at a place, and shows that the first `executed` PSNs are
    /// executed. `is_kept`: it is kept until what is missing has come.
    pub(in crate::queue_pair) fn arrive(
        &mut self,
        at: usize,
        executed: usize,
        is_kept: bool,
        tolerance: u32,
    ) {
        let Some(order) = self.sent.get(at).map(|sent| sent.order) else { return };
        if is_kept {
            self.set_one(at, State::Here);
        }
        self.executed = self.executed.max(executed);
        self.newest = self.newest.max(order);
        let tolerance = self.tolerance.max(tolerance.into());
        let follows = |before: &Sent| before.state == State::Here && before.order + 1 == order;
        if tolerance == 0 && at > 0 && at == executed && follows(&self.sent[at - 1]) {
            // The one before it has shown all that this one can show.
            return;
        }
        if self.pass(executed, order, tolerance) {
            self.calm_down();
        }
    }

    /// Goes through the oldest PSNs, which are executed: what needs no data is done, and data is lost that should have come
    /// before what left as number `order`. What the responder held is answered when it is executed, so its place counts in the
    /// place of its departure. Returns whether something was lost.
    fn pass(&mut self, executed: usize, order: u64, tolerance: u64) -> bool {
        let mut found = false;
        for at in 0..executed.min(self.sent.len()) {
            let sent = self.sent[at];
            let is_lost = match sent.state {
                State::Flying => sent.order + tolerance < order,
                State::Held => at as u64 + tolerance < executed as u64,
                State::Here | State::Lost => false,
            };
            if !sent.wants_data {
                self.set_one(at, State::Here);
            } else if is_lost {
                self.set_one(at, State::Lost);
                found = true;
            }
        }
        self.noticed |= found;
        found
    }

    /// Whether the oldest PSN is done: nothing is missing before it any more.
    pub(in crate::queue_pair) fn is_front_here(&self) -> bool {
        self.sent.front().is_some_and(|sent| sent.state == State::Here)
    }

    /// What was kept for the oldest PSN was no answer to it.
    pub(in crate::queue_pair) fn reopen_front(&mut self) {
        self.set_one(0, State::Flying);
    }

    /// Whether packets are probably lost, unless more is answered soon.
    pub(in crate::queue_pair) const fn suspects(&self) -> bool {
        self.suspects
    }

    /// What was suspected is believed. If it is wrong, that does not make the requester more tolerant.
    pub(in crate::queue_pair) fn lose_suspects(&mut self) {
        self.suspects = false;
        let before = self.lost;
        self.pass(self.executed, self.newest, 0);
        self.find_lost(0);
        self.forgiven = self.forgiven.saturating_add(self.lost.saturating_sub(before));
    }

    /// Finds the packets that more than so many later ones have overtaken. Data of requests that are known to be executed is not
    /// among them ([`pass`](Self::pass)).
    fn find_lost(&mut self, tolerance: u64) {
        for at in self.executed.min(self.sent.len())..self.sent.len() {
            let sent = self.sent[at];
            let overtaken = sent.order + tolerance < self.newest;
            if sent.state == State::Flying && !sent.joined && overtaken {
                self.set(at, State::Lost);
                self.noticed = true;
            }
        }
    }

    /// An answer did not come in time: the oldest packet counts as lost. If it was held, it has been executed since, and the
    /// acknowledgement is lost. If it counts as lost already and had to wait, it is the next one that was on its way.
    pub(in crate::queue_pair) fn lose_oldest(&mut self) {
        let is_next = |at: &usize| match self.sent[*at].state {
            State::Flying => self.begins(*at),
            State::Held => *at == 0,
            State::Here | State::Lost => false,
        };
        if let Some(at) = (0..self.sent.len()).find(is_next) {
            self.lose(at);
        }
    }

    /// What is neither here nor held counts as lost. So does what has data for an answer, and the oldest.
    pub(in crate::queue_pair) fn lose_all(&mut self) {
        for at in 0..self.sent.len() {
            let Sent { state, wants_data, .. } = self.sent[at];
            let may_be_done = at == 0 || wants_data;
            if state == State::Flying || state == State::Held && may_be_done {
                self.lose(at);
            }
        }
    }

    fn lose(&mut self, at: usize) {
        let wants_data = self.sent[at].wants_data;
        let run = u32::try_from(self.set(at, State::Lost)).unwrap_or(u32::MAX);
        self.forgiven = self.forgiven.saturating_add(if wants_data { run } else { 1 });
        self.noticed = true;
    }

    /// How far beyond the oldest unanswered PSN the first is that has to be sent again, and how many PSNs can be asked for with
    /// it.
    pub(in crate::queue_pair) fn next_lost(&self) -> Option<(u32, u32)> {
        if self.lost == 0 {
            return None;
        }
        let at = self.sent.iter().position(|sent| sent.state == State::Lost)?;
        Some((u32::try_from(at).ok()?, u32::try_from(self.run(at)).ok()?))
    }

    /// The packet at this place was sent again. It asks for so many PSNs.
    pub(in crate::queue_pair) fn repeat(&mut self, at: u32, psns: u32) {
        let first = usize::try_from(at).unwrap_or(usize::MAX);
        let end = first.saturating_add(usize::try_from(psns).unwrap_or(usize::MAX)).min(self.sent.len());
        for at in first..end {
            self.set_one(at, State::Flying);
            self.departures += 1;
            let sent = &mut self.sent[at];
            (sent.order, sent.at, sent.joined) = (self.departures, None, at > first);
        }
        if let Some(next) = self.sent.get_mut(end) {
            // It belongs to another request.
            next.joined = false;
        }
    }

    /// PSNs that have to be sent again.
    pub(in crate::queue_pair) const fn lost(&self) -> u32 {
        self.lost
    }

    /// PSNs in flight that are not on their way any more.
    pub(in crate::queue_pair) const fn landed(&self) -> u32 {
        self.lost + self.landed
    }

    /// Whether anything is in flight that is known here.
    pub(in crate::queue_pair) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// The number of PSNs that are on their way.
    pub(in crate::queue_pair) fn flying(&self) -> usize {
        self.sent.len().saturating_sub(self.landed() as usize)
    }

    /// Whether something was lost since the last [`told`](Self::told).
    pub(in crate::queue_pair) const fn noticed(&self) -> bool {
        self.noticed
    }

    /// It is known now that something was lost.
    pub(in crate::queue_pair) fn told(&mut self) {
        self.noticed = false;
    }
}
