//! How fast it is.

use super::client::{Client, Connection};
use super::messages::{Piece, Setup};
use super::{Failure, Outcome, expect};
use hdrhistogram::Histogram;
use rnic::{WcStatus, WorkCompletion};
use std::time::{Duration, Instant};

/// The largest message.
const LARGEST: usize = 1 << 20;

/// Messages that are measured, with their names.
const SIZES: [(usize, &str); 4] = [(64, "64 B"), (4096, "4 KiB"), (65_536, "64 KiB"), (LARGEST, "1 MiB")];

/// Bytes that are under way at the most, and messages: half of what the queue holds, which is plenty.
const WINDOW: (usize, usize) = (8 << 20, 64);

/// How long the server may take for what is under way when the time is over.
const DRAIN: Duration = Duration::from_secs(10);

/// Bandwidth of WRITEs of a few sizes, and the latency of a small one.
pub(super) fn measure(client: &mut Client<'_>, quick: bool) -> Outcome {
    client.page.section(
        "6. How fast",
        "RDMA WRITE over loopback UDP, both NICs in software and sharing this host's cores with each other: figures of \
         this program on this host, not a measurement of any hardware. The path MTU is the largest: 4096.",
    );
    if cfg!(debug_assertions) {
        client.page.line(
            "(left out: this program was built without optimisation; use `cargo run --release -- demo`)",
        );
        return Ok(());
    }
    let time = Duration::from_millis(if quick { 50 } else { 400 });
    let c = client.connect(Setup { mtu: None, min_rnr_timer: 12, buffer: LARGEST })?;
    for (len, name) in SIZES {
        let pattern = client.load(&c, len)?;
        let (messages, took) = write_for(&c, len, time)?;
        client.compare(&c, Piece { at: 0, len }, pattern, 0)?;
        let rate = messages as f64 / took.as_secs_f64();
        client.page.line(&format!(
            "WRITE {name:>6}   {:>8.2} Gb/s   {:>9.1} thousand messages/s",
            rate * len as f64 * 8.0 / 1e9,
            rate / 1e3
        ));
        client.page.flush();
    }
    let latencies = write_one_by_one(&c, time)?;
    let micros = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    client.page.line(&format!(
        "WRITE   64 B, one at a time, from post to completion: median {:.1} us, 99 % within {:.1} us",
        micros(0.5),
        micros(0.99)
    ));
    client.page.proved("the server compared the last message of each size");
    Ok(())
}

/// Completions come in the order of the work requests, one for each.
fn check(wc: &WorkCompletion, number: u64) -> Outcome {
    expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))?;
    expect(wc.wr_id == number, || format!("work request {} completed instead of {number}", wc.wr_id))
}

/// WRITEs for `time`, many under way: how many completed, and how long all of them took.
fn write_for(c: &Connection, len: usize, time: Duration) -> Outcome<(u64, Duration)> {
    let window = (WINDOW.0 / len).clamp(2, WINDOW.1) as u64;
    let source = c.buffer.slice(0..len)?;
    let mut done = [WorkCompletion::default(); 32];
    let (mut posted, mut completed) = (0, 0);
    let start = Instant::now();
    loop {
        let over = start.elapsed() >= time;
        while !over && posted - completed < window {
            c.end.qp.write(posted, source, c.remote)?;
            posted += 1;
        }
        let n = c.end.cq().poll(&mut done);
        for wc in &done[..n] {
            check(wc, completed)?;
            completed += 1;
        }
        if over && posted == completed {
            return Ok((completed, start.elapsed()));
        }
        if start.elapsed() > time + DRAIN {
            return Err(Failure::new(format!(
                "{} WRITEs of {len} bytes did not complete",
                posted - completed
            )));
        }
    }
}

/// WRITEs of 64 bytes for `time`, one after the other: nanoseconds from posting to completion.
fn write_one_by_one(c: &Connection, time: Duration) -> Outcome<Histogram<u64>> {
    // Three digits, from a nanosecond to the 10 s that a wait takes at the most.
    let mut latencies =
        Histogram::new_with_bounds(1, 10_000_000_000, 3).map_err(|error| Failure::new(error.to_string()))?;
    let source = c.buffer.slice(0..64)?;
    let start = Instant::now();
    while start.elapsed() < time {
        let posted = Instant::now();
        c.end.qp.write(0, source, c.remote)?;
        check(&c.end.wait()?, 0)?;
        latencies.saturating_record(u64::try_from(posted.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}
