//! rnic.

pub mod doctor;
pub mod net;
