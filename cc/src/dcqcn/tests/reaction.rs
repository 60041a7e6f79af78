//! The reaction point, step by step and under random events.

use crate::Rate;
use crate::dcqcn::{AlphaOrder, AlphaUpdate, FirstIncrease, Preset, Reaction, ReactionPoint};
use proptest::prelude::*;
use std::sync::Arc;
use time::{Duration, Instant};

const LINE: Rate = Rate::from_gbps(40);

fn paper() -> Reaction {
    Preset::Paper.settings(LINE).roce_rp
}

/// A reaction point, and the time.
struct Bench {
    point: ReactionPoint,
    start: Instant,
    now: Instant,
}

impl Bench {
    fn new(settings: Reaction) -> Self {
        let now = Instant::EPOCH;
        Self { point: ReactionPoint::new(Arc::new(settings), LINE), start: now, now }
    }

    fn at(&mut self, us: u64) -> &mut Self {
        self.now = self.start + Duration::from_micros(us);
        self.point.handle_timeout(self.now);
        self
    }

    fn cnp(&mut self) -> &mut Self {
        self.point.on_cnp(self.now);
        self
    }

    fn sent(&mut self, bytes: u64) -> &mut Self {
        self.point.on_bytes_sent(self.now, bytes);
        self
    }

    fn gbps(&self) -> f64 {
        self.point.rate().as_f64() / 1e9
    }

    fn target_gbps(&self) -> f64 {
        self.point.target_rate().as_f64() / 1e9
    }

    fn alpha(&self) -> f64 {
        self.point.alpha(self.now).expect("a limiter")
    }
}

fn assert_near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-6 * wanted.abs().max(1.0), "{found}, not {wanted}");
}

#[test]
fn a_flow_begins_at_the_rate_of_the_port_without_a_limiter() {
    let mut b = Bench::new(paper());
    assert_eq!((b.point.rate(), b.point.is_limited(), b.point.poll_timeout()), (LINE, false, None));
    b.at(1000).sent(1 << 30);
    assert_eq!((b.point.rate(), b.point.alpha(b.now), b.point.stages()), (LINE, None, None));
}

#[test]
fn the_first_cnp_halves_the_rate_and_the_next_one_cuts_by_alpha() {
    let mut b = Bench::new(paper());
    b.cnp();
    assert_near(b.gbps(), 20.0);
    assert_near(b.target_gbps(), 40.0);
    assert_near(b.alpha(), 1.0);
    // Alpha decays once, after 55 us; the timer has expired once too: 20 -> 30.
    b.at(60).cnp();
    let alpha = 255.0 / 256.0;
    assert_near(b.target_gbps(), 30.0);
    assert_near(b.gbps(), 30.0 * (1.0 - alpha / 2.0));
    assert_near(b.alpha(), alpha * 255.0 / 256.0 + 1.0 / 256.0);
}

#[test]
fn alpha_decays_55_us_after_the_last_cnp_and_every_55_us() {
    let mut b = Bench::new(paper());
    b.cnp().at(54);
    assert_near(b.alpha(), 1.0);
    b.at(55);
    assert_near(b.alpha(), 255.0 / 256.0);
    b.at(109);
    assert_near(b.alpha(), 255.0 / 256.0);
    b.cnp().at(163);
    let raised = (255.0 / 256.0) * (255.0 / 256.0) + 1.0 / 256.0;
    assert_near(b.alpha(), raised);
    b.at(164);
    assert_near(b.alpha(), raised * 255.0 / 256.0);
}

#[test]
fn five_steps_recover_and_the_sixth_adds() {
    let mut b = Bench::new(paper());
    b.cnp();
    let mut current = 20.0;
    for step in 1..=5 {
        b.at(55 * step);
        current = f64::midpoint(current, 40.0);
        assert_near(b.gbps(), current);
        assert_near(b.target_gbps(), 40.0);
    }
    // The target is at the rate of the port already: cut again, far below.
    b.cnp();
    let target = b.target_gbps();
    let mut current = b.gbps();
    for step in 1..=7_u32 {
        b.at(275 + 55 * u64::from(step));
        let goal = target + 0.04 * f64::from(step.saturating_sub(5));
        current = f64::midpoint(current, goal);
        assert_near(b.gbps(), current);
        assert_near(b.target_gbps(), goal);
    }
    assert_eq!(b.point.stages(), Some((7, 0)));
}

