//! `test_cq_events.py`, but for its UD case.

use crate::base::{PATIENCE, Player, World, connect, everywhere, traffic};
use rnic::{CompletionChannel, CompletionQueue, Device, Error};

/// As many as the suite's players make.
const ENTRIES: u32 = 1000;

/// A completion queue that is armed before anything completes to it.
fn armed(device: &Device) -> Result<(CompletionChannel, CompletionQueue), Error> {
    let channel = device.create_comp_channel()?;
    let cq = device.create_cq_with_channel(ENTRIES, &channel)?;
    cq.arm(false)?;
    Ok((channel, cq))
}

/// Every completion is waited for on the channel: take the event, arm, poll.
#[test]
fn test_cq_events_rc() -> Result<(), Error> {
    everywhere(|World { a, b, .. }| {
        let ((left, left_cq), (right, right_cq)) = (armed(a)?, armed(b)?);
        let (client, server) = (Player::rc(a, left_cq)?, Player::rc(b, right_cq)?);
        connect(&client, &server)?;
        let wait = |cq: &CompletionQueue| {
            let channel = if std::ptr::eq(cq, &client.cq) { &left } else { &right };
            loop {
                let event = channel.wait(PATIENCE)?;
                assert!(event.is_for(cq));
                event.acknowledge();
                cq.arm(false)?;
                if let Some(completion) = cq.poll_one() {
                    return Ok(completion);
                }
            }
        };
        traffic(&client, &server, 100, &wait)?;
        assert!(left.next_event().is_none() && right.next_event().is_none(), "an event for each completion");
        Ok(())
    })
}
