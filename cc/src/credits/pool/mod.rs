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

/// Peers that are about to join, and for whose messages room is kept. Our choice: no more start at the same moment.
const MAX_EXPECTED: usize = 64;

/// A limit is told again after a period, and if nothing came, after two from then on.
const MAX_REPEATS: u8 = 1;

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The buffer, in blocks: what is left of it after the reserve for what needs no credit.
    pub blocks: u32,
    /// The largest packet, in blocks: the least that is lent.
    pub packet_blocks: u16,
    /// The most that one lane is lent, in blocks; at most 2047: a limit that was lowered by 2048 would look like one that
    /// was raised by that.
    pub share_blocks: u16,
    /// How far the limit of a lane that sends may lag behind what there is for it, in blocks, half of its share at the
    /// most. On a long cable a lag is room that nobody uses; each update is a packet, which is why the default is half of
    /// the share.
    pub fcp_on_free_blocks: u16,
    /// The longest time between two updates of a lane that is in use, in microseconds, and twice that if it does nothing. Our
    /// choice, as all that follow. It only keeps limits from running out: who lacks an update that was lost says that it waits. So
    /// it should be long: a slow reader with many peers has to read what they tell it, too.
    pub fcp_period: u32,
    /// Who does nothing for so long with what it was lent has to give it back if others wait, in microseconds: what a
    /// process can keep.
    pub idle: u32,
    /// How long a limit holds, in microseconds, from when the sender reads it; several periods, so that some updates may
    /// be lost. A lane that was silent for so long is told nothing more; one that waits for blocks is told its limit once in
    /// this time even if there is nothing for it: silence would look as if nobody were there.
    pub lease: u32,
    /// After how long blocks that were taken back from a peer that does not answer are free again, in microseconds: the
    /// lease, and the longest time from when an update is told until what was sent under it has been read here. If that
    /// takes longer, as when a process is stopped, the buffer may overrun. Peers that answer do not wait for this.
    pub settle: u32,
    /// What a member says about its lane takes no credit, but occupies the buffer too: so many blocks at a time.
    pub member_blocks: u16,
    /// What is kept back for that outside the pool, in blocks. If there are more members than this is enough for, the pool
    /// lends less, down to half of it.
    pub reserve_blocks: u32,
    /// What members said and was read may go on occupying the buffer while more packets wait: as much as each says at a
    /// time, and this many blocks at most. The pool lends so much less.
    pub read_blocks: u32,
    /// So many packets are kept for members that have less than a packet's worth, of an eighth of the pool at most. Who has been
    /// lent the rest gives it back at once if it answers; but the peers of a program that was killed, and started again,
    /// would have nothing for it before `settle` is over.
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

/// A pool that could not lend a packet's worth.
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
    /// Its place in tables: members that there are at one time have different ones, as small as can be.
    #[must_use]
    pub const fn index(self) -> usize {
        self.place as usize
    }
}

