//! Connections of `interop/rxe/connect.c`, a program on librdmacm, between the connection managers of rnic and of the
//! kernel.
//!
//! A scenario tells the program on each side what to do. Both sides on rxe show what Linux does: what the calls return,
//! which events come, and all that they carry. With rnic on one side or both, all of this must be the same.

use crate::Test;
use crate::guest::Ip;
use crate::prompt::Prompt;
use std::net::IpAddr;

/// These run after those that count management datagrams.
pub(crate) const TESTS: &[Test] = &[
    ("connections::accepted_and_ended_by_the_active_side_over_ipv4", || same(Ip::V4, ended_by_active)),
    ("connections::accepted_and_ended_by_the_passive_side_over_ipv6", || same(Ip::V6, ended_by_passive)),
    ("connections::refused", || same(Ip::V4, refused)),
    ("connections::given_up", || same(Ip::V4, given_up)),
    ("connections::parameters", || same(Ip::V4, parameters)),
    ("connections::datagram_services_over_ipv4", || same(Ip::V4, datagrams)),
    ("connections::datagram_services_over_ipv6", || same(Ip::V6, datagrams)),
    ("connections::a_program_exits", || same(Ip::V4, exits)),
    ("connections::a_program_in_the_guest_is_killed", killed),
    ("connections::calls_that_fail", || same(Ip::V4, calls_that_fail)),
    ("connections::ports_that_conflict", || same(Ip::V4, ports_that_conflict)),
];

/// Two programs, and all that they were told and answered.
struct Pair {
    passive: Prompt,
    active: Prompt,
    /// The address of the passive side.
    at: IpAddr,
    log: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Rxe,
    Rnic,
}

impl Pair {
    fn new(ip: Ip, passive: Place, active: Place) -> Self {
        let start = |place, address| match place {
            Place::Rxe => Prompt::in_guest("connect"),
            Place::Rnic => Prompt::on_rnic("connect", address, &[]),
        };
        let at = if passive == Place::Rxe { ip.guest() } else { ip.program() };
        Self { passive: start(passive, ip.program()), active: start(active, ip.ours()), at, log: Vec::new() }
    }

    /// Tells a side a line, in which `@` stands for the address of the passive side. Returns the answer.
    fn tell(&mut self, is_active: bool, line: &str) -> String {
        let (side, name) =
            if is_active { (&mut self.active, "active") } else { (&mut self.passive, "passive") };
        let answer = side.tell(&line.replace('@', &self.at.to_string()));
        self.log.push(format!("{name}: {line} -> {answer}"));
        answer
    }

    /// Tells the passive side lines, each of which must succeed.
    fn passive(&mut self, lines: &[&str]) {
        self.all_succeed(false, lines);
    }

    /// Tells the active side lines, each of which must succeed.
    fn active(&mut self, lines: &[&str]) {
        self.all_succeed(true, lines);
    }

    fn all_succeed(&mut self, is_active: bool, lines: &[&str]) {
        for line in lines {
            let answer = self.tell(is_active, line);
            assert!(answer.starts_with("ok"), "{}", self.log.join("\n"));
        }
    }

    /// Tells the passive side lines that may fail.
    fn tries(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| drop(self.tell(false, line)));
    }

    /// Listens, and connects up to the request at the passive side: identifiers 0 and 2, and 1 at the active side.
    fn request(&mut self, space: &str, words: &str) {
        self.passive(&[&format!("id 0 {space}"), "bind 0 @ 7471", "listen 0"]);
        self.active(&[&format!("id 1 {space}"), "resolve 1 @ 7471", "qp 1", &format!("connect 1 {words}")]);
        self.await_event(false, 0, "CONNECT_REQUEST");
        self.passive(&["qp 1"]);
    }

    /// Waits for an event, which must be this one.
    fn await_event(&mut self, is_active: bool, id: usize, name: &str) {
        let answer = self.tell(is_active, &format!("event {id} ms=20000"));
        let is_it = answer.split(' ').nth(1) == Some(name);
        assert!(is_it, "no {name}:\n{}", self.log.join("\n"));
    }

    /// Messages both ways.
    fn talk(&mut self) {
        self.active(&["send 1 seed=1"]);
        self.passive(&["arrived 1 seed=1", "send 1 seed=2"]);
        self.active(&["arrived 1 seed=2"]);
    }
}

