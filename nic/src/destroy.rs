//! Destroying objects on purpose, with an answer.
//!
//! Whatever is dropped is destroyed as soon as nothing uses it any more. Who wants to know destroys it by name.

use crate::error::Error;

/// An object that was not destroyed: here it is, as it was, and why.
///
/// `?` turns it into the [`Error`] and lets go of the object.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotDestroyed<T> {
    /// The object.
    pub object: T,
    /// Why it was not destroyed: [`ResourceError::Busy`](crate::engine::ResourceError::Busy) says what uses it.
    pub error: Error,
}

impl<T> NotDestroyed<T> {
    pub(crate) fn new(object: T, error: impl Into<Error>) -> Self {
        Self { object, error: error.into() }
    }
}

impl<T> From<NotDestroyed<T>> for Error {
    fn from(refused: NotDestroyed<T>) -> Self {
        refused.error
    }
}
