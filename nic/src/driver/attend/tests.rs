//! Each transition of the attendance, in virtual time.

use super::*;
use crate::driver::hold::ANSWER;

const NANOSECOND: Duration = Duration::from_nanos(1);

/// An attendance whose program was seen polling at `now`, and the number of its polls.
fn polling(now: Instant) -> (Attendance, u32) {
    let mut attendance = Attendance::new(now);
    assert_eq!(attendance.look(now, POLLING, false), Stance::StandBy { period: STANDBY });
    (attendance, POLLING)
}

/// An attendance whose program polled, and stopped without a word; the number of its polls, and the time.
fn elsewhere(start: Instant) -> (Attendance, u32, Instant) {
    let (mut attendance, polls) = polling(start);
    let now = start + STANDBY;
    assert_eq!(attendance.look(now, polls, false), Stance::Drive);
    (attendance, polls, now)
}

#[test]
fn the_thread_drives_until_it_sees_many_polls() {
    let now = Instant::EPOCH;
    let mut attendance = Attendance::new(now);
    assert_eq!(attendance.look(now, 0, false), Stance::Drive);
    assert_eq!(attendance.look(now, POLLING - 1, false), Stance::Drive, "one poll short of the bound");
    assert_eq!(attendance.look(now, POLLING, false), Stance::StandBy { period: STANDBY });
}

#[test]
fn polls_of_different_periods_do_not_add_up() {
    let mut now = Instant::EPOCH;
    let mut attendance = Attendance::new(now);
    for period in 1..100 {
        now += STANDBY;
        // A program that sleeps on a completion channel: a few polls per event, an event per period.
        assert_eq!(attendance.look(now, period * (POLLING - 1), false), Stance::Drive);
    }
    // Within a period they do.
    now += STANDBY - NANOSECOND;
    assert_eq!(
        attendance.look(now, 99 * (POLLING - 1) + POLLING, false),
        Stance::StandBy { period: STANDBY }
    );
}

#[test]
fn the_number_of_polls_may_wrap_around() {
    let now = Instant::EPOCH;
    let mut attendance = Attendance::new(now);
    attendance.look(now + STANDBY, u32::MAX - 2, false);
    let now = now + 2 * STANDBY;
    attendance.look(now, u32::MAX - 2, false);
    assert_eq!(attendance.look(now, POLLING - 4, false), Stance::Drive, "15 polls");
    assert_eq!(attendance.look(now, POLLING - 3, false), Stance::StandBy { period: STANDBY });
}

#[test]
fn it_stands_by_while_the_program_polls_and_drives_a_period_after_the_last_polls() {
    let start = Instant::EPOCH;
    let (mut attendance, mut polls) = polling(start);
    let mut now = start;
    for _ in 0..10 {
        now += STANDBY;
        polls += POLLING;
        assert_eq!(attendance.look(now, polls, false), Stance::StandBy { period: STANDBY });
    }
    // Something woke it early: no verdict yet.
    assert_eq!(
        attendance.look(now + STANDBY - NANOSECOND, polls + POLLING - 1, false),
        Stance::StandBy { period: STANDBY }
    );
    assert_eq!(attendance.look(now + STANDBY, polls + POLLING - 1, false), Stance::Drive);
}

#[test]
fn a_program_that_hands_over_is_served_at_once() {
    let now = Instant::EPOCH;
    let (mut attendance, polls) = polling(now);
    assert_eq!(attendance.look(now, polls + 1, true), Stance::Drive);
    assert_eq!(attendance.look(now, polls + POLLING, true), Stance::Drive, "earlier polls do not count");
    // It never steps aside for a program that sleeps.
    assert_eq!(attendance.turned(now, true, Some(now + ANSWER)), Next::Spin);
    // It may poll again.
    assert_eq!(attendance.look(now, polls + 2 * POLLING, false), Stance::StandBy { period: STANDBY });
}

