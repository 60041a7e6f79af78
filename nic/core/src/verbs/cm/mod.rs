//! Connections by address and port: what programs hold, over the [manager](Manager) of their device.

mod bell;
mod connection;
mod datagrams;
mod desk;
mod end;
mod listener;
pub(crate) mod manager;
mod office;
mod ports;
mod request;
#[cfg(test)]
mod tests;

pub use connection::{Connection, ConnectionEvent, Ready};
pub use datagrams::{DATAGRAM_QKEY, Question, Service, ServiceRequest};
pub use end::{Dialling, End};
pub use listener::Listener;
pub use manager::Manager;
pub use ports::{Binding, Claim, PortError, PortTable, Ports};
pub use request::Request;
