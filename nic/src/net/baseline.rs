//! The speed of plain UDP on this machine, as a baseline for RDMA over it.
//!
//! The loops use the same [`RoceSocket`] as the engine, but no queue pair, ICRC or memory copy. The speed of a shared
//! machine varies, so a baseline is meaningful only if its runs alternate with the runs that it is compared to. Each
//! side is a function of its own, so that both can be threads or processes.

use super::{MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, RecvBatch, RoceSocket, SendError, Sent, SocketConfig};
use hdrhistogram::Histogram;
use qp::wire::IpHeader;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The largest number of trains in flight. Six full ones fill the receive buffer that a stock host grants.
const WINDOW: u64 = 5;

/// After this time without an acknowledgement the trains in flight count as lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(20);

/// The length of the number at the start of every packet: that of the train, ping or acknowledgement.
const NUMBER_LEN: usize = 8;

/// Latencies are recorded up to this many nanoseconds (10 s).
const LONGEST: u64 = 10_000_000_000;

/// Why a baseline run failed.
#[derive(Debug, Error)]
pub enum BaselineError {
    /// A socket could not be bound.
    #[error(transparent)]
    Bind(#[from] super::BindError),
    /// A packet could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The receiving socket failed.
    #[error(transparent)]
    Recv(#[from] super::RecvError),
    /// A packet too short to hold its number, or longer than UDP carries.
    #[error("packets of {0} bytes: 8 to 65507 are possible")]
    Size(usize),
    /// No answer arrived.
    #[error("no answer from {0}: does its side of the run exist?")]
    NoAnswer(IpAddr),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// The data that arrived at a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Throughput {
    /// UDP payload.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// The time from the first to the last arrival.
    pub elapsed: Duration,
}

impl Throughput {
    /// Gigabits of UDP payload per second (10^9 bits); 0 if nothing, or only one batch, arrived.
    #[must_use]
    pub fn gbits(&self) -> f64 {
        let ns = self.elapsed.as_nanos();
        if ns == 0 { 0.0 } else { self.bytes as f64 * 8.0 / ns as f64 }
    }
}

fn check_size(size: usize) -> Result<(), BaselineError> {
    if (NUMBER_LEN..=MAX_TRAIN_BYTES).contains(&size) { Ok(()) } else { Err(BaselineError::Size(size)) }
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().copied().map(u64::from_le_bytes)
}

fn send(socket: &RoceSocket, to: IpAddr, segment_size: usize, bytes: &[u8]) -> Result<(), SendError> {
    while socket.send_train(0, &IpHeader::to(to), segment_size, bytes)? == Sent::WouldBlock {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Sends trains of packets of `packet` bytes to `peer` until `stop`, never more than the peer's buffer holds. Returns
/// the number of trains sent. The peer runs [`receive_stream`].
///
/// # Errors
/// On a wrong size or when sending fails.
pub fn send_stream(
    socket: &RoceSocket,
    peer: IpAddr,
    packet: usize,
    stop: &AtomicBool,
) -> Result<u64, BaselineError> {
    check_size(packet)?;
    let packets =
        (MAX_TRAIN_BYTES / packet).min(MAX_TRAIN_SEGMENTS as usize).min(socket.gso_segments() as usize);
    let mut train = vec![0u8; packets * packet];
    let mut acks = RecvBatch::with_buffers(8, 64);
    let (mut sent, mut acked) = (0u64, 0u64);
    let mut last_progress = Instant::now();
    while !stop.load(Relaxed) {
        if sent - acked < WINDOW {
            sent += 1;
            train[..NUMBER_LEN].copy_from_slice(&sent.to_le_bytes());
            send(socket, peer, packet, &train)?;
        }
        if socket.recv(&mut acks)? > 0 {
            let newest = acks.datagrams().filter_map(|d| number_of(d.bytes)).max();
            acked = acked.max(newest.unwrap_or(0).min(sent));
            last_progress = Instant::now();
        } else if sent - acked >= WINDOW && last_progress.elapsed() > LOSS_TIMEOUT {
            acked = sent;
            last_progress = Instant::now();
        }
    }
    Ok(sent)
}

/// Receives and counts what [`send_stream`] sends, until `stop`.
///
/// # Errors
/// When receiving or acknowledging fails.
pub fn receive_stream(socket: &RoceSocket, stop: &AtomicBool) -> Result<Throughput, BaselineError> {
    let mut batch = RecvBatch::default();
    let mut total = Throughput::default();
    let mut first = None;
    while !stop.load(Relaxed) {
        if socket.recv(&mut batch)? == 0 {
            std::hint::spin_loop();
            continue;
        }
        let now = Instant::now();
        let start = *first.get_or_insert(now);
        total.elapsed = now - start;
        for datagram in batch.datagrams() {
            // The first batch was sent before the clock started.
            if start != now {
                total.bytes += datagram.bytes.len() as u64;
                total.packets += datagram.segments().len() as u64;
            }
            if let Some(number) = number_of(datagram.bytes) {
                send(socket, datagram.ip.src, NUMBER_LEN, &number.to_le_bytes())?;
            }
        }
    }
    Ok(total)
}

/// Answers each packet with itself until `stop`: the far side of [`ping`].
///
/// # Errors
/// When receiving or sending fails.
pub fn echo(socket: &RoceSocket, stop: &AtomicBool) -> Result<(), BaselineError> {
    let mut batch = RecvBatch::default();
    while !stop.load(Relaxed) {
        if socket.recv(&mut batch)? == 0 {
            std::hint::spin_loop();
        }
        for datagram in batch.datagrams() {
            for (_, packet) in datagram.segments() {
                send(socket, datagram.ip.src, packet.len(), packet)?;
            }
        }
    }
    Ok(())
}

/// Sends `iterations` packets of `size` bytes to `peer`, each after the previous one returned; returns half the round
/// trips in nanoseconds. The peer runs [`echo`]. Polls without sleeping.
///
/// # Errors
/// On a wrong size, when sending fails, or when the peer does not answer for a second.
pub fn ping(
    socket: &RoceSocket,
    peer: IpAddr,
    iterations: u64,
    size: usize,
) -> Result<Histogram<u64>, BaselineError> {
    /// How often a ping is repeated, [`LOSS_TIMEOUT`] apart.
    const TRIES: usize = 50;
    check_size(size)?;
    let mut latencies = new_histogram();
    let mut packet = vec![0u8; size];
    let mut batch = RecvBatch::default();
    'iterations: for number in 0..iterations {
        packet[..NUMBER_LEN].copy_from_slice(&number.to_le_bytes());
        for _ in 0..TRIES {
            let start = Instant::now();
            send(socket, peer, size, &packet)?;
            loop {
                let answered = socket.recv(&mut batch)? > 0
                    && batch.datagrams().any(|d| number_of(d.bytes) == Some(number));
                let elapsed = start.elapsed();
                if answered {
                    latencies.saturating_record(elapsed.as_nanos() as u64 / 2);
                    continue 'iterations;
                }
                if elapsed > LOSS_TIMEOUT {
                    break;
                }
            }
        }
        return Err(BaselineError::NoAnswer(peer));
    }
    Ok(latencies)
}

/// An empty histogram of nanoseconds, with a precision of 1/1000.
fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("1 <= low, 2 * low <= high and 3 <= 5 digits")
}

/// Two sockets on free loopback addresses.
fn two_sockets(port: u16) -> Result<(RoceSocket, RoceSocket), BaselineError> {
    let config = SocketConfig { port, ..SocketConfig::new(IpAddr::from([127, 0, 0, 1])) };
    Ok((RoceSocket::bind_first_free_loopback(&config)?, RoceSocket::bind_first_free_loopback(&config)?))
}

/// Raises the flag when dropped, so that the other side ends however this side ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// One-way UDP throughput between two threads on loopback, for `duration`, in packets of `packet` bytes.
///
/// # Errors
/// When sockets cannot be bound, or one of the sides fails.
pub fn raw_bandwidth(port: u16, duration: Duration, packet: usize) -> Result<Throughput, BaselineError> {
    check_size(packet)?;
    let (a, b) = two_sockets(port)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = thread::Builder::new().spawn_scoped(scope, || {
            let _stop = StopOnDrop(&stop);
            send_stream(&a, b.ip(), packet, &stop)
        })?;
        let _stop = StopOnDrop(&stop);
        let receiver = thread::Builder::new().spawn_scoped(scope, || {
            let _stop = StopOnDrop(&stop);
            receive_stream(&b, &stop)
        })?;
        let end = Instant::now() + duration;
        while !stop.load(Relaxed) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1).min(duration));
        }
        stop.store(true, Relaxed);
        join(sender)?;
        join(receiver)
    })
}

