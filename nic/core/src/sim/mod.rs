//! Devices in virtual time.
//!
//! A [`Net`] connects devices that run the same engine as those on sockets, without sockets and without a clock. Time moves
//! only while the program waits, from one event to the next. So every run is the same, and a timeout of a second costs
//! nothing.
//!
//! Captures of two runs of a program are equal byte for byte, as long as one thread posts the work and the devices
//! allocate the memory ([`ProtectionDomain::register`](crate::ProtectionDomain::register)): such memory has virtual
//! addresses that follow from the order of its registrations. Memory that the program lends keeps its own addresses, unless
//! the program names others, and these differ from run to run.
//!
//! Faults are injected as on the network: into packets by [fault rules](crate::link::faults), into a port with
//! [`Device::inject_port_state`] and [`Device::inject_gid_state`], and into a whole device with
//! [`Device::inject_device_fatal`].

mod addresses;
mod agenda;
mod air;
mod network;
mod port;
#[cfg(test)]
mod tests;
mod world;

pub(crate) use addresses::AddressSpace;
pub use agenda::Agenda;
pub use network::{Network, Packet, Reached, Room, Target};
pub use port::SimPort;
pub(crate) use world::World;

use crate::engine::signed_port;
use crate::engine::{EngineConfig, PKeyTable, PartnerSetup, RateConfig};
use crate::error::Result;
use crate::link::{Buffer, LinkConfig};
use crate::verbs::device::{Device, paces};
use cc::Algorithm;
use qp::wire::IpHeader;
use qp::{Mtu, PKey};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use time::{Duration, Instant};

/// The instant at which a simulation begins: late enough that an engine can look back from there, as it can on a host.
pub const BEGINNING: Instant = Instant::at(Duration::from_secs(86_400));

/// Time from one device to another by default: 1 us, a switch and a few metres of cable.
const LATENCY: Duration = Duration::from_micros(1);

/// The configuration of a device in virtual time.
#[derive(Clone, Debug)]
pub struct DeviceSetup {
    /// Its name, which fault rules can use. `None` means sim0, sim1, ...
    pub name: Option<String>,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// The largest path MTU of its port.
    pub mtu: Mtu,
    /// Its address. `None` means the next free one of 10.0.0.0/8. If another device had the address, this one takes its
    /// place: packets to the address, also those on their way, reach the newer one from now on. Its UDP port follows from the
    /// address, so it is that of the other too.
    pub address: Option<Ipv4Addr>,
    /// The UDP source ports that it sends from; flow labels choose among them. `None` means one, which follows from the
    /// address.
    pub source_ports: Option<Vec<u16>>,
    /// The upper eight bits of its queue pair numbers: which of the programs at an address it is.
    pub slot: u8,
    /// The seed of its keys and of its fault rules. `None` means a seed that follows from that of the network.
    pub seed: Option<u64>,
    /// As `peer_window` of `rnic::DeviceConfig`.
    pub peer_window: Option<u32>,
    /// Bytes of socket buffer that the host would grant: the window to peers on the same host follows from them.
    pub host_buffer: Option<u32>,
    /// Its behaviour towards rnic peers. A foreign one does not identify itself as rnic.
    pub partner: PartnerSetup,
    /// Congestion control, and the rate of the port.
    pub rate: RateConfig,
    /// The link: the port that it emulates.
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
            address: None,
            source_ports: None,
            slot: 0,
            seed: None,
            peer_window: None,
            host_buffer: None,
            partner: PartnerSetup::default(),
            rate: RateConfig::default(),
            link: LinkConfig::default(),
            cc: Algorithm::Off,
        }
    }
}

