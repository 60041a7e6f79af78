//! Lending to lanes, and taking back from them.

use super::lane::Lane;
use super::{Member, Pool};
use time::{Duration, Instant};

/// While there is a backlog, what may have arrived unread is void only after this multiple of the usual time: a caller
/// that never drains its backlog has to be content with a guess. Our choice.
const UNREAD: u32 = 4;

/// An eighth of the pool, at most, is kept for lanes that have nothing, and as much is for those on trial. Our choice.
const PART: u32 = 8;

/// Why blocks are taken back from a lane; the last variant comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// The lane waits for more than it has.
    Fragment,
    /// The lane has more than its share.
    Excess,
    /// The lane does nothing with what it has.
    Silent,
}

impl Pool {
    /// The share of a lane: an equal part of the pool for each lane that has or wants something.
    pub(super) fn share(&self) -> u32 {
        self.blocks() / self.active.max(1)
    }

    /// A lane with no more than this is lent more before it runs out.
    pub(super) fn low_mark(&self) -> u32 {
        self.share().saturating_sub(self.lag().max(1))
    }

    /// How far the limit of a lane that sends may lag behind what it could have: two thirds of its share, if the rest lasts
    /// until a grant arrives (8 packets, our choice: half a train), or else half.
    fn lag(&self) -> u32 {
        let share = self.share();
        let lasts = share / 3 >= 8 * u32::from(self.config.packet_blocks);
        self.config.lag.min(if lasts { share / 3 * 2 } else { share / 2 })
    }

    /// Blocks that only lanes with nothing may take.
    fn kept(&self) -> u32 {
        let packet = u32::from(self.config.packet_blocks);
        packet * u32::from(self.config.newcomers).min(self.blocks() / PART / packet)
    }

    /// What a lane that waits has to have in the end: enough for its first packet, and as much as the largest packet
    /// takes if its share allows that. Less would make it ask again at once: among many senders of small messages,
    /// asks and grants would outnumber the data.
    fn worthwhile(&self, want: u32) -> u32 {
        want.max(self.share().min(self.config.packet_blocks.into()))
    }

    /// What a lane is lent now, beyond the `lent` that it has: up to its share, and `needed` in all in any
    /// case, as far as there is as much. If there are several members, no lane takes more than half of what is there
    /// at once, or an eighth (our choice) if it has nothing yet and there are many members; those that wait get equal
    /// parts of it.
    fn portion(&self, lent: u32, needed: u32) -> u32 {
        let available = self.available();
        let waiting = u32::try_from(self.waiting[0].len()).unwrap_or(u32::MAX).max(2);
        let parts = match self.members {
            0 | 1 => 1,
            members if lent == 0 => waiting.max(members.min(8)),
            _ => waiting,
        };
        let part = available.saturating_sub(self.kept()) / parts;
        let missing = needed.saturating_sub(lent).min(available);
        part.min(self.share().saturating_sub(lent)).max(missing)
    }

    /// Lends the free blocks to the lanes that wait, in turn. If blocks are left, lanes that have little get them.
    pub(super) fn lend(&mut self, now: Instant) {
        while let Some(member) = self.waiting[0].front().copied() {
            if let Some((lent, want)) = self.waits(now, member, false) {
                let is_short = |pool: &Self| {
                    let needed = pool.worthwhile(want);
                    lent + pool.portion(lent, needed) < needed
                };
                // Without the silent lanes there is more for each of the others.
                self.search(now, member, is_short(self));
                if is_short(self) {
                    break;
                }
                let more = self.portion(lent, self.worthwhile(want));
                self.hand_out(now, member, more);
            }
            self.waiting[0].pop_front();
        }
        self.lend_on_trial(now);
        while self.waiting[0].is_empty()
            && let Some(member) = self.low.front().copied()
        {
            let (mark, idle) = (self.low_mark(), self.config.idle);
            // A lane that has fallen silent may not need more; if it does, it asks.
            let is_in_use = |lane: &&mut Lane| {
                lane.lent() <= mark && now.saturating_duration_since(lane.last_active) <= idle
            };
            if let Some(lent) = self.lane(member).filter(is_in_use).map(|lane| lane.lent()) {
                let more = self.portion(lent.max(1), 0);
                if more < self.least().min(self.share().saturating_sub(lent)) {
                    break;
                }
                self.hand_out(now, member, more);
            }
            if let Some(lane) = self.lane(member) {
                lane.is_low = false;
            }
            self.low.pop_front();
        }
    }

    /// The smallest increase that is worth a grant.
    fn least(&self) -> u32 {
        (self.lag() / 4).max(self.config.packet_blocks.into())
    }

