//! The shared buffer of a switch: which packets it takes, and whom it pauses.
//!
//! A packet is held once and counted twice: where it came in (port and class) and where it leaves (port and class). Both
//! accounts must have room. Ingress bytes go to a reserve of the account first, then to the shared pool up to a dynamic
//! threshold, alpha times what is free, and last, for lossless classes, to the headroom. A class is paused at its port
//! from the threshold on. (HPCC's and ConWeave's switch models, which follow Broadcom's switches; the threshold is Choudhury
//! and Hahne's, ToN 1998.)

use super::config::{BufferConfig, Class};

/// The number of traffic classes of a port.
pub(crate) const CLASSES: usize = 8;

/// Why a switch drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Full {
    /// A lossy class: the shared buffer, or the part of it that the account may have, is full.
    Shared,
    /// A lossy class: the queue in front of the egress port may not grow.
    Egress,
    /// A lossless class: its headroom is full. With headroom enough this never happens.
    Headroom,
}

/// The bytes of one class from one port.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    /// Bytes in its reserve, in the shared pool, and in its headroom.
    reserved: u64,
    shared: u64,
    headroom: u64,
    /// Whether the peer has been told to pause.
    paused: bool,
}

/// What the account of a class at a port asks of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Nothing changes.
    None,
    /// To pause.
    Off,
    /// To go on.
    On,
}

/// The accounts of a switch.
#[derive(Debug)]
pub(crate) struct Buffer {
    config: BufferConfig,
    /// By class.
    classes: [Class; CLASSES],
    /// By port and class.
    headrooms: Vec<[u64; CLASSES]>,
    ingress: Vec<[Ingress; CLASSES]>,
    egress: Vec<[u64; CLASSES]>,
    /// Bytes in the shared pool, and in the pool of headroom.
    shared: u64,
    headroom: u64,
    /// All bytes.
    held: u64,
    peak: u64,
    headroom_peak: u64,
}

impl Buffer {
    /// A buffer for ports with this headroom for each class.
    pub(crate) fn new(
        config: &BufferConfig,
        classes: [Class; CLASSES],
        headrooms: Vec<[u64; CLASSES]>,
    ) -> Self {
        let ports = headrooms.len();
        Self {
            config: config.clone(),
            classes,
            headrooms,
            ingress: vec![[Ingress::default(); CLASSES]; ports],
            egress: vec![[0; CLASSES]; ports],
            shared: 0,
            headroom: 0,
            held: 0,
            peak: 0,
            headroom_peak: 0,
        }
    }

    /// What a shared account with this alpha may grow to now.
    fn threshold(&self, alpha: f64) -> u64 {
        let free = self.config.shared.saturating_sub(self.shared);
        // Casts to integers saturate: alpha may be infinite.
        (alpha * free as f64) as u64
    }

    /// Takes a packet in, from a port and a class, for a queue. Says whether its sender has to pause.
    pub(crate) fn admit(
        &mut self,
        (port, class): (usize, usize),
        (out, queue): (usize, usize),
        bytes: u32,
    ) -> Result<Signal, Full> {
        let (bytes, settings) = (u64::from(bytes), self.classes[class]);
        let egress = self.egress[out][queue];
        let static_limit = settings.queue.unwrap_or(u64::MAX);
        let dynamic_limit = self.threshold(settings.egress_alpha).max(self.config.egress_reserve);
        if egress + bytes > static_limit.min(dynamic_limit) && !settings.lossless {
            return Err(Full::Egress);
        }
        let limit = settings.xoff.unwrap_or_else(|| self.threshold(settings.alpha));
        let account = self.ingress[port][class];
        let fits_reserve = account.reserved + bytes <= self.config.reserve;
        let is_within = account.shared + bytes <= limit && self.shared + bytes <= self.config.shared;
        let account = &mut self.ingress[port][class];
        if fits_reserve {
            account.reserved += bytes;
        } else if is_within && account.headroom == 0 {
            account.shared += bytes;
            self.shared += bytes;
        } else if !settings.lossless {
            return Err(Full::Shared);
        } else if account.headroom + bytes <= self.headrooms[port][class]
            && self.headroom + bytes <= self.config.headroom_pool.unwrap_or(u64::MAX)
        {
            account.headroom += bytes;
            self.headroom += bytes;
            self.headroom_peak = self.headroom_peak.max(self.headroom);
        } else {
            return Err(Full::Headroom);
        }
        self.egress[out][queue] += bytes;
        self.held += bytes;
        self.peak = self.peak.max(self.held);
        Ok(self.signal(port, class))
    }

