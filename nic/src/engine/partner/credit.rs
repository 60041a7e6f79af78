//! Link credits: nothing is sent to a partner that it has no room for.
//!
//! Every packet of a queue pair takes credit of its lane, acknowledgements too; what rnic ports say to one another about
//! the link, notifications of congestion and packets of queue pair 1 take none: for them a part of the buffer is kept
//! back.

use super::{CreditSetup, Message, Partners};
use crate::engine::{Due, Engine};
use crate::link::emulation::Entered;
use cc::credits::{FlowControlPacket, Member, Op, PoolConfig};
use cc::vl::Vl;
use qp::Qpn;
use qp::wire::{Arrival, Opcode};
use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long things take between two processes, of which either may not get to run for a while.
pub(in crate::engine) struct CreditTimes {
    /// Who does nothing for so long with what it was given gives it back if others wait.
    pub(super) idle: Duration,
    /// A limit holds so long: several of the longest periods of updates.
    pub(super) lease: Duration,
    /// What was taken back from a partner that does not answer is free after so long.
    pub(super) settle: Duration,
    /// Who waits for credit says so after this time: most often the partner is at work on what was sent, and tells a new
    /// limit by itself.
    pub(super) ask: Duration,
    /// Who waits for credit says so again after this time, then after twice that, and so on up to eight times: an update may be lost.
    /// But a partner that does not get to run must not find its buffer full of this, nor one that reads slowly: twice as long as
    /// the last answers took is waited at least.
    pub(super) ask_again: Duration,
    /// But no longer than this.
    pub(super) ask_at_least_every: Duration,
    /// A partner that says nothing for so long while somebody waits is gone: 200 times the usual period, where InfiniBand
    /// gives a link up after 6 times (400,000 symbol times of 65,536, from memory): a process may be stopped for a while.
    pub(super) gone: Duration,
}

/// Our choice: the scheduler of a busy host makes a process wait for some 10 ms.
pub(in crate::engine) const CREDIT_TIMES: CreditTimes = CreditTimes {
    idle: Duration::from_millis(10),
    // 64 peers that keep up what they gave to one that reads 5 Mb/s take 6 % of that, at four times in this time.
    lease: Duration::from_millis(400),
    settle: Duration::from_millis(500),
    // A stock buffer, full, is read in 50 us.
    ask: Duration::from_micros(50),
    ask_again: Duration::from_millis(40),
    // Half of the time after which a partner is taken to be gone.
    ask_at_least_every: Duration::from_secs(1),
    gone: Duration::from_secs(2),
};

/// A partner that was told this often that something waits may not know us, or be another by now. Fewer times would fill
/// the buffer of one that reads slowly.
const IN_VAIN: u32 = 2;

/// The most that a packet with data has around them: the headers of an XRC WRITE with immediate data, and the ICRC.
const AROUND_DATA: usize = 12 + 4 + 16 + 4 + 4;

/// The longest packet without data: an XRC atomic, and the ICRC.
const WITHOUT_DATA: usize = 12 + 4 + 28 + 4;

/// The largest packet that queue pairs send.
const LARGEST: usize = largest_packet(4096);

/// How long a packet with so much data is at the most.
pub(in crate::engine) const fn largest_packet(data: usize) -> usize {
    let all = data.next_multiple_of(4) + AROUND_DATA;
    if all < WITHOUT_DATA { WITHOUT_DATA } else { all }
}

impl CreditSetup {
    pub(super) fn pool(&self) -> PoolConfig {
        let blocks = |counting| super::Blocks { block: self.block, counting }.of_one(LARGEST);
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let packet = blocks(self.counting).max(blocks(self.local_counting));
        PoolConfig {
            blocks: self.buffer / u32::from(self.block.max(1)),
            packet_blocks: u16::try_from(packet).unwrap_or(u16::MAX),
            fcp_on_free_blocks: self.on_free,
            fcp_period: micros(self.period),
            idle: micros(CREDIT_TIMES.idle),
            lease: micros(CREDIT_TIMES.lease),
            settle: micros(CREDIT_TIMES.settle),
            member_blocks: self.said.div_ceil(self.block.max(1)),
            reserve_blocks: self.reserve / u32::from(self.block.max(1)),
            read_blocks: self.held_back / u32::from(self.block.max(1)),
            newcomers: self.newcomers,
            ..PoolConfig::default()
        }
    }
}

