//! One buffer that the lanes of many peers share.

mod lane;
mod lend;
#[cfg(test)]
mod tests;

use super::{FlowControlPacket, Op, Overrun, WINDOW};
use crate::setting::settable;
use lane::Lane;
use lend::Candidate;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most peers about to join for whose messages room is kept. Our choice: no more start at the same moment.
const MAX_EXPECTED: usize = 64;

/// A limit is advertised again after one period and then, if the lane stays silent, every two periods.
const MAX_REPEATS: u8 = 1;

/// Settings of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The buffer, in blocks: what is left of it after the reserve for messages that need no credit.
    pub blocks: u32,
    /// The largest packet, in blocks: the smallest loan.
    pub packet_blocks: u16,
    /// The most blocks that one lane is lent; at most 2047: a limit lowered by 2048 would look like one raised by
    /// 2048.
    pub share_blocks: u16,
    /// How far the limit of a lane that sends may lag behind the blocks available to it, in blocks; at most half of
    /// its share. On a long cable a lag is unused room. Each update is a packet, which is why the default is half of
    /// the share.
    pub fcp_on_free_blocks: u16,
    /// The longest time between two updates of a lane that is in use, in microseconds, and twice that for an idle
    /// lane. Our choice, like all settings that follow. It only keeps limits from expiring: a peer that missed an
    /// update reports that it waits. So the period should be long: a slow reader with many peers also has to read
    /// what they send it.
    pub fcp_period: u32,
    /// A lane that does nothing for this time with what it was lent has to give it back if others wait, in
    /// microseconds: an interval that a process can keep.
    pub idle: u32,
    /// How long a limit holds, in microseconds, from when the sender reads it; several periods, so that some updates
    /// may be lost. A lane that was silent for this time receives no more updates. A lane that waits for blocks
    /// receives its limit once in this time even if there are no blocks for it: silence would look like an absent
    /// peer.
    pub lease: u32,
    /// How long until blocks recalled from a peer that does not answer are free again, in microseconds: the lease,
    /// plus the longest time from sending an update until the data sent under it has been read here. If that takes
    /// longer, as when a process is stopped, the buffer may overrun. Peers that answer do not wait for this.
    pub settle: u32,
    /// The blocks that the message of a member about its lane occupies at a time. Such messages take no credit, but
    /// occupy the buffer too.
    pub member_blocks: u16,
    /// The blocks kept outside the pool for these messages. If there are more members than this is enough for, the
    /// pool lends less, down to half of its size.
    pub reserve_blocks: u32,
    /// Messages of members that were read may still occupy the buffer while more packets wait: as much as each member
    /// sends at a time, and this many blocks at most. The pool lends that much less.
    pub read_blocks: u32,
    /// The number of packets kept for members that have less than a packet's worth, up to an eighth of the pool. A
    /// member that was lent the rest gives it back at once if it answers; but the peers of a program that was killed
    /// and restarted would have nothing for it before `settle` is over.
    pub newcomers: u16,
}

settable!(PoolConfig: blocks packet_blocks share_blocks fcp_on_free_blocks fcp_period idle lease settle member_blocks reserve_blocks read_blocks newcomers);

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            blocks: 4096,
            packet_blocks: 66,
            share_blocks: WINDOW - 1,
            fcp_on_free_blocks: u16::MAX,
            fcp_period: 2_500,
            idle: 1_000,
            lease: 10_000,
            settle: 50_000,
            member_blocks: 0,
            reserve_blocks: 0,
            read_blocks: 0,
            newcomers: 0,
        }
    }
}

/// The pool could not lend a packet's worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {blocks} blocks, {share} for each lane, does not hold a packet of {packet} blocks")]
pub struct PoolTooSmall {
    /// The blocks of the pool.
    pub blocks: u32,
    /// The most that one lane is lent.
    pub share: u16,
    /// The blocks of the largest packet.
    pub packet: u16,
}

/// A lane of a peer, in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    place: u32,
    generation: u32,
}

