//! Completion channels.

use crate::abi::{ibv_comp_channel, ibv_cq};
use crate::call::{Handle, Object, Out, Owned, Value, verbs};
use crate::cancel::{Found, waiting_verbs};
use crate::context::Context;
use crate::cq::Cq;
use crate::slot::Slot;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rnic::CompletionChannel;
use std::cell::UnsafeCell;
use std::ffi::{c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    pub(crate) inner: Slot<CompletionChannel>,
}

impl Object for Channel {
    type C = ibv_comp_channel;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }
}

verbs! {
    fn ibv_create_comp_channel(context: &Context) -> Handle<ibv_comp_channel> {
        let inner = context.hub.device.create_comp_channel()?;
        // Programs wait in the call that asks for an event, unless they make the descriptor non-blocking.
        fcntl(inner.as_fd(), FcntlArg::F_SETFL(OFlag::empty()))?;
        let c = ibv_comp_channel { context: context.as_c(), fd: inner.as_raw_fd(), refcnt: 0 };
        Ok(Box::new(Channel { c: UnsafeCell::new(c), inner: Slot::new(inner) }).give())
    }

    fn ibv_destroy_comp_channel(channel: Owned<Channel>) -> () {
        channel.inner.destroy(CompletionChannel::destroy_in_place)?;
        channel.free();
        Ok(())
    }

    /// Stores the next event, if there is one.
    fn next_cq_event(channel: &Channel, cq: Out<*mut ibv_cq>, context: Out<*mut c_void>) -> Found {
        let inner = channel.inner.get()?;
        let waits = !OFlag::from_bits_retain(fcntl(inner.as_fd(), FcntlArg::F_GETFL)?).contains(OFlag::O_NONBLOCK);
        let next = || if waits { inner.next_event_before_sleep() } else { inner.next_event() };
        while let Some(event) = next() {
            // The queue still exists: it is not destroyed before the event is acknowledged.
            let Some(address) = event.context() else { continue };
            event.keep();
            let structure = address as *mut ibv_cq;
            cq.put(structure);
            // SAFETY: the address is that of the queue's structure, set when the queue was created.
            context.put(unsafe { (*structure).cq_context });
            return Ok(Found::Event);
        }
        Ok(Found::nothing_at(inner.as_fd(), inner.write_end()))
    }

    fn ibv_ack_cq_events(cq: &Cq, events: c_uint) -> Value<()> {
        cq.acknowledge(events);
        Ok(Value(()))
    }
}

waiting_verbs! {
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, context: *mut *mut c_void)
        = next_cq_event;
}
