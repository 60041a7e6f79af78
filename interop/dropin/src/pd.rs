//! Protection domains.

use crate::abi::{ibv_context, ibv_pd};
use crate::call::{Handle, Object, Owned, Value, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::handles::{self, Handled, Kind};
use crate::hub::Hub;
use crate::slot::Slot;
use rnic::ProtectionDomain;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A protection domain, or a parent domain: the same with something on top.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub(crate) inner: Slot<ProtectionDomain>,
    pub(crate) hub: Arc<Hub>,
    context: *mut ibv_context,
    /// How many pointers the program has to the domain: those that it imported are its own too.
    pointers: Arc<()>,
    /// What a parent domain has on top.
    parent: Option<Parent>,
}

/// What a parent domain keeps.
pub(crate) struct Parent {
    /// Its thread domain.
    pub(crate) _thread: Option<Arc<()>>,
}

impl Object for Pd {
    type C = ibv_pd;
}

impl Handled for Pd {
    const KIND: Kind = Kind::Pd;
}

impl Pd {
    fn new(inner: ProtectionDomain, context: &Context, handle: u32, pointers: Arc<()>) -> Box<Self> {
        let c = UnsafeCell::new(ibv_pd { context: context.as_c(), handle });
        let (hub, context) = (Arc::clone(&context.hub), context.as_c());
        Box::new(Self { c, inner: Slot::new(inner), hub, context, pointers, parent: None })
    }

    /// A parent domain: what is made in it is made in `pd`.
    pub(crate) fn parent_of(pd: &Self, context: &Context, parent: Parent) -> Result<Box<Self>, Errno> {
        let inner = pd.inner.get()?.clone();
        let mut made = Self::new(inner, context, handles::next(), Arc::new(()));
        made.parent = Some(parent);
        Ok(made)
    }

    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: it does not change.
        unsafe { (*self.c.get()).handle }
    }

    /// The context that it is of.
    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        // SAFETY: programs close a context after what is in it.
        unsafe { Context::of(self.context) }.ok_or(Errno::INVALID)
    }
}

verbs! {
    fn ibv_alloc_pd(context: &Context) -> Handle<ibv_pd> {
        let inner = context.hub.device.alloc_pd()?;
        Ok(handles::give(Pd::new(inner, context, handles::next(), Arc::new(())), Pd::handle))
    }

    fn ibv_dealloc_pd(pd: Owned<Pd>) -> () {
        // What is made in a parent domain is in the domain below; the last pointer to a domain ends it.
        if pd.parent.is_none() && Arc::strong_count(&pd.pointers) == 1 {
            pd.inner.destroy(ProtectionDomain::destroy_in_place)?;
        }
        handles::forget(pd.handle());
        pd.free();
        Ok(())
    }

    /// The same domain under another pointer.
    fn ibv_import_pd(context: &Context, handle: u32) -> Handle<ibv_pd> {
        let same = handles::with(handle, |pd: &Pd| {
            let ours = Arc::ptr_eq(&pd.hub, &context.hub) && pd.parent.is_none();
            pd.inner.get().cloned().map(|inner| (inner, Arc::clone(&pd.pointers), ours))
        })?;
        let (inner, pointers, ours) = same?;
        if !ours {
            return Err(Errno::INVALID.because("the handle is of a protection domain of another device, or of a parent domain"));
        }
        Ok(Pd::new(inner, context, handle, pointers).give())
    }

    fn ibv_unimport_pd(pd: Owned<Pd>) -> Value<()> {
        pd.free();
        Ok(Value(()))
    }
}
