//! Presets of switches carry traffic, and a scenario lays its own settings over them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rnic_fabric::scenario::Scenario;
use rnic_fabric::switch::PRESETS;
use std::path::Path;

fn scenario(switch: &str) -> String {
    format!(
        r#"
name = "preset"
about = "Three hosts send to a fourth."
until = "20 ms"
[topology]
kind = "star"
hosts = 4
[switch]
{switch}
[[workload]]
pattern = "incast"
to = "host0"
bytes = "200 KB"
priority = 3
[[variant]]
name = "as-is"
[[variant]]
name = "other"
switch.preset = "hpcc"
"#
    )
}

#[test]
fn every_preset_carries_traffic() {
    for preset in PRESETS {
        let text = scenario(&format!("preset = \"{}\"", preset.name));
        let text = text.split("[[variant]]").next().unwrap().to_owned();
        let report = Scenario::read(&text).unwrap().run(Path::new("."), 1, &mut |_| true).unwrap();
        assert_eq!(report.metrics.get("flows.finished"), Some(3.0), "{}", preset.name);
        assert_eq!(report.metrics.get("drops.total"), Some(0.0), "{}", preset.name);
    }
}

#[test]
fn settings_are_laid_over_presets_and_variants_choose_others() {
    let text = scenario("preset = \"sonic-spectrum3\"\nbuffer.shared = \"5 MB\"\nred.pmax = 0.5");
    let scenario = Scenario::read(&text).unwrap();
    let red = scenario.switch.red.clone().unwrap();
    assert_eq!((red.kmin, red.kmax, red.pmax), (1 << 20, 2 << 20, 0.5));
    let buffer = &scenario.switch.buffer;
    assert_eq!((buffer.shared, buffer.egress_reserve), (5_000_000, 4096));
    let other = &scenario.variants[1].1.switch;
    assert_eq!(
        (other.buffer.shared, other.buffer.egress_reserve),
        (5_000_000, 9216),
        "nothing is left of the first preset"
    );
    assert_eq!(other.red.clone().unwrap().kmin, 400_000);

    let wrong = scenario_error("preset = \"sonic\"");
    assert!(wrong.starts_with("switch.preset: ") && wrong.contains("sonic-spectrum3"), "{wrong}");
}

fn scenario_error(switch: &str) -> String {
    Scenario::read(&scenario(switch)).unwrap_err().to_string()
}
