//! Presets, words and ranges.

use crate::dcqcn::{AlphaUpdate, FirstIncrease, Options, Preset, Settings};
use crate::{Rate, SettingError};
use std::collections::BTreeSet;
use time::Duration;

const AT: Rate = Rate::from_gbps(40);

#[test]
fn every_preset_is_within_its_ranges_at_every_rate() {
    for preset in Preset::ALL {
        for gbps in [1, 10, 25, 40, 100, 400, 800] {
            let settings = preset.settings(Rate::from_gbps(gbps));
            assert_eq!(settings.check(), Ok(()), "{preset} at {gbps} Gb/s");
        }
    }
}

#[test]
fn the_paper_s_numbers_survive_the_vendor_s_units() {
    let settings = Preset::Paper.settings(AT);
    let rp = &settings.roce_rp;
    assert_eq!(rp.byte_counter(), Some(10_000_000));
    assert_eq!(rp.timer(), Some(Duration::from_micros(55)));
    assert!((rp.gain() - 1.0 / 256.0).abs() < 1e-15);
    assert_eq!(settings.roce_np.interval(), Duration::from_micros(50));
    let strawman = Preset::PaperStrawman.settings(AT).roce_rp;
    assert!((strawman.gain() - 1.0 / 16.0).abs() < 1e-15);
    // 2 MB, where a maker of test instruments has "2 MB" for NVIDIA's default of 32,767.
    assert_eq!(Preset::Nvidia.settings(AT).roce_rp.byte_counter(), Some(2_097_088));
    assert_eq!(Preset::HpccSim.settings(AT).roce_rp.byte_counter(), None);
    let at_25 = Preset::HpccSim.settings(Rate::from_gbps(25));
    assert_eq!((at_25.red.kmin, at_25.red.kmax), (100_000, 400_000));
    let at_100 = Preset::HpccSim.settings(Rate::from_gbps(100));
    assert_eq!((at_100.red.kmin, at_100.red.kmax, at_100.roce_rp.rpg_ai_rate), (400_000, 1_600_000, 20));
}

/// The settings of a preset by their words, as on a command line.
fn words(preset: Preset, gbps: u64) -> BTreeSet<String> {
    let parts = toml::Table::try_from(preset.settings(Rate::from_gbps(gbps))).expect("plain data");
    let words = parts.values().filter_map(|part| part.as_table()).flatten();
    words.map(|(word, value)| format!("{word}={value}").replace('"', "")).collect()
}

#[test]
fn the_paper_s_settings_are_those_of_the_paper() {
    let published = "alpha_order=cut-then-raise alpha_update=on-cnp clamp_tgt_rate=true \
        clamp_tgt_rate_after_time_inc=true dce_tcp_g=1020 dce_tcp_rtt=55 first_increase=after-threshold \
        initial_alpha_value=1024 qcn_target_drop=false rate_reduce_monitor_period=0 rate_to_set_on_first_cnp=0 \
        rpg_ai_rate=40 rpg_byte_reset=156250 rpg_gd=11 rpg_hai_rate=0 rpg_max_rate=0 rpg_min_dec_fac=50 \
        rpg_min_rate=1 rpg_threshold=5 rpg_time_reset=55 cnp_802p_prio=6 cnp_dscp=48 deferred_cnp=false \
        min_time_between_cnps=50 kmin=5000 kmax=200000 pmax=0.01";
    assert_eq!(words(Preset::Paper, 40), published.split_whitespace().map(str::to_owned).collect());
}

/// Every setting that a preset does not share with the paper, as [`Preset`] describes them.
#[test]
fn presets_differ_from_the_paper_in_what_is_published_and_nothing_else() {
    let nvidia = "alpha_update=periodic clamp_tgt_rate=false dce_tcp_rtt=1 rate_reduce_monitor_period=4 \
        rpg_threshold=1 rpg_time_reset=300 pmax=0.2";
    let red_at_1 = "kmin=20000 kmax=80000";
    let red_at_25 = "kmin=100000 kmax=400000";
    let nvidia_alone = "dce_tcp_g=1019 initial_alpha_value=1023 min_time_between_cnps=4 rpg_ai_rate=5 \
        rpg_byte_reset=32767 rpg_hai_rate=50";
    let hpcc = "first_increase=one-additive min_time_between_cnps=0 rpg_byte_reset=0";
    let laptop = "dce_tcp_rtt=550 min_time_between_cnps=500 pmax=0.2 rpg_time_reset=550";
    let strawman = "dce_tcp_g=960 kmax=40000 kmin=40000 pmax=1.0 rpg_ai_rate=5 rpg_byte_reset=2344 rpg_hai_rate=50 \
        rpg_min_rate=100 rpg_time_reset=1500";
    let ns3 = "alpha_order=raise-then-cut first_increase=at-threshold initial_alpha_value=512 kmax=1000000 kmin=40000 \
        pmax=1.0 qcn_target_drop=true rpg_byte_reset=4687500 rpg_hai_rate=200 rpg_min_rate=100 rpg_time_reset=60";
    let published = [
        (Preset::PaperStrawman, 40, vec![strawman]),
        (Preset::Ns3Rdma, 40, vec![ns3]),
        (Preset::Nvidia, 1, vec![nvidia, nvidia_alone, red_at_1]),
        (Preset::Nvidia, 25, vec![nvidia, nvidia_alone, red_at_25]),
        (Preset::HpccSim, 1, vec![nvidia, hpcc, red_at_1, "rpg_ai_rate=1 rpg_hai_rate=2 rpg_min_rate=100"]),
        (
            Preset::HpccSim,
            25,
            vec![nvidia, hpcc, red_at_25, "rpg_ai_rate=5 rpg_hai_rate=50 rpg_min_rate=1000"],
        ),
        (Preset::Laptop, 1, vec![laptop, "kmax=312500 kmin=62500 rpg_ai_rate=2 rpg_byte_reset=39063"]),
        (Preset::Laptop, 10, vec![laptop, "kmax=3125000 kmin=625000 rpg_ai_rate=20 rpg_byte_reset=390625"]),
    ];
    let paper = words(Preset::Paper, 40);
    for (preset, gbps, listed) in published {
        let listed: BTreeSet<_> =
            listed.iter().flat_map(|l| l.split_whitespace()).map(str::to_owned).collect();
        let found: BTreeSet<_> = words(preset, gbps).difference(&paper).cloned().collect();
        assert_eq!(found, listed, "{preset} at {gbps} Gb/s");
    }
}

