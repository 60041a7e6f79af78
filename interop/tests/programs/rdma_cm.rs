//! Programs that connect by the system's librdmacm: both ends of each on rnic, at two addresses of this host.

use crate::c::build;
use crate::lab::{self, Ended, Folder, LIMIT, Running, built, faults, has, installed_library};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The library that all of these programs need.
pub(crate) const LIBRARY: &str = "librdmacm.so.1";

/// The command lines of a server and a client. `@` in an argument stands for the server's address, `&` for the client's,
/// `FOLDER` for the folder of the test.
pub(crate) struct Case {
    server: &'static str,
    client: &'static str,
    /// Whether the server ends with its client, or serves the next one.
    ends: bool,
    /// What the client must print.
    prints: &'static str,
}

const fn case(server: &'static str, client: &'static str) -> Case {
    Case::of(server, client)
}

impl Case {
    /// Two programs that both end.
    pub(crate) const fn of(server: &'static str, client: &'static str) -> Self {
        Self { server, client, ends: true, prints: "" }
    }

    pub(crate) const fn forever(self) -> Self {
        Self { ends: false, ..self }
    }

    pub(crate) const fn prints(self, prints: &'static str) -> Self {
        Self { prints, ..self }
    }

    /// Whether both programs are installed.
    fn is_there(&self) -> bool {
        [self.server, self.client].into_iter().all(|line| line.split(' ').next().is_some_and(has))
    }
}

/// Runs both ends; each explains its failures.
pub(crate) fn run(folder: &Folder, case: &Case) -> [Ended; 2] {
    run_of(folder, case, None)
}

/// Runs both ends, with the programs of a folder.
fn run_of(folder: &Folder, case: &Case, programs: Option<&Path>) -> [Ended; 2] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let network = NEXT.fetch_add(1, Ordering::Relaxed);
    let ends = [format!("127.91.{network}.1"), format!("127.91.{network}.2")];
    let command = |at: &str, line: &str| {
        let fill = |word: &str| {
            let word = word.replace('@', &ends[0]).replace('&', &ends[1]);
            word.replace("FOLDER", &folder.path().to_string_lossy())
        };
        let mut words = line.split_whitespace().map(fill);
        let name = words.next().expect("a program");
        let program = programs.map_or_else(|| PathBuf::from(&name), |folder| folder.join(&name));
        let mut command = lab::run(folder, &["--addr", at, "--explain"], program);
        command.args(words);
        command
    };
    let _alone = lab::alone();
    let mut server = Running::start(folder, &mut command(&ends[0], case.server));
    // Some servers show nothing when they are ready. A request that comes a little early is held, and one that comes
    // before there is a device is repeated.
    std::thread::sleep(Duration::from_millis(500));
    let client = Running::start(folder, &mut command(&ends[1], case.client)).wait(LIMIT);
    if case.ends {
        let patience =
            if client.fault().is_some() { Duration::from_secs(2) } else { Duration::from_secs(20) };
        let limit = server.elapsed() + patience;
        return [server.wait(limit), client];
    }
    let ran = !server.has_ended();
    server.terminate();
    let Ended { status, text } = server.wait(LIMIT);
    // One that was still there, and is ended here, has done its work.
    let status = if ran { client.status } else { status };
    [Ended { status, text }, client]
}

/// Runs the cases whose programs are installed.
pub(crate) fn run_all(what: &str, cases: &[Case]) {
    if !installed_library(LIBRARY) {
        return;
    }
    let present: Vec<_> = cases.iter().filter(|case| case.is_there()).collect();
    if present.is_empty() {
        return;
    }
    let rows = present.into_iter().map(|case| {
        let ends = run(&Folder::new(), case);
        let check = |end: usize, text: &str| {
            (end == 1 && !text.contains(case.prints)).then(|| format!("does not print `{}`", case.prints))
        };
        (case.client.to_owned(), faults(&ends, check))
    });
    lab::matrix(what, rows);
}

