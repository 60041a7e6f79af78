//! Every interleaving of program threads and the background thread at a port, explored by loom.
//!
//! The hand-over is compiled here a second time, from the same source, with loom's atomics. The engine is a count of
//! work, the lock is loom's mutex, which excludes threads like the real one (loom does not model priorities), and the
//! descriptor that wakes the thread stays readable like the real one. Nothing else ever wakes the thread here: no
//! packet arrives, and no time passes. So work that is left behind is lost, which loom reports as a deadlock.

use handover::{Bell, Rest, Sleeper};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex, MutexGuard, Notify};
use loom::thread;

#[expect(clippy::duplicate_mod, reason = "once with each kind of atomics")]
#[path = "handover.rs"]
mod handover;

mod primitives {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
}

/// The state behind the lock.
#[derive(Default)]
struct Engine {
    /// Work that was taken in, and is left for a turn.
    undone: u32,
    done: u32,
    /// When the next timer is due.
    timer: Option<u64>,
}

struct Port {
    datapath: Mutex<Engine>,
    /// Work of threads that did not get the lock: the inboxes, and the list of doorbells.
    inbox: Mutex<u32>,
    bell: Bell,
    sleeper: Sleeper,
    wake: Notify,
    /// The current time: some passes before each post, and each check of the engine reads it with the lock held. loom
    /// switches between threads only at shared accesses, and this access makes it explore that the lock is found taken.
    now: AtomicU64,
}

type Guard<'a> = MutexGuard<'a, Engine>;

impl Port {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            datapath: Mutex::new(Engine::default()),
            inbox: Mutex::new(0),
            bell: Bell::new(),
            sleeper: Sleeper::new(),
            wake: Notify::new(),
            now: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> Guard<'_> {
        self.datapath.lock().expect("no panic")
    }

    /// Returns whether there is work, and when the next timer is due.
    fn look(&self, datapath: &Engine) -> (bool, Option<u64>) {
        let now = self.now.load(Ordering::Relaxed);
        (datapath.undone > 0, datapath.timer.map(|due| due.max(now)))
    }

    fn try_lock(&self) -> Option<Guard<'_>> {
        self.datapath.try_lock().ok()
    }

    /// As `Port::post_list`.
    fn post(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
        let datapath = match self.try_lock() {
            Some(mut datapath) => {
                datapath.undone += 1;
                Some(datapath)
            }
            None => {
                *self.inbox.lock().expect("no panic") += 1;
                self.bell.ring(|| self.try_lock())
            }
        };
        datapath.into_iter().for_each(|datapath| self.release(datapath));
    }

    /// As `Port::post_list`, for a request behind others that are in flight.
    fn post_for_later(&self) {
        let is_first = {
            let mut inbox = self.inbox.lock().expect("no panic");
            *inbox += 1;
            *inbox == 1
        };
        if is_first && self.bell.ring_for_later(&self.sleeper) {
            self.wake.notify();
        }
    }

    /// As `Port::release`.
    fn release<'a>(&'a self, datapath: Guard<'a>) {
        let serve = |datapath: &mut Guard<'a>, rings| {
            if rings {
                datapath.undone += std::mem::take(&mut *self.inbox.lock().expect("no panic"));
            }
            let wake = match datapath.timer {
                _ if datapath.undone > 0 => self.sleeper.has_to_know(),
                Some(due) => self.sleeper.sleeps_past(due),
                None => false,
            };
            if wake {
                self.wake.notify();
            }
        };
        self.bell.release(datapath, || self.try_lock(), serve, |()| {});
    }

    /// Takes a turn: all work that was taken in is done. Returns the total amount of work done.
    fn turn(&self) -> u32 {
        let mut datapath = self.lock();
        if self.bell.take() {
            datapath.undone += std::mem::take(&mut *self.inbox.lock().expect("no panic"));
        }
        datapath.done += std::mem::take(&mut datapath.undone);
        self.release(datapath);
        self.lock().done
    }

    /// As `Background::sleep`. Both unfinished work and a note about work are reasons not to sleep.
    fn sleep(&self, why: Rest) {
        let look = || {
            let ((work, timer), rings) = self.bell.look(self.lock(), |datapath| self.look(datapath));
            let until = if work || rings { 0 } else { timer.unwrap_or(u64::MAX) };
            (until, until)
        };
        // If there is a timeout, the thread wakes by itself.
        self.sleeper.sleep(why, look, |until| {
            if until == u64::MAX {
                self.wake.wait();
            }
        });
    }

    /// Runs the background thread until it has done this much work, or is stopped.
    fn serve_in_background(&self, work: u32) {
        while !self.sleeper.stops() && self.turn() < work {
            self.sleep(Rest::Blocked);
        }
    }
}

