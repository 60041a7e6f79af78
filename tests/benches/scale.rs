//! Many queue pairs: `cargo bench -p rnic-tests --bench scale`.
//!
//! Two processes on loopback. Queue pairs are created and connected; their memory is the growth of the process.
//! Then all of them write at once for a second, and Jain's index measures the fairness of their throughput (1: all
//! got the same; 1/n: one got everything). Finally, messages go round a growing number of queue pairs, one at a
//! time each: the cost of a message should not depend on the number of queue pairs. With `--check` the program
//! fails if a target is missed.

use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, Operation, ProtectionDomain, QpAddress,
    QpCap, QpInit, QueuePair, Remote, SendFlags, SendWr, WcStatus, WorkCompletion,
};
use rnic_tests::resident;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Number of connected queue pairs in each process.
const CONNECTED: usize = 10_000;

/// Number of queue pairs that one port supports, less a few.
const CREATED: usize = 64_000;

/// How long all of them write at once.
const TOGETHER: Duration = Duration::from_secs(1);

/// Number of messages in one measurement of the cost of a message.
const MESSAGES: usize = 50_000;

/// Number of interleaved measurements; the median counts.
const ROUNDS: usize = 9;

/// Length of a message in bytes.
const SIZE: usize = 64;

/// Maximum memory of a queue pair in bytes: one that was created, one that is connected, and one that has had traffic, whose
/// queues have grown.
const CREATED_TARGET: usize = 1536;
const CONNECTED_TARGET: usize = 2048;
const USED_TARGET: usize = 4096;

/// Minimum fairness.
const JAIN_TARGET: f64 = 0.95;

const PEER: &str = "--peer";

/// A side's message to the other.
#[derive(Serialize, Deserialize)]
struct Hello {
    qps: Vec<QpAddress>,
    addr: u64,
    rkey: u32,
}

/// One process.
struct Side {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
    qps: Vec<QueuePair>,
}

impl Side {
    fn new() -> Outcome<Self> {
        let device = rnic::open()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1 << 17)?;
        let region = pd.register(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { device, pd, cq, region, qps: Vec::new() })
    }

    fn create(&mut self, count: usize) -> Outcome<()> {
        let mut init = QpInit::rc(&self.cq, &self.cq);
        init.cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..init.cap };
        for _ in 0..count {
            self.qps.push(self.pd.create_qp(&init)?);
        }
        Ok(())
    }

    fn hello(&self) -> Hello {
        let qps = self.qps.iter().map(QueuePair::address).collect();
        Hello { qps, addr: self.region.addr(), rkey: self.region.rkey() }
    }

    fn connect(&self, peer: &Hello) -> Outcome<()> {
        // Ten thousand at once may wait for each other longer than the usual 67 ms: 2^18 x 4.096 us is 1.07 s.
        let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
        for (qp, address) in self.qps.iter().zip(&peer.qps) {
            qp.connect(address, &options)?;
        }
        Ok(())
    }

    fn post(&self, qp: usize, peer: &Hello) -> Outcome<()> {
        let operation = Operation::Write { remote: Remote { addr: peer.addr, rkey: peer.rkey }, imm: None };
        let wr = SendWr::new(qp as u64, operation, self.region.all()).flags(SendFlags::SIGNALED);
        Ok(self.qps[qp].post_send(wr)?)
    }

    /// Polls completions, and calls `each` with the queue pair of each.
    fn poll(&self, mut each: impl FnMut(usize) -> Outcome<()>) -> Outcome<()> {
        let mut completions = [WorkCompletion::default(); 64];
        let taken = self.cq.poll(&mut completions);
        for completion in &completions[..taken] {
            if completion.status != WcStatus::Success {
                return Err(format!("{}: {}", completion.status, completion.status.explain()).into());
            }
            each(completion.wr_id as usize)?;
        }
        Ok(())
    }

    /// All queue pairs write for a while, with `depth` outstanding each; returns the number of messages of each.
    fn together(&self, peer: &Hello, depth: u32) -> Outcome<Vec<u64>> {
        let mut done = vec![0u64; self.qps.len()];
        for _ in 0..depth {
            (0..self.qps.len()).try_for_each(|qp| self.post(qp, peer))?;
        }
        let mut outstanding = self.qps.len() * depth as usize;
        let start = Instant::now();
        while outstanding > 0 {
            let open = start.elapsed() < TOGETHER;
            self.poll(|qp| {
                // Completions after the end do not count; otherwise the slowest would look as fast as the fastest.
                done[qp] += u64::from(open);
                if open {
                    return self.post(qp, peer);
                }
                outstanding -= 1;
                Ok(())
            })?;
        }
        Ok(done)
    }

    /// Sends messages one after another over `count` queue pairs in turn, 32 in flight; returns nanoseconds per
    /// message.
    fn round_robin(&self, peer: &Hello, count: usize) -> Outcome<f64> {
        let (mut posted, mut completed) = (0, 0);
        let start = Instant::now();
        // Spread over the table: neighbouring entries may share cache lines.
        let stride = self.qps.len() / count;
        while completed < MESSAGES {
            while posted < MESSAGES && posted - completed < 32.min(count) {
                self.post(posted % count * stride, peer)?;
                posted += 1;
            }
            self.poll(|_| {
                completed += 1;
                Ok(())
            })?;
        }
        Ok(start.elapsed().as_nanos() as f64 / MESSAGES as f64)
    }
}

