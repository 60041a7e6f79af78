//! A query returns what was set, and a refused modify changes nothing.

use super::*;
use crate::attr::PathMigState;

/// A modify for every state on the path through all of them, each with values that differ from the previous ones.
fn changes(setup: &Setup) -> Vec<QpAttr> {
    let connected = setup.qp_type.is_connected();
    let requester = matches!(setup.qp_type, QpType::Rc | QpType::XrcSend);
    let responder = matches!(setup.qp_type, QpType::Rc | QpType::XrcRecv);
    let admission = |n: u32| {
        if connected {
            QpAttr::default().qp_access_flags(Access::from_bits_truncate(n))
        } else {
            QpAttr::default().qkey(QKey(n))
        }
    };
    let mut running = admission(3).cur_qp_state(QpState::Rts);
    let mut drained = admission(4).pkey_index(0);
    if connected {
        running = running.path_mig_state(PathMigState::Rearm);
        let elsewhere = AddressVector {
            traffic_class: 1,
            flow_label: 2,
            sl: 3,
            ..AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 9)), 0)
        };
        drained = drained.ah_attr(elsewhere).path_mig_state(PathMigState::Armed);
    }
    if requester {
        drained = drained.retry_cnt(6).rnr_retry(5).max_rd_atomic(7);
    }
    if responder {
        running = running.min_rnr_timer(30);
        drained = drained.min_rnr_timer(29).max_dest_rd_atomic(8);
    }
    if setup.qp_type.is_reliable() {
        drained = drained.timeout(9).port_num(1);
    }
    vec![
        setup.to_init(),
        admission(2).pkey_index(0),
        setup.to_rtr(),
        setup.to_rts(),
        running,
        QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true),
        drained,
        QpAttr::to_state(QpState::Rts),
        QpAttr::to_state(QpState::Err),
    ]
}

#[test]
fn a_query_gives_back_everything_that_was_set() {
    for qp_type in QpType::ALL {
        let setup = Setup::of(qp_type);
        let mut b = setup.reset();
        let mut expected = QpAttr { cap: Some(b.qp.config().cap), ..QpAttr::default() };
        let mut seen = AttrMask::empty();
        for change in changes(&setup) {
            b.modify(&change);
            expected.merge(&change);
            seen |= change.mask();
            expected.qp_state = Some(b.qp.state());
            expected.cur_qp_state = expected.qp_state;
            assert_eq!(b.qp.query(), expected, "{qp_type} after {change:?}");
        }
        // Together they set every attribute that any transition of this type accepts.
        let of_type = |from| QpState::ALL.map(|to| attr::rule(qp_type, from, to));
        let taken = QpState::ALL.into_iter().flat_map(of_type).flatten();
        let all = taken.fold(AttrMask::STATE, |all, rule| all | rule.required | rule.optional);
        assert_eq!(all - seen, AttrMask::ALT_PATH & all, "{qp_type}");
        b.modify(&QpAttr::to_state(QpState::Reset));
        let bare = QpAttr::to_state(QpState::Reset).cur_qp_state(QpState::Reset).cap(b.qp.config().cap);
        assert_eq!(b.qp.query(), bare, "{qp_type}");
    }
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    for qp_type in QpType::ALL {
        let setup = Setup::of(qp_type);
        let mut b = setup.reset();
        for change in changes(&setup) {
            let before = (b.qp.query(), b.qp.state(), b.qp.mtu());
            // A value out of range, an excess attribute, a missing one, and the wrong state.
            let offenders = [
                QpAttr { timeout: Some(32), ..change.clone() },
                QpAttr { rate_limit: Some(1), ..change.clone() },
                QpAttr { qp_state: Some(QpState::Sqe), ..change.clone() },
                QpAttr { cur_qp_state: Some(QpState::Sqe), ..change.clone() },
                QpAttr { path_mtu: Some(Mtu::B4096), cap: Some(QpCap::default()), ..change.clone() },
            ];
            for offender in offenders {
                assert!(b.qp.modify(&offender, &b.limits, &mut b.host).is_err(), "{qp_type} {offender:?}");
                assert_eq!((b.qp.query(), b.qp.state(), b.qp.mtu()), before);
            }
            b.modify(&change);
        }
        assert_eq!(b.notes().iter().filter(|note| !matches!(note, Note::Event(_))).count(), 0);
    }
}

