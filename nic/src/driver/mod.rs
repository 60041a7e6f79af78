//! A port on sockets, and the threads that drive it.
//!
//! The thread that waits makes progress. A program thread that polls drives the engine inline; a background thread
//! drives it when no program thread polls. The engine is taken by try-lock: if that fails, another thread is driving it
//! already. Work posted meanwhile rings a doorbell, and a thread that releases the engine checks the doorbells first,
//! so no work is left behind.

mod attend;
mod background;
mod burst;
#[cfg(test)]
mod conversations;
mod courtesy;
mod doorbells;
mod exit;
mod groups;
mod handover;
mod hold;
mod host;
#[cfg(test)]
mod model;
mod primitives;
mod published;
pub(crate) mod readiness;
mod shared;
mod sync;
mod turns;
mod udp_io;
mod wreck;

pub(crate) use exit::run_at_exit;
pub(crate) use shared::Site;
pub(crate) use udp_io::UdpIo;

use crate::clock;
use crate::daemon::{Desk, Slot};
use crate::net::Capabilities;
use crate::os::fork;
use background::Background;
use courtesy::Courtesy;
use doorbells::Doorbells;
use hold::Caller;
use host::HostView;
use published::Reports;
use qp::Mtu;
use qp::queue_pair::PostError;
use rnic_core::cm::PortTable;
use rnic_core::engine::{Engine, EngineConfig, PortState};
use rnic_core::gid::NetInterface;
use rnic_core::link::{LinkProfile, Now};
use rnic_core::port::{Act, Port, Readiness, generation};
use rnic_core::queue::{QpShared, Waiters, Work, WorkQueue};
use rnic_core::sim::SimPort;
use rnic_core::tally::SocketCounters;
use shared::PortAt;
use std::io;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::{SystemTime, UNIX_EPOCH};
use sync::{PiGuard, PiMutex};
use time::{Duration, Instant};
use turns::Driven;

/// Consecutive failures to get the lock after which a poller waits for it. If a thread with a real-time priority spun
/// endlessly, it would starve the holder; the lock lends the holder that priority.
const MISSES_BEFORE_WAITING: u32 = 64;

/// Each train moved in a turn counts as this many polls: a train takes 20 us or more, so a program that only polls
/// moves only some tens of trains in the time of thousands of empty polls.
const TRAIN_POLLS: u32 = 2;

/// A port on sockets.
pub(crate) struct SocketPort {
    /// Itself, for its thread.
    me: Weak<Self>,
    /// Not dropped in a forked child, whose copies of the descriptors are closed already.
    driven: ManuallyDrop<PiMutex<Driven>>,
    doorbells: Doorbells,
    /// Whether the program may be about to reply: its next request may carry an acknowledgement.
    converses: AtomicBool,
    /// How many more requests of idle queue pairs may wait for the next turn, behind one that has left since the last
    /// ([`burst`]). Changed under the lock, except for counting down.
    may_join: AtomicU32,
    /// Incremented with every poll of a program thread.
    polls: AtomicU32,
    misses: AtomicU32,
    /// Whether a panic left the engine half changed. Changed under the lock.
    wrecked: AtomicBool,
    courtesy: Courtesy,
    background: Arc<Background>,
    /// Its address.
    address: IpAddr,
    /// Its knowledge of the host, and its program's access to events.
    host: HostView,
    /// Its slot, if it shares the address with other processes.
    slot: Option<ManuallyDrop<Slot>>,
    /// Where its counters and queue pairs are published.
    reports: Mutex<Reports>,
    generation: u32,
}

