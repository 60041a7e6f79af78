//! One rank: its data, its neighbours, and the operation that goes on.

use crate::link::{Link, Offer};
use crate::plan::{Element, Plan, PlanError};
use crate::schedule::{Kind, Op, Peer, Schedule, peers};
use crate::window::Window;
use rnic_core::{
    Access, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, WcOpcode,
    WcStatus, WorkCompletion,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The most slots of a neighbour: counts of 16 bits tell that many apart.
const MOST_SLOTS: u16 = 1 << 10;

/// Operations that may be under way at a time. In two binary trees of 64 ranks a piece takes 12 steps up and down, and meanwhile
/// some twenty others begin, each with eight operations for both trees.
const WINDOW: usize = 256;

/// Completions that are taken at once.
const POLL: usize = 32;

/// How messages travel, the same at all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most bytes of a message. Longer ones are cut into pieces, and a piece goes on when it has arrived.
    pub piece: usize,
    /// The pieces that a neighbour may send before we have consumed the first of them, from 2 on.
    pub slots: u16,
    /// How long a neighbour that this rank waits for may be silent before it is asked whether it is still there.
    pub silence: Duration,
}

impl Default for Settings {
    /// Pieces of 64 KiB, some 5 us at 100 Gb/s, and four of them: more than is on its way in a round trip. A silence of
    /// 100 ms: a busy host lets a process wait about as long.
    fn default() -> Self {
        Self { piece: 1 << 16, slots: 4, silence: Duration::from_millis(100) }
    }
}

/// What a rank has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages with data.
    pub messages: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
}

/// Why an operation cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A verb failed.
    #[error("{0}")]
    Verbs(#[from] Error),
    /// The plan.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// A setting that is out of its range.
    #[error("{what} is {value}: {advice}")]
    Range {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What to write instead.
        advice: &'static str,
    },
    /// An operation goes on.
    #[error("an operation goes on: poll until it is done")]
    Busy,
    /// The vector is longer than the data.
    #[error("the operation needs {needed} bytes, and the communicator has {there}")]
    TooLong {
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that there are.
        there: usize,
    },
    /// The slots of a neighbour are too small.
    #[error(
        "messages to rank {peer} have {needed} bytes, and its slots {there}: name the peers of this plan in `new`"
    )]
    Slots {
        /// The neighbour.
        peer: usize,
        /// Bytes of a message.
        needed: usize,
        /// Bytes of a slot.
        there: usize,
    },
    /// There is no connected queue pair to a neighbour.
    #[error("rank {peer} is not connected: name it in `new`, and pass its offer to `connect`")]
    NotConnected {
        /// The neighbour.
        peer: usize,
    },
    /// A neighbour has other settings.
    #[error("rank {peer} has pieces of another size, or another number of slots")]
    OtherSettings {
        /// The neighbour.
        peer: usize,
    },
    /// A message that does not belong to the operation: a rank has started another.
    #[error(
        "rank {peer} has sent what was not expected: all ranks start the same operations in the same order"
    )]
    Unexpected {
        /// The neighbour.
        peer: usize,
    },
    /// A datagram failed.
    #[error("a datagram to or from the group: {}", status.explain())]
    Network {
        /// Its status.
        status: WcStatus,
    },
    /// No switch answers.
    #[error(
        "a block was sent {times} times, and had no result: do all switches of the tree take part, and all ranks?"
    )]
    NoAnswer {
        /// How often.
        times: u32,
    },
    /// A work request failed.
    #[error("a message to or from rank {peer}: {}", status.explain())]
    Failed {
        /// The neighbour.
        peer: usize,
        /// Its status.
        status: WcStatus,
    },
    /// Some rank cannot go on, so no rank can. The communicator is of no use any more.
    #[error("rank {rank} is gone or has given up, says rank {peer}")]
    Lost {
        /// The rank.
        rank: usize,
        /// The rank that reported it: a neighbour, or this rank itself.
        peer: usize,
    },
}

/// One rank of a group that computes together.
pub struct Communicator {
    rank: usize,
    ranks: usize,
    settings: Settings,
    data: MemoryRegion,
    cq: CompletionQueue,
    /// By rank, in order.
    links: Vec<Link>,
    schedule: Option<Schedule>,
    element: Element,
    window: Window,
    /// Copies within our data that wait.
    copies: Vec<u64>,
    counts: Counts,
    /// Which rank is gone, and who said so.
    lost: Option<(usize, usize)>,
    /// Room for a message, and for what it is added to.
    scratch: [Vec<u8>; 2],
}

