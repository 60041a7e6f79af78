//! Devices on the network.

use crate::config::written;
use crate::daemon::protocol::{Address, Refusal};
use crate::daemon::{Daemon, DaemonError, Desk, Slot};
use crate::driver::{Site, SocketPort, UdpIo};
use crate::net::{HostWatch, RoceSocket, SlotSockets, SocketConfig, interfaces};
use crate::process::HostAddress;
use cc::Algorithm;
use qp::{Mtu, PKey};
use rnic_core::engine::{EngineConfig, PKeyTable, PartnerSetup, RateConfig, Share};
use rnic_core::error::Result;
use rnic_core::link::{Buffer, LinkConfig, STOCK_BUFFER, size};
use rnic_core::platform;
use rnic_core::verbs::{Device, paces};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The shortest acknowledgement timeout: 4.096 us x 2^10 = 4.2 ms. A program may ask for less, but its peer is a program too,
/// which a busy processor runs a few milliseconds later than it could. Linux rxe rounds up to a tick of the kernel's clock, which
/// often is 4 ms.
const LEAST_TIMEOUT: u8 = 10;

/// The configuration of a device on the network.
///
/// ```
/// use rnic::{Device, DeviceConfig, Mtu};
///
/// let config = DeviceConfig {
///     mtu: Some(Mtu::B1024),
///     faults: vec!["tx data psn=#3 drop".to_owned()],
///     ..DeviceConfig::default()
/// };
/// let device = config.open()?;
/// assert_eq!(device.port_attr().active_mtu, Mtu::B1024);
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// The address to use: one of this host. `None` takes the first one that a [daemon](crate::daemon) shares; without a daemon,
    /// the first free one of 127.0.0.1, 127.0.0.2, ... In a file it may also be the name of an interface.
    #[serde(deserialize_with = "written::address")]
    pub address: Option<HostAddress>,
    /// Largest path MTU to offer; `None` for the MTU that the interface carries.
    #[serde(deserialize_with = "written::mtu")]
    pub mtu: Option<Mtu>,
    /// Whether to send and receive several packets in one system call if the kernel supports it. `None` means yes.
    pub offload: Option<bool>,
    /// Whether to send several packets in one system call (UDP GSO) if the kernel supports it. `None` means the same
    /// as [`offload`](Self::offload). If disabled, a capture on the interface shows each packet by itself, at the
    /// cost of a system call for each.
    pub gso: Option<bool>,
    /// The number of UDP source ports to send from; more ports spread flows over equal-cost paths. `None` means 4.
    pub source_ports: Option<usize>,
    /// Bytes of receive buffer to ask the kernel for.
    #[serde(deserialize_with = "size")]
    pub recv_buffer: Option<usize>,
    /// The maximum amount in flight to one peer, in bytes of its socket buffer. `None` for what a stock buffer holds, and to
    /// a peer on the same host for a seventh of what the host grants, if that is more and until something is lost.
    #[serde(deserialize_with = "size")]
    pub peer_window: Option<u32>,
    /// The rate at which unacknowledged packets (UC and UD) leave for one receiver once a burst has filled its socket
    /// buffer: bytes per second, as the kernel charges them to the buffer (4,171 for a full packet of 4 KiB). `None`
    /// means [`DEFAULT_UNACKED_RATE`](crate::DEFAULT_UNACKED_RATE) to rnic, and to others what a stock buffer holds that is read every 4 ms (46.6 MB/s);
    /// 0 means no limit.
    pub unacked_rate: Option<u64>,
    /// The P_Key table: the partitions that the port belongs to. By default only the default partition.
    #[serde(deserialize_with = "written::pkeys")]
    pub pkeys: Vec<PKey>,
    /// Fault rules, in the language of [`rnic_core::link::faults`].
    pub faults: Vec<String>,
    /// The seed for the random numbers of the fault rules and of the marks of the link.
    pub fault_seed: u64,
    /// A file to capture all packets into, as pcapng.
    pub capture: Option<PathBuf>,
    /// Whether to send CNPs to peers that have not identified themselves as rnic, and to mark packets for them as
    /// ECN-capable: see [`RateConfig::foreign_cnp`].
    pub foreign_cnp: bool,
    /// Whether reliable queue pairs repeat only the packets that were lost (selective repeat), and not everything behind them
    /// (go-back-N, as RoCEv2 has it). It is used towards rnic peers that do so, too; a queue pair may decline it
    /// (`tuning.selective_repeat`). The acknowledgement timeout then follows from how long answers take, and the attribute
    /// `timeout` is the longest.
    pub selective_repeat: bool,
    /// The link: the port that the device emulates.
    pub link: LinkConfig,
    /// Congestion control.
    pub cc: Algorithm,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            address: None,
            mtu: None,
            offload: None,
            gso: None,
            source_ports: None,
            recv_buffer: None,
            peer_window: None,
            unacked_rate: None,
            pkeys: vec![PKey::DEFAULT],
            faults: Vec::new(),
            fault_seed: 0,
            capture: None,
            foreign_cnp: false,
            selective_repeat: false,
            link: LinkConfig::default(),
            cc: Algorithm::Off,
        }
    }
}

