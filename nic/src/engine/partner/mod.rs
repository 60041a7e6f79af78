//! Peers that are of our own kind, and what the link to each of them allows.
//!
//! Two ports introduce themselves by hellos ([`greet`]), which say what they understand and give each a token that it
//! shows to the other from then on. Both then use what both understand: link credits, pauses, congestion notifications.
//! A message without the token was sent by somebody else, and is dropped.
//!
//! ```text
//! hello (ask)  ->  hello (answer)  ->  hello (proof)  ->  Init: nothing is sent without credit  ->  limits  ->  data
//! ```

#[cfg(test)]
mod attacks;
mod blocks;
mod credit;
#[cfg(test)]
mod first_contact;
mod greet;
mod message;
mod pause;
#[cfg(test)]
mod tests;
mod token;
mod unreleased;

pub(crate) use blocks::Blocks;
pub(super) use credit::{CREDIT_TIMES, is_free, largest_packet};
pub(super) use greet::Greeting;
pub(super) use message::Message;
pub(super) use pause::PauseGate;

use super::peers::Peers;
use cc::Rate;
use cc::credits::{CreditSender, Member, Pool};
use cc::pfc::{Paused, Watchdog, WatchdogConfig};
use greet::Allowance;
use qp::wire::mad::hello::{Counting, Features, Hello, SourcePorts};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use token::Tokens;
use unreleased::Unreleased;

/// The credits that a port gives.
#[derive(Clone, Debug)]
pub struct CreditSetup {
    /// Data lanes, 1 to 15.
    pub lanes: u8,
    /// The lane of each priority (the upper three bits of the TOS).
    pub sl2vl: [u8; 16],
    /// What there is to lend, in bytes of what is counted.
    pub buffer: u32,
    /// What a block stands for, in bytes of what is counted.
    pub block: u16,
    /// What is counted of packets from other hosts.
    pub counting: Counting,
    /// What is counted of packets from this host, whose trains arrive as they were sent.
    pub local_counting: Counting,
    /// How far the limit of a lane may lag behind the room that there is, in blocks; half of what it may be lent at the
    /// most.
    pub on_free: u16,
    /// Limits are told again so often while a lane is in use.
    pub period: Duration,
    /// What a partner says about a lane occupies so much of the buffer at a time, in bytes of what is counted.
    pub said: u16,
    /// What is kept back for that beside `buffer`, in bytes of what is counted.
    pub reserve: u32,
    /// While more packets wait, so much of what was read last may still occupy the buffer, in bytes of what is counted.
    pub held_back: u32,
    /// So many of the largest packets are kept for partners that come anew.
    pub newcomers: u16,
}

/// What a port says and does between rnic peers.
#[derive(Clone, Debug, Default)]
pub struct PartnerSetup {
    /// What it understands. Without any, it asks nobody, answers questions, and has no partners.
    pub features: Features,
    /// The credits that it gives, if it speaks them.
    pub credits: Option<CreditSetup>,
    /// The rate of the port, by which times of pauses are measured.
    pub rate: Rate,
    /// What is done about a pause that does not end.
    pub watchdog: WatchdogConfig,
    /// Answers no hello, as a NIC that is not rnic.
    pub is_foreign: bool,
}

/// One end of a data lane to a partner, for what we send and what we receive.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) sender: CreditSender,
    /// Its place in our pool, from when the partner has told that it sends nothing without credit.
    member: Option<Member>,
    /// Queue pairs, by table index, that have something to send and no credit, first come first.
    pub(crate) waiting: VecDeque<usize>,
    /// The limit that the partner was told last.
    told: u16,
    /// When the partner is told again that something waits; `None` if nothing does.
    ask_again: Option<Instant>,
    /// So many times this was said since somebody waits.
    asked: u32,
    /// When it was said first, until credit comes.
    asked_at: Option<Instant>,
    /// How long it took lately until credit came: at once what it took longer, bit by bit what it took less.
    answer: Duration,
}

/// What is known of a peer of our own kind.
#[derive(Debug)]
pub(crate) struct Partner {
    /// What it said of itself.
    said: Hello,
    /// What we show to it.
    pub(crate) token: u64,
    /// What it shows to us.
    pub(crate) expected: u64,
    /// It knows us, and our token for it.
    is_confirmed: bool,
    /// A queue pair took a datagram of it. (One that is connected to it says as much.)
    pub(crate) is_trusted: bool,
    /// Data lanes with credits; none without credits.
    pub(crate) lanes: Vec<LaneEnd>,
    /// How it counts what we send, and we what it sends.
    pub(crate) theirs: Blocks,
    ours: Blocks,
    pub(crate) paused: Paused,
    /// What watches the pauses of each priority, from the first on.
    pub(crate) watchdogs: Option<Box<[Watchdog; 8]>>,
    /// When pauses and watchdogs are looked at, if no frame comes before.
    pause_timer: Option<Instant>,
    /// Queue pairs, by table index, that wait for the end of a pause.
    pub(crate) pausing: VecDeque<usize>,
    /// When it was last heard of on the link itself.
    heard: Instant,
    /// Since when something waits for it without a word.
    silent_since: Option<Instant>,
}

