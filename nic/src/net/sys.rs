//! The raw socket calls, and the byte layouts that go with them.
//!
//! `nix` and `socket2` allocate a control buffer for each message, or support only some of the control messages
//! needed here. The layouts (socket addresses, control messages) are read and written as bytes in safe code; only the
//! calls themselves are unsafe.

#![expect(unsafe_code, reason = "sendmsg, recvmmsg and socket options without allocation")]

use libc::{c_int, c_uint};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Sets a socket option that is an `int`.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option value points to a live c_int and the length is its size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets a socket option that is a structure.
pub(super) fn set_option_bytes(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the option value points to `value`, which is that long.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What to do with a lease of an IPv6 flow label (`IPV6_FL_A_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum FlowLabel {
    /// Take a lease, or share it with other sockets that lease it as shared.
    Lease = 0,
    /// Give it back.
    Return = 1,
}

/// Leases an IPv6 flow label for the sends of a socket, or gives it back (`IPV6_FLOWLABEL_MGR`).
pub(super) fn flow_label(fd: BorrowedFd<'_>, action: FlowLabel, label: u32, dst: Ipv6Addr) -> io::Result<()> {
    /// `IPV6_FL_S_ANY`: others may use the label as well.
    const SHARED: u8 = 255;
    /// `IPV6_FL_F_CREATE`: create the label if it does not exist.
    const CREATE: u16 = 1;
    // struct in6_flowlabel_req: the address, the label, action, share, flags, two times (0: the kernel's) and padding.
    let mut request = [0; 32];
    request[..16].copy_from_slice(&dst.octets());
    request[16..20].copy_from_slice(&label.to_be_bytes());
    (request[20], request[21]) = (action as u8, SHARED);
    request[22..24].copy_from_slice(&CREATE.to_ne_bytes());
    set_option_bytes(fd, libc::IPPROTO_IPV6, libc::IPV6_FLOWLABEL_MGR, &request)
}

/// Steers the datagrams of a group of sockets with `SO_REUSEPORT`: the byte at `offset` of the UDP payload is the number of
/// the member, or 0 if it is not below `members`.
pub(super) fn steer(fd: BorrowedFd<'_>, offset: u32, members: u32) -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, offset),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, 0, members),
        // BPF_A: what was loaded.
        step(libc::BPF_RET | 0x10, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the structure and the program, which live until the call returns.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many words `SO_MEMINFO` has (`SK_MEMINFO_VARS` in linux/sock_diag.h).
const MEM_INFO_WORDS: usize = 9;

/// The state of a socket's receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemInfo {
    /// Bytes charged to the receive buffer now (`SK_MEMINFO_RMEM_ALLOC`).
    pub(super) charged: u32,
    /// Datagrams dropped since the socket was created, modulo 2^32 (`SK_MEMINFO_DROPS`).
    pub(super) drops: u32,
}

/// Reads `SO_MEMINFO` (Linux 4.12).
pub(super) fn mem_info(fd: BorrowedFd<'_>) -> io::Result<MemInfo> {
    let mut words = [0u32; MEM_INFO_WORDS];
    let mut len = size_of::<[u32; MEM_INFO_WORDS]>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `words`, which is that long.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc == 0 {
        Ok(MemInfo { charged: words[0], drops: words[MEM_INFO_WORDS - 1] })
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A socket address in the kernel's layout: `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct RawAddress {
    bytes: [u8; Self::MAX],
    len: u32,
}

impl RawAddress {
    /// The size of `sockaddr_in6`, the longer of the two.
    const MAX: usize = 28;
    /// The size of `sockaddr_in`.
    const V4_LEN: u32 = 16;

    /// The address of a datagram's destination or source.
    pub(super) fn new(address: SocketAddr) -> Self {
        let mut raw = Self::default();
        let bytes = &mut raw.bytes;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                raw.len = Self::V4_LEN;
            }
            SocketAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                raw.len = Self::MAX as u32;
            }
        }
        raw
    }

    /// Sets the flow label (`sin6_flowinfo`) that a packet to this address gets; IPv4 has none.
    pub(super) fn set_flow_label(&mut self, label: u32) {
        if self.len as usize == Self::MAX {
            self.bytes[4..8].copy_from_slice(&(label & 0xf_ffff).to_be_bytes());
        }
    }

    /// Whether it has a flow label.
    pub(super) fn has_flow_label(&self) -> bool {
        self.len as usize == Self::MAX && self.bytes[4..8] != [0; 4]
    }

    /// The address that the kernel wrote, or the unspecified one if it wrote none of a known family.
    pub(super) fn get(&self) -> SocketAddr {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        let family = c_int::from(u16::from_ne_bytes([b[0], b[1]]));
        if family == libc::AF_INET && self.len >= Self::V4_LEN {
            return SocketAddrV4::new(Ipv4Addr::new(b[4], b[5], b[6], b[7]), port).into();
        }
        if family == libc::AF_INET6 && self.len as usize >= Self::MAX {
            let mut octets = [0; 16];
            octets.copy_from_slice(&b[8..24]);
            let scope = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
            return SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into();
        }
        SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)
    }
}

