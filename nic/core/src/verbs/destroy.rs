//! Explicit destruction of objects, with a result.
//!
//! A dropped object is destroyed as soon as nothing uses it any more. A program that needs the result calls its
//! `destroy` method, which takes the object and gives it back on refusal. `destroy_in_place` is for objects that
//! several threads share by reference, like the objects of C programs: the object stays usable if it is found to be
//! in use.

use crate::engine::ResourceError;
use crate::error::Error;
use std::sync::Arc;

/// An object that was not destroyed, unchanged, with the reason.
///
/// `?` turns it into the [`Error`] and drops the object, which lives as long as its users.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotDestroyed<T> {
    /// The object.
    pub object: T,
    /// Why it was not destroyed: [`ResourceError::Busy`] names its users.
    pub error: Error,
}

impl<T> NotDestroyed<T> {
    pub(crate) fn new(object: T, error: impl Into<Error>) -> Self {
        Self { object, error: error.into() }
    }

    /// Consumes the object if `destroyed` permits it.
    pub(crate) fn unless(object: T, destroyed: Result<(), Error>) -> Result<(), Self> {
        destroyed.map_err(|error| Self { object, error })
    }
}

/// Refuses to destroy `what` while it has users, which `by` names.
pub(crate) fn unused(what: &'static str, users: usize, by: &'static str) -> Result<(), Error> {
    if users > 0 { Err(ResourceError::Busy { what, users, by }.into()) } else { Ok(()) }
}

/// Refuses to destroy an object while other handles exist, which `by` names. If this is the only handle it remains
/// so, because others could only be cloned from it.
pub(crate) fn only_handle<I>(inner: &Arc<I>, what: &'static str, by: &'static str) -> Result<(), Error> {
    unused(what, Arc::strong_count(inner).saturating_sub(1), by)
}

impl<T> From<NotDestroyed<T>> for Error {
    fn from(refused: NotDestroyed<T>) -> Self {
        refused.error
    }
}
