//! Connections by address and port, in virtual time.

use super::{ConnectionEvent, End};
use crate::cm::protocol::{CallError, DisconnectCause, FailCause, Limits, RejReason};
use crate::error::ConnectError;
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, Error, Gather, PKey, QpState, RcEnd, Result, WcStatus};
use std::net::SocketAddr;
use time::Duration;

const PORT: u16 = 7471;

fn to(device: &Device) -> SocketAddr {
    (device.address(), PORT).into()
}

/// Two ends of a connection.
fn pair(a: &Device, b: &Device) -> Result<(End, End)> {
    let listener = b.listen(PORT)?;
    let dialling = RcEnd::dial(a, to(b))?;
    let right = listener.accept()?.accept_end()?;
    Ok((dialling.wait()?, right))
}

/// Why a connection is not made.
fn refusal(error: Error) -> ConnectError {
    match error {
        Error::Connect(error) => *error,
        other => panic!("{other}"),
    }
}

#[test]
fn either_side_may_send_as_soon_as_it_has_the_connection() -> Result<()> {
    for first in [false, true] {
        let net = Net::new();
        let (left, right) = pair(&net.device(), &net.device())?;
        let (from, at) = if first { (&left, &right) } else { (&right, &left) };
        at.qp.recv(1, Gather::Empty)?;
        from.qp.send(2, Gather::Empty)?;
        assert_eq!(at.wait()?.wr_id, 1);
        assert_eq!(from.wait()?.wr_id, 2);
        // The options are those of a queue pair that is connected by hand.
        let options = ConnectOptions::default();
        for end in [&left, &right] {
            let attr = end.qp.query();
            assert_eq!(
                (attr.timeout, attr.min_rnr_timer),
                (Some(options.timeout), Some(options.min_rnr_timer))
            );
            assert_eq!(attr.max_rd_atomic, Some(options.rd_atomic));
            assert_eq!(attr.max_dest_rd_atomic, Some(options.rd_atomic));
            assert_eq!(attr.qp_access_flags, Some(options.access));
        }
    }
    Ok(())
}

#[test]
fn a_connection_is_made_in_the_partition_of_its_request() -> Result<()> {
    let net = Net::new();
    let with = |keys: &[u16]| {
        let pkeys = keys.iter().map(|key| PKey(*key)).collect();
        net.device_with(&DeviceSetup { pkeys, ..DeviceSetup::default() })
    };
    let (a, inside, outside) = (with(&[0xffff, 0x8002])?, with(&[0xffff, 0x8003, 0x8002])?, with(&[0xffff])?);
    let options = ConnectOptions { pkey_index: 1, ..ConnectOptions::default() };

    let (listener, left) = (inside.listen(PORT)?, RcEnd::new(&a)?);
    let connection = a.connect_with(&left.qp, to(&inside), &options, b"")?;
    let right = listener.accept()?.accept_end()?;
    connection.wait()?;
    assert_eq!((left.qp.query().pkey_index, right.qp.query().pkey_index), (Some(1), Some(2)));
    right.qp.recv(1, Gather::Empty)?;
    left.qp.send(2, Gather::Empty)?;
    assert_eq!(right.wait()?.wr_id, 1);

    let (listener, left) = (outside.listen(PORT)?, RcEnd::new(&a)?);
    let connection = a.connect_with(&left.qp, to(&outside), &options, b"")?;
    let error = refusal(connection.wait().expect_err("the port is not in the partition"));
    let ConnectError::Refused { rejection, .. } = error else { panic!("{error:?}") };
    assert_eq!(rejection.reason, RejReason::InvalidGid);
    assert!(listener.poll().is_none());
    Ok(())
}

/// The peer repeats its request, hears that the program needs longer, and waits.
#[test]
fn a_program_may_take_a_minute_to_answer() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    let dialling = RcEnd::dial(&a, to(&b))?;
    let request = listener.accept()?;
    net.run_for(Duration::from_secs(60));
    let right = request.accept_end()?;
    let left = dialling.wait()?;
    right.qp.recv(1, Gather::Empty)?;
    left.qp.send(2, Gather::Empty)?;
    assert_eq!(right.wait()?.wr_id, 1);
    Ok(())
}

