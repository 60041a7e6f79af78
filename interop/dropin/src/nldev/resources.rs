//! The resources of a device: the queue pairs of the programs that run. Nothing else of a program is known to others, so
//! completion queues, regions and protection domains are not listed, and not counted.

use super::answer::{
    LONGEST, PORT, PORT_INDEX, RES_LQPN, RES_PID, RES_QP, RES_QP_ENTRY, RES_RQ_PSN, RES_RQPN, RES_SQ_PSN,
    RES_STATE, RES_SUMMARY, RES_SUMMARY_ENTRY, RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME, RES_TYPE,
};
use super::message::{ATTRIBUTE, Body, HEADER};
use super::shown::ShownQp;
use rnic::{QpState, QpType};

/// How many there are of each kind that is known.
pub(super) fn summary(head: Body, queue_pairs: usize) -> Body {
    let entry = Body::default()
        .text(RES_SUMMARY_ENTRY_NAME, "qp")
        .u64(RES_SUMMARY_ENTRY_CURR, u64::try_from(queue_pairs).unwrap_or(u64::MAX));
    head.nested(RES_SUMMARY, &Body::default().nested(RES_SUMMARY_ENTRY, &entry))
}

/// Queue pairs, in as many answers as they need, one at least.
pub(super) fn queue_pair_bodies(head: &Body, queue_pairs: &[ShownQp]) -> Vec<Body> {
    let room = LONGEST - HEADER - head.0.len() - ATTRIBUTE;
    let mut tables = vec![Body::default()];
    for one in queue_pairs {
        let entry = queue_pair(Body::default(), one);
        match tables.last_mut() {
            Some(last) if last.0.len() + ATTRIBUTE + entry.0.len() <= room => {
                *last = std::mem::take(last).nested(RES_QP_ENTRY, &entry);
            }
            _ => tables.push(Body::default().nested(RES_QP_ENTRY, &entry)),
        }
    }
    tables.into_iter().map(|table| Body(head.0.clone()).nested(RES_QP, &table)).collect()
}

/// The attributes of a queue pair, after those of `head`. As in the kernel, only connected types have a peer and an expected
/// PSN, and a program is given by its process ID, from which a tool finds its name. The codes of types and states are those
/// of verbs.
pub(super) fn queue_pair(head: Body, ShownQp { pid, qp }: &ShownQp) -> Body {
    let kind = QpType::ALL.into_iter().find(|kind| kind.name() == qp.qp_type);
    let is_connected = matches!(kind, Some(QpType::Rc | QpType::Uc));
    let connected = is_connected.then(|| (qp.peer.map_or(0, |(_, qpn)| qpn), qp.expected_psn));
    let state = QpState::ALL.into_iter().find(|state| state.name() == qp.state);
    head.u32(PORT_INDEX, PORT)
        .u32(RES_LQPN, qp.qpn)
        .maybe(connected, |body, (peer, psn)| body.u32(RES_RQPN, peer).u32(RES_RQ_PSN, psn))
        .u32(RES_SQ_PSN, qp.next_psn)
        .maybe(kind.map(|kind| kind as u8), |body, kind| body.u8(RES_TYPE, kind))
        .maybe(state.map(|state| state as u8), |body, state| body.u8(RES_STATE, state))
        .u32(RES_PID, *pid)
}
