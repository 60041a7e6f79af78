//! The device of the kernel's connection manager, `/dev/infiniband/rdma_cm`, under the librdmacm of the system.
//!
//! librdmacm writes commands to the device and is answered in its own memory. `rnic-shim` leads its `open` here, and
//! its writes to a descriptor that this module gave out. Commands, answers and errors are those of Linux (`ucma.c`,
//! `cma.c`); a name behind a rule in this module is that of the function there.
//!
//! - `abi`, `memory`: the structures of commands and answers, and the program's memory.
//! - `pipe`: the descriptor. `state`: channels, identifiers and events.
//! - `nic`: the devices, and the choice among them. `name`, `service`: addresses and ports.
//! - `commands`: what each command is, and calls `address`, `connect`, `multicast`, `options` or `query` to carry it out.
//! - `deliver`: events of the peers.
//!
//! A forked child has the descriptors of its parent, but neither its devices nor its identifiers: a command on such a
//! descriptor fails there with EBADF, and the parent goes on. Channels that the child opens are its own.

mod abi;
mod address;
mod commands;
mod connect;
mod deliver;
mod memory;
mod multicast;
mod name;
mod nic;
mod options;
mod pipe;
mod query;
mod service;
mod state;

use crate::cancel;
use crate::errno::Errno;
use crate::explain;
use crate::hub::locked;
use abi::Header;
use commands::{Command, GET_EVENT, call_of};
use connect::errno_of as refused;
use memory::load;
use nic::{Nic, Nics};
use nix::unistd::{Pid, gettid};
use pipe::{Pipe, PipeId, identify};
use rnic::cm::protocol::Endpoint;
use rnic::cm::{PortTable, Ports};
use rnic::process::{HostAddress, port_range};
use rnic::time::{Duration, Instant};
use state::{Channel, Link, Remains, State, read};
use std::collections::VecDeque;
use std::ffi::{c_int, c_long, c_void};
use std::hash::{BuildHasher, RandomState};
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

/// The connection manager of a process.
struct Ucma {
    pid: u32,
    nics: Nics,
    state: Mutex<State>,
    /// The number of channels at which those that nobody has a descriptor of are looked for again.
    sweep_at: AtomicUsize,
}

/// That of this process, or, right after a fork, that of its parent, which the child leaves alone: its locks may be held.
static UCMA: AtomicPtr<Ucma> = AtomicPtr::new(null_mut());

/// The connection manager of this process, if it has opened a channel.
fn existing() -> Option<&'static Ucma> {
    // SAFETY: it was leaked below.
    let known = unsafe { UCMA.load(Ordering::Acquire).as_ref() };
    known.filter(|known| known.pid == std::process::id())
}

/// The connection manager of this process.
fn ucma() -> &'static Ucma {
    if let Some(known) = existing() {
        return known;
    }
    let (pid, known) = (std::process::id(), UCMA.load(Ordering::Acquire));
    // Those that programs of the daemon share, or those of this process, in a random order.
    let own = || {
        Arc::new(Mutex::new(Ports::new(port_range(), RandomState::new().hash_one(pid)))) as Arc<dyn PortTable>
    };
    let ports = crate::devices::desk().map_or_else(own, |desk| desk as Arc<dyn PortTable>);
    let (nics, state) = (Nics::default(), Mutex::new(State::new(ports)));
    let new = Box::into_raw(Box::new(Ucma { pid, nics, state, sweep_at: AtomicUsize::new(64) }));
    match UCMA.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it came from a box, and is never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: nobody else has seen it. The other was leaked, and is of this process: only its threads come here.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

/// What becomes of a command.
enum Step {
    /// The descriptor is not that of a channel.
    NotOurs,
    /// It is done; `write` returns this.
    Done(Result<usize, Errno>),
    /// It waits for an event.
    Wait,
    /// It waits for an event that will never come: another thread has closed the channel.
    Park,
}

/// The longest command, with some room for those of later versions.
const LONGEST: usize = 1024;

impl Ucma {
    /// All devices; opens those that are not open yet.
    fn nics(&'static self, preferred: &[HostAddress]) -> Vec<Arc<Nic>> {
        self.nics.all(preferred, move |device, news| self.deliver(device, news))
    }

