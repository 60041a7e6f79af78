//! One queue pair as congestion control sees it: its rate, when it may send next, what its acknowledgements tell.

use cc::dcqcn::NotificationPoint;
use cc::{Ack, Controller, Pacer, Policy, Rate};
use qp::Psn;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How much of the time that it missed a port that comes late catches up on: timers of Linux have 50 us of slack, and to
/// wake up takes about as long. Time missed beyond that is lost.
pub(super) const PORT_CATCH_UP: Duration = Duration::from_micros(100);

/// The same for a flow, whose process may have waited for a core. Its port spreads what it catches up on. Longer times gain
/// nothing: what is sent late in one piece fills the queue of the receiver's port, and is marked there.
const FLOW_CATCH_UP: Duration = Duration::from_millis(1);

/// What a pacer saves up: less than what 400 Gb/s send in two nanoseconds, so that what is lost by rounding a time up is
/// made up for, and nothing else.
const ROUNDING: u32 = 64;

/// Trains of one queue pair whose acknowledgement is waited for one by one. Those beyond count as one with the last.
const MAX_TRAINS: usize = 64;

/// When to send next at a rate. Idle time is not saved up, but a sender that had more to send and comes late catches up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tempo {
    pacer: Pacer,
    /// It had more to send than it might.
    behind: bool,
    /// How late it may come without a loss.
    catch_up: Duration,
}

impl Tempo {
    pub(super) fn new(now: Instant, rate: Rate, catch_up: Duration) -> Self {
        Self { pacer: Pacer::new(now, rate, ROUNDING), behind: false, catch_up }
    }

    /// The time that counts for what is done now: that at which it should have been done.
    fn clock(&self, now: Instant) -> Instant {
        match self.pacer.next_send() {
            Some(due) if self.behind && due < now => due.max(now.checked_sub(self.catch_up).unwrap_or(due)),
            _ => now,
        }
    }

    pub(super) fn set_rate(&mut self, now: Instant, rate: Rate) {
        self.pacer.set_rate(self.clock(now), rate);
    }

    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pacer.on_sent(self.clock(now), bytes);
    }

    pub(super) fn may_send(&self, now: Instant) -> bool {
        self.pacer.may_send(now)
    }

    pub(super) fn next_send(&self) -> Option<Instant> {
        self.pacer.next_send()
    }

    /// Notes whether there is more to send than was sent.
    pub(super) fn set_behind(&mut self, behind: bool) {
        self.behind = behind;
    }
}

/// What congestion control knows of a queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Flow {
    pub(super) controller: Controller,
    pub(super) tempo: Tempo,
    /// It stands in the wheel: it has something to send and may not yet.
    pub(in crate::engine) waits: bool,
    /// The rate of the port.
    pub(super) line: Rate,
    /// The rate when it last had a turn.
    known: Option<Rate>,
    /// Bytes sent, as on Ethernet.
    pub(super) sent_bytes: u64,
    /// What was sent and is not acknowledged, where the algorithm wants to know.
    pub(super) trains: Option<Trains>,
}

impl Flow {
    pub(super) fn new(now: Instant, policy: &Policy, is_reliable: bool) -> Self {
        let controller = policy.controller();
        // Nobody acknowledges what an unreliable queue pair sends, so these two have nothing to go by.
        let wants_answers = is_reliable && matches!(controller, Controller::Dctcp(_) | Controller::Timely(_));
        Self {
            tempo: Tempo::new(now, controller.rate(), FLOW_CATCH_UP),
            controller,
            waits: false,
            line: policy.line(),
            known: None,
            sent_bytes: 0,
            trains: wants_answers.then(Trains::default),
        }
    }

