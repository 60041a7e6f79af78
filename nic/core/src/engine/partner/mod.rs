//! Peers that are rnic too, and the state of the link to each of them.
//!
//! Two ports introduce themselves by hellos ([`greet`]). A hello states the port's features and gives the other port a
//! token, which the other port shows from then on. Both ports then use the features that they have in common: link
//! credits, pauses, congestion notifications. A message without the token comes from another sender, and is dropped.
//!
//! ```text
//! hello (ask)  ->  hello (answer)  ->  hello (proof)  ->  ask  ->  grant  ->  data
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
mod sign;
#[cfg(test)]
mod tests;
mod token;
mod unreleased;

pub(crate) use blocks::Blocks;
pub(super) use credit::{CREDIT_TIMES, is_free, largest_packet};
pub(super) use greet::{Allowance, Greeting};
pub(super) use message::{Message, write_single};
pub(super) use pause::PauseGate;
pub use sign::has_sign;
pub(crate) use sign::signed_port;
#[cfg(test)]
pub(super) use tests::credits;

use super::drains::is_same_host;
use super::peers::Peers;
use super::schedule::Alarm;
use cc::Rate;
use cc::credits::{CreditSender, Member, Pool};
use cc::pfc::{Paused, Watchdog, WatchdogConfig};
use qp::wire::mad::hello::{Counting, Features, Hello, SourcePorts};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use time::Instant;
use token::Tokens;
use unreleased::Unreleased;

/// The credits that a port gives.
#[derive(Clone, Debug)]
pub struct CreditSetup {
    /// Data lanes, 1 to 15.
    pub lanes: u8,
    /// The lane of each priority (the upper three bits of the TOS).
    pub sl2vl: [u8; 16],
    /// Size of the buffer that can be lent, in the counted unit of bytes.
    pub buffer: u32,
    /// Size of a block, in the counted unit of bytes.
    pub block: u16,
    /// How packets from other hosts are counted.
    pub counting: Counting,
    /// How packets from this host are counted; their trains arrive as they were sent.
    pub local_counting: Counting,
    /// How far the limit of a lane may lag behind the available room, in blocks; at most half of what the lane may be
    /// lent.
    pub lag: u32,
    /// Buffer space that a partner's messages about a lane occupy at a time, in the counted unit of bytes.
    pub said: u16,
    /// Buffer space reserved for these messages in addition to `buffer`, in the counted unit of bytes.
    pub reserve: u32,
    /// While more packets wait, up to this much of what was read last may still occupy the buffer, in the counted unit
    /// of bytes.
    pub held_back: u32,
    /// Room for this many of the largest packets is reserved for new partners.
    pub newcomers: u16,
}

/// What a port offers to rnic peers.
#[derive(Clone, Debug, Default)]
pub struct PartnerSetup {
    /// Its features. A port without features asks no peer, answers questions, and has no partners.
    pub features: Features,
    /// The credits that it gives, if it speaks them.
    pub credits: Option<CreditSetup>,
    /// The rate of the port, which defines the time unit of pauses.
    pub rate: Rate,
    /// The response to a pause that does not end.
    pub watchdog: WatchdogConfig,
    /// Does not answer hellos, as a NIC that is not rnic.
    pub is_foreign: bool,
}

impl PartnerSetup {
    /// The default setup, with or without selective repeat.
    #[must_use]
    pub fn offering(selective_repeat: bool) -> Self {
        let features = if selective_repeat { Features::SELECTIVE } else { Features::empty() };
        Self { features, ..Self::default() }
    }
}

/// One end of a data lane to a partner, for both directions.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) sender: CreditSender,
    /// Its membership in our pool, once the partner has stated that it sends nothing without credit.
    member: Option<Member>,
    /// When the partner is next told that a queue pair waits, if one does.
    ask_again: Alarm,
}

