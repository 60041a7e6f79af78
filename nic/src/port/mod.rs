//! A port: an engine, its sockets, and the threads that drive it.
//!
//! The thread that waits makes progress. A program thread that polls drives the engine inline; a background thread
//! drives it when no program thread polls. The engine is taken by try-lock: if that fails, another thread is driving it
//! already. Work posted meanwhile rings a doorbell, and a thread that releases the engine checks the doorbells first,
//! so no work is left behind.

mod attend;
mod background;
#[cfg(test)]
mod conversations;
mod courtesy;
mod datapath;
mod exit;
mod fork;
mod groups;
mod handover;
mod hold;
mod host;
mod io;
#[cfg(test)]
mod model;
mod primitives;
mod published;
mod queue_pairs;
mod throttle;
mod wreck;

pub(crate) use background::Background;
pub(crate) use datapath::Datapath;
pub(crate) use exit::run_at_exit;
pub(crate) use fork::try_hold_forks;
pub use fork::{ForksHeld, hold_forks};
pub(crate) use fork::{close_file_in_child, generation};
pub(crate) use io::{Io, SimIo, SimPacket, UdpIo};

use crate::clock;
use crate::engine::{Engine, EngineConfig, PortState, ResourceError};
use crate::error::Error;
use crate::link::{LinkProfile, Now};
use crate::net::HostWatch;
use crate::process::{Publication, QueuePairFile};
use crate::queue::{QpShared, Work, WorkQueue, locked};
use crate::sim::World;
use crate::sync::{PiGuard, PiMutex};
use courtesy::Courtesy;
use handover::Bell;
use hold::Caller;
use host::HostView;
use qp::queue_pair::PostError;
use qp::{Gid, Mtu, Qpn};
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::{SystemTime, UNIX_EPOCH};
use time::{Duration, Instant};

/// Consecutive failures to get the lock after which a poller waits for it. If a thread with a real-time priority spun
/// endlessly, it would starve the holder; the lock lends the holder that priority.
const MISSES_BEFORE_WAITING: u32 = 64;

/// Attempts to get the lock when the process exits. Polling threads release it every few microseconds.
const TRIES_AT_EXIT: u32 = 1000;

/// Each train moved in a turn counts as this many polls: a train takes 20 us or more, so a program that only polls
/// moves only some tens of trains in the time of thousands of empty polls.
const TRAIN_POLLS: u32 = 2;

/// The clock of a port.
#[derive(Clone)]
pub(crate) enum Clock {
    /// Real time.
    Real,
    /// The virtual time of a simulation.
    Virtual(Arc<World>),
}

impl Clock {
    /// Nanoseconds of the kernel's monotonic clock, or since the simulation began.
    pub(crate) fn nanos(&self) -> u64 {
        let now = match self {
            Self::Real => clock::now().since_epoch(),
            Self::Virtual(world) => world.elapsed(),
        };
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A port, shared by all objects of its device.
pub(crate) struct Port {
    /// Not dropped in a forked child, whose copies of the descriptors are closed already.
    datapath: ManuallyDrop<PiMutex<Datapath>>,
    doorbells: Mutex<Vec<Qpn>>,
    bell: Bell,
    /// Incremented with every poll of a program thread.
    polls: AtomicU32,
    misses: AtomicU32,
    /// Whether a panic left the engine half changed. Changed under the lock.
    wrecked: AtomicBool,
    courtesy: Courtesy,
    pub(crate) clock: Clock,
    pub(crate) background: Option<Arc<Background>>,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its knowledge of the host, and its program's access to events.
    host: HostView,
    /// Where its counters are published, if they are.
    publication: OnceLock<Publication>,
    /// Where its queue pairs are published, if they are.
    queue_pairs: OnceLock<QueuePairFile>,
    generation: u32,
}

impl Port {
    /// `watch`: reports changes of the host's link and address, if possible; `mtu`: the largest path MTU to offer,
    /// whatever the link supports.
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
                instant: clock::now(),
                wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            },
            // Captures of a simulation start at the epoch: equal runs produce equal files.
            Clock::Virtual(world) => Now { instant: world.now(), wall: world.elapsed() },
        };
        let active_mtu = config.active_mtu;
        let mut engine = Engine::new(config);
        if let Some(state) = watch.as_ref().map(HostWatch::state) {
            engine.begin_port_state(PortState { address: state.address, link: state.link });
        }
        let port = Arc::new(Self {
            address: engine.config().address,
            datapath: ManuallyDrop::new(PiMutex::new(Datapath::new(engine, io, clocks))),
            doorbells: Mutex::default(),
            bell: Bell::new(),
            polls: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            wrecked: AtomicBool::new(false),
            courtesy: Courtesy::new(),
            clock,
            background,
            host: HostView::new(watch, active_mtu, mtu),
            publication: OnceLock::new(),
            queue_pairs: OnceLock::new(),
            generation: generation(),
        });
        if port.background.is_some() {
            exit::watch(&port);
        }
        port
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(crate) fn set_link(&self, profile: &LinkProfile, seed: u64) {
        let now = self.now();
        self.lock().set_link(profile, now, seed);
    }

