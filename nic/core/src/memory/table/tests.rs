use super::*;
use crate::memory::MemoryBuffer;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

pub(super) const PD: PdId = PdId(3);
pub(super) const DOMAIN: Domain = Domain { pd: PD, qpn: Qpn::GSI };

pub(super) fn table(max: u32) -> RegionTable {
    RegionTable::new(max, KeySource::Seed([42; 32]))
}

/// Registers memory that no test accesses.
pub(super) fn add(table: &mut RegionTable, va: u64, len: u64, access: Access) -> Result<Keys, RegisterError> {
    table.register(PD, somewhere(len), Some(va), access)
}

/// Memory that no test accesses.
pub(super) fn somewhere(len: u64) -> UserMemory {
    // SAFETY: the tests that use this never copy.
    unsafe { UserMemory::new(0x1000, len) }
}

pub(super) fn buffer(table: &mut RegionTable, len: usize, access: Access) -> (Arc<MemoryBuffer>, u32) {
    let buffer = Arc::new(MemoryBuffer::new(len).unwrap());
    let keys = table.register(PD, buffer.clone(), None, access).unwrap();
    (buffer, keys.lkey)
}

#[test]
fn registration_rules() {
    let mut t = table(100);
    assert_eq!(
        add(&mut t, u64::MAX, 1, Access::empty()),
        Err(RegisterError::Overflow { addr: u64::MAX, len: 1 })
    );
    assert!(add(&mut t, u64::MAX - 1, 1, Access::empty()).is_ok());
    assert!(matches!(add(&mut t, 0, u64::MAX, Access::empty()), Err(RegisterError::Overflow { .. })));
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(add(&mut t, 0, 8, remote), Err(RegisterError::NeedsLocalWrite { remote }));
        assert!(add(&mut t, 0, 8, remote | Access::LOCAL_WRITE).is_ok());
    }
    assert!(add(&mut t, 0, 8, Access::REMOTE_READ).is_ok());
    assert_eq!(t.len(), 4);
}

/// A region that grants peers no rights today may do so after re-registration.
#[test]
fn both_keys_are_one_number_and_rights_decide() {
    let mut t = table(100);
    let keys = add(&mut t, 0, 8, Access::LOCAL_WRITE).unwrap();
    assert_ne!(keys.lkey, 0);
    assert_eq!(keys.rkey, keys.lkey);
    let missing = Access::REMOTE_READ;
    assert_eq!(
        t.check(DOMAIN, keys.rkey, 0, 8, missing),
        Err(AccessError::Denied { key: keys.rkey, missing })
    );
}

#[test]
fn the_maximum_is_reached_and_not_passed() {
    let mut t = table(10);
    let keys: Vec<u32> = (0..10).map(|_| add(&mut t, 0, 8, Access::empty()).unwrap().lkey).collect();
    assert_eq!(add(&mut t, 0, 8, Access::empty()), Err(RegisterError::Full { max: 10 }));
    assert!(t.deregister(keys[4]).is_ok());
    assert!(matches!(t.deregister(keys[4]), Err(RegisterError::UnknownKey { key }) if key == keys[4]));
    assert!(add(&mut t, 0, 8, Access::empty()).is_ok());
    assert!(add(&mut t, 0, 8, Access::empty()).is_err());
    assert!(add(&mut table(0), 0, 8, Access::empty()).is_err());
}

#[test]
fn errors_name_the_rule() {
    let mut t = table(10);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let key = add(&mut t, 0x1000, 0x100, access).unwrap().lkey;
    let check = |domain, key, va, len, access| t.check(domain, key, va, len, access);
    assert_eq!(check(DOMAIN, key, 0x1000, 0x100, access), Ok(()));
    assert_eq!(check(DOMAIN, key ^ 1, 0x1000, 1, access), Err(AccessError::UnknownKey { key: key ^ 1 }));
    let foreign = Domain { pd: PdId(4), ..DOMAIN };
    assert_eq!(check(foreign, key, 0x1000, 1, access), Err(AccessError::WrongDomain { key }));
    let missing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_eq!(check(DOMAIN, key, 0x1000, 1, access | missing), Err(AccessError::Denied { key, missing }));
    for (va, len) in [(0xfff, 1), (0x1100, 1), (0x1000, 0x101), (0x10ff, 2), (0x1001, u64::MAX)] {
        assert_eq!(
            check(DOMAIN, key, va, len, access),
            Err(AccessError::OutOfRange { key, va, len, start: 0x1000, end: 0x1100 })
        );
    }
}

#[test]
fn nothing_is_checked_for_zero_bytes() {
    let mut t = table(10);
    let nowhere = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_eq!(t.check(DOMAIN, 0, u64::MAX, 0, nowhere), Ok(()));
    assert_eq!(t.read(DOMAIN, 1, 0, nowhere, &mut []), Ok(()));
    assert_eq!(t.write(DOMAIN, 2, 0, nowhere, &[]), Ok(()));
}

