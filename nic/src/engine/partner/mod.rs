//! Peers that are of our own kind, and what the link to each of them allows.
//!
//! A peer shows its kind by a sign that costs nobody anything (see `net::sign`), is then asked by a hello, and says
//! what it understands. From then on both may use what both understand: link credits, pauses, notifications of
//! congestion. A peer that never showed a sign sees none of it.
//!
//! ```text
//! sign  ->  hello (ask)  ->  hello (answer)  ->  Init: nothing more is sent without credit  ->  limits  ->  data
//! ```

mod blocks;
mod credit;
mod greet;
mod message;
mod pause;
#[cfg(test)]
mod tests;
mod unreleased;

pub(crate) use blocks::Blocks;
pub(super) use credit::{CREDIT_TIMES, largest_packet};
pub(super) use message::Message;
pub(super) use pause::PauseGate;

use super::peers::Peers;
use cc::Rate;
use cc::credits::{CreditSender, Member, Pool};
use cc::pfc::{Paused, Watchdog, WatchdogConfig};
use greet::Stranger;
use qp::wire::mad::hello::{Counting, Features, Hello, SourcePorts};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
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
    /// What it understands. Without any, it greets nobody, and answers who greets it.
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
    /// Whether what is sent to it needs credit.
    pub(crate) fn gives_credit(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub(crate) fn understands(&self, features: Features) -> bool {
        self.said.features.contains(features)
    }

    /// Whether a hello says what it said. A port says the same as long as it lives: what differs in anything was said by
    /// another, or one of the two did not come from it.
    fn said_so(&self, hello: &Hello) -> bool {
        Hello { kind: self.said.kind, transaction_id: self.said.transaction_id, ..*hello } == self.said
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
    strangers: HashMap<IpAddr, Stranger>,
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
    /// The packet at hand comes from an address and port of no partner.
    stranger_at_hand: bool,
}

impl Partners {
    pub(super) fn new(setup: PartnerSetup, instance: u64, slot: u8, local: IpAddr, ports: &[u16]) -> Self {
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
            strangers: HashMap::new(),
            by_port: HashMap::new(),
            pool,
            unreleased,
            members: Vec::new(),
            outbox: VecDeque::new(),
            limits_due: false,
            sequence: 0,
            timer: None,
            stranger_at_hand: false,
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
