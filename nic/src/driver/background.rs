//! The thread that serves a port when the program does not poll.
//!
//! While the program polls, the thread leaves the socket alone. Once polling stops, the thread takes over: it drives the
//! engine, spins briefly after each activity, then blocks until a packet, a timer or a request arrives. `attend` decides
//! when; the thread does what is decided.

#![expect(unsafe_code, reason = "ppoll takes a list that nix wants borrowed from objects that may go away")]

use super::SocketPort;
use super::attend::{Attendance, Next, Stance};
use super::handover::{Rest, Sleeper};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rnic_core::port::Port as _;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use time::{Duration, Instant};

/// How late the kernel may wake the thread for a timer, in nanoseconds. Pacing and emulated links wait for tens of
/// microseconds; the default of 50 us would double that, and more than triple the time for which the thread steps aside.
const TIMER_SLACK: u64 = 1_000;

/// How often the thread checks for changes of the host while it is too busy to sleep. A sleeping thread is notified
/// immediately.
const LOOK: Duration = Duration::from_millis(10);

/// A standby: the thread rests until the timer expires, which the program's polls put off.
struct Standby {
    timer: TimerFd,
    /// Its period in nanoseconds; 0 while the thread does not stand by.
    period: AtomicU64,
}

impl Standby {
    fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self { timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?, period: AtomicU64::new(0) })
    }

    /// Makes the timer expire after `period`, and not before.
    fn put_off(&self, period: Duration) {
        let after = Expiration::OneShot(TimeSpec::from_duration(period));
        // The kernel refuses only times that do not exist.
        let _ = self.timer.set(after, TimerSetTimeFlags::empty());
    }
}

/// What the thread waits for, other than requests and changes of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Listen {
    Nothing,
    /// The end of the standby.
    Standby,
    Packets,
}

/// What woke the thread. Nothing of it: a request, or the time.
#[derive(Clone, Copy, Default)]
struct Woken {
    /// The host changed, or the daemon said something.
    host_changed: bool,
    /// The program has not polled for the period of the standby.
    period_ended: bool,
}

