use super::tests::{DOMAIN, PD, add, buffer, table};
use super::*;
use crate::memory::MemoryBuffer;
use proptest::prelude::*;
use std::sync::Arc;

/// Another queue pair of the same protection domain, and one of another domain.
const OTHER_QP: Domain = Domain { pd: PD, qpn: Qpn::new(77) };
const FOREIGN: Domain = Domain { pd: PdId(4), ..DOMAIN };
const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);
const OPEN: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND);
const LEN: u64 = 4096;

struct Scene {
    table: RegionTable,
    memory: Arc<MemoryBuffer>,
    lkey: u32,
    /// First address of the region.
    va: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with(OPEN)
    }

    fn with(access: Access) -> Self {
        let mut table = table(100);
        let (memory, lkey) = buffer(&mut table, LEN as usize, access);
        let va = memory.addr() as u64;
        Self { table, memory, lkey, va }
    }

    fn alloc(&mut self, mw_type: MwType) -> u32 {
        self.table.alloc_mw(PD, mw_type).expect("room")
    }

    /// A bind of `window` to the second quarter of the region, with the next key.
    fn quarter(&self, window: u32) -> Bind {
        let (addr, len) = (self.va + LEN / 4, LEN / 4);
        Bind { window, key: next(window), lkey: self.lkey, access: REMOTE, addr, len }
    }

    /// Binds, and returns the new key.
    fn bind(&mut self, bind: Bind) -> u32 {
        self.table.bind(DOMAIN, &bind).expect("it can be bound");
        assert_eq!(self.table.window_key(bind.window), Some(bind.key));
        bind.key
    }

    /// A window that is bound to the second quarter.
    fn bound(&mut self, mw_type: MwType) -> u32 {
        let window = self.alloc(mw_type);
        self.bind(self.quarter(window))
    }

    /// A remote write of one byte through `key`.
    fn poke(&mut self, domain: Domain, key: u32, va: u64) -> Result<(), AccessError> {
        self.table.write(domain, key, va, Access::REMOTE_WRITE, &[9])
    }
}

/// The key with the next low byte.
fn next(key: u32) -> u32 {
    key & !0xff | u32::from((key as u8).wrapping_add(1))
}

#[test]
fn peers_read_and_write_and_run_atomics_through_a_window() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut s = Scene::new();
        let key = s.bound(mw_type);
        let va = s.va + LEN / 4;
        s.table.write(DOMAIN, key, va, Access::REMOTE_WRITE, b"through the window").expect("inside");
        let mut out = [0; 18];
        s.memory.read_at(LEN as usize / 4, &mut out).expect("inside");
        assert_eq!(&out, b"through the window");
        s.table.read(DOMAIN, key, va, Access::REMOTE_READ, &mut out).expect("inside");
        assert_eq!(&out, b"through the window");
        assert_eq!(s.table.atomic(DOMAIN, key, va + 64, AtomicOp::FetchAdd { add: 5 }), Ok(0));
        assert_eq!(s.memory.load_u64(LEN as usize / 4 + 64), Ok(5));
        assert_eq!(s.table.flush(DOMAIN, key, Some((va, 8)), Access::FLUSH_GLOBAL), Ok(()));
        assert_eq!(s.table.flush(DOMAIN, key, None, Access::FLUSH_GLOBAL), Ok(()));
    }
}

/// IBTA C10-72.
#[test]
fn the_domains_of_queue_pair_window_and_region_are_one() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut s = Scene::new();
        let window = s.alloc(mw_type);
        let bind = s.quarter(window);
        assert_eq!(s.table.bind(FOREIGN, &bind), Err(BindError::NoWindow { key: window }));
        // The window and the queue pair are of one domain, the region is not: what Linux rxe missed until 2026.
        let strange = s.table.alloc_mw(FOREIGN.pd, mw_type).expect("room");
        let bind = Bind { window: strange, key: next(strange), ..bind };
        let error = BindError::Region(AccessError::WrongDomain { key: s.lkey });
        assert_eq!(s.table.bind(FOREIGN, &bind), Err(error));
    }
}