impl Member {
    /// Its index in tables: members that exist at the same time have different ones, as small as possible.
    #[must_use]
    pub const fn index(self) -> usize {
        self.place as usize
    }
}

/// One buffer that is lent to the lanes of many peers.
///
/// An InfiniBand port has a buffer for each lane, and one peer. A socket has one buffer for all peers. Divided evenly
/// among many peers, most of which are silent at any time, it would hold less than a packet for each. So the pool
/// lends blocks. Each block is in exactly one state: in the bank; lent (a peer may send it); returning (it was lent
/// and recalled, and may still arrive); or occupied (it arrived and has not been read).
///
/// # Sharing the pool
///
/// The share of a lane is an equal part of the pool for each lane that has or wants something, a packet's worth at
/// least. A sender without credit reports that a packet waits ([`Op::Stalled`](super::Op::Stalled)): such lanes come
/// first, in turn. Lanes that use what they have are lent more before they run out, from what the waiting lanes
/// leave. If there are several members, no lane takes more than half of the bank at once, and less if it has nothing
/// yet. A little of the bank is kept for members that begin to send, and for new members ([`PoolConfig::newcomers`]).
///
/// A lane may join on trial ([`Pool::join_on_trial`]): blocks are never recalled from others for it.
///
/// If there is no packet's worth for a lane that waits, the pool recalls blocks at once: all from lanes that did
/// nothing for a period, and what other lanes have beyond their share, the largest first. A lane that sends keeps a
/// packet's worth, unless there are more lanes than packets: then lanes take turns. While any lane waits, idle lanes
/// lose what they have within two periods, so that the share grows.
///
/// # How blocks come back
///
/// On InfiniBand a limit is never lowered, because the lower limit may cross packets in flight. Between rnic peers it
/// may be lowered, and the blocks are free again in one of two ways:
///
/// - The sender answers that it obeys the lower limit ([`Op::Yielded`](super::Op::Yielded)). The answer follows
///   everything that was sent under the old limit, so all that has not arrived by then is free: one round trip.
/// - The sender does not answer. Limits hold only for a time, the **lease**
///   ([`CreditSender::new`](super::CreditSender::new)), unless they are renewed. When `settle` has passed, whether
///   the update arrived or not, the old limit is void and everything sent under it has arrived. For the same time
///   again, answers of this lane are ignored: one might be the late answer to the expired recall.
///
/// A lane that was silent for a lease gives everything back and receives no more updates, so that idle peers cost
/// nothing. All this is our design, and takes place between rnic peers only.
///
/// # Requirements on the caller
///
/// Both ends agree on the meaning of a block. On a cable it is 64 bytes of the packet. A socket buffer is charged for
/// the memory that a packet occupies ([`Charge`](crate::Charge)): there, a block is 64 bytes of that memory, or many
/// small packets would overrun the buffer.
///
/// The caller hands in all packets that have arrived before it polls for limits, or reports a backlog
/// ([`set_backlog`](Self::set_backlog)): otherwise blocks that lie unread in a socket would be lent twice. Hand in
/// the packets and updates of a lane in the order in which they were sent, each once.
#[derive(Clone, Debug)]
pub struct Pool {
    config: PoolConfig,
    bank: u32,
    lanes: Vec<Lane>,
    vacant: Vec<u32>,
    members: u32,
    /// Lanes that have or want something. `share` is the most that each of them is lent.
    active: u32,
    share: u16,
    /// Lanes without credit, in turn.
    waiting: VecDeque<Member>,
    /// Lanes on trial without credit, in turn.
    trials: VecDeque<Member>,
    /// Lanes on trial that were lent a packet.
    trial_holders: Vec<Member>,
    /// Lanes that have little and will run out soon, in turn.
    low: VecDeque<Member>,
    /// Lanes whose limit has changed.
    changed: VecDeque<Member>,
    /// Lanes that are not silent, by the time at which their limits are advertised again.
    periodic: VecDeque<(Instant, Member)>,
    /// Lanes from which blocks were recalled, by the latest time at which these are free.
    returning: VecDeque<(Instant, Member)>,
    /// All lanes that hold something, and some that did.
    holders: Vec<Member>,
    /// The most that any lane holds from which blocks could be recalled.
    peak: u16,
    /// Blocks that were recalled recently and will return soon, if the peers answer.
    expected: u32,
    /// When a lane last reported that it waits.
    last_stalled: Option<Instant>,
    /// Packets have arrived that were not handed in yet.
    has_backlog: bool,
    /// When lanes are searched next, whatever they have.
    next_search: Option<Instant>,
    /// When the turn of a lane with a packet's worth may end.
    next_turn: Option<Instant>,
    /// Peers that are about to join, by the time at which they are given up.
    newcomers: VecDeque<Instant>,
    /// When a lane on trial may have to give back what it does not use.
    next_trial: Option<Instant>,
    /// Kept to reuse its allocation.
    candidates: Vec<Candidate>,
}

