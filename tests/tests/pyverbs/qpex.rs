//! `test_qpex.py`, without raw packets; its XRC cases are in `xrc.rs`. The extended way of posting that the file is
//! about is the only one here.

use crate::base::{self, PATIENCE, datagram_players, traffic_of};
use crate::players::{
    IMM, MESSAGE, Memory, Player, REMOTE, atomic_traffic, everywhere, holds, message, players, players_with,
    rdma_traffic, read, traffic, traffic_by, write,
};
use rnic::{
    Access, ConnectOptions, Error, FlushKind, Gather, MwType, Operation, PostError, QpAttr, QpState, Sge,
    WcOpcode, WcStatus,
};

const ITERS: u64 = 100;
const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const READABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
const ATOMIC: Access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);
const FLUSHABLE: Access = WRITABLE.union(Access::FLUSH_GLOBAL);

fn case(memory: &Memory<'_>, run: impl Fn(&Player, &Player) -> Result<WcStatus, Error>) -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, memory)?;
        assert_eq!(run(&client, &server)?, WcStatus::Success);
        Ok(())
    })
}

/// Datagrams of `len` bytes.
fn datagrams(len: usize, imm: Option<u32>) -> Result<(), Error> {
    base::everywhere(|world| {
        let cqs = [world.a.create_cq(100)?, world.b.create_cq(100)?];
        let (client, server) = datagram_players(world, cqs, Access::LOCAL_WRITE)?;
        traffic_of(&client, &server, ITERS, &|cq| cq.wait(PATIENCE), len, imm)
    })
}

#[test]
fn test_qp_ex_ud_send() -> Result<(), Error> {
    datagrams(MESSAGE, None)
}

#[test]
fn test_qp_ex_ud_zero_size() -> Result<(), Error> {
    datagrams(0, None)
}

#[test]
fn test_qp_ex_ud_send_imm() -> Result<(), Error> {
    datagrams(MESSAGE, Some(IMM))
}

#[test]
fn test_qp_ex_rc_send() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, Access::LOCAL_WRITE), |client, server| traffic(client, server, ITERS))
}

#[test]
fn test_qp_ex_rc_send_imm() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, Access::LOCAL_WRITE), |client, server| {
        traffic_by(client, server, ITERS, |_| Operation::Send { imm: Some(IMM), invalidate: None })
    })
}

#[test]
fn test_qp_ex_rc_rdma_write() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, WRITABLE), |client, server| rdma_traffic(client, server, ITERS, write))
}

#[test]
fn test_qp_ex_rc_rdma_write_imm() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, WRITABLE), |client, server| {
        traffic_by(client, server, ITERS, |remote| Operation::Write { remote, imm: Some(IMM) })
    })
}

/// Operations without data, in both directions: they succeed and change nothing.
fn without_bytes(
    client: &Player,
    server: &Player,
    operation: fn(rnic::Remote) -> Operation,
) -> Result<WcStatus, Error> {
    client.mr.write_at(0, &message(b'c', 0))?;
    server.mr.write_at(0, &message(b's', 0))?;
    for _ in 0..ITERS {
        for player in [client, server] {
            player.qp.post(1, operation(player.remote), Gather::Empty)?;
            assert_eq!(player.succeed()?.byte_len, 0);
        }
    }
    assert!(holds(client, &message(b'c', 0)) && holds(server, &message(b's', 0)));
    Ok(WcStatus::Success)
}

#[test]
fn test_qp_ex_rc_rdma_write_zero_length() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, WRITABLE), |client, server| without_bytes(client, server, write))
}

#[test]
fn test_qp_ex_rc_rdma_read() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, READABLE), |client, server| rdma_traffic(client, server, ITERS, read))
}

#[test]
fn test_qp_ex_rc_rdma_read_zero_size() -> Result<(), Error> {
    case(&|pd| pd.register(MESSAGE, READABLE), |client, server| without_bytes(client, server, read))
}

#[test]
fn test_qp_ex_rc_atomic_cmp_swp() -> Result<(), Error> {
    case(&|pd| pd.register(8, ATOMIC), |client, server| {
        atomic_traffic(client, server, ITERS, |remote| {
            (Operation::CompareSwap { remote, compare: 40, swap: 0 }, |old| if old == 40 { 0 } else { old })
        })?;
        Ok(WcStatus::Success)
    })
}

#[test]
fn test_qp_ex_rc_atomic_fetch_add() -> Result<(), Error> {
    case(&|pd| pd.register(8, ATOMIC), |client, server| {
        atomic_traffic(client, server, ITERS, |remote| {
            (Operation::FetchAdd { remote, add: 1 }, |old| old + 1)
        })?;
        Ok(WcStatus::Success)
    })
}

#[test]
fn test_qp_ex_rc_atomic_write() -> Result<(), Error> {
    case(&|pd| pd.register(8, WRITABLE), |client, server| {
        rdma_traffic(client, server, ITERS, |remote| Operation::AtomicWrite { remote })
    })
}

/// The client writes, and flushes its writes (`flush_traffic`), over connections that permit every flush. Returns
/// the status of the first flush that failed.
fn flush_traffic(client: &Player, server: &Player, flush: FlushKind) -> Result<WcStatus, Error> {
    for round in 0..ITERS {
        client.mr.write_at(0, &message(b'c', round))?;
        let remote = client.remote;
        assert_eq!(client.run(write(remote))?, WcStatus::Success);
        client.qp.post(2, Operation::Flush { remote, len: MESSAGE as u32, flush }, Gather::Empty)?;
        let wc = client.poll()?;
        if wc.status != WcStatus::Success {
            return Ok(wc.status);
        }
        assert_eq!((wc.wr_id, wc.opcode), (2, WcOpcode::Flush));
        assert!(holds(server, &message(b'c', round)), "round {round}");
    }
    Ok(WcStatus::Success)
}

