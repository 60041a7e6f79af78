//! Enhanced transmission selection: which traffic class of a port sends next.
//!
//! Strict classes go first, the highest number before the others. The rest of the port is shared among the classes with
//! a bandwidth share, by deficit round robin; what a class does not use goes to the others. (IEEE 802.1Qaz, with the
//! codes and checks of Linux' DCB interface: `tsa` and `tc_bw`.)

use crate::setting::names;
use serde::{Deserialize, Serialize};

/// The number of traffic classes.
pub const CLASSES: usize = 8;

names! {
    /// How a class is selected (transmission selection algorithm).
    Tsa {
        /// Before all classes with a lower number and all with a share (code 0).
        Strict = "strict",
        /// By its share of what strict classes leave (code 2).
        Ets = "ets",
    }
}

/// Settings of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How each class is selected.
    pub tsa: [Tsa; CLASSES],
    /// The share of each class, in percent; 0 for strict classes. The shares add up to 100, unless all are strict.
    pub tc_bw: [u8; CLASSES],
}

impl Default for Config {
    /// All classes strict.
    fn default() -> Self {
        Self { tsa: [Tsa::Strict; CLASSES], tc_bw: [0; CLASSES] }
    }
}

/// An invalid selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The shares do not add up.
    #[error("the shares of the classes add up to {0} %, not 100 %")]
    Sum(u32),
    /// A strict class has a share.
    #[error("class {0} is strict: it has no share")]
    StrictWithShare(usize),
    /// An ETS class has no share.
    #[error("class {0} has a share of 0 %: it would never send")]
    NoShare(usize),
}

/// A class that shares.
#[derive(Clone, Copy, Debug)]
struct Class {
    number: u8,
    /// What each turn adds, in bytes.
    quantum: u64,
    /// The bytes that it may still send in its turn.
    deficit: u64,
}

/// Decides which class sends next.
#[derive(Clone, Debug)]
pub struct Scheduler {
    strict: Vec<u8>,
    sharing: Vec<Class>,
    turn: usize,
    /// Whether the class whose turn it is has received its quantum.
    begun: bool,
}

impl Scheduler {
    /// Creates a scheduler for packets of up to `mtu` bytes: the smallest share gets that much in each round, so that
    /// classes stay within a packet of their shares, and no class waits for several rounds.
    ///
    /// # Errors
    ///
    /// The shares do not add up to 100 %, a strict class has a share, or an ETS class has no share.
    pub fn new(config: &Config, mtu: u32) -> Result<Self, ConfigError> {
        let classes = || config.tsa.into_iter().zip(config.tc_bw).enumerate();
        for (number, (tsa, share)) in classes() {
            match (tsa, share) {
                (Tsa::Strict, 1..) => return Err(ConfigError::StrictWithShare(number)),
                (Tsa::Ets, 0) => return Err(ConfigError::NoShare(number)),
                _ => {}
            }
        }
        let sum: u32 = config.tc_bw.iter().map(|s| u32::from(*s)).sum();
        let is_shared = config.tsa.contains(&Tsa::Ets);
        if is_shared && sum != 100 {
            return Err(ConfigError::Sum(sum));
        }
        let smallest = config.tc_bw.iter().copied().filter(|s| *s > 0).min().unwrap_or(1);
        let quantum = |share: u8| (u64::from(mtu.max(1)) * u64::from(share)).div_ceil(u64::from(smallest));
        let of = |wanted: Tsa| classes().filter(move |(_, (tsa, _))| *tsa == wanted);
        Ok(Self {
            strict: of(Tsa::Strict).map(|(number, _)| number as u8).rev().collect(),
            sharing: of(Tsa::Ets)
                .map(|(n, (_, share))| Class { number: n as u8, quantum: quantum(share), deficit: 0 })
                .collect(),
            turn: 0,
            begun: false,
        })
    }

