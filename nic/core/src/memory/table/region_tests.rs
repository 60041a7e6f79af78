use super::tests::{DOMAIN, PD, add, buffer, somewhere, table};
use super::*;
use crate::memory::MemoryBuffer;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::num::NonZeroUsize;
use std::sync::Arc;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);
const OTHER_PD: PdId = PdId(4);

#[test]
fn flags_that_change_nothing_are_taken() {
    let mut t = table(100);
    for flag in [
        Access::ON_DEMAND,
        Access::HUGETLB,
        Access::RELAXED_ORDERING,
        Access::ON_DEMAND | Access::HUGETLB | Access::RELAXED_ORDERING,
    ] {
        let key = add(&mut t, 0, 8, ALL | flag).expect("taken").lkey;
        assert_eq!(t.check(DOMAIN, key, 0, 8, Access::REMOTE_WRITE | Access::FLUSH_GLOBAL), Ok(()));
    }
}

#[test]
fn rights_that_nobody_can_keep_are_refused() {
    let mut t = table(100);
    let persistent = ALL | Access::FLUSH_PERSISTENT;
    assert_eq!(add(&mut t, 0, 8, persistent), Err(RegisterError::NotPersistent));
    let unknown = Access::from_bits_retain(1 << 15);
    assert_eq!(add(&mut t, 0, 8, ALL | unknown), Err(RegisterError::UnknownRights { bits: 1 << 15 }));
    let key = add(&mut t, 0, 8, ALL).expect("taken").lkey;
    let change = Change { access: Some(persistent), ..Change::default() };
    assert_eq!(t.reregister(key, change).map(drop), Err(RegisterError::NotPersistent));
    assert_eq!(t.get(key).map(Region::access), Some(ALL));
}

#[test]
fn zero_based_means_from_0_on() {
    let mut t = table(100);
    let access = Access::ZERO_BASED;
    assert_eq!(add(&mut t, 8, 8, access), Err(RegisterError::ZeroBased { va: 8 }));
    for va in [None, Some(0)] {
        let key = t.register(PD, somewhere(8), va, access).expect("taken").lkey;
        assert_eq!(t.get(key).map(Region::va), Some(0));
    }
    // Any other address by itself is the same without the flag.
    let key = t.register(PD, somewhere(8), Some(0), Access::empty()).expect("taken").lkey;
    assert_eq!(t.check(DOMAIN, key, 0, 8, Access::empty()), Ok(()));
}

#[test]
fn the_whole_address_space_on_demand_only() {
    let mut t = table(100);
    // SAFETY: this test accesses one buffer of its own through it, and a page where nothing is.
    let whole = unsafe { UserMemory::whole_address_space() };
    assert!(whole.is_whole());
    for refused in [ALL, ALL | Access::ON_DEMAND | Access::HUGETLB] {
        assert_eq!(t.register(PD, whole.clone(), None, refused), Err(RegisterError::WholeSpace));
    }
    let access = ALL | Access::ON_DEMAND;
    let other = Err(RegisterError::Overflow { addr: 4096, len: usize::MAX as u64 });
    assert_eq!(t.register(PD, whole.clone(), Some(4096), access), other);
    let key = t.register(PD, whole, None, access).expect("taken").lkey;
    let memory = MemoryBuffer::new(64).expect("memory");
    let va = memory.addr() as u64;
    assert_eq!(t.write(DOMAIN, key, va + 10, Access::REMOTE_WRITE, b"anywhere"), Ok(()));
    assert_eq!(&memory.to_vec().expect("readable")[10..18], b"anywhere");
    assert_eq!(t.advise(PD, Advice::PrefetchWrite, key, va, 64), Ok(()));
    for nowhere in [8, 1 << 63] {
        let fault = Err(AccessError::Fault { va: nowhere });
        assert_eq!(t.read(DOMAIN, key, nowhere, Access::empty(), &mut [0; 8]), fault);
    }
    assert!(matches!(
        t.read(DOMAIN, key, u64::MAX - 1, Access::empty(), &mut [0; 8]),
        Err(AccessError::OutOfRange { .. })
    ));
}

#[test]
fn rights_change_and_the_key_stays() {
    let mut t = table(100);
    let (_, key) = buffer(&mut t, 64, Access::LOCAL_WRITE);
    let va = t.get(key).map(Region::va).expect("registered");
    let missing = Access::REMOTE_WRITE;
    let denied = Err(AccessError::Denied { key, missing });
    assert_eq!(t.write(DOMAIN, key, va, missing, b"x"), denied);
    let change = |access| Change { access: Some(access), ..Change::default() };
    let (keys, old) = t.reregister(key, change(ALL)).expect("it can");
    assert_eq!((keys.lkey, keys.rkey, old.access()), (key, key, Access::LOCAL_WRITE));
    assert_eq!(t.write(DOMAIN, key, va, missing, b"x"), Ok(()));
    t.reregister(key, change(Access::LOCAL_WRITE)).expect("and back");
    assert_eq!(t.write(DOMAIN, key, va, missing, b"x"), denied);
}

