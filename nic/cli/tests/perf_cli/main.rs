//! The command `rnic perf`, a server and a client for each case.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod classes;
mod reports;
mod rig;

use rig::{Folder, Server, client, complaint, interrupt, json};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Checks that a run completed without errors and with the expected number of messages.
fn check(document: &Value, sizes: &[u64], iterations: u64) {
    assert_eq!(document["schema_version"], 2);
    assert_eq!(document["interrupted"], false);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|r| r["size"].as_u64().unwrap()).collect::<Vec<_>>(), sizes);
    for result in results {
        assert_eq!(result["iterations"], iterations);
        for side in ["client_counters", "server_counters"] {
            let counters = &result[side];
            // Over UC and UD one side may receive nothing.
            let packets = |name: &str| counters[name].as_u64().unwrap();
            assert!(packets("rx_packets") + packets("tx_packets") > 0, "{result}");
            for error in ["req_cqe_error", "resp_cqe_error", "retry_exceeded_err", "dropped_bad_icrc"] {
                assert_eq!(counters[error], 0, "{result}");
            }
        }
    }
}

#[test]
fn every_operation_by_both_tests() {
    let server = Server::start(&[]);
    for op in ["write", "read", "send"] {
        let bandwidth = ["--test", "bw", "--size", "1", "--size", "64K", "--qps", "2", "--depth", "8"];
        let latency = ["--test", "lat", "--size", "1", "--size", "4097"];
        for (test, iterations, counted) in [(&bandwidth[..], "20", 40), (&latency[..], "5", 5)] {
            let more = ["--op", op, "--iterations", iterations, "--json"];
            let document = json(&server.client(&[&more[..], test].concat()));
            let sizes = if test == bandwidth { [1, 65_536] } else { [1, 4097] };
            check(&document, &sizes, counted);
            assert_eq!(document["parameters"]["op"], op);
            let time = if test == bandwidth { "bw_average_mib_per_s" } else { "t_typical_usec" };
            assert!(document["results"][1][time].as_f64().unwrap() > 0.0, "{document}");
        }
    }
}

/// Runs a client and checks that it completes, with 30 messages of 8 bytes per queue pair.
fn runs_well(server: &Server, args: &[&str], iterations: u64) {
    let document = json(&server.client(&[args, &["--size", "8", "-n", "30", "--json"]].concat()));
    check(&document, &[8], iterations);
}

#[test]
fn atomics_take_effect_once_each() {
    let server = Server::start(&[]);
    for op in ["fetch-add", "cmp-swap"] {
        for service in ["rc", "xrc"] {
            let args = ["--op", op, "-c", service];
            runs_well(&server, &[&args[..], &["--test", "lat"]].concat(), 30);
            runs_well(&server, &[&args[..], &["--bidirectional", "--qps", "2"]].concat(), 120);
        }
        // The default size is 8 bytes. Each operation takes effect once, even if packets are lost.
        let faults = ["--fault", "rx nth=5 drop", "--fault", "tx nth=9 drop"];
        let output = server.client(&[&["--op", op, "-n", "50", "--json"], &faults[..]].concat());
        let document = json(&output);
        assert_eq!(document["results"][0]["iterations"], 50);
        assert!(document["losses"]["client"]["retransmitted_pkts"].as_u64().unwrap() > 0, "{document}");
    }
}

#[test]
fn extended_connections_support_what_reliable_ones_do() {
    let server = Server::start(&[]);
    for op in ["write", "read", "send"] {
        let args = ["--service", "xrc", "--op", op];
        runs_well(&server, &[&args[..], &["--test", "lat"]].concat(), 30);
        runs_well(&server, &[&args[..], &["--qps", "3", "--events"]].concat(), 90);
    }
}

#[test]
fn immediate_data_and_shared_receive_queues() {
    let server = Server::start(&[]);
    for op in ["write", "send"] {
        for service in ["rc", "xrc"] {
            let args = ["--imm", "--op", op, "-c", service];
            runs_well(&server, &[&args[..], &["--test", "lat"]].concat(), 30);
            runs_well(&server, &[&args[..], &["--bidirectional"]].concat(), 60);
        }
    }
    runs_well(&server, &["--op", "send", "--srq", "--qps", "3"], 90);
    runs_well(&server, &["--op", "send", "--srq", "--test", "lat"], 30);
    runs_well(&server, &["--op", "send", "--srq", "--qps", "2", "--bidirectional", "--imm"], 120);
}

/// The possible measurements over UC and UD.
const UNRELIABLE: [&[&str]; 6] = [
    &["-c", "uc", "--op", "send"],
    &["-c", "uc", "--op", "send", "--imm"],
    &["-c", "uc", "--op", "write"],
    &["-c", "uc", "--op", "write", "--imm"],
    &["-c", "ud", "--op", "send"],
    &["-c", "ud", "--op", "send", "--imm", "--srq"],
];