/// One buffer that is lent to the lanes of many peers.
///
/// An InfiniBand port has a buffer for each lane, and one peer. A socket has one buffer, for all peers. Divided evenly
/// it would hold less than a packet for each of many, most of which are silent at any time. So here blocks are lent:
/// every block is in the bank, or lent (a peer may send it), or returning (it was lent, was taken back, and may still
/// arrive), or occupied (it arrived and was not yet read), and never two of these.
///
/// # Who is lent what
///
/// The share of a lane is an equal part of the pool for each lane that has or wants something, a packet's worth at
/// least. A sender without credit says that a packet waits ([`Op::Stalled`](super::Op::Stalled)): such lanes come first,
/// in turn. Lanes that use what they have are lent more before they run out of it, from what those leave. Of several
/// members none takes more than half of the bank at once, less if it has nothing yet, and a little of it is kept for
/// members that begin to send, and for such that come anew ([`PoolConfig::newcomers`]).
///
/// A lane may join on trial ([`Pool::join_on_trial`]): what it gets is never taken from others.
///
/// If there is no packet's worth for a lane that waits, blocks are taken back at once: all from lanes that did nothing for
/// a period, and what others have beyond their share, the largest first. A lane that sends keeps a packet's worth, unless
/// there are more lanes than packets: then they take turns. While lanes wait at all, those that do nothing lose what they
/// have within two periods, so that the share grows.
///
/// # How blocks come back
///
/// On InfiniBand a limit is never lowered, because the lower limit may cross packets on the way. Between rnic peers it
/// may be, and two things tell when the blocks are free again:
///
/// - The sender answers that it obeys the lower limit ([`Op::Yielded`](super::Op::Yielded)). Because it comes after all
///   that was sent under the old limit, everything that has not arrived by then is free: one round trip.
/// - A sender that does not answer: limits hold for a time only, the **lease**
///   ([`CreditSender::new`](super::CreditSender::new)), unless they are renewed. When `settle` has passed, whether the
///   update arrived or not, the old limit is void and what was sent under it has arrived. For as long again no answer
///   of this lane is believed: it might be the one that was waited for, on its way since then.
///
/// A lane that was silent for a lease gives everything back, and is told nothing any more, so that peers at rest cost
/// nothing. All this is our design, and takes place between rnic peers only.
///
/// # What to know
///
/// What a block stands for is up to both ends. On a cable it is 64 bytes of the packet. A socket buffer is charged for the
/// memory that a packet occupies ([`Charge`](crate::Charge)): there, 64 bytes of that, or many small packets would
/// overrun it.
///
/// The caller hands in all packets that have arrived before it asks for limits, or says that there are more
/// ([`set_backlog`](Self::set_backlog)): blocks that lie unread in a socket would be lent twice otherwise. Packets and updates of a lane have to be handed in, in the order in which they were sent and
/// none twice.
#[derive(Clone, Debug)]
pub struct Pool {
    config: PoolConfig,
    bank: u32,
    lanes: Vec<Lane>,
    vacant: Vec<u32>,
    members: u32,
    /// Lanes that have or want something, and what is lent to each of them at most.
    active: u32,
    share: u16,
    /// Lanes without credit, in turn.
    waiting: VecDeque<Member>,
    /// Lanes on trial without credit, in turn.
    trials: VecDeque<Member>,
    /// Lanes on trial that were lent a packet.
    trial_holders: Vec<Member>,
    /// Lanes that have little and will be without it soon, in turn.
    low: VecDeque<Member>,
    /// Lanes whose limit has changed.
    changed: VecDeque<Member>,
    /// Lanes that are not silent, by the time at which they are told their limits again.
    periodic: VecDeque<(Instant, Member)>,
    /// Lanes from which blocks were taken back, by the time at which these are free at the latest.
    returning: VecDeque<(Instant, Member)>,
    /// All lanes that hold something, and some that did.
    holders: Vec<Member>,
    /// No lane from which something could be taken back has more than this.
    peak: u16,
    /// Blocks that were taken back lately and will come soon, if the peers answer.
    expected: u32,
    /// When a lane last said that it waits.
    last_stalled: Option<Instant>,
    /// Packets have arrived that were not handed in yet.
    has_backlog: bool,
    /// When lanes are looked through next, whatever they have.
    next_search: Option<Instant>,
    /// When somebody's turn with a packet's worth may end.
    next_turn: Option<Instant>,
    /// Peers that are about to join, by when they are given up.
    newcomers: VecDeque<Instant>,
    /// When a lane on trial may have to give back what it does nothing with.
    next_trial: Option<Instant>,
    /// Kept for its memory.
    candidates: Vec<Candidate>,
}

impl Pool {
    /// A pool without members.
    ///
    /// # Errors
    ///
    /// It could not lend a packet's worth to anybody.
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

