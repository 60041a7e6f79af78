//! A port: one engine, what it sends and receives through, and who drives it.
//!
//! Progress is made by whoever waits. A program thread that polls drives the engine inline; a background thread does
//! it when nobody polls. The engine is taken by try-lock: who does not get it has a driver already. Work that was
//! posted meanwhile rings a doorbell, and whoever lets go of the engine looks for it first, so nothing is left
//! behind.

mod background;
mod courtesy;
mod exit;
mod fork;
mod groups;
mod handover;
mod host;
mod io;
mod lane;
#[cfg(test)]
mod model;
mod primitives;
mod published;
mod queue_pairs;
mod throttle;

pub(crate) use background::Background;
pub(crate) use exit::run_at_exit;
pub(crate) use fork::try_hold_forks;
pub use fork::{ForksHeld, hold_forks};
pub(crate) use fork::{close_file_in_child, generation};
pub(crate) use io::{Io, SimIo, SimPacket, UdpIo};
pub(crate) use lane::Lane;

use crate::engine::{Engine, EngineConfig, PortState, ResourceError};
use crate::error::Error;
use crate::link::{LinkProfile, Now};
use crate::net::HostWatch;
use crate::process::{Publication, QueuePairFile};
use crate::queue::{QpShared, Work, locked};
use crate::sim::World;
use crate::sync::{PiGuard, PiMutex};
use courtesy::Courtesy;
use handover::Bell;
use host::Host;
use nix::time::{ClockId, clock_gettime};
use qp::queue_pair::PostError;
use qp::{Gid, Mtu, Qpn};
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Misses of the lock in a row after which a poller waits for it. An endless spin of a thread with a real-time
/// priority would starve the holder; the lock lends the holder that priority.
const MISSES_BEFORE_WAITING: u32 = 64;

/// How often the lock is tried when the process exits. Threads that poll let go of it every few microseconds.
const TRIES_AT_EXIT: u32 = 1000;

/// Polls that each train which a turn moved counts for: one takes 20 us or more, so a program that does nothing but poll
/// moves only some tens of them in the time in which it would make thousands of empty polls.
const TRAIN_POLLS: u32 = 2;

/// What time it is for a port.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The time of day.
    Real,
    /// The time of a simulation.
    Virtual(Arc<World>),
}

impl Clock {
    /// The nanoseconds of the kernel's monotonic clock, or since the simulation began.
    pub(crate) fn nanos(&self) -> u64 {
        let now = match self {
            // The kernel has this clock since it boots.
            Self::Real => clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from),
            Self::Virtual(world) => world.elapsed(),
        };
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A port, shared by all objects of its device.
pub(crate) struct Port {
    /// Not dropped in a forked child, whose copies of the descriptors are closed already.
    lane: ManuallyDrop<PiMutex<Lane>>,
    doorbells: Mutex<Vec<Qpn>>,
    bell: Bell,
    /// Moves with every poll of a program thread.
    polls: AtomicU32,
    misses: AtomicU32,
    courtesy: Courtesy,
    pub(crate) clock: Clock,
    pub(crate) background: Option<Arc<Background>>,
    /// Its address.
    pub(crate) address: IpAddr,
    /// What it knows of the host, and what its program hears of.
    host: Host,
    /// Where its counters are published, if anywhere.
    publication: OnceLock<Publication>,
    /// Where its queue pairs are, if anywhere.
    queue_pairs: OnceLock<QueuePairFile>,
    generation: u32,
}

impl Port {
    /// `watch`: what tells of the host's link and address, if there is one; `mtu`: the largest path MTU to offer,
    /// whatever the link carries.
    pub(crate) fn new(
        config: EngineConfig,
        io: Io,
        clock: Clock,
        watch: Option<HostWatch>,
        mtu: Mtu,
    ) -> Arc<Self> {
        let background = matches!(clock, Clock::Real).then(|| Arc::new(Background::new()));
        if let Io::Udp(udp) = &io {
            fork::close_in_child(udp.raw_fds());
        }
        let clocks = match &clock {
            Clock::Real => Now {
                instant: Instant::now(),
                wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            },
            // Captures of a simulation start at the epoch: the same run gives the same file.
            Clock::Virtual(world) => Now { instant: world.now(), wall: world.elapsed() },
        };
        let active_mtu = config.active_mtu;
        let mut engine = Engine::new(config);
        if let Some(state) = watch.as_ref().map(HostWatch::state) {
            engine.begin_port_state(PortState { address: state.address, link: state.link });
        }
        let port = Arc::new(Self {
            address: engine.config().address,
            lane: ManuallyDrop::new(PiMutex::new(Lane::new(engine, io, clocks))),
            doorbells: Mutex::default(),
            bell: Bell::new(),
            polls: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            courtesy: Courtesy::new(),
            clock,
            background,
            host: Host::new(watch, active_mtu, mtu),
            publication: OnceLock::new(),
            queue_pairs: OnceLock::new(),
            generation: generation(),
        });
        if port.background.is_some() {
            exit::watch(&port);
        }
        port
    }

