//! Plain UDP with the same offloads: no packet headers, ICRC, copies or queues.

use super::Outcome;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::net::baseline::{Throughput, echo, ping, receive_stream, send_stream};
use rnic::net::{RoceSocket, SocketConfig};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The UDP port of the sockets; devices use 4791.
const PORT: u16 = 4790;

/// How long a sleeping side waits before it looks whether to stop, in milliseconds.
const TICK: u16 = 10;

/// How long a ping waits for its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The peer's task.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Receive a stream.
    Receive,
    /// Send a stream of packets of this length.
    Send { to: IpAddr, packet: usize },
    /// Send each packet back.
    Echo,
    /// The same, asleep between packets.
    EchoAsleep { to: SocketAddr },
}

pub(crate) fn bind() -> Outcome<RoceSocket> {
    let config = SocketConfig { port: PORT, ..SocketConfig::new(IpAddr::V4(Ipv4Addr::LOCALHOST)) };
    Ok(RoceSocket::bind_first_free_loopback(&config)?)
}

/// Packets per second of a stream.
pub(crate) fn rate(total: Throughput) -> f64 {
    total.packets as f64 / total.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Sends a stream to the peer for a while, which receives and counts it.
pub(crate) fn send(socket: &RoceSocket, to: IpAddr, packet: usize, time: Duration) -> Outcome<()> {
    for_a_while(time, |stop| Ok(send_stream(socket, to, packet, stop).map(drop)?))
}

/// Receives until `meanwhile` has ended; returns packets per second.
pub(crate) fn receive(socket: &RoceSocket, meanwhile: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_stream(socket, &stop));
        let ended = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let total = receiver.join().map_err(|_| "the receiver panicked")??;
        ended?;
        Ok(rate(total))
    })
}

/// Runs `work` in a thread, and tells it to stop after `time`.
fn for_a_while(time: Duration, work: impl FnOnce(&AtomicBool) -> Outcome<()> + Send) -> Outcome<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&stop));
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        worker.join().map_err(|_| "the sender panicked")?
    })
}

/// Round trips of packets of this length, polling: their median and 99th percentile in nanoseconds.
pub(crate) fn trips(socket: &RoceSocket, to: IpAddr, packet: usize, pings: u64) -> Outcome<[f64; 2]> {
    let halves = ping(socket, to, pings, packet)?;
    Ok([0.5, 0.99].map(|quantile| 2.0 * halves.value_at_quantile(quantile) as f64))
}

/// Runs the peer's task until `stop`; returns packets per second of a stream that it received.
pub(crate) fn serve(socket: &RoceSocket, task: Task, stop: &AtomicBool) -> Outcome<f64> {
    Ok(match task {
        Task::Receive => rate(receive_stream(socket, stop)?),
        Task::Send { to, packet } => send_stream(socket, to, packet, stop).map(|_| 0.0)?,
        Task::Echo => echo(socket, stop).map(|()| 0.0)?,
        Task::EchoAsleep { .. } => return Err("this task has a socket of its own".into()),
    })
}

/// A socket on which both sides sleep.
pub(crate) fn sleeper() -> Outcome<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sleeps until a packet arrives, or for a tick.
fn await_packet(socket: &UdpSocket, buffer: &mut [u8]) -> Outcome<Option<usize>> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    // A caller that was woken for another reason calls again.
    let _ = poll(&mut fds, PollTimeout::from(TICK));
    Ok(socket.recv(buffer).ok())
}

/// Round trips with both sides asleep, in nanoseconds.
pub(crate) fn trips_asleep(socket: &UdpSocket, packet: usize, time: Duration) -> Outcome<Vec<f64>> {
    let (packet, mut buffer) = (vec![0; packet], [0; 256]);
    let (begin, mut trips) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let start = Instant::now();
        socket.send(&packet)?;
        while await_packet(socket, &mut buffer)?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err("plain UDP has no answer".into());
            }
        }
        trips.push(start.elapsed().as_nanos() as f64);
    }
    Ok(trips)
}

/// Answers until `stop`: the far side of [`trips_asleep`].
pub(crate) fn echo_asleep(socket: &UdpSocket, stop: &AtomicBool) -> Outcome<()> {
    let mut buffer = [0; 256];
    while !stop.load(Ordering::Relaxed) {
        if let Some(len) = await_packet(socket, &mut buffer)? {
            socket.send(&buffer[..len])?;
        }
    }
    Ok(())
}
