//! Addresses: bind, resolve, listen.

use super::abi;
use super::abi::event;
use super::name::Name;
use super::nic::{self, Nic};
use super::pipe::PipeId;
use super::service::{Space, claim};
use super::state::{Remains, Stage, State};
use super::{Ucma, refused};
use crate::errno::Errno;
use crate::hub::locked;
use rnic::cm::Binding;
use rnic::cm::protocol::{Listen, Path};
use rnic::process::{HostAddress, resolve};
use rnic::{Gid, QpType};
use std::net::IpAddr;
use std::sync::Arc;

/// What the kernel takes for a backlog that is 0, negative, or larger.
const BACKLOG: u32 = 1024;

/// The device of an address, if it is that of one.
type Place = Option<Arc<Nic>>;

impl Ucma {
    pub(super) fn bind_ip(&'static self, channel: PipeId, command: &abi::BindIp) -> Result<(), Errno> {
        self.bind(channel, command.id, &name(&command.addr)?)
    }

    pub(super) fn bind_any_family(&'static self, channel: PipeId, command: &abi::Bind) -> Result<(), Errno> {
        let name = sized_name(&command.addr, command.addr_size)?.ok_or(Errno::INVALID)?;
        self.bind(channel, command.id, &name)
    }

    fn bind(&'static self, channel: PipeId, id: u32, name: &Name) -> Result<(), Errno> {
        let space = locked(&self.state).in_stage(channel, id, Stage::Idle)?.space;
        let place = self.place(name)?;
        if place.is_some() {
            suits_ethernet(space)?;
        }
        let mut state = locked(&self.state);
        state.in_stage(channel, id, Stage::Idle)?;
        state.bind(id, *name, None, place.as_ref())
    }

    /// The device that has a local address. The unspecified address stands for all devices, and so does a loopback address
    /// that no device has, as in the kernel.
    fn place(&'static self, name: &Name) -> Result<Place, Errno> {
        if name.is_any() {
            return Ok(None);
        }
        let ip = match name {
            // Aliases stand for addresses.
            Name::Ib(_) => resolve(Gid::from(name.ip())).ip(),
            _ => name.ip(),
        };
        let nics = self.nics(&[HostAddress { ip, scope_id: name.scope_id() }]);
        if let Some(nic) = nic::at(&nics, ip) {
            return Ok(Some(nic));
        }
        if name.means_any() {
            return Ok(None);
        }
        if !nic::is_of_host(name) {
            return Err(
                Errno(libc::EADDRNOTAVAIL).because(format_args!("{ip} is not an address of this host"))
            );
        }
        let text = format_args!("no device is at {ip}: `rnic run --addr {ip}` puts it there");
        Err(Errno(libc::ENODEV).because(text))
    }

    pub(super) fn resolve_ip(&'static self, channel: PipeId, command: &abi::ResolveIp) -> Result<(), Errno> {
        let src = Name::read(&command.src);
        self.resolve(channel, command.id, src, name(&command.dst)?)
    }

    pub(super) fn resolve_address(
        &'static self,
        channel: PipeId,
        command: &abi::ResolveAddr,
    ) -> Result<(), Errno> {
        let src = match command.src_size {
            0 => None,
            size => sized_name(&command.src, size)?,
        };
        let dst = sized_name(&command.dst, command.dst_size)?.ok_or(Errno::INVALID)?;
        self.resolve(channel, command.id, src, dst)
    }

    fn resolve(&'static self, channel: PipeId, id: u32, src: Option<Name>, dst: Name) -> Result<(), Errno> {
        let (stage, bound, space) = {
            let mut state = locked(&self.state);
            let id = state.id(channel, id)?;
            (id.stage, id.src, id.space)
        };
        // The address of this side: that which the identifier is bound to, else the one that the call names.
        let own = match stage {
            Stage::Idle => src.unwrap_or_else(|| dst.any()),
            Stage::Bound => bound.ok_or(Errno::INVALID)?,
            _ => return Err(Errno::INVALID.because("the identifier has an address already")),
        };
        if !own.same_family(&dst) {
            return Err(Errno::INVALID.because("the two addresses are of different families"));
        }
        let place = self.place(&own)?;
        let found = match place {
            Some(nic) => Ok(nic),
            None => self.toward(&dst),
        };
        let found = suits_ethernet(space).and(found);
        let mut state = locked(&self.state);
        if stage == Stage::Idle {
            state.in_stage(channel, id, Stage::Idle)?;
            state.bind(id, own, Some(&dst), None)?;
        } else {
            state.in_stage(channel, id, Stage::Bound)?;
        }
        state.resolved(id, dst, found)
    }

