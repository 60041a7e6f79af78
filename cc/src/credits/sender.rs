//! The sending end of a lane.

use super::message::{is_later, next};
use super::{CreditMessage, Kind, ahead};
use crate::vl::Vl;
use time::{Duration, Instant};

/// Our choice: one ask, and one that says that the sender obeys a limit that was lowered meanwhile, or that repeats it.
const MAX_UNHEARD: u16 = 2;

/// How often and how long packets waited for credit. `time` is the quantity that `PortXmitWait` counts in its own
/// units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Packets that had to wait.
    pub packets: u64,
    /// Their total waiting time, without the packet that waits now.
    pub time: Duration,
}

/// The asks that no grant has answered yet.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    /// The number of the first of them, and its time. A grant that answers it or a repetition ends the wait for an
    /// answer.
    first: u16,
    since: Instant,
    /// When the latest of them was sent.
    latest: Instant,
}

/// The sending end of a lane: the credit that it has.
#[derive(Clone, Copy, Debug)]
pub struct CreditSender {
    /// Blocks sent (FCTBS).
    sent: u32,
    /// The count up to which it may send (FCCL).
    limit: u32,
    /// How long a limit holds.
    lease: Duration,
    /// Until when the limit holds; `None` before the first grant.
    until: Option<Instant>,
    /// The number of the latest ask; 0 if there was none.
    asked: u16,
    /// When that was sent, and the number of the latest ask that the receiving end has heard.
    asked_at: Option<Instant>,
    was_heard: u16,
    /// The asks since the limit rose last.
    in_vain: u32,
    unanswered: Option<Unanswered>,
    /// How long the latest answers took: it follows increases at once and decreases gradually.
    answer: Duration,
    /// The number of the latest grant; 0 if there was none.
    heard: u16,
    /// What that lent: the blocks from what the receiving end had received up to the limit.
    lent: u32,
    waits_since: Option<Instant>,
    stalls: Stalls,
}

impl CreditSender {
    /// A lane that may not send before the first grant. A limit holds for `lease` from the arrival of the latest grant.
    /// `answer`: how long answers are expected to take, as long as nothing is known of them.
    #[must_use]
    pub const fn new(lease: Duration, answer: Duration) -> Self {
        Self {
            sent: 0,
            limit: 0,
            lease,
            until: None,
            asked: 0,
            asked_at: None,
            was_heard: 0,
            in_vain: 0,
            unanswered: None,
            answer,
            heard: 0,
            lent: 0,
            waits_since: None,
            stalls: Stalls { packets: 0, time: Duration::ZERO },
        }
    }

    /// The blocks that may be sent now.
    #[must_use]
    pub fn available(&self, now: Instant) -> u32 {
        if self.is_leased(now) { ahead(self.sent, self.limit) } else { 0 }
    }

    /// Whether the latest grant lent two trains of this many blocks or more, and little is left of that: less than a
    /// quarter. The receiving end lends more before it has that little outstanding
    /// ([`PoolConfig::lag`](super::PoolConfig::lag)), as far as it has room.
    #[must_use]
    pub fn is_low(&self, now: Instant, train: u32) -> bool {
        self.lent / 2 >= train && self.available(now) < self.lent / 4
    }

