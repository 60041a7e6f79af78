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

/// A protection domain, or a parent domain: a protection domain with additions.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub(crate) inner: Slot<ProtectionDomain>,
    pub(crate) hub: Arc<Hub>,
    handle: u32,
    context: *mut ibv_context,
    /// The number of pointers that the program has to the domain, including pointers that it imported.
    pointers: Arc<()>,
    /// The additions of a parent domain.
    parent: Option<Parent>,
}

/// The additions of a parent domain.
pub(crate) struct Parent {
    /// Its thread domain.
    pub(crate) _thread: Option<Arc<()>>,
}

impl Object for Pd {
    type C = ibv_pd;

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (self.handle, unsafe { (*self.c.get()).handle })
    }
}

impl Handled for Pd {
    const KIND: Kind = Kind::Pd;
}

impl Pd {
    fn new(inner: ProtectionDomain, context: &Context, handle: u32, pointers: Arc<()>) -> Box<Self> {
        let c = UnsafeCell::new(ibv_pd { context: context.as_c(), handle });
        let (hub, context) = (Arc::clone(&context.hub), context.as_c());
        Box::new(Self { c, inner: Slot::new(inner), hub, handle, context, pointers, parent: None })
    }

    /// Creates a parent domain: objects made in it are made in `pd`.
    pub(crate) fn parent_of(pd: &Self, context: &Context, parent: Parent) -> Result<Box<Self>, Errno> {
        let inner = pd.inner.get()?.clone();
        let mut made = Self::new(inner, context, handles::next(), Arc::new(()));
        made.parent = Some(parent);
        Ok(made)
    }

    /// The context of the domain.
    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        // SAFETY: a program destroys the objects of a context before it closes the context.
        unsafe { Context::of(self.context) }.ok_or(Errno::INVALID)
    }
}

verbs! {
    fn ibv_alloc_pd(context: &Context) -> Handle<ibv_pd> {
        let inner = context.hub.device.alloc_pd()?;
        Ok(handles::give(Pd::new(inner, context, handles::next(), Arc::new(()))))
    }

    fn ibv_dealloc_pd(pd: Owned<Pd>) -> () {
        // Objects made in a parent domain are in its underlying domain. The last pointer to a domain destroys it.
        if pd.parent.is_none() && Arc::strong_count(&pd.pointers) == 1 {
            pd.inner.destroy(ProtectionDomain::destroy_in_place)?;
        }
        handles::forget(&*pd);
        pd.free();
        Ok(())
    }

    /// Imports a domain: the same domain under another pointer.
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