#[test]
fn ranges_near_the_end_of_the_address_space() {
    let mut t = table(10);
    let key = add(&mut t, u64::MAX - 16, 16, Access::empty()).unwrap().lkey;
    assert_eq!(t.check(DOMAIN, key, u64::MAX - 16, 16, Access::empty()), Ok(()));
    assert_eq!(t.check(DOMAIN, key, u64::MAX - 1, 1, Access::empty()), Ok(()));
    for (va, len) in
        [(u64::MAX - 16, 17), (u64::MAX - 1, 2), (u64::MAX, 1), (u64::MAX - 16, u64::MAX), (0, 1)]
    {
        assert!(
            matches!(t.check(DOMAIN, key, va, len, Access::empty()), Err(AccessError::OutOfRange { .. })),
            "{len} bytes at {va:#x}"
        );
    }
}

#[test]
fn memory_moves_through_the_table() {
    let mut t = table(10);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let (memory, key) = buffer(&mut t, 4096, all);
    let va = memory.addr() as u64;
    t.write(DOMAIN, key, va + 4000, Access::REMOTE_WRITE, &[5; 96]).unwrap();
    assert_eq!(memory.to_vec().unwrap()[3999..4001], [0, 5]);
    let mut out = [0; 96];
    t.read(DOMAIN, key, va + 4000, Access::REMOTE_READ, &mut out).unwrap();
    assert_eq!(out, [5; 96]);
    assert!(t.write(DOMAIN, key, va + 4000, Access::REMOTE_WRITE, &[5; 97]).is_err());
    assert_eq!(t.atomic(DOMAIN, key, va + 8, AtomicOp::FetchAdd { add: 7 }), Ok(0));
    let swap = AtomicOp::CompareSwap { compare: 7, swap: 1 };
    assert_eq!(t.atomic(DOMAIN, key, va + 8, swap), Ok(7));
    assert_eq!(memory.load_u64(8), Ok(1));
    assert_eq!(t.atomic(DOMAIN, key, va + 4, swap), Err(AccessError::Misaligned { va: va + 4 }));
    assert!(matches!(t.atomic(DOMAIN, key, va + 4096, swap), Err(AccessError::OutOfRange { .. })));
}

#[test]
fn memory_lent_for_reading_is_not_written() {
    let mut t = table(10);
    let (memory, key) = buffer(&mut t, 64, Access::REMOTE_READ);
    let va = memory.addr() as u64;
    for (asked, missing) in [
        (Access::empty(), Access::LOCAL_WRITE),
        (Access::LOCAL_WRITE, Access::LOCAL_WRITE),
        (Access::REMOTE_WRITE, Access::REMOTE_WRITE),
    ] {
        let denied = Err(AccessError::Denied { key, missing });
        assert_eq!(t.write(DOMAIN, key, va, asked, &[1]), denied);
    }
    let missing = Access::REMOTE_ATOMIC;
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(t.atomic(DOMAIN, key, va, add), Err(AccessError::Denied { key, missing }));
    assert_eq!(t.read(DOMAIN, key, va, Access::empty(), &mut [0; 64]), Ok(()));
}

#[test]
fn zero_based_and_shifted_addresses() {
    let mut t = table(10);
    let (memory, key) = buffer(&mut t, 64, Access::LOCAL_WRITE | Access::ZERO_BASED);
    t.write(DOMAIN, key, 60, Access::LOCAL_WRITE, b"tail").unwrap();
    assert_eq!(&memory.to_vec().unwrap()[60..], b"tail");
    assert!(t.write(DOMAIN, key, 61, Access::LOCAL_WRITE, b"tail").is_err());

    // Aligned for the peer, not for the processor.
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    // SAFETY: no reference into a buffer exists, and the region keeps it alive.
    let part = unsafe { UserMemory::new(memory.addr() + 4, 32) }.keeping(memory.clone());
    let keys = t.register(PD, part, Some(0), access).unwrap();
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(t.atomic(DOMAIN, keys.rkey, 8, add), Err(AccessError::Misaligned { va: 8 }));
}

#[test]
fn memory_that_went_away_is_an_error() {
    let mut t = table(10);
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let hole = Hole::new();
    let va = hole.0.as_ptr().addr() as u64;
    // SAFETY: no other code uses this page.
    let page = unsafe { UserMemory::new(hole.0.as_ptr().addr(), 4096) };
    let key = t.register(PD, page, None, access).unwrap().lkey;
    let fault = AccessError::Fault { va: va + 8 };
    assert_eq!(t.read(DOMAIN, key, va + 8, Access::empty(), &mut [0; 8]), Err(fault));
    assert_eq!(t.write(DOMAIN, key, va + 8, Access::LOCAL_WRITE, &[0; 8]), Err(fault));
    assert_eq!(t.atomic(DOMAIN, key, va + 8, AtomicOp::FetchAdd { add: 1 }), Err(fault));
}

