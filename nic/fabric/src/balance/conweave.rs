//! ConWeave (Song et al., SIGCOMM 2023): a flow leaves a congested way at once, and the last leaf restores the order.
//!
//! The source leaf asks for a reply with the first packet of an epoch. If none comes in time, the way is congested: a TAIL
//! follows on it, and the next packets take another way, as rerouted ones. The destination leaf holds those back until the
//! TAIL has come, or must be lost. A second change waits for the reply to the TAIL. So a flow is on two ways at most.
//!
//! Who calls what when:
//!
//! - The leaf at the source asks [`Source::send`] for the port of a data packet, in place of a balancer. The packet carries
//!   the [`Label`]. Other switches choose by hash.
//! - The leaf at the destination gives it to [`Destination::handle`], sends the [`Answer`] back to the source leaf in a packet
//!   of 64 bytes in the class of acknowledgements, and delivers what [`Destination::poll`] returns: then, and at the time
//!   of [`Destination::deadline`].
//! - The source leaf gives replies to [`Source::on_reply`], and notifications to [`Source::on_notify`].
//!
//! A way is a port of the source leaf, so between more than two tiers it is not a single path.

use super::hash::{Hasher, Random, mix, pick};
use super::{Picos, Question, picos};
use crate::words;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use time::Duration;

/// Settings. The defaults are those with which the authors' simulator runs two tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Conweave {
    /// A reply is late this long after the round trip without any queue. 4 us.
    #[serde(with = "words::duration")]
    pub reply_extra: Duration,
    /// A way is not chosen for this time after a packet was marked on it. 16 us.
    #[serde(with = "words::duration")]
    pub path_pause: Duration,
    /// A flow takes another way at no risk after this time without a packet. 300 us; 1 ms in three tiers.
    #[serde(with = "words::duration")]
    pub idle: Duration,
    /// Rerouted packets wait for a TAIL of which nothing is known for this time. 200 us; 300 us with selective repeat, 600
    /// us in three tiers without loss.
    #[serde(with = "words::duration")]
    pub hold: Duration,
    /// They wait this much longer than a TAIL is expected to take. 16 us; 64 us in three tiers.
    #[serde(with = "words::duration")]
    pub hold_extra: Duration,
}

impl Default for Conweave {
    fn default() -> Self {
        Self {
            reply_extra: Duration::from_micros(4),
            path_pause: Duration::from_micros(16),
            idle: Duration::from_micros(300),
            hold: Duration::from_micros(200),
            hold_extra: Duration::from_micros(16),
        }
    }
}

/// What a packet asks of the destination leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Data,
    /// A reply: it is the first of its epoch.
    Request,
    /// A reply, and to deliver what was held back: it is the last on the old way.
    Tail,
}

/// What a data packet carries from leaf to leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Rises with each epoch of a flow.
    pub epoch: u64,
    /// Whether it takes the new way of its epoch.
    pub rerouted: bool,
    /// What it asks for.
    pub kind: Kind,
    /// The port of the source leaf that it took.
    pub way: u16,
    /// When it left the source leaf.
    pub sent: Picos,
    /// When the TAIL of its epoch left, if it is one or was rerouted.
    pub tail: Picos,
}

/// The destination leaf's reply to a request or a TAIL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The epoch of the packet.
    pub epoch: u64,
    /// Whether it was a TAIL.
    pub tail: bool,
}

/// What the destination leaf tells the source leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The packet asked for it.
    pub reply: Option<Reply>,
    /// The packet was marked on this way.
    pub notify: Option<u16>,
}

/// Flows that a leaf knows: as many as a table of flowlets. Others take the port of their hash.
const FLOWS: usize = 4096;
/// Places in which a flow may be.
const WAYS: usize = 4;
/// Flows that a leaf can hold packets of at a time. A switch has a few queues for each port; the authors needed fewer than 32.
const QUEUES: usize = 1024;
/// Packets of a flow that are held: 16 MB of 4 KiB. Then they are delivered out of order.
const HELD: usize = 4096;

