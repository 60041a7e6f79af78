//! Work requests built by calls (`ibv_qp_ex`).

use crate::abi::*;
use crate::call::{Arg, Handle, In, Object, Value, list, verbs};
use crate::errno::Errno;
use crate::gate::Gate;
use crate::post::{bind, datagram, flags, inline, refused};
use crate::qp::Qp;
use rnic::{Destination, FlushKind, Gather, Operation, QpType, Remote, SendWr, Sge};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ops::Deref;

/// The extra state of a queue pair whose work requests are built by calls.
pub(crate) struct Builder {
    gate: Gate,
    batch: UnsafeCell<Batch>,
}

/// The work requests of one batch.
#[derive(Default)]
struct Batch {
    wrs: Vec<SendWr>,
    /// The first error in the batch. If there is one, nothing is posted.
    error: Option<(Errno, Option<String>)>,
}

impl Batch {
    /// Records an error in a work request; the first error counts.
    fn refuse(&mut self, errno: Errno) {
        if self.error.is_none() {
            self.error = Some((errno, crate::explain::reason(errno)));
        }
    }
}

/// A queue pair whose work requests are built by calls.
pub(crate) struct Ex<'a>(&'a Qp);

impl Arg for Ex<'_> {
    type Raw = *mut ibv_qp_ex;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: the extended structure begins with the basic one.
        unsafe { Qp::of(raw.cast()) }.map(Ex).ok_or(Errno::INVALID)
    }

    unsafe fn subject(raw: Self::Raw) -> Option<String> {
        // SAFETY: as above.
        unsafe { Qp::of(raw.cast()) }?.name()
    }

    unsafe fn device(raw: Self::Raw) -> Option<rnic::Device> {
        // SAFETY: as above.
        unsafe { Qp::of(raw.cast()) }?.device()
    }
}

impl Deref for Ex<'_> {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        self.0
    }
}

impl Ex<'_> {
    fn builder(&self) -> Result<&Builder, Errno> {
        self.builder
            .get()
            .ok_or_else(|| Errno::INVALID.because("the queue pair was created without send_ops_flags"))
    }

    #[expect(clippy::mut_from_ref, reason = "a cell, behind the gate")]
    fn batch(&self) -> Result<&mut Batch, Errno> {
        // SAFETY: between `start` and the end of the batch only one thread is inside the gate.
        Ok(unsafe { &mut *self.builder()?.batch.get() })
    }

    /// Begins a work request, with the `wr_id` and the flags that the program has stored.
    fn begin(&self, operation: Result<Operation, Errno>) -> Result<Value<()>, Errno> {
        let batch = self.batch()?;
        // SAFETY: the program stores them before the call.
        let (wr_id, given) = unsafe { ((*self.c.get()).wr_id, (*self.c.get()).wr_flags) };
        match operation {
            Ok(operation) => batch.wrs.push(SendWr::new(wr_id, operation, Gather::Empty).flags(flags(given))),
            Err(errno) => batch.refuse(errno),
        }
        Ok(Value(()))
    }

    /// Changes the work request begun last.
    fn complete(&self, change: impl FnOnce(&mut SendWr) -> Result<(), Errno>) -> Result<Value<()>, Errno> {
        let batch = self.batch()?;
        let result = batch
            .wrs
            .last_mut()
            .ok_or_else(|| Errno::INVALID.because("no work request was begun"))
            .and_then(change);
        if let Err(errno) = result {
            batch.refuse(errno);
        }
        Ok(Value(()))
    }
}

