//! Memory regions and memory windows that change under traffic, in virtual time.

use rnic::engine::ResourceError;
use rnic::memory::MemoryBuffer;
use rnic::sim::Net;
use rnic::{
    Access, Advice, ConnectOptions, Device, Error, Gather, MemoryRegion, MwType, NotDestroyed, Operation,
    QpAttr, QpInit, QpState, RcEnd, Rereg, Sge, WcFlags, WcStatus,
};
use std::time::Duration;

/// Longer than anything takes, in virtual time.
const PATIENCE: Duration = Duration::from_secs(1);

const LOCAL: Access = Access::LOCAL_WRITE;
const WRITABLE: Access = LOCAL.union(Access::REMOTE_WRITE);
const BINDABLE: Access = LOCAL.union(Access::MW_BIND);
/// Several hundred packets, so that other things can happen while they are in flight.
const LONG: usize = 1 << 20;

struct Scene {
    net: Net,
    a: Device,
    left: RcEnd,
    right: RcEnd,
}

impl Scene {
    fn new() -> Result<Self, Error> {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let (left, right) = RcEnd::pair(&a, &b)?;
        Ok(Self { net, a, left, right })
    }

    /// Advances until part of a WRITE of ones has arrived.
    fn until_it_arrives(&self, target: &MemoryRegion) -> Result<(), Error> {
        let mut byte = [0];
        while byte == [0] {
            assert!(self.net.step(), "nothing ever arrives");
            target.read_at(0, &mut byte)?;
        }
        target.read_at(LONG - 1, &mut byte)?;
        assert_eq!(byte, [0], "and not all of it");
        Ok(())
    }

    /// Why the left end, or the right end, failed.
    fn why(end: &RcEnd) -> String {
        end.qp.failure().map(|failure| failure.to_string()).unwrap_or_default()
    }
}

/// The status of the next completion.
fn status(end: &RcEnd) -> Result<WcStatus, Error> {
    Ok(end.wait()?.status)
}

fn busy<T>(result: Result<(), NotDestroyed<T>>) -> (T, usize) {
    match result {
        Err(NotDestroyed { object, error: Error::Resource(ResourceError::Busy { users, .. }) }) => {
            (object, users)
        }
        Err(NotDestroyed { error, .. }) => panic!("{error}"),
        Ok(()) => panic!("it is in use"),
    }
}

#[test]
fn the_target_of_a_write_is_deregistered_while_it_arrives() -> Result<(), Error> {
    let s = Scene::new()?;
    let source = s.left.register(&vec![1; LONG])?;
    let target = s.right.pd().register(LONG, WRITABLE)?;
    s.left.qp.write(1, source.all(), target.remote(0))?;
    s.until_it_arrives(&target)?;
    let (key, memory) = (target.rkey(), target.memory().clone());
    target.deregister()?;
    let mut before = vec![0; LONG];
    memory.read_at(0, &mut before)?;
    assert_eq!(status(&s.left)?, WcStatus::RemAccessErr);
    let mut after = vec![0; LONG];
    memory.read_at(0, &mut after)?;
    assert!(before == after, "nothing is written once it is deregistered");
    assert!(Scene::why(&s.right).contains(&format!("{key:#010x}")), "{}", Scene::why(&s.right));
    Ok(())
}

#[test]
fn the_source_of_a_write_is_deregistered_while_it_leaves() -> Result<(), Error> {
    let s = Scene::new()?;
    let source = s.left.register(&vec![1; LONG])?;
    let target = s.right.pd().register(LONG, WRITABLE)?;
    s.left.qp.write(1, source.all(), target.remote(0))?;
    s.until_it_arrives(&target)?;
    source.deregister()?;
    assert_eq!(status(&s.left)?, WcStatus::LocProtErr);
    Ok(())
}

