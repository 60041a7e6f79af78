//! One buffer that the lanes of many peers share.

use super::{Op, Overrun, WINDOW, advanced, distance};
use crate::setting::settable;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The buffer, in blocks: what is left of it after the reserve for what needs no credit.
    pub blocks: u32,
    /// The largest packet, in blocks: the least that is lent.
    pub packet_blocks: u16,
    /// The most that one lane is lent, in blocks; at most 2048.
    pub share_blocks: u16,
    /// The longest time between two updates of a lane, in microseconds; twice that at most. Our choice, as all that
    /// follow: what a process can keep.
    pub fcp_period: u32,
    /// How long a limit holds, in microseconds; several periods, so that some updates may be lost.
    pub lease: u32,
    /// After how long blocks that were taken back are free again, in microseconds: the lease, and the longest time that
    /// an update and a packet may be on the way.
    pub settle: u32,
}

settable!(PoolConfig: blocks packet_blocks share_blocks fcp_period lease settle);

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            blocks: 4096,
            packet_blocks: 66,
            share_blocks: WINDOW,
            fcp_period: 1_000,
            lease: 10_000,
            settle: 50_000,
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

#[derive(Clone, Debug)]
struct Lane {
    generation: u32,
    /// Is a member, or waits for its last blocks.
    is_member: bool,
    /// Blocks received (ABR).
    received: u16,
    /// Blocks that it may send.
    lent: u16,
    /// Blocks that arrived and were not yet read.
    occupied: u32,
    /// Blocks that were taken back, and may still arrive until then.
    returning: Option<(Instant, u16)>,
    /// Waits for blocks.
    wants: bool,
    /// Its limit has changed and was not yet told.
    changed: bool,
    /// Stands among those that are told their limits again and again.
    listed: bool,
    /// When it was heard of, or lent something.
    last_active: Instant,
    last_told: Instant,
}

/// One buffer that is lent to the lanes of many peers.
///
/// An InfiniBand port has a buffer for each lane, and one peer. A socket has one buffer, for all peers. Divided evenly
/// it would hold less than a packet for each of many, most of which are silent at any time. So here blocks are lent:
/// every block is in the bank, or lent (a peer may send it), or occupied (it arrived and was not yet read), and never
/// two of these. Blocks that become free go to those who want more, in turn, a packet's worth at least.
///
/// A peer that falls silent keeps what it was lent, and on InfiniBand nobody could take that back: a lower limit may
/// cross packets on the way. Therefore limits between rnic peers hold for a time only, the **lease**
/// ([`CreditSender::new`](super::CreditSender::new)), unless they are renewed. To take blocks back, the limit is lowered;
/// when `settle` has passed since, whether that update arrived or not, the old limit is void and what was sent under it
/// has arrived, and the blocks are in the bank again. A sender without credit says that a packet waits
/// ([`Op::Stalled`](super::Op::Stalled)). A lane that was silent for a lease is told nothing any more, so that peers at rest
/// cost nothing; what it was lent comes back. All this is our design, and takes place between rnic peers only.
///
/// What a block stands for is up to both ends. On a cable it is 64 bytes of the packet. A socket buffer is charged for the
/// memory that a packet occupies ([`Charge`](crate::Charge)): there, 64 bytes of that, or many small packets would
/// overrun it.
///
/// The caller hands in all packets that have arrived before it asks for limits: blocks that lie unread in a socket would
/// be lent twice otherwise.
#[derive(Clone, Debug)]
pub struct Pool {
    config: PoolConfig,
    bank: u32,
    lanes: Vec<Lane>,
    vacant: Vec<u32>,
    /// Lanes that want more, in turn.
    wanting: VecDeque<Member>,
    /// Lanes whose limit has changed.
    changed: VecDeque<Member>,
    /// Lanes that are not silent, by the time at which they are told their limits again.
    periodic: VecDeque<(Instant, Member)>,
    /// Lanes with blocks that are on their way back, by the time at which they are.
    returning: VecDeque<(Instant, Member)>,
    /// Lanes that have or want something, and when they are counted next.
    active: u32,
    next_count: Option<Instant>,
    /// When silent lanes are looked for next.
    next_search: Option<Instant>,
}

impl Pool {
    /// A pool without members.
    ///
    /// # Errors
    ///
    /// It could not lend a packet's worth to anybody.
    pub fn new(config: PoolConfig) -> Result<Self, PoolTooSmall> {
        let share = config.share_blocks.min(WINDOW);
        let packet = config.packet_blocks.max(1);
        if share < packet || config.blocks < u32::from(packet) {
            return Err(PoolTooSmall { blocks: config.blocks, share, packet });
        }
        let config = PoolConfig { share_blocks: share, packet_blocks: packet, ..config };
        Ok(Self {
            bank: config.blocks,
            config,
            lanes: Vec::new(),
            vacant: Vec::new(),
            wanting: VecDeque::new(),
            changed: VecDeque::new(),
            periodic: VecDeque::new(),
            returning: VecDeque::new(),
            active: 0,
            next_count: None,
            next_search: None,
        })
    }

