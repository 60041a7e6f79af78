//! Each transition of the hold, in virtual time.

use super::*;

const MICROSECOND: Duration = Duration::from_micros(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// A turn that takes in a lone message, as the port takes it. Returns whether the acknowledgement is held.
fn message(hold: &mut AckHold, caller: Caller, now: Instant) -> Verdict {
    turn(hold, caller, 1, true, now)
}

/// A turn, in which all that is due is sent unless it is held: one train, if there are acknowledgements.
fn turn(hold: &mut AckHold, caller: Caller, datagrams: u32, only_acks: bool, now: Instant) -> Verdict {
    assert_eq!(hold.begin(caller, now), Begin::Turn);
    let due = hold.take_in(caller, datagrams, only_acks, now, || now);
    if due == Verdict::Send {
        hold.sent();
        hold.end(datagrams, u32::from(only_acks));
    }
    due
}

/// A turn in which nothing happens.
fn empty(hold: &mut AckHold, caller: Caller, now: Instant) {
    assert_eq!(turn(hold, caller, 0, false, now), Verdict::Send);
}

/// A hold of a program that replies to lone messages, and nothing under way.
fn replying(now: Instant) -> AckHold {
    let mut hold = AckHold::new();
    assert_eq!(message(&mut hold, Caller::Program, now), Verdict::Send, "at first, programs do not reply");
    assert!(!hold.posted(), "nothing is held");
    hold
}

/// The same, with the acknowledgement of a lone message held.
fn held(now: Instant) -> AckHold {
    let mut hold = replying(now);
    assert_eq!(message(&mut hold, Caller::Program, now), Verdict::Hold);
    assert!(hold.is_held() && hold.answered_by().is_some());
    hold
}

/// Whether the program counts as one that replies: the next acknowledgement is held then.
fn replies(hold: &mut AckHold, now: Instant) -> bool {
    message(hold, Caller::Program, now) == Verdict::Hold
}

#[test]
fn the_acknowledgement_of_a_ping_leaves_with_the_pong() {
    let mut now = Instant::EPOCH;
    let mut hold = AckHold::new();
    for round in 0..100 {
        let due = message(&mut hold, Caller::Program, now);
        assert_eq!(due == Verdict::Hold, round > 0, "the first reply teaches");
        now += 3 * MICROSECOND;
        assert_eq!(hold.posted(), round > 0, "it leaves with the pong");
        hold.sent();
        assert!(!hold.is_held() && hold.answered_by().is_none());
        now += MICROSECOND;
        // Until the next ping the program polls in vain.
        for _ in 0..20 {
            empty(&mut hold, Caller::Program, now);
            now += MICROSECOND;
        }
    }
}

#[test]
fn the_next_turn_of_the_program_ends_the_hold_and_the_belief_in_a_reply() {
    let now = Instant::EPOCH;
    let mut hold = held(now);
    assert_eq!(hold.begin(Caller::Program, now), Begin::Turn, "no wait for ANSWER");
    assert_eq!(hold.take_in(Caller::Program, 0, false, now, || now), Verdict::Send);
    assert!(!hold.is_held() && hold.answered_by().is_none());
    assert!(!replies(&mut hold, now));
}

#[test]
fn a_program_that_only_receives_has_one_acknowledgement_held() {
    let mut now = Instant::EPOCH;
    let mut hold = replying(now);
    let mut holds = 0;
    for _ in 0..100 {
        now += 5 * MICROSECOND;
        holds += u32::from(message(&mut hold, Caller::Program, now) == Verdict::Hold);
    }
    assert_eq!(holds, 1);
    // The message that ends the hold is answerable itself: a reply to it teaches anew.
    assert!(!hold.posted());
    assert!(replies(&mut hold, now));
}

#[test]
fn acknowledgements_of_a_stream_are_not_held() {
    let now = Instant::EPOCH;
    let mut hold = replying(now);
    assert_eq!(turn(&mut hold, Caller::Program, HELD_DATAGRAMS + 1, true, now), Verdict::Send);
    assert!(hold.answered_by().is_none());
    assert_eq!(
        turn(&mut hold, Caller::Program, HELD_DATAGRAMS, true, now),
        Verdict::Hold,
        "the bound itself"
    );
}

#[test]
fn nothing_is_held_unless_only_acknowledgements_are_due() {
    let now = Instant::EPOCH;
    let mut hold = replying(now);
    assert_eq!(turn(&mut hold, Caller::Program, 1, false, now), Verdict::Send);
    assert!(hold.answered_by().is_none());
    assert!(replies(&mut hold, now), "such a turn teaches nothing");
}

#[test]
fn nothing_is_held_in_a_turn_after_which_none_is_certain_to_come() {
    let now = Instant::EPOCH;
    let mut hold = replying(now);
    assert_eq!(message(&mut hold, Caller::LastTurn, now), Verdict::Send);
    assert!(hold.answered_by().is_some(), "a reply still teaches");
    let mut hold = held(now);
    assert_eq!(hold.begin(Caller::LastTurn, now), Begin::Turn);
    assert_eq!(hold.take_in(Caller::LastTurn, 0, false, now, || now), Verdict::Send, "what is held leaves");
    assert!(!hold.is_held());
}

#[test]
fn the_background_thread_waits_for_the_reply_and_no_longer() {
    let start = Instant::EPOCH;
    for caller in [Caller::Program, Caller::Background] {
        let mut hold = replying(start);
        assert_eq!(message(&mut hold, caller, start), Verdict::Hold);
        for passed in [Duration::ZERO, ANSWER / 2, ANSWER - NANOSECOND] {
            assert_eq!(hold.begin(Caller::Background, start + passed), Begin::Wait, "held by {caller:?}");
            assert!(hold.is_held());
        }
        assert_eq!(hold.begin(Caller::Background, start + ANSWER), Begin::Turn);
        assert_eq!(
            hold.take_in(Caller::Background, 0, false, start + ANSWER, || start + ANSWER),
            Verdict::Send
        );
        assert!(!hold.is_held() && hold.answered_by().is_none());
        assert!(!replies(&mut hold, start + ANSWER));
    }
}

#[test]
fn a_message_that_arrives_when_the_hold_ends_is_acknowledged_with_the_first() {
    let start = Instant::EPOCH;
    let mut hold = held(start);
    let late = start + ANSWER;
    assert_eq!(
        message(&mut hold, Caller::Background, late),
        Verdict::Send,
        "the program did not reply to the first"
    );
    // It is answerable for as long as any other.
    empty(&mut hold, Caller::Background, late + ANSWER - NANOSECOND);
    assert!(hold.answered_by().is_some());
    empty(&mut hold, Caller::Background, late + ANSWER);
    assert!(hold.answered_by().is_none());
}

#[test]
fn what_the_program_sends_between_turns_of_the_thread_is_a_reply_until_answer_has_passed() {
    let start = Instant::EPOCH;
    for (passed, is_reply) in [(ANSWER - NANOSECOND, true), (ANSWER, false)] {
        let mut hold = AckHold::new();
        assert_eq!(message(&mut hold, Caller::Background, start), Verdict::Send);
        for step in 1..20 {
            empty(&mut hold, Caller::Background, start + step * MICROSECOND);
        }
        empty(&mut hold, Caller::Background, start + passed);
        assert!(!hold.posted());
        assert_eq!(replies(&mut hold, start + passed), is_reply, "after {passed:?}");
    }
}

#[test]
fn where_turns_take_long_the_thread_waits_longer() {
    let start = Instant::EPOCH;
    for (turn, waits) in [
        (ANSWER / ANSWER_TURNS, ANSWER),
        (ANSWER, ANSWER * ANSWER_TURNS),
        (LONGEST_ANSWER / ANSWER_TURNS, LONGEST_ANSWER),
        // The thread lost its processor in the middle of it.
        (10 * LONGEST_ANSWER, LONGEST_ANSWER),
    ] {
        let mut hold = replying(start);
        let taken = start + turn;
        assert_eq!(hold.take_in(Caller::Background, 1, true, start, || taken), Verdict::Hold);
        assert_eq!(hold.answered_by(), Some(taken + waits), "a turn of {turn:?}");
        assert_eq!(hold.begin(Caller::Background, taken + waits - NANOSECOND), Begin::Wait);
        assert_eq!(hold.begin(Caller::Background, taken + waits), Begin::Turn);
        // A program's turn ends the hold anyway, so it need not be timed.
        let mut hold = replying(start);
        assert_eq!(hold.take_in(Caller::Program, 1, true, start, || taken), Verdict::Hold);
        assert_eq!(hold.answered_by(), Some(start + ANSWER));
    }
}

#[test]
fn a_program_thread_that_polls_in_vain_did_not_reply() {
    let now = Instant::EPOCH;
    let mut hold = AckHold::new();
    assert_eq!(message(&mut hold, Caller::Program, now), Verdict::Send);
    empty(&mut hold, Caller::Program, now);
    assert!(hold.answered_by().is_none() && !hold.posted());
    assert!(!replies(&mut hold, now));
}

#[test]
fn a_reply_is_expected_only_of_a_program_that_replies() {
    let mut now = Instant::EPOCH;
    let mut hold = AckHold::new();
    assert_eq!(message(&mut hold, Caller::Background, now), Verdict::Send);
    assert!(hold.answered_by().is_some() && hold.reply_by().is_none(), "nobody knows yet");
    assert!(!hold.posted());
    assert_eq!(message(&mut hold, Caller::Background, now), Verdict::Hold);
    assert_eq!(hold.reply_by(), Some(now + ANSWER));
    // It does not reply any more.
    for _ in 0..10 {
        now += 2 * ANSWER;
        message(&mut hold, Caller::Background, now);
        assert!(hold.reply_by().is_none());
    }
}

#[test]
fn a_turn_of_the_thread_that_sends_something_else_ends_the_conversation() {
    let now = Instant::EPOCH;
    let mut hold = AckHold::new();
    assert_eq!(message(&mut hold, Caller::Background, now), Verdict::Send);
    assert_eq!(hold.begin(Caller::Background, now), Begin::Turn);
    assert_eq!(hold.take_in(Caller::Background, 0, false, now, || now), Verdict::Send);
    assert!(hold.answered_by().is_some());
    // A timer, for example: the port retransmits.
    hold.end(0, 1);
    assert!(hold.answered_by().is_none());
}

#[test]
fn whatever_is_sent_takes_the_held_acknowledgement_along() {
    let now = Instant::EPOCH;
    let mut hold = held(now);
    hold.sent();
    assert!(!hold.is_held() && hold.answered_by().is_some());
    assert_eq!(hold.begin(Caller::Background, now), Begin::Turn, "there is nothing to wait for");
    assert!(!hold.posted(), "there is nothing to take along");
    assert!(replies(&mut hold, now), "it was a reply nevertheless");
}

/// Random events, with what the port does after each decision: an acknowledgement is never held for longer than until
/// the next turn of a program thread, nor across [`ANSWER`] and a turn of the background thread.
#[test]
fn no_sequence_of_events_holds_an_acknowledgement_beyond_its_bound() {
    use rand::{RngExt, SeedableRng};
    let mut holds = 0;
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut now = Instant::EPOCH;
        let mut hold = AckHold::new();
        let mut since = None;
        for step in 0..500 {
            now += Duration::from_nanos(rng.random_range(0..2 * ANSWER.as_nanos() as u64 / 3));
            let why = format!("seed {seed}, step {step}");
            let caller = match rng.random_range(0..8) {
                0 => {
                    assert_eq!(hold.posted(), since.take().is_some(), "{why}");
                    hold.sent();
                    continue;
                }
                1 => {
                    hold.sent();
                    since = None;
                    continue;
                }
                2 => Caller::LastTurn,
                3 | 4 => Caller::Program,
                _ => Caller::Background,
            };
            if hold.begin(caller, now) == Begin::Wait {
                let since = since.unwrap_or_else(|| panic!("{why}: it waits for nothing"));
                assert!(caller == Caller::Background && now < since + ANSWER, "{why}");
                continue;
            }
            let (datagrams, acks) = (rng.random_range(0..4), rng.random());
            match hold.take_in(caller, datagrams, acks, now, || now) {
                Verdict::Send => {
                    hold.sent();
                    hold.end(datagrams, u32::from(acks));
                    since = None;
                }
                Verdict::Hold => {
                    assert_eq!(since, None, "{why}: an acknowledgement is held in two turns in a row");
                    assert!(acks && caller != Caller::LastTurn, "{why}");
                    since = Some(now);
                    holds += 1;
                }
            }
            assert_eq!(hold.is_held(), since.is_some(), "{why}");
        }
    }
    assert!(holds > 1000, "only {holds} acknowledgements were held: the test did not test holding");
}
