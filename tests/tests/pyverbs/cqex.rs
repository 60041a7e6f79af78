//! `test_cqex.py`, and the cases of creating an extended completion queue; its XRC case is in `xrc.rs`.
//!
//! In C, an extended queue lets a program select the fields of completions and read them one by one, and has
//! additional flags and a size as attributes. Here every completion has all fields, and there is only one kind of
//! queue: the cases use the batched poll in place of start_poll, next_poll and end_poll.

use crate::base::{PATIENCE, Player, World, connect, datagram_players, everywhere, traffic};
use rnic::engine::ResourceError;
use rnic::{Access, CompletionQueue, Error, WcOpcode, WcStatus, WorkCompletion};
use std::time::Instant;

/// The number of entries that the suite requests.
const ENTRIES: u32 = 2000;

/// Polls batches until one completion arrives, and reads its fields.
fn poll(cq: &CompletionQueue, world: &World) -> Result<WorkCompletion, Error> {
    let deadline = Instant::now() + PATIENCE;
    let mut batch = [WorkCompletion::default(); 16];
    loop {
        let count = cq.poll(&mut batch);
        match batch.get(..count) {
            Some([wc]) => {
                assert!(matches!(wc.opcode, WcOpcode::Send | WcOpcode::Recv), "{wc:?}");
                assert_eq!((wc.status, wc.vendor_err, wc.imm()), (WcStatus::Success, 0, None));
                return Ok(*wc);
            }
            Some([]) => world.pass(),
            more => panic!("one was asked for: {more:?}"),
        }
        assert!(Instant::now() < deadline, "nothing completes");
    }
}

#[test]
fn test_rc_traffic_cq_ex() -> Result<(), Error> {
    everywhere(|world| {
        let client = Player::rc(&world.a, world.a.create_cq(ENTRIES)?)?;
        let server = Player::rc(&world.b, world.b.create_cq(ENTRIES)?)?;
        connect(&client, &server)?;
        traffic(&client, &server, 100, &|cq| poll(cq, world))
    })
}

#[test]
fn test_ud_traffic_cq_ex() -> Result<(), Error> {
    everywhere(|world| {
        let cqs = [world.a.create_cq(ENTRIES)?, world.b.create_cq(ENTRIES)?];
        let (client, server) = datagram_players(world, cqs, Access::LOCAL_WRITE)?;
        traffic(&client, &server, 100, &|cq| poll(cq, world))
    })
}

#[test]
fn test_create_cq_ex() -> Result<(), Error> {
    everywhere(|World { a: device, .. }| {
        let cq = device.create_cq(10)?;
        assert_eq!(cq.capacity(), 10);
        Ok(cq.destroy()?)
    })
}

#[test]
fn test_create_cq_ex_bad_flow() -> Result<(), Error> {
    everywhere(|World { a: device, .. }| {
        for cqe in [0, device.attr().max_cqe + 1] {
            let refused = device.create_cq(cqe).expect_err("out of range");
            let text = refused.to_string();
            assert!(matches!(refused, Error::Resource(ResourceError::Size { .. })), "{text}");
            assert!(text.contains(&cqe.to_string()), "{text}");
        }
        Ok(())
    })
}
