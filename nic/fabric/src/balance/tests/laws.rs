//! What all modes have in common.

use super::{Flows, Ports, US, answers, packet, ports};
use crate::balance::{
    Adaptive, BalanceConfig, Balancer, Compare, Conga, Drill, Ecmp, Flowlet, Glb, Letflow, Order, Question,
    Seed, Spray, Unit, Weighted,
};
use proptest::prelude::*;
use std::time::Duration;

/// Each mode, some of them with several settings.
fn modes() -> Vec<BalanceConfig> {
    vec![
        BalanceConfig::Ecmp(Ecmp::default()),
        BalanceConfig::Ecmp(Ecmp { seed: Seed::Same, qp: true }),
        BalanceConfig::Weighted(Weighted { weights: vec![1, 2, 3] }),
        BalanceConfig::Letflow(Letflow::default()),
        BalanceConfig::Flowlet(Flowlet::default()),
        BalanceConfig::Conga(Conga::default()),
        BalanceConfig::Glb(Glb::default()),
        BalanceConfig::Drill(Drill::default()),
        BalanceConfig::Drill(Drill { samples: 0, memory: 0 }),
        BalanceConfig::Drill(Drill { samples: 0, memory: 2 }),
        BalanceConfig::Spray(Spray { order: Order::Random, ..Spray::default() }),
        BalanceConfig::Spray(Spray::default()),
        BalanceConfig::Adaptive(Adaptive::default()),
        BalanceConfig::Adaptive(Adaptive {
            unit: Unit::Flowlet,
            compare: Compare::Queue,
            ..Adaptive::default()
        }),
        BalanceConfig::Adaptive(Adaptive { two_choices: true, ..Adaptive::default() }),
    ]
}

proptest! {
    #[test]
    fn answers_are_ports_of_the_question(
        seed: u64,
        questions in prop::collection::vec(
            (0_u64..200 * US, any::<u64>(), prop::collection::btree_set(0_u16..16, 1..16)), 1..60),
    ) {
        let loads = Ports::queues(&[0, 5, 50_000, 0, 9, 100_000, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for config in modes() {
            let mut balancer = Balancer::new(&config, 1, seed);
            let mut now = 0;
            for (wait, flow, ports) in &questions {
                now += wait;
                let ports: Vec<u16> = ports.iter().copied().collect();
                let question = Question { dst: usize::from(ports[0]), ..packet(now, *flow % 8, &ports) };
                let port = balancer.choose(&question, &loads);
                prop_assert!(ports.contains(&port), "{} answers {port} of {ports:?}", config.mode());
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_choices_and_another_does_not() {
    let ports = ports(8);
    let questions: Vec<_> =
        (0..500).zip(Flows::new(6)).map(|(n, flow)| packet(n * 30 * US, flow % 50, &ports)).collect();
    let loads = Ports::queues(&[0, 5, 0, 50_000, 0, 0, 100_000, 0]);
    for config in modes() {
        let of = |switch, seed| answers(&mut Balancer::new(&config, switch, seed), &loads, &questions);
        assert_eq!(of(1, 7), of(1, 7), "{config:?}");
        assert_ne!(of(1, 7), of(1, 8), "{config:?}");
        let common = matches!(config, BalanceConfig::Ecmp(Ecmp { seed: Seed::Same, .. }));
        assert_eq!(of(1, 7) == of(2, 7), common, "{config:?}");
    }
}

#[test]
fn no_ports_are_no_panic() {
    for config in modes() {
        let mut balancer = Balancer::new(&config, 1, 7);
        assert_eq!(balancer.choose(&packet(0, 1, &[]), &Ports::idle(1)), 0, "{config:?}");
    }
}

#[test]
fn settings_survive_a_file() {
    for config in modes() {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<BalanceConfig>(&text).unwrap(), config, "{text}");
        assert!(text.contains(&format!("mode = \"{}\"", config.mode())), "{text}");
    }
}

#[test]
fn settings_have_defaults_and_units() {
    let read = |text: &str| toml::from_str::<BalanceConfig>(text).map_err(|error| error.to_string());
    assert_eq!(read("mode = 'spray'"), Ok(BalanceConfig::Spray(Spray::default())));
    let letflow = Letflow { timeout: Duration::from_micros(50), ageing: Duration::from_millis(2) };
    assert_eq!(read("mode = 'letflow'\ntimeout = '50 us'"), Ok(BalanceConfig::Letflow(letflow)));
    let flowlet = read("mode = 'flowlet'\nquality = { queue = ['10 KB', 20000] }").unwrap();
    assert!(matches!(flowlet, BalanceConfig::Flowlet(flowlet) if flowlet.quality.queue == [10_000, 20_000]));
    let wrong = ["mode = 'other'", "mode = 'drill'\ntimeout = '1 us'", "mode = 'letflow'\ntimeout = '50'"];
    assert!(wrong.iter().all(|text| read(text).is_err()));
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let none = BalanceConfig::Weighted(Weighted { weights: vec![0, 0] });
    assert_eq!(none.check().unwrap_err().to_string(), "all weights are 0; one at least must be greater");
    let no_samples = BalanceConfig::Drill(Drill { samples: 0, memory: 1 });
    let alpha = BalanceConfig::Conga(Conga { alpha: 1.5, ..Conga::default() });
    assert_eq!(alpha.check().unwrap_err().to_string(), "`alpha` must be between 0 and 1");
    let bits = BalanceConfig::Conga(Conga { bits: 9, ..Conga::default() });
    assert_eq!(bits.check().unwrap_err().to_string(), "`bits` must be from 1 to 8");
    assert_eq!(no_samples.check().unwrap_err().to_string(), "`samples` must be greater than 0");
}
