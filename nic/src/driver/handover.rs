//! Handing the engine from one driving thread to another without losing work.
//!
//! There are two rules. First, a thread that does not get the lock leaves a note, and then tries the lock again; a
//! thread that releases the lock then checks for a note ([`Bell`]). Second, the background thread announces that it
//! sleeps before its last check for work; a thread that leaves work, or a note, checks afterwards whether the background
//! thread sleeps ([`Sleeper`]). `model.rs` tries all interleavings.

use super::primitives::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

/// Notes to the holder of the lock that there is work it does not know of.
pub(super) struct Bell {
    /// The work is to be done before the lock is released.
    now: AtomicBool,
    /// The work may wait for the next turn.
    later: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Self {
        Self { now: AtomicBool::new(false), later: AtomicBool::new(false) }
    }

    /// Leaves a note about work that was queued before. Returns the lock if it is free, to be
    /// [released](Self::release).
    pub(super) fn ring<G>(&self, try_lock: impl FnOnce() -> Option<G>) -> Option<G> {
        self.now.store(true, Ordering::Relaxed);
        // Pairs with the fence in `rings`: either the holder sees the note, or we get the lock.
        fence(Ordering::SeqCst);
        try_lock()
    }

    /// Leaves a note about work that was queued before, for the next turn. Returns whether the background thread must be
    /// woken for that.
    pub(super) fn ring_for_later(&self, sleeper: &Sleeper) -> bool {
        self.later.store(true, Ordering::Relaxed);
        // Pairs with the fence in `look`: either the thread sees the note, or we see that it is about to sleep.
        fence(Ordering::SeqCst);
        sleeper.has_to_know()
    }

    /// Takes all notes; returns whether there was one. Called under the lock, before the work is looked for.
    pub(super) fn take(&self) -> bool {
        // If another note arrives between the two accesses, its work was queued before it, and is found with the rest.
        [&self.now, &self.later].into_iter().fold(false, |found, note| {
            let is_there = note.load(Ordering::Relaxed);
            if is_there {
                note.store(false, Ordering::Relaxed);
            }
            found | is_there
        })
    }

    /// Returns whether a note about work that cannot wait was left since the lock was released.
    fn rings(&self) -> bool {
        fence(Ordering::SeqCst);
        self.now.load(Ordering::Relaxed)
    }

    /// Releases the lock. Before each release, runs `serve` with whether there was a note about work that cannot wait;
    /// after it, without the lock, runs `after` with the result of `serve`. Repeats this if there is a new note and the lock
    /// is free.
    pub(super) fn release<G, R>(
        &self,
        mut guard: G,
        try_lock: impl Fn() -> Option<G>,
        mut serve: impl FnMut(&mut G, bool) -> R,
        mut after: impl FnMut(R),
    ) {
        loop {
            let word = self.now.load(Ordering::Relaxed) && self.take();
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

    /// Inspects what the lock protects, without serving it. Also returns whether there is a note: then the caller must
    /// not sleep, because no other thread may serve that work.
    pub(super) fn look<G, R>(&self, guard: G, look: impl FnOnce(&G) -> R) -> (R, bool) {
        let found = look(&guard);
        drop(guard);
        (found, self.rings() || self.later.load(Ordering::Relaxed))
    }
}

/// The thread runs, or does not exist.
const AWAKE: u8 = 0;

/// The mode in which the thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Rest {
    /// The program polls; the thread checks again soon.
    Aside = 1,
    /// The thread waits for packets, timers and requests.
    Blocked = 2,
}

/// Communication between the background thread and the threads that may need it.
pub(super) struct Sleeper {
    /// `AWAKE`, or the mode in which the thread sleeps.
    mode: AtomicU8,
    /// When the thread wakes by itself.
    until: AtomicU64,
    /// The program is about to sleep, and requests that the thread take over immediately.
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

    /// Called under the lock when work was left undone, or after a note about work. Returns whether the thread must be woken:
    /// in standby the program polls, and does the work itself.
    pub(super) fn has_to_know(&self) -> bool {
        self.rests(Rest::Blocked)
    }

    /// Called under the lock when the engine's next timer changed. Returns whether the thread sleeps longer than that.
    pub(super) fn sleeps_past(&self, due: u64) -> bool {
        self.rests(Rest::Blocked) && self.until.load(Ordering::Relaxed) > due
    }

    /// The program is about to sleep. Returns whether the thread must be woken: a blocked thread serves the port
    /// already; only one in standby must be woken.
    pub(super) fn hand_over(&self) -> bool {
        self.handover.store(true, Ordering::Relaxed);
        // Pairs with the fence in `sleep`: either the thread sees this, or we see that it is in standby.
        fence(Ordering::SeqCst);
        self.rests(Rest::Aside)
    }

    /// Returns whether the program has handed over since the last call.
    pub(super) fn takes_over(&self) -> bool {
        let handed_over = self.handover.load(Ordering::Relaxed);
        if handed_over {
            // Another handover between the two accesses is merged with this one.
            self.handover.store(false, Ordering::Relaxed);
        }
        handed_over
    }

    /// Requests the thread to end; the caller must wake it.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Returns whether the thread is to end.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps by calling `wait`, until the instant that `look` returns, which takes the lock to find out, or until a
    /// wake-up. A wake-up must persist: it may come before `wait`. Returns `None` if there was a reason not to sleep.
    pub(super) fn sleep<L, R>(
        &self,
        why: Rest,
        look: impl FnOnce() -> (u64, L),
        wait: impl FnOnce(L) -> R,
    ) -> Option<R> {
        self.until.store(u64::MAX, Ordering::Relaxed);
        self.mode.store(why as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // This check must come now: later changes see the mode, and earlier changes are seen here.
        let (until, found) = look();
        self.until.store(until, Ordering::Relaxed);
        let wanted = self.stops() || self.handover.load(Ordering::Relaxed);
        let result = (!wanted).then(|| wait(found));
        self.mode.store(AWAKE, Ordering::Relaxed);
        result
    }
}