    /// Blocks that nobody was lent and nothing occupies.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.bank
    }

    /// Whether packets have arrived that were not handed in yet. While that is so, no blocks are taken for lost because
    /// of the time: they may be among these.
    pub const fn set_backlog(&mut self, has_backlog: bool) {
        self.has_backlog = has_backlog;
    }

    /// What is lent in all: the buffer without what is kept back for what members say.
    fn blocks(&self) -> u32 {
        let newcomers = u32::try_from(self.newcomers.len()).unwrap_or(u32::MAX);
        let said = self.members.saturating_add(newcomers).saturating_mul(self.config.member_blocks.into());
        let kept = said.saturating_sub(self.config.reserve_blocks).min(self.config.blocks / 2);
        let read = said.min(self.config.read_blocks);
        self.config.blocks.saturating_sub(kept + read).max(self.config.packet_blocks.into())
    }

    /// What of the bank can be lent.
    fn available(&self) -> u32 {
        self.bank.saturating_sub(self.config.blocks - self.blocks())
    }

    /// A peer was heard of that is about to join: what it says on the way occupies the buffer, so that much is kept back for
    /// a while.
    pub fn expect(&mut self, now: Instant) {
        while self.newcomers.pop_front_if(|until| *until <= now).is_some() {}
        if self.newcomers.len() < MAX_EXPECTED {
            self.newcomers.push_back(now + self.settle());
        }
        self.divide();
    }

    /// A lane joins. It is lent something at once if at least half of the pool is free and nobody waits.
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

    /// A lane joins of which it is not known whether anybody here has to do with it. All such lanes together are lent no
    /// more than an eighth of the pool, a packet at a time, and nothing is taken back from others for them.
    pub fn join_on_trial(&mut self, now: Instant) -> Member {
        let member = self.admit(now);
        if let Some(lane) = self.lane(member) {
            lane.is_on_trial = true;
        }
        member
    }

    /// A lane on trial becomes one like all others.
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

    /// Makes a place for a lane, and has it told its limit.
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

    /// A lane leaves. What it was lent comes back when it can no longer arrive, what it occupies when it is released.
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

    /// A lane leaves whose sender is gone, and what it sent has all arrived: another was heard that has taken its place. What
    /// it was lent is free at once.
    pub fn end(&mut self, now: Instant, member: Member) {
        if let Some(lane) = self.lane(member) {
            let (free, old) = lane.forfeit();
            self.bank += free;
            self.expected = self.expected.saturating_sub(old);
        }
        self.leave(now, member);
    }

    /// A packet of `blocks` arrived, and occupies the buffer.
    ///
    /// # Errors
    ///
    /// It was lent less than that: the packet is to be dropped.
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

    /// A packet of `blocks` was read.
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
            // It may have been lent what there was since its packet arrived, and this is more.
            self.watch(member);
        }
        self.vacate(member);
    }

    /// A lane that has less than this is lent more before it runs out.
    fn low_mark(&self) -> u16 {
        let lag = self.config.fcp_on_free_blocks.min(self.share / 2);
        self.config.packet_blocks.max(self.share.saturating_sub(lag))
    }

    /// An update arrived, with the sender's count: blocks that were lost on the way are free again. That it waits, or
    /// obeys a lower limit, is heard too; its limit for the other direction is nothing to the pool.
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

    /// A sender that waits says that it sent less than arrived here, and so did its update before: something was counted
    /// twice, because the network made copies, or data came after an update that counted them. Its count is right. It may
    /// send what lies between the two as well; that came back into the bank when the data were read. False if that cannot be
    /// said yet, or the bank does not have so much. If it was said in error, of two updates that data overtook, the next
    /// update puts it right.
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
        // It may have credit that it was not told of yet. If it says twice that it waits and sent nothing in between, it was
        // told of it in an update that was lost.
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
        // From now on it can be asked again.
        self.peak = self.peak.max(lent);
        if !knows_limit {
            // What arrived since it was asked has raised it.
            self.tell(member);
        }
    }

    /// A limit (FCCL) that is to be told to a lane now.
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

    /// Has lanes told their limits again that were not told for a period; takes everything back from those that are silent.
    fn renew(&mut self, now: Instant) {
        let (period, idle) = (Duration::from_micros(self.config.fcp_period.into()), self.idle());
        let lease = Duration::from_micros(self.config.lease.into());
        // Somebody may want more than its share.
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
                // It is told this, and nothing more before it wants something.
                lane.listed = false;
                self.take_back(now, member, 0);
                continue;
            }
            // An update may have been lost; who still sends nothing has no use for it.
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
                // Without it there is more for each.
                self.take_back(now, member, 0);
            }
        }
    }

    /// When a limit may be due without anything happening.
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

    /// Has a lane told its limit again and again.
    fn list(&mut self, now: Instant, member: Member) {
        let due = now + self.idle();
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.listed, true)) {
            self.periodic.push_back((due, member));
        }
    }

    const fn idle(&self) -> Duration {
        Duration::from_micros(self.config.idle as u64)
    }

    /// Queues a lane to be told its limit.
    fn tell(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.changed, true)) {
            self.changed.push_back(member);
        }
    }

    /// Queues a lane to be lent something.
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

    /// Queues a lane to be lent something if nobody waits.
    fn watch(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.is_low, true)) {
            self.low.push_back(member);
        }
    }

    /// What a lane has or wants may have changed.
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

    /// Computes what each lane is lent: an equal part for each that has or wants something, but a packet at least.
    fn divide(&mut self) {
        let equal = self.blocks() / self.active.max(1);
        let equal = u16::try_from(equal).unwrap_or(WINDOW);
        self.share = equal.clamp(self.config.packet_blocks, self.config.share_blocks);
    }

    /// Makes the place of a lane that left free for others, once nothing is left of it.
    fn vacate(&mut self, member: Member) {
        let Some(lane) = self.lanes.get_mut(member.place as usize) else { return };
        let is_done = !lane.is_member && lane.occupied == 0 && lane.recall.is_none();
        if is_done && lane.generation == member.generation {
            lane.generation = lane.generation.wrapping_add(1);
            self.vacant.push(member.place);
        }
    }
}
