//! Flows that change their way after a gap.

use super::{Flows, Ports, US, chi_square, packet, ports};
use crate::balance::{Adaptive, BalanceConfig, Balancer, Compare, Flowlet, Letflow, Picos, Quality, Unit};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The modes that know flowlets, with the time that makes a gap.
fn modes() -> [(BalanceConfig, Picos); 3] {
    let adaptive = Adaptive { unit: Unit::Flowlet, ..Adaptive::default() };
    [
        (BalanceConfig::Letflow(Letflow::default()), 100 * US),
        (BalanceConfig::Flowlet(Flowlet::default()), 64 * US),
        (BalanceConfig::Adaptive(adaptive), 10 * US),
    ]
}

proptest! {
    /// Packets of some flows, each with the time since the one before and a port that becomes full.
    #[test]
    fn a_flow_is_only_split_at_a_gap(
        seed: u64,
        packets in prop::collection::vec((0_u64..60 * US, 0_u64..5, 0_usize..8), 1..200),
    ) {
        let ports = ports(8);
        for (config, gap) in modes() {
            let mut balancer = Balancer::new(&config, 3, seed);
            let mut loads = Ports::idle(8);
            let mut last = BTreeMap::new();
            let mut now = 0;
            for (wait, flow, busy) in &packets {
                now += wait;
                loads.queued[*busy] ^= 1_000_000;
                let port = balancer.choose(&packet(now, *flow, &ports), &loads);
                if let Some((at, before)) = last.insert(*flow, (now, port)) {
                    prop_assert!(port == before || now - at > gap, "{} ps after the last packet", now - at);
                }
            }
        }
    }

    /// A port that is no longer on the way to the destination is left, gap or not.
    #[test]
    fn a_port_that_leaves_the_route_is_left(flow: u64, seed: u64) {
        let (all, loads) = (ports(8), Ports::idle(8));
        for (config, _) in modes() {
            let mut balancer = Balancer::new(&config, 3, seed);
            let port = balancer.choose(&packet(0, flow, &all), &loads);
            let rest: Vec<u16> = all.iter().copied().filter(|p| *p != port).collect();
            let next = balancer.choose(&packet(1, flow, &rest), &loads);
            prop_assert!(rest.contains(&next));
        }
    }
}

#[test]
fn the_gap_itself_is_not_long_enough() {
    let (ports, loads) = (ports(64), Ports::idle(64));
    let mut balancer = Balancer::new(&BalanceConfig::Letflow(Letflow::default()), 3, 5);
    let mut at = 0;
    let first = balancer.choose(&packet(at, 9, &ports), &loads);
    for _ in 0..200 {
        at += 100 * US;
        assert_eq!(balancer.choose(&packet(at, 9, &ports), &loads), first);
    }
    let moved = (0..200).filter(|_| {
        at += 100 * US + 1;
        balancer.choose(&packet(at, 9, &ports), &loads) != first
    });
    assert!(moved.count() > 150);
}

#[test]
fn letflow_goes_to_a_random_port_after_a_gap() {
    let (ports, loads) = (ports(8), Ports::queues(&[9_000_000, 0, 0, 0, 0, 0, 0, 0]));
    let mut balancer = Balancer::new(&BalanceConfig::Letflow(Letflow::default()), 3, 5);
    let mut counts = [0_u32; 8];
    for n in 0..8000 {
        counts[usize::from(balancer.choose(&packet(n * 101 * US, 1, &ports), &loads))] += 1;
    }
    // 7 degrees of freedom: more happens once in 10,000 times. Queues do not matter.
    assert!(chi_square(&counts) < 29.88, "{counts:?}");
}

/// More flows than the table holds: those without an entry keep the port of their hash.
#[test]
fn a_full_table_splits_no_flow() {
    let (ports, loads) = (ports(8), Ports::idle(8));
    let flows: Vec<u64> = Flows::new(8).take(20_000).collect();
    let mut balancer = Balancer::new(&BalanceConfig::Letflow(Letflow::default()), 3, 5);
    let mut round = |now| -> Vec<u16> {
        flows.iter().map(|flow| balancer.choose(&packet(now, *flow, &ports), &loads)).collect()
    };
    let first = round(0);
    assert_eq!(round(50 * US), first);
    assert_eq!(round(100 * US), first);
    let mut counts = [0_u32; 8];
    first.iter().for_each(|port| counts[usize::from(*port)] += 1);
    assert!(chi_square(&counts) < 29.88, "{counts:?}");
}

#[test]
fn dlb_takes_the_port_with_the_best_quality() {
    let ports = ports(4);
    let mut loads = Ports::queues(&[50_000, 30_000, 25_000, 100_000]);
    let mut balancer = Balancer::new(&BalanceConfig::Flowlet(Flowlet::default()), 0, 1);
    // Ports 1 and 2 have the level 1 (20,750 to 41,500 bytes), and neither has sent anything.
    let first: Vec<u16> =
        (0..100).map(|flow| balancer.choose(&packet(20 * US, flow, &ports), &loads)).collect();
    assert!(first.contains(&1) && first.contains(&2) && !first.contains(&0) && !first.contains(&3));
    // Port 2 was busy for half of the 80 us: 500,000 bytes at 100 Gb/s.
    loads.sent[2] = 500_000;
    let next = (100..200).map(|flow| balancer.choose(&packet(100 * US, flow, &ports), &loads));
    assert!(next.collect::<Vec<_>>().iter().all(|port| *port == 1));
}

#[test]
fn an_adaptive_flow_stays_where_it_is_unless_another_port_is_better() {
    let ports = ports(4);
    let config = Adaptive { unit: Unit::Flowlet, compare: Compare::Queue, ..Adaptive::default() };
    let mut balancer = Balancer::new(&BalanceConfig::Adaptive(config), 0, 1);
    let mut loads = Ports::idle(4);
    let first = balancer.choose(&packet(0, 6, &ports), &loads);
    for n in 1..100 {
        assert_eq!(balancer.choose(&packet(n * 20 * US, 6, &ports), &loads), first);
    }
    // Once its port is worse, it leaves with probability one half after each gap.
    let mut leaves = 0;
    for flow in 1000..2000 {
        loads.queued.fill(0);
        let port = balancer.choose(&packet(0, flow, &ports), &loads);
        loads.queued[usize::from(port)] = 1_000_000;
        leaves += u32::from(balancer.choose(&packet(20 * US, flow, &ports), &loads) != port);
    }
    // 500, with a standard deviation of 16.
    assert!(leaves.abs_diff(500) < 70, "{leaves}");
}

#[test]
fn limits_of_levels_must_rise() {
    let config = |quality| BalanceConfig::Flowlet(Flowlet { quality, ..Flowlet::default() });
    assert!(config(Quality::default()).check().is_ok());
    assert!(config(Quality { queue: vec![5, 5], ..Quality::default() }).check().is_err());
    assert!(config(Quality { utilisation: vec![5, 4], ..Quality::default() }).check().is_err());
}
