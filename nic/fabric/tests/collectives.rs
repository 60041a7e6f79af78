//! Collective operations on simulated devices: results, bytes, and times against the formulas of the literature.
//!
//! The formulas (Thakur, Rabenseifner and Gropp 2005) have two numbers. The bandwidth B is arithmetic: packets of 4,096 bytes
//! with 82 of headers at 100 Gb/s. The latency alpha is measured with two hosts, so no formula is judged by itself.

use rnic_fabric::report::Report;
use rnic_fabric::scenario::Scenario;
use std::path::Path;
use time::Duration;

/// Bytes of messages per microsecond at 100 Gb/s.
const GOODPUT: f64 = 12_500.0 * 4096.0 / 4178.0;

/// Runs one operation on hosts at one switch, and checks that the result is right and nothing was lost.
fn run(hosts: usize, bytes: u64, operation: &str) -> Report {
    let text = format!(
        r#"
        name = "collective"
        about = "A test."
        until = "1 s"
        topology = {{ kind = "star", hosts = {hosts} }}
        switch = {{ class = [{{}}, {{}}, {{}}, {{ lossless = true, alpha = 0.125 }}] }}
        [[workload]]
        pattern = "collective"
        name = "it"
        bytes = {bytes}
        {operation}
        "#
    );
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let report =
        scenario.run(Path::new("."), 1, &mut |_| true).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(report.metrics.get("it.verified"), Some(1.0), "{text}");
    assert_eq!(report.metrics.get("drops.total"), Some(0.0), "{text}");
    report
}

fn metric(report: &Report, name: &str) -> f64 {
    report.metrics.get(&format!("it.{name}")).expect("it is done")
}

/// The time of an all-reduce whose messages are not cut, in microseconds.
fn time(hosts: usize, bytes: u64, algorithm: &str) -> f64 {
    let whole =
        format!("collective = \"all-reduce\"\nalgorithm = \"{algorithm}\"\npiece = \"16 MiB\"\nslots = 2");
    metric(&run(hosts, bytes, &whole), "completion_us")
}

/// The time of a message beside that of its bytes: two steps of a ring of two hosts, with one packet each.
fn alpha() -> f64 {
    alpha_of(4096)
}

/// The same with a packet of this size, which the switch stores.
fn alpha_of(packet: u64) -> f64 {
    time(2, 2 * packet, "ring") / 2.0 - packet as f64 / GOODPUT
}

/// The times that the formulas give for hosts, bytes and alpha.
fn formula(algorithm: &str, hosts: usize, bytes: f64, alpha: f64) -> f64 {
    let (n, levels) = (hosts as f64, (hosts as f64).log2());
    let share = 2.0 * (n - 1.0) / n * bytes / GOODPUT;
    match algorithm {
        "ring" => 2.0 * (n - 1.0) * alpha + share,
        "recursive-doubling" => levels * (alpha + bytes / GOODPUT),
        _ => 2.0 * levels * alpha + share,
    }
}

#[test]
fn a_message_takes_the_cables_and_a_second_wire() {
    // Two cables of 1 us, and the switch stores the packet: 4,198 bytes with RETH and immediate data once more.
    let alpha = alpha();
    assert!((2.33..2.40).contains(&alpha), "{alpha}");
}

#[test]
fn times_are_those_of_the_formulas() {
    let alpha = alpha();
    for hosts in [8, 16] {
        for bytes in [65_536, 1 << 19] {
            for algorithm in ["ring", "recursive-doubling", "halving-doubling"] {
                let (ours, theirs) =
                    (time(hosts, bytes, algorithm), formula(algorithm, hosts, bytes as f64, alpha));
                println!(
                    "{algorithm:>18} {hosts:>3} {bytes:>8}: {ours:9.2} us, formula {theirs:9.2}, {:.3}",
                    ours / theirs
                );
                assert!(
                    (0.95..1.05).contains(&(ours / theirs)),
                    "{algorithm} {hosts} {bytes}: {ours} of {theirs}"
                );
            }
        }
    }
}

#[test]
fn trees_keep_their_bound() {
    let alpha = alpha();
    // Long and short vectors, and pieces of which many are on their way at a time, or few.
    let cases = [
        (8, 1 << 16, 16_384),
        (8, 1 << 19, 16_384),
        (16, 1 << 19, 16_384),
        (16, 1 << 20, 4_096),
        (8, 1 << 22, 65_536),
        (64, 1 << 17, 8_192),
    ];
    for (hosts, bytes, piece) in cases {
        let report = run(
            hosts,
            bytes,
            &format!("collective = \"all-reduce\"\nalgorithm = \"tree\"\npiece = {piece}\nslots = 16"),
        );
        let ours = metric(&report, "completion_us");
        let (levels, all) = ((hosts as f64).log2(), bytes as f64 / GOODPUT);
        let bound = 2.0 * levels * (alpha + f64::from(piece) / GOODPUT) + 2.0 * all;
        println!("tree {hosts} {bytes} {piece}: {ours:.2} us, bound {bound:.2}, {:.3}", ours / bound);
        // Of eight ranks few are as far from the root as the formula says, and a short vector has little else.
        assert!((0.8..1.05).contains(&(ours / bound)), "{hosts} {bytes} {piece}: {ours} of {bound}");
    }
}