#[test]
fn the_target_of_a_write_gets_other_rights_or_other_memory_while_it_arrives() -> Result<(), Error> {
    for change in [
        Rereg::new().access(LOCAL),
        Rereg::new().memory(MemoryBuffer::new(LONG)?, None),
        Rereg::new().access(WRITABLE | Access::ZERO_BASED),
    ] {
        let s = Scene::new()?;
        let source = s.left.register(&vec![1; LONG])?;
        let mut target = s.right.pd().register(LONG, WRITABLE)?;
        s.left.qp.write(1, source.all(), target.remote(0))?;
        s.until_it_arrives(&target)?;
        let before = target.memory().clone();
        target.rereg(change)?;
        let moved = target.memory().addr() != before.addr();
        assert_eq!(status(&s.left)?, WcStatus::RemAccessErr);
        if moved {
            assert!(target.to_vec()?.iter().all(|byte| *byte == 0), "none of it is in the new memory");
        }
    }
    Ok(())
}

#[test]
fn a_region_with_bound_windows_is_not_deregistered_nor_changed() -> Result<(), Error> {
    let s = Scene::new()?;
    let mut memory = s.right.pd().register(64, BINDABLE)?;
    let windows = [s.right.pd().alloc_mw(MwType::Type1)?, s.right.pd().alloc_mw(MwType::Type2)?];
    for window in &windows {
        s.right.qp.bind_mw(1, window, &memory, 0..64, Access::REMOTE_WRITE)?;
        assert_eq!(status(&s.right)?, WcStatus::Success);
    }
    let error = memory.rereg(Rereg::new().access(LOCAL)).expect_err("two windows are bound").to_string();
    assert!(error.contains("memory windows (2)"), "{error}");
    let (memory, users) = busy(memory.deregister());
    assert_eq!(users, 2);
    // It is unchanged: both windows work.
    let source = s.left.register(b"works")?;
    for (window, offset) in windows.iter().zip([0, 32]) {
        s.left.qp.write(2, source.all(), window.remote(&memory, offset))?;
        assert_eq!(status(&s.left)?, WcStatus::Success);
    }
    assert_eq!(memory.to_vec()?[32..37], *b"works");
    // Each is closed in a different way: unbinding, and deallocation.
    let [first, second] = windows;
    s.right.qp.unbind_mw(3, &first)?;
    assert_eq!(status(&s.right)?, WcStatus::Success);
    let (memory, users) = busy(memory.deregister());
    assert_eq!(users, 1);
    second.dealloc()?;
    memory.deregister()?;
    Ok(())
}

#[test]
fn dropping_a_region_closes_its_windows() -> Result<(), Error> {
    let s = Scene::new()?;
    let memory = s.right.pd().register(64, BINDABLE)?;
    let window = s.right.pd().alloc_mw(MwType::Type2)?;
    s.right.qp.bind_mw(1, &window, &memory, 0..64, Access::REMOTE_WRITE)?;
    assert_eq!(status(&s.right)?, WcStatus::Success);
    let place = window.remote(&memory, 0);
    drop(memory);
    let source = s.left.register(b"late")?;
    s.left.qp.write(2, source.all(), place)?;
    assert_eq!(status(&s.left)?, WcStatus::RemAccessErr);
    assert!(Scene::why(&s.right).contains("not bound"), "{}", Scene::why(&s.right));
    Ok(())
}

/// A window that was opened for one peer must not be open for the next.
#[test]
fn windows_of_type_2_are_closed_with_their_queue_pair() -> Result<(), Error> {
    for destroy in [true, false] {
        let Scene { left, right, .. } = Scene::new()?;
        let memory = right.pd().register(64, BINDABLE)?;
        let [own, shared] = [MwType::Type2, MwType::Type1].map(|t| right.pd().alloc_mw(t));
        let (own, shared) = (own?, shared?);
        for window in [&own, &shared] {
            right.qp.bind_mw(1, window, &memory, 0..64, Access::REMOTE_WRITE)?;
            assert_eq!(status(&right)?, WcStatus::Success);
        }
        let (memory, users) = busy(memory.deregister());
        assert_eq!(users, 2);
        if destroy {
            let RcEnd { qp, .. } = right;
            drop(qp);
        } else {
            right.qp.modify(&QpAttr::to_state(QpState::Reset))?;
        }
        let (memory, users) = busy(memory.deregister());
        assert_eq!(users, 1, "the window of type 1 belongs to the domain");
        shared.dealloc()?;
        memory.deregister()?;
        drop(left);
    }
    Ok(())
}

