//! Virtual time, and the events in it.
//!
//! A step looks only at devices at which something happened: a packet arrives, a timer is due, or the program did
//! something since the last step, which it notes with [`World::stir`]. So its cost does not depend on how many devices
//! there are. A step has two halves:
//!
//! 1. At the present time, devices at which something happened send the packets that are due, in the order of their numbers.
//! 2. Time moves on to the next event. Packets that arrive then are received in the order of their departure, and after them
//!    timers fire. Packets that result are sent in the next step: a program that waits first sees what happened, and its
//!    own packets at that instant leave together with the answers of its device.

use super::BEGINNING;
use super::agenda::Timers;
use super::air::Air;
use super::network::{Network, Packet, Reached, Room, Target};
use super::port::SimPort;
use crate::engine::Engine;
use crate::port::{Port as _, train_buffer};
use crate::queue::locked;
use qp::wire::IpHeader;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use time::{Duration, Instant};

/// The number of packet buffers that are kept for reuse: as many as are in flight at once in experiments with a dozen devices.
const SPARE: usize = 4096;

/// Virtual time and the packets in flight.
pub(crate) struct World {
    /// The present. Nothing else is locked while this is.
    now: Mutex<Instant>,
    state: Mutex<State>,
    /// Devices at which a program did something. Under a lock of its own, because a step holds the lock of the state while it
    /// takes those of devices, and programs hold the lock of a device while they add to this list.
    stirred: Mutex<Vec<usize>>,
    /// Where devices write what they send, one at a time: a buffer for each would not fit into a processor's caches. Locked
    /// after everything else.
    pub(super) train: Mutex<Box<[u8]>>,
}

/// A device in the world.
struct Site {
    name: String,
    port: Weak<SimPort>,
    /// Whether the next step looks at it.
    awake: bool,
    /// Until when its program does not get to run.
    preempted: Instant,
    /// What its kernel received meanwhile, and when.
    backlog: Vec<(Instant, Packet)>,
}

/// What carries the packets.
enum Medium {
    /// Cables with a delay.
    Air(Box<Air>),
    /// Another network.
    Network(Box<dyn Network>),
}

impl Medium {
    fn network(&mut self) -> &mut dyn Network {
        match self {
            Self::Air(air) => &mut **air,
            Self::Network(network) => &mut **network,
        }
    }
}

/// Everything but time.
pub(super) struct State {
    sites: Vec<Site>,
    by_address: HashMap<IpAddr, usize>,
    medium: Medium,
    timers: Timers,
    /// Devices to look at in the next step.
    awake: Vec<usize>,
    /// What reaches devices at the present instant.
    reached: Vec<(Target, Reached)>,
    /// The events at the present instant: the device, and the index of what reaches it, if anything does.
    due: Vec<(usize, Option<usize>)>,
    /// The devices that the latest step handled events of, in the order of their numbers.
    visited: Vec<usize>,
    /// Buffers for packets.
    spare: Vec<Vec<u8>>,
    /// The packet that a device is receiving.
    buffer: Vec<u8>,
    unacked_rate: Option<u64>,
    /// How often a device was looked at.
    #[cfg(test)]
    pub(super) looks: u64,
}

impl World {
    /// Devices with a cable of this latency between any two of them.
    pub(super) fn with_latency(latency: Duration) -> Self {
        Self::with(Medium::Air(Box::new(Air::new(latency))))
    }

    /// Devices joined by this network.
    pub(super) fn joined_by(network: Box<dyn Network>) -> Self {
        Self::with(Medium::Network(network))
    }

