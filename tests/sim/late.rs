//! A flow that starts at the rate of the port while others are settled there: DCQCN has no slow start.
//!
//! The bounds are those of the authors for the time to within 10 % of the fair share, for the same total number of
//! flows with the parameters of the preset (CoNEXT 2016, the data of their figures). They are about means: in a
//! single run, flows fluctuate by as much. The tests therefore measure the flow's share in the 10 ms after the
//! bound, averaged over many runs. A single run varies by 6 % of the share with two flows, and by 10 % with ten;
//! five and sixteen runs reduce that to 2.5 %.

use crate::dcqcn::{settled, setup};
use crate::seeds;
use crate::series::mean;
use crate::world::Sender;
use rnic::cc::Rate;
use std::time::Duration;

const WINDOW: Duration = Duration::from_millis(10);

/// The flow's throughput as a part of its share, averaged over all runs: at first, and after the bound.
fn parts(others: u32, bound: Duration, runs: u64) -> [f64; 2] {
    let (flows, late) = (f64::from(others + 1), others as usize);
    let run = |seed| {
        let mut world = settled(&setup(Rate::from_gbps(40), seed), others);
        world.join(&Sender::default());
        let first = world.watch_for(WINDOW).part(late) * flows;
        world.run_for(bound - WINDOW);
        let last = world.watch_for(WINDOW).part(late) * flows;
        println!(
            "{others} + 1 flows, seed {seed}: {first:.3} of its share at first, {last:.3} after {bound:?}"
        );
        [first, last]
    };
    let all: Vec<_> = seeds(runs).into_iter().map(run).collect();
    let parts = [mean(&all, |part| part[0]), mean(&all, |part| part[1])];
    println!("{others} + 1 flows: {parts:.3?} in the mean of {}", all.len());
    parts
}

#[test]
fn one_that_joins_one_other_has_its_share_after_the_authors_bound() {
    let [_, last] = parts(1, Duration::from_micros(96_900), 5);
    assert!((last - 1.0).abs() <= 0.1, "{last} of the share");
}

/// With nine others, the first CNPs cut the flow to a fraction of its share, from which it has to recover.
#[test]
fn one_that_joins_nine_others_has_its_share_after_the_authors_bound() {
    let [first, last] = parts(9, Duration::from_micros(35_900), 16);
    assert!(first < 0.8, "{first} of the share at first: nothing to make up for");
    assert!((last - 1.0).abs() <= 0.1, "{last} of the share");
}
