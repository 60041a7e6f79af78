//! How much may arrive after a port has asked for a pause.

use super::frame::{PauseFrame, Quanta};
use crate::rate::Rate;
use time::Duration;

/// A signal takes 5 ns per metre of fibre or copper.
const NANOS_PER_METRE: u64 = 5;

/// Two ports and the cable between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The rate of both ports.
    pub rate: Rate,
    /// The length of the cable, in metres.
    pub cable_m: u32,
    /// The largest packet that the peer sends, in bytes.
    pub peer_mtu: u32,
    /// The largest packet that this port sends, of any priority, in bytes.
    pub own_mtu: u32,
    /// The time from the end of a pause frame at the peer until the peer begins no further packet.
    pub reaction: Duration,
}

impl Span {
    /// Two ports that react as fast as the standard requires ([`response_quanta`]).
    #[must_use]
    pub fn new(rate: Rate, cable_m: u32, mtu: u32) -> Self {
        let reaction = Quanta(response_quanta(rate)).time(rate);
        Self { rate, cable_m, peer_mtu: mtu, own_mtu: mtu, reaction }
    }

    /// The propagation delay of the cable.
    #[must_use]
    pub const fn propagation(&self) -> Duration {
        Duration::from_nanos(self.cable_m as u64 * NANOS_PER_METRE)
    }

    /// What may arrive after the buffer has passed XOFF.
    #[must_use]
    pub const fn headroom(&self) -> Headroom {
        let times = self.propagation().saturating_mul(2).saturating_add(self.reaction);
        Headroom {
            crossing: self.peer_mtu as u64,
            waiting: self.own_mtu as u64,
            pause_frame: PauseFrame::WIRE_LEN as u64,
            // Rounded up: the rate may not fit a whole number of bytes into the time.
            on_the_way: self.rate.bytes_in(times).saturating_add(1),
            finishing: self.peer_mtu as u64,
        }
    }
}

/// What may arrive after the buffer has passed XOFF, term by term, in bytes. During each of these, the peer sends at
/// the rate of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// The packet that crosses XOFF: it is counted once it is whole, and all but one byte of it may lie beyond XOFF.
    pub crossing: u64,
    /// The packet that this port was sending when it wanted to pause the peer: the pause frame waits for its end.
    pub waiting: u64,
    /// The pause frame itself.
    pub pause_frame: u64,
    /// The cable, to the peer and back, and the reaction time of the peer.
    pub on_the_way: u64,
    /// The packet that the peer has begun: it sends it to its end.
    pub finishing: u64,
}

impl Headroom {
    /// The sum of all terms.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        let packets = self.crossing + self.waiting + self.pause_frame + self.finishing;
        packets.saturating_add(self.on_the_way)
    }
}

/// The longest time that a port of rate `rate` may take to react to a pause frame, in quanta (IEEE 802.3 clause
/// 31B.3.7, as SONiC's scripts quote it). Rates in between count as the next higher one.
#[must_use]
pub fn response_quanta(rate: Rate) -> u16 {
    let gbps = rate.as_f64() / 1e9;
    let table = [(10.0, 67), (25.0, 80), (40.0, 118), (50.0, 147), (100.0, 394), (200.0, 453)];
    table.iter().find(|(upto, _)| gbps <= *upto).map_or(905, |(_, quanta)| *quanta)
}

/// What Linux' mlx5 driver sets aside, in bytes, for comparison: (301 + 2.16 x metres) x Gb/s + 2.72 x MTU, in whole
/// numbers (`port_buffer.c`).
#[must_use]
pub const fn mlx5_headroom(rate: Rate, cable_m: u32, mtu: u32) -> u64 {
    let gbps = rate.bits_per_second() / 1_000_000_000;
    (301 + 216 * cable_m as u64 / 100) * gbps + 272 * mtu as u64 / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_formula_gives_its_published_values() {
        for (gbps, metres, bytes) in
            [(100, 5, 42_241), (100, 100, 62_841), (400, 5, 135_541), (400, 100, 217_941), (800, 5, 259_941)]
        {
            assert_eq!(mlx5_headroom(Rate::from_gbps(gbps), metres, 4096), bytes);
        }
    }

    #[test]
    fn each_term_is_what_it_says() {
        let span = Span::new(Rate::from_gbps(100), 100, 4096);
        // 394 quanta, and 2 x 500 ns at 12.5 bytes/ns; times are whole nanoseconds, rounded up.
        let headroom = span.headroom();
        let on_the_way = 25_216 + 12_500;
        assert!((on_the_way..on_the_way + 14).contains(&headroom.on_the_way), "{headroom:?}");
        assert_eq!((headroom.crossing, headroom.waiting, headroom.finishing), (4096, 4096, 4096));
        assert_eq!(headroom.pause_frame, 84);
        assert_eq!(headroom.bytes(), headroom.on_the_way + 3 * 4096 + 84);
        // The driver is more generous, in the same range.
        let driver = mlx5_headroom(span.rate, 100, 4096);
        assert!((headroom.bytes()..2 * headroom.bytes()).contains(&driver), "{headroom:?} {driver}");
    }

    #[test]
    fn headroom_grows_with_rate_cable_and_packets() {
        let bytes = |gbps, metres, mtu| Span::new(Rate::from_gbps(gbps), metres, mtu).headroom().bytes();
        assert!(bytes(400, 10, 1024) > bytes(100, 10, 1024));
        // 5 us more on the cable, both ways, at 100 Gb/s.
        assert_eq!(bytes(100, 1010, 1024) - bytes(100, 10, 1024), 125_000);
        assert_eq!(bytes(100, 10, 4096) - bytes(100, 10, 1024), 3 * 3072);
        assert!(bytes(u64::MAX, u32::MAX, u32::MAX) > bytes(800, 300, 9216), "no overflow");
    }
}
