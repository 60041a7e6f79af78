//! A lane of a peer, as its pool sees it.

use crate::credits::{MASK, WINDOW, advanced, distance};
use std::collections::VecDeque;
use std::time::Instant;

/// Recalled blocks: the limit was lowered, but the blocks may still arrive.
#[derive(Clone, Debug)]
pub(super) struct Recall {
    /// One part for each recall, the oldest first: when all earlier limits are void, whether the peer answers or not,
    /// and how many recalled blocks have not arrived.
    parts: VecDeque<(Instant, u32)>,
    /// The first limit advertised since the recall.
    asked: Option<u16>,
    /// A yield can only be the answer to this recall.
    is_clear: bool,
}

impl Recall {
    fn new(until: Instant, rest: u16) -> Self {
        Self { parts: [(until, rest.into())].into(), asked: None, is_clear: true }
    }

    /// The recalled blocks that may still arrive.
    fn rest(&self) -> u32 {
        self.parts.iter().map(|(_, rest)| rest).sum()
    }

    /// Recalls more blocks before the answer to the first recall arrives. The limits advertised in between may have
    /// been higher than the one that a yield repeats, so from now on only time settles the recall.
    fn extend(&mut self, until: Instant, more: u16) {
        self.is_clear = false;
        self.parts.push_back((until, more.into()));
    }

    /// Accounts for `n` of the blocks that arrived or were lost, those of the oldest limit first.
    fn consume(&mut self, mut n: u32) {
        for (_, rest) in &mut self.parts {
            let taken = n.min(*rest);
            (*rest, n) = (*rest - taken, n - taken);
        }
    }

    /// The blocks that can no longer arrive, because the earlier limits are void.
    fn expire(&mut self, now: Instant) -> u32 {
        std::iter::from_fn(|| self.parts.pop_front_if(|(until, _)| *until <= now)).map(|(_, rest)| rest).sum()
    }

    /// Records that a limit was advertised.
    fn told(&mut self, limit: u16) {
        let first = *self.asked.get_or_insert(limit);
        // Beyond half of the counts, the order of two limits is unknown.
        self.is_clear &= distance(first, limit) <= WINDOW;
    }

    /// Whether a yield that repeats `obeyed` is the answer. Since the limit was lowered it only went up, to `limit`
    /// now: a sender that obeys any limit in that range sends nothing beyond the last one.
    fn is_answered_by(&self, obeyed: u16, limit: u16) -> bool {
        let is_told = |first| distance(first, obeyed) <= distance(first, limit);
        self.is_clear && self.asked.is_some_and(is_told)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) generation: u32,
    /// The lane is a member, or waits for its last blocks.
    pub(super) is_member: bool,
    /// The lane is on trial: it is lent no more than a packet at a time, from a small part of the pool.
    pub(super) is_on_trial: bool,
    /// Blocks received (ABR).
    received: u16,
    /// Blocks that the lane may send.
    pub(super) lent: u16,
    /// Blocks that arrived and have not been read.
    pub(super) occupied: u32,
    pub(super) recall: Option<Recall>,
    /// Yields are ignored until then: they may answer a recall that has ended without an answer.
    pub(super) deaf_until: Option<Instant>,
    /// The lane waits for blocks.
    pub(super) waits: bool,
    /// The sender's count when it last reported that it waits.
    pub(super) stalled_at: Option<u16>,
    /// How far the sender's count was behind the blocks that arrived, if the last update showed that.
    behind: Option<u16>,
    /// The lane is to be lent more while there is enough.
    pub(super) is_low: bool,
    /// The limit has changed and has not been advertised.
    pub(super) changed: bool,
    /// The lane is queued for periodic advertisement of its limit.
    pub(super) listed: bool,
    /// The lane is counted among those that have or want something.
    pub(super) counted: bool,
    /// The lane is listed among those that may hold something.
    pub(super) holds: bool,
    /// The limit that was advertised last.
    told: u16,
    pub(super) last_told: Instant,
    /// How often the limit was advertised again since the lane last did something.
    pub(super) repeated: u8,
    /// When the lane was last heard from, or last lent something.
    pub(super) last_active: Instant,
}

impl Lane {
    /// Creates a lane without blocks; its limit is still to be advertised.
    pub(super) const fn new(generation: u32, now: Instant) -> Self {
        Self {
            generation,
            is_member: true,
            is_on_trial: false,
            received: 0,
            lent: 0,
            occupied: 0,
            recall: None,
            deaf_until: None,
            waits: false,
            stalled_at: None,
            behind: None,
            is_low: false,
            changed: false,
            listed: true,
            counted: false,
            holds: false,
            told: 0,
            last_told: now,
            repeated: 0,
            last_active: now,
        }
    }

    /// The count up to which the lane may send.
    const fn limit(&self) -> u16 {
        advanced(self.received, self.lent)
    }

    /// Whether the peer knows its limit, if nothing was lost.
    pub(super) const fn knows_limit(&self) -> bool {
        self.told == self.limit()
    }

    /// Advertises the limit.
    pub(super) fn tell(&mut self, now: Instant) -> u16 {
        let limit = self.limit();
        (self.told, self.last_told, self.changed) = (limit, now, false);
        if let Some(recall) = &mut self.recall {
            recall.told(limit);
        }
        limit
    }

