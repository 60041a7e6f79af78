//! Environment variables, which configure a process that does not know about rnic.
//!
//! A program that was written for verbs opens a device by its name and has no options for its address or link. So the
//! contents of the [`DeviceConfig`] come from the environment, which `rnic run` and `rnic env` set:
//!
//! | variable | what it sets |
//! |---|---|
//! | `RNIC_CONFIG` | a configuration file (TOML), as [`DeviceConfig::load`] reads it; the other variables override it |
//! | `RNIC_ADDR` | addresses or interfaces of this host, with commas between (see [`HostAddress`]); an IPv6 link-local address is followed by its interface, `fe80::1%eth0` |
//! | `RNIC_DEVICES` | the number of devices, 1 to 16 |
//! | `RNIC_DEVICE_NAME` | the names of the devices, instead of `rnic0` and so on: one for each with commas between, or one in which `%d` becomes the number of the device |
//! | `RNIC_MTU` | the largest path MTU, in bytes |
//! | `RNIC_LINK` | the link, in the syntax of [`LinkConfig::apply`](rnic_core::link::LinkConfig::apply) |
//! | `RNIC_CC` | congestion control, such as `dcqcn:preset=laptop` |
//! | `RNIC_FAULT` | rules of [`link::faults`](rnic_core::link::faults), separated by `;` or line ends, instead of those of the file |
//! | `RNIC_SEED` | the seed of their random numbers |
//! | `RNIC_CAPTURE` | a pcapng file; `%p` in its name becomes the process ID, `%d` the device, `%%` a percent sign |
//! | `RNIC_GID_TABLE` | `any`, `compact`, `mlx5` or `rxe`: see [`GidLayout`] |
//! | `RNIC_EXPLAIN` | `1` for lines on standard error that say why something failed: see [`explain`](crate::explain) |
//! | `RNIC_RUN_DIR` | a directory for data that other processes may read while the program runs: see [`published`] |
//! | `RNIC_SELECTIVE_REPEAT` | `1` has reliable queue pairs repeat only the packets that were lost, towards rnic peers that do so, too |
//! | `RNIC_GSO` | `0` sends each packet by itself, so that captures on an interface show packets and not segmentation-offloaded trains; `1` is the default |
//! | `RNIC_DAEMON` | the socket of the daemon whose addresses the devices share, or `off`; by default the daemon of the user or of the host, if there is one: see [`Daemon::find`](crate::daemon::Daemon::find) |
//!
//! An empty variable counts as not set. With none set there is one device, `rnic0`, configured as
//! [`DeviceConfig::default`]: at the first free loopback address.

mod address;
mod error;
mod gids;
mod names;
mod publish;
mod queue_pairs;
mod report;
mod run_dir;
mod settings;
mod speed;
mod tree;

use crate::driver::SocketPort;
pub use crate::os::fork::{ForksHeld, hold_forks};
pub use address::HostAddress;
pub use error::{EnvError, EnvFault};
pub use gids::{GidLayout, is_usable, node_guid, resolve};
pub use publish::{NetNamespace, Published, published};
pub(crate) use queue_pairs::{MOST as MOST_QUEUE_PAIRS, ReasonFile, find_queue_pair, reason_files};
pub use queue_pairs::{PublishedQueuePairs, published_queue_pairs};
pub(crate) use report::{PERIOD as PUBLISHING_PERIOD, Report};
pub use run_dir::default_run_dir;
pub use settings::{MAX_DEVICES, Settings, Variable};
pub use speed::{PortSpeed, speed};
pub use tree::SysFolder;

use crate::net::BindError;
use crate::{Device, DeviceConfig, Error, Result, WeakDevice};
use rnic_core::cm::Ports;
use rnic_core::queue::locked;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The configuration of a process.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Its devices: at least one, in the order of their names.
    pub devices: Vec<NamedDevice>,
    /// The layout of their GID tables.
    pub gid_table: GidLayout,
    /// Whether it explains failures.
    pub explain: bool,
    /// The directory for data that other processes may read, if there is one.
    pub run_dir: Option<PathBuf>,
}