/// Flows with their state.
#[derive(Clone, Debug)]
struct Flows<T> {
    places: Vec<Option<Flow<T>>>,
    hasher: Hasher,
}

#[derive(Clone, Copy, Debug)]
struct Flow<T> {
    key: u64,
    last: Picos,
    state: T,
}

impl<T: Copy> Flows<T> {
    fn new(seed: u64) -> Self {
        Self { places: vec![None; FLOWS], hasher: Hasher::new(seed) }
    }

    fn set(&mut self, key: u64) -> &mut [Option<Flow<T>>] {
        let set = usize::try_from(self.hasher.of(key) % (FLOWS / WAYS) as u64).unwrap_or(0);
        &mut self.places[set * WAYS..(set + 1) * WAYS]
    }

    fn get(&mut self, key: u64) -> Option<&mut Flow<T>> {
        self.set(key).iter_mut().flatten().find(|flow| flow.key == key)
    }

    /// The flow, or a new one in the place of one that may go.
    fn get_or(&mut self, key: u64, new: T, may_go: impl Fn(&Flow<T>) -> bool) -> Option<&mut Flow<T>> {
        let set = self.set(key);
        let known = set.iter().position(|place| place.as_ref().is_some_and(|flow| flow.key == key));
        let at = known.or_else(|| set.iter().position(|place| place.as_ref().is_none_or(&may_go)))?;
        if known.is_none() {
            set[at] = Some(Flow { key, last: 0, state: new });
        }
        set[at].as_mut()
    }
}

/// A leaf as the source of flows.
#[derive(Clone, Debug)]
pub struct Source {
    reply_extra: Picos,
    path_pause: Picos,
    idle: Picos,
    flows: Flows<Sending>,
    random: Random,
    /// By destination leaf and port: until when a way is bad.
    bad: Vec<Vec<Picos>>,
    /// The last epoch of any flow. So a flow that was forgotten goes on with a higher one.
    epoch: u64,
    reroutes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sending {
    /// 0 before the first packet.
    epoch: u64,
    rerouted: bool,
    /// Whether the next packet begins an epoch.
    settled: bool,
    /// When the reply is late.
    late: Option<Picos>,
    way: u16,
    tail: Picos,
}

impl Source {
    /// The source part of the switch with this number.
    #[must_use]
    pub fn new(config: &Conweave, switch: u32, seed: u64) -> Self {
        let own = mix(seed ^ mix(u64::from(switch).wrapping_add(1)));
        Self {
            reply_extra: picos(config.reply_extra),
            path_pause: picos(config.path_pause),
            idle: picos(config.idle),
            flows: Flows::new(own),
            random: Random::new(own),
            bad: Vec::new(),
            epoch: 0,
            reroutes: 0,
        }
    }

    /// How often flows have left a way because no reply came in time.
    #[must_use]
    pub const fn reroutes(&self) -> u64 {
        self.reroutes
    }

