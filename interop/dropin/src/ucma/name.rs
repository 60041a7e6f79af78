//! Socket addresses as programs write them: IPv4, IPv6, and those of InfiniBand, which name a GID and a service.

use super::abi::{IN6, STORAGE};
use crate::abi::kernel::plain;
use rnic::Gid;
use rnic::cm::protocol::ServiceId;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// `AF_IB`.
const AF_IB: u16 = 27;

plain! {
    /// `struct sockaddr_ib`, in network byte order where the kernel has it so.
    pub(crate) struct SockaddrIb {
        family: u16,
        pkey: u16,
        flowinfo: u32,
        addr: [u8; 16],
        sid: u64,
        sid_mask: u64,
        scope_id: u64,
    }
}

const IN: usize = 16;
const IB: usize = size_of::<SockaddrIb>();
const _: () = assert!(IB == 48);

/// A socket address.
#[derive(Clone, Copy)]
pub(crate) enum Name {
    V4(SocketAddrV4),
    V6(SocketAddrV6),
    Ib(SockaddrIb),
}

impl Name {
    /// Reads an address; `None` for an unknown family.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.first_chunk().copied()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        Some(match family {
            AF_INET => {
                let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Self::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port))
            }
            AF_INET6 => {
                let number = |at: usize| bytes.get(at..)?.first_chunk::<4>().copied();
                let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let flow = u32::from_be_bytes(number(4)?);
                let scope = u32::from_ne_bytes(number(24)?);
                Self::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope))
            }
            AF_IB => Self::Ib(SockaddrIb::read_from_prefix(bytes).ok()?.0),
            _ => return None,
        })
    }

    /// The length of an address of this family.
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::V4(_) => IN,
            Self::V6(_) => IN6,
            Self::Ib(_) => IB,
        }
    }

    /// The bytes of the address, and zeros after them.
    pub(super) fn bytes(&self) -> [u8; STORAGE] {
        let mut bytes = [0; STORAGE];
        match self {
            Self::V4(name) => {
                bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
                bytes[2..4].copy_from_slice(&name.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&name.ip().octets());
            }
            Self::V6(name) => {
                bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
                bytes[2..4].copy_from_slice(&name.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&name.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&name.ip().octets());
                bytes[24..28].copy_from_slice(&name.scope_id().to_ne_bytes());
            }
            Self::Ib(name) => bytes[..IB].copy_from_slice(name.as_bytes()),
        }
        bytes
    }

    /// An address of InfiniBand.
    pub(super) fn of_gid(gid: Gid, pkey: u16, service: ServiceId) -> Self {
        let (pkey, sid) = (pkey.to_be(), service.0.to_be());
        Self::Ib(SockaddrIb { family: AF_IB, pkey, addr: gid.0, sid, ..SockaddrIb::default() })
    }

    /// The IP address; for InfiniBand the one that the GID stands for.
    pub(super) fn ip(&self) -> IpAddr {
        match self {
            Self::V4(name) => IpAddr::V4(*name.ip()),
            Self::V6(name) => IpAddr::V6(*name.ip()),
            Self::Ib(name) => Gid(name.addr).ip(),
        }
    }

    pub(super) fn scope_id(&self) -> u32 {
        if let Self::V6(name) = self { name.scope_id() } else { 0 }
    }

    /// The port; for InfiniBand the last 16 bits of the service, as far as its mask covers them.
    pub(super) const fn port(&self) -> u16 {
        match self {
            Self::V4(name) => name.port(),
            Self::V6(name) => name.port(),
            Self::Ib(name) => (u64::from_be(name.sid) & u64::from_be(name.sid_mask)) as u16,
        }
    }

    pub(super) const fn set_port(&mut self, port: u16) {
        match self {
            Self::V4(name) => name.set_port(port),
            Self::V6(name) => name.set_port(port),
            Self::Ib(name) => {
                name.sid = (u64::from_be(name.sid) & !0xffff | port as u64).to_be();
                name.sid_mask = u64::MAX.to_be();
            }
        }
    }

    /// This address with another IP address.
    pub(super) fn at(&self, ip: IpAddr, scope_id: u32) -> Self {
        match (self, ip) {
            (Self::Ib(name), ip) => Self::Ib(SockaddrIb { addr: Gid::from(ip).0, ..*name }),
            (_, IpAddr::V4(ip)) => Self::V4(SocketAddrV4::new(ip, self.port())),
            (_, IpAddr::V6(ip)) => Self::V6(SocketAddrV6::new(ip, self.port(), 0, scope_id)),
        }
    }

    /// An address of any interface, of the same family and with port 0.
    pub(super) fn any(&self) -> Self {
        match self {
            Self::V4(_) => Self::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
            Self::V6(_) => Self::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0)),
            Self::Ib(name) => {
                let sid = (u64::from_be(name.sid) & !0xffff).to_be();
                let sid_mask = 0xffff_ffff_ffff_0000_u64.to_be();
                Self::Ib(SockaddrIb {
                    family: AF_IB,
                    pkey: name.pkey,
                    sid,
                    sid_mask,
                    ..SockaddrIb::default()
                })
            }
        }
    }

    pub(super) const fn same_family(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::V4(_), Self::V4(_)) | (Self::V6(_), Self::V6(_)) | (Self::Ib(_), Self::Ib(_))
        )
    }

    pub(super) fn is_any(&self) -> bool {
        self.ip().is_unspecified()
    }

    /// Whether the address stands for any device, unless it is one's own: also a loopback address, as for the kernel
    /// (`cma_any_addr`).
    pub(super) fn means_any(&self) -> bool {
        self.is_any() || self.ip().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_as_the_kernel_does() {
        let v4 = [2, 0, 0x1d, 0x2f, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        let name = Name::read(&v4).expect("IPv4");
        assert_eq!((name.ip(), name.port(), name.len()), (IpAddr::from([10, 0, 0, 7]), 7471, 16));
        assert_eq!(name.bytes()[..16], v4);
        let v6 = Name::V6(SocketAddrV6::new("fe80::1".parse().expect("an address"), 7, 0x12345, 3));
        let again = Name::read(&v6.bytes()).expect("IPv6");
        assert!(matches!((v6, again), (Name::V6(one), Name::V6(other)) if one == other));
        assert_eq!((again.len(), again.scope_id()), (28, 3));
        assert!(Name::read(&[1, 0, 0, 0]).is_none() && Name::read(&[]).is_none());
        assert!(Name::read(&v4[..7]).is_none(), "too short");
    }

    #[test]
    fn the_port_of_an_infiniband_address_is_in_its_service() {
        let mut name = Name::of_gid(Gid::from(Ipv4Addr::new(10, 0, 0, 7)), 0xffff, ServiceId::tcp(80));
        assert_eq!(name.port(), 0, "no mask: no port was named");
        name.set_port(7471);
        assert_eq!((name.port(), name.ip()), (7471, IpAddr::from([10, 0, 0, 7])));
        let Name::Ib(ib) = name else { panic!("another family") };
        assert_eq!(u64::from_be(ib.sid), 0x0106_1d2f);
        assert_eq!((name.any().port(), name.any().is_any(), name.len()), (0, true, 48));
        let Name::Ib(any) = name.any() else { panic!("another family") };
        assert_eq!(u64::from_be(any.sid), 0x0106_0000, "the port space stays");
    }
}
