//! perftest: bandwidth and latency of every operation over every transport, through both posting interfaces.

use crate::lab::{self, has};

/// An operation, the transports over which perftest runs it, and the options that it allows.
struct Operation {
    name: &'static str,
    transports: &'static [&'static str],
    /// It sends its own data, which can be inline.
    inline: bool,
    /// It consumes receives, which can come from a shared receive queue.
    srq: bool,
}

const OPERATIONS: [Operation; 4] = [
    Operation { name: "write", transports: &["RC", "UC", "XRC"], inline: true, srq: false },
    Operation { name: "read", transports: &["RC", "XRC"], inline: false, srq: false },
    Operation { name: "send", transports: &["RC", "UC", "UD", "XRC"], inline: true, srq: true },
    Operation { name: "atomic", transports: &["RC", "XRC"], inline: false, srq: false },
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bandwidth,
    Latency,
}

/// Options, and the cases to which they apply.
struct Variant {
    options: &'static [&'static str],
    applies: fn(&Operation, &str, Kind) -> bool,
}

const ALWAYS: fn(&Operation, &str, Kind) -> bool = |_, _, _| true;

/// Sizes from 2 bytes to 8 MiB. A datagram is limited to the MTU, and an atomic has 8 bytes.
const ALL_SIZES: &[&str] = &["-a"];

/// Whether all is measured that can be: `RNIC_LONG=1`.
fn is_long() -> bool {
    std::env::var_os("RNIC_LONG").is_some()
}

/// For latencies, the transports differ in packets only, and posting is the same for all: one of them stands for the others.
fn is_chosen(transport: &str, kind: Kind) -> bool {
    kind == Kind::Bandwidth || transport == "RC" || is_long()
}

const VARIANTS: [Variant; 12] = [
    // perftest calibrates the processor's clock for every row, for 0.2 s and at both ends, and no option prevents that.
    // So all sizes are measured where they matter most; with `RNIC_LONG=1`, over every transport.
    Variant {
        options: ALL_SIZES,
        applies: |operation, transport, kind| {
            let is_chosen = match kind {
                Kind::Bandwidth => transport == "RC" || transport == "UD",
                Kind::Latency => transport == "RC" && operation.name == "send",
            };
            operation.name != "atomic" && (is_chosen || is_long())
        },
    },
    Variant { options: &[], applies: ALWAYS },
    // perftest has no events for WRITE, because its target sees no completions.
    Variant {
        options: &["-e"],
        applies: |operation, transport, kind| operation.name != "write" && is_chosen(transport, kind),
    },
    Variant { options: &["--use_old_post_send"], applies: |_, transport, kind| is_chosen(transport, kind) },
    Variant {
        options: &["--use_old_post_send", "-e"],
        applies: |operation, transport, _| operation.name != "write" && transport == "RC",
    },
    Variant {
        options: &["-I", "64"],
        applies: |operation, transport, kind| operation.inline && is_chosen(transport, kind),
    },
    Variant {
        options: &["-I", "64", "--use_old_post_send"],
        applies: |operation, transport, _| operation.inline && transport == "RC",
    },
    Variant { options: &["-q", "16"], applies: |_, _, kind| kind == Kind::Bandwidth },
    Variant { options: &["-b"], applies: |_, _, kind| kind == Kind::Bandwidth },
    Variant {
        options: &["-l", "8"],
        applies: |_, transport, kind| kind == Kind::Bandwidth && transport == "RC",
    },
    Variant {
        options: &["--use-srq"],
        applies: |operation, transport, _| operation.srq && transport != "XRC",
    },
    Variant {
        options: &["-q", "4", "-b"],
        applies: |_, transport, kind| kind == Kind::Bandwidth && transport == "RC",
    },
];

/// The number of iterations of each row: a multiple of the length of work request lists, and of 100, because perftest
/// signals one send in every 100. It counts each completion as 100, even the last of a queue pair. With a number in
/// between and several queue pairs, it can have counted all of them while one still has requests to post, and then
/// stops polling.
const ITERATIONS: &str = "400";

/// The sizes for which a table must have a row.
fn sizes(operation: &Operation, transport: &str, options: &[&str]) -> Vec<u64> {
    if operation.name == "atomic" {
        vec![8]
    } else if options == ALL_SIZES {
        let largest = if transport == "UD" { 4096 } else { 8 << 20 };
        std::iter::successors(Some(2), |size| Some(size * 2)).take_while(|size| *size <= largest).collect()
    } else if options.contains(&"-I") {
        vec![64]
    } else {
        vec![2048]
    }
}

