//! Conversations in virtual time: what the two state machines of a port ([`hold`](super::hold) and
//! [`attend`](super::attend)) decide together, for the programs that they exist for.
//!
//! A port, its background thread and a program run here with the machines of the real port. The engine is reduced to
//! the acknowledgement that it owes, the socket to the times at which messages arrive. [`World::turn`] and
//! [`World::attend`] carry out decisions as `Datapath::turn` and `Background::run` do.

use super::attend::{
    Attendance, LONGEST, Next, POLLING, PutOff, STANDBY, STANDBY_FOR_MEMORY, STEADY, Stance,
};
use super::hold::{ANSWER, AckHold, Begin, Caller, Verdict};
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use time::{Duration, Instant};

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A turn in which something is received or sent, and one in which nothing happens.
const FULL_TURN: Duration = micros(2);
const EMPTY_TURN: Duration = Duration::from_nanos(360);

/// The time in which a blocked thread wakes up: the most that was measured.
const WAKE_UP: Duration = micros(30);

/// From a reply to the arrival of the next message.
const ROUND_TRIP: Duration = micros(10);

/// What the thread does, until when or since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    Awake(Instant),
    Aside(Instant),
    /// Until then, unless the program puts it off by this period.
    StandsBy(Instant, Duration),
    /// Since then.
    Blocked(Instant),
}

/// What happened.
#[derive(Default, Debug)]
struct Log {
    /// Acknowledgements that left by themselves, and with a reply.
    acks_alone: u32,
    acks_with_replies: u32,
    /// The longest time for which an acknowledgement was due.
    owed: Duration,
    /// The longest time for which a message waited in the socket.
    unread: Duration,
    replies: u32,
    sweeps: u32,
    put_offs: u32,
    thread_turns: u32,
    asides: u32,
    blocks: u32,
}

/// A port, its thread and its peer.
struct World {
    start: Instant,
    now: Instant,
    hold: AckHold,
    attendance: Attendance,
    put_off: PutOff,
    thread: Thread,
    /// How long a turn takes in which something happens.
    full_turn: Duration,
    polls: u32,
    handed_over: bool,
    /// When messages arrive, in order.
    arrivals: VecDeque<Instant>,
    /// Messages that the program can see.
    delivered: u32,
    /// Since when an acknowledgement is due.
    owed: Option<Instant>,
    /// Whether the peer answers each reply with the next message.
    peer_goes_on: bool,
    log: Log,
}

impl World {
    fn new() -> Self {
        let now = Instant::EPOCH;
        Self {
            start: now,
            now,
            hold: AckHold::new(),
            attendance: Attendance::new(now),
            put_off: PutOff::new(now),
            thread: Thread::Awake(now),
            full_turn: FULL_TURN,
            polls: 0,
            handed_over: false,
            arrivals: VecDeque::new(),
            delivered: 0,
            owed: None,
            peer_goes_on: false,
            log: Log::default(),
        }
    }

    /// As `Datapath::turn`.
    fn turn(&mut self, caller: Caller) -> u32 {
        if self.hold.begin(caller, self.now) == Begin::Wait {
            return 1;
        }
        let mut datagrams = 0;
        while let Some(arrived) = self.arrivals.pop_front_if(|arrived| *arrived <= self.now) {
            self.log.unread = self.log.unread.max(self.now - arrived);
            datagrams += 1;
        }
        self.delivered += datagrams;
        if datagrams > 0 {
            self.owed.get_or_insert(self.now);
        }
        let only_acks = datagrams > 0 && self.owed.is_some();
        if self.hold.take_in(caller, datagrams, only_acks, self.now, || self.now + self.full_turn)
            == Verdict::Hold
        {
            return datagrams;
        }
        let trains = self.transmit(false);
        self.hold.end(datagrams, trains);
        datagrams + trains
    }

