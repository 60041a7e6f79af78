//! Queue pairs.

use crate::abi::*;
use crate::ah::{attributes, vector};
use crate::call::{Handle, InOut, Object, Out, Owned, verbs};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::events::Watch;
use crate::hub::{Hub, locked};
use crate::pd::Pd;
use crate::qp_ex::{Builder, WrFlush, wr_flush};
use crate::slot::Slot;
use crate::srq::Srq;
use rnic::{
    Access, EventSource, Gid, Mtu, PathMigState, Psn, QKey, QpAttr, QpCap, QpInit, QpState, QpType, Qpn,
    QueuePair, Tuning, XrcDomain,
};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) c: UnsafeCell<ibv_qp_ex>,
    /// At the offset where headers newer than rdma-core 44 expect it.
    wr_flush: WrFlush,
    pub(crate) builder: OnceLock<Builder>,
    pub(crate) inner: Slot<QueuePair>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) watch: OnceLock<Watch>,
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    sq_sig_all: bool,
    /// The address vector of the peer as the program gave it, with the program's index into the GID table.
    way: Mutex<Option<ibv_ah_attr>>,
}

impl Object for Qp {
    type C = ibv_qp;

    fn name(&self) -> Option<String> {
        self.inner.get().ok().map(|inner| format!("queue pair {} in {}", inner.qpn(), inner.state()))
    }

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        let now = unsafe { (*self.c.get()).qp_base.handle };
        (self.inner.get().map_or(now, |inner| inner.qpn().value()), now)
    }
}

/// The objects that a queue pair is made of, as the program names them.
pub(crate) struct Parts<'a> {
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) xrcd: Option<XrcDomain>,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) sq_sig_all: bool,
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
}

/// The inline data that every queue pair can send, in bytes: about as much as mlx5 rounds a request of 0 up to.
const LEAST_INLINE: u32 = 64;

impl Qp {
    /// Creates a queue pair, and stores its actual capacities in `cap`.
    pub(crate) fn new(
        context: &Context,
        parts: &Parts<'_>,
        cap: &mut ibv_qp_cap,
    ) -> Result<Box<Self>, Errno> {
        let qp_type = match (QpType::from_code(parts.qp_type), parts.qp_type) {
            (Some(qp_type), _) if qp_type != QpType::Gsi => qp_type,
            (_, other @ (IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER)) => {
                return Err(Errno::UNSUPPORTED.because(format_args!("qp_type {other} is not offered")));
            }
            (_, other) => {
                return Err(Errno::INVALID
                    .because(format_args!("qp_type {other} is unknown, or programs cannot create it")));
            }
        };
        // SAFETY: the program created them and has not destroyed them.
        let (send_cq, recv_cq, srq) =
            unsafe { (Cq::of(parts.send_cq), Cq::of(parts.recv_cq), Srq::of(parts.srq)) };
        let [sends, receives] = match qp_type {
            QpType::XrcSend => [true, false],
            QpType::XrcRecv => [false, false],
            _ => [true, true],
        };
        let queue = |cq: Option<&Cq>, has: bool| match cq.filter(|_| has) {
            Some(cq) => cq.inner.get().cloned().map(Some),
            None => Ok(None),
        };
        let srq = srq.filter(|_| receives);
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        // Every queue pair that sends has some room, as with other drivers: some programs send inline without asking for it.
        if sends {
            cap.max_inline_data = cap.max_inline_data.max(LEAST_INLINE);
        }
        let wanted = QpCap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        };
        let init = QpInit {
            qp_type,
            send_cq: queue(send_cq, sends)?,
            recv_cq: queue(recv_cq, receives)?,
            srq: srq.map(|srq| srq.inner.get().cloned()).transpose()?,
            xrcd: parts.xrcd.clone(),
            cap: wanted,
            sq_sig_all: parts.sq_sig_all,
            tuning: Tuning::default(),
        };
        let inner = match (qp_type, parts.pd) {
            (QpType::XrcRecv, _) => context.hub.device.create_qp(&init)?,
            (_, Some(pd)) => pd.inner.get()?.create_qp(&init)?,
            (_, None) => {
                return Err(Errno::INVALID.because("a queue pair of this type needs a protection domain"));
            }
        };
        // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid.
        let mut c: ibv_qp_ex = unsafe { zeroed() };
        let base = &mut c.qp_base;
        base.context = context.as_c();
        base.qp_context = parts.qp_context;
        base.pd = parts.pd.map_or(null_mut(), Object::as_c);
        (base.send_cq, base.recv_cq, base.srq) = (parts.send_cq, parts.recv_cq, parts.srq);
        base.qp_num = inner.qpn().value();
        base.handle = base.qp_num;
        base.qp_type = parts.qp_type;
        let source = EventSource::QueuePair(inner.qpn());
        let qp = Box::new(Self {
            c: UnsafeCell::new(c),
            wr_flush,
            builder: OnceLock::new(),
            inner: Slot::new(inner),
            hub: Arc::clone(&context.hub),
            watch: OnceLock::new(),
            qp_type,
            cap: wanted,
            sq_sig_all: parts.sq_sig_all,
            way: Mutex::new(None),
        });
        let _ = qp.watch.set(context.hub.watch(source, &*qp, context));
        Ok(qp)
    }

    /// Stores the state in the field that programs read.
    fn show(&self, state: QpState) {
        // SAFETY: the program changes a queue pair from one thread at a time.
        unsafe { (*self.c.get()).qp_base.state = state as ibv_qp_state };
    }
}