#[test]
fn a_file_a_command_line_and_rust_say_the_same() {
    let text = "preset = \"nvidia\"\nrpg_ai_rate = 10\npmax = 0.05\nclamp_tgt_rate = true\n\
                first_increase = \"at-threshold\"\n";
    let from_file: Options = toml::from_str(text).expect("a table");
    let line = "preset=nvidia,rpg_ai_rate=10,pmax=0.05,clamp_tgt_rate=true,first_increase=at-threshold";
    let from_line: Options = line.parse().expect("words and values");
    let in_rust = Options::new(Preset::Nvidia)
        .with("rpg_ai_rate", 10u32)
        .with("pmax", 0.05)
        .with("clamp_tgt_rate", true)
        .with("first_increase", FirstIncrease::AtThreshold.name());
    let settings = in_rust.settings(AT).expect("in order");
    assert_eq!(from_file.settings(AT), Ok(settings.clone()));
    assert_eq!(from_line.settings(AT), Ok(settings.clone()));
    assert_eq!(settings.roce_rp.rpg_ai_rate, 10);
    assert_eq!(settings.roce_rp.alpha_update, AlphaUpdate::Periodic, "from the preset");
    // The default preset is the paper.
    let nothing: Options = toml::from_str("").expect("an empty table");
    assert_eq!(nothing.settings(AT), Ok(Preset::Paper.settings(AT)));
    assert_eq!("".parse::<Options>().and_then(|o| o.settings(AT)), Ok(Preset::Paper.settings(AT)));
}

#[test]
fn settings_can_be_written_and_read_back() {
    for preset in Preset::ALL {
        let settings = preset.settings(AT);
        let text = toml::to_string(&settings).expect("plain data");
        assert_eq!(toml::from_str::<Settings>(&text), Ok(settings));
    }
}

#[test]
fn every_word_can_be_set_and_no_other() {
    let mut settings = Preset::Paper.settings(AT);
    let values = ["1", "true", "0.5", "periodic", "cut-then-raise", "one-additive"];
    for word in Settings::WORDS {
        let taken = values.iter().filter(|v| settings.set(word, v).is_ok()).count();
        assert!(taken >= 1, "{word} takes none of {values:?}");
        assert!(matches!(settings.set(word, "x"), Err(SettingError::Malformed { .. })), "{word}");
    }
    let Err(SettingError::Unknown { word, known }) = settings.set("rpg_ai", "1") else {
        panic!("no such word")
    };
    assert_eq!(word, "rpg_ai");
    assert!(known.contains(&"rpg_ai_rate"));
    assert!("rpg_ai=1".parse::<Options>().is_err() && "rpg_ai_rate".parse::<Options>().is_err());
    let unknown: Options = toml::from_str("rpg_ai = 1").expect("any words");
    assert!(matches!(unknown.settings(AT), Err(SettingError::Unknown { .. })));
}

#[test]
fn ranges_are_checked_at_their_bounds() {
    let check = |word: &str, value: &str| {
        let mut settings = Preset::Paper.settings(AT);
        settings.set(word, value).and_then(|()| settings.check())
    };
    let bounds = [
        ("rpg_threshold", "31", "32"),
        ("rpg_gd", "10", "9"),
        ("rpg_gd", "20", "21"),
        ("rpg_min_dec_fac", "100", "101"),
        ("rpg_min_dec_fac", "1", "0"),
        ("rpg_min_rate", "1", "0"),
        ("dce_tcp_g", "1024", "1025"),
        ("dce_tcp_rtt", "1", "0"),
        ("initial_alpha_value", "1024", "1025"),
        ("cnp_dscp", "63", "64"),
        ("cnp_802p_prio", "7", "8"),
        ("pmax", "1", "1.01"),
        ("pmax", "0", "NaN"),
        ("kmin", "200000", "200001"),
    ];
    for (word, good, bad) in bounds {
        assert_eq!(check(word, good), Ok(()), "{word} = {good}");
        let Err(SettingError::OutOfRange { word: named, .. }) = check(word, bad) else {
            panic!("{word} = {bad} is out of range")
        };
        assert_eq!(named, word);
    }
    let stuck: Options = "rpg_time_reset=0,rpg_byte_reset=0".parse().expect("words and values");
    assert!(stuck.settings(AT).is_err(), "a rate that never recovers");
    assert_eq!(
        check("rpg_gd", "9").expect_err("out of range").to_string(),
        "invalid value 9 for `rpg_gd`: the range is 10 to 20"
    );
}
