//! What a side does while nothing arrives.

use std::hint::spin_loop;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

/// Empty polls before the first offer of the processor: more than a round trip takes, so that an idle machine shows no
/// difference.
const SHORTEST: u32 = 24;

/// If an offer takes longer, another program kept the processor for its time slice.
const TAKEN: Duration = Duration::from_millis(1);

/// Naps after such an offer, and how long each is.
const NAPS: u32 = 128;
const NAP: Duration = Duration::from_micros(20);

/// Offers the processor after some empty polls, with the manners of rnic. Without them, the time that a poller spends on
/// empty polls next to other programs is taken from its share, and the figures compare manners.
#[derive(Default)]
pub(super) struct Idle {
    polls: u32,
    naps: u32,
}

impl Idle {
    /// Something arrived.
    pub(super) const fn end(&mut self) {
        self.polls = 0;
    }

    /// Nothing arrived.
    pub(super) fn wait(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls < SHORTEST {
            spin_loop();
        } else if let Some(left) = self.naps.checked_sub(1) {
            self.naps = left;
            sleep(NAP);
        } else {
            let before = Instant::now();
            yield_now();
            if before.elapsed() > TAKEN {
                self.naps = NAPS;
            }
        }
    }
}
