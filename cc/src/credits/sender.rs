//! The sending end of a lane.

use super::{FlowControlPacket, MASK, Op, WINDOW, advanced, distance};
use crate::vl::Vl;
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
        let Some(limit) = self.limit.filter(|_| self.is_valid(now)) else { return 0 };
        // A limit that lies behind is a limit that was lowered.
        u16::try_from(self.ahead(limit)).unwrap_or(0)
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

    /// Since when the packet waits that waits now.
    #[must_use]
    pub const fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// How often and how long packets waited.
    #[must_use]
    pub const fn stalls(&self) -> Stalls {
        self.stalls
    }

    /// An update arrived. Its limit holds whether it is higher or lower than the last one; if it is lower, a peer that
    /// lends from a [`Pool`](super::Pool) is to be told that it is obeyed, with [`CreditSender::yielded`]. Whether that
    /// is due. [`Op::Yielded`] carries no limit for this end and changes nothing.
    pub fn handle_update(&mut self, now: Instant, update: &FlowControlPacket) -> bool {
        if update.op == Op::Yielded {
            return false;
        }
        // One that is void is not lowered. The pool knows that it is void, and would take the answer for another one.
        let last = self.limit.filter(|_| self.is_valid(now));
        self.limit = Some(update.fccl);
        self.valid_until = self.lease.and_then(|lease| now.checked_add(lease));
        // Either may lie up to half of the counts ahead of what was sent or behind it, so that they may be nearly all
        // counts apart: they cannot be compared with each other.
        last.is_some_and(|last| self.ahead(update.fccl) < self.ahead(last))
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.valid_until.is_none_or(|at| now < at)
    }

    /// How far a limit lies ahead of what was sent.
    fn ahead(&self, limit: u16) -> i32 {
        let distance = i32::from(distance(self.sent, limit));
        if distance <= i32::from(WINDOW) { distance } else { distance - i32::from(MASK) - 1 }
    }

    /// What to answer to a limit that was lowered. It has to be sent after all packets that credit was taken for.
    #[must_use]
    pub fn yielded(&self, vl: Vl) -> FlowControlPacket {
        FlowControlPacket { op: Op::Yielded, vl, fctbs: self.sent, fccl: self.limit.unwrap_or(self.sent) }
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