    /// Whether the peer of a port has to be told something after its account changed.
    fn signal(&mut self, port: usize, class: usize) -> Signal {
        let settings = self.classes[class];
        if !settings.lossless {
            return Signal::None;
        }
        let limit = settings.xoff.unwrap_or_else(|| self.threshold(settings.alpha));
        let account = &mut self.ingress[port][class];
        if !account.paused && (account.headroom > 0 || account.shared >= limit.max(1)) {
            account.paused = true;
            return Signal::Off;
        }
        // A class without shared bytes goes on however little of the pool is free.
        let is_low = account.shared == 0 || account.shared.saturating_add(settings.xon_gap) <= limit;
        if account.paused && account.headroom == 0 && is_low {
            account.paused = false;
            return Signal::On;
        }
        Signal::None
    }

    /// A packet has left, or was dropped from its queue.
    pub(crate) fn release(
        &mut self,
        (port, class): (usize, usize),
        (out, queue): (usize, usize),
        bytes: u32,
    ) -> Signal {
        let mut left = u64::from(bytes);
        self.held -= left;
        self.egress[out][queue] -= left;
        let account = &mut self.ingress[port][class];
        let mut take = |from: &mut u64| {
            let part = left.min(*from);
            *from -= part;
            left -= part;
            part
        };
        self.headroom -= take(&mut account.headroom);
        self.shared -= take(&mut account.shared);
        take(&mut account.reserved);
        self.signal(port, class)
    }

    /// Whether the peer of a port has been told to pause a class.
    pub(crate) fn is_paused(&self, port: usize, class: usize) -> bool {
        self.ingress[port][class].paused
    }

    /// The bytes of a class from a port.
    #[cfg(test)]
    pub(crate) fn held_of(&self, port: usize, class: usize) -> u64 {
        let account = self.ingress[port][class];
        account.reserved + account.shared + account.headroom
    }

    /// All bytes.
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    /// The most bytes at any time: altogether, and in headroom.
    pub(crate) const fn peaks(&self) -> (u64, u64) {
        (self.peak, self.headroom_peak)
    }

