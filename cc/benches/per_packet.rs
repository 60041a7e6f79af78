//! What a packet costs: `cargo bench -p rnic-cc`.

use cc::dcqcn::{Preset, ReactionPoint};
use cc::{Pacer, Rate};
use divan::{Bencher, black_box, counter::ItemsCount};
use std::sync::Arc;
use time::Instant;

fn main() {
    divan::main();
}

/// Packets of one sample.
const PACKETS: u32 = 10_000;

/// Bytes of a packet of 4 KiB, as the port transmits it.
const BYTES: u64 = 4154;

const LINE: Rate = Rate::from_gbps(100);

#[divan::bench(args = [false, true])]
fn reaction_point(bencher: Bencher<'_, '_>, limited: bool) {
    let start = Instant::EPOCH;
    let mut now = start;
    let mut point = ReactionPoint::new(Arc::new(Preset::Paper.settings(LINE).roce_rp), LINE);
    let gap = LINE.time_for(BYTES);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for n in 0..PACKETS {
            now += gap;
            // A CNP for each 1000 packets keeps the limiter on.
            if limited && n % 1000 == 0 {
                point.on_cnp(now);
            }
            point.on_bytes_sent(now, BYTES);
            black_box(point.rate());
        }
    });
}

#[divan::bench]
fn pacer(bencher: Bencher<'_, '_>) {
    let mut now = Instant::EPOCH;
    let mut pacer = Pacer::new(now, LINE, 0);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            pacer.set_rate(now, black_box(LINE));
            pacer.on_sent(now, BYTES);
            now = pacer.next_send().unwrap_or(now);
        }
    });
}

#[divan::bench]
fn credits(bencher: Bencher<'_, '_>) {
    use cc::credits::{CreditSender, Pool, PoolConfig, blocks};
    use time::Duration;
    let now = Instant::EPOCH;
    let vl = cc::vl::Vl::new(0).unwrap_or(cc::vl::Vl::MANAGEMENT);
    let Ok(mut pool) = Pool::new(PoolConfig::default()) else { return };
    let member = pool.join(now, vl);
    let mut sender = CreditSender::new(Duration::from_secs(3600), Duration::ZERO);
    let n = blocks(BYTES as u32);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            while !sender.try_take(now, n) {
                pool.handle_ask(now, member, &sender.ask(now, vl, n));
                while let Some((_, grant)) = pool.poll_grant(now) {
                    sender.handle_grant(now, &grant);
                }
            }
            if pool.handle_packet(now, member, n).is_ok() {
                pool.release(member, n);
            }
            while let Some((_, grant)) = pool.poll_grant(now) {
                sender.handle_grant(now, &grant);
            }
        }
    });
}