#[test]
fn the_domain_changes_and_the_key_stays() {
    let mut t = table(100);
    let (_, key) = buffer(&mut t, 64, ALL);
    let va = t.get(key).map(Region::va).expect("registered");
    let (keys, old) = t.reregister(key, Change { pd: Some(OTHER_PD), ..Change::default() }).expect("it can");
    assert_eq!((keys.lkey, old.pd()), (key, PD));
    assert_eq!(t.check(DOMAIN, key, va, 8, ALL), Err(AccessError::WrongDomain { key }));
    assert_eq!(t.check(Domain { pd: OTHER_PD, ..DOMAIN }, key, va, 8, ALL), Ok(()));
}

#[test]
fn the_memory_changes_and_so_does_the_key() {
    let mut t = table(2);
    let (first, key) = buffer(&mut t, 64, ALL);
    add(&mut t, 0, 8, ALL).expect("room");
    let second = Arc::new(MemoryBuffer::new(128).expect("memory"));
    let change = Change { memory: Some(second.clone().into()), ..Change::default() };
    // The table is full, and one region leaves as another comes.
    let (keys, old) = t.reregister(key, change).expect("it can");
    assert_ne!(keys.lkey, key);
    assert_eq!((old.addr(), t.len()), (first.addr(), 2));
    let va = first.addr() as u64;
    assert_eq!(t.write(DOMAIN, key, va, Access::REMOTE_WRITE, b"x"), Err(AccessError::UnknownKey { key }));
    let va = second.addr() as u64 + 120;
    assert_eq!(t.write(DOMAIN, keys.rkey, va, Access::REMOTE_WRITE, b"x"), Ok(()));
    assert_eq!(second.to_vec().expect("readable")[120], b'x');
    drop(old);
    assert_eq!(Arc::strong_count(&first), 1, "the old memory is let go");
}

#[test]
fn addresses_from_0_on_are_other_addresses() {
    let mut t = table(2);
    let (memory, key) = buffer(&mut t, 64, ALL);
    let access = Some(ALL | Access::ZERO_BASED);
    let (keys, _) = t.reregister(key, Change { access, ..Change::default() }).expect("it can");
    assert_ne!(keys.lkey, key);
    assert_eq!(t.write(DOMAIN, keys.rkey, 63, Access::REMOTE_WRITE, b"x"), Ok(()));
    assert_eq!(memory.to_vec().expect("readable")[63], b'x');
}

#[test]
fn what_cannot_become_of_a_region_leaves_it_as_it_is() {
    let mut t = table(10);
    let (memory, key) = buffer(&mut t, 64, ALL);
    let remote = Access::REMOTE_WRITE;
    let nothing = Change::default();
    let (memory_at_end, va) = (Some(somewhere(1)), Some(u64::MAX));
    let beyond = Change { memory: memory_at_end, va, pd: Some(OTHER_PD), ..Change::default() };
    let rights = Change { access: Some(remote), pd: Some(OTHER_PD), ..Change::default() };
    for (change, error) in [
        (nothing, RegisterError::NothingToChange),
        (beyond, RegisterError::Overflow { addr: u64::MAX, len: 1 }),
        (rights, RegisterError::NeedsLocalWrite { remote }),
    ] {
        assert_eq!(t.reregister(key, change).map(drop), Err(error));
        let region = t.get(key).expect("still there");
        assert_eq!((region.addr(), region.len(), region.pd()), (memory.addr(), 64, PD));
        assert_eq!(region.access(), ALL);
    }
    let change = Change { access: Some(ALL), ..Change::default() };
    let unknown = key ^ 1;
    let error = RegisterError::UnknownKey { key: unknown };
    assert_eq!(t.reregister(unknown, change.clone()).map(drop), Err(error));
    let null = t.register_null(PD).expect("room").lkey;
    assert_eq!(t.reregister(null, change).map(drop), Err(RegisterError::Null));
}

#[test]
fn a_null_region_reads_as_zeroes_and_swallows_what_is_written() {
    let mut t = table(1);
    let key = t.register_null(PD).expect("room").lkey;
    assert_eq!(t.register_null(PD), Err(RegisterError::Full { max: 1 }));
    for va in [0, 12345, u64::MAX - 8] {
        assert_eq!(t.write(DOMAIN, key, va, Access::LOCAL_WRITE, b"gone"), Ok(()));
        let mut out = [7; 8];
        assert_eq!(t.read(DOMAIN, key, va, Access::empty(), &mut out), Ok(()));
        assert_eq!(out, [0; 8]);
    }
    // Peers have no right to it.
    let missing = Access::REMOTE_READ;
    let denied = Err(AccessError::Denied { key, missing });
    assert_eq!(t.read(DOMAIN, key, 0, missing, &mut [0; 8]), denied);
    let missing = Access::REMOTE_ATOMIC;
    let denied = Err(AccessError::Denied { key, missing });
    assert_eq!(t.atomic(DOMAIN, key, 0, AtomicOp::FetchAdd { add: 1 }), denied);
    let foreign = Domain { pd: OTHER_PD, ..DOMAIN };
    assert_eq!(t.read(foreign, key, 0, Access::empty(), &mut [0; 8]), Err(AccessError::WrongDomain { key }));
    assert!(t.deregister(key).is_ok());
    assert!(t.register_null(PD).is_ok());
}

