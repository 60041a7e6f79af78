//! The account of a requester: which retransmissions and which failures the packets at its port justify.
//!
//! A requester has to send again what was lost, and may give up only when its retries are used up. Whether it does
//! both at the right time follows from what its queue pair sends and receives, under any loss: packets are sent in
//! *passes*. A pass begins when the requester goes back to the oldest unanswered packet, and for that it needs a sign
//! in the pass before:
//!
//! * silence: its timer ran for a whole timeout. The timer runs while something is unanswered, and starts again with
//!   the pass, and whenever something new is answered (IBTA 9.7.6.1.3);
//! * a NAK for a missing packet, or an answer that skips data which only a response can bring (9.7.5.1.1);
//! * an RNR NAK, after the wait that it asked for. This uses up no retry (9.7.5.2.8).
//!
//! An answer to something new restores all retries. So a requester that gives up has made exactly `retry_cnt` passes
//! because of the first two since then, and has a further sign; one that sends again has made no more than that. The
//! number is ambiguous where an answer arrives in the same pass as a sign, because the sign may have been before it,
//! and where an RNR NAK does, because that may have been the reason: the account keeps the lowest and the highest
//! number possible, and judges each error by the one that favours the requester. Both are the same in all other cases.
//!
//! A retransmission can have an echo: packets that had overtaken the missing one were discarded, and are missed when it
//! arrives after all; answers to the last pass still arrive, and skip what is being asked for again; and the
//! acknowledgement of a repeated request names the newest one, even if that is a READ. So a NAK in a pass that repeats
//! is no sign of another loss, though it counts as a retry.

use super::Check;
use super::wire::{Said, ahead, plus, rnr_delay};
use std::collections::VecDeque;
use std::time::Duration;

/// The attributes of a requester, and its first PSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) psn: u32,
    /// The path MTU.
    pub(super) mtu: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) retry_cnt: u32,
    pub(super) rnr_retry: u32,
}

/// A sign that something was lost, and the time in which that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sign {
    pub(super) since: Duration,
    pub(super) at: Duration,
}

/// What happened since the requester went back for the last time.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    began: Duration,
    /// Whether the requester went back to its beginning.
    repeats: bool,
    /// Whether something arrived that says that a packet is missing.
    missing: bool,
    /// The end of the wait that an RNR NAK asked for.
    waits_until: Option<Duration>,
    /// The longest time that the timer ran without an answer, until it was started again.
    silence: Duration,
    /// Whether something new was answered.
    progress: bool,
}

/// The account of a requester.
#[derive(Debug)]
pub(super) struct Account {
    terms: Terms,
    /// The oldest unanswered PSN.
    unacked: u32,
    /// The PSN after the one that was sent last.
    next: u32,
    /// The PSN after the last one that was ever sent.
    end: u32,
    /// For each PSN from the oldest unanswered one on, whether only a response of its own answers it.
    asks: VecDeque<bool>,
    /// Since when the timer runs.
    armed: Option<Duration>,
    pass: Pass,
    /// Retries used up since the last progress: the lowest and the highest number possible.
    retries: [u32; 2],
    /// RNR NAKs since the last progress.
    not_ready: u32,
    /// Whether one of them was one too many. What arrives between it and the completion changes nothing any more.
    waited_enough: bool,
    /// When the queue pair failed, if its program does not know that yet.
    failed: Option<Duration>,
    /// When a packet last arrived with which the requester could give up.
    ripe: Option<Duration>,
}

