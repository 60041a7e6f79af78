//! The agents behind queue pair 1: the connection manager of the port, and the answer to requests for other agents.
//!
//! Unless a program has created its own QP1, management datagrams that are not hellos end here ([`agents`]). Those of
//! connection management go to a [`cm::Endpoint`], which the first of them, or the first program that asks for it,
//! creates. Its datagrams leave like hellos: they need no credit and belong to no queue pair (IBTA 3.5.5: management
//! packets travel on a lane of their own). Its timers are one alarm among those of the engine. Its events go to the
//! program's [`EventSink`] before the lock of the port is released.
//!
//! [`follow`] leads queue pairs through their connection for programs of the Rust API.
//! [`stale`] finds out whether a peer has really lost a connection before the endpoint closes it.

mod agents;
mod follow;
mod shared;
mod stale;
#[cfg(test)]
mod tests;

use super::partner::{Allowance, write_single};
use super::schedule::{Alarm, Due};
use super::{Departure, Engine, QpEntry, ResourceError, expand};
use crate::gid::node_guid;
use crate::platform;
use crate::reasons::{self, Reason};
pub(crate) use follow::Terms;

use agents::Refusals;
use cm::{Endpoint, Event, Source, Transmit};
use follow::Followers;
use qp::wire::mad::MAD_LEN;
use qp::wire::{DethFields, Headers, IpHeader, Opcode};
use qp::{Gid, Mtu, PKey, Psn, QKey, Qpn};
pub use shared::Router;
use stale::Suspects;
use std::net::IpAddr;
use std::task::Waker;
use time::Instant;

/// Distinguishes the seed of the connection manager from those of keys and tokens in a simulation.
const SEED: u64 = 0x434d_0001;

/// Receives the events of a port's connection manager.
///
/// It is called by the thread that drives the port, with the lock of the port held, before any of the packets that follow from
/// the events is sent. So it must neither wait nor call the device or any of its objects. It may take locks of its own,
/// if nobody calls the device while holding them: the lock of the port comes first.
pub trait EventSink: Send {
    /// Takes an event. Tasks that have to learn of it go to `woken`: they are woken after the lock is released.
    fn take(&mut self, event: Event, woken: &mut Vec<Waker>);

    /// The device has failed: no event follows.
    fn device_failed(&mut self) {}
}

impl<F: FnMut(Event) + Send> EventSink for F {
    fn take(&mut self, event: Event, _: &mut Vec<Waker>) {
        self(event);
    }
}

/// Requests of unknown addresses: the size of a burst, and the number per second. Our choice: a burst for as many
/// connections as there may be; and then, at 5 us each, 2.5 % of a processor. Whoever finds no place repeats its request.
const UNKNOWN: Allowance = Allowance::new(16_384, 5_000);

/// The same for addresses with which a connection was established, which may be forged too: 25 % of a processor.
const KNOWN: Allowance = Allowance::new(16_384, 50_000);

/// The agents behind queue pair 1.
pub(super) struct Connections {
    manager: Option<Box<Manager>>,
    /// Whether the manager may have something to send.
    pending: bool,
    /// Whether the last packet of the port was one of the manager's: then a queue pair comes first, if one is ready.
    spoke: bool,
    /// Whether a connection waits for the first packet of its peer.
    awaits_packets: bool,
    /// Limits what requests cost that do not come from a partner: those of known and of unknown addresses.
    known: Allowance,
    unknown: Allowance,
    refusals: Refusals,
    /// Gets what is for other processes, where they share the address.
    router: Option<Box<dyn Router>>,
    psn: u16,
}

/// The connection manager.
struct Manager {
    endpoint: Endpoint,
    sink: Option<Box<dyn EventSink>>,
    /// Whether a program uses it, so that no other may create QP1.
    is_used: bool,
    alarm: Alarm,
    suspects: Suspects,
    followers: Followers,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            manager: None,
            pending: false,
            spoke: false,
            awaits_packets: false,
            known: KNOWN,
            unknown: UNKNOWN,
            refusals: Refusals::default(),
            router: None,
            psn: 0,
        }
    }
}

impl Connections {
    /// Returns whether a program uses the connection manager.
    pub(super) fn is_used(&self) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.is_used)
    }

    /// Forgets the connection manager and everything that it would have sent: a program has created QP1.
    pub(super) fn give_way(&mut self) {
        *self = Self::default();
    }
}

