//! What counts as lost, and when.

use super::*;
use crate::ids::Psn;

fn ack(held: &[usize], duplicates: u32) -> SelectiveAck {
    let mut ack = SelectiveAck::new(Psn::new(0), duplicates);
    held.iter().for_each(|ahead| ack.add(*ahead));
    ack
}

const NOW: Instant = Instant::EPOCH;

fn flight(packets: u32) -> Flight {
    let mut flight = Flight::default();
    (0..packets).for_each(|_| flight.depart(NOW, 1, false));
    flight
}

/// Sends again what is lost; returns where.
fn repeat_all(flight: &mut Flight) -> Vec<u32> {
    std::iter::from_fn(|| {
        flight.next_lost().map(|(at, psns)| {
            flight.repeat(at, psns);
            at
        })
    })
    .collect()
}

#[test]
fn what_a_later_packet_overtook_is_lost_once() {
    let mut flight = flight(6);
    flight.report(&ack(&[2, 4], 0), 0, 0, 0);
    assert_eq!((repeat_all(&mut flight), flight.landed()), (vec![0, 1, 3], 2));
    assert!(flight.noticed());
    flight.told();
    assert!(!flight.noticed());
    flight.report(&ack(&[2, 4, 5], 0), 0, 0, 0);
    assert_eq!(repeat_all(&mut flight), [0; 0], "they are on their way");
    flight.report(&ack(&[1, 2, 4, 5], 0), 0, 0, 0);
    assert_eq!(repeat_all(&mut flight), [0], "the repetition of 1 left later than that of 0");
}

#[test]
fn those_at_the_end_wait_for_a_timeout() {
    let mut flight = flight(4);
    flight.report(&ack(&[1], 0), 0, 0, 0);
    assert_eq!(repeat_all(&mut flight), [0]);
    assert_eq!(flight.answer(2), None, "what was held, or sent twice, tells no time");
    assert!(flight.suspects() && flight.next_lost().is_none(), "they left before what has arrived");
    flight.lose_suspects();
    assert_eq!((repeat_all(&mut flight), flight.suspects()), (vec![0, 1], false));
    (0..3).for_each(|_| flight.depart(NOW, 1, false));
    flight.answer(2);
    assert_eq!(flight.next_lost(), None, "nothing is known of the last three");
    flight.lose_oldest();
    assert_eq!(repeat_all(&mut flight), [0]);
    flight.answer(1);
    assert!(flight.suspects());
    flight.answer(1);
    assert!(flight.suspects(), "one more was only late");
    flight.lose_suspects();
    assert_eq!(repeat_all(&mut flight), [0]);
    flight.depart(NOW, 1, false);
    assert_eq!(flight.answer(2), Some(NOW));
    assert!(!flight.suspects());
}

#[test]
fn the_answer_to_a_repetition_tells_no_time() {
    let mut flight = flight(2);
    flight.lose_oldest();
    assert_eq!(repeat_all(&mut flight), [0]);
    assert_eq!((flight.answer(1), flight.answer(1)), (None, Some(NOW)));
}

#[test]
fn the_answer_to_a_held_read_may_be_lost() {
    let mut flight = flight(1);
    flight.depart(NOW, 2, true);
    flight.depart(NOW, 1, false);
    flight.report(&ack(&[1, 2, 3], 0), 0, 0, 0);
    assert_eq!(repeat_all(&mut flight), [0]);
    flight.lose_all();
    assert_eq!(repeat_all(&mut flight), [0, 1], "not the last, which is held");
}

#[test]
fn more_counts_as_lost_while_a_repetition_has_to_wait() {
    let mut flight = flight(3);
    flight.lose_oldest();
    flight.lose_oldest();
    assert_eq!((flight.flying(), repeat_all(&mut flight)), (1, vec![0, 1]));
}

#[test]
fn a_lost_acknowledgement_of_what_was_held_is_asked_for() {
    let mut flight = flight(3);
    flight.report(&ack(&[1, 2], 0), 0, 0, 0);
    repeat_all(&mut flight);
    flight.answer(1);
    assert_eq!((flight.next_lost(), flight.landed()), (None, 2), "the answer to these is lost");
    flight.lose_all();
    assert_eq!(repeat_all(&mut flight), [0]);
}

#[test]
fn a_read_is_one_packet_with_many_numbers() {
    let mut flight = flight(1);
    flight.depart(NOW, 4, true);
    flight.depart(NOW, 1, false);
    flight.report(&ack(&[5], 0), 0, 0, 0);
    assert_eq!((repeat_all(&mut flight), flight.flying()), (vec![0, 1], 5));
    flight.report(&ack(&[1, 5], 0), 0, 0, 0);
    flight.answer(3);
    assert_eq!((flight.next_lost(), flight.landed()), (None, 3), "two of the READ, and the last");
    flight.lose_all();
    assert_eq!((repeat_all(&mut flight), flight.landed()), (vec![0], 1), "the rest of the READ");
}

#[test]
fn duplicates_make_it_tolerant_unless_a_timeout_explains_them() {
    let mut flight = flight(20);
    flight.report(&ack(&[1], 1), 0, 0, 0);
    assert_eq!(flight.next_lost(), None, "one may be overtaken by one");
    flight.report(&ack(&[1, 2, 3], 1), 0, 0, 3);
    assert_eq!(flight.next_lost(), None, "or by three");
    flight.report(&ack(&[1, 2, 3], 1), 0, 0, 0);
    assert_eq!(repeat_all(&mut flight), [0]);
    flight.lose_all();
    let again = repeat_all(&mut flight).len() as u32;
    flight.report(&ack(&[1, 2, 3], 1 + again), 0, 0, 0);
    assert_eq!(flight.tolerance, 1, "the timeout explains them");
    flight.report(&ack(&[1, 2, 3], 2 + again), 0, 0, 0);
    assert_eq!(flight.tolerance, 2);
    flight.report(&ack(&[1, 2, 3], 1), 0, 0, 0);
    assert_eq!(flight.tolerance, 2, "an old report");
    (0..2 * CALM).for_each(|_| flight.report(&ack(&[1, 2, 3], 2 + again), 0, 0, 0));
    assert_eq!(flight.tolerance, 0, "that was long ago");
}
