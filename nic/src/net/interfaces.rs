//! The network interfaces of the calling thread's network namespace. (`/sys/class/net` may show those of another
//! namespace.)

use super::sys;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, for example `eth0`.
    pub name: String,
    /// The longest IP packet it carries, in bytes; [`qp::Mtu::for_interface`] converts it to a path MTU.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback interface, to which all of 127.0.0.0/8 belongs.
    pub loopback: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// Whether packets from `ip` leave by this interface.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let local = self.loopback && matches!(ip, IpAddr::V4(v4) if Ipv4Addr::is_loopback(&v4));
        local || self.addresses.contains(&ip)
    }
}

/// All interfaces, by name.
///
/// # Errors
/// If the kernel does not list them. An interface that disappears meanwhile is left out.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = BTreeMap::<String, Interface>::new();
    for entry in getifaddrs()? {
        let name = entry.interface_name;
        if !found.contains_key(&name) {
            let Ok(mtu) = sys::interface_mtu(&name) else { continue };
            let up = entry.flags.contains(InterfaceFlags::IFF_UP);
            let loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
            found.insert(
                name.clone(),
                Interface { name: name.clone(), mtu, up, loopback, addresses: Vec::new() },
            );
        }
        let Some((interface, address)) = found.get_mut(&name).zip(entry.address) else { continue };
        if let Some(v4) = address.as_sockaddr_in() {
            interface.addresses.push(v4.ip().into());
        } else if let Some(v6) = address.as_sockaddr_in6() {
            interface.addresses.push(v6.ip().into());
        }
    }
    Ok(found.into_values().collect())
}

/// The number of the interface that has `ip`.
pub(super) fn index_of(ip: IpAddr) -> Option<u32> {
    let owner = interfaces().ok()?.into_iter().find(|i| i.has(ip))?;
    nix::net::if_::if_nametoindex(owner.name.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_all_of_its_network() {
        let all = interfaces().unwrap();
        let ip = "127.200.3.4".parse().unwrap();
        let owners: Vec<_> = all.iter().filter(|i| i.has(ip)).collect();
        assert_eq!(owners.len(), 1, "{all:?}");
        assert!(owners[0].mtu >= 1280, "{all:?}");
        assert!(!all.iter().any(|i| i.has("203.0.113.77".parse().unwrap())));
    }

    #[test]
    fn names_that_no_interface_has_are_errors() {
        assert!(sys::interface_mtu("no-such-if").is_err());
        assert!(sys::interface_mtu(&"x".repeat(100)).is_err());
    }
}
