//! The state behind the lock of a port: the engine, the link and the sockets, and the turns that drive them.

use super::hold::{AckHold, Begin, Driver, Due};
use super::io::Io;
use super::throttle::{SocketBuffer, Throttle, bytes_of};
use crate::engine::{Arrival, Departure, Engine, Membership, ResourceError};
use crate::error::Error;
use crate::link::emulation::{Emulation, EmulationStats};
use crate::link::{Direction, Fate, Frame, FrameRef, LinkProfile, LinkStack, Now};
use crate::net::{Datagram, RecvBatch, RecvError};
use qp::wire::{Flow, UDP_PORT};
use qp::{Gid, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

#[cfg(test)]
mod tests;

/// Limit of receive calls in a turn: 8 trains of 15 packets of 4 KiB are copied in about 50 us, the longest acceptable
/// wait of a control call.
const RECEIVES_PER_TURN: usize = 8;

/// Limit of trains sent in a turn, for the same reason.
const SENDS_PER_TURN: usize = 16;

/// How long to wait before the kernel is asked again whether it has room: a full send buffer of 208 KiB drains in 170
/// us at 10 Gb/s. While an address does not answer to ARP, the buffer stays full for seconds, which must not be spent
/// spinning.
const STALL: Duration = Duration::from_micros(250);

/// Size of the buffer for one train: the largest UDP payload over IPv4.
const TRAIN_BYTES: usize = 65_507;

/// The state behind the lock of a port.
pub(crate) struct Lane {
    pub(crate) engine: Engine,
    pub(crate) link: LinkStack,
    pub(crate) io: Io,
    buffer: Box<[u8]>,
    /// A train for which the kernel had no room; nothing is sent before it.
    stalled: Option<Departure>,
    /// Packets that left the link layers but are not sent yet.
    outgoing: VecDeque<Frame>,
    /// Packets that left the link layers but are not handled yet.
    incoming: VecDeque<Frame>,
    /// Decides whether an acknowledgement waits for the program's reply.
    hold: AckHold,
    /// Whether the last turn received nothing.
    quiet: bool,
    /// Whether a panic left the engine half changed: it is not driven any more.
    wrecked: bool,
    /// The same instant on both clocks.
    clocks: Now,
    /// The read times of a slow receiver.
    throttle: Option<Throttle>,
    /// Packets that a slow receiver in a simulation has not read yet.
    unread: SocketBuffer,
}

impl Lane {
    pub(super) fn new(engine: Engine, io: Io, clocks: Now) -> Self {
        Self {
            engine,
            link: LinkStack::new(),
            io,
            buffer: vec![0; TRAIN_BYTES].into(),
            stalled: None,
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
            hold: AckHold::new(),
            quiet: true,
            wrecked: false,
            clocks,
            throttle: None,
            unread: SocketBuffer::default(),
        }
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(crate) fn set_link(&mut self, profile: &LinkProfile, now: Instant, seed: u64) {
        self.link.emulation = Emulation::new(profile, now, seed);
        if self.link.emulation.is_some() && profile.receiver_rate.is_none() {
            self.io.stamp_arrivals();
        }
        self.throttle = profile.receiver_rate.map(|rate| Throttle::new(rate, now));
    }

    /// Counters of the emulated link; `None` without one.
    pub(crate) fn link_stats(&mut self) -> Option<EmulationStats> {
        let stats = self.link.emulation.as_mut().map(|emulation| emulation.stats());
        let receiver_overrun = self.unread.overrun();
        (stats.is_some() || self.throttle.is_some())
            .then(|| EmulationStats { receiver_overrun, ..stats.unwrap_or_default() })
    }

    /// The largest number of bytes in the queue of the emulated port since the last call; `None` without one.
    pub(crate) fn take_queue_peak(&mut self) -> Option<u64> {
        self.link.emulation.as_mut()?.take_queue_peak()
    }

    /// Returns whether the port reads its socket as soon as packets arrive; if not, [`next_timer`](Self::next_timer)
    /// tells when it reads.
    pub(super) fn listens(&self) -> bool {
        self.throttle.as_ref().and_then(Throttle::opens_at).is_none()
    }

    /// `now` on both clocks.
    pub(crate) fn both_clocks(&self, now: Instant) -> Now {
        let passed = now.saturating_duration_since(self.clocks.instant);
        Now { instant: now, wall: self.clocks.wall + passed }
    }

    /// Receives packets, handles expired timers, and transmits, unless the acknowledgement is [held](super::hold).
    /// Returns the amount of work: datagrams received plus trains sent.
    pub(super) fn turn(&mut self, now: Instant, driver: Driver) -> u32 {
        if self.wrecked {
            return 0;
        }
        if self.hold.begin(driver, now) == Begin::Wait {
            return 1;
        }
        crate::memory::refresh(now);
        let datagrams = self.receive(now);
        self.handle_timeout(now);
        let only_acks = datagrams > 0 && self.has_work() && !self.engine.has_requests();
        if self.hold.take_in(driver, datagrams, only_acks, now) == Due::Hold {
            return datagrams;
        }
        let trains = self.transmit(now);
        self.hold.end(datagrams, trains);
        datagrams + trains
    }

    /// Returns whether the program may be about to reply to what the last turn received.
    pub(super) fn may_be_answered(&self) -> bool {
        self.hold.may_be_answered()
    }

    /// Records that the program sends something; returns whether the packet can carry a held acknowledgement.
    pub(super) fn note_posted(&mut self) -> bool {
        self.hold.posted()
    }

    /// Fails the device after a panic. From now on the lane does nothing.
    pub(super) fn give_up(&mut self) {
        self.wrecked = true;
        self.engine.fail_after_panic();
    }

    /// Sends a held acknowledgement.
    pub(super) fn let_go(&mut self, now: Instant) {
        if self.hold.is_held() {
            self.transmit(now);
        }
    }

    fn receive(&mut self, now: Instant) -> u32 {
        let Self { engine, link, io: Io::Udp(udp), incoming, clocks, quiet, throttle, .. } = self else {
            return 0;
        };
        if throttle.as_ref().is_some_and(|t| !t.is_open(now)) {
            return 0;
        }
        let udp = &mut **udp;
        let dst = udp.socket.ip();
        let both = Now { instant: now, wall: clocks.wall + now.saturating_duration_since(clocks.instant) };
        let mut count = 0;
        // The first datagram after silence is most likely alone, and its receiver waits for it: checking for more,
        // which takes 360 ns if there is none, is left to the next turn.
        let receives = if *quiet { 1 } else { RECEIVES_PER_TURN };
        let mut has_backlog = true;
        for _ in 0..receives {
            let datagrams = u32::try_from(udp.recv()).unwrap_or(u32::MAX);
            if datagrams == 0 {
                has_backlog = false;
                break;
            }
            count += datagrams;
            take_in_all(engine, link, incoming, both, &udp.batch, dst);
            if let Some(throttle) = throttle {
                throttle.note_read(now, bytes_in(&udp.batch));
                if !throttle.is_open(now) {
                    break;
                }
            }
        }
        engine.set_backlog(has_backlog);
        let batch = &mut udp.batch;
        udp.groups.each_ready(|group| {
            let datagrams = received(group.recv(batch));
            count += datagrams;
            take_in_all(engine, link, incoming, both, batch, group.group());
            if let (Some(throttle), 1..) = (&mut *throttle, datagrams) {
                throttle.note_read(now, bytes_in(batch));
            }
        });
        if let (Some(throttle), 0) = (throttle, count) {
            throttle.note_empty();
        }
        *quiet = count == 0;
        self.end_batch();
        count
    }

    /// Passes a packet of a simulation, which arrived at `arrived`, through the link.
    pub(crate) fn accept(&mut self, now: Instant, arrived: Instant, arrival: &Arrival, packet: &[u8]) {
        if self.wrecked {
            return;
        }
        if self.throttle.is_some() {
            self.unread.put(arrival, packet);
            self.read(now);
            return;
        }
        let both = self.both_clocks(now);
        if reads_give_credit(&mut self.link) {
            self.engine.note_datagram(now, arrival, packet, packet.len());
        }
        if let Some(emulation) = self.link.emulation.as_mut() {
            emulation.set_datagram(1, Some(arrived));
        }
        take_in(&mut self.engine, &mut self.link, &mut self.incoming, both, arrival, packet);
        self.end_batch();
    }

    /// What leaves the link layers from now on counts as arriving now.
    fn end_batch(&mut self) {
        if let Some(emulation) = self.link.emulation.as_mut() {
            emulation.set_datagram(1, None);
        }
    }

    /// Lets a slow receiver of a simulation read as much as its rate allows.
    fn read(&mut self, now: Instant) {
        let both = self.both_clocks(now);
        let Self { engine, link, incoming, throttle: Some(throttle), unread, .. } = self else { return };
        while throttle.is_open(now) {
            let Some((arrival, packet)) = unread.take() else {
                engine.set_backlog(false);
                return throttle.note_empty();
            };
            throttle.note_read(now, bytes_of(packet.len(), 1, arrival.src));
            take_in(engine, link, incoming, both, &arrival, &packet);
        }
        engine.set_backlog(true);
    }

    /// Attaches a queue pair to a multicast group, which the port joins if the queue pair is the first.
    pub(crate) fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        if self.engine.attach_mcast(qpn, group)? == Membership::Changed
            && let Err(error) = self.io.join(group.ip())
        {
            // The attachment was made just above.
            let _ = self.engine.detach_mcast(qpn, group);
            return Err(error.into());
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group, which the port leaves if the queue pair was the last.
    pub(crate) fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        if self.engine.detach_mcast(qpn, group)? == Membership::Changed {
            self.io.leave(group.ip());
        }
        Ok(())
    }

    /// Handles expired timers of the engine and the link.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.wrecked {
            return;
        }
        self.engine.handle_timeout(now);
        if matches!(self.io, Io::Sim(_)) {
            self.read(now);
        }
        if self.link.poll_timeout().is_some_and(|due| due <= now) {
            let both = self.both_clocks(now);
            let Self { engine, link, outgoing, incoming, .. } = self;
            link.handle_timeout(both, &mut |frame| match frame.direction {
                Direction::Tx => outgoing.push_back(frame),
                Direction::Rx => incoming.push_back(frame),
            });
            deliver(engine, link, incoming, now);
        }
        self.pause_peers(now);
    }

    /// Pauses peers, or ends the pauses: received packets may have filled the emulated port, or a pause storm may have
    /// begun.
    fn pause_peers(&mut self, now: Instant) {
        if let Some(emulation) = self.link.emulation.as_mut() {
            while let Some((peer, frame)) = emulation.poll_pause(now) {
                self.engine.send_pause(now, peer, &frame);
            }
        }
        let rate = self.engine.config().partner.rate;
        if let Some(faults) = self.link.faults.as_mut() {
            while let Some((peer, frame)) = faults.poll_pause(now, rate) {
                self.engine.send_pause(now, peer, &frame);
            }
        }
    }

    /// Sends what is due, up to the limit of a turn. Returns the number of trains.
    pub(crate) fn transmit(&mut self, now: Instant) -> u32 {
        if self.wrecked {
            return 0;
        }
        self.hold.sent();
        if let Some(departure) = self.stalled.take()
            && !self.engine.loses(departure.packets)
            && !self.io.send(&departure, &self.buffer[..departure.len])
        {
            self.stalled = Some(departure);
            return 0;
        }
        if !self.send_frames() {
            return 0;
        }
        let mut count = 0;
        for _ in 0..SENDS_PER_TURN {
            let transforms = self.link.transforms(Direction::Tx);
            // One packet per train, so that the IPv4 identification in the ICRC matches that of the packet.
            let max_packets = if transforms { 1 } else { self.io.max_packets() };
            let Some(departure) = self.engine.poll_transmit(now, &mut self.buffer, max_packets) else {
                break;
            };
            count += 1;
            if self.link.observes() {
                self.show(now, &departure, &Fate::Pending, LinkStack::observe_departure);
            }
            if self.engine.loses(departure.packets) {
                continue;
            }
            let sent =
                if transforms { self.send_through(now, &departure) } else { self.send_whole(now, departure) };
            if !sent {
                break;
            }
        }
        count
    }

    /// Sends a train in one piece; observers see its packets.
    fn send_whole(&mut self, now: Instant, departure: Departure) -> bool {
        if self.link.observes() {
            self.show(now, &departure, &Fate::Delivered, LinkStack::observe);
        }
        let sent = self.io.send(&departure, &self.buffer[..departure.len]);
        if !sent {
            self.stalled = Some(departure);
        }
        sent
    }

    /// Shows the packets of a train to the observers.
    fn show(
        &mut self,
        now: Instant,
        departure: &Departure,
        fate: &Fate,
        to: impl Fn(&mut LinkStack, Now, &FrameRef<'_>),
    ) {
        let both = self.both_clocks(now);
        let flow = self.flow(departure);
        let bytes = &self.buffer[..departure.len];
        for (index, packet) in bytes.chunks(departure.segment_size.max(1)).enumerate() {
            let ident = u16::try_from(index).unwrap_or(u16::MAX);
            let Departure { tos, hop_limit, flow_label, .. } = *departure;
            let network = Arrival { tos, hop_limit, flow_label, ident, ..Arrival::default() };
            to(&mut self.link, both, &FrameRef { fate, ..view(Direction::Tx, &flow, &network, packet) });
        }
    }

    /// Passes the one packet of a train through the link layers.
    fn send_through(&mut self, now: Instant, departure: &Departure) -> bool {
        let both = self.both_clocks(now);
        let frame = Frame {
            direction: Direction::Tx,
            flow: self.flow(departure),
            tos: departure.tos,
            ttl: departure.hop_limit,
            flow_label: departure.flow_label,
            ident: 0,
            bytes: self.buffer[..departure.len].to_vec(),
            fate: Fate::Pending,
            notes: Vec::new(),
        };
        let outgoing = &mut self.outgoing;
        self.link.egress(both, frame, &mut |frame| outgoing.push_back(frame));
        self.send_frames()
    }

    /// Sends what left the link layers; returns false if some packets have to wait.
    fn send_frames(&mut self) -> bool {
        while let Some(frame) = self.outgoing.pop_front() {
            if self.engine.loses(1) {
                continue;
            }
            let departure = Departure {
                dst: frame.flow.dst,
                via: self.io.via(frame.flow.src_port),
                tos: frame.tos,
                hop_limit: frame.ttl,
                flow_label: frame.flow_label,
                len: frame.bytes.len(),
                segment_size: frame.bytes.len(),
                packets: 1,
            };
            if !self.io.send(&departure, &frame.bytes) {
                self.outgoing.push_front(frame);
                return false;
            }
        }
        true
    }

    fn flow(&self, departure: &Departure) -> Flow {
        let config = self.engine.config();
        let src_port = config.source_ports.get(departure.via).copied().unwrap_or(UDP_PORT);
        Flow { src: config.address, dst: departure.dst, src_port, dst_port: UDP_PORT }
    }

    /// When the next turn is needed.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if self.wrecked {
            None
        } else if self.is_stalled() {
            Some(now + STALL)
        } else if self.engine.has_ready() {
            Some(now)
        } else {
            self.next_timer()
        }
    }

    /// Returns whether something can be sent already.
    pub(super) fn has_work(&self) -> bool {
        !self.wrecked && (self.engine.has_ready() || self.is_stalled())
    }

    /// Returns whether packets wait because the kernel has no room for them.
    fn is_stalled(&self) -> bool {
        self.stalled.is_some() || !self.outgoing.is_empty()
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        if self.wrecked {
            return None;
        }
        let reads = self.throttle.as_ref().and_then(Throttle::opens_at);
        [self.engine.poll_timeout(), self.link.poll_timeout(), reads].into_iter().flatten().min()
    }
}

