//! Listeners, and the requests that reach them.

use super::connection::{Connection, Ready};
use super::datagrams::ServiceRequest;
use super::desk::{Incoming, Mailbox, Requests};
use super::office::Office;
use super::ports::{Binding, Claim};
use super::request::Request;
use crate::engine::Terms;
use crate::error::{ConnectError, Error, Result};
use crate::verbs::device::Device;
use crate::verbs::queue_pair::{ConnectOptions, QueuePair};
use ::cm::{CmTimeout, Connect, IpCm, Listen, ListenerId, Path, PortSpace, ServiceId};
use qp::{Gid, QpType};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use time::Duration;

/// Requests that may wait for the program, as many as Linux gives a listener at most.
const BACKLOG: u32 = 1024;

/// The longest time that a packet takes through the network: 67 ms. Linux assumes 1 s (`CMA_IBOE_PACKET_LIFETIME`), and so takes
/// longer to repeat a lost message, and to forget a connection.
const LIFETIME: CmTimeout = CmTimeout::new(14);

/// The time that the peer's program may take before the request is repeated: 0.5 s. It is repeated 15 times, so that a peer that
/// does not answer is given up after some ten seconds. A program that is slower is waited for, because its host says so.
pub(super) const ANSWER: CmTimeout = CmTimeout::new(17);

impl Device {
    /// Listens for reliable connections at a port, at the address of the device; port 0 is any free one.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// let net = rnic::sim::Net::new(); // or `(rnic::open()?, rnic::open()?)`, on the network
    /// let (client, server) = (net.device(), net.device());
    /// let listener = server.listen(7471)?;
    /// let dialling = rnic::RcEnd::dial(&client, (server.address(), 7471))?;
    ///
    /// let request = listener.accept()?;
    /// println!("{} wants a connection", request.peer());
    /// let right = request.accept_end()?;
    /// let left = dialling.wait()?;
    ///
    /// let (message, inbox) = (left.register(b"hello")?, right.register(&[0; 5])?);
    /// right.qp.recv(1, inbox.all())?;
    /// left.qp.send(2, message.all())?;
    /// right.wait()?;
    /// assert_eq!(inbox.to_vec()?, b"hello");
    /// # Ok::<(), rnic::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Connect`] if the port is in use, or none is free; those of
    /// [`connection_manager`](Self::connection_manager).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, port: u16) -> Result<Listener> {
        self.listen_for(port, QpType::Rc)
    }

    /// As [`listen`](Self::listen), for connections of another type: UC or XRC_RECV.
    ///
    /// # Errors
    /// As [`listen`](Self::listen), and [`Error::Connect`] for a type that nothing connects to.
    pub fn listen_for(&self, port: u16, qp_type: QpType) -> Result<Listener> {
        Listener::new(self, SocketAddr::new(self.address(), port), (PortSpace::Tcp, qp_type), Request::of)
    }

    /// Listens for [questions](Self::ask) for the queue pair of a service of datagrams, at a port of their own port space.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    #[doc(alias = "rdma_listen")]
    pub fn listen_datagrams(&self, port: u16) -> Result<Listener<ServiceRequest>> {
        Listener::new(
            self,
            SocketAddr::new(self.address(), port),
            (PortSpace::Udp, QpType::Ud),
            ServiceRequest::of,
        )
    }

    /// Connects a queue pair in RESET or INIT to whoever listens at an address and port. Returns at once; the connection
    /// [is made](Connection::wait) while the device is driven.
    ///
    /// # Errors
    /// [`Error::Connect`]: the queue pair cannot be used, or the address is of the other IP family; those of
    /// [`connection_manager`](Self::connection_manager). That nobody listens there is an outcome of the connection.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, qp: &QueuePair, to: impl Into<SocketAddr>) -> Result<Connection> {
        self.connect_with(qp, to, &ConnectOptions::default(), &[])
    }

    /// As [`connect`](Self::connect), with options for the queue pair, and up to 56 bytes for the peer's program.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`Error::Connect`] for more private data.
    pub fn connect_with(
        &self,
        qp: &QueuePair,
        to: impl Into<SocketAddr>,
        options: &ConnectOptions,
        private_data: &[u8],
    ) -> Result<Connection> {
        let (office, to) = (Office::of(self)?, to.into());
        let ours = office.address_for(to)?;
        let claim = Claim { remote: Some(to), ..Claim::new(PortSpace::Tcp, SocketAddr::new(ours, 0)) };
        let src_port = office.passing_port(&claim)?;
        let remote = to.ip().to_canonical();
        let path = path_to(self, Gid::from(remote), options);
        let connect = Connect {
            addresses: Some(IpCm { src_port, src: ours, dst: remote }),
            qp_type: qp.qp_type(),
            responder_resources: options.rd_atomic,
            initiator_depth: options.rd_atomic,
            retry_count: options.retry_cnt,
            rnr_retry_count: options.rnr_retry,
            remote_response_timeout: ANSWER,
            local_response_timeout: ANSWER,
            private_data,
            ..Connect::new(ServiceId::tcp(to.port()), path, qp.qpn())
        };
        let mailbox = Arc::<Mailbox<_>>::default();
        let (port, now) = office.port()?;
        let id = port.control(|engine| {
            let id = engine.connect_qp(now, &connect, terms(options))?;
            office.desk().connections.insert(id, Arc::clone(&mailbox));
            Ok::<_, ConnectError>(id)
        })?;
        Ok(Connection { office, id, mailbox, peer: to })
    }
}

