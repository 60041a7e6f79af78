//! A port at an address that several processes share: what it hears from the daemon, and what it tells it.

use super::SocketPort;
use crate::clock;
use crate::daemon::protocol::{Datagram, Host, LedgerEntry};
use crate::daemon::{Desk, News, Slot};
use crate::net::{HostState, HostWatch};
use crate::process::Report;
use rnic_core::gid::NetInterface;
use rnic_core::port::Port;
use std::mem::ManuallyDrop;
use time::Instant;

/// Where a port learns of the host that it is on.
pub(crate) enum Site {
    /// From the kernel; `None` if that does not report changes.
    Host(Option<HostWatch>),
    /// From the daemon, whose address it shares.
    Slot(Box<Slot>),
}

/// The state of a port's address and link.
pub(super) type PortAt = HostState;

impl Site {
    /// The state of the host, as far as it is known.
    pub(crate) fn state(&self) -> Option<HostState> {
        match self {
            Self::Host(watch) => watch.as_ref().map(HostWatch::state),
            Self::Slot(slot) => Some(state_of(&slot.host())),
        }
    }
}

/// What the daemon says of its host.
pub(crate) fn state_of(host: &Host) -> HostState {
    let interface = host.interface.as_ref().map(|(index, _)| *index);
    HostState { address: host.address, link: host.link, mtu: host.mtu, interface }
}

impl SocketPort {
    /// The interface of the daemon's host that has the address.
    pub(super) fn interface_of_slot(&self) -> Option<NetInterface> {
        let (index, name) = self.slot.as_ref()?.host().interface?;
        Some(NetInterface { index, name })
    }

    /// When the daemon is to be looked for, if it is away.
    pub(super) fn next_look_at_daemon(&self) -> Option<Instant> {
        self.slot.as_ref()?.next_look()
    }

    /// Takes in what the daemon has said.
    pub(super) fn check_daemon(&self) {
        let Some(slot) = self.slot.as_ref() else { return };
        for news in slot.look(clock::now()) {
            match news {
                News::Host(host) => self.note_host_of_daemon(&host),
                News::Datagram(datagram) => self.take_in_passed_on(&datagram),
                News::Back => {
                    // A device that has failed has nothing to tell.
                    let _ = (self as &dyn Port).control(|engine| engine.open_ledger());
                    Desk::at(slot.path()).return_to();
                    self.publish_for_daemon();
                }
                News::Over(why) => self.lose_slot(&why),
            }
        }
        self.background.watch_daemon(slot.raw_fds());
    }

    /// Publishes in the files of the daemon, if it has sent new ones.
    pub(crate) fn publish_for_daemon(&self) {
        let Some(slot) = self.slot.as_ref() else { return };
        if let Some(files) = slot.take_report() {
            self.publish_in(Report::for_daemon(files, slot.device(), self.address));
        }
    }

    /// Tells the daemon who listens and what is connected, as far as that has changed.
    pub(super) fn tell_daemon(&self) {
        let Some(slot) = self.slot.as_ref() else { return };
        let has_news = slot.tell(clock::now(), || {
            self.with_driven(|driven| {
                let engine = &mut driven.datapath.engine;
                std::iter::from_fn(|| engine.poll_ledger()).map(LedgerEntry::from).collect()
            })
        });
        if has_news {
            self.background.look_at_daemon();
        }
    }

    /// A datagram of connection management, which the daemon received.
    fn take_in_passed_on(&self, datagram: &Datagram) {
        let Some(mad) = datagram.mad() else { return };
        let Datagram { from, port, to, .. } = *datagram;
        (self as &dyn Port).control(|engine| engine.handle_passed_on(clock::now(), (from, port), to, mad));
    }

    /// The slot is gone: packets for this port reach somebody else, or nobody.
    fn lose_slot(&self, why: &str) {
        let mut driven = self.lock();
        if !driven.datapath.engine.has_failed() {
            tracing::error!(why, address = %self.address, "the device fails: its address is shared out by the daemon no more");
            eprintln!("rnic: the device at {} has failed: {why}", self.address);
            self.fail(&mut driven);
        }
        self.release(driven);
    }

    /// Called before the port is dropped.
    pub(super) fn leave_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.close();
            drop(ManuallyDrop::into_inner(slot));
        }
    }
}