/// IBTA C10-73.
#[test]
fn the_region_allows_binding() {
    let mut s = Scene::with(OPEN - Access::MW_BIND);
    let window = s.alloc(MwType::Type1);
    let bind = s.quarter(window);
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::NotBindable { lkey: s.lkey }));
    let null = s.table.register_null(PD).expect("room").lkey;
    let error = BindError::NotBindable { lkey: null };
    assert_eq!(s.table.bind(DOMAIN, &Bind { lkey: null, ..bind }), Err(error));
}

/// IBTA C10-74.
#[test]
fn a_window_that_is_written_needs_a_region_that_is_written() {
    let mut s = Scene::with(Access::MW_BIND);
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let window = s.alloc(MwType::Type2);
        let bind = Bind { access, ..s.quarter(window) };
        let error = BindError::NeedsRight { lkey: s.lkey, access, missing: Access::LOCAL_WRITE };
        assert_eq!(s.table.bind(DOMAIN, &bind), Err(error));
    }
    let window = s.alloc(MwType::Type2);
    let access = Access::FLUSH_GLOBAL;
    let error = BindError::NeedsRight { lkey: s.lkey, access, missing: access };
    assert_eq!(s.table.bind(DOMAIN, &Bind { access, ..s.quarter(window) }), Err(error));
    // The device may always read.
    let key = s.bind(Bind { access: Access::REMOTE_READ, ..s.quarter(window) });
    let va = s.va + LEN / 4;
    assert_eq!(s.table.read(DOMAIN, key, va, Access::REMOTE_READ, &mut [0; 8]), Ok(()));
    let denied = AccessError::Denied { key, missing: Access::REMOTE_WRITE };
    assert_eq!(s.poke(DOMAIN, key, va), Err(denied));
}

/// IBTA C10-75, with sums that do not fit 64 bits.
#[test]
fn a_window_lies_inside_its_region() {
    for (mw_type, zero) in [
        (MwType::Type1, Access::empty()),
        (MwType::Type2, Access::empty()),
        (MwType::Type2, Access::ZERO_BASED),
    ] {
        let mut s = Scene::new();
        let window = s.alloc(mw_type);
        let (start, end) = (s.va, s.va + LEN);
        for (addr, len) in [
            (start - 1, 2),
            (start, LEN + 1),
            (end - 1, 2),
            (end, 1),
            (start + 1, u64::MAX),
            (u64::MAX, 2),
            (0, u64::MAX),
            (0, 1),
        ] {
            let bind = Bind { addr, len, access: REMOTE | zero, ..s.quarter(window) };
            let error = AccessError::OutOfRange { key: s.lkey, va: addr, len, start, end };
            assert_eq!(s.table.bind(DOMAIN, &bind), Err(error.into()), "{len} bytes at {addr:#x}");
        }
        let all = Bind { addr: start, len: LEN, access: REMOTE | zero, ..s.quarter(window) };
        s.bind(all);
    }
}

#[test]
fn a_window_is_bound_to_a_region_and_to_nothing_else() {
    let mut s = Scene::new();
    let other = s.bound(MwType::Type1);
    let window = s.alloc(MwType::Type1);
    let bind = Bind { lkey: other, ..s.quarter(window) };
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::NotARegion { lkey: other }));
    let lkey = s.lkey ^ 1;
    let error = BindError::Region(AccessError::UnknownKey { key: lkey });
    assert_eq!(s.table.bind(DOMAIN, &Bind { lkey, ..bind }), Err(error));
    // And a region is no window.
    let bind = Bind { window: s.lkey, key: next(s.lkey), ..s.quarter(window) };
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::NoWindow { key: s.lkey }));
    let zero_based = buffer(&mut s.table, 64, OPEN | Access::ZERO_BASED).1;
    let bind = Bind { lkey: zero_based, addr: 0, len: 8, ..s.quarter(window) };
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::ZeroBasedRegion { lkey: zero_based }));
}

