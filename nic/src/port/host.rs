//! A port's knowledge of its host, and its program's access to it.

use super::datapath::Datapath;
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

/// The state of the host that concerns a port.
pub(super) struct HostView {
    /// `None` in a simulation, and if the kernel does not report changes.
    watch: Mutex<Option<HostWatch>>,
    /// Number of changes reported so far, and the last one that the engine was given: threads that check one after the
    /// other may reach the engine in a different order.
    told: AtomicU64,
    heard: AtomicU64,
    /// The largest path MTU of new connections, as its code.
    active_mtu: AtomicU8,
    /// The program's limit for it.
    largest: Mtu,
    /// Readable while events are pending. Created on first use.
    event_fd: OnceLock<Arc<EventFd>>,
    /// Tasks that await an event.
    waiters: Waiters,
}

impl HostView {
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

    /// Called before the port is dropped in a forked child, where the descriptor is closed already. No thread can hold
    /// the lock, but it may appear locked.
    pub(super) fn abandon(&mut self) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(watch.take());
    }

    /// Called before the port is dropped.
    pub(super) fn close(&self) {
        if let Some(watch) = locked(&self.watch).take() {
            fork::forget(std::iter::once(watch.as_fd().as_raw_fd()));
        }
    }
}

impl Port {
    /// Largest path MTU of new connections: limited by the interface and by the program.
    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.host.active_mtu.load(Ordering::Relaxed)).unwrap_or(self.host.largest)
    }

    /// The descriptor that is readable when something about the host may have changed.
    pub(super) fn watch_fd(&self) -> Option<RawFd> {
        locked(&self.host.watch).as_ref().map(|watch| watch.as_fd().as_raw_fd())
    }

    /// The number of the interface that has, or last had, the port's address, if the kernel reports it.
    pub(crate) fn interface(&self) -> Option<u32> {
        locked(&self.host.watch).as_ref()?.state().interface
    }

    /// Processes changes of the port's link and address since the last check.
    pub(crate) fn look_at_host(&self) {
        let mut guard = match self.host.watch.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is checking at this moment.
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
            // As with the sockets: a descriptor that was closed from outside may belong to something else by now.
            if let Some(watch) = guard.take() {
                fork::forget(std::iter::once(watch.as_fd().as_raw_fd()));
                std::mem::forget(watch);
            }
        }
        // The following steps wake tasks that wait for events; these must not find the lock taken.
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

    /// The descriptor that is readable while events are pending.
    pub(crate) fn event_fd(&self) -> nix::Result<Arc<EventFd>> {
        if let Some(event) = self.host.event_fd.get() {
            return Ok(Arc::clone(event));
        }
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(self.with_datapath(|datapath| {
            // Another thread may have been faster.
            let event = Arc::clone(self.host.event_fd.get_or_init(|| Arc::new(event)));
            if !datapath.engine.has_no_events() {
                self.show(EventNews::Added);
            }
            event
        }))
    }

    /// The tasks that await an event.
    pub(crate) fn event_waiters(&self) -> &Waiters {
        &self.host.waiters
    }

    /// Sets whether the descriptor is readable.
    fn show(&self, news: EventNews) {
        let Some(event) = self.host.event_fd.get() else { return };
        // Errors mean that the descriptor is already in the desired state: full, or empty.
        let _ = match news {
            EventNews::Added => event.write(1).map(drop),
            EventNews::Empty => event.read().map(drop),
        };
    }

    /// Called before the engine is released, to handle rare conditions: events, and sockets that failed. `woken`: tasks
    /// to wake once no lock is held.
    pub(super) fn attend(&self, datapath: &mut Datapath, woken: &mut Vec<Waker>) {
        if datapath.io.has_failed() && !datapath.engine.has_failed() {
            datapath.engine.fail();
            if let Some(background) = &self.background {
                background.forget_socket();
            }
        }
        let Some(news) = datapath.engine.take_event_news() else { return };
        self.show(news);
        if news == EventNews::Added {
            self.host.waiters.take(woken);
        }
    }
}