fn jain(done: &[u64]) -> f64 {
    let sum: f64 = done.iter().map(|x| *x as f64).sum();
    let squares: f64 = done.iter().map(|x| (*x as f64).powi(2)).sum();
    sum * sum / (done.len() as f64 * squares)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The other process: connects, and answers until its input ends.
fn serve() -> Outcome<()> {
    let mut side = Side::new()?;
    side.create(CONNECTED)?;
    println!("{}", serde_json::to_string(&side.hello())?);
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    side.connect(&serde_json::from_str(&line)?)?;
    println!("connected");
    stdout().flush()?;
    let device = side.device.clone();
    std::thread::spawn(move || {
        loop {
            device.progress();
        }
    });
    stdin().read_line(&mut line)?;
    Ok(())
}

fn measure() -> Outcome<bool> {
    let mut good = true;
    let mut check = |name: &str, value: String, reached: bool| {
        println!("{name:<58} {value:>14} {}", if reached { "ok" } else { "MISSED" });
        good &= reached;
    };
    let mut side = Side::new()?;
    let before = resident(std::process::id());
    side.create(CONNECTED)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(PEER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut orders = child.stdin.take().ok_or("no pipe to the peer")?;
    let mut answers = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?).lines();
    let peer: Hello = serde_json::from_str(&answers.next().ok_or("the peer ended")??)?;
    writeln!(orders, "{}", serde_json::to_string(&side.hello())?)?;
    side.connect(&peer)?;
    answers.next().ok_or("the peer ended")??;
    let each = resident(std::process::id()).saturating_sub(before) / CONNECTED;
    check(
        &format!("memory of each of {CONNECTED} connected queue pairs"),
        format!("{each} B"),
        each < CONNECTED_TARGET,
    );

    for depth in [1, 4] {
        let done = side.together(&peer, depth)?;
        let (total, least) = (done.iter().sum::<u64>(), done.iter().min().copied().unwrap_or(0));
        let jain = jain(&done);
        let rate = format!("{:.0} k/s", total as f64 / TOGETHER.as_secs_f64() / 1e3);
        check(&format!("all write, {depth} outstanding each: messages"), rate, true);
        check("  messages of the slowest queue pair", least.to_string(), least > 0);
        check("  fairness (Jain)", format!("{jain:.4}"), jain > JAIN_TARGET);
    }
    let retried = side.device.counters().qp.local_ack_timeout_err;
    check("acknowledgement timeouts meanwhile", retried.to_string(), true);
    let each = resident(std::process::id()).saturating_sub(before) / CONNECTED;
    check("memory of each after its traffic", format!("{each} B"), each < USED_TARGET);

    let counts = [10, 100, 1000, CONNECTED];
    let mut costs = vec![Vec::new(); counts.len()];
    for _ in 0..ROUNDS {
        for (count, costs) in counts.iter().zip(&mut costs) {
            costs.push(side.round_robin(&peer, *count)?);
        }
    }
    for (count, costs) in counts.iter().zip(costs) {
        check(
            &format!("cost of a message over {count} queue pairs in turn"),
            format!("{:.0} ns", median(costs)),
            true,
        );
    }
    drop(orders);
    child.wait()?;

    // Last, because freed memory would be reused, and a queue pair would seem smaller than it is.
    let mut side = Side::new()?;
    let before = resident(std::process::id());
    let start = Instant::now();
    side.create(CREATED)?;
    let each = (resident(std::process::id()) - before) / CREATED;
    let micros = start.elapsed().as_secs_f64() * 1e6 / CREATED as f64;
    check(&format!("{CREATED} queue pairs created, each"), format!("{micros:.2} us"), true);
    check("memory of a queue pair in RESET", format!("{each} B"), each < CREATED_TARGET);
    Ok(good)
}

fn main() -> ExitCode {
    let is = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    let outcome = if is(PEER) { serve().map(|()| true) } else { measure() };
    match outcome {
        Ok(good) if good || !is("--check") => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}
