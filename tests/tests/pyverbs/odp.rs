//! `test_odp.py` over reliable connections and datagrams (extended reliable connections are in `xrc.rs`): memory is
//! never pinned here, and missing pages are restored when they are touched. Before each round their pages are
//! returned to the kernel, if the case does so.

use crate::players::{
    GRH, MESSAGE, Memory, Player, REMOTE, atomic_traffic, everywhere, players, rdma_traffic, read, traffic,
    ud_traffic, write,
};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use rnic::{Access, Advice, Error, MemoryRegion, Operation, ProtectionDomain, Sge, UserMemory, WcStatus};
use rnic_tests::skipped;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

const ITERS: u64 = 100;
const ON_DEMAND: Access = Access::ON_DEMAND.union(Access::LOCAL_WRITE).union(REMOTE);
const HUGE_PAGE: usize = 2 << 20;

/// Pages of the program, mapped with `mmap`.
#[derive(Debug)]
struct Pages {
    start: usize,
    len: usize,
}

impl Pages {
    /// `None` if the kernel has no such pages.
    fn map(len: usize, flags: MapFlags) -> Option<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let size = NonZeroUsize::new(len)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(None, size, protection, flags | MapFlags::MAP_PRIVATE) }.ok()?;
        Some(Self { start: start.as_ptr().expose_provenance(), len })
    }

    fn pointer(&self) -> NonNull<c_void> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.start)).expect("mapped")
    }

    /// The first bytes of it, for the lifetime of the mapping.
    fn lend(self, len: u64) -> UserMemory {
        // SAFETY: nothing else uses the mapping, and the memory keeps it alive.
        unsafe { UserMemory::new(self.start, len) }.keeping(Arc::new(self))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { munmap(self.pointer(), self.len) }.expect("unmaps");
    }
}

/// Ordinary pages for one message.
fn pages(pd: &ProtectionDomain) -> Result<MemoryRegion, Error> {
    let pages = Pages::map(4096, MapFlags::empty()).expect("memory");
    pd.register_memory(pages.lend(MESSAGE as u64), None, ON_DEMAND)
}

/// Returns a player's pages to the kernel: they then read as zeros (`force_page_faults`).
fn forget(player: &Player) {
    forget_pages(&player.mr);
}

fn forget_pages(mr: &MemoryRegion) {
    let start = std::ptr::with_exposed_provenance_mut(mr.memory().addr());
    let start = NonNull::new(start).expect("mapped");
    // SAFETY: the mapping that was lent, into which nothing refers.
    unsafe { madvise(start, 4096, MmapAdvise::MADV_DONTNEED) }.expect("the kernel takes it");
}

/// Rounds of `traffic` in which no page is present at the start.
fn faulting_traffic(client: &Player, server: &Player) -> Result<(), Error> {
    for _ in 0..ITERS {
        forget(client);
        forget(server);
        assert_eq!(traffic(client, server, 1)?, WcStatus::Success);
    }
    Ok(())
}

fn case(memory: &Memory<'_>, run: impl Fn(&Player, &Player) -> Result<(), Error>) -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, memory)?;
        run(&client, &server)
    })
}

#[test]
fn test_odp_rc_traffic() -> Result<(), Error> {
    case(&pages, faulting_traffic)
}

#[test]
fn test_odp_rc_atomic_cmp_and_swp() -> Result<(), Error> {
    case(&|pd| pd.register(8, ON_DEMAND), |client, server| {
        // Different values, then equal ones.
        atomic_traffic(client, server, ITERS, |remote| {
            (Operation::CompareSwap { remote, compare: u64::MAX, swap: 7 }, |old| old)
        })?;
        atomic_traffic(client, server, 2, |remote| {
            (Operation::CompareSwap { remote, compare: 1, swap: 7 }, |old| if old == 1 { 7 } else { old })
        })
    })
}

#[test]
fn test_odp_rc_atomic_fetch_and_add() -> Result<(), Error> {
    case(&|pd| pd.register(8, ON_DEMAND), |client, server| {
        atomic_traffic(client, server, ITERS, |remote| {
            (Operation::FetchAdd { remote, add: 3 }, |old| old + 3)
        })
    })
}

#[test]
fn test_odp_rc_rdma_read() -> Result<(), Error> {
    case(&pages, |client, server| {
        for _ in 0..ITERS {
            forget(client);
            forget(server);
            assert_eq!(rdma_traffic(client, server, 1, read)?, WcStatus::Success);
        }
        Ok(())
    })
}

#[test]
fn test_odp_rc_rdma_write() -> Result<(), Error> {
    case(&pages, |client, server| {
        for _ in 0..ITERS {
            forget(client);
            forget(server);
            assert_eq!(rdma_traffic(client, server, 1, write)?, WcStatus::Success);
        }
        Ok(())
    })
}