#[test]
fn programs_exchange_data_while_they_connect() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = (RcEnd::new(&a)?, RcEnd::new(&b)?);
    let listener = b.listen(0)?;
    assert!(listener.local().port() >= 32768 && listener.local().ip() == b.address());
    let long = a.connect_with(&left.qp, listener.local(), &ConnectOptions::default(), &[0; 57]);
    let refused = refusal(long.expect_err("56 bytes"));
    assert!(
        matches!(refused, ConnectError::Call(CallError::PrivateDataTooLong { max: 56, .. })),
        "{refused}"
    );
    let options = ConnectOptions { rd_atomic: 4, ..ConnectOptions::default() };
    let connection = a.connect_with(&left.qp, listener.local(), &options, b"please")?;
    let request = listener.accept()?;
    assert!(request.private_data().starts_with(b"please\0") && request.private_data().len() == 56);
    assert!(request.peer().ip() == a.address() && request.peer().port() >= 32768);
    let options = ConnectOptions { rd_atomic: 8, ..ConnectOptions::default() };
    let accepted = request.accept_with(&right.qp, &options, b"welcome")?;
    assert_eq!(connection.private_data(), None);
    connection.wait()?;
    assert!(connection.private_data().expect("established").starts_with(b"welcome\0"));
    accepted.wait()?;
    for end in [&left, &right] {
        let attr = end.qp.query();
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (Some(4), Some(4)), "the smaller of both");
    }
    Ok(())
}

#[test]
fn the_depths_of_a_connection_are_the_smaller_of_both_sides() -> Result<()> {
    for (asked, granted) in [(4, 8), (8, 4)] {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let (left, right) = (RcEnd::new(&a)?, RcEnd::new(&b)?);
        let listener = b.listen(PORT)?;
        let with = |rd_atomic| ConnectOptions { rd_atomic, ..ConnectOptions::default() };
        let connection = a.connect_with(&left.qp, to(&b), &with(asked), b"")?;
        let accepted = listener.accept()?.accept_with(&right.qp, &with(granted), b"")?;
        connection.wait()?;
        accepted.wait()?;
        for end in [&left, &right] {
            let attr = end.qp.query();
            assert_eq!(
                (attr.max_rd_atomic, attr.max_dest_rd_atomic),
                (Some(4), Some(4)),
                "{asked} {granted}"
            );
        }
    }
    Ok(())
}

/// The connection is refused by the peer's program, not because a time is over.
fn is_by_program(dialling: super::Dialling) {
    let refused = refusal(dialling.wait().expect_err("refused"));
    let ConnectError::Refused { rejection, .. } = &refused else { panic!("{refused}") };
    assert_eq!(rejection.reason, RejReason::ConsumerDefined);
}

#[test]
fn errors_say_what_to_do() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let wait =
        |to: SocketAddr| refusal(RcEnd::dial(&a, to).and_then(|d| d.wait()).expect_err("no connection"));
    assert_eq!(wait(to(&b)), ConnectError::NobodyListens { to: to(&b) });

    let nobody = SocketAddr::from(([10, 9, 9, 9], PORT));
    let before = net.elapsed();
    assert_eq!(wait(nobody), ConnectError::Unreachable { to: nobody });
    let took = net.elapsed() - before;
    assert!((8..13).contains(&took.as_secs()), "{took:?}");

    let listener = b.listen(PORT)?;
    let taken = refusal(b.listen(PORT).expect_err("it has a listener"));
    assert_eq!(taken.to_string(), "port 7471 is in use at this address: choose another one, or 0 for any");
    let dialling = RcEnd::dial(&a, to(&b))?;
    listener.accept()?.reject(b"no room")?;
    let refused = refusal(dialling.wait().expect_err("refused"));
    let ConnectError::Refused { rejection, .. } = &refused else { panic!("{refused}") };
    assert!(rejection.private_data.starts_with(b"no room\0"));
    assert!(refused.to_string().starts_with("10.0.0.2:7471 refuses the connection: "), "{refused}");

    // A request that the program drops, and those that wait when the listener goes.
    for is_taken in [true, false] {
        let dialling = RcEnd::dial(&a, to(&b))?;
        net.run_for(Duration::from_millis(1));
        let again = b.listen(PORT + 1)?;
        if is_taken {
            drop(listener.poll().expect("a request"));
        } else {
            let other = RcEnd::dial(&a, again.local())?;
            net.run_for(Duration::from_millis(1));
            drop(again);
            is_by_program(other);
            drop(listener.poll());
        }
        is_by_program(dialling);
    }
    let v6 = SocketAddr::new("::1".parse().expect("an address"), PORT);
    assert!(matches!(refusal(RcEnd::dial(&a, v6).expect_err("IPv4")), ConnectError::Family { .. }));
    Ok(())
}

