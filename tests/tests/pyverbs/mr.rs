//! `test_mr.py`, class `MRTest`, with the cases that the suite had before its present form. Device memory and
//! dma-buf have no counterpart.

use crate::players::{MESSAGE, Player, everywhere, players, rdma_traffic, restate, traffic, write};
use rnic::engine::ResourceError;
use rnic::memory::MemoryBuffer;
use rnic::sim::Net;
use rnic::{Access, Error, ProtectionDomain, RegisterError, Rereg, WcStatus};

const ITERS: u64 = 10;
const LOCAL: Access = Access::LOCAL_WRITE;
const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn domain() -> Result<ProtectionDomain, Error> {
    Net::new().device().alloc_pd()
}

/// All combinations of access rights (`get_access_flags`), and whether they are valid.
fn combinations() -> impl Iterator<Item = (Access, bool)> {
    let all = Access::all() - Access::FLUSH_PERSISTENT;
    (0..=all.bits()).filter_map(move |bits| {
        let access = Access::from_bits(bits).filter(|access| all.contains(*access))?;
        let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        Some((access, !remote || access.contains(Access::LOCAL_WRITE)))
    })
}

/// The same without the high bits, which only multiply the number of combinations.
fn usual() -> Vec<Access> {
    combinations()
        .take_while(|(access, _)| !access.contains(Access::RELAXED_ORDERING))
        .filter_map(|(access, legal)| legal.then_some(access))
        .collect()
}

fn refused(result: Result<rnic::MemoryRegion, Error>) -> RegisterError {
    match result {
        Err(Error::Resource(ResourceError::Register(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_reg_mr() -> Result<(), Error> {
    let pd = domain()?;
    let mut legal = 0;
    for access in usual() {
        let mr = pd.register(4096, access)?;
        assert_eq!((mr.access(), mr.len()), (access, 4096));
        legal += 1;
    }
    assert!(legal > 200, "{legal} combinations");
    pd.register(4096, WRITABLE | Access::RELAXED_ORDERING)?;
    Ok(())
}

#[test]
fn test_dereg_mr() -> Result<(), Error> {
    let pd = domain()?;
    for access in usual() {
        pd.register(4096, access)?.deregister()?;
    }
    Ok(())
}

/// Deregistering consumes the region, so it cannot be done twice. Its key becomes invalid, and another region gets
/// another key.
#[test]
fn test_dereg_mr_twice() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, &|pd| pd.register(MESSAGE, WRITABLE))?;
        let Player { mr, qp, cq, pd, remote, device: _device } = client;
        let (old, key) = (mr.all(), mr.lkey());
        mr.deregister()?;
        assert_ne!(pd.register(MESSAGE, WRITABLE)?.lkey(), key);
        qp.write(1, old, remote)?;
        assert_eq!(cq.wait(std::time::Duration::from_secs(30))?.status, WcStatus::LocProtErr);
        drop(server);
        Ok(())
    })
}

/// A missing protection domain cannot be expressed; one of another device can.
#[test]
fn test_reg_mr_bad_flow() -> Result<(), Error> {
    let net = Net::new();
    let (pd, foreign) = (net.device().alloc_pd()?, net.device().alloc_pd()?);
    let mut mr = pd.register(4096, LOCAL)?;
    let error = mr.rereg(Rereg::new().pd(&foreign)).expect_err("of another device");
    assert!(matches!(error, Error::Resource(ResourceError::Unknown { what: "protection domain" })));
    mr.rereg(Rereg::new().pd(&net.device().alloc_pd()?)).expect_err("of yet another");
    mr.deregister()?;
    Ok(())
}

#[test]
fn test_reg_mr_bad_flags() -> Result<(), Error> {
    let pd = domain()?;
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC]
    {
        assert_eq!(refused(pd.register(4096, remote)), RegisterError::NeedsLocalWrite { remote });
    }
    let illegal = combinations().take(1 << 9).filter(|(_, legal)| !legal);
    for (access, _) in illegal {
        assert!(matches!(refused(pd.register(4096, access)), RegisterError::NeedsLocalWrite { .. }));
    }
    let persistent = LOCAL | Access::FLUSH_PERSISTENT;
    assert_eq!(refused(pd.register(4096, persistent)), RegisterError::NotPersistent);
    Ok(())
}

#[test]
fn test_write() -> Result<(), Error> {
    let pd = domain()?;
    for len in [1, 100, 4096, 1 << 20] {
        let mr = pd.register(len, LOCAL)?;
        mr.write_at(0, &vec![b'a'; len])?;
        assert!(matches!(mr.write_at(1, &vec![b'a'; len]), Err(Error::Memory(_))));
        assert!(mr.to_vec()?.iter().all(|byte| *byte == b'a'));
    }
    Ok(())
}