#[test]
fn nothing_is_explained_where_nothing_fails() {
    if !installed_library(LIBRARY) || !has("rping") {
        return;
    }
    let ends = run(&Folder::new(), &case("rping -s -a @ -C 3", "rping -c -a @ -C 3"));
    for end in ends {
        assert_eq!(end.fault(), None, "{}", end.text);
        assert!(!end.text.contains("rnic: "), "{}", end.text);
    }
}

#[test]
fn rping_pings() {
    run_all(
        "rping",
        &[
            case("rping -s -a @ -C 10 -v", "rping -c -a @ -C 10 -v").prints("rdma-ping-9"),
            case("rping -s -a @ -C 10 -S 60000 -V", "rping -c -a @ -C 10 -S 60000 -V"),
            case("rping -s -P", "rping -c -a @ -I & -C 2").forever(),
            case("rping -s -a @ -p 9999 -C 2 -q", "rping -c -a @ -p 9999 -C 2 -q"),
        ],
    );
}

#[test]
fn a_persistent_server_serves_one_client_after_the_other() {
    if !installed_library(LIBRARY) || !has("rping") {
        return;
    }
    let folder = Folder::new();
    let _alone = lab::alone();
    let serving = &["--addr", "127.91.250.1", "--explain"];
    let mut server = Running::start(&folder, lab::run(&folder, serving, "rping").args(["-s", "-P"]));
    let client = &["--addr", "127.91.250.2", "--explain"];
    for _ in 0..20 {
        let mut command = lab::run(&folder, client, "rping");
        let ended =
            Running::start(&folder, command.args(["-c", "-a", "127.91.250.1", "-C", "2"])).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{}", ended.text);
    }
    assert!(!server.has_ended());
    server.terminate();
    server.wait(LIMIT);
}

