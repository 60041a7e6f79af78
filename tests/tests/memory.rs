//! Memory that is unmapped while it is registered: the work request fails, the process survives.

use rnic_tests::peer::{Peer, connect};
use rnic_tests::protocol::{Command, Connection, Opening, Verb};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

/// Both peers still work: a new connection transfers data both ways.
fn alive(a: &mut Peer, b: &mut Peer) {
    let (left, _) = connect(a, b, Connection::default());
    let (source, target) = (a.register(LEN, 77), b.register_zeroes(LEN));
    a.post(left, 1, Verb::Write(target.place, None), &[source.all()]);
    a.succeed(left, 1);
    b.check(target.all(), 77, 0);
    let back = a.register_zeroes(LEN);
    a.post(left, 2, Verb::Read(target.place), &[back.all()]);
    a.succeed(left, 1);
    a.check(back.all(), 77, 0);
}

/// The oldest completion has `status`, the next is flushed.
fn fails(peer: &mut Peer, qp: usize, status: &str) {
    let completions = peer.wait(qp, 2);
    assert_eq!((completions[0].wr_id, completions[0].status.as_str()), (1, status));
    assert_eq!((completions[1].wr_id, completions[1].status.as_str()), (2, "WR_FLUSH_ERR"));
    assert_eq!(peer.state(qp), "ERR");
}

#[test]
fn source_of_a_write() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    // All of it, or from the middle on: then some packets are in flight when the fault occurs.
    for first in [0, 8 * PAGE] {
        let (left, _) = connect(&mut a, &mut b, Connection { mtu: Some(1024), ..Connection::default() });
        let (source, target) = (a.register(LEN, 1), b.register_zeroes(LEN));
        a.ask(&Command::Unmap(source.part(first, LEN - first)));
        a.post(left, 1, Verb::Write(target.place, None), &[source.all()]);
        a.post(left, 2, Verb::Write(target.place, None), &[source.part(0, 1)]);
        fails(&mut a, left, "LOC_PROT_ERR");
        a.ask(&Command::Deregister(source.id));
    }
    assert_eq!(a.counter("req_cqe_error"), 2);
    assert_eq!(b.counter("resp_remote_access_errors"), 0);
    alive(&mut a, &mut b);
}

#[test]
fn target_of_a_write() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    for first in [0, 8 * PAGE] {
        let (left, right) = connect(&mut a, &mut b, Connection { mtu: Some(1024), ..Connection::default() });
        let (source, target) = (a.register(LEN, 1), b.register_zeroes(LEN));
        b.ask(&Command::Unmap(target.part(first, LEN - first)));
        a.post(left, 1, Verb::Write(target.place, None), &[source.all()]);
        a.post(left, 2, Verb::Write(target.place, None), &[source.part(0, 1)]);
        fails(&mut a, left, "REM_ACCESS_ERR");
        b.check(target.part(0, first), 1, 0);
        assert_eq!(b.state(right), "ERR");
        b.ask(&Command::Deregister(target.id));
    }
    assert_eq!(a.counter("req_remote_access_errors"), 2);
    assert_eq!(b.counter("resp_remote_access_errors"), 2);
    alive(&mut a, &mut b);
}

#[test]
fn source_of_a_read() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    for first in [0, 8 * PAGE] {
        let (left, _) = connect(&mut a, &mut b, Connection::default());
        let (into, source) = (a.register_zeroes(LEN), b.register(LEN, 1));
        b.ask(&Command::Unmap(source.part(first, LEN - first)));
        a.post(left, 1, Verb::Read(source.place), &[into.all()]);
        a.post(left, 2, Verb::Read(source.place), &[into.part(0, 1)]);
        fails(&mut a, left, "REM_ACCESS_ERR");
    }
    assert_eq!(a.counter("req_remote_access_errors"), 2);
    assert_eq!(b.counter("resp_remote_access_errors"), 2);
    alive(&mut a, &mut b);
}

#[test]
fn target_of_a_read() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    for first in [0, 8 * PAGE] {
        let (left, _) = connect(&mut a, &mut b, Connection::default());
        let (into, source) = (a.register_zeroes(LEN), b.register(LEN, 1));
        a.ask(&Command::Unmap(into.part(first, LEN - first)));
        a.post(left, 1, Verb::Read(source.place), &[into.all()]);
        a.post(left, 2, Verb::Read(source.place), &[into.part(0, 1)]);
        fails(&mut a, left, "LOC_PROT_ERR");
    }
    assert_eq!(a.counter("req_cqe_error"), 2);
    assert!(b.counter("rx_read_requests") >= 2);
    assert_eq!(b.counter("resp_remote_access_errors"), 0);
    alive(&mut a, &mut b);
}

#[test]
fn receive_buffer() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    let (left, right) = connect(&mut a, &mut b, Connection::default());
    let (source, into) = (a.register(LEN, 1), b.register_zeroes(LEN));
    b.recv(right, 1, &[into.all()]);
    b.recv(right, 2, &[into.all()]);
    b.ask(&Command::Unmap(into.all()));
    a.post(left, 1, Verb::Send(None), &[source.all()]);
    a.post(left, 2, Verb::Send(None), &[source.all()]);
    // The receiver's own buffer is invalid, not the sender's request (IBTA 9.7.5.2.7).
    fails(&mut b, right, "LOC_PROT_ERR");
    fails(&mut a, left, "REM_OP_ERR");
    assert_eq!(b.counter("resp_cqe_error"), 1);
    alive(&mut a, &mut b);
}

#[test]
fn regions_without_memory_are_dropped_like_others() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    let region = a.register(LEN, 1);
    a.ask(&Command::Unmap(region.all()));
    a.ask(&Command::Deregister(region.id));
    let region = a.register(LEN, 1);
    a.ask(&Command::Unmap(region.part(PAGE, PAGE)));
    let address = a.address();
    a.ask(&Command::Close);
    a.reopen(&Opening::at(address));
    alive(&mut a, &mut b);
}
