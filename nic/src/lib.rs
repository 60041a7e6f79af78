//! rnic.
pub mod capture;