/// Pages, the last of which is read-only, followed by an unmapped one.
struct Pages(std::ptr::NonNull<std::ffi::c_void>);

const PAGE: usize = 4096;

impl Pages {
    fn new() -> Self {
        let len = NonZeroUsize::new(4 * PAGE).expect("not 0");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the parts below are of it.
        unsafe {
            let start = mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE).expect("memory");
            mprotect(start.byte_add(2 * PAGE), PAGE, ProtFlags::PROT_READ).expect("protects");
            munmap(start.byte_add(3 * PAGE), PAGE).expect("unmaps");
            Self(start)
        }
    }

    /// Which pages are in memory.
    fn resident(&self) -> Vec<bool> {
        let mut state = [0u8; 3];
        // SAFETY: the pages are mapped, and there is room for the state of each.
        let done = unsafe { libc::mincore(self.0.as_ptr(), 3 * PAGE, state.as_mut_ptr()) };
        assert_eq!(done, 0);
        state.iter().map(|s| s & 1 == 1).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { munmap(self.0, 3 * PAGE) }.expect("unmaps");
    }
}

#[test]
fn advice_pages_in_and_changes_nothing() {
    let pages = Pages::new();
    let va = pages.0.as_ptr().addr() as u64;
    let mut t = table(10);
    // SAFETY: no other code uses the pages.
    let memory = unsafe { UserMemory::new(va as usize, 4 * PAGE as u64) };
    let key = t.register(PD, memory, None, Access::LOCAL_WRITE | Access::ON_DEMAND).expect("taken").lkey;
    let page = PAGE as u64;
    assert_eq!(t.advise(PD, Advice::PrefetchNoFault, key, va, 4 * page), Ok(()));
    assert_eq!(pages.resident(), [false; 3], "nothing was touched");
    assert_eq!(t.advise(PD, Advice::PrefetchWrite, key, va + page - 1, 2), Ok(()));
    assert_eq!(pages.resident(), [true, true, false]);
    assert_eq!(t.advise(PD, Advice::Prefetch, key, va, 3 * page), Ok(()));
    let mut out = vec![1; 3 * PAGE];
    assert_eq!(t.read(DOMAIN, key, va, Access::empty(), &mut out), Ok(()));
    assert!(out.iter().all(|byte| *byte == 0));
    let fault = Err(AccessError::Fault { va });
    assert_eq!(t.advise(PD, Advice::PrefetchWrite, key, va, 3 * page), fault, "one page is protected");
    assert_eq!(t.advise(PD, Advice::Prefetch, key, va, 4 * page), fault, "one page is not there");
}

#[test]
fn advice_is_checked_like_an_access() {
    let mut t = table(10);
    let (memory, demand) = buffer(&mut t, 64, Access::ON_DEMAND);
    let (other, plain) = buffer(&mut t, 64, Access::LOCAL_WRITE);
    let (va, elsewhere) = (memory.addr() as u64, other.addr() as u64);
    let advise = |advice, key, va, len| t.advise(PD, advice, key, va, len);
    assert_eq!(advise(Advice::Prefetch, demand, va, 64), Ok(()));
    assert_eq!(advise(Advice::Prefetch, demand ^ 1, va, 0), Ok(()), "no byte, no check");
    let key = demand ^ 1;
    assert_eq!(advise(Advice::Prefetch, key, va, 1), Err(AccessError::UnknownKey { key }));
    let error = AccessError::Denied { key: plain, missing: Access::ON_DEMAND };
    assert_eq!(advise(Advice::Prefetch, plain, elsewhere, 1), Err(error));
    let error = AccessError::Denied { key: demand, missing: Access::LOCAL_WRITE };
    assert_eq!(advise(Advice::PrefetchWrite, demand, va, 1), Err(error));
    for advice in [Advice::Prefetch, Advice::PrefetchNoFault] {
        assert!(matches!(advise(advice, demand, va, 65), Err(AccessError::OutOfRange { .. })));
    }
    let foreign = t.advise(OTHER_PD, Advice::Prefetch, demand, va, 1);
    assert_eq!(foreign, Err(AccessError::WrongDomain { key: demand }));
}