    /// The blocks that may arrive: those lent and those recalled.
    pub(super) fn outstanding(&self) -> u32 {
        u32::from(self.lent) + self.recall.as_ref().map_or(0, Recall::rest)
    }

    /// Handles a sender's count: blocks by which it is ahead of those that arrived were lost in the network. Returns
    /// how many of the blocks that may arrive were lost, and how many of those had been recalled; `None` if the count
    /// is an old one.
    ///
    /// The count may be ahead by more than may arrive: by blocks that were lost, or came too late, after they were
    /// freed. The count is correct all the same, and this end has to follow.
    pub(super) fn catch_up(&mut self, fctbs: u16) -> Option<(u32, u32)> {
        let missing = distance(self.received, fctbs);
        if missing > WINDOW {
            return None;
        }
        let lost = self.outstanding().min(missing.into());
        self.behind = None;
        // No more than `missing`: it fits, and may be consumed.
        let old = self.consume(lost as u16).unwrap_or(0);
        self.received = fctbs & MASK;
        Some((lost, old))
    }

    /// Handles a sender's count that is behind the blocks that arrived, in this update and in the one before: that
    /// many blocks more than the lane was lent may arrive. If the lane `waits`, they are lent now, as far as a limit
    /// can express it: a limit one block beyond that looked to the sender like no credit. If blocks were recalled,
    /// these count as recalled blocks. Returns the number of these blocks; `None` if `bank` does not have as many.
    pub(super) fn step_back(&mut self, fctbs: u16, bank: u32, waits: bool) -> Option<u16> {
        let behind = distance(fctbs, self.received);
        let before = self.behind.replace(behind)?;
        if !waits {
            return None;
        }
        let step = behind.min(before);
        let received = advanced(self.received, MASK + 1 - step);
        let highest = distance(received, self.limit()).min(WINDOW - 1);
        let returning = self.recall.as_mut().and_then(|recall| recall.parts.back_mut());
        let (lent, taken) = match returning {
            Some(_) => (self.lent, step),
            None => (highest, highest.checked_sub(self.lent)?),
        };
        if u32::from(taken) > bank {
            return None;
        }
        if let Some((_, rest)) = returning {
            *rest += u32::from(taken);
        }
        (self.received, self.lent, self.behind) = (received, lent, None);
        Some(taken)
    }

    /// Accounts for `n` blocks that arrived or were lost: recalled blocks first, because they were sent under an
    /// older limit. Returns how many of them had been recalled; `None` if there are fewer than `n`.
    pub(super) fn consume(&mut self, n: u16) -> Option<u32> {
        let old = u32::from(n).min(self.recall.as_ref().map_or(0, Recall::rest));
        // No more than n: it fits.
        self.lent = self.lent.checked_sub(n - old as u16)?;
        if let Some(recall) = &mut self.recall {
            recall.consume(old);
        }
        self.received = advanced(self.received, n);
        Some(old)
    }

    /// Lowers the limit until no more than `keep` blocks are lent. Returns how many blocks are free at once, because
    /// their limit was never advertised, and how many may still arrive before `until`.
    pub(super) fn recall(&mut self, until: Instant, keep: u16) -> (u16, u16) {
        let excess = self.lent.saturating_sub(keep);
        let untold = match self.recall {
            None => distance(self.told, self.limit()).min(excess),
            // Limits from before the first recall were higher.
            Some(_) => 0,
        };
        self.lent -= excess;
        let more = excess - untold;
        match &mut self.recall {
            _ if more == 0 => {}
            Some(recall) => recall.extend(until, more),
            None => self.recall = Some(Recall::new(until, more)),
        }
        (untold, more)
    }

    /// Forfeits everything that was lent, since it can no longer arrive. Returns how many blocks that was, and how
    /// many of them had been recalled.
    pub(super) fn forfeit(&mut self) -> (u32, u32) {
        let old = self.recall.take().map_or(0, |recall| recall.rest());
        (u32::from(std::mem::take(&mut self.lent)) + old, old)
    }

    /// Returns the recalled blocks that can no longer arrive, because it is `at`. If the recall ends here, yields are
    /// ignored until `deaf_until`: an answer may still be in flight, and must not be taken for the answer to a later
    /// recall.
    pub(super) fn expire(&mut self, at: Instant, deaf_until: Instant) -> u32 {
        let Some(recall) = &mut self.recall else { return 0 };
        let free = recall.expire(at);
        if recall.parts.is_empty() {
            (self.recall, self.deaf_until) = (None, Some(deaf_until));
        }
        free
    }

    /// Handles a yield: the sender obeys a limit. If that answers the recall, returns the recalled blocks that did
    /// not arrive.
    pub(super) fn yielded(&mut self, now: Instant, obeyed: u16) -> Option<u32> {
        let (limit, is_deaf) = (self.limit(), self.is_deaf(now));
        let answered = |recall: &mut Recall| !is_deaf && recall.is_answered_by(obeyed, limit);
        self.recall.take_if(answered).map(|recall| recall.rest())
    }

    /// Whether a recall can expect an answer: a lane with a recall outstanding is not asked a second time, and one
    /// that did not answer is not asked for a while.
    pub(super) fn may_be_asked(&self, now: Instant) -> bool {
        self.recall.is_none() && !self.is_deaf(now)
    }

    /// Whether yields of this lane are ignored.
    fn is_deaf(&self, now: Instant) -> bool {
        self.deaf_until.is_some_and(|at| now < at)
    }
}
