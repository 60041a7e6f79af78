//! Destroying objects on purpose, with an answer.
//!
//! An object that is dropped is destroyed as soon as nothing uses it any more. A program that wants to know whether that
//! succeeded calls its `destroy` method.

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

    /// `what` is still in use, by `users` of these.
    pub(crate) fn busy(object: T, what: &'static str, users: usize, by: &'static str) -> Self {
        Self::new(object, ResourceError::Busy { what, users, by })
    }
}

/// Lets go of what only one handle holds; if there are others, which `by` names, `object` makes it whole again.
pub(crate) fn destroy_last<I, T>(
    inner: Arc<I>,
    what: &'static str,
    by: &'static str,
    object: impl FnOnce(Arc<I>) -> T,
) -> Result<(), NotDestroyed<T>> {
    match Arc::try_unwrap(inner) {
        Ok(last) => {
            drop(last);
            Ok(())
        }
        Err(inner) => {
            let others = Arc::strong_count(&inner).saturating_sub(1);
            Err(NotDestroyed::busy(object(inner), what, others, by))
        }
    }
}

impl<T> From<NotDestroyed<T>> for Error {
    fn from(refused: NotDestroyed<T>) -> Self {
        refused.error
    }
}
