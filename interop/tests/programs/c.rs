//! C programs that use the verbs in unusual ways: incorrectly, from several threads, across fork, on unmapped memory,
//! and with a bug of rnic in the middle.

use crate::lab::{self, Folder, LIMIT, Running, has};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds one of the programs against the installed headers and rnic's library. Returns `None`, and prints why, if that
/// is not possible here.
pub(crate) fn build(folder: &Folder, name: &str) -> Option<PathBuf> {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    if !header.exists() {
        println!("SKIPPED: libibverbs-dev is not installed, so {name}.c was not built");
        return None;
    }
    if !has("cc") {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/c/{name}.c"));
    let program = folder.path().join(name);
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(&source)
        .arg(lab::built().join("dropin/libibverbs.so.1"))
        .arg("-lpthread")
        .output()
        .expect("a compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Runs one of the programs under `rnic run`, and requires that all of its checks pass.
fn all_holds(name: &str, options: &[&str]) {
    let folder = Folder::new();
    let Some(program) = build(&folder, name) else { return };
    let ended = Running::start(&folder, &mut lab::run(&folder, options, &program)).wait(LIMIT);
    assert_eq!((ended.fault(), ended.text.trim()), (None, "0 failures"), "{name}");
}

#[test]
fn what_is_wrong_is_refused_with_the_usual_errno() {
    all_holds("misuse", &[]);
}

#[test]
fn device_memory_is_sent_and_written_where_its_region_says() {
    all_holds("device_memory", &[]);
}

/// brpc loads `libibverbs.so`.
#[test]
fn a_program_that_loads_the_library_by_any_name_gets_this_one() {
    all_holds("loaded", &[]);
}

#[test]
fn whoever_asks_about_devices_by_netlink_is_answered() {
    all_holds("netlink", &[]);
}

#[test]
fn a_file_of_counters_that_stays_open_is_read_anew() {
    all_holds("reread", &[]);
}

#[test]
fn a_protection_domain_is_in_use_as_long_as_something_is_in_it() {
    all_holds("domains", &[]);
}

#[test]
fn an_object_is_destroyed_after_its_events_are_acknowledged() {
    all_holds("acks", &[]);
}

#[test]
fn memory_that_is_gone_ends_the_work_and_not_the_process() {
    all_holds("unmapped", &[]);
}

#[test]
fn a_child_disturbs_nobody() {
    all_holds("forked", &[]);
}

#[test]
fn a_thread_that_is_cancelled_in_a_verb_ends_and_the_process_goes_on() {
    all_holds("cancel", &[]);
}

#[test]
fn an_object_that_is_not_destroyed_serves_its_threads_all_the_time() {
    all_holds("refused", &[]);
}

#[test]
fn a_child_that_is_forked_at_any_moment_opens_the_device() {
    all_holds("forks", &[]);
}

#[test]
fn requests_without_elements_and_memory_without_rights_are_refused() {
    all_holds("nowhere", &[]);
}

#[test]
fn threads_share_a_device() {
    all_holds("threads", &[]);
}

#[test]
fn completions_and_events_are_as_programs_know_them_from_mlx5() {
    all_holds("drivers", &[]);
    all_holds("drivers", &["--addr", "::1"]);
}

#[test]
fn a_list_is_read_while_other_threads_use_the_device() {
    all_holds("paged", &[]);
}

#[test]
fn identifiers_are_told_that_their_device_has_failed() {
    let folder = Folder::new();
    let Some(program) = build(&folder, "removal") else { return };
    let ended = Running::start(&folder, &mut lab::run(&folder, &[], &program)).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.trim_end().ends_with("\n0 failures"), "{}", ended.text);
}

#[test]
fn a_bug_of_rnic_fails_the_device_and_not_the_process() {
    let folder = Folder::new();
    let Some(program) = build(&folder, "panics") else { return };
    let ended = Running::start(&folder, &mut lab::run(&folder, &[], &program)).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.trim_end().ends_with("\n0 failures"), "{}", ended.text);
    // One line for each, which names the call.
    let said: Vec<_> = ended.text.lines().filter(|line| line.contains("bug in rnic")).collect();
    let calls = ["ibv_modify_qp", "post_send", "wr_complete", "poll_cq", "start_poll"];
    assert_eq!(said.len(), calls.len() + 1, "{said:#?}");
    for (line, call) in said.iter().zip(calls) {
        assert!(line.starts_with(&format!("rnic: {call} hit a bug in rnic: ")), "{line}");
    }
    assert!(said[calls.len()].starts_with("rnic: a bug in rnic stopped the thread"), "{}", said[calls.len()]);
    assert!(said.iter().all(|line| line.contains("has failed, and its calls return EIO")), "{said:#?}");
}
