//! `test_cq.py`. There are no completion vectors to choose from here, so no case uses an invalid one.

use crate::base::{PATIENCE, Player, World, connect, everywhere};
use rnic::engine::ResourceError;
use rnic::{Device, Error, Gather, WcStatus};
use std::time::Instant;

fn invalid_size(error: &Error) -> bool {
    matches!(error, Error::Resource(ResourceError::Size { what: "cqe", .. }))
}

/// The sizes of the queues that the suite creates.
fn sizes(device: &Device) -> [u32; 3] {
    let max = device.attr().max_cqe;
    [1, max / 2, max]
}

#[test]
fn test_create_cq() -> Result<(), Error> {
    everywhere(|World { a: device, .. }| {
        for cqe in sizes(device) {
            let cq = device.create_cq(cqe)?;
            assert!(cq.capacity() >= cqe);
            cq.destroy()?;
        }
        Ok(())
    })
}

#[test]
fn test_create_cq_with_comp_channel() -> Result<(), Error> {
    everywhere(|World { a: device, .. }| {
        for cqe in sizes(device) {
            let channel = device.create_comp_channel()?;
            let cq = device.create_cq_with_channel(cqe, &channel)?;
            assert!(cq.capacity() >= cqe);
            // In the suite, closing the channel first closes its queues. Here it is refused while it has any.
            let busy = channel.destroy().expect_err("a completion queue uses it");
            assert!(matches!(busy.error, Error::Resource(ResourceError::Busy { users: 1, .. })));
            cq.destroy()?;
            busy.object.destroy()?;
        }
        Ok(())
    })
}

#[test]
fn test_create_cq_bad_flow() -> Result<(), Error> {
    everywhere(|World { a: device, .. }| {
        let channel = device.create_comp_channel()?;
        for cqe in [0, device.attr().max_cqe + 1, u32::MAX] {
            assert!(device.create_cq(cqe).is_err_and(|e| invalid_size(&e)), "{cqe}");
            assert!(device.create_cq_with_channel(cqe, &channel).is_err_and(|e| invalid_size(&e)), "{cqe}");
        }
        Ok(channel.destroy()?)
    })
}

/// Smaller, larger, and smaller than the number of waiting completions.
#[test]
fn test_resize_cq() -> Result<(), Error> {
    everywhere(|world| {
        let client = Player::rc(&world.a, world.a.create_cq(3)?)?;
        let server = Player::rc(&world.b, world.b.create_cq(100)?)?;
        connect(&client, &server)?;
        client.cq.resize(1)?;
        assert!(client.cq.capacity() >= 1);
        client.cq.resize(7)?;
        assert!(client.cq.capacity() >= 7);
        // All entries but one.
        let count = u64::from(client.cq.capacity()) - 1;
        for id in 0..count {
            server.qp.recv(id, Gather::Empty)?;
            client.qp.send(id, Gather::Empty)?;
        }
        let deadline = Instant::now() + PATIENCE;
        while (client.cq.len() as u64) < count {
            world.pass();
            assert!(Instant::now() < deadline, "the sends do not complete");
        }
        let refused = client.cq.resize(1).expect_err("more wait than that");
        assert!(
            matches!(refused, Error::Resource(ResourceError::Waiting { waiting: 6, cqe: 1 })),
            "{refused}"
        );
        for id in 0..count {
            let wc = client.cq.wait(PATIENCE)?;
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
        client.cq.resize(1)
    })
}
