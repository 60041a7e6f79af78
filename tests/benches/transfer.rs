//! The speed of RDMA WRITE compared with plain UDP: `cargo bench -p rnic-tests --bench transfer`.
//!
//! Two processes on loopback. Every round measures plain UDP with the same offloads (`rnic::net::baseline`) and
//! RDMA WRITEs in turn. The speed of a shared machine varies, so only the ratio of neighbouring measurements
//! counts. With `--check` the program fails if a target is missed.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rnic::net::baseline::{Throughput, echo, ping, receive_stream, send_stream};
use rnic::net::{RoceSocket, SocketConfig};
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, Operation, QpAddress, QpInit, QueuePair,
    Remote, SendFlags, SendWr, Sge, WcStatus, WorkCompletion,
};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Number of rounds: enough for the median to tolerate a few disturbed rounds.
const ROUNDS: usize = 11;

/// Duration of one bandwidth measurement.
const SLICE: Duration = Duration::from_millis(150);

/// Number of pings in one latency measurement.
const PINGS: u64 = 2000;

/// Plain packets as long as those of a WRITE: BTH, 4096 bytes, ICRC.
const RAW_PACKET: usize = 12 + 4096 + 4;

/// The UDP port of the plain sockets; the devices use 4791.
const RAW_PORT: u16 = 4790;

/// Length of the small messages in bytes.
const SMALL: usize = 64;

/// Message sizes, with the number of outstanding messages.
const SIZES: [(usize, u64); 4] = [(SMALL, 256), (4096, 128), (64 << 10, 32), (1 << 20, 8)];

/// Size of the largest message.
const REGION: usize = 1 << 20;

/// Minimum bandwidth of a 1 MiB WRITE, relative to plain UDP.
const BANDWIDTH_TARGET: f64 = 0.6;

/// Maximum half round trip of a 64-byte WRITE, relative to a plain packet.
const LATENCY_TARGET: f64 = 2.0;

/// The argument that makes this program the peer.
const PEER: &str = "--peer";

fn main() -> ExitCode {
    let is = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    let outcome = if is(PEER) { serve().map(|()| true) } else { compare() };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if is("--check") => ExitCode::FAILURE,
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Pins this process to the `nth` of its processors, if it has two. Otherwise the scheduler places both sides on
/// the same one in some of the slices, which makes those measurements meaningless.
fn pin(nth: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let all: Vec<_> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    if all.len() < 2 {
        return;
    }
    let mut one = CpuSet::new();
    if one.set(all[nth]).is_ok() && sched_setaffinity(this, &one).is_err() {
        eprintln!("transfer: cannot be pinned to a processor; figures will vary more");
    }
}

/// The peer's task until the next command.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Order {
    /// Receive plain packets.
    Receive,
    /// Send plain packets back.
    Echo,
    /// Answer each WRITE with a WRITE.
    Answer,
    /// Stop, and report the result.
    Stop,
}

/// The addresses of a side.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Place {
    qp: QpAddress,
    addr: u64,
    rkey: u32,
    raw: IpAddr,
}

/// The resources of a side.
struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    /// Memory that peers write to.
    target: MemoryRegion,
    /// The source of WRITEs.
    source: MemoryRegion,
    raw: Arc<RoceSocket>,
}

