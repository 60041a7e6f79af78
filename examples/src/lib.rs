//! rnic examples.
