//! Global load balancing: reports of neighbours.

use super::{Ports, US, packet, ports};
use crate::balance::{BalanceConfig, Balancer, Ecmp, Glb, LeafQuality, Question};
use proptest::prelude::*;

fn glb() -> Balancer {
    Balancer::new(&BalanceConfig::Glb(Glb::default()), 1, 3)
}

/// The levels of the default limits: 10 KB, doubled six times.
fn level(queued: u64) -> u8 {
    (0..7).map(|n| 10_000 << n).filter(|limit| queued >= *limit).count() as u8
}

proptest! {
    /// The port with the least of the greater of its own level and the one that the neighbour told.
    #[test]
    fn the_hop_after_next_counts(
        queues in prop::collection::vec(0_u64..1_000_000, 5),
        told in prop::collection::vec(0_u8..8, 5),
        flow: u64,
    ) {
        let (mut balancer, loads, ports) = (glb(), Ports::queues(&queues), ports(5));
        for (port, level) in ports.iter().zip(&told) {
            // What is told of other leaves does not matter.
            let report = [(4, 7 - level), (6, *level), (9, 0)].map(|(leaf, level)| LeafQuality { leaf, level });
            balancer.on_report(*port, &report);
        }
        let question = Question { dst_leaf: 6, ..packet(0, flow, &ports) };
        let port = usize::from(balancer.choose(&question, &loads));
        let worst = |port: usize| level(queues[port]).max(told[port]);
        prop_assert_eq!(Some(worst(port)), (0..5).map(worst).min());
    }

    /// A report has, for each leaf, the level of the best port to it.
    #[test]
    fn reports_have_the_best_port(queues in prop::collection::vec(0_u64..1_000_000, 6)) {
        let (mut balancer, loads) = (glb(), Ports::queues(&queues));
        let ways: [(u32, &[u16]); 3] = [(3, &[0, 1, 2]), (5, &[4]), (7, &[])];
        let report = balancer.report(0, ways, &loads);
        let best = queues[..3].iter().map(|queued| level(*queued)).min();
        let expected = [(3, best), (5, Some(level(queues[4])))];
        let got: Vec<_> = report.iter().map(|LeafQuality { leaf, level }| (*leaf, Some(*level))).collect();
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_flow_stays_until_a_gap_and_newer_reports_count() {
    let (mut balancer, loads, ports) = (glb(), Ports::idle(2), ports(2));
    let question = |now, flow| Question { dst_leaf: 6, ..packet(now, flow, &ports) };
    let tell = |balancer: &mut Balancer, port, level| {
        balancer.on_report(port, &[LeafQuality { leaf: 6, level }]);
    };
    tell(&mut balancer, 0, 3);
    assert_eq!(balancer.choose(&question(0, 1), &loads), 1);
    tell(&mut balancer, 1, 4);
    assert_eq!(balancer.choose(&question(50 * US, 1), &loads), 1);
    assert_eq!(balancer.choose(&question(115 * US, 1), &loads), 0);
    tell(&mut balancer, 1, 0);
    assert_eq!(balancer.choose(&question(116 * US, 2), &loads), 1);
}

#[test]
fn only_this_mode_reports() {
    assert_eq!(glb().report_interval(), Some(50 * US));
    let mut ecmp = Balancer::new(&BalanceConfig::Ecmp(Ecmp::default()), 1, 3);
    assert_eq!(ecmp.report_interval(), None);
    let ways: [(u32, &[u16]); 1] = [(3, &[0])];
    assert!(ecmp.report(0, ways, &Ports::idle(1)).is_empty());
}
