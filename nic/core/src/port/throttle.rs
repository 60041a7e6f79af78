//! A slow receiver: limits how fast a port reads packets from its socket.

use crate::engine::IpHeader;
use crate::link::wire_bytes;
use cc::hpcc::Telemetry;
use cc::inflight::STOCK_RECEIVE_BUFFER;
use cc::{Charge, LineClock, Rate};
use std::collections::VecDeque;
use std::net::IpAddr;
use time::Instant;

/// Opens and closes access to the socket, so that it is read at a given rate.
///
/// After each read, the gate is closed for the time that the packets take at that rate, counted from when they could
/// have been read: a late port catches up while packets wait, because a receiver of that rate would have gone on
/// reading.
pub struct Throttle {
    clock: LineClock,
    /// Whether the latest read returned packets: there may be more.
    behind: bool,
}

impl Throttle {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self { clock: LineClock::new(rate, now), behind: false }
    }

    /// Returns whether the socket may be read.
    pub fn is_open(&self, now: Instant) -> bool {
        self.opens_at().is_none_or(|at| at <= now)
    }

    /// Records a read of `bytes` as they count on Ethernet.
    pub fn note_read(&mut self, now: Instant, bytes: u64) {
        if !self.behind {
            self.clock.begin(now);
        }
        self.behind = true;
        self.clock.carry(bytes);
    }

    /// Records a read that returned nothing.
    pub const fn note_empty(&mut self) {
        self.behind = false;
    }

    /// When the socket is to be read next; `None` if as soon as packets arrive.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.behind.then(|| self.clock.free())
    }
}

/// A packet in the buffer.
pub(super) struct Unread {
    pub(super) ip: IpHeader,
    pub(super) bytes: Vec<u8>,
    pub(super) telemetry: Option<Box<Telemetry>>,
}

/// The socket buffer of a slow receiver in a simulation, which has no kernel to queue packets: as large as a stock
/// buffer, and with the kernel's charge for packets that arrive individually.
#[derive(Default)]
pub(super) struct SocketBuffer {
    packets: VecDeque<Unread>,
    charged: u32,
    overrun: u64,
}

impl SocketBuffer {
    /// Adds an arriving packet. Without room it is lost.
    pub(super) fn put(&mut self, arrival: &IpHeader, packet: &[u8], telemetry: Option<&Telemetry>) {
        let charge = charge(packet);
        // The kernel accepts a packet unless the buffer is full already.
        if self.charged >= STOCK_RECEIVE_BUFFER {
            self.overrun += 1;
            return;
        }
        self.charged += charge;
        let telemetry = telemetry.map(|telemetry| Box::new(*telemetry));
        self.packets.push_back(Unread { ip: *arrival, bytes: packet.to_vec(), telemetry });
    }

    /// Removes and returns the oldest packet.
    pub(super) fn take(&mut self) -> Option<Unread> {
        let packet = self.packets.pop_front()?;
        self.charged = self.charged.saturating_sub(charge(&packet.bytes));
        Some(packet)
    }

    /// Number of lost packets.
    pub(super) const fn overrun(&self) -> u64 {
        self.overrun
    }
}

fn charge(packet: &[u8]) -> u32 {
    Charge::datagram(u32::try_from(packet.len()).unwrap_or(u32::MAX))
}

/// The length on Ethernet of a datagram of `len` bytes in `packets` packets.
pub fn bytes_of(len: usize, packets: usize, src: IpAddr) -> u64 {
    let around = u64::from(wire_bytes(0, src.is_ipv6()));
    len as u64 + around.saturating_mul(packets as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn a_socket_is_read_at_the_rate_however_late_somebody_looks() {
        let start = Instant::EPOCH;
        // 1,000 bytes take 8 us.
        let mut throttle = Throttle::new(Rate::from_gbps(1), start);
        assert!(throttle.is_open(start) && throttle.opens_at().is_none());
        throttle.note_read(start, 1000);
        assert_eq!(throttle.opens_at(), Some(start + 8 * MICROSECOND));
        assert!(!throttle.is_open(start + 8 * MICROSECOND - Duration::from_nanos(1)));
        // 12 us late: two packets may be read at once, because the receiver would have gone on reading.
        let late = start + 20 * MICROSECOND;
        let mut reads = 0;
        while throttle.is_open(late) {
            throttle.note_read(late, 1000);
            reads += 1;
        }
        assert_eq!((reads, throttle.opens_at()), (2, Some(start + 24 * MICROSECOND)));
        // Idle time does not accumulate.
        throttle.note_empty();
        let later = start + 1000 * MICROSECOND;
        assert!(throttle.is_open(later) && throttle.opens_at().is_none());
        throttle.note_read(later, 1000);
        assert_eq!(throttle.opens_at(), Some(later + 8 * MICROSECOND));
    }

    #[test]
    fn a_simulated_buffer_holds_what_a_stock_one_does() {
        let mut buffer = SocketBuffer::default();
        for _ in 0..60 {
            buffer.put(&IpHeader::default(), &[0; 4116], None);
        }
        // 425,984 bytes at 8,448 each: when the 51st packet arrives, the buffer is still not full.
        assert_eq!(buffer.overrun(), 9);
        assert!(buffer.take().is_some());
        buffer.put(&IpHeader::default(), &[0; 4116], None);
        assert_eq!(buffer.overrun(), 9);
        assert_eq!(std::iter::from_fn(|| buffer.take()).count(), 51);
        assert_eq!(buffer.charged, 0);
    }

    #[test]
    fn packets_of_a_train_count_one_by_one() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(bytes_of(3 * 1044, 3, v4), 3 * u64::from(wire_bytes(1044, false)));
        assert_eq!(bytes_of(84, 1, "::1".parse().expect("an address")), u64::from(wire_bytes(84, true)));
    }
}
