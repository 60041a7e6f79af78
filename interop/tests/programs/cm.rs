//! Programs that look for a connection manager. rnic has none.

use crate::lab::{self, Folder, LIMIT, Running, has};

/// The message that rnic prints.
const LINE: &str = "rnic: there is no RDMA connection manager";

#[test]
fn a_program_that_does_without_a_connection_manager_hears_nothing_of_it() {
    if !has("ucx_info") {
        return;
    }
    let folder = Folder::new();
    let ended = Running::start(&folder, lab::run(&folder, &[], "ucx_info").arg("-d")).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    assert!(ended.text.contains("rdmacm"), "it looked for one: {}", ended.text);
    assert!(ended.text.contains("Device: rnic0:1"), "{}", ended.text);
    assert!(!ended.text.contains(LINE) && !ended.text.contains("ERROR"), "{}", ended.text);
}

#[test]
fn a_program_that_fails_for_want_of_a_connection_manager_hears_why_once() {
    if !has("rping") {
        return;
    }
    let folder = Folder::new();
    let mut command = lab::run(&folder, &[], "rping");
    let ended = Running::start(&folder, command.args(["-s", "-a", "127.0.0.1"])).wait(LIMIT);
    assert!(ended.status.is_some_and(|status| !status.success()), "{}", ended.text);
    assert_eq!(ended.text.matches(LINE).count(), 1, "{}", ended.text);
}
