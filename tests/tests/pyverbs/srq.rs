//! `test_srq.py`, and the cases of other files that receive through a shared receive queue.

use rnic::engine::AsyncEvent;
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QpEvent, QpInit,
    QueuePair, SharedReceiveQueue, SrqInit, SrqModify, WcOpcode, WcStatus,
};
use std::time::Duration;

/// Length of each message in bytes, as in the suite.
const MESSAGE: usize = 1024;

/// Number of receives in the queue per queue pair, as in the suite.
const NUM_MSGS: u32 = 1000;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a case in virtual time, then on loopback.
fn everywhere(case: impl Fn(&Device, &Device) -> Result<(), Error>) -> Result<(), Error> {
    let net = Net::new();
    case(&net.device(), &net.device())?;
    case(&rnic_tests::open(), &rnic_tests::open())
}

/// One side: two queue pairs that receive through one queue (`RCResources` with `with_srq`).
struct Player {
    device: Device,
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    mr: MemoryRegion,
    qps: [QueuePair; 2],
}

impl Player {
    fn new(device: &Device, access: Access) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let srq = pd.create_srq(&SrqInit { max_wr: 2 * NUM_MSGS, max_sge: 1, limit: 0 })?;
        let cq = device.create_cq(NUM_MSGS)?;
        let mr = pd.register(MESSAGE, access)?;
        let init = QpInit::rc(&cq, &cq).with_srq(&srq);
        let qps = [pd.create_qp(&init)?, pd.create_qp(&init)?];
        Ok(Self { device: device.clone(), _pd: pd, cq, srq, mr, qps })
    }

    fn post_recv(&self) -> Result<(), Error> {
        self.srq.recv(0, self.mr.all())
    }

    fn poll(&self, opcode: WcOpcode) -> Result<(), Error> {
        let wc = self.cq.wait(PATIENCE)?;
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, opcode));
        Ok(())
    }
}

fn players(a: &Device, b: &Device, access: Access) -> Result<(Player, Player), Error> {
    let (client, server) = (Player::new(a, access)?, Player::new(b, access)?);
    for (left, right) in client.qps.iter().zip(&server.qps) {
        left.connect(&right.address(), &ConnectOptions::default())?;
        right.connect(&left.address(), &ConnectOptions::default())?;
    }
    Ok((client, server))
}

/// Client and server send each other messages in turn, on each queue pair, and check every byte (`traffic`).
fn traffic(client: &Player, server: &Player, iters: u32) -> Result<(), Error> {
    for player in [client, server] {
        for _ in 0..2 * NUM_MSGS {
            player.post_recv()?;
        }
    }
    for _ in 0..iters {
        for index in 0..2 {
            for (from, to, letter) in [(client, server, b'c'), (server, client, b's')] {
                from.mr.write_at(0, &[letter; MESSAGE])?;
                from.qps[index].send(0, from.mr.all())?;
                from.poll(WcOpcode::Send)?;
                to.poll(WcOpcode::Recv)?;
                to.post_recv()?;
                assert_eq!(to.mr.to_vec()?, [letter; MESSAGE]);
            }
        }
    }
    Ok(())
}

#[test]
fn test_rc_srq_traffic() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, Access::LOCAL_WRITE)?;
        traffic(&client, &server, 100)
    })
}

#[test]
fn test_resize_srq() -> Result<(), Error> {
    everywhere(|a, b| {
        let (_client, server) = players(a, b, Access::LOCAL_WRITE)?;
        let asked = (2 * server.srq.query()?.max_wr).min(server.device.attr().max_srq_wr);
        server.srq.modify(SrqModify::max_wr(asked))?;
        assert!(server.srq.query()?.max_wr >= asked);
        Ok(())
    })
}

/// 10 receives and a limit of 7: the fourth message leaves 6, which is below the limit.
#[test]
fn test_modify_srq_limit() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, Access::LOCAL_WRITE)?;
        for _ in 0..10 {
            server.post_recv()?;
        }
        server.srq.modify(SrqModify::limit(7))?;
        assert_eq!(server.srq.query()?.limit, 7);
        for _ in 0..4 {
            client.qps[0].send(0, client.mr.all())?;
            client.poll(WcOpcode::Send)?;
            server.poll(WcOpcode::Recv)?;
        }
        let mut events = Vec::new();
        while let Some(event) = server.device.poll_event()? {
            // An event that the suite's device does not report.
            if !matches!(event, AsyncEvent::QueuePair(_, QpEvent::CommunicationEstablished)) {
                events.push(event);
            }
        }
        assert_eq!(events, [AsyncEvent::SrqLimitReached(server.srq.srqn())]);
        Ok(())
    })
}

/// From `test_odp.py`: memory is never pinned here, so all of it is paged on demand.
#[test]
fn test_odp_rc_srq_traffic() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, Access::LOCAL_WRITE | Access::ON_DEMAND)?;
        traffic(&client, &server, 100)
    })
}
