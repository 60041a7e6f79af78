//! What the network layer says of a packet that arrived.

use super::UDP_PORT;
use super::icrc::Flow;
use std::net::{IpAddr, Ipv4Addr};

/// What the network layer says of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Sender.
    pub src: IpAddr,
    /// The address that it was sent to: ours, or that of a multicast group.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// Time to live, or hop limit, as it arrived.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 with IPv4.
    pub flow_label: u32,
    /// The IPv4 identification that it most likely had: its index in the train that it came in.
    pub ident: u16,
}

impl Default for Arrival {
    /// A packet from nowhere, with the hop limit that hosts start from.
    fn default() -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            src: nowhere,
            dst: nowhere,
            src_port: UDP_PORT,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            ident: 0,
        }
    }
}

impl Arrival {
    /// What of it the ICRC covers.
    #[must_use]
    pub fn flow(&self) -> Flow {
        Flow { src: self.src, dst: self.dst, src_port: self.src_port, dst_port: UDP_PORT }
    }
}
