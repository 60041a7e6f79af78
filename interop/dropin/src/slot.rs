//! A cell for the rnic object inside an object of verbs.

use crate::errno::Errno;
use std::cell::UnsafeCell;

/// A cell that holds an object of rnic.
///
/// Verbs make the program responsible for not using an object while it is reregistered. That makes the accesses here
/// sound.
pub(crate) struct Slot<T>(UnsafeCell<T>);

impl<T> Slot<T> {
    pub(crate) fn new(object: T) -> Self {
        Self(UnsafeCell::new(object))
    }

    /// The object.
    ///
    /// # Errors
    /// None today: destroying an object leaves it in its slot.
    pub(crate) fn get(&self) -> Result<&T, Errno> {
        // SAFETY: the object changes only while the program reregisters it, and then no other thread uses it.
        Ok(unsafe { &*self.0.get() })
    }

    /// The object, for changing it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[expect(clippy::mut_from_ref, reason = "a cell: see the type")]
    pub(crate) fn get_mut(&self) -> Result<&mut T, Errno> {
        // SAFETY: no other thread uses the object meanwhile.
        Ok(unsafe { &mut *self.0.get() })
    }

    /// Destroys the object with `destroy`, if that is possible now; the rest of it is dropped with the slot. The object
    /// stays in its slot during the attempt, so a refusal goes unnoticed by threads that use it.
    ///
    /// # Errors
    /// The reason for a refusal, which leaves the object unchanged.
    pub(crate) fn destroy<R>(&self, destroy: impl FnOnce(&T) -> rnic::Result<R>) -> Result<(), Errno> {
        match destroy(self.get()?) {
            // A child must not destroy its parent's objects: only the memory is released.
            Ok(_) | Err(rnic::Error::Forked) => Ok(()),
            Err(refused) => Err(refused.into()),
        }
    }
}