impl Partner {
    /// Whether nothing was heard of it for a while that would be missed.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        let is_waited_for =
            !self.pausing.is_empty() || self.lanes.iter().any(|lane| !lane.waiting.is_empty());
        !is_waited_for && now.saturating_duration_since(self.heard) >= greet::IDLE
    }

    /// Whether what is sent to it needs credit.
    pub(crate) fn gives_credit(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub(crate) fn understands(&self, features: Features) -> bool {
        self.said.features.contains(features)
    }

    /// Whether a hello says what it said. A port says the same of itself for as long as it lives.
    fn said_so(&self, hello: &Hello) -> bool {
        let Hello { kind, transaction_id, token, proof, .. } = self.said;
        Hello { kind, transaction_id, token, proof, ..*hello } == self.said
    }
}

/// What a port knows of its partners.
#[derive(Debug)]
pub(crate) struct Partners {
    setup: PartnerSetup,
    /// Says that this is another life of the port.
    instance: u64,
    slot: u8,
    ports: SourcePorts,
    local: IpAddr,
    tokens: Tokens,
    /// What may be said to addresses that are not proven.
    answers: Allowance,
    /// Senders of datagrams that were asked who they are, and when.
    asked: VecDeque<(IpAddr, Instant)>,
    /// Partners by where their packets come from.
    by_port: HashMap<(IpAddr, u16), usize>,
    pool: Option<Pool>,
    /// What was read and may still occupy the buffer.
    unreleased: Unreleased,
    /// Whose a member of the pool is: peer and lane.
    members: Vec<Option<(usize, u8)>>,
    outbox: VecDeque<Message>,
    /// Limits may be due.
    limits_due: bool,
    sequence: u16,
    /// The timer of the pool and of greetings.
    pub(super) timer: Option<Instant>,
}

impl Partners {
    /// `secret`: what the instance and the tokens of this life follow from.
    pub(super) fn new(
        setup: PartnerSetup,
        [instance, key @ ..]: [u64; 3],
        slot: u8,
        local: IpAddr,
        ports: &[u16],
    ) -> Self {
        // A hello names 16 ports at most; what is sent from others is not recognised as ours.
        let ports = SourcePorts::new(&ports[..ports.len().min(qp::wire::mad::hello::MAX_PORTS)]);
        let pool = setup.credits.as_ref().and_then(|credits| match Pool::new(credits.pool()) {
            Ok(pool) => Some(pool),
            Err(error) => {
                tracing::error!(%error, "no credits are given");
                None
            }
        });
        let unreleased = Unreleased::new(setup.credits.as_ref().map_or(0, |credits| credits.held_back));
        let mut setup = setup;
        setup.features.set(Features::CREDITS, pool.is_some());
        if setup.is_foreign {
            setup.features = Features::empty();
        }
        Self {
            setup,
            instance,
            slot,
            ports: ports.unwrap_or_default(),
            local,
            tokens: Tokens::new(key),
            answers: Allowance::new(),
            asked: VecDeque::new(),
            by_port: HashMap::new(),
            pool,
            unreleased,
            members: Vec::new(),
            outbox: VecDeque::new(),
            limits_due: false,
            sequence: 0,
            timer: None,
        }
    }

    /// Whether anything is done about partners at all.
    pub(super) fn is_active(&self) -> bool {
        !self.setup.features.is_empty()
    }

    /// The partner whose packets come from there.
    pub(super) fn at(&self, address: IpAddr, port: u16) -> Option<usize> {
        self.by_port.get(&(address, port)).copied()
    }

    /// The data lane of packets with this TOS.
    pub(super) fn lane_of(&self, tos: u8) -> usize {
        let Some(credits) = &self.setup.credits else { return 0 };
        let lane = credits.sl2vl[usize::from(tos >> 5)];
        usize::from(if lane < credits.lanes { lane } else { 0 })
    }

    /// How packets from `address` are counted.
    fn counting_of(&self, address: IpAddr) -> Blocks {
        let Some(credits) = &self.setup.credits else {
            return Blocks { block: 1, counting: Counting::PacketBytes };
        };
        let is_local = address == self.local || (address.is_loopback() && self.local.is_loopback());
        let counting = if is_local { credits.local_counting } else { credits.counting };
        Blocks { block: credits.block, counting }
    }

    /// Who a peer is, if it is a partner.
    pub(super) fn partner(peers: &mut Peers, id: usize) -> Option<&mut Partner> {
        peers.find_mut(id)?.partner.as_deref_mut()
    }
}
