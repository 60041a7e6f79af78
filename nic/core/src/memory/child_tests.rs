//! Tests of signal handling, each in its own process: they change process-wide state, and some are meant to die.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "installs signal handlers and faults on purpose")]

use super::copy::{copy_in, copy_out, fetch_update};
use super::{install, refresh};
use libc::{SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};
use qp::AtomicOp;
use std::env;
use std::os::unix::process::ExitStatusExt;
use std::os::unix::thread::JoinHandleExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use time::{Duration, Instant};

const CHILD: &str = "RNIC_MEMORY_CHILD";
const PAGE: usize = 4096;

/// Runs `body` in its own process, which must end by `signal`, or successfully (`None`).
fn isolated(test: &str, signal: Option<c_int>, body: fn()) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("memory::child_tests::{test}"), "--nocapture"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), signal, "{told}");
    if signal.is_none() {
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
    }
}

fn map(protection: c_int) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.expose_provenance()
}

fn good_page() -> usize {
    map(libc::PROT_READ | libc::PROT_WRITE)
}

fn bad_page() -> usize {
    map(libc::PROT_NONE)
}

/// An ordinary access of the program, outside the copy routines.
fn touch(addr: usize) -> u8 {
    // SAFETY: the test means to fault here; the compiler takes it for an access to a device.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
}

