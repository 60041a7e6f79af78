//! A pace for unacknowledged traffic, so that a stock socket buffer is not overrun.
//!
//! The window of [`inflight`](crate::inflight) opens again as acknowledgements arrive. Datagrams and unreliable
//! connections have no acknowledgements, so the sender can only assume how fast the receiver empties its socket
//! buffer: it may send at once what the buffer holds, and from then on sends as fast as the buffer drains. This is a
//! leaky bucket in the form of the generic cell rate algorithm (ITU-T I.371): its entire state is the instant at
//! which the bucket would be empty.

use crate::inflight::{RESERVE, STOCK_RECEIVE_BUFFER};
use std::num::NonZeroU64;
use time::{Duration, Instant};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A receiver that shares its processor waits this long for its turn: one tick of a scheduler at 250 Hz.
const TURN: Duration = Duration::from_millis(4);

/// A rate and a burst. Both are measured in the bytes that packets are charged in the receiver's socket buffer
/// ([`Charge`](crate::Charge)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes per second.
    pub rate: NonZeroU64,
    /// Bytes that may leave at once.
    pub burst: u32,
}

/// The paces for two kinds of receivers; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paces {
    /// For receivers that are known to be rnic.
    pub rnic: Option<Pace>,
    /// For all others.
    pub foreign: Option<Pace>,
}

impl Paces {
    /// The same pace for all receivers.
    #[must_use]
    pub const fn same(pace: Option<Pace>) -> Self {
        Self { rnic: pace, foreign: pace }
    }
}

impl Pace {
    /// This rate, with a burst that a stock socket buffer holds.
    #[must_use]
    pub const fn new(rate: NonZeroU64) -> Self {
        Self { rate, burst: STOCK_RECEIVE_BUFFER - RESERVE }
    }

    /// A pace that does not overrun a stock socket buffer of which nothing is known, if it is read at least every
    /// 4 ms: half of the buffer at once, and the other half in the time in which it may not be read.
    pub const STOCK: Self = {
        let half = (STOCK_RECEIVE_BUFFER - RESERVE) / 2;
        match NonZeroU64::new(half as u64 * SECOND / TURN.as_nanos() as u64) {
            Some(rate) => Self { rate, burst: half },
            None => unreachable!(),
        }
    };

    /// How long `charge` bytes take to drain, rounded up to whole nanoseconds.
    const fn time(&self, charge: u32) -> Duration {
        // 2^32 times a billion is below 2^64.
        Duration::from_nanos((charge as u64 * SECOND).div_ceil(self.rate.get()))
    }
}

/// What one receiver is assumed to hold in its socket buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// When the receiver will have read everything; `None` for long ago.
    empty_at: Option<Instant>,
}

impl Drain {
    fn backlog(&self, now: Instant) -> Duration {
        self.empty_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self, now: Instant) -> bool {
        self.backlog(now).is_zero()
    }

    /// How many packets of `charge` bytes each may leave now. An empty bucket takes one packet of any size, so that
    /// nothing stalls indefinitely.
    #[must_use]
    pub fn packets(&self, now: Instant, pace: &Pace, charge: u32) -> u32 {
        let backlog = self.backlog(now);
        let room = pace.time(pace.burst).saturating_sub(backlog);
        let each = pace.time(charge).as_nanos().max(1);
        match u32::try_from(room.as_nanos() / each).unwrap_or(u32::MAX) {
            0 if backlog.is_zero() => 1,
            packets => packets,
        }
    }

    /// When there will be room for `charge` bytes, or when the bucket will be empty if `charge` exceeds a burst. That
    /// may be in the past; `None` for long ago.
    #[must_use]
    pub fn room_at(&self, pace: &Pace, charge: u32) -> Option<Instant> {
        self.empty_at?.checked_sub(pace.time(pace.burst).saturating_sub(pace.time(charge)))
    }