    fn with(medium: Medium) -> Self {
        let state = State {
            sites: Vec::new(),
            by_address: HashMap::new(),
            medium,
            timers: Timers::default(),
            awake: Vec::new(),
            reached: Vec::new(),
            due: Vec::new(),
            visited: Vec::new(),
            spare: Vec::new(),
            buffer: Vec::new(),
            unacked_rate: None,
            #[cfg(test)]
            looks: 0,
        };
        Self {
            now: Mutex::new(BEGINNING),
            state: Mutex::new(state),
            stirred: Mutex::default(),
            train: Mutex::new(train_buffer()),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        *locked(&self.now)
    }

    /// The time since the beginning, rounded down to nanoseconds.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now() - BEGINNING
    }

    /// The address of the device with this name.
    pub(crate) fn address_of(&self, name: &str) -> Option<IpAddr> {
        let state = locked(&self.state);
        let named = state.sites.iter().filter(|site| site.name == name);
        named.filter_map(|site| site.port.upgrade()).map(|port| port.address()).next()
    }

    /// Notes that a program did something at a device, once for each look at it.
    pub(crate) fn stir(&self, site: usize) {
        locked(&self.stirred).push(site);
    }

    /// The state, for changes.
    pub(super) fn sites(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Sets a latency, if packets fly along cables.
    pub(super) fn set_latency(&self, port: Option<&SimPort>, latency: Duration) {
        let mut state = self.sites();
        let site = port.map(|port| state.site_of(port));
        match &mut state.medium {
            Medium::Air(air) if site != Some(None) => air.set_latency(site.flatten(), latency),
            Medium::Air(_) | Medium::Network(_) => {}
        }
    }

    /// Has the program of a device not run until `time` has passed.
    pub(super) fn preempt(&self, port: &SimPort, time: Duration) {
        let until = self.now() + time;
        let mut state = self.sites();
        let Some(number) = state.site_of(port) else { return };
        if let Some(site) = state.sites.get_mut(number) {
            site.preempted = site.preempted.max(until);
            state.timers.set(number, Some(until));
        }
    }

    pub(super) fn set_unacked_rate(&self, rate: Option<u64>) {
        self.sites().unacked_rate = rate;
    }

    pub(super) fn inject(&self, ip: &IpHeader, packet: &[u8]) {
        self.sites().send(self.now(), None, Packet::new(*ip, packet));
    }

    /// Sends packets of a device at once, without a step.
    pub(super) fn send(&self, from: usize, packets: Vec<Packet>) {
        let now = self.now();
        let mut state = self.sites();
        packets.into_iter().for_each(|packet| state.send(now, Some(from), packet));
    }

    /// Moves time on to `at`, never back, and returns the resulting time.
    pub(super) fn move_to(&self, at: Instant) -> Instant {
        let mut now = locked(&self.now);
        *now = now.max(at);
        *now
    }

    /// Moves time on to the next event, or to `end` if that comes first. False, and no time passes, if no event is to come.
    pub(crate) fn step_until(&self, end: Instant) -> bool {
        let mut guard = locked(&self.state);
        let state = &mut *guard;
        for site in locked(&self.stirred).drain(..) {
            state.wake(site);
        }
        self.depart(state);
        let timer = state.next_timer().map(|(at, _)| at).filter(|at| *at <= end);
        let reached = state.medium.network().run(timer.unwrap_or(end), &mut state.reached);
        match reached.or(timer) {
            Some(next) => {
                let now = self.move_to(next);
                self.arrive(state, now);
                true
            }
            None if state.next_timer().is_none() && state.medium.network().next().is_none() => false,
            None => {
                self.move_to(end);
                true
            }
        }
    }

    /// Replaces `devices` with the devices that the latest step handled events of.
    pub(super) fn visited(&self, devices: &mut Vec<usize>) {
        devices.clear();
        devices.extend_from_slice(&self.sites().visited);
    }

    /// Lets every device at which something happened send the packets that are due.
    fn depart(&self, state: &mut State) {
        let now = self.now();
        let mut awake = std::mem::take(&mut state.awake);
        awake.sort_unstable();
        for number in awake.drain(..) {
            let Some(port) = state.rest(number) else { continue };
            if let Some(until) = state.preempted(number, now) {
                state.timers.set(number, Some(until));
                continue;
            }
            let room = state.medium.network().room(number);
            let due = port.visit(|site| {
                site.io.stirred = false;
                if let Some(room) = room {
                    site.datapath.engine.set_room(&without(room, &site.io.outbox));
                }
                std::mem::swap(&mut site.io.spare, &mut state.spare);
                while site.transmit(self) > 0 {}
                std::mem::swap(&mut site.io.spare, &mut state.spare);
                for packet in site.io.outbox.drain(..) {
                    state.send(now, Some(number), packet);
                }
                site.datapath.poll_timeout(now)
            });
            state.timers.set(number, due);
        }
        state.awake = awake;
    }

    /// Delivers packets that have arrived, and fires timers that are due.
    fn arrive(&self, state: &mut State, now: Instant) {
        state.collect_due(now);
        let (due, mut buffer) = (std::mem::take(&mut state.due), std::mem::take(&mut state.buffer));
        state.visited.clear();
        for events in due.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((number, _)) = events.first() else { continue };
            state.visited.push(*number);
            let Some(port) = state.sites.get(*number).and_then(|site| site.port.upgrade()) else { continue };
            let packets = || events.iter().filter_map(|(_, index)| packet_at(&state.reached, *index));
            if let Some(until) = state.preempted(*number, now) {
                let wanted = |(to, packet): &(Target, &Packet)| {
                    port.visit(|site| is_for(&site.datapath.engine, *to, packet))
                };
                let kept = packets().filter(wanted).map(|(_, packet)| (now, packet.clone())).collect();
                state.keep(*number, until, kept);
                continue;
            }
            let backlog = state.sites.get_mut(*number).map(|site| std::mem::take(&mut site.backlog));
            let packets = || events.iter().filter_map(|(_, index)| packet_at(&state.reached, *index));
            let buffer = &mut buffer;
            port.visit(|site| {
                let datapath = &mut site.datapath;
                for (arrived, packet) in backlog.iter().flatten() {
                    packet.write_to(buffer);
                    datapath.accept(now, *arrived, &packet.ip, buffer, packet.telemetry());
                }
                for (to, packet) in packets() {
                    if is_for(&datapath.engine, to, packet) {
                        packet.write_to(buffer);
                        datapath.accept(now, now, &packet.ip, buffer, packet.telemetry());
                    }
                }
                datapath.handle_timeout(now);
            });
            state.wake(*number);
        }
        (state.due, state.buffer) = (due, buffer);
        state.due.clear();
        while let Some((_, what)) = state.reached.pop() {
            if let Reached::Packet(packet) = what
                && state.spare.len() < SPARE
            {
                state.spare.push(packet.into_buffer());
            }
        }
    }
}

