//! rnic.

pub mod link;
