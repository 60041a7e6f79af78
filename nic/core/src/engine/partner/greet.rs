//! The handshake of rnic ports, and the treatment of peers that do not take part in it.
//!
//! ```text
//! A                                        B
//! ask (challenge) ------------------------>      B keeps nothing
//!                 <------------------------ answer (challenge, token for A)
//! A knows B
//! ask (proof: the token of A, token for B) ->    B knows A
//!                 <------------------------ answer (proof: the token of B)
//! ```
//!
//! A question changes nothing at B until it carries a proof, and no answer is longer than its question: an unproven
//! address costs neither memory nor amplification. Unsolicited answers are ignored: only the real port at an address
//! sees the challenge.
//!
//! A port asks a peer for one of two reasons: a message is to be sent to it, or a packet from it reached a queue pair
//! and its source port has the [sign](has_sign). Under the credit model nothing else is sent to a peer
//! until it has answered. If a peer stays silent for [`CREDIT_TIMES.gone`](super::CREDIT_TIMES), or gives no credits,
//! the window of foreign peers bounds what is sent to it from then on.

use super::sign::has_sign;
use super::{Blocks, CREDIT_TIMES, LaneEnd, Message, Partner, Partners};
use crate::engine::Engine;
use crate::engine::schedule::{Alarm, Due, Gate};
use cc::credits::{CreditSender, Member, Pool};
use cc::pfc::{PRIORITIES, Paused};
use qp::wire::IpHeader;
use qp::wire::mad::hello::{Features, Hello, Kind, VERSION};
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use time::{Duration, Instant};

/// An unanswered question is repeated after this time, then after twice as long, and so on up to
/// [`ASK_AT_LEAST_EVERY`]. Our choice: the questions of 64 ports that start at once must fit a stock receive buffer
/// even if it is read at 1 Mb/s, which takes 170 ms for all of them.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The longest time between two questions while a queue pair waits for the answer.
const ASK_AT_LEAST_EVERY: Duration = Duration::from_millis(800);

/// A peer that proves to be alive, or to be another, is asked at most once in this time. Forged packets cannot provoke
/// questions more often.
const ASK_SOON: Duration = Duration::from_micros(500);

/// A peer that shows the sign but does not answer is asked this many times, and again after [`FORGET`].
const TRIES: u8 = 3;

/// After this time, another program may use an address.
const FORGET: Duration = Duration::from_secs(10);

/// Limit for partners without connected queue pairs, and for peers that only datagrams are sent to: 2 KB each at most.
const MAX_UNUSED: usize = 512;

/// Such a peer may be replaced after this time of silence. Our choice: longer than the lease of credit.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// Limit for senders of datagrams that were asked recently.
const MAX_ASKED: usize = 64;

/// Answers to unproven addresses: the size of a burst, and the number per second. Our choice: at 2 us each, 1 % of a
/// processor; the peers of one port rarely start at the same moment by the hundred.
const ANSWERS_AT_ONCE: u32 = 512;
const ANSWERS_PER_SECOND: u32 = 5000;

/// Length of a hello from BTH to ICRC: a packet of at least this length may be answered by a question.
const HELLO_LEN: usize = 12 + 8 + qp::wire::mad::MAD_LEN + 4;

/// Progress in finding out what a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stage {
    /// The peer was not asked yet.
    #[default]
    Unmet,
    /// The peer was asked, and may still answer.
    Asked,
    /// The peer speaks no credits, or does not answer: it counts as foreign.
    Foreign,
}

/// State of a peer that is not a partner.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    pub(super) stage: Stage,
    tries: u8,
    /// It asked who we are and said that it obeys congestion notifications, but has not proven its address.
    pub(in crate::engine) claims_cnp: bool,
    /// When it was last asked.
    asked: Option<Instant>,
    /// Since when a queue pair waits for its answer.
    since: Option<Instant>,
    /// When it will be asked again, if a queue pair waits.
    timer: Alarm,
}

impl Greeting {
    /// Returns whether the peer was asked within this time.
    fn was_asked_within(&self, time: Duration, now: Instant) -> bool {
        self.asked.is_some_and(|at| now.saturating_duration_since(at) < time)
    }

    /// Returns whether this state can be discarded without loss.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        !self.was_asked_within(IDLE, now)
    }
}

/// Limit on what strangers can make this port do: the size of a burst, and the number per second.
#[derive(Debug)]
pub(in crate::engine) struct Allowance {
    left: u32,
    at_once: u32,
    per_second: u32,
    filled: Option<Instant>,
}