impl SocketPort {
    /// `site`: reports changes of the host's link and address, if possible; `mtu`: the largest path MTU to offer,
    /// whatever the link supports.
    pub(crate) fn new(config: EngineConfig, udp: UdpIo, site: Site, mtu: Mtu) -> Arc<Self> {
        fork::close_in_child(udp.raw_fds());
        let clocks = Now {
            instant: clock::now(),
            wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        };
        let active_mtu = config.active_mtu;
        let mut engine = Engine::new(config);
        if let Some(PortAt { address, link, .. }) = site.state() {
            engine.begin_port_state(PortState { address, link });
        }
        let (watch, slot) = match site {
            Site::Host(watch) => (watch, None),
            Site::Slot(slot) => (None, Some(ManuallyDrop::new(*slot))),
        };
        if slot.is_some() && engine.open_ledger().is_err() {
            tracing::error!("a new engine is not usable");
        }
        let port = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            address: engine.config().address,
            driven: ManuallyDrop::new(PiMutex::new(Driven::new(engine, udp, clocks))),
            doorbells: Doorbells::new(),
            converses: AtomicBool::new(false),
            may_join: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            wrecked: AtomicBool::new(false),
            courtesy: Courtesy::new(),
            background: Arc::new(Background::new()),
            host: HostView::new(watch, active_mtu, mtu),
            slot,
            reports: Mutex::default(),
            generation: generation(),
        });
        exit::watch(&port);
        port
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(crate) fn set_link(&self, profile: &LinkProfile, seed: u64) {
        self.lock().set_link(profile, clock::now(), seed);
    }

    /// Runs `act` on everything behind the lock, without sending anything. It must not be called in a forked child.
    fn with_driven<R>(&self, act: impl FnOnce(&mut Driven) -> R) -> R {
        let mut driven = self.lock();
        self.doorbells.answer_bell(&mut driven.datapath);
        let result = act(&mut driven);
        self.release(driven);
        result
    }

    /// Leaves work requests for the thread that drives the engine, or drives it if no thread does.
    fn hand_in(&self, qp: &QpShared, works: &mut dyn Iterator<Item = Work>) {
        qp.leave(works, || self.doorbells.list(qp.config.qpn));
        if let Some(driven) = self.doorbells.bell.ring(|| self.try_lock()) {
            self.release(driven);
        }
    }

    /// Posts work requests that may have to leave at once.
    fn post_now(
        &self,
        qp: &QpShared,
        queue: WorkQueue,
        works: &mut dyn Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        let qpn = qp.config.qpn;
        let Some(mut driven) = self.try_lock() else {
            self.hand_in(qp, works);
            return Ok(());
        };
        let result = driven.datapath.engine.post_list(qpn, works);
        // The first request of a burst leaves immediately; those behind it form trains while it is in flight. A receive
        // causes no transmission.
        if queue == WorkQueue::Send
            && (driven.note_posted() || driven.datapath.engine.is_urgent(qpn, clock::now))
        {
            // What waits for the next turn may share its train.
            let now = clock::now();
            self.doorbells.answer_bell(&mut driven.datapath);
            driven.transmit(now);
            let may_join = driven.burst.left(now, self.may_join.load(Ordering::Relaxed));
            self.may_join.store(may_join, Ordering::Relaxed);
        }
        self.release(driven);
        result
    }

    /// Whether work requests may be left for the next turn: none of them would leave earlier, or another one of their burst
    /// has left, and none is a reply. A thread that is blocked is not woken for a receive: the first packet would do that.
    fn may_wait(&self, qp: &QpShared, queue: WorkQueue) -> bool {
        match queue {
            WorkQueue::Send => {
                !self.converses.load(Ordering::Relaxed) && (qp.may_wait(queue) || self.joins_burst(qp))
            }
            WorkQueue::Recv => qp.may_wait(queue) && !self.background.sleeper().has_to_know(),
        }
    }

    /// Whether a request of an idle queue pair waits for others of its [`burst`]. To wake a thread that is blocked would cost
    /// more than sending does.
    fn joins_burst(&self, qp: &QpShared) -> bool {
        let room = self.may_join.load(Ordering::Relaxed);
        if room == 0 || !qp.may_join() || self.background.sleeper().has_to_know() {
            return false;
        }
        // An estimate, as that of polls.
        self.may_join.store(room - 1, Ordering::Relaxed);
        true
    }

    /// The port takes a turn, which ends a burst.
    fn end_burst(&self, driven: &mut Driven, now: Instant) {
        let unused = self.may_join.load(Ordering::Relaxed);
        self.may_join.store(0, Ordering::Relaxed);
        driven.burst.end(now, unused);
    }

    /// Leaves work requests for the next turn. Only the first of several costs more than its place in the inbox.
    fn leave(&self, qp: &QpShared, works: impl Iterator<Item = Work>) {
        if !qp.leave(works, || self.doorbells.list(qp.config.qpn)) {
            return;
        }
        let bell = &self.doorbells.bell;
        let sleeps = bell.ring_for_later(self.background.sleeper());
        if self.is_wrecked() {
            // There are no more turns.
            if let Some(driven) = bell.ring(|| self.try_lock()) {
                self.release(driven);
            }
        } else if sleeps {
            self.background.signal();
        }
    }

    fn drive(&self, caller: Caller) -> bool {
        self.count_polls(1);
        if self.is_wrecked() {
            return false;
        }
        let mut driven = match self.try_lock() {
            Some(driven) => {
                self.misses.store(0, Ordering::Relaxed);
                driven
            }
            None if self.misses.fetch_add(1, Ordering::Relaxed) < MISSES_BEFORE_WAITING => return false,
            None => self.lock(),
        };
        let now = clock::now();
        self.end_burst(&mut driven, now);
        let done = driven.turn(now, caller, &self.doorbells);
        if let Some(period) = self.background.standby_period()
            && let Some(rest) = driven.put_off.polled(now, self.polls.load(Ordering::Relaxed), period)
        {
            self.background.put_off(rest);
        }
        self.release(driven);
        self.count_polls(done.saturating_mul(TRAIN_POLLS));
        self.courtesy.after_turn(done > 0);
        done > 0
    }

    /// An estimate, which concurrent threads may corrupt; it is good enough to tell polling from not polling.
    fn count_polls(&self, count: u32) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Takes a turn in the background thread: returns whether anything happened, and until when the program is
    /// expected to reply.
    fn background_turn(&self) -> (bool, Option<Instant>) {
        let mut driven = self.lock();
        let now = clock::now();
        self.end_burst(&mut driven, now);
        let done = driven.turn(now, Caller::Background, &self.doorbells);
        let reply_by = driven.reply_by();
        self.release(driven);
        self.courtesy.after_turn(done > 0);
        (done > 0, reply_by)
    }

    /// Called in standby: sends what the program left undone, if it stopped polling.
    fn sweep(&self) {
        if let Some(mut driven) = self.try_lock() {
            let now = clock::now();
            self.end_burst(&mut driven, now);
            self.doorbells.answer_bell(&mut driven.datapath);
            if driven.datapath.has_work() {
                driven.transmit(now);
            }
            self.release(driven);
        }
    }

    /// When the next turn is needed if no packet arrives, and whether an earlier packet needs one.
    fn next_wanted(&self) -> (Option<Instant>, bool) {
        let look = |driven: &PiGuard<'_, Driven>| {
            (driven.datapath.poll_timeout(clock::now()), driven.datapath.listens())
        };
        let ((due, listens), rings) = self.doorbells.bell.look(self.lock(), look);
        (if rings { Some(clock::now()) } else { due }, listens)
    }

    /// Releases the engine, after processing what was posted meanwhile.
    fn release<'a>(&'a self, driven: PiGuard<'a, Driven>) {
        let serve = |driven: &mut PiGuard<'a, Driven>, rings| self.serve_posts(driven, rings);
        // Wakers run the program's code, which must not find the lock taken; the daemon must know who listens before the
        // program says so.
        let after = |(woken, has_told): (Vec<Waker>, bool)| {
            if has_told {
                self.tell_daemon();
            }
            woken.into_iter().for_each(Waker::wake);
        };
        self.doorbells.bell.release(driven, || self.try_lock(), serve, after);
    }

    /// Final work before the lock is released. Returns the tasks to wake afterwards, and whether the daemon is to be told
    /// something.
    fn serve_posts(&self, driven: &mut Driven, rings: bool) -> (Vec<Waker>, bool) {
        // An empty list allocates no memory.
        let mut woken = Vec::new();
        if rings {
            self.doorbells.answer(&mut driven.datapath);
            driven.transmit(clock::now());
        }
        self.converses.store(driven.converses(), Ordering::Relaxed);
        if driven.udp.has_failed() {
            self.fail(driven);
        }
        self.host.events.tell(&mut driven.datapath, clock::now, &mut woken);
        if driven.datapath.has_work() {
            self.background.wake_now();
        } else {
            self.background.wake_before(driven.datapath.next_timer());
        }
        (woken, self.slot.is_some() && driven.datapath.engine.has_ledger_entries())
    }
}

