//! The kernel's notifications about interfaces and addresses (rtnetlink).
//!
//! A socket in the groups of links and addresses is readable only after a change; no privilege is needed. The layouts
//! are those of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, send, socket,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The buffer size for one datagram: the size that iproute2 uses, and more than the kernel puts into one.
const ROOM: usize = 32 << 10;

/// `nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;

const FAMILY_INET: u8 = libc::AF_INET as u8;
const FAMILY_INET6: u8 = libc::AF_INET6 as u8;
const FAMILY_UNSPEC: u8 = libc::AF_UNSPEC as u8;

/// `IFA_F_DADFAILED` and `IFA_F_TENTATIVE`: duplicate address detection found another owner, or is not over. Such an
/// address cannot be sent from.
const NOT_USABLE: u32 = libc::IFA_F_DADFAILED | libc::IFA_F_TENTATIVE;

/// `IFA_F_OPTIMISTIC`: usable although duplicate address detection is not over.
const OPTIMISTIC: u32 = libc::IFA_F_OPTIMISTIC;

/// One notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// An interface exists; it is new or has changed.
    Link { index: u32, up: bool, loopback: bool, mtu: Option<u32> },
    /// An interface is gone.
    LinkGone { index: u32 },
    /// An address exists; it is new or has changed.
    Address { index: u32, prefix: u8, ip: IpAddr, usable: bool },
    /// An address is gone.
    AddressGone { index: u32, prefix: u8, ip: IpAddr },
    /// The answer to a question is complete.
    Done,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// A datagram of this many bytes.
    Datagram(usize),
    /// Nothing to read.
    Nothing,
    /// Notifications were lost, because the kernel had no room for them.
    Lost,
}

/// A socket that is notified about interfaces and addresses.
#[derive(Debug)]
pub(super) struct RouteSocket {
    fd: OwnedFd,
    buffer: Box<[u8]>,
}

impl RouteSocket {
    /// Creates a socket that is notified about every change in the network namespace of this thread.
    pub(super) fn new() -> nix::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups as u32))?;
        Ok(Self { fd, buffer: vec![0; ROOM].into() })
    }

    /// Requests all interfaces, or all addresses. The answers come as notifications, [`News::Done`] last.
    pub(super) fn ask(&self, what: u16) -> nix::Result<()> {
        // nlmsghdr and rtgenmsg, the family of which is 0: any.
        let mut request = [0; HEADER + 4];
        let len = request.len() as u32;
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        request[..4].copy_from_slice(&len.to_ne_bytes());
        request[4..6].copy_from_slice(&what.to_ne_bytes());
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        send(self.fd.as_raw_fd(), &request, MsgFlags::empty()).map(drop)
    }

    /// Reads the next datagram. Never waits.
    pub(super) fn read(&mut self) -> nix::Result<Read> {
        loop {
            match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut self.buffer) {
                // Only the kernel, which has port 0, is trusted.
                Ok((_, Some(from))) if from.pid() != 0 => {}
                // A datagram that just fits may have been truncated.
                Ok((len, _)) if len >= self.buffer.len() => return Ok(Read::Lost),
                Ok((len, _)) => return Ok(Read::Datagram(len)),
                Err(Errno::EAGAIN) => return Ok(Read::Nothing),
                Err(Errno::ENOBUFS) => return Ok(Read::Lost),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The notifications in the last datagram, which had `len` bytes.
    pub(super) fn news(&self, len: usize) -> impl Iterator<Item = News> {
        parse(self.buffer.get(..len).unwrap_or_default())
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Splits a buffer of parts that each begin with their length and are aligned to 4 bytes. Stops at the first invalid
/// part.
fn parts(
    mut bytes: &[u8],
    header: usize,
    length: impl Fn(&[u8]) -> Option<usize>,
) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = length(bytes).filter(|len| *len >= header)?;
        let part = bytes.get(..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(part)
    })
}

/// The notifications in a datagram. Irrelevant and damaged ones are skipped.
fn parse(datagram: &[u8]) -> impl Iterator<Item = News> {
    parts(datagram, HEADER, |b| u32_at(b, 0).and_then(|len| usize::try_from(len).ok())).filter_map(message)
}

fn message(message: &[u8]) -> Option<News> {
    let kind = u16_at(message, 4)?;
    let body = message.get(HEADER..)?;
    match kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link(kind == libc::RTM_NEWLINK, body),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address(kind == libc::RTM_NEWADDR, body),
        // A refused request is complete as well.
        done if i32::from(done) == libc::NLMSG_DONE || i32::from(done) == libc::NLMSG_ERROR => {
            Some(News::Done)
        }
        _ => None,
    }
}