    /// Closes what the program does not need any more, at the endpoints. Nobody holds the lock of the state.
    fn close(&self, remains: &Remains) {
        if remains.is_empty() {
            return;
        }
        let mut devices: Vec<usize> = remains.links.iter().map(|(device, _)| *device).collect();
        devices.extend(remains.listeners.iter().map(|(device, _)| *device));
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            let Ok(nic) = self.nics.get(device) else { continue };
            // A device that has failed has no connections.
            let _ = nic.manager.call(|endpoint, now| self.close_at(endpoint, now, device, remains));
        }
    }

    fn close_at(&self, endpoint: &mut Endpoint, now: Instant, device: usize, remains: &Remains) {
        for (_, listener) in remains.listeners.iter().filter(|(of, _)| *of == device) {
            let _ = endpoint.unlisten(*listener);
        }
        // Requests for a listener that was gone when they were delivered.
        let orphans = std::mem::take(&mut locked(&self.state).orphans);
        let (here, elsewhere): (Vec<_>, Vec<_>) = orphans.into_iter().partition(|(of, _)| *of == device);
        locked(&self.state).orphans.extend(elsewhere);
        let own = remains.links.iter().copied().filter(|(of, _)| *of == device);
        for (_, link) in here.into_iter().chain(own) {
            match link {
                Link::Connection(connection) => drop(endpoint.destroy(now, connection)),
                Link::Resolution(resolution) => drop(endpoint.cancel(resolution)),
                Link::Query(query) => drop(endpoint.reply(now, query, &connect::no_queue_pair())),
            }
        }
    }

    fn open(&self, flags: c_int) -> Result<c_int, Errno> {
        self.sweep();
        let (pipe, fd) = Pipe::new(flags)?;
        let id = pipe.id;
        let mut state = locked(&self.state);
        state.closed_by.remove(&fd);
        state.channels.insert(id, Channel { pipe, events: VecDeque::new(), away: None });
        Ok(fd)
    }

    /// Looks for channels that were closed without `close`: by `dup2`, for instance. Each time, the number of channels has
    /// doubled, so that this costs little.
    fn sweep(&self) {
        let mut remains = Remains::default();
        {
            let mut state = locked(&self.state);
            if state.channels.len() < self.sweep_at.load(Ordering::Relaxed) {
                return;
            }
            let closed = state.channels.iter().filter(|(_, channel)| channel.pipe.is_closed());
            let closed: Vec<PipeId> = closed.map(|(id, _)| *id).collect();
            closed.into_iter().for_each(|id| state.close(id, &mut remains));
            self.sweep_at.store((state.channels.len() * 2).max(64), Ordering::Relaxed);
        }
        self.close(&remains);
    }

    /// This thread is about to close a descriptor: from the moment at which it is closed, other threads must find out who
    /// did so.
    ///
    /// Another thread that handles an event gets some time to come back for the next one first, if it then waits in the
    /// channel. In the kernel it is back by then, because destroying identifiers takes longer; programs count on that, and
    /// free the channel's memory, which that thread reads, right after the close (rping).
    fn closing(&self, fd: c_int) -> Option<PipeId> {
        let id = self.find(fd)?;
        let waits = if blocks(fd) { WAITS_FOR_AWAY } else { 0 };
        for _ in 0..waits {
            let away = locked(&self.state).channels.get(&id).and_then(|channel| channel.away);
            if !away.is_some_and(comes_back) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        locked(&self.state).closed_by.insert(fd, gettid());
        Some(id)
    }

    /// A descriptor of a channel was closed; if it was the last, the channel is closed.
    fn closed(&self, id: PipeId) {
        let mut remains = Remains::default();
        {
            let mut state = locked(&self.state);
            if state.channels.get(&id).is_some_and(|channel| channel.pipe.is_closed()) {
                state.close(id, &mut remains);
            }
        }
        self.close(&remains);
    }

    /// Whether a descriptor was that of a channel, and was closed by another thread. A thread that asks for an event then
    /// waits, as it would if it had asked a moment before: in the kernel, closing a channel wakes nobody. Programs end while
    /// such a thread waits (rping), and would fail if it returned. The number may belong to another file by now.
    fn was_closed_elsewhere(&self, fd: c_int) -> bool {
        locked(&self.state).closed_by.get(&fd).is_some_and(|thread| *thread != gettid())
    }

    fn find(&self, fd: c_int) -> Option<PipeId> {
        let id = identify(fd)?;
        locked(&self.state).channels.contains_key(&id).then_some(id)
    }

    /// Begins a command. `woken`: the program has waited for an event.
    fn begin(&'static self, fd: c_int, bytes: &[u8], len: usize, woken: bool) -> Step {
        let header: Header = read(bytes);
        let Some(channel) = self.find(fd) else {
            let waits = header.cmd == GET_EVENT && self.was_closed_elsewhere(fd);
            return if waits { Step::Park } else { Step::NotOurs };
        };
        let input = bytes.get(size_of::<Header>()..).unwrap_or_default();
        let is_whole = size_of::<Header>() + usize::from(header.input) <= len;
        let Some(call) = call_of(header.cmd).filter(|_| is_whole) else {
            return Step::Done(Err(Errno::INVALID));
        };
        let (len_of_input, room) = (header.input.into(), header.output.into());
        let command = Command { number: header.cmd, input, len: len_of_input, room };
        let done = if header.cmd == GET_EVENT {
            match self.get_event(channel, &command, woken) {
                Ok(false) => return Step::Wait,
                Ok(true) => Ok(()),
                Err(errno) => Err(errno),
            }
        } else {
            explain::begin_call();
            let done = self.execute(channel, &command);
            if let Err(errno) = done {
                explain::failed(call, errno, || None);
            }
            done
        };
        Step::Done(done.map(|()| len))
    }

    /// Takes an event, if the program has waited for one. Returns whether it has got it.
    fn get_event(&self, channel: PipeId, command: &Command<'_>, woken: bool) -> Result<bool, Errno> {
        if command.room < abi::LEAST_EVENT {
            return Err(Errno(libc::ENOSPC));
        }
        let to: abi::GetEvent = read(command.input);
        let taken = {
            let mut state = locked(&self.state);
            let taken = if woken { state.take(channel) } else { None };
            if let Some(channel) = state.channels.get_mut(&channel) {
                // It takes one at once if there is one now.
                channel.away = (taken.is_some() || !channel.events.is_empty()).then(gettid);
            }
            taken
        };
        let Some(event) = taken else { return Ok(false) };
        command.reply(to.response, event.as_bytes())?;
        Ok(true)
    }
}