verbs! {
    fn wr_start(qp: Ex<'_>) -> Value<()> {
        qp.builder()?.gate.enter();
        let batch = qp.batch()?;
        batch.wrs.clear();
        batch.error = None;
        Ok(Value(()))
    }

    fn wr_complete(qp: Ex<'_>) -> () {
        let _leaving = qp.builder()?.gate.leaving();
        let batch = qp.batch()?;
        match batch.error.take() {
            Some((errno, Some(reason))) => Err(errno.because(reason)),
            Some((errno, None)) => Err(errno),
            None => qp.inner.get().and_then(|inner| {
                inner.post_sends_or_none(&mut batch.wrs).map_err(|error| refused(&qp, error))
            }),
        }
    }

    fn wr_abort(qp: Ex<'_>) -> Value<()> {
        qp.batch()?.wrs.clear();
        qp.builder()?.gate.leave();
        Ok(Value(()))
    }

    fn wr_send(qp: Ex<'_>) -> Value<()> {
        qp.begin(Ok(Operation::Send { imm: None, invalidate: None }))
    }

    fn wr_send_imm(qp: Ex<'_>, imm: u32) -> Value<()> {
        qp.begin(Ok(Operation::Send { imm: Some(u32::from_be(imm)), invalidate: None }))
    }

    fn wr_send_inv(qp: Ex<'_>, key: u32) -> Value<()> {
        qp.begin(Ok(Operation::Send { imm: None, invalidate: Some(key) }))
    }

    fn wr_rdma_write(qp: Ex<'_>, rkey: u32, addr: u64) -> Value<()> {
        qp.begin(Ok(Operation::Write { remote: Remote { addr, rkey }, imm: None }))
    }

    fn wr_rdma_write_imm(qp: Ex<'_>, rkey: u32, addr: u64, imm: u32) -> Value<()> {
        qp.begin(Ok(Operation::Write { remote: Remote { addr, rkey }, imm: Some(u32::from_be(imm)) }))
    }

    fn wr_rdma_read(qp: Ex<'_>, rkey: u32, addr: u64) -> Value<()> {
        qp.begin(Ok(Operation::Read { remote: Remote { addr, rkey } }))
    }

    fn wr_atomic_cmp_swp(qp: Ex<'_>, rkey: u32, addr: u64, compare: u64, swap: u64) -> Value<()> {
        qp.begin(Ok(Operation::CompareSwap { remote: Remote { addr, rkey }, compare, swap }))
    }

    fn wr_atomic_fetch_add(qp: Ex<'_>, rkey: u32, addr: u64, add: u64) -> Value<()> {
        qp.begin(Ok(Operation::FetchAdd { remote: Remote { addr, rkey }, add }))
    }

    fn wr_atomic_write(qp: Ex<'_>, rkey: u32, addr: u64, value: *const c_void) -> Value<()> {
        qp.begin(Ok(Operation::AtomicWrite { remote: Remote { addr, rkey } }))?;
        qp.complete(|wr| {
            if value.is_null() {
                return Err(Errno::INVALID.because("atomic_wr is NULL"));
            }
            wr.data = inline(std::iter::once((value.cast(), size_of::<u64>())), qp.cap.max_inline_data)?;
            Ok(())
        })
    }

    fn wr_flush(qp: Ex<'_>, rkey: u32, addr: u64, len: usize, placement: u8, level: u8) -> Value<()> {
        let flush = FlushKind {
            global: placement & FLUSH_GLOBAL != 0,
            persistent: placement & FLUSH_PERSISTENT != 0,
            whole_region: level == FLUSH_MR,
        };
        let known = placement & !(FLUSH_GLOBAL | FLUSH_PERSISTENT) == 0 && level <= FLUSH_MR;
        let len = u32::try_from(len).ok().filter(|_| known).ok_or(Errno::INVALID);
        qp.begin(len.map(|len| Operation::Flush { remote: Remote { addr, rkey }, len, flush }))
    }

    fn wr_local_inv(qp: Ex<'_>, key: u32) -> Value<()> {
        qp.begin(Ok(Operation::LocalInvalidate { key }))
    }

    fn wr_bind_mw(
        qp: Ex<'_>,
        mw: *mut ibv_mw,
        rkey: u32,
        info: Option<In<'_, ibv_mw_bind_info>>,
    ) -> Value<()> {
        let operands = info.ok_or(Errno::INVALID).and_then(|info| bind(mw, rkey, &info));
        qp.begin(operands.map(Operation::BindWindow))
    }

    fn wr_set_ud_addr(qp: Ex<'_>, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Value<()> {
        qp.complete(|wr| {
            wr.to = datagram(ah, qpn, qkey)?;
            Ok(())
        })
    }

    fn wr_set_xrc_srqn(qp: Ex<'_>, srqn: u32) -> Value<()> {
        qp.complete(|wr| {
            wr.to = Destination::XrcSrq(srqn);
            Ok(())
        })
    }

    fn wr_set_inline_data(qp: Ex<'_>, addr: *mut c_void, length: usize) -> Value<()> {
        qp.complete(|wr| {
            wr.data = inline(std::iter::once((addr.cast_const().cast(), length)), qp.cap.max_inline_data)?;
            Ok(())
        })
    }

    fn wr_set_inline_data_list(qp: Ex<'_>, count: usize, parts: *const ibv_data_buf) -> Value<()> {
        qp.complete(|wr| {
            if parts.is_null() && count > 0 {
                return Err(Errno::INVALID);
            }
            // SAFETY: the program guarantees `count` elements.
            let parts = unsafe { list(parts, count) };
            let parts = parts.iter().map(|part| (part.addr.cast_const().cast(), part.length));
            wr.data = inline(parts, qp.cap.max_inline_data)?;
            Ok(())
        })
    }

    fn wr_set_sge(qp: Ex<'_>, lkey: u32, addr: u64, length: u32) -> Value<()> {
        qp.complete(|wr| {
            wr.data = Gather::One(Sge { addr, length, lkey });
            Ok(())
        })
    }

    fn wr_set_sge_list(qp: Ex<'_>, count: usize, sges: *const ibv_sge) -> Value<()> {
        qp.complete(|wr| {
            let count = i32::try_from(count).map_err(|_| Errno::INVALID.because(format_args!("num_sge is {count}")))?;
            wr.data = crate::post::gather(crate::post::elements(sges, count)?);
            Ok(())
        })
    }
}

