//! One buffer that the lanes of many peers share.

mod lane;
mod lend;
#[cfg(test)]
mod tests;

use super::{CreditMessage, Overrun};
use crate::vl::Vl;
use lane::Lane;
use std::collections::VecDeque;
use time::{Duration, Instant};

/// The most peers about to join for whose messages room is kept. Our choice: no more start at the same moment.
const MAX_EXPECTED: usize = 64;

/// Settings of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The buffer, in blocks: what is left of it after the reserve for messages that need no credit.
    pub blocks: u32,
    /// The largest packet, in blocks: what a lane that waits needs at most.
    pub packet_blocks: u16,
    /// How far the limit of a lane that sends may lag behind the blocks available to it, in blocks; at most half of its
    /// share, or two thirds of a large one, which is the default, because each grant is a packet.
    pub lag: u32,
    /// A lane that does nothing for this time with what it was granted has to give it back if others wait: an interval
    /// that a process can keep.
    pub idle: Duration,
    /// How long a grant holds, from when it arrives.
    pub lease: Duration,
    /// How much later than that what was sent under it may arrive here: the transit of the grant and of the data, and the
    /// time that a process may lose between deciding to send and sending. If that takes longer, the buffer may overrun.
    /// Peers that answer do not wait for this.
    pub transit: Duration,
    /// The blocks that the messages of a member about its lane occupy at a time. Such messages take no credit, but
    /// occupy the buffer too.
    pub member_blocks: u16,
    /// The blocks kept outside the pool for these messages. If there are more members than this is enough for, the
    /// pool lends less, down to half of its size.
    pub reserve_blocks: u32,
    /// Messages of members that were read may still occupy the buffer while more packets wait: as much as each member
    /// sends at a time, and this many blocks at most. The pool lends that much less.
    pub read_blocks: u32,
    /// The number of packets kept for lanes that have nothing, up to an eighth of the pool.
    pub newcomers: u16,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            blocks: 4096,
            packet_blocks: 66,
            lag: u32::MAX,
            idle: Duration::from_millis(1),
            lease: Duration::from_millis(10),
            transit: Duration::from_millis(40),
            member_blocks: 0,
            reserve_blocks: 0,
            read_blocks: 0,
            newcomers: 0,
        }
    }
}

/// The pool could not lend a packet's worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {blocks} blocks does not hold a packet of {packet} blocks")]
pub struct PoolTooSmall {
    /// The blocks of the pool.
    pub blocks: u32,
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

/// One buffer that is lent to the lanes of many peers: see the [module](super) for the law.
///
/// An InfiniBand port has a buffer for each lane, and one peer. A socket has one buffer for all peers. Divided evenly
/// among many peers, most of which are silent at any time, it would hold less than a packet for each. So the pool
/// lends blocks to those that ask.
///
/// # Requirements on the caller
///
/// Both ends agree on the meaning of a block. On a cable it is 64 bytes of the packet. A socket buffer is charged for
/// the memory that a packet occupies ([`Charge`](crate::Charge)): there, a block is a part of that memory, or many
/// small packets would overrun the buffer.
///
/// The caller hands in all packets that have arrived before it polls for grants, or reports a backlog
/// ([`set_backlog`](Self::set_backlog)): otherwise blocks that lie unread in a socket would be lent twice. Hand in
/// the packets and asks of a lane in the order in which they were sent.
#[derive(Clone, Debug)]
pub struct Pool {
    config: PoolConfig,
    lanes: Vec<Lane>,
    vacant: Vec<u32>,
    /// Sums over all lanes: blocks that may still arrive or have not been read; and of these, those of lanes on trial.
    taken: u64,
    on_trial: u64,
    /// Regular members, and how many of them have or want something.
    members: u32,
    active: u32,
    /// Lanes with a packet that waits, in turn: regular ones, and those on trial.
    waiting: [VecDeque<Member>; 2],
    /// Lanes that will wait soon, in turn.
    low: VecDeque<Member>,
    /// Lanes that are to be told their limits.
    changed: VecDeque<Member>,
    /// Packets have arrived that were not handed in yet.
    has_backlog: bool,
    /// When lanes are searched next for blocks to take back, and the share when they were last.
    next_search: Option<Instant>,
    searched_at_share: u32,
    /// Peers that are about to join, by the time at which they are given up.
    newcomers: VecDeque<Instant>,
}

impl Pool {
    /// Creates a pool without members.
    ///
    /// # Errors
    ///
    /// The pool could not lend a packet's worth to any lane.
    pub fn new(config: PoolConfig) -> Result<Self, PoolTooSmall> {
        let packet = config.packet_blocks.max(1);
        if config.blocks < u32::from(packet) {
            return Err(PoolTooSmall { blocks: config.blocks, packet });
        }
        Ok(Self {
            config: PoolConfig { packet_blocks: packet, ..config },
            lanes: Vec::new(),
            vacant: Vec::new(),
            taken: 0,
            on_trial: 0,
            members: 0,
            active: 0,
            waiting: Default::default(),
            low: VecDeque::new(),
            changed: VecDeque::new(),
            has_backlog: false,
            next_search: None,
            searched_at_share: config.blocks,
            newcomers: VecDeque::new(),
        })
    }