/// Whether a packet takes no credit.
pub(in crate::engine) fn is_free(packet: &[u8]) -> bool {
    let opcode = packet.first().copied().and_then(Opcode::from_u8);
    let dest_qpn = match packet {
        [_, _, _, _, _, _, high, low, ..] => [*high, *low],
        _ => return true,
    };
    match opcode {
        Some(Opcode::RnicFlowControl | Opcode::RnicPause | Opcode::Cnp) => true,
        // Queue pair 1, of whatever slot.
        Some(Opcode::UdSendOnly | Opcode::UdSendOnlyImm) => {
            u16::from_be_bytes(dest_qpn) == Qpn::GSI.value() as u16
        }
        _ => false,
    }
}

impl Engine {
    /// A datagram was read from the socket: of packets of `segment` bytes, the last of which may be shorter. What it took
    /// of the buffer is free again, or soon will be; the credits that its sender was given for it are used up.
    pub(crate) fn note_datagram(&mut self, now: Instant, arrival: &Arrival, bytes: &[u8], segment: usize) {
        if !self.partners.is_active() {
            return;
        }
        let Some(id) = self.partners.at(arrival.src, arrival.src_port) else { return };
        let vl = self.partners.lane_of(arrival.tos);
        let Some(pool) = &mut self.partners.pool else { return };
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        // Whatever it says, it is there.
        partner.silent_since = None;
        let Some(member) = partner.lanes.get(vl).and_then(|lane| lane.member) else { return };
        if is_free(bytes) {
            return;
        }
        let blocks = partner.ours.of(bytes.len(), segment);
        if pool.handle_packet(now, member, blocks).is_err() {
            // Counted otherwise by its sender, because it was split or merged on its way. It is here, so it is taken.
            self.counters.excessive_buffer_overrun_errors += 1;
            return;
        }
        self.partners.unreleased.read(member, blocks, partner.ours.at_least(bytes.len(), segment));
        while let Some((member, blocks)) = self.partners.unreleased.poll() {
            pool.release(member, blocks);
        }
        self.partners.limits_due = true;
    }

    /// Whether packets wait in the socket that were not read yet.
    pub(crate) fn set_backlog(&mut self, has_backlog: bool) {
        let Some(pool) = &mut self.partners.pool else { return };
        pool.set_backlog(has_backlog);
        if !has_backlog {
            for (member, blocks) in self.partners.unreleased.drain() {
                pool.release(member, blocks);
                self.partners.limits_due = true;
            }
        }
    }

    /// A packet came into the queue of an emulated port, of which `head` are the first bytes. It occupies the buffer until
    /// it leaves, or for no time at all if it was dropped.
    pub(crate) fn note_entered(&mut self, now: Instant, entered: &Entered) {
        let Some((member, blocks)) =
            self.occupies(entered.src, entered.src_port, entered.tos, &entered.head, entered.len)
        else {
            return;
        };
        let Some(pool) = &mut self.partners.pool else { return };
        if pool.handle_packet(now, member, blocks).is_err() {
            self.counters.excessive_buffer_overrun_errors += 1;
        } else if entered.dropped {
            pool.release(member, blocks);
        }
        self.partners.limits_due = true;
    }

    /// A packet left the queue of an emulated port.
    pub(crate) fn note_left(&mut self, arrival: &Arrival, packet: &[u8]) {
        if !self.partners.is_active() {
            return;
        }
        let left = self.occupies(arrival.src, arrival.src_port, arrival.tos, packet, packet.len());
        if let (Some((member, blocks)), Some(pool)) = (left, &mut self.partners.pool) {
            pool.release(member, blocks);
            self.partners.limits_due = true;
        }
    }

    /// Whose credits a packet takes, and how many.
    fn occupies(
        &mut self,
        src: IpAddr,
        port: u16,
        tos: u8,
        head: &[u8],
        len: usize,
    ) -> Option<(Member, u32)> {
        let id = self.partners.at(src, port)?;
        let vl = self.partners.lane_of(tos);
        let partner = Partners::partner(&mut self.peers, id)?;
        partner.silent_since = None;
        let member = partner.lanes.get(vl)?.member?;
        (!is_free(head)).then(|| (member, partner.ours.of_one(len)))
    }

    /// Flow control packets arrived from a partner.
    pub(in crate::engine) fn handle_credits(&mut self, now: Instant, id: usize, updates: &[[u8; 4]]) {
        self.confirmed(now, id);
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        (partner.heard, partner.silent_since) = (now, None);
        for bytes in updates {
            // Reserved operations are to be ignored (IBTA 7.9.4).
            let Ok(update) = FlowControlPacket::decode(*bytes) else { continue };
            self.handle_update(now, id, &update);
        }
    }

