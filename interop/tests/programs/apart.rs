//! Two connected programs, and what other processes see of them: `rnic show qp`, and the reasons of refusals.

use crate::c::build;
use crate::lab::{self, Ended, Folder, LIMIT, Running};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The queue pairs that `rnic show qp` lists, once `count` of them are in RTS.
fn queue_pairs(folder: &Folder, count: usize) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let shown = lab::rnic(folder).args(["show", "qp", "--json"]).output().expect("rnic");
        let rows: Vec<Value> = serde_json::from_slice(&shown.stdout).expect("JSON");
        let ready = rows.iter().filter(|row| row["state"] == "RTS").count();
        if ready == count || start.elapsed() > LIMIT {
            return rows;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs both ends; `look` is called while they are connected.
fn play(options: &[&str], look: impl FnOnce(&Folder)) -> Option<Ended> {
    let folder = Folder::new();
    let program = build(&folder, "apart")?;
    let mut command = lab::run(&folder, &["--explain"], &program);
    let mut running = Running::start(&folder, command.arg(folder.path()).args(options));
    let ready = |folder: &Folder| Path::exists(&folder.path().join("ready"));
    let start = Instant::now();
    while !ready(&folder) && !running.has_ended() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    look(&folder);
    fs::write(folder.path().join("go"), "").expect("a file");
    Some(running.wait(LIMIT))
}

#[test]
fn queue_pairs_of_running_programs_are_shown_with_their_peers() {
    let ended = play(&[], |folder| {
        let rows = queue_pairs(folder, 2);
        assert_eq!(rows.len(), 2, "{rows:#?}");
        let (one, other) = (&rows[0], &rows[1]);
        for (own, peer) in [(one, other), (other, one)] {
            assert_eq!((&own["type"], &own["state"]), (&"RC".into(), &"RTS".into()));
            assert_eq!((&own["peer_qpn"], &own["comm"]), (&peer["lqpn"], &"apart".into()), "{rows:#?}");
            assert_eq!((&own["retries_left"], &own["sends"]), (&7.into(), &0.into()), "{rows:#?}");
        }
        assert_ne!(one["pid"], other["pid"]);
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.fault(), None, "{}", ended.text);
}

#[test]
fn a_requester_learns_why_it_was_refused_if_both_ends_explain() {
    let Some(ended) = play(&[], |_| {}) else { return };
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let lines: Vec<_> = ended.text.lines().filter(|line| line.starts_with("rnic: ")).collect();
    assert!(lines.iter().any(|line| line.contains("RDMA_WRITE refused (vendor_err 1): key")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("The peer says: key")), "{lines:#?}");
}

#[test]
fn a_requester_learns_nothing_of_a_responder_that_does_not_explain() {
    let Some(ended) = play(&["quiet"], |_| {}) else { return };
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let lines: Vec<_> = ended.text.lines().filter(|line| line.starts_with("rnic: ")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("REM_ACCESS_ERR (vendor_err 68)"), "{lines:#?}");
    assert!(!lines[0].contains("0x5a"), "{lines:#?}");
    assert!(!lines[0].contains("The peer says") && !lines[0].contains("names no memory"), "{lines:#?}");
}
