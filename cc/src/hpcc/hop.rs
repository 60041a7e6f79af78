//! What an egress port says of itself in a packet that passes: the hop words of the HPCC authors' simulator.
//!
//! ```text
//! hop word  | code of the rate 3 | time 24 | bytes sent 20 | bytes that wait 17 |
//! ```
//!
//! The time is in nanoseconds. With a rate of `m` times 25 Gb/s, sent bytes are in units of `128 m` bytes, and those that
//! wait in units of `80 m`. Time and sent bytes wrap; the queue saturates.
//!
//! Rates between those that have a code take the next higher code, and count all bytes in the proportion of the two: what
//! HPCC computes are only quotients of bytes and rate, so nothing is lost but the last bits.

use crate::rate::Rate;
use std::fmt;
use time::{Duration, Instant};

/// The most hops that a packet has room for: as many switches as there are on the longest way through three tiers.
pub const MAX_HOPS: usize = 5;

/// What the hops take in a packet on the cable: as many words, and 2 bytes for their number.
pub const HEADER_LEN: u32 = 8 * MAX_HOPS as u32 + 2;

/// The rates that have codes, in Gb/s. The simulator has those up to 400; 800 is ours.
const RATES: [u64; 6] = [25, 50, 100, 200, 400, 800];

const TIME_BITS: u32 = 24;
const BYTES_BITS: u32 = 20;
const QUEUE_BITS: u32 = 17;

/// The units of bytes at 25 Gb/s.
const BYTES_UNIT: u64 = 128;
const QUEUE_UNIT: u64 = 80;

/// The time after which the clock of a hop has wrapped.
pub(super) const CLOCK: Duration = Duration::from_nanos(1 << TIME_BITS);

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// What an egress port says of itself when a packet leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hop(u64);

impl Hop {
    /// The record that a port of this rate makes at `at`. `sent` is the number of bytes that it has ever sent, `waiting` the number
    /// of bytes in its queues.
    #[must_use]
    pub fn new(rate: Rate, at: Instant, sent: u64, waiting: u64) -> Self {
        let code = code_of(rate);
        let coded = RATES[code] * 1_000_000_000;
        let scale = |bytes: u64, unit: u64| {
            let scaled =
                u128::from(bytes) * u128::from(coded) / u128::from(rate.bits_per_second().clamp(1, coded));
            scaled / u128::from(unit << code)
        };
        let wrap = |value: u128, bits: u32| (value & u128::from(mask(bits))) as u64;
        let time = wrap(at.picos_since(Instant::EPOCH) / 1000, TIME_BITS);
        let bytes = wrap(scale(sent, BYTES_UNIT), BYTES_BITS);
        let queue = scale(waiting, QUEUE_UNIT).min(u128::from(mask(QUEUE_BITS))) as u64;
        Self(((code as u64) << TIME_BITS | time) << (BYTES_BITS + QUEUE_BITS) | bytes << QUEUE_BITS | queue)
    }

    /// The record in a word; `None` if no rate has its code.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let this = Self(word);
        if this.code() < RATES.len() { Some(this) } else { None }
    }

    /// The word in which it travels.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    const fn code(self) -> usize {
        (self.0 >> (TIME_BITS + BYTES_BITS + QUEUE_BITS)) as usize
    }

    /// The rate that its bytes are to be seen with.
    #[must_use]
    pub fn rate(self) -> Rate {
        Rate::from_gbps(RATES.get(self.code()).copied().unwrap_or_default())
    }

    /// The unit of its sent bytes.
    pub(super) const fn byte_unit(self) -> u64 {
        BYTES_UNIT << self.code()
    }

    const fn field(self, shift: u32, bits: u32) -> u64 {
        self.0 >> shift & mask(bits)
    }

    /// The time of the record, as far as its clock goes.
    #[must_use]
    pub const fn time(self) -> Duration {
        Duration::from_nanos(self.field(BYTES_BITS + QUEUE_BITS, TIME_BITS))
    }

    /// The bytes that the port has sent, as far as they are counted.
    #[must_use]
    pub const fn sent(self) -> u64 {
        self.field(QUEUE_BITS, BYTES_BITS) * self.byte_unit()
    }

    /// The time since an earlier record of the same port.
    #[must_use]
    pub const fn time_since(self, earlier: Self) -> Duration {
        let shift = BYTES_BITS + QUEUE_BITS;
        let passed = self.field(shift, TIME_BITS).wrapping_sub(earlier.field(shift, TIME_BITS));
        Duration::from_nanos(passed & mask(TIME_BITS))
    }

    /// The bytes that the port sent since an earlier record.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        let sent = self.field(QUEUE_BITS, BYTES_BITS).wrapping_sub(earlier.field(QUEUE_BITS, BYTES_BITS));
        (sent & mask(BYTES_BITS)) * self.byte_unit()
    }

    /// The bytes that wait.
    #[must_use]
    pub const fn queue(self) -> u64 {
        self.field(0, QUEUE_BITS) * (QUEUE_UNIT << self.code())
    }
}

/// The code of the lowest rate that is not lower; that of the highest for rates beyond.
fn code_of(rate: Rate) -> usize {
    RATES.iter().position(|gbps| rate <= Rate::from_gbps(*gbps)).unwrap_or(RATES.len() - 1)
}

/// `100 Gb/s t=1234ns sent=5120 queue=320`, the fields as they are in the word.
impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time().as_nanos();
        write!(f, "{} t={time}ns sent={} queue={}", self.rate(), self.sent(), self.queue())
    }
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hop({self})")
    }
}

/// What the ports on the way of a packet said, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Telemetry {
    hops: [Hop; MAX_HOPS],
    count: u8,
}

impl Telemetry {
    /// These hops; `None` if there are more than a packet has room for.
    #[must_use]
    pub fn of(hops: &[Hop]) -> Option<Self> {
        let mut all = Self::default();
        hops.iter().all(|hop| all.push(*hop)).then_some(all)
    }

    /// Adds a hop. Those beyond the fifth are left out: returns false.
    pub fn push(&mut self, hop: Hop) -> bool {
        let Some(place) = self.hops.get_mut(usize::from(self.count)) else { return false };
        *place = hop;
        self.count += 1;
        true
    }

    /// The hops.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        self.hops.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// Whether these may be records of the same ports.
    pub(super) fn is_along(&self, other: &Self) -> bool {
        self.count == other.count && self.hops().iter().zip(other.hops()).all(|(a, b)| a.code() == b.code())
    }
}
