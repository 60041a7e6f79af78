//! The sockets of a port, or its place in a simulation.

use super::groups::Groups;
use crate::engine::{Departure, IpHeader};
use crate::net::{JoinError, RecvBatch, RoceSocket, SendError, Sent, SocketCounters};
use qp::wire::icrc::{self, Flow};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

#[cfg(test)]
mod tests;

/// A packet in transit in a simulation.
#[derive(Clone, Debug)]
pub(crate) struct SimPacket {
    pub(crate) arrival: IpHeader,
    pub(crate) bytes: Vec<u8>,
}

/// Sockets of a port on the network.
pub(crate) struct UdpIo {
    pub(super) socket: RoceSocket,
    pub(super) batch: RecvBatch,
    pub(super) groups: Groups,
    /// The sockets are permanently unusable.
    failed: bool,
}

impl UdpIo {
    pub(crate) fn new(socket: RoceSocket) -> Self {
        Self { socket, batch: RecvBatch::new(1), groups: Groups::default(), failed: false }
    }

    pub(crate) fn socket(&self) -> &RoceSocket {
        &self.socket
    }

    pub(crate) fn counters(&self) -> SocketCounters {
        self.groups.ask_drops();
        self.socket.counters()
    }

    /// Receives pending datagrams; returns their number.
    pub(super) fn recv(&mut self) -> usize {
        if self.failed {
            return 0;
        }
        self.socket.recv(&mut self.batch).unwrap_or_else(|error| {
            tracing::error!(%error, "the device fails: its socket cannot be read");
            self.failed = true;
            0
        })
    }

    /// Sends the packets of a train that the kernel refuses one by one: over UC and UD they would not be retransmitted.
    /// This happens once, because later trains have one packet each.
    fn send_singly(&self, departure: &Departure, train: &[u8]) {
        let flow = departure.ip.flow();
        for (ident, packet) in (0..).zip(train.chunks(departure.segment_size.max(1))) {
            let mut packet = packet.to_vec();
            readdress(&flow, ident, &mut packet);
            if let Err(error) = self.socket.send_train(departure.via, &departure.ip, packet.len(), &packet) {
                tracing::debug!(%error, "a packet was not sent");
            }
        }
    }

    pub(super) fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        self.socket.raw_fds().chain(self.groups.raw_fds())
    }
}

/// Converts the ICRC of a packet in a train, computed with its index as IPv4 identification, to that of a separate
/// datagram, whose identification is 0. The CRC is linear: a wrong ICRC stays wrong.
fn readdress(flow: &Flow, ident: u16, packet: &mut [u8]) {
    let Some((covered, trailer)) = packet.split_last_chunk_mut::<4>() else { return };
    let change = icrc::compute(flow, ident, covered) ^ icrc::compute(flow, 0, covered);
    *trailer = (u32::from_le_bytes(*trailer) ^ change).to_le_bytes();
}

/// A port's place in a simulation.
pub(crate) struct SimIo {
    site: usize,
    source_ports: Vec<u16>,
    /// Packets that wait for delivery by the simulation.
    pub(crate) outbox: Vec<SimPacket>,
    /// Buffers for packets, lent by the simulation while it makes the port send.
    pub(crate) spare: Vec<Vec<u8>>,
    /// Whether the simulation already knows that it has to check the port.
    pub(crate) stirred: bool,
}

impl SimIo {
    /// `site`: the number of the device in its simulation.
    pub(crate) fn new(site: usize, source_ports: Vec<u16>) -> Self {
        Self { site, source_ports, outbox: Vec::new(), spare: Vec::new(), stirred: false }
    }

    pub(super) fn site(&self) -> usize {
        self.site
    }

    fn send(&mut self, departure: &Departure, train: &[u8]) {
        for (index, packet) in train.chunks(departure.segment_size.max(1)).enumerate() {
            let ident = u16::try_from(index).unwrap_or(u16::MAX);
            let arrival = IpHeader { ident, ..departure.ip };
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(packet);
            self.outbox.push(SimPacket { arrival, bytes });
        }
    }
}

/// The sending and receiving end of a port.
pub(crate) enum Io {
    /// Real sockets.
    Udp(Box<UdpIo>),
    /// A simulation.
    Sim(Box<SimIo>),
}

impl Io {
    pub(super) fn receive_fd(&self) -> Option<RawFd> {
        match self {
            Self::Udp(udp) => Some(udp.socket.as_fd().as_raw_fd()),
            Self::Sim(_) => None,
        }
    }

    /// The descriptor that is readable when a multicast group has packets; `None` before the first group.
    pub(super) fn groups_fd(&self) -> Option<RawFd> {
        match self {
            Self::Udp(udp) => udp.groups.ready_fd(),
            Self::Sim(_) => None,
        }
    }

    /// Enables the kernel's timestamps of arrivals. Without them, a datagram's arrival time is when it is read.
    pub(super) fn stamp_arrivals(&mut self) {
        if let Self::Udp(udp) = self {
            udp.socket.stamp_arrivals();
            udp.batch.expect_stamps();
        }
    }

    /// Joins a multicast group. In a simulation the engine's own table lists the members.
    pub(super) fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        match self {
            Self::Udp(udp) => udp.groups.join(&udp.socket, group),
            Self::Sim(_) => Ok(()),
        }
    }

    /// Leaves a multicast group.
    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Self::Udp(udp) = self {
            udp.groups.leave(group);
        }
    }

    /// Returns whether the sockets are permanently unusable.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Self::Udp(udp) if udp.failed)
    }

    /// Abandons failed sockets without closing them: a descriptor that was closed from outside may belong to something
    /// else by now.
    pub(super) fn abandon(&mut self) {
        let nothing = SimIo::new(usize::MAX, Vec::new());
        std::mem::forget(std::mem::replace(self, Self::Sim(Box::new(nothing))));
    }

    pub(super) fn max_packets(&self) -> u32 {
        match self {
            Self::Udp(udp) => udp.socket.gso_segments(),
            Self::Sim(_) => 64,
        }
    }

    /// The number of the source port `port`.
    pub(super) fn via(&self, port: u16) -> usize {
        match self {
            Self::Udp(udp) => {
                let socket = &udp.socket;
                (0..socket.source_ports()).find(|via| socket.source_port(*via) == port).unwrap_or(0)
            }
            Self::Sim(sim) => sim.source_ports.iter().position(|p| *p == port).unwrap_or(0),
        }
    }

    /// Sends a train; returns false if it has to wait.
    pub(super) fn send(&mut self, departure: &Departure, bytes: &[u8]) -> bool {
        match self {
            Self::Udp(udp) => {
                match udp.socket.send_train(departure.via, &departure.ip, departure.segment_size, bytes) {
                    Ok(Sent::WouldBlock) => false,
                    // Retransmission recovers lost packets; the socket counts them by reason.
                    Ok(Sent::All) => true,
                    Err(SendError::GsoRefused) => {
                        udp.send_singly(departure, bytes);
                        true
                    }
                    Err(SendError::Os { source, .. }) if is_gone(&source) => {
                        tracing::error!(%source, "the device fails: its socket cannot be written");
                        udp.failed = true;
                        true
                    }
                    Err(error) => {
                        tracing::debug!(%error, "packets were not sent");
                        true
                    }
                }
            }
            Self::Sim(sim) => {
                sim.send(departure, bytes);
                true
            }
        }
    }
}

/// Returns whether an error means that a descriptor is no longer the original socket.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK))
}