/// Opens a channel for `rnic-shim`, with the flags of `open`. Returns its descriptor, or -1 with `errno`.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_cm_open(flags: c_int) -> c_int {
    let before = cancel::disable();
    let fd = inside(|| ucma().open(flags)).unwrap_or(Err(Errno::IO));
    cancel::restore(before);
    fd.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// How long a close waits for a thread that handles an event, in milliseconds: long enough for a busy machine, and bounded,
/// because the thread may never come back.
const WAITS_FOR_AWAY: u32 = 500;

/// A number other than 0 if a descriptor is that of a channel, for `rnic-shim`.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_cm_find(fd: c_int) -> u64 {
    let before = cancel::disable();
    let found = inside(|| existing()?.find(fd)).flatten();
    cancel::restore(before);
    found.map_or(0, |id| id.0)
}

/// The same, before this thread closes the descriptor.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_cm_closing(fd: c_int) -> u64 {
    let before = cancel::disable();
    let found = inside(|| existing()?.closing(fd)).flatten();
    cancel::restore(before);
    found.map_or(0, |id| id.0)
}

/// A descriptor of the channel with this number was closed.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_cm_closed(channel: u64) {
    let before = cancel::disable();
    inside(|| existing().map(|ucma| ucma.closed(PipeId(channel))));
    cancel::restore(before);
}

/// Carries out a command for `rnic-shim`: stores what `write` returns, with `errno`, and returns 1. Returns 0 if the
/// descriptor is not that of a channel.
///
/// While the program waits for an event it is a cancellation point, as `write` is.
///
/// # Safety
/// As for `write`; `result` can be written to.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rnic_cm_write(
    fd: c_int,
    from: *const c_void,
    len: usize,
    result: *mut c_long,
) -> c_int {
    let mut woken = 0;
    loop {
        let before = cancel::disable();
        // SAFETY: guaranteed by the caller.
        let step = unsafe { step(fd, from, len, woken, result) };
        cancel::restore(before);
        match step {
            WAIT => {}
            PARK => cancel::park(),
            _ => return step,
        }
        woken = c_int::from(cancel::read_byte(fd) == 1);
        if woken == 0 && (Errno::last() == Errno::AGAIN || is_open(fd)) {
            // SAFETY: guaranteed by the caller.
            unsafe { *result = -1 };
            return DONE;
        }
    }
}

/// What [`step`] returns; the first two are also what [`rnic_cm_write`] returns.
const NOT_OURS: c_int = 0;
const DONE: c_int = 1;
const WAIT: c_int = 2;
const PARK: c_int = 3;

