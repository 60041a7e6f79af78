//! Several runs, and what is not a run.

use super::*;

#[test]
fn runs_are_compared_to_the_first() {
    let folder = Folder::new();
    let file = folder.scenario();
    let words = [
        "compare",
        &file,
        "--vary",
        "workload.0.bytes=50 KB,100 KB",
        "--metric",
        "fct.max_us,flows.finished",
    ];
    let (status, text) = fabric(&words).expect("it runs");
    assert_eq!(status, Status::Passed);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["metric", "50", "KB", "100", "KB", "ratio"]);
    assert!(lines[1][0] == "fct.max_us" && lines[1][3].starts_with('x'), "{text}");
    assert_eq!(lines[2], ["flows.finished", "2", "2", "x1"]);
    // With more runs than metrics, each run has a row.
    let words = ["compare", &file, "--vary", "workload.0.bytes=50KB,100KB", "--metric", "flows.finished"];
    let (_, text) = fabric(&words).expect("it runs");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [vec!["run", "flows.finished", "ratio"], vec!["50KB", "2"], vec!["100KB", "2", "x1"]]);
    let (_, text) = fabric(&["compare", &file, &file]).expect("it runs");
    assert!(
        text.contains("goodput.total_gbps") && !text.contains("port.") && !text.contains("drops.total"),
        "{text}"
    );
    let error = refusal(&["compare", &file]);
    assert!(error.contains("there is one run only"), "{error}");
    let error = refusal(&["compare", &file, &file, "--metric", "fct.max"]);
    assert!(error.contains("did you mean `fct.max_us`?"), "{error}");
}

#[test]
fn an_interrupted_comparison_says_so() {
    let folder = Folder::new();
    let words = ["compare", &folder.scenario(), &folder.scenario()];
    let (status, text) = interruptible(&words, &|| true).expect("it stops");
    assert_eq!(status.code(), 130);
    assert!(text.starts_with("Interrupted: "), "{text}");
}