    /// Lends what their first packets need to lanes on trial, in turn, while all of them together have less than their
    /// part of the pool.
    fn lend_on_trial(&mut self, now: Instant) {
        let most = (self.blocks() / PART).max(self.config.packet_blocks.into());
        while let Some(member) = self.waiting[1].front().copied() {
            if let Some((lent, want)) = self.waits(now, member, true) {
                let missing = want.saturating_sub(lent);
                let is_short = |pool: &Self| {
                    u64::from(missing) + pool.on_trial > u64::from(most) || missing > pool.available()
                };
                if is_short(self) {
                    self.search(now, member, true);
                }
                if is_short(self) {
                    break;
                }
                self.hand_out(now, member, missing);
            }
            self.waiting[1].pop_front();
        }
    }

    /// What a lane has, and what its first packet needs, if the lane still waits in this queue. What it was granted too long
    /// ago it does not have.
    fn waits(&mut self, now: Instant, member: Member, on_trial: bool) -> Option<(u32, u32)> {
        self.expire(now, member);
        let most = u32::from(self.config.packet_blocks);
        let lane = self.lane(member).filter(|lane| lane.is_waiting && lane.is_on_trial == on_trial)?;
        Some((lane.lent(), u32::from(lane.want).min(most)))
    }

    fn hand_out(&mut self, now: Instant, member: Member, more: u32) {
        let void = now + self.settle();
        self.change(member, |lane| {
            lane.lend(more);
            // The lane gets time to use it.
            (lane.expires, lane.last_active) = (void, now);
            (lane.is_waiting, lane.want) = (false, 0);
        });
        self.tell(member);
    }

    /// A lane waits: what was granted too long ago is free, and silent lanes have to give back what they have. If there
    /// is not enough for `first`, others have to give back as well. Lanes are searched once in a period, and at once if
    /// there is not enough and shares have become smaller.
    fn search(&mut self, now: Instant, first: Member, is_short: bool) {
        let share = self.share();
        let is_due = self.next_search.is_none_or(|at| at <= now);
        if !(is_due || is_short && share < self.searched_at_share) {
            return;
        }
        (self.next_search, self.searched_at_share) = (Some(now + self.config.idle), share);
        let Some(&mut Lane { is_on_trial: on_trial, .. }) = self.lane(first) else { return };
        let (lent, want) = self.waits(now, first, on_trial).unwrap_or_default();
        let needed = if on_trial { want } else { self.worthwhile(want) };
        let missing = needed.saturating_sub(lent).max(1);
        let mut claims = Vec::new();
        let mut returning = 0;
        for place in 0..self.lanes.len() {
            let member = Member { place: place as u32, generation: self.lanes[place].generation };
            self.expire(now, member);
            let lane = &self.lanes[place];
            returning += lane.returning();
            let may_give = member != first && lane.is_member && lane.returning() == 0 && lane.lent() > 0;
            if may_give && (!on_trial || lane.is_on_trial) {
                claims.extend(self.claim(now, lane, share).map(|(claim, blocks)| (claim, blocks, member)));
            }
        }
        claims.sort_unstable_by(|a, b| b.cmp(a));
        let waiting = u32::try_from(self.waiting[usize::from(on_trial)].len()).unwrap_or(u32::MAX);
        let wanted = if is_short { missing.saturating_mul(waiting) } else { 0 };
        let mut need = wanted.saturating_sub(self.available()).saturating_sub(returning);
        for (claim, blocks, member) in claims {
            if claim == Claim::Silent || need > 0 {
                need = need.saturating_sub(blocks);
                self.change(member, |lane| lane.take_back(lane.lent() - blocks));
                self.tell(member);
            }
        }
    }

    /// Why a lane has to give back blocks, and how many.
    fn claim(&self, now: Instant, lane: &Lane, share: u32) -> Option<(Claim, u32)> {
        let (lent, share) = (lane.lent(), share.max(self.config.packet_blocks.into()));
        if now.saturating_duration_since(lane.last_active) > self.config.idle {
            Some((Claim::Silent, lent))
        } else if lent > share {
            Some((Claim::Excess, lent - share))
        } else {
            lane.is_waiting.then_some((Claim::Fragment, lent))
        }
    }

    /// Frees what can no longer arrive, because its time has passed.
    fn expire(&mut self, now: Instant, member: Member) {
        let patience = if self.has_backlog { self.settle() * (UNREAD - 1) } else { Duration::ZERO };
        let is_void = |lane: &Lane| lane.outstanding() > 0 && lane.expires + patience <= now;
        if self.lanes.get(member.index()).is_some_and(is_void) {
            self.change(member, Lane::forfeit);
            self.vacate(member);
        }
    }
}
