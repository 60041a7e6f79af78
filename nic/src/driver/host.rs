//! A port's knowledge of its host, and its program's access to it.

use super::SocketPort;
use super::shared::state_of;
use super::turns::Driven;
use crate::daemon::protocol::Host;
use crate::net::{HostState, HostWatch};
use crate::os::fork;
use qp::Mtu;
use rnic_core::engine::PortState;
use rnic_core::gid::NetInterface;
use rnic_core::port::{EventDesk, Port};
use rnic_core::queue::locked;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// The state of the host that concerns a port.
pub(super) struct HostView {
    /// `None` if the kernel does not report changes.
    watch: Mutex<Option<HostWatch>>,
    /// Number of changes reported so far, and the last one that the engine was given: threads that check one after the
    /// other may reach the engine in a different order.
    told: AtomicU64,
    heard: AtomicU64,
    /// The largest path MTU of new connections, as its code.
    active_mtu: AtomicU8,
    /// The program's limit for it.
    largest: Mtu,
    /// How its program learns of events.
    pub(super) events: EventDesk,
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
            events: EventDesk::default(),
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

    /// Largest path MTU of new connections: limited by the interface and by the program.
    pub(super) fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.active_mtu.load(Ordering::Relaxed)).unwrap_or(self.largest)
    }

    /// The interface that has, or last had, the port's address, if the kernel reports it.
    pub(super) fn interface(&self) -> Option<NetInterface> {
        let index = locked(&self.watch).as_ref()?.state().interface?;
        let name = nix::net::if_::if_indextoname(index).ok()?;
        Some(NetInterface { index, name: name.to_string_lossy().into_owned() })
    }
}

impl SocketPort {
    /// The descriptor that is readable when something about the host may have changed.
    pub(super) fn watch_fd(&self) -> Option<RawFd> {
        locked(&self.host.watch).as_ref().map(|watch| watch.as_fd().as_raw_fd())
    }

    /// Processes changes of the port's link and address since the last check.
    pub(super) fn check_host(&self) {
        self.check_daemon();
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
            self.background.forget_watch();
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

    /// The daemon has reported a change.
    pub(super) fn note_host_of_daemon(&self, host: &Host) {
        self.note_host(self.host.told.fetch_add(1, Ordering::Relaxed), state_of(host));
    }

    fn note_host(&self, number: u64, state: HostState) {
        let HostState { address, link, .. } = state;
        let mtu = state.path_mtu().map(|mtu| mtu.min(self.host.largest));
        let port: &dyn Port = self;
        port.control(|engine| {
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

    /// The sockets are unusable: the device fails.
    #[cold]
    pub(super) fn fail(&self, driven: &mut Driven) {
        if !driven.datapath.engine.has_failed() {
            driven.datapath.engine.fail();
            self.background.forget_socket();
        }
    }
}
