//! The tests of pyverbs, the field's own test suite for verbs, unmodified.
//!
//! A test skips itself if a call is not supported. So passes are counted, and each skipped test must be listed in
//! `pyverbs/skipped.txt` with the reason. Tests whose reason is `not run` would fail, and are not run.

use crate::lab::{self, Folder, Running};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The minimum number of tests that pass.
const PASSES: usize = 136;

/// The maximum number of tests that skip themselves. The list may name more: some skip on some hosts only.
const SKIPS: usize = 127;

/// The whole suite takes a minute on a host with two cores.
const LIMIT: Duration = Duration::from_secs(900);

/// The result of each test, by name, with its reason.
fn results(text: &str) -> BTreeMap<String, (String, String)> {
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        let (Some(what), Some(test), Some(why)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if what != "done" {
            results.insert(test.to_owned(), (what.to_owned(), why.to_owned()));
        }
    }
    results
}

/// Parts of the names of tests that provoke failures.
const MEANT: [&str; 9] = [
    "bad",
    "invalid",
    "illegal",
    "wrong",
    "non_aligned",
    "rereg",
    "test_create_ah_roce",
    "test_resize_cq",
    "test_qp_ex_rc_bind_mw",
];

/// `--explain` lines from tests that do not provoke failures: those that pass, and do not probe the features of a
/// device.
fn unmeant<'a>(text: &'a str, results: &BTreeMap<String, (String, String)>) -> Vec<(&'a str, &'a str)> {
    let (mut test, mut found) = ("", Vec::new());
    for line in text.lines() {
        test = line.strip_prefix("run\t").map_or(test, |name| name.trim_end());
        let is_meant = MEANT.iter().any(|part| test.contains(part));
        let is_tried = line.ends_with("(EOPNOTSUPP)");
        let passes = results.get(test).is_some_and(|(what, _)| what == "ok");
        if line.starts_with("rnic: ") && passes && !is_meant && !is_tried {
            found.push((test, line));
        }
    }
    found
}

/// The prefixes of the names of tests that are not run.
fn not_run(list: &str) -> Vec<&str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter_map(|line| line.split_once(' '));
    let not_run = lines.filter(|(_, why)| why.trim_start().starts_with("not run"));
    not_run.map(|(name, _)| name.trim_end_matches('*')).collect()
}

/// Whether a test may be skipped. In the list, a `*` at the end of a name matches anything.
fn may_be_skipped(list: &str, test: &str) -> bool {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).any(|name| match name.strip_suffix('*') {
        Some(beginning) => test.starts_with(beginning),
        None => name == test,
    })
}

#[test]
fn the_tests_of_pyverbs_pass() {
    let folder = lab::installed().join("pyverbs");
    if !folder.join("complete").exists() {
        println!("SKIPPED: interop/pyverbs/install did not fetch pyverbs, so its tests were not run on rnic");
        return;
    }
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("pyverbs");
    let list = std::fs::read_to_string(ours.join("skipped.txt")).expect("the list of what is skipped");
    let place = Folder::new();
    let mut command = lab::run(&place, &["--explain"], "python3");
    command.arg(ours.join("run.py")).arg(&folder);
    command.args(not_run(&list).into_iter().flat_map(|name| ["--without", name]));
    command.args(["--dev", "rnic0", "--gid", "0"]);
    let _alone = lab::alone();
    let ended = Running::start(&place, &mut command).wait(LIMIT);
    let results = results(&ended.text);
    let of = |what: &str| {
        results.iter().filter(|(_, (is, _))| is == what).map(|(test, _)| test).collect::<Vec<_>>()
    };
    let unfinished = of("run");
    assert_eq!((ended.fault(), unfinished.len()), (None, 0), "in {unfinished:?}:\n{}", ended.text);
    let faults: Vec<_> =
        results.iter().filter(|(_, (what, _))| matches!(&**what, "fail" | "error")).collect();
    assert!(faults.is_empty(), "{} failed: {faults:#?}\n{}", faults.len(), ended.text);
    let unmeant = unmeant(&ended.text, &results);
    assert!(unmeant.is_empty(), "lines of tests in which nothing should fail: {unmeant:#?}");
    let drawn = ended.text.lines().filter(|line| line.starts_with("rnic: ")).count();
    assert!(drawn >= 50, "{drawn} lines of tests in which something should fail");
    let unlisted: Vec<_> = of("skip").into_iter().filter(|test| !may_be_skipped(&list, test)).collect();
    assert!(unlisted.is_empty(), "skipped, and not in skipped.txt: {unlisted:#?}");
    let (passes, skips) = (of("ok"), of("skip"));
    for test in passes.iter().filter(|test| may_be_skipped(&list, test)) {
        println!("{test} passes: take it out of skipped.txt");
    }
    println!("pyverbs: {} passed, {} skipped of their own accord", passes.len(), skips.len());
    assert!(passes.len() >= PASSES, "{} passed; there were {PASSES}", passes.len());
    assert!(skips.len() <= SKIPS, "{} skipped; there were {SKIPS}", skips.len());
}