/// The length word and the level and type of a control message (`struct cmsghdr`).
const CONTROL_HEADER: usize = size_of::<usize>() + 2 * size_of::<c_int>();

/// The size of `len` bytes of control messages, rounded up to where the next one begins (`CMSG_ALIGN`).
const fn control_align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Room for the control messages of one datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Control {
    /// More than what the options switched on here produce: five messages of 24 bytes each.
    const ROOM: usize = 192;

    /// No control messages.
    pub(super) const fn new() -> Self {
        Self { bytes: [0; Self::ROOM], len: 0 }
    }

    /// Adds a message. There is room for seven of them.
    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let (start, data_at) = (self.len, self.len + control_align(CONTROL_HEADER));
        let end = data_at + data.len();
        let level_at = start + size_of::<usize>();
        let kind_at = level_at + size_of::<c_int>();
        self.bytes[start..level_at].copy_from_slice(&(end - start).to_ne_bytes());
        self.bytes[level_at..kind_at].copy_from_slice(&level.to_ne_bytes());
        self.bytes[kind_at..kind_at + size_of::<c_int>()].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[data_at..end].copy_from_slice(data);
        self.len = start + control_align(end - start);
    }

    /// The messages, each as (level, type, data). Stops at the first one that does not fit.
    pub(super) fn messages(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = &self.bytes[..self.len.min(Self::ROOM)];
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk()?;
            let (level, after) = after.split_first_chunk()?;
            let (kind, _) = after.split_first_chunk()?;
            let len = usize::from_ne_bytes(*len);
            let data = rest.get(control_align(CONTROL_HEADER)..len)?;
            rest = rest.get(control_align(len)..).unwrap_or_default();
            Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
        })
    }
}

/// Sends one datagram, or one train if `control` asks for it. Does not wait.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    to: &RawAddress,
    control: &mut Control,
    bytes: &[u8],
) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zeroes is a valid value (no name, no buffers).
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = to.bytes.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len;
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    if control.len != 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control.len as _;
    }
    // SAFETY: every pointer in the header points to a live object of the length beside it; sendmsg only reads
    // the name, the control messages and the bytes.
    let sent =
        unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The maximum number of datagrams in one receive call.
pub(super) const MAX_SLOTS: usize = 32;

/// Where the kernel describes one received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The sender.
    pub(super) source: RawAddress,
    /// The control messages from the kernel.
    pub(super) control: Control,
    /// Bytes stored in the slot's part of the buffer.
    pub(super) len: usize,
    /// Whether the bytes or the control messages did not fit.
    pub(super) truncated: bool,
}

impl Slot {
    /// An empty slot.
    pub(super) const EMPTY: Self = Self {
        source: RawAddress { bytes: [0; RawAddress::MAX], len: 0 },
        control: Control::new(),
        len: 0,
        truncated: false,
    };
}