impl Communicator {
    /// Rank `rank` of `ranks` on a device, with `bytes` bytes of data and a queue pair for each of `peers`. Which ones an
    /// operation needs [`peers`](crate::peers) says; name those of all operations. A peer that is named several times gets
    /// slots for the longest message.
    ///
    /// # Errors
    /// A setting is out of its range, or a verb fails.
    pub fn new(
        device: &Device,
        rank: usize,
        ranks: usize,
        peers: &[Peer],
        bytes: usize,
        settings: &Settings,
    ) -> Result<Self, CollectiveError> {
        Self::in_domain(&device.alloc_pd()?, rank, ranks, peers, bytes, settings)
    }

    /// As [`new`](Self::new), in a protection domain of one's own.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn in_domain(
        pd: &ProtectionDomain,
        rank: usize,
        ranks: usize,
        peers: &[Peer],
        bytes: usize,
        settings: &Settings,
    ) -> Result<Self, CollectiveError> {
        let range = |what, value, ok, advice| {
            if ok { Ok(()) } else { Err(CollectiveError::Range { what, value, advice }) }
        };
        let Settings { piece, slots, .. } = *settings;
        range("piece", piece, (8..=1 << 30).contains(&piece), "write 8 to 1 GiB")?;
        range("slots", slots.into(), (2..=MOST_SLOTS).contains(&slots), "write 2 to 1024")?;
        let mut longest = BTreeMap::new();
        for peer in peers {
            let longest = longest.entry(peer.rank).or_insert(0);
            *longest = peer.longest.max(*longest);
        }
        if let Some(rank) = longest.keys().copied().chain([rank]).find(|rank| *rank >= ranks) {
            return Err(PlanError::NoRank { rank, ranks }.into());
        }
        let completions =
            u32::try_from(longest.len()).unwrap_or(u32::MAX).saturating_mul(Link::completions(settings));
        let cq = pd.device().create_cq(completions.max(1))?;
        let links = longest.into_iter().enumerate();
        let links = links
            .map(|(number, (rank, longest))| Link::new(pd, &cq, number, Peer { rank, longest }, settings));
        Ok(Self {
            rank,
            ranks,
            settings: settings.clone(),
            data: pd.register(bytes.max(1), Access::LOCAL_WRITE)?,
            links: links.collect::<Result<_, _>>()?,
            cq,
            schedule: None,
            element: Element::default(),
            window: Window::default(),
            copies: Vec::new(),
            counts: Counts::default(),
            lost: None,
            scratch: [Vec::new(), Vec::new()],
        })
    }

    /// What a neighbour passes to [`connect`](Self::connect).
    ///
    /// # Errors
    /// It was not named in [`new`](Self::new).
    pub fn offer(&self, peer: usize) -> Result<Offer, CollectiveError> {
        Ok(self.links[self.link(peer)?].offer(self.rank))
    }

    /// Connects to the neighbour that made an offer to us. It may send from then on.
    ///
    /// # Errors
    /// It was not named in [`new`](Self::new), has other settings or slots, or a verb fails.
    pub fn connect(&mut self, offer: &Offer, options: &ConnectOptions) -> Result<(), CollectiveError> {
        let link = self.link(offer.rank)?;
        self.links[link].connect(offer, options)
    }

    fn link(&self, peer: usize) -> Result<usize, CollectiveError> {
        let found = self.links.binary_search_by_key(&peer, |link| link.peer);
        found.map_err(|_| CollectiveError::NotConnected { peer })
    }

    /// Our rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The data of the operations. While one goes on, they change.
    #[must_use]
    pub const fn data(&self) -> &MemoryRegion {
        &self.data
    }

    /// What was sent until now.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Begins an operation at a time. All ranks begin the same operations in the same order; when each does so does not matter.
    ///
    /// # Errors
    /// Another one goes on, the data are shorter than its vector, a neighbour is not connected or has slots that are too
    /// small, a rank is gone, or a verb fails.
    pub fn start(&mut self, plan: &Plan, now: Duration) -> Result<(), CollectiveError> {
        self.check()?;
        if self.schedule.is_some() {
            return Err(CollectiveError::Busy);
        }
        let (needed, there) = (plan.bytes(self.rank, self.ranks), self.data.len());
        if needed > there {
            return Err(CollectiveError::TooLong { needed, there });
        }
        for Peer { rank: peer, longest } in peers(plan, self.rank, self.ranks)? {
            let link = &self.links[self.link(peer)?];
            if !link.is_connected() {
                return Err(CollectiveError::NotConnected { peer });
            }
            let (needed, there) = (longest.min(self.settings.piece), link.piece());
            if needed > there {
                return Err(CollectiveError::Slots { peer, needed, there });
            }
        }
        self.schedule = Some(Schedule::new(plan, self.rank, self.ranks, self.settings.piece)?);
        self.element = plan.element;
        self.links.iter_mut().for_each(|link| link.heard = now);
        self.advance()
    }

    /// Takes completions, and posts what follows from them. Returns whether no operation goes on.
    ///
    /// # Errors
    /// A message failed, or was not expected, a rank is gone, or a verb fails. The neighbours hear of it, and fail too: no
    /// operation can end any more, and every further call fails.
    pub fn poll(&mut self, now: Duration) -> Result<bool, CollectiveError> {
        self.check()?;
        let result = self.go_on(now);
        if let Err(why) = &result {
            self.give_up(why);
        }
        result
    }

    /// When to poll at the latest, whatever happens: a neighbour is to be asked whether it is still there.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.links.iter().filter_map(|link| link.asks_at(self.settings.silence)).min()
    }

    /// Fails if a rank is gone.
    const fn check(&self) -> Result<(), CollectiveError> {
        match self.lost {
            Some((rank, peer)) => Err(CollectiveError::Lost { rank, peer }),
            None => Ok(()),
        }
    }

    /// Tells the neighbours which rank is gone. They would wait for it, or for us, without end.
    fn give_up(&mut self, why: &CollectiveError) {
        let (rank, peer) = match *why {
            CollectiveError::Lost { rank, peer } => (rank, peer),
            CollectiveError::Failed { peer, .. } => (peer, self.rank),
            _ => (self.rank, self.rank),
        };
        self.lost = Some((rank, peer));
        for link in self.links.iter().filter(|link| link.peer != rank && link.peer != peer) {
            link.tell(rank);
        }
    }

    fn go_on(&mut self, now: Duration) -> Result<bool, CollectiveError> {
        let mut completions = [const { None }; POLL];
        loop {
            let mut count = 0;
            while count < POLL
                && let Some(completion) = self.cq.poll_one()
            {
                completions[count] = Some(completion);
                count += 1;
            }
            for completion in completions.iter_mut().filter_map(Option::take) {
                self.take(&completion, now)?;
            }
            if count < POLL {
                break;
            }
        }
        self.advance()?;
        let silence = self.settings.silence;
        for link in self.links.iter_mut().filter(|link| link.asks_at(silence).is_some_and(|at| at <= now)) {
            link.ask()?;
        }
        Ok(self.schedule.is_none())
    }

    fn take(&mut self, completion: &WorkCompletion, now: Duration) -> Result<(), CollectiveError> {
        let Some(link) = usize::try_from(completion.wr_id).ok().and_then(|number| self.links.get_mut(number))
        else {
            return Ok(());
        };
        if completion.status != WcStatus::Success {
            return Err(CollectiveError::Failed { peer: link.peer, status: completion.status });
        }
        link.heard = now;
        match (completion.opcode, completion.imm()) {
            (WcOpcode::RecvRdmaWithImm, Some(imm)) => link.take(imm, completion.byte_len),
            (WcOpcode::Recv, Some(rank)) => {
                Err(CollectiveError::Lost { rank: rank as usize, peer: link.peer })
            }
            _ => {
                link.completed();
                Ok(())
            }
        }
    }

    /// Does whatever can be done now.
    fn advance(&mut self) -> Result<(), CollectiveError> {
        loop {
            let mut goes_on = self.fill()?;
            goes_on |= self.copy()?;
            for link in 0..self.links.len() {
                goes_on |= self.send(link)? | self.receive(link)?;
                self.links[link].report()?;
            }
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Takes operations from the schedule. It is over when it has none, and all are done.
    fn fill(&mut self) -> Result<bool, CollectiveError> {
        let Some(schedule) = &mut self.schedule else { return Ok(false) };
        let mut has_more = false;
        while self.window.len() < WINDOW {
            let Some(op) = schedule.next() else {
                if self.window.is_empty() {
                    self.schedule = None;
                }
                break;
            };
            has_more = true;
            let (kind, peer) = (op.kind, op.peer);
            let number = self.window.push(op);
            if let Kind::Copy { .. } = kind {
                self.copies.push(number);
                continue;
            }
            let link = self.links.binary_search_by_key(&peer, |link| link.peer);
            let link = &mut self.links[link.map_err(|_| CollectiveError::NotConnected { peer })?];
            let waiting = if kind == Kind::Send { &mut link.to_send } else { &mut link.to_receive };
            waiting.push_back(number);
        }
        Ok(has_more)
    }

    /// Copies within our data.
    fn copy(&mut self) -> Result<bool, CollectiveError> {
        let mut waiting = Vec::new();
        let mut goes_on = false;
        for number in std::mem::take(&mut self.copies) {
            match self.window.ready(number) {
                Some(Op { kind: Kind::Copy { from }, range, .. }) => {
                    self.scratch[0].resize(range.len(), 0);
                    self.data.read_at(from, &mut self.scratch[0])?;
                    self.data.write_at(range.start, &self.scratch[0])?;
                    self.window.finish(number);
                    goes_on = true;
                }
                _ => waiting.push(number),
            }
        }
        self.copies = waiting;
        Ok(goes_on)
    }

    /// Posts the messages to a neighbour that may be posted.
    fn send(&mut self, link: usize) -> Result<bool, CollectiveError> {
        let link = &mut self.links[link];
        let mut goes_on = false;
        while link.may_send()
            && let Some(number) = link.to_send.front().copied()
            && let Some(op) = self.window.ready(number)
        {
            link.to_send.pop_front();
            self.counts.messages += 1;
            self.counts.bytes += op.range.len() as u64;
            let message = &mut self.scratch[0];
            message.resize(op.range.len(), 0);
            self.data.read_at(op.range.start, message)?;
            link.send(message)?;
            self.window.finish(number);
            goes_on = true;
        }
        Ok(goes_on)
    }

    /// Consumes the messages of a neighbour whose operations can be done.
    fn receive(&mut self, link: usize) -> Result<bool, CollectiveError> {
        let link = &mut self.links[link];
        let mut goes_on = false;
        while let Some(bytes) = link.waiting()
            && let Some(number) = link.to_receive.front().copied()
            && let Some(Op { kind, range, .. }) = self.window.ready(number)
        {
            if bytes != range.len() {
                return Err(CollectiveError::Unexpected { peer: link.peer });
            }
            link.to_receive.pop_front();
            let [message, sums] = &mut self.scratch;
            message.resize(bytes, 0);
            link.consume(message)?;
            if kind == Kind::Add {
                sums.resize(bytes, 0);
                self.data.read_at(range.start, sums)?;
                self.element.add(sums, message);
                self.data.write_at(range.start, sums)?;
            } else {
                self.data.write_at(range.start, message)?;
            }
            self.window.finish(number);
            goes_on = true;
        }
        Ok(goes_on)
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} of {})", self.rank, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Collective};

    #[test]
    fn a_plan_with_longer_messages_than_its_slots_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let net = rnic_core::sim::Net::new();
        let plan = |count| Plan {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            element: Element::U64,
            count,
        };
        let (short, long) = (plan(10), plan(1000));
        let mut ranks = Vec::new();
        for rank in 0..2 {
            let peers = peers(&short, rank, 2)?;
            ranks.push(Communicator::new(&net.device(), rank, 2, &peers, 8000, &Settings::default())?);
        }
        let now = Duration::ZERO;
        let error = ranks[0].start(&short, now).expect_err("nobody is connected");
        assert!(matches!(error, CollectiveError::NotConnected { peer: 1 }), "{error}");
        for rank in 0..2 {
            let offer = ranks[1 - rank].offer(rank)?;
            ranks[rank].connect(&offer, &ConnectOptions::default())?;
        }
        let error = ranks[0].start(&long, now).expect_err("its parts have 4000 bytes");
        assert!(matches!(error, CollectiveError::Slots { peer: 1, needed: 4000, there: 40 }), "{error}");
        ranks.iter_mut().try_for_each(|rank| rank.start(&short, now))?;
        let mut left = 2;
        while left > 0 {
            left = 0;
            for rank in &mut ranks {
                left += usize::from(!rank.poll(net.elapsed())?);
            }
            net.step();
        }
        Ok(())
    }
}
