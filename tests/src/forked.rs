//! What tests do to a peer that no safe function does: forking it, and unmapping its memory.

#![expect(unsafe_code, reason = "fork and munmap have no safe form")]

use crate::protocol::{Opening, Reply};
use crate::serve::{State, say};
use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid, getppid};
use rnic::{Device, Error, MemoryRegion, RcEnd, WcStatus};
use std::io::BufRead;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Takes the pages of a region away, behind the device's back.
pub fn unmap(region: &MemoryRegion) -> nix::Result<()> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    let addr = NonZeroUsize::new(usize::try_from(region.addr()).unwrap_or(0)).ok_or(Errno::EINVAL)?;
    let len = NonZeroUsize::new(region.len()).ok_or(Errno::EINVAL)?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // An inaccessible mapping takes the place instead of a hole, which the next allocation of the process could fill.
    // SAFETY: the pages belong to a region, which nobody borrows from; the library itself expects faults there.
    unsafe { mmap_anonymous(Some(addr), len, ProtFlags::PROT_NONE, flags) }?;
    Ok(())
}

/// Forks. The child tries everything it inherited and tells what it found as a [`Reply::Child`]; the parent goes on.
pub(crate) fn fork(state: &mut State) -> nix::Result<Pid> {
    // SAFETY: the only other thread of this program is the library's own, which holds no lock of the standard
    // library that the child needs; the allocator survives forks.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let told = say(&Reply::Child(inherited(state)));
            drop(std::mem::take(state));
            let mut line = String::new();
            if told.is_ok() {
                // Standard input is the parent's as long as there is one.
                let parent = getppid();
                while getppid() == parent && parent != Pid::from_raw(1) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // What the test says now is for the child: "are you there?"
                if std::io::stdin().lock().read_line(&mut line).is_ok_and(|n| n > 0) {
                    let _ = say(&Reply::Done);
                }
            }
            std::process::exit(0);
        }
    }
}

/// Uses every kind of inherited object; what does not answer that it was opened before the fork is listed.
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
        expect("poll_event", device.poll_event().map(drop));
        device.progress();
        let _ =
            (device.address(), device.gid(), device.counters(), device.port_attr(), format!("{device:?}"));
        let _ = device.socket_capabilities();
    }
    if let Some(pd) = &state.pd {
        expect("register", pd.register(64, rnic::Access::LOCAL_WRITE).map(drop));
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
        expect("connect", end.qp.connect(&end.qp.address(), &rnic::ConnectOptions::default()));
        let _ = (end.qp.state(), end.qp.counters(), end.qp.failure(), end.qp.query(), end.cq.poll_one());
    }
    for region in state.regions.iter().flatten() {
        // The child's memory is a copy of its own, which can be read and written.
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

/// The child opens devices of its own and transfers something.
fn of_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let at = |address| Device::open(&Opening::at(address).config());
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
