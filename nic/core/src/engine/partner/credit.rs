//! Link credits: nothing is sent to a partner that has no room for it.
//!
//! Every packet of a queue pair takes credit of its lane, including acknowledgements. Link messages between rnic ports,
//! congestion notifications and packets of queue pair 1 take none: a part of the buffer is reserved for them.

use super::{Blocks, CreditSetup, LaneEnd, Message, Partners};
use crate::engine::schedule::{Due, Gate};
use crate::engine::{Departure, Engine};
use crate::link::emulation::Entered;
use cc::credits::{CreditMessage, Kind, Member, PoolConfig};
use cc::vl::Vl;
use qp::Qpn;
use qp::wire::{IpHeader, Opcode};
use std::net::IpAddr;
use time::{Duration, Instant};

/// The time scales of credit between two processes, either of which may not be scheduled for a while.
pub(in crate::engine) struct CreditTimes {
    /// A partner that leaves its credit unused for this time returns it if others wait.
    pub(super) idle: Duration,
    /// How long a grant holds.
    pub(super) lease: Duration,
    /// How much later than that what was sent under it may still arrive.
    pub(super) transit: Duration,
    /// A sender that waits for credit asks for it after this time: usually the partner is processing what was sent, and
    /// grants more by itself.
    pub(super) ask: Duration,
    /// A sender that waits for credit asks again after this time, then after twice that, and so on up to eight
    /// times, because a message may be lost. The interval is at least twice the duration of the latest answers, and
    /// [`CreditSender::must_not_ask_until`](cc::credits::CreditSender::must_not_ask_until) bounds the number.
    pub(super) ask_again: Duration,
    /// Upper bound of that interval.
    pub(super) ask_at_least_every: Duration,
    /// A partner that is silent for this time while a sender waits is gone: 200 times the usual period, whereas
    /// InfiniBand gives up a link after 6 times (400,000 symbol times of 65,536, from memory), because a process may be
    /// stopped for a while.
    pub(super) gone: Duration,
}

/// Our choice: on a busy host, the scheduler makes a process wait for some 10 ms.
pub(in crate::engine) const CREDIT_TIMES: CreditTimes = CreditTimes {
    idle: Duration::from_millis(10),
    // If 64 peers that send now and then keep up their leases at a peer that reads 5 Mb/s, this takes 8 % of that rate:
    // two messages of 166 bytes, as on Ethernet, in this time.
    lease: Duration::from_millis(400),
    transit: Duration::from_millis(100),
    // A full stock buffer is read in 50 us.
    ask: Duration::from_micros(50),
    ask_again: Duration::from_millis(40),
    // Half of the time after which a partner counts as gone.
    ask_at_least_every: Duration::from_secs(1),
    gone: Duration::from_secs(2),
};

/// After this many unanswered messages that a sender waits, the partner may not know this port, or may have been
/// replaced. A smaller number would fill the buffer of a slow reader.
const IN_VAIN: u32 = 2;

/// The largest overhead of a packet with data: the headers of an XRC WRITE with immediate data, and the ICRC.
const AROUND_DATA: usize = 12 + 4 + 16 + 4 + 4;

/// The longest packet without data: an XRC atomic, and the ICRC.
const WITHOUT_DATA: usize = 12 + 4 + 28 + 4;

/// The largest packet that queue pairs send.
const LARGEST: usize = largest_packet(4096);

/// Upper bound of the length of a packet with this much data.
pub(in crate::engine) const fn largest_packet(data: usize) -> usize {
    let all = data.next_multiple_of(4) + AROUND_DATA;
    if all < WITHOUT_DATA { WITHOUT_DATA } else { all }
}

impl CreditSetup {
    pub(super) fn pool(&self) -> PoolConfig {
        let blocks = |counting| Blocks { block: self.block, counting }.of_one(LARGEST);
        let packet = blocks(self.counting).max(blocks(self.local_counting));
        PoolConfig {
            blocks: self.buffer / u32::from(self.block.max(1)),
            packet_blocks: u16::try_from(packet).unwrap_or(u16::MAX),
            lag: self.lag,
            idle: CREDIT_TIMES.idle,
            lease: CREDIT_TIMES.lease,
            transit: CREDIT_TIMES.transit,
            member_blocks: self.said.div_ceil(self.block.max(1)),
            reserve_blocks: self.reserve / u32::from(self.block.max(1)),
            read_blocks: self.held_back / u32::from(self.block.max(1)),
            newcomers: self.newcomers,
        }
    }
}