#[test]
fn a_new_key_has_any_low_byte_and_the_same_rest() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut s = Scene::new();
        let window = s.alloc(mw_type);
        let bind = s.quarter(window);
        // The device keeps the rest, whatever the program writes there.
        for rest in [0x100, !0xff] {
            let key = window ^ rest ^ 1;
            assert_eq!(s.table.bind(DOMAIN, &Bind { key, ..bind }), Ok(()));
            assert_eq!(s.table.window_key(window), Some(window ^ 1));
            assert_eq!(s.poke(DOMAIN, window ^ 1, bind.addr), Ok(()));
            assert_eq!(s.poke(DOMAIN, key, bind.addr), Err(AccessError::UnknownKey { key }));
            s.table.unbind_all_of(DOMAIN.qpn);
        }
        // The key that it came with will do.
        assert_eq!(s.bind(Bind { key: window, ..bind }), window);
        assert_eq!(s.poke(DOMAIN, window, bind.addr), Ok(()));
        s.table.unbind_all_of(DOMAIN.qpn);
        // Any other low byte will do, and the old key is dead.
        let key = s.bind(Bind { key: window ^ 0x80, ..bind });
        assert_eq!(s.poke(DOMAIN, key, bind.addr), Ok(()));
        assert_eq!(s.poke(DOMAIN, window, bind.addr), Err(AccessError::UnknownKey { key: window }));
        // A bind that was posted when the window had another key finds the window.
        s.table.unbind_all_of(DOMAIN.qpn);
        let next = s.bind(Bind { key: key ^ 1, ..bind });
        assert_eq!(s.poke(DOMAIN, next, bind.addr), Ok(()));
    }
}

#[test]
fn type_1_is_bound_again_while_it_is_bound() {
    let mut s = Scene::new();
    let first = s.bound(MwType::Type1);
    let (memory, lkey) = buffer(&mut s.table, 64, OPEN);
    let addr = memory.addr() as u64;
    let second = s.bind(Bind { lkey, addr, len: 8, ..s.quarter(first) });
    assert_eq!((s.table.windows_of(s.lkey), s.table.windows_of(lkey)), (0, 1));
    assert_eq!(s.poke(DOMAIN, second, addr + 7), Ok(()));
    assert_eq!(s.poke(DOMAIN, first, s.va + LEN / 4), Err(AccessError::UnknownKey { key: first }));
    let out = AccessError::OutOfRange { key: second, va: addr + 8, len: 1, start: addr, end: addr + 8 };
    assert_eq!(s.poke(DOMAIN, second, addr + 8), Err(out));
}

#[test]
fn type_1_is_closed_by_a_bind_to_no_bytes() {
    let mut s = Scene::new();
    let first = s.bound(MwType::Type1);
    // The other operands of the bind are ignored.
    let second = s.bind(Bind { len: 0, lkey: 0, addr: u64::MAX, ..s.quarter(first) });
    assert_eq!(s.poke(DOMAIN, second, s.va), Err(AccessError::Unbound { key: second }));
    assert_eq!(s.table.windows_of(s.lkey), 0);
    // Also when it is closed already; and it can be opened again.
    let third = s.bind(Bind { len: 0, ..s.quarter(second) });
    let fourth = s.bind(s.quarter(third));
    assert_eq!(s.poke(DOMAIN, fourth, s.va + LEN / 4), Ok(()));
}

/// IBTA o10-36.2.2.
#[test]
fn type_1_is_never_zero_based() {
    let mut s = Scene::new();
    let window = s.alloc(MwType::Type1);
    let bind = Bind { access: REMOTE | Access::ZERO_BASED, ..s.quarter(window) };
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::ZeroBasedWindow { key: window }));
}

/// IBTA C10-76.2.1.
#[test]
fn type_1_serves_all_queue_pairs_of_its_domain() {
    let mut s = Scene::new();
    let key = s.bound(MwType::Type1);
    let va = s.va + LEN / 4;
    assert_eq!(s.poke(OTHER_QP, key, va), Ok(()));
    assert_eq!(s.poke(FOREIGN, key, va), Err(AccessError::WrongDomain { key }));
}

/// IBTA o10-37.2.26 and o10-37.2.13.
#[test]
fn only_windows_of_type_2_are_invalidated() {
    let mut s = Scene::new();
    let null = s.table.register_null(PD).expect("room").lkey;
    for key in [s.bound(MwType::Type1), s.alloc(MwType::Type1), s.lkey, null] {
        assert_eq!(s.table.invalidate(DOMAIN, key), Err(AccessError::NotInvalidatable { key }));
        assert_eq!(s.table.invalidate(FOREIGN, key), Err(AccessError::WrongDomain { key }));
    }
    let key = s.lkey ^ 1;
    assert_eq!(s.table.invalidate(DOMAIN, key), Err(AccessError::UnknownKey { key }));
}