/// The attributes (`rtattr`) behind a structure of `header` bytes: types and values.
fn attributes(body: &[u8], header: usize) -> impl Iterator<Item = (u16, &[u8])> {
    parts(body.get(header..).unwrap_or_default(), 4, |b| u16_at(b, 0).map(usize::from))
        .filter_map(|attribute| Some((u16_at(attribute, 2)?, attribute.get(4..)?)))
}

/// `ifinfomsg`: family, type of device, index, flags, mask.
fn link(there: bool, body: &[u8]) -> Option<News> {
    // Notifications of bridges about their ports have another family and the same numbers.
    if *body.first()? != FAMILY_UNSPEC {
        return None;
    }
    let index = u32_at(body, 4)?;
    if !there {
        return Some(News::LinkGone { index });
    }
    let flags = u32_at(body, 8)?;
    let has = |flag: libc::c_int| flags & flag as u32 != 0;
    // IFF_RUNNING: the link below works too, a cable is plugged in for instance (RFC 2863, operational state).
    let up = has(libc::IFF_UP) && has(libc::IFF_RUNNING);
    let mtu = attributes(body, 16).find(|(kind, _)| *kind == libc::IFLA_MTU);
    let mtu = mtu.and_then(|(_, value)| u32_at(value, 0));
    Some(News::Link { index, up, loopback: has(libc::IFF_LOOPBACK), mtu })
}