fn handle(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: all zeroes is a valid sigaction; the handlers in this file are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn both(handler: usize, flags: c_int) {
    handle(SIGSEGV, handler, flags);
    handle(SIGBUS, handler, flags);
}

/// Accesses to registered memory that was unmapped fail; other accesses work.
fn accesses_survive() {
    let (good, bad) = (good_page(), bad_page());
    let add = AtomicOp::FetchAdd { add: 1 };
    for len in [1, 8, 100, 1000, PAGE] {
        let mut out = vec![0; len];
        // SAFETY: pages of this test.
        unsafe {
            assert!(copy_out(bad, &mut out).is_err());
            assert!(copy_in(&out, bad).is_err());
            copy_in(&vec![9; len], good).unwrap();
            copy_out(good, &mut out).unwrap();
        }
        assert_eq!(out, vec![9; len]);
    }
    // SAFETY: pages of this test.
    unsafe {
        assert!(fetch_update(bad, add).is_err());
        assert_eq!(fetch_update(good, add), Ok(0x0909_0909_0909_0909));
    }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static LAST_ADDRESS: AtomicUsize = AtomicUsize::new(0);

/// Counts, and repairs the page that faulted.
extern "C" fn repairing(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a siginfo_t.
    let (addr, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    if code > 0 {
        LAST_ADDRESS.store(addr, Ordering::Relaxed);
        let page = std::ptr::with_exposed_provenance_mut(addr & !(PAGE - 1));
        // SAFETY: the page is one of this file's.
        unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
    }
}

/// The same for the form with one argument.
extern "C" fn repairing_last(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let page = std::ptr::with_exposed_provenance_mut(LAST_ADDRESS.load(Ordering::Relaxed));
    // SAFETY: the page is one of this file's.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

#[test]
fn faults_of_the_program_go_to_its_own_handler() {
    isolated("faults_of_the_program_go_to_its_own_handler", None, || {
        both(repairing as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
        install();
        accesses_survive();
        assert_eq!(CALLS.load(Ordering::Relaxed), 0, "our faults stay with us");
        for calls in 1..4 {
            let bad = bad_page();
            assert_eq!(touch(bad + 16), 0);
            assert_eq!(CALLS.load(Ordering::Relaxed), calls);
            assert_eq!(LAST_ADDRESS.load(Ordering::Relaxed), bad + 16);
        }
        accesses_survive();
    });
}

#[test]
fn a_handler_of_the_one_argument_form_is_called() {
    isolated("a_handler_of_the_one_argument_form_is_called", None, || {
        both(repairing_last as *const () as usize, 0);
        install();
        let bad = bad_page();
        LAST_ADDRESS.store(bad, Ordering::Relaxed);
        assert_eq!(touch(bad), 0);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        accesses_survive();
    });
}

#[test]
fn a_handler_for_one_call_is_called_once() {
    isolated("a_handler_for_one_call_is_called_once", Some(SIGSEGV), || {
        both(repairing as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
        install();
        assert_eq!(touch(bad_page()), 0);
        accesses_survive();
        touch(bad_page());
    });
}

#[test]
fn the_mask_of_the_previous_handler_holds() {
    extern "C" fn look(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: all zeroes is a valid set; a null set changes nothing.
        let usr1 = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, libc::SIGUSR1) == 1
                && libc::sigismember(&raw const mask, SIGSEGV) == 0
        };
        LAST_ADDRESS.store(usize::from(usr1), Ordering::Relaxed);
        if usr1 {
            repairing(SIGSEGV, info, context);
        }
    }
    isolated("the_mask_of_the_previous_handler_holds", None, || {
        // SAFETY: all zeroes is a valid sigaction; the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = look as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
            assert_eq!(libc::sigaction(SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
        }
        install();
        assert_eq!(touch(bad_page()), 0);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_fault_without_a_handler_kills_by_its_signal() {
    isolated("a_fault_without_a_handler_kills_by_its_signal", Some(SIGSEGV), || {
        both(libc::SIG_DFL, 0);
        install();
        accesses_survive();
        touch(bad_page());
    });
}

#[test]
fn a_bus_error_without_a_handler_kills_by_its_signal() {
    isolated("a_bus_error_without_a_handler_kills_by_its_signal", Some(SIGBUS), || {
        both(libc::SIG_DFL, 0);
        install();
        // SAFETY: a mapping of an empty file, which no access can reach.
        let addr = unsafe {
            let fd = libc::memfd_create(c"empty".as_ptr(), 0);
            let start = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(start, libc::MAP_FAILED);
            start.expose_provenance()
        };
        // SAFETY: as above.
        assert!(unsafe { copy_out(addr, &mut [0]) }.is_err());
        touch(addr);
    });
}

#[test]
fn a_fault_cannot_be_ignored() {
    isolated("a_fault_cannot_be_ignored", Some(SIGSEGV), || {
        both(libc::SIG_IGN, 0);
        install();
        accesses_survive();
        touch(bad_page());
    });
}

#[test]
fn an_ignored_signal_that_was_sent_does_nothing() {
    isolated("an_ignored_signal_that_was_sent_does_nothing", None, || {
        both(libc::SIG_IGN, 0);
        install();
        // SAFETY: raise has no preconditions.
        unsafe { libc::raise(SIGSEGV) };
        accesses_survive();
    });
}

#[test]
fn a_signal_that_was_sent_kills_without_a_handler() {
    isolated("a_signal_that_was_sent_kills_without_a_handler", Some(SIGBUS), || {
        both(libc::SIG_DFL, 0);
        install();
        // SAFETY: raise has no preconditions.
        unsafe { libc::raise(SIGBUS) };
    });
}

#[test]
fn a_signal_that_is_sent_during_a_copy_is_no_fault() {
    isolated("a_signal_that_is_sent_during_a_copy_is_no_fault", None, || {
        both(repairing as *const () as usize, libc::SA_SIGINFO);
        install();
        let copier = std::thread::spawn(|| {
            let good = good_page();
            let mut out = vec![0; PAGE];
            while CALLS.load(Ordering::Relaxed) < 1000 {
                for len in [PAGE, 2000] {
                    // SAFETY: a page of this test.
                    unsafe { copy_out(good, &mut out[..len]) }.unwrap();
                }
            }
        });
        while !copier.is_finished() {
            // SAFETY: the thread was not joined yet.
            unsafe { libc::pthread_kill(copier.as_pthread_t(), SIGSEGV) };
        }
        copier.join().unwrap();
    });
}

#[test]
fn a_replaced_handler_is_noticed() {
    extern "C" fn never(_: c_int) {
        // SAFETY: ends the process, which is what the test is about.
        unsafe { libc::_exit(77) };
    }
    isolated("a_replaced_handler_is_noticed", None, || {
        install();
        let start = Instant::EPOCH;
        refresh(start);
        accesses_survive();
        handle(SIGBUS, never as *const () as usize, 0);
        handle(SIGSEGV, never as *const () as usize, 0);
        refresh(start + Duration::from_millis(1));
        accesses_survive();
        // A thread that has never checked checks at its first access.
        std::thread::spawn(accesses_survive).join().unwrap();
    });
}

#[test]
fn blocked_signals_are_noticed() {
    isolated("blocked_signals_are_noticed", None, || {
        install();
        let start = Instant::EPOCH;
        refresh(start);
        // SAFETY: the set is initialised.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        refresh(start + Duration::from_millis(1));
        accesses_survive();
        // SAFETY: as above; a null set changes nothing.
        let still = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            [SIGSEGV, SIGBUS].map(|s| libc::sigismember(&raw const mask, s))
        };
        assert_eq!(still, [1, 1], "the program's mask is back in place");
        // A new thread inherits the mask and checks at its first access.
        std::thread::spawn(accesses_survive).join().unwrap();
    });
}

#[test]
fn a_forked_child_recovers_too() {
    isolated("a_forked_child_recovers_too", None, || {
        install();
        let (good, bad) = (good_page(), bad_page());
        let mut out = [0; 64];
        // SAFETY: the child calls only the copies and _exit.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let caught = copy_out(bad, &mut out).is_err() && copy_in(&out, bad).is_err();
                let works = copy_in(&[1; 64], good).is_ok();
                libc::_exit(if caught && works { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        }
        accesses_survive();
    });
}
