//! The scenarios that come with rnic: each has its expected outcome.

use rnic_fabric::scenario::{BUILTIN, Scenario};
use std::path::Path;

#[test]
fn every_scenario_has_the_outcome_that_it_names() {
    let mut failures = Vec::new();
    for builtin in BUILTIN {
        let scenario =
            Scenario::read(builtin.text).unwrap_or_else(|error| panic!("{}: {error}", builtin.name));
        assert_eq!(scenario.name, builtin.name);
        assert!(!scenario.expect.is_empty(), "{} expects nothing", builtin.name);
        let seed = scenario.seeds[0];
        let report = scenario.run(Path::new("."), seed, &mut |_| true).expect("it runs");
        for expect in &scenario.expect {
            let verdict = expect.judge(&report.metrics);
            println!("{} seed {seed}: {} = {:?}", builtin.name, verdict.metric, verdict.value);
            if !verdict.passed {
                failures.push((builtin.name, verdict));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