#[test]
fn doubling_is_faster_up_to_the_crossover_and_halving_from_there() {
    let alpha = alpha();
    for hosts in [8, 16] {
        let (n, levels) = (hosts as f64, (hosts as f64).log2());
        // Both formulas are equal there.
        let crossover = alpha * levels * GOODPUT / (levels - 2.0 * (n - 1.0) / n);
        let at = |share: f64, algorithm: &str| time(hosts, (crossover * share) as u64 / 128 * 128, algorithm);
        let (below, above) = (0.85, 1.2);
        let [early, late] =
            [below, above].map(|share| at(share, "recursive-doubling") / at(share, "halving-doubling"));
        println!(
            "{hosts} hosts: {crossover:.0} bytes; doubling to halving {early:.3} below, {late:.3} above"
        );
        assert!(early < 1.0 && late > 1.0, "{hosts} hosts, {crossover} bytes: {early} {late}");
    }
}

#[test]
fn pieces_hide_the_latency_of_all_steps_but_the_last() {
    let (hosts, bytes) = (8, 1 << 20);
    let whole = time(hosts, bytes, "ring");
    let cut = metric(
        &run(
            hosts,
            bytes,
            "collective = \"all-reduce\"\nalgorithm = \"ring\"\npiece = \"16 KiB\"\nslots = 16",
        ),
        "completion_us",
    );
    let bytes_only = formula("ring", hosts, bytes as f64, 0.0);
    println!("whole {whole:.2} us, in pieces {cut:.2} us, bytes alone {bytes_only:.2} us");
    assert!(cut < 0.9 * whole && cut > bytes_only, "{cut} of {whole}");
    assert!(cut < 1.05 * (bytes_only + alpha()), "{cut} of {bytes_only}");
}

#[test]
fn every_operation_has_its_result_and_its_bytes() {
    for hosts in [2, 5, 8, 11] {
        // 1,001 numbers do not divide by any of them but 11.
        let bytes = 8 * 1001;
        let n = hosts as f64;
        for (operation, algorithm, share) in [
            ("all-reduce", "ring", Some(2.0 * (n - 1.0) / n)),
            ("all-reduce", "tree", Some(2.0 * (n - 1.0) / n)),
            ("all-reduce", "recursive-doubling", None),
            ("all-reduce", "halving-doubling", None),
            ("all-gather", "ring", Some((n - 1.0) / n)),
            ("reduce-scatter", "ring", Some((n - 1.0) / n)),
            ("all-to-all", "pairwise", Some((n - 1.0) / n)),
        ] {
            for more in ["piece = 800", "placement = \"random\"\nslots = 3"] {
                let text = format!("collective = \"{operation}\"\nalgorithm = \"{algorithm}\"\n{more}");
                let report = run(hosts, bytes, &text);
                let sent = metric(&report, "bytes_per_host") / bytes as f64;
                assert!(share.is_none_or(|share| (sent - share).abs() < 1e-9), "{text}: {sent}");
                let bus =
                    metric(&report, "bus_gbps") * metric(&report, "completion_us") / (8e-3 * bytes as f64);
                let share = if operation == "all-reduce" { 2.0 } else { 1.0 } * (n - 1.0) / n;
                assert!((bus - share).abs() < 1e-6, "{text}: {bus}");
            }
        }
    }
}

#[test]
fn a_sum_of_short_numbers_wraps_around() {
    run(5, 4 * 1001, "collective = \"all-reduce\"\nalgorithm = \"halving-doubling\"\nelement = \"u32\"");
}

#[test]
fn what_is_impossible_is_refused_with_what_to_write() {
    for (operation, advice) in [
        ("collective = \"all-gather\"\nalgorithm = \"tree\"", "write ring"),
        ("collective = \"all-to-all\"\nalgorithm = \"ring\"", "write pairwise"),
        ("collective = \"all-reduce\"\nalgorithm = \"ring\"\nhosts = 5", "up to the hosts there are"),
        ("collective = \"all-reduce\"\nalgorithm = \"ring\"\nslots = 1", "write 2 to 1024"),
    ] {
        let text = format!(
            "name = \"x\"\nabout = \"\"\nuntil = \"1 s\"\ntopology = {{ kind = \"star\", hosts = 4 }}\n\
             [[workload]]\npattern = \"collective\"\nbytes = 800\n{operation}"
        );
        let scenario = Scenario::read(&text).expect("it reads");
        let error = scenario.run(Path::new("."), 1, &mut |_| true).expect_err("it is impossible").to_string();
        assert!(error.contains(advice), "{error}");
    }
}

