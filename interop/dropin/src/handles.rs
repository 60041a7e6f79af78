//! Numbers that identify objects across the contexts of a process (`handle`).

use crate::call::{Handle, Object};
use crate::errno::Errno;
use crate::hub::locked;
use rnic::process::hold_forks;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

/// The kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pd,
    Mr,
    Dm,
}

/// An object that has a handle.
pub(crate) trait Handled: Object {
    const KIND: Kind;
}

/// The objects by handle: their kind and address.
static ALL: LazyLock<Mutex<HashMap<u32, (Kind, usize)>>> = LazyLock::new(Mutex::default);

/// A new handle that no other object has.
pub(crate) fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Gives an object to the program; other contexts can import it by its handle from now on.
pub(crate) fn give<T: Handled>(object: Box<T>) -> Handle<T::C> {
    let (number, _) = object.handles();
    let given = object.give();
    let _whole = hold_forks();
    locked(&ALL).insert(number, (T::KIND, given.0 as usize));
    given
}

/// Forgets an object that is about to be destroyed.
pub(crate) fn forget<T: Handled>(object: &T) {
    let (handle, _) = object.handles();
    let _whole = hold_forks();
    locked(&ALL).remove(&handle);
}

/// Calls `look` with the object that has this handle.
///
/// # Errors
/// EINVAL if no object of this kind has the handle.
pub(crate) fn with<T: Handled, R>(handle: u32, look: impl FnOnce(&T) -> R) -> Result<R, Errno> {
    let _whole = hold_forks();
    let all = locked(&ALL);
    let (kind, address) = *all
        .get(&handle)
        .ok_or_else(|| Errno::INVALID.because(format_args!("no object has the handle {handle}")))?;
    if kind != T::KIND {
        return Err(Errno::INVALID.because(format_args!("the object of handle {handle} is of another kind")));
    }
    // SAFETY: the object has this kind, and it is removed from the list, which waits for the lock, before it is
    // destroyed.
    unsafe { T::of(address as *mut T::C) }.map(look).ok_or(Errno::INVALID)
}
