//! What carries packets between the ports of a simulation.
//!
//! A [`Network`] has no clock of its own: the simulation tells it the time, and asks it to [run](Network::run) up to the
//! next instant at which something reaches a port. Direct cables with a delay are the smallest network (`Air`);
//! switches are another.

use crate::link::{telemetry_bytes, wire_bytes};
use crate::priority::PRIORITIES;
use cc::hpcc::Telemetry;
use qp::wire::{ICRC_LEN, IpHeader};
use std::net::IpAddr;
use time::Instant;

/// The bytes, as on Ethernet, that a NIC takes of each priority before it has to wait for the wire.
pub type Room = [u32; PRIORITIES];

/// A packet in transit, from BTH to ICRC, with the headers around it.
///
/// Most payloads in a simulation are zeros. Those in front of the ICRC are counted and not kept: then thousands of packets
/// in the queues of switches fit into the caches of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The headers around it.
    pub ip: IpHeader,
    /// Its bytes, without the zeros in front of the ICRC.
    kept: Vec<u8>,
    /// The zeros that are not kept.
    zeros: usize,
    /// What the ports on its way said, if it collects that.
    telemetry: Option<Box<Telemetry>>,
}

impl Packet {
    /// A packet of these bytes.
    #[must_use]
    pub fn new(ip: IpHeader, bytes: &[u8]) -> Self {
        Self::in_buffer(ip, bytes, Vec::new())
    }

    /// A packet of these bytes, kept in a buffer that was used before.
    pub(super) fn in_buffer(ip: IpHeader, bytes: &[u8], mut kept: Vec<u8>) -> Self {
        let (rest, icrc) = bytes.split_at(bytes.len().saturating_sub(ICRC_LEN));
        let zeros = zeros_at_end(rest);
        kept.clear();
        kept.extend_from_slice(&rest[..rest.len() - zeros]);
        kept.extend_from_slice(icrc);
        Self { ip, kept, zeros, telemetry: None }
    }

    /// The number of its bytes, from BTH to ICRC.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len() + self.zeros
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The byte at an index, 0 behind the end.
    #[must_use]
    pub fn byte(&self, index: usize) -> u8 {
        let icrc = self.kept.len().saturating_sub(ICRC_LEN);
        let at = match index {
            _ if index < icrc => index,
            _ if index < icrc + self.zeros => return 0,
            _ => index - self.zeros,
        };
        self.kept.get(at).copied().unwrap_or(0)
    }

    /// Replaces `buffer` with its bytes.
    pub fn write_to(&self, buffer: &mut Vec<u8>) {
        let (rest, icrc) = self.kept.split_at(self.kept.len().saturating_sub(ICRC_LEN));
        buffer.clear();
        buffer.extend_from_slice(rest);
        buffer.resize(rest.len() + self.zeros, 0);
        buffer.extend_from_slice(icrc);
    }

    /// Makes it collect what the ports on its way say: it takes that much more on a cable.
    #[must_use]
    pub fn with_telemetry(mut self) -> Self {
        self.telemetry = Some(Box::default());
        self
    }

    /// What the ports on its way said; `None` if it does not collect that.
    #[must_use]
    pub fn telemetry(&self) -> Option<&Telemetry> {
        self.telemetry.as_deref()
    }

    /// Where the port that it leaves writes what it says of itself.
    pub fn telemetry_mut(&mut self) -> Option<&mut Telemetry> {
        self.telemetry.as_deref_mut()
    }

    /// What it takes on Ethernet.
    #[must_use]
    pub fn wire_bytes(&self) -> u32 {
        wire_bytes(self.len(), self.ip.dst.is_ipv6()) + telemetry_bytes(self.telemetry())
    }

    /// Its buffer, for another packet.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.kept
    }
}

/// The number of zeros at the end.
fn zeros_at_end(bytes: &[u8]) -> usize {
    /// Bytes that are looked at together.
    const TOGETHER: usize = 64;
    let blocks = bytes.rchunks_exact(TOGETHER);
    let all = blocks.take_while(|block| block.iter().fold(0, |any, byte| any | byte) == 0).count() * TOGETHER;
    let rest = bytes.get(..bytes.len() - all).unwrap_or_default();
    all + rest.iter().rev().take_while(|byte| **byte == 0).count()
}

/// The receiver of a packet. Ports are numbered in the order in which they were attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The port with this number.
    Site(usize),
    /// The port that has the packet's address when it arrives.
    Address,
    /// The ports that are members of the packet's group when it arrives.
    Members,
    /// The port with this number, if it is a member of the packet's group when the packet arrives.
    Member(usize),
}

/// What reaches a port.
#[derive(Debug)]
pub enum Reached {
    /// A packet.
    Packet(Packet),
    /// The port's NIC has [room](Network::room) again.
    Room,
}

/// A network between the ports of a simulation.
pub trait Network: Send {
    /// A port is there from now on: the next number.
    fn attach(&mut self, address: IpAddr);

    /// What the NIC of a port takes now. `None` if it takes everything.
    fn room(&self, _site: usize) -> Option<Room> {
        None
    }

    /// A port sends a packet. `from` is `None` for a packet of a host that is no port.
    fn send(&mut self, now: Instant, from: Option<usize>, to: Target, packet: Packet);

    /// The instant of the next event.
    fn next(&mut self) -> Option<Instant>;

    /// Handles events up to the first instant at which something reaches a port, and at `until` at the latest. Adds
    /// what reaches ports at that instant to `reached`, in its order, and returns the instant. `None`: nothing reaches a
    /// port up to then.
    fn run(&mut self, until: Instant, reached: &mut Vec<(Target, Reached)>) -> Option<Instant>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_what_went_in_whatever_its_zeros() {
        let mut buffer = vec![9; 3];
        for len in [0, 1, 3, 4, 5, 12, 16, 80, 200, 4160] {
            for last in (0..len).step_by(7).chain([len]) {
                let mut bytes = vec![0; len];
                bytes.iter_mut().take(last).for_each(|byte| *byte = 7);
                for icrc in [0, 1] {
                    bytes.iter_mut().rev().take(4).for_each(|byte| *byte = icrc);
                    let packet = Packet::new(IpHeader::default(), &bytes);
                    packet.write_to(&mut buffer);
                    assert_eq!((&buffer, packet.len(), packet.is_empty()), (&bytes, len, len == 0));
                    assert!((0..len).all(|at| packet.byte(at) == bytes[at]));
                    assert_eq!(packet.byte(len), 0);
                    let again = Packet::in_buffer(IpHeader::default(), &bytes, vec![5; 100]);
                    assert_eq!(again, packet);
                }
            }
        }
        let mut bytes = vec![0; 4160];
        (bytes[0], bytes[4159]) = (4, 9);
        let packet = Packet::new(IpHeader::default(), &bytes);
        assert_eq!((packet.kept.len(), packet.into_buffer().len()), (5, 5), "zeros take no memory");
    }
}