    /// The port of a data packet, and what it carries. It has no label if its flow finds no place in the table: then the
    /// destination leaf delivers it as it comes. `round_trip` is that to the destination leaf without any queue.
    pub fn send(&mut self, question: &Question<'_>, round_trip: Picos) -> (u16, Option<Label>) {
        let Question { now, flow: key, ports, dst_leaf, .. } = *question;
        let idle = self.idle;
        let bad = usize::try_from(dst_leaf).ok().and_then(|leaf| self.bad.get(leaf));
        let is_good =
            |way: u16| bad.and_then(|until| until.get(usize::from(way))).is_none_or(|until| *until <= now);
        let expired = |last: Picos| now.saturating_sub(last) > idle;
        let hashed = pick(ports, self.flows.hasher.of(key));
        let Some(flow) = self.flows.get_or(key, Sending::default(), |other| expired(other.last)) else {
            return (hashed, None);
        };
        let is_new = flow.state.epoch == 0 || !ports.contains(&flow.state.way);
        let state = &mut flow.state;
        let starts = is_new || expired(flow.last) || state.settled;
        let mut label = Label {
            epoch: state.epoch,
            rerouted: state.rerouted,
            kind: Kind::Data,
            way: state.way,
            sent: now,
            tail: state.tail,
        };
        let mut samples = || [self.random.pick(ports), self.random.pick(ports)];
        if starts {
            if is_new || expired(flow.last) {
                let samples = samples();
                let good = samples.into_iter().find(|way| is_good(*way));
                state.way = good.unwrap_or(if is_new { samples[0] } else { state.way });
            }
            self.epoch += 1;
            let late = now.saturating_add(round_trip).saturating_add(self.reply_extra);
            *state = Sending { epoch: self.epoch, way: state.way, late: Some(late), ..Sending::default() };
            label = Label {
                epoch: self.epoch,
                rerouted: false,
                kind: Kind::Request,
                way: state.way,
                tail: 0,
                ..label
            };
        } else if state.late.is_some_and(|late| late < now) {
            // If both samples are bad, the flow stays, and its next packet looks again.
            if let Some(way) = samples().into_iter().find(|way| *way != state.way && is_good(*way)) {
                label = Label { kind: Kind::Tail, tail: now, ..label };
                *state = Sending { rerouted: true, late: None, way, tail: now, ..*state };
                self.reroutes += 1;
            }
        }
        flow.last = now;
        (label.way, Some(label))
    }

    /// The destination leaf has replied to a packet of the flow. Replies to earlier epochs, and to the request of a flow
    /// that has left its way since then, come too late to matter.
    pub fn on_reply(&mut self, flow: u64, reply: Reply) {
        if let Some(Flow { state, .. }) = self.flows.get(flow)
            && state.epoch == reply.epoch
            && state.rerouted == reply.tail
        {
            state.settled = true;
            state.late = None;
        }
    }

    /// A packet to the leaf was marked on this way.
    pub fn on_notify(&mut self, now: Picos, dst_leaf: u32, way: u16) {
        let (Ok(leaf), way) = (usize::try_from(dst_leaf), usize::from(way)) else { return };
        if self.bad.len() <= leaf {
            self.bad.resize(leaf + 1, Vec::new());
        }
        let ways = &mut self.bad[leaf];
        if ways.len() <= way {
            ways.resize(way + 1, 0);
        }
        ways[way] = now.saturating_add(self.path_pause);
    }
}

/// A leaf as the destination of flows. It holds packets of the type `P`.
#[derive(Clone, Debug)]
pub struct Destination<P> {
    hold: Picos,
    hold_extra: Picos,
    idle: Picos,
    flows: Flows<Receiving>,
    /// Flows with packets that wait for a TAIL; few at a time.
    queues: Vec<Queue<P>>,
    /// Packets to deliver.
    ready: VecDeque<P>,
    unordered: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Receiving {
    epoch: u64,
    /// Whether the TAIL of the epoch has come, or is given up.
    over: bool,
    /// When the last packet on the old way left the source leaf, and when it came.
    on_old_way: Option<(Picos, Picos)>,
    tail: Picos,
}

#[derive(Clone, Debug)]
struct Queue<P> {
    flow: u64,
    until: Picos,
    packets: VecDeque<P>,
}

impl<P> Destination<P> {
    /// The destination part of a switch.
    #[must_use]
    pub fn new(config: &Conweave, seed: u64) -> Self {
        Self {
            hold: picos(config.hold),
            hold_extra: picos(config.hold_extra),
            idle: picos(config.idle),
            flows: Flows::new(mix(seed)),
            queues: Vec::new(),
            ready: VecDeque::new(),
            unordered: 0,
        }
    }

