//! The IP header of a packet.

use super::UDP_PORT;
use super::icrc::Flow;
use std::net::{IpAddr, Ipv4Addr};

/// The fields of a packet's IP header that programs on a socket see or choose, and the UDP source port, which stands for
/// the path as the flow label does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub src: IpAddr,
    /// Destination address: that of a host or of a multicast group.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class: DSCP and ECN.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// IPv4 identification, as the ICRC was computed with it. A receiver assumes the packet's index in the train it
    /// arrived in.
    pub ident: u16,
}

impl Default for IpHeader {
    /// Unspecified addresses, and the default hop limit of hosts.
    fn default() -> Self {
        Self::to(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

impl IpHeader {
    /// A header with this destination and otherwise default fields.
    #[must_use]
    pub const fn to(dst: IpAddr) -> Self {
        Self {
            src: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            dst,
            src_port: UDP_PORT,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            ident: 0,
        }
    }

    /// The part that the ICRC covers.
    #[must_use]
    pub fn flow(&self) -> Flow {
        Flow { src: self.src, dst: self.dst, src_port: self.src_port, dst_port: UDP_PORT }
    }
}
