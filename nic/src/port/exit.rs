//! What a program that simply exits still owes its peers.
//!
//! An acknowledgement may be held for a moment, for the program's answer to take it along. A program that exits without
//! closing its devices would take it to the grave, and its peer would repeat in vain until it gives up. And whoever reads
//! its published counters should find the last ones.

#![expect(unsafe_code, reason = "atexit is the one call that sees a program exit")]

use super::Port;
use super::fork::hold_forks;
use crate::queue::locked;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};

static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();

/// What else is to be done, after the ports.
static LAST: OnceLock<fn()> = OnceLock::new();

/// Runs when `main` returns or `exit` is called; not when the process is killed.
extern "C" fn at_exit() {
    // Whoever holds the list, or a port, may never run again: then there is nothing to be done.
    if let Ok(ports) = PORTS.try_lock() {
        for port in ports.iter().filter_map(Weak::upgrade).filter(|port| port.is_ours()) {
            port.let_go();
            port.publish_at_exit();
            port.end_captures();
        }
    }
    if let Some(last) = LAST.get() {
        last();
    }
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the handler is a plain function of this library, which is not unloaded before it runs. If there is
        // no room for it, a program that exits in mid-conversation may leave its peer to a timeout.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("cannot register an exit handler: close devices before exiting");
        }
    });
}

/// Has `last` run when the program exits: one function of this library, whenever it is given.
pub(crate) fn run_at_exit(last: fn()) {
    let _whole = hold_forks();
    install();
    LAST.get_or_init(|| last);
}

/// Has what `port` holds sent when the program exits.
pub(super) fn watch(port: &Arc<Port>) {
    let _whole = hold_forks();
    install();
    let mut ports = locked(&PORTS);
    ports.retain(|port| port.strong_count() > 0);
    ports.push(Arc::downgrade(port));
}