#[test]
fn it_spins_after_activity_and_then_blocks() {
    let start = Instant::EPOCH;
    let mut attendance = Attendance::new(start);
    assert_eq!(attendance.turned(start, false, None), Next::Block, "nothing ever happened");
    assert_eq!(attendance.turned(start, true, None), Next::Spin);
    assert_eq!(attendance.turned(start + SPIN - NANOSECOND, false, None), Next::Spin);
    assert_eq!(attendance.turned(start + SPIN, false, None), Next::Block);
    assert_eq!(
        attendance.turned(start + 2 * SPIN, true, None),
        Next::Spin,
        "never after a turn in which something happened"
    );
    assert_eq!(
        attendance.turned(start + 3 * SPIN - NANOSECOND, false, Some(start + 3 * SPIN - NANOSECOND + ANSWER)),
        Next::Spin,
        "nothing is new to be answered"
    );
    assert_eq!(attendance.turned(start + 3 * SPIN, false, Some(start + 3 * SPIN + ANSWER)), Next::Block);
}

#[test]
fn it_steps_aside_only_for_a_program_that_is_elsewhere() {
    let (mut attendance, polls, now) = elsewhere(Instant::EPOCH);
    assert_eq!(attendance.turned(now, false, Some(now + ANSWER)), Next::Block, "the reply had its time");
    assert_eq!(attendance.turned(now, true, None), Next::Spin, "nothing to reply to");
    assert_eq!(attendance.turned(now, true, Some(now + ANSWER)), Next::StepAside { until: now + ANSWER });
    assert_eq!(attendance.look(now, polls, true), Stance::Drive);
    assert_eq!(attendance.turned(now, true, Some(now + ANSWER)), Next::Spin, "it said that it sleeps");
}

#[test]
fn it_is_back_sooner_for_a_program_that_polls_memory() {
    let (mut attendance, polls, now) = elsewhere(Instant::EPOCH);
    assert_eq!(attendance.turned(now, true, Some(now + ANSWER)), Next::StepAside { until: now + ANSWER });
    // Such a program polls for the completions of its own requests now and then.
    let polls = polls + POLLING;
    assert_eq!(attendance.look(now, polls, false), Stance::StandBy { period: STANDBY_FOR_MEMORY });
    assert_eq!(attendance.look(now + STANDBY_FOR_MEMORY, polls, false), Stance::Drive);
    let last = now + MEMORY - NANOSECOND;
    assert_eq!(attendance.look(last, polls + POLLING, false), Stance::StandBy { period: STANDBY_FOR_MEMORY });
    // Unless it has not done so for a while.
    let late = now + MEMORY;
    assert_eq!(attendance.look(late, polls + 2 * POLLING, false), Stance::StandBy { period: STANDBY });
}

#[test]
fn a_look_for_another_reason_leaves_the_period_as_it_is() {
    let start = Instant::EPOCH;
    let (mut attendance, polls) = polling(start);
    assert!(attendance.begins_period());
    // It publishes counters, say.
    let soon = start + STANDBY / 2;
    assert_eq!(attendance.look(soon, polls + POLLING, false), Stance::StandBy { period: STANDBY });
    assert!(!attendance.begins_period(), "it goes on");
    attendance.period_ended();
    assert_eq!(
        attendance.look(start + STANDBY, polls + 2 * POLLING, false),
        Stance::StandBy { period: STANDBY }
    );
    assert!(attendance.begins_period(), "the next one");
    // The program sleeps, and polls again.
    assert_eq!(attendance.look(start + STANDBY, polls + 2 * POLLING, true), Stance::Drive);
    assert_eq!(
        attendance.look(start + STANDBY, polls + 4 * POLLING, false),
        Stance::StandBy { period: STANDBY }
    );
    assert!(attendance.begins_period(), "one of its own");
}