#[test]
fn unreliable_services_count_what_arrived() {
    let server = Server::start(&[]);
    for args in UNRELIABLE {
        for (more, all) in [(&["--test", "lat"][..], 30), (&["--qps", "2"], 60)] {
            runs_well(&server, &[args, more].concat(), all);
        }
        // Ten packets, of which the second and the last are lost.
        let faults = ["--fault", "tx data psn=#1 drop", "--fault", "tx data psn=#9 drop"];
        let faults = [args, &["--size", "100", "-n", "10"], &faults[..]].concat();
        let document = json(&server.client(&[&faults[..], &["--json"]].concat()));
        let result = &document["results"][0];
        assert_eq!([&result["sent"], &result["lost"], &result["iterations"]], [10, 2, 8], "{document}");
        let output = server.client(&faults);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("100 bytes: 2 of 10 messages were lost"), "{text}");
    }
}

#[test]
fn latency_of_unreliable_services_survives_losses() {
    let server = Server::start(&[]);
    for args in UNRELIABLE {
        let lat = [args, &["--test", "lat", "-n", "10", "--json"]].concat();
        let faults = ["--fault", "tx data psn=#3 drop", "--fault", "rx data nth=6 drop"];
        let document = json(&server.client(&[&lat[..], &faults[..]].concat()));
        let result = &document["results"][0];
        assert_eq!([&result["sent"], &result["lost"], &result["iterations"]], [10, 2, 8], "{document}");
        let error = complaint(&server.client(&[&lat[..], &["--fault", "rx drop always"]].concat()));
        assert!(error.contains("4 messages in a row were not answered"), "{error}");
    }
}

#[test]
fn both_directions_events_and_a_chosen_mtu() {
    let server = Server::start(&[]);
    for op in ["write", "read", "send"] {
        let args =
            ["--op", op, "--test", "bw", "--size", "10000", "--depth", "4", "-n", "10", "--mtu", "1024"];
        let document =
            json(&server.client(&[&args[..], &["--bidirectional", "--events", "--json"]].concat()));
        check(&document, &[10_000], 20);
        assert_eq!(document["path_mtu"], 1024);
    }
}

#[test]
fn a_duration_ends() {
    let server = Server::start(&[]);
    for test in ["bw", "lat"] {
        let args = ["--op", "send", "--test", test, "--duration", "0.05", "--size", "8", "--json"];
        let document = json(&server.client(&args));
        assert!(document["results"][0]["iterations"].as_u64().unwrap() > 0);
        assert_eq!(document["parameters"]["limit"]["seconds"], 0.05);
    }
}

