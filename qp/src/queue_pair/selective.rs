//! Selective repeat: what is kept that came out of order, and what a requester knows of the rest.
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
//!
//! Data that answers a READ or an atomic is treated in the same way at the requester, if the responder is a partner: what comes
//! beyond a gap is held, and what is missing is asked for alone. That needs no packet of its own. The PSN of a response says
//! where its data belongs, and a READ request for a part of an earlier one is a duplicate that every responder knows (IBTA
//! 9.7.5.1.4). Held responses are taken out in order, by the code that takes all others, so that here, too, memory is that of
//! go-back-N: the last byte comes last, a local buffer that several READs share has the data of the last, and one that a later
//! WRITE is sent from, or a key that is revoked, is found as it would be found then. An atomic is executed once, because its
//! repetition is a duplicate. An answer shows that everything before it was executed, but completes requests only up to the
//! first data that is missing.
//!
//! What shows a gap: an answer with a later PSN, be it data, an acknowledgement, an RNR NAK, or a selective acknowledgement,
//! which the responder sends behind all data. What is missing is asked for once, then not again before something shows that this
//! is lost, too: later data that was asked for after it, or a timeout. A responder repeats at once, before the answers to later
//! requests that still wait, because the requester can hold only so much, and may ask for no more READs before the oldest is
//! complete.

mod flight;

use super::QueuePair;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;
use crate::wire::selective::{MAX_SPAN, SelectiveAck};
pub(super) use flight::Flight;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// The greatest number of PSNs in flight, and of those that a responder holds: what a selective acknowledgement can tell of.
/// With packets of 4 KiB it is 4 MiB, far above the bandwidth-delay products of a data centre (IRN: 110 packets, SIGCOMM 2018).
pub(super) const MAX_FLIGHT: u32 = MAX_SPAN as u32;

/// The greatest number of bytes that a queue pair holds of requests, and of responses.
const MAX_HELD: usize = 1 << 20;

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
    const EMPTY: &'static Self = &Self::NONE;
}

/// Packets that arrived beyond a gap.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By their distance from the expected PSN, or the oldest unanswered one. The last place is never empty.
    places: VecDeque<Option<Box<[u8]>>>,
    bytes: usize,
    /// Packets that came again without need.
    duplicates: u32,
}

impl Held {
    const NONE: Self = Self { places: VecDeque::new(), bytes: 0, duplicates: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How far the packets reach that are held.
    pub(super) fn reach(&self) -> usize {
        self.places.len()
    }

    /// A packet came that was executed or is held already.
    pub(super) fn came_again(&mut self) {
        self.duplicates = self.duplicates.wrapping_add(1);
    }

    /// Keeps a packet, from BTH to ICRC, that is so many PSNs `ahead` of the first. Returns whether it did.
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

    /// The first PSN has advanced.
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

impl QueuePair {
    /// PSNs that are sent and not answered, and yet not on their way any more: lost, or held by the peer or here.
    #[must_use]
    pub fn landed(&self) -> u32 {
        self.requester.flight.landed()
    }

    /// PSNs that are sent and neither answered, nor lost, nor held by the peer.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let sent = self.next_psn().distance_from(self.unacked_psn());
        u32::try_from(sent).unwrap_or(0).saturating_sub(self.landed())
    }

    /// Whether selective repeat found a loss since this was last asked.
    pub fn noticed_loss(&mut self) -> bool {
        let noticed = self.requester.flight.noticed();
        if noticed {
            self.requester.flight.told();
        }
        noticed
    }

    /// Whether a packet comes out of order, so that what becomes of it depends on whether the peer understands selective repeat.
    #[must_use]
    pub fn needs_selective_peer(&self, packet: &Packet<'_>) -> bool {
        if !self.config.tuning.selective_repeat || !self.config.qp_type.is_reliable() {
            return false;
        }
        let info = packet.info();
        if !info.is_request {
            return packet.psn() != self.unacked_psn();
        }
        let ahead = packet.psn().distance_from(self.responder.expected_psn());
        ahead > 0 || ahead < 0 && info.operation == Operation::ReadRequest
    }

    /// Says whether the peer understands selective acknowledgements; if it does not, the queue pair goes on as without selective
    /// repeat.
    pub fn set_selective_peer(&mut self, understands: bool) {
        let is_selective = understands && self.config.tuning.selective_repeat;
        self.responder.tells = is_selective;
        self.requester.keeps = is_selective;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Psn;

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
}