    /// Lets the time up to `now` pass; whether its rate is another than at the last call.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        if self.controller.poll_timeout().is_some_and(|due| due <= now) {
            self.controller.handle_timeout(now);
        }
        let rate = self.controller.rate();
        self.tempo.set_rate(now, rate);
        self.known.replace(rate) != Some(rate)
    }

    /// Books bytes that were sent, as on Ethernet: all of them, whatever they carry.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.controller.on_bytes_sent(now, bytes);
        self.tempo.set_rate(now, self.controller.rate());
        self.tempo.on_sent(now, bytes);
        self.sent_bytes += bytes;
    }

    pub(super) fn on_ack(&mut self, now: Instant, ack: &Ack) {
        self.controller.on_ack(now, ack);
        self.tempo.set_rate(now, self.controller.rate());
    }

    /// A CNP arrived; whether it was obeyed.
    pub(super) fn on_cnp(&mut self, now: Instant) -> bool {
        let obeyed = self.controller.on_cnp(now);
        self.tempo.set_rate(now, self.controller.rate());
        obeyed
    }

    /// When to look at it again while it waits: when it may send, or its rate changes. `None` for never.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        [self.tempo.next_send(), self.controller.poll_timeout()].into_iter().flatten().min()
    }
}

/// The receiver's side of a connected queue pair: made when its first packet arrives that met congestion.
pub(in crate::engine) type Notifier = Option<Box<NotificationPoint>>;

/// Trains that were sent and are not acknowledged, oldest first: for round-trip times, and for how much an acknowledgement
/// acknowledges.
#[derive(Debug, Default)]
pub(super) struct Trains {
    log: VecDeque<SentTrain>,
}

#[derive(Debug)]
struct SentTrain {
    /// Its first PSN that is not acknowledged.
    first: Psn,
    /// The PSN behind its last.
    end: Psn,
    at: Instant,
    /// Those that are not acknowledged.
    bytes: u64,
    /// Nothing of it was sent twice: an acknowledgement says when it arrived (P. Karn's rule).
    clean: bool,
}

impl Trains {
    /// A train of the PSNs `from..to` left, in this many packets.
    pub(super) fn depart(&mut self, now: Instant, from: Psn, to: Psn, bytes: u64, packets: u32) {
        let psns = to.distance_from(from);
        if psns <= 0 {
            return;
        }
        // More PSNs than packets: it asks for a READ, whose answer is on the way for longer than a packet.
        let mut clean = i64::from(psns) <= i64::from(packets);
        let (mut first, mut bytes) = (from, bytes);
        if let Some(newest) = self.log.back().map(|t| t.end).filter(|end| from.is_before(*end)) {
            for train in self.log.iter_mut().filter(|t| from.is_before(t.end)) {
                train.clean = false;
            }
            if !newest.is_before(to) {
                return;
            }
            // What is acknowledged counts once.
            bytes = bytes * share(to.distance_from(newest)) / share(psns);
            (first, clean) = (newest, false);
        }
        let is_full = self.log.len() >= MAX_TRAINS;
        match self.log.back_mut() {
            Some(last) if is_full => {
                (last.end, last.clean) = (to, false);
                last.bytes += bytes;
            }
            _ => self.log.push_back(SentTrain { first, end: to, at: now, bytes, clean }),
        }
    }

    /// Everything before `unacked` is acknowledged: what that tells, if it is news.
    pub(super) fn arrive(&mut self, now: Instant, unacked: Psn, marked: bool) -> Option<Ack> {
        let (mut bytes, mut rtt) = (0, None);
        while let Some(train) = self.log.front_mut().filter(|t| t.first.is_before(unacked)) {
            // A train leaves in one piece, so that the time of all its packets is the same.
            rtt = train.clean.then(|| now.saturating_duration_since(train.at));
            if unacked.is_before(train.end) {
                let part = train.bytes * share(unacked.distance_from(train.first))
                    / share(train.end.distance_from(train.first));
                train.bytes -= part;
                train.first = unacked;
                bytes += part;
                break;
            }
            bytes += train.bytes;
            self.log.pop_front();
        }
        (bytes > 0).then_some(Ack { bytes, marked: if marked { bytes } else { 0 }, rtt })
    }
}