#[test]
fn a_connection_that_ends_stops_both_queue_pairs() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = pair(&a, &b)?;
    assert_eq!(left.connection().poll_event(), Some(ConnectionEvent::Established));
    left.qp.recv(1, Gather::Empty)?;
    right.connection().wait()?;
    right.disconnect()?;
    assert_eq!(right.qp.state(), QpState::Err);
    let over = left.connection().wait_event(Duration::from_secs(1))?;
    assert_eq!(over, Some(ConnectionEvent::Disconnected(DisconnectCause::Peer)));
    assert_eq!((left.qp.state(), left.wait()?.status), (QpState::Err, WcStatus::WrFlushErr));
    let refused = refusal(left.disconnect().expect_err("it is over"));
    assert!(matches!(refused, ConnectError::Call(CallError::WrongState { .. })), "{refused}");
    assert_eq!(left.connection().poll_event(), None);
    net.run_for(Duration::from_millis(1));
    let events = std::iter::from_fn(|| right.connection().poll_event()).collect::<Vec<_>>();
    assert_eq!(
        events,
        [ConnectionEvent::Established, ConnectionEvent::Disconnected(DisconnectCause::Answered)]
    );
    Ok(())
}

/// The peer learns of a queue pair that fails, of one that is destroyed, and of a program that drops its end.
#[test]
fn a_queue_pair_that_ends_ends_its_connection() -> Result<()> {
    for way in 0..3 {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let (left, right) = pair(&a, &b)?;
        right.connection().wait()?;
        let mut kept = Some(right);
        match way {
            0 => a_failure(&left, kept.as_ref().expect("kept"))?,
            1 => {
                // The queue pair goes before the connection.
                let End { connection, end } = kept.take().expect("kept");
                drop(end);
                net.run_for(Duration::from_millis(1));
                drop(connection);
            }
            _ => drop(kept.take()),
        }
        net.run_for(Duration::from_millis(1));
        let events = std::iter::from_fn(|| left.connection().poll_event()).collect::<Vec<_>>();
        // After a request that fails, both queue pairs are in ERR, and both sides close at the same time.
        let cause = if way == 0 { DisconnectCause::Answered } else { DisconnectCause::Peer };
        assert_eq!(events, [ConnectionEvent::Established, ConnectionEvent::Disconnected(cause)], "way {way}");
        assert_eq!(left.qp.state(), QpState::Err);
    }
    Ok(())
}

/// The right side reaches for memory that it may not.
fn a_failure(left: &End, right: &End) -> Result<()> {
    let source = right.register(&[7; 8])?;
    let private = left.register(&[0; 8])?;
    right.qp.write(1, source.all(), private.remote(0))?;
    assert_eq!(right.wait()?.status, WcStatus::RemAccessErr);
    Ok(())
}

#[test]
fn a_hundred_connections_leave_nothing_behind() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    for _ in 0..100 {
        let dialling = RcEnd::dial(&a, to(&b))?;
        let right = listener.accept()?.accept_end()?;
        let left = dialling.wait()?;
        drop((left, right));
    }
    net.run_for(Duration::from_secs(60));
    let counters = a.counters().port;
    let named = |name: &str| counters.iter().find(|(is, _)| *is == name).map(|(_, count)| count);
    assert_eq!(
        (named("cm_tx_req"), named("cm_rx_rep"), named("cm_dropped_malformed")),
        (Some(100), Some(100), Some(0))
    );
    for device in [&a, &b] {
        let sizes = device.connection_manager()?.look(crate::cm::protocol::Endpoint::sizes)?;
        assert_eq!(sizes, (0, 0, 0));
        let queue_pairs = device.inner.port()?.with_datapath(|datapath| datapath.engine.qps().count());
        assert_eq!(queue_pairs, 0);
    }
    Ok(())
}

/// A request that the program does not answer in time is gone when it is accepted.
#[test]
fn a_request_that_its_peer_gave_up_cannot_be_accepted() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    let dialling = RcEnd::dial(&a, to(&b))?;
    let request = listener.accept()?;
    drop(dialling);
    net.run_for(Duration::from_millis(1));
    let gone = refusal(request.accept_end().expect_err("the peer has given up"));
    assert!(matches!(gone, ConnectError::Call(CallError::UnknownConnection)), "{gone}");
    Ok(())
}

#[test]
fn a_connection_whose_queue_pair_cannot_be_set_up_fails_on_both_sides() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    let left = RcEnd::new(&a)?;
    let connection = a.connect(&left.qp, to(&b))?;
    let right = listener.accept()?.accept_end()?;
    // Its program takes it back to RESET while REP is on its way.
    left.qp.modify(&crate::QpAttr::to_state(QpState::Reset))?;
    let failed = refusal(connection.wait().expect_err("it cannot go to RTS"));
    assert_eq!(failed, ConnectError::Failed { to: to(&b), cause: FailCause::QueuePair });
    net.run_for(Duration::from_millis(1));
    assert!(matches!(right.connection().poll_event(), Some(ConnectionEvent::Failed(_))));
    Ok(())
}

