//! Connections by address and port.

pub(crate) mod manager;
mod ports;

pub use manager::Manager;
pub use ports::{Binding, Claim, PortError, PortTable, Ports};