/// A program sees the number of an event. Why it came is told beside.
#[test]
fn a_connection_that_is_not_made_is_explained() {
    if !installed_library(LIBRARY) || !["rping", "udaddy", "ibv_asyncwatch"].into_iter().all(has) {
        return;
    }
    let folder = Folder::new();
    let _alone = lab::alone();
    let (there, here) = ("127.91.248.1", "127.91.248.2");
    let mut device = Running::start(&folder, &mut lab::run(&folder, &["--addr", there], "ibv_asyncwatch"));
    let begin = Instant::now();
    while lab::addresses(&folder).is_empty() {
        assert!(begin.elapsed() < LIMIT, "the device does not appear");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = [
        ("rping -c -C 1 -a 127.91.248.1", "nobody listens on 127.91.248.1:7174 (reject reason 8)"),
        ("udaddy -s 127.91.248.1", "nobody receives datagrams on 127.91.248.1:7174 (status 1)"),
    ];
    for (line, why) in lines {
        let mut words = line.split(' ');
        let mut command = lab::run(&folder, &["--addr", here, "--explain"], words.next().expect("a program"));
        let ended = Running::start(&folder, command.args(words)).wait(LIMIT);
        assert!(ended.fault().is_some() && ended.text.contains(why), "{line}: {}", ended.text);
    }
    assert!(!device.has_ended());
    device.kill();
    // Where there is no device, a program waits for minutes; a line comes when it has asked twice.
    let mut command = lab::run(&folder, &["--addr", here, "--explain"], "rping");
    let mut client = Running::start(&folder, command.args(["-c", "-a", "127.91.248.3"]));
    let why = "127.91.248.3 has not answered the REQ, which is sent again, up to 15 times: check the address";
    while !client.text().contains(why) {
        assert!(!client.has_ended() && client.elapsed() < LIMIT, "{}", client.text());
        std::thread::sleep(Duration::from_millis(20));
    }
    client.kill();
}

#[test]
fn the_examples_of_librdmacm_connect() {
    run_all(
        "examples",
        &[
            case("ucmatose -c 10", "ucmatose -c 10 -s @").prints("return status 0"),
            case("ucmatose -c 3 -m", "ucmatose -c 3 -m -s @").prints("return status 0"),
            case("ucmatose -t 8 -S 4000", "ucmatose -t 8 -S 4000 -s @").prints("return status 0"),
            case("udaddy -c 3", "udaddy -c 3 -s @").prints("return status 0"),
            case("mckey -m 239.1.2.3 -b @ -C 5", "mckey -m 239.1.2.3 -b & -s -C 5"),
            case("rdma_server -s @", "rdma_client -s @").prints("rdma_client: end 0"),
        ],
    );
}

#[test]
fn extended_connections_and_inline_data_that_nobody_asked_for_work() {
    run_all(
        "rdma_xserver",
        &[
            case("rdma_xserver -c r", "rdma_xclient -s @ -c r").prints("end 0"),
            case("rdma_xserver -c x", "rdma_xclient -s @ -c x").prints("end 0"),
        ],
    );
}

/// Each asks for all of them at once. A peer that got more than it has room for would drop some, which are repeated only
/// after seconds.
#[test]
fn hundreds_of_requests_at_once_are_all_answered_at_once() {
    let connections = if std::env::var_os("RNIC_LONG").is_some() {
        case("cmtime -b @ -c 10000", "cmtime -b & -s @ -c 10000")
    } else {
        case("cmtime -b @ -c 1500", "cmtime -b & -s @ -c 1500")
    };
    let datagrams = case("udaddy -c 200", "udaddy -c 200 -s @").prints("return status 0");
    for (case, message) in
        [(connections.prints("connect").forever(), "cm_rx_req"), (datagrams, "cm_rx_sidr_req")]
    {
        if !installed_library(LIBRARY) || !case.is_there() {
            continue;
        }
        let folder = Folder::new();
        let check = |end: usize, text: &str| {
            (end == 1 && !text.contains(case.prints)).then(|| format!("does not print `{}`", case.prints))
        };
        assert_eq!(faults(&run(&folder, &case), check), None, "{}", case.client);
        let sum = |counter| lab::counted(&folder, counter).0;
        assert!(sum(message) >= 200, "{}: {} arrived", case.client, sum(message));
        assert_eq!(sum("cm_dropped_source_quota"), 0, "{}", case.client);
    }
}

#[test]
fn sockets_over_rdma_carry_streams() {
    run_all(
        "rsockets",
        &[
            case("rstream -b @ -S 4096 -I 100", "rstream -s @ -S 4096 -I 100").prints("4k"),
            case("rstream -b @ -T f -S 64 -I 50", "rstream -s @ -T f -S 64 -I 50").prints("64"),
            case("riostream -b @ -I 10 -S 64", "riostream -s @ -I 10 -S 64").prints("64"),
        ],
    );
}

#[test]
fn a_file_is_copied_over_rdma_sockets() {
    if !installed_library(LIBRARY) || !has("rcopy") {
        return;
    }
    let folder = Folder::new();
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    fs::write(folder.path().join("from"), &bytes).expect("a file");
    let ends = run(&folder, &case("rcopy", "rcopy FOLDER/from @:FOLDER/to").forever());
    assert_eq!(faults(&ends, |_, _| None), None);
    assert!(fs::read(folder.path().join("to")).expect("the copy") == bytes, "the copy differs");
}

/// librdmacm 59 and its programs, which are linked to it; `interop/rdma-core/install` builds them.
#[test]
fn programs_of_a_newer_librdmacm_connect() {
    let built = lab::installed().join("rdma-core/build");
    if !built.join("../complete").exists() {
        println!("SKIPPED: interop/rdma-core/install has not been run, so librdmacm 59 was not run on rnic");
        return;
    }
    let folder = Folder::new();
    let mut command = lab::run(&folder, &[], "sh");
    command.args(["-c", "LD_TRACE_LOADED_OBJECTS=1 exec $0"]).arg(built.join("bin/rping"));
    let libraries = Running::start(&folder, &mut command).wait(LIMIT).text;
    let library = built.join("lib").join(LIBRARY);
    assert!(libraries.contains(&*library.to_string_lossy()), "another librdmacm:\n{libraries}");
    let cases = [
        case("rping -s -a @ -C 10 -v", "rping -c -a @ -C 10 -v").prints("rdma-ping-9"),
        case("ucmatose -c 10", "ucmatose -c 10 -s @").prints("return status 0"),
        case("ucmatose -c 3 -m", "ucmatose -c 3 -m -s @").prints("return status 0"),
        case("udaddy -c 3", "udaddy -c 3 -s @").prints("return status 0"),
        case("mckey -m 239.1.2.3 -b @ -C 5", "mckey -m 239.1.2.3 -b & -s -C 5"),
        case("rdma_server -s @", "rdma_client -s @").prints("rdma_client: end 0"),
        case("rdma_xserver -c x", "rdma_xclient -s @ -c x").prints("end 0"),
        // Several threads, and both sides connect.
        case("cmtime -L -b @ -C 127.0.0.1 -c 200", "cmtime -b & -C 127.0.0.1 -c 200").prints("cm connect"),
        case("rstream -b @ -S 4096 -I 10 -C 50", "rstream -s @ -S 4096 -I 10 -C 50").prints("4k"),
        case("riostream -b @ -I 10 -S 64", "riostream -s @ -I 10 -S 64").prints("64"),
    ];
    let rows = cases.iter().map(|case| {
        let ends = run_of(&Folder::new(), case, Some(&built.join("bin")));
        let check = |end: usize, text: &str| {
            (end == 1 && !text.contains(case.prints)).then(|| format!("does not print `{}`", case.prints))
        };
        (case.client.to_owned(), faults(&ends, check))
    });
    lab::matrix("librdmacm 59", rows);
}

/// A TCP program: C, because Python's own sockets fall back to TCP under librspreload.
#[test]
fn a_tcp_program_talks_rdma_under_librspreload() {
    let folder = Folder::new();
    let Some(preload) = rspreload() else { return };
    let Some(program) = build(&folder, "echo") else { return };
    let _alone = lab::alone();
    let start = |at: &str, arguments: &[&str]| {
        let mut command = lab::run(&folder, &["--addr", at], "sh");
        let line = "LD_PRELOAD=\"$LD_PRELOAD:$0\" exec \"$@\"";
        command.args(["-c", line]).arg(&preload).arg(&program).args(arguments);
        Running::start(&folder, &mut command)
    };
    let server = start("127.91.251.1", &["server", "127.91.251.1", "7474"]);
    std::thread::sleep(Duration::from_millis(500));
    let client = start("127.91.251.2", &["client", "127.91.251.1", "7474"]).wait(LIMIT);
    let ends = [server.wait(LIMIT), client];
    let check = |_: usize, text: &str| (!text.contains("no TCP")).then(|| "used TCP".to_owned());
    assert_eq!(faults(&ends, check), None);
    let (sent, programs) = lab::counted(&folder, "tx_bytes");
    assert!(programs == 2 && sent > 1 << 20, "{sent} bytes of {programs} programs");
}

/// librspreload, if it is installed.
fn rspreload() -> Option<PathBuf> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places.into_iter().map(|place| Path::new(place).join("rsocket/librspreload.so"));
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("SKIPPED: librspreload is not installed");
    }
    found
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    run_all(
        "perftest -R",
        &[
            case("ib_write_bw -R -F -n 400 -s 4096", "ib_write_bw -R -F -n 400 -s 4096 @").prints("4096"),
            case("ib_read_bw -R -F -n 400 -T 46", "ib_read_bw -R -F -n 400 -T 46 @"),
            case("ib_send_bw -R -F -n 400 -q 4", "ib_send_bw -R -F -n 400 -q 4 @"),
            case("ib_send_bw -R -F -n 400 -c UD", "ib_send_bw -R -F -n 400 -c UD @"),
            case("ib_write_lat -R -F -n 400", "ib_write_lat -R -F -n 400 @"),
            case("ib_send_lat -R -F -n 400 -e", "ib_send_lat -R -F -n 400 -e @"),
            case("ib_atomic_bw -R -F -n 400", "ib_atomic_bw -R -F -n 400 @"),
        ],
    );
}

