//! A queue pair from the viewpoint of congestion control: its rate, its next departure time, its acknowledgements.

use cc::dcqcn::NotificationPoint;
use cc::hpcc::Telemetry;
use cc::{Ack, Controller, Pacer, Policy, Rate};
use qp::Psn;
use std::collections::VecDeque;
use time::{Duration, Instant};

/// How much missed time a late port catches up on: Linux timers have 50 us of slack, and a wake-up takes about as long.
/// Any more missed time is lost.
pub(super) const PORT_CATCH_UP: Duration = Duration::from_micros(100);

/// The same for a flow, whose process may have waited for a core. The port spreads what its flows catch up on. A longer
/// time gains nothing: a late burst fills the queue of the receiver's port, and is marked there.
const FLOW_CATCH_UP: Duration = Duration::from_millis(1);

/// The burst of a pacer, in bytes: more than any port sends in a picosecond, up to which departure times are rounded. It
/// compensates for that, and for nothing else.
const ROUNDING: u32 = 1;

/// Trains of one queue pair whose acknowledgements are tracked individually. Further trains are merged into the last.
const MAX_TRAINS: usize = 64;

/// Departure times at a given rate. Idle time does not accumulate, but a late sender that had more to send catches up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tempo {
    pacer: Pacer,
    /// Whether it had more to send than the rate allowed.
    behind: bool,
    /// The largest delay that it catches up on.
    catch_up: Duration,
}

impl Tempo {
    pub(super) fn new(now: Instant, rate: Rate, catch_up: Duration) -> Self {
        Self { pacer: Pacer::new(now, rate, ROUNDING), behind: false, catch_up }
    }

    /// The time at which the current action was due.
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

    /// Records whether more data is waiting than was sent.
    pub(super) fn set_behind(&mut self, behind: bool) {
        self.behind = behind;
    }
}

/// How soon a flow whose rate is zero, and which no timer changes, is looked at again. No algorithm goes that low.
const WITHOUT_RATE: Duration = Duration::from_secs(1);

/// Congestion control state of a queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Flow {
    pub(super) controller: Controller,
    pub(super) tempo: Tempo,
    /// The rate of the port.
    pub(super) line: Rate,
    /// The rate at its last turn.
    known: Option<Rate>,
    /// Bytes sent, as on Ethernet.
    pub(super) sent_bytes: u64,
    /// Unacknowledged trains, if the algorithm needs them.
    pub(super) trains: Option<Trains>,
    /// The next PSN when telemetry last arrived, and its number among all packets.
    position: Option<(Psn, u64)>,
}

/// The number of the first packet: those before it have numbers too.
const FIRST_PACKET: u64 = 1 << 32;

impl Flow {
    /// A flow with this controller, made by the policy.
    pub(super) fn new(now: Instant, policy: &Policy, controller: Controller, is_reliable: bool) -> Self {
        // Packets of an unreliable queue pair are not acknowledged, so such algorithms have no input.
        let wants_answers = is_reliable && controller.uses_acks();
        Self {
            tempo: Tempo::new(now, controller.rate(), FLOW_CATCH_UP),
            controller,
            line: policy.line(),
            known: None,
            sent_bytes: 0,
            trains: wants_answers.then(Trains::default),
            position: None,
        }
    }