    /// Packets that were delivered although earlier ones may come, for want of space.
    #[must_use]
    pub const fn unordered(&self) -> u64 {
        self.unordered
    }

    /// A packet has come, with a mark of congestion or without.
    pub fn handle(&mut self, now: Picos, flow: u64, label: &Label, marked: bool, packet: P) -> Answer {
        let idle = self.idle;
        let held = self.queues.iter().position(|queue| queue.flow == flow);
        let queues = &self.queues;
        let may_go = |other: &Flow<Receiving>| {
            now.saturating_sub(other.last) > idle && queues.iter().all(|queue| queue.flow != other.key)
        };
        let notify = marked.then_some(label.way);
        let reply = Reply { epoch: label.epoch, tail: label.kind == Kind::Tail };
        let answer = Answer { reply: (label.kind != Kind::Data).then_some(reply), notify };
        let Some(Flow { state, last, .. }) = self.flows.get_or(flow, Receiving::default(), may_go) else {
            self.unordered += u64::from(label.rerouted);
            self.ready.push_back(packet);
            return answer;
        };
        *last = now;
        if label.epoch < state.epoch {
            // Its flow has gone on since then, so nobody waits for a reply.
            self.ready.push_back(packet);
            return Answer { reply: None, notify };
        }
        let is_next = label.epoch > state.epoch;
        if is_next {
            *state = Receiving { epoch: label.epoch, ..Receiving::default() };
        }
        if label.rerouted {
            state.tail = label.tail;
        } else {
            state.on_old_way = Some((label.sent, now));
            state.over |= label.kind == Kind::Tail;
        }
        let state = *state;
        // What waits from an earlier epoch waits in vain: it was sent before this packet.
        let mut held = held;
        if is_next && let Some(at) = held.take() {
            self.release(at);
        }
        if label.rerouted && !state.over {
            self.hold_back(now, flow, state, held, packet);
            return answer;
        }
        self.ready.push_back(packet);
        match held {
            Some(at) if state.over => self.release(at),
            // The TAIL is expected as long after this packet as it was sent after it.
            Some(at) => self.queues[at].until = self.expected(now, state),
            None => {}
        }
        answer
    }

    /// When to give up a TAIL.
    fn expected(&self, now: Picos, state: Receiving) -> Picos {
        let (since, wait) = match state.on_old_way {
            Some((sent, came)) => (came, state.tail.saturating_sub(sent)),
            None => (now, self.hold),
        };
        since.saturating_add(wait).saturating_add(self.hold_extra)
    }

    fn hold_back(&mut self, now: Picos, flow: u64, state: Receiving, held: Option<usize>, packet: P) {
        match held {
            Some(at) if self.queues[at].packets.len() < HELD => self.queues[at].packets.push_back(packet),
            None if self.queues.len() < QUEUES => {
                let until = self.expected(now, state);
                self.queues.push(Queue { flow, until, packets: VecDeque::from([packet]) });
            }
            full => {
                self.unordered += 1;
                // Those that wait were sent before it.
                if let Some(at) = full {
                    self.release(at);
                }
                self.ready.push_back(packet);
            }
        }
    }

    fn release(&mut self, at: usize) {
        // In the order of their first packets, so that what is due at the same time leaves in that order.
        self.ready.append(&mut self.queues.remove(at).packets);
    }

    /// The next packet to deliver.
    pub fn poll(&mut self, now: Picos) -> Option<P> {
        while let Some(at) = self.queues.iter().position(|queue| queue.until <= now) {
            // The TAIL is lost. What comes now must not wait for it.
            let flow = self.queues[at].flow;
            if let Some(Flow { state, .. }) = self.flows.get(flow) {
                state.over = true;
            }
            self.release(at);
        }
        self.ready.pop_front()
    }

    /// When the next held packets are due, if no TAIL comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Picos> {
        self.queues.iter().map(|queue| queue.until).min()
    }
}