#[test]
fn results_and_lists_are_read_as_they_are_written() {
    let text = "noise\nrun\ta.b\t\nok\ta.b\t\nrun\tc.d\t\nskip\tc.d\tno such thing\nrun\te.f\t\ndone\t3\t\n";
    let results = results(text);
    assert_eq!(results["c.d"], ("skip".to_owned(), "no such thing".to_owned()));
    assert_eq!((&*results["a.b"].0, &*results["e.f"].0, results.len()), ("ok", "run", 3));
    let list = "# a\ntests.mlx5* other hardware\ntests.x.y odd\n";
    assert!(may_be_skipped(list, "tests.mlx5_dr.z") && may_be_skipped(list, "tests.x.y"));
    assert_eq!(not_run("# not run\na.b* not run: c\nd not, run\n"), ["a.b"]);
    assert!(!may_be_skipped(list, "tests.x.yz") && !may_be_skipped(list, "a") && !may_be_skipped(list, "#"));
}

/// The number of tests of pyverbs for librdmacm.
const CONNECTING: usize = 10;

/// Two processes at one address of the host, which a daemon shares out. The address is that of the loopback interface, so they
/// get a network namespace of their own.
#[test]
fn the_tests_of_pyverbs_for_librdmacm_pass_at_a_shared_address() {
    let suite = lab::installed().join("pyverbs");
    if !suite.join("complete").exists() || !lab::has("unshare") {
        println!("SKIPPED: pyverbs is not there, so its tests for librdmacm were not run on rnic");
        return;
    }
    const SCRIPT: &str = r#"ip link set lo up
"$0" daemon --addr 127.0.0.1 --socket "$1/daemon.sock" 2>"$1/daemon.log" & daemon=$!
until [ -S "$1/daemon.sock" ]; do sleep 0.05; done
"$0" run --daemon "$1/daemon.sock" -- python3 "$2" "$3" --dev rnic0 --gid 0 tests.test_rdmacm
kill $daemon; wait $daemon"#;
    let place = Folder::new();
    let mut command = lab::rnic(&place);
    let rnic = command.get_program().to_owned();
    let environment: Vec<_> =
        command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
    command = std::process::Command::new("unshare");
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // An ordinary user has a network namespace inside a user namespace.
    command.args(if nix::unistd::geteuid().is_root() { ["-n", "sh", "-c"] } else { ["-rn", "sh", "-c"] });
    command.arg(SCRIPT).arg(rnic).arg(place.path());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("pyverbs/run.py")).arg(&suite);
    let _alone = lab::alone();
    let ended = Running::start(&place, &mut command).wait(LIMIT);
    let results = results(&ended.text);
    let passed = results.values().filter(|(what, _)| what == "ok").count();
    assert_eq!((ended.fault(), passed), (None, CONNECTING), "{}", ended.text);
}