/// IBTA o10-37.2.30.
#[test]
fn type_2_is_closed_before_it_is_bound_again() {
    let mut s = Scene::new();
    let key = s.bound(MwType::Type2);
    let bind = s.quarter(key);
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::Bound { key }));
    assert_eq!(s.table.invalidate(DOMAIN, key), Ok(()));
    assert_eq!(s.poke(DOMAIN, key, bind.addr), Err(AccessError::Unbound { key }));
    assert_eq!(s.table.invalidate(DOMAIN, key), Err(AccessError::Unbound { key }));
    let again = s.bind(bind);
    assert_eq!(s.poke(DOMAIN, again, bind.addr), Ok(()));
}

/// IBTA o10-37.2.40.
#[test]
fn type_2_is_not_bound_to_no_bytes() {
    let mut s = Scene::new();
    let key = s.alloc(MwType::Type2);
    let bind = Bind { len: 0, ..s.quarter(key) };
    assert_eq!(s.table.bind(DOMAIN, &bind), Err(BindError::Empty { key }));
}

/// IBTA o10-37.2.43.
#[test]
fn type_2_serves_the_queue_pair_that_bound_it() {
    let mut s = Scene::new();
    let key = s.bound(MwType::Type2);
    let va = s.va + LEN / 4;
    assert_eq!(s.poke(OTHER_QP, key, va), Err(AccessError::WrongQueuePair { key }));
    assert_eq!(s.poke(FOREIGN, key, va), Err(AccessError::WrongDomain { key }));
    assert_eq!(s.table.invalidate(OTHER_QP, key), Err(AccessError::WrongQueuePair { key }));
    assert_eq!(s.poke(DOMAIN, key, va), Ok(()));
}

#[test]
fn type_2_may_be_zero_based() {
    let mut s = Scene::new();
    let window = s.alloc(MwType::Type2);
    let key = s.bind(Bind { access: REMOTE | Access::ZERO_BASED, ..s.quarter(window) });
    assert_eq!(s.poke(DOMAIN, key, 0), Ok(()));
    let mut byte = [0];
    s.memory.read_at(LEN as usize / 4, &mut byte).expect("inside");
    assert_eq!(byte, [9]);
    assert_eq!(s.poke(DOMAIN, key, LEN / 4 - 1), Ok(()));
    let out = AccessError::OutOfRange { key, va: LEN / 4, len: 1, start: 0, end: LEN / 4 };
    assert_eq!(s.poke(DOMAIN, key, LEN / 4), Err(out));
}

/// IBTA C10-77, and the order of the checks.
#[test]
fn rights_and_ranges_of_a_window_are_its_own() {
    let mut s = Scene::new();
    let window = s.alloc(MwType::Type2);
    let key = s.bind(Bind { access: Access::REMOTE_READ, ..s.quarter(window) });
    let (start, end) = (s.va + LEN / 4, s.va + LEN / 2);
    let missing = Access::REMOTE_WRITE;
    assert_eq!(s.poke(DOMAIN, key, start), Err(AccessError::Denied { key, missing }));
    assert_eq!(s.poke(OTHER_QP, key, start), Err(AccessError::Denied { key, missing }));
    let check = |domain, va, len| s.table.check(domain, key, va, len, Access::REMOTE_READ);
    assert_eq!(check(DOMAIN, start, LEN / 4), Ok(()));
    assert_eq!(check(OTHER_QP, start - 1, 1), Err(AccessError::WrongQueuePair { key }));
    // Inside the region, and not inside the window.
    for (va, len) in [(start - 1, 1), (start, LEN / 4 + 1), (end, 1), (start + 1, u64::MAX), (u64::MAX, 1)] {
        assert_eq!(check(DOMAIN, va, len), Err(AccessError::OutOfRange { key, va, len, start, end }));
    }
    assert_eq!(check(FOREIGN, start - 1, 0), Ok(()), "no byte, no check");
}