/// Receives all waiting datagrams, at most one for each of the first [`MAX_SLOTS`] slots. Does not wait. Datagram `i`
/// goes to `buffer[i * stride..][..stride]`; slots beyond the buffer are not used. A single slot uses `recvmsg`,
/// which costs some 60 ns less than `recvmmsg`.
pub(super) fn recv(
    fd: BorrowedFd<'_>,
    slots: &mut [Slot],
    buffer: &mut [u8],
    stride: usize,
) -> io::Result<usize> {
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_SLOTS];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_SLOTS];
    let mut count: c_uint = 0;
    let parts = slots.iter_mut().zip(buffer.chunks_exact_mut(stride.max(1)));
    for ((slot, part), (iov, header)) in parts.zip(iovs.iter_mut().zip(&mut headers)) {
        let iov = iov.write(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: mmsghdr is plain data for which all zeroes is a valid value.
        let header = header.write(unsafe { MaybeUninit::zeroed().assume_init() });
        header.msg_hdr.msg_name = slot.source.bytes.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = RawAddress::MAX as u32;
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = slot.control.bytes.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = Control::ROOM as _;
        count += 1;
    }
    let received = if count == 1 {
        // SAFETY: the only header is initialised and points to buffers of the lengths it names, all distinct and
        // mutably borrowed for the whole call.
        let header = unsafe { headers[0].assume_init_mut() };
        // SAFETY: see above.
        let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header.msg_hdr, libc::MSG_DONTWAIT) };
        header.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
        1
    } else {
        let first = headers.as_mut_ptr().cast();
        // SAFETY: the first `count` headers are initialised, and each points to buffers as above.
        let n = unsafe { libc::recvmmsg(fd.as_raw_fd(), first, count, libc::MSG_DONTWAIT, ptr::null_mut()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())?
    };
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        // SAFETY: the kernel filled no more headers than the `count` that were initialised above.
        let header = unsafe { header.assume_init_ref() };
        slot.source.len = header.msg_hdr.msg_namelen;
        #[allow(clippy::unnecessary_cast, reason = "u32 in musl, usize in glibc")]
        let control_len = header.msg_hdr.msg_controllen as usize;
        slot.control.len = control_len;
        slot.len = header.msg_len as usize;
        slot.truncated = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    }
    Ok(received)
}

/// The cookie of the calling thread's network namespace, which no other namespace gets before the next boot (Linux
/// 5.14).
pub(crate) fn namespace_cookie() -> io::Result<u64> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let to = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most `len` bytes to the live integer.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut len)
    };
    if rc == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The MTU of a network interface in bytes, which the kernel reports to any socket (`SIOCGIFMTU`).
pub(super) fn interface_mtu(name: &str) -> io::Result<u32> {
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The name must end with a zero byte.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let socket =
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)))?;
    // SAFETY: SIOCGIFMTU reads the name in the ifreq and writes its MTU; both lie within the live object.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so that this is the member of the union which the kernel wrote.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip() {
        let mut control = Control::new();
        control.push(1, 2, &[9; 4]);
        control.push(3, 4, &[7]);
        control.push(5, 6, &[]);
        let got: Vec<_> = control.messages().collect();
        assert_eq!(got, [(1, 2, &[9u8; 4][..]), (3, 4, &[7][..]), (5, 6, &[][..])]);
        assert_eq!(control.len % size_of::<usize>(), 0);
    }

    #[test]
    fn the_layout_is_that_of_the_c_macros() {
        // SAFETY: these macros only compute with their argument.
        let (space, len) = unsafe { (libc::CMSG_SPACE(4), libc::CMSG_LEN(4)) };
        let mut control = Control::new();
        control.push(1, 2, &[0; 4]);
        assert_eq!(control.len, space as usize);
        assert_eq!(
            usize::from_ne_bytes(control.bytes[..size_of::<usize>()].try_into().unwrap()),
            len as usize
        );
    }

    #[test]
    fn control_messages_that_lie_about_their_length_end_the_list() {
        for len in [0, 1, CONTROL_HEADER - 1, 33, usize::MAX] {
            let mut control = Control::new();
            control.push(1, 2, &[9; 16]);
            control.bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(control.messages().count(), 0, "length {len}");
        }
        let control = Control { bytes: [0xff; Control::ROOM], len: usize::MAX };
        assert_eq!(control.messages().count(), 0);
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["127.1.2.3:4791", "[fe80::1%7]:49152", "[::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).get(), address);
        }
        assert!(RawAddress::default().get().ip().is_unspecified());
    }
}