/// A distance of PSNs, as a part of a train: at least one.
fn share(psns: i32) -> u64 {
    u64::from(psns.unsigned_abs()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn psn(value: u32) -> Psn {
        Psn::new(value)
    }

    #[test]
    fn a_late_sender_catches_up_and_an_idle_one_does_not() {
        let start = Instant::now();
        // 1000 bytes take a microsecond.
        let mut tempo = Tempo::new(start, Rate::from_gbps(8), us(100));
        tempo.on_sent(start, 10_000);
        tempo.set_behind(true);
        assert_eq!(tempo.next_send(), Some(start + us(10)));
        tempo.on_sent(start + us(15), 10_000);
        assert_eq!(tempo.next_send(), Some(start + us(20)), "as if it had been in time");
        tempo.on_sent(start + us(500), 10_000);
        let is_about = |next: Option<Instant>, wanted| {
            let next = next.expect("at some time");
            next <= start + us(wanted) && next > start + us(wanted - 1)
        };
        assert!(is_about(tempo.next_send(), 410), "at most 100 us are made up for");
        tempo.set_behind(false);
        tempo.on_sent(start + us(600), 10_000);
        assert!(is_about(tempo.next_send(), 610), "nothing is made up for");
    }

    #[test]
    fn a_new_rate_counts_from_the_time_at_which_the_flow_could_send() {
        let start = Instant::now();
        let mut tempo = Tempo::new(start, Rate::from_gbps(8), PORT_CATCH_UP);
        tempo.on_sent(start, 10_000);
        tempo.set_behind(true);
        tempo.set_rate(start + us(12), Rate::from_gbps(4));
        tempo.on_sent(start + us(12), 10_000);
        assert_eq!(tempo.next_send(), Some(start + us(30)));
    }

    #[test]
    fn acknowledgements_tell_bytes_and_times() {
        let start = Instant::now();
        let mut trains = Trains::default();
        trains.depart(start, psn(0xff_fffe), psn(2), 4000, 4);
        trains.depart(start + us(5), psn(2), psn(4), 2000, 2);
        assert_eq!(trains.arrive(start + us(6), psn(0xff_fffe), true), None, "nothing new");
        let part = Ack { bytes: 1000, marked: 0, rtt: Some(us(7)) };
        assert_eq!(trains.arrive(start + us(7), psn(0xff_ffff), false), Some(part));
        let rest = Ack { bytes: 5000, marked: 5000, rtt: Some(us(15)) };
        assert_eq!(trains.arrive(start + us(20), psn(4), true), Some(rest));
        assert!(trains.log.is_empty());
    }

    #[test]
    fn what_was_sent_twice_tells_no_time() {
        let start = Instant::now();
        let mut trains = Trains::default();
        trains.depart(start, psn(0), psn(4), 4000, 4);
        trains.depart(start + us(1), psn(4), psn(8), 4000, 4);
        // All from 2 on, and two more.
        trains.depart(start + us(50), psn(2), psn(10), 8000, 8);
        let ack = |bytes, rtt| Some(Ack { bytes, marked: 0, rtt });
        assert_eq!(trains.arrive(start + us(60), psn(4), false), ack(4000, None));
        assert_eq!(trains.arrive(start + us(61), psn(10), false), ack(6000, None));
        trains.depart(start + us(70), psn(10), psn(11), 1000, 1);
        assert_eq!(trains.arrive(start + us(77), psn(11), false), ack(1000, Some(us(7))));
    }

    #[test]
    fn a_read_tells_no_time_and_the_log_is_bounded() {
        let start = Instant::now();
        let mut trains = Trains::default();
        trains.depart(start, psn(0), psn(32), 100, 1);
        assert_eq!(
            trains.arrive(start + us(9), psn(32), false),
            Some(Ack { bytes: 100, marked: 0, rtt: None })
        );
        for n in 0..MAX_TRAINS as u32 + 1 {
            trains.depart(start, psn(32 + n), psn(33 + n), 10, 1);
        }
        assert_eq!(trains.log.len(), MAX_TRAINS);
        let all = 10 * (MAX_TRAINS as u64 + 1);
        let ack = trains.arrive(start + us(1), psn(33 + MAX_TRAINS as u32), false);
        assert_eq!(ack, Some(Ack { bytes: all, marked: 0, rtt: None }));
    }
}