/// A network in virtual time.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{RcEnd, WcStatus, sim::Net};
/// use time::{Duration, Instant};
///
/// let net = Net::with_seed(7);
/// let (a, b) = (net.named_device("a"), net.named_device("b"));
/// net.set_latency(Duration::from_micros(10));
/// a.add_fault("tx data psn=#0 drop")?; // the first packet is lost
/// let (left, right) = RcEnd::pair(&a, &b)?;
/// let (source, target) = (left.register(b"hello")?, right.register_remote(5)?);
/// left.qp.write(1, source.all(), target.remote(0))?;
/// assert_eq!(left.wait()?.status, WcStatus::Success);
/// // The acknowledgement timeout passed, in virtual time.
/// assert!(net.elapsed() > Duration::from_millis(60));
/// assert_eq!(left.qp.counters().retransmitted_pkts, 1);
/// # Ok::<(), rnic::Error>(())
/// ```
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

    /// A network with a seed, from which keys and all other random numbers follow.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self { world: Arc::new(World::with_latency(LATENCY)), seed }
    }

    /// A network with a seed, whose packets `network` carries. [`set_latency`](Self::set_latency) means nothing to it.
    #[must_use]
    pub fn joined_by(network: Box<dyn Network>, seed: u64) -> Self {
        Self { world: Arc::new(World::joined_by(network)), seed }
    }

    /// Sets the latency of packets that are sent from now on, to devices without a latency of their own.
    pub fn set_latency(&self, latency: Duration) {
        self.world.set_latency(None, latency);
    }

    /// Sets the latency of packets to one device, from any device, that are sent from now on. Packets in the other direction
    /// have the latency of their receiver. Has no effect on a device of another network.
    pub fn set_latency_of(&self, device: &Device, latency: Duration) {
        if let Some(port) = device.inner.port.sim() {
            self.world.set_latency(Some(port), latency);
        }
    }

    /// Keeps the program of a device from running for `time`, as when the scheduler gives its core to another. Its kernel
    /// receives meanwhile: the packets are taken in afterwards, and an emulated link knows when each arrived. Nothing happens
    /// if the device is of another network.
    pub fn preempt(&self, device: &Device, time: Duration) {
        if let Some(port) = device.inner.port.sim() {
            self.world.preempt(port, time);
        }
    }

    /// Sets how fast devices that are created from now on send unacknowledged packets: see
    /// `unacked_rate` of `rnic::DeviceConfig`.
    pub fn set_unacked_rate(&self, rate: Option<u64>) {
        self.world.set_unacked_rate(rate);
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

    /// A new device with this configuration.
    ///
    /// # Errors
    /// [`Error::PKeys`](crate::Error::PKeys) if the P_Key table is not valid; [`Error::Link`](crate::Error::Link) if the link or
    /// the congestion control is not.
    pub fn device_with(&self, setup: &DeviceSetup) -> Result<Device> {
        let pkeys = PKeyTable::new(&setup.pkeys)?;
        let link = setup.link.at(&setup.cc, setup.mtu)?;
        let mut setup = setup.clone();
        setup.partner = link.partner_setup(Buffer::Cable, &setup.partner);
        setup.rate = link.rate_config(&setup.cc, &setup.rate);
        let device = self.add(&setup, pkeys);
        if let Some(port) = device.inner.port.sim() {
            port.set_link(&link, device.inner.fault_seed);
        }
        Ok(device)
    }

    fn add(&self, setup: &DeviceSetup, pkeys: PKeyTable) -> Device {
        let mut sites = self.world.sites();
        let number = sites.next_number();
        // 10.0.0.0/8 has room for 2^24 devices.
        let next = Ipv4Addr::from(0x0a00_0000 + (number & 0xff_ffff));
        let ours = setup.address.unwrap_or(next);
        let address = IpAddr::V4(ours);
        let foreign = u16::from(setup.partner.is_foreign);
        let signed = || vec![signed_port(ours.to_bits() & 0xff_ffff).wrapping_add(foreign)];
        let source_ports = setup.source_ports.clone().unwrap_or_else(signed);
        let seed = setup.seed.unwrap_or(self.seed.wrapping_mul(1 << 16).wrapping_add(u64::from(number)));
        let config = EngineConfig {
            address,
            source_ports,
            active_mtu: setup.mtu,
            slot: setup.slot,
            share: None,
            seed: Some(seed),
            peer_window: setup.peer_window,
            host_buffer: setup.host_buffer,
            least_timeout: 0,
            paces: paces(sites.unacked_rate()),
            pkeys,
            partner: setup.partner.clone(),
            rate: setup.rate.clone(),
        };
        let port = SimPort::new(config, Arc::clone(&self.world), sites.next_site());
        let name = setup.name.clone().unwrap_or_else(|| format!("sim{}", number - 1));
        sites.add(name.clone(), &port);
        drop(sites);
        Device::around(name, port, seed)
    }

    /// Sends a packet, from BTH to ICRC, as if from the host that `arrival` names: for packets that no queue pair sends. That
    /// host need not be a device. The packet has the latency of one that a device sends now.
    pub fn inject(&self, arrival: &IpHeader, packet: &[u8]) {
        self.world.inject(arrival, packet);
    }

    /// The virtual time since the network was created.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.elapsed()
    }

    /// Moves time on to the next event. False if no event is to come.
    pub fn step(&self) -> bool {
        self.world.step_until(self.world.now() + Duration::from_secs(u64::from(u32::MAX)))
    }

    /// Moves time on to the next event if that comes within `duration`, and by `duration` otherwise: for programs that look at
    /// events one by one. False, and no time passes, if no event is to come.
    pub fn step_within(&self, duration: Duration) -> bool {
        self.world.step_until(self.world.now() + duration)
    }

    /// Replaces `devices` with the numbers of the devices that the latest step handled events of, in their order: those of
    /// their creation, from 0. A program with many devices looks for completions only there.
    pub fn visited(&self, devices: &mut Vec<usize>) {
        self.world.visited(devices);
    }

    /// Moves time on by `duration`, and handles the events within it.
    pub fn run_for(&self, duration: Duration) {
        let end = self.world.now() + duration;
        while self.world.now() < end && self.world.step_until(end) {}
        self.world.move_to(end);
    }

    /// Runs until no event is to come, but for `bound` at most. Returns whether it became idle.
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
