//! Lending to lanes, and recalling from them.

use super::lane::Lane;
use super::{Member, Pool};
use crate::credits::WINDOW;
use std::time::{Duration, Instant};

/// If there are more lanes than packets, a lane that has sent something and then sends nothing for this time loses
/// the rest. Our choice: processes that are at work send more often.
const TURN: Duration = Duration::from_micros(200);

/// While there is a backlog, blocks that may have arrived unread are declared lost only after this multiple of the
/// usual time. Our choice.
const UNREAD: u32 = 4;

/// Lanes on trial together get at most one part in this many of the pool. Our choice.
const TRIALS: u32 = 8;

/// Turns examined for each limit that is polled. The lanes are in the approximate order in which they began to send.
const TURNS_AT_ONCE: usize = 8;

/// Why blocks are recalled from a lane; the last variant is recalled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// The lane waits for more than it has, and there are not enough packets for all.
    Fragment,
    /// The lane has more than its share.
    Excess,
    /// The lane does nothing with its blocks.
    Silent,
}

/// Blocks that could be recalled from a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    claim: Claim,
    blocks: u16,
    member: Member,
}

impl Pool {
    /// What a lane is lent now, if it asks: up to its share. If there are several members, no lane takes more than
    /// half of the bank at once, or an eighth (our choice) if it has nothing yet and there are many members; the
    /// lanes that wait get equal parts of it. The lane gets a packet's worth in any case, as far as `bank` goes: only
    /// for that are the blocks kept for newcomers touched.
    fn portion(&self, lent: u16, bank: u32) -> u16 {
        let others = self.waiting.len().max(2);
        let parts = match self.members {
            0 | 1 => 1,
            members if lent == 0 => others.max(members.min(8) as usize),
            _ => others,
        };
        let packet = u32::from(self.config.packet_blocks);
        // Whole packets: a lane could not begin with less.
        let kept = packet * u32::from(self.config.newcomers).min(self.blocks() / 8 / packet);
        let rest = bank.saturating_sub(kept);
        let part = rest / u32::try_from(parts).unwrap_or(u32::MAX);
        let most = match packet.saturating_sub(lent.into()) {
            missing @ 1.. if rest < packet => missing.min(bank),
            _ => part.max(packet).min(rest),
        };
        self.share.saturating_sub(lent).min(u16::try_from(most).unwrap_or(WINDOW))
    }

    /// Lends what the bank has: to the lanes that wait, in turn, then to those that will wait soon.
    pub(super) fn lend(&mut self, now: Instant) {
        let (packet, idle) = (self.config.packet_blocks, self.idle());
        while let Some(member) = self.waiting.front().copied() {
            if let Some(lent) = self.lane(member).map(|l| l.lent) {
                let more = self.portion(lent, self.available());
                if lent + more < packet {
                    self.reclaim(now, member);
                    return;
                }
                self.hand_out(now, member, more);
            }
            if let Some(lane) = self.lane(member) {
                lane.waits = false;
            }
            self.waiting.pop_front();
            self.count(member);
        }
        self.lend_on_trial(now);
        while let Some(member) = self.low.front().copied() {
            // A lane that has fallen silent may not need more; if it does, it reports that it waits.
            let is_in_use = |l: &Lane| !l.is_on_trial && now.saturating_duration_since(l.last_active) <= idle;
            if let Some(lent) = self.lane(member).filter(|l| is_in_use(l)).map(|l| l.lent) {
                let more = self.portion(lent, self.available().saturating_sub(self.reserve(lent)));
                // A smaller increase is not worth an update.
                if more < packet.min(self.share.saturating_sub(lent)) {
                    return;
                }
                self.hand_out(now, member, more);
            }
            if let Some(lane) = self.lane(member) {
                lane.is_low = false;
            }
            self.low.pop_front();
        }
    }

