//! The handler for SIGSEGV and SIGBUS, which makes a copy fail instead of the process, and the fallback without it.
//!
//! The handler goes in front of the program's own when the first region is registered. A fault in a copy routine is
//! ours. Everything else is passed on, so that crash reporters, language runtimes and core dumps work as before: the
//! previous handler runs on the same stack and with the same mask as if the kernel had called it, and the default
//! action repeats the faulting instruction.
//!
//! The program may install a handler of its own afterwards, or block the signals in a thread (a fault in a thread
//! that blocks them kills the process). Each thread therefore remembers which path is safe, and
//! [`refresh`](rnic_core::memory::refresh) checks again. We do not put our handler in front a second time: the new handler
//! may pass signals on to ours, and the two would call each other without end.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "signal handling"))]

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{install, look, unblocked};
#[cfg(target_arch = "x86_64")]
pub(super) use recovering::{install, look, unblocked};

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use rnic_core::platform::MemoryPath;

    /// Does nothing: every access goes through the kernel.
    pub(in crate::os) fn install() -> bool {
        false
    }

    pub(in crate::os) fn look() -> MemoryPath {
        MemoryPath::Platform
    }

    pub(in crate::os) fn unblocked(access: &mut dyn FnMut()) {
        access();
    }
}

#[cfg(target_arch = "x86_64")]
mod recovering {
    use crate::os::action::{query, set};
    use libc::{c_int, c_void, sigaction, siginfo_t, sigset_t};
    use rnic_core::memory::recovery_point;
    use rnic_core::platform::MemoryPath;
    use std::mem::MaybeUninit;
    use std::ptr::{null, null_mut};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Once, OnceLock};

    const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// The action that was in place before ours.
    struct Previous {
        action: sigaction,
        /// A handler with SA_RESETHAND has run: from then on the default action holds.
        spent: AtomicBool,
    }

    /// In the order of `SIGNALS`. Set before our handler is in place and never changed, so that the handler
    /// can read it at any time.
    static PREVIOUS: OnceLock<[Previous; 2]> = OnceLock::new();

    /// Puts the handler in place, once in the life of the process. Returns whether this call did.
    pub(in crate::os) fn install() -> bool {
        static ONCE: Once = Once::new();
        if ONCE.is_completed() {
            return false;
        }
        // The engine may be locked. In that case the next caller installs the handler, and copies go through the
        // kernel until then.
        let Some(_whole) = crate::os::fork::try_hold_forks() else { return false };
        ONCE.call_once(|| {
            let previous = PREVIOUS.get_or_init(|| {
                SIGNALS.map(|s| Previous { action: query(s), spent: AtomicBool::new(false) })
            });
            for (signal, before) in SIGNALS.into_iter().zip(previous) {
                // SAFETY: our handler takes a siginfo_t, which the flags say, and keeps to what may be called in handlers.
                unsafe { set(signal, &in_front_of(&before.action)) };
            }
        });
        true
    }

    /// Whether the handler is in place, and whether this thread blocks the signals.
    pub(in crate::os) fn look() -> MemoryPath {
        if SIGNALS.iter().any(|s| query(*s).sa_sigaction != address()) {
            return MemoryPath::Platform;
        }
        let mut mask = empty_set();
        // SAFETY: a null set changes nothing; `mask` takes the current one.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask) };
        // SAFETY: `mask` is initialised and the signal numbers are valid.
        let blocked = SIGNALS.iter().any(|s| unsafe { libc::sigismember(&raw const mask, *s) } == 1);
        if blocked { MemoryPath::Blocked } else { MemoryPath::Direct }
    }

    /// Runs `access` with the two signals unblocked in this thread.
    ///
    /// A signal of that kind that was sent to the process with kill(2), and that all threads block, would be
    /// delivered here. It goes to the previous handler.
    pub(in crate::os) fn unblocked(access: &mut dyn FnMut()) {
        let mut faults = empty_set();
        let mut before = empty_set();
        for signal in SIGNALS {
            // SAFETY: the set is initialised and the signal number is valid.
            unsafe { libc::sigaddset(&raw mut faults, signal) };
        }
        // SAFETY: both sets are initialised.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const faults, &raw mut before) };
        access();
        // SAFETY: `before` is the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    }

    /// Ends the access of a thread that faulted at `addr` in one of our routines: makes `context`, as the handler
    /// received it, continue at the recovery point. Returns `false` if the thread was elsewhere. Async-signal-safe.
    ///
    /// # Safety
    ///
    /// `context` is the third argument of a signal handler (SA_SIGINFO) that is running.
    unsafe fn recover(context: *mut c_void, addr: usize) -> bool {
        // SAFETY: the kernel passes a ucontext_t that the handler may change; nothing else refers to it.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let Some(point) = recovery_point(registers[libc::REG_RIP as usize] as usize) else { return false };
        registers[libc::REG_RIP as usize] = point as i64;
        registers[libc::REG_RDX as usize] = addr as i64;
        true
    }

    /// The handler's address, as `sigaction` holds it.
    fn address() -> usize {
        handler as *const () as usize
    }

    /// The action that runs our handler as `before` would have run: its mask, its stack, its flags.
    fn in_front_of(before: &sigaction) -> sigaction {
        let inherited = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        let mut ours = *before;
        ours.sa_sigaction = address();
        ours.sa_flags = libc::SA_SIGINFO
            | match before.sa_sigaction {
                // No handler runs behind ours: an alternate stack, if the thread has one, is the safe choice.
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK,
                _ => before.sa_flags & inherited,
            };
        ours
    }

    /// Recovers a fault in a copy routine and passes on everything else.
    extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes a siginfo_t to handlers with SA_SIGINFO.
        let code = unsafe { (*info).si_code };
        // Codes up to 0 come from kill(2) and its kin. A memory error that asks for no action may arrive
        // anywhere. Neither is caused by the instruction that it interrupts.
        let faulted = code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
        // SAFETY: a fault comes with an address.
        if faulted && unsafe { recover(context, (*info).si_addr() as usize) } {
            return;
        }
        pass_on(signal, info, context, faulted);
    }

    /// Does what would have happened without our handler.
    fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, faulted: bool) {
        let previous = PREVIOUS.get().and_then(|all| all.get(usize::from(signal == libc::SIGBUS)));
        let Some(Previous { action, spent }) = previous else { return take_default(signal, info, faulted) };
        let reset = action.sa_flags & libc::SA_RESETHAND != 0;
        match action.sa_sigaction {
            // A fault cannot be ignored.
            libc::SIG_IGN if !faulted => {}
            libc::SIG_DFL | libc::SIG_IGN => take_default(signal, info, faulted),
            _ if reset && spent.swap(true, Ordering::Relaxed) => take_default(signal, info, faulted),
            function => {
                // SAFETY: the program installed this function as a handler. Linux passes three arguments to
                // handlers of either form.
                let run = unsafe {
                    std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(function)
                };
                run(signal, info, context);
            }
        }
    }

    /// Takes the default action, which ends the process with `signal` and a core of the faulting place.
    fn take_default(signal: c_int, info: *mut siginfo_t, faulted: bool) {
        let mut default = query(signal);
        default.sa_sigaction = libc::SIG_DFL;
        default.sa_flags = 0;
        // SAFETY: the default action has no handler.
        unsafe { set(signal, &default) };
        // A fault repeats as soon as the handler returns; a signal that was sent does not.
        if !faulted {
            // SAFETY: `info` is as the kernel passed it. The signal is pending until the handler returns.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_tgsigqueueinfo,
                    libc::getpid(),
                    libc::syscall(libc::SYS_gettid),
                    signal,
                    info,
                )
            };
        }
    }

    fn empty_set() -> sigset_t {
        let mut set = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: `set` is a place for a signal set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset initialised it.
        unsafe { set.assume_init() }
    }
}
