//! The rows of the table: what is measured, and how in each column.

use super::bare::{self, Op, Ping};
use super::peer::{BareTask, Peer};
use super::table::percentile;
use super::tcp::{Tcp, Test};
use super::{Outcome, check, pattern, raw, verbs};
use rnic::Device;
use rnic::net::{MAX_TRAIN_BYTES, RoceSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbs::Work;

/// BTH and ICRC, without which no packet is sent.
const HEADERS: usize = 12 + 4;

/// RETH.
const RETH: usize = 16;

/// The figures of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Gb/s.
    Bandwidth,
    /// Millions of messages per second, and nanoseconds per message.
    Rate,
    /// Microseconds of half a round trip: median and 99th percentile.
    HalfTrip,
    /// The same of whole ones.
    Trip,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    /// The programs that do the same over TCP; the best one is shown.
    pub(crate) tcp: &'static [Test],
}

const fn stream(op: Op, size: usize, qps: usize, depth: u64) -> Work {
    Work { op, size, qps, depth, trips: false, asleep: false }
}

const fn trips(op: Op, asleep: bool) -> Work {
    Work { op, size: 8, qps: 1, depth: 32, trips: true, asleep }
}

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// All rows. Messages in flight are as many as fill the window several times, and few enough to end within a slice.
pub(crate) const ROWS: [Row; 11] = [
    Row {
        name: "WRITE 1 MiB",
        kind: Kind::Bandwidth,
        work: stream(Op::Write, MIB, 1, 8),
        tcp: &[Test::Iperf, Test::Ucx("ucp_put_bw", MIB, false)],
    },
    Row {
        name: "READ 1 MiB",
        kind: Kind::Bandwidth,
        work: stream(Op::Read, MIB, 1, 8),
        // A stream has no direction of its own.
        tcp: &[Test::Iperf, Test::Ucx("ucp_get", MIB, false)],
    },
    Row {
        name: "WRITE 64 KiB",
        kind: Kind::Bandwidth,
        work: stream(Op::Write, 64 * KIB, 1, 32),
        tcp: &[Test::Ucx("ucp_put_bw", 64 * KIB, false), Test::Ucx("stream_bw", 64 * KIB, false)],
    },
    Row {
        name: "SEND 64 KiB",
        kind: Kind::Bandwidth,
        work: stream(Op::Send, 64 * KIB, 1, 32),
        tcp: &[Test::Ucx("tag_bw", 64 * KIB, false), Test::Ucx("stream_bw", 64 * KIB, false)],
    },
    Row {
        name: "WRITE 4 KiB",
        kind: Kind::Bandwidth,
        work: stream(Op::Write, 4 * KIB, 1, 128),
        tcp: &[Test::Ucx("ucp_put_bw", 4 * KIB, false), Test::Ucx("stream_bw", 4 * KIB, false)],
    },
    Row {
        name: "WRITE 64 B, 1 QP",
        kind: Kind::Rate,
        work: stream(Op::Write, 64, 1, 256),
        tcp: &[Test::Ucx("ucp_put_bw", 64, false), Test::Ucx("stream_bw", 64, false)],
    },
    Row { name: "WRITE 64 B, 16 QPs", kind: Kind::Rate, work: stream(Op::Write, 64, 16, 64), tcp: &[] },
    Row { name: "WRITE 64 B, 256 QPs", kind: Kind::Rate, work: stream(Op::Write, 64, 256, 16), tcp: &[] },
    Row {
        name: "WRITE 8 B, half round trip",
        kind: Kind::HalfTrip,
        work: trips(Op::Write, false),
        tcp: &[Test::Ucx("ucp_put_lat", 8, false), Test::Ucx("tag_lat", 8, false)],
    },
    Row {
        name: "READ 8 B",
        kind: Kind::Trip,
        work: trips(Op::Read, false),
        // A question and its answer do the work of a READ.
        tcp: &[Test::Ucx("ucp_get", 8, false), Test::Ucx("tag_lat", 8, false)],
    },
    Row {
        name: "SEND 8 B with events, half round trip",
        kind: Kind::HalfTrip,
        work: trips(Op::Send, true),
        tcp: &[Test::Ucx("tag_lat", 8, true)],
    },
];

/// What a round measures in a column: messages per second, or the median and the 99th percentile of a round trip in
/// nanoseconds.
pub(crate) type Measured = Vec<f64>;

/// Both sides.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) socket: RoceSocket,
    pub(crate) peer: Peer,
    pub(crate) tcp: Option<Tcp>,
    pub(crate) slice: Duration,
}

fn summary(mut trips: Vec<f64>) -> Outcome<Measured> {
    trips.sort_by(f64::total_cmp);
    let of = |quantile| percentile(&trips, quantile).ok_or("no round trip ended");
    Ok(vec![of(0.5)?, of(0.99)?])
}