impl Port for SocketPort {
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
            let mut driven = self.lock();
            self.give_up(&mut driven);
            self.release(driven);
        }
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn clock(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        Box::new(|| u64::try_from(clock::now().since_epoch().as_nanos()).unwrap_or(u64::MAX))
    }

    fn sim(&self) -> Option<&SimPort> {
        None
    }

    fn active_mtu(&self) -> Mtu {
        self.host.active_mtu()
    }

    fn interface(&self) -> Option<NetInterface> {
        self.interface_of_slot().or_else(|| self.host.interface())
    }

    fn look_at_host(&self) {
        self.check_host();
    }

    fn shared_ports(&self) -> Option<Arc<dyn PortTable>> {
        let desk: Arc<dyn PortTable> = Desk::at(self.slot.as_ref()?.path());
        Some(desk)
    }

    fn socket_counters(&self) -> Option<SocketCounters> {
        Some(self.with_driven(|driven| driven.udp.counters()))
    }

    fn capabilities(&self) -> Option<Capabilities> {
        Some(self.with_driven(|driven| driven.udp.socket().capabilities()))
    }

    fn control_datapath(&self, act: Act<'_>) {
        let mut driven = self.lock();
        // Before any change, earlier posts get their turn, and received packets are acknowledged: a queue pair that is
        // destroyed cannot do this later.
        if self.doorbells.answer(&mut driven.datapath) || driven.datapath.has_work() {
            driven.transmit(clock::now());
        } else {
            driven.let_go(clock::now());
        }
        let Driven { datapath, udp, .. } = &mut *driven;
        act(datapath, udp);
        driven.transmit(clock::now());
        self.release(driven);
    }

    fn visit_datapath(&self, act: Act<'_>) {
        self.with_driven(|Driven { datapath, udp, .. }| act(datapath, udp));
    }

    fn post(&self, qp: &QpShared, work: Work) -> Result<(), PostError> {
        let (queue, mut work) = (work.queue(), std::iter::once(work));
        if self.may_wait(qp, queue) {
            self.leave(qp, work);
            return Ok(());
        }
        self.post_now(qp, queue, &mut work).map_err(|(_, error)| error)
    }

    fn post_list(
        &self,
        qp: &QpShared,
        queue: WorkQueue,
        works: &mut dyn Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        if self.may_wait(qp, queue) {
            self.leave(qp, works);
            return Ok(());
        }
        self.post_now(qp, queue, works)
    }

    fn progress(&self) -> bool {
        // The background thread checks whether a held acknowledgement has left: in standby it checks soon enough, when
        // blocked it is woken.
        self.drive(if self.background.is_there() { Caller::Program } else { Caller::LastTurn })
    }

    fn hand_over(&self) {
        self.drive(Caller::LastTurn);
        self.background.take_over();
    }

    fn wait_until(&self, deadline: Instant, is_ready: &mut dyn FnMut() -> bool) {
        while !is_ready() {
            if !self.progress() {
                if clock::now() >= deadline {
                    is_ready();
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }

    fn event_waiters(&self) -> &Waiters {
        &self.host.events.waiters
    }

    fn event_flag(&self) -> io::Result<Arc<dyn Readiness>> {
        match self.host.events.flag() {
            Some(flag) => Ok(flag),
            None => {
                let flag = self.new_flag()?;
                Ok(self.with_driven(|driven| self.host.events.begin(&driven.datapath, flag)))
            }
        }
    }

    fn new_flag(&self) -> io::Result<Box<dyn Readiness>> {
        readiness::new()
    }

    fn sleep(&self, flag: &dyn Readiness, timeout: Duration) {
        readiness::sleep(flag, timeout);
    }

    fn serve(&self) -> io::Result<()> {
        match self.me.upgrade() {
            Some(port) => self.background.start(&port),
            None => Ok(()),
        }
    }

    fn tell_peers_at_end(&self) {
        exit::watch_signals();
    }

    fn flush(&self) {
        let mut driven = self.lock();
        self.doorbells.answer(&mut driven.datapath);
        driven.flush(clock::now());
        self.release(driven);
    }

    fn close(&self) {
        self.background.stop();
    }

    fn has_joined(&self) {
        if let Some(fd) = self.with_driven(|driven| driven.udp.groups.ready_fd()) {
            self.background.watch_groups(fd);
        }
    }
}

impl Drop for SocketPort {
    fn drop(&mut self) {
        if !self.is_ours() {
            // The background thread exists in the parent only, and can be neither joined nor detached here.
            std::mem::forget(std::mem::replace(&mut self.background, Arc::new(Background::new())));
            self.host.abandon();
            // The slot is not dropped: its descriptors are closed already.
            // So are those of the reports.
            std::mem::forget(std::mem::take(self.reports.get_mut().unwrap_or_else(PoisonError::into_inner)));
            return;
        }
        self.host.close();
        self.leave_slot();
        self.publish_last();
        fork::forget(self.lock().udp.raw_fds());
        #[expect(unsafe_code, reason = "the one place that decides whether the sockets are closed")]
        // SAFETY: `driven` is not used again: this is the end of the port.
        let driven = unsafe { ManuallyDrop::take(&mut self.driven) }.into_inner();
        if driven.udp.has_failed() {
            // A descriptor that was closed from outside may belong to something else by now.
            std::mem::forget(driven.udp);
        }
    }
}

#[cfg(test)]
mod tests;