    /// Makes the port behave like that of `profile`, before anything arrives. Randomness follows from `seed`.
    pub(crate) fn set_link(&self, profile: &LinkProfile, seed: u64) {
        let now = self.now();
        self.lane.lock().set_link(profile, now, seed);
    }

    /// Whether this process opened the port. A forked child inherits the memory of its parent but not its place in
    /// the network.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// What time it is.
    pub(crate) fn now(&self) -> Instant {
        match &self.clock {
            Clock::Real => Instant::now(),
            Clock::Virtual(world) => world.now(),
        }
    }

    /// When `timeout` is over: in 136 years at the latest, because instants end somewhere.
    pub(crate) fn deadline(&self, timeout: Duration) -> Instant {
        let now = self.now();
        now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
    }

    /// Runs `change` on the engine, sends what that made ready and tells whoever waits.
    pub(crate) fn control<R>(&self, change: impl FnOnce(&mut Engine) -> R) -> R {
        self.control_lane(|lane| change(&mut lane.engine))
    }

    /// Runs `change` on everything behind the lock, as [`control`](Self::control).
    fn control_lane<R>(&self, change: impl FnOnce(&mut Lane) -> R) -> R {
        let mut lane = self.lane.lock();
        self.stir(&mut lane);
        // Whatever changes, what was posted before has its turn, and what was taken in is acknowledged: a queue pair that is
        // destroyed cannot do it later. A simulation gives turns itself.
        let rang = self.answer_doorbells(&mut lane);
        if matches!(self.clock, Clock::Real) && (rang || lane.has_work()) {
            lane.transmit(self.now());
        } else {
            lane.let_go(self.now());
        }
        let result = change(&mut lane);
        lane.transmit(self.now());
        self.release(lane);
        result
    }

    /// Attaches a queue pair to a multicast group.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        let (result, fd) = self.control_lane(|lane| (lane.attach_mcast(qpn, group), lane.io.groups_fd()));
        if let (Some(background), Some(fd)) = (&self.background, fd) {
            background.watch_groups(fd);
        }
        result
    }

