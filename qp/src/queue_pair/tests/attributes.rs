//! What is set is what a query gives back, and what is refused changes nothing.

use super::*;
use crate::attr::PathMigState;

/// A change for every state on the way through all of them, with values that differ from those before.
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
            ..AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 9)), 1)
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
        // All that any change of state of this type takes was among them.
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
            // A value out of range, an attribute too many, one too few, and the wrong state.
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

/// Attributes that change while a queue pair runs, or drains, are obeyed from then on.
#[test]
fn changed_attributes_take_effect() {
    // The timer of receivers that are not ready, in RTS.
    let mut b = Setup::default().rts();
    b.modify(&QpAttr::default().min_rnr_timer(3));
    b.expect(&request(Opcode::RcSendOnly, RQ, b""), &[nak(0x20 | 3, RQ, 0)]);
    // Rights.
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