    /// As `Datapath::transmit`. `with_reply`: whether a reply of the program leaves too.
    fn transmit(&mut self, with_reply: bool) -> u32 {
        self.hold.sent();
        let since = self.owed.take();
        if let Some(since) = since {
            self.log.owed = self.log.owed.max(self.now - since);
            let count = if with_reply { &mut self.log.acks_with_replies } else { &mut self.log.acks_alone };
            *count += 1;
        }
        u32::from(since.is_some())
    }

    /// As `Port::drive`. Returns whether the program sees a message.
    fn poll(&mut self, caller: Caller) -> bool {
        let done = self.turn(caller);
        if let Thread::StandsBy(until, period) = &mut self.thread
            && let Some(rest) = self.put_off.polled(self.now, self.polls, *period)
        {
            *until = self.now + rest;
            self.log.put_offs += 1;
        }
        self.polls = self.polls.wrapping_add(1 + 2 * done);
        self.release();
        self.delivered > 0
    }

    /// The program replies to a message: as `Port::post_list`, with nothing in flight.
    fn reply(&mut self) {
        self.delivered -= 1;
        self.log.replies += 1;
        self.hold.posted();
        self.transmit(true);
        if self.peer_goes_on {
            self.arrivals.push_back(self.now + ROUND_TRIP);
        }
        self.release();
    }

    /// As `Port::hand_over`.
    fn hand_over(&mut self) {
        self.poll(Caller::LastTurn);
        self.handed_over = true;
        if let Thread::Aside(_) | Thread::StandsBy(..) = self.thread {
            self.thread = Thread::Awake(self.now + WAKE_UP);
        }
    }

    /// As `Port::release`: a blocked thread is woken for work that is left.
    fn release(&mut self) {
        if self.owed.is_some() && matches!(self.thread, Thread::Blocked(_)) {
            self.thread = Thread::Awake(self.now + WAKE_UP);
        }
    }

    /// As one round of `Background::run`.
    fn attend(&mut self) {
        let handed_over = std::mem::take(&mut self.handed_over);
        self.thread = match self.attendance.look(self.now, self.polls, handed_over) {
            Stance::StandBy { period } => {
                self.log.sweeps += 1;
                self.transmit(false);
                Thread::StandsBy(self.now + period, period)
            }
            Stance::Drive => {
                self.log.thread_turns += 1;
                let done = self.turn(Caller::Background);
                let after = self.now + if done > 0 { self.full_turn } else { EMPTY_TURN };
                match self.attendance.turned(after, done > 0, self.hold.reply_by()) {
                    Next::Spin => Thread::Awake(after),
                    Next::StepAside { until } => {
                        self.log.asides += 1;
                        Thread::Aside(until)
                    }
                    Next::Block => {
                        assert!(self.owed.is_none(), "it blocks while an acknowledgement is due");
                        assert!(!self.hold.is_held(), "it blocks while an acknowledgement is held");
                        self.log.blocks += 1;
                        Thread::Blocked(after)
                    }
                }
            }
        };
    }

    /// When the thread acts next: a blocked one is woken by the next message.
    fn thread_acts(&self) -> Option<Instant> {
        match self.thread {
            Thread::Awake(at) | Thread::Aside(at) | Thread::StandsBy(at, _) => Some(at),
            Thread::Blocked(since) => self.arrivals.front().map(|arrived| since.max(*arrived) + WAKE_UP),
        }
    }

    /// Runs the program and the thread for `time`. `program` acts, and returns when it acts again.
    fn run(&mut self, time: Duration, mut program: impl FnMut(&mut Self) -> Duration) {
        let end = self.now + time;
        let mut next = self.now;
        while self.now < end {
            match self.thread_acts().filter(|at| *at < next) {
                Some(at) => {
                    self.now = at.max(self.now);
                    self.attend();
                }
                None => {
                    self.now = next;
                    next += program(self);
                }
            }
        }
    }
}

/// A program that polls a completion queue every half microsecond, and replies 2 us after a message.
fn polls_and_replies() -> impl FnMut(&mut World) -> Duration {
    let mut thinks = false;
    move |world| {
        if std::mem::take(&mut thinks) {
            world.reply();
        } else if world.poll(Caller::Program) {
            thinks = true;
            return micros(2);
        }
        micros(1) / 2
    }
}

