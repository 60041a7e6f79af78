//! Ports: which program has which, by the rules of Linux's `rdma_cm` (`cma_use_port`, `cma_alloc_any_port`,
//! `cma_check_port`), which programs rely on.
//!
//! Each port space has ports of its own. Whoever holds a port holds it at an address, or at any address:
//!
//! | second claim of a port | answer |
//! |---|---|
//! | both may be reused | granted |
//! | of the other family, and both for their own family only | granted |
//! | either is for any address | [`PortError::Taken`]: EADDRNOTAVAIL |
//! | the same address | [`PortError::InUse`]: EADDRINUSE |
//! | another address | granted |
//!
//! A claim of port 0 gets a random port of the [range](Ports::new), unless its connections could be taken for those of a holder: that is
//! so if their local addresses, remote addresses and remote ports are all equal, or may be. A claim that begins to
//! listen must share its port with nobody, reused or not, and cannot be reused any more.
//!
//! One rule differs on purpose. Linux takes a loopback address for any address; here 127.0.0.1, 127.0.0.2, ... are the
//! ordinary addresses of devices on one host.

use cm::PortSpace;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Mutex;
use thiserror::Error;

/// Where programs get ports: a table of this process ([`Ports`] behind a mutex), or one that several processes share.
pub trait PortTable: Send + Sync {
    /// Claims a port, and returns which one.
    ///
    /// # Errors
    /// [`PortError`].
    fn bind(&self, claim: &Claim) -> Result<Binding, PortError>;

    /// The holder of a port begins to listen.
    ///
    /// # Errors
    /// [`PortError`]: it shares the port.
    fn listen(&self, binding: Binding) -> Result<(), PortError>;

    /// Gives a port back.
    fn release(&self, binding: Binding);
}

/// A claim of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The port space.
    pub space: PortSpace,
    /// The local address, which may be unspecified (any), and the port; 0 for a free one.
    pub local: SocketAddr,
    /// The address that the claimant connects to, if it is known.
    pub remote: Option<SocketAddr>,
    /// Whether the port may be shared with others that say so (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
    /// Whether the claim is for addresses of its own family only (`RDMA_OPTION_ID_AFONLY`). A claim of an IPv4
    /// address always is.
    pub family_only: bool,
    /// Whether the program may claim ports below 1024.
    pub privileged: bool,
}

impl Claim {
    /// A claim of a port at an address, or of a free one.
    #[must_use]
    pub const fn new(space: PortSpace, local: SocketAddr) -> Self {
        Self { space, local, remote: None, reuse: false, family_only: false, privileged: false }
    }

    const fn is_family_only(&self) -> bool {
        self.family_only || self.local.is_ipv4()
    }
}

/// A port that was granted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Binding {
    /// The port space.
    pub space: PortSpace,
    /// The port.
    pub port: u16,
    /// Distinguishes the holders of a port.
    pub holder: u64,
}

/// Why a port is not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PortError {
    /// The same address and port have a holder (EADDRINUSE).
    #[error("port {0} is in use at this address: choose another one, or 0 for any")]
    InUse(u16),
    /// The port has a holder whose address overlaps, because one of the two is any address (EADDRNOTAVAIL).
    #[error(
        "port {0} is in use at another address, and one of the two is for any address: bind both to their addresses"
    )]
    Taken(u16),
    /// No port of the range is free (EADDRNOTAVAIL).
    #[error("no port is free")]
    Exhausted,
    /// Ports below 1024 need a privilege (EACCES).
    #[error("port {0} needs the right to use ports below 1024 (CAP_NET_BIND_SERVICE)")]
    Privileged(u16),
    /// The binding does not exist, or was given back (EINVAL).
    #[error("the port was given back already")]
    Unknown,
    /// The daemon, which gives out the ports of this address, does not answer (EAGAIN).
    #[error("the daemon, which gives out the ports, does not answer")]
    Daemon,
}

/// The lowest port that needs no privilege (`PROT_SOCK` of Linux).
const FIRST_FREE: u16 = 1024;

