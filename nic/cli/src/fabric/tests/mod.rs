//! Commands as a whole, without a process for each.

mod several;

use super::*;
use clap::Parser;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// A scenario that takes no time: two flows into one host.
const SMALL: &str = r#"
name = "small"
about = "Two hosts send to a third. It is a test."
until = "1 ms"

[topology]
kind = "star"
hosts = 3

[[workload]]
pattern = "incast"
to = "host0"
bytes = "50 KB"
priority = 3

[sample]
interval = "1 us"
ports = ["s0>host0"]

[[expect]]
metric = "flows.finished"
is = 2
source = "every flow ends"
"#;

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rnic-fabric-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        std::fs::write(path.join("small.toml"), SMALL).expect("a writable folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect("it was written")
    }

    fn scenario(&self) -> String {
        self.path("small.toml")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Leftovers are in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn parse(words: &[&str]) -> Result<Args, clap::Error> {
    Cli::try_parse_from([&["fabric"], words].concat()).map(|cli| cli.args)
}

/// Runs a command that is never interrupted.
fn fabric(words: &[&str]) -> Result<(Status, String), Problem> {
    interruptible(words, &|| false)
}

fn interruptible(words: &[&str], stop: &(dyn Fn() -> bool + Sync)) -> Result<(Status, String), Problem> {
    let args = parse(words).unwrap_or_else(|error| panic!("{error}"));
    let mut text = Vec::new();
    let status = args.command.run(stop, &mut Output(&mut text))?;
    Ok((status, String::from_utf8(text).expect("text")))
}

fn refusal(words: &[&str]) -> String {
    let text = fabric(words).expect_err("a problem").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn scenarios_are_listed_and_shown() {
    let (status, text) = fabric(&["list"]).expect("a list");
    assert_eq!(status, Status::Passed);
    assert!(text.starts_with("incast\n    Fifteen hosts send"), "{text}");
    assert!(text.contains("\nopensm\n    A switch of InfiniBand as OpenSM sets it up by default"), "{text}");
    let (_, text) = fabric(&["show", "sonic-spectrum3"]).expect("it comes with rnic");
    assert!(text.contains("\n24 = 1\n"), "{text}");
    let folder = Folder::new();
    let (_, text) = fabric(&["show", "incast"]).expect("it comes with rnic");
    fabric(&["show", "incast", "-o", &folder.path("own.toml")]).expect("a writable folder");
    assert_eq!(folder.read("own.toml"), text);
    let error = refusal(&["show", "incast", "-o", &folder.path("own.toml")]);
    assert!(error.starts_with("cannot write "), "{error}");
}

#[test]
fn a_run_says_what_was_given_and_what_came_out() {
    let folder = Folder::new();
    let (status, text) = fabric(&["run", &folder.scenario()]).expect("it runs");
    assert_eq!(status.code(), 0);
    for part in [
        "small\n\n  Two hosts send to a third.",
        "Inputs (given, not measured)",
        "Results with seed 1",
        "up to 100 KB       2     2",
        "drops",
        "The busiest ports",
        "s0>host0",
        "  pass  flows.finished: 2, expected: is 2\n        every flow ends",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn an_expectation_that_is_not_met_is_exit_code_1() {
    let folder = Folder::new();
    let words = ["run", &folder.scenario(), "--set", "expect.0.is=3", "--quiet"];
    let (status, text) = fabric(&words).expect("it runs");
    assert_eq!(status.code(), 1);
    assert_eq!(text, "Expectations\n  FAIL  flows.finished: 2, expected: is 3\n        every flow ends\n");
    let (status, text) = fabric(&["run", &folder.scenario(), "--quiet"]).expect("it runs");
    assert_eq!((status.code(), &*text), (0, ""));
}

#[test]
fn an_interrupted_run_reports_what_there_is() {
    let folder = Folder::new();
    // The run would take far longer than the test. It asks every few thousand steps whether to stop.
    let words = ["run", &folder.scenario(), "--set", "until=1 s", "--set", "workload.0.bytes=1 GB"];
    let asked = AtomicU32::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) > 2;
    let (status, text) = interruptible(&words, &stop).expect("it stops");
    assert_eq!(status.code(), 130);
    assert!(text.contains("Interrupted: results with seed 1 until"), "{text}");
    assert!(text.contains("FAIL  flows.finished: 0"), "{text}");
    let (status, text) = interruptible(&words, &|| true).expect("it stops");
    assert_eq!((status.code(), &*text), (130, "Interrupted before anything ran.\n"));
}

#[test]
fn ports_are_captured() {
    let folder = Folder::new();
    let file = folder.path("port.pcapng");
    let option = format!("s0>host0={file}");
    fabric(&["run", &folder.scenario(), "--quiet", "--capture", &option]).expect("it runs");
    let bytes = std::fs::read(&file).expect("it was written");
    // 2 flows of 50 KB, and the section header of pcapng.
    assert!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && bytes.len() > 100_000, "{}", bytes.len());
    let error = refusal(&["run", &folder.scenario(), "--seeds", "1..2", "--capture", &option]);
    assert_eq!(error, "--capture: captures are of one run: choose it with --seed");
    let error = refusal(&["run", &folder.scenario(), "--capture", "s0>host7=x"]);
    assert!(error.contains("capture of s0>host7: "), "{error}");
    assert!(parse(&["run", "incast", "--capture", "s0>host0"]).is_err());
}

#[test]
fn what_cannot_run_is_one_line() {
    let folder = Folder::new();
    let file = folder.scenario();
    let error = refusal(&["run", &file, "--set", "switch.bufer.shared=1MB"]);
    assert!(error.starts_with("--set switch.bufer.shared=1MB: unknown field `bufer`"), "{error}");
    let error = refusal(&["run", &file, "--set", "topology.hots=3"]);
    assert!(error.starts_with("--set topology.hots=3: "), "{error}");
    let error = refusal(&["run", &file, "--cc", "dcqn"]);
    assert!(error.contains("seed 1: the congestion control of the hosts"), "{error}");
    for wrong in [
        &["run"][..],
        &["run", "incast", "--seed", "x"],
        &["run", "incast", "--seeds", "5..1"],
        &["run", "incast", "--seed", "1", "--seeds", "1..2"],
        &["run", "incast", "--set", "x"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = Folder::new();
    let run = |seeds: &str| {
        let words =
            ["run", &folder.scenario(), "--seeds", seeds, "--json", "-", "--set", "switch.buffer.shared=1MB"];
        fabric(&words).expect("it runs").1
    };
    let one = run("1..3");
    assert_eq!(one, run("1..3"));
    let document: serde_json::Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(document["settings"]["switch.buffer.shared"], "1MB");
    assert_eq!(document["runs"][2]["seed"], 3);
    assert_eq!(document["runs"][0]["passed"], true);
    assert_eq!(document["runs"][0]["flows"][0]["outcome"], "finished");
}

#[test]
fn seeds_have_a_row_each_and_files_name_them() {
    let folder = Folder::new();
    let (csv, json) = (folder.path("csv"), folder.path("out.json"));
    let words = ["run", &folder.scenario(), "--seeds", "1,4", "--csv", &csv, "--json", &json];
    let (status, text) = fabric(&words).expect("it runs");
    assert_eq!(status, Status::Passed);
    assert!(text.contains("Results by seed") && text.contains("pass  flows.finished: 2"), "{text}");
    let lines = |name: &str| folder.read(&format!("csv/{name}")).lines().count();
    assert_eq!(lines("flows.csv"), 1 + 2 * 2);
    assert!(lines("ports.csv") > 4 && lines("series.csv") > 10 && lines("metrics.csv") > 20);
    let flows = folder.read("csv/flows.csv");
    assert!(flows.starts_with("seed,name,from,to,bytes,") && flows.contains("\n4,"), "{flows}");
    assert!(folder.read("csv/metrics.csv").contains("\n4,flows.finished,2\n"));
    assert!(folder.read("out.json").contains("\"seed\": 4"));
}
