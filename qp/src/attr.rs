//! attr
