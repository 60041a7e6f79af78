//! Many worlds of connections (`rnic_tests::meetings`): 300 of them, or with `RNIC_LONG=1` 5000. `RNIC_SEED=N` plays one, and
//! `RNIC_SEED=A..B` others.

use rnic_tests::meetings::{SITUATIONS, run};
use std::collections::BTreeMap;

#[test]
fn both_sides_agree_whatever_happens() {
    let chosen = std::env::var("RNIC_SEED").ok().and_then(|text| match text.split_once("..") {
        Some((first, end)) => Some(first.parse().ok()?..end.parse().ok()?),
        None => text.parse().ok().map(|seed: u64| seed..seed + 1),
    });
    let count = if std::env::var_os("RNIC_LONG").is_some() { 5000 } else { 300 };
    let is_chosen = chosen.is_some();
    let seeds = chosen.unwrap_or(1..count + 1);
    let mut reached = BTreeMap::<_, u64>::new();
    let mut violations = Vec::new();
    for seed in seeds {
        let outcome = run(seed);
        violations.extend(outcome.violation);
        outcome
            .reached
            .into_iter()
            .for_each(|(situation, count)| *reached.entry(situation).or_default() += count);
    }
    println!("{reached:#?}");
    assert!(
        violations.is_empty(),
        "{} worlds: {:#?}",
        violations.len(),
        &violations[..violations.len().min(10)]
    );
    if !is_chosen {
        let missing: Vec<_> =
            SITUATIONS.iter().filter(|situation| !reached.contains_key(*situation)).collect();
        assert!(missing.is_empty(), "no world reaches {missing:?}");
    }
}

#[test]
fn a_world_is_the_same_each_time() {
    for seed in 1..10 {
        let [one, other] = [run(seed), run(seed)];
        assert_eq!((one.hash, one.reached), (other.hash, other.reached), "seed {seed}");
    }
}
