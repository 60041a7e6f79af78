//! Devices in virtual time.
//!
//! A [`Net`] joins devices that run the same engine as those on sockets, without sockets and without a clock: time
//! moves only while somebody waits, from one event to the next, so a run is the same every time and a timeout of a
//! second costs nothing.
//!
//! What goes wrong on purpose does so here as on the network: packets by [fault rules](crate::link::faults), a port with
//! [`Device::inject_port_state`] and [`Device::inject_gid_state`], a whole device with [`Device::inject_device_fatal`].

use crate::device::{Device, pace};
use crate::engine::{EngineConfig, PKeyTable, PartnerSetup, RateConfig};
use crate::error::Result;
use crate::link::{Buffer, LinkConfig};
use crate::net::signed_port;
use crate::port::{Clock, Io, Port, SimPacket};
use crate::queue::locked;
use cc::Algorithm;
use qp::wire::Arrival;
use qp::{Mtu, PKey};
use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Time from one device to another by default: 1 us, a switch and a few metres of cable.
const LATENCY: Duration = Duration::from_micros(1);

/// How a device in virtual time is set up.
#[derive(Clone, Debug)]
pub struct DeviceSetup {
    /// Its name, which fault rules can use; `None` for sim0, sim1, ...
    pub name: Option<String>,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// The largest path MTU of its port.
    pub mtu: Mtu,
    /// What its keys, and the randomness of its fault rules, follow from; `None` for a seed that follows from the
    /// network's.
    pub seed: Option<u64>,
    /// As [`DeviceConfig::peer_window`](crate::DeviceConfig::peer_window).
    pub peer_window: Option<u32>,
    /// What it says and does between rnic peers. A foreign one shows no sign of being rnic either.
    pub partner: PartnerSetup,
    /// Congestion control, and the rate of the port.
    pub rate: RateConfig,
    /// The link: the port that it behaves like.
    pub link: LinkConfig,
    /// Congestion control.
    pub cc: Algorithm,
}

impl Default for DeviceSetup {
    fn default() -> Self {
        Self {
            name: None,
            pkeys: vec![PKey::DEFAULT],
            mtu: Mtu::B4096,
            seed: None,
            peer_window: None,
            partner: PartnerSetup::default(),
            rate: RateConfig::default(),
            link: LinkConfig::default(),
            cc: Algorithm::Off,
        }
    }
}

/// A network in virtual time.
#[derive(Clone)]
pub struct Net {
    world: Arc<World>,
    seed: u64,
}

impl Default for Net {
    fn default() -> Self {
        Self::new()
    }
}

impl Net {
    /// A network whose every link takes 1 us, with seed 0: two runs of the same program are the same.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// A network with a seed: keys and whatever else is drawn at random follow from it.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        let world = World {
            epoch: Instant::now(),
            nanos: AtomicU64::new(0),
            state: Mutex::new(State {
                sites: Vec::new(),
                flying: BinaryHeap::new(),
                flown: 0,
                latency: LATENCY,
                unacked_rate: None,
            }),
        };
        Self { world: Arc::new(world), seed }
    }

    /// Sets the time that packets take, for those that leave from now on.
    pub fn set_latency(&self, latency: Duration) {
        locked(&self.world.state).latency = latency;
    }

    /// Sets how fast devices that are made from now on send what nobody acknowledges: see
    /// [`DeviceConfig::unacked_rate`](crate::DeviceConfig::unacked_rate).
    pub fn set_unacked_rate(&self, rate: Option<u64>) {
        locked(&self.world.state).unacked_rate = rate;
    }

    /// A new device: 10.0.0.1 for the first, 10.0.0.2 for the second, and so on. They are named sim0, sim1, ...
    #[must_use]
    pub fn device(&self) -> Device {
        self.add(&DeviceSetup::default(), PKeyTable::default())
    }

    /// A new device with a name that fault rules can use: `a>b drop`.
    #[must_use]
    pub fn named_device(&self, name: &str) -> Device {
        self.add(&DeviceSetup { name: Some(name.to_owned()), ..DeviceSetup::default() }, PKeyTable::default())
    }

    /// A new device that is set up so.
    ///
    /// # Errors
    /// [`Error::PKeys`](crate::Error::PKeys): the P_Key table is none; [`Error::Link`](crate::Error::Link): the link or the
    /// congestion control is not in order.
    pub fn device_with(&self, setup: &DeviceSetup) -> Result<Device> {
        let pkeys = PKeyTable::new(&setup.pkeys)?;
        let link = setup.link.at(&setup.cc, setup.mtu)?;
        let mut setup = setup.clone();
        setup.partner = link.partner_setup(Buffer::Cable, &setup.partner);
        setup.rate = link.rate_config(&setup.cc, &setup.rate);
        let device = self.add(&setup, pkeys);
        device.inner.port.set_link(&link, device.inner.fault_seed);
        Ok(device)
    }

    fn add(&self, setup: &DeviceSetup, pkeys: PKeyTable) -> Device {
        let mut state = locked(&self.world.state);
        let number = u32::try_from(state.sites.len() + 1).unwrap_or(u32::MAX);
        // 10.0.0.0/8 has room for 2^24 devices.
        let address = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + (number & 0xff_ffff)));
        let foreign = u16::from(setup.partner.is_foreign);
        let source_ports = vec![signed_port(number).wrapping_add(foreign)];
        let seed = setup.seed.unwrap_or(self.seed.wrapping_mul(1 << 16).wrapping_add(u64::from(number)));
        let config = EngineConfig {
            address,
            source_ports: source_ports.clone(),
            active_mtu: setup.mtu,
            slot: 0,
            seed: Some(seed),
            peer_window: setup.peer_window,
            pace: pace(state.unacked_rate),
            pkeys,
            partner: setup.partner.clone(),
            rate: setup.rate.clone(),
        };
        let io = Io::Sim { address, source_ports, outbox: Vec::new() };
        let port = Port::new(config, io, Clock::Virtual(Arc::clone(&self.world)), None, setup.mtu);
        let name = setup.name.clone().unwrap_or_else(|| format!("sim{}", number - 1));
        state.sites.push(Site { name: name.clone(), address, port: Arc::downgrade(&port) });
        drop(state);
        Device::around(name, port, seed)
    }

    /// Puts a packet, BTH to ICRC, into the air, as if the host that `arrival` names had sent it: for what no queue pair
    /// says. That host need not be a device. It arrives when a packet would that a device sends now.
    pub fn inject(&self, arrival: &Arrival, packet: &[u8]) {
        let now = self.world.now();
        let mut state = locked(&self.world.state);
        state.flown += 1;
        let packet = SimPacket { arrival: *arrival, bytes: packet.to_vec() };
        let flying = Flying { at: now + state.latency, number: state.flown, to: arrival.dst, packet };
        state.flying.push(flying);
    }

    /// Virtual time since the network was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.elapsed()
    }

    /// Moves on to the next event; false if nothing will ever happen by itself.
    pub fn step(&self) -> bool {
        self.world.step_until(self.world.now() + Duration::from_secs(u64::from(u32::MAX)))
    }

    /// Lets `duration` pass.
    pub fn run_for(&self, duration: Duration) {
        let end = self.world.now() + duration;
        while self.world.now() < end && self.world.step_until(end) {}
        self.world.move_to(end);
    }

    /// Runs until nothing more happens by itself, for `bound` at the most. Returns whether that came to pass.
    pub fn run_until_idle(&self, bound: Duration) -> bool {
        let end = self.world.now() + bound;
        while self.world.now() < end {
            if !self.world.step_until(end) {
                return true;
            }
        }
        false
    }
}

