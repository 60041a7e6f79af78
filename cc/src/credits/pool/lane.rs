//! A lane of a peer, as its pool knows it.

use crate::credits::{MASK, WINDOW, advanced, distance};
use std::collections::VecDeque;
use std::time::Instant;

/// Blocks that were taken back: the limit was lowered, and they may still arrive.
#[derive(Clone, Debug)]
pub(super) struct Recall {
    /// When all limits from before are void, whether the peer answers or not, and what was taken back and has not arrived: a
    /// part for each time that something was taken back, the first one first.
    parts: VecDeque<(Instant, u32)>,
    /// The first limit that was told since.
    asked: Option<u16>,
    /// A yield can only be the answer to this.
    is_clear: bool,
}

impl Recall {
    fn new(until: Instant, rest: u16) -> Self {
        Self { parts: [(until, rest.into())].into(), asked: None, is_clear: true }
    }

    /// What may still arrive.
    fn rest(&self) -> u32 {
        self.parts.iter().map(|(_, rest)| rest).sum()
    }

    /// More is taken back before the answer came. The limits told in between may have been higher than the one that a
    /// yield repeats, so from now on only time tells.
    fn extend(&mut self, until: Instant, more: u16) {
        self.is_clear = false;
        self.parts.push_back((until, more.into()));
    }

    /// So many of the blocks arrived or were lost, those of the oldest limit first.
    fn consume(&mut self, mut n: u32) {
        for (_, rest) in &mut self.parts {
            let taken = n.min(*rest);
            (*rest, n) = (*rest - taken, n - taken);
        }
    }

    /// What can no longer arrive, because the limits from before are void.
    fn expire(&mut self, now: Instant) -> u32 {
        std::iter::from_fn(|| self.parts.pop_front_if(|(until, _)| *until <= now)).map(|(_, rest)| rest).sum()
    }

    /// A limit was told.
    fn told(&mut self, limit: u16) {
        let first = *self.asked.get_or_insert(limit);
        // Beyond half of the counts it cannot be said what lies between.
        self.is_clear &= distance(first, limit) <= WINDOW;
    }

    /// Whether a yield that repeats `obeyed` is the answer. Since the limit was lowered it only went up, to `limit` now:
    /// a sender that obeys one of those sends nothing beyond the last.
    fn is_answered_by(&self, obeyed: u16, limit: u16) -> bool {
        let is_told = |first| distance(first, obeyed) <= distance(first, limit);
        self.is_clear && self.asked.is_some_and(is_told)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) generation: u32,
    /// Is a member, or waits for its last blocks.
    pub(super) is_member: bool,
    /// Is lent no more than a packet at a time, of a small part of the pool.
    pub(super) is_on_trial: bool,
    /// Blocks received (ABR).
    received: u16,
    /// Blocks that it may send.
    pub(super) lent: u16,
    /// Blocks that arrived and were not yet read.
    pub(super) occupied: u32,
    pub(super) recall: Option<Recall>,
    /// Until when yields are not believed: they may be the answer to a recall that has ended without one.
    pub(super) deaf_until: Option<Instant>,
    /// Waits for blocks.
    pub(super) waits: bool,
    /// The sender's count when it last said that it waits.
    pub(super) stalled_at: Option<u16>,
    /// How far its count was behind what arrived, if it was so in the last update.
    behind: Option<u16>,
    /// Is to be lent more while there is enough.
    pub(super) is_low: bool,
    /// Its limit has changed and was not yet told.
    pub(super) changed: bool,
    /// Stands among those that are told their limits again and again.
    pub(super) listed: bool,
    /// Counts among those that have or want something.
    pub(super) counted: bool,
    /// Stands among those that may hold something.
    pub(super) holds: bool,
    /// The limit that it was told last.
    told: u16,
    pub(super) last_told: Instant,
    /// So many times it was told its limit again since it last did something.
    pub(super) repeated: u8,
    /// When it was heard of, or lent something.
    pub(super) last_active: Instant,
}

impl Lane {
    /// A lane without blocks, which is going to be told so.
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

    /// How far it may go.
    const fn limit(&self) -> u16 {
        advanced(self.received, self.lent)
    }

