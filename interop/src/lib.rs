//! rnic interop.
