//! rnic.

#![deny(unsafe_code)]

pub mod memory;
