//! Requests: their bytes in ibsim's protocol, and those that wait for the answer of a program.
//!
//! On a real host, the kernel repeats a request until the answer comes, and tells the program when it gives up. The library that
//! connects programs to ibsim does neither, and OpenSM would wait forever. So this module does both for requests to programs.
//! Agents always answer at once, so their requests need nothing of the kind.

use super::mad::{MAD_LEN, Mad};
use std::collections::BTreeMap;

/// Bytes of a request: 24 of addresses, 8 of length, and a management datagram.
pub const REQUEST_LEN: usize = 32 + MAD_LEN;

/// How often a request is sent: three times more than once, as OpenSM has it (OSM_DEFAULT_RETRY_COUNT in osm_base.h).
const ATTEMPTS: u8 = 4;

/// The most requests that wait. One more is passed on, and nobody is told if its answer does not come.
const MOST_WAITING: usize = 4096;

/// A request or an answer, with the LIDs and queue pairs at both ends.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) dlid: u16,
    pub(super) slid: u16,
    pub(super) dqp: u32,
    pub(super) sqp: u32,
    pub(super) status: u32,
    pub(super) mad: Mad,
}

impl Request {
    pub(super) fn read(datagram: &[u8]) -> Option<Self> {
        let datagram: &[u8; REQUEST_LEN] = datagram.try_into().ok()?;
        // A LID is a number of two bytes in the order of the network, in the lower half of one in that of the machine.
        let lid = |at: usize| u16::from_be((word(datagram, at) & 0xFFFF) as u16);
        let qp = |at: usize| u32::from_be(word(datagram, at));
        let mut mad = [0; MAD_LEN];
        mad.copy_from_slice(&datagram[32..]);
        Some(Self { dlid: lid(0), slid: lid(4), dqp: qp(8), sqp: qp(12), status: 0, mad: Mad(mad) })
    }

    pub(super) fn write(&self) -> [u8; REQUEST_LEN] {
        let mut datagram = [0; REQUEST_LEN];
        for (at, lid) in [(0, self.dlid), (4, self.slid)] {
            datagram[at..at + 4].copy_from_slice(&u32::from(lid.to_be()).to_ne_bytes());
        }
        for (at, number) in [(8, self.dqp), (12, self.sqp), (16, self.status)] {
            datagram[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        datagram[24..32].copy_from_slice(&(MAD_LEN as u64).to_be_bytes());
        datagram[32..].copy_from_slice(self.mad.bytes());
        datagram
    }

    pub(super) const fn turned(self) -> Self {
        let Self { dlid, slid, dqp, sqp, status, mad } = self;
        Self { dlid: slid, slid: dlid, dqp: sqp, sqp: dqp, status, mad }
    }
}

/// A number in the order of the machine.
pub(super) fn word(datagram: &[u8], at: usize) -> u32 {
    datagram.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// What an answer has in common with its request: the slot of the program that asks, the class, and the half of the transaction
/// that this program chooses.
type Key = (usize, u8, u32);

/// A request that a program has not answered.
#[derive(Clone, Debug)]
struct Unanswered {
    /// The slot of the program that is to answer.
    to: usize,
    request: Request,
    attempts: u8,
}

/// What becomes of a request that has no answer yet.
#[derive(Clone, Debug)]
pub(super) enum Overdue {
    /// It is sent again to the program in this slot.
    Again(usize, Request),
    /// The program in this slot is told that no answer has come.
    Lost(usize, Request),
}

/// Requests that wait for the answers of programs.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<Key, Unanswered>);

impl Waiting {
    /// A request goes from a slot to another. One that its program sends again is the same one.
    pub(super) fn begin(&mut self, from: usize, to: usize, request: &Request) {
        let key = (from, request.mad.class(), request.mad.transaction() as u32);
        if request.mad.wants_answer() && (self.0.len() < MOST_WAITING || self.0.contains_key(&key)) {
            self.0.insert(key, Unanswered { to, request: request.clone(), attempts: 1 });
        }
    }

    /// The program in a slot answers.
    pub(super) fn end(&mut self, by: usize, answer: &Mad) {
        let key = (answer.slot(), answer.class(), answer.transaction() as u32);
        if self.0.get(&key).is_some_and(|unanswered| unanswered.to == by) {
            self.0.remove(&key);
        }
    }

    /// The program in a slot is gone. Those that wait for it hear of it.
    pub(super) fn leave(&mut self, slot: usize) -> Vec<Overdue> {
        self.0.retain(|(from, ..), _| *from != slot);
        let mut lost = Vec::new();
        self.0.retain(|(from, ..), unanswered| {
            let is_lost = unanswered.to == slot;
            if is_lost {
                lost.push(Overdue::Lost(*from, unanswered.request.clone()));
            }
            !is_lost
        });
        lost
    }

    /// Some time has passed: requests are sent again, or given up.
    pub(super) fn repeat(&mut self) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        self.0.retain(|(from, ..), unanswered| {
            let Unanswered { to, request, attempts } = unanswered;
            *attempts += 1;
            let goes_on = *attempts <= ATTEMPTS;
            overdue.push(match goes_on {
                true => Overdue::Again(*to, request.clone()),
                false => Overdue::Lost(*from, request.clone()),
            });
            goes_on
        });
        overdue
    }
}
