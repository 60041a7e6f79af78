//! How fast virtual time is: `cargo bench -p rnic-tests --bench virtual_time`.
//!
//! Devices of one [`rnic::sim::Net`] in a ring: each writes messages of 64 KiB to the next in packets of 1 KiB, some at a
//! time, and posts the next when one is complete. What counts is how many packets, acknowledgements included, the world
//! carries in a second of a processor's time; it should not depend on how many devices there are. No two devices do anything at the
//! same instant. Once packets travel in trains, as they do without a limit, and once alone, as those that are paced do: there
//! the window of the peer has room for little more. Interleaved rounds, their median counts. With `--check` the program
//! fails when the target is missed.

use nix::time::{ClockId, clock_gettime};
use rnic::sim::{DeviceSetup, Net};
use rnic::{ConnectOptions, Device, MemoryRegion, Mtu, RcEnd, WcStatus, WorkCompletion};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Devices of each world. Eleven are ten senders and a receiver, as in experiments with congestion.
const DEVICES: [usize; 4] = [2, 11, 16, 128];

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;

/// Messages that each sender has posted at any time.
const DEPTH: u64 = 4;

/// How often a sender looks for completions: about the time in which what it posted is under way.
const LOOK: Duration = Duration::from_micros(5);

/// Packets of one measurement: a good part of a second.
const PACKETS: u64 = 400_000;

/// Measurements of each world.
const ROUNDS: usize = 5;

/// Packets a second to reach with eleven devices.
const TARGET: f64 = 1e6;

/// How much later than the one before it each device begins: no multiple of it within a round trip is one.
const STAGGER: Duration = Duration::from_nanos(7);

/// A window of the peer, in bytes of its socket buffer, that holds a few packets of 1 KiB.
const SMALL_WINDOW: u32 = 8 << 10;

/// One device's way to the next.
struct Way {
    left: RcEnd,
    /// Kept so that it answers.
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

    /// Posts a message for each that is complete.
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

/// What this program has used of a processor: others on the machine do not count.
fn used() -> Outcome<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Packets a second.
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
    // Counting takes a lock for each device: seldom.
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
