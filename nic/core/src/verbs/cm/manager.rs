//! The connection manager of a device as it is, for code that has its own idea of connections.

use super::office::Rooms;
use crate::engine::{EventSink, ResourceError};
use crate::error::Result;
use crate::queue::locked;
use crate::verbs::device::{Device, DeviceInner};
use ::cm::Endpoint;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use time::Instant;

/// The connection manager of a device: one, however many handles the device has. Clones are the same manager.
///
/// A program that uses it leaves QP1 to the device. When the last clone is dropped, connections are closed: each
/// established one with a DREQ, which is not repeated.
///
/// From the first one on, the background thread of the device serves it, so that peers are answered whether the
/// program polls or not.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::cm::protocol::{Accept, Connect, Event, Listen, Path, PortSpace, ServiceId};
/// use rnic::{Gid, QpType, Qpn};
/// use std::sync::mpsc::channel;
///
/// let net = rnic::sim::Net::new(); // on the network: devices of `rnic::open()?`
/// let (a, b) = (net.device(), net.device());
/// let (client, server) = (a.connection_manager()?, b.connection_manager()?);
/// let (sender, requests) = channel();
/// server.set_sink(move |event| sender.send(event).unwrap_or(()))?;
///
/// let service_id = ServiceId::of_port(PortSpace::Tcp, 7471);
/// let listen = Listen { service_id, address: None, with_addresses: false, qp_type: QpType::Rc, backlog: 8 };
/// server.call(|endpoint, now| endpoint.listen(now, &listen))??;
/// let path = Path::new(Gid::from(a.address()), Gid::from(b.address()), a.port_attr().active_mtu);
/// let connect = Connect::new(service_id, path, Qpn::new(17));
/// client.call(|endpoint, now| endpoint.connect(now, &connect))??;
///
/// net.run_for(rnic::time::Duration::from_millis(1));
/// let Ok(Event::ConnectRequest { connection, request }) = requests.try_recv() else { panic!("no request") };
/// let accept = Accept::new(Qpn::new(18), &request);
/// server.call(|endpoint, now| endpoint.accept(now, connection, &accept))??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Manager {
    inner: Arc<ManagerInner>,
}

pub(crate) struct ManagerInner {
    device: Arc<DeviceInner>,
    /// What the Rust API needs, once it is used.
    rooms: Mutex<Option<Arc<Rooms>>>,
}

impl Drop for ManagerInner {
    fn drop(&mut self) {
        let Ok(port) = self.device.port() else { return };
        let now = port.now();
        // The sink is the program's: its end must not find the lock taken.
        drop(port.control(|engine| engine.release_connection_manager(now)));
        port.flush();
    }
}

impl Device {
    /// The connection manager of the device.
    ///
    /// # Errors
    /// [`ResourceError::Qp1Taken`] if the program has created QP1, over which connections are managed;
    /// [`ResourceError::DeviceFailed`]; [`Error::Os`](crate::Error::Os) if no thread can be started to serve the
    /// device; [`Error::Forked`](crate::Error::Forked).
    pub fn connection_manager(&self) -> Result<Manager> {
        let port = self.inner.intact_port()?;
        let mut known = locked(&self.inner.manager);
        if let Some(inner) = known.upgrade() {
            return Ok(Manager { inner });
        }
        self.inner.serve()?;
        port.tell_peers_at_end();
        port.control(crate::engine::Engine::use_connection_manager)?;
        let inner = Arc::new(ManagerInner { device: Arc::clone(&self.inner), rooms: Mutex::default() });
        *known = Arc::downgrade(&inner);
        Ok(Manager { inner })
    }
}

impl Manager {
    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    pub(super) fn device_inner(&self) -> &DeviceInner {
        &self.inner.device
    }

    pub(super) fn rooms(&self) -> MutexGuard<'_, Option<Arc<Rooms>>> {
        locked(&self.inner.rooms)
    }

    /// Calls the protocol's endpoint, with the present time, and sends what follows from that. Events that the call causes are
    /// delivered after it.
    ///
    /// The lock of the port is held meanwhile, so `act` must neither wait nor call the device or any of its objects. It may
    /// take locks of the caller's own, under the rule of [`EventSink`].
    ///
    /// # Errors
    /// [`ResourceError::DeviceFailed`]; [`Error::Forked`](crate::Error::Forked).
    pub fn call<R>(&self, act: impl FnOnce(&mut Endpoint, Instant) -> R) -> Result<R> {
        let port = self.inner.device.intact_port()?;
        let now = port.now();
        let result = port.control(|engine| engine.with_endpoint(now, act));
        Ok(result.ok_or(ResourceError::DeviceFailed)?)
    }

    /// Looks at the protocol's endpoint, without driving the port. The rules of [`call`](Self::call) hold.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn look<R>(&self, look: impl FnOnce(&Endpoint) -> R) -> Result<R> {
        let port = self.inner.device.intact_port()?;
        let result = port.inspect(|engine| engine.endpoint().map(look)).flatten();
        Ok(result.ok_or(ResourceError::DeviceFailed)?)
    }

    /// Sets the receiver of all events, and delivers those that wait. Whoever drives the port delivers events at once: a
    /// thread of the program that polls, or the background thread.
    ///
    /// # Errors
    /// [`ResourceError::Busy`] if the manager has a receiver already; [`ResourceError::DeviceFailed`];
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn set_sink(&self, sink: impl EventSink + 'static) -> Result<()> {
        let port = self.inner.device.intact_port()?;
        Ok(port.control(|engine| engine.set_connection_sink(Box::new(sink)))?)
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Manager({})", self.device().address())
    }
}

/// The manager of a device, if there is one.
pub(crate) type Known = Weak<ManagerInner>;