/// Explores all interleavings with at most this many forced switches between threads: lost work shows with two or
/// three.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn what_two_threads_post_at_once_is_taken_in() {
    loom::model(|| {
        let port = Port::new();
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.post())
        };
        port.post();
        other.join().expect("no panic");
        assert_eq!(*port.inbox.lock().expect("no panic"), 0, "word that nobody heard");
        assert_eq!(port.lock().undone, 2);
    });
}

#[test]
fn what_is_posted_while_the_thread_goes_to_sleep_is_done() {
    explore(|| {
        let port = Port::new();
        let background = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.serve_in_background(2))
        };
        port.post();
        port.post();
        background.join().expect("no panic");
        assert_eq!(port.lock().done, 2);
    });
}

#[test]
fn what_two_threads_post_while_the_thread_goes_to_sleep_is_done() {
    explore(|| {
        let port = Port::new();
        let spawn = |act: fn(&Port)| {
            let port = Arc::clone(&port);
            thread::spawn(move || act(&port))
        };
        let background = spawn(|port| port.serve_in_background(2));
        let other = spawn(Port::post);
        port.post();
        other.join().expect("no panic");
        background.join().expect("no panic");
        assert_eq!(port.lock().done, 2);
    });
}

#[test]
fn what_is_left_for_the_next_turn_while_the_thread_goes_to_sleep_is_done() {
    explore(|| {
        let port = Port::new();
        let background = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.serve_in_background(2))
        };
        port.post_for_later();
        port.post_for_later();
        background.join().expect("no panic");
        assert_eq!(port.lock().done, 2);
    });
}

#[test]
fn what_two_threads_leave_for_the_next_turn_is_done() {
    explore(|| {
        let port = Port::new();
        let spawn = |act: fn(&Port)| {
            let port = Arc::clone(&port);
            thread::spawn(move || act(&port))
        };
        let background = spawn(|port| port.serve_in_background(3));
        let other = spawn(Port::post_for_later);
        port.post();
        port.post_for_later();
        other.join().expect("no panic");
        background.join().expect("no panic");
        assert_eq!(port.lock().done, 3);
    });
}

/// A timer that is set while the thread sleeps for longer wakes it; here the timer is due immediately.
#[test]
fn a_timer_that_is_set_while_the_thread_goes_to_sleep_is_kept() {
    explore(|| {
        let port = Port::new();
        let background = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                while port.lock().timer.is_none() {
                    port.sleep(Rest::Blocked);
                }
            })
        };
        let mut datapath = port.lock();
        datapath.timer = Some(1);
        port.release(datapath);
        background.join().expect("no panic");
    });
}

/// The program leaves its last work undone while it polls, and then sleeps on a completion channel.
#[test]
fn the_thread_takes_over_from_a_program_that_sleeps() {
    explore(|| {
        let port = Port::new();
        let background = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                while !port.sleeper.takes_over() {
                    // In standby the thread leaves the engine to the program; here no time passes.
                    port.sleeper.sleep(Rest::Aside, || (u64::MAX, ()), |()| port.wake.wait());
                }
                port.serve_in_background(1);
            })
        };
        port.post();
        if port.sleeper.hand_over() {
            port.wake.notify();
        }
        background.join().expect("no panic");
    });
}

#[test]
fn the_thread_ends_when_it_is_told_to() {
    explore(|| {
        let port = Port::new();
        let background = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.serve_in_background(1))
        };
        port.sleeper.stop();
        port.wake.notify();
        background.join().expect("no panic");
    });
}
