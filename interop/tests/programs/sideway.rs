//! sideway, a Rust crate for verbs: its unmodified tests and examples. It loads the libraries with `dlopen`.

use crate::lab::{self, Folder, LIMIT, Running, built};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The number of its tests; each opens its own devices.
const PASSES: usize = 68;

/// Its tests, except those of compiler messages.
const TESTS: [&str; 5] = ["test_atomic", "test_cq", "test_mr_and_cq", "test_post_send", "test_qp"];

/// The directory to which it was downloaded. If it is missing, prints a message: the test is then skipped.
fn folder() -> Option<PathBuf> {
    let folder = lab::installed().join("sideway");
    let found = folder.join("complete").exists();
    if !found {
        println!("SKIPPED: interop/sideway/install did not fetch sideway, so its tests were not run on rnic");
    }
    found.then_some(folder)
}

#[test]
fn the_tests_of_sideway_pass() {
    let Some(folder) = folder() else { return };
    let place = Folder::new();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--offline", "--locked", "--no-fail-fast", "--manifest-path"]);
    command.arg(folder.join("source/Cargo.toml")).arg("--target-dir").arg(&folder).arg("--lib");
    command.args(TESTS.iter().flat_map(|test| ["--test", test]));
    // cargo itself does not run on rnic, but the tests that it starts do. Some of them use the GID at index 1.
    let runner = format!("{} run --", built().join("rnic").display());
    command.env(runner_variable(), runner).env("RNIC_RUN_DIR", place.path().join("run"));
    let alone = lab::alone();
    let ended = Running::start(&place, &mut command).wait(Duration::from_secs(600));
    drop(alone);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let results = ended.text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let passes: usize =
        results.filter_map(|rest| rest.split_whitespace().next()?.parse::<usize>().ok()).sum();
    println!("sideway: {passes} passed");
    assert!(passes >= PASSES, "{passes} passed; there were {PASSES}:\n{}", ended.text);
}

/// The environment variable that sets cargo's test runner for this host.
fn runner_variable() -> String {
    let text = Command::new("rustc").arg("-vV").output().expect("rustc").stdout;
    let text = String::from_utf8(text).expect("text");
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"))
}

#[test]
fn the_examples_of_sideway_run() {
    let Some(folder) = folder() else { return };
    let example = |name: &str| folder.join("debug/examples").join(name).to_string_lossy().into_owned();
    let place = Folder::new();
    let options = ["--addr", "127.90.4.1", "--gid-table", "rxe"];
    for (name, says) in [
        ("show_gids", "0000:0000:0000:0000:0000:ffff:7f5a:0401 | 127.90.4.1 | RoCEv2 |   lo"),
        ("ibv_devinfo", "hca_id: rnic0"),
    ] {
        let ended = Running::start(&place, &mut lab::run(&place, &options, example(name))).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{}", ended.text);
        assert!(ended.text.contains(says), "{says} in {}", ended.text);
    }
    let rows = [
        ("rc_pingpong", &[][..]),
        ("rc_pingpong", &["-m", "4096", "-s", "100000"]),
        ("rc_pingpong", &["-t"]),
        ("rc_pingpong_split", &[]),
    ];
    let ended = rows.into_iter().map(|(name, options)| {
        let common = [&["-g", "0"], options].concat();
        let ends = lab::pair(&example(name), &[], &common, [&[], &[]]);
        let says = |_, text: &str| (!text.contains("bytes in")).then(|| format!("told no result: {text}"));
        (format!("{name} {}", options.join(" ")), lab::faults(&ends, says))
    });
    lab::matrix("sideway", ended);
}
