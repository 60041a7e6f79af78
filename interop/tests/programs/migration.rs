//! QEMU moves a running guest to another QEMU over RDMA.

use crate::lab::{self, Folder, LIMIT, Running, has};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the guest has in its memory, and where: the source puts it there, and nobody else.
const MARK: &str = "0x5eed1234";
const PLACE: &str = "0x2000000";

/// What the monitor of a QEMU answers to a command.
fn ask(monitor: &Path, command: &str) -> String {
    let begin = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(monitor) {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < LIMIT, "{}: {error}", monitor.display()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stream.set_read_timeout(Some(LIMIT)).expect("a time");
    until_prompt(&mut stream, command);
    stream.write_all(format!("{command}\n").as_bytes()).expect("the monitor takes commands");
    until_prompt(&mut stream, command)
}

/// Reads up to the next prompt of the monitor.
fn until_prompt(stream: &mut UnixStream, command: &str) -> String {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"(qemu) ") {
        match stream.read(&mut byte) {
            Ok(1) => text.push(byte[0]),
            // With a timeout, the kernel does not take up a read again that a signal interrupts.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => panic!("{command}: {other:?} after {}", String::from_utf8_lossy(&text)),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn qemu_migrates_a_guest() {
    if !has("qemu-system-x86_64") {
        return;
    }
    let folder = Folder::new();
    let _alone = lab::alone();
    let start = |address: &str, name: &str, more: &[&str]| {
        let mut command = lab::run(&folder, &["--addr", address, "--explain"], "qemu-system-x86_64");
        command.args(["-accel", "tcg", "-m", "64", "-nodefaults", "-display", "none"]).args(more);
        let monitor = folder.path().join(name);
        command.arg("-monitor").arg(format!("unix:{},server,nowait", monitor.display()));
        (Running::start(&folder, &mut command), monitor)
    };
    let loader = format!("loader,addr={PLACE},data={MARK},data-len=4");
    let (target, there) = start("127.91.251.1", "target", &["-incoming", "rdma:127.91.251.1:4444"]);
    let (source, here) = start("127.91.251.2", "source", &["-device", &loader]);
    ask(&there, "info status");
    ask(&here, "migrate -d rdma:127.91.251.1:4444");
    let begin = Instant::now();
    let state = loop {
        let text = ask(&here, "info migrate");
        if text.contains("completed") || text.contains("failed") || begin.elapsed() > LIMIT {
            break text;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(state.contains("Migration status: completed"), "{state}");
    let memory = ask(&there, &format!("xp /1xw {PLACE}"));
    assert!(memory.contains(MARK), "{memory}");
    let status = ask(&there, "info status");
    assert!(status.contains("VM status: running"), "{status}");
    for running in [source, target] {
        running.terminate();
        let ended = running.wait(LIMIT);
        assert_eq!(ended.fault(), None, "{}", ended.text);
    }
}
