//! The scenarios that come with rnic: each has its expected outcome.
//!
//! A test runs the first seed of its scenario, or all of them if `RNIC_LONG` is set.

use rnic_fabric::scenario::{BUILTIN, Scenario, builtin};
use std::path::Path;

fn has_its_outcome(name: &str) {
    let text = builtin(name).expect("it comes with rnic").text;
    let scenario = Scenario::read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(scenario.name, name);
    assert!(!scenario.expect.is_empty(), "it expects nothing");
    let long = std::env::var_os("RNIC_LONG").is_some();
    for seed in &scenario.seeds[..if long { scenario.seeds.len() } else { 1 }] {
        let outcome = scenario.run_all(Path::new("."), *seed, &mut |_| true).expect("it runs");
        for verdict in &outcome.verdicts {
            let (word, bound) = (if verdict.passed { "pass" } else { "FAIL" }, &verdict.bound);
            println!("{word} {name} seed {seed}: {} = {:?} of {bound:?}", verdict.metric, verdict.value);
        }
        let failed: Vec<_> = outcome.verdicts.iter().filter(|verdict| !verdict.passed).collect();
        assert!(failed.is_empty(), "seed {seed}: {failed:#?}");
    }
}

/// A test for each scenario, and one that there is one for each.
macro_rules! scenarios {
    ($($test:ident $name:literal)*) => {
        $(
            #[test]
            fn $test() {
                has_its_outcome($name);
            }
        )*

        #[test]
        fn every_scenario_has_a_test() {
            let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

scenarios! {
    incast "incast"
    late_joiner "late-joiner"
    dcqcn_stability "dcqcn-stability"
    congestion_control "congestion-control"
    hpcc "hpcc"
    pfc_deadlock "pfc-deadlock"
    pfc_deadlock_ring "pfc-deadlock-ring"
    credit_deadlock "credit-deadlock"
    pfc_storm "pfc-storm"
    victim_flow "victim-flow"
    misconfigured_pfc "misconfigured-pfc"
    ecmp_collision "ecmp-collision"
    ecmp_vs_flowlet_vs_spray "ecmp-vs-flowlet-vs-spray"
    permutation "permutation"
    permutation_spray "permutation-spray"
    incast_htsim "incast-htsim"
    loss_sweep "loss-sweep"
    go_back_n_vs_selective_repeat "go-back-n-vs-selective-repeat"
    credit_bdp "credit-bdp"
    ib_vs_roce "ib-vs-roce"
    link_failure "link-failure"
    mixed_storage "mixed-storage"
    all_reduce "all-reduce"
}
