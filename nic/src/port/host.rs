//! What a port knows of its host, and how its program hears of it.

use super::lane::Lane;
use super::{Port, fork};
use crate::engine::{EventNews, PortState};
use crate::net::{HostState, HostWatch};
use crate::queue::{Waiters, locked};
use nix::sys::eventfd::{EfdFlags, EventFd};
use qp::Mtu;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::task::Waker;

/// The host, as far as it bears on a port.
pub(super) struct Host {
    /// `None` in a simulation, and where the kernel does not tell.
    watch: Mutex<Option<HostWatch>>,
    /// How many changes it told of, and the last of them that the engine heard of: threads that look one after the other
    /// may come to the engine in another order.
    told: AtomicU64,
    heard: AtomicU64,
    /// The largest path MTU of new connections, as its code.
    active_mtu: AtomicU8,
    /// What the program allows of it.
    largest: Mtu,
    /// Readable while events wait. Made when first asked for.
    event_fd: OnceLock<Arc<EventFd>>,
    /// Tasks that await an event.
    waiters: Waiters,
}

impl Host {
    pub(super) fn new(watch: Option<HostWatch>, active_mtu: Mtu, largest: Mtu) -> Self {
        fork::close_in_child(watch.iter().map(|watch| watch.as_fd().as_raw_fd()));
        Self {
            watch: Mutex::new(watch),
            told: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            active_mtu: AtomicU8::new(active_mtu as u8),
            largest,
            event_fd: OnceLock::new(),
            waiters: Waiters::default(),
        }
    }

    /// The port is about to end in a forked child, where the descriptor is closed already. Nobody can hold the lock, but
    /// it may look as if somebody did.
    pub(super) fn abandon(&mut self) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(watch.take());
    }

    /// The port is about to end.
    pub(super) fn close(&self) {
        if let Some(watch) = locked(&self.watch).take() {
            fork::forget(std::iter::once(watch.as_fd().as_raw_fd()));
        }
    }
}

impl Port {
    /// Largest path MTU of new connections: what the interface carries now, and the program allows.
    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.host.active_mtu.load(Ordering::Relaxed)).unwrap_or(self.host.largest)
    }

    /// What is readable when something about the host may have changed.
    pub(super) fn watch_fd(&self) -> Option<RawFd> {
        locked(&self.host.watch).as_ref().map(|watch| watch.as_fd().as_raw_fd())
    }

    /// The number of the interface that has the port's address, or had it last, if the kernel tells.
    pub(crate) fn interface(&self) -> Option<u32> {
        locked(&self.host.watch).as_ref()?.state().interface
    }

    /// Takes in what the host did to the port's link and address since the last look.
    pub(crate) fn look_at_host(&self) {
        let mut guard = match self.host.watch.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody looks at this moment.
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(watch) = guard.as_mut() else { return };
        // Allocates only if something changed.
        let mut states = Vec::new();
        let looked = watch.look(|state| states.push((self.host.told.fetch_add(1, Ordering::Relaxed), state)));
        if let Err(error) = looked {
            tracing::error!(%error, address = %self.address, "the host's links and addresses cannot be watched any more");
            if let Some(background) = &self.background {
                background.forget_watch();
            }
            // As with the sockets: a descriptor that was closed from outside may be somebody else's by now.
            if let Some(watch) = guard.take() {
                fork::forget(std::iter::once(watch.as_fd().as_raw_fd()));
                std::mem::forget(watch);
            }
        }
        // Whoever waits for events is woken by what follows, and must not meet the lock.
        drop(guard);
        for (number, state) in states {
            self.note_host(number, state);
        }
    }

    fn note_host(&self, number: u64, state: HostState) {
        let HostState { address, link, .. } = state;
        let mtu = state.path_mtu().map(|mtu| mtu.min(self.host.largest));
        self.control(|engine| {
            if self.host.heard.fetch_max(number + 1, Ordering::Relaxed) > number {
                return;
            }
            engine.handle_port_state(PortState { address, link });
            if let Some(mtu) = mtu {
                engine.handle_mtu(mtu);
                self.host.active_mtu.store(mtu as u8, Ordering::Relaxed);
            }
        });
    }

    /// The descriptor that is readable while events wait.
    pub(crate) fn event_fd(&self) -> nix::Result<Arc<EventFd>> {
        if let Some(event) = self.host.event_fd.get() {
            return Ok(Arc::clone(event));
        }
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(self.with_lane(|lane| {
            // Another thread may have been faster.
            let event = Arc::clone(self.host.event_fd.get_or_init(|| Arc::new(event)));
            if !lane.engine.has_no_events() {
                self.show(EventNews::Added);
            }
            event
        }))
    }

    /// The tasks that await an event.
    pub(crate) fn event_waiters(&self) -> &Waiters {
        &self.host.waiters
    }

    /// Makes the descriptor readable, or not.
    fn show(&self, news: EventNews) {
        let Some(event) = self.host.event_fd.get() else { return };
        // Errors say that it is as it should be already: full, or empty.
        let _ = match news {
            EventNews::Added => event.write(1).map(drop),
            EventNews::Empty => event.read().map(drop),
        };
    }

    /// Whoever lets go of the engine looks after what is rare: events, and sockets that failed. `woken`: tasks to wake
    /// once no lock is held.
    pub(super) fn attend(&self, lane: &mut Lane, woken: &mut Vec<Waker>) {
        if lane.io.has_failed() && !lane.engine.has_failed() {
            lane.engine.fail();
            if let Some(background) = &self.background {
                background.forget_socket();
            }
        }
        let Some(news) = lane.engine.take_event_news() else { return };
        self.show(news);
        if news == EventNews::Added {
            self.host.waiters.take(woken);
        }
    }
}
