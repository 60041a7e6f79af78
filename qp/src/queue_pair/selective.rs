//! Selective repeat: what a responder holds, and what a requester knows of it.
//!
//! A responder whose peer understands it keeps the packets that arrive beyond a gap ([`Held`]), and tells of them in place of a
//! sequence error NAK ([`wire::selective`](crate::wire::selective)). They are executed when the gap is closed, in order, by the
//! code that executes all others. So memory, completions and errors are those of go-back-N at every moment: a program that
//! polls the last byte of a message never sees it before the rest, and WRITEs that overlap leave what the last one wrote. A NIC
//! in hardware would place payloads early, and would need an address in each packet, because it has no memory to hold them;
//! here a copy of what came out of order costs little, and data packets remain those of RoCEv2.
//!
//! The requester keeps a [`Flight`] beside its window: for each PSN in flight when it was sent last. A packet is lost if one
//! that was sent later has arrived, as in RACK (RFC 8985), only that the order of departures takes the place of their times.
//! Thus repetitions that are lost are noticed as well, and a timeout is needed only at the end of what may be sent. It repeats the
//! oldest packet alone, as a tail loss probe does (RFC 8985, 7): what is said of that shows what else is lost, and if the answer
//! was only late, little was sent in vain. Because of the latter case, what the answer to a repetition shows counts only after a
//! while in which nothing else comes: it may be the answer to the first transmission.
//! Where packets overtake one another, the responder counts those that came twice for nothing, and the requester becomes more
//! tolerant.

use super::QueuePair;
use crate::wire::packet::Packet;
use crate::wire::selective::{MAX_SPAN, SelectiveAck};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use time::Instant;

/// The greatest number of PSNs in flight, and of those that a responder holds: what a selective acknowledgement can tell of.
/// With packets of 4 KiB it is 4 MiB, far above the bandwidth-delay products of a data centre (IRN: 110 packets, SIGCOMM 2018).
pub(super) const MAX_FLIGHT: u32 = MAX_SPAN as u32;

/// The greatest number of bytes that a responder holds for one queue pair.
const MAX_HELD: usize = 1 << 20;

/// The greatest number of later packets that may overtake one before it counts as lost.
const MAX_TOLERANCE: u64 = 256;

/// State that most queue pairs never have: it takes no room before it is changed for the first time.
#[derive(Debug)]
pub(super) struct OnDemand<T>(Option<Box<T>>);

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Deref for OnDemand<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty + Default> DerefMut for OnDemand<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

/// State with a value that says nothing.
pub(super) trait Empty: 'static {
    const EMPTY: &'static Self;
}

impl Empty for Held {
    const EMPTY: &'static Self = &Self { places: VecDeque::new(), bytes: 0, duplicates: 0 };
}

impl Empty for Flight {
    const EMPTY: &'static Self = &Self {
        sent: VecDeque::new(),
        departures: 0,
        newest: 0,
        lost: 0,
        held: 0,
        tolerance: 0,
        duplicates: 0,
        forgiven: 0,
        calm: 0,
        suspects: false,
        noticed: false,
    };
}

/// Packets that arrived beyond a gap.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By their distance from the expected PSN. The last place is never empty.
    places: VecDeque<Option<Box<[u8]>>>,
    bytes: usize,
    /// Packets that came again without need.
    duplicates: u32,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A packet came that was executed or is held already.
    pub(super) fn came_again(&mut self) {
        self.duplicates = self.duplicates.wrapping_add(1);
    }

    /// Keeps a packet, from BTH to ICRC, that is so many PSNs `ahead` of the expected one. Returns whether it did.
    pub(super) fn hold(&mut self, ahead: usize, packet: &[u8]) -> bool {
        if ahead > MAX_SPAN || self.bytes + packet.len() > MAX_HELD {
            return false;
        }
        if self.places.len() <= ahead {
            self.places.resize(ahead + 1, None);
        }
        match &mut self.places[ahead] {
            Some(_) => self.came_again(),
            place => {
                *place = Some(packet.into());
                self.bytes += packet.len();
            }
        }
        true
    }

    /// The expected PSN has advanced.
    pub(super) fn advance(&mut self, psns: u32) {
        let psns = usize::try_from(psns).unwrap_or(usize::MAX).min(self.places.len());
        let passed = self.places.drain(..psns).flatten();
        self.bytes -= passed.map(|packet| packet.len()).sum::<usize>();
    }

    /// Takes the packet that is expected next, if it is held. A place that it leaves empty is passed by `advance`.
    pub(super) fn take(&mut self) -> Option<Box<[u8]>> {
        let packet = self.places.front_mut()?.take()?;
        self.bytes -= packet.len();
        if self.places.len() == 1 {
            self.places.clear();
        }
        Some(packet)
    }

    /// Says what is held.
    pub(super) fn tell(&self, expected: crate::ids::Psn) -> SelectiveAck {
        let mut ack = SelectiveAck::new(expected, self.duplicates);
        let held = self.places.iter().enumerate().filter(|(_, place)| place.is_some());
        held.for_each(|(ahead, _)| ack.add(ahead));
        ack
    }
}