#[test]
fn polls_put_off_the_look_of_the_thread_and_do_so_less_often_when_they_go_on() {
    let start = Instant::EPOCH;
    let mut put_off = PutOff::new(start);
    let (mut polls, mut told) = (0, Vec::new());
    for step in 1..=7000_u32 {
        let now = start + STANDBY / 20 * step;
        polls += POLLING;
        if let Some(rest) = put_off.polled(now, polls, STANDBY) {
            told.push((step, rest));
        }
    }
    // At three quarters of what was told before, and for an eighth of the time since the beginning.
    let mut last = (0, STANDBY);
    for (step, rest) in &told {
        let since = STANDBY / 20 * (step - last.0);
        assert!((last.1 * 3 / 4..last.1 * 3 / 4 + STANDBY / 20).contains(&since), "{last:?} {step} {rest:?}");
        let steady = STANDBY / 20 * *step;
        assert_eq!(*rest, (steady / STEADY).clamp(STANDBY, STANDBY * LONGEST), "{step}");
        last = (*step, *rest);
    }
    assert!(told.iter().filter(|(_, rest)| *rest == STANDBY).count() > 8, "{told:?}");
    assert!(told.iter().filter(|(_, rest)| *rest == STANDBY * LONGEST).count() > 4, "{told:?}");
}

#[test]
fn few_polls_or_polls_of_long_ago_put_nothing_off() {
    let start = Instant::EPOCH;
    let (soon, late) = (STANDBY * 3 / 4, STANDBY);
    let mut put_off = PutOff::new(start);
    assert_eq!(put_off.polled(start + soon, POLLING - 1, STANDBY), None, "one poll short of the bound");
    assert_eq!(put_off.polled(start + 2 * soon - NANOSECOND, 9 * POLLING, STANDBY), None, "it is too soon");
    assert_eq!(put_off.polled(start + 2 * soon, 9 * POLLING, STANDBY), Some(STANDBY));
    assert_eq!(put_off.polled(start + 2 * soon + late - NANOSECOND, 10 * POLLING, STANDBY), Some(STANDBY));
    let now = start + 2 * soon + late - NANOSECOND;
    assert_eq!(put_off.polled(now + 2 * late - NANOSECOND, 11 * POLLING, STANDBY), Some(STANDBY));
    let now = now + 2 * late - NANOSECOND;
    assert_eq!(
        put_off.polled(now + 2 * late, 12 * POLLING, STANDBY),
        None,
        "they are spread over two periods"
    );
}

#[test]
fn a_program_that_paused_polls_steadily_no_more() {
    let mut put_off = PutOff::new(Instant::EPOCH);
    let (mut now, mut polls) = (Instant::EPOCH, 0);
    let mut polled = |time: Duration| {
        now += time;
        polls += POLLING;
        put_off.polled(now, polls, STANDBY)
    };
    // Twenty times in a period, for 50 ms.
    let told = (0..2000).filter_map(|_| polled(STANDBY / 20)).find(|told| *told > 5 * STANDBY);
    let told = polled(told.expect("it goes on") - NANOSECOND).expect("it goes on");
    assert_eq!(polled(told + STANDBY), None, "the thread has looked");
    assert_eq!(polled(STANDBY * 3 / 4), Some(STANDBY));
}

/// Each of its polls finds the work of hundreds of queue pairs, and what it posts to them takes a part of a period.
#[test]
fn a_program_that_posts_much_between_its_polls_puts_off_the_thread() {
    let mut put_off = PutOff::new(Instant::EPOCH);
    let (mut now, mut polls, mut told) = (Instant::EPOCH, 0, Vec::new());
    for gap in [90, 160, 210, 120, 180].into_iter().cycle().take(1000) {
        now += Duration::from_micros(gap);
        polls += POLLING / 2;
        told.extend(put_off.polled(now, polls, STANDBY));
    }
    assert!(told.is_sorted(), "it never counts as one that paused: {told:?}");
    assert_eq!(told.last(), Some(&(STANDBY * LONGEST)));
}