/// The ports of a process.
#[derive(Debug)]
pub struct Ports {
    holders: HashMap<(PortSpace, u16), Vec<(u64, Claim)>>,
    range: RangeInclusive<u16>,
    /// The port that was given out last without being asked for. It is not given out twice in a row, so that late
    /// packets for a connection do not meet the next one.
    last: Option<u16>,
    next_holder: u64,
    rng: ChaCha8Rng,
}

impl Ports {
    /// The ports that Linux gives out by default (`net.ipv4.ip_local_port_range`).
    pub const DEFAULT_RANGE: RangeInclusive<u16> = 32768..=60999;

    /// No port has a holder yet. `range`: those to be given out to claims of port 0; `seed`: their order.
    #[must_use]
    pub fn new(range: RangeInclusive<u16>, seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { holders: HashMap::new(), range, last: None, next_holder: 1, rng }
    }

    /// Claims a port.
    ///
    /// # Errors
    /// [`PortError`].
    pub fn bind(&mut self, claim: &Claim) -> Result<Binding, PortError> {
        let port = match claim.local.port() {
            0 => self.free(claim)?,
            port if port < FIRST_FREE && !claim.privileged => return Err(PortError::Privileged(port)),
            port => {
                let others = self.holders_of(claim.space, port).iter().map(|(_, other)| other);
                check(claim, claim.reuse, others)?;
                port
            }
        };
        let holder = self.next_holder;
        self.next_holder += 1;
        self.holders.entry((claim.space, port)).or_default().push((holder, *claim));
        Ok(Binding { space: claim.space, port, holder })
    }

    /// The holder of a port begins to listen.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), because the port may have other holders; [`PortError::Unknown`].
    pub fn listen(&mut self, binding: Binding) -> Result<(), PortError> {
        let holders = self.holders.get_mut(&(binding.space, binding.port)).ok_or(PortError::Unknown)?;
        let own = holders.iter().position(|(holder, _)| *holder == binding.holder);
        let own = own.ok_or(PortError::Unknown)?;
        let (before, rest) = holders.split_at_mut(own);
        let Some(((_, claim), after)) = rest.split_first_mut() else { return Err(PortError::Unknown) };
        let others = before.iter().chain(&*after).map(|(_, other)| other);
        let mut claim_here = *claim;
        claim_here.local.set_port(binding.port);
        check(&claim_here, false, others)?;
        claim.reuse = false;
        Ok(())
    }

    /// Gives a port back.
    pub fn release(&mut self, binding: Binding) {
        let key = (binding.space, binding.port);
        if let Some(holders) = self.holders.get_mut(&key) {
            holders.retain(|(holder, _)| *holder != binding.holder);
            if holders.is_empty() {
                self.holders.remove(&key);
            }
        }
    }

    fn holders_of(&self, space: PortSpace, port: u16) -> &[(u64, Claim)] {
        self.holders.get(&(space, port)).map_or(&[], Vec::as_slice)
    }

    /// A port of the range, beginning with a random one.
    fn free(&mut self, claim: &Claim) -> Result<u16, PortError> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let count = u32::from(last.saturating_sub(first)) + 1;
        let start = self.rng.next_u32() % count;
        let ports = (0..count).map(|step| first + ((start + step) % count) as u16);
        let is_free = |port: &u16| {
            Some(*port) != self.last
                && self.holders_of(claim.space, *port).iter().all(|(_, other)| is_distinct(claim, other))
        };
        let port = ports.into_iter().find(is_free).ok_or(PortError::Exhausted)?;
        self.last = Some(port);
        Ok(port)
    }
}

impl PortTable for Mutex<Ports> {
    fn bind(&self, claim: &Claim) -> Result<Binding, PortError> {
        crate::queue::locked(self).bind(claim)
    }

    fn listen(&self, binding: Binding) -> Result<(), PortError> {
        crate::queue::locked(self).listen(binding)
    }

    fn release(&self, binding: Binding) {
        crate::queue::locked(self).release(binding);
    }
}

