//! Captures of programs that end in various ways: the file is always complete and readable.

use crate::c::build;
use crate::lab::{self, Folder, LIMIT, Running, has};
use qp::wire::Opcode;
use rnic::capture::{Content, Decoder};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `ends.c` with a capture. The program ends in the given `way` after `writes` WRITEs. Returns the capture file,
/// and the number of WRITEs that the program saw complete.
fn capture(folder: &Folder, program: &Path, way: &str, writes: usize) -> (PathBuf, usize) {
    let file = folder.path().join("capture.pcapng");
    let path = file.to_str().expect("a path of text");
    let mut command = lab::run(folder, &["--capture", path], program);
    let ended = Running::start(folder, command.arg(way).arg(writes.to_string())).wait(LIMIT);
    assert!(ended.status.is_some(), "{way} took too long");
    let completed = ended.text.trim().parse();
    (file, completed.unwrap_or_else(|_| panic!("{way}: {}", ended.text)))
}

/// RDMA WRITE Only of an RC queue pair.
const WRITE_ONLY: &str = "10";

#[test]
fn a_capture_is_whole_however_the_program_ends() {
    let folder = Folder::new();
    let Some(program) = build(&folder, "ends") else { return };
    if !has("tshark") {
        return;
    }
    let _alone = lab::alone();
    // The numbers are SIGINT, SIGKILL and SIGTERM.
    for way in ["return", "exit", "_exit", "abort", "2", "9", "15"] {
        let (file, completed) = capture(&folder, &program, way, 100);
        let read = Command::new("tshark")
            .arg("-r")
            .arg(&file)
            .args(["-T", "fields", "-e", "infiniband.bth.opcode"])
            .output()
            .expect("tshark");
        let complaint = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success() && !complaint.contains("tshark:"), "{way}: {complaint}");
        let text = String::from_utf8_lossy(&read.stdout);
        let writes = text.lines().filter(|line| *line == WRITE_ONLY).count();
        assert!(completed >= 100 && writes >= completed, "{way}: {writes} of {completed} WRITEs captured");
    }
}

#[test]
fn a_capture_is_whole_when_the_program_is_killed_in_the_middle_of_traffic() {
    let folder = Folder::new();
    let Some(program) = build(&folder, "ends") else { return };
    let _alone = lab::alone();
    let mut damaged = Vec::new();
    for round in 0..30 {
        // Some rounds go beyond the first MiB, so that the file has grown.
        let (file, completed) = capture(&folder, &program, "9", 10 + 61 * round);
        let mut writes = 0;
        for packet in Decoder::new(File::open(&file).expect("the capture")).expect("a capture") {
            match packet.map(|packet| packet.content) {
                Ok(Content::Packet { headers, .. }) => {
                    writes += usize::from(headers.opcode == Opcode::RcWriteOnly)
                }
                Ok(other) => panic!("round {round}: {other}"),
                Err(error) => damaged.push(format!("round {round}: {error}")),
            }
        }
        assert!(writes >= completed, "round {round}: {writes} of {completed} WRITEs captured");
    }
    // If the program is killed between two consecutive stores, the block behind the last packet is damaged.
    assert!(damaged.len() <= 1, "{damaged:?}");
}

#[test]
fn a_capture_ends_with_its_last_packet_if_the_program_lets_it() {
    let folder = Folder::new();
    let Some(program) = build(&folder, "ends") else { return };
    let _alone = lab::alone();
    let (file, completed) = capture(&folder, &program, "return", 10);
    let bytes = file.metadata().expect("the capture").len();
    // A WRITE of 1000 bytes and its acknowledgement, each captured in both directions, with block overhead: less than
    // 3000 bytes.
    let packets = Decoder::new(File::open(&file).expect("the capture")).expect("a capture").count() as u64;
    assert!(completed >= 10 && bytes < 1000 + packets * 1500, "{bytes} bytes for {packets} packets");
}
