//! What a packet costs: `cargo bench -p rnic-cc`.

use cc::dcqcn::{Preset, ReactionPoint};
use cc::{Controller, Pacer, Rate, Wheel};
use divan::{Bencher, black_box, counter::ItemsCount};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() {
    divan::main();
}

/// Packets of one sample.
const PACKETS: u32 = 10_000;

/// Bytes of a packet of 4 KiB, as the port transmits it.
const BYTES: u64 = 4154;

const LINE: Rate = Rate::from_gbps(100);

/// A port with many flows: each packet takes a flow whose turn has come from the wheel, books the packet with its pacer
/// and its controller, and puts the flow back for its next turn.
struct Port {
    now: Instant,
    wheel: Wheel,
    flows: Vec<(Pacer, Controller)>,
    sent: u32,
}

impl Port {
    fn new(flows: u32) -> Self {
        let now = Instant::now();
        let reaction = Arc::new(Preset::Paper.settings(LINE).roce_rp);
        let mut wheel = Wheel::new(now, 10, flows);
        let flows = (0..flows)
            .map(|n| {
                let point = ReactionPoint::new(Arc::clone(&reaction), LINE);
                // Turns spread over 10 ms, in no order.
                wheel.set(n, now + Duration::from_nanos(u64::from(n) * 7919 % 10_000_000));
                let controller = Controller::Dcqcn(point);
                (Pacer::new(now, controller.rate(), 0), controller)
            })
            .collect();
        Self { now, wheel, flows, sent: 0 }
    }

    /// Sends one packet, waiting for it if need be.
    fn send(&mut self) {
        let flow = loop {
            match self.wheel.poll_expired(self.now) {
                Some(flow) => break flow,
                None => self.now = self.wheel.poll_timeout().map_or(self.now, |at| at.max(self.now)),
            }
        };
        let now = self.now;
        self.sent += 1;
        if let Some((pacer, controller)) = self.flows.get_mut(flow as usize) {
            // Often enough that flows stay limited.
            if self.sent.is_multiple_of(4) {
                controller.on_cnp(now);
            }
            controller.on_bytes_sent(now, BYTES);
            pacer.set_rate(now, controller.rate());
            pacer.on_sent(now, BYTES);
            // As if all flows shared the port: each waits for its turn among the others.
            let at = pacer.next_send().unwrap_or(now);
            self.wheel.set(flow, at + Duration::from_millis(10));
        }
    }
}

#[divan::bench(args = [1, 1_000, 100_000])]
fn pacer_and_wheel_and_reaction_point(bencher: Bencher<'_, '_>, flows: u32) {
    let mut port = Port::new(flows);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            port.send();
        }
    });
}

#[divan::bench(args = [1, 1_000, 100_000])]
fn wheel_alone(bencher: Bencher<'_, '_>, flows: u32) {
    let mut port = Port::new(flows);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            let Some(at) = port.wheel.poll_timeout() else { break };
            port.now = at.max(port.now);
            if let Some(flow) = port.wheel.poll_expired(port.now) {
                port.wheel.set(flow, port.now + Duration::from_millis(10));
            }
        }
    });
}

#[divan::bench(args = [false, true])]
fn reaction_point(bencher: Bencher<'_, '_>, limited: bool) {
    let start = Instant::now();
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
    let mut now = Instant::now();
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
    use cc::credits::{Config, LinkCredits, blocks};
    let now = Instant::now();
    let vl = cc::vl::Vl::new(0).unwrap_or(cc::vl::Vl::MANAGEMENT);
    let config = Config::default();
    let (mut sender, mut receiver) = (LinkCredits::new(&config, now), LinkCredits::new(&config, now));
    let n = blocks(BYTES as u32);
    bencher.counter(ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            if let Some(update) = receiver.poll_update(now) {
                sender.handle_update(now, &update);
            }
            if sender.try_take(now, vl, n) && receiver.handle_packet(vl, n).is_ok() {
                receiver.release(vl, n);
            }
        }
    });
}
