//! Conversations over bad networks in virtual time: complete devices, many seeds, deterministic.
//!
//! Every failure names its seed; `RNIC_SEED=n cargo test -p rnic-tests --test virtual_time` runs a single one.

use rnic::sim::{DeviceSetup, Net};
use rnic::{
    Access, ConnectOptions, Device, Error, MemoryRegion, Mtu, Operation, RcEnd, Remote, SendFlags, SendWr,
    Sge, WcStatus,
};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A small generator with a fixed algorithm (xorshift64*), so that a seed always has the same meaning.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// A file in memory that the test can read afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Size of each side's memory in bytes.
const MEMORY: usize = 200_000;
/// Number of work requests in a conversation.
const REQUESTS: u64 = 60;

struct Outcome {
    capture: Vec<u8>,
    elapsed: Duration,
    retransmitted: u64,
    hits: u64,
}

fn region(end: &RcEnd, fill: impl Fn(usize) -> u8) -> Result<MemoryRegion, Error> {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    // Addresses start at 0, so that a run does not depend on where the kernel maps memory.
    let region = end.pd().register(MEMORY, all | Access::ZERO_BASED)?;
    region.write_at(0, &(0..MEMORY).map(fill).collect::<Vec<_>>())?;
    Ok(region)
}

/// One side writes, sends and reads at random places; a plain copy of the memory is the expected result.
fn converse(seed: u64, faults: &[&str]) -> Result<Outcome, Error> {
    let mut random = Random::new(seed);
    let net = Net::with_seed(seed);
    let (a, b) = (net.named_device("a"), net.named_device("b"));
    let capture = Shared::default();
    a.capture_to(capture.clone())?;
    let mtu = Mtu::ALL[random.below(5) as usize];
    let options = ConnectOptions { mtu: Some(mtu), timeout: 8, rnr_retry: 7, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    for fault in faults {
        a.add_fault(fault)?;
    }
    let here = region(&left, |i| (i * 7 + i / 251) as u8)?;
    let there = region(&right, |i| (i * 13 + i / 241) as u8)?;
    let (mut local, mut remote) = (here.to_vec()?, there.to_vec()?);
    for wr_id in 0..REQUESTS {
        let len = [0, 1, 3, 255, 1024, 4097, 20_000, 60_000][random.below(8) as usize];
        let from = random.below((MEMORY - len + 1) as u64) as usize;
        let to = random.below((MEMORY - len + 1) as u64) as usize;
        let part = here.slice(from..from + len)?;
        let operation = match random.below(3) {
            0 => {
                remote[to..to + len].copy_from_slice(&local[from..from + len]);
                Operation::Write { remote: there.remote(to as u64), imm: None }
            }
            1 => {
                right.qp.recv(wr_id, there.slice(to..to + len)?)?;
                remote[to..to + len].copy_from_slice(&local[from..from + len]);
                Operation::Send { imm: None, invalidate: None }
            }
            _ => {
                local[from..from + len].copy_from_slice(&remote[to..to + len]);
                Operation::Read { remote: there.remote(to as u64) }
            }
        };
        // A READ into bytes that are sent next must complete first, which a fence ensures.
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        left.qp.post_send(SendWr::new(wr_id, operation, part).flags(flags))?;
    }
    for wr_id in 0..REQUESTS {
        let wc = left.wait()?;
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "seed {seed}: {:?}", left.qp.failure());
    }
    assert!(here.to_vec()? == local, "seed {seed}: memory of the requester");
    assert!(there.to_vec()? == remote, "seed {seed}: memory of the responder");
    a.stop_captures();
    let hits = a.faults().iter().map(|f| f.hits).sum();
    let retransmitted = left.qp.counters().retransmitted_pkts;
    let capture = capture.0.lock().expect("no panic").clone();
    Ok(Outcome { capture, elapsed: net.elapsed(), retransmitted, hits })
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RNIC_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Losses that a connection with 7 retries survives: with 1 % each way, eight failures in a row will not occur in a
/// few dozen runs.
const BAD: &[&str] = &[
    "tx p=0.01 drop",
    "rx p=0.01 drop",
    "tx p=0.02 dup",
    "rx p=0.02 dup",
    "tx p=0.02 reorder 3",
    "rx p=0.02 delay 30us +-20us",
    "tx p=0.005 corrupt payload",
    "rx p=0.005 corrupt icrc",
];

#[test]
fn bad_networks_change_nothing_but_time() -> Result<(), Error> {
    let (mut retransmitted, mut hits) = (0, 0);
    for seed in seeds(25) {
        let outcome = converse(seed, BAD)?;
        retransmitted += outcome.retransmitted;
        hits += outcome.hits;
    }
    assert!(hits > 0 && retransmitted > 0, "a network in which nothing was lost proves nothing");
    Ok(())
}

#[test]
fn a_good_network_needs_no_retransmission() -> Result<(), Error> {
    for seed in seeds(5) {
        assert_eq!(converse(seed, &[])?.retransmitted, 0, "seed {seed}");
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_packets_at_the_same_times() -> Result<(), Error> {
    for seed in seeds(4) {
        let (first, second) = (converse(seed, BAD)?, converse(seed, BAD)?);
        assert!(first.capture == second.capture, "seed {seed}: captures differ");
        assert_eq!(first.elapsed, second.elapsed, "seed {seed}");
        assert!(first.capture.len() > 10_000);
    }
    let (one, two) = (converse(1, BAD)?, converse(2, BAD)?);
    assert!(one.capture != two.capture, "another seed is another run");
    Ok(())
}

#[test]
fn a_dead_peer_takes_as_long_as_timeout_and_retries_say() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let options = ConnectOptions { timeout: 10, retry_cnt: 3, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    a.add_fault("tx drop")?;
    let source = left.register(b"nobody hears this")?;
    let target = right.register_remote(17)?;
    let before = net.elapsed();
    left.qp.write(1, source.all(), target.remote(0))?;
    left.qp.write(2, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::RetryExcErr);
    // 1 try and 3 retries, of 4.096 us x 2^10 each.
    assert_eq!(net.elapsed() - before, 4 * Duration::from_nanos(4096 << 10));
    assert_eq!(left.wait()?.status, WcStatus::WrFlushErr);
    assert!(matches!(left.wait(), Err(Error::Stalled)), "in virtual time a wait for nothing ends at once");
    Ok(())
}

/// A network so bad that connections may break: rules for both directions of one device.
fn hostile(random: &mut Random, device: &Device) -> Result<(), Error> {
    let percent = [0, 1, 5, 20, 45][random.below(5) as usize];
    for place in ["tx", "rx"] {
        for action in [
            "drop",
            "corrupt payload",
            "corrupt header",
            "corrupt icrc",
            "dup 2",
            "reorder 3",
            "delay 200us +-190us",
        ] {
            if random.below(2) == 0 {
                let percent = 1.max(percent * random.below(100) / 100);
                device.add_fault(&format!("{place} p=0.{percent:02} {action}"))?;
            }
        }
    }
    Ok(())
}

/// Posts a request of random kind and length to a queue pair whose peer may already have broken the connection.
/// Returns the maximum number of its packets, at least one of them a request; 0 if it was not posted.
fn post_any(
    random: &mut Random,
    end: &RcEnd,
    wr_id: u64,
    memory: Sge,
    remote: Remote,
    mtu: Mtu,
) -> Option<u32> {
    let length = [0, 1, 255, 1024, 4097, 20_000, 60_000][random.below(7) as usize];
    let (operation, length) = match random.below(4) {
        0 => (Operation::Write { remote, imm: None }, length),
        1 => (Operation::Send { imm: None, invalidate: None }, length),
        2 => (Operation::Read { remote }, length),
        _ => (Operation::FetchAdd { remote, add: 1 }, 8),
    };
    let fence = if random.below(4) == 0 { SendFlags::FENCE } else { SendFlags::empty() };
    let request = SendWr::new(wr_id, operation, Sge { length, ..memory }).flags(SendFlags::SIGNALED | fence);
    end.qp.post_send(request).ok().map(|()| length / mtu.bytes() + 2)
}

/// Connections in both directions between two devices, some of them with little room, over a network with this
/// seed. Returns how many requests succeeded and how many failed.
fn endure(seed: u64) -> Result<[u64; 2], Error> {
    let mut random = Random::new(seed);
    let net = Net::with_seed(seed);
    let mut setup = || DeviceSetup {
        peer_window: [None, Some(1), Some(10_000), Some(100_000)][random.below(4) as usize],
        ..DeviceSetup::default()
    };
    let (a, b) = (net.device_with(&setup())?, net.device_with(&setup())?);
    let retry_cnt = random.below(8) as u8;
    let mtu = Mtu::ALL[random.below(5) as usize];
    let options =
        ConnectOptions { mtu: Some(mtu), timeout: 8, retry_cnt, rnr_retry: 6, ..ConnectOptions::default() };
    let mut ends = Vec::new();
    for _ in 0..=random.below(3) {
        let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
        let (here, there) = (region(&left, |i| i as u8)?, region(&right, |i| i as u8)?);
        let [left_memory, right_memory] = [here.slice(0..MEMORY)?, there.slice(0..MEMORY)?];
        let [left_remote, right_remote] = [here.remote(0), there.remote(0)];
        ends.push((left, left_memory, right_remote, here));
        ends.push((right, right_memory, left_remote, there));
    }
    hostile(&mut random, &a)?;
    hostile(&mut random, &b)?;
    // 4.096 us x 2^8 for each try.
    let patience = Duration::from_nanos(4096 << 8) * (u32::from(retry_cnt) + 1);
    let mut bound = Duration::ZERO;
    let mut requests = 0;
    for wr_id in 0..20 {
        for (end, memory, remote, _) in &ends {
            if let Some(packets) = post_any(&mut random, end, wr_id, *memory, *remote, mtu) {
                requests += 1;
                // All retries for each packet, and the RNR waits: seven of 0.64 ms.
                bound += patience * packets + Duration::from_millis(5);
            }
        }
        for (end, memory, ..) in &ends {
            if random.below(3) > 0 {
                let _ = end.qp.recv(1000 + wr_id, *memory);
            }
        }
        net.run_for(Duration::from_micros(random.below(3000)));
    }
    // A queue pair may have to wait for all others that share its window.
    net.run_until_idle(bound);
    let mut counts = [0; 2];
    for (end, ..) in &ends {
        while let Some(wc) = end.cq().poll_one() {
            if wc.wr_id < 1000 {
                counts[usize::from(wc.status != WcStatus::Success)] += 1;
            }
        }
    }
    assert_eq!(counts.iter().sum::<u64>(), requests, "seed {seed}: requests that never end");
    Ok(counts)
}

#[test]
fn every_request_ends_within_its_retries_however_bad_the_network() -> Result<(), Error> {
    let mut sum = [0; 2];
    for seed in seeds(100) {
        let counts = endure(seed)?;
        (0..2).for_each(|i| sum[i] += counts[i]);
    }
    assert!(sum.iter().all(|count| *count > 100), "neither a good network nor a bad one: {sum:?}");
    Ok(())
}

/// Packets lost without a timeout may occupy the peer's window for a while, but not permanently.
#[test]
fn packets_without_acknowledgements_do_not_fill_a_window_permanently() -> Result<(), Error> {
    let net = Net::new();
    let small = DeviceSetup { peer_window: Some(20_000), ..DeviceSetup::default() };
    let (a, b) = (net.device_with(&small)?, net.device());
    let for_ever = ConnectOptions { timeout: 0, ..ConnectOptions::default() };
    let (patient, _peer) = RcEnd::pair_with(&a, &b, &for_ever)?;
    let (other, right) = RcEnd::pair_with(&a, &b, &ConnectOptions::default())?;
    let name = a.add_fault("tx drop")?;
    let (lost, source) = (patient.register(&[1; 60_000])?, other.register(b"what others have to say")?);
    let target = right.register_remote(60_000)?;
    patient.qp.write(1, lost.all(), target.remote(0))?;
    net.run_for(Duration::from_millis(1));
    assert!(a.counters().port.window_stalls > 0, "the window is full");
    a.remove_fault(&name);
    let before = net.elapsed();
    other.qp.write(2, source.all(), target.remote(0))?;
    assert_eq!(other.wait()?.status, WcStatus::Success);
    // Half a second until packets in flight are given up, twice because the first check may come too early.
    assert!(net.elapsed() - before <= Duration::from_millis(1001), "{:?}", net.elapsed() - before);
    assert_eq!(target.to_vec()?[..23], *b"what others have to say");
    Ok(())
}