/// After so many reports without needless duplicates the tolerance is halved: after 16 recoveries RFC 8985 forgets what it knew,
/// and a recovery has several reports.
const CALM: u32 = 64;

/// What is known of a PSN in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Flying,
    /// The responder holds it.
    Held,
    /// It has to be sent again.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// When it left, if only once: the answer to a repetition may be that to the first (Karn).
    at: Option<Instant>,
    /// Its number in the order of departures, repetitions included.
    order: u64,
    state: State,
    /// It has no packet of its own: the READ request before it asks for it.
    joined: bool,
    /// The answer is data, which may be lost after the responder executed what it held.
    wants_data: bool,
}

/// The PSNs in flight, from the oldest unanswered one on.
#[derive(Debug, Default)]
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    /// The number of departures.
    departures: u64,
    /// The latest departure of those that have arrived.
    newest: u64,
    /// PSNs that count as lost, and such that the responder holds.
    lost: u32,
    held: u32,
    /// So many later packets may overtake one.
    tolerance: u64,
    /// Duplicates that the responder has counted, and those that it will count because of timeouts.
    duplicates: u32,
    forgiven: u32,
    /// Reports since the last duplicate that nothing explains.
    calm: u32,
    /// The answer to a repetition came before that of packets which left earlier.
    suspects: bool,
    /// Whether something was lost since the last question.
    noticed: bool,
}

impl Flight {
    /// A request departs that takes so many PSNs. `wants_data`: it is answered by a response of its own.
    pub(super) fn depart(&mut self, now: Instant, psns: u32, wants_data: bool) {
        self.departures += 1;
        let (at, order, state) = (Some(now), self.departures, State::Flying);
        let sent = |joined| Sent { at, order, state, joined, wants_data };
        self.sent.extend((0..psns).map(|at| sent(at > 0)));
    }

    /// The oldest PSNs are answered. Returns when the last of them left, if that tells how long answers take.
    pub(super) fn answer(&mut self, psns: u32) -> Option<Instant> {
        let mut left = None;
        self.suspects = false;
        for _ in 0..psns {
            let Some(sent) = self.sent.pop_front() else { return left };
            self.newest = self.newest.max(sent.order);
            self.count(sent.state, -1);
            left = sent.at.filter(|_| sent.state == State::Flying);
        }
        if let Some(first) = self.sent.front_mut() {
            // What is left of a READ is asked for by a request of its own.
            first.joined = false;
            self.suspects = first.state == State::Flying && first.order < self.newest;
        }
        left
    }