    /// Blocks that nobody was lent and nothing occupies.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.bank
    }

    /// A lane joins. It is lent something at once if at least half of the pool is free.
    pub fn join(&mut self, now: Instant) -> Member {
        let place = self.vacant.pop().unwrap_or(self.lanes.len() as u32);
        let generation = self.lanes.get(place as usize).map_or(0, |l| l.generation);
        let lane = Lane {
            generation,
            is_member: true,
            received: 0,
            lent: 0,
            occupied: 0,
            returning: None,
            wants: false,
            changed: false,
            listed: true,
            last_active: now,
            last_told: now,
        };
        match self.lanes.get_mut(place as usize) {
            Some(vacant) => *vacant = lane,
            None => self.lanes.push(lane),
        }
        let member = Member { place, generation };
        self.tell(member);
        self.periodic.push_back((now + self.period(), member));
        if self.bank >= self.config.blocks / 2 {
            self.want(member);
        }
        member
    }

    /// A lane leaves. What it was lent comes back when it can no longer arrive, what it occupies when it is released.
    pub fn leave(&mut self, now: Instant, member: Member) {
        self.take_back(now, member);
        let Some(lane) = self.lane(member) else { return };
        lane.is_member = false;
        self.vacate(member);
    }

    /// A packet of `blocks` arrived, and occupies the buffer.
    ///
    /// # Errors
    ///
    /// It was lent less than that: the packet is to be dropped.
    pub fn handle_packet(&mut self, now: Instant, member: Member, blocks: u32) -> Result<(), Overrun> {
        let low = self.config.share_blocks / 2;
        let Some(lane) = self.lane(member) else { return Err(Overrun { blocks, free: 0 }) };
        let returning = lane.returning.map_or(0, |(_, n)| n);
        let overrun = Overrun { blocks, free: u32::from(lane.lent) + u32::from(returning) };
        let n = u16::try_from(blocks).map_err(|_| overrun)?;
        // What was sent under an older limit comes first.
        let old = n.min(returning);
        lane.lent = lane.lent.checked_sub(n - old).ok_or(overrun)?;
        if let Some((_, rest)) = &mut lane.returning {
            *rest -= old;
        }
        lane.received = advanced(lane.received, n);
        lane.occupied += blocks;
        lane.last_active = now;
        let wants = lane.lent < low;
        if old > 0 {
            // What it may send beyond that is as much as before: the limit is higher now.
            self.tell(member);
        }
        if wants {
            self.want(member);
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
        self.bank += read;
        self.vacate(member);
    }

    /// An update arrived, with the sender's count: blocks that were lost on the way are free again.
    pub fn handle_update(&mut self, now: Instant, member: Member, op: Op, fctbs: u16) {
        let Some(lane) = self.lane(member) else { return };
        let lost = distance(lane.received, fctbs);
        let returning = lane.returning.map_or(0, |(_, n)| n);
        // More than was lent is no count of this lane's.
        if lost > lane.lent.saturating_add(returning) {
            return;
        }
        let old = lost.min(returning);
        if let Some((_, rest)) = &mut lane.returning {
            *rest -= old;
        }
        lane.lent -= lost - old;
        lane.received = fctbs & super::MASK;
        if op == Op::Stalled {
            lane.last_active = now;
        }
        self.bank += u32::from(lost);
        if old > 0 {
            self.tell(member);
        }
        if op == Op::Stalled {
            self.want(member);
        }
    }

    /// A limit (FCCL) that is to be told to a lane now.
    pub fn poll_limit(&mut self, now: Instant) -> Option<(Member, u16)> {
        self.collect(now);
        self.lend(now);
        while let Some(member) = self.changed.pop_front() {
            if let Some(limit) = self.told(now, member) {
                return Some((member, limit));
            }
        }
        while let Some((_, member)) = self.periodic.pop_front_if(|(at, _)| *at <= now) {
            let (period, lease) = (self.period(), self.lease());
            let Some(lane) = self.lane(member) else { continue };
            if now.saturating_duration_since(lane.last_active) > lease {
                // It is silent. It is told nothing more before it wants something, and what it was lent comes back.
                lane.listed = false;
                self.take_back(now, member);
                continue;
            }
            let due = lane.last_told + period;
            self.periodic.push_back((due.max(now + Duration::from_nanos(1)), member));
            if due <= now
                && let Some(limit) = self.told(now, member)
            {
                return Some((member, limit));
            }
        }
        None
    }

    /// The limit of a lane, which is told now.
    fn told(&mut self, now: Instant, member: Member) -> Option<u16> {
        let lane = self.lane(member)?;
        (lane.changed, lane.last_told) = (false, now);
        Some(advanced(lane.received, lane.lent))
    }

    /// When a limit may be due without anything happening.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = |queue: &VecDeque<(Instant, Member)>| queue.front().map(|(at, _)| *at);
        first(&self.returning).into_iter().chain(first(&self.periodic)).min()
    }

    fn lane(&mut self, member: Member) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(member.place as usize)?;
        (lane.is_member && lane.generation == member.generation).then_some(lane)
    }

    const fn lease(&self) -> Duration {
        Duration::from_micros(self.config.lease as u64)
    }

    /// Has a lane told its limit again and again.
    fn list(&mut self, now: Instant, member: Member) {
        let due = now + self.period();
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.listed, true)) {
            self.periodic.push_back((due, member));
        }
    }

    const fn period(&self) -> Duration {
        Duration::from_micros(self.config.fcp_period as u64)
    }

    /// Queues a lane to be told its limit.
    fn tell(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.changed, true)) {
            self.changed.push_back(member);
        }
    }

    /// Queues a lane to be lent more.
    fn want(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.wants, true)) {
            self.wanting.push_back(member);
        }
    }

    /// What each lane is lent: an equal part for each that has or wants something, but a packet at least.
    fn share(&mut self, now: Instant) -> u16 {
        if self.next_count.is_none_or(|at| at <= now) {
            self.next_count = Some(now + self.period());
            self.active = self.lanes.iter().filter(|l| l.wants || l.lent > 0).count() as u32;
        }
        let equal = self.config.blocks / self.active.max(1);
        u16::try_from(equal).unwrap_or(WINDOW).clamp(self.config.packet_blocks, self.config.share_blocks)
    }

    /// Lends what the bank has, in turn.
    fn lend(&mut self, now: Instant) {
        if self.wanting.is_empty() {
            return;
        }
        let share = self.share(now);
        let (packet, bank) = (self.config.packet_blocks, self.bank);
        while let Some(member) = self.wanting.front().copied() {
            let bank_now = self.bank;
            let Some(lane) = self.lane(member) else {
                self.wanting.pop_front();
                continue;
            };
            let more = share.saturating_sub(lane.lent).min(u16::try_from(bank_now).unwrap_or(WINDOW));
            if lane.lent + more < packet {
                break;
            }
            (lane.lent, lane.wants) = (lane.lent + more, false);
            // It gets a lease's time to use it.
            lane.last_active = now;
            self.bank -= u32::from(more);
            self.wanting.pop_front();
            if more > 0 {
                self.tell(member);
                self.list(now, member);
            }
        }
        // Somebody gets less than there would be if nobody else had anything.
        if share < self.config.share_blocks || bank < u32::from(packet) {
            self.search_silent(now);
        }
    }

    /// Takes back what lanes were lent that have been silent for a lease; looks for them once in a lease.
    fn search_silent(&mut self, now: Instant) {
        let lease = self.lease();
        if self.next_search.is_some_and(|at| now < at) {
            return;
        }
        self.next_search = now.checked_add(lease);
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(place) else { break };
            let member = Member { place: place as u32, generation: lane.generation };
            if lane.is_member && lane.lent > 0 && now.saturating_duration_since(lane.last_active) > lease {
                self.take_back(now, member);
                self.tell(member);
            }
        }
    }

    /// Lowers the limit of a lane to what has arrived.
    fn take_back(&mut self, now: Instant, member: Member) {
        let until = now + Duration::from_micros(self.config.settle.into());
        let Some(lane) = self.lane(member).filter(|l| l.lent > 0) else { return };
        let lent = std::mem::take(&mut lane.lent);
        // All of it has settled when the last of it has.
        let earlier = lane.returning.map_or(0, |(_, n)| n);
        let is_new = lane.returning.replace((until, earlier + lent)).is_none();
        if is_new {
            self.returning.push_back((until, member));
        }
    }

    /// Puts blocks into the bank that can no longer arrive.
    fn collect(&mut self, now: Instant) {
        while let Some((_, member)) = self.returning.pop_front_if(|(at, _)| *at <= now) {
            let lane =
                self.lanes.get_mut(member.place as usize).filter(|l| l.generation == member.generation);
            let Some(lane) = lane else { continue };
            match lane.returning {
                Some((at, _)) if at > now => self.returning.push_back((at, member)),
                Some((_, n)) => {
                    lane.returning = None;
                    self.bank += u32::from(n);
                    self.vacate(member);
                }
                None => {}
            }
        }
    }

    /// Makes the place of a lane that left free for others, once nothing is left of it.
    fn vacate(&mut self, member: Member) {
        let Some(lane) = self.lanes.get_mut(member.place as usize) else { return };
        let is_done = !lane.is_member && lane.occupied == 0 && lane.returning.is_none();
        if is_done && lane.generation == member.generation {
            lane.generation = lane.generation.wrapping_add(1);
            self.vacant.push(member.place);
        }
    }
}