impl Engine {
    /// Gives the connection manager to a program.
    ///
    /// # Errors
    /// [`ResourceError::Qp1Taken`]; [`ResourceError::DeviceFailed`].
    pub(crate) fn use_connection_manager(&mut self) -> Result<(), ResourceError> {
        self.usable()?;
        if self.gsi.is_some() {
            return Err(ResourceError::Qp1Taken);
        }
        self.manager().is_used = true;
        Ok(())
    }

    /// The program that used the connection manager is done: its peers are told that its connections are closed. Returns
    /// where its events went.
    pub(crate) fn release_connection_manager(&mut self, now: Instant) -> Option<Box<dyn EventSink>> {
        self.close_connections(now);
        let manager = self.connections.manager.as_mut()?;
        manager.is_used = false;
        manager.sink.take()
    }

    /// Ends all connections, with one DREQ for each that is established, and stops listening. Returns whether there is a
    /// connection manager.
    pub fn close_connections(&mut self, now: Instant) -> bool {
        self.with_endpoint(now, Endpoint::close).is_some()
    }

    /// Sets where events go, from those that wait on.
    ///
    /// # Errors
    /// [`ResourceError::Busy`] if they go somewhere already.
    pub(crate) fn set_connection_sink(&mut self, sink: Box<dyn EventSink>) -> Result<(), ResourceError> {
        let manager = self.manager();
        if manager.sink.is_some() {
            let what = "connection manager";
            return Err(ResourceError::Busy { what, users: 1, by: "another receiver of its events" });
        }
        manager.sink = Some(sink);
        Ok(())
    }