/// The path to an address, with the options of a queue pair.
pub(super) fn path_to(device: &Device, remote: Gid, options: &ConnectOptions) -> Path {
    let mut path =
        Path::new(device.gid(), remote, options.mtu.unwrap_or_else(|| device.inner.port.active_mtu()));
    path.lifetime = LIFETIME;
    path.to.traffic_class = options.traffic_class;
    path.pkey = device.pkeys().get(usize::from(options.pkey_index)).copied().unwrap_or(path.pkey);
    path
}

pub(super) const fn terms(options: &ConnectOptions) -> Terms {
    let ConnectOptions { access, timeout, min_rnr_timer, pkey_index, .. } = *options;
    Terms { access, timeout, min_rnr_timer, pkey_index }
}

/// A listener. Dropping it refuses the requests that wait.
pub struct Listener<R = Request> {
    office: Office,
    /// `None` until it listens.
    id: Option<ListenerId>,
    mailbox: Arc<Requests>,
    binding: Binding,
    local: SocketAddr,
    /// Makes what it hands out.
    take: fn(&Office, Incoming) -> Option<R>,
}

impl<R> Listener<R> {
    fn new(
        device: &Device,
        local: SocketAddr,
        (space, qp_type): (PortSpace, QpType),
        take: fn(&Office, Incoming) -> Option<R>,
    ) -> Result<Self> {
        let office = Office::of(device)?;
        // The privilege protects the ports of the host, which these are not.
        let claim = Claim { privileged: true, ..Claim::new(space, local) };
        let binding = office.ports().bind(&claim).map_err(ConnectError::from)?;
        let mailbox = Arc::<Requests>::default();
        let local = SocketAddr::new(local.ip(), binding.port);
        // From here on, dropping it gives the port back.
        let mut listener = Self { office, id: None, mailbox, binding, local, take };
        listener.open(qp_type)?;
        Ok(listener)
    }

    fn open(&mut self, qp_type: QpType) -> Result<()> {
        let Self { office, mailbox, binding, .. } = self;
        office.ports().listen(*binding).map_err(ConnectError::from)?;
        let listen = Listen {
            service_id: ServiceId::of_port(binding.space, binding.port),
            address: Some(Gid::from(self.local.ip())),
            with_addresses: true,
            qp_type,
            backlog: BACKLOG,
        };
        let id = office.manager.call(|endpoint, now| {
            let id = endpoint.listen(now, &listen)?;
            // Requests that were held come next.
            office.desk().listeners.insert(id, Arc::clone(mailbox));
            Ok::<_, ::cm::CallError>(id)
        })?;
        self.id = Some(id.map_err(ConnectError::from)?);
        Ok(())
    }

    /// Its address and port.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Waits for a request, as long as it takes.
    ///
    /// # Errors
    /// In virtual time [`Error::Stalled`] when none can come any more; [`Error::Os`] if the process has no descriptor
    /// left; [`Error::Resource`] if the device fails; [`Error::Forked`].
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&self) -> Result<R> {
        const LONG: Duration = Duration::from_secs(3600);
        loop {
            if let Some(request) = self.accept_within(LONG)? {
                return Ok(request);
            }
            if self.office.port()?.0.sim().is_some() {
                return Err(Error::Stalled);
            }
        }
    }

    /// As [`accept`](Self::accept), for up to `timeout`; `None` if no request came.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_within(&self, timeout: Duration) -> Result<Option<R>> {
        let incoming = self.mailbox.wait(
            self.office.device(),
            timeout,
            |waiting| !waiting.is_empty(),
            |waiting| {
                let next = waiting.pop_front();
                (next, !waiting.is_empty())
            },
        )?;
        Ok(incoming.and_then(|incoming| (self.take)(&self.office, incoming)))
    }

    /// Takes a request, if one waits. Never waits: the descriptor of [`ready`](Self::ready) is readable while there are requests.
    #[must_use]
    pub fn poll(&self) -> Option<R> {
        let incoming = self.mailbox.take(|waiting| (waiting.pop_front(), !waiting.is_empty()));
        incoming.and_then(|incoming| (self.take)(&self.office, incoming))
    }

    /// Awaits a request: [`accept`](Self::accept) for tasks. Several tasks may await requests; each goes to one of them.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub async fn next(&self) -> Result<R> {
        let take = |waiting: &mut VecDeque<Incoming>| {
            let next = waiting.pop_front().and_then(|incoming| (self.take)(&self.office, incoming));
            (next, !waiting.is_empty())
        };
        self.mailbox.listen(self.office.device(), take).await
    }

    /// An object with a descriptor that is readable while requests wait.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor left; [`Error::Forked`].
    pub fn ready(&self) -> Result<Ready> {
        Ok(Ready(self.mailbox.flag(self.office.device(), |waiting| !waiting.is_empty())?))
    }
}

impl<R> Drop for Listener<R> {
    fn drop(&mut self) {
        self.office.ports().release(self.binding);
        let Some(id) = self.id else { return };
        // After this call no more requests come.
        let _ = self.office.manager.call(|endpoint, _| {
            let _ = endpoint.unlisten(id);
            self.office.desk().listeners.remove(&id);
        });
        while self.poll().is_some() {}
    }
}

impl<R> std::fmt::Debug for Listener<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.local)
    }
}
