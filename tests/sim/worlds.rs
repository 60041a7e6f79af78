//! Seeded worlds judged by the oracle: fixed seeds with known coverage, and fresh ones, which are printed.
//!
//! `RNIC_WORLD=n` runs a single seed, `RNIC_WORLDS=n` runs n fresh ones. Use `rnic-worlds` for long runs.

use rnic_tests::worlds::{Options, Plan, Reach, run};
use std::time::{SystemTime, UNIX_EPOCH};

/// Fixed seeds: 1 to this. About 25 s of processor time in the development profile.
const FIXED: u64 = 60;

/// Number of fresh seeds by default: about half a minute of processor time in the development profile.
const FRESH: u64 = 150;

/// In how many worlds of a long run each situation was reached. To record it again, after a change of the worlds:
///
/// ```text
/// cargo run --profile worlds -p rnic-tests --bin rnic-worlds -- --seeds 40001..43001 --record tests/sim/worlds/coverage.txt
/// ```
const RECORDED: &str = include_str!("worlds/coverage.txt");

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays seeds, and fails at the first violation.
fn play(seeds: impl Iterator<Item = u64>) -> Reach {
    let (mut operations, mut reach) = (0, Reach::default());
    for seed in seeds {
        let outcome = run(&Plan::new(seed), &Options::default());
        if let Some(violation) = outcome.violation {
            panic!(
                "seed {seed}: {violation}\n`rnic-worlds --seed {seed} --trace` shows it, --shrink FILE makes it short"
            );
        }
        operations += outcome.operations;
        reach.add(&outcome.coverage);
    }
    println!("{} worlds, {operations} operations", reach.worlds);
    reach
}

/// Fails if situations are reached in fewer worlds than can be chance.
fn compare(reach: &Reach) {
    let recorded: Reach = RECORDED.parse().expect("a table");
    println!("not in the table: {:?}", reach.new_since(&recorded));
    let missed = reach.missing_from(&recorded);
    assert!(
        missed.is_empty(),
        "reached in fewer of {} worlds than can be chance (what, worlds, floor): {missed:?}",
        reach.worlds
    );
}

#[test]
fn worlds_of_fixed_seeds_keep_the_rules_and_reach_the_required_coverage() {
    if let Some(seed) = number("RNIC_WORLD") {
        play([seed].into_iter());
        return;
    }
    let reach = play(1..=FIXED);
    println!("{reach}");
    compare(&reach);
}

#[test]
fn worlds_of_fresh_seeds_keep_the_rules() {
    let count = number("RNIC_WORLDS").unwrap_or(FRESH);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let first = now * 1000;
    println!("seeds {first}..{}", first + count);
    compare(&play(first..first + count));
}

#[test]
fn a_world_is_the_same_every_time() {
    for seed in [3, 11, 27] {
        let [one, two] = [0, 1].map(|_| run(&Plan::new(seed), &Options::default()));
        assert_eq!((one.hash, one.operations), (two.hash, two.operations), "seed {seed}");
        let other = run(&Plan::new(seed + 1), &Options::default());
        assert_ne!(one.hash, other.hash, "the hash is of what happened");
    }
}

/// A shrunk script: on a link with credits, the network duplicated the packets of a live peer. The peer never got
/// credit again, because the amount it had sent seemed less than the amount that had arrived.
#[test]
fn a_peer_whose_packets_were_copied_gets_credit_again() {
    replay(include_str!("worlds/copied_packets_and_credits.json"));
}

/// A shrunk script: a queue pair that waited for credit was destroyed, but its long backoff before the next request
/// for credit stayed, and silenced the next queue pair without credit too.
#[test]
fn a_request_for_credit_is_not_delayed_by_the_backoff_of_another() {
    replay(include_str!("worlds/a_request_for_credit_long_after_the_last.json"));
}

/// A shrunk script: the answers to queue pairs without a timeout were lost, and other queue pairs that send to the
/// same peer waited for them, although there was room.
#[test]
fn queue_pairs_do_not_wait_for_lost_answers_of_another() {
    replay(include_str!("worlds/turns_behind_one_that_waits_for_ever.json"));
}

/// A shrunk script: the window of a peer was nearly full in the middle of a message that had not yet asked for an
/// acknowledgement, so its sender waited for room until it gave up.
#[test]
fn a_sender_that_waits_for_room_has_asked_for_an_acknowledgement() {
    replay(include_str!("worlds/a_small_window_and_its_acknowledgements.json"));
}

/// A shrunk script: the responses to READs took more than one train, and the rest of them waited for room in a
/// window that the READs occupied.
#[test]
fn answers_do_not_wait_for_the_room_of_what_they_answer() {
    replay(include_str!("worlds/answers_behind_a_full_window.json"));
}

/// A shrunk script: a port was unplugged while the other answered its greeting. The other port waited for credit
/// from a partner that did not know of it, and only asked again after 40 ms, although it had been greeted earlier.
#[test]
fn a_partner_that_missed_the_answer_is_met_soon() {
    replay(include_str!("worlds/a_greeting_that_an_unplugged_port_lost.json"));
}

fn replay(script: &str) {
    let plan: Plan = serde_json::from_str(script).expect("a plan");
    assert_eq!(run(&plan, &Options::default()).violation, None);
}