impl Account {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            unacked: terms.psn,
            next: terms.psn,
            end: terms.psn,
            asks: VecDeque::new(),
            armed: None,
            pass: Pass::default(),
            retries: [0; 2],
            not_ready: 0,
            waited_enough: false,
            failed: None,
            ripe: None,
        }
    }

    /// The queue pair has failed.
    pub(super) fn freeze(&mut self, now: Duration) {
        self.failed.get_or_insert(now);
    }

    /// The queue pair enters RTS again. Whether a sign of the present pass was before that is not known.
    pub(super) fn resume(&mut self) {
        (self.retries, self.not_ready, self.waited_enough) = ([0; 2], 0, false);
        self.pass.progress = true;
    }

    /// The requester sends a packet. Returns the sign because of which it goes back, if it does.
    pub(super) fn sent(&mut self, now: Duration, psn: u32, said: Said) -> Check<Option<Sign>> {
        let psns = match said {
            Said::Read(length) => length.div_ceil(self.terms.mtu).max(1),
            _ => 1,
        };
        if ahead(psn, self.end) > 0 {
            return Err(format!("PSN {psn:#x} was sent, and {:#x} never was", self.end));
        }
        let from = ahead(psn, self.next);
        // Having gone back, it may find that the answers have caught up with it.
        let caught_up = from >= 0 && self.pass.missing && psn == self.unacked;
        let sign = if from < 0 || caught_up { self.go_back(now, psn, from < 0)? } else { None };
        for psn in (0..psns).map(|nth| plus(psn, nth)) {
            if psn == self.end {
                self.asks.push_back(said != Said::Request);
                self.end = plus(psn, 1);
            }
        }
        self.next = plus(psn, psns);
        self.armed.get_or_insert(now);
        Ok(sign)
    }

    /// A new pass begins.
    fn go_back(&mut self, now: Duration, psn: u32, surely: bool) -> Check<Option<Sign>> {
        self.stop_timer(now);
        let Pass { began, repeats, missing, waits_until, silence, progress } = self.pass;
        let retried = missing || self.is_timeout(silence);
        if retried {
            self.retries[0] += u32::from(surely && waits_until.is_none() && !progress);
            self.retries[1] += 1;
        } else {
            match waits_until {
                None => {
                    return Err(format!(
                        "PSN {psn:#x} was sent again {:?} after it had been sent, and {silence:?} after the last sign \
                         of life, without a NAK: the timeout is {:?}",
                        now.saturating_sub(began),
                        self.terms.timeout
                    ));
                }
                Some(until) if now < until => {
                    return Err(format!("an RNR wait until {until:?} was cut short"));
                }
                Some(_) => {}
            }
        }
        if self.retries[0] > self.terms.retry_cnt {
            return Err(format!("retry {} of {}", self.retries[0], self.terms.retry_cnt));
        }
        // Where it had caught up, something was answered just before.
        self.pass = Pass { began: now, repeats: true, progress: !surely, ..Pass::default() };
        self.armed = Some(now);
        let echo = repeats && missing;
        Ok((retried && surely && waits_until.is_none() && !echo).then_some(Sign { since: began, at: now }))
    }

    /// The requester receives a packet.
    pub(super) fn received(&mut self, now: Duration, psn: u32, said: Said) {
        if self.failed.is_some() || ahead(psn, self.unacked) < 0 || ahead(psn, self.end) >= 0 {
            return;
        }
        let before = self.unacked;
        let reach = if said == Said::Ack { plus(psn, 1) } else { psn };
        let gap = self.answered_to(reach);
        self.pass.missing |= gap || said == Said::Missing;
        if !gap && said == Said::Answer && psn == self.unacked && self.asks.front() == Some(&true) {
            self.answer();
        }
        if self.unacked != before {
            self.progress(now);
        }
        if let (Said::NotReady(code), false) = (said, gap) {
            self.stop_timer(now);
            self.not_ready += 1;
            self.waited_enough |= self.not_ready > self.terms.rnr_retry;
            self.pass.waits_until.get_or_insert(now + rnr_delay(code));
        }
        if self.pass.missing && self.retries[1] >= self.terms.retry_cnt {
            self.ripe = Some(now);
        }
    }

    /// Everything before `reach` is answered, except for what needs a response of its own: whether there is such.
    fn answered_to(&mut self, reach: u32) -> bool {
        while ahead(reach, self.unacked) > 0 {
            if self.asks.front() == Some(&true) {
                return true;
            }
            self.answer();
        }
        false
    }

    fn answer(&mut self) {
        self.asks.pop_front();
        self.unacked = plus(self.unacked, 1);
    }

    /// Something new was answered.
    fn progress(&mut self, now: Duration) {
        self.stop_timer(now);
        self.pass.progress = true;
        (self.retries, self.not_ready) = ([0; 2], 0);
        if ahead(self.next, self.unacked) < 0 {
            self.next = self.unacked;
        }
        if self.next != self.unacked {
            self.armed = Some(now);
        }
    }

    fn stop_timer(&mut self, now: Duration) {
        if let Some(armed) = self.armed.take() {
            self.pass.silence = self.pass.silence.max(now.saturating_sub(armed));
        }
    }

    fn is_timeout(&self, silence: Duration) -> bool {
        self.terms.timeout.is_some_and(|timeout| silence >= timeout)
    }

    /// The requester gave up with RETRY_EXC_ERR. Returns the last sign, unless it is an echo.
    pub(super) fn gave_up(&self, now: Duration) -> Check<Option<Sign>> {
        let now = self.failed.unwrap_or(now);
        let Pass { began, repeats, missing, .. } = self.pass;
        let silence =
            self.armed.map_or(self.pass.silence, |armed| now.saturating_sub(armed).max(self.pass.silence));
        let echo = repeats && missing;
        let sign = (!echo).then_some(Sign { since: began, at: now });
        if self.ripe == Some(now) {
            return Ok(sign);
        }
        if !missing && !self.is_timeout(silence) {
            return Err(format!(
                "gave up {silence:?} after the last sign of life, without a NAK: the timeout is {:?}",
                self.terms.timeout
            ));
        }
        if self.retries[1] < self.terms.retry_cnt {
            return Err(format!("gave up after {} retries of {}", self.retries[1], self.terms.retry_cnt));
        }
        Ok(sign)
    }

    /// The requester gave up with RNR_RETRY_EXC_ERR.
    pub(super) fn gave_up_waiting(&self) -> Check {
        if !self.waited_enough {
            return Err(format!(
                "gave up after {} RNR NAKs, with {} retries",
                self.not_ready, self.terms.rnr_retry
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A requester whose timeout is 100 us, with two retries of each kind.
    fn account() -> Account {
        let timeout = Some(us(100));
        Account::new(Terms { psn: 0xff_fffe, mtu: 256, timeout, retry_cnt: 2, rnr_retry: 2 })
    }

    const FIRST: u32 = 0xff_fffe;

    #[test]
    fn silence_for_a_timeout_is_a_sign_and_less_is_none() {
        for (late, is_sign) in [(99, false), (100, true)] {
            let mut account = account();
            assert_eq!(account.sent(us(0), FIRST, Said::Request), Ok(None));
            let again = account.sent(us(late), FIRST, Said::Request);
            assert_eq!(again.is_ok(), is_sign, "{again:?}");
        }
    }

    #[test]
    fn an_answer_starts_the_timer_anew() {
        let again = |at: u64| {
            let mut account = account();
            account.sent(us(0), FIRST, Said::Request).unwrap();
            account.sent(us(1), plus(FIRST, 1), Said::Request).unwrap();
            account.received(us(60), FIRST, Said::Ack);
            account.sent(us(at), plus(FIRST, 1), Said::Request)
        };
        assert!(again(159).is_err(), "99 us after the answer");
        assert_eq!(again(160), Ok(Some(Sign { since: us(0), at: us(160) })));
    }

    #[test]
    fn one_gives_up_after_the_last_retry_and_not_before() {
        let mut account = account();
        account.sent(us(0), FIRST, Said::Request).unwrap();
        assert!(account.gave_up(us(100)).unwrap_err().contains("0 retries of 2"));
        account.sent(us(100), FIRST, Said::Request).unwrap();
        assert!(account.gave_up(us(200)).unwrap_err().contains("1 retries of 2"));
        account.received(us(150), FIRST, Said::Missing);
        account.sent(us(200), FIRST, Said::Request).unwrap();
        assert!(account.gave_up(us(299)).is_err(), "no third sign");
        assert!(account.gave_up(us(300)).is_ok());
        assert!(account.sent(us(300), FIRST, Said::Request).unwrap_err().contains("retry 3 of 2"));
    }

    #[test]
    fn data_that_is_skipped_is_a_sign() {
        let mut account = account();
        account.sent(us(0), FIRST, Said::Read(600)).unwrap();
        account.sent(us(0), plus(FIRST, 3), Said::Request).unwrap();
        account.received(us(5), FIRST, Said::Answer);
        account.received(us(6), plus(FIRST, 2), Said::Answer);
        assert!(account.sent(us(7), plus(FIRST, 1), Said::Read(344)).unwrap().is_some());
        account.received(us(9), plus(FIRST, 3), Said::Ack);
        assert_eq!(account.sent(us(10), plus(FIRST, 1), Said::Read(344)), Ok(None), "it echoes the first");
        account.received(us(12), plus(FIRST, 1), Said::Answer);
        assert!(account.sent(us(13), plus(FIRST, 2), Said::Read(88)).is_err(), "nothing is missing any more");
    }

    #[test]
    fn an_rnr_wait_is_kept_and_takes_no_retry() {
        let mut account = account();
        let mut now = us(0);
        account.sent(now, FIRST, Said::Request).unwrap();
        for _ in 0..3 {
            assert!(account.gave_up_waiting().is_err());
            now += us(1);
            // Code 1 is 10 us.
            account.received(now, FIRST, Said::NotReady(1));
            now += us(10);
            assert_eq!(account.sent(now, FIRST, Said::Request), Ok(None));
        }
        assert!(account.gave_up_waiting().is_ok());
        account.received(now, FIRST, Said::NotReady(1));
        assert!(account.sent(now + us(9), FIRST, Said::Request).unwrap_err().contains("cut short"));
    }

    /// A copy of a request was taken after another had been refused: the answer arrives before the program looks.
    #[test]
    fn an_answer_after_the_last_rnr_nak_comes_too_late() {
        let mut account = account();
        account.sent(us(0), FIRST, Said::Request).unwrap();
        for now in 1..=3 {
            account.received(us(now), FIRST, Said::NotReady(1));
        }
        account.received(us(3), FIRST, Said::Ack);
        assert!(account.gave_up_waiting().is_ok());
        account.resume();
        assert!(account.gave_up_waiting().is_err());
    }

    #[test]
    fn no_psn_is_left_out() {
        assert!(account().sent(us(0), plus(FIRST, 1), Said::Request).is_err());
    }
}
