//! A slow receiver: how fast a port takes packets out of its socket.

use crate::engine::Arrival;
use crate::link::emulation::LineClock;
use crate::link::wire_bytes;
use cc::inflight::STOCK_RECEIVE_BUFFER;
use cc::{Charge, Rate};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

/// Opens and closes the way to the socket, so that it is read at a given rate.
///
/// After each read it is closed for the time that what was read takes at that rate, counted from when it could have been
/// read: a port that looks late makes up for it while packets wait, because a receiver of that rate would have gone on.
pub(super) struct Throttle {
    clock: LineClock,
    /// The latest read brought something: there may be more.
    behind: bool,
}

impl Throttle {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self { clock: LineClock::new(rate, now), behind: false }
    }

    /// Whether the socket may be read.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.opens_at().is_none_or(|at| at <= now)
    }

    /// Something was read, `bytes` as they count on Ethernet.
    pub(super) fn note_read(&mut self, now: Instant, bytes: u64) {
        if !self.behind {
            self.clock.begin(now);
        }
        self.behind = true;
        self.clock.carry(bytes);
    }

    /// There was nothing to read.
    pub(super) const fn note_empty(&mut self) {
        self.behind = false;
    }

    /// When the socket is to be read next, if that is not whenever something arrives.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.behind.then(|| self.clock.free())
    }
}

/// The socket buffer of a slow receiver in a simulation, which has no kernel that would keep packets: as large as a stock
/// one, and as the kernel charges it for packets that arrive one by one.
#[derive(Default)]
pub(super) struct SocketBuffer {
    packets: VecDeque<(Arrival, Vec<u8>)>,
    charged: u32,
    overrun: u64,
}

impl SocketBuffer {
    /// A packet arrives. Without room it is lost.
    pub(super) fn put(&mut self, arrival: &Arrival, packet: &[u8]) {
        let charge = charge(packet);
        // The kernel takes a packet as long as the buffer is not full already.
        if self.charged >= STOCK_RECEIVE_BUFFER {
            self.overrun += 1;
            return;
        }
        self.charged += charge;
        self.packets.push_back((*arrival, packet.to_vec()));
    }

    /// The oldest packet.
    pub(super) fn take(&mut self) -> Option<(Arrival, Vec<u8>)> {
        let (arrival, packet) = self.packets.pop_front()?;
        self.charged = self.charged.saturating_sub(charge(&packet));
        Some((arrival, packet))
    }

    /// Packets that were lost.
    pub(super) const fn overrun(&self) -> u64 {
        self.overrun
    }
}

fn charge(packet: &[u8]) -> u32 {
    Charge::datagram(u32::try_from(packet.len()).unwrap_or(u32::MAX))
}

/// What the packets of a datagram of `len` bytes count, `packets` of them.
pub(super) fn bytes_of(len: usize, packets: usize, src: IpAddr) -> u64 {
    let around = u64::from(wire_bytes(0, src.is_ipv6()));
    len as u64 + around.saturating_mul(packets as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn a_socket_is_read_at_the_rate_however_late_somebody_looks() {
        let start = Instant::now();
        // 1,000 bytes take 8 us.
        let mut throttle = Throttle::new(Rate::from_gbps(1), start);
        assert!(throttle.is_open(start) && throttle.opens_at().is_none());
        throttle.note_read(start, 1000);
        assert_eq!(throttle.opens_at(), Some(start + 8 * MICROSECOND));
        assert!(!throttle.is_open(start + 8 * MICROSECOND - Duration::from_nanos(1)));
        // 12 us late: two packets may be read at once, as if the receiver had gone on.
        let late = start + 20 * MICROSECOND;
        let mut reads = 0;
        while throttle.is_open(late) {
            throttle.note_read(late, 1000);
            reads += 1;
        }
        assert_eq!((reads, throttle.opens_at()), (2, Some(start + 24 * MICROSECOND)));
        // What was idle has saved nothing up.
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
            buffer.put(&Arrival::default(), &[0; 4116]);
        }
        // 425,984 bytes at 8,448 each: the 51st still finds it not full.
        assert_eq!(buffer.overrun(), 9);
        assert!(buffer.take().is_some());
        buffer.put(&Arrival::default(), &[0; 4116]);
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