    /// Detaches a queue pair from a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        self.control_lane(|lane| lane.detach_mcast(qpn, group))
    }

    /// Destroys a queue pair, detached from whatever groups it is attached to.
    pub(crate) fn discard_qp(&self, qpn: Qpn) {
        self.control_lane(|lane| {
            for group in lane.engine.groups_of(qpn) {
                // It is attached to each of them.
                let _ = lane.detach_mcast(qpn, group);
            }
            // The number is its own until now.
            let _ = lane.engine.destroy_qp(qpn);
        });
    }

    /// Looks at the engine without driving it. `None` in a forked child: the lock may be held there by a thread that
    /// does not exist.
    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&Engine) -> R) -> Option<R> {
        self.is_ours().then(|| self.with_lane(|lane| look(&lane.engine)))
    }

    /// Runs `act` on everything behind the lock: for a simulation, which looks afterwards at what came of it.
    pub(crate) fn visit<R>(&self, act: impl FnOnce(&mut Lane) -> R) -> R {
        let mut lane = self.lane.lock();
        let result = act(&mut lane);
        self.release(lane);
        result
    }

    /// Runs `act` on everything behind the lock: for drivers. Not in a forked child.
    pub(crate) fn with_lane<R>(&self, act: impl FnOnce(&mut Lane) -> R) -> R {
        let mut lane = self.lane.lock();
        self.stir(&mut lane);
        let result = act(&mut lane);
        self.release(lane);
        result
    }

    /// Posts a work request that has its place reserved in `qp`.
    pub(crate) fn post(&self, qp: &QpShared, work: Work) -> Result<(), PostError> {
        let sends = matches!(work, Work::Send(_));
        self.post_list(qp, sends, std::iter::once(work)).map_err(|(_, error)| error)
    }

    /// Posts work requests that have their places reserved in `qp`, up to the first that is refused: with the error comes
    /// how many were posted before. `sends`: whether they are for the send queue.
    pub(crate) fn post_list(
        &self,
        qp: &QpShared,
        sends: bool,
        works: impl Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        let qpn = qp.config.qpn;
        let Some(mut lane) = self.lane.try_lock() else {
            works.for_each(|work| qp.leave(work));
            self.ring(qpn);
            return Ok(());
        };
        self.stir(&mut lane);
        let result = lane.engine.post_list(qpn, works);
        // The first request of a burst leaves at once; those behind it join in trains while it is on the way. A receive
        // gives nothing to send.
        if sends && (lane.note_answer() || lane.engine.is_urgent(qpn, || self.now())) {
            lane.transmit(self.now());
        }
        self.release(lane);
        result
    }

    /// Leaves word that the inbox of a queue pair holds work, and drives the engine if nobody does.
    fn ring(&self, qpn: Qpn) {
        locked(&self.doorbells).push(qpn);
        if let Some(lane) = self.bell.ring(|| self.lane.try_lock()) {
            self.release(lane);
        }
    }

    /// One turn by a program thread that waits for something. Returns whether anything happened.
    pub(crate) fn progress(&self) -> bool {
        // The background thread looks whether what was held has left: in standby soon enough, blocked because it is told.
        self.drive(self.background.as_ref().is_some_and(|b| b.is_there()))
    }

    fn drive(&self, may_hold: bool) -> bool {
        self.count_polls(1);
        if matches!(self.clock, Clock::Virtual(_)) {
            // Time stands still while a program looks; the simulation moves it.
            return false;
        }
        let mut lane = match self.lane.try_lock() {
            Some(lane) => {
                self.misses.store(0, Ordering::Relaxed);
                lane
            }
            None if self.misses.fetch_add(1, Ordering::Relaxed) < MISSES_BEFORE_WAITING => return false,
            None => self.lane.lock(),
        };
        let done = lane.turn(Instant::now(), may_hold);
        self.release(lane);
        self.count_polls(done.saturating_mul(TRAIN_POLLS));
        self.courtesy.after_turn(done > 0);
        done > 0
    }

    /// An estimate that several threads may spoil, which is good enough: it tells polling from not polling.
    fn count_polls(&self, count: u32) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// One turn by the background thread: whether anything happened, and whether the program may be about to answer it.
    fn background_turn(&self) -> (bool, bool) {
        let mut lane = self.lane.lock();
        let done = lane.background_turn(Instant::now());
        let may_be_answered = lane.may_be_answered();
        self.release(lane);
        self.courtesy.after_turn(done > 0);
        (done > 0, may_be_answered)
    }

    /// Sends what is held back, if nobody drives the engine.
    fn let_go(&self) {
        if let Some(mut lane) = self.lane.try_lock() {
            lane.let_go(self.now());
            self.release(lane);
        }
    }

    /// Ends captures at the end of the process: they are whole anyway, and shorter so. Other threads may still drive the
    /// engine, or have ended with it.
    fn end_captures(&self) {
        let lane = (0..TRIES_AT_EXIT).find_map(|_| {
            let lane = self.lane.try_lock();
            if lane.is_none() {
                std::thread::yield_now();
            }
            lane
        });
        if let Some(mut lane) = lane {
            lane.link.remove_observers(crate::instrument::CAPTURE);
            self.release(lane);
        }
    }

    /// In standby: sends what the program left undone, if it stopped polling.
    fn sweep(&self) {
        if let Some(mut lane) = self.lane.try_lock() {
            if lane.has_work() {
                lane.transmit(Instant::now());
            }
            self.release(lane);
        }
    }

    /// When the next turn is wanted, if no packet comes before, and whether one that comes is wanted before.
    fn next_wanted(&self) -> (Option<Instant>, bool) {
        let look = |lane: &PiGuard<'_, Lane>| (lane.poll_timeout(Instant::now()), lane.listens());
        let ((due, listens), rings) = self.bell.look(self.lane.lock(), look);
        (if rings { Some(Instant::now()) } else { due }, listens)
    }

    /// The program is about to sleep: everything due is sent, and the background thread takes over at once.
    pub(crate) fn hand_over(&self) {
        self.drive(false);
        if let Some(background) = &self.background {
            background.take_over();
        }
    }

    /// A simulation looks at a device only when it knows of a reason. It is told as soon as the lock is taken: its look waits
    /// for the lock, and so does its time, however long it is held.
    fn stir(&self, lane: &mut Lane) {
        if let (Clock::Virtual(world), Io::Sim(sim)) = (&self.clock, &mut lane.io)
            && !std::mem::replace(&mut sim.stirred, true)
        {
            world.stir(sim.site());
        }
    }

    /// Lets go of the engine, after taking in what was posted meanwhile.
    fn release<'a>(&'a self, lane: PiGuard<'a, Lane>) {
        let serve = |lane: &mut PiGuard<'a, Lane>, rings| self.serve(lane, rings);
        // Wakers are the program's code, which must not meet the lock.
        let after = |woken: Vec<Waker>| woken.into_iter().for_each(Waker::wake);
        self.bell.release(lane, || self.lane.try_lock(), serve, after);
    }

    /// Takes in what was left in inboxes; whether there was word of any.
    fn answer_doorbells(&self, lane: &mut Lane) -> bool {
        let rung = std::mem::take(&mut *locked(&self.doorbells));
        rung.iter().for_each(|qpn| lane.engine.ring(*qpn));
        !rung.is_empty()
    }

    /// What is done before the lock is let go of. Returns whom to wake then.
    fn serve(&self, lane: &mut Lane, rings: bool) -> Vec<Waker> {
        // Takes no memory while it is empty.
        let mut woken = Vec::new();
        if rings {
            self.stir(lane);
            self.answer_doorbells(lane);
            lane.transmit(self.now());
        }
        if lane.engine.has_event_news() || lane.io.has_failed() {
            self.attend(lane, &mut woken);
        }
        if lane.engine.has_notifications() {
            lane.engine.take_notifications().for_each(|cq| cq.deliver(&mut woken));
        }
        if let Some(background) = &self.background {
            if lane.has_work() {
                background.wake_now();
            } else {
                background.wake_before(lane.next_timer());
            }
        }
        woken
    }

    /// Waits until `ready` gives something or `timeout` has passed. In virtual time it is the simulation that moves
    /// on; there, `None` also means that nothing will ever happen any more.
    pub(crate) fn wait<R>(&self, timeout: Duration, mut ready: impl FnMut() -> Option<R>) -> Option<R> {
        let deadline = self.deadline(timeout);
        loop {
            if let Some(result) = ready() {
                return Some(result);
            }
            match &self.clock {
                Clock::Real => {
                    if !self.progress() {
                        if Instant::now() >= deadline {
                            return ready();
                        }
                        std::hint::spin_loop();
                    }
                }
                Clock::Virtual(world) => {
                    if world.now() >= deadline || !world.step_until(deadline) {
                        return ready();
                    }
                }
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Its thread exists in the parent only, and can be neither joined nor detached here.
            std::mem::forget(self.background.take());
            self.host.abandon();
            std::mem::forget(self.publication.take());
            std::mem::forget(self.queue_pairs.take());
            return;
        }
        self.host.close();
        self.publish_last();
        {
            let mut lane = self.lane.lock();
            if let Io::Udp(udp) = &lane.io {
                fork::forget(udp.raw_fds());
            }
            if lane.io.has_failed() {
                lane.io.abandon();
            }
        }
        #[expect(unsafe_code, reason = "the one place that decides whether the sockets are closed")]
        // SAFETY: `lane` is not used again: this is the end of the port.
        unsafe {
            ManuallyDrop::drop(&mut self.lane);
        }
    }
}

#[cfg(test)]
mod tests;