    /// Everything is sent anew.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
        (self.lost, self.held, self.suspects) = (0, 0, false);
    }

    fn count(&mut self, state: State, by: i32) {
        match state {
            State::Flying => {}
            State::Held => self.held = self.held.saturating_add_signed(by),
            State::Lost => self.lost = self.lost.saturating_add_signed(by),
        }
    }

    /// Changes the state of the packet at a place, with the PSNs that it asks for.
    fn set(&mut self, at: usize, state: State) {
        let mut next = at;
        while let Some(sent) = self.sent.get_mut(next).filter(|sent| next == at || sent.joined) {
            let before = std::mem::replace(&mut sent.state, state);
            self.count(before, -1);
            self.count(state, 1);
            next += 1;
        }
    }

    /// The responder tells what it holds. `skipped`: how far its expected PSN is beyond the oldest unanswered one. `tolerance`:
    /// the least number of later packets that may overtake one.
    pub(super) fn report(&mut self, ack: &SelectiveAck, skipped: usize, tolerance: u32) {
        for ahead in ack.held() {
            let at = skipped + ahead;
            let Some(sent) = self.sent.get(at).filter(|sent| sent.state != State::Held && !sent.joined)
            else {
                continue;
            };
            self.newest = self.newest.max(sent.order);
            self.set(at, State::Held);
        }
        let again = ack.duplicates.wrapping_sub(self.duplicates);
        // A report that was overtaken knows of fewer.
        if again > 0 && again < u32::MAX / 2 {
            self.duplicates = ack.duplicates;
            let forgiven = again.min(self.forgiven);
            self.forgiven -= forgiven;
            if again > forgiven {
                self.tolerance = (2 * self.tolerance).clamp(1, MAX_TOLERANCE);
                self.calm = 0;
            }
        }
        self.calm += 1;
        if self.calm == CALM {
            (self.tolerance, self.calm) = (self.tolerance / 2, 0);
        }
        self.suspects = false;
        self.find_lost(self.tolerance.max(tolerance.into()));
    }

    /// Whether packets are probably lost, unless more is answered soon.
    pub(super) const fn suspects(&self) -> bool {
        self.suspects
    }

    /// What was suspected is believed. If it is wrong, that does not make the requester more tolerant.
    pub(super) fn lose_suspects(&mut self) {
        self.suspects = false;
        self.forgiven = self.forgiven.saturating_add(self.find_lost(0));
    }

    /// Finds the packets that more than so many later ones have overtaken; returns how many there are.
    fn find_lost(&mut self, tolerance: u64) -> u32 {
        let mut found = 0;
        for at in 0..self.sent.len() {
            let sent = self.sent[at];
            let overtaken = sent.order + tolerance < self.newest;
            if sent.state == State::Flying && !sent.joined && overtaken {
                self.set(at, State::Lost);
                self.noticed = true;
                found += 1;
            }
        }
        found
    }

    /// An answer did not come in time: the oldest packet counts as lost. If it was held, it has been executed since, and the
    /// acknowledgement is lost. If it counts as lost already and had to wait, it is the next one that was on its way.
    pub(super) fn lose_oldest(&mut self) {
        let is_next = |(at, sent): (usize, &Sent)| match sent.state {
            State::Flying => !sent.joined,
            State::Held => at == 0,
            State::Lost => false,
        };
        if let Some(at) = self.sent.iter().enumerate().position(is_next) {
            self.lose(at);
        }
    }

    /// What is not held counts as lost. So does what has data for an answer, and the oldest.
    pub(super) fn lose_all(&mut self) {
        for at in 0..self.sent.len() {
            let Sent { state, joined, wants_data, .. } = self.sent[at];
            let may_be_done = at == 0 || wants_data;
            if !joined && (state == State::Flying || state == State::Held && may_be_done) {
                self.lose(at);
            }
        }
    }

    fn lose(&mut self, at: usize) {
        self.set(at, State::Lost);
        self.forgiven = self.forgiven.saturating_add(1);
        self.noticed = true;
    }

    /// How far beyond the oldest unanswered PSN the first is that has to be sent again.
    pub(super) fn next_lost(&self) -> Option<u32> {
        if self.lost == 0 {
            return None;
        }
        let at = self.sent.iter().position(|sent| sent.state == State::Lost)?;
        u32::try_from(at).ok()
    }

    /// The packet at this place was sent again.
    pub(super) fn repeat(&mut self, at: u32) {
        let first = usize::try_from(at).unwrap_or(usize::MAX);
        self.set(first, State::Flying);
        self.departures += 1;
        let mut next = first;
        while let Some(sent) = self.sent.get_mut(next).filter(|sent| next == first || sent.joined) {
            (sent.order, sent.at) = (self.departures, None);
            next += 1;
        }
    }

    /// PSNs that have to be sent again.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// PSNs in flight that are not on their way any more.
    pub(super) const fn landed(&self) -> u32 {
        self.lost + self.held
    }

    /// Whether anything is in flight that is known here.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// The number of PSNs that are on their way.
    pub(super) fn flying(&self) -> usize {
        self.sent.len().saturating_sub(self.landed() as usize)
    }

    /// Whether something was lost since the last [`told`](Self::told).
    pub(super) const fn noticed(&self) -> bool {
        self.noticed
    }

    /// It is known now that something was lost.
    pub(super) fn told(&mut self) {
        self.noticed = false;
    }
}