    /// Whether it knows its limit, if nothing was lost.
    pub(super) const fn knows_limit(&self) -> bool {
        self.told == self.limit()
    }

    /// Tells its limit.
    pub(super) fn tell(&mut self, now: Instant) -> u16 {
        let limit = self.limit();
        (self.told, self.last_told, self.changed) = (limit, now, false);
        if let Some(recall) = &mut self.recall {
            recall.told(limit);
        }
        limit
    }

    /// What it was lent and what was taken back from it: what may arrive.
    pub(super) fn outstanding(&self) -> u32 {
        u32::from(self.lent) + self.recall.as_ref().map_or(0, Recall::rest)
    }

    /// A sender's count arrived: what it is ahead of what arrived was lost on the way. How many of the blocks that may
    /// arrive these are, and how many of those had been taken back; `None` if the count is an old one.
    ///
    /// It may be ahead by more than may arrive: by what was lost, or came too late, after its blocks were free again.
    /// Then it is right all the same, and this end has to follow.
    pub(super) fn catch_up(&mut self, fctbs: u16) -> Option<(u32, u32)> {
        let missing = distance(self.received, fctbs);
        if missing > WINDOW {
            return None;
        }
        let lost = self.outstanding().min(missing.into());
        self.behind = None;
        // No more than what is missing: it fits, and may be consumed.
        let old = self.consume(lost as u16).unwrap_or(0);
        self.received = fctbs & MASK;
        Some((lost, old))
    }

    /// The sender's count is behind what arrived, and was so in the update before: so many blocks more than it was lent may
    /// arrive, which are lent now if it `waits`, as far as a limit can say it: one beyond that looked to the sender as if it
    /// had none. If something was taken back, these are blocks of that. How many these are; `None` if `bank` has not so many.
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

    /// `n` blocks arrived or were lost: those that were taken back first, because those were sent under an older limit.
    /// How many of them were; `None` if there are not so many.
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

    /// Lowers the limit until no more than `keep` blocks are lent. How many are free at once, because their limit was
    /// not told yet, and how many may still arrive until then.
    pub(super) fn recall(&mut self, until: Instant, keep: u16) -> (u16, u16) {
        let excess = self.lent.saturating_sub(keep);
        let untold = match self.recall {
            None => distance(self.told, self.limit()).min(excess),
            // Limits from before the recall were higher.
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

    /// Nothing that it was lent can arrive any more. How much that was, and how much of it had been taken back.
    pub(super) fn forfeit(&mut self) -> (u32, u32) {
        let old = self.recall.take().map_or(0, |recall| recall.rest());
        (u32::from(std::mem::take(&mut self.lent)) + old, old)
    }

    /// What was taken back and can no longer arrive, because it is `at`. If that was all, yields are not believed up to
    /// `deaf_until`: an answer may still be on its way, and must not be taken for that to a later recall.
    pub(super) fn expire(&mut self, at: Instant, deaf_until: Instant) -> u32 {
        let Some(recall) = &mut self.recall else { return 0 };
        let free = recall.expire(at);
        if recall.parts.is_empty() {
            (self.recall, self.deaf_until) = (None, Some(deaf_until));
        }
        free
    }

    /// The sender obeys a limit. What was taken back and did not arrive, if that is an answer.
    pub(super) fn yielded(&mut self, now: Instant, obeyed: u16) -> Option<u32> {
        let (limit, is_deaf) = (self.limit(), self.is_deaf(now));
        let answered = |recall: &mut Recall| !is_deaf && recall.is_answered_by(obeyed, limit);
        self.recall.take_if(answered).map(|recall| recall.rest())
    }

    /// Whether something can be taken back with the prospect of an answer: who is asked already is asked no second time, and
    /// who did not answer not for a while.
    pub(super) fn may_be_asked(&self, now: Instant) -> bool {
        self.recall.is_none() && !self.is_deaf(now)
    }

    /// Whether its yields are not believed.
    fn is_deaf(&self, now: Instant) -> bool {
        self.deaf_until.is_some_and(|at| now < at)
    }
}
