//! A daemon that is killed while programs in low and high slots talk.

use crate::daemon::Daemon;
use crate::lab::{self, LIMIT, Running, has, installed_library};
use crate::rdma_cm::LIBRARY;
use bytes::BytesMut;
use rnic::daemon::WatchedProgram;
use rnic::daemon::protocol::{Hello, Reply, Request, VERSION, read_frame, write_frame};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The slots of the programs that talk, in pairs of a server and a client. Nobody sends in the slots between them.
const SLOTS: [[u8; 2]; 3] = [[1, 200], [3, 7], [8, 201]];

/// What must not happen to any of them. Receives that are flushed when a client disconnects are no faults, nor are packets that
/// its peer repeats on a busy machine.
const FAULTS: [&str; 4] = ["dropped_misrouted", "dropped_bad_icrc", "req_cqe_error", "retry_exceeded_err"];

/// Takes the next slot as a program does, and keeps it as long as the connection lives. No port is opened there.
fn occupy(daemon: &Daemon) -> (UnixStream, u8) {
    let mut stream = UnixStream::connect(daemon.socket()).expect("it listens");
    let hello = Hello { version: VERSION, pid: std::process::id(), program: "occupant".to_owned() };
    let mut asked = BytesMut::new();
    write_frame(&Request::Hello(hello), &mut asked);
    write_frame(&Request::Attach { address: None }, &mut asked);
    stream.write_all(&asked).expect("it reads");
    // The kernel closes the descriptors that come with the answer, because nobody takes them.
    let (mut answer, mut part) = (BytesMut::new(), [0; 4096]);
    loop {
        match read_frame(&mut answer).expect("a message") {
            Some(Reply::Attached(attached)) => return (stream, attached.slot),
            Some(other) => panic!("{other:?}"),
            None => {
                let read = stream.read(&mut part).expect("an answer");
                assert!(read > 0, "the daemon closes the connection");
                answer.extend_from_slice(&part[..read]);
            }
        }
    }
}

/// What the daemon says of a program, if it knows it.
fn watched(daemon: &Daemon, program: &Running) -> Option<WatchedProgram> {
    let all = rnic::daemon::programs(&daemon.socket()).expect("it answers");
    all.into_iter().find(|watched| watched.program.pid == program.id())
}

/// Waits until a program has a slot, and what it publishes fits.
fn await_program(
    daemon: &Daemon,
    program: &Running,
    fits: impl Fn(&WatchedProgram) -> bool,
) -> WatchedProgram {
    let begin = Instant::now();
    loop {
        if let Some(watched) = watched(daemon, program).filter(&fits) {
            return watched;
        }
        assert!(begin.elapsed() < LIMIT, "{:?}", watched(daemon, program));
        sleep(Duration::from_millis(20));
    }
}

/// The packets that a program has sent, as it publishes.
fn sent(watched: &WatchedProgram) -> u64 {
    let counters = watched.counters().map(|published| published.counters).unwrap_or_default();
    counters.iter().find(|(name, _)| name == "tx_packets").map_or(0, |(_, value)| *value)
}

/// Waits until each of them has sent more.
fn await_traffic(of: &[WatchedProgram]) {
    let before: Vec<u64> = of.iter().map(sent).collect();
    let begin = Instant::now();
    for (watched, before) in of.iter().zip(before) {
        while sent(watched) <= before {
            assert!(begin.elapsed() < LIMIT, "no packets: {:?}", watched.program);
            sleep(Duration::from_millis(20));
        }
    }
}

/// Programs that talk until they are told to end, and the connections that keep the slots between theirs.
struct Crowd {
    /// In the order of [`SLOTS`].
    programs: Vec<(u8, Running)>,
    _between: Vec<UnixStream>,
}

impl Crowd {
    /// Starts the programs, in the order of their slots. `listen`: the port of the server that takes several clients.
    fn start(daemon: &Daemon, listen: u16) -> Self {
        let [first, second] = [lab::free_port(), lab::free_port()];
        let mut lines: Vec<(u8, String, Option<u16>)> = vec![
            (SLOTS[0][0], format!("ib_write_bw -s 65536 -D 600 -p {first}"), Some(first)),
            (SLOTS[0][1], format!("ib_write_bw -s 65536 -D 600 -p {first} @"), None),
            (SLOTS[1][0], format!("ib_read_lat -D 600 -p {second}"), Some(second)),
            (SLOTS[1][1], format!("ib_read_lat -D 600 -p {second} @"), None),
            (SLOTS[2][0], format!("rping -s -P -V -p {listen}"), None),
            (SLOTS[2][1], format!("rping -c -V -C 100000000 -p {listen} -a @"), None),
        ];
        lines.sort_unstable();
        let (mut programs, mut between, mut next) = (Vec::new(), Vec::new(), 1);
        for (slot, line, meets_at) in lines {
            while next < slot {
                let (stream, got) = occupy(daemon);
                assert_eq!(got, next, "slots are given in order");
                between.push(stream);
                next += 1;
            }
            let mut program = daemon.begin(&line);
            if let Some(port) = meets_at {
                lab::await_listener(port, &mut program);
            }
            await_program(daemon, &program, |watched| watched.program.slot == slot);
            programs.push((slot, program));
            next += 1;
        }
        Self { programs, _between: between }
    }

    /// All of them, once each is in its slot and has sent packets.
    fn watch(&self, daemon: &Daemon) -> Vec<WatchedProgram> {
        let at = |(slot, program): &(u8, Running)| {
            await_program(daemon, program, |w| w.program.running && w.program.slot == *slot && sent(w) > 0)
        };
        self.programs.iter().map(at).collect()
    }
}

/// Runs a program to its end; returns its slot. It ends well.
fn finish(daemon: &Daemon, program: Running) -> u8 {
    let slot = await_program(daemon, &program, |_| true).program.slot;
    let ended = program.wait(LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    slot
}

#[test]
fn a_daemon_that_is_killed_misroutes_no_packet_of_any_slot() {
    if !installed_library(LIBRARY) || !["rping", "ib_write_bw", "ib_read_lat"].iter().all(|name| has(name)) {
        return;
    }
    let _alone = lab::alone();
    let mut daemon = Daemon::with_config("[limits]\nslots = 255\n");
    let listen = lab::free_port();
    let mut crowd = Crowd::start(&daemon, listen);
    let before = crowd.watch(&daemon);
    daemon.kill();
    // The files in which they publish outlive the daemon, and so do the ways of their packets.
    await_traffic(&before);
    await_traffic(&before);
    daemon.start_again();
    // A new pair, in slots that nobody had.
    let port = lab::free_port();
    let server = daemon.begin(&format!("rping -s -V -C 10 -p {port}"));
    let taken = await_program(&daemon, &server, |_| true).program.slot;
    // And a new connection with a program that was there before.
    let clients = [port, listen].map(|port| {
        let client = daemon.begin(&format!("rping -c -V -C 10 -p {port} -a @"));
        finish(&daemon, client)
    });
    assert!(taken > 201 && clients.iter().all(|slot| *slot > 201), "{taken}, {clients:?}");
    assert_eq!(finish(&daemon, server), taken);
    // Those who were there before have their slots again, and go on as if nothing had happened.
    await_traffic(&crowd.watch(&daemon));
    for (slot, program) in &mut crowd.programs {
        assert!(!program.has_ended(), "the program in slot {slot} goes on");
    }
    let faults = FAULTS.map(|name| (name, daemon.counted(name)));
    assert_eq!(faults, FAULTS.map(|name| (name, 0)));
}
