//! Connections of an address that several processes share.
//!
//! The datagrams of queue pair 1 reach one process. Its engine passes those of connection management on by a [`Router`],
//! and answers what no process is there for. The engines of the others keep a ledger ([`cm::Entry`]), from which that
//! process knows who listens and who is connected.

use super::super::{DropReason, Engine, ResourceError};
use cm::{CallError, Connected, Entry, Recipient, ServiceId};
use qp::wire::IpHeader;
use qp::wire::mad::MAD_LEN;
use std::net::IpAddr;
use time::Instant;

/// Passes datagrams of connection management on to the processes that share an address.
///
/// It is called by the thread that drives the port, with the lock of the port held: it must neither wait nor call the
/// device or any of its objects.
pub trait Router: Send {
    /// Takes a datagram, if there is a process for it. Others are answered by the port itself.
    fn route(&mut self, arrival: &IpHeader, mad: &[u8; MAD_LEN], recipient: Recipient) -> bool;

    /// Whether a process has, or had a moment ago, a connection with this address.
    fn knows(&self, from: IpAddr) -> bool;
}

impl Engine {
    /// Sets who passes datagrams on to other processes.
    pub fn set_router(&mut self, router: Box<dyn Router>) {
        self.connections.router = Some(router);
    }

    /// Whether a datagram was for another process, and was passed on.
    pub(super) fn is_routed(&mut self, arrival: &IpHeader, mad: &[u8; MAD_LEN]) -> bool {
        let connections = &mut self.connections;
        let Some(router) = connections.router.as_mut() else { return false };
        let Some(recipient) = Recipient::of(mad) else { return false };
        // Connections of processes that have ended are this one's.
        let is_ours = |id| connections.manager.as_ref().is_some_and(|manager| manager.endpoint.has(id));
        if let Recipient::Holder(id) = recipient
            && is_ours(id)
        {
            return false;
        }
        router.route(arrival, mad, recipient)
    }

    /// Takes in a datagram for queue pair 1 that was passed on: from an address and its UDP port to one of this host. Whoever
    /// passed it on has checked all that is around it. Returns false if it asks for something and there are too many of those.
    pub fn handle_passed_on(
        &mut self,
        now: Instant,
        (from, port): (IpAddr, u16),
        to: IpAddr,
        mad: &[u8; MAD_LEN],
    ) -> bool {
        let arrival = IpHeader { src: from, src_port: port, ..IpHeader::to(to) };
        let proven = self.partners.at(from, port).is_some();
        let asks = matches!(Recipient::of(mad), Some(Recipient::Service(_)));
        if !proven && asks && !self.may_request(now, from) {
            self.counters.drop(DropReason::Requests);
            return false;
        }
        self.handle_connection_mad(now, &arrival, proven, mad);
        true
    }

    /// The requests that wait for a listener of this service, with the addresses that they came from and were sent to.
    pub fn take_held(&mut self, service: ServiceId) -> Vec<(IpAddr, IpAddr, [u8; MAD_LEN])> {
        let Some(manager) = self.connections.manager.as_mut() else { return Vec::new() };
        let held = manager.endpoint.take_held(service).into_iter();
        held.map(|(source, mad)| (source.remote.ip(), source.local.ip(), mad)).collect()
    }

    /// Begins the ledger of the connection manager, with everything that is there already.
    ///
    /// # Errors
    /// [`ResourceError::DeviceFailed`].
    pub fn open_ledger(&mut self) -> Result<(), ResourceError> {
        self.usable()?;
        self.manager().endpoint.open_ledger();
        Ok(())
    }

    /// The next entry of the ledger.
    pub fn poll_ledger(&mut self) -> Option<Entry> {
        self.connections.manager.as_mut()?.endpoint.poll_ledger()
    }

    /// Whether the ledger has entries.
    #[inline]
    #[must_use]
    pub fn has_ledger_entries(&self) -> bool {
        self.connections.manager.as_ref().is_some_and(|manager| manager.endpoint.has_entries())
    }

    /// Closes a connection of a process that has ended: its peer is told.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn close_for(&mut self, now: Instant, connected: &Connected) -> Result<(), CallError> {
        let endpoint = &mut self.manager().endpoint;
        let closed = endpoint.adopt(now, connected).and_then(|id| endpoint.destroy(now, id));
        self.settle_connections();
        closed
    }
}