/// Plays a scenario between all kinds of sides; Linux alone says how it goes.
fn same(ip: Ip, scenario: fn(&mut Pair)) {
    let play = |passive, active| {
        let mut pair = Pair::new(ip, passive, active);
        scenario(&mut pair);
        pair.log
    };
    let linux = play(Place::Rxe, Place::Rxe);
    for (passive, active) in
        [(Place::Rnic, Place::Rxe), (Place::Rxe, Place::Rnic), (Place::Rnic, Place::Rnic)]
    {
        let log = play(passive, active);
        let differs = log.iter().zip(&linux).position(|(ours, theirs)| ours != theirs);
        if let Some(at) = differs {
            panic!(
                "passive on {passive:?}, active on {active:?}:\n{}\nbut Linux:\n{}",
                log[..=at].join("\n"),
                linux[at]
            );
        }
    }
}

fn established(pair: &mut Pair) {
    pair.request("tcp", "res=3 depth=5 retry=3 rnr=6 data=0102ff");
    pair.passive(&["accept 1 res=2 depth=1 rnr=5 fc=1 data=aabb"]);
    pair.await_event(true, 1, "ESTABLISHED");
    pair.await_event(false, 0, "ESTABLISHED");
    pair.active(&["route 1", "path 1"]);
    pair.passive(&["route 1", "path 1"]);
    pair.talk();
}

fn ended_by_active(pair: &mut Pair) {
    established(pair);
    pair.active(&["disconnect 1"]);
    pair.await_event(false, 0, "DISCONNECTED");
    pair.passive(&["disconnect 1"]);
    pair.await_event(true, 1, "DISCONNECTED");
    pair.await_event(true, 1, "TIMEWAIT_EXIT");
    pair.await_event(false, 0, "TIMEWAIT_EXIT");
    pair.active(&["destroy 1"]);
    pair.passive(&["destroy 1", "destroy 0"]);
}

fn ended_by_passive(pair: &mut Pair) {
    established(pair);
    pair.passive(&["disconnect 1"]);
    pair.await_event(true, 1, "DISCONNECTED");
    // Instead of an answer: the identifier is destroyed.
    pair.active(&["destroy 1"]);
    pair.await_event(false, 0, "DISCONNECTED");
}

fn refused(pair: &mut Pair) {
    // Nobody listens.
    pair.passive(&["id 5 tcp", "bind 5 @ 7499", "listen 5"]);
    pair.active(&["id 1 tcp", "resolve 1 @ 7472", "qp 1", "connect 1"]);
    pair.await_event(true, 1, "REJECTED");
    // Somebody does, but for datagrams.
    pair.passive(&["id 6 udp", "bind 6 @ 7472", "listen 6"]);
    pair.active(&["destroy 1", "id 1 tcp", "resolve 1 @ 7472", "qp 1", "connect 1"]);
    pair.await_event(true, 1, "REJECTED");
    pair.active(&["destroy 1"]);
    // The program refuses, with a reason of its own.
    pair.request("tcp", "");
    pair.passive(&["reject 1 data=6e6f", "destroy 1"]);
    pair.await_event(true, 1, "REJECTED");
    pair.active(&["destroy 1"]);
    // It destroys the identifier instead.
    pair.active(&["id 1 tcp", "resolve 1 @ 7471", "qp 1", "connect 1"]);
    pair.await_event(false, 0, "CONNECT_REQUEST");
    pair.passive(&["destroy 1"]);
    pair.await_event(true, 1, "REJECTED");
    pair.active(&["destroy 1"]);
    // It destroys its listener, with the request that waits there.
    pair.active(&["id 1 tcp", "resolve 1 @ 7471", "qp 1", "connect 1"]);
    pair.passive(&["event 5 ms=300", "destroy 0"]);
    pair.await_event(true, 1, "REJECTED");
}

