//! Getting to know one another.

use super::{Blocks, LaneEnd, Message, Partner, Partners};
use crate::engine::Engine;
use crate::net::has_sign;
use cc::credits::{CreditSender, Member, Op, Pool};
use cc::pfc::Paused;
use qp::Qpn;
use qp::wire::Arrival;
use qp::wire::mad::hello::{Features, Hello, Kind, VERSION};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A peer that does not answer is asked so often in all: it is none of ours then.
const TRIES: u8 = 3;

/// And so long apart: long enough for a peer that has no processor, short enough to be there for a program of a second.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// A peer that speaks of a link that this side does not know of is asked so soon after the last time: an answer got lost, and
/// the peer waits for credit.
const ASK_SOON: Duration = Duration::from_micros(50);

/// After so long, a peer that did not answer may be asked again, if it shows the sign: another program may be there now.
const FORGET: Duration = Duration::from_secs(10);

/// So many addresses that are being asked, or did not answer, are remembered.
const MAX_STRANGERS: usize = 1024;

/// A peer that showed the sign, and was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    tries: u8,
    /// When it was asked last.
    asked: Instant,
    transaction_id: u64,
}

impl Stranger {
    /// Whether it may be asked, again or for the first time. One that `speaks` as a partner does is one of ours, and is never
    /// given up.
    fn may_be_asked(&self, now: Instant, speaks: bool) -> bool {
        let patience = match (self.tries, speaks) {
            (0, _) => Duration::ZERO,
            (1..TRIES, true) => ASK_SOON,
            (1..TRIES, false) | (_, true) => TRY_AGAIN,
            (_, false) => FORGET,
        };
        now.saturating_duration_since(self.asked) >= patience
    }
}

impl Engine {
    /// A sound packet came from there. Whoever shows the sign and is not known is asked who it is, soon if it `speaks` as a
    /// partner does.
    pub(in crate::engine) fn meet(&mut self, now: Instant, arrival: &Arrival, speaks: bool) {
        if has_sign(arrival.src_port) && !arrival.dst.is_multicast() {
            self.greet(now, arrival.src, speaks);
        }
    }

    /// Asks whoever is at an address, if it is time to.
    pub(in crate::engine) fn greet(&mut self, now: Instant, address: IpAddr, speaks: bool) {
        let partners = &mut self.partners;
        if partners.strangers.len() >= MAX_STRANGERS {
            partners.strangers.retain(|_, stranger| !stranger.may_be_asked(now, false));
        }
        let is_full = partners.strangers.len() >= MAX_STRANGERS;
        let stranger = match partners.strangers.get_mut(&address) {
            None if is_full => return,
            None => partners.strangers.entry(address).or_insert(Stranger {
                tries: 0,
                asked: now,
                transaction_id: partners.instance ^ u64::from(partners.sequence).rotate_right(16),
            }),
            Some(stranger) => stranger,
        };
        if !stranger.may_be_asked(now, speaks) {
            return;
        }
        if stranger.tries >= TRIES {
            stranger.tries = 0;
        }
        stranger.tries += 1;
        stranger.asked = now;
        let transaction_id = stranger.transaction_id;
        self.say_hello(Kind::Ask, transaction_id, address, Qpn::GSI);
    }

    /// Sends a hello to whoever is at an address.
    fn say_hello(&mut self, kind: Kind, transaction_id: u64, to: IpAddr, dest_qpn: Qpn) {
        let blocks = self.partners.counting_of(to);
        let credits = self.partners.setup.credits.as_ref().filter(|_| self.partners.pool.is_some());
        let hello = Hello {
            kind,
            transaction_id,
            version: VERSION,
            slot: self.partners.slot,
            lanes: credits.map_or(0, |credits| credits.lanes),
            features: self.partners.setup.features,
            instance: self.partners.instance,
            block: credits.map_or(0, |_| blocks.block),
            counting: blocks.counting,
            ports: self.partners.ports,
        };
        self.partners.outbox.push_back(Message::Hello { to, dest_qpn, hello });
    }

    /// A hello arrived.
    pub(in crate::engine) fn handle_hello(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        match hello.kind {
            Kind::Ask if self.partners.setup.is_foreign => return,
            Kind::Ask => {
                let dest = Qpn::new(u32::from(hello.slot) << 16 | Qpn::GSI.value());
                self.say_hello(Kind::Answer, hello.transaction_id, from, dest);
                if !self.contradicted(from, hello).is_empty() {
                    // Anybody can say so. Who is there answers a question that only it has seen.
                    self.greet(now, from, true);
                    return;
                }
            }
            // Nobody was asked, or it is late: it could be anybody's.
            Kind::Answer if !self.was_asked(from, hello.transaction_id) => return,
            Kind::Answer => {}
        }
        self.partners.strangers.remove(&from);
        self.acquaint(now, from, hello);
    }

