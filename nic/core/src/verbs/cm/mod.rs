//! Connections by address and port.

pub(crate) mod manager;

pub use manager::Manager;