#[test]
fn test_odp_ud_traffic() -> Result<(), Error> {
    let on_demand = |pd: &ProtectionDomain| {
        let pages = Pages::map(4096, MapFlags::empty()).expect("memory");
        pd.register_memory(pages.lend((GRH + MESSAGE) as u64), None, Access::LOCAL_WRITE | Access::ON_DEMAND)
    };
    let plain = |pd: &ProtectionDomain| pd.register(GRH + MESSAGE, Access::LOCAL_WRITE);
    everywhere(|a, b| ud_traffic([a, b], [&on_demand, &plain], ITERS, forget_pages))
}

/// Memory for one message, accessed with the key of all memory.
struct Anywhere {
    whole: MemoryRegion,
    sge: Sge,
    pages: UserMemory,
}

impl Anywhere {
    fn new(pd: &ProtectionDomain) -> Result<Self, Error> {
        // SAFETY: the peers of these tests only name the pages below.
        let whole = unsafe { UserMemory::whole_address_space() };
        let whole = pd.register_memory(whole, None, ON_DEMAND)?;
        let pages = Pages::map(4096, MapFlags::empty()).expect("memory").lend(4096);
        let sge = Sge { addr: pages.addr() as u64, length: MESSAGE as u32, lkey: whole.lkey() };
        Ok(Self { whole, sge, pages })
    }
}

/// Messages both ways between buffers that are accessed with the key of all memory.
fn implicit(advice: Option<Advice>) -> Result<(), Error> {
    case(&|pd| pd.register(8, Access::LOCAL_WRITE), |client, server| {
        let (ours, theirs) = (Anywhere::new(&client.pd)?, Anywhere::new(&server.pd)?);
        for (player, memory) in [(client, &ours), (server, &theirs)] {
            assert_eq!(memory.whole.addr(), 0);
            if let Some(advice) = advice {
                player.pd.advise(advice, &[memory.sge])?;
            }
        }
        for round in 0..ITERS {
            let message = [round as u8; MESSAGE];
            ours.pages.write_at(0, &message)?;
            server.qp.recv(1, theirs.sge)?;
            client.qp.send(2, ours.sge)?;
            client.succeed()?;
            server.succeed()?;
            let mut out = [0; MESSAGE];
            theirs.pages.read_at(0, &mut out)?;
            assert!(out == message, "round {round}");
        }
        Ok(())
    })
}

#[test]
fn test_odp_implicit_rc_traffic() -> Result<(), Error> {
    implicit(None)
}

/// The access right alone: ordinary pages accept it, and it has no effect.
#[test]
fn test_odp_rc_huge_traffic() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, ON_DEMAND | Access::HUGETLB), |client, server| {
        assert_eq!(traffic(client, server, ITERS)?, WcStatus::Success);
        Ok(())
    })
}

#[test]
fn test_odp_rc_huge_user_addr_traffic() -> Result<(), Error> {
    if Pages::map(HUGE_PAGE, MapFlags::MAP_HUGETLB).is_none() {
        skipped("the kernel gives no huge pages (vm.nr_hugepages)");
        return Ok(());
    }
    let memory = |pd: &ProtectionDomain| {
        let pages = Pages::map(HUGE_PAGE, MapFlags::MAP_HUGETLB).expect("there was one a moment ago");
        pd.register_memory(pages.lend(MESSAGE as u64), None, ON_DEMAND | Access::HUGETLB)
    };
    case(&memory, |client, server| {
        assert_eq!(traffic(client, server, ITERS)?, WcStatus::Success);
        Ok(())
    })
}

/// Advice, then traffic. The advice is complete when the call returns, so synchronous and asynchronous are the
/// same.
fn prefetched(advice: Advice) -> Result<(), Error> {
    case(&pages, |client, server| {
        for player in [client, server] {
            player.mr.write_at(0, &[5; MESSAGE])?;
            player.pd.advise(advice, &[player.mr.all(), player.mr.slice(100..200)?])?;
            assert_eq!(player.mr.to_vec()?, [5; MESSAGE], "no byte changes");
        }
        faulting_traffic(client, server)
    })
}

#[test]
fn test_odp_sync_prefetch_rc_traffic() -> Result<(), Error> {
    prefetched(Advice::Prefetch)?;
    prefetched(Advice::PrefetchWrite)
}

#[test]
fn test_odp_async_prefetch_rc_traffic() -> Result<(), Error> {
    prefetched(Advice::Prefetch)?;
    prefetched(Advice::PrefetchWrite)
}

#[test]
fn test_odp_implicit_sync_prefetch_rc_traffic() -> Result<(), Error> {
    implicit(Some(Advice::PrefetchWrite))
}

#[test]
fn test_odp_implicit_async_prefetch_rc_traffic() -> Result<(), Error> {
    implicit(Some(Advice::PrefetchWrite))
}

#[test]
fn test_odp_prefetch_sync_no_page_fault_rc_traffic() -> Result<(), Error> {
    prefetched(Advice::PrefetchNoFault)
}

#[test]
fn test_odp_prefetch_async_no_page_fault_rc_traffic() -> Result<(), Error> {
    prefetched(Advice::PrefetchNoFault)
}