    fn handle_update(&mut self, now: Instant, id: usize, update: &FlowControlPacket) {
        let vl = usize::from(update.vl.number());
        // There are as many lanes as both have.
        let Some(lane) = Partners::partner(&mut self.peers, id).and_then(|partner| partner.lanes.get_mut(vl))
        else {
            return;
        };
        if let (Some(pool), Some(member)) = (&mut self.partners.pool, lane.member) {
            pool.handle_update(now, member, update);
            self.partners.limits_due = true;
        }
        match update.op {
            // Between rnic ports the end of the handshake takes the place of initialisation.
            Op::Init | Op::Yielded => return,
            Op::Normal | Op::Stalled => {}
        }
        if lane.sender.handle_update(now, update) {
            // The limit was lowered: the partner hears that it is obeyed, behind all that was sent under the old one.
            self.partners.outbox.push_back(Message::Yield { to: id, update: lane.sender.yielded(update.vl) });
        }
        if lane.sender.available(now) > 0
            && let Some(at) = lane.asked_at.take()
        {
            let took = now.saturating_duration_since(at);
            lane.answer = took.max(lane.answer - lane.answer / 8);
        }
        self.call_lane(id, vl);
    }

    /// Gives a lane of a partner its place in the pool.
    pub(super) fn open_lane(&mut self, now: Instant, id: usize, vl: usize) {
        let Some(pool) = &mut self.partners.pool else { return };
        let Some(peer) = self.peers.find_mut(id) else { return };
        let is_connected = peer.is_connected();
        let Some(partner) = peer.partner.as_mut() else { return };
        let is_trusted = is_connected || partner.is_trusted;
        let (Some(lane), Ok(number)) = (partner.lanes.get_mut(vl), u8::try_from(vl)) else { return };
        lane.member.get_or_insert_with(|| {
            let member = if is_trusted { pool.join(now) } else { pool.join_on_trial(now) };
            let members = &mut self.partners.members;
            members.resize(members.len().max(member.index() + 1), None);
            members[member.index()] = Some((id, number));
            member
        });
        self.partners.limits_due = true;
    }

    /// A partner that knows this port since now heard nothing of what waits for its credit.
    pub(super) fn ask_anew(&mut self, id: usize, vl: usize) {
        if let Some(lane) = Partners::partner(&mut self.peers, id).and_then(|p| p.lanes.get_mut(vl)) {
            (lane.ask_again, lane.asked) = (None, 0);
            self.call_lane(id, vl);
        }
    }

    /// The queue pair that waits longest for credit of a lane gets a turn, and calls the next when it had it.
    pub(in crate::engine) fn call_lane(&mut self, id: usize, vl: usize) {
        while let Some(lane) = Partners::partner(&mut self.peers, id).and_then(|p| p.lanes.get_mut(vl)) {
            let Some(index) = lane.waiting.pop_front() else {
                (lane.ask_again, lane.asked) = (None, 0);
                return;
            };
            if self.call(index) {
                return;
            }
        }
    }

    /// A queue pair waits no longer: it goes elsewhere, or is gone.
    pub(in crate::engine) fn leave_lane(&mut self, index: usize, id: usize, vl: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        partner.pausing.retain(|waiting| *waiting != index);
        if let Some(lane) = partner.lanes.get_mut(vl) {
            lane.waiting.retain(|waiting| *waiting != index);
            if lane.waiting.is_empty() {
                // Who waits next asks for itself, and soon.
                (lane.ask_again, lane.asked) = (None, 0);
            }
        }
    }