#[test]
fn a_bind_that_breaks_a_rule_says_which() -> Result<(), Error> {
    // The region's access rights, the requested rights of the window, the code of the rule, and its error text.
    for (mw_type, allowed, asked, vendor_err, words) in [
        (MwType::Type2, LOCAL, Access::REMOTE_READ, 40, "lacks the right MW_BIND"),
        (MwType::Type2, Access::MW_BIND, Access::REMOTE_WRITE, 41, "requires LOCAL_WRITE"),
        (MwType::Type1, BINDABLE, Access::ZERO_BASED, 37, "only type 2 windows may be zero-based"),
        (MwType::Type2, BINDABLE | Access::ZERO_BASED, Access::REMOTE_READ, 38, "is zero-based"),
    ] {
        let s = Scene::new()?;
        let memory = s.left.pd().register(64, allowed)?;
        let window = s.left.pd().alloc_mw(mw_type)?;
        let key = window.rkey();
        s.left.qp.bind_mw(7, &window, &memory, 0..64, asked)?;
        s.left.qp.send(8, Gather::Empty)?;
        let wc = s.left.wait()?;
        assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (7, WcStatus::MwBindErr, vendor_err));
        let why = Scene::why(&s.left);
        assert!(why.contains(words), "{why}");
        assert_eq!(status(&s.left)?, WcStatus::WrFlushErr);
        assert_ne!(window.rkey(), key, "the program believed in it");
        assert_eq!((window.query_rkey()?, window.rkey()), (key, key));
        memory.deregister()?;
    }
    Ok(())
}

#[test]
fn a_bind_outside_the_region_is_caught_twice() -> Result<(), Error> {
    let s = Scene::new()?;
    let memory = s.left.pd().register(64, BINDABLE)?;
    let window = s.left.pd().alloc_mw(MwType::Type1)?;
    let error = s.left.qp.bind_mw(1, &window, &memory, 32..65, Access::REMOTE_READ);
    assert!(matches!(error, Err(Error::Range { start: 32, end: 65, len: 64 })));
    let mut bind = window.bind_to(&memory, 0..64, Access::REMOTE_READ)?;
    bind.len += 1;
    s.left.qp.post(2, Operation::BindWindow(bind), Gather::Empty)?;
    assert_eq!(status(&s.left)?, WcStatus::MwBindErr);
    assert!(Scene::why(&s.left).contains("not inside the region"), "{}", Scene::why(&s.left));
    Ok(())
}

#[test]
fn an_invalidation_that_breaks_a_rule_says_which() -> Result<(), Error> {
    let s = Scene::new()?;
    let window = s.left.pd().alloc_mw(MwType::Type1)?;
    s.left.qp.post(1, Operation::LocalInvalidate { key: window.rkey() }, Gather::Empty)?;
    let wc = s.left.wait()?;
    assert_eq!((wc.status, wc.vendor_err), (WcStatus::LocQpOpErr, 8));
    let why = Scene::why(&s.left);
    assert!(why.contains("not a type 2 memory window"), "{why}");
    Ok(())
}

/// Only the peer of the queue pair that bound a window may invalidate it.
#[test]
fn a_peer_does_not_invalidate_what_another_queue_pair_bound() -> Result<(), Error> {
    let s = Scene::new()?;
    let cq = s.a.create_cq(8)?;
    let other = s.right.pd().create_qp(&QpInit::rc(s.right.cq(), s.right.cq()))?;
    let third = s.left.pd().create_qp(&QpInit::rc(&cq, &cq))?;
    other.connect(&third.address(), &ConnectOptions::default())?;
    third.connect(&other.address(), &ConnectOptions::default())?;
    let memory = s.right.pd().register(64, BINDABLE)?;
    let window = s.right.pd().alloc_mw(MwType::Type2)?;
    s.right.qp.bind_mw(1, &window, &memory, 0..64, Access::REMOTE_WRITE)?;
    assert_eq!(status(&s.right)?, WcStatus::Success);
    other.recv(2, Gather::Empty)?;
    third.post(3, Operation::Send { imm: None, invalidate: Some(window.rkey()) }, Gather::Empty)?;
    assert_eq!(cq.wait(PATIENCE)?.status, WcStatus::RemAccessErr);
    let failure = other.failure().expect("it says why").to_string();
    assert!(failure.contains("another queue pair bound"), "{failure}");
    // The window's own users do not notice.
    let source = s.left.register(b"still open")?;
    s.left.qp.write(4, source.all(), window.remote(&memory, 0))?;
    assert_eq!(status(&s.left)?, WcStatus::Success);
    Ok(())
}