impl Pool {
    /// Creates a pool without members.
    ///
    /// # Errors
    ///
    /// The pool could not lend a packet's worth to any lane.
    pub fn new(config: PoolConfig) -> Result<Self, PoolTooSmall> {
        let share = config.share_blocks.min(WINDOW - 1);
        let packet = config.packet_blocks.max(1);
        if share < packet || config.blocks < u32::from(packet) {
            return Err(PoolTooSmall { blocks: config.blocks, share, packet });
        }
        let config = PoolConfig { share_blocks: share, packet_blocks: packet, ..config };
        let mut pool = Self {
            bank: config.blocks,
            config,
            lanes: Vec::new(),
            vacant: Vec::new(),
            members: 0,
            active: 0,
            share,
            waiting: VecDeque::new(),
            trials: VecDeque::new(),
            trial_holders: Vec::new(),
            low: VecDeque::new(),
            changed: VecDeque::new(),
            periodic: VecDeque::new(),
            returning: VecDeque::new(),
            holders: Vec::new(),
            peak: 0,
            expected: 0,
            last_stalled: None,
            has_backlog: false,
            next_search: None,
            next_turn: None,
            newcomers: VecDeque::new(),
            next_trial: None,
            candidates: Vec::new(),
        };
        pool.divide();
        Ok(pool)
    }

