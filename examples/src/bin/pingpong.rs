//! Two devices in one process bounce a message: the smallest program that uses SEND and receives.
//!
//! Run it with `cargo run -p rnic-examples --bin pingpong`.

use rnic::{Error, RcEnd, WcStatus};
use std::time::Instant;

const ROUNDS: u32 = 1000;
const SIZE: usize = 64;

fn main() -> Result<(), Error> {
    // The first two free addresses of 127.0.0.1, 127.0.0.2, ...: no root, no kernel module.
    let (a, b) = (rnic::open()?, rnic::open()?);
    let (ping, pong) = RcEnd::pair(&a, &b)?;
    let ball = ping.register(&[42; SIZE])?;
    let glove = pong.register(&[0; SIZE])?;

    let start = Instant::now();
    for round in 0..u64::from(ROUNDS) {
        // A receive must be posted before the message arrives.
        pong.qp.recv(round, glove.all())?;
        ping.qp.send(round, ball.all())?;
        check(&pong)?;
        check(&ping)?;
        ping.qp.recv(round, ball.all())?;
        pong.qp.send(round, glove.all())?;
        check(&ping)?;
        check(&pong)?;
    }
    let each = start.elapsed() / (2 * ROUNDS);
    assert_eq!(glove.to_vec()?, [42; SIZE]);
    println!(
        "{ROUNDS} rounds of {SIZE} bytes between {} and {}: {each:?} each way",
        a.address(),
        b.address()
    );
    Ok(())
}

/// Waits for a completion and returns an error if the work request failed.
fn check(end: &RcEnd) -> Result<(), Error> {
    let wc = end.wait()?;
    assert_eq!(wc.status, WcStatus::Success, "{}", wc.status.explain());
    Ok(())
}
