//! The other process, and the orders to it.

use super::{Outcome, bare, pattern, pin, raw, verbs};
use rnic::Device;
use rnic::net::RoceSocket;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The argument that makes this program the peer.
pub(crate) const PEER: &str = "--peer";

/// The peer's task on a bare path.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum BareTask {
    /// Receive messages of this size, and check the data.
    Receive(usize),
    /// Send messages.
    Send(bare::Op, usize),
    /// Answer packets.
    Echo(bare::Ping),
}

/// An order to the peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    Raw(raw::Task),
    Bare(BareTask, SocketAddr),
    Verbs(verbs::Work, verbs::Place),
    /// Stop, and report the result.
    Stop,
}

/// The other process.
pub(crate) struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Where its plain socket is.
    pub(crate) raw: IpAddr,
}

impl Peer {
    pub(crate) fn start() -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(PEER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().ok_or("no pipe to the peer")?;
        let mut answers = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?).lines();
        let raw = serde_json::from_str(&answers.next().ok_or("the peer ended")??)?;
        Ok(Self { child, orders, answers, raw })
    }

    fn order<T: DeserializeOwned>(&mut self, order: &Order) -> Outcome<T> {
        writeln!(self.orders, "{}", serde_json::to_string(order)?)?;
        let line = self.answers.next().ok_or("the peer ended")??;
        Ok(serde_json::from_str(&line)?)
    }

    pub(crate) fn raw(&mut self, task: raw::Task) -> Outcome<Option<SocketAddr>> {
        self.order(&Order::Raw(task))
    }

    /// Starts a task on a bare path from `own`; returns its address.
    pub(crate) fn bare(&mut self, task: BareTask, own: SocketAddr) -> Outcome<SocketAddr> {
        self.order(&Order::Bare(task, own))
    }

    /// Starts the far side of a transfer.
    pub(crate) fn verbs(&mut self, work: verbs::Work, own: verbs::Place) -> Outcome<verbs::Place> {
        self.order(&Order::Verbs(work, own))
    }

    /// Ends the task; returns its result: messages or packets per second.
    pub(crate) fn stop(&mut self) -> Outcome<f64> {
        self.order(&Order::Stop)
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
    fn start(work: impl FnOnce(&AtomicBool) -> Outcome<f64> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || work(&flag)) }
    }

    fn finish(self) -> Outcome<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the task panicked")?
    }
}

fn bare_task(task: BareTask, link: &mut bare::Link, stop: &AtomicBool) -> Outcome<f64> {
    let go = || !stop.load(Ordering::Relaxed);
    match task {
        BareTask::Receive(size) => {
            let mut region = vec![0; size];
            bare::receive(link, &mut region, go)?;
            super::check(&region, size, "the bare path").map(|()| 0.0)
        }
        BareTask::Send(op, size) => bare::send(link, (op, size), &pattern(size), |_| go()),
        BareTask::Echo(ping) => bare::echo(link, ping, &mut pattern(ping.size), go).map(|()| 0.0),
    }
}

fn verbs_task(end: &verbs::End, work: verbs::Work, stop: &AtomicBool) -> Outcome<f64> {
    end.serve(|| !stop.load(Ordering::Relaxed))?;
    if !work.trips && work.op != bare::Op::Read {
        end.check()?;
    }
    Ok(0.0)
}

/// Starts what an order asks for; returns the task and the answer.
fn obey(order: Order, device: &Device, raw: &Arc<RoceSocket>) -> Outcome<(Task, String)> {
    Ok(match order {
        Order::Raw(raw::Task::EchoAsleep { to }) => {
            let socket = raw::sleeper()?;
            socket.connect(to)?;
            let own = serde_json::to_string(&Some(socket.local_addr()?))?;
            (Task::start(move |stop| raw::echo_asleep(&socket, stop).map(|()| 0.0)), own)
        }
        Order::Raw(task) => {
            let socket = Arc::clone(raw);
            (Task::start(move |stop| raw::serve(&socket, task, stop)), "null".to_owned())
        }
        Order::Bare(task, peer) => {
            let (socket, own) = bare::Link::bind()?;
            let mut link = bare::Link::connect(socket, peer)?;
            (Task::start(move |stop| bare_task(task, &mut link, stop)), serde_json::to_string(&own)?)
        }
        Order::Verbs(work, peer) => {
            let mut end = verbs::End::new(device, work)?;
            end.connect(peer)?;
            let own = serde_json::to_string(&end.place())?;
            (Task::start(move |stop| verbs_task(&end, work, stop)), own)
        }
        Order::Stop => return Err("nothing to stop".into()),
    })
}

/// The peer: runs the orders from standard input.
pub(crate) fn serve() -> Outcome<()> {
    pin(1);
    let device = rnic::open()?;
    let raw = Arc::new(raw::bind()?);
    println!("{}", serde_json::to_string(&raw.ip())?);
    let mut task: Option<Task> = None;
    for line in stdin().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Stop => serde_json::to_string(&task.take().ok_or("nothing to stop")?.finish()?)?,
            order => {
                let (started, answer) = obey(order, &device, &raw)?;
                task = Some(started);
                answer
            }
        };
        println!("{answer}");
        stdout().flush()?;
    }
    Ok(())
}
