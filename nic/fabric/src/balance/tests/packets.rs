//! Modes that decide for each packet.

use super::{Ports, US, packet, ports};
use crate::balance::{Adaptive, BalanceConfig, Balancer, Compare, Drill, Loads, Order, Question, Spray};
use proptest::prelude::*;

fn spray(order: Order) -> Balancer {
    Balancer::new(&BalanceConfig::Spray(Spray { order, ..Spray::default() }), 1, 2)
}

proptest! {
    #[test]
    fn every_round_uses_each_port_once(count in 1_u16..40, rounds in 1_usize..20, first in 0_u16..100) {
        let ports: Vec<u16> = (first..first + count).collect();
        let mut balancer = spray(Order::RoundRobin);
        for _ in 0..rounds {
            let mut round: Vec<u16> =
                ports.iter().map(|_| balancer.choose(&packet(0, 1, &ports), &Ports::default())).collect();
            round.sort_unstable();
            prop_assert_eq!(&round, &ports);
        }
    }

    /// Sets of ports with different destinations have rounds of their own, and short packets use up no turn.
    #[test]
    fn rounds_do_not_disturb_each_other(steps in prop::collection::vec(0_usize..4, 1..200)) {
        let sets: [&[u16]; 3] = [&[0, 1, 2, 3], &[0, 2], &[5, 6, 7]];
        let mut taken = [const { Vec::new() }; 3];
        let mut balancer = spray(Order::RoundRobin);
        for step in steps {
            let Some(set) = sets.get(step) else {
                balancer.choose(&Question { bytes: 127, ..packet(0, 4, sets[0]) }, &Ports::default());
                continue;
            };
            taken[step].push(balancer.choose(&packet(0, 4, set), &Ports::default()));
        }
        for (set, taken) in sets.iter().zip(&taken) {
            for round in taken.chunks(set.len()) {
                let mut sorted = round.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), round.len());
                prop_assert!(round.iter().all(|port| set.contains(port)));
            }
        }
    }

    /// With all ports as samples, the queue is the shortest there is.
    #[test]
    fn drill_with_all_samples_finds_the_shortest_queue(queues in prop::collection::vec(0_u64..50, 2..20), memory in 0_u8..4) {
        let (loads, ports) = (Ports::queues(&queues), ports(u16::try_from(queues.len()).unwrap()));
        let config = Drill { samples: 20, memory };
        let mut balancer = Balancer::new(&BalanceConfig::Drill(config), 1, 2);
        for _ in 0..3 {
            let port = balancer.choose(&packet(0, 1, &ports), &loads);
            prop_assert_eq!(loads.queued(port), *queues.iter().min().unwrap());
        }
    }

    /// Queues that do not change: a packet never takes a longer one than the packet before.
    #[test]
    fn drill_remembers_the_best_port_for_a_destination(queues in prop::collection::vec(0_u64..1000, 2..30), dst in 0_usize..50) {
        let (loads, ports) = (Ports::queues(&queues), ports(u16::try_from(queues.len()).unwrap()));
        let mut balancer = Balancer::new(&BalanceConfig::Drill(Drill::default()), 1, 2);
        let mut before = u64::MAX;
        for _ in 0..50 {
            let port = balancer.choose(&Question { dst, ..packet(0, 1, &ports) }, &loads);
            prop_assert!(loads.queued(port) <= before);
            before = loads.queued(port);
        }
    }

    /// Against a search of the best port that knows the limits of the levels by heart.
    #[test]
    fn adaptive_takes_a_best_port_and_no_blocked_one(
        ports_now in prop::collection::vec((0_u64..100_000, any::<bool>()), 2..16),
        seed: u64,
    ) {
        let queues: Vec<u64> = ports_now.iter().map(|(queued, _)| *queued).collect();
        let (mut loads, ports) = (Ports::queues(&queues), ports(u16::try_from(queues.len()).unwrap()));
        loads.blocked = ports.iter().filter(|p| ports_now[usize::from(**p)].1).map(|p| (*p, 3)).collect();
        let mut balancer = Balancer::new(&BalanceConfig::Adaptive(Adaptive::default()), 1, seed);
        let port = balancer.choose(&Question { class: 3, ..packet(0, 1, &ports) }, &loads);
        let free = ports_now.iter().any(|(_, blocked)| !blocked);
        prop_assert!(!(free && ports_now[usize::from(port)].1), "a blocked port");
        let level = |queued: u64| match queued {
            0..20_750 => 0,
            20_750..41_500 => 1,
            41_500..83_000 => 2,
            _ => 3,
        };
        let candidates = ports_now.iter().filter(|(_, blocked)| !(free && *blocked));
        let best = candidates.map(|(queued, _)| level(*queued)).min().unwrap();
        prop_assert_eq!(level(queues[usize::from(port)]), best);
        // Another class is not blocked.
        let port = balancer.choose(&Question { class: 4, ..packet(0, 1, &ports) }, &loads);
        let best = queues.iter().map(|queued| level(*queued)).min().unwrap();
        prop_assert_eq!(level(queues[usize::from(port)]), best);
    }
}

