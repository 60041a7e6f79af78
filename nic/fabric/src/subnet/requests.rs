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

#[cfg(test)]
mod tests {
    use super::super::mad::method;
    use super::*;

    /// A request with this transaction, from the program in a slot.
    fn request(slot: usize, transaction: u32) -> Request {
        let mut mad = Mad::new([0; MAD_LEN]);
        mad.0[..4].copy_from_slice(&[1, 0x81, 1, method::GET]);
        mad.set_transaction(transaction.into());
        mad.set_slot(slot);
        Request { dlid: 0x0102, slid: 0x0304, dqp: 0x0506_0708, sqp: 0x090A_0B0C, status: 110, mad }
    }

    /// The transactions of requests that are sent again, and of those that are given up, each with the slot that hears of it.
    fn told(overdue: &[Overdue]) -> [Vec<(usize, u32)>; 2] {
        let mut told = [Vec::new(), Vec::new()];
        for one in overdue {
            let (kind, slot, request) = match one {
                Overdue::Again(slot, request) => (0, slot, request),
                Overdue::Lost(slot, request) => (1, slot, request),
            };
            told[kind].push((*slot, request.mad.transaction() as u32));
        }
        told
    }

    #[test]
    fn bytes_are_where_ibsim_has_them() {
        let request = request(3, 9);
        let bytes = request.write();
        assert_eq!((&bytes[..2], &bytes[4..6]), (&[1, 2][..], &[3, 4][..]), "LIDs");
        assert_eq!(bytes[8..20], [5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 110], "queue pairs, and the status");
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 0, 0, 1, 0], "the length");
        let read = Request::read(&bytes).expect("a request");
        assert_eq!((read.dlid, read.slid, read.dqp, read.sqp), (0x0102, 0x0304, 0x0506_0708, 0x090A_0B0C));
        let turned = read.turned();
        assert_eq!(
            (turned.dlid, turned.slid, turned.dqp, turned.sqp),
            (0x0304, 0x0102, 0x090A_0B0C, 0x0506_0708)
        );
        assert!(turned.mad == request.mad, "the datagram is the same");
        assert!(Request::read(&bytes[1..]).is_none());
    }

    #[test]
    fn only_the_program_that_was_asked_answers() {
        let mut waiting = Waiting::default();
        for transaction in [7, 8] {
            waiting.begin(0, 1, &request(0, transaction));
        }
        let mut answer = request(0, 7).mad;
        answer.answer(0);
        waiting.end(2, &answer);
        assert_eq!(told(&waiting.repeat()), [vec![(1, 7), (1, 8)], vec![]], "another one has answered");
        waiting.end(1, &answer);
        assert_eq!(told(&waiting.repeat()), [vec![(1, 8)], vec![]], "the other request still waits");
    }

    #[test]
    fn a_program_that_leaves_asks_nothing_and_answers_nothing() {
        let mut waiting = Waiting::default();
        for (from, to, transaction) in [(0, 1, 10), (1, 2, 11), (0, 2, 12), (1, 1, 13)] {
            waiting.begin(from, to, &request(from, transaction));
        }
        assert_eq!(told(&waiting.leave(1)), [vec![], vec![(0, 10)]]);
        assert_eq!(told(&waiting.repeat()), [vec![(2, 12)], vec![]]);
    }

    /// At the bound, and one past it. A request that waits already may still be sent again by its program, and then begins anew.
    #[test]
    fn no_more_requests_wait_than_the_bound() {
        let mut waiting = Waiting::default();
        for transaction in 0..=MOST_WAITING as u32 {
            waiting.begin(0, 1, &request(0, transaction));
        }
        assert_eq!(waiting.repeat().len(), MOST_WAITING);
        waiting.begin(0, 1, &request(0, 5));
        for _ in 2..ATTEMPTS {
            assert_eq!(waiting.repeat().len(), MOST_WAITING);
        }
        let [again, lost] = told(&waiting.repeat());
        assert_eq!((again, lost.len()), (vec![(1, 5)], MOST_WAITING - 1));
    }
}
