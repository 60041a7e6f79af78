//! Addresses of this host, by number, interface or host name.

use super::EnvFault;
use crate::net::{Interface, interfaces};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::str::FromStr;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// The interface index, for IPv6 link-local addresses; otherwise 0.
    pub scope_id: u32,
}

impl HostAddress {
    /// As [`FromStr`], and also a host name, which is resolved as the system does (`/etc/hosts`, DNS). Of the addresses of
    /// a name only those of this host count; of several, the first IPv4 address is taken, else the first IPv6 address.
    ///
    /// ```
    /// use rnic::process::HostAddress;
    ///
    /// assert_eq!(HostAddress::look_up("localhost")?.ip, std::net::IpAddr::from([127, 0, 0, 1]));
    /// # Ok::<(), rnic::process::EnvFault>(())
    /// ```
    ///
    /// # Errors
    /// [`EnvFault::UnknownHost`], [`EnvFault::Elsewhere`] if the name is that of another host, and those of [`FromStr`].
    pub fn look_up(text: &str) -> Result<Self, EnvFault> {
        match text.parse() {
            Err(EnvFault::Malformed { .. }) if !text.contains('%') => Self::of_host(text),
            parsed => parsed,
        }
    }

    fn of_host(name: &str) -> Result<Self, EnvFault> {
        let unknown = |reason: String| EnvFault::UnknownHost { name: name.to_owned(), reason };
        let resolved = (name, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let mut addresses: Vec<IpAddr> = resolved.map(|address| address.ip()).collect();
        // Stable: the order of the resolver stays within each family.
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        let own = interfaces().map_err(|error| unknown(error.to_string()))?;
        let local = addresses.iter().find(|ip| own.iter().any(|interface| interface.has(**ip)));
        let elsewhere = || EnvFault::Elsewhere { name: name.to_owned(), addresses: addresses.clone() };
        local.map(|ip| Self::from(*ip)).ok_or_else(elsewhere)
    }

    /// As [`FromStr`], but an interface stands for all its addresses.
    ///
    /// # Errors
    /// Those of [`FromStr`].
    pub fn all_of(text: &str) -> Result<Vec<Self>, EnvFault> {
        let all = interfaces().unwrap_or_default();
        let Some(interface) = all.iter().find(|interface| interface.name == text) else {
            return text.parse().map(|address| vec![address]);
        };
        let scope = index_of(&interface.name).unwrap_or(0);
        let with_scope = |ip: &IpAddr| {
            let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            Self { ip: *ip, scope_id: if is_link_local { scope } else { 0 } }
        };
        match &interface.addresses[..] {
            [] => Err(EnvFault::NoAddress { interface: interface.name.clone() }),
            addresses => Ok(addresses.iter().map(with_scope).collect()),
        }
    }

    /// The address of an interface: its first IPv4 address, else its first IPv6 address that is not link-local, else its
    /// link-local one.
    fn of_interface(interface: &Interface) -> Result<Self, EnvFault> {
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let first = interface.addresses.iter().min_by_key(|ip| (ip.is_ipv6(), link_local(ip)));
        let Some(ip) = first else {
            return Err(EnvFault::NoAddress { interface: interface.name.clone() });
        };
        let scope_id = if link_local(ip) { index_of(&interface.name).unwrap_or(0) } else { 0 };
        Ok(Self { ip: *ip, scope_id })
    }
}

fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

impl From<IpAddr> for HostAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, scope_id: 0 }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope_id {
            0 => self.ip.fmt(f),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}

/// Parses an IPv4 or IPv6 address, an IPv6 address with its interface (`fe80::1%eth0`), or the name of an interface
/// (`eth0`). An interface stands for its first IPv4 address, or without one for its first IPv6 address, a link-local
/// one last.
impl FromStr for HostAddress {
    type Err = EnvFault;

    fn from_str(text: &str) -> Result<Self, EnvFault> {
        let wrong = |wanted: &str| EnvFault::malformed(text, wanted);
        if let Some((ip, interface)) = text.split_once('%') {
            let ip: Ipv6Addr = ip.parse().map_err(|_| wrong("only IPv6 addresses take an interface"))?;
            let scope_id = interface.parse().ok().or_else(|| index_of(interface));
            let scope_id =
                scope_id.ok_or_else(|| wrong("no interface of this host has the name behind the `%`"))?;
            return Ok(Self { ip: ip.into(), scope_id });
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ip.into());
        }
        let all = interfaces().unwrap_or_default();
        match all.iter().find(|interface| interface.name == text) {
            Some(interface) => Self::of_interface(interface),
            None => {
                Err(wrong("write an IPv4 or IPv6 address of this host, or the name of one of its interfaces"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(addresses: &[&str]) -> Interface {
        Interface {
            name: "lo".to_owned(),
            mtu: 1500,
            up: true,
            loopback: false,
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        }
    }

    #[test]
    fn an_interface_stands_for_its_first_ipv4_address_else_ipv6() {
        let chosen = |addresses: &[&str]| {
            HostAddress::of_interface(&interface(addresses)).map(|address| address.ip.to_string())
        };
        assert_eq!(chosen(&["fe80::1", "fd00::7", "10.0.0.9", "10.0.0.1"]).expect("one"), "10.0.0.9");
        assert_eq!(chosen(&["fe80::1", "fd00::7", "fd00::1"]).expect("one"), "fd00::7");
        let link_local = HostAddress::of_interface(&interface(&["fe80::1"])).expect("one");
        assert!(link_local.scope_id > 0, "{link_local}: without its interface the address means nothing");
        let none = chosen(&[]).expect_err("none");
        assert_eq!(none.to_string(), "the interface `lo` has no IP address");
    }

    #[test]
    fn addresses_are_given_by_interface_or_host_name() {
        let ip = |text| HostAddress::look_up(text).map(|address| address.ip.to_string());
        assert_eq!(ip("lo").expect("an interface"), "127.0.0.1");
        assert_eq!("lo".parse::<HostAddress>().expect("an interface").ip, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(ip("localhost").expect("in /etc/hosts"), "127.0.0.1", "IPv4 goes first");
        assert_eq!(ip("::1").expect("an address"), "::1");
    }

    #[test]
    fn names_that_mean_no_address_of_this_host_are_refused_with_the_reason() {
        // Reserved never to exist (RFC 6761).
        let unknown = HostAddress::look_up("no-such-host.invalid").expect_err("unknown");
        assert!(matches!(unknown, EnvFault::UnknownHost { .. }), "{unknown:?}");
        assert!(unknown.to_string().contains("neither an IP address, nor an interface"), "{unknown}");
        let elsewhere = EnvFault::Elsewhere {
            name: "a".to_owned(),
            addresses: vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        };
        assert_eq!(elsewhere.to_string(), "`a` is 192.0.2.1, 192.0.2.2: not an address of this host");
        assert!(matches!(HostAddress::look_up("fe80::1%no-such-0"), Err(EnvFault::Malformed { .. })));
        assert!(
            matches!("localhost".parse::<HostAddress>(), Err(EnvFault::Malformed { .. })),
            "nothing is resolved"
        );
    }
}
