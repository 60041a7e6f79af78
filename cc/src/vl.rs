//! Virtual lanes: from service level to lane, and which lane sends next.
//!
//! IBTA volume 1, section 7.6; the format of the tables, their defaults and the unit of weights are OpenSM's and the
//! subnet manager's words (`qos_sl2vl`, `qos_vlarb_high`, `qos_vlarb_low`, `qos_high_limit`).

use serde::{Deserialize, Serialize};

/// A virtual lane, 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vl(u8);

impl Vl {
    /// VL15, for management: without credits, and before all others.
    pub const MANAGEMENT: Self = Self(15);

    /// The lane with this number; `None` above 15.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= 15 { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Whether it is VL15.
    #[must_use]
    pub const fn is_management(self) -> bool {
        self.0 == 15
    }
}

/// A lane in an arbitration table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The data lane, 0 to 14.
    pub vl: u8,
    /// What it may send in its turn, in units of 64 bytes; 0 for nothing.
    pub weight: u8,
}

/// Settings of the arbitration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The lane of each service level; 15 drops packets of that level.
    pub sl2vl: [u8; 16],
    /// The table of low priority.
    pub vlarb_low: Vec<Entry>,
    /// The table of high priority.
    pub vlarb_high: Vec<Entry>,
    /// What high priority may send, in units of 4096 bytes, before a packet of low priority gets its turn; 0 for one
    /// packet, 255 for no limit (these two from memory).
    pub high_limit: u8,
}

/// The most entries in a table.
const MOST_ENTRIES: usize = 64;

impl Default for Config {
    /// OpenSM's defaults: service level n on lane n, 15 on 7; all lanes but 0 with low priority.
    fn default() -> Self {
        let sl2vl = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 7];
        let with = |lane_0: u8, others: u8| {
            (0..15).map(|vl| Entry { vl, weight: if vl == 0 { lane_0 } else { others } }).collect()
        };
        Self { sl2vl, vlarb_low: with(0, 4), vlarb_high: with(4, 0), high_limit: 0 }
    }
}

/// An invalid arbitration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A table names a lane that carries no data.
    #[error("VL{0} in an arbitration table is no data lane: 0 to 14 are")]
    NoDataLane(u8),
    /// A service level maps to a lane that does not exist.
    #[error("service level {sl} maps to VL{vl}: 0 to 15 exist")]
    NoLane {
        /// The service level.
        sl: u8,
        /// The lane.
        vl: u8,
    },
    /// A table is too long.
    #[error("an arbitration table of {0} entries: 64 fit")]
    TooLong(usize),
}

/// A table and its position in the current round.
#[derive(Clone, Debug)]
struct Table {
    entries: Vec<Entry>,
    turn: usize,
    /// What the current lane may still send, in units of 64 bytes; negative when overdrawn.
    left: i64,
}

impl Table {
    fn new(entries: Vec<Entry>) -> Self {
        let left = entries.first().map_or(0, |e| i64::from(e.weight));
        Self { entries, turn: 0, left }
    }

    /// The lane that sends next from this table, and the bytes of its packet.
    fn next(&mut self, ready: &mut impl FnMut(Vl) -> Option<u32>) -> Option<(Vl, u32)> {
        // One round, plus one more visit to the current lane with renewed weight.
        for _ in 0..=self.entries.len() {
            let entry = self.entries.get(self.turn)?;
            let vl = Vl(entry.vl);
            if self.left > 0
                && let Some(bytes) = ready(vl)
            {
                return Some((vl, bytes));
            }
            self.turn = (self.turn + 1) % self.entries.len();
            self.left = self.entries.get(self.turn).map_or(0, |e| i64::from(e.weight));
        }
        None
    }

    fn charge(&mut self, bytes: u32) {
        self.left -= i64::from(bytes.div_ceil(64));
    }
}

/// Decides which lane sends next.
#[derive(Clone, Debug)]
pub struct Arbiter {
    sl2vl: [u8; 16],
    high: Table,
    low: Table,
    /// What high priority may send before low priority gets its turn, in bytes; `None` for no limit.
    high_limit: Option<i64>,
    high_left: i64,
}

