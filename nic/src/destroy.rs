//! Destroying objects on purpose, with an answer.
//!
//! An object that is dropped is destroyed as soon as nothing uses it any more. A program that wants to know whether that
//! succeeded calls its `destroy` method, which takes the object and gives it back if that is refused. `destroy_in_place` is
//! for objects that several threads share by reference, as those of C programs do: the object stays usable while it is found
//! to be in use.

use crate::engine::ResourceError;
use crate::error::Error;
use std::sync::Arc;

/// An object that was not destroyed: here it is, as it was, and why.
///
/// `?` turns it into the [`Error`] and lets go of the object, which lives as long as what uses it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotDestroyed<T> {
    /// The object.
    pub object: T,
    /// Why it was not destroyed: [`ResourceError::Busy`] says what uses it.
    pub error: Error,
}

impl<T> NotDestroyed<T> {
    pub(crate) fn new(object: T, error: impl Into<Error>) -> Self {
        Self { object, error: error.into() }
    }

    /// Takes the object away if `destroyed` says that it may go.
    pub(crate) fn unless(object: T, destroyed: Result<(), Error>) -> Result<(), Self> {
        destroyed.map_err(|error| Self { object, error })
    }
}

/// Refuses to destroy `what` while it has users, which `by` names.
pub(crate) fn unused(what: &'static str, users: usize, by: &'static str) -> Result<(), Error> {
    if users > 0 { Err(ResourceError::Busy { what, users, by }.into()) } else { Ok(()) }
}

/// Refuses to destroy what other handles hold, which `by` names. The only handle is the only one that others can come from:
/// it stays so.
pub(crate) fn only_handle<I>(inner: &Arc<I>, what: &'static str, by: &'static str) -> Result<(), Error> {
    unused(what, Arc::strong_count(inner).saturating_sub(1), by)
}

impl<T> From<NotDestroyed<T>> for Error {
    fn from(refused: NotDestroyed<T>) -> Self {
        refused.error
    }
}