#[test]
fn test_read() -> Result<(), Error> {
    let pd = domain()?;
    let mr = pd.register_bytes(b"some bytes", LOCAL)?;
    let mut out = [0; 5];
    mr.read_at(5, &mut out)?;
    assert_eq!(&out, b"bytes");
    assert!(matches!(mr.read_at(6, &mut out), Err(Error::Memory(_))));
    Ok(())
}

#[test]
fn test_lkey() -> Result<(), Error> {
    let pd = domain()?;
    let regions = [pd.register(64, LOCAL)?, pd.register(64, LOCAL)?];
    assert_ne!(regions[0].lkey(), regions[1].lkey());
    assert_eq!(regions[0].all().lkey, regions[0].lkey());
    Ok(())
}

#[test]
fn test_rkey() -> Result<(), Error> {
    let pd = domain()?;
    let mr = pd.register(64, WRITABLE)?;
    assert_eq!((mr.rkey(), mr.remote(8).rkey), (mr.lkey(), mr.lkey()));
    Ok(())
}

#[test]
fn test_buffer() -> Result<(), Error> {
    let pd = domain()?;
    let mr = pd.register_memory(MemoryBuffer::new(64)?, None, LOCAL)?;
    assert_eq!(mr.addr(), mr.memory().addr() as u64);
    let zero_based = pd.register(64, LOCAL | Access::ZERO_BASED)?;
    assert_eq!(zero_based.addr(), 0);
    let moved = pd.register_memory(MemoryBuffer::new(64)?, Some(0x1234_5000), LOCAL)?;
    assert_eq!(moved.slice(8..16)?.addr, 0x1234_5008);
    Ok(())
}

/// The players already know each other's keys, which stay valid.
#[test]
fn test_mr_rereg_access() -> Result<(), Error> {
    everywhere(|a, b| {
        let (mut client, mut server) = players(a, b, &|pd| pd.register(MESSAGE, LOCAL))?;
        for player in [&mut client, &mut server] {
            player.mr.rereg(Rereg::new().access(WRITABLE))?;
        }
        assert_eq!(rdma_traffic(&client, &server, ITERS, write)?, WcStatus::Success);
        Ok(())
    })
}

#[test]
fn test_mr_rereg_access_bad_flow() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, mut server) = players(a, b, &|pd| pd.register(MESSAGE, WRITABLE))?;
        assert_eq!(rdma_traffic(&client, &server, ITERS, write)?, WcStatus::Success);
        server.mr.rereg(Rereg::new().access(LOCAL))?;
        assert_eq!(rdma_traffic(&client, &server, ITERS, write)?, WcStatus::RemAccessErr);
        let failure = server.qp.failure().expect("it says why").to_string();
        assert!(failure.contains("REMOTE_WRITE"), "{failure}");
        Ok(())
    })
}

#[test]
fn test_mr_rereg_pd() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, mut server) = players(a, b, &|pd| pd.register(MESSAGE, LOCAL))?;
        assert_eq!(traffic(&client, &server, ITERS)?, WcStatus::Success);
        let other = server.device.alloc_pd()?;
        server.mr.rereg(Rereg::new().pd(&other))?;
        assert_eq!(traffic(&client, &server, ITERS)?, WcStatus::RemOpErr);
        restate(&client, &server)?;
        server.mr.rereg(Rereg::new().pd(&server.pd))?;
        assert_eq!(traffic(&client, &server, ITERS)?, WcStatus::Success);
        // The old domain is deallocated before the region, which has moved to another.
        server.mr.rereg(Rereg::new().pd(&other))?;
        drop(other);
        server.mr.deregister()?;
        Ok(())
    })
}

#[test]
fn test_mr_rereg_addr() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, mut server) = players(a, b, &|pd| pd.register(MESSAGE, LOCAL))?;
        // A receive with the old address is posted.
        server.qp.recv(1, server.mr.all())?;
        let old = server.mr.all();
        server.mr.rereg(Rereg::new().memory(MemoryBuffer::new(2 * MESSAGE)?, None))?;
        assert_eq!(server.mr.len(), 2 * MESSAGE);
        assert_ne!((server.mr.addr(), server.mr.lkey()), (old.addr, old.lkey));
        assert_eq!(traffic(&client, &server, 1)?, WcStatus::RemOpErr);
        restate(&client, &server)?;
        server.mr.rereg(Rereg::new().memory(MemoryBuffer::new(MESSAGE)?, None))?;
        assert_eq!(traffic(&client, &server, ITERS)?, WcStatus::Success);
        Ok(())
    })
}