/// The background thread of a port, or its state before it is started.
pub(super) struct Background {
    /// Wakes the thread. Created with the thread.
    wake: OnceLock<EventFd>,
    /// Created with the thread.
    standby: OnceLock<Standby>,
    /// The thread's sleep state. Its instants are nanoseconds after `epoch`.
    sleeper: Sleeper,
    epoch: Instant,
    socket: AtomicI32,
    /// Readable when a multicast group has packets; -1 before the first group.
    groups: AtomicI32,
    /// Readable when something about the host may have changed.
    watch: AtomicI32,
    /// Readable when the daemon says something, and when it and its keeper are gone; -1 without a daemon.
    daemon: [AtomicI32; 2],
    /// The daemon is to be looked at although neither is readable.
    looks: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    pub(super) fn new() -> Self {
        Self {
            wake: OnceLock::new(),
            standby: OnceLock::new(),
            sleeper: Sleeper::new(),
            epoch: crate::clock::now(),
            socket: AtomicI32::new(-1),
            groups: AtomicI32::new(-1),
            watch: AtomicI32::new(-1),
            daemon: [const { AtomicI32::new(-1) }; 2],
            looks: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread when the first queue pair can receive: before that there is nothing to serve.
    pub(super) fn start(self: &Arc<Self>, port: &Arc<SocketPort>) -> std::io::Result<()> {
        let mut thread = rnic_core::queue::locked(&self.thread);
        if thread.is_some() {
            return Ok(());
        }
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let _ = self.standby.set(Standby::new()?);
        let _ = self.wake.set(wake);
        self.socket.store(port.with_driven(|driven| driven.udp.receive_fd()), Ordering::Relaxed);
        self.watch.store(port.watch_fd().unwrap_or(-1), Ordering::Relaxed);
        if let Some(slot) = &port.slot {
            self.watch_daemon(slot.raw_fds());
        }
        let background = Arc::clone(self);
        let port = Arc::downgrade(port);
        let named = std::thread::Builder::new().name("rnic".into());
        // Signals belong to the program: they must not be delivered to a thread that it does not know.
        let mut all = nix::sys::signal::SigSet::all();
        all.remove(nix::sys::signal::Signal::SIGSEGV);
        all.remove(nix::sys::signal::Signal::SIGBUS);
        let before = all.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
        let started = named.spawn(move || background.run_until_panic(&port));
        before.thread_set_mask()?;
        *thread = Some(started?);
        Ok(())
    }

    /// Makes the thread wait for multicast groups as well.
    pub(super) fn watch_groups(&self, fd: RawFd) {
        if self.groups.swap(fd, Ordering::SeqCst) != fd {
            // A blocked thread does not wait on the new descriptor yet.
            self.signal();
        }
    }

    /// Makes the thread wait for the daemon as well.
    pub(super) fn watch_daemon(&self, fds: [RawFd; 2]) {
        for (place, fd) in self.daemon.iter().zip(fds) {
            place.store(fd, Ordering::Relaxed);
        }
    }

    /// Makes the thread look at the daemon now.
    pub(super) fn look_at_daemon(&self) {
        self.looks.store(true, Ordering::Relaxed);
        self.signal();
    }

    /// Stops the thread and joins it.
    pub(super) fn stop(&self) {
        self.give_up();
        let thread = rnic_core::queue::locked(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic in the thread was caught there.
            let _ = thread.join();
        }
    }

    /// Makes the thread end: the engine must not be driven any more.
    pub(super) fn give_up(&self) {
        self.sleeper.stop();
        self.signal();
    }

    /// Returns whether the thread was started and has ended.
    #[cfg(test)]
    pub(super) fn has_ended(&self) -> bool {
        rnic_core::queue::locked(&self.thread).as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// The program is about to sleep.
    pub(super) fn take_over(&self) {
        if self.sleeper.hand_over() {
            self.signal();
        }
    }

    /// The socket is permanently unusable.
    pub(super) fn forget_socket(&self) {
        self.socket.store(-1, Ordering::Relaxed);
    }

    /// The host is no longer monitored.
    pub(super) fn forget_watch(&self) {
        self.watch.store(-1, Ordering::Relaxed);
    }

    /// The period of the standby, if the thread stands by.
    #[inline]
    pub(super) fn standby_period(&self) -> Option<Duration> {
        let period = self.standby.get()?.period.load(Ordering::Relaxed);
        (period > 0).then(|| Duration::from_nanos(period))
    }

    /// The program polls: a thread that stands by need not look for this time.
    pub(super) fn put_off(&self, period: Duration) {
        if let Some(standby) = self.standby.get() {
            standby.put_off(period);
        }
    }

    /// Returns whether the thread exists.
    pub(super) fn is_there(&self) -> bool {
        self.wake.get().is_some()
    }

    /// The thread's sleep state.
    pub(super) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Work was left undone. In standby the program polls and does the work itself; a blocked thread must be woken.
    pub(super) fn wake_now(&self) {
        if self.sleeper.has_to_know() {
            self.signal();
        }
    }

    /// Ensures that the thread is awake when the engine's next timer is due.
    pub(super) fn wake_before(&self, due: Option<Instant>) {
        let Some(due) = due else { return };
        if self.sleeper.sleeps_past(self.nanos(due)) {
            self.signal();
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Wakes the thread.
    pub(super) fn signal(&self) {
        if let Some(wake) = self.wake.get() {
            // The write fails only if the counter is full: then the thread is about to wake anyway.
            let _ = wake.write(1);
        }
    }

    fn run_until_panic(&self, port: &Weak<SocketPort>) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run(port)));
        if ended.is_err()
            && let Some(port) = port.upgrade()
        {
            eprintln!(
                "rnic: a bug in rnic stopped the thread of the device at {}: the device has failed, and its calls return EIO",
                port.address
            );
            port.fail_after_panic();
        }
    }

    fn run(&self, port: &Weak<SocketPort>) {
        // If this is refused, timers are only less precise.
        let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK);
        let mut next_look = crate::clock::now();
        let mut attendance = Attendance::new(next_look);
        while !self.sleeper.stops() {
            let Some(port) = port.upgrade() else { break };
            let now = crate::clock::now();
            if now >= next_look || self.looks.swap(false, Ordering::Relaxed) {
                port.check_host();
                next_look = now + LOOK;
            }
            let publish = port.publish_if_due(now);
            let absent = port.next_look_at_daemon();
            next_look = absent.map_or(next_look, |at| at.min(next_look));
            let next = publish.into_iter().chain(absent).min();
            let polls = port.polls.load(Ordering::Relaxed);
            let woken = match attendance.look(now, polls, self.sleeper.takes_over()) {
                Stance::StandBy { period } => {
                    port.sweep();
                    drop(port);
                    let woken = self.stand_by(period, attendance.begins_period(), next);
                    if woken.period_ended {
                        attendance.period_ended();
                    }
                    woken
                }
                Stance::Drive => {
                    let (busy, reply_by) = port.background_turn();
                    match attendance.turned(crate::clock::now(), busy, reply_by) {
                        Next::Spin => Woken::default(),
                        Next::StepAside { until } => {
                            drop(port);
                            self.rest_until(until)
                        }
                        Next::Block => self.sleep(Rest::Blocked, move || {
                            // The port may go away while the thread waits.
                            let (due, listens) = port.next_wanted();
                            let listen = if listens { Listen::Packets } else { Listen::Nothing };
                            (due.into_iter().chain(next).min(), listen)
                        }),
                    }
                }
            };
            if woken.host_changed {
                next_look = now;
            }
        }
    }

    /// Leaves the port to the program until it has not polled for the period, hands over, or the instant comes. `begins`: the
    /// period begins now; otherwise it goes on.
    fn stand_by(&self, period: Duration, begins: bool, until: Option<Instant>) -> Woken {
        let Some(standby) = self.standby.get() else { return Woken::default() };
        if begins {
            standby.put_off(period);
        }
        standby.period.store(u64::try_from(period.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        let woken = self.sleep(Rest::Aside, || (until, Listen::Standby));
        standby.period.store(0, Ordering::Relaxed);
        woken
    }

    /// Leaves the port to the program until then, or until the program hands over.
    fn rest_until(&self, until: Instant) -> Woken {
        self.sleep(Rest::Aside, || (Some(until), Listen::Nothing))
    }

    /// Sleeps until the instant that `until` returns, a request, a change of the host, or what `until` asks for.
    fn sleep(&self, why: Rest, until: impl FnOnce() -> (Option<Instant>, Listen)) -> Woken {
        let Some(wake) = self.wake.get() else { return Woken::default() };
        let look = || {
            let (until, listen) = until();
            (until.map_or(u64::MAX, |at| self.nanos(at)), (until, listen))
        };
        let wait = |(until, listen): (Option<Instant>, Listen)| {
            let timeout = until.map(|at| at.saturating_duration_since(crate::clock::now()));
            let [first, second] = match listen {
                Listen::Nothing => [-1, -1],
                Listen::Standby => [self.standby.get().map_or(-1, |s| s.timer.as_fd().as_raw_fd()), -1],
                Listen::Packets => [self.socket.load(Ordering::Relaxed), self.groups.load(Ordering::SeqCst)],
            };
            let watch = self.watch.load(Ordering::Relaxed);
            let [line, life] = self.daemon.each_ref().map(|fd| fd.load(Ordering::Relaxed));
            let fds = [wake.as_fd().as_raw_fd(), first, second, watch, line, life];
            let [woken, first, _, changed, said, ended] = wait_readable(fds, timeout);
            if woken {
                // Resets the counter. It is not zero, because no other thread reads it.
                let _ = wake.read();
            }
            Woken { host_changed: changed || said || ended, period_ended: first && listen == Listen::Standby }
        };
        self.sleeper.sleep(why, look, wait).unwrap_or_default()
    }
}

/// Waits until one of the descriptors is readable, and returns which ones are; negative ones are ignored.
fn wait_readable<const N: usize>(fds: [RawFd; N], timeout: Option<Duration>) -> [bool; N] {
    let mut list = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(i32::try_from(t.subsec_nanos()).unwrap_or(0)),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let len = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: the list and the timeout outlive the call; a descriptor that was closed meanwhile yields POLLNVAL.
    // Whatever the result, the caller checks for work again.
    unsafe { libc::ppoll(list.as_mut_ptr(), len, timeout, std::ptr::null()) };
    list.map(|polled| polled.revents != 0)
}
