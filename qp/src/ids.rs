//! Newtypes for the identifiers on the wire.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A packet sequence number: 24 bits, arithmetic modulo 2^24 (IBTA 9.7.1).
///
/// PSNs are ordered cyclically, which is not transitive, so there is no `Ord`. Compare them with
/// [`Psn::distance_from`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The largest PSN.
    pub const MAX: Self = Self(0xff_ffff);

    /// The PSN with the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The PSN as a number below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// This PSN advanced by `packets`.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// This PSN moved back by `packets`.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// How far `self` is ahead of `other`, in packets: -2^23 ..= 2^23 - 1.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        // With the 24-bit difference in the top of the word, the sign bit handles wraparound.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` is behind `other`, that is, in the half circle before it.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A queue pair number: 24 bits. 0 is the subnet management QP (not used by RoCE), 1 is the general services QP,
/// 0xFFFFFF addresses a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface.
    pub const GSI: Self = Self(1);
    /// The destination of multicast datagrams (IBTA 10.5).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The QPN with the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The QPN as a number below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The top byte. Where several processes share an address, it identifies the process that owns the queue pair,
    /// and packets are steered by it.
    #[must_use]
    pub const fn slot(self) -> u8 {
        (self.0 >> 16) as u8
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A partition key. The top bit marks a full member; two limited members may not communicate (IBTA 10.9.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member: the only entry in most RoCE P_Key tables.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether a packet with this key may reach a QP whose key is `other`: the low 15 bits are equal and at least
    /// one is a full member.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The key that a datagram must carry to be accepted by a UD queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP1 (IBTA 13.5).
    pub const GSI: Self = Self(0x8001_0000);
}

/// A protection domain, identified by its number in the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PdId(pub u32);

/// A global identifier. In RoCEv2 it is the port's IPv6 address, or its IPv4 address in the IPv4-mapped form
/// ::ffff:a.b.c.d (IBTA A17.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that this GID represents.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether this is the all-zero GID, which marks an unused table entry.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A path MTU: the maximum payload of a packet. The values are the verbs' codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[doc(alias = "ibv_mtu")]
pub enum Mtu {
    /// 256 bytes.
    #[doc(alias = "IBV_MTU_256")]
    B256 = 1,
    /// 512 bytes.
    #[doc(alias = "IBV_MTU_512")]
    B512 = 2,
    /// 1024 bytes: the largest that fits an Ethernet MTU of 1500.
    #[doc(alias = "IBV_MTU_1024")]
    B1024 = 3,
    /// 2048 bytes.
    #[doc(alias = "IBV_MTU_2048")]
    B2048 = 4,
    /// 4096 bytes.
    #[doc(alias = "IBV_MTU_4096")]
    B4096 = 5,
}

/// A text or number that is not one of the path MTUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid MTU {0}; choose 256, 512, 1024, 2048 or 4096")]
pub struct ParseMtuError(pub String);

impl std::str::FromStr for Mtu {
    type Err = ParseMtuError;

    /// Reads the number of bytes.
    fn from_str(text: &str) -> Result<Self, ParseMtuError> {
        text.parse().ok().and_then(Self::from_bytes).ok_or_else(|| ParseMtuError(text.to_owned()))
    }
}

impl Mtu {
    /// All path MTUs, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// The path MTU of exactly `bytes` bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The path MTU with the verbs' code 1 to 5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|m| *m as u8 == code)
    }

    /// The number of packets in a message of `len` bytes; a message of 0 bytes takes one packet.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(self.bytes()) }
    }

    /// The largest path MTU that an interface with an IP MTU of `interface` bytes carries without fragmentation:
    /// IPv6, UDP, BTH, the longest chain of extension headers and the ICRC take at most 100 bytes.
    #[must_use]
    pub fn for_interface(interface: u32) -> Option<Self> {
        /// IPv6 40 + UDP 8 + BTH 12 + XRCETH 4 + ATOMICETH 28 + ICRC 4, and 4 spare. Linux rxe subtracts the same,
        /// so 1500 gives 1024 and 4200 gives 4096.
        const OVERHEAD: u32 = 100;
        Self::ALL.into_iter().rev().find(|m| m.bytes() + OVERHEAD <= interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).distance_from(last), 1);
        assert_eq!(last.distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), (1 << 23) - 1);
        assert!(last.is_before(Psn::new(5)));
        assert_eq!(Psn::new(3).minus(5), Psn::new(0xff_fffe));
    }

    #[test]
    fn pkey_membership() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(PKey(0x8001).matches(PKey(0x8001)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)), "both are limited members");
        assert!(!PKey(0xffff).matches(PKey(0xfffe)));
    }

    #[test]
    fn gid_maps_ipv4() {
        let gid = Gid::from(Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)));
    }

    #[test]
    fn a_gid_is_an_address() {
        for text in ["10.77.0.1", "fd77::1", "::"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!((Gid::from(ip).ip(), Gid::from(ip).is_zero()), (ip, text == "::"));
        }
        assert!(!Gid::from(Ipv4Addr::UNSPECIFIED).is_zero(), "an unused entry is not an IPv4 address");
    }

    #[test]
    fn mtu_counts_packets() {
        assert_eq!(Mtu::B1024.packets(0), 1);
        assert_eq!(Mtu::B1024.packets(1024), 1);
        assert_eq!(Mtu::B1024.packets(1025), 2);
        assert_eq!(Mtu::B256.packets(1 << 31), 1 << 23);
        assert_eq!(Mtu::for_interface(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::for_interface(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::for_interface(4195), Some(Mtu::B2048));
        assert_eq!(Mtu::for_interface(300), None);
        let bytes = [256, 512, 1024, 2048, 4096];
        assert_eq!(Mtu::ALL.map(Mtu::bytes), bytes);
        assert_eq!(bytes.map(Mtu::from_bytes), Mtu::ALL.map(Some));
        assert_eq!([0, 128, 257, 1500, 8192].map(Mtu::from_bytes), [None; 5]);
    }
}