impl Allowance {
    pub(in crate::engine) const fn new(at_once: u32, per_second: u32) -> Self {
        Self { left: at_once, at_once, per_second, filled: None }
    }

    /// The answers to unproven addresses.
    pub(super) const fn of_answers() -> Self {
        Self::new(ANSWERS_AT_ONCE, ANSWERS_PER_SECOND)
    }

    pub(in crate::engine) fn take(&mut self, now: Instant) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let passed = now.saturating_duration_since(filled).as_nanos();
        let more = passed * u128::from(self.per_second) / 1_000_000_000;
        if more > 0 {
            self.left = self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(self.at_once);
            self.filled = Some(now);
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

impl Engine {
    /// A packet reached a queue pair; `peer` is its source if the queue pair is connected. A sender that shows the sign
    /// but is not a partner yet is asked, unless the question would be longer than the packet.
    pub(in crate::engine) fn meet(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        len: usize,
        peer: Option<usize>,
    ) {
        if !has_sign(arrival.src_port) || arrival.dst.is_multicast() {
            return;
        }
        match peer {
            Some(id) => {
                let Some(peer) = self.peers.find_mut(id).filter(|peer| peer.partner.is_none()) else {
                    return;
                };
                let greeting = &mut peer.greeting;
                let is_silent = greeting.tries >= TRIES && greeting.stage == Stage::Foreign;
                let pause = if is_silent { FORGET } else { ASK_AT_LEAST_EVERY };
                if !greeting.was_asked_within(pause, now) {
                    self.ask(now, id);
                }
            }
            None if len >= HELLO_LEN && self.partners.may_ask(now, arrival.src) => {
                self.ask_address(arrival.src)
            }
            None => {}
        }
    }

    /// Asks whichever port of rnic is at an address: where processes share it, the one that shares it out.
    pub(in crate::engine) fn ask_address(&mut self, address: IpAddr) {
        self.ask_slot(address, 0);
    }

    /// Asks the port of rnic that has a slot at an address.
    pub(in crate::engine) fn ask_slot(&mut self, address: IpAddr, slot: u8) {
        if !address.is_multicast() && !self.partners.setup.is_foreign {
            let challenge = self.partners.tokens.challenge(address);
            self.say_hello(Kind::Ask, challenge, address, slot, (0, 0));
        }
    }

    /// A peer behaves differently from what is known of it, or is unknown. It is asked, but not each time this happens.
    pub(in crate::engine) fn doubt(&mut self, now: Instant, id: usize) {
        if self.peers.find_mut(id).is_some_and(|peer| !peer.greeting.was_asked_within(ASK_SOON, now)) {
            self.ask(now, id);
        }
    }

    /// Returns whether a peer gives no credits: it does not know hellos, does not answer, or does not speak them.
    pub(in crate::engine) fn is_foreign(&mut self, id: usize) -> bool {
        self.peers.find_mut(id).is_none_or(|peer| peer.greeting.stage == Stage::Foreign)
    }

    /// A queue pair waits until a peer has answered, or has turned out to be foreign.
    pub(in crate::engine) fn await_greeting(&mut self, now: Instant, id: usize) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let greeting = &mut peer.greeting;
        greeting.since.get_or_insert(now);
        if greeting.timer.at().is_none() {
            // The peer may have been asked before, when no queue pair waited.
            let was_asked = greeting.was_asked_within(ASK_AGAIN, now);
            if was_asked { self.arm_greeting(now, id) } else { self.ask(now, id) }
        }
    }

    /// Sends a peer a question, with our proof if the peer gave us a token.
    fn ask(&mut self, now: Instant, id: usize) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let (address, slot) = (peer.address, peer.slot);
        let greeting = &mut peer.greeting;
        greeting.asked = Some(now);
        greeting.tries = greeting.tries.saturating_add(1);
        if greeting.stage == Stage::Unmet {
            greeting.stage = Stage::Asked;
        }
        let tokens = peer.partner.as_ref().map(|partner| (partner.expected, partner.token));
        let challenge = self.partners.tokens.challenge(address);
        self.say_hello(Kind::Ask, challenge, address, slot, tokens.unwrap_or_default());
        self.arm_greeting(now, id);
    }