    /// Returns whether this process opened the port. A forked child inherits its parent's memory but not its place in
    /// the network.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// The current time.
    pub(crate) fn now(&self) -> Instant {
        match &self.clock {
            Clock::Real => clock::now(),
            Clock::Virtual(world) => world.now(),
        }
    }

    /// The end of `timeout`: at most 136 years from now, because instants have an upper bound.
    pub(crate) fn deadline(&self, timeout: Duration) -> Instant {
        let now = self.now();
        now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
    }

    /// Runs `change` on the engine, sends what became ready and wakes the waiters.
    pub(crate) fn control<R>(&self, change: impl FnOnce(&mut Engine) -> R) -> R {
        self.control_datapath(|datapath| change(&mut datapath.engine))
    }

    /// Runs `change` on everything behind the lock; otherwise as [`control`](Self::control).
    fn control_datapath<R>(&self, change: impl FnOnce(&mut Datapath) -> R) -> R {
        let mut datapath = self.lock();
        self.stir(&mut datapath);
        // Before any change, earlier posts get their turn, and received packets are acknowledged: a queue pair that is
        // destroyed cannot do this later. A simulation schedules turns itself.
        let rang = self.answer_doorbells(&mut datapath);
        if matches!(self.clock, Clock::Real) && (rang || datapath.has_work()) {
            datapath.transmit(self.now());
        } else {
            datapath.let_go(self.now());
        }
        let result = change(&mut datapath);
        datapath.transmit(self.now());
        self.release(datapath);
        result
    }

