//! `test_cq_events.py`.

use crate::base::{PATIENCE, Player, World, connect, datagram_players, everywhere, traffic};
use rnic::{Access, CompletionChannel, CompletionQueue, Device, Error};

/// The number that the suite's players create.
const ENTRIES: u32 = 1000;

/// A completion queue that is armed before anything completes.
fn armed(device: &Device) -> Result<(CompletionChannel, CompletionQueue), Error> {
    let channel = device.create_comp_channel()?;
    let cq = device.create_cq_with_channel(ENTRIES, &channel)?;
    cq.arm(false)?;
    Ok((channel, cq))
}

/// Waits for every completion on the channel: take the event, arm, poll.
fn case(
    players: impl Fn(&World, [CompletionQueue; 2]) -> Result<(Player, Player), Error>,
) -> Result<(), Error> {
    everywhere(|world| {
        let ((left, left_cq), (right, right_cq)) = (armed(&world.a)?, armed(&world.b)?);
        let (client, server) = players(world, [left_cq, right_cq])?;
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
        // The last queue was armed while it held its last completion, and told of it once more.
        for channel in [&left, &right] {
            let more = std::iter::from_fn(|| channel.next_event()).count();
            assert!(more <= 1, "{more} events after the last completion");
        }
        Ok(())
    })
}

#[test]
fn test_cq_events_rc() -> Result<(), Error> {
    case(|world, [left, right]| {
        let (client, server) = (Player::rc(&world.a, left)?, Player::rc(&world.b, right)?);
        connect(&client, &server)?;
        Ok((client, server))
    })
}

#[test]
fn test_cq_events_ud() -> Result<(), Error> {
    case(|world, cqs| datagram_players(world, cqs, Access::LOCAL_WRITE))
}