/// Placement and level of a FLUSH (`IBV_FLUSH_GLOBAL`, `IBV_FLUSH_PERSISTENT`, `IBV_FLUSH_MR`), which the headers of
/// rdma-core 44 lack.
const FLUSH_GLOBAL: u8 = 1;
const FLUSH_PERSISTENT: u8 = 2;
const FLUSH_MR: u8 = 1;

/// `IBV_QP_EX_WITH_FLUSH`, which they lack too.
const WITH_FLUSH: u64 = 1 << 11;

/// The type of the call that follows `wr_atomic_write` in newer headers.
pub(crate) type WrFlush = unsafe extern "C-unwind" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);

/// The calls that queue pairs of a type support.
fn offers(qp_type: QpType) -> u64 {
    let sends = u64::from(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
    let connected = sends
        | u64::from(
            IBV_QP_EX_WITH_RDMA_WRITE
                | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | IBV_QP_EX_WITH_LOCAL_INV
                | IBV_QP_EX_WITH_BIND_MW,
        );
    let reliable = connected
        | u64::from(
            IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        );
    match qp_type {
        QpType::Rc => reliable | u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) | WITH_FLUSH,
        QpType::XrcSend => reliable,
        QpType::Uc => connected,
        QpType::Ud => sends,
        QpType::XrcRecv | QpType::Gsi => 0,
    }
}

/// Checks the calls that a program requests.
pub(crate) fn check(qp_type: ibv_qp_type, operations: u64) -> Result<(), Errno> {
    let offered = QpType::from_code(qp_type).map_or(0, offers);
    let others = operations & !offered;
    let text = format_args!("send_ops_flags {others:#x} are not offered by queue pairs of this type");
    if others == 0 { Ok(()) } else { Err(Errno::UNSUPPORTED.because(text)) }
}

impl Qp {
    /// Installs the calls in a new queue pair. All of them are installed: a call that the program did not request may
    /// still be refused when the work request is posted.
    pub(crate) fn offer_calls(&self) {
        let builder = Builder { gate: Gate::default(), batch: UnsafeCell::default() };
        let _ = self.builder.set(builder);
        // SAFETY: no other thread knows the queue pair yet.
        let c = unsafe { &mut *self.c.get() };
        c.wr_start = Some(wr_start);
        c.wr_complete = Some(wr_complete);
        c.wr_abort = Some(wr_abort);
        c.wr_send = Some(wr_send);
        c.wr_send_imm = Some(wr_send_imm);
        c.wr_send_inv = Some(wr_send_inv);
        c.wr_rdma_write = Some(wr_rdma_write);
        c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
        c.wr_rdma_read = Some(wr_rdma_read);
        c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
        c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
        c.wr_atomic_write = Some(wr_atomic_write);
        c.wr_local_inv = Some(wr_local_inv);
        c.wr_bind_mw = Some(wr_bind_mw);
        c.wr_set_ud_addr = Some(wr_set_ud_addr);
        c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
        c.wr_set_inline_data = Some(wr_set_inline_data);
        c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
        c.wr_set_sge = Some(wr_set_sge);
        c.wr_set_sge_list = Some(wr_set_sge_list);
    }
}

verbs! {
    fn ibv_qp_to_qp_ex(qp: &Qp) -> Handle<ibv_qp_ex> {
        if qp.builder.get().is_none() {
            return Err(Errno::UNSUPPORTED.because("the queue pair was created without send_ops_flags"));
        }
        Ok(Handle(qp.as_c().cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_of_queue_pair_offers_the_operations_that_it_has() {
        let sends = [IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM];
        let connected = [
            IBV_QP_EX_WITH_RDMA_WRITE,
            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
            IBV_QP_EX_WITH_LOCAL_INV,
            IBV_QP_EX_WITH_BIND_MW,
        ];
        let reliable = [
            IBV_QP_EX_WITH_SEND_WITH_INV,
            IBV_QP_EX_WITH_RDMA_READ,
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        ];
        let types =
            [(IBV_QPT_RC, 3), (IBV_QPT_XRC_SEND, 3), (IBV_QPT_UC, 2), (IBV_QPT_UD, 1), (IBV_QPT_XRC_RECV, 0)];
        for (qp_type, levels) in types {
            for (level, operations) in [&sends[..], &connected, &reliable].into_iter().enumerate() {
                for operation in operations {
                    let offers = check(qp_type, u64::from(*operation)).is_ok();
                    assert_eq!(offers, level < levels, "type {qp_type}, operation {operation:#x}");
                }
            }
            let is_rc = qp_type == IBV_QPT_RC;
            assert_eq!(check(qp_type, u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE)).is_ok(), is_rc);
            assert_eq!(check(qp_type, WITH_FLUSH).is_ok(), is_rc);
            assert!(check(qp_type, u64::from(IBV_QP_EX_WITH_TSO)).is_err());
        }
    }
}
