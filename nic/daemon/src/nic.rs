//! A shared address: its sockets, its slots, the daemon's own device at slot 0, and the way of datagrams of queue pair 1 to
//! programs.

use crate::programs::{Programs, Sums, add};
use crate::slots::{Given, Kept, Slots};
use cm::{Connected, Recipient, ServiceId};
use dashmap::DashMap;
use qp::wire::IpHeader;
use qp::wire::mad::MAD_LEN;
use rnic::cc::Rate;
use rnic::cm::Manager;
use rnic::daemon::protocol::{Address, Attached, ConnectedWith, Datagram, Host, Refusal, Reply};
use rnic::net::{BindError, HostState, HostWatch, MOST_SLOTS, SharedAddress, SlotSockets};
use rnic::process::HostAddress;
use rnic::{Device, DeviceConfig, PortAttr};
use rnic_core::engine::Router;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, watch};

/// What is to be sent to a program: a message, with descriptors.
pub(crate) type Outgoing = (Reply, Vec<OwnedFd>);

/// Where datagrams go, and who is known. The daemon's engine reads it while it drives its port, the tasks of programs
/// change it.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The slots that listen for a service, the first of which gets its requests.
    services: DashMap<u64, Vec<u8>>,
    lines: DashMap<u8, mpsc::Sender<Outgoing>>,
    /// How many connections there are with an address.
    peers: DashMap<IpAddr, u32>,
    /// Datagrams that a program had no room for.
    pub(crate) lost: AtomicU64,
}

impl Routes {
    /// Passes a datagram on; false if no program has the slot.
    fn pass_on(&self, slot: u8, datagram: Datagram) -> bool {
        let Some(line) = self.lines.get(&slot) else { return false };
        if line.try_send((Reply::Datagram(datagram), Vec::new())).is_err() {
            // As a full socket: the peer repeats its message.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn listens(&self, service: u64, slot: u8) {
        let mut slots = self.services.entry(service).or_default();
        if !slots.contains(&slot) {
            slots.push(slot);
        }
    }

    pub(crate) fn is_silent(&self, service: u64, slot: u8) {
        if let Some(mut slots) = self.services.get_mut(&service) {
            slots.retain(|of| *of != slot);
        }
        self.services.remove_if(&service, |_, slots| slots.is_empty());
    }

    /// Whether nobody listens, is connected or reads a line.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.lines.is_empty() && self.peers.is_empty()
    }

    pub(crate) fn is_connected(&self, peer: IpAddr) {
        *self.peers.entry(peer).or_default() += 1;
    }

    pub(crate) fn has_ended(&self, peer: IpAddr) {
        if let Some(mut count) = self.peers.get_mut(&peer) {
            *count = count.saturating_sub(1);
        }
        self.peers.remove_if(&peer, |_, count| *count == 0);
    }
}

/// The routes, as the engine sees them.
struct ByRoutes(Arc<Routes>);

impl Router for ByRoutes {
    fn route(&mut self, arrival: &IpHeader, mad: &[u8; MAD_LEN], recipient: Recipient) -> bool {
        let routes = &self.0;
        let IpHeader { src, src_port, dst, .. } = *arrival;
        let datagram = || Datagram { from: src, port: src_port, to: dst, mad: mad.to_vec() };
        match recipient {
            Recipient::Service(service) => {
                let first = routes.services.get(&service.0).and_then(|slots| slots.first().copied());
                first.is_some_and(|slot| routes.pass_on(slot, datagram()))
            }
            Recipient::Holder(id) => routes.pass_on(id.0.to_be_bytes()[0], datagram()),
            Recipient::Anyone => {
                let slots: Vec<u8> = routes.lines.iter().map(|line| *line.key()).collect();
                slots.iter().filter(|slot| routes.pass_on(**slot, datagram())).count() > 0
            }
        }
    }

    fn knows(&self, from: IpAddr) -> bool {
        self.0.peers.contains_key(&from)
    }
}

/// The sockets and slots of an address, which change together.
struct Group {
    sockets: SharedAddress,
    slots: Slots,
}