/// A device of a process, which may be open or not.
#[derive(Clone, Debug)]
pub struct NamedDevice {
    /// `rnic0`, `rnic1` and so on, unless the settings name it otherwise.
    pub name: String,
    /// The addresses to choose from: it takes the first that is free. An empty list stands for 127.0.0.1, 127.0.0.2, and so
    /// on.
    pub addresses: Vec<HostAddress>,
    /// Everything else. Its address is the first of [`addresses`](Self::addresses).
    pub config: DeviceConfig,
    /// Its GUID, in network byte order. It does not change while the process runs, and no other device on this host has it.
    #[doc(alias = "ibv_get_device_guid")]
    pub guid: [u8; 8],
    /// The directory in which to publish its counters, if there is one.
    pub run_dir: Option<PathBuf>,
}

impl ProcessConfig {
    /// Turns on explanations of failures, if the configuration says so.
    pub fn explain(&self) {
        if self.explain {
            crate::explain::turn_on(self.run_dir.as_deref());
        }
    }

    /// Reads the environment.
    ///
    /// # Errors
    /// Names the variable whose value cannot be used, and says what it takes.
    #[doc(alias = "ibv_get_device_list")]
    pub fn from_env() -> std::result::Result<Self, EnvError> {
        Settings::from_env()?.with_daemon().process()
    }
}

impl NamedDevice {
    /// Opens the device at the first of its addresses that is free, and publishes its counters if the process has a run
    /// directory. If its counters cannot be published, the device works without that.
    ///
    /// # Errors
    /// Those of [`DeviceConfig::open`]. Only if an address is taken is the next one tried.
    pub fn open(&self) -> Result<Device> {
        self.open_near(&[])
    }

    /// As [`open`](Self::open). If the settings name no addresses, the device takes the first of these that it can: a program
    /// that connects to another host wants the address from which this host sends there, not a loopback address.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_near(&self, preferred: &[HostAddress]) -> Result<Device> {
        let _whole = hold_forks();
        let may_choose = self.addresses.is_empty() && self.config.address.is_none();
        let at = |address: &HostAddress| {
            let config = DeviceConfig { address: Some(*address), ..self.config.clone() };
            config.open_as(&self.name).ok()
        };
        let there = if may_choose { preferred.iter().find_map(at) } else { None };
        let (device, port) = there.map_or_else(|| self.open_somewhere(), Ok)?;
        let mut open = locked(&OPEN);
        open.retain(|(_, device)| device.is_open());
        open.push((self.guid, device.downgrade()));
        drop(open);
        if let Some(run_dir) = &self.run_dir {
            port.publish_in(Report::in_folder(run_dir, &self.name, device.address()));
        }
        Ok(device)
    }

    /// Its address, if there is no choice.
    fn only_address(&self) -> Option<IpAddr> {
        if let [only] = &*self.addresses { Some(only.ip) } else { None }
    }

    fn open_somewhere(&self) -> Result<(Device, Arc<SocketPort>)> {
        let Some((last, before)) = self.addresses.split_last() else {
            return self.config.open_as(&self.name);
        };
        let at = |address: &HostAddress| {
            let config = DeviceConfig { address: Some(*address), ..self.config.clone() };
            config.open_as(&self.name)
        };
        for address in before {
            match at(address) {
                Err(Error::Open(BindError::AddressInUse(_))) => {}
                opened => return opened,
            }
        }
        at(last)
    }
}

/// The ports of connection management that this host gives out: those of its sockets (`ip_local_port_range`).
#[must_use]
pub fn port_range() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => first..=last,
        _ => Ports::DEFAULT_RANGE,
    }
}

/// The devices of this process that are open, by GUID.
static OPEN: Mutex<Vec<([u8; 8], WeakDevice)>> = Mutex::new(Vec::new());

/// A device, if this process has opened it, not its parent.
fn opened(device: &NamedDevice) -> Option<Device> {
    let _whole = hold_forks();
    let open = locked(&OPEN);
    let same = open.iter().rev().filter(|(guid, _)| *guid == device.guid);
    same.filter_map(|(_, device)| device.upgrade()).find(Device::is_ours)
}

#[cfg(test)]
mod tests;
