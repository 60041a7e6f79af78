//! rnic.

pub mod net;
