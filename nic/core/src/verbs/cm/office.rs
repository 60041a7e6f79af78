//! What the connections of a device have in common: its manager, the desk for its events, and its ports.

use super::desk::{Clerk, Desk};
use super::manager::Manager;
use super::ports::{PortTable, Ports};
use crate::error::{ConnectError, Result};
use crate::platform;
use crate::port::Port;
use crate::queue::locked;
use crate::verbs::device::{Device, DeviceInner};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use time::Instant;

/// The office of a device. Everything that is connected or listens holds it, and with it the manager.
#[derive(Clone)]
pub(super) struct Office {
    pub(super) manager: Manager,
    rooms: Arc<Rooms>,
}

/// What an office consists of. It belongs to the manager.
pub(crate) struct Rooms {
    pub(super) desk: Mutex<Desk>,
    ports: Arc<dyn PortTable>,
}

impl Office {
    /// The office of a device.
    pub(super) fn of(device: &Device) -> Result<Self> {
        let manager = device.connection_manager()?;
        let mut known = manager.rooms();
        if let Some(rooms) = &*known {
            let rooms = Arc::clone(rooms);
            drop(known);
            return Ok(Self { manager, rooms });
        }
        // In a simulation every run gives out the same ports.
        let port = device.inner.port()?;
        let seed = if port.sim().is_some() { device.inner.fault_seed } else { platform::random() };
        let own = || Arc::new(Mutex::new(Ports::new(Ports::DEFAULT_RANGE, seed))) as Arc<dyn PortTable>;
        let ports = port.shared_ports().unwrap_or_else(own);
        let rooms = Arc::new(Rooms { desk: Mutex::default(), ports });
        manager.set_sink(Clerk(Arc::clone(&rooms)))?;
        *known = Some(Arc::clone(&rooms));
        drop(known);
        Ok(Self { manager, rooms })
    }

    pub(super) fn device(&self) -> &DeviceInner {
        self.manager.device_inner()
    }

    /// The desk. Whoever holds it must not call the device.
    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        locked(&self.rooms.desk)
    }

    pub(super) fn ports(&self) -> &dyn PortTable {
        &*self.rooms.ports
    }

    /// The port, and its time.
    pub(super) fn port(&self) -> Result<(&Arc<dyn Port>, Instant)> {
        let port = self.device().intact_port()?;
        Ok((port, port.now()))
    }

    /// The address of the port, which must be of the family of `to`.
    pub(super) fn address_for(&self, to: SocketAddr) -> std::result::Result<IpAddr, ConnectError> {
        let ours = self.device().port.address();
        let theirs = to.ip().to_canonical();
        if ours.is_ipv4() == theirs.is_ipv4() { Ok(ours) } else { Err(ConnectError::Family { ours, theirs }) }
    }
}