#[test]
fn the_program_itself_does_not_go_through_windows() {
    let mut s = Scene::new();
    let key = s.bound(MwType::Type1);
    let (va, error) = (s.va + LEN / 4, Err(AccessError::RemoteOnly { key }));
    assert_eq!(s.table.read(DOMAIN, key, va, Access::empty(), &mut [0; 8]), error);
    assert_eq!(s.table.write(DOMAIN, key, va, Access::LOCAL_WRITE, &[0; 8]), error);
    assert_eq!(s.table.write(DOMAIN, key, va, Access::empty(), &[0; 8]), error);
    assert_eq!(s.table.advise(PD, Advice::Prefetch, key, va, 8), error);
}

#[test]
fn a_region_with_bound_windows_stays_as_it_is() {
    let mut s = Scene::new();
    let windows = [s.bound(MwType::Type1), s.bound(MwType::Type2), s.bound(MwType::Type2)];
    let busy = |windows| RegisterError::WindowsBound { windows };
    let change = Change { access: Some(OPEN), ..Change::default() };
    for left in (1..=3).rev() {
        assert_eq!(s.table.deregister(s.lkey).map(drop), Err(busy(left)));
        assert_eq!(s.table.reregister(s.lkey, change.clone()).map(drop), Err(busy(left)));
        let va = s.va + LEN / 4;
        assert_eq!(s.poke(DOMAIN, windows[left - 1], va), Ok(()));
        assert!(s.table.dealloc_mw(windows[left - 1]));
    }
    assert!(s.table.reregister(s.lkey, change).is_ok());
    assert!(s.table.deregister(s.lkey).is_ok());
    assert_eq!((s.table.len(), s.table.windows()), (0, 0));
}

#[test]
fn removing_a_region_by_force_closes_its_windows() {
    let mut s = Scene::new();
    let keys = [s.bound(MwType::Type1), s.bound(MwType::Type2)];
    let other = buffer(&mut s.table, 64, OPEN);
    let window = s.alloc(MwType::Type2);
    let addr = other.0.addr() as u64;
    let stays = s.bind(Bind { lkey: other.1, addr, len: 64, ..s.quarter(window) });
    assert!(s.table.remove(s.lkey).is_some());
    for key in keys {
        assert_eq!(s.poke(DOMAIN, key, s.va + LEN / 4), Err(AccessError::Unbound { key }));
    }
    assert_eq!(s.poke(DOMAIN, stays, addr), Ok(()));
    assert!(s.table.remove(s.lkey).is_none());
    assert!(s.table.remove(stays).is_none(), "a window is no region");
}

#[test]
fn a_window_is_deallocated_bound_or_not() {
    let mut s = Scene::new();
    for mw_type in [MwType::Type1, MwType::Type2] {
        let key = s.bound(mw_type);
        // It is known by the upper bits: a program whose bind failed may hold an older or a newer key.
        assert!(s.table.dealloc_mw(key ^ 0x42));
        assert!(!s.table.dealloc_mw(key));
        assert_eq!(s.poke(DOMAIN, key, s.va), Err(AccessError::UnknownKey { key }));
        assert_eq!(s.table.window_key(key), None);
        let unbound = s.alloc(mw_type);
        assert!(s.table.dealloc_mw(unbound));
    }
    assert!(!s.table.dealloc_mw(s.lkey), "a region is no window");
    assert!(s.table.deregister(s.lkey).is_ok(), "nothing is bound to it any more");
}

