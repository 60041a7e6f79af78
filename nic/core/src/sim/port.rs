//! A port in virtual time.

use super::World;
use super::network::Packet;
use crate::engine::{Departure, Engine, EngineConfig, IpHeader};
use crate::error::JoinError;
use crate::gid::NetInterface;
use crate::link::{LinkProfile, Now, collects};
use crate::port::{Act, Datapath, EventDesk, Io, Port, Readiness, generation, portable, train_buffer};
use crate::queue::{QpShared, Waiters, Work, WorkQueue, locked};
use crate::tally::{Capabilities, SocketCounters};
use qp::Mtu;
use qp::queue_pair::PostError;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use time::{Duration, Instant};

/// The largest number of packets in a train: as many as the kernel takes in one call on the network.
const MAX_PACKETS: u32 = 64;

/// A port's place in a simulation.
pub(super) struct SimIo {
    source_ports: Vec<u16>,
    /// Packets that wait for delivery by the simulation.
    pub(super) outbox: Vec<Packet>,
    /// Buffers for packets, lent by the simulation while it makes the port send.
    pub(super) spare: Vec<Vec<u8>>,
    /// Whether the simulation already knows that it has to check the port.
    pub(super) stirred: bool,
    /// Whether packets collect what the ports on their way say.
    asks: bool,
}

impl Io for SimIo {
    fn max_packets(&self) -> u32 {
        MAX_PACKETS
    }

    fn via(&self, port: u16) -> usize {
        self.source_ports.iter().position(|p| *p == port).unwrap_or(0)
    }

    fn send(&mut self, departure: &Departure, train: &[u8]) -> bool {
        for (index, packet) in train.chunks(departure.segment_size.max(1)).enumerate() {
            let ident = u16::try_from(index).unwrap_or(u16::MAX);
            let ip = IpHeader { ident, ..departure.ip };
            let buffer = self.spare.pop().unwrap_or_default();
            let asks = self.asks && collects(packet);
            let packet = Packet::in_buffer(ip, packet, buffer);
            self.outbox.push(if asks { packet.with_telemetry() } else { packet });
        }
        true
    }

    /// The engine's own table lists the members.
    fn join(&mut self, _: IpAddr) -> Result<(), JoinError> {
        Ok(())
    }

    fn leave(&mut self, _: IpAddr) {}
}

/// Everything behind the lock.
pub(super) struct State {
    pub(super) datapath: Datapath,
    pub(super) io: SimIo,
}

impl State {
    /// Sends what is due, up to the limit of a turn. Returns the number of trains.
    pub(super) fn transmit(&mut self, world: &World) -> u32 {
        let now = world.now();
        let mut train = locked(&world.train);
        // A device that panicked may have kept it.
        if train.is_empty() {
            *train = train_buffer();
        }
        self.datapath.lend(&mut train);
        let count = self.datapath.transmit(now, &mut self.io);
        self.datapath.lend(&mut train);
        count
    }
}

/// A port in virtual time. The simulation drives it; no thread does.
pub struct SimPort {
    world: Arc<World>,
    site: usize,
    address: IpAddr,
    active_mtu: Mtu,
    state: Mutex<State>,
    /// Whether a panic left the engine half changed. Changed under the lock.
    wrecked: AtomicBool,
    events: EventDesk,
    generation: u32,
}

impl SimPort {
    /// A port of device number `site` of a simulation.
    pub(super) fn new(config: EngineConfig, world: Arc<World>, site: usize) -> Arc<Self> {
        // Captures of a simulation start at the epoch: equal runs produce equal files.
        let clocks = Now { instant: world.now(), wall: world.elapsed() };
        let source_ports = config.source_ports.clone();
        let (address, active_mtu) = (config.address, config.active_mtu);
        let datapath = Datapath::without_socket(Engine::new(config), clocks);
        let asks = datapath.engine.uses_telemetry();
        let io = SimIo { source_ports, outbox: Vec::new(), spare: Vec::new(), stirred: false, asks };
        Arc::new(Self {
            world,
            site,
            address,
            active_mtu,
            state: Mutex::new(State { datapath, io }),
            wrecked: AtomicBool::new(false),
            events: EventDesk::default(),
            generation: generation(),
        })
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(super) fn set_link(&self, profile: &LinkProfile, seed: u64) {
        self.lock().datapath.set_link(profile, self.world.now(), seed);
    }

    /// The simulation.
    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The number of its device.
    pub(super) fn site(&self) -> usize {
        self.site
    }

    /// Runs `act` on everything behind the lock: for the simulation, which checks the outcome afterwards.
    pub(super) fn visit<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = act(&mut state);
        self.release(state);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = PoisonError::into_inner(poisoned);
            self.give_up(&mut state);
            state
        })
    }

    /// Takes the lock, and notifies the simulation that the device needs attention: it checks only devices that it was
    /// notified of. The check waits for the lock, and so does virtual time, however long it is held.
    fn stirred(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.io.stirred, true) {
            self.world.stir(self.site);
        }
        state
    }

    fn release(&self, mut state: MutexGuard<'_, State>) {
        // An empty list allocates no memory.
        let mut woken = Vec::new();
        self.events.tell(&mut state.datapath, || self.world.now(), &mut woken);
        // Wakers run the program's code, which must not find the lock taken.
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    #[cold]
    fn give_up(&self, state: &mut State) {
        if !state.datapath.is_wrecked() {
            tracing::error!(address = %self.address, "the device fails: a panic may have left it half changed");
            state.datapath.give_up();
            self.wrecked.store(true, Ordering::Release);
        }
    }
}

