//! The peers of a port, and what is in flight to each.

use super::drains::is_same_host;
use super::partner::{Greeting, Partner};
use super::path::Departure;
use super::schedule::{Alarm, Places};
use cc::{Charge, PeerWindow};
use qp::queue_pair::Tuning;
use qp::{Mtu, Psn};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use time::{Duration, Instant};

/// BTH, RETH and ICRC around the payload of the packets that define the size of a window.
pub(super) const PACKET_OVERHEAD: u32 = 12 + 16 + 4;

/// After this time a packet no longer counts as in flight, acknowledged or not: it was read, or lost. It equals the
/// time for which packets sent on credit are assumed to be in flight to a process that is not scheduled.
pub(super) const FLIGHT_LIFE: Duration = Duration::from_millis(500);

/// Full packets in a train, for computing the charge of one: a 64 KiB train has 15 of 4 KiB.
const TRAIN: u32 = 15;

/// One peer: a process at an address.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The top byte of its queue pair numbers.
    pub(crate) slot: u8,
    pub(crate) window: PeerWindow,
    /// The time to look for flights that are never acknowledged, if something waits for their room.
    pub(super) watch: Alarm,
    /// Its partner state, if it is rnic.
    pub(crate) partner: Option<Box<Partner>>,
    /// Its state if it is not a partner.
    pub(crate) greeting: Greeting,
    users: usize,
}

impl Peer {
    /// Returns whether a queue pair is connected to it.
    pub(crate) const fn is_connected(&self) -> bool {
        self.users > 0
    }

    /// How often the default size of the pieces of a READ can be doubled while two of them fit in the window, if that is a
    /// wide one.
    pub(super) fn read_doublings(&self, mtu: Mtu) -> u8 {
        let packets = self.window.limit() / 2 / Flights::packet_charge(mtu);
        let times = packets * mtu.bytes() / Tuning::READ_CHUNK;
        if self.window.is_wide() { times.checked_ilog2().unwrap_or(0) as u8 } else { 0 }
    }

    /// Returns whether it may be replaced by another peer: nothing of this port needs it, and it has been silent for a
    /// while.
    fn is_idle(&self, now: Instant) -> bool {
        self.users == 0
            && self.greeting.is_idle(now)
            && self.partner.as_ref().is_none_or(|partner| partner.is_idle(now))
    }
}

/// The peers to which queue pairs are connected.
#[derive(Debug)]
pub(crate) struct Peers {
    by_slot: HashMap<(IpAddr, u8), usize>,
    table: slab::Slab<Peer>,
    /// Bytes of charge that may be in flight to each peer, if that was set.
    window: Option<u32>,
    /// The address of the port.
    local: IpAddr,
    /// The socket buffer that the host grants, if its peers have one like it.
    host_buffer: Option<u32>,
}

impl Peers {
    pub(crate) fn new(local: IpAddr, window: Option<u32>, host_buffer: Option<u32>) -> Self {
        Self { by_slot: HashMap::new(), table: slab::Slab::new(), window, local, host_buffer }
    }

    /// The window of a peer at `address`.
    fn window(&self, address: IpAddr) -> PeerWindow {
        match (self.window, self.host_buffer) {
            (Some(bytes), _) => PeerWindow::new(bytes),
            (None, Some(buffer)) if is_same_host(self.local, address) => PeerWindow::on_host(buffer),
            (None, _) => PeerWindow::default(),
        }
    }

    /// Adds a queue pair to the users of the peer that has the queue pairs of `slot` at `address`.
    pub(crate) fn join(&mut self, address: IpAddr, slot: u8) -> usize {
        let id = self.meet(address, slot);
        self.table[id].users += 1;
        id
    }

    /// The peer that has the queue pairs of `slot` at `address`; it is created if necessary.
    pub(crate) fn meet(&mut self, address: IpAddr, slot: u8) -> usize {
        let window = self.window(address);
        let table = &mut self.table;
        *self.by_slot.entry((address, slot)).or_insert_with(|| {
            table.insert(Peer {
                address,
                slot,
                window,
                watch: Alarm::default(),
                partner: None,
                greeting: Greeting::default(),
                users: 0,
            })
        })
    }