    /// The device from which `dst` is reached.
    fn toward(&'static self, dst: &Name) -> Result<Arc<Nic>, Errno> {
        if dst.is_any() {
            // This host itself: any device that is of the same family.
            let nics = self.nics(&[]);
            let same =
                |nic: &&Arc<Nic>| matches!(dst, Name::Ib(_)) || nic.ip().is_ipv4() == dst.ip().is_ipv4();
            return nics.iter().find(same).cloned().ok_or(Errno(libc::ENODEV));
        }
        let routed = nic::routed(dst)?;
        let nics = self.nics(&nic::near(dst, routed));
        nic::toward(&nics, dst, routed)
    }

    pub(super) fn resolve_route(&self, channel: PipeId, command: &abi::ResolveRoute) -> Result<(), Errno> {
        let (device, src, dst, options) = {
            let mut state = locked(&self.state);
            let id = state.in_stage(channel, command.id, Stage::AddressResolved)?;
            let known = (id.device, id.src, id.dst);
            let (Some(device), Some(src), Some(dst)) = known else { return Err(Errno::INVALID) };
            (device, src, dst, id.options)
        };
        let nic = self.nics.get(device)?;
        let remote = resolve(Gid::from(dst.ip()));
        let mut path = Path::new(nic.gid(), remote, nic.hub.device.port_attr().active_mtu);
        path.to.flow_label = match dst {
            Name::V6(name) if name.flowinfo() & 0xf_ffff != 0 => name.flowinfo() & 0xf_ffff,
            _ => Path::flow_label(src.port(), dst.port()),
        };
        path.to.traffic_class = options.tos;
        let mut state = locked(&self.state);
        let id = state.in_stage(channel, command.id, Stage::AddressResolved)?;
        (id.path, id.stage) = (Some(path), Stage::RouteResolved);
        state.tell(command.id, event::ROUTE_RESOLVED, 0);
        Ok(())
    }

    pub(super) fn listen(&'static self, channel: PipeId, command: &abi::Listen) -> Result<(), Errno> {
        let (listen, devices) = locked(&self.state).begin_listening(channel, command)?;
        let nics = match devices {
            Devices::One(device) => vec![self.nics.get(device)?],
            Devices::All | Devices::Of(_) => self.nics(&[]),
        };
        if nics.is_empty() {
            locked(&self.state).stop_listening(command.id);
            return Err(Errno(libc::ENODEV));
        }
        // Programs listen twice at a port: for IPv4, and for IPv6 only.
        for nic in nics.iter().filter(|nic| devices.include(nic.ip())) {
            let listened = nic.manager.call(|endpoint, now| {
                let listener = endpoint.listen(now, &listen).map_err(refused)?;
                let mut state = locked(&self.state);
                let key = (nic.index, listener);
                if let Some(id) = state.ids.get_mut(&command.id).filter(|id| id.stage == Stage::Listening) {
                    id.listeners.push(key);
                    state.listeners.insert(key, command.id);
                }
                Ok(())
            });
            if let Err(errno) = listened.map_err(Errno::from).flatten() {
                let listeners = locked(&self.state).stop_listening(command.id);
                self.close(&Remains { links: Vec::new(), listeners });
                return Err(errno);
            }
        }
        Ok(())
    }
}

/// Whether there are devices for a port space: those of rnic are on Ethernet (`cma_acquire_dev_by_src_ip` of Linux).
fn suits_ethernet(space: Space) -> Result<(), Errno> {
    if space == Space::IpOverIb {
        return Err(Errno::INVALID.because("RDMA_PS_IPOIB is for InfiniBand; RDMA_PS_UDP is for RoCE"));
    }
    Ok(())
}

impl State {
    fn in_stage(&mut self, channel: PipeId, id: u32, stage: Stage) -> Result<&mut super::state::Id, Errno> {
        let id = self.id(channel, id)?;
        if id.stage == stage {
            return Ok(id);
        }
        let text = format_args!("the identifier is in the state {:?}; the call needs {stage:?}", id.stage);
        Err(Errno::INVALID.because(text))
    }

    /// Binds an identifier to an address: it gets a port, and the device of the address.
    fn bind(
        &mut self,
        number: u32,
        mut name: Name,
        remote: Option<&Name>,
        place: Option<&Arc<Nic>>,
    ) -> Result<(), Errno> {
        let Self { ids, ports, .. } = self;
        let id = ids.get_mut(&number).ok_or(Errno(libc::ENOENT))?;
        id.src = Some(name);
        let sharing = (id.options.reuse, id.only_family());
        let space = match &name {
            Name::Ib(ib) => {
                let (sid, mask) = (u64::from_be(ib.sid), u64::from_be(ib.sid_mask));
                id.space.named_by(sid, mask)
            }
            _ => Some(id.space),
        };
        let granted = space.ok_or(Errno(libc::EPROTONOSUPPORT)).and_then(|space| {
            let granted = claim(&**ports, space, &name, remote, sharing)?;
            Ok((space, granted))
        });
        let (space, Binding { port, .. }) = match granted {
            Ok((space, binding)) => {
                id.port = Some(binding);
                (space, binding)
            }
            Err(errno) => {
                id.src = None;
                return Err(errno);
            }
        };
        name.set_port(port);
        if let Name::Ib(ib) = &mut name {
            ib.sid = space.service(port).0.to_be();
        }
        (id.src, id.space, id.stage) = (Some(name), space, Stage::Bound);
        id.device = place.map(|nic| nic.index);
        Ok(())
    }