    /// Books `charge` bytes that leave now.
    pub fn take(&mut self, now: Instant, pace: &Pace, charge: u32) {
        let start = self.empty_at.map_or(now, |at| at.max(now));
        self.empty_at = Some(start + pace.time(charge));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u64, burst: u32) -> Pace {
        Pace { rate: NonZeroU64::new(rate).expect("a rate"), burst }
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
        // One byte per nanosecond.
        let (pace, start) = (pace(SECOND, 10_000), Instant::EPOCH);
        let mut drain = Drain::default();
        assert_eq!(drain.packets(start, &pace, 1000), 10);
        drain.take(start, &pace, 10_000);
        assert_eq!(drain.packets(start, &pace, 1000), 0);
        let room = drain.room_at(&pace, 1000).expect("it is full");
        assert_eq!(room - start, Duration::from_nanos(1000));
        let just_before = room - Duration::from_nanos(1);
        assert_eq!((drain.packets(just_before, &pace, 1000), drain.packets(room, &pace, 1000)), (0, 1));
        assert_eq!(drain.packets(start + Duration::from_nanos(3999), &pace, 1000), 3);
        assert!(!drain.is_empty(start + Duration::from_nanos(9999)));
        assert!(drain.is_empty(start + Duration::from_nanos(10_000)));
    }

    #[test]
    fn in_the_long_run_no_more_leaves_than_the_rate_and_a_burst() {
        // A rate that does not divide into whole nanoseconds.
        let (pace, start) = (pace(1_777_777_777, 50_000), Instant::EPOCH);
        let (mut drain, mut now, mut sent) = (Drain::default(), start, 0u64);
        while now < start + Duration::from_millis(10) {
            let packets = drain.packets(now, &pace, 4171);
            if packets == 0 {
                now = drain.room_at(&pace, 4171).expect("it is full");
            } else {
                drain.take(now, &pace, packets * 4171);
                sent += u64::from(packets) * 4171;
            }
        }
        let most = 17_777_777 + 50_000;
        // Rounding costs less than a nanosecond a packet, which here takes 2346; and one packet may not have fitted.
        assert!((most - most / 2000 - 4171..=most).contains(&sent), "{sent} of {most}");
    }

    #[test]
    fn a_stock_buffer_that_is_read_each_turn_is_not_overrun() {
        let (pace, start) = (Pace::STOCK, Instant::EPOCH);
        assert_eq!((pace.rate.get(), pace.burst), (46_592_000, 186_368));
        let (mut drain, mut now, mut sent) = (Drain::default(), start, 0);
        // The longest time without a read begins with a burst.
        while now < start + TURN {
            let packets = drain.packets(now, &pace, 4171).max(1);
            drain.take(now, &pace, packets * 4171);
            sent += packets * 4171;
            now = drain.room_at(&pace, 4171).expect("it is full").max(now);
        }
        assert!((STOCK_RECEIVE_BUFFER / 4 * 3..STOCK_RECEIVE_BUFFER).contains(&sent), "{sent}");
    }

    #[test]
    fn an_empty_bucket_takes_one_packet_of_any_size() {
        let (pace, start) = (pace(SECOND, 100), Instant::EPOCH);
        let mut drain = Drain::default();
        assert_eq!(drain.packets(start, &pace, 5000), 1);
        drain.take(start, &pace, 5000);
        assert_eq!(drain.packets(start, &pace, 5000), 0);
        let room = drain.room_at(&pace, 5000).expect("it is full");
        assert_eq!((room - start, drain.packets(room, &pace, 5000)), (Duration::from_nanos(5000), 1));
    }

    #[test]
    fn extremes_are_harmless() {
        let now = Instant::EPOCH;
        let mut drain = Drain::default();
        assert_eq!(drain.room_at(&pace(1, 1), 1), None);
        drain.take(now, &pace(1, u32::MAX), u32::MAX);
        assert_eq!(drain.packets(now, &pace(u64::MAX, 0), 0), 0, "136 years of backlog");
        assert_eq!(Drain::default().packets(now, &pace(u64::MAX, u32::MAX), 0), 1);
    }
}