/// The sizes of the rows of a table that contain results.
fn table(text: &str) -> Vec<u64> {
    // On a busy machine perftest complains of the clock in the middle of a row, without a line of its own.
    let lines = text.lines().flat_map(|line| line.split("Correlation coefficient").take(1));
    let rows = lines.filter_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<f64>);
        let (size, iterations) = (words.next()?.ok()?, words.next()?.ok()?);
        let results: Result<Vec<_>, _> = words.collect();
        // The last column is the message rate, or the tail of the latencies.
        (iterations > 0.0 && results.is_ok_and(|results| results.len() >= 3)).then_some(size as u64)
    });
    rows.collect()
}

/// Runs an operation over all its transports, with all variants that apply.
fn run(name: &str) {
    if !has("ib_write_bw") {
        return;
    }
    let operation = OPERATIONS.iter().find(|operation| operation.name == name).expect("one of them");
    let mut rows = Vec::new();
    for (kind, suffix) in [(Kind::Bandwidth, "bw"), (Kind::Latency, "lat")] {
        for transport in operation.transports {
            let variants = VARIANTS.iter().filter(|variant| (variant.applies)(operation, transport, kind));
            rows.extend(variants.map(|variant| (suffix, *transport, variant.options)));
        }
    }
    let ended = rows.into_iter().map(|(suffix, transport, options)| {
        let program = format!("ib_{name}_{suffix}");
        let expected = sizes(operation, transport, options);
        let size = expected[0].to_string();
        let mut common =
            vec!["-F", "-c", transport, "-n", if options == ALL_SIZES { "100" } else { ITERATIONS }];
        if options != ALL_SIZES && name != "atomic" {
            common.extend(["-s", &size]);
        }
        common.extend(options);
        if matches!(transport, "RC" | "XRC") {
            // Set the retransmission timeout to a second instead of perftest's 67 ms, seven times: a test host may be
            // busy.
            common.extend(["-u", "18"]);
        }
        // UC and UD do not retransmit lost messages, and perftest waits for all of them. With link credits none is
        // lost.
        let link: &[&str] = if matches!(transport, "UC" | "UD") { &["--link", "ib-credits"] } else { &[] };
        let ends = lab::pair(&program, link, &common, [&[], &[]]);
        let check = |end: usize, text: &str| {
            // A server that is the target of WRITEs or READs has nothing to measure; its client reports.
            let rows = table(text);
            (end == 1 && rows != expected).then(|| format!("has rows for {rows:?}, not {expected:?}"))
        };
        (format!("{program} {}", common.join(" ")), lab::faults(&ends, check))
    });
    lab::matrix(name, ended);
}

#[test]
fn write_is_measured() {
    run("write");
}

#[test]
fn read_is_measured() {
    run("read");
}

#[test]
fn send_is_measured() {
    run("send");
}

#[test]
fn atomic_is_measured() {
    run("atomic");
}

#[test]
fn counters_of_the_port_are_reported() {
    if !has("ib_write_bw") {
        return;
    }
    let names = "counters/port_xmit_packets,hw_counters/sent_pkts,hw_counters/rcvd_pkts";
    let ends = lab::pair("ib_write_bw", &[], &["-F", "-s", "4096", "-n", "300"], [&[], &["-W", names]]);
    // 300 packets of 4096 bytes, plus the warm-up.
    let check = |end: usize, text: &str| {
        let sent = text.lines().find_map(|line| line.split("sent_pkts").nth(1));
        let number =
            sent.and_then(|rest| rest.trim_start_matches([' ', '=', ':', '\t']).split_whitespace().next());
        let enough = number.and_then(|number| number.parse::<u64>().ok()).is_some_and(|sent| sent >= 300);
        (end == 1 && !enough).then(|| format!("told of too few packets: {text}"))
    };
    assert_eq!(lab::faults(&ends, check), None);
}

#[test]
fn any_gid_of_a_table_can_be_named() {
    if !has("ib_write_bw") {
        return;
    }
    let rows = [
        ("any", "0"),
        ("any", "1"),
        ("any", "3"),
        ("compact", "0"),
        ("rxe", "0"),
        ("rxe", "1"),
        ("mlx5", "1"),
        ("mlx5", "3"),
    ];
    let ended = rows.into_iter().map(|(layout, index)| {
        let common = ["-F", "-s", "4096", "-n", "300", "-x", index];
        let ends = lab::pair("ib_write_bw", &["--gid-table", layout], &common, [&[], &[]]);
        (format!("GID {index} of {layout}"), lab::faults(&ends, |_, _| None))
    });
    lab::matrix("GIDs", ended);
    // RoCE v1 is listed but cannot be used.
    let common = ["-F", "-s", "4096", "-n", "300", "-x", "2"];
    let ends = lab::pair("ib_write_bw", &["--gid-table", "mlx5"], &common, [&[], &[]]);
    assert!(ends[1].fault().is_some_and(|fault| fault.starts_with("ended")), "{}", ends[1].text);
}
