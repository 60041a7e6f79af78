//! Queue pairs: how they are created, modified and connected.

use super::book::{CHANGE, MAKE, done, made};
use super::side::{OBJECTS, Qp, Side, pick, place, pointer};
use super::symbols::*;
use super::{Common, Way};
use crate::fuzz::verbs::sane;
use arbitrary::Arbitrary;
use rnic_dropin::abi::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// The attributes of a new queue pair.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct NewQp {
    pd: u8,
    kind: u8,
    cqs: [u8; 2],
    srq: Option<u8>,
    xrcd: u8,
    caps: Option<[u32; 5]>,
    all: bool,
    /// Bits of `comp_mask` to flip, compared with the right value for the type; `None` for the plain call.
    ex: Option<u8>,
    calls: u16,
}

impl NewQp {
    /// A typical one of the given type that supports posting by calls.
    pub(super) const fn plain(kind: u8) -> Self {
        // All types have the calls for SEND, and any of them enables all calls.
        let calls = IBV_QP_EX_WITH_SEND as u16;
        let (srq, caps, ex) = (None, None, Some(0));
        Self { pd: 0, kind, cqs: [0; 2], srq, xrcd: 0, caps, all: false, ex, calls }
    }
}

impl Link {
    /// A typical one.
    pub(super) const fn plain() -> Self {
        Self { mtu: 2, access: 0xf, depth: 4, psn: 7, retries: 0xff, wrong: 0 }
    }
}

/// How two queue pairs are connected: mostly correctly.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Link {
    mtu: u8,
    access: u8,
    depth: u8,
    psn: u16,
    retries: u8,
    /// Bits of the masks to flip.
    wrong: u8,
}

/// The attributes of a modify; a mask selects the valid ones.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Attributes {
    states: [u8; 2],
    way: Way,
    numbers: [u32; 4],
    bytes: [u8; 8],
    access: u16,
}

/// The Q_Key of all datagram queue pairs here.
pub(super) const QKEY: u32 = 0x1357;

const TYPES: [ibv_qp_type; 8] = [
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_QPT_UC,
    IBV_QPT_XRC_SEND,
    IBV_QPT_XRC_RECV,
    IBV_QPT_RAW_PACKET,
    IBV_QPT_DRIVER,
    77,
];

/// Identifies a group.
fn group_key(which: u8) -> u8 {
    which & 5
}

/// Addresses of groups that a queue pair may be attached to, and one that is not a group.
fn group(which: u8) -> ibv_gid {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 224 + 4 * (which & 4), 9, 9, which & 1]);
    ibv_gid { raw }
}

impl Side {
    pub(super) fn create_qp(&mut self, common: &mut Common, new: &NewQp) {
        if self.qps.len() >= OBJECTS {
            return;
        }
        let [send_wr, recv_wr, send_sge, recv_sge, inline] = new.caps.unwrap_or([16, 16, 2, 2, 64]);
        let cap = ibv_qp_cap {
            max_send_wr: sane(send_wr),
            max_recv_wr: sane(recv_wr),
            max_send_sge: sane(send_sge),
            max_recv_sge: sane(recv_sge),
            max_inline_data: sane(inline),
        };
        let [send_cq, recv_cq] = new.cqs.map(|cq| pick(&self.cqs, cq).map_or(null_mut(), |cq| cq.at));
        let srq = new.srq.map_or(null_mut(), |srq| pointer(&self.srqs, srq));
        let qp_type = TYPES[usize::from(new.kind) % TYPES.len()];
        let (qp_context, sq_sig_all) = (null_mut(), new.all.into());
        let pd = self.pd(new.pd);
        // SAFETY: structures of numbers and pointers; the objects in them are valid or NULL.
        let qp = unsafe {
            if let Some(mask) = new.ex {
                let mut init: ibv_qp_init_attr_ex = zeroed();
                (init.send_cq, init.recv_cq, init.srq, init.cap) = (send_cq, recv_cq, srq, cap);
                (init.qp_type, init.sq_sig_all, init.pd) = (qp_type, sq_sig_all, pd);
                init.xrcd = pointer(&self.xrcds, new.xrcd);
                let right = match qp_type {
                    IBV_QPT_XRC_RECV => IBV_QP_INIT_ATTR_XRCD,
                    _ => IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                };
                init.comp_mask = right ^ if mask > 0xc0 { u32::from(mask & 0x3f) } else { 0 };
                init.send_ops_flags = u64::from(new.calls);
                let create = table(self.context).create_qp_ex.expect("offered");
                made(create(self.context, &raw mut init), MAKE)
            } else {
                let mut init =
                    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
                made(ibv_create_qp(pd, &raw mut init), MAKE)
            }
        };
        if let Some(at) = qp {
            self.qps.push(Qp { at, groups: Vec::new() });
            self.watch_queues(&mut common.book, at);
        }
    }