    /// Blocks that are neither lent nor occupied.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::try_from(u64::from(self.config.blocks).saturating_sub(self.taken)).unwrap_or(0)
    }

    /// Sets whether packets have arrived that were not handed in yet. While that is so, nothing is void because its
    /// time has passed: it may be among these packets.
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

    /// The blocks that can be lent now.
    fn available(&self) -> u32 {
        self.free().saturating_sub(self.config.blocks - self.blocks())
    }

    /// Announces a peer that is about to join: its messages during the exchange occupy the buffer, so room for them
    /// is kept for a while.
    pub fn expect(&mut self, now: Instant) {
        while self.newcomers.pop_front_if(|until| *until <= now).is_some() {}
        if self.newcomers.len() < MAX_EXPECTED {
            self.newcomers.push_back(now + self.settle());
        }
    }

    /// Adds a lane.
    pub fn join(&mut self, now: Instant, vl: Vl) -> Member {
        self.newcomers.pop_front();
        self.admit(now, vl, false)
    }

    /// Adds a lane whose peer may have no business with this end. All such lanes together are lent no more than an
    /// eighth of the pool, a packet at a time, and nothing is taken back from other lanes for them.
    pub fn join_on_trial(&mut self, now: Instant, vl: Vl) -> Member {
        self.admit(now, vl, true)
    }

    /// Turns a lane on trial into a regular lane.
    pub fn trust(&mut self, member: Member) {
        let Some(lane) = self.lane(member).filter(|lane| lane.is_on_trial) else { return };
        let waits = std::mem::take(&mut lane.is_waiting);
        self.change(member, |lane| lane.is_on_trial = false);
        if waits {
            self.await_credit(member);
        }
    }

    /// Makes a place for a lane.
    fn admit(&mut self, now: Instant, vl: Vl, is_on_trial: bool) -> Member {
        let place = self.vacant.pop().unwrap_or(self.lanes.len() as u32);
        let generation = self.lanes.get(place as usize).map_or(0, |l| l.generation);
        let lane = Lane::new(generation, vl, is_on_trial, now);
        match self.lanes.get_mut(place as usize) {
            Some(vacant) => *vacant = lane,
            None => self.lanes.push(lane),
        }
        self.members += u32::from(!is_on_trial);
        Member { place, generation }
    }

    /// Removes a lane. Its loan returns when it can no longer arrive; what it occupies returns on release.
    pub fn leave(&mut self, member: Member) {
        self.change(member, |lane| {
            (lane.is_member, lane.want) = (false, 0);
        });
        self.vacate(member);
    }

    /// Removes a lane whose sender is gone and whose data has all arrived: a new sender was heard that has taken its
    /// place. Its loan is free at once.
    pub fn end(&mut self, member: Member) {
        self.change(member, Lane::forfeit);
        self.leave(member);
    }

    /// Accounts for a packet of `blocks` that arrived and occupies the buffer.
    ///
    /// # Errors
    ///
    /// The lane was granted less than that.
    pub fn handle_packet(&mut self, now: Instant, member: Member, blocks: u32) -> Result<(), Overrun> {
        let free = self.lane(member).map_or(0, |lane| lane.outstanding());
        let was_granted = self.change(member, |lane| {
            lane.last_active = now;
            lane.receive(blocks)
        });
        self.refill(member);
        if was_granted == Some(true) { Ok(()) } else { Err(Overrun { blocks, free }) }
    }