#[test]
fn the_windows_of_a_queue_pair_are_unbound_with_it() {
    let mut s = Scene::new();
    let ours: Vec<u32> = (0..5).map(|_| s.bound(MwType::Type2)).collect();
    let shared = s.bound(MwType::Type1);
    let window = s.alloc(MwType::Type2);
    let bind = s.quarter(window);
    s.table.bind(OTHER_QP, &bind).expect("it can be bound");
    // From the middle, the front and the back of the list.
    assert!(s.table.dealloc_mw(ours[2]) && s.table.dealloc_mw(ours[4]) && s.table.dealloc_mw(ours[0]));
    s.table.unbind_all_of(DOMAIN.qpn);
    for key in [ours[1], ours[3]] {
        assert_eq!(s.poke(DOMAIN, key, bind.addr), Err(AccessError::Unbound { key }));
    }
    assert_eq!(s.poke(OTHER_QP, bind.key, bind.addr), Ok(()));
    assert_eq!(s.poke(DOMAIN, shared, bind.addr), Ok(()));
    assert_eq!(s.table.windows_of(s.lkey), 2);
    s.table.unbind_all_of(DOMAIN.qpn);
    // Any queue pair can bind them again.
    let again = s.quarter(ours[1]);
    s.table.bind(OTHER_QP, &again).expect("it can be bound");
    s.table.unbind_all_of(OTHER_QP.qpn);
    assert!(s.table.bound_by.is_empty());
}

#[test]
fn windows_and_regions_have_a_maximum_each() {
    let mut t = table(3);
    let windows: Vec<u32> = (0..3).map(|_| t.alloc_mw(PD, MwType::Type2).expect("room")).collect();
    assert_eq!(t.alloc_mw(PD, MwType::Type1), Err(RegisterError::FullOfWindows { max: 3 }));
    for _ in 0..3 {
        add(&mut t, 0, 8, OPEN).expect("room");
    }
    assert_eq!(add(&mut t, 0, 8, OPEN), Err(RegisterError::Full { max: 3 }));
    assert!(t.dealloc_mw(windows[1]));
    assert!(t.alloc_mw(PD, MwType::Type1).is_ok());
}

#[test]
fn a_million_windows() {
    let count = 1 << 20;
    let mut t = table(count);
    let lkey = add(&mut t, 0, LEN, OPEN).expect("room").lkey;
    let keys: Vec<u32> = (0..count)
        .map(|_| {
            let window = t.alloc_mw(PD, MwType::Type2).expect("room");
            let bind = Bind { window, key: next(window), lkey, access: REMOTE, addr: 0, len: 8 };
            t.bind(DOMAIN, &bind).expect("it can be bound");
            bind.key
        })
        .collect();
    assert_eq!(t.alloc_mw(PD, MwType::Type2), Err(RegisterError::FullOfWindows { max: count }));
    assert_eq!(t.deregister(lkey).map(drop), Err(RegisterError::WindowsBound { windows: keys.len() }));
    assert!(keys.iter().all(|key| t.check(DOMAIN, *key, 0, 8, REMOTE).is_ok()));
    t.unbind_all_of(DOMAIN.qpn);
    assert!(t.deregister(lkey).is_ok());
    assert!(keys.into_iter().all(|key| t.dealloc_mw(key)));
    assert_eq!(t.windows(), 0);
}