/// The room in a NIC that packets leave which are on their way to it.
fn without(mut room: Room, packets: &[Packet]) -> Room {
    for packet in packets {
        let bytes = packet.wire_bytes();
        if let Some(room) = room.get_mut(usize::from(packet.ip.tos >> 5)) {
            *room = room.saturating_sub(bytes);
        }
    }
    room
}

/// The packet with this index among what reaches devices.
fn packet_at(reached: &[(Target, Reached)], index: Option<usize>) -> Option<(Target, &Packet)> {
    match reached.get(index?)? {
        (to, Reached::Packet(packet)) => Some((*to, packet)),
        (_, Reached::Room) => None,
    }
}

/// Whether a packet that reaches a device is for it.
fn is_for(engine: &Engine, to: Target, packet: &Packet) -> bool {
    match to {
        Target::Site(_) | Target::Address => true,
        Target::Members | Target::Member(_) => engine.is_member(packet.ip.dst),
    }
}

impl State {
    /// The index of the next device.
    pub(super) fn next_site(&self) -> usize {
        self.sites.len()
    }

    /// The number of the next device, counted from 1.
    pub(super) fn next_number(&self) -> u32 {
        u32::try_from(self.sites.len() + 1).unwrap_or(u32::MAX)
    }

    pub(super) fn unacked_rate(&self) -> Option<u64> {
        self.unacked_rate
    }

