//! The cases of `test_cqex.py`, `test_qpex.py`, `test_relaxed_ordering.py`, `test_odp.py` and `test_atomic.py` over
//! extended reliable connections. The extended ways of posting and polling that some of them are about are the only
//! ones here.

use crate::players::IMM;
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Destination, Device, Error, MemoryRegion, Operation,
    ProtectionDomain, QpInit, QueuePair, Remote, SendFlags, SendWr, SharedReceiveQueue, SrqInit, WcOpcode,
    WcStatus, WorkCompletion, XrcDomain,
};
use std::time::Duration;

/// Length of each message in bytes, as in the suite.
const MESSAGE: usize = 1024;

/// Number of messages on each queue pair in each direction, as in the suite.
const NUM_MSGS: u32 = 1000;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One side: two sending and two receiving halves, and one queue for their receives (`XRCResources`).
struct Player {
    device: Device,
    xrcd: XrcDomain,
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    mr: MemoryRegion,
    send_qps: [QueuePair; 2],
    recv_qps: [QueuePair; 2],
}

impl Player {
    fn new(device: &Device, access: Access) -> Result<Self, Error> {
        let xrcd = device.open_xrcd()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(2000)?;
        let init = SrqInit { max_wr: 2 * NUM_MSGS, max_sge: 1, limit: 0 };
        let srq = pd.create_xrc_srq(&init, &xrcd, &cq)?;
        let mr = pd.register(MESSAGE, access)?;
        let send = QpInit { sq_sig_all: true, ..QpInit::xrc_send(&cq) };
        let send_qps = [pd.create_qp(&send)?, pd.create_qp(&send)?];
        let recv = QpInit::xrc_recv(&xrcd);
        let recv_qps = [device.create_qp(&recv)?, device.create_qp(&recv)?];
        Ok(Self { device: device.clone(), xrcd, _pd: pd, cq, srq, mr, send_qps, recv_qps })
    }

    fn poll(&self) -> Result<WorkCompletion, Error> {
        let wc = self.cq.wait(PATIENCE)?;
        assert_eq!(wc.status, WcStatus::Success);
        Ok(wc)
    }
}

/// Runs traffic in virtual time, then on loopback, between players with this memory.
fn everywhere(access: Access, imm: Option<u32>) -> Result<(), Error> {
    let net = Net::new();
    run(&net.device(), &net.device(), access, imm, NUM_MSGS)?;
    // Fewer: both devices must notice each time when one thread waits for them in turn.
    run(&rnic_tests::open(), &rnic_tests::open(), access, imm, NUM_MSGS / 10)
}

/// Two players that are connected (`create_players`).
fn players(a: &Device, b: &Device, access: Access) -> Result<(Player, Player), Error> {
    let (client, server) = (Player::new(a, access)?, Player::new(b, access)?);
    for (from, to) in [(&client, &server), (&server, &client)] {
        for (send, recv) in from.send_qps.iter().zip(&to.recv_qps) {
            send.connect(&recv.address(), &ConnectOptions::default())?;
            recv.connect(&send.address(), &ConnectOptions::default())?;
        }
    }
    Ok((client, server))
}

fn run(a: &Device, b: &Device, access: Access, imm: Option<u32>, count: u32) -> Result<(), Error> {
    let (client, server) = players(a, b, access)?;
    xrc_traffic(&client, &server, imm, count)?;
    for Player { device, xrcd, srq, send_qps, recv_qps, .. } in [client, server] {
        drop((send_qps, recv_qps));
        srq.destroy()?;
        xrcd.close()?;
        assert_eq!(device.counters().qp.retry_exceeded_err, 0);
    }
    Ok(())
}

