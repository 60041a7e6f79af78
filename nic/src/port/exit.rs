//! What a program that simply exits still owes its peers.
//!
//! An acknowledgement may be held for a moment, for the program's answer to take it along. A program that exits without
//! closing its devices would take it to the grave, and its peer would repeat in vain until it gives up. And whoever reads
//! its published counters should find the last ones.

#![expect(unsafe_code, reason = "atexit is the one call that sees a program exit")]

use super::Port;
use super::fork::hold_forks;
use crate::explain;
use crate::queue::locked;
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;

/// How long a program that exits waits for a thread that may be explaining what it exits for.
const PATIENCE: Duration = Duration::from_secs(1);

static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();

/// What else is to be done, after the ports.
static LAST: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Runs when `main` returns or `exit` is called; not when the process is killed.
extern "C" fn at_exit() {
    // Whoever holds the list, or a port, may never run again: then there is nothing to be done.
    if let Ok(ports) = PORTS.try_lock() {
        for port in ports.iter().filter_map(Weak::upgrade).filter(|port| port.is_ours()) {
            if explain::is_on() {
                port.end_turn(PATIENCE);
            }
            port.let_go();
            port.publish_at_exit();
            port.end_captures();
        }
    }
    if let Ok(last) = LAST.try_lock() {
        last.iter().for_each(|last| last());
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

/// Has `last` run when the program exits.
pub(crate) fn run_at_exit(last: fn()) {
    let _whole = hold_forks();
    install();
    locked(&LAST).push(last);
}

/// Has what `port` holds sent when the program exits.
pub(super) fn watch(port: &Arc<Port>) {
    let _whole = hold_forks();
    install();
    let mut ports = locked(&PORTS);
    ports.retain(|port| port.strong_count() > 0);
    ports.push(Arc::downgrade(port));
}