    /// The peer that has the queue pairs of `slot` at `address`, if it is known.
    pub(crate) fn find(&self, address: IpAddr, slot: u8) -> Option<usize> {
        self.by_slot.get(&(address, slot)).copied()
    }

    /// The peers at `address`, whatever their slots.
    pub(crate) fn at(&self, address: IpAddr) -> Vec<usize> {
        self.table.iter().filter(|(_, peer)| peer.address == address).map(|(id, _)| id).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.table.iter().map(|(_, peer)| peer)
    }

    /// The peer with this number, if it still exists.
    pub(crate) fn find_mut(&mut self, id: usize) -> Option<&mut Peer> {
        self.table.get_mut(id)
    }

    /// Returns whether there is room for one more peer without connected queue pairs; at most `most` are allowed.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        self.table.len() < most || self.table.iter().filter(|(_, peer)| peer.users == 0).count() < most
    }

    /// A peer that can be replaced by another: it is idle, and nothing waits for it.
    pub(super) fn find_idle(&self, now: Instant, places: &Places) -> Option<usize> {
        let idle = self.table.iter().filter(|(_, peer)| peer.is_idle(now));
        idle.map(|(id, _)| id).find(|id| !places.has_waiters_for(*id))
    }

    /// Forgets a peer that has neither users nor an agreement.
    pub(super) fn forget_unused(&mut self, id: usize, places: &Places) {
        let is_unused =
            |peer: &Peer| peer.users == 0 && peer.partner.is_none() && !places.has_waiters_for(id);
        if self.table.get(id).is_some_and(is_unused) {
            let peer = self.table.remove(id);
            self.by_slot.remove(&(peer.address, peer.slot));
        }
    }

    /// Removes a user of a peer; without users, the peer is forgotten, unless there is an agreement with it.
    pub(super) fn leave(&mut self, id: usize, places: &Places) {
        self.table[id].users -= 1;
        self.forget_unused(id, places);
    }

    pub(crate) fn get_mut(&mut self, id: usize) -> &mut Peer {
        &mut self.table[id]
    }
}

/// PSNs that left together, as far as they are in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// How many they are, and the PSN after the last.
    psns: u32,
    end: Psn,
    /// The charge of each.
    each: u32,
    departed: Instant,
}

/// What a queue pair has in flight.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// Oldest first.
    log: VecDeque<Sent>,
    /// The sum of their charges.
    total: u32,
    /// What the window of the peer still has of it: what is behind a gap and has landed needs no room any more.
    charged: u32,
}

impl Flights {
    /// The charge of a full packet with this path MTU, as part of a train.
    pub(crate) fn packet_charge(mtu: Mtu) -> u32 {
        Charge::in_train(mtu.bytes() + PACKET_OVERHEAD, TRAIN)
    }

    /// Records the departure of PSNs `from..to`. `joined`: the packets follow others in their train. Returns the charge.
    pub(crate) fn depart(
        &mut self,
        now: Instant,
        (from, to): (Psn, Psn),
        departure: &Departure,
        joined: bool,
        mtu: Mtu,
    ) -> u32 {
        let psns = u32::try_from(to.distance_from(from)).unwrap_or(0);
        if psns == 0 {
            return 0;
        }
        // If there are more PSNs than packets, this is a READ request, whose response consists of full packets.
        let each = if psns > departure.packets {
            Self::packet_charge(mtu)
        } else {
            let size = u32::try_from(departure.segment_size).unwrap_or(u32::MAX);
            // What a train costs beyond its packets is charged to those in front.
            Charge::in_train(size, if joined { u32::MAX } else { departure.packets })
        };
        let charge = each.saturating_mul(psns);
        self.log.push_back(Sent { psns, end: to, each, departed: now });
        self.total = self.total.saturating_add(charge);
        self.charged = self.charged.saturating_add(charge);
        charge
    }

    /// The charge in flight, as far as the window still has it.
    pub(crate) fn charged(&self) -> u32 {
        self.charged
    }

