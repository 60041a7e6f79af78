//! The same work over TCP, by programs that others wrote for that: iperf3, and UCX's ucx_perftest.
//!
//! They run in a network namespace of their own if this program may make one (as root), so that the host's choice of
//! congestion control does not limit them: one that paces, such as BBR, is slow on loopback. Otherwise they run under
//! the host's settings.

use super::{Outcome, pin};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may take to listen, and to measure.
const PATIENCE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(30);

/// How often to look whether a program listens, or has ended.
const TICK: Duration = Duration::from_millis(2);

/// The fewest messages of a measurement.
const FEWEST: f64 = 30.0;

/// A measurement by one of the programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Test {
    /// A stream in writes of 1 MiB.
    Iperf,
    /// A test of ucx_perftest: its name, the message size, and whether both sides sleep.
    Ucx(&'static str, usize, bool),
}

impl Test {
    /// What the table calls it.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Iperf => "iperf3".to_owned(),
            Self::Ucx(test, ..) => format!("UCX {test}"),
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Iperf => "iperf3",
            Self::Ucx(..) => "ucx_perftest",
        }
    }

    /// Messages to begin with, before their rate is known.
    fn first(self) -> f64 {
        match self {
            Self::Iperf => 100.0,
            Self::Ucx(_, size, _) if size >= 1 << 16 => 100.0,
            Self::Ucx(..) => 2000.0,
        }
    }
}

/// What the thread that measures TCP answers.
type Answer = Outcome<Option<Vec<f64>>>;

/// The programs, and the thread that runs them.
pub(crate) struct Tcp {
    tests: SyncSender<(Test, bool)>,
    answers: Receiver<Answer>,
    /// The congestion control in use.
    pub(crate) congestion_control: String,
    /// The programs that are not installed.
    pub(crate) missing: Vec<&'static str>,
}

impl Tcp {
    pub(crate) fn start(slice: Duration) -> Outcome<Self> {
        let (tests, orders) = sync_channel::<(Test, bool)>(1);
        let (results, answers) = sync_channel(1);
        let (about, described) = sync_channel(1);
        std::thread::spawn(move || {
            let mut runner = Runner::new(slice);
            // Fails only if nobody listens any more, as below.
            let _ = about.send((runner.congestion_control.clone(), runner.missing.clone()));
            for (test, trips) in orders {
                if results.send(runner.measure(test, trips)).is_err() {
                    break;
                }
            }
        });
        let (congestion_control, missing) = described.recv()?;
        Ok(Self { tests, answers, congestion_control, missing })
    }

    /// Messages per second, or the median and the 99th percentile of a round trip in nanoseconds; `None` if the program
    /// is not installed.
    pub(crate) fn measure(&self, test: Test, trips: bool) -> Answer {
        self.tests.send((test, trips))?;
        self.answers.recv()?
    }
}

/// Runs the programs from a thread of its own, whose namespace and processor they inherit.
struct Runner {
    slice: Duration,
    /// Messages per second when last measured.
    rates: HashMap<Test, f64>,
    congestion_control: String,
    missing: Vec<&'static str>,
}

impl Runner {
    /// Enters a namespace if possible; affects all that this thread starts from now on.
    fn new(slice: Duration) -> Self {
        let is_missing = |program: &&str| {
            Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        };
        let missing = ["iperf3", "ucx_perftest"].into_iter().filter(is_missing).collect();
        if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success()) {
                eprintln!("transfer: ip is missing: TCP cannot be measured");
            }
            // The only one that every namespace may choose. Without losses it does not differ from CUBIC.
            let chosen = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
            if let Err(error) = chosen {
                eprintln!("transfer: TCP keeps the host's congestion control: {error}");
            }
        }
        let congestion_control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
        let congestion_control = congestion_control.unwrap_or_default().trim().to_owned();
        Self { slice, rates: HashMap::new(), congestion_control, missing }
    }

    /// See [`Tcp::measure`].
    fn measure(&mut self, test: Test, trips: bool) -> Answer {
        if self.missing.contains(&test.program()) {
            return Ok(None);
        }
        if !trips {
            return self.run(test, "50").map(|(rate, _)| Some(vec![rate]));
        }
        // UCX reports the half of a round trip, except of a get.
        let halves = if matches!(test, Test::Ucx("ucp_get", ..)) { 1.0 } else { 2.0 };
        let (_, median) = self.run(test, "50")?;
        let (_, high) = self.run(test, "99")?;
        Ok(Some(vec![median * halves, high * halves]))
    }

    /// Measures about a slice long: messages per second, and a percentile of the latency in nanoseconds.
    fn run(&mut self, test: Test, percentile: &str) -> Outcome<(f64, f64)> {
        if !self.rates.contains_key(&test) {
            let first = self.run_some(test, test.first(), percentile)?;
            self.rates.insert(test, first.0);
        }
        let messages = (self.rates[&test] * self.slice.as_secs_f64()).max(FEWEST);
        let found = self.run_some(test, messages, percentile)?;
        self.rates.insert(test, found.0);
        Ok(found)
    }

    fn run_some(&self, test: Test, messages: f64, percentile: &str) -> Outcome<(f64, f64)> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        let (server, client) = match test {
            Test::Iperf => iperf(&port, messages),
            Test::Ucx(name, size, asleep) => ucx(&port, (name, size, asleep), messages, percentile),
        };
        let text = run_both(test.program(), &server, &client, port.parse()?)?;
        let read = match test {
            Test::Iperf => read_iperf(&text),
            Test::Ucx(..) => read_ucx(&text),
        };
        read.ok_or_else(|| format!("{} says: {text}", test.program()).into())
    }
}

