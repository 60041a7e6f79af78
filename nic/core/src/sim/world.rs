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

use super::agenda::{Air, Flying, Target, Timers};
use super::port::{SimPacket, SimPort};
use crate::engine::Engine;
use crate::port::Port as _;
use crate::queue::locked;
use qp::wire::IpHeader;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use time::{Duration, Instant};

/// The number of packet buffers that are kept for reuse: as many as are in flight at once in experiments with a dozen devices.
const SPARE: usize = 4096;

/// The instant at which a simulation begins: late enough that an engine can look back from there, as it can on a host.
const ORIGIN: Instant = Instant::at(Duration::from_secs(86_400));

/// Virtual time and the packets in flight.
pub(crate) struct World {
    /// The present. Nothing else is locked while this is.
    now: Mutex<Instant>,
    state: Mutex<State>,
    /// Devices at which a program did something. Under a lock of its own, because a step holds the lock of the state while it
    /// takes those of devices, and programs hold the lock of a device while they add to this list.
    stirred: Mutex<Vec<usize>>,
}

/// A device in the world.
struct Site {
    name: String,
    port: Weak<SimPort>,
    /// Its own latency for packets to it, if it has one.
    latency: Option<Duration>,
    /// Whether the next step looks at it.
    awake: bool,
    /// Until when its program does not get to run.
    preempted: Instant,
    /// What its kernel received meanwhile, and when.
    backlog: Vec<(Instant, SimPacket)>,
}

/// Everything but time.
pub(super) struct State {
    sites: Vec<Site>,
    by_address: HashMap<IpAddr, usize>,
    air: Air,
    timers: Timers,
    /// Devices to look at in the next step.
    awake: Vec<usize>,
    /// The events at the present instant: the device, and the index of the packet if it is an arrival.
    due: Vec<(usize, Option<usize>)>,
    /// The indices of all packets that arrive at the present instant.
    arrived: Vec<usize>,
    /// Buffers for packets.
    spare: Vec<Vec<u8>>,
    latency: Duration,
    /// Whether any device has a latency of its own.
    own_latencies: bool,
    unacked_rate: Option<u64>,
    /// How often a device was looked at.
    #[cfg(test)]
    pub(super) looks: u64,
}

