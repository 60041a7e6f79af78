//! Entropy values of a sender.

use super::US;
use crate::balance::entropy::{Entropy, EntropyConfig, Reps, Values};
use proptest::prelude::*;
use std::collections::BTreeSet;

const MS: u64 = 1000 * US;

fn values(values: u16) -> Values {
    Values { values }
}

fn reps() -> Entropy {
    Entropy::new(&EntropyConfig::Reps(Reps::default()), 5)
}

fn take(entropy: &mut Entropy, count: usize) -> Vec<u16> {
    (0..count).map(|_| entropy.next()).collect()
}

proptest! {
    /// In each turn, each value once; the upper bits never change.
    #[test]
    fn oblivious_uses_each_value_once_in_a_turn(seed: u64, power in 0_u32..9, turns in 1_usize..5) {
        let count = 1_u16 << power;
        for config in [EntropyConfig::Oblivious(values(count)), EntropyConfig::Bitmap(values(count))] {
            let mut entropy = Entropy::new(&config, seed);
            let first: BTreeSet<u16> = take(&mut entropy, count.into()).into_iter().collect();
            prop_assert_eq!(first.len(), usize::from(count));
            prop_assert_eq!(first.iter().map(|value| value / count).collect::<BTreeSet<_>>().len(), 1);
            for _ in 1..turns {
                prop_assert_eq!(&take(&mut entropy, count.into()).into_iter().collect::<BTreeSet<_>>(), &first);
            }
        }
    }

    /// No scheme leaves its range, whatever happens.
    #[test]
    fn values_stay_in_their_range(seed: u64, events in prop::collection::vec((0_u8..5, any::<u16>(), 0_u64..5 * MS), 1..300)) {
        let configs = [
            EntropyConfig::Oblivious(values(16)),
            EntropyConfig::Bitmap(values(16)),
            EntropyConfig::Mixed(values(16)),
            EntropyConfig::Reps(Reps { values: 16, ..Reps::default() }),
        ];
        for config in configs {
            let mut entropy = Entropy::new(&config, seed);
            let mut seen: BTreeSet<u16> = BTreeSet::new();
            let (mut sent, mut now) = (vec![entropy.next()], 0);
            for (event, which, wait) in &events {
                now += wait;
                let value = sent[usize::from(*which) % sent.len()];
                match event {
                    0 => entropy.on_ack(now, value, false),
                    1 => entropy.on_ack(now, value, true),
                    2 => entropy.on_nack(now, value),
                    3 => entropy.on_timeout(now, value),
                    _ => {}
                }
                let value = entropy.next();
                sent.push(value);
                seen.insert(value);
            }
            prop_assert!(seen.len() <= 16);
        }
    }
}

#[test]
fn turns_differ_in_their_order() {
    let mut entropy = Entropy::new(&EntropyConfig::Oblivious(values(64)), 5);
    assert_ne!(take(&mut entropy, 64), take(&mut entropy, 64));
}

/// How many of the next turns of 8 values do without a value that was reported.
fn skipped(report: impl Fn(&mut Entropy, u16)) -> usize {
    let mut entropy = Entropy::new(&EntropyConfig::Bitmap(values(8)), 5);
    let value = entropy.next();
    take(&mut entropy, 7);
    report(&mut entropy, value);
    // A turn without the value is one packet shorter.
    (0..).take_while(|_| !take(&mut entropy, 7).contains(&value)).take(100).count()
}

#[test]
fn a_score_is_the_number_of_turns_that_skip_a_value() {
    assert_eq!(skipped(|entropy, value| entropy.on_ack(0, value, true)), 1);
    assert_eq!(skipped(|entropy, value| entropy.on_nack(0, value)), 4);
    assert_eq!(skipped(|entropy, value| entropy.on_timeout(0, value)), 15);
    assert_eq!(
        skipped(|entropy, value| {
            entropy.on_nack(0, value);
            entropy.on_timeout(0, value);
        }),
        15
    );
}

/// All values are bad: still there is one for each packet, and the scores sink.
#[test]
fn bad_values_are_used_if_there_are_no_others() {
    let mut entropy = Entropy::new(&EntropyConfig::Bitmap(values(4)), 5);
    for value in take(&mut entropy, 4) {
        entropy.on_timeout(0, value);
    }
    // Each packet lowers one score of 15 by one.
    take(&mut entropy, 4 * 15 + 3);
    let turn: BTreeSet<u16> = take(&mut entropy, 8).into_iter().collect();
    assert_eq!(turn.len(), 4);
}