/// Returns whether a packet takes no credit.
pub(in crate::engine) fn is_free(packet: &[u8]) -> bool {
    let opcode = packet.first().copied().and_then(Opcode::from_u8);
    let dest_qpn = match packet {
        [_, _, _, _, _, _, high, low, ..] => [*high, *low],
        _ => return true,
    };
    match opcode {
        Some(Opcode::RnicFlowControl | Opcode::RnicPause | Opcode::RnicTelemetry | Opcode::Cnp) => true,
        // Queue pair 1 of any slot.
        Some(Opcode::UdSendOnly | Opcode::UdSendOnlyImm) => {
            u16::from_be_bytes(dest_qpn) == Qpn::GSI.value() as u16
        }
        _ => false,
    }
}

impl Engine {
    /// A datagram was read from the socket. It consists of packets of `segment` bytes, the last of which may be
    /// shorter. The buffer space that it occupied is free again, or soon will be; the credits that its sender was given
    /// for it are used up.
    pub(crate) fn note_datagram(&mut self, now: Instant, arrival: &IpHeader, bytes: &[u8], segment: usize) {
        let Some((member, unit)) = self.charged(arrival, bytes) else { return };
        let blocks = unit.of(bytes.len(), segment);
        self.occupy(now, member, blocks);
        let Some(pool) = &mut self.partners.pool else { return };
        self.partners.unreleased.read(member, blocks, unit.at_least(bytes.len(), segment));
        while let Some((member, blocks)) = self.partners.unreleased.poll() {
            pool.release(member, blocks);
        }
    }

    /// Sets whether the socket holds unread packets.
    pub(crate) fn set_backlog(&mut self, has_backlog: bool) {
        let Some(pool) = &mut self.partners.pool else { return };
        pool.set_backlog(has_backlog);
        if !has_backlog {
            for (member, blocks) in self.partners.unreleased.drain() {
                pool.release(member, blocks);
                self.partners.grants_due = true;
            }
        }
    }

    /// A packet, whose first bytes are `head`, entered the queue of an emulated port. It occupies the buffer until it
    /// leaves, or for no time at all if it was dropped.
    pub(crate) fn note_entered(&mut self, now: Instant, entered: &Entered) {
        let Some((member, unit)) = self.charged(&entered.ip, &entered.head) else { return };
        let blocks = unit.of_one(entered.len);
        self.occupy(now, member, blocks);
        if entered.dropped {
            self.vacate(member, blocks);
        }
    }

    /// A packet left the queue of an emulated port.
    pub(crate) fn note_left(&mut self, arrival: &IpHeader, packet: &[u8]) {
        if let Some((member, unit)) = self.charged(arrival, packet) {
            self.vacate(member, unit.of_one(packet.len()));
        }
    }

    /// The member whose credits a packet that arrived takes, and the unit in which they are counted. Whatever the packet
    /// contains, it shows that the partner is alive.
    fn charged(&mut self, arrival: &IpHeader, head: &[u8]) -> Option<(Member, Blocks)> {
        if !self.partners.is_active() {
            return None;
        }
        let id = self.partners.at(arrival.src, arrival.src_port)?;
        let vl = self.partners.lane_of(arrival.tos);
        let partner = Partners::partner(&mut self.peers, id)?;
        partner.silent_since = None;
        let member = partner.lanes.get(vl)?.member?;
        (!is_free(head)).then_some((member, partner.ours))
    }

    /// Packets of a member occupy the buffer from now on.
    fn occupy(&mut self, now: Instant, member: Member, blocks: u32) {
        let Some(pool) = &mut self.partners.pool else { return };
        if pool.handle_packet(now, member, blocks).is_err() {
            // Their sender counted them differently, because they were split or merged in transit. They have arrived, so
            // they are accepted.
            self.counters.excessive_buffer_overrun_errors += 1;
        }
        self.partners.grants_due = true;
    }

    /// They do not any more.
    fn vacate(&mut self, member: Member, blocks: u32) {
        let Some(pool) = &mut self.partners.pool else { return };
        pool.release(member, blocks);
        self.partners.grants_due = true;
    }