    /// Whether the limit still holds.
    #[must_use]
    pub fn is_leased(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Takes credit for a packet of `blocks`, if there is enough. Otherwise the packet waits, and the waiting time
    /// counts until credit is taken.
    pub fn try_take(&mut self, now: Instant, blocks: u32) -> bool {
        if blocks > self.available(now) {
            self.waits_since.get_or_insert(now);
            return false;
        }
        self.sent = self.sent.wrapping_add(blocks);
        if let Some(since) = self.waits_since.take() {
            self.stalls.packets += 1;
            self.stalls.time += now.saturating_duration_since(since);
        }
        true
    }

    /// Since when the current packet has been waiting.
    #[must_use]
    pub const fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// How often and how long packets waited.
    #[must_use]
    pub const fn stalls(&self) -> Stalls {
        self.stalls
    }

    /// Whether a lane that goes on sending should ask, for its lease to go on: half of it has passed, and no ask is
    /// unanswered.
    #[must_use]
    pub fn is_renewal_due(&self, now: Instant) -> bool {
        self.unanswered.is_none() && self.until.is_some_and(|until| until <= now + self.lease / 2)
    }

    /// How long recent answers took.
    #[must_use]
    pub const fn answer_time(&self) -> Duration {
        self.answer
    }

    /// The number of asks since the limit rose last.
    #[must_use]
    pub const fn asked_in_vain(&self) -> u32 {
        self.in_vain
    }

    /// Until when this end must not ask; `None` if it may ask now. Asks take no credit, so their number is bounded: at
    /// most two are sent ahead of what the receiving end is known to have heard, and then one in a lease.
    #[must_use]
    pub fn must_not_ask_until(&self, now: Instant) -> Option<Instant> {
        let until = self.asked_at? + self.lease;
        let unheard = self.asked.wrapping_sub(self.was_heard);
        (unheard >= MAX_UNHEARD && now < until).then_some(until)
    }

    /// Expects no answer to earlier asks: the receiving end did not get them.
    pub const fn forget_asks(&mut self) {
        (self.in_vain, self.unanswered, self.was_heard) = (0, None, self.asked);
    }

    /// The next ask, for a packet of `want` blocks that waits, or for none. Send it after everything for which credit
    /// was taken.
    pub fn ask(&mut self, now: Instant, vl: Vl, want: u32) -> CreditMessage {
        self.asked = next(self.asked);
        self.asked_at = Some(now);
        // A sender that wants nothing and has nothing only obeys; it is not answered.
        if want > 0 || self.available(now) > 0 {
            let this = Unanswered { first: self.asked, since: now, latest: now };
            self.unanswered.get_or_insert(this).latest = now;
            self.in_vain += 1;
        }
        CreditMessage {
            kind: Kind::Ask,
            vl,
            want: u16::try_from(want).unwrap_or(u16::MAX),
            number: self.asked,
            echo: self.heard,
            count: self.sent,
            limit: self.limit,
        }
    }

    /// Handles a grant that `arrived` then, whenever it is read. Returns whether it lowers the limit: then the receiving
    /// end waits to hear, in an [ask](Self::ask), that it is obeyed. A grant that was overtaken is ignored as long as the
    /// newer one holds; after that, any number counts, so that a wrong one does no harm for longer.
    pub fn handle_grant(&mut self, arrived: Instant, grant: &CreditMessage) -> bool {
        let is_old = self.is_leased(arrived) && !is_later(grant.number, self.heard);
        if grant.kind != Kind::Grant || is_old {
            return false;
        }
        if let Some(asked) = self.unanswered.take_if(|u| !is_later(u.first, grant.echo)) {
            // The number says which ask was heard: a slow reader must not look faster because it was asked again, nor
            // slower because an ask was lost.
            let since = if grant.echo == asked.first { asked.since } else { asked.latest };
            let took = arrived.saturating_duration_since(since);
            self.answer = took.max(self.answer - self.answer / 8);
        }
        self.was_heard = grant.echo;
        // A limit that no longer held is not lowered: the receiving end knows that it is void.
        let held = if self.is_leased(arrived) { self.limit } else { self.sent };
        self.until = Some(arrived + self.lease);
        (self.limit, self.heard, self.lent) = (grant.limit, grant.number, ahead(grant.count, grant.limit));
        if ahead(held, grant.limit) > 0 {
            self.in_vain = 0;
        }
        (grant.limit.wrapping_sub(held) as i32) < 0
    }

    /// The blocks sent so far.
    #[must_use]
    pub const fn sent(&self) -> u32 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(400);

    fn lane() -> Vl {
        Vl::new(0).expect("a lane")
    }

    fn grant(number: u16, echo: u16, limit: u32) -> CreditMessage {
        CreditMessage { kind: Kind::Grant, vl: lane(), want: 0, number, echo, count: 0, limit }
    }

    #[test]
    fn nothing_is_sent_before_the_first_grant_or_beyond_it() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        assert!(!sender.try_take(start, 1) && sender.waits_since() == Some(start));
        let ask = sender.ask(start, lane(), 7);
        assert_eq!((ask.number, ask.echo, ask.want, ask.count), (1, 0, 7, 0));
        let later = start + Duration::from_millis(2);
        assert!(!sender.handle_grant(later, &grant(1, 1, 10)));
        assert!(sender.try_take(later, 7) && !sender.try_take(later, 4) && sender.try_take(later, 3));
        assert_eq!((sender.sent(), sender.available(later)), (10, 0));
        assert_eq!(sender.stalls(), Stalls { packets: 2, time: Duration::from_millis(2) });
        assert_eq!(sender.answer_time(), Duration::from_millis(2));
    }