/// A program that polls memory ten times in a microsecond, and replies 1 us after a message.
fn polls_memory() -> impl FnMut(&mut World) -> Duration {
    polls_memory_and_replies_after(micros(1))
}

fn polls_memory_and_replies_after(time: Duration) -> impl FnMut(&mut World) -> Duration {
    let mut thinks = false;
    move |world| {
        if std::mem::take(&mut thinks) {
            world.reply();
        } else if world.delivered > 0 {
            thinks = true;
            return time;
        }
        micros(1) / 10
    }
}

/// A program that sleeps on a completion channel, and replies to each message.
fn sleeps_on_a_channel() -> impl FnMut(&mut World) -> Duration {
    let mut sleeps = false;
    move |world| {
        if sleeps {
            sleeps = world.delivered == 0;
            // It sees the event at once, and runs after a wake-up.
            return if sleeps { micros(1) } else { WAKE_UP };
        }
        if world.poll(Caller::Program) || world.poll(Caller::Program) {
            world.reply();
        } else {
            world.hand_over();
            sleeps = true;
        }
        micros(1)
    }
}

#[test]
fn in_a_ping_pong_of_polling_programs_acknowledgements_leave_with_replies() {
    let mut world = World::new();
    world.peer_goes_on = true;
    world.arrivals.push_back(world.now);
    world.run(micros(100_000), polls_and_replies());
    let log = &world.log;
    assert!(log.replies > 7000, "{log:?}");
    // The thread never interrupts it. The program says so every 375 us at first, and less and less often.
    assert!(log.sweeps <= 2 && (40..=80).contains(&log.put_offs), "{log:?}");
    assert!(log.acks_alone <= log.sweeps + 2, "{log:?}");
    assert!(log.acks_with_replies > log.replies * 9 / 10, "{log:?}");
    assert!(log.owed <= micros(3), "{log:?}");
    assert!(log.thread_turns < 100 && log.asides == 0, "the program drives: {log:?}");
}

#[test]
fn the_thread_brings_a_program_that_polls_memory_its_messages() {
    let mut world = World::new();
    world.peer_goes_on = true;
    // It polls until its connection is set up, and its first messages have left.
    world.run(micros(10), |world| {
        world.poll(Caller::Program);
        micros(1) / 2
    });
    assert!(world.polls >= POLLING);
    world.arrivals.push_back(world.now);
    world.run(2 * STANDBY + 2 * WAKE_UP, polls_memory());
    assert!(world.log.asides > 0, "the thread has taken over: {:?}", world.log);
    world.log = Log::default();
    world.run(micros(100_000), polls_memory());
    let log = &world.log;
    // The next message arrives while the thread is aside.
    let round = micros(100_000) / log.replies;
    assert!(round <= ANSWER + 2 * FULL_TURN, "{round:?} a round: {log:?}");
    assert!(log.acks_alone <= 1, "{log:?}");
    assert_eq!(log.blocks, 0, "{log:?}");
    // From the message to the reply of 1 us later.
    assert!(log.owed <= micros(2), "{log:?}");
    // Now and then it polls a completion queue: the thread is back sooner than after other polls.
    for _ in 0..POLLING {
        world.poll(Caller::Program);
    }
    world.log = Log::default();
    world.run(micros(100_000), polls_memory());
    assert!(world.log.unread <= 2 * STANDBY_FOR_MEMORY + ANSWER, "{:?}", world.log);
}

/// On an emulated processor, say. If acknowledgements left by themselves there, the peer would poll memory too.
#[test]
fn on_a_slow_host_acknowledgements_leave_with_replies_too() {
    let mut world = World::new();
    (world.peer_goes_on, world.full_turn) = (true, 30 * FULL_TURN);
    world.arrivals.push_back(world.now);
    // The thread takes in what comes after the program's last poll.
    for _ in 0..POLLING {
        world.poll(Caller::Program);
    }
    world.run(micros(10_000), polls_memory_and_replies_after(micros(150)));
    world.log = Log::default();
    world.run(micros(100_000), polls_memory_and_replies_after(micros(150)));
    let log = &world.log;
    assert!(log.replies > 100 && log.acks_with_replies > log.replies * 9 / 10, "{log:?}");
    assert!(log.acks_alone <= 2, "{log:?}");
}