impl Bench {
    /// Plain UDP. A message is a packet, or as many as its bytes take.
    pub(crate) fn raw(&mut self, work: &Work) -> Outcome<Measured> {
        let payload = work.size.min(bare::MTU);
        let header = HEADERS + if work.op == Op::Write && work.size <= bare::MTU { RETH } else { 0 };
        let packet = header + payload;
        debug_assert!(packet <= MAX_TRAIN_BYTES);
        let (socket, time) = (&self.socket, self.slice);
        if work.asleep {
            let own = raw::sleeper()?;
            let to = self.peer.raw(raw::Task::EchoAsleep { to: own.local_addr()? })?;
            own.connect(to.ok_or("the peer has no address")?)?;
            let trips = raw::trips_asleep(&own, packet, time)?;
            self.peer.stop()?;
            return summary(trips);
        }
        if work.trips {
            self.peer.raw(raw::Task::Echo)?;
            // At 10 us for a round trip, which loopback takes at least when it is slow.
            let pings = (time.as_micros() as u64 / 10).max(100);
            let found = raw::trips(socket, self.peer.raw, packet, pings)?;
            self.peer.stop()?;
            return Ok(found.to_vec());
        }
        let packets = if work.op == Op::Read {
            let (peer, to) = (&mut self.peer, socket.ip());
            raw::receive(socket, || {
                peer.raw(raw::Task::Send { to, packet })?;
                std::thread::sleep(time);
                peer.stop().map(drop)
            })?
        } else {
            self.peer.raw(raw::Task::Receive)?;
            raw::send(socket, self.peer.raw, packet, time)?;
            self.peer.stop()?
        };
        Ok(vec![packets * payload as f64 / work.size as f64])
    }

    /// The bare path.
    pub(crate) fn bare(&mut self, work: &Work) -> Outcome<Measured> {
        let (socket, own) = bare::Link::bind()?;
        let mut region = pattern(work.size);
        if work.trips {
            let ping = Ping { op: work.op, size: work.size, asleep: work.asleep };
            let to = self.peer.bare(BareTask::Echo(ping), own)?;
            let mut link = bare::Link::connect(socket, to)?;
            let trips = bare::ping(&mut link, ping, &mut region, self.slice)?;
            self.peer.stop()?;
            return summary(trips);
        }
        if work.op == Op::Read {
            let to = self.peer.bare(BareTask::Send(work.op, work.size), own)?;
            let mut link = bare::Link::connect(socket, to)?;
            region.fill(0);
            let rate = self.while_peer_sends(|go| bare::receive(&mut link, &mut region, go))?;
            check(&region, work.size, "the bare path")?;
            return Ok(vec![rate]);
        }
        let to = self.peer.bare(BareTask::Receive(work.size), own)?;
        let mut link = bare::Link::connect(socket, to)?;
        let time = self.slice;
        let rate = bare::send(&mut link, (work.op, work.size), &region, |elapsed| elapsed < time)?;
        self.peer.stop()?;
        Ok(vec![rate])
    }

    /// Receives in a thread until the peer, told to stop after a slice, has sent all; returns the peer's result.
    fn while_peer_sends(
        &mut self,
        receive: impl FnOnce(&dyn Fn() -> bool) -> Outcome<()> + Send,
    ) -> Outcome<f64> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&|| !stop.load(Ordering::Relaxed)));
            std::thread::sleep(self.slice);
            let rate = self.peer.stop();
            stop.store(true, Ordering::Relaxed);
            receiver.join().map_err(|_| "the receiver panicked")??;
            rate
        })
    }

    /// rnic.
    pub(crate) fn verbs(&mut self, work: &Work) -> Outcome<Measured> {
        let mut end = verbs::End::new(&self.device, *work)?;
        let place = self.peer.verbs(*work, end.place())?;
        end.connect(place)?;
        let measured =
            if work.trips { summary(end.trips(self.slice)?)? } else { vec![end.stream(self.slice)?] };
        if work.op == Op::Read {
            end.check()?;
        }
        self.peer.stop()?;
        Ok(measured)
    }
}

impl Row {
    /// A measurement as the figures of the table.
    pub(crate) fn figures(&self, measured: &[f64]) -> Vec<f64> {
        let scale = match self.kind {
            Kind::Bandwidth => self.work.size as f64 * 8e-9,
            Kind::Rate => return vec![measured[0] * 1e-6, 1e9 / measured[0]],
            Kind::HalfTrip => 0.5e-3,
            Kind::Trip => 1e-3,
        };
        measured.iter().map(|value| value * scale).collect()
    }

    /// The name of each figure, and its unit.
    pub(crate) fn names(&self) -> Vec<(String, &'static str)> {
        let name = self.name;
        match self.kind {
            Kind::Bandwidth => vec![(name.to_owned(), "Gb/s")],
            Kind::Rate => vec![(name.to_owned(), "M/s"), (format!("{name}, per message"), "ns")],
            Kind::HalfTrip | Kind::Trip => {
                vec![(format!("{name}, p50"), "us"), (format!("{name}, p99"), "us")]
            }
        }
    }
}
