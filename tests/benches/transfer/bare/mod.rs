//! The bare path: the upper bound of what reliable connections over UDP sockets can reach on this machine.
//!
//! Connected UDP sockets with GSO and GRO carry packets as a reliable connection sends them: BTH, RETH or AETH where it
//! belongs, ICRC. The payload is copied once on each side: from a region to the train, and from the receive buffer to a
//! region. The receiver acknowledges every [`ACK_EVERY`] packets, and the sender keeps as much in flight as a stock
//! receive buffer holds. There are no verbs, queues, memory keys, timers or locks. Lost packets are sent again, because a
//! machine can always lose some.
//!
//! The ICRCs cover the IPv4 identification that an unconnected socket sends: the packet's index in its train. A connected
//! socket counts on instead, so these packets are right only where no IP header shows it: on loopback, where trains stay
//! whole. With [`UNCONNECTED`] in the environment they are not connected, which shows what that costs: the difference is no
//! NIC's to avoid.

mod idle;
mod ping;
mod wire;

pub(crate) use ping::{Ping, echo, ping};
pub(crate) use wire::{MTU, Op};

use super::Outcome;
use idle::Idle;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, getsockopt, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use qp::wire::{Flow, Opcode};
use rnic::cc::{Charge, PeerWindow};
use std::hint::spin_loop;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use wire::{Icrcs, PSNS, Received, Stream, number, short};

/// Packets per acknowledgement.
const ACK_EVERY: u64 = 32;

/// The receive buffer to ask for: as much as rnic asks for.
const RECEIVE_BUFFER: usize = 8 << 20;

/// The stock limit of a receive buffer (`net.core.rmem_max`), of which Linux grants the double.
const STOCK_LIMIT: usize = 212_992;

/// After this time without an acknowledgement the packets in flight are sent again. A busy machine keeps a receiver from
/// running for tens of milliseconds; what is sent again meanwhile only fills its buffer.
const LOSS_TIMEOUT: Duration = Duration::from_millis(100);

/// How often that happens in a row before the path counts as broken.
const RETRIES: u32 = 100;

/// How long a ping waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest datagram, merged or not.
const MAX_DATAGRAM: usize = 1 << 16;

/// Set for both sides: the sockets are not connected.
pub(crate) const UNCONNECTED: &str = "TRANSFER_UNCONNECTED";

/// Set for both sides: the sockets have the buffer that a stock host grants.
const STOCK: &str = "TRANSFER_STOCK";

/// A socket, and its peer.
pub(crate) struct Link {
    socket: UdpSocket,
    /// What may be in flight to the peer, whose buffer is like this one.
    window: PeerWindow,
    /// Where packets go if the socket is not connected.
    to: Option<SockaddrIn>,
    /// ICRCs of the packets to send, and of those to receive.
    sent: Icrcs,
    received: Icrcs,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

impl Link {
    /// A socket to be connected. Its address is for the peer.
    pub(crate) fn bind() -> Outcome<(UdpSocket, SocketAddr)> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
        let buffer = if std::env::var_os(STOCK).is_some() { STOCK_LIMIT } else { RECEIVE_BUFFER };
        setsockopt(&socket, sockopt::RcvBuf, &buffer)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    }

    pub(crate) fn connect(socket: UdpSocket, peer: SocketAddr) -> Outcome<Self> {
        let to = match peer {
            SocketAddr::V4(peer) if std::env::var_os(UNCONNECTED).is_some() => Some(peer.into()),
            _ => None,
        };
        if to.is_none() {
            socket.connect(peer)?;
        }
        let own = socket.local_addr()?;
        let flow = Flow { src: own.ip(), dst: peer.ip(), src_port: own.port(), dst_port: peer.port() };
        let granted = getsockopt(&socket, sockopt::RcvBuf)?;
        Ok(Self {
            socket,
            window: PeerWindow::on_host(u32::try_from(granted)?),
            to,
            sent: Icrcs::new(flow),
            received: Icrcs::new(flow.reversed()),
            buffer: vec![0; MAX_DATAGRAM],
            control: cmsg_space!(i32),
        })
    }