/// WRITEs, for example, that a program reads much later.
#[test]
fn the_thread_does_not_step_aside_for_a_program_that_does_not_reply() {
    let mut world = World::new();
    world.run(micros(10), |world| {
        world.poll(Caller::Program);
        micros(1) / 2
    });
    assert!(world.polls >= POLLING);
    let away = |_: &mut World| micros(100_000);
    world.run(2 * STANDBY + 2 * WAKE_UP, |_| 2 * STANDBY);
    world.log = Log::default();
    for message in 0..1000 {
        world.arrivals.push_back(world.now + message * micros(50));
    }
    world.run(micros(60_000), away);
    let log = &world.log;
    assert!(world.arrivals.is_empty() && log.acks_alone >= 900, "{log:?}");
    assert_eq!(log.asides, 0, "{log:?}");
    assert!(log.owed <= FULL_TURN, "{log:?}");
}

#[test]
fn a_program_that_sleeps_on_a_channel_is_served_at_once() {
    let mut world = World::new();
    for message in 0..100 {
        world.arrivals.push_back(world.start + message * micros(1000));
    }
    world.run(micros(100_000), sleeps_on_a_channel());
    let log = &world.log;
    assert_eq!(log.replies, 100);
    assert!((90..=102).contains(&log.blocks), "it blocks between messages: {log:?}");
    assert_eq!((log.asides, log.sweeps), (0, 0), "{log:?}");
    assert!(log.unread <= 2 * WAKE_UP, "{log:?}");
    assert!(log.owed <= ANSWER + FULL_TURN, "{log:?}");
    // The reply takes a wake-up, which is longer than the hold.
    assert_eq!(log.acks_with_replies, 0, "{log:?}");
}

#[test]
fn in_a_stream_no_acknowledgement_waits() {
    let mut world = World::new();
    for message in 0..10_000 {
        world.arrivals.push_back(world.start + message * micros(1));
    }
    let mut calls = 0;
    // The program polls every 4 us, and sends something after every tenth poll if that found a message.
    world.run(micros(10_000), |world| {
        calls += 1;
        if world.poll(Caller::Program) && calls % 10 == 0 {
            world.reply();
        }
        micros(4)
    });
    let log = &world.log;
    assert!(log.acks_alone >= 2400, "{log:?}");
    assert_eq!(log.owed, Duration::ZERO, "{log:?}");
}

#[test]
fn a_receiver_of_lone_messages_has_one_acknowledgement_held_per_reply() {
    let mut world = World::new();
    for message in 0..1000 {
        world.arrivals.push_back(world.start + message * micros(10));
    }
    world.run(micros(10_010), |world| {
        world.poll(Caller::Program);
        if world.log.replies == 0 && world.delivered == 10 {
            world.reply();
        }
        micros(1) / 2
    });
    let log = &world.log;
    assert_eq!((log.replies, log.acks_with_replies), (1, 0), "{log:?}");
    assert_eq!(log.acks_alone, 1000, "{log:?}");
    assert!(log.owed <= micros(1), "{log:?}");
}

#[test]
fn a_program_that_stops_polling_in_the_middle_leaves_nothing_behind() {
    stops_polling_after(micros(2000), STANDBY);
}

/// The thread rests longer.
#[test]
fn a_program_that_stops_after_polling_steadily_leaves_nothing_behind() {
    // It stops after 20 to 23.9 ms. A thousandth of the rest is not a whole number of microseconds, so that the program stops in
    // every part of a round trip.
    stops_polling_after(micros(20_000), micros(23_900) / STEADY);
}

