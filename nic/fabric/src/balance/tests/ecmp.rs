//! Balls in bins, uniformity, polarisation.

use super::{Flows, Ports, chi_square, packet, ports};
use crate::balance::{BalanceConfig, Balancer, Ecmp, Question, Seed, Weighted};
use proptest::prelude::*;

fn ecmp(seed: Seed, qp: bool) -> BalanceConfig {
    BalanceConfig::Ecmp(Ecmp { seed, qp })
}

/// The mean and the standard deviation of the greatest number of balls in a bin, for `n` balls in `m` bins. Exact: at most
/// `k` balls are in each of the bins in as many ways as the coefficient of x^n of (sum of x^j/j! for j up to k)^m says.
fn balls_in_bins(n: usize, m: usize) -> (f64, f64) {
    let factorial: Vec<f64> = (0..=n).map(|j| (1..=j).map(|i| i as f64).product()).collect();
    let at_most = |k: usize| {
        let mut ways = vec![0.0; n + 1];
        ways[0] = 1.0;
        for _ in 0..m {
            let one_more = |total: usize| (0..=k.min(total)).map(|j| ways[total - j] / factorial[j]).sum();
            ways = (0..=n).map(one_more).collect();
        }
        ways[n] * factorial[n] / (m as f64).powi(i32::try_from(n).unwrap())
    };
    let exactly = |k: usize| at_most(k) - if k == 0 { 0.0 } else { at_most(k - 1) };
    let moment = |power: i32| -> f64 { (1..=n).map(|k| (k as f64).powi(power) * exactly(k)).sum() };
    (moment(1), (moment(2) - moment(1).powi(2)).sqrt())
}

/// The mean over many switches of the greatest number of `n` flows on one of `m` ports.
fn mean_maximum(n: usize, m: u16, trials: u32) -> f64 {
    let (loads, ports) = (Ports::idle(m), ports(m));
    let mut flows = Flows::new(3);
    let mut total = 0_u32;
    for trial in 0..trials {
        let mut balancer = Balancer::new(&ecmp(Seed::PerSwitch, false), trial, 42);
        let mut counts = vec![0_u32; m.into()];
        for flow in flows.by_ref().take(n) {
            counts[usize::from(balancer.choose(&packet(0, flow, &ports), &loads))] += 1;
        }
        total += counts.into_iter().max().unwrap();
    }
    f64::from(total) / f64::from(trials)
}

#[test]
fn as_many_flows_meet_as_balls_in_bins() {
    let trials = 20_000;
    for (n, m, expected) in [(8, 8, 2.597), (4, 4, 2.125), (16, 16, 3.078), (2, 8, 1.125)] {
        let (mean, deviation) = balls_in_bins(n, m.into());
        assert!((mean - expected).abs() < 0.0005, "{n} balls in {m} bins: {mean}");
        let measured = mean_maximum(n, m, trials);
        // Four standard errors: one of 16,000 ideal hashes would fail.
        let tolerance = 4.0 * deviation / f64::from(trials).sqrt();
        assert!((measured - mean).abs() < tolerance, "{n} in {m}: {measured}, not {mean} ± {tolerance}");
    }
}

/// Over many switches, Pearson's statistic has the mean of its distribution: neither more nor less even than chance.
#[test]
fn flows_are_spread_as_by_chance() {
    for m in [2_u16, 3, 8, 16, 60] {
        let (loads, ports) = (Ports::idle(m), ports(m));
        let (mut flows, switches) = (Flows::new(9), 1000);
        let statistic = |switch| {
            let mut balancer = Balancer::new(&ecmp(Seed::PerSwitch, false), switch, 1);
            let mut counts = vec![0_u32; m.into()];
            for flow in flows.by_ref().take(60 * usize::from(m)) {
                counts[usize::from(balancer.choose(&packet(0, flow, &ports), &loads))] += 1;
            }
            chi_square(&counts)
        };
        let mean = (0..switches).map(statistic).sum::<f64>() / f64::from(switches);
        let freedom = f64::from(m - 1);
        let tolerance = 4.0 * (2.0 * freedom / f64::from(switches)).sqrt();
        assert!((mean - freedom).abs() < tolerance, "{m} ports: {mean}, not {freedom} ± {tolerance}");
    }
}

