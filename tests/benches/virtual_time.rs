//! The speed of virtual time: `cargo bench -p rnic-tests --bench virtual_time`.
//!
//! The devices of one [`rnic::sim::Net`] form a ring. Each writes messages of 64 KiB to the next in packets of 1
//! KiB, several at a time, and posts the next message when one completes. The benchmark measures how many packets,
//! including acknowledgements, the world carries per second of processor time; this should not depend on the number
//! of devices. No two devices act at the same instant. Packets travel once in trains, as they do without a limit,
//! and once alone, as paced packets do: for that case the peer's window has room for little more than one packet.
//! Rounds are interleaved, and their median counts. With `--check` the program fails if the target is missed.

use nix::time::{ClockId, clock_gettime};
use rnic::sim::{DeviceSetup, Net};
use rnic::{ConnectOptions, Device, MemoryRegion, Mtu, RcEnd, WcStatus, WorkCompletion};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of devices in each world. Eleven are ten senders and a receiver, as in congestion experiments.
const DEVICES: [usize; 4] = [2, 11, 16, 128];

/// Length of a message in bytes.
const MESSAGE: usize = 64 << 10;

/// Number of messages that each sender keeps posted.
const DEPTH: u64 = 4;

/// Interval at which a sender polls for completions: about the time for which its messages are in flight.
const LOOK: Duration = Duration::from_micros(5);

/// Number of packets in one measurement: a good part of a second.
const PACKETS: u64 = 400_000;

/// Number of measurements of each world.
const ROUNDS: usize = 5;

/// Minimum rate with eleven devices, in packets per second.
const TARGET: f64 = 1e6;

/// How much later each device starts than the previous one; no multiple of it equals a round trip.
const STAGGER: Duration = Duration::from_nanos(7);

/// A window, in bytes of the peer's socket buffer, that holds a few packets of 1 KiB.
const SMALL_WINDOW: u32 = 8 << 10;

/// One device's connection to the next.
struct Way {
    left: RcEnd,
    /// Kept alive so that it answers.
    _right: RcEnd,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Way {
    fn new(from: &Device, to: &Device) -> Outcome<Self> {
        let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(from, to, &options)?;
        let source = left.register(&[7; MESSAGE])?;
        let target = right.register_remote(MESSAGE)?;
        Ok(Self { left, _right: right, source, target })
    }

    fn post(&self, wr_id: u64) -> Outcome<()> {
        Ok(self.left.qp.write(wr_id, self.source.all(), self.target.remote(0))?)
    }

    /// Posts a message for each completed one.
    fn go_on(&self, found: &mut [WorkCompletion]) -> Outcome<()> {
        let count = self.left.cq().poll(found);
        for wc in &found[..count] {
            if wc.status != WcStatus::Success {
                return Err(format!("a message failed: {wc:?}").into());
            }
            self.post(wc.wr_id)?;
        }
        Ok(())
    }
}

/// Processor time used by this program: other programs on the machine do not count.
fn used() -> Outcome<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Measures packets per second.
fn measure(count: usize, peer_window: Option<u32>) -> Outcome<f64> {
    let net = Net::new();
    let setup = DeviceSetup { peer_window, ..DeviceSetup::default() };
    let devices = (0..count).map(|_| net.device_with(&setup)).collect::<rnic::Result<Vec<_>>>()?;
    let next = devices.iter().cycle().skip(1);
    let ways = devices.iter().zip(next).map(|(from, to)| Way::new(from, to)).collect::<Outcome<Vec<_>>>()?;
    for way in &ways {
        for wr_id in 0..DEPTH {
            way.post(wr_id)?;
        }
        net.run_for(STAGGER);
    }
    let carried = || devices.iter().map(|device| device.counters().port.rx_packets).sum::<u64>();
    let mut found = vec![WorkCompletion::default(); DEPTH as usize];
    let (before, start) = (carried(), used()?);
    // Counting locks each device, so it is done rarely.
    while carried() - before < PACKETS {
        for _ in 0..100 {
            net.run_for(LOOK);
            for way in &ways {
                way.go_on(&mut found)?;
            }
        }
    }
    let (packets, took) = (carried() - before, used()? - start);
    Ok(packets as f64 / took.as_secs_f64())
}

fn main() -> Outcome<ExitCode> {
    let kinds = [None, Some(SMALL_WINDOW)];
    let mut rates = vec![kinds.map(|_| Vec::new()); DEVICES.len()];
    for _ in 0..ROUNDS {
        for (count, rates) in DEVICES.into_iter().zip(&mut rates) {
            for (window, rates) in kinds.into_iter().zip(rates) {
                rates.push(measure(count, window)?);
            }
        }
    }
    println!("{:>8} {:>18} {:>18}", "packets", "a second,", "a second,");
    println!("{:>8} {:>18} {:>18}", "devices", "in trains", "alone");
    let mut missed = false;
    for (count, rates) in DEVICES.into_iter().zip(&mut rates) {
        let [trains, alone] = rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        println!("{count:>8} {trains:>18.0} {alone:>18.0}");
        missed |= count == 11 && trains.min(alone) < TARGET;
    }
    if missed {
        println!("the target of {TARGET:.0} packets a second with 11 devices is missed");
    }
    let check = std::env::args().any(|arg| arg == "--check");
    Ok(if missed && check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
