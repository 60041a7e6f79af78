//! Requests for connections.

use super::connection::Connection;
use super::desk::{Incoming, Mailbox};
use super::end::End;
use super::listener::terms;
use super::office::Office;
use crate::engine::Terms;
use crate::error::{ConnectError, Result};
use crate::verbs::connection::RcEnd;
use crate::verbs::device::Device;
use crate::verbs::queue_pair::{ConnectOptions, QueuePair};
use ::cm::{Accept, ConnectionId, RejReason};
use std::net::SocketAddr;
use std::sync::Arc;

/// A peer's request for a connection. Dropping it refuses it.
pub struct Request {
    office: Office,
    /// `None` once it is answered.
    id: Option<ConnectionId>,
    about: Box<::cm::Request>,
}

impl Request {
    pub(super) fn of(office: &Office, incoming: Incoming) -> Option<Self> {
        match incoming {
            Incoming::Connection(id, about) => Some(Self { office: office.clone(), id: Some(id), about }),
            Incoming::Query(..) => None,
        }
    }

    /// The peer: its address, and its port in the port space of connections.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let port = self.about.addresses.map_or(0, |addresses| addresses.src_port);
        SocketAddr::new(self.about.path.to.remote.ip(), port)
    }

    /// What the peer's program says: 56 bytes, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.about.private_data
    }

    /// All that the peer asks for.
    #[must_use]
    pub const fn details(&self) -> &::cm::Request {
        &self.about
    }

    /// Accepts with a queue pair in RESET or INIT, which goes to RTS. This side may send from now on.
    ///
    /// # Errors
    /// [`Error::Connect`](crate::Error::Connect): the queue pair cannot be used for that, or the peer has given the
    /// request up. The request is refused then.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, qp: &QueuePair) -> Result<Connection> {
        self.accept_with(qp, &ConnectOptions::default(), &[])
    }

    /// As [`accept`](Self::accept), with options for the queue pair, and up to 196 bytes for the peer's program. The path MTU and
    /// the partition are those of the request.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_with(
        mut self,
        qp: &QueuePair,
        options: &ConnectOptions,
        private_data: &[u8],
    ) -> Result<Connection> {
        let (port, now) = self.office.port()?;
        let Some(id) = self.id else {
            return Err(ConnectError::from(::cm::CallError::UnknownConnection).into());
        };
        let ours = options.rd_atomic;
        let accept = Accept {
            responder_resources: self.about.responder_resources.min(ours),
            initiator_depth: self.about.initiator_depth.min(ours),
            rnr_retry_count: options.rnr_retry,
            private_data,
            ..Accept::new(qp.qpn(), &self.about)
        };
        let mailbox = Arc::<Mailbox<_>>::default();
        port.control(|engine| {
            let pkey_index = engine.config().pkeys.find(self.about.path.pkey).unwrap_or(options.pkey_index);
            engine.accept_qp(now, id, &accept, Terms { pkey_index, ..terms(options) })?;
            self.office.desk().connections.insert(id, Arc::clone(&mailbox));
            Ok::<_, ConnectError>(())
        })?;
        self.id = None;
        let peer = self.peer();
        Ok(Connection { office: self.office.clone(), id, mailbox, peer })
    }

    /// Accepts with a new queue pair, which has its own protection domain and completion queue.
    ///
    /// # Errors
    /// As [`accept`](Self::accept), and those of creating its parts.
    pub fn accept_end(self) -> Result<End> {
        let end = RcEnd::new(&self.office.manager.device())?;
        let connection = self.accept(&end.qp)?;
        Ok(End { connection, end })
    }

    /// The device that it arrived at.
    #[must_use]
    pub fn device(&self) -> Device {
        self.office.manager.device()
    }

    /// Refuses, with up to 148 bytes for the peer's program.
    ///
    /// # Errors
    /// [`Error::Connect`](crate::Error::Connect) for more bytes: the request is refused without them.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.refuse(private_data)
    }

    fn refuse(&mut self, private_data: &[u8]) -> Result<()> {
        let Some(id) = self.id else { return Ok(()) };
        let reason = RejReason::ConsumerDefined;
        let refused =
            self.office.manager.call(|endpoint, now| endpoint.reject(now, id, reason, &[], private_data))?;
        match refused {
            // The peer has given it up.
            Ok(()) | Err(::cm::CallError::UnknownConnection) => self.id = None,
            Err(error) => return Err(ConnectError::from(error).into()),
        }
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // It expires if the device is gone.
        let _ = self.refuse(&[]);
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request(of {})", self.peer())
    }
}