    /// Blocks that are neither lent nor occupied.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.bank
    }

    /// Sets whether packets have arrived that were not handed in yet. While that is so, no blocks are declared lost
    /// on expiry of their time: they may be among these packets.
    pub const fn set_backlog(&mut self, has_backlog: bool) {
        self.has_backlog = has_backlog;
    }

    /// The blocks that the pool lends in all: the buffer without the reserve for members' messages.
    fn blocks(&self) -> u32 {
        let newcomers = u32::try_from(self.newcomers.len()).unwrap_or(u32::MAX);
        let said = self.members.saturating_add(newcomers).saturating_mul(self.config.member_blocks.into());
        let kept = said.saturating_sub(self.config.reserve_blocks).min(self.config.blocks / 2);
        let read = said.min(self.config.read_blocks);
        self.config.blocks.saturating_sub(kept + read).max(self.config.packet_blocks.into())
    }

    /// The blocks of the bank that can be lent.
    fn available(&self) -> u32 {
        self.bank.saturating_sub(self.config.blocks - self.blocks())
    }

    /// Announces a peer that is about to join: its messages during the exchange occupy the buffer, so room for them
    /// is kept for a while.
    pub fn expect(&mut self, now: Instant) {
        while self.newcomers.pop_front_if(|until| *until <= now).is_some() {}
        if self.newcomers.len() < MAX_EXPECTED {
            self.newcomers.push_back(now + self.settle());
        }
        self.divide();
    }

    /// Adds a lane. It is lent something at once if at least half of the pool is free and no lane waits.
    pub fn join(&mut self, now: Instant) -> Member {
        let member = self.admit(now);
        self.newcomers.pop_front();
        self.members += 1;
        self.divide();
        if self.available() >= self.blocks() / 2 {
            self.watch(member);
        }
        member
    }

    /// Adds a lane whose peer may have no business with this end. All such lanes together are lent no more than an
    /// eighth of the pool, a packet at a time, and nothing is recalled from other lanes for them.
    pub fn join_on_trial(&mut self, now: Instant) -> Member {
        let member = self.admit(now);
        if let Some(lane) = self.lane(member) {
            lane.is_on_trial = true;
        }
        member
    }

    /// Turns a lane on trial into a regular lane.
    pub fn trust(&mut self, member: Member) {
        let Some(lane) = self.lane(member).filter(|lane| lane.is_on_trial) else { return };
        lane.is_on_trial = false;
        let waits = lane.waits;
        self.members += 1;
        if waits {
            self.waiting.push_back(member);
        }
        self.count(member);
        self.divide();
    }

    /// Makes a place for a lane, and schedules its first limit.
    fn admit(&mut self, now: Instant) -> Member {
        let place = self.vacant.pop().unwrap_or(self.lanes.len() as u32);
        let generation = self.lanes.get(place as usize).map_or(0, |l| l.generation);
        let lane = Lane::new(generation, now);
        match self.lanes.get_mut(place as usize) {
            Some(vacant) => *vacant = lane,
            None => self.lanes.push(lane),
        }
        let member = Member { place, generation };
        self.tell(member);
        self.periodic.push_back((now + self.idle(), member));
        member
    }

    /// Removes a lane. Its loan returns when it can no longer arrive; what it occupies returns on release.
    pub fn leave(&mut self, now: Instant, member: Member) {
        self.take_back(now, member, 0);
        let Some(lane) = self.lane(member) else { return };
        lane.waits = false;
        self.count(member);
        let Some(lane) = self.lane(member) else { return };
        lane.is_member = false;
        self.members -= u32::from(!lane.is_on_trial);
        self.divide();
        self.vacate(member);
    }

    /// Removes a lane whose sender is gone and whose data has all arrived: a new sender was heard that has taken its
    /// place. Its loan is free at once.
    pub fn end(&mut self, now: Instant, member: Member) {
        if let Some(lane) = self.lane(member) {
            let (free, old) = lane.forfeit();
            self.bank += free;
            self.expected = self.expected.saturating_sub(old);
        }
        self.leave(now, member);
    }

    /// Accounts for a packet of `blocks` that arrived and occupies the buffer.
    ///
    /// # Errors
    ///
    /// The lane was lent less than that: the caller must drop the packet.
    pub fn handle_packet(&mut self, now: Instant, member: Member, blocks: u32) -> Result<(), Overrun> {
        let low = self.low_mark();
        let Some(lane) = self.lane(member) else { return Err(Overrun { blocks, free: 0 }) };
        let overrun = Overrun { blocks, free: lane.outstanding() };
        let n = u16::try_from(blocks).map_err(|_| overrun)?;
        let old = lane.consume(n).ok_or(overrun)?;
        lane.occupied += blocks;
        lane.last_active = now;
        lane.repeated = 0;
        let is_low = lane.lent < low;
        self.expected = self.expected.saturating_sub(old);
        self.count(member);
        if is_low {
            self.watch(member);
        }
        Ok(())
    }

    /// Accounts for a packet of `blocks` that was read.
    pub fn release(&mut self, member: Member, blocks: u32) {
        let Some(lane) = self.lanes.get_mut(member.place as usize) else { return };
        if lane.generation != member.generation {
            return;
        }
        let read = blocks.min(lane.occupied);
        lane.occupied -= read;
        let lent = lane.lent;
        self.bank += read;
        if read > 0 && lent < self.low_mark() {
            // The lane may have been lent everything available since its packet arrived, and this release adds to
            // that.
            self.watch(member);
        }
        self.vacate(member);
    }

    /// A lane below this mark is lent more before it runs out.
    fn low_mark(&self) -> u16 {
        let lag = self.config.fcp_on_free_blocks.min(self.share / 2);
        self.config.packet_blocks.max(self.share.saturating_sub(lag))
    }

    /// Handles an update, with the sender's count: blocks that were lost in the network are free again. The update
    /// may also report that the sender waits, or obeys a lower limit. The pool ignores its limit for the other
    /// direction.
    pub fn handle_update(&mut self, now: Instant, member: Member, update: &FlowControlPacket) {
        let Some(lane) = self.lane(member) else { return };
        let Some((lost, old)) = lane.catch_up(update.fctbs) else {
            if self.step_back(now, member, update) {
                self.stalled(now, member, update.fctbs);
            }
            return;
        };
        self.bank += lost;
        self.expected = self.expected.saturating_sub(old);
        self.count(member);
        match update.op {
            Op::Stalled => self.stalled(now, member, update.fctbs),
            Op::Yielded => self.yielded(now, member, update.fccl),
            Op::Normal | Op::Init => {}
        }
    }

    /// Handles a sender that waits and twice in a row reports that it sent less than arrived here: something was
    /// counted twice, because the network made copies, or data came after an update that counted them. The sender's
    /// count is correct. The sender may send the difference as well; those blocks returned to the bank when the data
    /// were read. Returns false if it is too early to tell, or if the bank does not have that many blocks. If the
    /// report was wrong, because data overtook two updates, the next update corrects it.
    fn step_back(&mut self, now: Instant, member: Member, update: &FlowControlPacket) -> bool {
        let bank = self.bank;
        let Some(lane) = self.lane(member) else { return false };
        let waits = update.op == Op::Stalled;
        let Some(taken) = lane.step_back(update.fctbs, bank, waits) else { return false };
        self.bank -= u32::from(taken);
        self.count(member);
        self.list(now, member);
        self.tell(member);
        true
    }

    fn stalled(&mut self, now: Instant, member: Member, fctbs: u16) {
        self.last_stalled = Some(now);
        let Some(lane) = self.lane(member) else { return };
        lane.last_active = now;
        lane.repeated = 0;
        // The lane may have credit that was not advertised yet. If it reports twice that it waits and sent nothing in
        // between, the update that advertised its credit was lost.
        let repeated = lane.stalled_at.replace(fctbs) == Some(fctbs);
        if !lane.knows_limit() || repeated && lane.lent > 0 {
            self.tell(member);
        }
        self.want(now, member);
    }

    fn yielded(&mut self, now: Instant, member: Member, obeyed: u16) {
        let Some(lane) = self.lane(member) else { return };
        let Some(rest) = lane.yielded(now, obeyed) else { return };
        let (lent, knows_limit) = (lane.lent, lane.knows_limit());
        self.bank += rest;
        self.expected = self.expected.saturating_sub(rest);
        // From now on blocks can be recalled from it again.
        self.peak = self.peak.max(lent);
        if !knows_limit {
            // Arrivals since the recall have raised the limit.
            self.tell(member);
        }
    }

    /// Returns a limit (FCCL) to advertise to a lane now.
    pub fn poll_limit(&mut self, now: Instant) -> Option<(Member, u16)> {
        while self.newcomers.pop_front_if(|until| *until <= now).is_some() {}
        self.collect(now);
        self.lend(now);
        self.renew(now);
        while let Some(member) = self.changed.pop_front() {
            if let Some(lane) = self.lane(member) {
                return Some((member, lane.tell(now)));
            }
        }
        None
    }

    /// Schedules limits that were not advertised for a period; recalls everything from lanes that are silent.
    fn renew(&mut self, now: Instant) {
        let (period, idle) = (Duration::from_micros(self.config.fcp_period.into()), self.idle());
        let lease = Duration::from_micros(self.config.lease.into());
        // Some lane may want more than its share.
        let is_scarce = self.share < self.config.share_blocks
            && self.last_stalled.is_some_and(|at| now.saturating_duration_since(at) <= idle);
        while let Some((_, member)) = self.periodic.pop_front_if(|(at, _)| *at <= now) {
            let Some(lane) = self.lane(member) else { continue };
            let silent = now.saturating_duration_since(lane.last_active);
            if silent > lease && lane.waits {
                let is_due = now.saturating_duration_since(lane.last_told) >= lease;
                self.periodic.push_back((now + idle, member));
                if is_due {
                    self.tell(member);
                }
                continue;
            }
            if silent > lease {
                // Advertise this limit, and nothing more until the lane wants something.
                lane.listed = false;
                self.take_back(now, member, 0);
                continue;
            }
            // An update may have been lost; a lane that still sends nothing has no use for it.
            let due = lane.last_told + period * (1 << lane.repeated.min(MAX_REPEATS));
            let is_idle = is_scarce && silent > idle && lane.may_be_asked(now);
            if due <= now {
                lane.repeated = lane.repeated.saturating_add(1);
            }
            let next = if due <= now { period } else { due.saturating_duration_since(now) };
            self.periodic.push_back((now + next.min(idle), member));
            if due <= now {
                self.tell(member);
            }
            if is_idle {
                // Without this lane there is more for each of the others.
                self.take_back(now, member, 0);
            }
        }
    }

    /// When a limit may be due if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = |queue: &VecDeque<(Instant, Member)>| queue.front().map(|(at, _)| *at);
        let search = [self.next_search, self.next_turn].into_iter().flatten().min();
        let search = search.filter(|_| !self.waiting.is_empty());
        let returning = if self.has_backlog { None } else { first(&self.returning) };
        let trial = self.next_trial.filter(|_| self.waiting.is_empty());
        [returning, first(&self.periodic), search, trial].into_iter().flatten().min()
    }

    fn lane(&mut self, member: Member) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(member.place as usize)?;
        (lane.is_member && lane.generation == member.generation).then_some(lane)
    }

    /// Lists a lane for periodic advertisement of its limit.
    fn list(&mut self, now: Instant, member: Member) {
        let due = now + self.idle();
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.listed, true)) {
            self.periodic.push_back((due, member));
        }
    }

    const fn idle(&self) -> Duration {
        Duration::from_micros(self.config.idle as u64)
    }

    /// Queues a lane for advertisement of its limit.
    fn tell(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.changed, true)) {
            self.changed.push_back(member);
        }
    }

    /// Queues a lane for a loan.
    fn want(&mut self, now: Instant, member: Member) {
        let Some(lane) = self.lane(member) else { return };
        let is_on_trial = lane.is_on_trial;
        if !std::mem::replace(&mut lane.waits, true) {
            if is_on_trial {
                self.trials.push_back(member);
            } else {
                self.waiting.push_back(member);
            }
            self.count(member);
            self.list(now, member);
        }
    }

    /// Queues a lane for a loan once no lane waits.
    fn watch(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.is_low, true)) {
            self.low.push_back(member);
        }
    }

    /// Updates the count of lanes that have or want something, for one lane.
    fn count(&mut self, member: Member) {
        let Some(lane) = self.lane(member) else { return };
        let is_active = (lane.waits || lane.lent > 0) && !lane.is_on_trial;
        let was_active = std::mem::replace(&mut lane.counted, is_active);
        if lane.lent > 0 && !std::mem::replace(&mut lane.holds, true) {
            self.holders.push(member);
        }
        match (was_active, is_active) {
            (false, true) => self.active += 1,
            (true, false) => self.active -= 1,
            _ => return,
        }
        self.divide();
    }

    /// Computes the share: an equal part for each lane that has or wants something, but a packet at least.
    fn divide(&mut self) {
        let equal = self.blocks() / self.active.max(1);
        let equal = u16::try_from(equal).unwrap_or(WINDOW);
        self.share = equal.clamp(self.config.packet_blocks, self.config.share_blocks);
    }

    /// Frees the place of a lane that left, once none of its blocks remain.
    fn vacate(&mut self, member: Member) {
        let Some(lane) = self.lanes.get_mut(member.place as usize) else { return };
        let is_done = !lane.is_member && lane.occupied == 0 && lane.recall.is_none();
        if is_done && lane.generation == member.generation {
            lane.generation = lane.generation.wrapping_add(1);
            self.vacant.push(member.place);
        }
    }
}
