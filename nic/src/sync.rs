//! A mutex with priority inheritance.
//!
//! Threads of very different priority take the port's lock: a program may poll from a FIFO-scheduled thread while the
//! background thread that holds the lock was preempted. With an ordinary lock the poller would wait for a thread that
//! never runs; with priority inheritance the holder runs until it releases the lock.

#![expect(unsafe_code, reason = "std's mutex knows no priority inheritance: pthread's does")]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A mutex whose holder inherits the priority of the threads that wait for it (`PTHREAD_PRIO_INHERIT`).
pub(crate) struct PiMutex<T> {
    /// Boxed: a pthread mutex must not move once it is initialised.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
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
        Self { raw, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> PiGuard<'_, T> {
        // SAFETY: the mutex was initialised in `new` and lives as long as `self`.
        let result = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        // The one possible error is EDEADLK: this thread holds the lock already, which is a bug of ours.
        assert_eq!(result, 0, "the port's lock was taken twice by one thread");
        PiGuard { mutex: self, _not_send: PhantomData }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<PiGuard<'_, T>> {
        // SAFETY: as in `lock`.
        let result = unsafe { libc::pthread_mutex_trylock(self.raw.get()) };
        (result == 0).then_some(PiGuard { mutex: self, _not_send: PhantomData })
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
    /// A pthread mutex is unlocked by the thread that locked it: a raw pointer keeps the guard from being `Send`.
    _not_send: PhantomData<*const ()>,
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
}