/// The active side gives up before it is answered.
fn given_up(pair: &mut Pair) {
    pair.request("tcp", "");
    pair.active(&["destroy 1", "id 1 tcp"]);
    pair.passive(&["event 0 ms=300"]);
    pair.tries(&["accept 1", "reject 1", "disconnect 1"]);
    pair.passive(&["destroy 1"]);
    // The port is free for another.
    pair.active(&["resolve 1 @ 7471", "qp 1", "connect 1"]);
    pair.await_event(false, 0, "CONNECT_REQUEST");
    pair.passive(&["qp 1", "accept 1"]);
    pair.await_event(true, 1, "ESTABLISHED");
    pair.await_event(false, 0, "ESTABLISHED");
    pair.talk();
}

/// What the sides ask for, up to the limits of the fields.
fn parameters(pair: &mut Pair) {
    pair.passive(&["id 0 tcp", "bind 0 @ 7471", "listen 0"]);
    let longest = |length: usize| "5a".repeat(length);
    for (connect, accept) in [
        ("res=16 depth=16 retry=15 rnr=15".to_owned(), "res=0 depth=0 rnr=9".to_owned()),
        ("res=0 depth=0 retry=0 rnr=0 fc=1".to_owned(), "res=16 depth=16 rnr=0".to_owned()),
        (format!("data={}", longest(56)), format!("data={}", longest(196))),
    ] {
        pair.active(&["id 1 tcp", "resolve 1 @ 7471", "option 1 0 3 value=16 size=1", "qp 1"]);
        pair.active(&[&format!("connect 1 {connect}")]);
        pair.await_event(false, 0, "CONNECT_REQUEST");
        pair.passive(&["qp 1", &format!("accept 1 {accept}")]);
        pair.await_event(true, 1, "ESTABLISHED");
        pair.await_event(false, 0, "ESTABLISHED");
        pair.active(&["path 1"]);
        pair.passive(&["path 1"]);
        pair.talk();
        pair.active(&["disconnect 1"]);
        pair.await_event(false, 0, "DISCONNECTED");
        pair.passive(&["destroy 1"]);
        pair.await_event(true, 1, "DISCONNECTED");
        pair.active(&["destroy 1"]);
    }
}

fn datagrams(pair: &mut Pair) {
    pair.request("udp", "data=77");
    pair.passive(&["accept 1 data=88"]);
    pair.await_event(true, 1, "ESTABLISHED");
    // The passive side is told nothing, and knows nowhere to send.
    pair.passive(&["event 0 ms=200"]);
    pair.active(&["send 1 seed=9"]);
    pair.passive(&["arrived 1 seed=9"]);
    // Refused; and nobody there.
    pair.active(&["id 3 udp", "resolve 3 @ 7471", "qp 3", "connect 3 data=99"]);
    pair.await_event(false, 0, "CONNECT_REQUEST");
    pair.passive(&["reject 2 data=1122", "destroy 2"]);
    pair.await_event(true, 3, "UNREACHABLE");
    pair.active(&["id 4 udp", "resolve 4 @ 7472", "qp 4", "connect 4"]);
    pair.await_event(true, 4, "UNREACHABLE");
}

/// A program exits, and leaves its connections to the system.
fn exits(pair: &mut Pair) {
    let again = |pair: &Pair, is_active: bool| {
        let (place, address) =
            if is_active { (&pair.active, Ip::V4.ours()) } else { (&pair.passive, Ip::V4.program()) };
        if place.is_in_guest() {
            Prompt::in_guest("connect")
        } else {
            Prompt::on_rnic("connect", address, &[])
        }
    };
    established(pair);
    let next = again(pair, true);
    std::mem::replace(&mut pair.active, next).quit();
    pair.await_event(false, 0, "DISCONNECTED");
    pair.passive(&["destroy 1"]);
    pair.active(&["id 1 tcp", "resolve 1 @ 7471", "qp 1", "connect 1"]);
    pair.await_event(false, 0, "CONNECT_REQUEST");
    pair.passive(&["qp 1", "accept 1"]);
    pair.await_event(true, 1, "ESTABLISHED");
    pair.await_event(false, 0, "ESTABLISHED");
    let next = again(pair, false);
    std::mem::replace(&mut pair.passive, next).quit();
    pair.await_event(true, 1, "DISCONNECTED");
}