#[test]
fn errors_tell_which_rule() {
    let error = BindError::NeedsRight {
        lkey: 0x1234_5678,
        access: Access::REMOTE_WRITE,
        missing: Access::LOCAL_WRITE,
    };
    let text = error.to_string();
    for part in ["0x12345678", "REMOTE_WRITE", "LOCAL_WRITE"] {
        assert!(text.contains(part), "{text}");
    }
    // One series of numbers for what a completion can carry.
    let region = AccessError::WrongQueuePair { key: 1 };
    assert_eq!(BindError::Region(region).vendor_code(), region.vendor_code());
    assert_eq!((BindError::NoWindow { key: 1 }.vendor_code(), error.vendor_code()), (32, 41));
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(bool),
    Dealloc(usize),
    /// A window to a region, by a queue pair.
    Bind(usize, usize, u32),
    Close(usize),
    Invalidate(usize, u32),
    Destroy(u32),
    Remove(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    prop_oneof![
        2 => any::<bool>().prop_map(Step::Alloc),
        1 => which().prop_map(Step::Dealloc),
        6 => (which(), which(), 0..3u32).prop_map(|(w, r, q)| Step::Bind(w, r, q)),
        1 => which().prop_map(Step::Close),
        2 => (which(), 0..3u32).prop_map(|(w, q)| Step::Invalidate(w, q)),
        1 => (0..3u32).prop_map(Step::Destroy),
        1 => which().prop_map(Step::Remove),
    ]
}

/// The expected state of a window: its type, its key, the region it is bound to, and the queue pair that bound it.
#[derive(Clone, Copy, Debug)]
struct Model {
    mw_type: MwType,
    key: u32,
    bound: Option<(u32, Qpn)>,
}

proptest! {
    /// Windows come, go, open and close in any order; a plain list predicts which are open.
    #[test]
    fn windows_behave_like_a_list_of_them(steps in prop::collection::vec(step(), 1..120)) {
        let mut t = table(20);
        let mut regions: Vec<u32> =
            (0..4).map(|_| add(&mut t, 0x1000, LEN, OPEN).expect("room").lkey).collect();
        let mut windows: Vec<Model> = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(second) => {
                    let mw_type = if second { MwType::Type2 } else { MwType::Type1 };
                    match t.alloc_mw(PD, mw_type) {
                        Ok(key) => windows.push(Model { mw_type, key, bound: None }),
                        Err(_) => prop_assert_eq!(windows.len(), 20),
                    }
                }
                Step::Dealloc(which) if !windows.is_empty() => {
                    let window = windows.swap_remove(which % windows.len());
                    prop_assert!(t.dealloc_mw(window.key));
                }
                Step::Bind(which, region, qpn) if !windows.is_empty() && !regions.is_empty() => {
                    let count = windows.len();
                    let window = &mut windows[which % count];
                    let lkey = regions[region % regions.len()];
                    let domain = Domain { pd: PD, qpn: Qpn::new(qpn) };
                    let key = next(window.key);
                    let bind = Bind { window: window.key, key, lkey, access: REMOTE, addr: 0x1000, len: 8 };
                    let may = window.mw_type == MwType::Type1 || window.bound.is_none();
                    prop_assert_eq!(t.bind(domain, &bind).is_ok(), may);
                    if may {
                        (window.key, window.bound) = (key, Some((lkey, domain.qpn)));
                    }
                }
                Step::Close(which) if !windows.is_empty() => {
                    let count = windows.len();
                    let window = &mut windows[which % count];
                    let key = next(window.key);
                    let access = Access::empty();
                    let bind = Bind { window: window.key, key, lkey: 0, access, addr: 0, len: 0 };
                    let may = window.mw_type == MwType::Type1;
                    prop_assert_eq!(t.bind(DOMAIN, &bind).is_ok(), may);
                    if may {
                        (window.key, window.bound) = (key, None);
                    }
                }
                Step::Invalidate(which, qpn) if !windows.is_empty() => {
                    let count = windows.len();
                    let window = &mut windows[which % count];
                    let domain = Domain { pd: PD, qpn: Qpn::new(qpn) };
                    let may = window.mw_type == MwType::Type2
                        && window.bound.is_some_and(|(_, by)| by == domain.qpn);
                    prop_assert_eq!(t.invalidate(domain, window.key).is_ok(), may);
                    if may {
                        window.bound = None;
                    }
                }
                Step::Destroy(qpn) => {
                    let qpn = Qpn::new(qpn);
                    t.unbind_all_of(qpn);
                    for window in &mut windows {
                        let dies = window.mw_type == MwType::Type2
                            && window.bound.is_some_and(|(_, by)| by == qpn);
                        window.bound = window.bound.filter(|_| !dies);
                    }
                }
                Step::Remove(which) if !regions.is_empty() => {
                    let lkey = regions.swap_remove(which % regions.len());
                    prop_assert!(t.remove(lkey).is_some());
                    for window in &mut windows {
                        window.bound = window.bound.filter(|(region, _)| *region != lkey);
                    }
                }
                _ => {}
            }
            for lkey in &regions {
                let bound = windows.iter().filter(|w| w.bound.is_some_and(|(r, _)| r == *lkey)).count();
                prop_assert_eq!(t.windows_of(*lkey), bound);
            }
            for window in &windows {
                let by = window.bound.map_or(DOMAIN.qpn, |(_, by)| by);
                let result = t.check(Domain { pd: PD, qpn: by }, window.key, 0x1000, 8, REMOTE);
                prop_assert_eq!(result.is_ok(), window.bound.is_some(), "{:?}", window);
            }
            prop_assert_eq!((t.len(), t.windows()), (regions.len(), windows.len()));
        }
    }
}