impl World {
    pub(super) fn new(latency: Duration) -> Self {
        let state = State {
            sites: Vec::new(),
            by_address: HashMap::new(),
            air: Air::default(),
            timers: Timers::default(),
            awake: Vec::new(),
            due: Vec::new(),
            arrived: Vec::new(),
            spare: Vec::new(),
            latency,
            own_latencies: false,
            unacked_rate: None,
            #[cfg(test)]
            looks: 0,
        };
        Self { now: Mutex::new(ORIGIN), state: Mutex::new(state), stirred: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Instant {
        *locked(&self.now)
    }

    /// The time since the beginning, rounded down to nanoseconds.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now() - ORIGIN
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

    pub(super) fn set_latency(&self, latency: Duration) {
        self.sites().latency = latency;
    }

    pub(super) fn set_latency_of(&self, port: &SimPort, latency: Duration) {
        let mut state = self.sites();
        let number = state.site_of(port);
        if let Some(site) = number.and_then(|number| state.sites.get_mut(number)) {
            site.latency = Some(latency);
            state.own_latencies = true;
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

    pub(super) fn inject(&self, arrival: &IpHeader, packet: &[u8]) {
        let packet = SimPacket { arrival: *arrival, bytes: packet.to_vec() };
        self.sites().fly(self.now(), packet);
    }

    /// Sends packets at once, without a step.
    pub(super) fn send(&self, packets: Vec<SimPacket>) {
        let now = self.now();
        let mut state = self.sites();
        packets.into_iter().for_each(|packet| state.fly(now, packet));
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
        let Some(next) = state.next_event() else { return false };
        if next > end {
            self.move_to(end);
            return true;
        }
        let now = self.move_to(next);
        self.arrive(state, now);
        true
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
            let due = port.visit(|site| {
                let (datapath, io) = (&mut site.datapath, &mut site.io);
                io.stirred = false;
                std::mem::swap(&mut io.spare, &mut state.spare);
                while datapath.transmit(now, io) > 0 {}
                std::mem::swap(&mut io.spare, &mut state.spare);
                for packet in io.outbox.drain(..) {
                    state.fly(now, packet);
                }
                datapath.poll_timeout(now)
            });
            state.timers.set(number, due);
        }
        state.awake = awake;
    }

    /// Delivers packets that have arrived, and fires timers that are due.
    fn arrive(&self, state: &mut State, now: Instant) {
        state.collect_due(now);
        let due = std::mem::take(&mut state.due);
        for events in due.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((number, _)) = events.first() else { continue };
            let Some(port) = state.sites.get(*number).and_then(|site| site.port.upgrade()) else { continue };
            let packets = || events.iter().filter_map(|(_, slot)| state.air.get((*slot)?));
            if let Some(until) = state.preempted(*number, now) {
                let wanted = |flying: &&Flying| port.visit(|site| is_for(&site.datapath.engine, flying));
                let kept = packets().filter(wanted).map(|flying| (now, flying.packet.clone())).collect();
                state.keep(*number, until, kept);
                continue;
            }
            let backlog = state.sites.get_mut(*number).map(|site| std::mem::take(&mut site.backlog));
            let packets = || events.iter().filter_map(|(_, slot)| state.air.get((*slot)?));
            port.visit(|site| {
                let datapath = &mut site.datapath;
                for (arrived, packet) in backlog.iter().flatten() {
                    datapath.accept(now, *arrived, &packet.arrival, &packet.bytes);
                }
                for flying in packets() {
                    if is_for(&datapath.engine, flying) {
                        datapath.accept(now, now, &flying.packet.arrival, &flying.packet.bytes);
                    }
                }
                datapath.handle_timeout(now);
            });
            state.wake(*number);
        }
        state.due = due;
        state.due.clear();
        while let Some(slot) = state.arrived.pop() {
            if let Some(flying) = state.air.take(slot)
                && state.spare.len() < SPARE
            {
                state.spare.push(flying.packet.bytes);
            }
        }
    }
}

/// Whether a packet that reaches a device is for it.
fn is_for(engine: &Engine, flying: &Flying) -> bool {
    match flying.to {
        Target::Site(_) | Target::Address => true,
        Target::Members | Target::Member(_) => engine.is_member(flying.packet.arrival.dst),
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
            latency: None,
            awake: false,
            preempted: ORIGIN,
            backlog: Vec::new(),
        });
        self.timers.add();
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
    fn keep(&mut self, number: usize, until: Instant, packets: Vec<(Instant, SimPacket)>) {
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

    /// Sends a packet.
    fn fly(&mut self, now: Instant, packet: SimPacket) {
        let dst = packet.arrival.dst;
        if dst.is_multicast() {
            return self.fly_to_group(now, packet);
        }
        let known = self.by_address.get(&dst).copied();
        let own = known.and_then(|number| self.sites.get(number)?.latency);
        let to = known.map_or(Target::Address, Target::Site);
        self.air.depart(now + own.unwrap_or(self.latency), Flying { to, packet });
    }

    /// The members are determined when the packet arrives, which may be at a different time for each device.
    fn fly_to_group(&mut self, now: Instant, packet: SimPacket) {
        if !self.own_latencies {
            self.air.depart(now + self.latency, Flying { to: Target::Members, packet });
            return;
        }
        let alive = self.sites.iter().enumerate().filter(|(_, site)| site.port.strong_count() > 0);
        for (number, site) in alive {
            let flying = Flying { to: Target::Member(number), packet: packet.clone() };
            self.air.depart(now + site.latency.unwrap_or(self.latency), flying);
        }
    }

    /// Whether a device still exists.
    fn is_there(&self, number: usize) -> bool {
        self.sites.get(number).is_some_and(|site| site.port.strong_count() > 0)
    }

    /// The instant of the next event.
    fn next_event(&mut self) -> Option<Instant> {
        let timer = self.next_timer().map(|(at, _)| at);
        [self.air.next(), timer].into_iter().flatten().min()
    }

    fn next_timer(&mut self) -> Option<(Instant, usize)> {
        let sites = &self.sites;
        self.timers.next(|number| sites.get(number).is_some_and(|site| site.port.strong_count() > 0))
    }

    /// Lists what happens until `now`, device by device, the packets of each in their order.
    fn collect_due(&mut self, now: Instant) {
        while let Some(slot) = self.air.arrived(now) {
            self.arrived.push(slot);
            let Some(Flying { to, packet }) = self.air.get(slot) else { continue };
            match *to {
                Target::Site(number) | Target::Member(number) if self.is_there(number) => {
                    self.due.push((number, Some(slot)));
                }
                Target::Member(_) => {}
                // Another device may have taken the place of the one that it was sent to.
                Target::Site(_) | Target::Address => {
                    let number = self.by_address.get(&packet.arrival.dst);
                    self.due.extend(number.map(|number| (*number, Some(slot))));
                }
                Target::Members => self.due.extend((0..self.sites.len()).map(|number| (number, Some(slot)))),
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
