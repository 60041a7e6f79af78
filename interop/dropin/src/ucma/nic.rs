//! The devices of the process, with their connection managers, and the choice among them by address.

use super::name::Name;
use crate::devices::{config, desk};
use crate::errno::Errno;
use crate::hub::{Hub, locked};
use rnic::Gid;
use rnic::cm::protocol::Event;
use rnic::cm::{EventSink, Manager};
use rnic::process::HostAddress;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// A device that connections use. It stays open until the process ends, as the kernel's device does: a program may make a
/// connection, close everything, and make the next one from the same address.
pub(super) struct Nic {
    pub(super) index: usize,
    pub(super) hub: Arc<Hub>,
    pub(super) manager: Manager,
}

impl Nic {
    pub(super) fn ip(&self) -> IpAddr {
        self.hub.device.address()
    }

    pub(super) fn gid(&self) -> Gid {
        Gid::from(self.ip())
    }

    /// Its GUID, as the kernel has it: in network byte order.
    pub(super) fn guid(&self) -> u64 {
        u64::from_ne_bytes(self.hub.named.guid)
    }
}

/// What a device tells.
pub(super) enum News {
    Event(Event),
    /// It has failed, and tells nothing more.
    Failed,
}

/// Receives the news of the device with this index.
struct Receiver<S>(usize, S);

impl<S: Fn(usize, News) + Send> EventSink for Receiver<S> {
    fn take(&mut self, event: Event, _: &mut Vec<Waker>) {
        (self.1)(self.0, News::Event(event));
    }

    fn device_failed(&mut self) {
        (self.1)(self.0, News::Failed);
    }
}

/// The devices that were opened so far.
#[derive(Default)]
pub(super) struct Nics {
    /// Taken by those who open one, before the lock of a port. No receiver of events takes it.
    opening: Mutex<()>,
    open: Mutex<Vec<Arc<Nic>>>,
}

impl Nics {
    /// A device that was opened.
    pub(super) fn get(&self, index: usize) -> Result<Arc<Nic>, Errno> {
        let open = locked(&self.open);
        open.iter().find(|nic| nic.index == index).cloned().ok_or(Errno(libc::ENODEV))
    }

    /// All devices. Those that are not open yet are opened; one that may choose its address prefers `preferred`. Their news
    /// go to `sink`. A device that cannot be opened has printed why.
    pub(super) fn all(
        &self,
        preferred: &[HostAddress],
        sink: impl Fn(usize, News) + Send + Clone + 'static,
    ) -> Vec<Arc<Nic>> {
        let count = config().map_or(0, |config| config.devices.len());
        for index in 0..count {
            if self.get(index).is_err() {
                let _ = self.open(index, preferred, sink.clone());
            }
        }
        locked(&self.open).clone()
    }

    fn open(
        &self,
        index: usize,
        preferred: &[HostAddress],
        sink: impl Fn(usize, News) + Send + 'static,
    ) -> Result<(), Errno> {
        let _opening = locked(&self.opening);
        if self.get(index).is_ok() {
            return Ok(());
        }
        let hub = Hub::open_near(index, preferred)?;
        let manager = hub.device.connection_manager()?;
        manager.set_sink(Receiver(index, sink))?;
        let mut open = locked(&self.open);
        open.push(Arc::new(Nic { index, hub, manager }));
        open.sort_by_key(|nic| nic.index);
        Ok(())
    }
}

/// The device at exactly this address.
pub(super) fn at(nics: &[Arc<Nic>], ip: IpAddr) -> Option<Arc<Nic>> {
    nics.iter().find(|nic| nic.ip().to_canonical() == ip.to_canonical()).cloned()
}

/// The UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// The address from which this host sends to `to`, with its own choice or from `from`. Nothing is sent.
fn source(from: IpAddr, to: &Name) -> std::io::Result<IpAddr> {
    if let Some(desk) = desk() {
        // The routes are those of the daemon's host.
        let to = SocketAddr::new(to.ip().to_canonical(), ROCE_PORT);
        return desk.route(Some(from).filter(|ip| !ip.is_unspecified()), to).map_err(std::io::Error::from);
    }
    let scope = to.scope_id();
    let address = |ip, port| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    let socket = UdpSocket::bind(address(from, 0))?;
    // The port does not matter to the route, but 0 is no destination.
    socket.connect(address(to.ip().to_canonical(), ROCE_PORT))?;
    Ok(socket.local_addr()?.ip())
}

/// The address from which this host sends to `to`, by its routing table.
pub(super) fn routed(to: &Name) -> std::io::Result<IpAddr> {
    let any = match to.ip().to_canonical() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    source(any, to)
}

/// Where a device that may choose its address should be to reach `to`: at the address from which the host sends there. That
/// of a loopback address is itself, which is the peer's, whether the peer has begun already or not: the addresses after it
/// are for programs that connect to it.
pub(super) fn near(to: &Name, routed: IpAddr) -> Vec<HostAddress> {
    /// As many as programs of one host are likely to need.
    const TRIED: u32 = 64;
    match routed {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let first = u32::from(Ipv4Addr::LOCALHOST);
            let all = (first..first + TRIED).map(|ip| IpAddr::from(Ipv4Addr::from(ip)));
            all.filter(|ip| *ip != to.ip().to_canonical()).map(HostAddress::from).collect()
        }
        ip => vec![HostAddress { ip, scope_id: to.scope_id() }],
    }
}

/// The device that reaches `to`: the one at the address from which the host itself would send there, else the first from
/// whose address the host can.
pub(super) fn toward(nics: &[Arc<Nic>], to: &Name, routed: IpAddr) -> Result<Arc<Nic>, Errno> {
    if let Some(nic) = at(nics, routed) {
        return Ok(nic);
    }
    let is_v4 = to.ip().to_canonical().is_ipv4();
    let reaches = |nic: &&Arc<Nic>| nic.ip().is_ipv4() == is_v4 && source(nic.ip(), to).is_ok();
    nics.iter().find(reaches).cloned().ok_or_else(|| nowhere(nics, to, routed))
}

fn nowhere(nics: &[Arc<Nic>], to: &Name, routed: IpAddr) -> Errno {
    let own: Vec<_> = nics.iter().map(|nic| format!("{} at {}", nic.hub.named.name, nic.ip())).collect();
    let (own, to) = (own.join(", "), to.ip());
    let errno = Errno(libc::ENODEV);
    if nics.is_empty() {
        return errno.because(format_args!("no device can send to {to}, because none could be opened"));
    }
    if to.is_loopback() {
        errno.because(format_args!("{to} is a loopback address, which is another host's on each host; {own} cannot reach it: connect to the peer's own address"))
    } else {
        errno.because(format_args!("no device can send to {to}: there is {own}; `rnic run --addr {routed}` gives the device the address that routes there"))
    }
}

/// Whether an address belongs to this host.
pub(super) fn is_of_host(name: &Name) -> bool {
    let address = match name.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, name.scope_id()).into(),
    };
    UdpSocket::bind(address).is_ok()
}
