//! The life of a connection, step by step.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{CallError, ConnectionState, DisconnectCause, Event, Placement};
use qp::wire::mad::cm::Attribute::{Drep, Dreq, Rep, Req, Rtu};
use qp::{QpState, Qpn};
use support::*;
use time::Duration;

#[test]
fn a_connection_is_established_and_closed() {
    let mut world = World::new(1);
    let (a, b) = world.established();
    assert_eq!(world.messages(), [(A, Req), (B, Rep), (A, Rtu)]);
    let placement = Placement::default();
    let [rtr_a, rts_a] =
        [QpState::Rtr, QpState::Rts].map(|s| world.hosts[A].attributes(a, s, &placement).unwrap());
    let [rtr_b, rts_b] =
        [QpState::Rtr, QpState::Rts].map(|s| world.hosts[B].attributes(b, s, &placement).unwrap());
    assert_eq!((rtr_a.dest_qp_num, rtr_b.dest_qp_num), (Some(Qpn::new(0x22)), Some(Qpn::new(0x11))));
    assert_eq!((rtr_a.rq_psn, rtr_b.rq_psn), (rts_b.sq_psn, rts_a.sq_psn));

    let now = world.now;
    world.hosts[B].disconnect(now, b, b"bye").unwrap();
    world.settle();
    assert_eq!(world.one(A), Event::Disconnected { connection: a, cause: DisconnectCause::Peer });
    assert_eq!(world.hosts[A].state(a), ConnectionState::DreqReceived);
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    assert_eq!(world.one(B), Event::Disconnected { connection: b, cause: DisconnectCause::Answered });
    assert_eq!(world.messages()[3..], [(B, Dreq), (A, Drep)]);
    assert_eq!(world.hosts[B].state(b), ConnectionState::TimeWait);
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.one(A), Event::TimeWaitExit { connection: a });
    assert_eq!(world.one(B), Event::TimeWaitExit { connection: b });
    for host in &world.hosts {
        assert_eq!((host.sizes(), host.poll_timeout()), ((0, 0, 0), None));
    }
    assert_eq!(world.hosts[A].disconnect(now, a, &[]), Err(CallError::UnknownConnection));
}