/// The guest's kernel tells the peers of a program that was killed. A program on rnic that is killed tells nobody.
fn killed() {
    for passive in [Place::Rxe, Place::Rnic] {
        let active = if passive == Place::Rxe { Place::Rnic } else { Place::Rxe };
        let mut pair = Pair::new(Ip::V4, passive, active);
        established(&mut pair);
        // What is dropped is killed.
        let is_active = active == Place::Rnic;
        let victim = if is_active { &mut pair.passive } else { &mut pair.active };
        *victim = Prompt::in_guest("connect");
        pair.await_event(is_active, is_active.into(), "DISCONNECTED");
    }
}

/// Calls in the wrong order, or with wrong arguments: the numbers of the errors are Linux's.
fn calls_that_fail(pair: &mut Pair) {
    let data = |length: usize| "00".repeat(length);
    pair.passive(&["id 0 tcp"]);
    pair.tries(&["reject 0", "disconnect 0", "listen 0 backlog=0", "disconnect 0"]);
    pair.passive(&["destroy 0", "id 0 tcp"]);
    pair.tries(&["bind 0 @ 7471", "bind 0 @ 7472", "disconnect 0", "listen 0", "disconnect 0", "reject 0"]);
    pair.passive(&["id 1 tcp"]);
    pair.tries(&["resolve 1 @ 7471", "listen 1", "accept 1", "reject 1", "disconnect 1", "resolve 1 @ 7471"]);
    pair.tries(&[
        "qp 1",
        "qp 1",
        &format!("connect 1 data={}", data(57)),
        "connect 1",
        "connect 1",
        "listen 1",
    ]);
    // Not "reject 1": Linux 6.1 sends REJ, and never destroys the identifier.
    pair.tries(&["resolve 1 @ 7471", "accept 1"]);
    pair.await_event(false, 0, "CONNECT_REQUEST");
    pair.tries(&[
        "connect 2",
        "listen 2",
        "disconnect 2",
        "bind 2 @ 7473",
        &format!("accept 2 data={}", data(197)),
    ]);
    // librdmacm has refused the request because of that accept.
    pair.tries(&["event 1 ms=1000", "accept 2", "reject 2"]);
    pair.tries(&["disconnect 1", "connect 1", "destroy 2", "destroy 1"]);
    // The port space of IP over InfiniBand, on Ethernet.
    pair.tries(&["id 3 ipoib", "bind 3 @ 7480", "qp 3", "listen 3", "destroy 3"]);
    pair.tries(&["id 3 ipoib", "resolve 3 @ 7480", "qp 3", "connect 3", "destroy 3"]);
    pair.passive(&["id 1 tcp"]);
    for option in [
        "0 0 size=1",
        "0 0 size=2",
        "0 1 size=4",
        "0 2 size=4",
        "0 3 size=4",
        "0 9 size=4",
        "1 1 size=4",
        "2 0",
    ] {
        pair.tries(&[&format!("option 1 {option}")]);
    }
}

/// Which identifiers may have one port.
fn ports_that_conflict(pair: &mut Pair) {
    for (one, other) in [
        ("@", "@"),
        ("0.0.0.0", "@"),
        ("@", "0.0.0.0"),
        ("0.0.0.0", "0.0.0.0"),
        ("0.0.0.0", "::"),
        ("::", "@"),
    ] {
        for reuse in [[0, 0], [1, 0], [1, 1]] {
            pair.passive(&["id 0 tcp", "id 1 tcp", "id 2 udp"]);
            for (id, value) in reuse.into_iter().enumerate() {
                pair.passive(&[&format!("option {id} 0 1 value={value} size=4")]);
            }
            pair.tries(&[&format!("bind 0 {one} 7480"), &format!("bind 1 {other} 7480"), "bind 2 @ 7480"]);
            pair.tries(&["listen 0", "listen 1", "listen 2", "destroy 0", "destroy 1", "destroy 2"]);
        }
    }
    pair.passive(&["id 0 tcp"]);
    pair.tries(&["bind 0 10.99.0.9 7480", "bind 0 @ 0", "listen 0", "listen 0"]);
}
