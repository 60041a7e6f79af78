//! Services over IP: port numbers as service IDs, and the addresses in a request (IBTA annex A11).

use super::fields::{Field, Fields, Place, Value, field};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The service that a connection request asks for: a 64-bit number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ServiceId(pub u64);

/// The port space of an annex A11 service ID. The numbers are those of the IP protocols.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PortSpace {
    /// TCP: connections.
    Tcp,
    /// UDP: datagrams.
    Udp,
    /// Native InfiniBand addresses (Linux `RDMA_PS_IB`).
    Ib,
    /// Another IP protocol number.
    Other(u8),
}

impl PortSpace {
    const TCP: u8 = 0x06;
    const UDP: u8 = 0x11;
    const IB: u8 = 0x3f;

    /// The port space with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Self {
        match number {
            Self::TCP => Self::Tcp,
            Self::UDP => Self::Udp,
            Self::IB => Self::Ib,
            other => Self::Other(other),
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Tcp => Self::TCP,
            Self::Udp => Self::UDP,
            Self::Ib => Self::IB,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("TCP"),
            Self::Udp => f.write_str("UDP"),
            Self::Ib => f.write_str("IB"),
            Self::Other(number) => write!(f, "protocol {number}"),
        }
    }
}

impl ServiceId {
    /// The upper 40 bits of the service IDs that represent ports (IBTA annex A11).
    const IP_PREFIX: u64 = 0x00_0000_0001;

    /// The service ID of a port: 0x0000000001 (40 bits), port space (8), port (16).
    #[must_use]
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self(Self::IP_PREFIX << 24 | (space.to_u8() as u64) << 16 | port as u64)
    }

    /// The service ID of a TCP port.
    #[must_use]
    pub const fn tcp(port: u16) -> Self {
        Self::of_port(PortSpace::Tcp, port)
    }

    /// The service ID of a UDP port.
    #[must_use]
    pub const fn udp(port: u16) -> Self {
        Self::of_port(PortSpace::Udp, port)
    }

    /// The service ID of a port in the native InfiniBand port space.
    #[must_use]
    pub const fn ib(port: u16) -> Self {
        Self::of_port(PortSpace::Ib, port)
    }

    /// The port that the service ID represents; `None` for another kind of service ID.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 24 != Self::IP_PREFIX {
            return None;
        }
        Some((PortSpace::from_u8((self.0 >> 16) as u8), self.0 as u16))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)?;
        match self.port() {
            Some((space, port)) => write!(f, "({space} {port})"),
            None => Ok(()),
        }
    }
}

field!(ServiceId, n => Self(n as u64), this => this.0, Value::Service(*this));

/// The addresses at the start of the private data of a request for a port: 36 bytes (IBTA annex A11, Linux
/// `cma_hdr`).
///
/// ```text
/// | major version 4 | minor version 4 | IP version 4 | reserved 4 | source port 16 | source 128 | destination 128 |
/// ```
///
/// An IPv4 address is in the last four bytes of its field, after zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpCm {
    /// Port of the active side.
    pub src_port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side; its port is part of the service ID.
    pub dst: IpAddr,
}

impl IpCm {
    /// Length in bytes.
    pub const LEN: usize = 36;

    const VERSION: Place = Place::new(0, 0, 8);
    const IP_VERSION: Place = Place::new(1, 0, 4);
    const SRC_PORT: Place = Place::new(2, 0, 16);
    const SRC: Place = Place::new(4, 0, 128);
    const DST: Place = Place::new(20, 0, 128);