fn flush_case(run: impl Fn(&Player, &Player) -> Result<(), Error>) -> Result<(), Error> {
    everywhere(|a, b| {
        let access = REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let options = ConnectOptions { access, ..ConnectOptions::default() };
        let (client, server) = players_with(a, b, &|pd| pd.register(MESSAGE, FLUSHABLE), &options)?;
        run(&client, &server)
    })
}

/// The range, then the whole region.
#[test]
fn test_qp_ex_rc_flush() -> Result<(), Error> {
    flush_case(|client, server| {
        for whole_region in [false, true] {
            let flush = FlushKind { global: true, persistent: false, whole_region };
            assert_eq!(flush_traffic(client, server, flush)?, WcStatus::Success);
        }
        Ok(())
    })
}

/// The memory may be flushed to global visibility, not to persistence.
#[test]
fn test_qp_ex_rc_flush_type_violate() -> Result<(), Error> {
    flush_case(|client, server| {
        let flush = FlushKind { global: false, persistent: true, whole_region: false };
        assert_eq!(flush_traffic(client, server, flush)?, WcStatus::RemAccessErr);
        Ok(())
    })
}

/// A window without the right to write refuses a peer's write, although the region has that right.
#[test]
fn test_qp_ex_rc_bind_mw() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, &|pd| pd.register(MESSAGE, WRITABLE | Access::MW_BIND))?;
        let window = server.pd.alloc_mw(MwType::Type2)?;
        let bind = window.bind_to(&server.mr, 0..MESSAGE, Access::LOCAL_WRITE)?;
        server.qp.post(0x123, Operation::BindWindow(bind), Gather::Empty)?;
        let bound = server.succeed()?;
        assert_eq!((bound.wr_id, bound.opcode), (0x123, WcOpcode::BindMw));
        server.mr.write_at(0, &message(b's', 0))?;
        client.mr.write_at(0, &message(b'c', 0))?;
        let remote = window.remote(&server.mr, 0);
        assert_eq!(client.run(write(remote))?, WcStatus::RemAccessErr);
        assert!(holds(&server, &message(b's', 0)));
        Ok(())
    })
}

/// Runs a case on a player whose queue pair is in RTS: with datagrams, as in the suite, and with a connection. No
/// packet is sent, so virtual time is sufficient.
fn bad_flow(run: impl Fn(&base::Player) -> Result<(), Error>) -> Result<(), Error> {
    base::in_virtual_time(|world| {
        let cqs = [world.a.create_cq(100)?, world.b.create_cq(100)?];
        let (client, server) = datagram_players(world, cqs, Access::LOCAL_WRITE)?;
        run(&client)?;
        let client = base::Player::rc(&world.a, client.cq.clone())?;
        let server = base::Player::rc(&world.b, server.cq.clone())?;
        base::connect(&client, &server)?;
        run(&client)
    })
}

#[test]
fn test_post_receive_qp_state_bad_flow() -> Result<(), Error> {
    bad_flow(|player| {
        player.qp.modify(&QpAttr::to_state(QpState::Reset))?;
        let refused = player.qp.recv(0, player.mr.all());
        assert!(
            matches!(
                refused,
                Err(Error::Post(PostError::State { queue: "receive", state: QpState::Reset, .. }))
            ),
            "{refused:?}"
        );
        Ok(())
    })
}

#[test]
fn test_post_send_qp_state_bad_flow() -> Result<(), Error> {
    bad_flow(|player| {
        player.qp.modify(&QpAttr::to_state(QpState::Reset))?;
        let operation = Operation::Send { imm: None, invalidate: None };
        let refused = player.send(0, operation, player.mr.all());
        assert!(
            matches!(
                refused,
                Err(Error::Post(PostError::State { queue: "send", state: QpState::Reset, .. }))
            ),
            "{refused:?}"
        );
        Ok(())
    })
}

#[test]
fn test_full_rq_bad_flow() -> Result<(), Error> {
    bad_flow(|player| {
        let (qp, memory) = (&player.qp, player.mr.all());
        let size = qp.query().cap.map(|cap| cap.max_recv_wr).expect("always there");
        for id in 0..size {
            qp.recv(id.into(), memory)?;
        }
        let refused = qp.recv(size.into(), memory);
        assert!(
            matches!(refused, Err(Error::Post(PostError::QueueFull { queue: "receive", max })) if max == size),
            "{refused:?}"
        );
        Ok(())
    })
}

#[test]
fn test_rq_with_larger_sgl_bad_flow() -> Result<(), Error> {
    bad_flow(|player| {
        let (qp, memory) = (&player.qp, player.mr.all());
        let most = qp.query().cap.map(|cap| cap.max_recv_sge).expect("always there");
        let list = vec![Sge { length: memory.length / (most + 1), ..memory }; most as usize + 1];
        qp.recv(0, &list[1..])?;
        let refused = qp.recv(1, &list[..]);
        assert!(
            matches!(
                refused,
                Err(Error::Post(PostError::TooManySges { given, max })) if given == list.len() && max == most
            ),
            "{refused:?}"
        );
        Ok(())
    })
}
