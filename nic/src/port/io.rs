//! What a port sends and receives through.

use crate::engine::{Arrival, Departure, Engine};
use crate::net::{RecvBatch, RoceSocket, SendError, Sent};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Instant;

/// Receive calls in one turn: 8 trains of 15 packets of 4 KiB are copied in about 50 us, the longest that a control
/// call should have to wait.
const RECEIVES_PER_TURN: usize = 8;

/// Trains sent in one turn, for the same reason.
const SENDS_PER_TURN: usize = 16;

/// Room for one train: what UDP over IPv4 can carry.
const TRAIN_BYTES: usize = 65_507;

/// A packet on its way in a simulation.
#[derive(Clone, Debug)]
pub(crate) struct SimPacket {
    pub(crate) arrival: Arrival,
    pub(crate) bytes: Vec<u8>,
}

/// Sockets of a port on the network.
pub(crate) struct UdpIo {
    socket: RoceSocket,
    batch: RecvBatch,
}

impl UdpIo {
    pub(crate) fn new(socket: RoceSocket) -> Self {
        Self { socket, batch: RecvBatch::new(1) }
    }

    pub(crate) fn socket(&self) -> &RoceSocket {
        &self.socket
    }

    pub(super) fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        self.socket.raw_fds()
    }
}

/// What a port sends and receives through.
pub(crate) enum Io {
    /// Real sockets.
    Udp(Box<UdpIo>),
    /// A simulation: packets wait here to be carried.
    Sim { address: IpAddr, source_ports: Vec<u16>, outbox: Vec<(IpAddr, SimPacket)> },
}

impl Io {
    pub(super) fn receive_fd(&self) -> Option<RawFd> {
        match self {
            Self::Udp(udp) => Some(udp.socket.as_fd().as_raw_fd()),
            Self::Sim { .. } => None,
        }
    }

    fn max_packets(&self) -> u32 {
        match self {
            Self::Udp(udp) => udp.socket.gso_segments(),
            Self::Sim { .. } => 64,
        }
    }

    /// Sends a train; false if it has to wait.
    fn send(&mut self, departure: &Departure, bytes: &[u8]) -> bool {
        match self {
            Self::Udp(udp) => {
                let (via, dst, tos) = (departure.via, departure.dst, departure.tos);
                match udp.socket.send_train(via, dst, tos, departure.segment_size, bytes) {
                    Ok(Sent::WouldBlock) => false,
                    // Lost packets are what retransmission is for; the socket counts them by reason.
                    Ok(Sent::All) | Err(SendError::GsoRefused { .. }) => true,
                    Err(error) => {
                        tracing::debug!(%error, "packets were not sent");
                        true
                    }
                }
            }
            Self::Sim { address, source_ports, outbox } => {
                let src_port = source_ports.get(departure.via).copied().unwrap_or(qp::wire::UDP_PORT);
                for (ident, packet) in bytes.chunks(departure.segment_size.max(1)).enumerate() {
                    let arrival = Arrival {
                        src: *address,
                        dst: departure.dst,
                        src_port,
                        tos: departure.tos,
                        ident: u16::try_from(ident).unwrap_or(u16::MAX),
                    };
                    outbox.push((departure.dst, SimPacket { arrival, bytes: packet.to_vec() }));
                }
                true
            }
        }
    }
}

/// Everything behind the lock of a port.
pub(crate) struct Lane {
    pub(crate) engine: Engine,
    pub(crate) io: Io,
    buffer: Box<[u8]>,
    /// A train that the kernel had no room for; nothing is sent before it.
    stalled: Option<Departure>,
    /// Whether the last turn received nothing.
    quiet: bool,
}

impl Lane {
    pub(super) fn new(engine: Engine, io: Io) -> Self {
        Self { engine, io, buffer: vec![0; TRAIN_BYTES].into(), stalled: None, quiet: true }
    }

    /// Takes in what arrived, acts on timers, sends what is due. Returns how much happened: datagrams received and
    /// trains sent.
    pub(super) fn turn(&mut self, now: Instant) -> u32 {
        crate::memory::refresh(now);
        let received = self.receive(now);
        self.engine.handle_timeout(now);
        received + self.transmit(now)
    }

    fn receive(&mut self, now: Instant) -> u32 {
        let Io::Udp(udp) = &mut self.io else { return 0 };
        let dst = udp.socket.ip();
        let mut count = 0;
        // What comes after silence is most likely alone, and somebody waits for it: looking for more, which takes
        // 360 ns when there is none, is left to the next turn.
        let receives = if self.quiet { 1 } else { RECEIVES_PER_TURN };
        for _ in 0..receives {
            match udp.socket.recv(&mut udp.batch) {
                Ok(0) => break,
                Ok(datagrams) => count += u32::try_from(datagrams).unwrap_or(u32::MAX),
                Err(error) => {
                    tracing::error!(%error, "the socket cannot be read");
                    break;
                }
            }
            for datagram in udp.batch.datagrams() {
                if datagram.truncated {
                    self.engine.note_truncated();
                    continue;
                }
                for (index, packet) in datagram.segments() {
                    let arrival = Arrival {
                        src: datagram.source.ip().to_canonical(),
                        dst,
                        src_port: datagram.source.port(),
                        tos: datagram.tos,
                        ident: u16::try_from(index).unwrap_or(u16::MAX),
                    };
                    // A drop is counted by its reason.
                    let _ = self.engine.handle_datagram(now, &arrival, packet);
                }
            }
        }
        self.quiet = count == 0;
        count
    }

    /// Sends what is due, within the bound of a turn. Returns how many trains.
    pub(crate) fn transmit(&mut self, now: Instant) -> u32 {
        let mut count = 0;
        if let Some(departure) = self.stalled.take()
            && !self.send(departure)
        {
            return 0;
        }
        let max_packets = self.io.max_packets();
        for _ in 0..SENDS_PER_TURN {
            let Some(departure) = self.engine.poll_transmit(now, &mut self.buffer, max_packets) else { break };
            count += 1;
            if !self.send(departure) {
                break;
            }
        }
        count
    }

    fn send(&mut self, departure: Departure) -> bool {
        let sent = self.io.send(&departure, &self.buffer[..departure.len]);
        if !sent {
            self.stalled = Some(departure);
        }
        sent
    }

    /// When the next turn is wanted.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if self.engine.has_ready() || self.stalled.is_some() { Some(now) } else { self.engine.poll_timeout() }
    }
}