    #[test]
    fn little_is_left_of_a_loan_after_three_quarters_of_it() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        assert!(!sender.is_low(start, 50), "nothing was lent");
        sender.handle_grant(start, &grant(1, 0, 100));
        assert!(sender.try_take(start, 75) && !sender.is_low(start, 50));
        assert!(sender.try_take(start, 1) && sender.is_low(start, 50));
        // The other end has read 60 of them: this lends 140.
        sender.handle_grant(start, &CreditMessage { count: 60, ..grant(2, 0, 200) });
        assert!(sender.try_take(start, 200 - 76 - 35) && !sender.is_low(start, 50));
        assert!(sender.try_take(start, 1) && sender.is_low(start, 50));
    }

    #[test]
    fn a_lease_counts_from_the_arrival_of_a_grant() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        sender.ask(start, lane(), 1);
        sender.handle_grant(start, &grant(1, 1, 10));
        let end = start + LEASE;
        assert!(sender.is_leased(end - Duration::from_nanos(1)) && sender.available(end) == 0);
        let half = start + LEASE / 2;
        assert!(sender.is_renewal_due(half) && !sender.is_renewal_due(half - Duration::from_nanos(1)));
        sender.ask(half, lane(), 0);
        assert!(!sender.is_renewal_due(half), "it was asked already");
        sender.handle_grant(half, &grant(2, 2, 10));
        assert_eq!((sender.available(end), sender.available(half + LEASE)), (10, 0));
    }

    #[test]
    fn a_lower_limit_is_obeyed_and_an_overtaken_grant_ignored() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        sender.ask(start, lane(), 1);
        sender.handle_grant(start, &grant(1, 1, 10));
        assert!(sender.try_take(start, 6));
        assert!(sender.handle_grant(start, &grant(3, 1, 4)), "it was lowered");
        assert_eq!(sender.available(start), 0);
        assert!(!sender.handle_grant(start, &grant(2, 1, 30)) && sender.available(start) == 0);
        let answer = sender.ask(start, lane(), 0);
        assert_eq!((answer.echo, answer.count, answer.limit), (3, 6, 4));
        assert!(!sender.handle_grant(start, &grant(4, 2, 9)) && sender.available(start) == 3);
    }

    #[test]
    fn a_limit_that_no_longer_holds_is_not_lowered() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        sender.handle_grant(start, &grant(1, 0, 10));
        assert!(!sender.handle_grant(start + LEASE, &grant(2, 0, 5)));
        assert_eq!(sender.available(start + LEASE), 5);
    }

    #[test]
    fn a_wrong_number_does_harm_for_a_lease_and_no_longer() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        sender.handle_grant(start, &grant(30_000, 0, 1_000_000));
        let end = start + LEASE;
        sender.handle_grant(end - Duration::from_nanos(1), &grant(5, 0, 10));
        assert_eq!(sender.available(start), 1_000_000);
        sender.handle_grant(end, &grant(6, 0, 10));
        assert_eq!(sender.available(end), 10);
    }

    #[test]
    fn the_time_of_an_answer_counts_from_the_ask_that_was_heard() {
        let at = |ms| Instant::EPOCH + Duration::from_millis(ms);
        let twice = || {
            let mut sender = CreditSender::new(LEASE, Duration::ZERO);
            sender.ask(at(0), lane(), 1);
            sender.ask(at(40), lane(), 1);
            sender
        };
        let mut slow = twice();
        slow.handle_grant(at(50), &grant(1, 0, 0));
        assert_eq!((slow.asked_in_vain(), slow.answer_time()), (2, Duration::ZERO), "it answers neither");
        slow.handle_grant(at(60), &grant(2, 1, 0));
        assert_eq!((slow.asked_in_vain(), slow.answer_time()), (2, Duration::from_millis(60)));
        slow.handle_grant(at(61), &grant(3, 2, 4));
        assert_eq!(slow.asked_in_vain(), 0, "credit came");
        slow.handle_grant(at(62), &grant(4, 2, 0));
        slow.ask(at(62), lane(), 0);
        assert_eq!(slow.asked_in_vain(), 0, "it only says that it obeys");
        let mut lossy = twice();
        lossy.handle_grant(at(60), &grant(1, 2, 0));
        assert_eq!(lossy.answer_time(), Duration::from_millis(20), "the first was lost");
    }

    #[test]
    fn two_asks_are_sent_ahead_of_what_was_heard_and_then_one_in_a_lease() {
        let at = |ms| Instant::EPOCH + Duration::from_millis(ms);
        let mut sender = CreditSender::new(LEASE, Duration::ZERO);
        for ms in [0, 10] {
            assert_eq!(sender.must_not_ask_until(at(ms)), None);
            sender.ask(at(ms), lane(), 1);
        }
        assert_eq!(sender.must_not_ask_until(at(409)), Some(at(410)));
        assert_eq!(sender.must_not_ask_until(at(410)), None);
        sender.ask(at(410), lane(), 1);
        sender.handle_grant(at(420), &grant(1, 1, 0));
        assert_eq!(sender.must_not_ask_until(at(420)), Some(at(810)), "it heard the first of three");
        sender.handle_grant(at(430), &grant(2, 2, 0));
        assert_eq!(sender.must_not_ask_until(at(430)), None);
        sender.ask(at(430), lane(), 1);
        assert!(sender.must_not_ask_until(at(430)).is_some());
        sender.forget_asks();
        assert_eq!(sender.must_not_ask_until(at(430)), None);
    }

    #[test]
    fn counts_and_numbers_wrap() {
        let (mut sender, start) = (CreditSender::new(LEASE, Duration::ZERO), Instant::EPOCH);
        (sender.sent, sender.limit, sender.heard) = (u32::MAX - 2, u32::MAX - 2, u16::MAX);
        sender.asked = u16::MAX;
        assert_eq!(sender.ask(start, lane(), 1).number, 1);
        assert!(!sender.handle_grant(start, &grant(1, 1, 4)));
        assert_eq!(sender.available(start), 7);
        assert!(sender.try_take(start, 7) && sender.sent() == 4);
    }
}