    /// Advances to `now`; returns whether the rate has changed since the last call.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        if self.controller.poll_timeout().is_some_and(|due| due <= now) {
            self.controller.handle_timeout(now);
        }
        let rate = self.controller.rate();
        self.tempo.set_rate(now, rate);
        self.known.replace(rate) != Some(rate)
    }

    /// Records bytes sent, as on Ethernet: all of them, whatever they carry. Acknowledgements that leave before the flow's
    /// time do not put it off: the peer decides how many there are, and READ responses would wait for as long as it likes.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64) {
        let in_time = self.tempo.may_send(now);
        self.controller.on_bytes_sent(now, bytes);
        self.tempo.set_rate(now, self.controller.rate());
        if in_time {
            self.tempo.on_sent(now, bytes);
        }
        self.sent_bytes += bytes;
    }

    /// The packets, of so many bytes on Ethernet, that it may put in flight beside those that are. `None` for as many as there
    /// are: the algorithm has no window, or hears of nothing that could open it.
    pub(in crate::engine) fn room(&self, packet: u32, in_flight: u32) -> Option<u32> {
        let window = self.controller.window().filter(|_| self.trains.is_some())?;
        let packets = window.div_ceil(u64::from(packet.max(1))).max(1);
        Some(u32::try_from(packets).unwrap_or(u32::MAX).saturating_sub(in_flight))
    }

    /// Records the departure of a train with PSNs `from..to`, if the algorithm hears of acknowledgements.
    pub(super) fn depart(&mut self, now: Instant, (from, to): (Psn, Psn), bytes: u64, packets: u32) {
        let Some(trains) = &mut self.trains else { return };
        if trains.depart(now, from, to, bytes, packets) {
            self.controller.on_loss(now);
        }
    }

    /// A loss shows, of which the departures do not tell.
    pub(super) fn on_loss(&mut self, now: Instant) {
        let Some(trains) = &mut self.trains else { return };
        trains.log.iter_mut().for_each(|train| train.clean = false);
        self.controller.on_loss(now);
    }

    pub(super) fn on_ack(&mut self, now: Instant, ack: &Ack) {
        self.controller.on_ack(now, ack);
        self.tempo.set_rate(now, self.controller.rate());
    }

    /// Handles what the path of the packet with this PSN said, when `next` is sent next. Returns whether it was obeyed.
    pub(super) fn on_telemetry(&mut self, now: Instant, psn: Psn, next: Psn, path: &Telemetry) -> bool {
        let (at, number) = self.position.unwrap_or((next, FIRST_PACKET));
        let number = number.saturating_add_signed(next.distance_from(at).into());
        self.position = Some((next, number));
        let acked = number.saturating_add_signed(psn.plus(1).distance_from(next).into());
        let obeyed = self.controller.on_telemetry(now, acked, number, path);
        self.tempo.set_rate(now, self.controller.rate());
        obeyed
    }

    /// Processes a CNP; returns whether it was obeyed.
    pub(super) fn on_cnp(&mut self, now: Instant) -> bool {
        let obeyed = self.controller.on_cnp(now);
        self.tempo.set_rate(now, self.controller.rate());
        obeyed
    }

    /// The port has another policy.
    pub(super) fn follow(&mut self, now: Instant, policy: &Policy, level: u8, is_reliable: bool) {
        self.controller = policy.successor(now, self.controller.clone(), level);
        self.line = policy.line();
        if !(is_reliable && self.controller.uses_acks()) {
            self.trains = None;
        } else if self.trains.is_none() {
            self.trains = Some(Trains::default());
        }
        self.tempo.set_rate(now, self.controller.rate());
    }

    /// When to check again while it waits: when it may send, or when its rate changes.
    pub(super) fn wake_at(&self, now: Instant) -> Instant {
        let at = [self.tempo.next_send(), self.controller.poll_timeout()].into_iter().flatten().min();
        at.unwrap_or(now + WITHOUT_RATE)
    }

    /// Records whether more is waiting to be sent, now or at the next departure time.
    pub(in crate::engine) fn set_behind(&mut self, behind: bool) {
        self.tempo.set_behind(behind);
    }
}

/// Receiver state of a connected queue pair, created when its first packet arrives that met congestion.
pub(in crate::engine) type Notifier = Option<Box<NotificationPoint>>;

/// Unacknowledged trains, oldest first: they yield round-trip times, and the number of bytes that an acknowledgement
/// covers.
#[derive(Debug, Default)]
pub(super) struct Trains {
    log: VecDeque<SentTrain>,
    /// The end of what was lost with the latest loss: what is sent again before it is part of that.
    lost: Option<Psn>,
}

#[derive(Debug)]
struct SentTrain {
    /// Its first unacknowledged PSN.
    first: Psn,
    /// The PSN after its last.
    end: Psn,
    at: Instant,
    /// Unacknowledged bytes.
    bytes: u64,
    /// Whether nothing in it was retransmitted: only then does an acknowledgement yield a round-trip time (P. Karn's
    /// rule).
    clean: bool,
}