/// Number of datagrams from a receive call.
fn received(result: Result<usize, RecvError>) -> u32 {
    match result {
        Ok(datagrams) => u32::try_from(datagrams).unwrap_or(u32::MAX),
        Err(error) => {
            tracing::error!(%error, "the socket cannot be read");
            0
        }
    }
}

/// Bytes from a receive call, as on Ethernet.
fn bytes_in(batch: &RecvBatch) -> u64 {
    let count = |d: Datagram<'_>| bytes_of(d.bytes.len(), d.segments().len(), d.source.ip().to_canonical());
    batch.datagrams().map(count).sum()
}

/// Processes everything from a receive call; `dst` is the destination address.
fn take_in_all(
    engine: &mut Engine,
    link: &mut LinkStack,
    incoming: &mut VecDeque<Frame>,
    now: Now,
    batch: &RecvBatch,
    dst: IpAddr,
) {
    let clocks = batch.is_stamped().then(|| (Instant::now(), SystemTime::now()));
    for datagram in batch.datagrams() {
        if datagram.truncated {
            engine.note_truncated();
            continue;
        }
        let first = arrival(&datagram, dst, 0);
        if reads_give_credit(link) {
            engine.note_datagram(now.instant, &first, datagram.bytes, datagram.segment_size);
        }
        if let Some(emulation) = link.emulation.as_mut() {
            let packets = u32::try_from(datagram.segments().len()).unwrap_or(u32::MAX);
            let arrived = clocks.zip(datagram.stamp).map(|(clocks, stamp)| instant_of(clocks, stamp));
            emulation.set_datagram(packets, arrived);
        }
        for (index, packet) in datagram.segments() {
            let arrival = Arrival { ident: u16::try_from(index).unwrap_or(u16::MAX), ..first };
            take_in(engine, link, incoming, now, &arrival, packet);
        }
    }
}