impl QueuePair {
    /// PSNs that are sent and neither answered, nor lost, nor held by the peer.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let sent = self.next_psn().distance_from(self.unacked_psn());
        u32::try_from(sent).unwrap_or(0).saturating_sub(self.requester.flight.landed())
    }

    /// Whether selective repeat found a loss since this was last asked.
    pub fn noticed_loss(&mut self) -> bool {
        let noticed = self.requester.flight.noticed();
        if noticed {
            self.requester.flight.told();
        }
        noticed
    }

    /// Whether a request comes beyond a gap, and selective repeat would keep it if the peer understands that.
    #[must_use]
    pub fn may_hold(&self, packet: &Packet<'_>) -> bool {
        self.config.tuning.selective_repeat
            && packet.info().is_request
            && self.config.qp_type.is_reliable()
            && packet.psn().distance_from(self.responder.expected_psn()) > 0
    }

    /// Says whether the peer understands selective acknowledgements; if it does not, the responder goes on as without selective
    /// repeat.
    pub fn set_selective_peer(&mut self, understands: bool) {
        self.responder.tells = understands && self.config.tuning.selective_repeat;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Psn;

    fn ack(held: &[usize], duplicates: u32) -> SelectiveAck {
        let mut ack = SelectiveAck::new(Psn::new(0), duplicates);
        held.iter().for_each(|ahead| ack.add(*ahead));
        ack
    }

    const NOW: Instant = Instant::EPOCH;

    fn flight(packets: u32) -> Flight {
        let mut flight = Flight::default();
        (0..packets).for_each(|_| flight.depart(NOW, 1, false));
        flight
    }

    /// Sends again what is lost; returns where.
    fn repeat_all(flight: &mut Flight) -> Vec<u32> {
        std::iter::from_fn(|| flight.next_lost().inspect(|at| flight.repeat(*at))).collect()
    }

    #[test]
    fn a_queue_pair_without_selective_repeat_has_no_room_for_it() {
        let mut held = OnDemand::<Held>::default();
        assert!(held.is_empty() && held.0.is_none() && size_of::<OnDemand<Flight>>() == 8);
        assert!(held.hold(1, b"one") && !held.is_empty());
    }

    #[test]
    fn what_is_held_comes_out_in_order_and_within_bounds() {
        let mut held = Held::default();
        assert!(held.hold(2, b"two") && held.hold(3, b"three") && held.hold(2, b"two"));
        assert_eq!(held.tell(Psn::new(9)).held().collect::<Vec<_>>(), [2, 3]);
        assert_eq!((held.tell(Psn::new(9)).duplicates, held.take()), (1, None));
        held.advance(2);
        assert_eq!(held.take().as_deref(), Some(&b"two"[..]));
        held.advance(1);
        assert_eq!(held.take().as_deref(), Some(&b"three"[..]));
        assert!(held.is_empty() && held.bytes == 0);
        assert!(held.hold(MAX_SPAN, b"last") && !held.hold(MAX_SPAN + 1, b"beyond"));
        let big = vec![0; MAX_HELD / 2];
        assert!(held.hold(1, &big) && !held.hold(2, &big));
    }

    #[test]
    fn what_a_later_packet_overtook_is_lost_once() {
        let mut flight = flight(6);
        flight.report(&ack(&[2, 4], 0), 0, 0);
        assert_eq!((repeat_all(&mut flight), flight.landed()), (vec![0, 1, 3], 2));
        assert!(flight.noticed());
        flight.told();
        assert!(!flight.noticed());
        flight.report(&ack(&[2, 4, 5], 0), 0, 0);
        assert_eq!(repeat_all(&mut flight), [0; 0], "they are on their way");
        flight.report(&ack(&[1, 2, 4, 5], 0), 0, 0);
        assert_eq!(repeat_all(&mut flight), [0], "the repetition of 1 left later than that of 0");
    }

    #[test]
    fn those_at_the_end_wait_for_a_timeout() {
        let mut flight = flight(4);
        flight.report(&ack(&[1], 0), 0, 0);
        assert_eq!(repeat_all(&mut flight), [0]);
        assert_eq!(flight.answer(2), None, "what was held, or sent twice, tells no time");
        assert!(flight.suspects() && flight.next_lost().is_none(), "they left before what has arrived");
        flight.lose_suspects();
        assert_eq!((repeat_all(&mut flight), flight.suspects()), (vec![0, 1], false));
        (0..3).for_each(|_| flight.depart(NOW, 1, false));
        flight.answer(2);
        assert_eq!(flight.next_lost(), None, "nothing is known of the last three");
        flight.lose_oldest();
        assert_eq!(repeat_all(&mut flight), [0]);
        flight.answer(1);
        assert!(flight.suspects());
        flight.answer(1);
        assert!(flight.suspects(), "one more was only late");
        flight.lose_suspects();
        assert_eq!(repeat_all(&mut flight), [0]);
        flight.depart(NOW, 1, false);
        assert_eq!(flight.answer(2), Some(NOW));
        assert!(!flight.suspects());
    }

    #[test]
    fn the_answer_to_a_repetition_tells_no_time() {
        let mut flight = flight(2);
        flight.lose_oldest();
        assert_eq!(repeat_all(&mut flight), [0]);
        assert_eq!((flight.answer(1), flight.answer(1)), (None, Some(NOW)));
    }

    #[test]
    fn the_answer_to_a_held_read_may_be_lost() {
        let mut flight = flight(1);
        flight.depart(NOW, 2, true);
        flight.depart(NOW, 1, false);
        flight.report(&ack(&[1, 2, 3], 0), 0, 0);
        assert_eq!(repeat_all(&mut flight), [0]);
        flight.lose_all();
        assert_eq!(repeat_all(&mut flight), [0, 1], "not the last, which is held");
    }

    #[test]
    fn more_counts_as_lost_while_a_repetition_has_to_wait() {
        let mut flight = flight(3);
        flight.lose_oldest();
        flight.lose_oldest();
        assert_eq!((flight.flying(), repeat_all(&mut flight)), (1, vec![0, 1]));
    }

    #[test]
    fn a_lost_acknowledgement_of_what_was_held_is_asked_for() {
        let mut flight = flight(3);
        flight.report(&ack(&[1, 2], 0), 0, 0);
        repeat_all(&mut flight);
        flight.answer(1);
        assert_eq!((flight.next_lost(), flight.landed()), (None, 2), "the answer to these is lost");
        flight.lose_all();
        assert_eq!(repeat_all(&mut flight), [0]);
    }

    #[test]
    fn a_read_is_one_packet_with_many_numbers() {
        let mut flight = flight(1);
        flight.depart(NOW, 4, true);
        flight.depart(NOW, 1, false);
        flight.report(&ack(&[5], 0), 0, 0);
        assert_eq!((repeat_all(&mut flight), flight.flying()), (vec![0, 1], 5));
        flight.report(&ack(&[1, 5], 0), 0, 0);
        flight.answer(3);
        assert_eq!((flight.next_lost(), flight.landed()), (None, 3), "two of the READ, and the last");
        flight.lose_all();
        assert_eq!((repeat_all(&mut flight), flight.landed()), (vec![0], 1), "the rest of the READ");
    }

    #[test]
    fn duplicates_make_it_tolerant_unless_a_timeout_explains_them() {
        let mut flight = flight(20);
        flight.report(&ack(&[1], 1), 0, 0);
        assert_eq!(flight.next_lost(), None, "one may be overtaken by one");
        flight.report(&ack(&[1, 2, 3], 1), 0, 3);
        assert_eq!(flight.next_lost(), None, "or by three");
        flight.report(&ack(&[1, 2, 3], 1), 0, 0);
        assert_eq!(repeat_all(&mut flight), [0]);
        flight.lose_all();
        let again = repeat_all(&mut flight).len() as u32;
        flight.report(&ack(&[1, 2, 3], 1 + again), 0, 0);
        assert_eq!(flight.tolerance, 1, "the timeout explains them");
        flight.report(&ack(&[1, 2, 3], 2 + again), 0, 0);
        assert_eq!(flight.tolerance, 2);
        flight.report(&ack(&[1, 2, 3], 1), 0, 0);
        assert_eq!(flight.tolerance, 2, "an old report");
        (0..2 * CALM).for_each(|_| flight.report(&ack(&[1, 2, 3], 2 + again), 0, 0));
        assert_eq!(flight.tolerance, 0, "that was long ago");
    }
}