    /// Records that everything before `unacked` is acknowledged, and that `landed` PSNs from there on have arrived, too, or are
    /// lost (selective repeat). If `next` moved back, a retransmission begins, and everything in flight counts as lost. Returns
    /// the charge to release.
    pub(crate) fn arrive(&mut self, unacked: Psn, next: Psn, landed: u32) -> u32 {
        if self.log.back().is_some_and(|sent| next.is_before(sent.end)) {
            return self.clear();
        }
        let mut freed = 0;
        while let Some(sent) = self.log.front_mut() {
            // The requests of several READs may leave together: their responses come one after the other.
            let left = u32::try_from(sent.end.distance_from(unacked)).unwrap_or(0).min(sent.psns);
            freed += (sent.psns - left).saturating_mul(sent.each);
            sent.psns = left;
            if left > 0 {
                break;
            }
            self.log.pop_front();
        }
        self.total = self.total.saturating_sub(freed);
        // Which of them have landed is not known here: packets in flight are mostly of one size.
        let psns = u32::try_from(next.distance_from(unacked)).unwrap_or(0);
        let out = u64::from(self.total) * u64::from(landed.min(psns)) / u64::from(psns.max(1));
        self.release(self.total - u32::try_from(out).unwrap_or(0))
    }

    /// Returns what the window has beyond this charge.
    const fn release(&mut self, needed: u32) -> u32 {
        let freed = self.charged.saturating_sub(needed);
        self.charged -= freed;
        freed
    }

    /// Treats what left before `limit` as lost: a queue pair without a timeout may never get an acknowledgement for it.
    /// Returns the charge to release.
    pub(crate) fn expire(&mut self, limit: Instant) -> u32 {
        let mut freed = 0;
        while let Some(sent) = self.log.pop_front_if(|sent| sent.departed <= limit) {
            freed += sent.psns.saturating_mul(sent.each);
        }
        self.total = self.total.saturating_sub(freed);
        self.release(self.total)
    }

