//! Completions read one at a time, field by field (`ibv_cq_ex`).

use crate::abi::*;
use crate::call::{Arg, Handle, InOut, Object, Value, verbs};
use crate::channel::Channel;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::gate::Gate;
use crate::poll::{network_type, number};
use rnic::WorkCompletion;
use std::cell::UnsafeCell;
use std::ffi::c_uint;
use std::ops::Deref;
use std::time::{SystemTime, UNIX_EPOCH};

/// The extra state of a queue whose completions are read one at a time.
pub(crate) struct Reader {
    gate: Gate,
    /// Whether the program promised to read from one thread at a time.
    single: bool,
    current: UnsafeCell<WorkCompletion>,
}

/// A queue whose completions are read one at a time.
pub(crate) struct Ex<'a>(&'a Cq);

impl Arg for Ex<'_> {
    type Raw = *mut ibv_cq_ex;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: both structures begin with the same fields at the same offsets.
        unsafe { Cq::of(raw.cast()) }.map(Ex).ok_or(Errno::INVALID)
    }

    unsafe fn device(raw: Self::Raw) -> Option<rnic::Device> {
        // SAFETY: as above.
        unsafe { Cq::of(raw.cast()) }?.device()
    }
}

impl Deref for Ex<'_> {
    type Target = Cq;

    fn deref(&self) -> &Cq {
        self.0
    }
}

impl Ex<'_> {
    fn reader(&self) -> Result<&Reader, Errno> {
        self.reader
            .get()
            .ok_or_else(|| Errno::INVALID.because("the completion queue was not created by ibv_create_cq_ex"))
    }

    /// Takes the next completion.
    fn advance(&self) -> Result<(), Errno> {
        let current = self.reader()?.current.get();
        // SAFETY: one thread at a time reads: the gate or the program ensures it.
        let current = unsafe { &mut *current };
        if self.inner.get()?.poll(std::slice::from_mut(current)) == 0 {
            return Err(if self.hub.device.has_panicked() { Errno::IO } else { Errno(libc::ENOENT) });
        }
        // SAFETY: as above; programs read these two fields directly.
        let c = unsafe { &mut *self.c.get() };
        (c.status, c.wr_id) = (current.status as ibv_wc_status, current.wr_id);
        Ok(())
    }

    fn current(&self) -> Result<WorkCompletion, Errno> {
        // SAFETY: as in `advance`.
        Ok(unsafe { *self.reader()?.current.get() })
    }
}

/// The wall-clock time at an instant of the device's clock.
fn wall_clock(stamp: u64, now: u64) -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(wall).unwrap_or(u64::MAX).saturating_sub(now.saturating_sub(stamp))
}

verbs! {
    fn start_poll(cq: Ex<'_>, attr: Option<InOut<'_, ibv_poll_cq_attr>>) -> () {
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::INVALID.because("comp_mask is not 0"));
        }
        let reader = cq.reader()?;
        let leaving = (!reader.single).then(|| {
            reader.gate.enter();
            reader.gate.leaving()
        });
        // Without a completion the program does not call `end_poll`, which leaves the gate.
        cq.advance()?;
        std::mem::forget(leaving);
        Ok(())
    }

    fn next_poll(cq: Ex<'_>) -> () {
        cq.advance()
    }

    fn end_poll(cq: Ex<'_>) -> Value<()> {
        let reader = cq.reader()?;
        if !reader.single {
            reader.gate.leave();
        }
        Ok(Value(()))
    }

    fn read_opcode(cq: Ex<'_>) -> Value<c_uint> {
        Ok(Value(cq.current()?.opcode as c_uint))
    }

    fn read_vendor_err(cq: Ex<'_>) -> Value<u32> {
        Ok(Value(cq.current()?.vendor_err))
    }

    fn read_byte_len(cq: Ex<'_>) -> Value<u32> {
        Ok(Value(cq.current()?.byte_len))
    }

    fn read_imm_data(cq: Ex<'_>) -> Value<u32> {
        Ok(Value(number(&cq.current()?)))
    }

    fn read_qp_num(cq: Ex<'_>) -> Value<u32> {
        Ok(Value(cq.current()?.qpn.value()))
    }

    fn read_src_qp(cq: Ex<'_>) -> Value<u32> {
        Ok(Value(cq.current()?.src_qpn.value()))
    }

    fn read_wc_flags(cq: Ex<'_>) -> Value<c_uint> {
        Ok(Value(cq.current()?.flags.bits()))
    }

    fn read_sl(cq: Ex<'_>) -> Value<u8> {
        Ok(Value(network_type(&cq.current()?, cq.hub.device.address())))
    }

    /// RoCE has no LIDs.
    fn read_slid(_cq: Ex<'_>) -> Value<u32> {
        Ok(Value(0))
    }

    /// RoCE has no LIDs.
    fn read_dlid_path_bits(_cq: Ex<'_>) -> Value<u8> {
        Ok(Value(0))
    }

    fn read_completion_ts(cq: Ex<'_>) -> Value<u64> {
        Ok(Value(cq.current()?.timestamp))
    }

    fn read_completion_wallclock_ns(cq: Ex<'_>) -> Value<u64> {
        Ok(Value(wall_clock(cq.current()?.timestamp, cq.hub.device.clock())))
    }
}

const STAMPS: u64 =
    (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The supported completion fields: all of verbs, except those of raw packets and tag matching.
const FIELDS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS) as u64
    | STAMPS;

const ATTRIBUTES: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;

/// With `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN` the program promises that the queue does not overrun; an overrun is
/// reported all the same.
const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

fn offer(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

verbs! {
    fn create_cq_ex(context: &Context, init: InOut<'_, ibv_cq_init_attr_ex>) -> Handle<ibv_cq_ex> {
        let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 { 0 } else { init.flags };
        if init.comp_mask & !ATTRIBUTES != 0 || flags & !FLAGS != 0 || init.comp_vector != 0 {
            return Err(Errno::INVALID.because("comp_mask, flags or comp_vector ask for what this device does not have"));
        }
        if init.wc_flags & !FIELDS != 0 {
            return Err(Errno::UNSUPPORTED.because("wc_flags ask for what this device does not have"));
        }
        // SAFETY: the program created the channel and has not destroyed it.
        let channel = unsafe { Channel::of(init.channel) };
        let cq = Cq::new(context, init.cqe, init.cq_context, channel)?;
        // SAFETY: no other thread knows the queue yet.
        offer(unsafe { &mut *cq.c.get() });
        let single = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        let reader = Reader { gate: Gate::default(), single, current: UnsafeCell::default() };
        let _ = cq.reader.set(reader);
        if init.wc_flags & STAMPS != 0 {
            cq.inner.get()?.stamp_completions();
        }
        Ok(Handle(cq.give().0.cast()))
    }
}