impl Port for SimPort {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    fn is_wrecked(&self) -> bool {
        self.wrecked.load(Ordering::Acquire)
    }

    fn fail_after_panic(&self) {
        if self.is_ours() {
            let mut state = self.lock();
            self.give_up(&mut state);
            self.release(state);
        }
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn clock(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        let world = Arc::clone(&self.world);
        Box::new(move || u64::try_from(world.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn sim(&self) -> Option<&SimPort> {
        Some(self)
    }

    fn active_mtu(&self) -> Mtu {
        self.active_mtu
    }

    fn interface(&self) -> Option<NetInterface> {
        None
    }

    fn look_at_host(&self) {}

    fn socket_counters(&self) -> Option<SocketCounters> {
        None
    }

    fn capabilities(&self) -> Option<Capabilities> {
        None
    }

    fn control_datapath(&self, act: Act<'_>) {
        let mut state = self.stirred();
        let State { datapath, io } = &mut *state;
        act(datapath, io);
        state.transmit(&self.world);
        self.release(state);
    }

    /// The simulation need not look at the port: a look tells it what room its NIC has, and it might send earlier.
    fn look_at_datapath(&self, act: Act<'_>) {
        let mut state = self.lock();
        let State { datapath, io } = &mut *state;
        act(datapath, io);
    }

    fn visit_datapath(&self, act: Act<'_>) {
        let mut state = self.stirred();
        let State { datapath, io } = &mut *state;
        act(datapath, io);
        self.release(state);
    }

    fn post_list(
        &self,
        qp: &QpShared,
        queue: WorkQueue,
        works: &mut dyn Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        let mut state = self.stirred();
        let engine = &mut state.datapath.engine;
        let result = engine.post_list(qp.config.qpn, works);
        // The first request of a burst leaves immediately; those behind it form trains while it is in flight. A receive
        // causes no transmission.
        if queue == WorkQueue::Send && engine.is_urgent(qp.config.qpn, || self.world.now()) {
            state.transmit(&self.world);
        }
        self.release(state);
        result
    }

    fn progress(&self) -> bool {
        false
    }

    fn hand_over(&self) {}

    fn wait_until(&self, deadline: Instant, is_ready: &mut dyn FnMut() -> bool) {
        while !is_ready() {
            if self.world.now() >= deadline || !self.world.step_until(deadline) {
                is_ready();
                return;
            }
        }
    }

    fn event_waiters(&self) -> &Waiters {
        &self.events.waiters
    }

    fn event_flag(&self) -> io::Result<Arc<dyn Readiness>> {
        match self.events.flag() {
            Some(flag) => Ok(flag),
            None => {
                let flag = self.new_flag()?;
                Ok(self.visit(|state| self.events.begin(&state.datapath, flag)))
            }
        }
    }

    fn new_flag(&self) -> io::Result<Box<dyn Readiness>> {
        portable()
    }

    fn sleep(&self, _: &dyn Readiness, _: Duration) {}

    fn serve(&self) -> io::Result<()> {
        Ok(())
    }

    /// A simulation ends with its process.
    fn tell_peers_at_end(&self) {}

    fn flush(&self) {
        let mut state = self.lock();
        while state.transmit(&self.world) > 0 {}
        let packets = std::mem::take(&mut state.io.outbox);
        self.release(state);
        // The lock of the world comes before those of ports.
        self.world.send(self.site, packets);
    }

    fn close(&self) {}

    fn has_joined(&self) {}
}
