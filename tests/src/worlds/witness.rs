//! Sees all packets at the ports of a world, and judges whether requesters retransmit and give up for a reason.
//!
//! Each requester has an [`Account`] of the packets that its queue pair sent and received: it tells whether a
//! retransmission or a failure is justified by what the requester could know. What it could know has a cause in the
//! network, or in the peer. So where answers cannot be late, each sign of loss needs a loss of its own: a packet of
//! this connection, in either direction, that was dropped, damaged, copied, held or delayed, in the time since the
//! requester last went back. That is what bounds RETRY_EXC_ERR by what was really lost: no loss explains two signs.
//! A port that is unplugged, and a peer that failed, explain all signs meanwhile.
//!
//! Losses may become visible only after their signs, because a packet that a fault holds is seen when it is let go.
//! The judgement therefore waits for [`HOLD`].

use super::Check;
use super::account::{Account, Sign, Terms};
use super::rng::Rng;
use super::wire::Packet;
use qp::wire::{IpHeader, UDP_PORT};
use rnic::link::{Direction, Fate, FrameRef, Now, Observer};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest time that a fault of a plan holds a packet: for others to overtake it (10 ms), and by its delay (3 ms).
pub(super) const HOLD: Duration = Duration::from_millis(13);

/// Messages of each port that a forger remembers: some from before a restart, and some of today.
const HEARD: usize = 64;

/// The opcodes of notifications of congestion and of datagrams, and the upper bits of those of rnic's own messages.
const CNP: u8 = 0x81;
const UD_SEND: u8 = 0x64;
const OURS: u8 = 6;

/// A side of a connection.
pub(super) type Place = (usize, usize);

/// A queue pair, for the packets that it sends to its peer and receives from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub(super) address: IpAddr,
    pub(super) qpn: u32,
    /// `None` if it never requests.
    pub(super) terms: Option<Terms>,
}

/// Sees all packets at the ports of a world.
#[derive(Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Scene>>);

#[derive(Default)]
struct Scene {
    /// By the address of a port, that of its peer, and the queue pair at the peer: who sends.
    senders: HashMap<(IpAddr, IpAddr, u32), Place>,
    /// By the address of a port, that of its peer, and the queue pair at the port: who receives.
    receivers: HashMap<(IpAddr, IpAddr, u32), Place>,
    accounts: HashMap<Place, Account>,
    lines: BTreeMap<usize, Line>,
    /// Packets that were damaged before they left.
    damaged: HashSet<u64>,
    /// The port that packets of an address come from.
    ports: HashMap<IpAddr, u16>,
    /// Messages between ports that arrived at an address, the newest last.
    heard: HashMap<IpAddr, VecDeque<(IpHeader, Vec<u8>)>>,
    /// Addresses whose port is down.
    down: HashSet<IpAddr>,
    violation: Option<String>,
    judged: u64,
}

/// What happened to the packets of a connection, and the signs of it.
#[derive(Default)]
struct Line {
    addresses: Vec<IpAddr>,
    /// Answers may be late without a loss.
    may_be_late: bool,
    round_trip: Duration,
    /// By requester: those of its requests and of their answers.
    losses: [VecDeque<Duration>; 2],
    /// When a port was down.
    outages: Vec<(Duration, Duration)>,
    signs: VecDeque<(usize, Sign)>,
    /// The number of signs that the world has looked at.
    looked_at: usize,
}

impl Witness {
    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A view of the port with this address.
    pub(super) fn at(&self, address: IpAddr) -> impl Observer + use<> {
        View { address, scene: self.0.clone() }
    }

    /// A connection is set up. `round_trip` is `None` if answers may be late without a loss.
    pub(super) fn begin(&self, c: usize, parties: [Party; 2], round_trip: Option<Duration>) -> Check {
        let mut scene = self.scene();
        if let Some(line) = scene.lines.get_mut(&c) {
            // None of its packets is on its way any more.
            line.judge(c, Duration::MAX)?;
        }
        scene.senders.retain(|_, place| place.0 != c);
        scene.receivers.retain(|_, place| place.0 != c);
        for (side, party) in parties.iter().enumerate() {
            let peer = &parties[1 - side];
            scene.senders.insert((party.address, peer.address, peer.qpn), (c, side));
            scene.receivers.insert((party.address, peer.address, party.qpn), (c, side));
            scene.accounts.remove(&(c, side));
            scene.accounts.extend(party.terms.map(|terms| ((c, side), Account::new(terms))));
        }
        let line = Line {
            addresses: parties.map(|party| party.address).to_vec(),
            may_be_late: round_trip.is_none(),
            round_trip: round_trip.unwrap_or_default(),
            ..Line::default()
        };
        scene.lines.insert(c, line);
        Ok(())
    }

