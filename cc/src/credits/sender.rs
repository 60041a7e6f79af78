//! The sending end of a lane.

use super::{FlowControlPacket, MASK, Op, WINDOW, advanced, distance};
use crate::vl::Vl;
use std::time::{Duration, Instant};

/// How often and how long packets waited for credit. `time` is the quantity that `PortXmitWait` counts in its own
/// units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Packets that had to wait.
    pub packets: u64,
    /// Their total waiting time, without the packet that waits now.
    pub time: Duration,
}

/// The sending end of a lane: the credit that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditSender {
    /// Blocks sent (FCTBS).
    sent: u16,
    /// The latest limit (FCCL); `None` before the first update.
    limit: Option<u16>,
    /// How long a limit holds; `None` without expiry.
    lease: Option<Duration>,
    /// Until when the limit holds; `None` without expiry.
    valid_until: Option<Instant>,
    waits_since: Option<Instant>,
    stalls: Stalls,
}

impl CreditSender {
    /// A lane that may not send before the first update. With a `lease`, the limit of an update is void if no update
    /// follows within that time: see [`Pool`](super::Pool). InfiniBand has no leases.
    #[must_use]
    pub fn new(lease: Option<Duration>) -> Self {
        Self { lease, ..Self::default() }
    }

    /// The blocks that may be sent now.
    #[must_use]
    pub fn available(&self, now: Instant) -> u16 {
        let Some(limit) = self.limit.filter(|_| self.is_valid(now)) else { return 0 };
        // A limit behind the count is a limit that was lowered.
        u16::try_from(self.ahead(limit)).unwrap_or(0)
    }

    /// Takes credit for a packet of `blocks`, if there is enough. Otherwise the packet waits, and the waiting time
    /// counts until credit is taken.
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

    /// Since when the current packet has been waiting.
    #[must_use]
    pub const fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// How often and how long packets waited.
    #[must_use]
    pub const fn stalls(&self) -> Stalls {
        self.stalls
    }

    /// Handles an update. Its limit holds whether it is higher or lower than the last one. If it is lower, a peer
    /// that lends from a [`Pool`](super::Pool) must be told that it is obeyed, with [`CreditSender::yielded`].
    /// Returns whether that is due. [`Op::Yielded`] carries no limit for this end and changes nothing.
    pub fn handle_update(&mut self, now: Instant, update: &FlowControlPacket) -> bool {
        if update.op == Op::Yielded {
            return false;
        }
        // A void limit is not lowered. The pool knows that it is void, and would take the answer for that to another
        // recall.
        let last = self.limit.filter(|_| self.is_valid(now));
        self.limit = Some(update.fccl);
        self.valid_until = self.lease.and_then(|lease| now.checked_add(lease));
        // Either limit may be up to half of the counts ahead of the sent count or behind it, so the two may be nearly
        // all counts apart: they cannot be compared directly.
        last.is_some_and(|last| self.ahead(update.fccl) < self.ahead(last))
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.valid_until.is_none_or(|at| now < at)
    }

    /// How far a limit is ahead of the sent count.
    fn ahead(&self, limit: u16) -> i32 {
        let distance = i32::from(distance(self.sent, limit));
        if distance <= i32::from(WINDOW) { distance } else { distance - i32::from(MASK) - 1 }
    }

    /// The answer to a limit that was lowered. Send it after all packets for which credit was taken.
    #[must_use]
    pub fn yielded(&self, vl: Vl) -> FlowControlPacket {
        FlowControlPacket { op: Op::Yielded, vl, fctbs: self.sent, fccl: self.limit.unwrap_or(self.sent) }
    }

    /// Whether an update has arrived.
    #[must_use]
    pub const fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// The sent count, for updates.
    #[must_use]
    pub const fn fctbs(&self) -> u16 {
        self.sent
    }
}