/// Returns whether reading a packet returns its credit. It does unless the link layers hold packets individually, or an
/// emulated port gives credit for its own queue.
fn reads_give_credit(link: &mut LinkStack) -> bool {
    match link.emulation.as_mut() {
        Some(emulation) => !emulation.holds_credit(),
        None => !link.transforms(Direction::Rx),
    }
}

/// Largest plausible age of a timestamp: if one is older, the clock was set.
const OLDEST_STAMP: Duration = Duration::from_secs(1);

/// Converts a kernel timestamp `stamp`, a time since the UNIX epoch, to an instant; `clocks` were read together.
fn instant_of(clocks: (Instant, SystemTime), stamp: Duration) -> Instant {
    let (now, wall) = clocks;
    let wall = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = wall.saturating_sub(stamp);
    if age > OLDEST_STAMP { now } else { now.checked_sub(age).unwrap_or(now) }
}

fn arrival(datagram: &Datagram<'_>, dst: IpAddr, index: usize) -> Arrival {
    Arrival {
        src: datagram.source.ip().to_canonical(),
        dst,
        src_port: datagram.source.port(),
        tos: datagram.tos,
        hop_limit: datagram.ttl,
        flow_label: datagram.flow_label,
        ident: u16::try_from(index).unwrap_or(u16::MAX),
    }
}