    /// The class that sends its next packet now, where `ready` gives the bytes of the packet that a class has and may
    /// send. The packet counts as sent.
    pub fn next(&mut self, mut ready: impl FnMut(u8) -> Option<u32>) -> Option<u8> {
        if let Some(class) = self.strict.iter().copied().find(|c| ready(*c).is_some()) {
            return Some(class);
        }
        // A packet larger than the quantum waits for as many rounds as it needs.
        let mut idle = 0;
        while idle < self.sharing.len() {
            let class = self.sharing.get_mut(self.turn)?;
            match ready(class.number).map(u64::from) {
                None => {
                    class.deficit = 0;
                    idle += 1;
                }
                Some(bytes) => {
                    idle = 0;
                    if !std::mem::replace(&mut self.begun, true) {
                        class.deficit += class.quantum;
                    }
                    if bytes <= class.deficit {
                        class.deficit -= bytes;
                        return Some(class.number);
                    }
                }
            }
            self.turn = (self.turn + 1) % self.sharing.len();
            self.begun = false;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 4096;

    /// Shares of classes 0, 1, ...; the others are strict.
    fn shares(of: &[u8]) -> Config {
        let mut config = Config::default();
        for (n, share) in of.iter().enumerate() {
            (config.tsa[n], config.tc_bw[n]) = (Tsa::Ets, *share);
        }
        config
    }

    /// Bytes that each class sends in `packets` packets, where `size` gives those of the packets that wait.
    fn sent(config: &Config, packets: u32, size: impl Fn(u8, u64) -> Option<u32>) -> [u64; CLASSES] {
        let mut scheduler = Scheduler::new(config, MTU).expect("in order");
        let mut sent = [0; CLASSES];
        for _ in 0..packets {
            let bytes = |class: u8| size(class, sent[usize::from(class)]);
            if let Some(class) = scheduler.next(bytes) {
                let bytes = size(class, sent[usize::from(class)]).expect("it was ready");
                sent[usize::from(class)] += u64::from(bytes);
            }
        }
        sent
    }

    #[test]
    fn classes_with_backlog_get_their_shares_within_a_packet_a_round() {
        let config = shares(&[10, 20, 30, 40]);
        // Packets of different sizes in each class.
        let sent = sent(&config, 100_000, |class, n| (class < 4).then_some(64 + (n * 7919 % 4033) as u32));
        let total: u64 = sent.iter().sum();
        // A round: 10 MTU for all.
        for (class, share) in [(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4)] {
            let off = sent[class] as f64 - share * total as f64;
            assert!(off.abs() <= 10.0 * f64::from(MTU), "class {class}: {off} bytes off");
        }
    }

    #[test]
    fn what_a_class_leaves_goes_to_the_others() {
        let config = shares(&[50, 30, 20]);
        let sent = sent(&config, 10_000, |class, _| (class == 1 || class == 2).then_some(1000));
        assert_eq!(sent[0], 0);
        let ratio = sent[1] as f64 / sent[2] as f64;
        assert!((ratio - 1.5).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn strict_classes_go_first_and_the_highest_before_all() {
        let config = shares(&[100]);
        let mut scheduler = Scheduler::new(&config, MTU).expect("in order");
        assert_eq!(scheduler.next(|_| Some(64)), Some(7));
        assert_eq!(scheduler.next(|c| (c < 6).then_some(64)), Some(5));
        assert_eq!(scheduler.next(|c| (c == 0).then_some(64)), Some(0));
        assert_eq!(scheduler.next(|_| None), None);
    }

    #[test]
    fn a_packet_beyond_the_quantum_waits_but_is_sent() {
        let config = shares(&[50, 50]);
        let sent = sent(&config, 100, |class, _| (class < 2).then_some(9 * MTU));
        assert_eq!(sent[0], sent[1]);
        assert!(sent[0] > 0);
    }

    #[test]
    fn shares_are_checked() {
        let wrong = |config: &Config| Scheduler::new(config, MTU).map(|_| ()).expect_err("not in order");
        assert_eq!(wrong(&shares(&[50, 49])), ConfigError::Sum(99));
        assert_eq!(wrong(&shares(&[50, 51])), ConfigError::Sum(101));
        assert_eq!(wrong(&shares(&[100, 0])), ConfigError::NoShare(1));
        let strict = Config { tc_bw: [0, 0, 0, 0, 0, 0, 0, 1], ..Config::default() };
        assert_eq!(wrong(&strict), ConfigError::StrictWithShare(7));
        assert!(Scheduler::new(&Config::default(), 0).is_ok());
        let text = "tsa = [\"ets\", \"ets\", \"strict\", \"strict\", \"strict\", \"strict\", \"strict\", \"strict\"]\n\
                    tc_bw = [60, 40, 0, 0, 0, 0, 0, 0]";
        assert_eq!(toml::from_str(text), Ok(shares(&[60, 40])));
    }
}
