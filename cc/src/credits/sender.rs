//! The sending end of a lane.

use super::{FlowControlPacket, WINDOW, advanced, distance};
use std::time::{Duration, Instant};

/// How often and how long packets waited for credit. `time` is what `PortXmitWait` counts in its own units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Packets that had to wait.
    pub packets: u64,
    /// How long they did, together; the one that waits now is not in it.
    pub time: Duration,
}

/// The sending end of a lane: how much it may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditSender {
    /// Blocks sent (FCTBS).
    sent: u16,
    /// The latest limit (FCCL); `None` before the first update.
    limit: Option<u16>,
    /// How long a limit holds, if not for ever.
    lease: Option<Duration>,
    /// Until when the limit holds; `None` if for ever.
    valid_until: Option<Instant>,
    waits_since: Option<Instant>,
    stalls: Stalls,
}

impl CreditSender {
    /// A lane on which nothing may be sent before the first update. With a `lease`, what an update allows is void
    /// when none followed it for so long: see [`Pool`](super::Pool). InfiniBand has none.
    #[must_use]
    pub fn new(lease: Option<Duration>) -> Self {
        Self { lease, ..Self::default() }
    }

    /// The blocks that may be sent now.
    #[must_use]
    pub fn available(&self, now: Instant) -> u16 {
        if self.valid_until.is_some_and(|at| at <= now) {
            return 0;
        }
        let Some(limit) = self.limit else { return 0 };
        // A limit that lies behind is a limit that was lowered.
        Some(distance(self.sent, limit)).filter(|d| *d <= WINDOW).unwrap_or(0)
    }

    /// Takes credit for a packet of `blocks`, if there is enough; otherwise the packet waits, and the time counts until
    /// it is taken.
    pub fn try_take(&mut self, now: Instant, blocks: u32) -> bool {
        match u16::try_from(blocks) {
            Ok(n) if n <= self.available(now) => {
                self.sent = advanced(self.sent, n);
                if let Some(since) = self.waits_since.take() {
                    self.stalls.packets += 1;
                    self.stalls.time += now.saturating_duration_since(since);
                }
                true
            }
            _ => {
                self.waits_since.get_or_insert(now);
                false
            }
        }
    }

    /// Whether a packet waits.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.waits_since.is_some()
    }

    /// How often and how long packets waited.
    #[must_use]
    pub const fn stalls(&self) -> Stalls {
        self.stalls
    }

    /// An update arrived. Its limit holds whether it is higher or lower than the last one.
    pub fn handle_update(&mut self, now: Instant, update: &FlowControlPacket) {
        self.limit = Some(update.fccl);
        self.valid_until = self.lease.and_then(|lease| now.checked_add(lease));
    }

    /// Whether an update has arrived.
    #[must_use]
    pub const fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// What this end has sent, for updates.
    #[must_use]
    pub const fn fctbs(&self) -> u16 {
        self.sent
    }
}