    /// Attaches a queue pair to a multicast group.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        let (result, fd) =
            self.control_datapath(|datapath| (datapath.attach_mcast(qpn, group), datapath.io.groups_fd()));
        if let (Some(background), Some(fd)) = (&self.background, fd) {
            background.watch_groups(fd);
        }
        result
    }

    /// Detaches a queue pair from a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        self.control_datapath(|datapath| datapath.detach_mcast(qpn, group))
    }

    /// Destroys a queue pair after detaching it from all its groups.
    pub(crate) fn discard_qp(&self, qpn: Qpn) {
        self.control_datapath(|datapath| {
            for group in datapath.engine.groups_of(qpn) {
                // The queue pair is attached to each of these groups.
                let _ = datapath.detach_mcast(qpn, group);
            }
            // No other queue pair can have the number yet.
            let _ = datapath.engine.destroy_qp(qpn);
        });
    }

    /// Inspects the engine without driving it. `None` in a forked child: there, the lock may be held by a thread that
    /// does not exist.
    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&Engine) -> R) -> Option<R> {
        self.is_ours().then(|| self.with_datapath(|datapath| look(&datapath.engine)))
    }

    /// Runs `act` on everything behind the lock: for a simulation, which checks the outcome afterwards.
    pub(crate) fn visit<R>(&self, act: impl FnOnce(&mut Datapath) -> R) -> R {
        let mut datapath = self.lock();
        let result = act(&mut datapath);
        self.release(datapath);
        result
    }

    /// Runs `act` on everything behind the lock: for drivers. It must not be called in a forked child.
    pub(crate) fn with_datapath<R>(&self, act: impl FnOnce(&mut Datapath) -> R) -> R {
        let mut datapath = self.lock();
        self.stir(&mut datapath);
        let result = act(&mut datapath);
        self.release(datapath);
        result
    }

    /// Posts a work request that has its place reserved in `qp`.
    pub(crate) fn post(&self, qp: &QpShared, work: Work) -> Result<(), PostError> {
        self.post_list(qp, work.queue(), std::iter::once(work)).map_err(|(_, error)| error)
    }

    /// Posts work requests that have their places reserved in `qp`, up to the first that is refused; the error comes
    /// with the number of requests posted before it. `queue`: the queue that they are for.
    pub(crate) fn post_list(
        &self,
        qp: &QpShared,
        queue: WorkQueue,
        works: impl Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        let qpn = qp.config.qpn;
        let Some(mut datapath) = self.try_lock() else {
            works.for_each(|work| qp.leave(work));
            self.ring(qpn);
            return Ok(());
        };
        self.stir(&mut datapath);
        let result = datapath.engine.post_list(qpn, works);
        // The first request of a burst leaves immediately; those behind it form trains while it is in flight. A receive
        // causes no transmission.
        if queue == WorkQueue::Send
            && (datapath.note_posted() || datapath.engine.is_urgent(qpn, || self.now()))
        {
            datapath.transmit(self.now());
        }
        self.release(datapath);
        result
    }

    /// Rings the doorbell for a queue pair whose inbox holds work, and drives the engine if no other thread does.
    fn ring(&self, qpn: Qpn) {
        locked(&self.doorbells).push(qpn);
        if let Some(datapath) = self.bell.ring(|| self.try_lock()) {
            self.release(datapath);
        }
    }

    /// Takes a turn in a program thread that waits for something. Returns whether anything happened.
    pub(crate) fn progress(&self) -> bool {
        // The background thread checks whether a held acknowledgement has left: in standby it checks soon enough, when
        // blocked it is woken.
        let watched = self.background.as_ref().is_some_and(|b| b.is_there());
        self.drive(if watched { Caller::Program } else { Caller::LastTurn })
    }

    fn drive(&self, caller: Caller) -> bool {
        self.count_polls(1);
        if self.is_wrecked() {
            return false;
        }
        if matches!(self.clock, Clock::Virtual(_)) {
            // Time stands still while a program polls; the simulation advances it.
            return false;
        }
        let mut datapath = match self.try_lock() {
            Some(datapath) => {
                self.misses.store(0, Ordering::Relaxed);
                datapath
            }
            None if self.misses.fetch_add(1, Ordering::Relaxed) < MISSES_BEFORE_WAITING => return false,
            None => self.lock(),
        };
        let done = datapath.turn(clock::now(), caller);
        self.release(datapath);
        self.count_polls(done.saturating_mul(TRAIN_POLLS));
        self.courtesy.after_turn(done > 0);
        done > 0
    }

    /// An estimate, which concurrent threads may corrupt; it is good enough to tell polling from not polling.
    fn count_polls(&self, count: u32) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Takes a turn in the background thread: returns whether anything happened, and whether the program may be about
    /// to reply.
    fn background_turn(&self) -> (bool, bool) {
        let mut datapath = self.lock();
        let done = datapath.turn(clock::now(), Caller::Background);
        let may_be_answered = datapath.may_be_answered();
        self.release(datapath);
        self.courtesy.after_turn(done > 0);
        (done > 0, may_be_answered)
    }

    /// Sends a held acknowledgement, if no thread drives the engine.
    fn let_go(&self) {
        if let Some(mut datapath) = self.try_lock() {
            datapath.let_go(self.now());
            self.release(datapath);
        }
    }

    /// Ends captures at the end of the process: they are valid without this, but shorter with it. Other threads may
    /// still drive the engine, or have ended while driving it.
    fn end_captures(&self) {
        let datapath = (0..TRIES_AT_EXIT).find_map(|_| {
            let datapath = self.try_lock();
            if datapath.is_none() {
                std::thread::yield_now();
            }
            datapath
        });
        if let Some(mut datapath) = datapath {
            datapath.link.remove_observers(crate::instrument::CAPTURE);
            self.release(datapath);
        }
    }

    /// Called in standby: sends what the program left undone, if it stopped polling.
    fn sweep(&self) {
        if let Some(mut datapath) = self.try_lock() {
            if datapath.has_work() {
                datapath.transmit(clock::now());
            }
            self.release(datapath);
        }
    }

    /// When the next turn is needed if no packet arrives, and whether an earlier packet needs one.
    fn next_wanted(&self) -> (Option<Instant>, bool) {
        let look =
            |datapath: &PiGuard<'_, Datapath>| (datapath.poll_timeout(clock::now()), datapath.listens());
        let ((due, listens), rings) = self.bell.look(self.lock(), look);
        (if rings { Some(clock::now()) } else { due }, listens)
    }

    /// The program is about to sleep: everything due is sent, and the background thread takes over immediately.
    pub(crate) fn hand_over(&self) {
        self.drive(Caller::LastTurn);
        if let Some(background) = &self.background {
            background.take_over();
        }
    }

    /// Notifies the simulation that a device needs attention: it checks only devices that it was notified of. This
    /// happens as soon as the lock is taken: the check waits for the lock, and so does virtual time, however long it is
    /// held.
    fn stir(&self, datapath: &mut Datapath) {
        if let (Clock::Virtual(world), Io::Sim(sim)) = (&self.clock, &mut datapath.io)
            && !std::mem::replace(&mut sim.stirred, true)
        {
            world.stir(sim.site());
        }
    }

    /// Releases the engine, after processing what was posted meanwhile.
    fn release<'a>(&'a self, datapath: PiGuard<'a, Datapath>) {
        let serve = |datapath: &mut PiGuard<'a, Datapath>, rings| self.serve(datapath, rings);
        // Wakers run the program's code, which must not find the lock taken.
        let after = |woken: Vec<Waker>| woken.into_iter().for_each(Waker::wake);
        self.bell.release(datapath, || self.try_lock(), serve, after);
    }

    /// Takes the contents of the inboxes whose doorbells rang; returns whether any did.
    fn answer_doorbells(&self, datapath: &mut Datapath) -> bool {
        if self.is_wrecked() {
            return false;
        }
        let rung = std::mem::take(&mut *locked(&self.doorbells));
        rung.iter().for_each(|qpn| datapath.engine.ring(*qpn));
        !rung.is_empty()
    }

    /// Final work before the lock is released. Returns the tasks to wake afterwards.
    fn serve(&self, datapath: &mut Datapath, rings: bool) -> Vec<Waker> {
        // An empty list allocates no memory.
        let mut woken = Vec::new();
        if rings {
            self.stir(datapath);
            self.answer_doorbells(datapath);
            datapath.transmit(self.now());
        }
        if datapath.engine.has_event_news() || datapath.io.has_failed() {
            self.attend(datapath, &mut woken);
        }
        if datapath.engine.has_notifications() {
            datapath.engine.take_notifications().for_each(|cq| cq.deliver(&mut woken));
        }
        if let Some(background) = &self.background {
            if datapath.has_work() {
                background.wake_now();
            } else {
                background.wake_before(datapath.next_timer());
            }
        }
        woken
    }

    /// Waits until `ready` returns something or `timeout` has passed. In virtual time the simulation advances time;
    /// there, `None` also means that nothing will ever happen again.
    pub(crate) fn wait<R>(&self, timeout: Duration, mut ready: impl FnMut() -> Option<R>) -> Option<R> {
        let deadline = self.deadline(timeout);
        loop {
            if let Some(result) = ready() {
                return Some(result);
            }
            match &self.clock {
                Clock::Real => {
                    if !self.progress() {
                        if clock::now() >= deadline {
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
            // The background thread exists in the parent only, and can be neither joined nor detached here.
            std::mem::forget(self.background.take());
            self.host.abandon();
            std::mem::forget(self.publication.take());
            std::mem::forget(self.queue_pairs.take());
            return;
        }
        self.host.close();
        self.publish_last();
        {
            let mut datapath = self.lock();
            if let Io::Udp(udp) = &datapath.io {
                fork::forget(udp.raw_fds());
            }
            if datapath.io.has_failed() {
                datapath.io.abandon();
            }
        }
        #[expect(unsafe_code, reason = "the one place that decides whether the sockets are closed")]
        // SAFETY: `datapath` is not used again: this is the end of the port.
        unsafe {
            ManuallyDrop::drop(&mut self.datapath);
        }
    }
}

#[cfg(test)]
mod tests;
