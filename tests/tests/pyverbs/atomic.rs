//! `test_atomic.py`, without the masks and the other sizes that a particular vendor's device adds; its XRC cases
//! are in `xrc.rs`.

use crate::players::{Player, atomic_traffic, everywhere, players_with};
use rnic::{Access, ConnectOptions, Error, Operation, Remote, Sge, WcStatus};

const ITERS: u64 = 10;

/// The rights of both queue pairs and memory, unless a case removes one of them.
const ATOMIC: Access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);

/// The content of a word before an operation that must not change it.
const UNTOUCHED: u64 = 0x0101_0101_0101_0101;

/// Runs a case between players with `len` bytes and these access rights of queue pairs and memory.
fn case(
    queue_pairs: Access,
    memory: Access,
    len: usize,
    run: impl Fn(&Player, &Player) -> Result<(), Error>,
) -> Result<(), Error> {
    everywhere(|a, b| {
        let options = ConnectOptions { access: queue_pairs, ..ConnectOptions::default() };
        let (client, server) = players_with(a, b, &|pd| pd.register(len, memory), &options)?;
        run(&client, &server)
    })
}

/// Atomics of the client on the server's word, then of the server on the client's.
fn both_ways(
    client: &Player,
    server: &Player,
    operation: impl Fn(Remote) -> (Operation, fn(u64) -> u64),
) -> Result<(), Error> {
    atomic_traffic(client, server, ITERS, &operation)?;
    atomic_traffic(server, client, ITERS, &operation)
}

/// An addition to the server's word that must be refused with this status, without changing anything.
fn refused(client: &Player, server: &Player, remote: Remote, expected: WcStatus) -> Result<(), Error> {
    server.mr.store_u64(0, UNTOUCHED)?;
    let status = client.run_with(Operation::FetchAdd { remote, add: 2 }, client.mr.slice(0..8)?)?;
    assert_eq!(status, expected);
    assert_eq!(server.mr.load_u64(0)?, UNTOUCHED);
    Ok(())
}

#[test]
fn test_atomic_cmp_and_swap() -> Result<(), Error> {
    case(ATOMIC, ATOMIC, 8, |client, server| {
        // Never equal, then equal in the second to last round.
        both_ways(client, server, |remote| {
            (Operation::CompareSwap { remote, compare: u64::MAX, swap: 7 }, |old| old)
        })?;
        both_ways(client, server, |remote| {
            (Operation::CompareSwap { remote, compare: 8, swap: 7 }, |old| if old == 8 { 7 } else { old })
        })
    })
}

#[test]
fn test_atomic_fetch_and_add() -> Result<(), Error> {
    case(ATOMIC, ATOMIC, 8, |client, server| {
        both_ways(client, server, |remote| (Operation::FetchAdd { remote, add: 2 }, |old| old + 2))
    })
}

/// An operation that the queue pair does not allow is an invalid request, not an access violation.
#[test]
fn test_atomic_invalid_qp_access() -> Result<(), Error> {
    case(Access::LOCAL_WRITE, ATOMIC, 8, |client, server| {
        refused(client, server, client.remote, WcStatus::RemInvReqErr)
    })
}

#[test]
fn test_atomic_invalid_mr_access() -> Result<(), Error> {
    case(ATOMIC, Access::LOCAL_WRITE, 8, |client, server| {
        refused(client, server, client.remote, WcStatus::RemAccessErr)
    })
}

#[test]
fn test_atomic_non_aligned_addr() -> Result<(), Error> {
    case(ATOMIC, ATOMIC, 9, |client, server| {
        let remote = server.mr.remote(1);
        refused(client, server, remote, WcStatus::RemInvReqErr)
    })
}

/// The previous value cannot be stored when it arrives: this side's word keeps its value. (The key is only looked
/// up then, so the peer has executed the atomic.)
#[test]
fn test_atomic_invalid_lkey() -> Result<(), Error> {
    case(ATOMIC, ATOMIC, 8, |client, _server| {
        client.mr.store_u64(0, UNTOUCHED)?;
        let local = Sge { lkey: client.mr.lkey() + 1, ..client.mr.all() };
        let operation = Operation::FetchAdd { remote: client.remote, add: 2 };
        assert_eq!(client.run_with(operation, local)?, WcStatus::LocProtErr);
        assert_eq!(client.mr.load_u64(0)?, UNTOUCHED);
        Ok(())
    })
}

#[test]
fn test_atomic_invalid_rkey() -> Result<(), Error> {
    case(ATOMIC, ATOMIC, 8, |client, server| {
        let remote = Remote { rkey: client.remote.rkey + 1, ..client.remote };
        refused(client, server, remote, WcStatus::RemAccessErr)
    })
}