    /// When the oldest departed.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.log.front().map(|sent| sent.departed)
    }

    /// Treats everything in flight as lost.
    pub(crate) fn clear(&mut self) -> u32 {
        self.log.clear();
        self.total = 0;
        self.release(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::wire::IpHeader;

    fn psn(value: u32) -> Psn {
        Psn::new(value)
    }

    fn train(packets: u32, segment_size: usize) -> Departure {
        let ip = IpHeader::to(IpAddr::from([10, 0, 0, 1]));
        Departure { ip, via: 0, len: packets as usize * segment_size, segment_size, packets }
    }

    #[test]
    fn what_departs_arrives() {
        let mut flights = Flights::default();
        let now = Instant::EPOCH;
        let first = flights.depart(now, (psn(0xff_fffe), psn(3)), &train(5, 4116), false, Mtu::B4096);
        let second = flights.depart(now, (psn(3), psn(4)), &train(1, 100), false, Mtu::B4096);
        assert!(first > 5 * 4116 && second >= 832);
        assert_eq!(flights.charged(), first + second);
        assert_eq!(flights.arrive(psn(1), psn(4), 0), first / 5 * 3, "three packets of the first train");
        assert_eq!(flights.arrive(psn(1), psn(4), 0), 0, "they are given back once");
        assert_eq!(flights.arrive(psn(3), psn(4), 0), first / 5 * 2);
        assert_eq!(flights.arrive(psn(4), psn(4), 0), second);
        assert_eq!(flights.arrive(psn(4), psn(4), 0), 0);
        assert_eq!(flights.charged(), 0);
    }

    #[test]
    fn packets_that_join_a_train_are_charged_for_themselves() {
        let mut flights = Flights::default();
        let now = Instant::EPOCH;
        let first = flights.depart(now, (psn(0), psn(8)), &train(8, 96), false, Mtu::B1024);
        let joined = flights.depart(now, (psn(8), psn(16)), &train(8, 96), true, Mtu::B1024);
        let whole = 16 * Charge::in_train(96, 16);
        assert!(joined < first && (first + joined).abs_diff(whole) <= 16, "{first} + {joined}, not {whole}");
    }

    #[test]
    fn what_landed_behind_a_gap_needs_no_room() {
        let mut flights = Flights::default();
        let now = Instant::EPOCH;
        let each = flights.depart(now, (psn(0), psn(16)), &train(1, 32), false, Mtu::B4096) / 16;
        assert_eq!(flights.arrive(psn(0), psn(16), 15), 15 * each, "only the first is missing");
        assert_eq!(flights.charged(), each);
        assert_eq!(flights.arrive(psn(0), psn(16), 14), 0, "it is given back once");
        let more = flights.depart(now, (psn(16), psn(20)), &train(1, 32), false, Mtu::B4096);
        assert_eq!((more, flights.charged()), (4 * each, 5 * each));
        assert_eq!(flights.arrive(psn(16), psn(20), 0), each, "the first has come");
        assert_eq!(flights.arrive(psn(20), psn(20), 0), 4 * each);
        assert_eq!(flights.charged(), 0);
    }

    #[test]
    fn a_retransmission_frees_all() {
        let mut flights = Flights::default();
        let now = Instant::EPOCH;
        let sum = flights.depart(now, (psn(0), psn(8)), &train(8, 4116), false, Mtu::B4096)
            + flights.depart(now, (psn(8), psn(16)), &train(8, 4116), false, Mtu::B4096);
        assert_eq!(flights.arrive(psn(2), psn(2), 0), sum);
    }

    #[test]
    fn what_is_old_is_gone() {
        let (mut flights, start) = (Flights::default(), Instant::EPOCH + Duration::from_secs(1));
        let later = start + Duration::from_millis(3);
        let first = flights.depart(start, (psn(0), psn(8)), &train(8, 4116), false, Mtu::B4096);
        let second = flights.depart(later, (psn(8), psn(9)), &train(1, 4116), false, Mtu::B4096);
        assert_eq!(flights.expire(start - Duration::from_millis(1)), 0);
        assert_eq!(flights.expire(start), first);
        assert_eq!(flights.charged(), second);
        assert_eq!(
            flights.arrive(psn(8), psn(9), 0),
            0,
            "what is heard of it late gives nothing back once more"
        );
        assert_eq!(flights.arrive(psn(9), psn(9), 0), second);
    }

    #[test]
    fn a_read_is_charged_for_its_answer() {
        let mut flights = Flights::default();
        let charge = flights.depart(Instant::EPOCH, (psn(0), psn(16)), &train(1, 32), false, Mtu::B1024);
        assert_eq!(charge, 16 * Flights::packet_charge(Mtu::B1024));
    }

    /// Otherwise nothing more would be asked for until all have been answered.
    #[test]
    fn reads_that_are_requested_together_are_answered_one_by_one() {
        let (mut flights, each) = (Flights::default(), Flights::packet_charge(Mtu::B4096));
        assert_eq!(
            flights.depart(Instant::EPOCH, (psn(0), psn(87)), &train(3, 32), false, Mtu::B4096),
            87 * each
        );
        assert_eq!(flights.arrive(psn(32), psn(87), 0), 32 * each);
        assert_eq!(
            flights.depart(Instant::EPOCH, (psn(87), psn(119)), &train(1, 32), false, Mtu::B4096),
            32 * each
        );
        assert_eq!(
            flights.arrive(psn(100), psn(119), 0),
            68 * each,
            "the rest of the first, and part of the next"
        );
        assert_eq!(flights.expire(Instant::EPOCH), 19 * each);
        assert_eq!(flights.charged(), 0);
    }

    #[test]
    fn peers_are_shared_and_forgotten() {
        let mut peers = Peers::new(IpAddr::from([10, 0, 0, 3]), None, None);
        let a = peers.join(IpAddr::from([10, 0, 0, 1]), 1);
        assert_eq!(peers.join(IpAddr::from([10, 0, 0, 1]), 1), a);
        let b = peers.join(IpAddr::from([10, 0, 0, 2]), 1);
        let c = peers.join(IpAddr::from([10, 0, 0, 1]), 2);
        assert!(a != b && a != c && b != c);
        peers.leave(a, &Places::new());
        peers.get_mut(a).window.take(5);
        peers.leave(a, &Places::new());
        let again = peers.join(IpAddr::from([10, 0, 0, 1]), 1);
        assert_eq!(peers.get_mut(again).window.used(), 0);
    }
}
