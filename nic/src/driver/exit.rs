//! Obligations of an exiting program to its peers.
//!
//! An acknowledgement may be held briefly, so that the program's reply can carry it. If a program exits without closing
//! its devices, the acknowledgement would be lost, and its peer would retransmit in vain until it gives up. The peers of its
//! connections are told that they are closed, also if a [signal](ending) ends the process. And a reader of its published
//! counters should find their final values.

#![expect(unsafe_code, reason = "atexit is the one call that sees a program exit")]

use super::SocketPort;
use crate::clock;
use crate::os::ending;
use crate::os::fork::hold_forks;
use rnic_core::port::Port as _;
use rnic_core::queue::locked;
use std::sync::{Arc, Mutex, Once, Weak};
use time::Duration;

/// How long an exiting program waits for a thread that drives the engine, which may be explaining the reason for the
/// exit, or may have ended while it held the lock.
const PATIENCE: Duration = Duration::from_secs(1);

static PORTS: Mutex<Vec<Weak<SocketPort>>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();

/// Additional work after the ports.
static LAST: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Runs when `main` returns or `exit` is called, but not when the process is killed.
extern "C" fn at_exit() {
    settle_all();
    if let Ok(last) = LAST.try_lock() {
        last.iter().for_each(|last| last());
    }
}

/// Settles all ports of this process.
fn settle_all() {
    // The holder of the list, or of a port, may never run again: in this case nothing can be done.
    if let Ok(ports) = PORTS.try_lock() {
        for port in ports.iter().filter_map(Weak::upgrade).filter(|port| port.is_ours()) {
            port.settle();
        }
    }
}

/// Settles all ports before a signal ends the process, too: there are peers that wait to be told.
pub(super) fn watch_signals() {
    if let Err(error) = ending::tell_before(settle_all) {
        tracing::warn!(%error, "if a signal ends the process, its peers are not told");
    }
}

impl SocketPort {
    /// Sends a held acknowledgement, closes connections, ends captures (they are valid without this, but shorter with it), and publishes the
    /// final counters. The turn of a thread that drives the engine ends first: a program sees a completion before the
    /// thread that delivers it has explained it.
    fn settle(&self) {
        let Some(mut driven) = self.lock_within(PATIENCE) else { return };
        driven.let_go(clock::now());
        if driven.datapath.engine.close_connections(clock::now()) {
            driven.flush(clock::now());
        }
        driven.datapath.link.remove_observers(rnic_core::instrument::CAPTURE);
        let counters = driven.counters();
        self.release(driven);
        self.publish_at_exit(&counters);
    }
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the handler is a plain function of this library, which is not unloaded before it runs. If its
        // registration finds no room, a program that exits in mid-conversation may leave its peer to a timeout.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("cannot register an exit handler: close devices before exiting");
        }
    });
}

/// Makes `last` run when the program exits.
pub(crate) fn run_at_exit(last: fn()) {
    let _whole = hold_forks();
    install();
    locked(&LAST).push(last);
}

/// Sends what `port` holds when the program exits.
pub(super) fn watch(port: &Arc<SocketPort>) {
    let _whole = hold_forks();
    install();
    let mut ports = locked(&PORTS);
    ports.retain(|port| port.strong_count() > 0);
    ports.push(Arc::downgrade(port));
}