/// `rest`: how long the thread rests after the last polls.
fn stops_polling_after(time: Duration, rest: Duration) {
    let mut longest = Log::default();
    for stop in 0..1200 {
        let mut world = World::new();
        world.peer_goes_on = true;
        world.arrivals.push_back(world.now);
        world.run(time + stop * (rest / 1000), polls_and_replies());
        assert!(world.log.replies > 100);
        world.log = Log::default();
        let stopped = world.now;
        for message in 0..10 {
            world.arrivals.push_back(stopped + ROUND_TRIP + message * micros(300));
        }
        world.run(micros(6000), |_| micros(6000));
        let log = &world.log;
        assert!(world.arrivals.is_empty() && world.owed.is_none(), "stopped at {stop}: {log:?}");
        assert!(log.unread <= rest + STANDBY, "stopped at {stop}: {log:?}");
        assert!(log.owed <= rest, "stopped at {stop}: {log:?}");
        (longest.unread, longest.owed) = (longest.unread.max(log.unread), longest.owed.max(log.owed));
    }
    // The bounds are met, and so is the one state in which an acknowledgement waits for them.
    assert!(longest.unread > rest && longest.owed > rest / 2, "{longest:?}");
}

/// A program that does anything at any time.
fn does_anything(mut rng: rand_chacha::ChaCha8Rng) -> impl FnMut(&mut World) -> Duration {
    move |world| match rng.random_range(0..12) {
        // Polls for a while.
        0..5 => {
            if world.poll(Caller::Program) && rng.random_bool(0.3) {
                world.reply();
            }
            Duration::from_nanos(rng.random_range(100..10_000))
        }
        5 if world.delivered > 0 => {
            world.reply();
            Duration::from_nanos(rng.random_range(100..20_000))
        }
        6 => {
            // A control call, such as the creation of an object, sends what is due.
            world.transmit(false);
            world.release();
            micros(5)
        }
        7 => {
            world.hand_over();
            micros(rng.random_range(1..2000))
        }
        8 => {
            let burst = rng.random_range(1..6);
            let from = *world.arrivals.back().unwrap_or(&world.now).max(&world.now);
            let gap = rng.random_range(0..30);
            world.arrivals.extend((0..burst).map(|message| from + message * micros(gap)));
            micros(1)
        }
        9 => {
            for _ in 0..rng.random_range(1..3 * POLLING) {
                world.poll(Caller::Program);
            }
            micros(rng.random_range(1..50))
        }
        // Computes, or polls memory.
        _ => micros(rng.random_range(1..1500)),
    }
}

/// The thread asserts at each block that nothing is left undone.
#[test]
fn whatever_the_program_does_acknowledgements_and_messages_wait_for_a_bounded_time() {
    let mut sum = Log::default();
    for seed in 0..300 {
        let mut world = World::new();
        world.run(micros(100_000), does_anything(rand_chacha::ChaCha8Rng::seed_from_u64(seed)));
        // The last events have their time too.
        world.run(micros(4000), |_| micros(4000));
        let log = &world.log;
        assert!(world.arrivals.is_empty() && world.owed.is_none(), "seed {seed}: {log:?}");
        // The thread may be on its way into standby, after a wake-up, when the program stops.
        assert!(log.owed <= STANDBY * LONGEST + WAKE_UP, "seed {seed}: {log:?}");
        assert!(log.unread <= STANDBY * (LONGEST + 1) + WAKE_UP, "seed {seed}: {log:?}");
        sum.acks_alone += log.acks_alone;
        sum.acks_with_replies += log.acks_with_replies;
        (sum.sweeps, sum.asides) = (sum.sweeps + log.sweeps, sum.asides + log.asides);
        sum.blocks += log.blocks;
        (sum.owed, sum.unread) = (sum.owed.max(log.owed), sum.unread.max(log.unread));
    }
    let all = [sum.acks_alone, sum.acks_with_replies, sum.sweeps, sum.asides, sum.blocks];
    assert!(all.iter().all(|count| *count > 100), "the test did not reach every state: {sum:?}");
    assert!(sum.owed > STANDBY / 2 && sum.unread > STANDBY, "the bounds were not approached: {sum:?}");
}