    /// A queue pair has failed, and its program does not know it: what it still receives does not count.
    pub(super) fn freeze(&self, place: Place, now: Duration) {
        if let Some(account) = self.scene().accounts.get_mut(&place) {
            account.freeze(now);
        }
    }

    /// A queue pair has failed, or no longer exists: it is not judged any more.
    pub(super) fn end(&self, place: Place) {
        self.scene().accounts.remove(&place);
    }

    /// A queue pair goes from SQD to RTS, which restores its retries.
    pub(super) fn resume(&self, place: Place) {
        if let Some(account) = self.scene().accounts.get_mut(&place) {
            account.resume();
        }
    }

    /// A port goes down, or comes up again.
    pub(super) fn plug(&self, now: Duration, address: IpAddr, up: bool) {
        let mut scene = self.scene();
        let changes = if up { scene.down.remove(&address) } else { scene.down.insert(address) };
        if !changes {
            return;
        }
        for line in scene.lines.values_mut().filter(|line| line.addresses.contains(&address)) {
            let open = line.outages.iter_mut().find(|(_, end)| *end == Duration::MAX);
            match open {
                // What was in flight is lost.
                Some((_, end)) if up => *end = now + line.round_trip,
                _ if up => {}
                _ => line.outages.push((now, Duration::MAX)),
            }
        }
    }

    /// The port that packets of a device come from.
    pub(super) fn port_of(&self, address: IpAddr) -> u16 {
        self.scene().ports.get(&address).copied().unwrap_or(UDP_PORT)
    }

    /// One of the messages between ports that arrived at an address.
    pub(super) fn heard_at(&self, address: IpAddr, rng: &mut Rng) -> Option<(IpHeader, Vec<u8>)> {
        let scene = self.scene();
        let heard = scene.heard.get(&address)?;
        heard.get(rng.size(0, heard.len().saturating_sub(1))).cloned()
    }

    /// Memory that requests of a connection use is taken away: a READ that is repeated then gets no answer, and no NAK
    /// either, because it was executed before (IBTA C9-105).
    pub(super) fn let_be(&self, c: usize) {
        if let Some(line) = self.scene().lines.get_mut(&c) {
            line.may_be_late = true;
        }
    }

    /// A device is removed, and with it what its faults hold: packets of the last moments that nobody sees.
    pub(super) fn remove(&self, now: Duration, address: IpAddr) {
        let mut scene = self.scene();
        for line in scene.lines.values_mut().filter(|line| line.addresses.contains(&address)) {
            line.outages.push((now.saturating_sub(HOLD), now + line.round_trip));
        }
    }

    /// A requester gave up with RETRY_EXC_ERR.
    pub(super) fn gave_up(&self, place: Place, now: Duration) -> Check {
        let mut scene = self.scene();
        let Some(account) = scene.accounts.get(&place) else { return Ok(()) };
        let sign = account.gave_up(now)?;
        scene.judged += 1;
        sign.into_iter().for_each(|sign| scene.note_sign(place, sign));
        Ok(())
    }

    /// A requester gave up with RNR_RETRY_EXC_ERR.
    pub(super) fn gave_up_waiting(&self, place: Place) -> Check {
        self.scene().accounts.get(&place).map_or(Ok(()), Account::gave_up_waiting)
    }

    /// The connections with signs that the world has not looked at.
    pub(super) fn fresh(&self) -> Vec<usize> {
        let scene = self.scene();
        let fresh = scene.lines.iter().filter(|(_, line)| line.signs.len() > line.looked_at);
        fresh.map(|(c, _)| *c).collect()
    }

    /// The world looked at the new signs of a connection, and its peer explains them, or it does not.
    pub(super) fn look(&self, c: usize, excused: bool) {
        if let Some(line) = self.scene().lines.get_mut(&c) {
            if excused {
                line.signs.truncate(line.looked_at);
            }
            line.looked_at = line.signs.len();
        }
    }

    /// Judges what can be judged by now. Returns how many signs were explained by losses.
    pub(super) fn judge(&self, now: Duration) -> Check<u64> {
        let mut scene = self.scene();
        if let Some(violation) = scene.violation.take() {
            return Err(violation);
        }
        let mut explained = std::mem::take(&mut scene.judged);
        for (c, line) in &mut scene.lines {
            explained += line.judge(*c, now)?;
        }
        Ok(explained)
    }
}

impl Line {
    /// Judges the signs whose causes are known by now. Returns how many there were.
    fn judge(&mut self, c: usize, now: Duration) -> Check<u64> {
        let mut explained = 0;
        while let Some((side, sign)) = self.signs.pop_front_if(|(_, sign)| sign.at + HOLD < now) {
            self.looked_at = self.looked_at.saturating_sub(1);
            if !self.explains(side, sign) {
                return Err(format!(
                    "conn {c} side {side}: sent again or gave up at {:?}, having last gone back at {:?}, and nothing \
                     that was lost explains it",
                    sign.at, sign.since
                ));
            }
            explained += 1;
        }
        Ok(explained)
    }