/// A device in the world.
struct Site {
    name: String,
    address: IpAddr,
    port: Weak<Port>,
}

/// A packet in the air. The order is that of arrival, and of departure where that is the same.
struct Flying {
    at: Instant,
    number: u64,
    to: IpAddr,
    packet: SimPacket,
}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Flying {}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> Order {
        // The heap gives the greatest first.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

struct State {
    sites: Vec<Site>,
    flying: BinaryHeap<Flying>,
    flown: u64,
    latency: Duration,
    unacked_rate: Option<u64>,
}

/// Virtual time and what is in the air.
pub(crate) struct World {
    /// Instants need a beginning; only differences to it matter.
    epoch: Instant,
    nanos: AtomicU64,
    state: Mutex<State>,
}

impl World {
    pub(crate) fn now(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    /// The address of the device with this name.
    pub(crate) fn address_of(&self, name: &str) -> Option<IpAddr> {
        locked(&self.state).sites.iter().find(|s| s.name == name).map(|s| s.address)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    fn move_to(&self, at: Instant) {
        let nanos = u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::AcqRel);
    }

    /// Moves on to the next event, or to `end` if that comes first. False, and no time passes, if there is none.
    pub(crate) fn step_until(&self, end: Instant) -> bool {
        let mut state = locked(&self.state);
        state.sites.retain(|site| site.port.strong_count() > 0);
        let now = self.now();
        let mut next = state.depart(now);
        if let Some(first) = state.flying.peek() {
            next = Some(next.map_or(first.at, |n| n.min(first.at)));
        }
        let Some(next) = next else { return false };
        if next > end {
            self.move_to(end);
            return true;
        }
        self.move_to(next);
        state.arrive(self.now());
        true
    }
}

impl State {
    /// Lets every device send what is due; returns the earliest timer.
    fn depart(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for site in &self.sites {
            let Some(port) = site.port.upgrade() else { continue };
            let latency = self.latency;
            port.with_lane(|lane| {
                while lane.transmit(now) > 0 {}
                if let Io::Sim { outbox, .. } = &mut lane.io {
                    for (to, packet) in outbox.drain(..) {
                        self.flown += 1;
                        self.flying.push(Flying { at: now + latency, number: self.flown, to, packet });
                    }
                }
                next = [next, lane.poll_timeout(now)].into_iter().flatten().min();
            });
        }
        next
    }

    /// Hands over what has arrived, and lets timers that are due act.
    fn arrive(&mut self, now: Instant) {
        while self.flying.peek().is_some_and(|f| f.at <= now) {
            let Some(Flying { to, packet, .. }) = self.flying.pop() else { break };
            // A drop is counted by its reason. Answers leave with the next step.
            if to.is_multicast() {
                for port in self.sites.iter().filter_map(|s| s.port.upgrade()) {
                    port.with_lane(|lane| {
                        if lane.engine.is_member(to) {
                            lane.accept(now, &packet.arrival, &packet.bytes);
                        }
                    });
                }
            } else if let Some(port) =
                self.sites.iter().find(|s| s.address == to).and_then(|s| s.port.upgrade())
            {
                port.with_lane(|lane| lane.accept(now, &packet.arrival, &packet.bytes));
            }
        }
        for site in &self.sites {
            if let Some(port) = site.port.upgrade() {
                port.with_lane(|lane| lane.handle_timeout(now));
            }
        }
    }
}