#[test]
fn bytes_advance_the_rate_as_the_timer_does() {
    let mut b = Bench::new(paper());
    b.cnp();
    b.sent(9_999_999);
    assert_near(b.gbps(), 20.0);
    b.sent(1);
    assert_near(b.gbps(), 30.0);
    b.sent(20_000_001);
    assert_near(b.gbps(), 37.5);
    assert_eq!(b.point.stages(), Some((0, 3)));
    // A cut restarts the count.
    b.cnp().sent(9_999_999);
    assert_eq!(b.point.stages(), Some((0, 0)));
}

#[test]
fn both_counters_beyond_the_threshold_make_the_increase_hyper() {
    let mut b = Bench::new(Reaction { rpg_hai_rate: 200, ..paper() });
    b.cnp().cnp().cnp();
    let target = b.target_gbps();
    b.sent(60_000_000).at(55 * 5);
    // Six expiries of the byte counter: one additive step; then the timer's first five, all additive.
    assert_near(b.target_gbps(), target + 6.0 * 0.04);
    // The sixth of the timer: min(6, 6) - 5 = 1 hyper step.
    b.at(55 * 6);
    assert_near(b.target_gbps(), target + 6.0 * 0.04 + 0.2);
    b.sent(10_000_000).at(55 * 7);
    // min(6, 7) - 5 = 1, then min(7, 7) - 5 = 2.
    assert_near(b.target_gbps(), target + 6.0 * 0.04 + 0.2 + 0.2 + 0.4);
}

/// The gain of the target, in Mb/s, at each of the first six expiries of the timer, with F = 2, R_AI = 40, R_HAI = 200.
fn gains(first_increase: FirstIncrease) -> Vec<u32> {
    let settings = Reaction { rpg_threshold: 2, rpg_hai_rate: 200, first_increase, ..paper() };
    let mut b = Bench::new(settings);
    b.cnp().cnp();
    let mut before = b.target_gbps();
    (1..=6)
        .map(|step| {
            b.at(55 * step);
            let gain = (b.target_gbps() - before) * 1e3;
            before = b.target_gbps();
            gain.round() as u32
        })
        .collect()
}

#[test]
fn the_first_increase_is_where_the_variant_has_it() {
    assert_eq!(gains(FirstIncrease::AfterThreshold), [0, 0, 40, 40, 40, 40]);
    assert_eq!(gains(FirstIncrease::AtThreshold), [0, 40, 40, 40, 40, 40]);
    assert_eq!(gains(FirstIncrease::OneAdditive), [0, 0, 40, 200, 200, 200]);
}

#[test]
fn alpha_is_raised_after_or_before_the_cut() {
    for (alpha_order, first) in [
        (AlphaOrder::CutThenRaise, 40.0 * (1.0 - 0.25)),
        (AlphaOrder::RaiseThenCut, 40.0 * (1.0 - (0.5 * 255.0 / 256.0 + 1.0 / 256.0) / 2.0)),
    ] {
        let mut b = Bench::new(Reaction { initial_alpha_value: 512, alpha_order, ..paper() });
        b.cnp();
        assert_near(b.gbps(), first);
        assert_near(b.alpha(), 0.5 * 255.0 / 256.0 + 1.0 / 256.0);
    }
}

#[test]
fn periodic_alpha_counts_periods_with_and_without_a_cnp() {
    let settings = Reaction { alpha_update: AlphaUpdate::Periodic, dce_tcp_rtt: 10, ..paper() };
    let mut b = Bench::new(Reaction { initial_alpha_value: 512, ..settings });
    let (kept, gain) = (255.0 / 256.0, 1.0 / 256.0);
    // Three CNPs in one period raise once, at its end.
    b.cnp().at(3).cnp().at(9).cnp();
    assert_near(b.alpha(), 0.5);
    b.at(10);
    assert_near(b.alpha(), 0.5 * kept + gain);
    b.at(20);
    assert_near(b.alpha(), (0.5 * kept + gain) * kept);
}