/// `ifaddrmsg`: family, prefix length, flags, scope, index.
fn address(there: bool, body: &[u8]) -> Option<News> {
    let [family, prefix, flags, _scope] = *body.first_chunk()?;
    let index = u32_at(body, 4)?;
    let (mut ip, mut is_local, mut flags) = (None, false, u32::from(flags));
    for (kind, value) in attributes(body, 8) {
        match kind {
            // On a point-to-point link IFA_ADDRESS is the peer's address, and IFA_LOCAL ours.
            libc::IFA_LOCAL => (ip, is_local) = (ip_of(family, value), true),
            libc::IFA_ADDRESS if !is_local => ip = ip_of(family, value),
            // All flags; the byte above has room for eight of them.
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let ip = ip?;
    if !there {
        return Some(News::AddressGone { index, prefix, ip });
    }
    let usable = flags & NOT_USABLE == 0 || flags & (OPTIMISTIC | libc::IFA_F_DADFAILED) == OPTIMISTIC;
    Some(News::Address { index, prefix, ip, usable })
}

fn ip_of(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        FAMILY_INET => value.first_chunk().map(|b: &[u8; 4]| Ipv4Addr::from(*b).into()),
        FAMILY_INET6 => value.first_chunk().map(|b: &[u8; 16]| Ipv6Addr::from(*b).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        padded([&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat())
    }

    fn whole(kind: u16, body: &[u8]) -> Vec<u8> {
        let len = (HEADER + body.len()) as u32;
        padded([&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat())
    }

    fn link_body(family: u8, flags: libc::c_int, mtu: u32) -> Vec<u8> {
        let mut body = vec![family, 0, 1, 0];
        body.extend(7u32.to_ne_bytes());
        body.extend((flags as u32).to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(3, b"eth0\0"));
        body.extend(attribute(libc::IFLA_MTU, &mtu.to_ne_bytes()));
        body
    }

    fn address_body(family: u8, flags: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![family, 24, flags, 0];
        body.extend(7u32.to_ne_bytes());
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn links_and_addresses_are_told() {
        let up = libc::IFF_UP | libc::IFF_RUNNING;
        let datagram = [
            whole(libc::RTM_NEWLINK, &link_body(FAMILY_UNSPEC, up, 1500)),
            whole(libc::RTM_NEWLINK, &link_body(FAMILY_UNSPEC, libc::IFF_UP | libc::IFF_LOOPBACK, 65536)),
            whole(libc::RTM_DELLINK, &link_body(7, up, 1500)), // PF_BRIDGE: a port leaves its bridge
            whole(libc::RTM_DELLINK, &link_body(FAMILY_UNSPEC, 0, 0)),
            whole(libc::NLMSG_DONE as u16, &[0; 4]),
        ]
        .concat();
        let told: Vec<_> = parse(&datagram).collect();
        assert_eq!(
            told,
            [
                News::Link { index: 7, up: true, loopback: false, mtu: Some(1500) },
                News::Link { index: 7, up: false, loopback: true, mtu: Some(65536) },
                News::LinkGone { index: 7 },
                News::Done,
            ]
        );
    }

    #[test]
    fn the_local_address_of_a_link_is_ours_and_tentative_ones_are_nobodys_yet() {
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let flags = |flags: u32| attribute(libc::IFA_FLAGS, &flags.to_ne_bytes());
        let whole = |kind, family, attributes: &[Vec<u8>]| whole(kind, &address_body(family, 0, attributes));
        let of_v6 = |kind, bits| {
            whole(kind, FAMILY_INET6, &[attribute(libc::IFA_ADDRESS, &v6.octets()), flags(bits)])
        };
        let datagram = [
            whole(
                libc::RTM_NEWADDR,
                FAMILY_INET,
                &[attribute(libc::IFA_ADDRESS, &[10, 0, 0, 2]), attribute(libc::IFA_LOCAL, &[10, 0, 0, 1])],
            ),
            of_v6(libc::RTM_NEWADDR, libc::IFA_F_TENTATIVE),
            of_v6(libc::RTM_NEWADDR, libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC),
            of_v6(libc::RTM_NEWADDR, libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED),
            of_v6(libc::RTM_NEWADDR, libc::IFA_F_PERMANENT),
            of_v6(libc::RTM_DELADDR, libc::IFA_F_PERMANENT),
        ]
        .concat();
        let (index, prefix, ip) = (7, 24, IpAddr::V6(v6));
        let told: Vec<_> = parse(&datagram).collect();
        assert_eq!(
            told,
            [
                News::Address { index, prefix, ip: IpAddr::from([10, 0, 0, 1]), usable: true },
                News::Address { index, prefix, ip, usable: false },
                News::Address { index, prefix, ip, usable: true },
                News::Address { index, prefix, ip, usable: false },
                News::Address { index, prefix, ip, usable: true },
                News::AddressGone { index, prefix, ip },
            ]
        );
    }

    #[test]
    fn what_is_cut_short_or_damaged_is_left_out() {
        let body = link_body(FAMILY_UNSPEC, libc::IFF_UP, 1500);
        let good = whole(libc::RTM_NEWLINK, &body);
        for len in 0..good.len() {
            assert!(parse(&good[..len]).count() == 0, "{len} bytes");
        }
        // Lengths that say anything at all, in the message and in its attributes.
        for at in (0..good.len()).step_by(2) {
            for value in [0u16, 1, 3, 5, 17, 0xffff] {
                let mut bad = good.clone();
                bad[at..at + 2].copy_from_slice(&value.to_ne_bytes());
                assert!(parse(&bad).count() <= 1);
            }
        }
    }
}