impl Trains {
    /// Records the departure of a train with PSNs `from..to`, in this many packets. Returns whether it is the first of those
    /// that a loss makes necessary.
    pub(super) fn depart(&mut self, now: Instant, from: Psn, to: Psn, bytes: u64, packets: u32) -> bool {
        let psns = to.distance_from(from);
        if psns <= 0 {
            return false;
        }
        let mut is_loss = false;
        // If there are more PSNs than packets, this is a READ request, whose response takes longer than a packet.
        let mut clean = i64::from(psns) <= i64::from(packets);
        let (mut first, mut bytes) = (from, bytes);
        if let Some(newest) = self.log.back().map(|t| t.end).filter(|end| from.is_before(*end)) {
            for train in self.log.iter_mut().filter(|t| from.is_before(t.end)) {
                train.clean = false;
            }
            is_loss = self.lost.is_none_or(|end| !from.is_before(end));
            if is_loss {
                self.lost = Some(newest);
            }
            if !newest.is_before(to) {
                return is_loss;
            }
            // Each byte is acknowledged only once.
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
        is_loss
    }

    /// Records that everything before `unacked` is acknowledged; returns what is learned, if anything.
    pub(super) fn arrive(&mut self, now: Instant, unacked: Psn, marked: bool) -> Option<Ack> {
        let (mut bytes, mut rtt) = (0, None);
        while let Some(train) = self.log.front_mut().filter(|t| t.first.is_before(unacked)) {
            // A train leaves in one piece, so all its packets have the same departure time.
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

/// A distance of PSNs, for computing the fraction of a train: at least one.
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
        let start = Instant::EPOCH;
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
        let start = Instant::EPOCH;
        let mut tempo = Tempo::new(start, Rate::from_gbps(8), PORT_CATCH_UP);
        tempo.on_sent(start, 10_000);
        tempo.set_behind(true);
        tempo.set_rate(start + us(12), Rate::from_gbps(4));
        tempo.on_sent(start + us(12), 10_000);
        assert_eq!(tempo.next_send(), Some(start + us(30)));
    }

    #[test]
    fn acknowledgements_tell_bytes_and_times() {
        let start = Instant::EPOCH;
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

    /// A train whose packets are acknowledged one by one, some of them twice.
    #[test]
    fn each_byte_of_a_train_is_acknowledged_once() {
        let start = Instant::EPOCH;
        let mut trains = Trains::default();
        trains.depart(start, psn(0), psn(8), 8000, 8);
        for (unacked, bytes) in
            [(1, 1000), (1, 0), (2, 1000), (3, 1000), (3, 0), (6, 3000), (8, 2000), (8, 0)]
        {
            let ack = trains.arrive(start + us(7), psn(unacked), false);
            let wanted = (bytes > 0).then_some(Ack { bytes, marked: 0, rtt: Some(us(7)) });
            assert_eq!(ack, wanted, "up to {unacked}");
        }
    }

    #[test]
    fn what_was_sent_twice_tells_no_time() {
        let start = Instant::EPOCH;
        let mut trains = Trains::default();
        trains.depart(start, psn(0), psn(4), 4000, 4);
        trains.depart(start + us(1), psn(4), psn(8), 4000, 4);
        // All packets from 2 on, and two more.
        trains.depart(start + us(50), psn(2), psn(10), 8000, 8);
        let ack = |bytes, rtt| Some(Ack { bytes, marked: 0, rtt });
        assert_eq!(trains.arrive(start + us(60), psn(4), false), ack(4000, None));
        assert_eq!(trains.arrive(start + us(61), psn(10), false), ack(6000, None));
        trains.depart(start + us(70), psn(10), psn(11), 1000, 1);
        assert_eq!(trains.arrive(start + us(77), psn(11), false), ack(1000, Some(us(7))));
    }

    #[test]
    fn a_loss_is_told_once_however_much_is_sent_again() {
        let start = Instant::EPOCH;
        let mut trains = Trains::default();
        let mut depart = |from, to| trains.depart(start, psn(from), psn(to), 1000, to - from);
        assert!(!depart(0, 4) && !depart(4, 8), "everything is new");
        assert!(depart(2, 4), "the first that goes back");
        assert!(!depart(4, 8) && !depart(8, 12), "the rest of it, and what is new");
        assert!(!depart(3, 5), "again before the end of that loss");
        assert!(depart(9, 12), "another");
    }

    #[test]
    fn a_read_tells_no_time_and_the_log_is_bounded() {
        let start = Instant::EPOCH;
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