    fn send(&self, segment: usize, train: &[u8]) -> Outcome<()> {
        let segment_size = u16::try_from(segment)?;
        let control = [ControlMessage::UdpGsoSegments(&segment_size)];
        let control = if train.len() > segment { &control[..] } else { &[] };
        loop {
            let iov = [IoSlice::new(train)];
            match sendmsg(self.socket.as_raw_fd(), &iov, control, MsgFlags::empty(), self.to.as_ref()) {
                Ok(_) => return Ok(()),
                // The second one is about an earlier packet.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED | Errno::EINTR) => spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a datagram; returns its length and that of its packets. `None` if there is none.
    fn receive(&mut self) -> Outcome<Option<(usize, usize)>> {
        let mut iov = [IoSliceMut::new(&mut self.buffer)];
        let fd = self.socket.as_raw_fd();
        match recvmsg::<SockaddrIn>(fd, &mut iov, Some(&mut self.control), MsgFlags::empty()) {
            Ok(message) => {
                let mut segment = message.bytes.max(1);
                for control in message.cmsgs()? {
                    if let ControlMessageOwned::UdpGroSegments(size) = control {
                        segment = usize::try_from(size)?.max(1);
                    }
                }
                Ok(Some((message.bytes, segment)))
            }
            Err(Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The number of the newest acknowledgement that has arrived, as 24 bits.
    fn acknowledged(&mut self) -> Outcome<Option<u64>> {
        let Some((len, segment)) = self.receive()? else { return Ok(None) };
        let mut newest = None;
        for (index, packet) in self.buffer[..len].chunks(segment).enumerate() {
            let covered = self.received.open(index, packet);
            newest = covered.and_then(Received::read).map(|ack| ack.psn).or(newest);
        }
        Ok(newest)
    }
}

/// How many packets an acknowledgement covers that arrives when `acked` are acknowledged, from its 24 bits.
const fn covered(acked: u64, psn: u64) -> u64 {
    let ahead = (psn + 1).wrapping_sub(acked) & (PSNS - 1);
    if ahead < PSNS / 2 { acked + ahead } else { acked }
}

/// Sends messages of `size` bytes while `go`, and returns how many are acknowledged per second. The peer runs
/// [`receive`].
pub(crate) fn send(
    link: &mut Link,
    (op, size): (Op, usize),
    region: &[u8],
    mut go: impl FnMut(Duration) -> bool,
) -> Outcome<f64> {
    let stream = Stream::new(op, size)?;
    let charge = Charge::in_train(u32::try_from(stream.packet_len)?, u32::try_from(stream.full_train)?);
    let window = u64::from(link.window.packets(charge));
    let mut train = vec![0; MAX_DATAGRAM];
    // Packets sent and acknowledged; the number of all once the end is known.
    let (mut sent, mut acked, mut end) = (0, 0, None);
    let start = Instant::now();
    // When an acknowledgement last arrived, and how often packets were sent again since.
    let (mut heard, mut retries, mut idle) = (start, 0, Idle::default());
    loop {
        let room = (window - (sent - acked)).min(end.map_or(u64::MAX, |end: u64| end - sent));
        if room >= stream.full_train || sent == acked || end.is_some_and(|_| room > 0) {
            let (packets, segment, used) =
                stream.train((sent, room), end, region, &mut link.sent, &mut train);
            link.send(segment, &train[..used])?;
            sent += packets;
            let now = Instant::now();
            if end.is_none() && !go(now - start) {
                // The message that the next packet belongs to is the last.
                end = Some((stream.message(sent) + 1) * stream.per_message());
            }
            if sent - acked < window && end != Some(sent) {
                continue;
            }
        }
        match link.acknowledged()? {
            Some(psn) => {
                acked = covered(acked, psn).min(sent);
                (heard, retries) = (Instant::now(), 0);
                idle.end();
            }
            None if heard.elapsed() < LOSS_TIMEOUT => idle.wait(),
            None if retries == RETRIES => return Err("the bare path stalls".into()),
            None => {
                (sent, heard, retries) = (acked, Instant::now(), retries + 1);
            }
        }
        if end == Some(acked) {
            return Ok(stream.message(acked) as f64 / start.elapsed().as_secs_f64());
        }
    }
}

/// Receives what [`send`] sends into `region`, while `go`.
pub(crate) fn receive(link: &mut Link, region: &mut [u8], go: impl Fn() -> bool) -> Outcome<()> {
    let mut ack = short(Opcode::RcAcknowledge);
    let (mut expected, mut told, mut at) = (0u64, 0, 0);
    let mut idle = Idle::default();
    while go() {
        let Some((len, segment)) = link.receive()? else {
            idle.wait();
            continue;
        };
        idle.end();
        let mut due = false;
        for (index, packet) in link.buffer[..len].chunks(segment).enumerate() {
            let Some(packet) = link.received.open(index, packet).and_then(Received::read) else { continue };
            if packet.psn != expected % PSNS {
                // A repeated packet, or one behind a lost one.
                due = true;
                continue;
            }
            at = packet.start.unwrap_or(at);
            let target =
                region.get_mut(at..at + packet.payload.len()).ok_or("a packet exceeds the region")?;
            target.copy_from_slice(packet.payload);
            at += packet.payload.len();
            expected += 1;
            due |= packet.ack_req;
        }
        if expected > 0 && (due || expected - told >= ACK_EVERY) {
            told = expected;
            number(&mut ack, (expected - 1) % PSNS, false);
            link.sent.seal(0, &mut ack);
            link.send(ack.len(), &ack)?;
        }
    }
    Ok(())
}