#[test]
fn the_tables_are_those_of_perftest() {
    let mut server = Server::start(&["--once"]);
    let output = server.client(&["--op", "write", "--test", "bw", "--size", "4096", "-n", "10"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("a NIC in software"), "{text}");
    assert_eq!(lines[1], "RC RDMA WRITE bandwidth");
    assert!(lines[2].contains(" to ") && lines[2].contains(", MTU "), "{text}");
    assert_eq!(lines[3], "1 QP x 128 outstanding, 1 of 32 signalled, polling");
    assert!(lines[..4].iter().all(|line| line.len() <= 80), "{text}");
    assert_eq!(
        lines[4].split_whitespace().collect::<Vec<_>>().join(" "),
        "#bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]"
    );
    assert!(lines[5].starts_with(" 4096       10 "), "{text}");
    assert_eq!(lines[5].split_whitespace().count(), 5);
    assert!(server.child.wait().unwrap().success(), "--once");
}

/// A client with a long measurement, which has printed the head of its table.
fn long_client(server: &Server) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rnic"))
        .args(["perf", "client", &server.address, "--control-port", &server.port])
        .args(["--op", "write", "--test", "bw", "--size", "64", "--size", "128", "--duration", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut head = String::new();
    while !head.contains("#bytes") {
        assert!(output.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (child, output)
}

#[test]
fn an_interrupted_client_prints_its_results_so_far() {
    let server = Server::start(&[]);
    let (mut client, mut output) = long_client(&server);
    interrupt(&client);
    let mut rows = String::new();
    output.read_to_string(&mut rows).unwrap();
    assert!(client.wait().unwrap().success());
    assert_eq!(rows.lines().count(), 1, "{rows}");
    assert_eq!(rows.split_whitespace().next(), Some("64"), "{rows}");
}

#[test]
fn a_client_reports_that_its_server_was_stopped() {
    let mut server = Server::start(&[]);
    let (client, _output) = long_client(&server);
    interrupt(&server.child);
    assert!(server.child.wait().unwrap().success());
    let error = complaint(&client.wait_with_output().unwrap());
    assert!(error.contains("the server was stopped"), "{error}");
}

#[test]
fn without_a_server_the_error_shows_how_to_start_one() {
    let port = free_port();
    let error = complaint(&client(&["127.0.0.1", "--control-port", &port, "--op", "write", "--test", "bw"]));
    assert!(error.contains("no rnic perf server is listening on TCP 127.0.0.1:"), "{error}");
    assert!(error.contains("rnic perf server"), "{error}");
}

#[test]
fn hosts_are_given_by_name() {
    let port = free_port();
    let error = complaint(&client(&["localhost", "--control-port", &port]));
    assert!(error.contains("listening on TCP 127.0.0.1:"), "{error}");
    // Reserved never to exist (RFC 6761).
    for (args, part) in [
        (["client", "no-such-host.invalid"].as_slice(), "neither an IP address nor a known host name"),
        (&["client", "127.0.0.1", "--bind", "no-such-host.invalid"], "nor an interface of this host"),
        (&["server", "--bind", "fe80::1%no-such-0"], "no interface of this host has the name behind the `%`"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_rnic")).arg("perf").args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(part), "{error}");
    }
}

/// A port at which nobody listens, outside the range from which Linux assigns ports to the servers of other tests.
fn free_port() -> String {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (20_000..32_000).find(free).expect("a free port").to_string()
}

#[test]
fn another_service_at_the_port_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        stream
    });
    let error = complaint(&client(&["127.0.0.1", "--control-port", &port, "--op", "send", "--test", "lat"]));
    assert!(error.contains("is not rnic perf"), "{error}");
    drop(stranger.join().unwrap());
}

#[test]
fn errors_name_the_option() {
    let server = Server::start(&[]);
    for (args, part) in [
        (&["--op", "write", "--test", "lat", "--events"][..], "--events"),
        (&["--op", "send", "--test", "lat", "--qps", "2"], "--qps"),
        (&["--op", "read", "--test", "bw", "--depth", "4", "--cq-mod", "5"], "--cq-mod 5"),
        (&["--op", "read", "-c", "uc"], "RDMA READ over UC"),
        (&["--op", "fetch-add", "-c", "ud"], "FETCH_ADD over UD"),
        (&["--op", "write", "-c", "ud"], "RDMA WRITE over UD"),
        (&["--op", "send", "-c", "ud", "--size", "4097"], "--size 4097 over UD"),
        (&["--op", "cmp-swap", "--size", "16"], "--size 16: atomics operate on 8 bytes"),
        (&["--op", "read", "--imm"], "--imm"),
        (&["--op", "write", "--srq"], "--srq"),
    ] {
        let error = complaint(&server.client(args));
        assert!(error.contains(part), "{error}");
    }
    // The server still serves the next client.
    let args = ["--op", "read", "--test", "lat", "-n", "1", "--json"];
    check(&json(&server.client(&args)), &[2], 1);
}

#[test]
fn both_sides_leave_a_trace_of_all_that_was_sent() {
    let folder = Folder::new("perf-trace");
    let (ours, theirs) = (folder.path("client.trace"), folder.path("server.trace"));
    let server = Server::start(&["--trace", &theirs, "--trace-interval", "500us"]);
    let args = ["--size", "10000", "-n", "300", "--qps", "2", "--trace", &ours, "--json"];
    json(&server.client(&args));
    // An interrupted server writes the rest of its trace.
    let id = nix::unistd::Pid::from_raw(server.child.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    let address = server.address.clone();
    let mut server = server;
    assert!(server.child.wait().unwrap().success());
    let [ours, theirs] = [&ours, &theirs].map(|path| rnic::trace::Trace::open(path).unwrap());
    assert_eq!(ours.header.title, "RC RDMA WRITE bandwidth");
    assert!(ours.header.command.as_ref().unwrap().contains("perf client"));
    assert_eq!(theirs.header.device, address);
    assert!(ours.header.started > theirs.header.started);
    // The client keeps its queue pairs until the trace ends; the server has destroyed its own by then.
    let last = ours.samples.last().unwrap();
    assert_eq!(last.qps.iter().map(|qp| qp.sent_bytes).collect::<Vec<_>>(), [3_000_000, 3_000_000]);
    assert!(last.qps.iter().all(|qp| qp.label.as_ref() == Some(&address)), "{last:?}");
    assert!(theirs.samples.last().unwrap().port.rx_bytes > 6_000_000);
    assert!(theirs.samples.iter().is_sorted_by(|a, b| a.port.rx_bytes <= b.port.rx_bytes));
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error() {
    let folder = Folder::new("perf-no-trace");
    let server = Server::start(&[]);
    let missing = folder.path("no/such/folder");
    let text = complaint(&server.client(&["-n", "1", "--trace", &missing]));
    assert!(text.contains("cannot write the trace") && text.contains("no/such/folder"), "{text}");
    let output = server.client(&["--trace", &folder.path("a"), "--trace-interval", "1us"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("the minimum is 100µs"));
}

#[cfg(feature = "plot")]
#[test]
fn a_trace_can_be_drawn() {
    let folder = Folder::new("perf-plot");
    let trace = folder.path("a.trace");
    let server = Server::start(&[]);
    assert!(server.client(&["-n", "300", "--trace", &trace, "--json"]).status.success());
    let plot = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_rnic")).args(["plot", &trace]).args(more).output().unwrap()
    };
    let output = plot(&[]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("a.svg: goodput"));
    assert!(std::fs::read_to_string(folder.path("a.svg")).unwrap().contains("RC RDMA WRITE bandwidth"));
    assert!(complaint(&plot(&["--from", "1000s"])).contains("nothing between 1000 s"));
}
