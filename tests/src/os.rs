//! Operations on a process that have no safe form: forking it, unmapping its memory, setting its scheduling class.

#![expect(unsafe_code, reason = "fork, mmap and sched_setscheduler have no safe form")]

use crate::protocol::Reply;
use crate::serve::{State, say};
use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid, getppid};
use rnic::{DeviceConfig, Error, MemoryRegion, RcEnd, WcStatus};
use std::io::BufRead;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Unmaps pages of a region behind the device's back. `pages` are bytes of the region, and start at a page
/// boundary.
///
/// # Errors
///
/// Those of mmap; EINVAL for bytes outside of the region.
pub fn unmap(region: &MemoryRegion, pages: Range<usize>) -> nix::Result<()> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    if pages.end > region.len() {
        return Err(Errno::EINVAL);
    }
    let addr = region.memory().addr() + pages.start;
    let addr = NonZeroUsize::new(addr).ok_or(Errno::EINVAL)?;
    let len = NonZeroUsize::new(pages.len()).ok_or(Errno::EINVAL)?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // An inaccessible mapping replaces the pages. A hole could be filled by the next allocation of the process.
    // SAFETY: the pages belong to a region, from which nothing borrows; the library itself expects faults there.
    unsafe { mmap_anonymous(Some(addr), len, ProtFlags::PROT_NONE, flags) }?;
    Ok(())
}

/// Closes the socket of this process that receives on the RoCEv2 port of an address, behind the device's back.
///
/// # Errors
///
/// ENOENT if there is no such socket; otherwise those of the proc file system.
pub fn close_socket(address: IpAddr) -> std::io::Result<()> {
    use nix::sys::socket::{SockaddrIn, getsockname};
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let fd: i32 = entry?.file_name().to_string_lossy().parse().unwrap_or(-1);
        let bound = getsockname::<SockaddrIn>(fd);
        if bound.is_ok_and(|b| IpAddr::V4(b.ip()) == address && b.port() == rnic::net::ROCE_PORT) {
            // SAFETY: the device that owns the descriptor tolerates that it is closed; the number is not reused for
            // another file before the device notices.
            Errno::result(unsafe { libc::close(fd) })?;
            return Ok(());
        }
    }
    Err(Errno::ENOENT.into())
}

/// A thread of a process, as the kernel shows it in the proc file system (proc(5)).
#[derive(Clone, Debug)]
pub struct Thread(std::path::PathBuf);

/// The first thread of this name in a process.
///
/// # Errors
///
/// `ENOENT` if the process has no such thread, and the errors of reading `/proc`.
pub fn thread_of(pid: u32, name: &str) -> std::io::Result<Thread> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path();
        // A thread that has just ended has no name.
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name) {
            return Ok(Thread(path));
        }
    }
    Err(Errno::ENOENT.into())
}

impl Thread {
    /// Whether it waits for something at this moment.
    ///
    /// # Errors
    ///
    /// The thread is gone.
    pub fn is_asleep(&self) -> std::io::Result<bool> {
        Ok(self.field("State:")?.starts_with('S'))
    }

    /// How often it has given up its processor to wait for something.
    ///
    /// # Errors
    ///
    /// The thread is gone.
    pub fn waits(&self) -> std::io::Result<u64> {
        self.field("voluntary_ctxt_switches:")?.parse().map_err(std::io::Error::other)
    }

    fn field(&self, name: &str) -> std::io::Result<String> {
        let status = std::fs::read_to_string(self.0.join("status"))?;
        let value = status.lines().find_map(|line| line.strip_prefix(name)).ok_or(Errno::ENOENT)?;
        Ok(value.trim().to_owned())
    }
}

/// Gives this thread the FIFO scheduling class, ahead of all ordinary threads.
///
/// # Errors
///
/// EPERM for an ordinary user.
pub fn become_fifo() -> nix::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter lives across the call; 0 means this thread.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) }).map(drop)
}