    /// Parses the start of the private data, and returns the rest, which belongs to the consumer. `None` if the
    /// data is too short, the version is not 0.0, or the IP version is neither 4 nor 6.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = private_data.split_at_checked(Self::LEN)?;
        if Self::VERSION.get(header) != 0 {
            return None;
        }
        let address = |place: Place| match Self::IP_VERSION.get(header) {
            // The last 32 of the 128 bits.
            4 => Some(Ipv4Addr::from(place.get(header) as u32).into()),
            6 => Some(Ipv6Addr::from(place.get(header)).into()),
            _ => None,
        };
        let src_port = u16::get(header, Self::SRC_PORT);
        Some((Self { src_port, src: address(Self::SRC)?, dst: address(Self::DST)? }, rest))
    }

    /// The encoded bytes. If only one of the addresses is IPv4, it is written in IPv4-mapped IPv6 form.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        self.src_port.put(&mut out, Self::SRC_PORT);
        let (version, src, dst) = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (4, u128::from(src.to_bits()), u128::from(dst.to_bits())),
            (src, dst) => (6, to_v6(src).to_bits(), to_v6(dst).to_bits()),
        };
        Self::IP_VERSION.put(&mut out, version);
        Self::SRC.put(&mut out, src);
        Self::DST.put(&mut out, dst);
        out
    }
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl Fields for IpCm {
    fn each(&self, visit: &mut dyn FnMut(&'static str, Value<'_>)) {
        visit("src_port", Value::Number(u64::from(self.src_port)));
        visit("src", Value::Ip(self.src));
        visit("dst", Value::Ip(self.dst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpCm = IpCm {
        src_port: 0xd622,
        src: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
        dst: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    };

    #[test]
    fn service_ids_of_ports() {
        assert_eq!(ServiceId::tcp(7174), ServiceId(0x0106_1c06));
        assert_eq!(ServiceId::udp(1), ServiceId(0x0111_0001));
        assert_eq!(ServiceId::ib(0xffff), ServiceId(0x013f_ffff));
        assert_eq!(ServiceId::tcp(7174).port(), Some((PortSpace::Tcp, 7174)));
        assert_eq!(ServiceId(0x0184_0001).port(), Some((PortSpace::Other(0x84), 1)));
        assert_eq!(ServiceId(0x0200_0000_0106_1c06).port(), None);
        assert_eq!(ServiceId(0x0006_1c06).port(), None);
        assert_eq!(ServiceId::tcp(7174).to_string(), "0x0000000001061c06(TCP 7174)");
        assert_eq!(ServiceId(0x0184_0001).to_string(), "0x0000000001840001(protocol 132 1)");
        assert_eq!(ServiceId(5).to_string(), "0x0000000000000005");
        for number in 0..=u8::MAX {
            assert_eq!(PortSpace::from_u8(number).to_u8(), number);
        }
    }

    #[test]
    fn addresses_of_a_request() {
        let mut bytes = vec![0, 0x40, 0xd6, 0x22];
        bytes.extend([0; 12]);
        bytes.extend([10, 77, 0, 2]);
        bytes.extend([0; 12]);
        bytes.extend([10, 77, 0, 1]);
        assert_eq!(V4.to_bytes()[..], bytes);
        bytes.extend(b"hello");
        assert_eq!(IpCm::parse(&bytes), Some((V4, &b"hello"[..])));
        // The other half of the byte is reserved.
        bytes[1] = 0x4f;
        assert_eq!(IpCm::parse(&bytes), Some((V4, &b"hello"[..])));
    }

    #[test]
    fn addresses_of_ipv6() {
        let v6 = IpCm { src: "fd77::2".parse().unwrap(), dst: "fd77::1".parse().unwrap(), ..V4 };
        let bytes = v6.to_bytes();
        assert_eq!(bytes[..6], [0, 0x60, 0xd6, 0x22, 0xfd, 0x77]);
        assert_eq!(IpCm::parse(&bytes), Some((v6, &[][..])));
        let mixed = IpCm { src: V4.src, ..v6 }.to_bytes();
        let mapped = IpCm { src: "::ffff:10.77.0.2".parse().unwrap(), ..v6 };
        assert_eq!(IpCm::parse(&mixed), Some((mapped, &[][..])));
    }

    #[test]
    fn each_field_is_shown() {
        let mut shown = Vec::new();
        V4.each(&mut |name, value| {
            shown.push(match value {
                Value::Number(number) => format!("{name} {number}"),
                Value::Ip(ip) => format!("{name} {ip}"),
                _ => name.to_owned(),
            });
        });
        assert_eq!(shown, ["src_port 54818", "src 10.77.0.2", "dst 10.77.0.1"]);
    }

    #[test]
    fn other_headers_are_not_parsed() {
        let good = V4.to_bytes();
        assert_eq!(IpCm::parse(&good[..35]), None);
        for (at, byte) in [(0, 0x10), (0, 0x01), (1, 0x00), (1, 0x50)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(IpCm::parse(&bad), None, "byte {at} is {byte:#04x}");
        }
    }
}