    /// Flow control packets arrived from a partner.
    pub(in crate::engine) fn handle_credits(
        &mut self,
        now: Instant,
        id: usize,
        messages: &[[u8; CreditMessage::LEN]],
    ) {
        self.confirmed(now, id);
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        (partner.heard, partner.silent_since) = (now, None);
        for bytes in messages {
            // Reserved kinds are ignored, as IBTA 7.9.4 has it for reserved operations.
            let Ok(message) = CreditMessage::decode(*bytes) else { continue };
            self.handle_credit(now, id, &message);
        }
    }

    fn handle_credit(&mut self, now: Instant, id: usize, message: &CreditMessage) {
        let vl = usize::from(message.vl.number());
        // Only lanes that both ports have exist.
        let Some(lane) = Partners::lane(&mut self.peers, id, vl) else { return };
        match message.kind {
            Kind::Ask => {
                if let (Some(pool), Some(member)) = (&mut self.partners.pool, lane.member) {
                    pool.handle_ask(now, member, message);
                    self.partners.grants_due = true;
                }
            }
            Kind::Grant => {
                let is_lowered = lane.sender.handle_grant(now, message);
                if lane.sender.asked_in_vain() == 0 {
                    lane.ask_again.cancel();
                }
                if is_lowered && lane.sender.must_not_ask_until(now).is_none() {
                    self.partners.outbox.push_back(Message::Ask { to: id, vl });
                }
                self.places.open(Gate::Credit { peer: id, vl });
            }
        }
    }

    /// Adds a lane of a partner to the pool.
    pub(super) fn open_lane(&mut self, now: Instant, id: usize, vl: usize) {
        let Some(pool) = &mut self.partners.pool else { return };
        let Some(peer) = self.peers.find_mut(id) else { return };
        let is_connected = peer.is_connected();
        let Some(partner) = peer.partner.as_mut() else { return };
        let is_trusted = is_connected || partner.is_trusted;
        let (Some(lane), Ok(number)) = (partner.lanes.get_mut(vl), u8::try_from(vl)) else { return };
        let Some(vl) = Vl::new(number) else { return };
        lane.member.get_or_insert_with(|| {
            let member = if is_trusted { pool.join(now, vl) } else { pool.join_on_trial(now, vl) };
            let members = &mut self.partners.members;
            members.resize(members.len().max(member.index() + 1), None);
            members[member.index()] = Some(id);
            member
        });
        self.partners.grants_due = true;
    }

    /// A partner that has just learned of this port has not received any earlier request for credit: queue pairs that
    /// wait request it again.
    pub(super) fn ask_anew(&mut self, id: usize, vl: usize) {
        if let Some(lane) = Partners::lane(&mut self.peers, id, vl) {
            lane.ask_again.cancel();
            lane.sender.forget_asks();
            self.places.open(Gate::Credit { peer: id, vl });
        }
    }

