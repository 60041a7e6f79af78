//! Port spaces and services.

use super::name::Name;
use crate::errno::Errno;
use rnic::cm::protocol::{PortSpace, ServiceId};
use rnic::cm::{Binding, Claim, PortError, PortTable};
use std::net::SocketAddr;

/// A port space (`enum rdma_ucm_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    IpOverIb = 0x0002,
    Ib = 0x013f,
    Tcp = 0x0106,
    Udp = 0x0111,
}

impl Space {
    const ALL: [Self; 4] = [Self::IpOverIb, Self::Ib, Self::Tcp, Self::Udp];

    pub(super) fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u16 == code)
    }

    /// The port space that has this number in service IDs and port tables.
    const fn number(self) -> PortSpace {
        PortSpace::from_u8(self as u16 as u8)
    }

    /// The service of a port (`rdma_get_service_id` of Linux).
    pub(super) const fn service(self, port: u16) -> ServiceId {
        ServiceId((self as u64) << 16 | port as u64)
    }

    /// The port space that an InfiniBand address names with its service and mask, if programs of this port space may use it
    /// (`cma_select_ib_ps` of Linux).
    pub(super) fn named_by(self, sid: u64, mask: u64) -> Option<Self> {
        /// `RDMA_IB_IP_PS_MASK`.
        const SPACE: u64 = 0xffff_ffff_ffff_0000;
        let mask = mask & SPACE;
        let is = |space: Self| sid & mask == space.service(0).0 & mask;
        match self {
            Self::Ib => [Self::Ib, Self::Tcp, Self::Udp].into_iter().find(|space| is(*space)),
            own => Some(own).filter(|space| is(*space)),
        }
    }
}

/// Whether this process may use ports below 1024: by CAP_NET_BIND_SERVICE, number 10, among its effective capabilities.
fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> 10 & 1 == 1)
}

/// Claims the port of an address, or a free one.
pub(super) fn claim(
    ports: &dyn PortTable,
    space: Space,
    local: &Name,
    remote: Option<&Name>,
    (reuse, family_only): (bool, bool),
) -> Result<Binding, Errno> {
    let address = |name: &Name| SocketAddr::new(name.ip(), name.port());
    let privileged = (1..1024).contains(&local.port()) && is_privileged();
    let (local, remote) = (address(local), remote.map(address));
    let claim = Claim { remote, reuse, family_only, privileged, ..Claim::new(space.number(), local) };
    Ok(ports.bind(&claim)?)
}

impl From<PortError> for Errno {
    fn from(error: PortError) -> Self {
        let number = match error {
            PortError::InUse(_) => libc::EADDRINUSE,
            PortError::Taken(_) | PortError::Exhausted => libc::EADDRNOTAVAIL,
            PortError::Privileged(_) => libc::EACCES,
            PortError::Unknown => libc::EINVAL,
            PortError::Daemon => libc::EAGAIN,
        };
        Self(number).because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_numbered_as_in_linux() {
        assert_eq!(Space::Tcp.service(7471), ServiceId::tcp(7471));
        assert_eq!(Space::Udp.service(1), ServiceId::udp(1));
        assert_eq!(Space::Ib.service(1), ServiceId::ib(1));
        assert_eq!(Space::IpOverIb.service(7).0, 0x0002_0007);
        assert_eq!(Space::from_code(0x0106), Some(Space::Tcp));
        assert_eq!(Space::from_code(0x0107), None);
    }

    /// A table that notes what is claimed, and has nothing left.
    #[derive(Default)]
    struct Noted(std::sync::Mutex<Option<Claim>>);

    impl PortTable for Noted {
        fn bind(&self, claim: &Claim) -> Result<Binding, PortError> {
            *crate::hub::locked(&self.0) = Some(*claim);
            Err(PortError::Exhausted)
        }

        fn listen(&self, _: Binding) -> Result<(), PortError> {
            Ok(())
        }

        fn release(&self, _: Binding) {}
    }

    #[test]
    fn a_claim_says_all_that_is_known() {
        let [local, remote] = ["10.0.0.7:7471", "10.0.0.8:80"].map(|text| text.parse().expect("an address"));
        let noted = Noted::default();
        let name = |address| match address {
            SocketAddr::V4(address) => Name::V4(address),
            SocketAddr::V6(address) => Name::V6(address),
        };
        for (to, reuse, family_only) in [(Some(remote), true, false), (None, false, true)] {
            let refused =
                claim(&noted, Space::Tcp, &name(local), to.map(name).as_ref(), (reuse, family_only));
            assert_eq!(refused.err(), Some(Errno(libc::EADDRNOTAVAIL)));
            let expected = Claim { remote: to, reuse, family_only, ..Claim::new(Space::Tcp.number(), local) };
            assert_eq!(*crate::hub::locked(&noted.0), Some(expected));
        }
    }

    #[test]
    fn an_infiniband_address_names_the_port_space() {
        let all = 0xffff_ffff_ffff_0000;
        assert_eq!(Space::Ib.named_by(0x0106_0000, all), Some(Space::Tcp));
        assert_eq!(Space::Ib.named_by(0x013f_0000, all), Some(Space::Ib));
        assert_eq!(Space::Ib.named_by(0, 0), Some(Space::Ib), "none named: its own");
        assert_eq!(Space::Tcp.named_by(0x0111_0000, all), None);
        assert_eq!(Space::Udp.named_by(0x0111_1234, all), Some(Space::Udp));
    }
}
