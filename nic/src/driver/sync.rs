//! A mutex with priority inheritance.
//!
//! Threads of very different priority take the port's lock: a program may poll from a FIFO-scheduled thread while the
//! background thread that holds the lock was preempted. With an ordinary lock the poller would wait for a thread that
//! never runs; with priority inheritance the holder runs until it releases the lock.
//!
//! A holder that panics releases the lock while its stack unwinds, so nobody waits for it forever. What the mutex
//! protects may be half changed then: the mutex remembers that, and each later guard tells.

#![expect(unsafe_code, reason = "std's mutex knows no priority inheritance: pthread's does")]

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A mutex whose holder inherits the priority of the threads that wait for it (`PTHREAD_PRIO_INHERIT`).
pub(crate) struct PiMutex<T> {
    /// Boxed: a pthread mutex must not move once it is initialised.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    /// Whether a holder panicked. Only holders access it.
    poisoned: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and there is one guard at a time.
unsafe impl<T: Send> Send for PiMutex<T> {}
// SAFETY: as above; the pthread mutex itself may be used from any thread.
unsafe impl<T: Send> Sync for PiMutex<T> {}

impl<T> PiMutex<T> {
    /// An unlocked mutex around `value`.
    pub(crate) fn new(value: T) -> Self {
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attr = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attribute is initialised before it is used and destroyed after; the mutex is not in use
        // yet. Where priority inheritance is refused the mutex stays an ordinary one.
        unsafe {
            if libc::pthread_mutexattr_init(attr.as_mut_ptr()) == 0 {
                libc::pthread_mutexattr_setprotocol(attr.as_mut_ptr(), libc::PTHREAD_PRIO_INHERIT);
                libc::pthread_mutex_init(raw.get(), attr.as_ptr());
                libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
            }
        }
        Self { raw, poisoned: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value.
    pub(crate) fn into_inner(self) -> T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: nobody else has the mutex any more, and nothing of it is used after its parts were taken out.
        let (raw, value) = unsafe { (std::ptr::read(&raw const this.raw), std::ptr::read(this.value.get())) };
        // SAFETY: nobody holds it: a guard would borrow it.
        unsafe { libc::pthread_mutex_destroy(raw.get()) };
        value
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> PiGuard<'_, T> {
        // SAFETY: the mutex was initialised in `new` and lives as long as `self`.
        let result = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        // The one possible error is EDEADLK: this thread holds the lock already, which is a bug of ours.
        assert_eq!(result, 0, "the port's lock was taken twice by one thread");
        PiGuard::new(self)
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<PiGuard<'_, T>> {
        // SAFETY: as in `lock`.
        let result = unsafe { libc::pthread_mutex_trylock(self.raw.get()) };
        (result == 0).then(|| PiGuard::new(self))
    }

    /// Waits for the lock, but not longer than `patience`. Also waits that long if the holder has ended, or is the calling
    /// thread. Unlike repeated tries, a wait succeeds against a thread that takes the lock again and again.
    pub(crate) fn lock_within(&self, patience: Duration) -> Option<PiGuard<'_, T>> {
        let deadline = clock_gettime(ClockId::CLOCK_REALTIME).ok()? + TimeSpec::from(patience);
        // SAFETY: as in `lock`; the deadline outlives the call.
        let result = unsafe { libc::pthread_mutex_timedlock(self.raw.get(), deadline.as_ref()) };
        (result == 0).then(|| PiGuard::new(self))
    }
}

impl<T> Drop for PiMutex<T> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: no thread holds or waits for the lock.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

/// The lock, held.
pub(crate) struct PiGuard<'a, T> {
    mutex: &'a PiMutex<T>,
    /// Whether the thread was unwinding already when it took the lock.
    unwinds: bool,
    /// A pthread mutex is unlocked by the thread that locked it: a raw pointer keeps the guard from being `Send`.
    _not_send: PhantomData<*const ()>,
}

impl<'a, T> PiGuard<'a, T> {
    fn new(mutex: &'a PiMutex<T>) -> Self {
        PiGuard { mutex, unwinds: std::thread::panicking(), _not_send: PhantomData }
    }

    /// Returns whether a holder of the lock panicked, so that the value may be half changed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.mutex.poisoned.load(Ordering::Relaxed)
    }
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    fn drop(&mut self) {
        if !self.unwinds && std::thread::panicking() {
            self.mutex.poisoned.store(true, Ordering::Relaxed);
        }
        // SAFETY: the guard holds the lock and this thread took it: guards are not `Send`.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn excludes() {
        let mutex = Arc::new(PiMutex::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mutex = Arc::clone(&mutex);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        *mutex.lock() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        assert_eq!(*mutex.lock(), 80_000);
        let held = mutex.lock();
        let other = Arc::clone(&mutex);
        let refused = std::thread::spawn(move || other.try_lock().is_none()).join().expect("no panic");
        assert!(refused);
        drop(held);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn a_wait_with_an_end_outlasts_short_holders_and_gives_up_on_long_ones() {
        let mutex = Arc::new(PiMutex::new(0u64));
        let busy = Arc::clone(&mutex);
        let until = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&until);
        let holder = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                *busy.lock() += 1;
            }
        });
        for _ in 0..100 {
            assert!(mutex.lock_within(Duration::from_secs(60)).is_some(), "it is released again and again");
        }
        until.store(true, Ordering::Relaxed);
        holder.join().expect("no panic");
        let held = mutex.lock();
        let other = Arc::clone(&mutex);
        let wait = std::thread::spawn(move || other.lock_within(Duration::from_millis(10)).is_none());
        assert!(wait.join().expect("no panic"), "the holder keeps it");
        assert!(mutex.lock_within(Duration::from_millis(10)).is_none(), "the holder is this thread");
        drop(held);
        let last = Arc::clone(&mutex);
        std::thread::spawn(move || std::mem::forget(last.lock())).join().expect("no panic");
        assert!(mutex.lock_within(Duration::from_millis(10)).is_none(), "the holder has ended");
    }

    #[test]
    fn a_holder_that_panics_releases_the_lock_and_is_remembered() {
        let mutex = Arc::new(PiMutex::new(0u64));
        let other = Arc::clone(&mutex);
        let ended = std::thread::spawn(move || {
            *other.lock() = 1;
            assert!(!other.lock().is_poisoned(), "a guard that is dropped as usual");
            let _held = other.lock();
            panic!("on purpose");
        });
        ended.join().expect_err("it panics");
        assert!(mutex.try_lock().expect("released").is_poisoned());
        let guard = mutex.lock();
        assert_eq!((*guard, guard.is_poisoned()), (1, true), "for good");
    }

    /// Objects that are dropped while a stack unwinds take the lock, and leave the value intact.
    #[test]
    fn a_lock_that_is_taken_while_the_stack_unwinds_is_not_poisoned() {
        struct Locks(Arc<PiMutex<u64>>);
        impl Drop for Locks {
            fn drop(&mut self) {
                *self.0.lock() += 1;
            }
        }
        let mutex = Arc::new(PiMutex::new(0u64));
        let locks = Locks(Arc::clone(&mutex));
        let ended = std::thread::spawn(move || {
            let _locks = locks;
            panic!("on purpose");
        });
        ended.join().expect_err("it panics");
        let guard = mutex.lock();
        assert_eq!((*guard, guard.is_poisoned()), (1, false));
    }
}
