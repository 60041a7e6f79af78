//! Where an object keeps what it is made of.

use crate::errno::Errno;
use rnic::NotDestroyed;
use std::cell::UnsafeCell;

/// A place for an object of rnic, which is taken out when the program destroys it.
///
/// Verbs leave it to the program that nobody uses an object while it is destroyed or registered anew; that is what makes
/// the accesses here sound.
pub(crate) struct Slot<T>(UnsafeCell<Option<T>>);

/// The object was destroyed.
fn gone() -> Errno {
    Errno::INVALID.because("the object was destroyed")
}

impl<T> Slot<T> {
    pub(crate) fn new(object: T) -> Self {
        Self(UnsafeCell::new(Some(object)))
    }

    /// The object.
    ///
    /// # Errors
    /// EINVAL if it was destroyed.
    pub(crate) fn get(&self) -> Result<&T, Errno> {
        // SAFETY: it changes only while it is destroyed or registered anew, and then nobody uses it.
        unsafe { &*self.0.get() }.as_ref().ok_or_else(gone)
    }

    /// The object, to be changed.
    ///
    /// # Errors
    /// EINVAL if it was destroyed.
    #[expect(clippy::mut_from_ref, reason = "a cell: see the type")]
    pub(crate) fn get_mut(&self) -> Result<&mut T, Errno> {
        // SAFETY: nobody else uses it meanwhile.
        unsafe { &mut *self.0.get() }.as_mut().ok_or_else(gone)
    }

    /// Destroys the object, if that is possible now.
    ///
    /// # Errors
    /// Why not; it is as it was then.
    pub(crate) fn destroy(
        &self,
        destroy: impl FnOnce(T) -> Result<(), NotDestroyed<T>>,
    ) -> Result<(), Errno> {
        // SAFETY: nobody else uses it while it is destroyed.
        let place = unsafe { &mut *self.0.get() };
        let Some(object) = place.take() else { return Err(gone()) };
        match destroy(object) {
            Ok(()) => Ok(()),
            // The parent's objects are not the child's to destroy: here only the memory is given back.
            Err(NotDestroyed { error: rnic::Error::Forked, .. }) => Ok(()),
            Err(refused) => {
                *place = Some(refused.object);
                Err(refused.error.into())
            }
        }
    }
}