/// The attributes that verbs have bits for, and `IBV_QP_RATE_LIMIT`.
const KNOWN: u32 = ((1 << 21) - 1) | IBV_QP_RATE_LIMIT;

/// The attributes that are ignored for a type. Programs set the attributes of RC for both halves of XRC too, and the
/// kernel's `modify_qp_mask` removes those of the other half.
const fn ignored(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::XrcSend => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        QpType::XrcRecv => IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY,
        _ => 0,
    }
}

/// The value that a device sees in a field of `bits` bits. Linux does not check these attributes, and devices ignore the high
/// bits. Some programs rely on this: DLSlime sets a min_rnr_timer of 32, which means 0.
fn low_bits(name: &'static str, value: u8, bits: u32) -> u8 {
    let kept = value & ((1 << bits) - 1);
    if kept != value && rnic::explain::is_on() {
        rnic::explain::say(
            name,
            format_args!("ibv_modify_qp: {name} is {value}; its field has {bits} bits, so it means {kept}"),
        );
    }
    kept
}

/// Converts the attributes that a modify sets.
fn change(hub: &Hub, attr: &ibv_qp_attr, mask: u32) -> Result<QpAttr, Errno> {
    if mask & !KNOWN != 0 {
        let unknown = mask & !KNOWN;
        return Err(
            Errno::INVALID.because(format_args!("attr_mask has bits that mean nothing: {unknown:#x}"))
        );
    }
    let has = |bit: u32| mask & bit != 0;
    let state = |bit, code| match has(bit) {
        true => QpState::from_code(code)
            .map(Some)
            .ok_or_else(|| Errno::INVALID.because(format_args!("{code} is no state of a queue pair"))),
        false => Ok(None),
    };
    let way = |bit, attr| if has(bit) { hub.way(vector(attr)).map(Some) } else { Ok(None) };
    let code = attr.path_mtu;
    let no_mtu = || {
        Errno::INVALID.because(format_args!("path_mtu is {code}; it can be 1 (256 bytes) to 5 (4096 bytes)"))
    };
    let mtu = || u8::try_from(code).ok().and_then(Mtu::from_code).ok_or_else(no_mtu);
    let migration = || match attr.path_mig_state {
        IBV_MIG_MIGRATED => Ok(PathMigState::Migrated),
        IBV_MIG_REARM => Ok(PathMigState::Rearm),
        IBV_MIG_ARMED => Ok(PathMigState::Armed),
        other => Err(Errno::INVALID.because(format_args!("path_mig_state is {other}; it can be 0 to 2"))),
    };
    Ok(QpAttr {
        qp_state: state(IBV_QP_STATE, attr.qp_state)?,
        cur_qp_state: state(IBV_QP_CUR_STATE, attr.cur_qp_state)?,
        en_sqd_async_notify: has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
        qp_access_flags: has(IBV_QP_ACCESS_FLAGS).then_some(Access::from_bits_truncate(attr.qp_access_flags)),
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port_num: has(IBV_QP_PORT).then_some(attr.port_num),
        qkey: has(IBV_QP_QKEY).then_some(QKey(attr.qkey)),
        ah_attr: way(IBV_QP_AV, &attr.ah_attr)?,
        path_mtu: has(IBV_QP_PATH_MTU).then(mtu).transpose()?,
        timeout: has(IBV_QP_TIMEOUT).then(|| low_bits("timeout", attr.timeout, 5)),
        retry_cnt: has(IBV_QP_RETRY_CNT).then(|| low_bits("retry_cnt", attr.retry_cnt, 3)),
        rnr_retry: has(IBV_QP_RNR_RETRY).then(|| low_bits("rnr_retry", attr.rnr_retry, 3)),
        rq_psn: has(IBV_QP_RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        alt_ah_attr: way(IBV_QP_ALT_PATH, &attr.alt_ah_attr)?,
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then(|| low_bits("min_rnr_timer", attr.min_rnr_timer, 5)),
        sq_psn: has(IBV_QP_SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        path_mig_state: has(IBV_QP_PATH_MIG_STATE).then(migration).transpose()?,
        cap: has(IBV_QP_CAP).then(QpCap::default),
        dest_qp_num: has(IBV_QP_DEST_QPN).then_some(Qpn::new(attr.dest_qp_num)),
        rate_limit: has(IBV_QP_RATE_LIMIT).then_some(attr.rate_limit),
    })
}

fn cap(of: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: of.max_send_wr,
        max_recv_wr: of.max_recv_wr,
        max_send_sge: of.max_send_sge,
        max_recv_sge: of.max_recv_sge,
        max_inline_data: of.max_inline_data,
    }
}

/// Converts the attributes of a queue pair to the structure of verbs.
fn structure(qp: &Qp, of: &QpAttr, state: QpState) -> ibv_qp_attr {
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    (attr.qp_state, attr.cur_qp_state) = (state as ibv_qp_state, state as ibv_qp_state);
    attr.path_mtu = of.path_mtu.map_or(0, |mtu| mtu as ibv_mtu);
    attr.path_mig_state = of.path_mig_state.unwrap_or_default() as ibv_mig_state;
    attr.qkey = of.qkey.unwrap_or_default().0;
    attr.rq_psn = of.rq_psn.unwrap_or_default().value();
    attr.sq_psn = of.sq_psn.unwrap_or_default().value();
    attr.dest_qp_num = of.dest_qp_num.unwrap_or_default().value();
    attr.qp_access_flags = of.qp_access_flags.unwrap_or_default().bits();
    attr.cap = cap(&qp.cap);
    if let Some(way) = &of.ah_attr {
        attr.ah_attr = locked(&qp.way).unwrap_or_else(|| attributes(way));
    }
    attr.pkey_index = of.pkey_index.unwrap_or_default();
    attr.en_sqd_async_notify = u8::from(of.en_sqd_async_notify.unwrap_or_default());
    attr.max_rd_atomic = of.max_rd_atomic.unwrap_or_default();
    attr.max_dest_rd_atomic = of.max_dest_rd_atomic.unwrap_or_default();
    attr.min_rnr_timer = of.min_rnr_timer.unwrap_or_default();
    attr.port_num = of.port_num.unwrap_or(1);
    attr.timeout = of.timeout.unwrap_or_default();
    attr.retry_cnt = of.retry_cnt.unwrap_or_default();
    attr.rnr_retry = of.rnr_retry.unwrap_or_default();
    attr
}

verbs! {
    fn ibv_create_qp(pd: &Pd, init: InOut<'_, ibv_qp_init_attr>) -> Handle<ibv_qp> {
        let mut init = init;
        let parts = Parts {
            pd: Some(pd),
            xrcd: None,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all != 0,
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
        };
        Ok(Qp::new(pd.context()?, &parts, &mut init.cap)?.give())
    }

    fn ibv_modify_qp(qp: &Qp, attr: InOut<'_, ibv_qp_attr>, mask: c_int) -> () {
        let mask = mask.cast_unsigned();
        let inner = qp.inner.get()?;
        inner.modify(&change(&qp.hub, &attr, mask & !ignored(qp.qp_type))?)?;
        if mask & IBV_QP_AV != 0 {
            *locked(&qp.way) = Some(attributes(&vector(&attr.ah_attr)));
        }
        if mask & IBV_QP_STATE != 0 {
            let state = inner.state();
            qp.show(state);
            if state == QpState::Reset {
                inner.discard_completions();
            }
        }
        Ok(())
    }

    fn ibv_query_qp(
        qp: &Qp,
        attr: Out<ibv_qp_attr>,
        _mask: c_int,
        init: Out<ibv_qp_init_attr>,
    ) -> () {
        let inner = qp.inner.get()?;
        let state = inner.state();
        qp.show(state);
        attr.put(structure(qp, &inner.query(), state));
        // SAFETY: only the state in it changes.
        let base = unsafe { &(*qp.c.get()).qp_base };
        init.put(ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: cap(&qp.cap),
            qp_type: base.qp_type,
            sq_sig_all: c_int::from(qp.sq_sig_all),
        });
        Ok(())
    }

    fn ibv_destroy_qp(qp: Owned<Qp>) -> () {
        // Remove its completions, as drivers do: a program does not expect the number of a queue pair that it has
        // destroyed.
        qp.inner.destroy(QueuePair::destroy_with_completions_in_place)?;
        qp.watch.get().into_iter().for_each(|watch| qp.hub.unwatch(watch));
        qp.free();
        Ok(())
    }

    fn ibv_attach_mcast(qp: &Qp, gid: InOut<'_, ibv_gid>, _lid: u16) -> () {
        // SAFETY: both union fields are the same 16 bytes.
        Ok(qp.inner.get()?.attach_mcast(Gid(unsafe { gid.raw }))?)
    }

    fn ibv_detach_mcast(qp: &Qp, gid: InOut<'_, ibv_gid>, _lid: u16) -> () {
        // SAFETY: both union fields are the same 16 bytes.
        Ok(qp.inner.get()?.detach_mcast(Gid(unsafe { gid.raw }))?)
    }
}