/// Only its tests of reliable connections use the connection manager. The others exchange LIDs, which Ethernet does not
/// have.
#[test]
fn qperf_measures_connections() {
    let client = "qperf -cm 1 -t 1 @ rc_lat rc_bw rc_rdma_write_bw rc_rdma_read_lat";
    run_all("qperf", &[case("qperf", client).prints("rc_rdma_read_lat").forever()]);
}

/// The device itself, by its commands.
fn by_commands(test: &str, more: &[&str]) -> String {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py/rdma_cm.py");
    if !has("python3") {
        return String::new();
    }
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let folder = Folder::new();
    let address = format!("127.92.{}.1", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut command = lab::run(&folder, &["--addr", &address], "python3");
    let ended = Running::start(&folder, command.args([SCRIPT, test, &address]).args(more)).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.ends_with("done\n"), "{}", ended.text);
    ended.text
}

#[test]
fn a_connection_lives_from_its_request_to_the_end_of_timewait() {
    by_commands("life", &[]);
}

#[test]
fn a_port_has_a_listener_for_each_family() {
    by_commands("families", &[]);
}

#[test]
fn commands_fail_with_the_numbers_of_the_kernel() {
    by_commands("errors", &[]);
}

#[test]
fn a_route_is_told_the_same_by_both_families_of_commands() {
    by_commands("routes", &[]);
}