    /// The address of a peer was resolved, or there is no way to it.
    fn resolved(&mut self, number: u32, dst: Name, found: Result<Arc<Nic>, Errno>) -> Result<(), Errno> {
        let id = self.ids.get_mut(&number).ok_or(Errno(libc::ENOENT))?;
        match found {
            Ok(nic) => {
                let at_device =
                    |src: Name| if src.means_any() { src.at(nic.ip(), dst.scope_id()) } else { src };
                id.src = id.src.map(at_device);
                // Any address of this host is that of the device.
                id.dst = Some(if dst.is_any() { dst.at(nic.ip(), 0) } else { dst });
                (id.device, id.stage) = (Some(nic.index), Stage::AddressResolved);
                self.tell(number, event::ADDR_RESOLVED, 0);
                Ok(())
            }
            // The kernel knows only after a while that no device has the address.
            Err(errno) if errno.0 == libc::ENODEV => {
                self.tell(number, event::ADDR_ERROR, -errno.0);
                crate::explain::failed("rdma_resolve_addr", errno, || None);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// An identifier begins to listen. Returns what it listens for, and where.
    fn begin_listening(
        &mut self,
        channel: PipeId,
        command: &abi::Listen,
    ) -> Result<(Listen, Devices), Errno> {
        if self.id(channel, command.id)?.stage == Stage::Idle {
            let any = Name::V4(std::net::SocketAddrV4::new([0; 4].into(), 0));
            self.bind(command.id, any, None, None)?;
        }
        self.in_stage(channel, command.id, Stage::Bound)?;
        let Self { ids, ports, .. } = self;
        let id = ids.get_mut(&command.id).ok_or(Errno(libc::ENOENT))?;
        let (Some(src), Some(port)) = (id.src, id.port) else { return Err(Errno::INVALID) };
        ports.listen(port)?;
        id.options.reuse = false;
        let backlog = command.backlog.cast_signed();
        let address = match src.ip() {
            _ if src.means_any() => None,
            ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => Some(resolve(Gid::from(ip))),
        };
        // Of an extended connection, the passive side is the one that receives.
        let qp_type = if id.qp_type == QpType::XrcSend { QpType::XrcRecv } else { id.qp_type };
        let listen = Listen {
            service_id: id.space.service(src.port()),
            address: address.filter(|_| id.device.is_some()),
            with_addresses: !matches!(src, Name::Ib(_)),
            qp_type,
            backlog: if (1..=BACKLOG.cast_signed()).contains(&backlog) { command.backlog } else { BACKLOG },
        };
        id.stage = Stage::Listening;
        let devices = match (id.device, src) {
            (Some(device), _) => Devices::One(device),
            (None, Name::V4(_) | Name::V6(_)) if id.only_family() => Devices::Of(src.ip()),
            (None, _) => Devices::All,
        };
        Ok((listen, devices))
    }

    /// It does not listen after all. Returns the listeners to be closed.
    fn stop_listening(&mut self, number: u32) -> Vec<(usize, rnic::cm::protocol::ListenerId)> {
        let Some(id) = self.ids.get_mut(&number) else { return Vec::new() };
        id.stage = Stage::Bound;
        let listeners = std::mem::take(&mut id.listeners);
        for listener in &listeners {
            self.listeners.remove(listener);
        }
        listeners
    }
}

/// The devices on which an identifier listens.
#[derive(Clone, Copy)]
enum Devices {
    One(usize),
    All,
    /// Those with addresses of the same family.
    Of(IpAddr),
}

impl Devices {
    const fn include(self, address: IpAddr) -> bool {
        match self {
            Self::One(_) | Self::All => true,
            Self::Of(like) => like.is_ipv4() == address.is_ipv4(),
        }
    }
}

/// The address in the field of a command, which has room for an IPv6 address.
fn name(bytes: &[u8]) -> Result<Name, Errno> {
    let name = Name::read(bytes).ok_or(Errno::INVALID)?;
    if name.len() <= bytes.len() { Ok(name) } else { Err(Errno::INVALID) }
}

/// An address with its length, which must be that of its family. `None`: of no family that there is.
fn sized_name(bytes: &[u8], size: u16) -> Result<Option<Name>, Errno> {
    match Name::read(bytes) {
        Some(name) if name.len() == usize::from(size) => Ok(Some(name)),
        None if size == 0 => Ok(None),
        _ => Err(Errno::INVALID),
    }
}