impl DeviceConfig {
    /// A device at this address of the host.
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self { address: Some(address.into()), ..Self::default() }
    }

    /// Opens a device on the network. If a [daemon](crate::daemon) is found that shares the address, the device is a slot there.
    ///
    /// # Errors
    /// [`Error::Daemon`](crate::Error::Daemon) if somebody has asked for a daemon and it does not serve the program;
    /// [`Error::Open`](crate::Error::Open) names the obstacle to using the address and its remedy;
    /// [`Error::PKeys`](crate::Error::PKeys) reports a fault in the P_Key table, and
    /// [`Error::Link`](crate::Error::Link) one in the link or the congestion control.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Device> {
        self.open_as("rnic0").map(|(device, _)| device)
    }

    /// Opens a device under this name; returns its port too.
    pub(crate) fn open_as(&self, name: &str) -> Result<(Device, Arc<SocketPort>)> {
        // Before a socket is opened.
        let pkeys = PKeyTable::new(&self.pkeys)?;
        self.link.at(&self.cc, self.mtu.unwrap_or(Mtu::B4096))?;
        if let Some((slot, sockets)) = self.attach(name)? {
            return self.open_slot(name, slot, sockets);
        }
        let socket = match self.address {
            Some(_) => RoceSocket::bind(&self.sockets())?,
            None => RoceSocket::bind_first_free_loopback(&self.sockets())?,
        };
        let address = socket.ip();
        let scope_id = self.address.map_or(0, |address| address.scope_id);
        let watch = HostWatch::new(address, scope_id).inspect_err(|error| {
            tracing::warn!(%error, %address, "the host's links and addresses cannot be watched: no PORT_ERR will come");
        });
        let at = At { slot: (platform::random() % 255) as u8 + 1, share: None, site: Site::Host(watch.ok()) };
        self.open_at(name, at, socket, pkeys)
    }

    /// Asks the daemon, if one is found, for a slot at the address. `None` if the device needs an address of its own.
    fn attach(&self, name: &str) -> Result<Option<(Slot, SlotSockets)>> {
        let daemon = Daemon::find();
        let Some((path, is_asked_for)) = daemon.place() else { return Ok(None) };
        match Slot::attach(path, self.address.map(|address| address.ip), name) {
            Ok(attached) => Ok(Some(attached)),
            Err(error) if is_asked_for => Err(error.into()),
            Err(DaemonError::Refused(Refusal::Address(address))) => {
                tracing::debug!(%address, daemon = %path.display(), "the daemon does not share this address");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%error, "the device gets an address of its own, without the daemon");
                Ok(None)
            }
        }
    }

    /// Opens a device at a slot. The address's link, partitions and limits are the daemon's; faults, captures and the choice of
    /// trains are the program's.
    fn open_slot(&self, name: &str, slot: Slot, sockets: SlotSockets) -> Result<(Device, Arc<SocketPort>)> {
        let attached = slot.attached();
        let given = Self::from_toml(&attached.config)?;
        if self.link != LinkConfig::default() || self.cc != Algorithm::Off {
            tracing::warn!("the link and the congestion control of a shared address are those of the daemon");
        }
        let Address { ip, scope_id } = attached.address;
        let config = Self {
            address: Some(HostAddress { ip, scope_id }),
            mtu: [self.mtu, given.mtu].into_iter().flatten().min(),
            gso: self.gso.or(given.gso),
            offload: self.offload.or(given.offload),
            faults: self.faults.clone(),
            fault_seed: self.fault_seed,
            capture: self.capture.clone(),
            ..given
        };
        let pkeys = PKeyTable::new(&config.pkeys)?;
        let socket = RoceSocket::adopt(&config.sockets(), sockets)?;
        let share = Share { rounds: attached.rounds, first: attached.first };
        tracing::info!(address = %ip, slot = attached.slot, daemon = %slot.path().display(), "a slot at a shared address");
        let at = At { slot: attached.slot, share: Some(share), site: Site::Slot(Box::new(slot)) };
        config.open_at(name, at, socket, pkeys)
    }

    /// Opens the device of the daemon itself, at slot 0 of a shared address. `share`: the scrambling of its numbers.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_shared(&self, name: &str, sockets: SlotSockets, share: Share) -> Result<Device> {
        let HostAddress { ip, scope_id } = self.address.unwrap_or(IpAddr::from([127, 0, 0, 1]).into());
        let socket = RoceSocket::adopt(&self.sockets(), sockets)?;
        let watch = HostWatch::new(ip, scope_id).ok();
        let at = At { slot: 0, share: Some(share), site: Site::Host(watch) };
        self.open_at(name, at, socket, PKeyTable::new(&self.pkeys)?).map(|(device, _)| device)
    }

    /// The sockets of the device.
    #[must_use]
    pub fn sockets(&self) -> SocketConfig {
        let HostAddress { ip, scope_id } = self.address.unwrap_or(IpAddr::from([127, 0, 0, 1]).into());
        let defaults = SocketConfig::new(ip);
        let offload = self.offload.unwrap_or(true);
        SocketConfig {
            scope_id,
            gso: self.gso.unwrap_or(offload),
            gro: offload,
            source_ports: self.source_ports.unwrap_or(defaults.source_ports),
            recv_buffer: self.recv_buffer.unwrap_or(defaults.recv_buffer),
            ..defaults
        }
    }

    fn open_at(
        &self,
        name: &str,
        at: At,
        socket: RoceSocket,
        pkeys: PKeyTable,
    ) -> Result<(Device, Arc<SocketPort>)> {
        let address = socket.ip();
        let told = at.site.state().and_then(|state| state.path_mtu());
        let carried = told.or_else(|| interface_mtu(address)).unwrap_or(Mtu::B1024);
        let largest = self.mtu.unwrap_or(Mtu::B4096);
        let active_mtu = carried.min(largest);
        let granted = u32::try_from(socket.rcvbuf()).unwrap_or(STOCK_BUFFER);
        let link = self.link.at_socket(&self.cc, active_mtu, granted)?;
        let paced = RateConfig { foreign_cnp: self.foreign_cnp, ..RateConfig::default() };
        let engine = EngineConfig {
            address,
            source_ports: (0..socket.source_ports()).map(|via| socket.source_port(via)).collect(),
            active_mtu,
            slot: at.slot,
            share: at.share,
            seed: None,
            peer_window: self.peer_window,
            host_buffer: (!link.emulates()).then_some(granted),
            least_timeout: LEAST_TIMEOUT,
            paces: paces(self.unacked_rate),
            pkeys,
            partner: link
                .partner_setup(Buffer::Socket(granted), &PartnerSetup::offering(self.selective_repeat)),
            rate: link.rate_config(&self.cc, &paced),
        };
        let advice = match self.link.rate {
            Some(rate) => self.cc.advice(rate),
            None => self.cc.advice_without_port().map(str::to_owned),
        };
        if let Some(advice) = advice {
            tracing::warn!("{advice}");
        }
        let desk = match &at.site {
            Site::Slot(slot) => Some(Desk::at(slot.path())),
            Site::Host(_) => None,
        };
        let port = SocketPort::new(engine, UdpIo::new(socket, desk), at.site, largest);
        port.set_link(&link, self.fault_seed);
        let device = Device::around(name.to_owned(), Arc::<SocketPort>::clone(&port), self.fault_seed);
        for rule in &self.faults {
            device.add_fault(rule)?;
        }
        if let Some(path) = &self.capture {
            device.capture(path)?;
        }
        port.publish_for_daemon();
        Ok((device, port))
    }
}

/// Where a device is.
struct At {
    slot: u8,
    share: Option<Share>,
    site: Site,
}

/// The largest path MTU that the interface with `address` carries, for kernels that do not report it themselves.
fn interface_mtu(address: IpAddr) -> Option<Mtu> {
    let owner = interfaces().ok()?.into_iter().find(|interface| interface.has(address.to_canonical()))?;
    Mtu::for_interface(owner.mtu)
}