/// A page that cannot be accessed.
struct Hole(NonNull<c_void>);

impl Hole {
    fn new() -> Self {
        let len = NonZeroUsize::new(4096).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        Self(unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.unwrap())
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { munmap(self.0, 4096) }.unwrap();
    }
}

#[test]
fn the_owner_lives_as_long_as_the_region() {
    let mut t = table(10);
    let (memory, key) = buffer(&mut t, 64, Access::empty());
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(t.deregister(key));
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn a_million_regions() {
    let count = 1 << 20;
    let mut t = table(count);
    let keys: Vec<u32> =
        (0..count).map(|i| add(&mut t, u64::from(i), 1, Access::empty()).unwrap().lkey).collect();
    assert_eq!(add(&mut t, 0, 1, Access::empty()), Err(RegisterError::Full { max: count }));
    for (key, va) in keys.iter().zip(0..) {
        assert_eq!(t.get(*key).map(Region::va), Some(va));
    }
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    assert!(t.iter().map(|(key, _)| key).eq(keys.iter().copied()));
    assert_eq!(t.footprint() / keys.len(), 64, "bytes for each region");
    for key in keys {
        assert!(t.deregister(key).is_ok());
    }
    assert!(t.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Register { va: u64, len: u64 },
    Deregister { which: usize },
    DeregisterStale { which: usize },
    Lookup { key: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let va = prop_oneof![any::<u64>(), 0..1000u64, u64::MAX - 1000..=u64::MAX];
    prop_oneof![
        (va, 0..2000u64).prop_map(|(va, len)| Step::Register { va, len }),
        any::<usize>().prop_map(|which| Step::Deregister { which }),
        any::<usize>().prop_map(|which| Step::DeregisterStale { which }),
        any::<u32>().prop_map(|key| Step::Lookup { key }),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..200), max in 1..20u32) {
        let mut t = table(max);
        let mut model: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut keys: Vec<u32> = Vec::new();
        let mut stale: Vec<u32> = Vec::new();
        for step in steps {
            match step {
                Step::Register { va, len } => match add(&mut t, va, len, Access::empty()) {
                    Ok(Keys { lkey, .. }) => {
                        prop_assert!(va.checked_add(len).is_some() && model.len() < max as usize);
                        prop_assert!(!matches!(lkey, 0 | u32::MAX) && !stale.contains(&lkey));
                        prop_assert!(model.insert(lkey, (va, len)).is_none());
                        keys.push(lkey);
                    }
                    Err(RegisterError::Full { .. }) => prop_assert_eq!(model.len(), max as usize),
                    Err(error) => prop_assert!(va.checked_add(len).is_none(), "{}", error),
                },
                Step::Deregister { which } if !keys.is_empty() => {
                    let key = keys.swap_remove(which % keys.len());
                    let region = t.deregister(key).ok().map(|r| (r.va(), r.len()));
                    prop_assert_eq!(region, model.remove(&key));
                    stale.push(key);
                }
                Step::DeregisterStale { which } if !stale.is_empty() => {
                    prop_assert!(t.deregister(stale[which % stale.len()]).is_err());
                }
                Step::Lookup { key } => prop_assert_eq!(t.get(key).is_some(), model.contains_key(&key)),
                Step::Deregister { .. } | Step::DeregisterStale { .. } => {}
            }
            prop_assert_eq!(t.len(), model.len());
            for key in &keys {
                prop_assert_eq!(t.get(*key).map(|r| (r.va(), r.len())), model.get(key).copied());
            }
            for key in &stale {
                prop_assert!(t.get(*key).is_none());
            }
        }
    }

    #[test]
    fn ranges_are_checked_as_in_wide_arithmetic(
        start in any::<u64>(), size in 1..=u64::MAX, va in any::<u64>(), len in 1..=u64::MAX, near in 0..4u8,
    ) {
        let (start, size) = (start >> 1, (size >> 2).max(1));
        // Random pairs hardly ever meet: most cases are moved to the edges.
        let va = match near {
            0 => va,
            1 => start.wrapping_add(va % 8).wrapping_sub(4),
            2 => (start + size).wrapping_sub(va % 8),
            _ => start + va % size,
        };
        let len = if near == 0 { len } else { len % size.saturating_add(8) + 1 };
        let mut t = table(1);
        let key = add(&mut t, start, size, Access::empty()).unwrap().lkey;
        let inside = va >= start && u128::from(va) + u128::from(len) <= u128::from(start) + u128::from(size);
        prop_assert_eq!(t.check(DOMAIN, key, va, len, Access::empty()).is_ok(), inside);
    }
}
