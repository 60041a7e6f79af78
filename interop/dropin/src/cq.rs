//! Completion queues.

use crate::abi::*;
use crate::call::{Handle, Object, Owned, verbs};
use crate::channel::Channel;
use crate::context::Context;
use crate::cq_ex::Reader;
use crate::errno::Errno;
use crate::events::Watch;
use crate::hub::{Hub, locked};
use crate::slot::Slot;
use rnic::{CompletionQueue, EventSource};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) c: UnsafeCell<ibv_cq_ex>,
    pub(crate) inner: Slot<CompletionQueue>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) reader: OnceLock<Reader>,
    pub(crate) watch: OnceLock<Watch>,
    acknowledging: Mutex<()>,
    acknowledged: Condvar,
}

impl Object for Cq {
    type C = ibv_cq;

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (0, unsafe { (*self.c.get()).handle })
    }
}

impl Cq {
    pub(crate) fn new(
        context: &Context,
        cqe: u32,
        cq_context: *mut c_void,
        channel: Option<&Channel>,
    ) -> Result<Box<Self>, Errno> {
        let device = &context.hub.device;
        let inner = match channel {
            None => device.create_cq(cqe)?,
            Some(channel) => device.create_cq_with_channel(cqe, channel.inner.get()?)?,
        };
        // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid; all zeros is also
        // the initial value of the mutex and the condition variable in it.
        let mut c: ibv_cq_ex = unsafe { zeroed() };
        c.context = context.as_c();
        c.channel = channel.map_or(std::ptr::null_mut(), Object::as_c);
        c.cq_context = cq_context;
        c.cqe = c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX);
        let source = EventSource::CompletionQueue(inner.number());
        let cq = Box::new(Self {
            c: UnsafeCell::new(c),
            inner: Slot::new(inner),
            hub: Arc::clone(&context.hub),
            reader: OnceLock::new(),
            watch: OnceLock::new(),
            acknowledging: Mutex::new(()),
            acknowledged: Condvar::new(),
        });
        cq.inner.get()?.set_context(cq.as_c() as u64);
        let _ = cq.watch.set(context.hub.watch(source, &*cq, context));
        Ok(cq)
    }

    /// Records that the program has acknowledged this number of events.
    pub(crate) fn acknowledge(&self, events: u32) {
        let guard = locked(&self.acknowledging);
        if let Ok(inner) = self.inner.get() {
            inner.acknowledge(events);
        }
        drop(guard);
        self.acknowledged.notify_all();
    }

    /// Destroys the queue. First waits until the program has acknowledged the events of the queue that it has read.
    fn destroy(&self) -> Result<(), Errno> {
        if !self.hub.is_ours() {
            return Ok(());
        }
        let mut guard = locked(&self.acknowledging);
        loop {
            match self.inner.destroy(CompletionQueue::destroy_in_place) {
                Err(Errno::BUSY) if self.waits_for_events() => {
                    guard = self.acknowledged.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                result => return result,
            }
        }
    }

    /// Whether unacknowledged events are all that keeps the queue in use.
    fn waits_for_events(&self) -> bool {
        self.inner.get().is_ok_and(|inner| inner.unacknowledged_events() > 0 && !inner.is_used())
    }
}

verbs! {
    fn ibv_create_cq(
        context: &Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: Option<&Channel>,
        vector: c_int,
    ) -> Handle<ibv_cq> {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVALID.because(format_args!("cqe is {cqe}")))?;
        if vector != 0 {
            return Err(Errno::INVALID.because(format_args!("comp_vector is {vector}; this device has one, 0")));
        }
        Ok(Cq::new(context, cqe, cq_context, channel)?.give())
    }

    fn ibv_resize_cq(cq: &Cq, cqe: c_int) -> () {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVALID.because(format_args!("cqe is {cqe}")))?;
        let inner = cq.inner.get()?;
        inner.resize(cqe)?;
        // SAFETY: the program resizes a queue from one thread at a time.
        unsafe { (*cq.c.get()).cqe = c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX) };
        Ok(())
    }

    fn ibv_destroy_cq(cq: Owned<Cq>) -> () {
        cq.destroy()?;
        cq.watch.get().into_iter().for_each(|watch| cq.hub.unwatch(watch));
        cq.free();
        Ok(())
    }
}