/// A shared address.
pub(crate) struct Nic {
    pub(crate) address: HostAddress,
    /// Its configuration, for programs.
    config: String,
    group: Mutex<Group>,
    pub(crate) routes: Arc<Routes>,
    rate: Option<Rate>,
    device: Device,
    _manager: Manager,
    watch: Mutex<Option<HostWatch>>,
    pub(crate) host: watch::Sender<Host>,
    programs: Mutex<Programs>,
}

impl Nic {
    /// Takes an address, or takes it over from an earlier daemon.
    ///
    /// # Errors
    /// Those of opening a device.
    pub(crate) fn open(
        address: HostAddress,
        device: &DeviceConfig,
        config: String,
        earlier: Option<(Vec<OwnedFd>, Vec<Kept>)>,
    ) -> rnic::Result<Self> {
        let device = DeviceConfig { address: Some(address), ..device.clone() };
        let (sockets, mut slots) = match earlier {
            Some((members, kept)) => {
                (SharedAddress::adopt(&device.sockets(), members)?, Slots::awaited(&kept, Instant::now()))
            }
            None => (SharedAddress::bind(&device.sockets())?, Slots::default()),
        };
        let share = slots.own();
        while slots.len() < sockets.slots() {
            slots.grow();
        }
        let opened = device.open_shared("rnic0", sockets.hand_out(0)?, share)?;
        let manager = opened.connection_manager()?;
        // Nothing is told: connections here are those of programs that have ended.
        manager.set_sink(|_| {})?;
        let routes = Arc::<Routes>::default();
        let router = Box::new(ByRoutes(Arc::clone(&routes)));
        rnic_core::port::of(&opened).control(|engine| engine.set_router(router));
        let watch = HostWatch::new(address.ip, address.scope_id).inspect_err(|error| {
            tracing::warn!(%error, %address, "links and addresses cannot be watched");
        });
        let watch = watch.ok();
        let host = host_of(watch.as_ref().map(HostWatch::state));
        Ok(Self {
            address,
            config,
            group: Mutex::new(Group { sockets, slots }),
            routes,
            rate: device.link.rate,
            device: opened,
            _manager: manager,
            watch: Mutex::new(watch),
            host: watch::Sender::new(host),
            programs: Mutex::default(),
        })
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address, for programs.
    pub(crate) fn shared(&self) -> Address {
        Address { ip: self.address.ip, scope_id: self.address.scope_id }
    }

    /// The programs that have slots, and what they publish.
    pub(crate) fn programs(&self) -> MutexGuard<'_, Programs> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums of the counters of all programs, and of the daemon's own device.
    pub(crate) fn totals(&self) -> Sums {
        let mut totals = self.programs().totals();
        add(&mut totals, &self.device.counters().iter().collect());
        totals
    }

    /// The attributes of the port.
    pub(crate) fn port_attr(&self) -> PortAttr {
        self.device.port_attr()
    }

    /// The rate of the emulated link, if there is one.
    pub(crate) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// How many slots a user has here.
    pub(crate) fn slots_of(&self, uid: u32) -> usize {
        self.group().slots.of_user(uid)
    }

    /// Gives a slot to a program.
    pub(crate) fn attach(&self, uid: u32) -> Result<(Attached, SlotSockets), Refusal> {
        let mut group = self.group();
        let now = Instant::now();
        let may_grow = group.sockets.slots() < MOST_SLOTS;
        let slot = match group.slots.free(now, may_grow) {
            Some(slot) => slot,
            None if may_grow => {
                let slot = group.sockets.grow().map_err(refusal)?;
                group.slots.grow();
                u8::try_from(slot).map_err(|_| Refusal::NoSlot)?
            }
            None => return Err(Refusal::NoSlot),
        };
        group.sockets.drain(usize::from(slot));
        let sockets = group.sockets.hand_out(usize::from(slot)).map_err(refusal)?;
        let Given { slot, token, share } = group.slots.give(slot, uid).ok_or(Refusal::NoSlot)?;
        let attached = Attached {
            address: self.shared(),
            slot,
            token,
            rounds: share.rounds,
            first: share.first,
            offers: sockets.capabilities.into(),
            host: self.host.borrow().clone(),
            config: self.config.clone(),
        };
        Ok((attached, sockets))
    }

    /// A program is back.
    pub(crate) fn resume(&self, slot: u8, token: u128, uid: u32) -> Result<(), Refusal> {
        self.group().slots.resume(slot, token, uid).ok_or(Refusal::SlotLost)
    }

    /// A program listens for a service. Requests that came a moment before are for it.
    pub(crate) fn listens(&self, service: u64, slot: u8) {
        self.routes.listens(service, slot);
        let held = rnic_core::port::of(&self.device).control(|engine| engine.take_held(ServiceId(service)));
        for (from, to, mad) in held {
            self.routes.pass_on(slot, Datagram { from, port: 0, to, mad: mad.to_vec() });
        }
    }

    /// A program reads its line from now on.
    pub(crate) fn connect_line(&self, slot: u8, line: mpsc::Sender<Outgoing>) {
        self.routes.lines.insert(slot, line);
    }

    /// A program is gone: its peers are told, and its slot becomes free.
    pub(crate) fn detach(&self, slot: u8, services: &[u64], connections: &[ConnectedWith]) {
        self.routes.lines.remove(&slot);
        services.iter().for_each(|service| self.routes.is_silent(*service, slot));
        let port = rnic_core::port::of(&self.device);
        for connection in connections {
            self.routes.has_ended(connection.peer());
            let (now, connected) = (port.now(), Connected::from(*connection));
            let closed = port.control(|engine| engine.close_for(now, &connected));
            if let Err(error) = closed {
                tracing::warn!(%error, peer = %connection.peer(), "a peer is not told that its connection is gone");
            }
        }
        self.programs().end(slot);
        self.group().slots.free_up(slot, Instant::now());
    }

    /// Attaches the program again that steers packets to slots: any member of the group could have detached it.
    pub(crate) fn steer(&self) {
        if let Err(error) = self.group().sockets.steer() {
            tracing::error!(%error, address = %self.address, "packets are not steered to slots");
        }
    }

    /// A socket of a multicast group.
    pub(crate) fn join(&self, of: IpAddr) -> Result<OwnedFd, Refusal> {
        let joined = self.group().sockets.join(of);
        joined.map_err(|error| Refusal::Sockets(error.to_string()))
    }

    /// Duplicates of the receiving sockets from slot `from` on, for the keeper.
    pub(crate) fn members(&self, from: usize) -> std::io::Result<Vec<OwnedFd>> {
        let group = self.group();
        let members = (from..group.sockets.slots()).filter_map(|slot| group.sockets.member(slot));
        members.map(|member| member.try_clone_to_owned()).collect()
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.group().sockets.slots()
    }

    /// What is kept of the slots while no daemon runs.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        self.group().slots.kept()
    }

    /// The descriptor that is readable when the host may have changed.
    pub(crate) fn watch_fd(&self) -> Option<OwnedFd> {
        use std::os::fd::AsFd;
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// Takes in what changed on the host, and tells the programs.
    pub(crate) fn look_at_host(&self) -> std::io::Result<()> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watch) = watch.as_mut() else { return Ok(()) };
        watch.look(|state| {
            let host = host_of(Some(state));
            tracing::info!(address = %self.address, up = host.link, there = host.address, mtu = ?host.mtu, "the host has changed");
            self.host.send_replace(host);
        })
    }
}

fn refusal(error: BindError) -> Refusal {
    match error {
        BindError::NoSlot { .. } => Refusal::NoSlot,
        other => Refusal::Sockets(other.to_string()),
    }
}

fn host_of(state: Option<HostState>) -> Host {
    let Some(state) = state else {
        return Host { address: true, link: true, mtu: None, interface: None };
    };
    let name =
        |index| nix::net::if_::if_indextoname(index).ok().map(|name| name.to_string_lossy().into_owned());
    let interface = state.interface.and_then(|index| Some((index, name(index)?)));
    Host { address: state.address, link: state.link, mtu: state.mtu, interface }
}