/// A packet for observers; only the fields of `network` that are not in the flow matter.
fn view<'a>(direction: Direction, flow: &'a Flow, network: &Arrival, bytes: &'a [u8]) -> FrameRef<'a> {
    FrameRef {
        direction,
        flow,
        tos: network.tos,
        ttl: network.hop_limit,
        flow_label: network.flow_label,
        ident: network.ident,
        bytes,
        fate: &Fate::Delivered,
        notes: &[],
    }
}

/// Passes a packet to the engine: directly, with observers watching, or through the link layers.
fn take_in(
    engine: &mut Engine,
    link: &mut LinkStack,
    incoming: &mut VecDeque<Frame>,
    now: Now,
    arrival: &Arrival,
    packet: &[u8],
) {
    if link.is_empty() {
        // A dropped packet is counted by its reason.
        let _ = engine.handle_datagram(now.instant, arrival, packet);
        return;
    }
    let flow = arrival.flow();
    if !link.transforms(Direction::Rx) {
        link.observe(now, &view(Direction::Rx, &flow, arrival, packet));
        let _ = engine.handle_datagram(now.instant, arrival, packet);
        return;
    }
    let frame = Frame {
        direction: Direction::Rx,
        flow,
        tos: arrival.tos,
        ttl: arrival.hop_limit,
        flow_label: arrival.flow_label,
        ident: arrival.ident,
        bytes: packet.to_vec(),
        fate: Fate::Pending,
        notes: Vec::new(),
    };
    link.ingress(now, frame, &mut |frame| incoming.push_back(frame));
    deliver(engine, link, incoming, now.instant);
}

/// Passes what left the link layers to the engine.
fn deliver(engine: &mut Engine, link: &mut LinkStack, incoming: &mut VecDeque<Frame>, now: Instant) {
    let mut emulation = link.emulation.as_mut();
    let guarded = emulation.as_ref().map(|emulation| emulation.holds_credit());
    while let Some(entered) = emulation.as_mut().and_then(|emulation| emulation.poll_entered()) {
        engine.note_entered(now, &entered);
    }
    while let Some(frame) = incoming.pop_front() {
        let arrival = Arrival {
            src: frame.flow.src,
            dst: frame.flow.dst,
            src_port: frame.flow.src_port,
            tos: frame.tos,
            hop_limit: frame.ttl,
            flow_label: frame.flow_label,
            ident: frame.ident,
        };
        match guarded {
            Some(true) => engine.note_left(&arrival, &frame.bytes),
            Some(false) => {}
            None => engine.note_datagram(now, &arrival, &frame.bytes, frame.bytes.len()),
        }
        let _ = engine.handle_datagram(now, &arrival, &frame.bytes);
    }
}
