//! How the driving of the engine goes from one thread to another, so that nothing is left behind.
//!
//! Two rules. Who does not get the lock leaves word, and looks whether the lock is free since; who lets go of the lock looks
//! whether there is word since ([`Bell`]). And the background thread says that it sleeps before it looks for the last time
//! whether there is work; who leaves work looks afterwards whether it sleeps ([`Sleeper`]). `model.rs` tries all orders.

use super::primitives::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

/// Word for whoever has the lock that there is work which it does not know of.
pub(super) struct Bell(AtomicBool);

impl Bell {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Leaves word of work that was put down before. Returns the lock if nobody has it, to be [released](Self::release).
    pub(super) fn ring<G>(&self, try_lock: impl FnOnce() -> Option<G>) -> Option<G> {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence in `rings`: either the holder sees the word, or we get the lock.
        fence(Ordering::SeqCst);
        try_lock()
    }

    /// Whether there has been word since the lock was let go of.
    fn rings(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// Lets go of the lock. Before, and again if there is word meanwhile and nobody else has the lock, `serve` is run with
    /// whether there was word; and after each time, without the lock, `after` with what it gave.
    pub(super) fn release<G, R>(
        &self,
        mut guard: G,
        try_lock: impl Fn() -> Option<G>,
        mut serve: impl FnMut(&mut G, bool) -> R,
        mut after: impl FnMut(R),
    ) {
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word {
                // Work of word that comes between the two was put down before it, and is found with the rest.
                self.0.store(false, Ordering::Relaxed);
            }
            let served = serve(&mut guard, word);
            drop(guard);
            after(served);
            if !self.rings() {
                return;
            }
            match try_lock() {
                Some(again) => guard = again,
                None => return,
            }
        }
    }

    /// Looks at what is behind the lock, without serving it, and returns also whether somebody found the lock taken
    /// meanwhile: whoever looked must not sleep then, because nobody else will serve that.
    pub(super) fn look<G, R>(&self, guard: G, look: impl FnOnce(&G) -> R) -> (R, bool) {
        let found = look(&guard);
        drop(guard);
        (found, self.rings())
    }
}

/// The thread runs, or does not exist.
const AWAKE: u8 = 0;

/// Why the thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Rest {
    /// The program polls; the thread looks again soon.
    Aside = 1,
    /// The thread waits for packets, timers and wishes.
    Blocked = 2,
}

/// What the background thread and those who may want it say to each other.
pub(super) struct Sleeper {
    /// `AWAKE`, or why the thread sleeps.
    mode: AtomicU8,
    /// When the thread wakes by itself.
    until: AtomicU64,
    /// The program is about to sleep, and wants the thread to take over at once.
    handover: AtomicBool,
    stop: AtomicBool,
}

impl Sleeper {
    pub(super) fn new() -> Self {
        Self {
            mode: AtomicU8::new(AWAKE),
            until: AtomicU64::new(u64::MAX),
            handover: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    fn rests(&self, why: Rest) -> bool {
        self.mode.load(Ordering::Relaxed) == why as u8
    }

    /// Work was left undone, under the lock. Whether the thread has to be woken: in standby the program polls, and does it
    /// itself.
    pub(super) fn has_to_know(&self) -> bool {
        self.rests(Rest::Blocked)
    }

    /// The engine's next timer changed, under the lock. Whether the thread sleeps for longer.
    pub(super) fn sleeps_past(&self, due: u64) -> bool {
        self.rests(Rest::Blocked) && self.until.load(Ordering::Relaxed) > due
    }

    /// The program is about to sleep. Whether the thread has to be woken: blocked, it serves the port already; only from
    /// standby it has to be fetched.
    pub(super) fn hand_over(&self) -> bool {
        self.handover.store(true, Ordering::Relaxed);
        // Pairs with the fence in `sleep`: either the thread sees this, or we see that it stands aside.
        fence(Ordering::SeqCst);
        self.rests(Rest::Aside)
    }

    /// Whether the program has handed over since the last time.
    pub(super) fn takes_over(&self) -> bool {
        let handed_over = self.handover.load(Ordering::Relaxed);
        if handed_over {
            // Another time that comes between the two is taken for this one.
            self.handover.store(false, Ordering::Relaxed);
        }
        handed_over
    }

    /// The thread is to end; it has to be woken.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Whether the thread is to end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps: by `wait`, until the instant that `look` names, which takes the lock to find out, or until it is woken. What
    /// wakes it must last: it may come before `wait`. Returns nothing if there was a reason not to sleep.
    pub(super) fn sleep<L, R>(
        &self,
        why: Rest,
        look: impl FnOnce() -> (u64, L),
        wait: impl FnOnce(L) -> R,
    ) -> Option<R> {
        self.until.store(u64::MAX, Ordering::Relaxed);
        self.mode.store(why as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Only now: whoever changes something from here on sees the mode, and what changed before is seen here.
        let (until, found) = look();
        self.until.store(until, Ordering::Relaxed);
        let wanted = self.stops() || self.handover.load(Ordering::Relaxed);
        let result = (!wanted).then(|| wait(found));
        self.mode.store(AWAKE, Ordering::Relaxed);
        result
    }
}