#[test]
fn a_listener_bounds_what_waits() -> Result<()> {
    let net = Net::new();
    let b = net.device();
    let listener = b.listen(PORT)?;
    let (each, most) = (Limits::default().requests_per_peer, Limits::default().backlog as usize);
    // One device asks for this many at a time.
    let devices: Vec<_> = (0..=most / each).map(|_| net.device()).collect();
    let dials = devices.iter().flat_map(|device| std::iter::repeat_n(device, each));
    let ends: Vec<_> = dials.map(|device| RcEnd::dial(device, to(&b))).collect::<Result<_>>()?;
    assert!(ends.len() > most);
    net.run_for(Duration::from_millis(100));
    assert_eq!(std::iter::from_fn(|| listener.poll()).count(), most);
    drop(ends);
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn tasks_connect_too() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    let dialling = RcEnd::dial(&a, to(&b))?;
    let right = listener.next().await?.accept_end()?;
    let left = dialling.established().await?;
    assert_eq!(right.connection().next_event().await?, ConnectionEvent::Established);
    left.disconnect()?;
    let over = right.connection().next_event().await?;
    assert_eq!(over, ConnectionEvent::Disconnected(DisconnectCause::Peer));
    assert!(matches!(listener.next().await, Err(Error::Stalled)));
    Ok(())
}

#[cfg(unix)]
#[test]
fn descriptors_are_readable_while_there_is_news() -> Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let is_readable = |ready: &super::Ready| {
        let mut fds = [PollFd::new(ready.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
    };
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let listener = b.listen(PORT)?;
    let (requests, dialling) = (listener.ready()?, RcEnd::dial(&a, to(&b))?);
    assert!(!is_readable(&requests));
    net.run_for(Duration::from_millis(1));
    assert!(is_readable(&requests));
    let right = listener.poll().expect("a request").accept_end()?;
    assert!(!is_readable(&requests));
    let left = dialling.wait()?;
    // Created afterwards: it is raised at once.
    let events = left.connection().events()?;
    assert!(is_readable(&events));
    assert_eq!(left.connection().poll_event(), Some(ConnectionEvent::Established));
    assert!(!is_readable(&events));
    drop(right);
    net.run_for(Duration::from_millis(1));
    assert!(is_readable(&events));
    Ok(())
}

/// Fault rules name the messages; those that are lost are repeated, those that come twice change nothing.
#[test]
fn every_message_may_be_lost_or_come_twice() -> Result<()> {
    for (sender, message) in [(0, "REQ"), (1, "REP"), (0, "RTU"), (1, "DREQ"), (0, "DREP")] {
        for fault in ["drop once", "dup 2"] {
            let net = Net::new();
            let devices = [net.device(), net.device()];
            devices[sender].add_fault(&format!("tx cm={message} {fault}"))?;
            let (left, right) = pair(&devices[0], &devices[1])?;
            right.connection().wait()?;
            right.disconnect()?;
            net.run_for(Duration::from_secs(10));
            for (end, cause) in [(&left, DisconnectCause::Peer), (&right, DisconnectCause::Answered)] {
                let events = std::iter::from_fn(|| end.connection().poll_event()).collect::<Vec<_>>();
                let over = ConnectionEvent::Disconnected(cause);
                assert_eq!(events, [ConnectionEvent::Established, over], "{message} {fault}");
            }
            let hits = devices[sender].faults()[0].hits;
            assert!(if fault == "drop once" { hits == 1 } else { hits >= 1 }, "{message} {fault}: {hits}");
        }
    }
    let unknown = Net::new().device().add_fault("tx cm=REPL drop").expect_err("no such message").to_string();
    assert!(unknown.contains("choose REQ, MRA,") && unknown.contains("did you mean 'REP'?"), "{unknown}");
    Ok(())
}

#[test]
fn services_of_datagrams_that_do_not_exist_are_named() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let wait = |to| refusal(a.ask(to).and_then(|question| question.wait()).expect_err("no service"));
    assert_eq!(wait(to(&b)), ConnectError::NobodyReceives { to: to(&b) });
    let nobody = SocketAddr::from(([10, 9, 9, 9], PORT));
    assert_eq!(wait(nobody), ConnectError::Unreachable { to: nobody });
    // The port spaces are apart.
    let (_connections, datagrams) = (b.listen(PORT)?, b.listen_datagrams(PORT)?);
    let question = a.ask_with(to(&b), b"which one")?;
    let request = datagrams.accept()?;
    assert!(request.private_data().starts_with(b"which one\0") && request.peer().ip() == a.address());
    drop(request);
    assert!(matches!(refusal(question.wait().expect_err("refused")), ConnectError::NoService { .. }));
    Ok(())
}