/// A step of a command, with cancellation of the thread disabled.
///
/// # Safety
/// As for [`rnic_cm_write`].
#[inline(never)]
unsafe extern "C" fn step(
    fd: c_int,
    from: *const c_void,
    len: usize,
    woken: c_int,
    result: *mut c_long,
) -> c_int {
    let step = inside(|| {
        let mut room = [0; LONGEST];
        let bytes = &mut room[..len.min(LONGEST)];
        // SAFETY: guaranteed by the caller.
        let loaded = unsafe { load(from as u64, bytes) };
        match (existing(), loaded) {
            (Some(ucma), Ok(())) => ucma.begin(fd, bytes, len, woken != 0),
            (Some(ucma), Err(errno)) if ucma.find(fd).is_some() => Step::Done(Err(errno)),
            _ => Step::NotOurs,
        }
    });
    let value = match step.unwrap_or(Step::Done(Err(Errno::IO))) {
        Step::NotOurs => return NOT_OURS,
        Step::Wait => return WAIT,
        Step::Park => return PARK,
        Step::Done(Ok(len)) => c_long::try_from(len).unwrap_or(c_long::MAX),
        Step::Done(Err(errno)) => {
            errno.set();
            -1
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { *result = value };
    DONE
}

/// Whether a descriptor is that of a channel, after a wait that failed; leaves `errno` as it is. If another thread has closed
/// it meanwhile, its number may be that of another file, and the error about that one: the program must not see it.
#[inline(never)]
extern "C" fn is_open(fd: c_int) -> bool {
    let errno = Errno::last();
    let is_open = inside(|| existing().is_some_and(|ucma| ucma.find(fd).is_some())).unwrap_or(false);
    errno.set();
    is_open
}

/// Whether a thread that has taken an event may ask for another one while this thread waits for it.
fn comes_back(away: Pid) -> bool {
    away != gettid() && lives(away)
}

/// Whether a thread of this process has not ended.
fn lives(thread: Pid) -> bool {
    // SAFETY: signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.as_raw(), 0) == 0 }
}

/// Whether a read of this descriptor waits.
fn blocks(fd: c_int) -> bool {
    // SAFETY: `fcntl` takes any number, and reports one that is no descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags != -1 && flags & libc::O_NONBLOCK == 0
}

/// Runs code whose panics, which are bugs of rnic, do not unwind into C.
fn inside<R>(act: impl FnOnce() -> R) -> Option<R> {
    let result = catch_unwind(std::panic::AssertUnwindSafe(act));
    if result.is_err() {
        eprintln!("rnic: the connection manager hit a bug in rnic; the result of the call is EIO");
    }
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// A thread that waited in a channel, which was closed, may find that the number belongs to another file.
    #[test]
    fn an_error_about_another_file_of_the_same_number_is_not_reported_as_that_of_the_channel() {
        let fd = ucma().open(libc::O_CLOEXEC).expect("a channel");
        Errno(libc::EISDIR).set();
        assert!(is_open(fd));
        assert_eq!(Errno::last(), Errno(libc::EISDIR));
        let directory = std::fs::File::open("/").expect("the root");
        let channel = rnic_cm_closing(fd);
        // SAFETY: the descriptor is that of this test.
        assert_eq!(unsafe { libc::dup3(directory.as_raw_fd(), fd, libc::O_CLOEXEC) }, fd);
        rnic_cm_closed(channel);
        Errno(libc::EISDIR).set();
        assert!(!is_open(fd));
        assert_eq!(Errno::last(), Errno(libc::EISDIR));
        // Another thread that comes back waits until the process ends. The thread that closed the channel gets EBADF.
        let parks = std::thread::spawn(move || ucma().was_closed_elsewhere(fd)).join().expect("no panic");
        assert!(parks && !ucma().was_closed_elsewhere(fd));
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }

    #[test]
    fn a_channel_blocks_unless_it_is_told_not_to() {
        let open = |flags| ucma().open(libc::O_CLOEXEC | flags).expect("a channel");
        let [waits, does_not] = [open(0), open(libc::O_NONBLOCK)];
        assert_eq!((blocks(waits), blocks(does_not), blocks(-1)), (true, false, false));
        for fd in [waits, does_not] {
            assert_ne!(rnic_cm_find(fd), 0);
            let channel = rnic_cm_closing(fd);
            // SAFETY: the descriptor is that of this test.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            rnic_cm_closed(channel);
        }
    }

    #[test]
    fn a_close_waits_only_for_a_thread_that_lives() {
        assert!(lives(gettid()));
        let ended = std::thread::spawn(gettid).join().expect("no panic");
        // The kernel forgets a thread a moment after it was joined.
        let gone = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            !lives(ended)
        });
        assert!(gone);
    }
}
