//! The command `rnic fabric` as a program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCENARIO: &str = r#"
name = "pair"
about = "A host sends to another."
until = "1 ms"

[topology]
kind = "direct"

[[workload]]
pattern = "incast"
to = "host0"
bytes = "100 KB"
priority = 3

[sample]
interval = "1 us"
ports = ["host1>host0"]

[[expect]]
metric = "flows.finished"
is = 1
source = "every flow ends"
"#;

/// An empty folder of one test, with a scenario.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fabric-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("pair.toml"), SCENARIO).unwrap();
    path
}

fn fabric(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).arg("fabric").args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn exit_codes_tell_how_it_ended() {
    let folder = folder("codes");
    let passed = fabric(&folder, &["run", "pair.toml"]);
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed.stderr));
    assert!(text(&passed.stdout).contains("pass  flows.finished: 1"), "{}", text(&passed.stdout));
    assert!(passed.stderr.is_empty(), "no progress where there is no terminal");
    let failed = fabric(&folder, &["run", "pair.toml", "--set", "expect.0.is=2"]);
    assert_eq!(failed.status.code(), Some(1));
    for wrong in
        [&["run", "pair"][..], &["run", "pair.toml", "--set", "topolgy.kind=ring"], &["show", "pear"]]
    {
        let output = fabric(&folder, wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let told = text(&output.stderr);
        assert!(told.starts_with("rnic: ") && told.lines().count() == 1, "{told}");
    }
}

#[test]
fn the_same_seed_twice_is_the_same_json() {
    let folder = folder("json");
    let run = || fabric(&folder, &["run", "pair.toml", "--seed", "7", "--json", "-"]).stdout;
    let first = run();
    assert!(!first.is_empty());
    assert_eq!(first, run());
}

#[test]
fn a_sweep_goes_on_where_it_was_stopped() {
    let folder = folder("sweep");
    let words =
        ["sweep", "pair.toml", "--vary", "workload.0.bytes=10 KB,20 KB", "--seeds", "1..2", "-o", "out"];
    let whole = fabric(&folder, &words);
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    let (table, lost) = (folder.join("out/table.csv"), "out/workload.0.bytes=10_KB,seed=2");
    let before = fs::read(&table).unwrap();
    let files = || -> Vec<String> {
        let entries = fs::read_dir(folder.join("out")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(files().len(), 5, "{:?}", files());
    let lost = files().into_iter().find(|name| lost.ends_with(name.split('~').next().unwrap())).unwrap();
    fs::remove_file(folder.join("out").join(lost)).unwrap();
    let again = fabric(&folder, &words);
    assert!(text(&again.stdout).starts_with("3 of 4 points are done already\n"), "{}", text(&again.stdout));
    assert_eq!(fs::read(&table).unwrap(), before);
}

#[cfg(feature = "plot")]
#[test]
fn samples_are_drawn() {
    let folder = folder("plot");
    for name in ["out.svg", "out.png"] {
        let output = fabric(&folder, &["run", "pair.toml", "--plot", name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(&format!("{name}: queue, rate")), "{}", text(&output.stdout));
    }
    assert!(fs::read(folder.join("out.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(fs::read_to_string(folder.join("out.svg")).unwrap().contains("rate (Gb/s)"));
    let output = fabric(&folder, &["run", "pair.toml", "--plot", "out.jpg"]);
    assert_eq!(output.status.code(), Some(2));
}