/// Half round trips of `iterations` UDP packets of `size` bytes between two polling threads on loopback.
///
/// # Errors
/// When sockets cannot be bound, or one of the sides fails.
pub fn raw_latency(port: u16, iterations: u64, size: usize) -> Result<Histogram<u64>, BaselineError> {
    let (a, b) = two_sockets(port)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = thread::Builder::new().spawn_scoped(scope, || echo(&b, &stop))?;
        let latencies = {
            let _stop = StopOnDrop(&stop);
            ping(&a, b.ip(), iterations, size)
        };
        join(server)?;
        latencies
    })
}

/// Waits for a side of the run; a panic in it propagates to the caller.
fn join<T>(side: thread::ScopedJoinHandle<'_, Result<T, BaselineError>>) -> Result<T, BaselineError> {
    side.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// Longer than a busy machine stops a thread from running.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A UDP port reserved for one test, which keeps out packets of other runs, in this process or another.
    struct OwnPort(UdpSocket);

    impl OwnPort {
        /// Has the kernel choose a port. All choices are made at one address, and held, so that no two tests have the
        /// same port at a time. The address is behind those that the sockets under test try.
        fn new() -> Self {
            Self(UdpSocket::bind(("127.0.0.255", 0)).unwrap())
        }

        fn number(&self) -> u16 {
            self.0.local_addr().unwrap().port()
        }
    }

    #[test]
    fn the_stream_is_counted() {
        let port = OwnPort::new();
        let mut duration = Duration::from_millis(100);
        // Retry for longer if neither thread got to run: the start time of a stream depends on the machine.
        let total = loop {
            let total = raw_bandwidth(port.number(), duration, 4116).unwrap();
            assert_eq!(total.bytes, total.packets * 4116);
            if total.packets > 0 {
                break total;
            }
            assert!(duration < PATIENCE, "nothing arrives");
            duration *= 2;
        };
        assert!(total.gbits() > 0.0);
    }

    #[test]
    fn each_ping_is_recorded_once() {
        let port = OwnPort::new();
        let start = Instant::now();
        // Retry if the echo did not get to run in time.
        let latencies = loop {
            match raw_latency(port.number(), 20, 64) {
                Err(BaselineError::NoAnswer(_)) if start.elapsed() < PATIENCE => {}
                answered => break answered.unwrap(),
            }
        };
        assert_eq!(latencies.len(), 20);
        assert!(latencies.min() > 0);
    }

    #[test]
    fn sizes_are_checked() {
        let port = OwnPort::new();
        for size in [0, 7, 65_508] {
            assert!(matches!(raw_latency(port.number(), 1, size), Err(BaselineError::Size(s)) if s == size));
            assert!(matches!(
                raw_bandwidth(port.number(), Duration::ZERO, size),
                Err(BaselineError::Size(_))
            ));
        }
    }

    #[test]
    fn a_silent_peer_is_an_error() {
        let port = OwnPort::new();
        let (a, b) = two_sockets(port.number()).unwrap();
        assert!(matches!(ping(&a, b.ip(), 1, 64), Err(BaselineError::NoAnswer(ip)) if ip == b.ip()));
    }
}