    /// Lends a packet's worth to lanes on trial, in turn, while all of them together have less than their part of the
    /// pool. A lane that does nothing with it has to give it back.
    fn lend_on_trial(&mut self, now: Instant) {
        let packet = self.config.packet_blocks;
        self.next_trial = None;
        let most = (self.blocks() / TRIALS / u32::from(packet)).max(1) as usize;
        let mut holders = std::mem::take(&mut self.trial_holders);
        holders.retain(|member| {
            let lane = self.lanes.get(member.index()).filter(|l| l.generation == member.generation);
            lane.is_some_and(|l| l.is_on_trial && l.outstanding() > 0)
        });
        while let Some(member) = self.trials.front().copied() {
            if let Some(lane) = self.lane(member).filter(|l| l.is_on_trial && l.waits) {
                let missing = packet.saturating_sub(lane.lent);
                let is_holder = holders.contains(&member);
                if !is_holder && holders.len() >= most || self.available() < missing.into() {
                    self.end_trials(now, &holders);
                    break;
                }
                if !is_holder {
                    holders.push(member);
                }
                self.hand_out(now, member, missing);
                if let Some(lane) = self.lane(member) {
                    lane.waits = false;
                }
            }
            self.trials.pop_front();
        }
        self.trial_holders = holders;
    }

    /// Recalls blocks that lanes on trial do not use, for other lanes on trial.
    fn end_trials(&mut self, now: Instant, holders: &[Member]) {
        let idle = self.idle();
        for member in holders {
            let Some(lane) = self.lane(*member).filter(|l| l.lent > 0 && l.may_be_asked(now)) else {
                continue;
            };
            let ends = lane.last_active + idle;
            if ends <= now {
                self.take_back(now, *member, 0);
            } else {
                self.next_trial = Some(self.next_trial.map_or(ends, |at| at.min(ends)));
            }
        }
    }

    /// Blocks kept in the bank for members that begin to send, other than a member that was lent `lent`: a packet for
    /// each, an eighth of the pool at most. Our choice.
    fn reserve(&self, lent: u16) -> u32 {
        let silent = self.members.saturating_sub(self.active + u32::from(lent == 0));
        silent.saturating_mul(self.config.packet_blocks.into()).min(self.blocks() / 8)
    }

    fn hand_out(&mut self, now: Instant, member: Member, more: u16) {
        let Some(lane) = self.lane(member) else { return };
        lane.lent += more;
        // The lane gets time to use it.
        lane.last_active = now;
        let lent = lane.lent;
        self.bank -= u32::from(more);
        self.peak = self.peak.max(lent);
        self.count(member);
        if more > 0 {
            self.tell(member);
            self.list(now, member);
        }
    }

    /// Recalls blocks because `first` waits and there is no packet's worth for it. Lanes are searched once in a
    /// period, and at once if one of them has more than its share.
    fn reclaim(&mut self, now: Instant, first: Member) {
        let is_due = self.next_search.is_none_or(|at| at <= now);
        if is_due {
            self.next_search = now.checked_add(self.idle());
            // Stop waiting for what did not arrive in this time.
            self.expected = 0;
        }
        if self.is_crowded() {
            self.end_turns(now);
        }
        let need = self.need();
        if need > 0 && (is_due || self.peak > self.share) {
            let mut candidates = std::mem::take(&mut self.candidates);
            self.search(now, first, &mut candidates);
            self.take_from(now, need, &candidates);
            self.candidates = candidates;
        }
    }

    /// What the waiting lanes need, beyond what is available or expected soon.
    fn need(&self) -> u32 {
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let wanted = waiting.saturating_mul(self.config.packet_blocks.into());
        wanted.saturating_sub(self.available()).saturating_sub(self.expected)
    }

    /// Whether lanes with a packet each do not leave enough for one more.
    fn is_crowded(&self) -> bool {
        self.active.saturating_mul(self.config.packet_blocks.into()) > self.blocks()
    }