    /// A queue pair finds no credit on a lane: it waits, and the partner is told so.
    pub(in crate::engine) fn wait_for_credit(
        &mut self,
        now: Instant,
        index: usize,
        (id, vl): (usize, usize),
        first: bool,
    ) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let newly = !std::mem::replace(&mut entry.waiting, true);
        entry.lane = Some((id, vl));
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let Some(lane) = partner.lanes.get_mut(vl) else { return };
        if newly {
            if first {
                lane.waiting.push_front(index)
            } else {
                lane.waiting.push_back(index)
            }
            if !first {
                self.counters.credit_stalls += 1;
                tracing::trace!(peer = id, lane = vl, "no credit is left");
            }
        }
        // Nothing fits: the clock of the stall starts if it does not run yet.
        lane.sender.try_take(now, u32::MAX);
        if lane.ask_again.is_none() {
            let at = now + CREDIT_TIMES.ask;
            lane.ask_again = Some(at);
            self.timers.push(Reverse((at, Due::Partner(id))));
        }
    }

    /// Tells a partner that something waits for credit.
    fn ask_for_credit(&mut self, now: Instant, id: usize, vl: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let silent_since = *partner.silent_since.get_or_insert(now);
        let Some(lane) = partner.lanes.get_mut(vl) else { return };
        lane.asked_at.get_or_insert(now);
        let again = CREDIT_TIMES.ask_again.max(2 * lane.answer.min(CREDIT_TIMES.lease));
        let at = now + (again * (1 << lane.asked.min(3))).min(CREDIT_TIMES.ask_at_least_every);
        lane.asked += 1;
        tracing::debug!(peer = id, lane = vl, times = lane.asked, "waits for credit");
        lane.ask_again = Some(at);
        if now.saturating_duration_since(silent_since) >= CREDIT_TIMES.gone {
            self.counters.partners_lost += 1;
            tracing::debug!(peer = id, lane = vl, "a partner gives no credit any more: it is taken for gone");
            self.part(now, id);
            return;
        }
        let is_unheard = lane.asked > IN_VAIN && partner.heard + CREDIT_TIMES.ask_again < now;
        self.timers.push(Reverse((at, Due::Partner(id))));
        self.partners.outbox.push_back(Message::Credits { to: id, vl, op: Op::Stalled });
        if is_unheard {
            // It may not know us, or be another by now.
            self.doubt(now, id);
        }
    }

    /// A queue pair has to do with a partner: it gets its share of the credits.
    pub(in crate::engine) fn trust(&mut self, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        if std::mem::replace(&mut partner.is_trusted, true) {
            return;
        }
        let Some(pool) = &mut self.partners.pool else { return };
        for member in partner.lanes.iter().filter_map(|lane| lane.member) {
            pool.trust(member);
            self.partners.limits_due = true;
        }
    }

    /// A timer of a partner is due: who still waits for credit says so again.
    pub(in crate::engine) fn partner_timeout(&mut self, now: Instant, id: usize) {
        let due: Vec<_> = Partners::partner(&mut self.peers, id).map_or_else(Vec::new, |partner| {
            let is_due = |vl: &usize| partner.lanes[*vl].ask_again.is_some_and(|at| at <= now);
            (0..partner.lanes.len()).filter(is_due).collect()
        });
        for vl in due {
            self.ask_for_credit(now, id, vl);
        }
        self.end_pauses(now, id);
        self.greeting_timeout(now, id);
    }

    /// Limits that are to be told now go to the outbox.
    pub(in crate::engine) fn collect_limits(&mut self, now: Instant) {
        if !std::mem::take(&mut self.partners.limits_due) {
            return;
        }
        let Some(pool) = &mut self.partners.pool else { return };
        while let Some((member, limit)) = pool.poll_limit(now) {
            if let Some(Some((id, vl))) = self.partners.members.get(member.index()) {
                self.partners.outbox.push_back(Message::Limit { to: *id, vl: usize::from(*vl), fccl: limit });
            }
        }
        self.arm_partners();
    }

    /// The update that tells a partner of a lane: what was sent on it, and up to where it may send itself, which is
    /// `limit` from now on if there is a new one.
    pub(super) fn update(
        &mut self,
        id: usize,
        vl: usize,
        op: Op,
        limit: Option<u16>,
    ) -> Option<FlowControlPacket> {
        let lane = Partners::partner(&mut self.peers, id)?.lanes.get_mut(vl)?;
        lane.told = limit.unwrap_or(lane.told);
        let vl = u8::try_from(vl).ok().and_then(Vl::new)?;
        Some(FlowControlPacket { op, vl, fctbs: lane.sender.fctbs(), fccl: lane.told })
    }

    /// What may be sent on each lane, and how long was waited for it.
    pub(crate) fn credit_lanes(&self, now: Instant) -> impl Iterator<Item = CreditLane> {
        self.peers.iter().flat_map(move |peer| {
            let lanes = peer.partner.iter().flat_map(|partner| partner.lanes.iter().zip(0_u8..));
            lanes.map(move |(lane, vl)| {
                let stalls = lane.sender.stalls();
                let since = lane.sender.waits_since();
                let lasts = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                CreditLane {
                    peer: peer.address,
                    vl,
                    credits: lane.sender.available(now).into(),
                    stalls: stalls.packets + u64::from(since.is_some()),
                    stalled: stalls.time + lasts,
                }
            })
        })
    }
}

/// A lane to a partner, as it is seen from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditLane {
    pub(crate) peer: IpAddr,
    pub(crate) vl: u8,
    /// Blocks that may be sent.
    pub(crate) credits: u64,
    /// Times that something had to wait, and how long together, the wait that lasts included.
    pub(crate) stalls: u64,
    pub(crate) stalled: Duration,
}