/// Forks. The child tries everything that it inherited, reports its findings as a [`Reply::Child`] and exits. With
/// `stay` it waits until the parent has exited, and then answers once more. The parent continues.
pub(crate) fn fork(state: &mut State, stay: bool) -> nix::Result<Pid> {
    // SAFETY: the only other thread of this program belongs to the library and holds no lock of the standard
    // library that the child needs; the allocator survives forks.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let parent = getppid();
            let told = say(&Reply::Child(inherited(state)));
            if stay && told.is_ok() {
                // Standard input belongs to the parent while it exists; after that, the test's commands are for the
                // child.
                while getppid() == parent {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let mut line = String::new();
                if std::io::stdin().lock().read_line(&mut line).is_ok_and(|n| n > 0) {
                    // A test that does not receive this answer fails.
                    let _ = say(&Reply::Done);
                }
            }
            std::process::exit(0);
        }
    }
}

/// Uses every kind of inherited object; lists those that do not report that they were opened before the fork.
fn inherited(state: &mut State) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut expect = |what: &str, result: Result<(), Error>| {
        if !matches!(result, Err(Error::Forked)) {
            wrong.push(format!("{what}: {result:?}"));
        }
    };
    if let Some(device) = &state.device {
        expect("alloc_pd", device.alloc_pd().map(drop));
        expect("create_cq", device.create_cq(4).map(drop));
        expect("create_comp_channel", device.create_comp_channel().map(drop));
        expect("poll_event", device.poll_event().map(drop));
        expect("wait_event", device.wait_event(Duration::from_millis(1)).map(drop));
        expect("events", device.events().map(drop));
        expect("query_gid", device.query_gid(0).map(drop));
        expect("inject_port_state", device.inject_port_state(true));
        expect("open_xrcd", device.open_xrcd().map(drop));
        device.progress();
        let _ =
            (device.address(), device.gid(), device.counters(), device.port_attr(), format!("{device:?}"));
        let _ = (device.attr(), device.pkeys(), device.gid_table());
        let _ = device.socket_capabilities();
    }
    if let Some(pd) = &state.pd {
        expect("register", pd.register(64, rnic::Access::LOCAL_WRITE).map(drop));
        expect("create_srq", pd.create_srq(&rnic::SrqInit::default()).map(drop));
    }
    for end in state.ends.iter().flatten() {
        if let Some(pd) = &state.pd {
            expect("create_qp", pd.create_qp(&rnic::QpInit::rc(&end.cq, &end.cq)).map(drop));
        }
        expect("send", end.qp.send(1, rnic::Gather::Empty));
        expect("recv", end.qp.recv(1, rnic::Gather::Empty));
        expect("modify", end.qp.modify(&rnic::QpAttr::to_state(rnic::QpState::Err)));
        expect("arm", end.cq.arm(false));
        expect("wait", end.cq.wait(Duration::from_millis(1)).map(drop));
        expect("resize", end.cq.resize(100));
        expect("destroy", end.cq.clone().destroy().map_err(Error::from));
        expect("next", now(end.cq.next()));
        expect("connect", end.qp.connect(&end.qp.address(), &rnic::ConnectOptions::default()));
        let _ = (end.qp.state(), end.qp.counters(), end.qp.failure(), end.qp.query(), end.cq.poll_one());
    }
    for region in state.regions.iter().flatten() {
        // The child has its own copy of the memory, which can be read and written.
        if region.read_at(0, &mut [0; 8]).is_err() || region.write_at(0, &[0; 8]).is_err() {
            wrong.push("the child's copy of a region cannot be accessed".to_owned());
        }
    }
    *state = State::default();
    if let Err(error) = of_its_own() {
        wrong.push(format!("a device of the child's own: {error}"));
    }
    wrong
}

/// The result of polling a future once.
fn now<T>(future: impl Future<Output = Result<T, Error>>) -> Result<(), Error> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(result) => result.map(drop),
        Poll::Pending => Ok(()),
    }
}

/// The child opens devices of its own and transfers data between them.
fn of_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let at = |address| DeviceConfig::at(address).open();
    let (a, b) = (at(crate::fresh_address())?, at(crate::fresh_address())?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let source = left.register(b"from the child")?;
    let target = right.register_remote(source.len())?;
    left.qp.write(1, source.all(), target.remote(0))?;
    let status = left.wait()?.status;
    if status != WcStatus::Success || target.to_vec()? != b"from the child" {
        return Err(format!("the transfer ended with {status}").into());
    }
    Ok(())
}