    /// The number of packets of up to `size` bytes that may leave on the credit of a lane, at most `most`.
    pub(in crate::engine) fn credit_for(
        &mut self,
        now: Instant,
        id: usize,
        vl: usize,
        size: usize,
        most: u32,
    ) -> u32 {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return 0 };
        partner.lanes.get(vl).map_or(0, |lane| lane.room(now, partner.theirs, size, most))
    }

    /// Charges a train to the credit of a lane.
    pub(in crate::engine) fn take_credit(
        &mut self,
        now: Instant,
        id: usize,
        vl: usize,
        departure: &Departure,
    ) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let blocks = partner.theirs.of(departure.len, departure.segment_size);
        let Some(lane) = partner.lanes.get_mut(vl) else { return };
        let taken = lane.sender.try_take(now, blocks);
        debug_assert!(taken, "a train took more than there was room for: {departure:?}");
        if lane.sender.is_renewal_due(now) {
            self.partners.outbox.push_back(Message::Ask { to: id, vl });
        }
    }

    /// The blocks of the packet in front that waits for credit on a lane; 0 if none does.
    pub(super) fn wanted(&mut self, id: usize, vl: usize) -> u32 {
        let front = self.places.front(Gate::Credit { peer: id, vl });
        let Some(entry) = front.and_then(|turn| self.qps[turn.index()].as_ref()) else { return 0 };
        let size = largest_packet(entry.qp.next_payload() as usize);
        Partners::partner(&mut self.peers, id).map_or(0, |partner| partner.theirs.of_one(size))
    }

    /// A queue pair waits for credit, `newly` or again: the partner will be told.
    pub(in crate::engine) fn await_credit(&mut self, now: Instant, id: usize, vl: usize, newly: bool) {
        let is_first = newly && self.places.waiting_at(Gate::Credit { peer: id, vl }) == 1;
        let Some(lane) = Partners::lane(&mut self.peers, id, vl) else { return };
        // No packet of this size fits: this starts the stall clock unless it already runs.
        lane.sender.try_take(now, u32::MAX);
        if is_first && lane.sender.asked_in_vain() == 0 {
            // This is the timer of an earlier wait.
            lane.ask_again.cancel();
        }
        if lane.ask_again.at().is_some() {
            return;
        }
        if lane.sender.is_leased(now) {
            self.timers.set(&mut lane.ask_again, now + CREDIT_TIMES.ask, Due::Partner(id));
        } else {
            // Nothing is granted unasked once a lease is over.
            self.ask_for_credit(now, id, vl);
        }
    }

    /// Tells a partner that a queue pair waits for credit.
    fn ask_for_credit(&mut self, now: Instant, id: usize, vl: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        let silent_since = *partner.silent_since.get_or_insert(now);
        let Some(lane) = partner.lanes.get_mut(vl) else { return };
        if let Some(until) = lane.sender.must_not_ask_until(now) {
            lane.ask_again.cancel();
            self.timers.set(&mut lane.ask_again, until, Due::Partner(id));
            return;
        }
        let again = CREDIT_TIMES.ask_again.max(2 * lane.sender.answer_time().min(CREDIT_TIMES.lease));
        let times = lane.sender.asked_in_vain();
        let at = now + (again * (1 << times.min(3))).min(CREDIT_TIMES.ask_at_least_every);
        tracing::debug!(peer = id, lane = vl, times, "waits for credit");
        lane.ask_again.cancel();
        if now.saturating_duration_since(silent_since) >= CREDIT_TIMES.gone {
            self.counters.partners_lost += 1;
            tracing::debug!(peer = id, lane = vl, "a partner gives no credit any more: it is taken for gone");
            self.part(id);
            // Nothing waits for it a second time. If another port starts at its address, that one asks.
            self.count_as_foreign(id, "it gives no credit any more");
            return;
        }
        let is_unheard = times >= IN_VAIN && partner.heard + CREDIT_TIMES.ask_again < now;
        self.timers.set(&mut lane.ask_again, at, Due::Partner(id));
        self.partners.outbox.push_back(Message::Ask { to: id, vl });
        if is_unheard {
            // The partner may not know this port, or may have been replaced.
            self.doubt(now, id);
        }
    }

    /// A queue pair communicates with a partner: the partner gets its share of the credits.
    pub(in crate::engine) fn trust(&mut self, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        if std::mem::replace(&mut partner.is_trusted, true) {
            return;
        }
        let Some(pool) = &mut self.partners.pool else { return };
        for member in partner.lanes.iter().filter_map(|lane| lane.member) {
            pool.trust(member);
            self.partners.grants_due = true;
        }
    }

    /// The timer of a partner fired: credit that is still waited for is requested again.
    pub(in crate::engine) fn partner_timeout(&mut self, now: Instant, id: usize) {
        let lanes = Partners::partner(&mut self.peers, id).map_or(0, |partner| partner.lanes.len());
        for vl in 0..lanes {
            let lane = Partners::lane(&mut self.peers, id, vl);
            let is_due = lane.is_some_and(|lane| lane.ask_again.expires(now));
            if is_due && self.places.has_waiters(Gate::Credit { peer: id, vl }) {
                self.ask_for_credit(now, id, vl);
                // There may be credit for a part of a train.
                self.places.open(Gate::Credit { peer: id, vl });
            }
        }
        self.end_pauses(now, id);
        self.greeting_timeout(now, id);
    }

    /// Moves grants that are due to the outbox.
    pub(in crate::engine) fn collect_grants(&mut self, now: Instant) {
        if !std::mem::take(&mut self.partners.grants_due) {
            return;
        }
        let Some(pool) = &mut self.partners.pool else { return };
        while let Some((member, grant)) = pool.poll_grant(now) {
            if let Some(Some(to)) = self.partners.members.get(member.index()).copied() {
                self.partners.outbox.push_back(Message::Grant { to, grant });
            }
        }
        self.arm_partners();
    }

    /// The credit available on each lane, and the time spent waiting for it.
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

