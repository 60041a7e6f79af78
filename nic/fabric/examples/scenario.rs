//! Runs a scenario file, and prints what was expected and what came out.

use rnic_fabric::scenario::Scenario;
use std::path::Path;

fn main() {
    let mut args = std::env::args().skip(1);
    let file = args.next().expect("a file");
    let seed = args.next().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let text = std::fs::read_to_string(&file).expect("the file");
    let start = std::time::Instant::now();
    let outcome = Scenario::run_all(&text, Path::new("."), seed, &mut |_| true)
        .unwrap_or_else(|error| panic!("{error}"));
    for verdict in &outcome.verdicts {
        println!(
            "{} {} = {:?} of {:?}",
            if verdict.passed { "pass" } else { "FAIL" },
            verdict.metric,
            verdict.value,
            verdict.bound
        );
    }
    if std::env::var_os("METRICS").is_some() {
        for (name, value) in &outcome.metrics.0 {
            println!("{name} {value}");
        }
    }
    println!("{:?}", start.elapsed());
}