#[test]
fn cuts_keep_their_distance_and_a_late_one_follows() {
    let mut b = Bench::new(Reaction { rate_reduce_monitor_period: 4, ..paper() });
    b.cnp();
    assert_near(b.gbps(), 20.0);
    b.at(1).cnp().at(2).cnp();
    assert_near(b.gbps(), 20.0);
    assert_eq!(b.point.poll_timeout(), Some(b.start + Duration::from_micros(4)));
    b.at(4);
    assert_near(b.gbps(), 10.0);
    b.at(8);
    assert_near(b.gbps(), 10.0);
}

#[test]
fn the_target_follows_the_rate_as_the_clamp_says() {
    // For both switches: the target in Gb/s after a second CNP that follows at once; after one timer expiry; after one
    // of the byte counter.
    let cases = [
        (true, false, 20.0, 30.0, 30.0),
        (true, true, 20.0, 30.0, 30.0),
        (false, true, 40.0, 30.0, 30.0),
        (false, false, 40.0, 40.0, 30.0),
    ];
    for (clamp_tgt_rate, clamp_tgt_rate_after_time_inc, at_once, after_time, after_bytes) in cases {
        let settings = Reaction { clamp_tgt_rate, clamp_tgt_rate_after_time_inc, ..paper() };
        let second = |before: &dyn Fn(&mut Bench)| {
            let mut b = Bench::new(settings.clone());
            b.cnp();
            before(&mut b);
            b.cnp();
            b.target_gbps()
        };
        assert_near(second(&|_| ()), at_once);
        assert_near(second(&|b| _ = b.at(55)), after_time);
        assert_near(second(&|b| _ = b.sent(10_000_000)), after_bytes);
    }
}

#[test]
fn bounds_of_a_cut_hold() {
    let mut b = Bench::new(Reaction { rpg_gd: 10, rpg_min_dec_fac: 80, ..paper() });
    b.cnp();
    assert_near(b.gbps(), 32.0);
    let mut b = Bench::new(Reaction { rpg_min_rate: 100, ..paper() });
    for _ in 0..20 {
        b.cnp();
    }
    assert_near(b.gbps(), 0.1);
    let mut b = Bench::new(Reaction { rate_to_set_on_first_cnp: 1000, ..paper() });
    b.cnp();
    assert_near(b.gbps(), 1.0);
    assert_near(b.target_gbps(), 1.0);
    b.cnp();
    assert_near(b.gbps(), 0.5);
}

#[test]
fn qcn_lowers_a_target_that_is_far_away() {
    let settings = Reaction { clamp_tgt_rate: false, clamp_tgt_rate_after_time_inc: false, ..paper() };
    for (qcn_target_drop, target) in [(false, 40.0), (true, 5.0)] {
        let mut b = Bench::new(Reaction { qcn_target_drop, ..settings.clone() });
        b.cnp().cnp().cnp().cnp();
        assert!(b.gbps() < 4.0);
        b.at(55);
        assert_near(b.target_gbps(), target);
    }
}

#[test]
fn back_at_the_rate_of_the_port_the_limiter_goes_and_alpha_begins_anew() {
    let mut b = Bench::new(paper());
    b.cnp();
    let mut us = 0;
    while b.point.is_limited() {
        us += 55;
        b.at(us);
        assert!(us < 55 * 12, "the distance halves in each step: {} Gb/s", b.gbps());
    }
    assert_eq!((b.point.rate(), b.point.poll_timeout()), (LINE, None));
    b.cnp();
    assert_near(b.gbps(), 20.0);
    assert_near(b.alpha(), 1.0);
    // A limit of its own below the port's: at 10 Gb/s the limiter goes.
    let mut b = Bench::new(Reaction { rpg_max_rate: 10_000, ..paper() });
    b.cnp();
    assert_near(b.gbps(), 5.0);
    b.at(55 * 20);
    assert_eq!(b.point.rate(), LINE);
}

#[test]
fn a_flow_that_slept_for_a_year_wakes_up_at_once() {
    for additive in [0, 1, 40] {
        let mut b = Bench::new(Reaction { rpg_ai_rate: additive, rpg_time_reset: 1, ..paper() });
        for _ in 0..12 {
            b.cnp();
        }
        let (target, slow) = (b.target_gbps(), b.gbps());
        b.at(365 * 24 * 3_600_000_000);
        if additive == 0 {
            assert!(b.gbps() > slow && b.gbps() <= target, "{} Gb/s", b.gbps());
        } else {
            assert_eq!(b.point.rate(), LINE);
        }
    }
}