impl End {
    fn new() -> Outcome<Self> {
        let device = rnic::open()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1024)?;
        let mut init = QpInit::rc(&cq, &cq);
        init.cap.max_send_wr = 256;
        let qp = pd.create_qp(&init)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let target = pd.register(REGION, access)?;
        let source = pd.register(REGION, access)?;
        let config = SocketConfig { port: RAW_PORT, ..SocketConfig::new(IpAddr::from([127, 0, 0, 1])) };
        let raw = Arc::new(RoceSocket::bind_first_free_loopback(&config)?);
        Ok(Self { device, cq, qp, target, source, raw })
    }

    fn place(&self) -> Place {
        Place {
            qp: self.qp.address(),
            addr: self.target.addr(),
            rkey: self.target.rkey(),
            raw: self.raw.ip(),
        }
    }

    fn post(&self, id: u64, operation: Operation, data: Sge, signalled: bool) -> Outcome<()> {
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        Ok(self.qp.post_send(SendWr::new(id, operation, data).flags(flags))?)
    }

    /// Polls completions; returns the number after the newest, or `before` if there is none.
    fn completed(&self, before: u64) -> Outcome<u64> {
        let mut completions = [WorkCompletion::default(); 32];
        let taken = self.cq.poll(&mut completions);
        let mut newest = before;
        for completion in &completions[..taken] {
            if completion.status != WcStatus::Success {
                let why = self.qp.failure().map(|failure| failure.to_string()).unwrap_or_default();
                return Err(format!("{}: {} {why}", completion.status, completion.status.explain()).into());
            }
            newest = completion.wr_id + 1;
        }
        Ok(newest)
    }
}

/// WRITEs of `size` bytes with `depth` outstanding; returns bytes per second.
fn write_bandwidth(end: &End, peer: &Place, size: usize, depth: u64) -> Outcome<f64> {
    let data = end.source.slice(0..size)?;
    let remote = Remote { addr: peer.addr, rkey: peer.rkey };
    let every = depth / 4;
    let (mut posted, mut completed) = (0, 0);
    let start = Instant::now();
    let mut open = true;
    while open || completed < posted {
        while posted - completed < depth && (open || !posted.is_multiple_of(every)) {
            let signalled = (posted + 1).is_multiple_of(every);
            end.post(posted, Operation::Write { remote, imm: None }, data, signalled)?;
            posted += 1;
        }
        completed = end.completed(completed)?;
        open = start.elapsed() < SLICE;
    }
    Ok((posted * size as u64) as f64 / start.elapsed().as_secs_f64())
}

/// Writes the last byte of a small message and sends it.
fn play(end: &End, peer: &Place, number: u64) -> Outcome<()> {
    end.source.write_at(SMALL - 1, &[mark(number)])?;
    let remote = Remote { addr: peer.addr, rkey: peer.rkey };
    end.post(number, Operation::Write { remote, imm: None }, end.source.slice(0..SMALL)?, number % 32 == 31)?;
    if number % 32 == 31 {
        end.completed(0)?;
    }
    Ok(())
}

/// Waits for message `number`; false if `stop` is set first.
fn await_turn(end: &End, number: u64, stop: &AtomicBool) -> Outcome<bool> {
    let mut last = [0];
    for polls in 1u64.. {
        end.target.read_at(SMALL - 1, &mut last)?;
        if last[0] == mark(number) {
            return Ok(true);
        }
        end.device.progress();
        if polls.is_multiple_of(1024) {
            end.completed(0)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
    }
    Ok(false)
}

/// The last byte of message `number`: never 0, and never that of its neighbour.
fn mark(number: u64) -> u8 {
    (number % 255 + 1) as u8
}

/// Half round trips of 64-byte WRITEs; returns the median in nanoseconds.
fn write_latency(end: &End, peer: &Place) -> Outcome<f64> {
    let never = AtomicBool::new(false);
    let mut times = Vec::with_capacity(PINGS as usize);
    for number in 0..PINGS {
        let start = Instant::now();
        play(end, peer, number)?;
        await_turn(end, number, &never)?;
        times.push(start.elapsed().as_nanos() as f64 / 2.0);
    }
    Ok(Spread::of(times).median)
}

/// Sends plain packets for a while; returns bytes per second at the receiver.
fn raw_bandwidth(end: &End, peer: &mut Peer) -> Outcome<f64> {
    peer.order(Order::Receive)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome<()> {
        let (raw, to, stop) = (&end.raw, peer.place.raw, &stop);
        let sender = scope.spawn(move || send_stream(raw, to, RAW_PACKET, stop));
        std::thread::sleep(SLICE);
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| "the sender panicked")??;
        Ok(())
    })?;
    peer.stop()
}