    /// Sets the timer to ask a peer again while queue pairs wait for it.
    fn arm_greeting(&mut self, now: Instant, id: usize) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let greeting = &mut peer.greeting;
        greeting.timer.cancel();
        if !self.places.has_waiters(Gate::Greeting(id)) {
            // The next queue pair waits from the beginning.
            greeting.since = None;
        }
        // Those at a gate that has just opened do not wait any more. If it shuts before their turn, they wait again.
        let Some(since) = greeting.since else { return };
        let doubled = ASK_AGAIN * (1 << greeting.tries.saturating_sub(1).min(6));
        let given_up = (since + CREDIT_TIMES.gone).max(now);
        let at = (now + doubled.min(ASK_AT_LEAST_EVERY)).min(given_up);
        self.timers.set(&mut greeting.timer, at, Due::Partner(id));
    }

    /// The timer of a peer fired: if its answer is still waited for, it is asked again, or counts as foreign.
    pub(super) fn greeting_timeout(&mut self, now: Instant, id: usize) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let greeting = &mut peer.greeting;
        if !greeting.timer.expires(now) || peer.partner.is_some() {
            return;
        }
        let is_silent = |since| now.saturating_duration_since(since) >= CREDIT_TIMES.gone;
        if greeting.since.is_some_and(is_silent) {
            self.count_as_foreign(id, "it did not answer");
        } else {
            self.ask(now, id);
        }
    }

    /// A peer gives no credits. A window bounds what is sent to it, as for hardware and other software.
    pub(in crate::engine) fn count_as_foreign(&mut self, id: usize, why: &'static str) {
        let Some(peer) = self.peers.find_mut(id).filter(|peer| peer.partner.is_none()) else { return };
        if peer.greeting.stage == Stage::Foreign {
            return;
        }
        peer.greeting.stage = Stage::Foreign;
        if self.partners.needs_credit() {
            let (peer, slot) = (peer.address, peer.slot);
            tracing::info!(%peer, slot, why, "the peer gives no link credits: a window bounds what is sent to it");
            self.counters.foreign_peers += 1;
        }
        self.end_greeting(id);
    }

    /// The handshake is over: queue pairs that waited for it go on.
    fn end_greeting(&mut self, id: usize) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let greeting = &mut peer.greeting;
        (greeting.since, greeting.tries) = (None, 0);
        greeting.timer.cancel();
        self.places.open(Gate::Greeting(id));
    }

    /// Sends a hello to the port with a slot at an address. It contains the token that the port is to show from now on,
    /// and our proof.
    fn say_hello(
        &mut self,
        kind: Kind,
        transaction_id: u64,
        to: IpAddr,
        slot: u8,
        (token, proof): (u64, u64),
    ) {
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
            token,
            proof,
        };
        self.partners.outbox.push_back(Message::Hello { to, slot, hello });
    }

    /// Processes a hello.
    pub(in crate::engine) fn handle_hello(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        match hello.kind {
            Kind::Ask => self.handle_question(now, from, hello),
            // Only the queried address can know the challenge.
            Kind::Answer if hello.transaction_id == self.partners.tokens.challenge(from) => {
                self.drains.is_rnic(from);
                self.judge_suspects(now, from, Some(hello));
                self.handle_answer_to_hello(now, from, hello);
            }
            Kind::Answer => self.counters.hellos_ignored += 1,
        }
    }

    fn handle_question(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        let token = self.partners.tokens.of(from, hello.slot, hello.instance);
        let is_proven = hello.proof == token;
        if self.partners.setup.is_foreign {
            return;
        }
        if !is_proven && !self.partners.answers.take(now) {
            self.counters.hellos_ignored += 1;
            return;
        }
        if !is_proven
            && hello.features.contains(Features::CREDITS)
            && let Some(pool) = &mut self.partners.pool
        {
            // Reserves room for the peer's next message.
            pool.expect(now);
        }
        let mut proof = 0;
        if is_proven {
            self.acquaint(now, from, hello);
            proof = hello.token;
        }
        self.say_hello(Kind::Answer, hello.transaction_id, from, hello.slot, (token, proof));
        // Without credits nothing waits for the handshake, so the peer is asked at once: congestion control works only
        // when both ends know each other. With credits the peer introduces itself before it sends.
        if !is_proven
            && self.partners.is_active()
            && !self.partners.needs_credit()
            && let Some(id) = self.peers.find(from, hello.slot)
            && Partners::partner(&mut self.peers, id).is_none_or(|p| p.said.instance != hello.instance)
        {
            if let Some(peer) = self.peers.find_mut(id) {
                peer.greeting.claims_cnp = hello.features.contains(Features::CNP);
            }
            self.doubt(now, id);
        }
    }

    fn handle_answer_to_hello(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        self.acquaint(now, from, hello);
        let Some(id) = self.peers.find(from, hello.slot) else { return };
        if Partners::partner(&mut self.peers, id).is_some_and(|partner| !partner.is_confirmed) {
            // The partner must learn who we are before any other message.
            self.ask(now, id);
        }
    }

    /// A queried peer reports that it does not know hellos.
    pub(in crate::engine) fn handle_refusal(&mut self, now: Instant, from: IpAddr, transaction_id: u64) {
        if transaction_id != self.partners.tokens.challenge(from) {
            self.counters.hellos_ignored += 1;
            return;
        }
        self.judge_suspects(now, from, None);
        for id in self.peers.at(from) {
            self.count_as_foreign(id, "it does not know hellos");
        }
    }

    /// Partners whose known state contradicts a hello: another port has their slot or their UDP ports, or the hello
    /// describes the port differently.
    fn contradicted(&mut self, from: IpAddr, hello: &Hello) -> Vec<usize> {
        let same_slot = self.peers.find(from, hello.slot);
        let same_ports = hello.ports.as_slice().iter().filter_map(|port| self.partners.at(from, *port));
        let mut known: Vec<_> = same_slot.into_iter().chain(same_ports).collect();
        known.dedup();
        let peers = &mut self.peers;
        let differs =
            |id: &usize| Partners::partner(peers, *id).is_some_and(|partner| !partner.said_so(hello));
        known.into_iter().filter(differs).collect()
    }

    /// Processes the self-description of a peer whose address is proven.
    fn acquaint(&mut self, now: Instant, from: IpAddr, hello: &Hello) {
        if let Some(id) = self.peers.find(from, hello.slot)
            && let Some(partner) = Partners::partner(&mut self.peers, id)
            && partner.said_so(hello)
        {
            if hello.token != 0 {
                partner.token = hello.token;
            }
            if hello.proof == partner.expected {
                self.confirmed(now, id);
            }
            return;
        }
        // All agreements with these are void: another program is there, because a UDP port belongs to one program at a
        // time.
        for gone in self.contradicted(from, hello) {
            let said = Partners::partner(&mut self.peers, gone).map(|partner| partner.said.instance);
            let is_another = said.is_some_and(|instance| instance != hello.instance);
            self.part_with(gone, if is_another { Pool::end } else { Pool::leave });
        }
        let both = self.partners.setup.features & hello.features;
        let known = self.peers.find(from, hello.slot);
        if both.is_empty() {
            // Neither port has a use for the other as a partner.
            if let Some(id) = known {
                self.count_as_foreign(id, "it speaks no credits");
                if let Some(peer) = self.peers.find_mut(id) {
                    (peer.greeting.tries, peer.greeting.asked) = (TRIES, Some(now));
                }
            }
            return;
        }
        if known.is_none() && !self.make_room(now) {
            self.counters.partners_refused += 1;
            return;
        }
        let id = self.peers.meet(from, hello.slot);
        let partner = self.new_partner(now, from, hello, both);
        let gives_credit = partner.gives_credit();
        for port in hello.ports.as_slice() {
            self.partners.by_port.insert((from, *port), id);
        }
        tracing::debug!(peer = %from, slot = hello.slot, features = %both, "met a partner");
        if let Some(peer) = self.peers.find_mut(id) {
            peer.partner = Some(Box::new(partner));
            peer.greeting.stage = Stage::Unmet;
        }
        self.counters.partners_met += 1;
        if self.partners.needs_credit() && !gives_credit {
            self.counters.foreign_peers += 1;
        }
        self.end_greeting(id);
        // Queue pairs that waited for room in the window now wait for credit instead.
        self.places.open(Gate::Window(id));
        if hello.proof == self.partners.tokens.of(from, hello.slot, hello.instance) {
            self.confirmed(now, id);
        }
    }

    /// A partner has shown that it knows us. From now on it sends nothing without credit, and everything that it sent
    /// earlier was read before this message: its lanes join the pool.
    pub(super) fn confirmed(&mut self, now: Instant, id: usize) {
        let Some(partner) = Partners::partner(&mut self.peers, id) else { return };
        if std::mem::replace(&mut partner.is_confirmed, true) {
            return;
        }
        for vl in 0..partner.lanes.len() {
            self.open_lane(now, id, vl);
            // It has received no earlier request for credit: a queue pair that waits requests it again.
            self.ask_anew(id, vl);
        }
    }

    /// Ensures that there is room for one more peer without connected queue pairs, if necessary by replacing one that
    /// has long been idle.
    pub(in crate::engine) fn make_room(&mut self, now: Instant) -> bool {
        if self.peers.has_room(MAX_UNUSED) {
            return true;
        }
        let Some(id) = self.peers.find_idle(now, &self.places) else { return false };
        self.part(id);
        self.peers.forget_unused(id, &self.places);
        true
    }

    fn new_partner(&mut self, now: Instant, from: IpAddr, hello: &Hello, both: Features) -> Partner {
        let asked = self.peers.find(from, hello.slot).and_then(|id| self.peers.find_mut(id)?.greeting.asked);
        let answer =
            asked.map_or(Duration::ZERO, |at| now.saturating_duration_since(at)).min(CREDIT_TIMES.lease);
        let expected = self.partners.tokens.of(from, hello.slot, hello.instance);
        let mut lanes = Vec::new();
        let wants_credits = both.contains(Features::CREDITS) && hello.counting.name().is_some();
        if wants_credits && let Some(setup) = &self.partners.setup.credits {
            for _ in 0..setup.lanes.min(hello.lanes) {
                lanes.push(LaneEnd {
                    // A slow reader took this long for the question, and will take as long for requests.
                    sender: CreditSender::new(CREDIT_TIMES.lease, answer),
                    member: None,
                    ask_again: Alarm::default(),
                });
            }
        }
        Partner {
            said: *hello,
            token: hello.token,
            expected,
            is_confirmed: false,
            is_trusted: false,
            lanes,
            theirs: Blocks { block: hello.block.max(1), counting: hello.counting },
            ours: self.partners.counting_of(from),
            paused: Paused::new(self.partners.setup.rate),
            watchdogs: None,
            pause_timer: Alarm::default(),
            heard: now,
            silent_since: None,
        }
    }

    /// Ends the agreement with a partner: it is gone, or was replaced. Queue pairs that waited for it go on without
    /// credits.
    pub(super) fn part(&mut self, id: usize) {
        self.part_with(id, Pool::leave);
    }

    /// As [`part`](Self::part), where `leave` determines whether packets that it sent may still arrive. If another
    /// program was heard from its port, it has sent nothing since, and the network and the socket preserve order: the
    /// same argument as for a partner that yields to a lowered limit.
    fn part_with(&mut self, id: usize, leave: fn(&mut Pool, Member)) {
        let Some(peer) = self.peers.find_mut(id) else { return };
        let (address, partner) = (peer.address, peer.partner.take());
        let Some(partner) = partner else { return };
        peer.greeting.stage = Stage::Unmet;
        tracing::debug!(peer = %address, slot = partner.said.slot, "parted from a partner");
        for port in partner.said.ports.as_slice() {
            if let Entry::Occupied(place) = self.partners.by_port.entry((address, *port))
                && *place.get() == id
            {
                place.remove();
            }
        }
        self.drop_messages(id);
        for (lane, vl) in partner.lanes.into_iter().zip(0..) {
            self.places.open(Gate::Credit { peer: id, vl });
            if let (Some(pool), Some(member)) = (&mut self.partners.pool, lane.member) {
                leave(pool, member);
                if let Some(place) = self.partners.members.get_mut(member.index()) {
                    *place = None;
                }
            }
        }
        for priority in 0..PRIORITIES as u8 {
            self.places.open(Gate::Pause { peer: id, priority });
        }
        self.peers.forget_unused(id, &self.places);
    }
}

impl Partners {
    /// Returns whether nothing may be sent to a peer before it has given credit.
    pub(in crate::engine) fn needs_credit(&self) -> bool {
        self.setup.features.contains(Features::CREDITS)
    }

    /// Returns whether an unproven address may be answered now; if so, the answer is counted.
    pub(in crate::engine) fn may_answer(&mut self, now: Instant) -> bool {
        self.answers.take(now)
    }

    /// Returns whether a sender of datagrams may be asked who it is; if so, records that it was asked.
    fn may_ask(&mut self, now: Instant, address: IpAddr) -> bool {
        while self.asked.pop_front_if(|(_, at)| now.saturating_duration_since(*at) >= FORGET).is_some() {}
        if self.asked.len() >= MAX_ASKED || self.asked.iter().any(|(to, _)| *to == address) {
            return false;
        }
        self.asked.push_back((address, now));
        true
    }
}
