//! The sockets of a port.

use super::groups::Groups;
use crate::daemon::Desk;
use crate::net::{RecvBatch, RoceSocket, SendError, Sent, SocketCounters};
use qp::wire::icrc::{self, Flow};
use rnic_core::engine::Departure;
use rnic_core::error::JoinError;
use rnic_core::port::Io;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Sockets of a port on the network.
pub(crate) struct UdpIo {
    pub(super) socket: RoceSocket,
    pub(super) batch: RecvBatch,
    pub(super) groups: Groups,
    /// Makes the sockets of groups, if the address is shared.
    desk: Option<Arc<Desk>>,
    /// The sockets are permanently unusable.
    failed: bool,
}

impl UdpIo {
    /// `desk`: that of the daemon, if it shares the address.
    pub(crate) fn new(socket: RoceSocket, desk: Option<Arc<Desk>>) -> Self {
        Self { socket, batch: RecvBatch::new(1), groups: Groups::default(), desk, failed: false }
    }

    /// The descriptor that is readable when packets have arrived.
    pub(super) fn receive_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    /// Enables the kernel's timestamps of arrivals. Without them, a datagram's arrival time is when it is read.
    pub(super) fn stamp_arrivals(&mut self) {
        self.socket.stamp_arrivals();
        self.batch.expect_stamps();
    }

    /// Returns whether the sockets are permanently unusable.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
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

impl Io for UdpIo {
    fn max_packets(&self) -> u32 {
        self.socket.gso_segments()
    }

    fn via(&self, port: u16) -> usize {
        let socket = &self.socket;
        (0..socket.source_ports()).find(|via| socket.source_port(*via) == port).unwrap_or(0)
    }

    fn send(&mut self, departure: &Departure, bytes: &[u8]) -> bool {
        match self.socket.send_train(departure.via, &departure.ip, departure.segment_size, bytes) {
            Ok(Sent::WouldBlock) => false,
            // Retransmission recovers lost packets; the socket counts them by reason.
            Ok(Sent::All) => true,
            Err(SendError::GsoRefused) => {
                self.send_singly(departure, bytes);
                true
            }
            Err(SendError::Os { source, .. }) if is_gone(&source) => {
                tracing::error!(%source, "the device fails: its socket cannot be written");
                self.failed = true;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "packets were not sent");
                true
            }
        }
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        let member = match &self.desk {
            Some(desk) => {
                let of_daemon = desk.join(self.socket.ip(), group);
                let refused = |error| JoinError::Os { group, source: io::Error::other(error) };
                self.socket.adopt_group(group, of_daemon.map_err(refused)?)
            }
            None => self.socket.join(group)?,
        };
        self.groups.add(member)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group);
    }
}

/// Returns whether an error means that a descriptor is no longer the original socket.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK))
}