/// Something that happens to a flow, with the microseconds before it.
#[derive(Clone, Copy, Debug)]
enum Event {
    Cnp(u32),
    Sent(u32, u32),
    Asked(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..400u32).prop_map(Event::Cnp),
        (0..400u32, 0..30_000_000u32).prop_map(|(us, bytes)| Event::Sent(us, bytes)),
        (0..100_000u32).prop_map(Event::Asked),
    ];
    prop::collection::vec(event, 1..60)
}

fn any_settings() -> impl Strategy<Value = Reaction> {
    let numbers = (0..200u32, 0..200_000u32, 0..32u32, 0..100u32, 0..500u32, 10..21u32, 1..101u32);
    let more = (0..1025u32, 1..60u32, 0..60u32, 0..1025u32, any::<[bool; 3]>());
    let variants = (
        prop::sample::select(AlphaUpdate::ALL),
        prop::sample::select(AlphaOrder::ALL),
        prop::sample::select(FirstIncrease::ALL),
        0..20_000u32,
    );
    (numbers, more, variants).prop_map(|(numbers, more, variants)| Reaction {
        rpg_time_reset: numbers.0,
        rpg_byte_reset: numbers.1,
        rpg_threshold: numbers.2,
        rpg_ai_rate: numbers.3,
        rpg_hai_rate: numbers.4,
        rpg_gd: numbers.5,
        rpg_min_dec_fac: numbers.6,
        dce_tcp_g: more.0,
        dce_tcp_rtt: more.1,
        rate_reduce_monitor_period: more.2,
        initial_alpha_value: more.3,
        clamp_tgt_rate: more.4[0],
        clamp_tgt_rate_after_time_inc: more.4[1],
        qcn_target_drop: more.4[2],
        alpha_update: variants.0,
        alpha_order: variants.1,
        first_increase: variants.2,
        rpg_max_rate: variants.3,
        ..paper()
    })
}

/// Runs events on a reaction point; `punctual` calls it whenever it asks to be called.
fn run(settings: &Arc<Reaction>, events: &[Event], punctual: bool) -> Vec<(u64, u64, Option<f64>)> {
    let start = Instant::EPOCH;
    let mut now = start;
    let mut point = ReactionPoint::new(Arc::clone(settings), LINE);
    let mut seen = Vec::new();
    for event in events {
        let (Event::Cnp(us) | Event::Sent(us, _) | Event::Asked(us)) = *event;
        now += Duration::from_micros(us.into());
        while let Some(at) = point.poll_timeout().filter(|at| punctual && *at <= now) {
            point.handle_timeout(at);
        }
        match *event {
            Event::Cnp(_) => point.on_cnp(now),
            Event::Sent(_, bytes) => {
                point.handle_timeout(now);
                point.on_bytes_sent(now, bytes.into());
            }
            Event::Asked(_) => point.handle_timeout(now),
        }
        let alpha = point.alpha(now);
        seen.push((point.rate().bits_per_second(), point.target_rate().bits_per_second(), alpha));
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A late call finds what a timely one would have found.
    #[test]
    fn being_called_late_changes_nothing(events in events()) {
        let settings = Arc::new(paper());
        let (late, punctual) = (run(&settings, &events, false), run(&settings, &events, true));
        for (a, b) in late.iter().zip(&punctual) {
            prop_assert!(a.0.abs_diff(b.0) <= 10 && a.1.abs_diff(b.1) <= 10, "{a:?} {b:?}");
            match (a.2, b.2) {
                (Some(x), Some(y)) => prop_assert!((x - y).abs() < 1e-9, "{x} {y}"),
                (x, y) => prop_assert_eq!(x, y),
            }
        }
    }

    #[test]
    fn rates_and_alpha_stay_within_their_bounds(settings in any_settings(), events in events()) {
        for (rate, target, alpha) in run(&Arc::new(settings), &events, false) {
            prop_assert!((999_999..=LINE.bits_per_second()).contains(&rate), "{rate}");
            prop_assert!((rate / 2..=LINE.bits_per_second()).contains(&target), "{target}");
            prop_assert!(alpha.is_none_or(|a| (0.0..=1.0 + 1e-12).contains(&a)), "{alpha:?}");
        }
    }
}
