//! How good a port is, in a few levels: from what waits at it, and from the share of its rate that is in use.

use super::{Loads, Picos, config};

/// The levels of the ports of a switch. Level 0 is the best.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    queue: Vec<u64>,
    utilisation: Vec<u8>,
    window: Picos,
    /// By port.
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: Picos,
    sent: u64,
    percent: u8,
}

impl Meter {
    pub(super) fn new(config: &config::Quality) -> Self {
        Self {
            queue: config.queue.clone(),
            utilisation: config.utilisation.clone(),
            window: super::picos(config.window).max(1),
            samples: Vec::new(),
        }
    }

    /// How many of the limits the bytes reach that wait at a port.
    pub(super) fn queue(&self, port: u16, loads: &dyn Loads) -> u8 {
        let queued = loads.queued(port);
        level(self.queue.iter().filter(|limit| queued >= **limit).count())
    }

    /// How many of the limits the share reaches that is in use of a port's rate.
    pub(super) fn utilisation(&mut self, now: Picos, port: u16, loads: &dyn Loads) -> u8 {
        let percent = self.percent(now, port, loads);
        level(self.utilisation.iter().filter(|limit| percent >= **limit).count())
    }

    /// The higher of both levels.
    pub(super) fn worst(&mut self, now: Picos, port: u16, loads: &dyn Loads) -> u8 {
        self.queue(port, loads).max(self.utilisation(now, port, loads))
    }

    /// The share in percent since the last look that was a window ago or longer. Between looks nobody counts, so a port
    /// that was not looked at for long has the mean of all that time.
    fn percent(&mut self, now: Picos, port: u16, loads: &dyn Loads) -> u8 {
        let index = usize::from(port);
        if self.samples.len() <= index {
            self.samples.resize(index + 1, Sample::default());
        }
        let sample = &mut self.samples[index];
        let passed = now.saturating_sub(sample.at);
        if passed >= self.window {
            let sent = loads.sent(port);
            let bits = u128::from(sent.saturating_sub(sample.sent)) * 8;
            // Bits that the port could have sent, times 10^12, for times are in picoseconds.
            let possible = (u128::from(passed) * u128::from(loads.rate(port))).max(1);
            let percent = bits.saturating_mul(100_000_000_000_000).div_ceil(possible);
            *sample = Sample { at: now, sent, percent: u8::try_from(percent).unwrap_or(100).min(100) };
        }
        sample.percent
    }
}

fn level(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}
