//! rnic.
