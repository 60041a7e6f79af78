//! Where an object keeps what it is made of.

use crate::errno::Errno;
use std::cell::UnsafeCell;

/// A place for an object of rnic.
///
/// Verbs leave it to the program that nobody uses an object while it is registered anew; that is what makes the accesses
/// here sound.
pub(crate) struct Slot<T>(UnsafeCell<T>);

impl<T> Slot<T> {
    pub(crate) fn new(object: T) -> Self {
        Self(UnsafeCell::new(object))
    }

    /// The object.
    ///
    /// # Errors
    /// None today: what takes an object apart leaves it in its place.
    pub(crate) fn get(&self) -> Result<&T, Errno> {
        // SAFETY: it changes only while it is registered anew, and then nobody uses it.
        Ok(unsafe { &*self.0.get() })
    }

    /// The object, to be changed.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[expect(clippy::mut_from_ref, reason = "a cell: see the type")]
    pub(crate) fn get_mut(&self) -> Result<&mut T, Errno> {
        // SAFETY: nobody else uses it meanwhile.
        Ok(unsafe { &mut *self.0.get() })
    }

    /// Destroys the object by `destroy`, if that is possible now; what is left of it goes with the place. It stays where it
    /// is meanwhile: threads that use it do not notice that it was refused.
    ///
    /// # Errors
    /// Why not; it is as it was then.
    pub(crate) fn destroy<R>(&self, destroy: impl FnOnce(&T) -> rnic::Result<R>) -> Result<(), Errno> {
        match destroy(self.get()?) {
            // The parent's objects are not the child's to destroy: here only the memory is given back.
            Ok(_) | Err(rnic::Error::Forked) => Ok(()),
            Err(refused) => Err(refused.into()),
        }
    }
}