/// Attribute changes while a queue pair runs or drains take effect.
#[test]
fn changed_attributes_take_effect() {
    // The RNR timer, in RTS.
    let mut b = Setup::default().rts();
    b.modify(&QpAttr::default().min_rnr_timer(3));
    b.expect(&request(Opcode::RcSendOnly, RQ, b""), &[nak(0x20 | 3, RQ, 0)]);
    // Access rights.
    b.modify(&QpAttr::default().qp_access_flags(Access::LOCAL_WRITE));
    b.expect(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, &[1]), &[nak(0x61, RQ, 0)]);
    // Timeout and retries, in SQD.
    let mut b = Setup::default().rts();
    b.modify(&QpAttr::to_state(QpState::Sqd));
    b.modify(&QpAttr::default().timeout(3).retry_cnt(0).max_rd_atomic(1));
    b.modify(&QpAttr::to_state(QpState::Rts));
    b.post(1, READ, &[local(0, 8)]);
    b.post(2, READ, &[local(0, 8)]);
    assert_eq!(psns(&b.sent()), [SQ], "one at a time");
    b.sleep(Duration::from_nanos(4096 << 3));
    assert_eq!(b.notes()[0], Note::Sent(1, WcStatus::RetryExcErr));
}

/// A queue pair of the given type in the given state, if the type can reach it.
fn in_state(setup: &Setup, state: QpState) -> Option<Bench> {
    let qp_type = setup.qp_type;
    Some(match state {
        QpState::Reset => setup.reset(),
        QpState::Init => setup.init(),
        QpState::Rtr => setup.rtr(),
        QpState::Rts => setup.rts(),
        QpState::Sqe if qp_type.is_reliable() => return None,
        QpState::Sqe => {
            let mut b = setup.rts();
            b.qp.post_send(any_send(qp_type, &[Sge { addr: 0, length: 1, lkey: 7 }]), &mut b.host).unwrap();
            assert_eq!(b.sent(), NONE);
            b.notes();
            b
        }
        QpState::Sqd | QpState::Err => {
            let mut b = setup.rts();
            b.modify(&QpAttr::to_state(state));
            b
        }
    })
}

/// A SEND with a destination that fits the type.
fn any_send(qp_type: QpType, sges: &[Sge]) -> SendWr {
    let wr = SendWr::new(1, SEND, sges).flags(SendFlags::SIGNALED);
    match qp_type {
        QpType::Ud | QpType::Gsi => {
            let path = AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0);
            wr.to(Destination::Datagram { path: std::sync::Arc::new(path), qpn: PEERS, qkey: QKEY })
        }
        QpType::XrcSend => wr.to(Destination::XrcSrq(1)),
        _ => wr,
    }
}

/// Rules "post_recv from INIT on; post_send from RTS; in SQE and ERR posts are accepted and flushed", and packets
/// from RTR on: every type in every state.
#[test]
fn every_type_in_every_state() {
    use QpState::{Err as Failed, Init, Reset, Rtr, Rts, Sqd, Sqe};
    for (qp_type, state) in QpType::ALL.into_iter().flat_map(|t| QpState::ALL.map(|s| (t, s))) {
        let setup = Setup { has_srq: qp_type == QpType::XrcRecv, ..Setup::of(qp_type) };
        let Some(mut b) = in_state(&setup, state) else { continue };
        let what = format!("{qp_type} in {state}");
        assert_eq!(b.qp.state(), state, "{what}");
        let flushed = |note: fn(u64, WcStatus) -> Note, id| vec![note(id, WcStatus::WrFlushErr)];
        b.notes();
        let sends = qp_type != QpType::XrcRecv;
        let posted = b.qp.post_send(any_send(qp_type, &[]), &mut b.host);
        assert_eq!(posted.is_ok(), sends && !matches!(state, Reset | Init | Rtr), "{what}: {posted:?}");
        let expected = if sends && matches!(state, Sqe | Failed) { flushed(Note::Sent, 1) } else { vec![] };
        assert_eq!(b.notes(), expected, "{what}");
        assert_eq!(b.sent().len(), usize::from(sends && state == Rts), "{what}");
        b.notes();
        let receives = !matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
        let posted = b.qp.post_recv(RecvWr { wr_id: 2, data: local(0, 100).into() }, &mut b.host);
        assert_eq!(posted.is_ok(), receives && state != Reset, "{what}: {posted:?}");
        let expected = if receives && state == Failed { flushed(Note::Received, 2) } else { vec![] };
        assert_eq!(b.notes(), expected, "{what}");
        // A packet that is accepted in RTS.
        let of_rc = if qp_type.is_connected() { Opcode::RcWriteOnly } else { Opcode::RcSendOnly };
        let base = match qp_type.transport() {
            crate::wire::Transport::Uc => 0x20,
            crate::wire::Transport::Ud => 0x60,
            crate::wire::Transport::Xrc => 0xa0,
            _ => 0,
        };
        let mut packet = rdma(Opcode::from_u8(base | of_rc as u8).unwrap(), RQ, START, KEY, 0, &[]);
        packet.headers.xrc_srqn = host::XRC_SRQ;
        packet.headers.deth.qkey = if qp_type == QpType::Gsi { QKey::GSI } else { QKEY };
        let taken = matches!(state, Rtr | Rts | Sqd | Sqe);
        let expected = match qp_type {
            _ if !taken => Err(PacketDrop::State),
            QpType::XrcSend => Err(PacketDrop::Service),
            _ => Ok(()),
        };
        assert_eq!(b.feed(&packet), expected, "{what}");
    }
}