/// Seven scores of 15 outlast 56 packets.
#[test]
fn a_packet_lowers_one_score_by_one() {
    let mut entropy = Entropy::new(&EntropyConfig::Bitmap(values(8)), 5);
    for value in take(&mut entropy, 8).drain(1..) {
        entropy.on_timeout(0, value);
    }
    take(&mut entropy, 40);
    // Without scores, these would be all values.
    let two_turns: BTreeSet<u16> = take(&mut entropy, 16).into_iter().collect();
    assert!(two_turns.len() < 8, "{two_turns:?}");
}

#[test]
fn reps_uses_unmarked_values_again_the_oldest_first() {
    let mut entropy = reps();
    for (value, marked) in [(7, false), (9, true), (3, false), (5, false)] {
        entropy.on_ack(0, value, marked);
    }
    assert_eq!(take(&mut entropy, 2), [7, 3]);
    entropy.on_ack(0, 60, false);
    assert_eq!(take(&mut entropy, 2), [5, 60]);
    // Nothing left: random ones.
    let random: BTreeSet<u16> = take(&mut entropy, 1000).into_iter().collect();
    assert_eq!(random, (0..64).collect());
}

#[test]
fn reps_keeps_the_last_eight_values() {
    let mut entropy = reps();
    (0..20).for_each(|value| entropy.on_ack(0, value, false));
    assert_eq!(take(&mut entropy, 8), (12..20).collect::<Vec<_>>());
}

#[test]
fn reps_freezes_after_a_timeout_and_then_explores() {
    let mut entropy = reps();
    for value in [7, 3, 5] {
        entropy.on_ack(0, value, false);
    }
    assert_eq!(entropy.next(), 7);
    entropy.on_timeout(MS, 40);
    // Known values only, used or not, again and again.
    assert_eq!(take(&mut entropy, 6), [7, 3, 5, 7, 3, 5]);
    // A second timeout does not prolong it.
    entropy.on_timeout(5 * MS, 40);
    entropy.on_ack(11 * MS, 3, true);
    assert!(take(&mut entropy, 50).iter().all(|value| [7, 3, 5].contains(value)));
    // Just after 10 ms: 16 random values, during which acknowledged ones are kept.
    entropy.on_ack(11 * MS + 1, 3, true);
    for value in [20, 21] {
        entropy.on_ack(11 * MS + 2, value, false);
    }
    let explored: BTreeSet<u16> = take(&mut entropy, 16).into_iter().collect();
    assert!(explored.len() > 8, "{explored:?}");
    assert_eq!(take(&mut entropy, 2), [20, 21]);
}

#[test]
fn a_freeze_without_known_values_is_random() {
    let mut entropy = reps();
    entropy.on_timeout(MS, 40);
    assert!(take(&mut entropy, 50).into_iter().collect::<BTreeSet<u16>>().len() > 20);
}

#[test]
fn mixed_prefers_values_that_worked() {
    let mut mixed = Entropy::new(&EntropyConfig::Mixed(values(8)), 5);
    let mut bitmap = Entropy::new(&EntropyConfig::Bitmap(values(8)), 5);
    let first = take(&mut mixed, 3);
    assert_eq!(first, take(&mut bitmap, 3));
    mixed.on_ack(0, first[2], false);
    mixed.on_ack(0, first[0], false);
    mixed.on_ack(0, first[1], true);
    assert_eq!(take(&mut mixed, 2), [first[2], first[0]]);
    // Then the values of the bitmap, which has noticed the mark.
    bitmap.on_ack(0, first[1], true);
    assert_eq!(take(&mut mixed, 20), take(&mut bitmap, 20));
}

#[test]
fn settings_survive_a_file_and_are_checked() {
    let configs = [
        EntropyConfig::Oblivious(values(128)),
        EntropyConfig::Bitmap(values(64)),
        EntropyConfig::Mixed(values(64)),
        EntropyConfig::Reps(Reps::default()),
    ];
    for config in configs {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<EntropyConfig>(&text).unwrap(), config, "{text}");
        assert!(config.check().is_ok());
    }
    assert!(EntropyConfig::Mixed(values(0)).check().is_err());
    assert!(EntropyConfig::Mixed(values(65)).check().is_err());
    assert!(toml::from_str::<EntropyConfig>("scheme = 'reps'\npaths = 4").is_err());
}
