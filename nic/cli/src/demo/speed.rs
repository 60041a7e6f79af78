//! A short measurement.

use super::client::{Client, Connection};
use super::messages::{Piece, Setup};
use super::{Failure, Outcome, expect};
use hdrhistogram::Histogram;
use rnic::{WcStatus, WorkCompletion};
use std::time::{Duration, Instant};

/// The largest message, in bytes.
const LARGEST: usize = 1 << 20;

/// The message sizes, with their names.
const SIZES: [(usize, &str); 4] = [(64, "64 B"), (4096, "4 KiB"), (65_536, "64 KiB"), (LARGEST, "1 MiB")];

/// The most bytes in flight, and the most messages: half of the capacity of the queue.
const WINDOW: (usize, usize) = (8 << 20, 64);

/// How long to wait for outstanding WRITEs at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// Bandwidth of WRITEs of a few sizes, and the latency of a small one.
pub(super) fn measure(client: &mut Client<'_>, quick: bool) -> Outcome {
    client.page.section(
        "6. Performance",
        "RDMA WRITE over UDP on loopback at path MTU 4096. Both NICs are software and share the cores of this host, so \
         these figures say nothing about RDMA hardware.",
    );
    if cfg!(debug_assertions) {
        client.page.line("(skipped in an unoptimised build; use `cargo run --release -- demo`)");
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
            "WRITE {name:>6}   {:>8.2} Gb/s   {:>9.1} thousand messages per second",
            rate * len as f64 * 8.0 / 1e9,
            rate / 1e3
        ));
        client.page.flush();
    }
    let latencies = write_one_by_one(&c, time)?;
    let micros = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    client.page.line(&format!(
        "WRITE   64 B, one at a time: median {:.1} us, 99th percentile {:.1} us",
        micros(0.5),
        micros(0.99)
    ));
    client.page.proved("the server verified the last message of each size");
    Ok(())
}

/// Checks that completions are successful and in order.
fn check(wc: &WorkCompletion, number: u64) -> Outcome {
    expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))?;
    expect(wc.wr_id == number, || format!("work request {} completed instead of {number}", wc.wr_id))
}

/// Posts WRITEs for `time` with many in flight; returns how many completed, and how long they took.
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

/// Posts WRITEs of 64 bytes for `time`, one at a time; returns nanoseconds from post to completion.
fn write_one_by_one(c: &Connection, time: Duration) -> Outcome<Histogram<u64>> {
    // Three digits, from a nanosecond to the longest wait of 10 s.
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