impl Arbiter {
    /// An arbiter at the beginning of its tables.
    ///
    /// # Errors
    ///
    /// A table or the mapping names a lane that does not exist, or a table is too long.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        for table in [&config.vlarb_low, &config.vlarb_high] {
            if table.len() > MOST_ENTRIES {
                return Err(ConfigError::TooLong(table.len()));
            }
            if let Some(wrong) = table.iter().find(|e| e.vl > 14) {
                return Err(ConfigError::NoDataLane(wrong.vl));
            }
        }
        if let Some((sl, vl)) = (0u8..).zip(config.sl2vl).find(|(_, vl)| *vl > 15) {
            return Err(ConfigError::NoLane { sl, vl });
        }
        let high_limit = (config.high_limit < 255).then(|| i64::from(config.high_limit) * 4096);
        Ok(Self {
            sl2vl: config.sl2vl,
            high: Table::new(config.vlarb_high.clone()),
            low: Table::new(config.vlarb_low.clone()),
            high_limit,
            high_left: high_limit.unwrap_or(0),
        })
    }

    /// The lane of a service level (its lower four bits); `None` if its packets are to be dropped.
    #[must_use]
    pub fn lane_of(&self, sl: u8) -> Option<Vl> {
        self.sl2vl.get(usize::from(sl & 15)).copied().and_then(Vl::new).filter(|vl| !vl.is_management())
    }

    /// The lane that sends its next packet now, where `ready` gives the bytes of the packet that a lane has and has
    /// credit for. VL15 comes first. The packet counts as sent.
    pub fn next(&mut self, mut ready: impl FnMut(Vl) -> Option<u32>) -> Option<Vl> {
        if ready(Vl::MANAGEMENT).is_some() {
            return Some(Vl::MANAGEMENT);
        }
        let high_may = self.high_limit.is_none_or(|limit| self.high_left > 0 || limit == self.high_left);
        if high_may && let Some(vl) = self.next_high(&mut ready) {
            return Some(vl);
        }
        if let Some((vl, bytes)) = self.low.next(&mut ready) {
            self.low.charge(bytes);
            self.high_left = self.high_limit.unwrap_or(0);
            return Some(vl);
        }
        // No packet of low priority waits: high priority begins anew.
        self.high_left = self.high_limit.unwrap_or(0);
        self.next_high(&mut ready)
    }

    fn next_high(&mut self, ready: &mut impl FnMut(Vl) -> Option<u32>) -> Option<Vl> {
        let (vl, bytes) = self.high.next(ready)?;
        self.high.charge(bytes);
        // A limit of 0 is used up by any packet.
        self.high_left -= i64::from(bytes.max(1));
        Some(vl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &[(u8, u8)]) -> Vec<Entry> {
        of.iter().map(|(vl, weight)| Entry { vl: *vl, weight: *weight }).collect()
    }

    /// Bytes that each lane sends of `packets`, where every lane in `backlogged` always has a packet of `bytes`.
    fn sent(config: &Config, backlogged: &[u8], bytes: u32, packets: u32) -> [u32; 16] {
        let mut arbiter = Arbiter::new(config).expect("in order");
        let mut sent = [0; 16];
        for _ in 0..packets {
            let vl = arbiter.next(|vl| backlogged.contains(&vl.number()).then_some(bytes));
            if let Some(vl) = vl {
                sent[usize::from(vl.number())] += bytes;
            }
        }
        sent
    }

    #[test]
    fn lanes_share_by_their_weights() {
        let config = Config {
            vlarb_high: Vec::new(),
            vlarb_low: entries(&[(0, 128), (1, 64), (2, 32), (3, 0)]),
            ..Config::default()
        };
        for bytes in [64, 256, 2048] {
            let sent = sent(&config, &[0, 1, 2, 3], bytes, 70_000);
            let total: u32 = sent.iter().sum();
            for (vl, share) in [(0, 4.0 / 7.0), (1, 2.0 / 7.0), (2, 1.0 / 7.0)] {
                let got = f64::from(sent[vl]) / f64::from(total);
                assert!((got - share).abs() < 0.01, "VL{vl} of {bytes} bytes: {got}");
            }
            assert_eq!(sent[3], 0, "weight 0");
        }
        assert_eq!(sent(&config, &[1], 4096, 10)[1], 40_960, "alone, it has all turns");
    }

    #[test]
    fn high_priority_goes_first_up_to_its_limit() {
        let tables = |high_limit| Config {
            vlarb_high: entries(&[(1, 255)]),
            vlarb_low: entries(&[(0, 255)]),
            high_limit,
            ..Config::default()
        };
        // Bytes of high priority for each of low priority.
        for (limit, ratio) in [(0, 1), (1, 4), (2, 8), (254, 1016)] {
            let sent = sent(&tables(limit), &[0, 1], 1024, 20_340);
            assert_eq!(sent[1] / sent[0], ratio, "limit {limit}: {sent:?}");
        }
        assert_eq!(sent(&tables(255), &[0, 1], 1024, 1000)[0], 0, "no limit");
        assert_eq!(sent(&tables(0), &[1], 1024, 1000)[1], 1_024_000, "nobody else waits");
    }

    #[test]
    fn management_goes_first_and_an_idle_port_sends_nothing() {
        let mut arbiter = Arbiter::new(&Config::default()).expect("in order");
        assert_eq!(arbiter.next(|_| Some(64)), Some(Vl::MANAGEMENT));
        assert_eq!(arbiter.next(|_| None), None);
        assert_eq!(arbiter.next(|vl| (vl.number() == 3).then_some(64)), Vl::new(3));
    }

    #[test]
    fn levels_map_to_lanes_and_15_drops() {
        let config = Config { sl2vl: [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15], ..Config::default() };
        let arbiter = Arbiter::new(&config).expect("in order");
        assert_eq!((arbiter.lane_of(0), arbiter.lane_of(15)), (Vl::new(3), None));
        assert_eq!(Arbiter::new(&Config::default()).expect("in order").lane_of(15), Vl::new(7));
    }

    #[test]
    fn tables_are_checked() {
        let wrong = |config: Config| Arbiter::new(&config).map(|_| ()).expect_err("not in order");
        let lane = wrong(Config { vlarb_low: entries(&[(15, 1)]), ..Config::default() });
        assert_eq!(lane, ConfigError::NoDataLane(15));
        let long = wrong(Config { vlarb_high: entries(&[(0, 1); 65]), ..Config::default() });
        assert_eq!(long, ConfigError::TooLong(65));
        assert!(Arbiter::new(&Config { vlarb_high: entries(&[(0, 1); 64]), ..Config::default() }).is_ok());
        let level = wrong(Config { sl2vl: [16; 16], ..Config::default() });
        assert_eq!(level, ConfigError::NoLane { sl: 0, vl: 16 });
        let text = "high_limit = 5\nvlarb_low = [{ vl = 0, weight = 4 }]";
        let read: Config = toml::from_str(text).expect("a table");
        assert_eq!((read.high_limit, read.vlarb_low.len(), read.vlarb_high.len()), (5, 1, 15));
    }
}