#[test]
fn a_topology_is_described_drawn_and_written() {
    let (status, text) = fabric(&["topo", "incast"]).expect("it comes with rnic");
    assert_eq!(status, Status::Passed);
    for part in ["16 hosts, 1 switch, 16 cables", "host0", "10.0.0.1", "at s0", "no cycle", "cannot deadlock"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (_, text) = fabric(&["topo", "incast", "--set", "topology.hosts=20"]).expect("it comes with rnic");
    assert!(text.contains("and 4 more (--all names them)"), "{text}");
    let (_, text) = fabric(&["topo", "incast", "--dot"]).expect("it comes with rnic");
    assert!(text.starts_with("graph fabric {"), "{text}");
    let (_, text) = fabric(&["topo", "incast", "--ibnet"]).expect("it comes with rnic");
    assert!(text.contains("switchguid="), "{text}");
    assert!(parse(&["topo", "incast", "--dot", "--ibnet"]).is_err());
}

#[test]
fn a_ring_whose_packets_take_the_shortest_way_can_deadlock() {
    let folder = Folder::new();
    let ring = "name = \"ring\"\nabout = \"A ring.\"\nuntil = \"1 ms\"\n[topology]\nkind = \"ring\"\nswitches = 5\nhosts_per_switch = 2\n";
    std::fs::write(folder.0.join("ring.toml"), ring).expect("a writable folder");
    let (_, text) = fabric(&["topo", &folder.path("ring.toml")]).expect("a ring");
    assert!(text.contains("lossless traffic can deadlock"), "{text}");
    let words = ["topo", &folder.path("ring.toml"), "--set", "routing.ways=up-down"];
    let (_, text) = fabric(&words).expect("a ring");
    assert!(text.contains("lossless traffic cannot deadlock"), "{text}");
}

/// A sweep of four points into a folder.
fn sweep(folder: &Folder, output: &str, more: &[&str]) -> Vec<String> {
    let place = folder.path(output);
    let first = ["sweep", &folder.scenario(), "--vary", "workload.0.bytes=10KB,20KB", "--seeds", "1..2"];
    let words = [&first[..], &["-o", &place], more].concat();
    words.into_iter().map(str::to_owned).collect()
}

fn run_sweep(folder: &Folder, output: &str, more: &[&str]) -> Result<(Status, String), Problem> {
    let words = sweep(folder, output, more);
    fabric(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_sweep_resumes_with_what_is_missing() {
    let folder = Folder::new();
    let words = sweep(&folder, "out", &["--jobs", "1"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Asked before each point begins: the user interrupts during the third.
    let asked = AtomicU32::new(0);
    let (status, text) =
        interruptible(&words, &|| asked.fetch_add(1, Ordering::Relaxed) > 1).expect("it stops");
    assert_eq!(status.code(), 130);
    assert!(text.contains("Interrupted: 2 points are left"), "{text}");
    let (status, text) = fabric(&words).expect("it goes on");
    assert_eq!(status, Status::Passed);
    assert!(text.starts_with("2 of 4 points are done already\n"), "{text}");
    let table = folder.read("out/table.csv");
    assert!(table.starts_with("scenario,workload.0.bytes,seed,passed,"), "{table}");
    let keys: Vec<String> =
        table.lines().skip(1).map(|line| line.split(',').take(4).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(keys, ["small 10KB 1 1", "small 10KB 2 1", "small 20KB 1 1", "small 20KB 2 1"]);
    run_sweep(&folder, "whole", &[]).expect("it runs");
    assert_eq!(folder.read("whole/table.csv"), table);
    let one = "workload.0.bytes=10KB,seed=2.json";
    assert_eq!(folder.read(&format!("whole/{one}")), folder.read(&format!("out/{one}")));
    let error = run_sweep(&folder, "out", &["--set", "switch.buffer.shared=2MB"])
        .expect_err("another sweep")
        .to_string();
    assert!(error.contains("choose another folder"), "{error}");
}

#[test]
fn parts_are_merged() {
    let folder = Folder::new();
    for part in 1..=3 {
        let (_, text) =
            run_sweep(&folder, &format!("out{part}"), &["--part", &format!("{part}/3")]).expect("it runs");
        assert!(text.contains("rnic fabric merge"), "{text}");
    }
    run_sweep(&folder, "whole", &[]).expect("it runs");
    let (merged, folders) =
        (folder.path("merged.csv"), [1, 2, 3].map(|part| folder.path(&format!("out{part}"))));
    let words = ["merge", &folders[2], &folders[0], &folders[1], "-o", &merged];
    let (_, text) = fabric(&words).expect("there are points");
    assert!(text.contains("workload.0.bytes  seeds  passed"), "{text}");
    assert_eq!(folder.read("merged.csv"), folder.read("whole/table.csv"));
    let error = refusal(&["merge", &folder.path("")]);
    assert!(error.contains("no results"), "{error}");
}

#[test]
fn a_point_that_cannot_run_does_not_end_the_others() {
    let folder = Folder::new();
    let out = folder.path("out");
    let words = ["sweep", &folder.scenario(), "--vary", "nic.cc=dcqn,off", "--seeds", "1", "-o", &out];
    let error = refusal(&words);
    assert!(error.starts_with("points that could not run: 1, the first: nic.cc=dcqn,seed=1: "), "{error}");
    assert_eq!(folder.read("out/table.csv").lines().count(), 2);
}

#[cfg(feature = "plot")]
#[test]
fn pictures_have_a_panel_for_each_kind() {
    let folder = Folder::new();
    let (picture, file) = (folder.path("out.svg"), folder.scenario());
    let (_, text) = fabric(&["run", &file, "--plot", &picture]).expect("it runs");
    assert!(text.ends_with("out.svg: queue, rate\n"), "{text}");
    let svg = folder.read("out.svg");
    assert!(svg.contains("time (µs)") && svg.contains("s0>host0") || svg.contains("s0&gt;host0"), "{svg}");
    let words = ["compare", &file, "--vary", "topology.hosts=3,30", "--plot", &picture];
    let (_, text) = fabric(&words).expect("it runs");
    assert!(text.ends_with("out.svg: queue, rate, completion times\n"), "{text}");
    assert!(folder.read("out.svg").contains("flow completion time"));
    let error = refusal(&["run", &file, "--plot", &folder.path("out.jpg")]);
    assert!(error.contains("ends in .svg or .png"), "{error}");
}

/// A table is never made of points that ran with different files.
#[test]
fn a_sweep_notices_that_a_file_of_its_scenario_has_changed() {
    let folder = Folder::new();
    let flows = |bytes: u32| format!("1\n1 0 3 100 {bytes} 0\n");
    std::fs::write(folder.path("flows.txt"), flows(10_000)).expect("a writable folder");
    let text = folder.read("small.toml");
    let traced = text
        .replace("pattern = \"incast\"\nto = \"host0\"\nbytes = \"50 KB\"", TRACE)
        .replace("is = 2", "is = 1");
    std::fs::write(folder.path("small.toml"), traced).expect("a writable folder");
    let (scenario, out) = (folder.scenario(), folder.path("out"));
    let words = ["sweep", &scenario, "--vary", "nic.cc=off", "--seeds", "1", "-o", &out];
    fabric(&words).expect("it runs");
    let (_, text) = fabric(&words).expect("nothing has changed");
    assert!(text.starts_with("1 of 1 points are done already\n"), "{text}");
    std::fs::write(folder.path("flows.txt"), flows(20_000)).expect("a writable folder");
    let error = fabric(&words).expect_err("another file").to_string();
    assert!(error.contains("other files"), "{error}");
}

/// A workload from a file of ns-3.
const TRACE: &str = "pattern = \"trace\"\nfile = \"flows.txt\"\nformat = \"ns3\"";