    /// Calls the connection manager, if there is one.
    pub(crate) fn with_endpoint<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Endpoint, Instant) -> R,
    ) -> Option<R> {
        let result = call(&mut self.connections.manager.as_mut()?.endpoint, now);
        self.settle_connections();
        Some(result)
    }

    /// The connection manager's endpoint, if there is one.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.connections.manager.as_ref().map(|manager| &manager.endpoint)
    }

    fn manager(&mut self) -> &mut Manager {
        let Self { connections, config, limits, .. } = self;
        connections.manager.get_or_insert_with(|| {
            let mut about = cm::Config::new(u64::from_be_bytes(node_guid(config.address)));
            about.max_mtu = limits.path_mtu;
            about.slot = config.share.map(|_| config.slot);
            let seed = config.seed.map_or_else(platform::random_bytes, |seed| expand(seed ^ SEED));
            let mut endpoint = Endpoint::new(about, seed);
            endpoint.set_pkeys(config.pkeys.as_slice());
            Box::new(Manager {
                endpoint,
                sink: None,
                is_used: false,
                alarm: Alarm::default(),
                suspects: Suspects::default(),
                followers: Followers::default(),
            })
        })
    }

    /// The largest path MTU of the port has changed.
    pub(super) fn set_connection_mtu(&mut self, mtu: Mtu) {
        if let Some(manager) = self.connections.manager.as_mut() {
            manager.endpoint.set_max_mtu(mtu);
        }
    }

    /// Returns whether a request from this address may be processed now.
    fn may_request(&mut self, now: Instant, from: IpAddr) -> bool {
        let is_known = self.endpoint().is_some_and(|endpoint| endpoint.knows(Gid::from(from)))
            || self.connections.router.as_ref().is_some_and(|router| router.knows(from));
        let Connections { known, unknown, .. } = &mut self.connections;
        if is_known { known.take(now) } else { unknown.take(now) }
    }

    /// Takes in a connection management datagram.
    fn handle_connection_mad(&mut self, now: Instant, arrival: &IpHeader, proven: bool, mad: &[u8; MAD_LEN]) {
        let source = Source { remote: Gid::from(arrival.src), local: Gid::from(arrival.dst), proven };
        self.manager().endpoint.handle_mad(now, &source, mad);
        self.settle_connections();
    }

    /// A connected queue pair took a packet while a connection waits for its peer's first one.
    #[cold]
    pub(super) fn note_first_packet(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.qps[index].as_ref() else { return };
        let QpEntry { qp, path: Some(path), .. } = &**entry else { return };
        let (remote, remote_qpn, local_qpn) = (Gid::from(path.ip.dst), qp.dest_qpn(), qp.qpn());
        self.with_endpoint(now, |endpoint, now| endpoint.handle_packet(now, remote, remote_qpn, local_qpn));
    }

    /// Returns whether [`note_first_packet`](Self::note_first_packet) has to be called.
    pub(super) const fn awaits_first_packet(&self) -> bool {
        self.connections.awaits_packets
    }

    /// Follows what a call changed: there may be something to send, and the next timeout may be earlier.
    fn settle_connections(&mut self) {
        let Self { connections, timers, .. } = self;
        let Some(manager) = connections.manager.as_mut() else { return };
        connections.pending = true;
        connections.awaits_packets = manager.endpoint.awaits_packets();
        if let Some(at) = manager.endpoint.poll_timeout() {
            timers.set(&mut manager.alarm, at, Due::Connections);
        }
    }

    /// The timer of the connection manager fired.
    pub(super) fn connections_timeout(&mut self, now: Instant) {
        let Some(manager) = self.connections.manager.as_mut() else { return };
        if manager.alarm.expires(now) {
            manager.endpoint.handle_timeout(now);
            if let Some(silence) = manager.endpoint.take_silence() {
                tracing::debug!(%silence, "a peer is silent");
                let remedy = "check the address, that a program with an RDMA device is running there, and that UDP port 4791 is open on the way";
                reasons::report(Reason::Other("silent peers", format_args!("{silence}: {remedy}")));
            }
            self.settle_connections();
        }
    }

    /// Hands the events of connections to the program. Tasks to be woken after the lock is released go to `woken`.
    pub(crate) fn tell_connections(&mut self, now: Instant, woken: &mut Vec<Waker>) {
        self.end_broken(now);
        while let Some(manager) = self.connections.manager.as_mut() {
            // Without a program nobody listens, and nothing happens that it would have to know.
            let Some(event) = manager.sink.is_some().then(|| manager.endpoint.poll_event()).flatten() else {
                return;
            };
            if let Event::StaleSuspected { connection, remote, .. } = event {
                self.suspect(now, connection, remote);
                continue;
            }
            if let Some(event) = self.lead(now, event)
                && let Some(sink) =
                    self.connections.manager.as_mut().and_then(|manager| manager.sink.as_mut())
            {
                sink.take(event, woken);
            }
        }
    }

    /// Tells the program that no event of connections follows.
    pub(super) fn tell_failure(&mut self) {
        if let Some(sink) = self.connections.manager.as_mut().and_then(|manager| manager.sink.as_mut()) {
            sink.device_failed();
        }
    }

    /// Returns whether [`tell_connections`](Self::tell_connections) has something to tell. It is asked after each post, so that it
    /// must not need the time: at a daemon every device manages connections, and a look at the clock takes a tenth of a post.
    #[inline]
    pub(crate) fn has_connection_news(&self) -> bool {
        self.connections.manager.as_ref().is_some_and(|manager| {
            manager.followers.have_broken() || manager.sink.is_some() && manager.endpoint.has_events()
        })
    }

    /// Returns whether an agent may have something to send.
    #[inline]
    pub(super) const fn agents_speak(&self) -> bool {
        self.connections.pending
    }

    /// The next datagram of an agent, in `buf`. Between two of them a queue pair that is ready has its turn: a flood of
    /// requests cannot take the port away from data.
    pub(super) fn poll_agents(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        if std::mem::take(&mut self.connections.spoke) && !self.places.is_quiet() && !self.rates.port_waits()
        {
            return None;
        }
        let next = self.poll_refusal(buf).or_else(|| self.poll_endpoint(now, buf));
        self.connections.spoke = next.is_some();
        self.connections.pending = next.is_some();
        next
    }

    fn poll_endpoint(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        let Transmit { to, mad } = self.connections.manager.as_mut()?.endpoint.poll_transmit(now)?;
        let dst = to.remote.ip();
        let flow_label = if dst.is_ipv6() { to.flow_label } else { 0 };
        let ip = IpHeader { tos: to.traffic_class, hop_limit: to.hop_limit, flow_label, ..IpHeader::to(dst) };
        self.write_mad(ip, Qpn::GSI, &mad, buf)
    }

    /// Writes a datagram from queue pair 1.
    fn write_mad(
        &mut self,
        ip: IpHeader,
        dest_qpn: Qpn,
        mad: &[u8; MAD_LEN],
        buf: &mut [u8],
    ) -> Option<Departure> {
        self.connections.psn = self.connections.psn.wrapping_add(1);
        let mut headers = Headers::new(Opcode::UdSendOnly, dest_qpn, Psn::new(self.connections.psn.into()));
        headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        // Management datagrams travel in the default partition, if the port belongs to it.
        let pkeys = &self.config.pkeys;
        let own = pkeys.find(PKey::DEFAULT).unwrap_or(0);
        headers.pkey = pkeys.get(own).unwrap_or(PKey::DEFAULT);
        // All leave from the first port, like hellos, so that peers recognise the source.
        let path = self.config.path(0, ip);
        write_single(&path, &headers, mad, buf)
    }
}
