//! Memory windows.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Owned, verbs};
use crate::errno::Errno;
use crate::pd::Pd;
use crate::post::{bind, flags};
use crate::qp::Qp;
use crate::slot::Slot;
use rnic::{Gather, MemoryWindow, MwType, Operation, SendWr};
use std::cell::UnsafeCell;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    c: UnsafeCell<ibv_mw>,
    inner: Slot<MemoryWindow>,
}

impl Object for Mw {
    type C = ibv_mw;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (0, unsafe { (*self.c.get()).handle })
    }
}

verbs! {
    fn alloc_mw(pd: &Pd, kind: u32) -> Handle<ibv_mw> {
        let mw_type = match kind {
            IBV_MW_TYPE_1 => MwType::Type1,
            IBV_MW_TYPE_2 => MwType::Type2,
            other => return Err(Errno::INVALID.because(format_args!("type {other} is unknown: memory windows have type 1 or 2"))),
        };
        let inner = pd.inner.get()?.alloc_mw(mw_type)?;
        let rkey = inner.rkey();
        let c = ibv_mw { context: pd.context()?.as_c(), pd: pd.as_c(), rkey, handle: 0, type_: kind };
        Ok(Box::new(Mw { c: UnsafeCell::new(c), inner: Slot::new(inner) }).give())
    }

    /// Binds a type 1 window under a new key: its low byte is incremented.
    fn bind_mw(qp: &Qp, mw: &Mw, request: InOut<'_, ibv_mw_bind>) -> () {
        // SAFETY: the program binds a window from one thread at a time.
        let c = unsafe { &mut *mw.c.get() };
        let key = c.rkey & !0xff | u32::from((c.rkey as u8).wrapping_add(1));
        let operands = bind(c, key, &request.bind_info)?;
        let wr = SendWr::new(request.wr_id, Operation::BindWindow(operands), Gather::Empty);
        qp.inner.get()?.post_send(wr.flags(flags(request.send_flags)))?;
        c.rkey = key;
        Ok(())
    }

    fn dealloc_mw(mw: Owned<Mw>) -> () {
        mw.inner.destroy(MemoryWindow::dealloc_in_place)?;
        mw.free();
        Ok(())
    }
}