    /// The number of a queue pair.
    pub(super) fn number_of(&self, qp: u8) -> Option<u32> {
        // SAFETY: the queue pair exists.
        pick(&self.qps, qp).map(|qp| unsafe { (*qp.at).qp_num })
    }

    pub(super) fn destroy_qp(&mut self, common: &mut Common, qp: u8) {
        let Some(at) = place(&self.qps, qp) else { return };
        let Qp { at: qp, groups } = &mut self.qps[at];
        // An attached queue pair is in use.
        for which in groups.drain(..) {
            // SAFETY: the queue pair exists.
            assert_eq!(unsafe { ibv_detach_mcast(*qp, &group(which), 0) }, 0);
        }
        let qp = *qp;
        self.async_events();
        // SAFETY: likewise.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0, "nothing uses a queue pair");
        self.qps.swap_remove(at);
        common.book.forget(qp);
    }

    /// Modifies a queue pair; work requests of a queue pair that is reset do not complete.
    fn modify(&self, common: &mut Common, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) {
        // SAFETY: the queue pair exists.
        if done(unsafe { ibv_modify_qp(qp, attr, mask.cast_signed()) }, CHANGE)
            && mask & IBV_QP_STATE != 0
            && attr.qp_state == IBV_QPS_RESET
        {
            common.book.forget(qp);
        }
    }

    pub(super) fn modify_qp(&self, common: &mut Common, qp: u8, mask: u32, of: &Attributes) {
        let Some(qp) = pick(&self.qps, qp) else { return };
        // SAFETY: a structure of numbers.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        let [a, b, c, d] = of.numbers;
        let state = |byte: u8| if byte < 0xf0 { u32::from(byte % 8) } else { u32::from(byte) << 24 };
        (attr.qp_state, attr.cur_qp_state) = (state(of.states[0]), state(of.states[1]));
        attr.ah_attr = of.way.attributes(common);
        attr.alt_ah_attr = attr.ah_attr;
        (attr.qkey, attr.rq_psn, attr.sq_psn, attr.dest_qp_num) = (a, b, c, d);
        (attr.path_mtu, attr.path_mig_state) = (u32::from(of.bytes[0] % 8), u32::from(of.bytes[1] % 5));
        attr.qp_access_flags = of.access.into();
        attr.pkey_index = (of.bytes[2] & 1).into();
        attr.port_num = of.bytes[2] & 3;
        [attr.max_rd_atomic, attr.max_dest_rd_atomic] = [of.bytes[3], of.bytes[4]];
        [attr.min_rnr_timer, attr.timeout] = [of.bytes[5], of.bytes[6]];
        [attr.retry_cnt, attr.rnr_retry] = [of.bytes[7], of.bytes[7] >> 4];
        (attr.rate_limit, attr.en_sqd_async_notify) = (a, of.bytes[1] >> 7);
        self.modify(common, qp.at, &mut attr, mask);
    }

