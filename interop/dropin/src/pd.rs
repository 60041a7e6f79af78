//! Protection domains.

use crate::abi::{ibv_context, ibv_pd};
use crate::call::{Handle, Object, Owned, Value, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::hub::Hub;
use crate::slot::Slot;
use rnic::ProtectionDomain;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub(crate) inner: Slot<ProtectionDomain>,
    pub(crate) hub: Arc<Hub>,
    context: *mut ibv_context,
}

impl Object for Pd {
    type C = ibv_pd;
}

impl Pd {
    fn new(inner: ProtectionDomain, context: &Context) -> Box<Self> {
        let hub = Arc::clone(&context.hub);
        let c = UnsafeCell::new(ibv_pd { context: context.as_c(), handle: 0 });
        Box::new(Self { c, inner: Slot::new(inner), hub, context: context.as_c() })
    }

    /// The context that it is of.
    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        // SAFETY: programs close a context after what is in it.
        unsafe { Context::of(self.context) }.ok_or(Errno::INVALID)
    }
}

verbs! {
    fn ibv_alloc_pd(context: &Context) -> Handle<ibv_pd> {
        Ok(Pd::new(context.hub.device.alloc_pd()?, context).give())
    }

    fn ibv_dealloc_pd(pd: Owned<Pd>) -> () {
        pd.inner.destroy(ProtectionDomain::destroy)?;
        pd.free();
        Ok(())
    }

    /// The same domain under another pointer; it lives as long as one of them.
    fn ibv_import_pd(context: &Context, handle: u32) -> Handle<ibv_pd> {
        let _ = (context, handle);
        Err(Errno::UNSUPPORTED)
    }

    fn ibv_unimport_pd(pd: Owned<Pd>) -> Value<()> {
        pd.free();
        Ok(Value(()))
    }
}
