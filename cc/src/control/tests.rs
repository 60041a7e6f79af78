//! The interface of all algorithms: their names, their signals, and what they ask for.

use super::*;
use crate::dcqcn::{Options, Preset};

const LINE: Rate = Rate::from_gbps(10);

fn policy_of(text: &str) -> Policy {
    text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order")
}

#[test]
fn an_algorithm_is_chosen_in_a_file_on_a_command_line_and_in_rust() {
    let cases = [
        ("algorithm = \"off\"", "off", Algorithm::Off),
        (
            "algorithm = \"dcqcn\"\npreset = \"laptop\"",
            "dcqcn:preset=laptop",
            Algorithm::Dcqcn(Options::new(Preset::Laptop)),
        ),
        (
            "algorithm = \"dctcp\"\nmss = 4096",
            "dctcp:mss=4096",
            Algorithm::Dctcp(dctcp::Config { mss: 4096, ..dctcp::Config::default() }),
        ),
        (
            "algorithm = \"timely\"\nvariant = \"original\"\nbeta = 0.8",
            "timely:variant=original,beta=0.8",
            Algorithm::Timely(timely::Config::original()),
        ),
        (
            "algorithm = \"swift\"\nbase_target = 30",
            "swift:base_target=30",
            Algorithm::Swift(swift::Config { base_target: 30, ..swift::Config::default() }),
        ),
        (
            "algorithm = \"nscc\"\nrtt = 8",
            "nscc:rtt=8",
            Algorithm::Nscc(nscc::Config { rtt: 8, ..nscc::Config::default() }),
        ),
        (
            "algorithm = \"hpcc\"\neta = 0.9",
            "hpcc:eta=0.9",
            Algorithm::Hpcc(hpcc::Config { eta: 0.9, ..hpcc::Config::default() }),
        ),
        (
            "algorithm = \"ibcc\"\nccti_timer = 10",
            "ibcc:ccti_timer=10",
            Algorithm::Ibcc(ibcc::Config { ccti_timer: 10, ..ibcc::Config::default() }),
        ),
    ];
    for (file, line, algorithm) in cases {
        assert_eq!(toml::from_str(file), Ok(algorithm.clone()));
        assert_eq!(line.parse(), Ok(algorithm.clone()));
        assert!(algorithm.at(LINE).is_ok());
    }
    for wrong in ["", "bbr", "off:x=1", "dctcp:preset=paper", "timely:variant=new", "dcqcn:preset"] {
        assert!(wrong.parse::<Algorithm>().is_err(), "{wrong}");
    }
    for wrong in ["algorithm = \"bbr\"", "algorithm = \"dctcp\"\nk = 1"] {
        assert!(toml::from_str::<Algorithm>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_out_of_range_is_refused() {
    let all = [
        ["dcqcn:pmax=2", "dctcp:ewma_gain=2", "dctcp:mss=0", "timely:t_low=501", "timely:beta=-1"],
        [
            "swift:beta=2",
            "swift:fs_min_cwnd=100",
            "swift:min_cwnd=2000",
            "swift:mss=0",
            "swift:fs_max_cwnd=NaN",
        ],
        ["hpcc:eta=0", "hpcc:eta=1.1", "hpcc:rtt=0", "hpcc:max_stage=1001", "hpcc:min_rate=2000000"],
        ["nscc:rtt=0", "nscc:gamma=-1", "nscc:target=0", "ibcc:ccti_timer=0", "ibcc:ccti_limit=0"],
    ];
    for wrong in all.into_iter().flatten() {
        let algorithm: Algorithm = wrong.parse().expect("words and values");
        assert!(matches!(algorithm.at(LINE), Err(SettingError::OutOfRange { .. })), "{wrong}");
    }
}

/// Each signal moves the algorithms that use it, and no other.
#[test]
fn controllers_react_to_their_own_signals() {
    let now = Instant::EPOCH;
    let after = |text: &str, signal: &dyn Fn(&mut Controller)| {
        let policy = text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
        let mut controller = policy.controller(0);
        assert_eq!(controller.rate(), LINE, "{text}: no slow start");
        signal(&mut controller);
        controller.rate() < LINE
    };
    let cnp = |c: &mut Controller| _ = c.on_cnp(now);
    let marks = |c: &mut Controller| {
        c.on_ack(now, &Ack { bytes: 20_000, marked: 20_000, rtt: Some(Duration::from_micros(10)) });
    };
    let delay = |c: &mut Controller| {
        for ms in 1..3 {
            let ack = Ack { bytes: 20_000, marked: 0, rtt: Some(Duration::from_millis(ms)) };
            c.on_ack(now + Duration::from_millis(ms), &ack);
        }
    };
    let reactions = |text| [after(text, &cnp), after(text, &marks), after(text, &delay)];
    assert_eq!(reactions("off"), [false, false, false]);
    assert_eq!(reactions("dcqcn"), [true, false, false]);
    assert_eq!(reactions("dctcp"), [false, true, false]);
    assert_eq!(reactions("timely"), [false, false, true]);
    assert_eq!(reactions("ibcc"), [true, false, false]);
    assert_eq!(reactions("hpcc"), [false, false, false]);
    let full = |c: &mut Controller| {
        for n in 0..3 {
            let hop =
                hpcc::Hop::new(LINE, now + Duration::from_micros(20) * n, u64::from(n) * 25_000, 90_000);
            c.on_telemetry(now, 1, 2, &Telemetry::of(&[hop]).expect("room"));
        }
    };
    for text in ["off", "dcqcn", "dctcp", "timely", "swift", "nscc", "ibcc", "hpcc"] {
        assert_eq!(after(text, &full), text == "hpcc", "{text}");
        assert_eq!(policy_of(text).uses_telemetry(), text == "hpcc", "{text}");
    }
    // Windows: the rate stays that of the port.
    let window = |text: &str, signal: &dyn Fn(&mut Controller)| {
        let policy = text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
        let mut controller = policy.controller(0);
        let before = controller.window().expect("it has one");
        signal(&mut controller);
        controller.window().expect("as before") < before
    };
    let late = |c: &mut Controller| {
        for ms in 1..5 {
            let rtt = if ms == 1 { Duration::from_micros(10) } else { Duration::from_millis(1) };
            let ack = Ack { bytes: 0, marked: 1, rtt: Some(rtt) };
            c.on_ack(now + Duration::from_millis(ms), &ack);
        }
    };
    let loss = |c: &mut Controller| c.on_loss(now);
    for text in ["swift", "nscc"] {
        assert_eq!(
            [window(text, &cnp), window(text, &late), window(text, &loss)],
            [false, true, true],
            "{text}"
        );
        assert!(policy_of(text).controller(0).uses_acks());
    }
    for text in ["off", "dcqcn", "dctcp", "timely", "ibcc"] {
        assert_eq!(policy_of(text).controller(0).window(), None, "{text}");
    }
    let hpcc = policy_of("hpcc").controller(0);
    assert_eq!((hpcc.window(), hpcc.uses_acks()), (Some(16_250), true));
}

#[test]
fn presets_warn_of_ports_far_below_those_that_they_are_made_for() {
    let advice = |text: &str, gbps| {
        text.parse::<Algorithm>().expect("an algorithm").advice(Rate::from_gbps(gbps)).unwrap_or_default()
    };
    for preset in ["paper", "ns3-rdma", "hpcc-sim", "nvidia"] {
        let text = format!("dcqcn:preset={preset}");
        assert!(advice(&text, 1).contains("preset=laptop"), "{preset}");
        assert_eq!(advice(&text, 10), "", "{preset}");
    }
    assert!(advice("dcqcn:preset=paper-strawman", 40).contains("preset=paper has"));
    for (text, needs_port) in [("hpcc", true), ("off", false), ("dcqcn", false), ("swift", false)] {
        let algorithm: Algorithm = text.parse().expect("an algorithm");
        assert_eq!(algorithm.advice_without_port().is_some(), needs_port, "{text}");
    }
    for text in ["off", "dctcp", "timely", "dcqcn:preset=laptop"] {
        assert_eq!(advice(text, 1), "", "{text}");
    }
}

#[test]
fn queues_have_room_for_a_few_packets_before_they_mark() {
    let kmin = |text: &str, mbps| {
        let policy = text.parse::<Algorithm>().and_then(|a| a.at(Rate::from_mbps(mbps))).expect("in order");
        policy.red().expect("marks").kmin
    };
    for mbps in [10, 100, 1000, 5000] {
        for text in ["dctcp", "dcqcn:preset=nvidia", "dcqcn:preset=hpcc-sim"] {
            assert!(kmin(text, mbps) >= 20_000, "{text} at {mbps} Mb/s");
        }
    }
    assert_eq!((kmin("dctcp", 10_000), kmin("dctcp", 25_000)), (30_000, 75_000), "as published");
}

#[test]
fn a_policy_says_what_queues_and_receivers_do() {
    let policy = |text: &str| text.parse::<Algorithm>().and_then(|a| a.at(LINE)).expect("in order");
    assert_eq!(policy("dcqcn").red().map(|r| r.kmax), Some(200_000));
    assert_eq!(policy("dctcp").red().map(|r| (r.kmin, r.kmax)), Some((30_000, 30_000)));
    assert_eq!(policy("timely").red(), None);
    assert_eq!(policy("dcqcn").notification().map(|n| n.min_time_between_cnps), Some(50));
    assert!(policy("off").notification().is_none() && policy("dctcp").notification().is_none());
    assert_eq!(policy("swift").red(), None);
    assert_eq!(policy("nscc:rtt=100").red().map(|r| (r.kmin, r.kmax)), Some((25_000, 100_000)));
    assert_eq!(policy("ibcc").red().map(|r| (r.kmin, r.kmax)), Some((65_536, 65_536)));
    assert_eq!(policy("ibcc").notification().map(|n| n.cnp_dscp), Some(48));
    assert_eq!(policy("off").line(), LINE);
}