    /// Adds the next device.
    pub(super) fn add(&mut self, name: String, port: &Arc<SimPort>) {
        self.by_address.insert(port.address(), self.sites.len());
        self.sites.push(Site {
            name,
            port: Arc::downgrade(port),
            awake: false,
            preempted: BEGINNING,
            backlog: Vec::new(),
        });
        self.timers.add();
        let network = self.medium.network();
        network.attach(port.address());
        if let Some(room) = network.room(self.sites.len() - 1) {
            port.visit(|state| state.datapath.engine.set_room(&room));
        }
        // It may have timers from the start.
        self.wake(self.sites.len() - 1);
    }

    fn site_of(&self, port: &SimPort) -> Option<usize> {
        let number = port.site();
        self.sites.get(number).is_some_and(|site| std::ptr::eq(site.port.as_ptr(), port)).then_some(number)
    }

    /// Until when the program of a device does not run; `None` if it runs at `now`.
    fn preempted(&self, number: usize, now: Instant) -> Option<Instant> {
        self.sites.get(number).map(|site| site.preempted).filter(|until| *until > now)
    }

    /// Keeps packets for a device whose program does not run until then.
    fn keep(&mut self, number: usize, until: Instant, packets: Vec<(Instant, Packet)>) {
        if let Some(site) = self.sites.get_mut(number) {
            site.backlog.extend(packets);
            self.timers.set(number, Some(until));
        }
    }

    /// Has the next step look at a device.
    fn wake(&mut self, number: usize) {
        if let Some(site) = self.sites.get_mut(number)
            && !std::mem::replace(&mut site.awake, true)
        {
            self.awake.push(number);
        }
    }

    /// The port of a device that was awake. It is not awake any more.
    fn rest(&mut self, number: usize) -> Option<Arc<SimPort>> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let site = self.sites.get_mut(number)?;
        site.awake = false;
        site.port.upgrade()
    }

    /// Sends a packet to whoever has its address.
    fn send(&mut self, now: Instant, from: Option<usize>, packet: Packet) {
        let dst = packet.ip.dst;
        let to = match self.by_address.get(&dst) {
            _ if dst.is_multicast() => Target::Members,
            Some(number) => Target::Site(*number),
            None => Target::Address,
        };
        self.medium.network().send(now, from, to, packet);
    }

    /// Whether a device still exists.
    fn is_there(&self, number: usize) -> bool {
        self.sites.get(number).is_some_and(|site| site.port.strong_count() > 0)
    }

    fn next_timer(&mut self) -> Option<(Instant, usize)> {
        let sites = &self.sites;
        self.timers.next(|number| sites.get(number).is_some_and(|site| site.port.strong_count() > 0))
    }

    /// Lists what happens until `now`, device by device, the packets of each in their order.
    fn collect_due(&mut self, now: Instant) {
        for (index, (to, what)) in self.reached.iter().enumerate() {
            match *to {
                Target::Site(number) | Target::Member(number) if self.is_there(number) => {
                    self.due.push((number, Some(index)));
                }
                Target::Member(_) => {}
                // Another device may have taken the place of the one that it was sent to.
                Target::Site(_) | Target::Address => {
                    let Reached::Packet(packet) = what else { continue };
                    let number = self.by_address.get(&packet.ip.dst);
                    self.due.extend(number.map(|number| (*number, Some(index))));
                }
                Target::Members => self.due.extend((0..self.sites.len()).map(|number| (number, Some(index)))),
            }
        }
        while let Some((_, number)) = self.next_timer().filter(|(at, _)| *at <= now) {
            self.timers.take();
            self.due.push((number, None));
        }
        // Stable: the packets of each device keep their order.
        self.due.sort_by_key(|(number, _)| *number);
    }
}
