//! What carries packets between the ports of a simulation.
//!
//! A [`Network`] has no clock of its own: the simulation tells it the time, and asks it to [run](Network::run) up to the
//! next instant at which something reaches a port. Direct cables with a delay are the smallest network (`Air`);
//! switches are another.

use crate::priority::PRIORITIES;
use qp::wire::IpHeader;
use std::net::IpAddr;
use time::Instant;

/// The bytes, as on Ethernet, that a NIC takes of each priority before it has to wait for the wire.
pub type Room = [u32; PRIORITIES];

/// A packet in transit, from BTH to ICRC, with the headers around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The headers around it.
    pub ip: IpHeader,
    /// The packet.
    pub bytes: Vec<u8>,
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
