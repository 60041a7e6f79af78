use super::*;
use std::fmt::Write as _;

fn peer() -> AddressVector {
    AddressVector::new(Gid::from(std::net::Ipv4Addr::new(10, 77, 0, 2)), 0)
}

fn rc_to_rtr() -> QpAttr {
    QpAttr::to_rtr(peer(), Mtu::B1024, Qpn::new(17), Psn::new(5)).max_dest_rd_atomic(16).min_rnr_timer(12)
}

fn rc_to_rts() -> QpAttr {
    QpAttr::to_rts(Psn::new(9)).timeout(14).retry_cnt(7).rnr_retry(7).max_rd_atomic(16)
}

fn error(qp_type: QpType, from: QpState, attr: &QpAttr) -> String {
    check(qp_type, from, attr, &Limits::default()).unwrap_err().to_string()
}

#[test]
fn the_rules_of_every_transition() {
    let mut table = String::new();
    for qp_type in QpType::ALL {
        writeln!(table, "{qp_type}").unwrap();
        for from in QpState::ALL {
            let ways: Vec<_> =
                QpState::ALL.into_iter().filter_map(|to| Some((to, rule(qp_type, from, to)?))).collect();
            for (to, Rule { required, optional }) in ways {
                let list = |mask: AttrMask| mask.field_names().collect::<Vec<_>>().join(" ");
                writeln!(table, "  {from} -> {to}").unwrap();
                for (word, mask) in [("needs", required), ("takes", optional)] {
                    if !mask.is_empty() {
                        writeln!(table, "    {word} {}", list(mask)).unwrap();
                    }
                }
                assert!((required & optional).is_empty(), "{qp_type} {from} -> {to} lists a field twice");
            }
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn the_usual_way_up_and_down() {
    let limits = Limits::default();
    let init = QpAttr::to_init(1, 0, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let mut state = QpState::Reset;
    for (attr, next) in [
        (init, QpState::Init),
        (rc_to_rtr(), QpState::Rtr),
        (rc_to_rts().cur_qp_state(QpState::Rtr), QpState::Rts),
        (QpAttr::default().min_rnr_timer(1), QpState::Rts),
        (QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true), QpState::Sqd),
        (QpAttr::default().retry_cnt(1).ah_attr(peer()), QpState::Sqd),
        (QpAttr::to_state(QpState::Rts), QpState::Rts),
        (QpAttr::to_state(QpState::Err), QpState::Err),
        (QpAttr::to_state(QpState::Err), QpState::Err),
        (QpAttr::to_state(QpState::Reset), QpState::Reset),
    ] {
        state = check(QpType::Rc, state, &attr, &limits).unwrap();
        assert_eq!(state, next);
    }
    let ud = [
        QpAttr::to_init_datagram(1, 0, QKey(0x1111_1111)),
        QpAttr::to_state(QpState::Rtr),
        QpAttr::to_rts(Psn::new(0)),
    ];
    let end = ud.iter().fold(QpState::Reset, |state, attr| check(QpType::Ud, state, attr, &limits).unwrap());
    assert_eq!(end, QpState::Rts);
}

#[test]
fn an_invalid_transition_names_the_valid_ones() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let text = |from, to| error(QpType::Rc, from, &QpAttr::to_state(to));
    // Linux refuses this on every device.
    assert!(text(Reset, Err).starts_with("cannot go from RESET to ERR"), "{}", text(Reset, Err));
    assert_eq!(
        text(Reset, Rtr),
        "cannot go from RESET to RTR: an RC queue pair goes RESET -> INIT -> RTR -> RTS"
    );
    assert_eq!(
        text(Err, Rts),
        "an RC queue pair cannot go from ERR to RTS: the only way out of ERR is RESET"
    );
    assert_eq!(
        text(Init, Sqd),
        "an RC queue pair cannot go from INIT to SQD: SQD can only be entered from RTS"
    );
    assert_eq!(text(Rts, Sqe), "an RC queue pair cannot go from RTS to SQE: only a failed send enters SQE");
    assert_eq!(
        text(Sqe, Init),
        "an RC queue pair cannot go from SQE to INIT: SQE can only change to RTS, ERR or RESET"
    );
    assert_eq!(
        error(QpType::Ud, Rtr, &QpAttr::default().qkey(QKey(1))),
        "a UD queue pair in RTR accepts no attributes without a change of state"
    );
}

#[test]
fn missing_and_excess_attributes_are_named() {
    let mut attr = rc_to_rtr();
    attr.dest_qp_num = None;
    attr.rq_psn = None;
    assert_eq!(
        error(QpType::Rc, QpState::Init, &attr),
        "INIT -> RTR of an RC queue pair needs rq_psn and dest_qp_num"
    );
    assert_eq!(
        error(QpType::Rc, QpState::Rtr, &QpAttr::to_state(QpState::Rts)),
        "RTR -> RTS of an RC queue pair needs timeout, retry_cnt, rnr_retry, max_rd_atomic and sq_psn"
    );
    let uc = QpAttr::to_rtr(peer(), Mtu::B1024, Qpn::new(17), Psn::new(5)).timeout(14);
    assert_eq!(
        error(QpType::Uc, QpState::Init, &uc),
        "timeout does not apply to INIT -> RTR of a UC queue pair"
    );
    assert_eq!(
        error(QpType::Uc, QpState::Init, &uc.min_rnr_timer(1)),
        "timeout and min_rnr_timer do not apply to INIT -> RTR of a UC queue pair"
    );
}

#[test]
fn the_claimed_state_must_be_the_real_one() {
    assert_eq!(
        error(QpType::Rc, QpState::Sqd, &QpAttr::to_state(QpState::Rts).cur_qp_state(QpState::Rtr)),
        "cur_qp_state is RTR, but the queue pair is in SQD"
    );
}

#[test]
fn roce_has_no_alternate_path() {
    assert_eq!(
        error(QpType::Rc, QpState::Init, &rc_to_rtr().alt_ah_attr(peer())),
        "alt_ah_attr is not supported: RoCE has no automatic path migration"
    );
}

#[test]
fn values_are_checked_at_their_bounds() {
    let init = || QpAttr::to_init(1, 0, Access::empty());
    let cases = [
        (QpState::Reset, init().port_num(0), "port_num is 0; valid values are 1 to 1"),
        (QpState::Reset, init().port_num(2), "port_num is 2; valid values are 1 to 1"),
        (QpState::Reset, init().pkey_index(1), "pkey_index is 1; valid values are 0 to 0"),
        (QpState::Init, rc_to_rtr().min_rnr_timer(32), "min_rnr_timer is 32; valid values are 0 to 31"),
        (
            QpState::Init,
            rc_to_rtr().max_dest_rd_atomic(129),
            "max_dest_rd_atomic is 129; valid values are 0 to 128",
        ),
        (QpState::Rtr, rc_to_rts().timeout(32), "timeout is 32; valid values are 0 to 31"),
        (QpState::Rtr, rc_to_rts().retry_cnt(8), "retry_cnt is 8; valid values are 0 to 7"),
        (QpState::Rtr, rc_to_rts().rnr_retry(8), "rnr_retry is 8; valid values are 0 to 7"),
        (QpState::Rtr, rc_to_rts().max_rd_atomic(129), "max_rd_atomic is 129; valid values are 0 to 128"),
        (
            QpState::Init,
            rc_to_rtr().ah_attr(AddressVector { sl: 16, ..peer() }),
            "ah_attr.sl is 16; valid values are 0 to 15",
        ),
        (
            QpState::Init,
            rc_to_rtr().ah_attr(AddressVector { port_num: 0, ..peer() }),
            "ah_attr.port_num is 0; valid values are 1 to 1",
        ),
        (
            QpState::Init,
            rc_to_rtr().ah_attr(AddressVector { sgid_index: 1, ..peer() }),
            "ah_attr.sgid_index is 1; valid values are 0 to 0",
        ),
        (
            QpState::Init,
            rc_to_rtr().ah_attr(AddressVector { is_global: false, ..peer() }),
            "ah_attr has no GID (is_global is 0, or dgid is all zero): RoCE addresses are GIDs",
        ),
    ];
    for (from, attr, text) in cases {
        assert_eq!(error(QpType::Rc, from, &attr), text);
    }
    let highest = rc_to_rts().timeout(31).retry_cnt(7).rnr_retry(7).max_rd_atomic(128);
    assert_eq!(check(QpType::Rc, QpState::Rtr, &highest, &Limits::default()), Ok(QpState::Rts));
    let wide = Limits { pkeys: 3, gids: 4, ..Limits::default() };
    let last = rc_to_rtr().pkey_index(2).ah_attr(AddressVector { sgid_index: 3, ..peer() });
    assert_eq!(check(QpType::Rc, QpState::Init, &last, &wide), Ok(QpState::Rtr));
    assert_eq!(
        check(QpType::Rc, QpState::Init, &last.pkey_index(3), &wide).unwrap_err().to_string(),
        "pkey_index is 3; valid values are 0 to 2"
    );
    let just = Limits { path_mtu: Mtu::B1024, ..Limits::default() };
    assert_eq!(check(QpType::Rc, QpState::Init, &rc_to_rtr(), &just), Ok(QpState::Rtr));
    let small = Limits { path_mtu: Mtu::B512, ..Limits::default() };
    assert_eq!(
        check(QpType::Rc, QpState::Init, &rc_to_rtr(), &small).unwrap_err().to_string(),
        "path_mtu is 1024 bytes; the port supports at most 512"
    );
}

#[test]
fn codes_are_those_of_verbs() {
    assert_eq!(QpState::ALL.map(|s| QpState::from_code(s as u32)), QpState::ALL.map(Some));
    assert_eq!(QpState::from_code(7), None);
    assert_eq!(QpType::ALL.map(|t| t as u32), [2, 3, 4, 9, 10, 1]);
    assert_eq!(QpType::ALL.map(|t| QpType::from_code(t as u32)), QpType::ALL.map(Some));
    assert_eq!(QpType::from_code(8), None, "RoCE has no raw packet transport");
    // Every attribute has its own name and its own field.
    let names: std::collections::HashSet<_> = AttrMask::all().field_names().collect();
    assert_eq!(names.len(), 22);
    assert!(!names.contains("an unknown attribute"));
    assert_eq!(
        rc_to_rts().mask().bits(),
        0x1_2e01,
        "STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, rd_atomic, SQ_PSN"
    );
}

/// Every attribute except the state, with a valid value and a short name for the table.
fn every_attribute(from: QpState) -> [(&'static str, QpAttr); 21] {
    let attr = QpAttr::default;
    [
        ("cur", attr().cur_qp_state(from)),
        ("sqd", attr().en_sqd_async_notify(true)),
        ("acc", attr().qp_access_flags(Access::REMOTE_READ)),
        ("pki", attr().pkey_index(0)),
        ("prt", attr().port_num(1)),
        ("qky", attr().qkey(QKey(1))),
        ("av", attr().ah_attr(peer())),
        ("mtu", attr().path_mtu(Mtu::B256)),
        ("tmo", attr().timeout(1)),
        ("rty", attr().retry_cnt(1)),
        ("rnr", attr().rnr_retry(1)),
        ("rps", attr().rq_psn(Psn::new(1))),
        ("rda", attr().max_rd_atomic(1)),
        ("alt", attr().alt_ah_attr(peer())),
        ("mrt", attr().min_rnr_timer(1)),
        ("sps", attr().sq_psn(Psn::new(1))),
        ("drd", attr().max_dest_rd_atomic(1)),
        ("mig", attr().path_mig_state(PathMigState::Migrated)),
        ("cap", attr().cap(QpCap::default())),
        ("dqp", attr().dest_qp_num(Qpn::new(2))),
        ("rat", attr().rate_limit(1)),
    ]
}

/// The attributes that a transition requires, collected from its errors; `None` if the transition is invalid.
fn enough(qp_type: QpType, from: QpState, to: QpState) -> Option<QpAttr> {
    let mut attr = QpAttr::to_state(to);
    match check(qp_type, from, &attr, &Limits::default()) {
        Ok(state) => assert_eq!(state, to),
        Err(ModifyError::NoTransition(_)) => return None,
        Err(ModifyError::Missing { missing, .. }) => {
            let needed = every_attribute(from).into_iter().filter(|(_, a)| missing.contains(a.mask()));
            needed.for_each(|(_, a)| attr.merge(&a));
            assert_eq!(check(qp_type, from, &attr, &Limits::default()), Ok(to));
        }
        Err(other) => panic!("{qp_type} {from} -> {to}: {other}"),
    }
    Some(attr)
}

/// Whether a transition requires, accepts or refuses one attribute, found by trying it with all required
/// attributes, and with or without this one.
fn verdict(qp_type: QpType, from: QpState, enough: &QpAttr, one: &QpAttr) -> &'static str {
    let tried = |attr: &QpAttr| check(qp_type, from, attr, &Limits::default());
    let others = every_attribute(from).into_iter().map(|(_, a)| a).filter(|a| a != one);
    let mut without = QpAttr::to_state(enough.qp_state.unwrap_or(from));
    others.filter(|a| enough.mask().contains(a.mask())).for_each(|a| without.merge(&a));
    let mut with = without.clone();
    with.merge(one);
    match (tried(&without), tried(&with)) {
        (Err(ModifyError::Missing { missing, .. }), Ok(_)) if missing == one.mask() => "!",
        (Ok(_), Ok(_)) => "+",
        (Ok(_), Err(ModifyError::NotApplicable { excess, .. })) if excess == one.mask() => ".",
        (Ok(_), Err(ModifyError::AlternatePath)) => "x",
        other => panic!("{qp_type} from {from} with {}: {other:?}", one.mask()),
    }
}

/// Every type, state, next state and attribute, judged by the behaviour of [`check`] and not by its table. `!`
/// required, `+` optional, `.` refused, `x` never available over RoCE.
#[test]
fn every_attribute_in_every_change_of_state() {
    let mut table =
        String::from("! required   + optional   . refused   x refused: no automatic path migration\n");
    for qp_type in QpType::ALL {
        let names = every_attribute(QpState::Reset).map(|(name, _)| format!("{name:>4}")).concat();
        writeln!(table, "\n{:<14}{names}", qp_type.name()).unwrap();
        for from in QpState::ALL {
            let mut nowhere = Vec::new();
            for to in QpState::ALL {
                let Some(enough) = enough(qp_type, from, to) else {
                    nowhere.push(to.name());
                    continue;
                };
                let marks = every_attribute(from).map(|(_, one)| verdict(qp_type, from, &enough, &one));
                let marks = marks.map(|mark| format!("{mark:>4}")).concat();
                writeln!(table, "{:<14}{marks}", format!("{from} -> {to}")).unwrap();
                if from == to {
                    // Without a next state the queue pair stays in its state, by the same rules.
                    let stay = QpAttr { qp_state: None, ..enough.clone() };
                    assert_eq!(check(qp_type, from, &stay, &Limits::default()), Ok(from));
                }
            }
            let ways = if nowhere.is_empty() { "none".into() } else { nowhere.join(" ") };
            writeln!(table, "{from} has no way to {ways}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}