    /// Checks that the accounts add up, and stay within the buffer.
    ///
    /// # Panics
    /// They do not: a bug.
    pub(crate) fn check(&self) {
        let sum = |part: fn(&Ingress) -> u64| self.ingress.iter().flatten().map(part).sum::<u64>();
        assert_eq!(sum(|account| account.shared), self.shared, "the shared pool");
        assert_eq!(sum(|account| account.headroom), self.headroom, "the headroom");
        let all = sum(|account| account.reserved + account.shared + account.headroom);
        let queued: u64 = self.egress.iter().flatten().sum();
        assert_eq!((all, queued), (self.held, self.held), "both accounts of all packets");
        assert!(self.shared <= self.config.shared, "{} bytes in the shared pool", self.shared);
        for (account, headroom) in self.ingress.iter().flatten().zip(self.headrooms.iter().flatten()) {
            assert!(account.reserved <= self.config.reserve && account.headroom <= *headroom);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSLESS: Class = Class {
        lossless: true,
        alpha: 1.0,
        egress_alpha: f64::INFINITY,
        headroom: Some(3_000),
        headroom_error: 0,
        xon_gap: 1_000,
        xoff: None,
        queue: None,
    };

    fn buffer(shared: u64, class: Class) -> Buffer {
        let config = BufferConfig {
            shared,
            reserve: 0,
            egress_reserve: 0,
            headroom_pool: None,
            ..BufferConfig::default()
        };
        Buffer::new(&config, [class; CLASSES], vec![[class.headroom.unwrap_or(0); CLASSES]; 8])
    }

    /// Fills the accounts of this many ports, turn by turn, until each has been told to pause.
    fn fill(ports: usize) -> Vec<u64> {
        let mut buffer = buffer(1_000_000, LOSSLESS);
        let mut paused = vec![false; ports];
        while paused.contains(&false) {
            for port in (0..ports).filter(|port| !paused[*port]).collect::<Vec<_>>() {
                paused[port] = buffer.admit((port, 3), (7, 3), 100) == Ok(Signal::Off);
            }
        }
        buffer.check();
        (0..ports).map(|port| buffer.held_of(port, 3)).collect()
    }

    #[test]
    fn greedy_accounts_settle_at_the_dynamic_threshold() {
        // alpha * pool / (1 + n * alpha) each.
        for (ports, share) in [(1, 500_000), (3, 250_000), (4, 200_000)] {
            for held in fill(ports) {
                assert!(held.abs_diff(share) <= 200, "{held} of {share}");
            }
        }
    }

    #[test]
    fn a_lossless_class_pauses_then_uses_its_headroom_and_goes_on_below_the_threshold() {
        let mut buffer = buffer(100_000, Class { xoff: Some(4_000), ..LOSSLESS });
        let mut admit = |bytes| buffer.admit((0, 3), (1, 3), bytes);
        assert_eq!(
            [admit(1_000), admit(2_000), admit(1_000)],
            [Ok(Signal::None), Ok(Signal::None), Ok(Signal::Off)]
        );
        assert_eq!([admit(1_500), admit(1_500)], [Ok(Signal::None); 2], "headroom");
        assert_eq!(admit(1), Err(Full::Headroom));
        assert!(buffer.is_paused(0, 3) && !buffer.is_paused(0, 4));
        let mut release = |bytes| {
            let signal = buffer.release((0, 3), (1, 3), bytes);
            buffer.check();
            signal
        };
        assert_eq!(release(3_000), Signal::None, "the headroom is empty, 4000 are left");
        assert_eq!([release(999), release(1)], [Signal::None, Signal::On], "1000 below the threshold");
        assert_eq!(release(3_000), Signal::None);
        assert_eq!((buffer.held(), buffer.peaks()), (0, (7_000, 3_000)));
    }

    #[test]
    fn a_lossy_class_is_dropped_and_never_paused() {
        let lossy = Class { lossless: false, headroom: None, ..LOSSLESS };
        let mut shared = buffer(10_000, lossy);
        let taken = (0..100).filter(|_| shared.admit((0, 0), (1, 0), 1_000).is_ok()).count();
        assert_eq!(taken, 5, "half of the pool");
        assert_eq!(shared.admit((0, 0), (1, 0), 1_000), Err(Full::Shared));
        let mut short = buffer(10_000, Class { queue: Some(2_000), ..lossy });
        assert!((0..2).all(|_| short.admit((0, 0), (1, 0), 1_000).is_ok()));
        assert_eq!(short.admit((0, 0), (1, 0), 1), Err(Full::Egress));
        assert!(short.admit((0, 0), (2, 0), 1_000).is_ok(), "another queue");
        shared.check();
        short.check();
    }

    #[test]
    fn a_shared_pool_of_headroom_may_be_oversubscribed() {
        let class = Class { xoff: Some(1_000), ..LOSSLESS };
        let mut of_each = buffer(100_000, class);
        let mut of_all = buffer(100_000, class);
        of_all.config.headroom_pool = Some(4_000);
        for (buffer, lost) in [(&mut of_each, 0), (&mut of_all, 2)] {
            let mut drops = 0;
            for port in 0..2 {
                for _ in 0..4 {
                    drops += u32::from(buffer.admit((port, 3), (7, 3), 1_000) == Err(Full::Headroom));
                }
            }
            assert_eq!(drops, lost);
            buffer.check();
        }
    }
}