#[test]
fn descriptors_of_channels_are_polled_duplicated_inherited_and_closed() {
    by_commands("descriptors", &[]);
}

#[test]
fn threads_wait_for_events_and_sleep_on_in_a_closed_channel() {
    by_commands("waiting", &[]);
}

#[test]
fn a_thread_that_handles_an_event_asks_for_the_next_before_its_channel_is_closed() {
    by_commands("handling", &[]);
}

#[test]
fn a_thread_that_asks_while_its_channel_is_closed_waits() {
    by_commands("closing", &[]);
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    println!("{}", by_commands("many", &["10000"]));
}

/// Two hosts: network namespaces with a link between them.
#[test]
fn devices_are_chosen_by_the_routes_of_the_host() {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sh/two_hosts");
    if !installed_library(LIBRARY) || !has("rping") || !has("ip") {
        return;
    }
    let made = Command::new("unshare").args(["-Urn", "ip", "link", "add", "va", "type", "veth"]).output();
    if !made.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no network namespaces with links can be made");
        return;
    }
    let folder = Folder::new();
    let _alone = lab::alone();
    let mut command = Command::new("unshare");
    command.args(["-Urn", "sh", SCRIPT]).arg(built().join("rnic"));
    command.env("RNIC_RUN_DIR", folder.path().join("run")).stdin(std::process::Stdio::null());
    let ended = Running::start(&folder, &mut command).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let said = "no device can send to 10.9.0.1: there is rnic0 at 127.0.0.1";
    assert!(ended.text.contains(said), "{}", ended.text);
    assert!(!ended.text.contains("FAILED"), "{}", ended.text);
}

/// A host without librdmacm: the loader is led to the library that stands in for it.
fn without_library(program: &str, arguments: &[&str]) -> Ended {
    let folder = Folder::new();
    let mut command = lab::run(&folder, &[], "sh");
    let line = "LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH:$0/fallback\" exec \"$@\"";
    command.args(["-c", line]).arg(built().join("dropin")).arg(program).args(arguments);
    Running::start(&folder, &mut command).wait(LIMIT)
}

#[test]
fn a_program_without_its_library_hears_once_what_to_install() {
    if !has("rping") {
        return;
    }
    let ended = without_library("rping", &["-s", "-a", "127.0.0.1"]);
    assert!(ended.status.is_some_and(|status| !status.success()), "{}", ended.text);
    let line = "but librdmacm.so.1 is not installed; install it";
    assert_eq!(ended.text.matches(line).count(), 1, "{}", ended.text);
}

#[test]
fn a_program_that_does_without_the_library_hears_nothing_of_it() {
    if !has("ucx_info") {
        return;
    }
    let ended = without_library("ucx_info", &["-d"]);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.contains("Device: rnic0:1"), "{}", ended.text);
    assert!(!ended.text.contains("is not installed"), "{}", ended.text);
}
