//! The congestion point: which packets a queue marks.

use super::settings::Red;
use crate::random::Lots;

/// RED with marking, at the departure of packets.
///
/// It takes the length of the queue when a packet departs, not when it arrived: the mark then reflects the present,
/// and queueing does not lengthen the control loop (Zhu et al., CoNEXT 2016, discussion).
#[derive(Clone, Debug)]
pub struct CongestionPoint {
    red: Red,
    lots: Lots,
}

impl CongestionPoint {
    /// Marks by `red`, with random choices seeded by `seed`.
    #[must_use]
    pub const fn new(red: Red, seed: u64) -> Self {
        Self { red, lots: Lots::new(seed) }
    }

    /// How it marks.
    #[must_use]
    pub const fn red(&self) -> &Red {
        &self.red
    }

    /// Whether to mark a packet that departs now from a queue of `queue` bytes, itself included.
    pub fn marks(&mut self, queue: u64) -> bool {
        let p = self.red.probability(queue as f64);
        p > 0.0 && self.lots.happens(p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Red = Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 };

    #[test]
    fn the_probability_is_a_line_with_a_jump() {
        let cases = [
            (0.0, 0.0),
            (5_000.0, 0.0),
            (102_500.0, 0.005),
            (200_000.0, 0.01),
            (200_001.0, 1.0),
            (1e12, 1.0),
        ];
        for (queue, p) in cases {
            assert!((RED.probability(queue) - p).abs() < 1e-12, "{queue}");
        }
        let step = Red { kmin: 40_000, kmax: 40_000, pmax: 1.0 };
        assert_eq!((step.probability(40_000.0), step.probability(40_001.0)), (0.0, 1.0));
    }

    #[test]
    fn marks_come_with_that_probability_and_from_the_seed() {
        let marks = |seed| {
            let mut point = CongestionPoint::new(RED, seed);
            (0..200_000).map(|_| point.marks(102_500)).collect::<Vec<_>>()
        };
        let hits = marks(1).iter().filter(|m| **m).count();
        assert!((900..1100).contains(&hits), "{hits} of 200,000 at 0.5 %");
        assert_eq!(marks(1), marks(1));
        assert_ne!(marks(1), marks(2));
        let mut point = CongestionPoint::new(RED, 1);
        assert!(!(0..1000).any(|_| point.marks(5_000)));
        assert!((0..1000).all(|_| point.marks(200_001)));
    }
}