    /// Recalls the rest of a packet's worth from lanes that sent something and do not report that they wait: small
    /// packets leave a remainder. A turn continues while most of it is left and in use, because each turn costs three
    /// updates.
    fn end_turns(&mut self, now: Instant) {
        let packet = self.config.packet_blocks;
        self.next_turn.take_if(|at| *at <= now);
        for _ in 0..self.low.len().min(TURNS_AT_ONCE) {
            if self.need() == 0 {
                return;
            }
            let Some(member) = self.low.pop_front() else { return };
            let Some(lane) = self.lane(member) else { continue };
            if !lane.waits && lane.lent < packet && lane.may_be_asked(now) {
                let ends = lane.last_active + TURN;
                if lane.lent > packet / 4 && now < ends {
                    self.low.push_back(member);
                    self.next_turn = Some(self.next_turn.map_or(ends, |at| at.min(ends)));
                    continue;
                }
                lane.is_low = false;
                self.take_back(now, member, 0);
            } else {
                lane.is_low = false;
            }
        }
    }

    /// Finds blocks that could be recalled, the best candidates first.
    fn search(&mut self, now: Instant, first: Member, candidates: &mut Vec<Candidate>) {
        let (idle, share, packet) = (self.idle(), self.share, self.config.packet_blocks);
        let is_crowded = self.is_crowded();
        candidates.clear();
        self.peak = 0;
        let mut holders = std::mem::take(&mut self.holders);
        holders.retain(|member| {
            let Some(lane) = self.lane(*member) else { return false };
            lane.holds = lane.lent > 0;
            let (holds, lent) = (lane.holds, lane.lent);
            if !holds || !lane.may_be_asked(now) || *member == first {
                return holds;
            }
            let (claim, blocks) = if now.saturating_duration_since(lane.last_active) > idle {
                (Claim::Silent, lent)
            } else if lent > share {
                (Claim::Excess, lent - share)
            } else if is_crowded && lane.waits && lent < packet {
                (Claim::Fragment, lent)
            } else {
                self.peak = self.peak.max(lent);
                return true;
            };
            candidates.push(Candidate { claim, blocks, member: *member });
            true
        });
        self.holders = holders;
        candidates.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Recalls what is needed. Where one update yields much, recalls more than that: an eighth of the pool (our
    /// choice), so that the next newcomers find something.
    fn take_from(&mut self, now: Instant, need: u32, candidates: &[Candidate]) {
        let packet = self.config.packet_blocks;
        let mut taken = 0;
        for Candidate { claim, blocks, member } in candidates {
            let enough = match claim {
                Claim::Fragment => u32::from(packet),
                _ if *blocks >= packet => need.max(self.blocks() / 8),
                _ => need,
            };
            let Some(lent) = self.lane(*member).map(|l| l.lent) else { continue };
            if taken < enough {
                self.take_back(now, *member, lent - blocks);
                taken += u32::from(*blocks);
            } else {
                self.peak = self.peak.max(lent);
            }
        }
    }

    /// Lowers the limit of a lane, so that it may send at most `keep` blocks.
    pub(super) fn take_back(&mut self, now: Instant, member: Member, keep: u16) {
        let until = now + self.settle();
        let Some(lane) = self.lane(member).filter(|l| l.lent > keep) else { return };
        let (free, more) = lane.recall(until, keep);
        self.bank += u32::from(free);
        self.expected = self.expected.saturating_add(more.into());
        if more > 0 {
            self.returning.push_back((until, member));
        }
        self.count(member);
        self.tell(member);
    }

    /// Returns blocks to the bank that can no longer arrive, because their time has expired.
    pub(super) fn collect(&mut self, now: Instant) {
        // A caller that never drains its backlog has to be content with a guess.
        let until = if self.has_backlog { now.checked_sub(self.settle() * UNREAD) } else { Some(now) };
        let Some(until) = until else { return };
        while let Some((at, member)) = self.returning.pop_front_if(|(at, _)| *at <= until) {
            let deaf_until = now + self.settle();
            let lane = self.lanes.get_mut(member.index()).filter(|l| l.generation == member.generation);
            let Some(lane) = lane else { continue };
            self.bank += lane.expire(at, deaf_until);
            self.vacate(member);
        }
    }

    pub(super) const fn settle(&self) -> Duration {
        Duration::from_micros(self.config.settle as u64)
    }
}