    /// Whether an outage or a loss explains a sign; no other sign has this loss then.
    fn explains(&mut self, side: usize, sign: Sign) -> bool {
        let since = sign.since.saturating_sub(self.round_trip);
        if self.outages.iter().any(|(from, to)| *from <= sign.at && since <= *to) {
            return true;
        }
        let losses = &mut self.losses[side];
        while losses.pop_front_if(|loss| *loss < since).is_some() {}
        losses.pop_front_if(|loss| *loss <= sign.at + HOLD).is_some()
    }
}

impl Scene {
    fn note_sign(&mut self, place: Place, sign: Sign) {
        if let Some(line) = self.lines.get_mut(&place.0).filter(|line| !line.may_be_late) {
            line.signs.push_back((place.1, sign));
        }
    }

    fn note_loss(&mut self, place: Place, now: Duration) {
        if let Some(line) = self.lines.get_mut(&place.0) {
            line.losses[place.1].push_back(now);
        }
    }

    /// A queue pair sends a packet, before anything can happen to it.
    fn departs(&mut self, address: IpAddr, now: Duration, frame: &FrameRef<'_>) {
        let Some(packet) = Packet::parse(frame.bytes).filter(Packet::is_request) else { return };
        let Some(place) = self.senders.get(&(address, frame.ip.dst, packet.qpn)).copied() else { return };
        let Some(account) = self.accounts.get_mut(&place) else { return };
        match account.sent(now, packet.psn, packet.said) {
            Ok(Some(sign)) => self.note_sign(place, sign),
            Ok(None) => {}
            Err(what) => {
                self.violation.get_or_insert(format!("conn {} side {}: {what}", place.0, place.1));
            }
        }
    }

    /// The fate of a packet is known.
    fn ends(&mut self, address: IpAddr, now: Duration, frame: &FrameRef<'_>) {
        let flipped = frame.notes.iter().any(|note| note.contains("flipped"));
        self.listen(address, frame);
        let harmless = |note: &String| note.contains("marked CE");
        let sent = frame.direction == Direction::Tx;
        if flipped {
            // It may not name its own queue pair any more.
            let ends = [frame.ip.src, frame.ip.dst];
            let lines =
                self.lines.iter().filter(|(_, line)| ends.iter().all(|end| line.addresses.contains(end)));
            let lines: Vec<usize> = lines.map(|(c, _)| *c).collect();
            let places = lines.into_iter().flat_map(|c| [(c, 0), (c, 1)]);
            places.for_each(|place| self.note_loss(place, now));
            // Its checksum is wrong, so no other packet has the same bytes.
            self.damaged.extend(sent.then(|| digest(frame.bytes)));
            return;
        }
        let Some(packet) = Packet::parse(frame.bytes) else { return };
        let place = match frame.direction {
            Direction::Tx => self.senders.get(&(address, frame.ip.dst, packet.qpn)),
            Direction::Rx => self.receivers.get(&(address, frame.ip.src, packet.qpn)),
        };
        let Some(place) = place.copied() else { return };
        let dropped = matches!(frame.fate, Fate::Dropped { .. });
        if dropped || !frame.notes.iter().all(harmless) {
            let is_its_own = sent == packet.is_request();
            self.note_loss((place.0, if is_its_own { place.1 } else { 1 - place.1 }), now);
        }
        if sent || dropped || self.down.contains(&address) || packet.is_request() {
            return;
        }
        let damaged = !self.damaged.is_empty() && self.damaged.contains(&digest(frame.bytes));
        if let Some(account) = self.accounts.get_mut(&place).filter(|_| !damaged) {
            account.received(now, packet.psn, packet.said);
        }
    }

    /// Keeps what a forger may repeat.
    fn listen(&mut self, address: IpAddr, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx {
            self.ports.insert(address, frame.ip.src_port);
            return;
        }
        let opcode = frame.bytes.first().copied().unwrap_or_default();
        let to_qp1 = frame.bytes.get(6..8) == Some(&[0, 1]);
        if opcode == CNP || opcode >> 5 == OURS || opcode == UD_SEND && to_qp1 {
            let heard = self.heard.entry(address).or_default();
            heard.push_back((*frame.ip, frame.bytes.to_vec()));
            if heard.len() > HEARD {
                heard.pop_front();
            }
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A view of one port.
struct View {
    address: IpAddr,
    scene: Arc<Mutex<Scene>>,
}

impl Observer for View {
    fn name(&self) -> &str {
        "witness"
    }

    // Time in a simulation begins with the epoch.
    fn observe(&mut self, now: Now, frame: &FrameRef<'_>) {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner).ends(self.address, now.wall, frame);
    }

    fn observe_departure(&mut self, now: Now, frame: &FrameRef<'_>) {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner).departs(self.address, now.wall, frame);
    }
}