/// Of 4000 flows that take port 0 at switch 1, how many take each port of switch 2.
fn second_stage(seed: Seed) -> Vec<u32> {
    let (loads, ports) = (Ports::idle(8), ports(8));
    let [mut first, mut second] = [1, 2].map(|switch| Balancer::new(&ecmp(seed, false), switch, 7));
    let mut counts = vec![0_u32; 8];
    let flows = Flows::new(5).filter(|flow| first.choose(&packet(0, *flow, &ports), &loads) == 0).take(4000);
    for flow in flows {
        counts[usize::from(second.choose(&packet(0, flow, &ports), &loads))] += 1;
    }
    counts
}

#[test]
fn a_common_seed_polarises_the_second_stage() {
    let used = second_stage(Seed::Same).into_iter().filter(|n| *n > 0).count();
    assert_eq!(used, 1);
}

#[test]
fn seeds_of_their_own_make_stages_independent() {
    let counts = second_stage(Seed::PerSwitch);
    // 7 degrees of freedom: more happens once in 10,000 times.
    assert!(chi_square(&counts) < 29.88, "{counts:?}");
}

#[test]
fn queue_pairs_count_if_they_are_to() {
    let (loads, ports) = (Ports::idle(8), ports(8));
    let counts = |qp| {
        let mut balancer = Balancer::new(&ecmp(Seed::PerSwitch, qp), 1, 7);
        let mut counts = vec![0_u32; 8];
        for qp in 0..8000 {
            let question = Question { qp, ..packet(0, 77, &ports) };
            counts[usize::from(balancer.choose(&question, &loads))] += 1;
        }
        counts
    };
    assert_eq!(counts(false).into_iter().filter(|n| *n > 0).count(), 1);
    let counts = counts(true);
    assert!(counts.iter().all(|n| n.abs_diff(1000) < 200), "{counts:?}");
}

/// Shares in proportion to the weights of these four ports.
fn assert_shares(config: Weighted, loads: &Ports, expected: [f64; 4]) {
    let ports = ports(4);
    let mut balancer = Balancer::new(&BalanceConfig::Weighted(config), 0, 1);
    let mut counts = [0_u32; 4];
    for flow in Flows::new(4).take(40_000) {
        counts[usize::from(balancer.choose(&packet(0, flow, &ports), loads))] += 1;
    }
    for (count, share) in counts.into_iter().zip(expected) {
        let deviation = (40_000.0 * share * (1.0 - share)).sqrt();
        assert!((f64::from(count) - 40_000.0 * share).abs() <= 4.0 * deviation, "{counts:?}");
    }
}

#[test]
fn shares_follow_weights_or_rates() {
    let mut loads = Ports::idle(4);
    assert_shares(Weighted { weights: vec![3, 0, 4] }, &loads, [0.375, 0.0, 0.5, 0.125]);
    assert_shares(Weighted { weights: vec![0; 4] }, &loads, [0.25; 4]);
    loads.rates = vec![400_000_000_000, 100_000_000_000, 200_000_000_000, 100_000_000_000];
    assert_shares(Weighted::default(), &loads, [0.5, 0.125, 0.25, 0.125]);
}

proptest! {
    /// Time, size, class and queues change nothing.
    #[test]
    fn a_flow_is_never_split(flow: u64, seed: u64, qp: u32, packets in prop::collection::vec(any::<(u64, u32, u8, u32)>(), 1..40)) {
        let ports = ports(8);
        for config in [ecmp(Seed::PerSwitch, true), BalanceConfig::Weighted(Weighted::default())] {
            let mut balancer = Balancer::new(&config, 3, seed);
            let first = balancer.choose(&Question { qp, ..packet(0, flow, &ports) }, &Ports::idle(8));
            for (now, bytes, class, queued) in &packets {
                let loads = Ports::queues(&[u64::from(*queued); 8]);
                let question = Question { qp, bytes: *bytes, class: *class, ..packet(*now, flow, &ports) };
                prop_assert_eq!(balancer.choose(&question, &loads), first);
            }
        }
    }
}