/// State of a peer that is rnic too.
#[derive(Debug)]
pub(crate) struct Partner {
    /// Its self-description.
    said: Hello,
    /// The token that we show to it.
    pub(crate) token: u64,
    /// The token that it shows to us.
    pub(crate) expected: u64,
    /// Whether it knows us, and our token for it.
    is_confirmed: bool,
    /// Whether a queue pair took a datagram from it. (A connected queue pair is equivalent.)
    pub(crate) is_trusted: bool,
    /// Data lanes with credits; empty without credits.
    pub(crate) lanes: Vec<LaneEnd>,
    /// The block counting of what we send, and of what it sends.
    pub(crate) theirs: Blocks,
    ours: Blocks,
    pub(crate) paused: Paused,
    /// The watchdogs for pauses of each priority, created at the first pause.
    pub(crate) watchdogs: Option<Box<[Watchdog; 8]>>,
    /// When pauses and watchdogs are examined, if no frame arrives earlier.
    pause_timer: Alarm,
    /// When its last link message arrived.
    heard: Instant,
    /// Since when a queue pair has waited for it while it is silent.
    silent_since: Option<Instant>,
}

impl Partner {
    /// Returns whether it has been silent for a while, so that forgetting it loses nothing.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= greet::IDLE
    }

    /// Returns whether sending to it requires credit.
    pub(crate) fn gives_credit(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// The life of the port that it is in.
    pub(super) const fn instance(&self) -> u64 {
        self.said.instance
    }

    pub(crate) fn understands(&self, features: Features) -> bool {
        self.said.features.contains(features)
    }

    /// Returns whether a hello repeats its self-description, which a port never changes during its life.
    fn said_so(&self, hello: &Hello) -> bool {
        let Hello { kind, transaction_id, token, proof, .. } = self.said;
        Hello { kind, transaction_id, token, proof, ..*hello } == self.said
    }
}

/// State of all partners of a port.
#[derive(Debug)]
pub(crate) struct Partners {
    setup: PartnerSetup,
    /// Identifies this life of the port.
    instance: u64,
    slot: u8,
    ports: SourcePorts,
    local: IpAddr,
    tokens: Tokens,
    /// Limits messages to addresses that are not proven.
    answers: Allowance,
    /// Senders of datagrams that were asked who they are, and when.
    asked: VecDeque<(IpAddr, Instant)>,
    /// Partners by the source of their packets.
    by_port: HashMap<(IpAddr, u16), usize>,
    pool: Option<Pool>,
    /// Packets that were read but may still occupy the buffer.
    unreleased: Unreleased,
    /// The peer whose lane each member of the pool is.
    members: Vec<Option<usize>>,
    outbox: VecDeque<Message>,
    /// Whether grants may be due.
    grants_due: bool,
    sequence: u16,
    /// The timer of the pool.
    timer: Alarm,
}

impl Partners {
    /// `secret`: the instance and the tokens of this life are derived from it.
    pub(super) fn new(
        setup: PartnerSetup,
        [instance, key @ ..]: [u64; 3],
        slot: u8,
        local: IpAddr,
        ports: &[u16],
    ) -> Self {
        // A hello names at most 16 ports; packets sent from others are not recognised as ours.
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
            answers: Allowance::of_answers(),
            asked: VecDeque::new(),
            by_port: HashMap::new(),
            pool,
            unreleased,
            members: Vec::new(),
            outbox: VecDeque::new(),
            grants_due: false,
            sequence: 0,
            timer: Alarm::default(),
        }
    }

    /// Returns whether this port may have partners at all.
    pub(super) fn is_active(&self) -> bool {
        !self.setup.features.is_empty()
    }

    /// Whether this port offers features to its partners.
    pub(super) fn offers(&self, features: Features) -> bool {
        self.setup.features.contains(features)
    }

    /// The partner with this source of packets.
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
        let is_local = is_same_host(self.local, address);
        let counting = if is_local { credits.local_counting } else { credits.counting };
        Blocks { block: credits.block, counting }
    }

    /// The partner state of a peer, if it is a partner.
    pub(super) fn partner(peers: &mut Peers, id: usize) -> Option<&mut Partner> {
        peers.find_mut(id)?.partner.as_deref_mut()
    }

    /// A lane to a partner.
    fn lane(peers: &mut Peers, id: usize, vl: usize) -> Option<&mut LaneEnd> {
        Self::partner(peers, id)?.lanes.get_mut(vl)
    }
}
