//! C programs with one bug each (`interop/bugs`). Under `rnic run --explain` a line names the bug; the fixed program
//! prints no such line.

use crate::lab::{self, Ended, Folder, LIMIT, Running, has};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The minimum number of programs.
const PROGRAMS: usize = 45;

/// A program, and the text that the lines explaining its bug contain.
struct Program {
    name: String,
    source: PathBuf,
    wanted: Vec<String>,
}

/// The programs. The first comment of each says what to expect of it.
fn programs() -> Vec<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bugs");
    let mut all: Vec<_> = fs::read_dir(&folder)
        .expect("the folder of the programs")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|source| {
            let text = fs::read_to_string(&source).expect("a program");
            let wanted = text.lines().filter_map(|line| line.strip_prefix(" * Line: ")).map(str::to_owned);
            let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
            Program { name, wanted: wanted.collect(), source }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Builds a program, with or without its bug, and runs it with explanations.
fn run(folder: &Folder, of: &Program, is_fixed: bool) -> Ended {
    let program = folder.path().join(format!("{}-{}", of.name, if is_fixed { "fixed" } else { "bug" }));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-O1"]).args(is_fixed.then_some("-DFIXED")).arg("-o").arg(&program);
    cc.arg(&of.source).arg(lab::built().join("dropin/libibverbs.so.1"));
    let built = cc.output().expect("a compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Running::start(folder, &mut lab::run(folder, &["--explain"], &program)).wait(LIMIT)
}

/// The lines that explain a failure.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("rnic: ")).collect()
}

/// What is missing or wrong in the output of a program with its bug.
fn unexplained(of: &Program, ended: &Ended) -> Option<String> {
    if ended.status.is_none_or(|status| status.code().is_none()) {
        return ended.fault();
    }
    let lines = lines(&ended.text);
    let missing = of.wanted.iter().find(|wanted| !lines.iter().any(|line| line.contains(*wanted)))?;
    Some(format!("no line says `{missing}`:\n    {}", ended.text.trim_end().replace('\n', "\n    ")))
}

/// Whether C programs can be built here.
fn can_build() -> bool {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIPPED: libibverbs-dev is not installed, so the programs with bugs were not built");
        return false;
    }
    has("cc")
}

#[test]
fn each_seeded_bug_is_named_by_a_line_and_corrected_programs_draw_none() {
    if !can_build() {
        return;
    }
    let folder = Folder::new();
    let programs = programs();
    assert!(programs.len() >= PROGRAMS, "{} programs", programs.len());
    let _alone = lab::alone();
    let rows = programs.iter().flat_map(|of| {
        assert!(!of.wanted.is_empty(), "{} does not say which line it draws", of.name);
        let ended = run(&folder, of, false);
        let fixed = run(&folder, of, true);
        let wrong = fixed.fault().or_else(|| {
            let drawn = lines(&fixed.text);
            (!drawn.is_empty()).then(|| format!("draws {drawn:#?}"))
        });
        [(of.name.clone(), unexplained(of, &ended)), (format!("{} corrected", of.name), wrong)]
    });
    lab::matrix("programs with a bug", rows);
}

#[test]
fn nothing_is_printed_of_a_bug_without_explain() {
    if !can_build() {
        return;
    }
    let folder = Folder::new();
    let all = programs();
    let of = all.iter().find(|of| of.name == "wrong_rkey").expect("it is one of them");
    let with = run(&folder, of, false);
    assert!(!lines(&with.text).is_empty(), "{}", with.text);
    let program = folder.path().join("wrong_rkey-bug");
    let without = Running::start(&folder, &mut lab::run(&folder, &[], &program)).wait(LIMIT);
    assert_eq!(lines(&without.text), [""; 0], "{}", without.text);
}

#[test]
fn the_log_at_debug_has_what_becomes_of_queue_pairs_and_not_every_packet() {
    if !can_build() {
        return;
    }
    let folder = Folder::new();
    let all = programs();
    // Four READs of 100,000 bytes each are 400 packets.
    let of = all.iter().find(|of| of.name == "read_depth").expect("it is one of them");
    assert_eq!(run(&folder, of, true).fault(), None);
    let program = folder.path().join("read_depth-fixed");
    let log = |level: &str| {
        let mut command = lab::run(&folder, &[], &program);
        Running::start(&folder, command.env("RNIC_LOG", level)).wait(LIMIT).text
    };
    let debug = log("rnic=debug");
    let changes = debug.lines().filter(|line| line.contains("a queue pair changes its state")).count();
    // Two queue pairs, each from RESET to INIT, to RTR and to RTS.
    assert_eq!(changes, 6, "{debug}");
    assert!(debug.contains("from=INIT to=RTR") && debug.contains("peer=127.0.0."), "{debug}");
    assert!(debug.lines().count() < 60, "{debug}");
    assert_eq!(log("warn"), "");
}

#[test]
fn a_call_that_fails_a_thousand_times_draws_a_few_lines_and_a_count() {
    let folder = Folder::new();
    let Some(program) = crate::c::build(&folder, "flood") else { return };
    let ended = Running::start(&folder, &mut lab::run(&folder, &["--explain"], &program)).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let lines = lines(&ended.text);
    let suppressed = lines.iter().filter_map(|line| {
        let count = line.strip_prefix("rnic: ibv_modify_qp: ")?.strip_suffix(" more suppressed")?;
        count.parse::<usize>().ok()
    });
    let (counts, suppressed) = suppressed.fold((0, 0), |(counts, sum), count| (counts + 1, sum + count));
    assert_eq!(lines.len() - counts + suppressed, 1000, "{lines:#?}");
    assert!(suppressed > 0 && lines.len() < 500, "{lines:#?}");
}

#[test]
fn perftest_draws_no_line() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_lat"] {
        if !has(program) {
            continue;
        }
        let ends = lab::pair(program, &["--explain"], &["-n", "200"], [&[], &[]]);
        let drawn = |_: usize, text: &str| {
            let drawn = lines(text);
            (!drawn.is_empty()).then(|| format!("draws {drawn:#?}"))
        };
        assert_eq!(lab::faults(&ends, drawn), None, "{program}");
    }
}