/// Client and server send each other's queue messages in turn, on each queue pair, and check every byte
/// (`xrc_traffic`).
fn xrc_traffic(client: &Player, server: &Player, imm: Option<u32>, count: u32) -> Result<(), Error> {
    for player in [client, server] {
        for _ in 0..2 * NUM_MSGS {
            player.srq.recv(0, player.mr.all())?;
        }
    }
    for _ in 0..count {
        for index in 0..2 {
            for (from, to, letter) in [(client, server, b'c'), (server, client, b's')] {
                from.mr.write_at(0, &[letter; MESSAGE])?;
                let operation = Operation::Send { imm, invalidate: None };
                let wr = SendWr::new(0, operation, from.mr.all()).flags(SendFlags::SIGNALED);
                from.send_qps[index].post_send(wr.to(Destination::XrcSrq(to.srq.srqn())))?;
                let sent = from.poll()?;
                assert_eq!((sent.opcode, sent.qpn), (WcOpcode::Send, from.send_qps[index].qpn()));
                let received = to.poll()?;
                assert_eq!((received.opcode, received.qpn), (WcOpcode::Recv, to.recv_qps[index].qpn()));
                assert_eq!(received.imm(), imm);
                assert!(to.mr.to_vec()? == [letter; MESSAGE]);
            }
        }
    }
    Ok(())
}

#[test]
fn test_xrc_traffic_cq_ex() -> Result<(), Error> {
    everywhere(Access::LOCAL_WRITE, None)
}

#[test]
fn test_qp_ex_xrc_send() -> Result<(), Error> {
    everywhere(Access::LOCAL_WRITE, None)
}

#[test]
fn test_qp_ex_xrc_send_imm() -> Result<(), Error> {
    everywhere(Access::LOCAL_WRITE, Some(IMM))
}

#[test]
fn test_ro_xrc_traffic() -> Result<(), Error> {
    everywhere(Access::LOCAL_WRITE | Access::RELAXED_ORDERING, None)
}

#[test]
fn test_odp_xrc_traffic() -> Result<(), Error> {
    everywhere(Access::LOCAL_WRITE | Access::ON_DEMAND, None)
}

/// Client and server run atomics on each other's word in turn, and check both values (`atomic_traffic`).
fn xrc_atomic_traffic(
    client: &Player,
    server: &Player,
    operation: impl Fn(Remote) -> (Operation, fn(u64) -> u64),
) -> Result<(), Error> {
    /// The number that `test_atomic.py` runs.
    const ITERS: u64 = 10;
    for value in 0..ITERS {
        for (from, to) in [(client, server), (server, client)] {
            to.mr.store_u64(0, value)?;
            let (operation, becomes) = operation(to.mr.remote(0));
            let wr = SendWr::new(value, operation, from.mr.slice(0..8)?).flags(SendFlags::SIGNALED);
            from.send_qps[0].post_send(wr.to(Destination::XrcSrq(to.srq.srqn())))?;
            assert_eq!(from.poll()?.wr_id, value);
            assert_eq!((from.mr.load_u64(0)?, to.mr.load_u64(0)?), (value, becomes(value)));
        }
    }
    Ok(())
}

fn atomic_case(run: impl Fn(&Player, &Player) -> Result<(), Error>) -> Result<(), Error> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let net = Net::new();
    let (client, server) = players(&net.device(), &net.device(), access)?;
    run(&client, &server)?;
    let (client, server) = players(&rnic_tests::open(), &rnic_tests::open(), access)?;
    run(&client, &server)
}

#[test]
fn test_xrc_atomic_fetch_and_add() -> Result<(), Error> {
    atomic_case(|client, server| {
        xrc_atomic_traffic(client, server, |remote| (Operation::FetchAdd { remote, add: 2 }, |old| old + 2))
    })
}

#[test]
fn test_xrc_atomic_cmp_and_swap() -> Result<(), Error> {
    atomic_case(|client, server| {
        // Never equal, then equal in the second to last round.
        xrc_atomic_traffic(client, server, |remote| {
            (Operation::CompareSwap { remote, compare: u64::MAX, swap: 7 }, |old| old)
        })?;
        xrc_atomic_traffic(client, server, |remote| {
            (Operation::CompareSwap { remote, compare: 8, swap: 7 }, |old| if old == 8 { 7 } else { old })
        })
    })
}
