//! A device as programs see it in the file system.

use crate::Counters;
use crate::PKey;
use crate::net::{SocketCounters, interfaces};
use crate::process::publish::of_port;
use crate::process::{GidLayout, NamedDevice, opened, published};
use rnic_core::gid::{GidEntry, GidType, NetInterface};
use std::cell::LazyCell;
use std::net::IpAddr;

/// The current state of a device, open or not.
pub(super) struct View<'a> {
    pub(super) device: &'a NamedDevice,
    /// The entries of the GID table that are not empty.
    pub(super) gids: Vec<GidEntry>,
    pub(super) active: bool,
    pub(super) pkeys: Vec<PKey>,
    /// The interface that has the address.
    pub(super) netdev: String,
    /// They are looked for when they are needed: those of a device that is open elsewhere are in files.
    pub(super) counters: Counted<'a>,
}

type Counting<'a> = Box<dyn FnOnce() -> Vec<(String, u64)> + 'a>;

type Counted<'a> = LazyCell<Vec<(String, u64)>, Counting<'a>>;

impl<'a> View<'a> {
    pub(super) fn new(device: &'a NamedDevice, layout: GidLayout) -> Self {
        if let Some(open) = opened(device) {
            let own = open.gid_table().into_iter().next();
            let interface = own.as_ref().and_then(|own| own.interface.clone());
            return Self {
                device,
                gids: own.map_or_else(Vec::new, |own| layout.table(&own)),
                active: open.port_attr().active,
                pkeys: open.pkeys(),
                netdev: interface.map_or_else(|| netdev(Some(open.address())), |interface| interface.name),
                counters: LazyCell::new(Box::new(move || named(&open.counters()))),
            };
        }
        let address = device.only_address();
        Self::elsewhere(device, layout, Box::new(move || counters_elsewhere(device, address)))
    }

    /// A device that this process does not have open, with these counters.
    pub(super) fn elsewhere(device: &'a NamedDevice, layout: GidLayout, counters: Counting<'a>) -> Self {
        let address = device.only_address();
        let netdev = netdev(address);
        // 0: an interface that has just been removed.
        let index = nix::net::if_::if_nametoindex(netdev.as_str()).unwrap_or(0);
        let own = address.map(|ip| GidEntry {
            index: 0,
            gid: ip.into(),
            gid_type: GidType::RoceV2,
            port_num: 1,
            interface: Some(NetInterface { index, name: netdev.clone() }),
        });
        Self {
            device,
            gids: own.map_or_else(Vec::new, |own| layout.table(&own)),
            active: true,
            pkeys: device.config.pkeys.clone(),
            netdev,
            counters: LazyCell::new(counters),
        }
    }

    /// The counter with this name; 0 if it does not exist.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
    }
}

/// The interface of an address. For a device that is not open and may take several addresses, the loopback interface.
fn netdev(address: Option<IpAddr>) -> String {
    let address = address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let all = interfaces().unwrap_or_default();
    let owner = all.into_iter().find(|interface| interface.has(address.to_canonical()));
    owner.map_or_else(|| "lo".to_owned(), |interface| interface.name)
}

/// The counters of a device that this process does not have open. Either a tool looks at a device that is open in other
/// programs and has the same address, or the program has closed its own device.
fn counters_elsewhere(device: &NamedDevice, address: Option<IpAddr>) -> Vec<(String, u64)> {
    let own = std::process::id();
    let same = |name: &str, at: IpAddr, pid: u32| {
        Some(at) == address || (address.is_none() && pid == own && name == device.name)
    };
    let all = device.run_dir.as_deref().and_then(|dir| published(dir).ok()).unwrap_or_default();
    let zero = || named(&Counters { socket: Some(SocketCounters::default()), ..Counters::default() });
    of_port(all.iter().filter(|one| same(&one.device, one.address, one.pid))).unwrap_or_else(zero)
}

fn named(counters: &Counters) -> Vec<(String, u64)> {
    counters.iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