/// Local operations are executed once, in order, regardless of losses and retransmissions around them.
#[test]
fn windows_open_and_close_on_a_lossy_network() -> Result<(), Error> {
    const ROUNDS: u64 = 60;
    let s = Scene::new()?;
    s.a.add_fault("tx data p=0.15 drop")?;
    s.a.add_fault("rx ack p=0.15 drop")?;
    let memory = s.right.pd().register(64, BINDABLE)?;
    let window = s.right.pd().alloc_mw(MwType::Type2)?;
    let source = s.left.pd().register(8, LOCAL)?;
    for round in 0..ROUNDS {
        // The window is bound and its key sent after it, without waiting in between.
        let offset = (round as usize % 8) * 8;
        s.right.qp.bind_mw(1, &window, &memory, offset..offset + 8, Access::REMOTE_WRITE)?;
        assert_eq!(status(&s.right)?, WcStatus::Success);
        let place = window.remote(&memory, offset as u64);
        source.store_u64(0, round + 1)?;
        s.right.qp.recv(2, Gather::Empty)?;
        s.left.qp.write(3, source.all(), place)?;
        // The write completes before its key is invalidated.
        let invalidate = Some(place.rkey);
        s.left.qp.post(4, Operation::Send { imm: None, invalidate }, Gather::Empty)?;
        assert_eq!((status(&s.left)?, status(&s.left)?), (WcStatus::Success, WcStatus::Success));
        let received = s.right.wait()?;
        assert_eq!((received.status, received.imm_or_rkey), (WcStatus::Success, place.rkey));
        assert!(received.flags.contains(WcFlags::WITH_INV));
        assert_eq!(memory.load_u64(offset)?, round + 1);
    }
    assert!(s.a.faults().iter().all(|fault| fault.hits > 0), "something was lost");
    memory.deregister()?;
    Ok(())
}

/// An unreliable connection reports no invalid key: the message is dropped.
#[test]
fn windows_serve_unreliable_connections() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let side = |device: &Device| {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let qp = pd.create_qp(&QpInit::uc(&cq, &cq))?;
        Ok::<_, Error>((pd, cq, qp))
    };
    let ((near, sent, left), (far, bound, right)) = (side(&a)?, side(&b)?);
    left.connect(&right.address(), &ConnectOptions::default())?;
    right.connect(&left.address(), &ConnectOptions::default())?;
    let memory = far.register(64, BINDABLE)?;
    let window = far.alloc_mw(MwType::Type2)?;
    let source = near.register_bytes(b"one two", LOCAL)?;
    right.bind_mw(1, &window, &memory, 8..16, Access::REMOTE_WRITE)?;
    assert_eq!(bound.wait(PATIENCE)?.status, WcStatus::Success);
    let place = window.remote(&memory, 8);
    left.write(2, source.slice(0..3)?, place)?;
    assert_eq!(sent.wait(PATIENCE)?.status, WcStatus::Success);
    assert!(net.run_until_idle(PATIENCE));
    assert_eq!(memory.to_vec()?[8..12], *b"one\0");
    right.unbind_mw(3, &window)?;
    assert_eq!(bound.wait(PATIENCE)?.status, WcStatus::Success);
    left.write(4, source.slice(4..7)?, place)?;
    assert_eq!(sent.wait(PATIENCE)?.status, WcStatus::Success);
    assert!(net.run_until_idle(PATIENCE));
    assert_eq!(memory.to_vec()?[8..12], *b"one\0");
    assert_eq!(rnic_tests::counter(&b, "dropped_unreliable"), 1);
    assert_eq!((left.state(), right.state()), (QpState::Rts, QpState::Rts));
    memory.deregister()?;
    Ok(())
}