/// Half round trips of plain packets as long as a 64-byte WRITE; returns the median in nanoseconds.
fn raw_latency(end: &End, peer: &mut Peer) -> Outcome<f64> {
    peer.order(Order::Echo)?;
    // BTH, RETH, ICRC.
    let latencies = ping(&end.raw, peer.place.raw, PINGS, 12 + 16 + SMALL + 4)?;
    peer.stop()?;
    Ok(latencies.value_at_quantile(0.5) as f64)
}

/// Reads back the result of a WRITE of `size` bytes from the peer, and compares it.
fn verify(end: &End, peer: &Place, size: usize) -> Outcome<()> {
    let remote = Remote { addr: peer.addr, rkey: peer.rkey };
    end.post(0, Operation::Read { remote }, end.target.slice(0..size)?, true)?;
    while end.completed(0)? == 0 {}
    let (mut sent, mut found) = (vec![0; size], vec![0; size]);
    end.source.read_at(0, &mut sent)?;
    end.target.read_at(0, &mut found)?;
    if sent == found { Ok(()) } else { Err(format!("a WRITE of {size} bytes left wrong data").into()) }
}

/// The other process.
struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    place: Place,
}

impl Peer {
    fn start(end: &End) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(PEER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut orders = child.stdin.take().ok_or("no pipe to the peer")?;
        let mut answers = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?).lines();
        writeln!(orders, "{}", serde_json::to_string(&end.place())?)?;
        let line = answers.next().ok_or("the peer ended")??;
        Ok(Self { child, orders, answers, place: serde_json::from_str(&line)? })
    }

    fn order(&mut self, order: Order) -> Outcome<f64> {
        writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
        let line = self.answers.next().ok_or("the peer ended")??;
        Ok(line.parse()?)
    }

    fn stop(&mut self) -> Outcome<f64> {
        self.order(Order::Stop)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The peer's current task.
struct Task {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Outcome<f64>>,
}

impl Task {
    fn start(order: Order, end: &Arc<End>, peer: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, end) = (Arc::clone(&stop), Arc::clone(end));
        let thread = std::thread::spawn(move || match order {
            Order::Receive => Ok(rate(receive_stream(&end.raw, &flag)?)),
            Order::Echo => Ok(echo(&end.raw, &flag).map(|()| 0.0)?),
            Order::Answer => answer(&end, &peer, &flag).map(|()| 0.0),
            Order::Stop => Ok(0.0),
        });
        Self { stop, thread }
    }

    fn finish(self) -> Outcome<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the task panicked")?
    }
}

fn rate(total: Throughput) -> f64 {
    total.bytes as f64 / total.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn answer(end: &End, peer: &Place, stop: &AtomicBool) -> Outcome<()> {
    for number in 0.. {
        if !await_turn(end, number, stop)? {
            break;
        }
        play(end, peer, number)?;
    }
    Ok(())
}

/// The peer: runs the commands from standard input.
fn serve() -> Outcome<()> {
    pin(1);
    let end = Arc::new(End::new()?);
    let mut lines = stdin().lines();
    let peer: Place = serde_json::from_str(&lines.next().ok_or("nobody gives orders")??)?;
    end.qp.connect(&peer.qp, &ConnectOptions::default())?;
    println!("{}", serde_json::to_string(&end.place())?);
    let mut task: Option<Task> = None;
    for line in lines {
        let result = match serde_json::from_str(&line?)? {
            Order::Stop => task.take().map_or(Ok(0.0), Task::finish)?,
            order => {
                end.target.write_at(SMALL - 1, &[0])?;
                task = Some(Task::start(order, &end, peer));
                0.0
            }
        };
        println!("{result}");
        stdout().flush()?;
    }
    Ok(())
}

/// A median and its spread.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }

    fn show(name: &str, values: &[f64], unit: &str) -> Self {
        let spread = Self::of(values.to_vec());
        let Self { median, min, max } = spread;
        println!("{name:<34} {median:>9.2} {min:>9.2} {max:>9.2}  {unit}");
        spread
    }
}