/// Whether a claim of a given port goes together with its holders.
fn check<'a>(claim: &Claim, reuse: bool, holders: impl Iterator<Item = &'a Claim>) -> Result<(), PortError> {
    let port = claim.local.port();
    for other in holders {
        let families_differ = claim.local.is_ipv4() != other.local.is_ipv4();
        if reuse && other.reuse || families_differ && claim.is_family_only() && other.is_family_only() {
            continue;
        }
        let (own, theirs) = (claim.local.ip(), other.local.ip());
        if own.is_unspecified() || theirs.is_unspecified() {
            return Err(PortError::Taken(port));
        }
        if own.to_canonical() == theirs.to_canonical() {
            return Err(PortError::InUse(port));
        }
    }
    Ok(())
}

/// Whether no connection of one claim can be taken for one of the other, if both have the same port.
fn is_distinct(claim: &Claim, other: &Claim) -> bool {
    let address_of = |ip: IpAddr| (!ip.is_unspecified()).then(|| ip.to_canonical());
    let locals = [claim, other].map(|of| address_of(of.local.ip()));
    let remotes = [claim, other].map(|of| of.remote.and_then(|remote| address_of(remote.ip())));
    let ports = [claim, other].map(|of| of.remote.map(|remote| remote.port()).filter(|port| *port != 0));
    differ(locals) || differ(remotes) || differ(ports)
}