impl LaneEnd {
    /// The number of packets of up to `size` bytes that the credit covers, at most `most`. If little is left, and less
    /// than a whole train, none: more credit is about to come, and a system call for two packets costs as much as one for
    /// fifteen. That wait ends when the lane asks.
    fn room(&self, now: Instant, unit: Blocks, size: usize, most: u32) -> u32 {
        let room = unit.packets(self.sender.available(now), size, most);
        let train = unit.train(size).min(most);
        let blocks = unit.of(size * train as usize, size);
        let is_patient = self.sender.asked_in_vain() == 0
            && self.sender.waits_since().is_none_or(|since| now < since + CREDIT_TIMES.ask);
        if room < train && is_patient && self.sender.is_low(now, blocks) { 0 } else { room }
    }
}

/// A lane to a partner, for observers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditLane {
    pub(crate) peer: IpAddr,
    pub(crate) vl: u8,
    /// Blocks that may be sent.
    pub(crate) credits: u64,
    /// Number of waits for credit, and their total duration, including the current wait.
    pub(crate) stalls: u64,
    pub(crate) stalled: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::schedule::Alarm;
    use cc::credits::CreditSender;
    use qp::wire::mad::hello::Counting;

    const START: Instant = Instant::EPOCH;
    const SIZE: usize = largest_packet(4096);

    /// A lane with credit for `trains` trains of 15 packets, counted by `counting`.
    fn lane(counting: Counting, trains: u32) -> (LaneEnd, Blocks) {
        let mut sender = CreditSender::new(CREDIT_TIMES.lease, Duration::ZERO);
        let unit = Blocks { block: 64, counting };
        let limit = trains * unit.of(15 * SIZE, SIZE);
        let vl = Vl::new(0).expect("a lane");
        let grant = CreditMessage { kind: Kind::Grant, vl, want: 0, number: 1, echo: 0, count: 0, limit };
        sender.handle_grant(START, &grant);
        (LaneEnd { sender, member: None, ask_again: Alarm::default() }, unit)
    }

    fn send(lane: &mut LaneEnd, unit: Blocks, packets: usize) {
        assert!(lane.sender.try_take(START, unit.of(packets * SIZE, SIZE)));
    }

    #[test]
    fn a_part_of_a_train_waits_for_more_credit_but_not_for_long() {
        let (mut lane, unit) = lane(Counting::TrainCharge, 4);
        send(&mut lane, unit, 5);
        for _ in 0..3 {
            assert!(lane.room(START, unit, SIZE, 64) >= 15);
            send(&mut lane, unit, 15);
        }
        // There is credit for 10 packets, less than a quarter of the loan.
        assert_eq!(lane.room(START, unit, SIZE, 64), 0);
        assert_eq!(lane.room(START, unit, SIZE, 8), 8, "no train may be longer");
        assert_eq!(lane.room(START, unit, 100, 8), 8, "small packets");
        assert!(!lane.sender.try_take(START, u32::MAX), "it begins to wait");
        let end = START + CREDIT_TIMES.ask;
        assert_eq!(lane.room(end - Duration::from_nanos(1), unit, SIZE, 64), 0);
        assert!((9..=10).contains(&lane.room(end, unit, SIZE, 64)));
        send(&mut lane, unit, 1);
        assert_eq!(lane.room(end, unit, SIZE, 64), 0, "a new wait");
        lane.sender.ask(end, Vl::new(0).expect("a lane"), 0);
        assert!((6..=8).contains(&lane.room(end, unit, SIZE, 64)), "it asked: the answer may be no");
    }

    #[test]
    fn a_loan_of_less_than_two_trains_is_used_up() {
        let (mut lane, unit) = lane(Counting::TrainCharge, 1);
        assert_eq!(lane.room(START, unit, SIZE, 64), 15);
        send(&mut lane, unit, 12);
        assert!((1..=3).contains(&lane.room(START, unit, SIZE, 64)));
    }

    #[test]
    fn packets_that_are_counted_one_by_one_leave_one_by_one() {
        for counting in [Counting::PacketBytes, Counting::DatagramCharge] {
            let (mut lane, unit) = lane(counting, 4);
            for left in (1..=60).rev() {
                assert_eq!(lane.room(START, unit, SIZE, 64), left);
                send(&mut lane, unit, 1);
            }
            assert_eq!(lane.room(START, unit, SIZE, 64), 0);
        }
    }
}