    pub(super) fn query_qp(&self, qp: u8, mask: u32) {
        let Some(qp) = pick(&self.qps, qp) else { return };
        // SAFETY: structures of numbers and pointers; the queue pair exists.
        unsafe {
            let (mut attr, mut init) = (zeroed(), zeroed());
            assert_eq!(ibv_query_qp(qp.at, &raw mut attr, mask.cast_signed(), &raw mut init), 0);
            assert_eq!((*qp.at).state, attr.qp_state);
            assert_eq!(init.qp_type, (*qp.at).qp_type);
            let builder = ibv_qp_to_qp_ex(qp.at);
            assert!(builder.is_null() || builder.cast() == qp.at);
        }
    }

    /// Moves a queue pair to RTS, with the other one as its peer.
    pub(super) fn connect(&self, common: &mut Common, qp: u8, (side, number): (usize, u32), link: Link) {
        let Some(qp) = pick(&self.qps, qp).map(|qp| qp.at) else { return };
        // SAFETY: the queue pair exists.
        let qp_type = unsafe { (*qp).qp_type };
        // SAFETY: a structure of numbers.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.port_num = 1;
        attr.qkey = QKEY;
        attr.qp_access_flags = u32::from(link.access);
        attr.path_mtu = 1 + u32::from(link.mtu % 5);
        (attr.rq_psn, attr.sq_psn) = (u32::from(link.psn) << 8, u32::from(link.psn) << 8);
        attr.dest_qp_num = number;
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (link.depth % 17, link.depth % 17);
        // A timeout of 67 ms, for busy machines.
        (attr.min_rnr_timer, attr.timeout) = (1, 14);
        (attr.retry_cnt, attr.rnr_retry) = (link.retries & 7, link.retries >> 3 & 7);
        (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
        (attr.ah_attr.grh.dgid, attr.ah_attr.grh.hop_limit) = (common.gids[side], 64);
        let reliable = !matches!(qp_type, IBV_QPT_UC | IBV_QPT_UD);
        let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        let init = init | if qp_type == IBV_QPT_UD { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
        let rtr = match (qp_type, reliable) {
            (IBV_QPT_UD, _) => 0,
            (_, false) => IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
            (_, true) => {
                IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER
            }
        };
        let timers = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        let rts = IBV_QP_SQ_PSN | if reliable { timers } else { 0 };
        let wrong = if link.wrong > 0xe0 { 1 << (link.wrong & 0x1f) } else { 0 };
        let steps = [
            (IBV_QPS_RESET, IBV_QP_STATE),
            (IBV_QPS_INIT, init),
            (IBV_QPS_RTR, IBV_QP_STATE | rtr),
            (IBV_QPS_RTS, IBV_QP_STATE | rts),
        ];
        for (state, mask) in steps {
            attr.qp_state = state;
            self.modify(common, qp, &mut attr, if state == IBV_QPS_RESET { mask } else { mask ^ wrong });
        }
    }

    pub(super) fn attach(&mut self, qp: u8, which: u8) {
        let Some(at) = place(&self.qps, qp) else { return };
        let Qp { at: qp, groups } = &mut self.qps[at];
        let errors = [libc::EINVAL, libc::ENOMEM, libc::ENODEV, libc::EADDRNOTAVAIL];
        // SAFETY: the queue pair exists.
        if done(unsafe { ibv_attach_mcast(*qp, &group(which), 0) }, &errors)
            && groups.iter().all(|ours| group_key(*ours) != group_key(which))
        {
            groups.push(which);
        }
    }

    pub(super) fn detach(&mut self, qp: u8, which: u8) {
        let Some(at) = place(&self.qps, qp) else { return };
        let Qp { at: qp, groups } = &mut self.qps[at];
        // SAFETY: the queue pair exists.
        if done(unsafe { ibv_detach_mcast(*qp, &group(which), 0) }, &[libc::EINVAL]) {
            groups.retain(|ours| group_key(*ours) != group_key(which));
        }
    }
}