/// Whether both are known, and not the same.
fn differ<T: PartialEq>([one, other]: [Option<T>; 2]) -> bool {
    one.is_some() && other.is_some() && one != other
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const HERE: [u8; 4] = [10, 0, 0, 1];
    const THERE: [u8; 4] = [10, 0, 0, 2];
    const ANY: [u8; 4] = [0; 4];

    fn ports() -> Ports {
        Ports::new(Ports::DEFAULT_RANGE, 7)
    }

    fn claim(ip: [u8; 4], port: u16) -> Claim {
        Claim::new(PortSpace::Tcp, SocketAddr::from((ip, port)))
    }

    fn v6(ip: &str, port: u16) -> Claim {
        Claim::new(PortSpace::Tcp, SocketAddr::new(ip.parse().expect("an address"), port))
    }

    fn reused(claim: Claim) -> Claim {
        Claim { reuse: true, ..claim }
    }

    /// What the second of two claims gets.
    fn second(first: Claim, then: Claim) -> Result<u16, PortError> {
        let mut ports = ports();
        ports.bind(&first).expect("a free port");
        ports.bind(&then).map(|binding| binding.port)
    }

    #[test]
    fn a_port_in_use_is_refused_as_linux_does() {
        let at = |ip| claim(ip, 7471);
        assert_eq!(second(at(HERE), at(HERE)), Err(PortError::InUse(7471)));
        assert_eq!(second(at(HERE), at(THERE)), Ok(7471));
        for (first, then) in [(ANY, HERE), (HERE, ANY), (ANY, ANY)] {
            assert_eq!(second(at(first), at(then)), Err(PortError::Taken(7471)), "{first:?}, {then:?}");
        }
        // One of the two says that the port may be shared; both do.
        assert_eq!(second(reused(at(ANY)), at(HERE)), Err(PortError::Taken(7471)));
        assert_eq!(second(at(HERE), reused(at(HERE))), Err(PortError::InUse(7471)));
        assert_eq!(second(reused(at(ANY)), reused(at(ANY))), Ok(7471));
        // Loopback addresses are those of devices.
        assert_eq!(second(at([127, 0, 0, 1]), at([127, 0, 0, 2])), Ok(7471));
    }

    #[test]
    fn port_spaces_and_families_have_their_own_ports() {
        let udp = Claim { space: PortSpace::Udp, ..claim(HERE, 7471) };
        assert_eq!(second(claim(HERE, 7471), udp), Ok(7471));
        let any = v6("::", 7471);
        assert_eq!(second(claim(ANY, 7471), any), Err(PortError::Taken(7471)), "it is for IPv4 as well");
        assert_eq!(second(claim(ANY, 7471), Claim { family_only: true, ..any }), Ok(7471));
        assert_eq!(second(Claim { family_only: true, ..any }, claim(HERE, 7471)), Ok(7471));
        assert_eq!(second(v6("fe80::1", 7471), v6("fe80::1", 7471)), Err(PortError::InUse(7471)));
        assert_eq!(second(v6("fe80::1", 7471), v6("fe80::2", 7471)), Ok(7471));
        assert_eq!(second(v6("::ffff:10.0.0.1", 7471), claim(HERE, 7471)), Err(PortError::InUse(7471)));
    }

    #[test]
    fn a_listener_shares_its_port_with_nobody() {
        let mut ports = ports();
        let first = ports.bind(&reused(claim(HERE, 7471))).expect("a free port");
        let second = ports.bind(&reused(claim(HERE, 7471))).expect("a port to share");
        assert_eq!(ports.listen(first), Err(PortError::InUse(7471)));
        ports.release(second);
        assert_eq!(ports.listen(first), Ok(()));
        assert_eq!(ports.bind(&reused(claim(HERE, 7471))), Err(PortError::InUse(7471)));
        ports.release(first);
        ports.release(first);
        assert_eq!(ports.listen(first), Err(PortError::Unknown));
        assert!(ports.bind(&claim(ANY, 7471)).is_ok() && ports.holders.len() == 1);
    }

    #[test]
    fn low_ports_need_a_privilege() {
        assert_eq!(ports().bind(&claim(HERE, 1023)), Err(PortError::Privileged(1023)));
        let privileged = Claim { privileged: true, ..claim(HERE, 1023) };
        assert_eq!(ports().bind(&privileged).map(|binding| binding.port), Ok(1023));
        assert_eq!(ports().bind(&claim(HERE, 1024)).map(|binding| binding.port), Ok(1024));
    }

    #[test]
    fn free_ports_are_random_and_run_out() {
        let mut ports = Ports::new(40000..=40009, 1);
        let all = |ports: &mut Ports| -> Vec<_> {
            (0..10).map(|_| ports.bind(&claim(HERE, 0)).expect("a free port")).collect()
        };
        let first = all(&mut ports);
        assert_eq!(first.iter().map(|binding| binding.port).collect::<BTreeSet<_>>().len(), 10);
        assert_eq!(ports.bind(&claim(HERE, 0)), Err(PortError::Exhausted));
        assert!(ports.bind(&claim(THERE, 0)).is_ok(), "another address has its own");
        let order: Vec<_> = first.iter().map(|binding| binding.port).collect();
        assert!(
            !order.is_sorted()
                && order != all(&mut Ports::new(40000..=40009, 2)).iter().map(|b| b.port).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_port_used_last_is_not_given_out_again() {
        let mut ports = Ports::new(40000..=40001, 3);
        for _ in 0..20 {
            let before = ports.last;
            let binding = ports.bind(&claim(HERE, 0)).expect("a free port");
            assert_ne!(Some(binding.port), before);
            ports.release(binding);
        }
        let mut one = Ports::new(40000..=40000, 3);
        let binding = one.bind(&claim(HERE, 0)).expect("the only port");
        one.release(binding);
        assert_eq!(one.bind(&claim(HERE, 0)), Err(PortError::Exhausted), "as Linux: not twice in a row");
    }

    #[test]
    fn connections_to_different_peers_may_share_a_free_port() {
        let to = |ip: [u8; 4], port| Claim { remote: Some((ip, port).into()), ..claim(HERE, 0) };
        let second = |first: Claim, then: Claim| {
            // One port is left.
            let mut ports = Ports::new(40000..=40000, 3);
            ports.bind(&first).expect("a free port");
            ports.last = None;
            ports.bind(&then).is_ok()
        };
        assert!(second(to(THERE, 7471), to([10, 0, 0, 3], 7471)));
        assert!(second(to(THERE, 7471), to(THERE, 7472)));
        assert!(!second(to(THERE, 7471), to(THERE, 7471)));
        assert!(!second(to(THERE, 7471), claim(HERE, 0)), "it may connect to anybody");
        assert!(!second(to(THERE, 7471), Claim { local: (ANY, 0).into(), ..to(THERE, 7471) }));
    }
}