    /// Partners of which something would not be true if a hello were: another port has their place, or their UDP ports, or
    /// says something else of itself.
    fn contradicted(&mut self, from: IpAddr, hello: &Hello) -> Vec<usize> {
        let same_slot = self.peers.find(from, hello.slot);
        let same_ports = hello.ports.as_slice().iter().filter_map(|port| self.partners.at(from, *port));
        let known: Vec<_> = same_slot.into_iter().chain(same_ports).collect();
        let peers = &mut self.peers;
        let differs =
            |id: &usize| Partners::partner(peers, *id).is_some_and(|partner| !partner.said_so(hello));
        known.into_iter().filter(differs).collect()
    }

    fn was_asked(&self, address: IpAddr, transaction_id: u64) -> bool {
        self.partners.strangers.get(&address).is_some_and(|s| s.transaction_id == transaction_id)
    }

    /// Takes in what a peer said of itself.
    fn acquaint(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        let id = self.peers.meet(from, hello.slot);
        if Partners::partner(&mut self.peers, id).is_some_and(|partner| partner.said_so(hello)) {
            return;
        }
        // Nothing of what was agreed on with them holds: another program is there, as a UDP port belongs to one at a time; or
        // it is the same, which was misrepresented and has not noticed.
        for gone in self.contradicted(from, hello) {
            let said = Partners::partner(&mut self.peers, gone).map(|partner| partner.said.instance);
            let is_another = said.is_some_and(|instance| instance != hello.instance);
            self.part_with(now, gone, if is_another { Pool::end } else { Pool::leave });
        }
        // Nobody may have pointed to whom was parted from.
        let id = self.peers.meet(from, hello.slot);
        let both = self.partners.setup.features & hello.features;
        let mut lanes = Vec::new();
        let wants_credits = both.contains(Features::CREDITS) && hello.counting.name().is_some();
        if wants_credits && let Some(setup) = &self.partners.setup.credits {
            for vl in 0..usize::from(setup.lanes.min(hello.lanes)) {
                // From here on nothing is sent without credit, and the partner hears of it first: what it reads before is
                // out of its buffer when it gives any.
                self.partners.outbox.push_back(Message::Credits { to: id, vl, op: Op::Init });
                lanes.push(LaneEnd {
                    sender: CreditSender::new(Some(super::CREDIT_TIMES.lease)),
                    member: None,
                    waiting: VecDeque::new(),
                    told: 0,
                    ask_again: None,
                    asked: 0,
                    asked_at: None,
                    answer: Duration::ZERO,
                });
            }
        }
        for port in hello.ports.as_slice() {
            self.partners.by_port.insert((from, *port), id);
        }
        let partner = Partner {
            said: *hello,
            lanes,
            theirs: Blocks { block: hello.block.max(1), counting: hello.counting },
            ours: self.partners.counting_of(from),
            paused: Paused::new(self.partners.setup.rate),
            watchdogs: None,
            pause_timer: None,
            pausing: VecDeque::new(),
            heard: now,
            silent_since: None,
        };
        if let Some(peer) = self.peers.find_mut(id) {
            peer.partner = Some(Box::new(partner));
        }
        self.counters.partners_met += 1;
        tracing::debug!(peer = %from, slot = hello.slot, features = %hello.features, "a peer is rnic too");
        // Whoever waits for room in the window waits for credit instead.
        self.call_all_waiting(id);
    }

    /// Forgets what was agreed on with a partner: it is gone, or another. Whoever waited for it goes on without credits.
    pub(super) fn part(&mut self, now: Instant, id: usize) {
        self.part_with(now, id, Pool::leave);
    }

    /// The same, where `leave` says whether what it sent may still arrive. If another program was heard from its port, it has
    /// sent nothing since, and the network and the socket keep to the order: as for who says that it obeys a limit.
    fn part_with(&mut self, now: Instant, id: usize, leave: fn(&mut Pool, Instant, Member)) {
        tracing::debug!(peer = id, "what was agreed on with a peer is forgotten");
        let Some(peer) = self.peers.find_mut(id) else { return };
        let (address, partner) = (peer.address, peer.partner.take());
        let Some(partner) = partner else { return };
        for port in partner.said.ports.as_slice() {
            if let Entry::Occupied(place) = self.partners.by_port.entry((address, *port))
                && *place.get() == id
            {
                place.remove();
            }
        }
        self.drop_messages(id);
        let mut waiting: Vec<_> = partner.pausing.into_iter().collect();
        for lane in partner.lanes {
            if let (Some(pool), Some(member)) = (&mut self.partners.pool, lane.member) {
                leave(pool, now, member);
                if let Some(place) = self.partners.members.get_mut(member.index()) {
                    *place = None;
                }
            }
            waiting.extend(lane.waiting);
        }
        for index in waiting {
            self.stop_waiting(index);
        }
        self.peers.forget_unused(id);
    }
}
