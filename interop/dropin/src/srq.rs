//! Shared receive queues.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Out, Owned, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::events::Watch;
use crate::hub::Hub;
use crate::pd::Pd;
use crate::slot::Slot;
use rnic::{EventSource, SharedReceiveQueue, SrqInit, SrqModify};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::{Arc, OnceLock};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    c: UnsafeCell<ibv_srq>,
    pub(crate) inner: Slot<SharedReceiveQueue>,
    hub: Arc<Hub>,
    pub(crate) watch: OnceLock<Watch>,
}

impl Object for Srq {
    type C = ibv_srq;

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (0, unsafe { (*self.c.get()).handle })
    }
}

impl Srq {
    pub(crate) fn new(
        inner: SharedReceiveQueue,
        pd: &Pd,
        context: &Context,
        srq_context: *mut c_void,
    ) -> Box<Self> {
        // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid.
        let mut c: ibv_srq = unsafe { zeroed() };
        (c.context, c.srq_context, c.pd) = (context.as_c(), srq_context, pd.as_c());
        let source = EventSource::SharedReceiveQueue(inner.srqn());
        let hub = Arc::clone(&context.hub);
        let srq =
            Box::new(Self { c: UnsafeCell::new(c), inner: Slot::new(inner), hub, watch: OnceLock::new() });
        let _ = srq.watch.set(srq.hub.watch(source, &*srq, context));
        srq
    }
}

verbs! {
    fn ibv_create_srq(pd: &Pd, init: InOut<'_, ibv_srq_init_attr>) -> Handle<ibv_srq> {
        let of = &init.attr;
        let wanted = SrqInit { max_wr: of.max_wr, max_sge: of.max_sge, limit: 0 };
        let inner = pd.inner.get()?.create_srq(&wanted)?;
        let (given, mut init) = (inner.query()?, init);
        (init.attr.max_wr, init.attr.max_sge) = (given.max_wr, given.max_sge);
        Ok(Srq::new(inner, pd, pd.context()?, init.srq_context).give())
    }

    fn ibv_modify_srq(srq: &Srq, attr: InOut<'_, ibv_srq_attr>, mask: c_int) -> () {
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        let change = SrqModify {
            max_wr: (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr),
            limit: (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit),
        };
        Ok(srq.inner.get()?.modify(change)?)
    }

    fn ibv_query_srq(srq: &Srq, attr: Out<ibv_srq_attr>) -> () {
        let of = srq.inner.get()?.query()?;
        attr.put(ibv_srq_attr { max_wr: of.max_wr, max_sge: of.max_sge, srq_limit: of.limit });
        Ok(())
    }

    fn ibv_destroy_srq(srq: Owned<Srq>) -> () {
        srq.inner.destroy(SharedReceiveQueue::destroy_in_place)?;
        srq.watch.get().into_iter().for_each(|watch| srq.hub.unwatch(watch));
        srq.free();
        Ok(())
    }
}