/// The results of all rounds, by measurement.
#[derive(Default)]
struct Rounds {
    raw: Vec<f64>,
    writes: [Vec<f64>; SIZES.len()],
    raw_latency: Vec<f64>,
    latency: Vec<f64>,
}

impl Rounds {
    fn play(&mut self, end: &End, peer: &mut Peer) -> Outcome<()> {
        // The largest first, so that it directly follows the plain stream.
        self.raw.push(raw_bandwidth(end, peer)? * 8e-9);
        for (results, (size, depth)) in self.writes.iter_mut().zip(SIZES).rev() {
            results.push(write_bandwidth(end, &peer.place, size, depth)? * 8e-9);
            verify(end, &peer.place, size)?;
        }
        self.raw_latency.push(raw_latency(end, peer)? * 1e-3);
        end.target.write_at(SMALL - 1, &[0])?;
        peer.order(Order::Answer)?;
        self.latency.push(write_latency(end, &peer.place)? * 1e-3);
        peer.stop()?;
        Ok(())
    }

    /// Prints the table; returns whether the targets are met.
    fn report(&self) -> bool {
        println!("{:<34} {:>9} {:>9} {:>9}", format!("{ROUNDS} rounds"), "median", "min", "max");
        Spread::show("UDP, GSO + GRO", &self.raw, "Gb/s");
        let mut large = f64::NAN;
        for (results, (size, depth)) in self.writes.iter().zip(SIZES).rev() {
            let name = format!("WRITE {size} B x {depth}");
            let Spread { median, .. } = Spread::show(&name, results, "Gb/s");
            if size == SMALL {
                println!(
                    "{:<34} {:>9.2} {:>9} {:>9}  M/s",
                    "  messages",
                    median / (8.0 * size as f64) * 1e3,
                    "",
                    ""
                );
            }
            let ratio = Spread::show("  of UDP", &ratios(results, &self.raw), "");
            if size == REGION {
                large = ratio.median;
            }
        }
        Spread::show("UDP 96 B, half round trip", &self.raw_latency, "us");
        Spread::show("WRITE 64 B, half round trip", &self.latency, "us");
        let slow = Spread::show("  of UDP", &ratios(&self.latency, &self.raw_latency), "").median;
        let verdict = |met: bool| if met { "met" } else { "MISSED" };
        let (fast, quick) = (large >= BANDWIDTH_TARGET, slow <= LATENCY_TARGET);
        println!("target: WRITE 1 MiB >= {BANDWIDTH_TARGET} of UDP: {large:.2}, {}", verdict(fast));
        println!("target: WRITE 64 B <= {LATENCY_TARGET} x UDP: {slow:.2}, {}", verdict(quick));
        fast && quick
    }
}

/// Computed per round, because measurements close in time share the state of the machine.
fn ratios(values: &[f64], yardstick: &[f64]) -> Vec<f64> {
    values.iter().zip(yardstick).map(|(value, unit)| value / unit).collect()
}

fn compare() -> Outcome<bool> {
    let end = End::new()?;
    let mut peer = Peer::start(&end)?;
    // After starting the peer, which would inherit it; before starting threads, which should.
    pin(0);
    end.qp.connect(&peer.place.qp, &ConnectOptions::default())?;
    let pattern: Vec<u8> = (0..REGION).map(|at| (at % 251 + 1) as u8).collect();
    end.source.write_at(0, &pattern)?;
    // Warm-up: page tables, caches, processor clock.
    Rounds::default().play(&end, &mut peer)?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        rounds.play(&end, &mut peer)?;
    }
    let met = rounds.report();
    let lost: Vec<_> =
        end.device.counters().iter().filter(|(name, value)| is_loss(name) && *value > 0).collect();
    if !lost.is_empty() {
        println!("packets were lost, as seen from the writer: {lost:?}");
    }
    Ok(met)
}

fn is_loss(name: &str) -> bool {
    name == "retransmitted_pkts" || name == "socket_rx_overrun" || name.starts_with("dropped_")
}