/// Runs the server on the second processor and the client on the first.
fn run_both(program: &str, server: &[String], client: &[String], port: u16) -> Outcome<String> {
    let start = |arguments: &[String], output: Stdio| {
        Command::new(program)
            .args(arguments)
            .env("UCX_TLS", "tcp")
            .env("UCX_NET_DEVICES", "lo")
            .env("UCX_LOG_LEVEL", "error")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
    };
    pin(1);
    let started = start(server, Stdio::null());
    pin(0);
    let _server = Ended(started?);
    await_listener(port)?;
    let mut client = Ended(start(client, Stdio::piped())?);
    let begin = Instant::now();
    // Its output fits the pipe.
    while client.0.try_wait()?.is_none() {
        if begin.elapsed() > LIMIT {
            return Err(format!("{program} has not ended after {LIMIT:?}").into());
        }
        sleep(TICK);
    }
    let mut text = String::new();
    client.0.stdout.take().ok_or("no pipe")?.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits until a server of this thread's namespace listens. A connection would count as its client.
fn await_listener(port: u16) -> Outcome<()> {
    let begin = Instant::now();
    // Address and port in hexadecimal, then the peer's, then the state: 0A is LISTEN (proc(5)).
    let wanted = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|own| own.ends_with(&wanted)) && fields.nth(1) == Some("0A")
    };
    while begin.elapsed() < PATIENCE {
        for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
            if std::fs::read_to_string(table).unwrap_or_default().lines().any(listens) {
                return Ok(());
            }
        }
        sleep(TICK);
    }
    Err(format!("nobody listens on port {port}").into())
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn iperf(port: &str, messages: f64) -> (Vec<String>, Vec<String>) {
    let bytes = ((messages as u64) << 20).to_string();
    let server = strings(&["-s", "-1", "-B", "127.0.0.1", "-p", port]);
    (server, strings(&["-c", "127.0.0.1", "-p", port, "-l", "1M", "-n", &bytes, "-J"]))
}

fn ucx(
    port: &str,
    (test, size, asleep): (&str, usize, bool),
    messages: f64,
    percentile: &str,
) -> (Vec<String>, Vec<String>) {
    let (size, messages) = (size.to_string(), (messages as u64).to_string());
    let mut client = strings(&["127.0.0.1", "-p", port, "-t", test, "-s", &size, "-n", &messages]);
    client.extend(strings(&["-w", "10", "-R", percentile, "-f", "-v"]));
    if asleep {
        client.extend(strings(&["-E", "sleep"]));
    }
    (strings(&["-p", port]), client)
}

/// The rate of writes of 1 MiB.
fn read_iperf(text: &str) -> Option<(f64, f64)> {
    let value: Value = serde_json::from_str(text).ok()?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some((bits / 8.0 / f64::from(1 << 20), 0.0))
}

/// The last line has: iterations, a percentile, the average and the overall latency (us), the average and the overall
/// bandwidth, the average and the overall message rate.
fn read_ucx(text: &str) -> Option<(f64, f64)> {
    let last = text.trim_end().lines().last()?;
    let fields: Vec<f64> = last.split(',').map_while(|field| field.trim().parse().ok()).collect();
    match fields[..] {
        [_, percentile, _, _, _, _, _, rate] if rate > 0.0 => Some((rate, percentile * 1e3)),
        _ => None,
    }
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