#[test]
fn peers_name_a_zero_based_window_by_offsets() -> Result<(), Error> {
    let s = Scene::new()?;
    let memory = s.right.pd().register(64, BINDABLE)?;
    let window = s.right.pd().alloc_mw(MwType::Type2)?;
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    s.right.qp.bind_mw(1, &window, &memory, 16..48, access)?;
    assert_eq!(status(&s.right)?, WcStatus::Success);
    let place = rnic::Remote { addr: 30, rkey: window.rkey() };
    let source = s.left.register(b"abc")?;
    s.left.qp.write(2, source.slice(0..2)?, place)?;
    assert_eq!(status(&s.left)?, WcStatus::Success);
    assert_eq!(memory.to_vec()?[46..49], *b"ab\0");
    s.left.qp.write(3, source.all(), place)?;
    assert_eq!(status(&s.left)?, WcStatus::RemAccessErr);
    let why = Scene::why(&s.right);
    assert!(why.contains("0x0..0x20"), "the window's range, not the region's: {why}");
    Ok(())
}

#[test]
fn peers_name_memory_by_the_address_that_it_was_registered_with() -> Result<(), Error> {
    let s = Scene::new()?;
    let memory = s.right.pd().register_memory(MemoryBuffer::new(64)?, Some(0xabcd_0000), WRITABLE)?;
    assert_eq!((memory.addr(), memory.remote(8).addr), (0xabcd_0000, 0xabcd_0008));
    let place = rnic::Remote { addr: 0xabcd_003c, rkey: memory.rkey() };
    let source = s.left.register(b"tail")?;
    s.left.qp.write(1, source.all(), place)?;
    assert_eq!(status(&s.left)?, WcStatus::Success);
    assert_eq!(memory.to_vec()?[60..], *b"tail");
    Ok(())
}

#[test]
fn null_regions_pad_and_swallow() -> Result<(), Error> {
    let s = Scene::new()?;
    let (here, there) = (s.left.pd().alloc_null_mr()?, s.right.pd().alloc_null_mr()?);
    let source = s.left.register(b"headtail")?;
    let target = s.right.pd().register(12, LOCAL)?;
    // 4 bytes, 100 zeros, 4 bytes; the receiver wants the first 8 and the last 4.
    let recv: [Sge; 3] = [target.slice(0..8)?, there.bytes(96), target.slice(8..12)?];
    s.right.qp.recv(1, Gather::from(&recv[..]))?;
    let send: [Sge; 3] = [source.slice(0..4)?, here.bytes(100), source.slice(4..8)?];
    s.left.qp.send(2, Gather::from(&send[..]))?;
    assert_eq!((status(&s.left)?, status(&s.right)?), (WcStatus::Success, WcStatus::Success));
    assert_eq!(&target.to_vec()?, b"head\0\0\0\0tail");
    // The key cannot be used by a peer.
    let place = rnic::Remote { addr: 0, rkey: there.lkey() };
    s.left.qp.write(3, source.all(), place)?;
    assert_eq!(status(&s.left)?, WcStatus::RemAccessErr);
    Ok(())
}

#[test]
fn advice_that_cannot_be_taken_is_an_error() -> Result<(), Error> {
    let s = Scene::new()?;
    let pd = s.left.pd();
    let demand = pd.register(3 << 20, LOCAL | Access::ON_DEMAND)?;
    // More than is prefetched at a time.
    pd.advise(Advice::PrefetchWrite, &[demand.all()])?;
    let readable = pd.register(64, Access::ON_DEMAND)?;
    let plain = pd.register(64, LOCAL)?;
    let window = pd.alloc_mw(MwType::Type1)?;
    let all = demand.all();
    for (advice, sge, words) in [
        (Advice::Prefetch, plain.all(), "ON_DEMAND"),
        (Advice::PrefetchWrite, readable.all(), "LOCAL_WRITE"),
        (Advice::Prefetch, Sge { length: all.length + 1, ..all }, "not inside"),
        (Advice::Prefetch, Sge { addr: u64::MAX, ..all }, "not inside"),
        (Advice::PrefetchNoFault, Sge { lkey: all.lkey ^ 1, ..all }, "names no memory region"),
        (Advice::Prefetch, Sge { lkey: window.rkey(), ..all }, "is a memory window"),
    ] {
        let error = pd.advise(advice, &[all, sge]).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = s.right.pd().advise(Advice::Prefetch, &[readable.all()]).expect_err("another device");
    assert!(matches!(error, Error::Access(_)), "{error}");
    Ok(())
}
