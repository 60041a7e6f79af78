//! Thread domains and parent domains.
//!
//! With a thread domain the program promises that one thread at a time uses the objects made with it. The promise
//! changes nothing here; references to thread domains are counted, as programs expect.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Owned, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::pd::{Parent, Pd};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A thread domain.
#[repr(C)]
pub(crate) struct Td {
    c: UnsafeCell<ibv_td>,
    users: Arc<()>,
}

impl Object for Td {
    type C = ibv_td;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }
}

/// The attributes that a program may set for a parent domain. Queues may call its allocators, but need not, and do
/// not here.
const PARTS: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;

verbs! {
    fn alloc_td(context: &Context, init: InOut<'_, ibv_td_init_attr>) -> Handle<ibv_td> {
        if init.comp_mask != 0 {
            return Err(Errno::INVALID);
        }
        let c = UnsafeCell::new(ibv_td { context: context.as_c() });
        Ok(Box::new(Td { c, users: Arc::new(()) }).give())
    }

    fn dealloc_td(td: Owned<Td>) -> () {
        if Arc::strong_count(&td.users) > 1 {
            return Err(Errno::BUSY.because("parent domains are left with the thread domain"));
        }
        td.free();
        Ok(())
    }

    fn alloc_parent_domain(
        context: &Context,
        init: InOut<'_, ibv_parent_domain_init_attr>,
    ) -> Handle<ibv_pd> {
        if init.comp_mask & !PARTS != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program created them and has not destroyed them.
        let (pd, td) = unsafe { (Pd::of(init.pd), Td::of(init.td)) };
        let pd = pd.ok_or_else(|| Errno::INVALID.because("pd is NULL"))?;
        let parent = Parent { _thread: td.map(|td| Arc::clone(&td.users)) };
        Ok(Pd::parent_of(pd, context, parent)?.give())
    }
}