/// An operation of five hosts behind two leaves, with settings of the NICs and more of the scenario.
fn lossy(nic: &str, operation: &str, more: &str) -> Scenario {
    let text = format!(
        r#"
        name = "lossy"
        about = "A test."
        until = "20 s"
        topology = {{ kind = "leaf-spine", leaves = 2, spines = 2, hosts_per_leaf = 3 }}
        switch = {{ class = [{{}}, {{}}, {{}}, {{ lossless = true, alpha = 0.125 }}] }}
        nic = {{ {nic} }}
        [[workload]]
        pattern = "collective"
        name = "it"
        hosts = 5
        {operation}
        {more}
        "#
    );
    Scenario::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// 8 kB numbers in pieces of a kilobyte: slots are used again and again, and what is sent again must be what it was.
#[test]
fn results_are_right_however_much_is_lost() {
    for selective in [false, true] {
        for loss in ["0.01", "0.05"] {
            for operation in [
                "collective = \"all-reduce\"\nalgorithm = \"ring\"",
                "collective = \"all-reduce\"\nalgorithm = \"tree\"",
                "collective = \"all-reduce\"\nalgorithm = \"recursive-doubling\"",
                "collective = \"all-reduce\"\nalgorithm = \"halving-doubling\"",
                "collective = \"all-to-all\"\nalgorithm = \"pairwise\"",
            ] {
                let nic = format!("selective_repeat = {selective}, timeout = 8");
                let scenario = lossy(&nic, &format!("bytes = 64000\npiece = 1024\n{operation}"), "");
                let mut run = scenario.prepare(Path::new("."), 5).expect("it fits together");
                for host in 0..5 {
                    let device = run.device(host).expect("a host");
                    drop(device.add_fault(&format!("tx p={loss} drop")).expect("a rule"));
                }
                assert!(run.run(Duration::from_secs(20), &mut |_| true).expect("it runs"));
                let group = &run.groups()[0];
                println!("{operation} {loss} {selective}: {:?}", group.finished);
                assert!(group.verified, "{operation} {loss} {selective}");
                run.fabric().lock().check();
            }
        }
    }
}

/// The cable of a host is cut and stays so: its neighbours find out, and the run ends with an error that names the rank.
#[test]
fn a_host_that_is_gone_ends_the_operation() {
    let cut = "[[change]]\nwhat = \"cut\"\ncable = \"host3-leaf1\"\nat = \"20 us\"";
    for algorithm in ["ring", "tree", "recursive-doubling", "halving-doubling"] {
        let operation = format!("bytes = \"4 MB\"\ncollective = \"all-reduce\"\nalgorithm = \"{algorithm}\"");
        let scenario = lossy("timeout = 8", &operation, cut);
        let error = scenario.run(Path::new("."), 1, &mut |_| true).expect_err("it cannot end").to_string();
        println!("{algorithm}: {error}");
        assert!(error.contains("it: a message to or from rank"), "{algorithm}: {error}");
    }
}

/// Rings and halvings of 32 hosts, or with `RNIC_LONG=1` of as many as `RNIC_HOSTS` says, which takes minutes.
#[test]
fn many_hosts_keep_the_formulas() {
    let long = std::env::var_os("RNIC_LONG").is_some();
    let named = std::env::var("RNIC_HOSTS").ok().and_then(|most| most.parse().ok());
    let (most, bytes) = if long { (named.unwrap_or(256), 1_u64 << 20) } else { (32, 1 << 18) };
    for hosts in [32, 64, 128, 256, 512, 1024].into_iter().filter(|hosts| *hosts <= most) {
        for (algorithm, packet) in [("halving-doubling", 4096), ("ring", 4096_u64.min(bytes / hosts as u64))]
        {
            let (ours, theirs) =
                (time(hosts, bytes, algorithm), formula(algorithm, hosts, bytes as f64, alpha_of(packet)));
            let ratio = ours / theirs;
            println!("{algorithm:>18} {hosts:>5} {bytes}: {ours:9.2} us, formula {theirs:9.2}, {ratio:.3}");
            assert!((0.95..1.05).contains(&ratio), "{algorithm} {hosts}: {ours} of {theirs}");
        }
    }
}
