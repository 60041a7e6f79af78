//! Network-layer properties of a received packet.

use super::UDP_PORT;
use super::icrc::Flow;
use std::net::{IpAddr, Ipv4Addr};

/// Network-layer properties of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Source address.
    pub src: IpAddr,
    /// Destination address: ours, or that of a multicast group.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// Received time to live, or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// The most likely IPv4 identification: the packet's index in the train it arrived in.
    pub ident: u16,
}

impl Default for Arrival {
    /// Unspecified addresses, and the default hop limit of hosts.
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
    /// The part that the ICRC covers.
    #[must_use]
    pub fn flow(&self) -> Flow {
        Flow { src: self.src, dst: self.dst, src_port: self.src_port, dst_port: UDP_PORT }
    }
}