#[test]
fn random_spray_uses_all_ports_alike() {
    let ports = ports(8);
    let mut balancer = spray(Order::Random);
    let mut counts = [0_u32; 8];
    for _ in 0..8000 {
        counts[usize::from(balancer.choose(&packet(0, 1, &ports), &Ports::default()))] += 1;
    }
    assert!(super::chi_square(&counts) < 29.88, "{counts:?}");
}

#[test]
fn rounds_differ_in_their_order() {
    let ports = ports(8);
    let mut balancer = spray(Order::RoundRobin);
    let mut round = || -> Vec<u16> {
        (0..8).map(|_| balancer.choose(&packet(0, 1, &ports), &Ports::default())).collect()
    };
    assert_ne!(round(), round());
}

#[test]
fn short_packets_follow_their_flow() {
    let ports = ports(8);
    let modes =
        [(BalanceConfig::Spray(Spray::default()), 128), (BalanceConfig::Adaptive(Adaptive::default()), 100)];
    for (config, limit) in modes {
        let mut balancer = Balancer::new(&config, 1, 2);
        let mut used = |bytes| {
            let mut of = |_| balancer.choose(&Question { bytes, ..packet(0, 1, &ports) }, &Ports::idle(8));
            let mut used: Vec<u16> = (0..50).map(&mut of).collect();
            used.sort_unstable();
            used.dedup();
            used.len()
        };
        assert_eq!(used(limit - 1), 1);
        assert_eq!(used(limit), 8);
    }
}

/// Two random ports: the worst of four is taken only if it is drawn twice.
#[test]
fn two_choices_leave_the_worst_port_one_time_in_sixteen() {
    let (ports, loads) = (ports(4), Ports::queues(&[0, 0, 0, 1_000_000]));
    let config = Adaptive { two_choices: true, compare: Compare::Queue, ..Adaptive::default() };
    let mut balancer = Balancer::new(&BalanceConfig::Adaptive(config), 1, 2);
    let worst = (0..16_000).filter(|_| balancer.choose(&packet(0, 1, &ports), &loads) == 3).count();
    // 1000, with a standard deviation of 31.
    assert!(worst.abs_diff(1000) < 130, "{worst}");
}

#[test]
fn utilisation_is_the_share_of_the_rate() {
    let ports = ports(4);
    let config = Adaptive { compare: Compare::Utilisation, ..Adaptive::default() };
    let mut balancer = Balancer::new(&BalanceConfig::Adaptive(config), 1, 2);
    let mut loads = Ports::idle(4);
    balancer.choose(&packet(10 * US, 1, &ports), &loads);
    // In the next 10 us, 125,000 bytes are possible: 100, 14, 10 and 16 percent of them.
    loads.sent = vec![125_000, 17_500, 12_500, 20_000];
    let used: Vec<u16> = (0..100).map(|_| balancer.choose(&packet(20 * US, 1, &ports), &loads)).collect();
    assert!(used.contains(&1) && used.contains(&2) && !used.contains(&0) && !used.contains(&3), "{used:?}");
    // Port 1 sends on, port 2 is silent.
    loads.sent = vec![250_000, 35_000, 12_500, 40_000];
    assert!((0..20).all(|_| balancer.choose(&packet(30 * US, 1, &ports), &loads) == 2));
}