    /// Accounts for a packet of `blocks` that was read.
    pub fn release(&mut self, member: Member, blocks: u32) {
        self.change(member, |lane| lane.occupied -= blocks.min(lane.occupied));
        self.refill(member);
        self.vacate(member);
    }

    /// Handles an ask, and will answer it.
    pub fn handle_ask(&mut self, now: Instant, member: Member, ask: &CreditMessage) {
        let heard = self.change(member, |lane| {
            lane.last_active = now;
            lane.hear(now, ask).then(|| (lane.is_waiting, lane.knows_limit(ask), lane.lent() > 0))
        });
        let Some(Some((waited, knows_limit, has_credit))) = heard else { return };
        if ask.want > 0 {
            self.await_credit(member);
        }
        // A lease goes on with a grant, a sender that asks twice hears that somebody is there, and a grant that was lost
        // is repeated.
        if ask.want == 0 && has_credit || waited || !knows_limit {
            self.tell(member);
        }
    }

    /// Returns a grant to send to a lane now.
    pub fn poll_grant(&mut self, now: Instant) -> Option<(Member, CreditMessage)> {
        while self.newcomers.pop_front_if(|until| *until <= now).is_some() {}
        self.lend(now);
        let expires = now + self.settle();
        while let Some(member) = self.changed.pop_front() {
            if let Some(lane) = self.lane(member) {
                return Some((member, lane.grant(expires)));
            }
        }
        None
    }

    /// When a grant may be due if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.waiting.iter().any(|queue| !queue.is_empty());
        self.next_search.filter(|_| waits)
    }

    fn lane(&mut self, member: Member) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(member.place as usize)?;
        (lane.is_member && lane.generation == member.generation).then_some(lane)
    }

    /// Changes a lane, also one that has left, and keeps all sums in step with it.
    fn change<R>(&mut self, member: Member, change: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let lane = self.lanes.get_mut(member.place as usize)?;
        if lane.generation != member.generation {
            return None;
        }
        let before = *lane;
        let result = change(lane);
        let sums = |lane: &Lane| {
            let taken = u64::from(lane.outstanding()) + u64::from(lane.occupied);
            let is_regular = u32::from(lane.is_member && !lane.is_on_trial);
            (taken, if lane.is_on_trial { taken } else { 0 }, is_regular, u32::from(lane.is_active()))
        };
        let (old, new) = (sums(&before), sums(lane));
        self.taken = self.taken - old.0 + new.0;
        self.on_trial = self.on_trial - old.1 + new.1;
        self.members = self.members - old.2 + new.2;
        self.active = self.active - old.3 + new.3;
        Some(result)
    }

    /// How long after a grant everything has arrived that may be sent under it.
    fn settle(&self) -> Duration {
        self.config.lease + self.config.transit
    }

    /// Queues a lane to be told its limit.
    fn tell(&mut self, member: Member) {
        if self.lane(member).is_some_and(|l| !std::mem::replace(&mut l.is_changed, true)) {
            self.changed.push_back(member);
        }
    }

    /// Queues a lane with a packet that waits.
    fn await_credit(&mut self, member: Member) {
        let Some(lane) = self.lane(member) else { return };
        if !std::mem::replace(&mut lane.is_waiting, true) {
            let queue = usize::from(lane.is_on_trial);
            self.waiting[queue].push_back(member);
        }
    }

    /// Queues a lane that has little left to be lent more, once no lane waits.
    fn refill(&mut self, member: Member) {
        let mark = self.low_mark();
        let is_low = |lane: &&mut Lane| !lane.is_on_trial && lane.lent() <= mark;
        if self.lane(member).filter(is_low).is_some_and(|lane| !std::mem::replace(&mut lane.is_low, true)) {
            self.low.push_back(member);
        }
    }

    /// Frees the place of a lane that left, once none of its blocks remain.
    fn vacate(&mut self, member: Member) {
        let Some(lane) = self.lanes.get_mut(member.place as usize) else { return };
        let is_done = !lane.is_member && lane.occupied == 0 && lane.outstanding() == 0;
        if is_done && lane.generation == member.generation {
            lane.generation = lane.generation.wrapping_add(1);
            self.vacant.push(member.place);
        }
    }
}
