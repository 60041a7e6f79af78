//! Reception: from the sockets through the layers of the link to the engine.

use super::Datapath;
use crate::engine::{Arrival, Batch, Engine, IpHeader};
use crate::link::{Direction, Fate, Frame, FrameRef, LinkStack, Now};
use crate::net::{Datagram, RecvBatch, RecvError};
use crate::port::io::Io;
use crate::port::throttle::bytes_of;
use std::collections::VecDeque;
use std::iter;
use std::time::SystemTime;
use time::{Duration, Instant};

/// Limit of receive calls in a turn: 8 trains of 15 packets of 4 KiB are copied in about 50 us, the longest acceptable
/// wait of a control call.
const RECEIVES_PER_TURN: usize = 8;

/// Largest plausible age of a timestamp: if one is older, the clock was set.
pub(super) const OLDEST_STAMP: Duration = Duration::from_secs(1);

impl Datapath {
    /// Receives from the sockets, up to the limit of a turn. Returns the number of datagrams.
    pub(super) fn receive(&mut self, now: Instant) -> u32 {
        let both = self.both_clocks(now);
        let Self { engine, link, io: Io::Udp(udp), incoming, quiet, throttle, .. } = self else { return 0 };
        if throttle.as_ref().is_some_and(|t| !t.is_open(now)) {
            return 0;
        }
        let udp = &mut **udp;
        let mut count = 0;
        // The first datagram after silence is most likely alone, and its receiver waits for it. Looking for another
        // takes 360 ns if there is none, so the next turn does that.
        let receives = if *quiet { 1 } else { RECEIVES_PER_TURN };
        for _ in 0..receives {
            let datagrams = u32::try_from(udp.recv()).unwrap_or(u32::MAX);
            take_in_all(engine, link, incoming, both, &udp.batch, Some(datagrams > 0));
            if datagrams == 0 {
                break;
            }
            count += datagrams;
            if let Some(throttle) = throttle {
                throttle.note_read(now, bytes_in(&udp.batch));
                if !throttle.is_open(now) {
                    break;
                }
            }
        }
        let batch = &mut udp.batch;
        udp.groups.each_ready(|group| {
            let datagrams = received(group.recv(batch));
            count += datagrams;
            take_in_all(engine, link, incoming, both, batch, None);
            if let (Some(throttle), 1..) = (&mut *throttle, datagrams) {
                throttle.note_read(now, bytes_in(batch));
            }
        });
        if let (Some(throttle), 0) = (throttle, count) {
            throttle.note_empty();
        }
        *quiet = count == 0;
        count
    }

    /// Takes in a packet of a simulation, which arrived at `arrived`.
    pub(crate) fn accept(&mut self, now: Instant, arrived: Instant, ip: &IpHeader, packet: &[u8]) {
        if self.wrecked {
            return;
        }
        if self.throttle.is_some() {
            self.unread.put(ip, packet);
            self.read(now);
            return;
        }
        let both = self.both_clocks(now);
        let datagram = iter::once(Datagram::single(*ip, packet));
        take_in(
            &mut self.engine,
            &mut self.link,
            &mut self.incoming,
            both,
            datagram,
            |_| Some(arrived),
            None,
        );
    }

    /// Lets a slow receiver of a simulation read as much as its rate allows.
    pub(super) fn read(&mut self, now: Instant) {
        let both = self.both_clocks(now);
        let Self { engine, link, incoming, throttle: Some(throttle), unread, .. } = self else { return };
        while throttle.is_open(now) {
            let packet = unread.take();
            let datagram = packet.as_ref().map(|(ip, packet)| Datagram::single(*ip, packet));
            take_in(engine, link, incoming, both, datagram.into_iter(), |_| None, Some(datagram.is_some()));
            let Some(datagram) = datagram else { return throttle.note_empty() };
            throttle.note_read(now, bytes_of(datagram.bytes.len(), 1, datagram.ip.src));
        }
    }
}

/// Number of datagrams from a receive call.
fn received(result: Result<usize, RecvError>) -> u32 {
    match result {
        Ok(datagrams) => u32::try_from(datagrams).unwrap_or(u32::MAX),
        Err(error) => {
            tracing::error!(%error, "the socket cannot be read");
            0
        }
    }
}

/// Bytes from a receive call, as on Ethernet.
fn bytes_in(batch: &RecvBatch) -> u64 {
    batch.datagrams().map(|d| bytes_of(d.bytes.len(), d.segments().len(), d.ip.src)).sum()
}

/// Converts a kernel timestamp `stamp`, a time since the UNIX epoch, to an instant; `clocks` were read together.
pub(super) fn instant_of(clocks: (Instant, SystemTime), stamp: Duration) -> Instant {
    let (now, wall) = clocks;
    let wall = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = wall.saturating_sub(stamp);
    if age > OLDEST_STAMP { now } else { now.checked_sub(age).unwrap_or(now) }
}

/// Takes in everything from a receive call.
fn take_in_all(
    engine: &mut Engine,
    link: &mut LinkStack,
    incoming: &mut VecDeque<Frame>,
    now: Now,
    batch: &RecvBatch,
    has_more: Option<bool>,
) {
    let clocks = batch.is_stamped().then(|| (crate::clock::now(), SystemTime::now()));
    let arrived = |datagram: &Datagram<'_>| Some(instant_of(clocks?, datagram.stamp?));
    take_in(engine, link, incoming, now, batch.datagrams(), arrived, has_more);
}

/// Passes datagrams to the engine: directly, with observers watching, or packet by packet through the link layers.
fn take_in<'a>(
    engine: &mut Engine,
    link: &mut LinkStack,
    incoming: &mut VecDeque<Frame>,
    now: Now,
    datagrams: impl Iterator<Item = Datagram<'a>>,
    arrived: impl Fn(&Datagram<'a>) -> Option<Instant>,
    has_more: Option<bool>,
) {
    if !link.transforms(Direction::Rx) {
        let seen = datagrams.inspect(|datagram| {
            if link.observes() && !datagram.truncated {
                for (ip, bytes) in datagram.packets() {
                    link.observe(now, &FrameRef::new(Direction::Rx, &ip, bytes, &Fate::Delivered));
                }
            }
        });
        engine.receive(now.instant, Batch { arrivals: seen.map(Arrival::Read), has_more });
        return;
    }
    for datagram in datagrams {
        if datagram.truncated {
            engine.receive(now.instant, Batch { arrivals: [Arrival::Read(datagram)], has_more: None });
            continue;
        }
        // Behind a socket that credit guards, the credit returns when the socket is read.
        if link.emulation.as_ref().is_some_and(|emulation| !emulation.holds_credit()) {
            engine.receive(now.instant, Batch { arrivals: [Arrival::Held(datagram)], has_more: None });
        }
        for (ip, packet) in datagram.packets() {
            let frame = Frame::new(Direction::Rx, ip, packet.to_vec());
            link.ingress(now, arrived(&datagram), frame, &mut |frame| incoming.push_back(frame));
            deliver(engine, link, incoming, now.instant);
        }
    }
    engine.receive(now.instant, Batch { arrivals: [], has_more });
}

/// Passes what left the link layers to the engine.
pub(super) fn deliver(
    engine: &mut Engine,
    link: &mut LinkStack,
    incoming: &mut VecDeque<Frame>,
    now: Instant,
) {
    let mut emulation = link.emulation.as_mut();
    let step = match emulation.as_ref().map(|emulation| emulation.holds_credit()) {
        Some(true) => Arrival::Left,
        Some(false) => Arrival::Released,
        None => Arrival::Read,
    };
    let entered = iter::from_fn(|| emulation.as_mut()?.poll_entered()).map(Arrival::Entered);
    let frames = incoming.iter().map(|frame| step(Datagram::single(frame.ip, &frame.bytes)));
    engine.receive(now, Batch { arrivals: entered.chain(frames), has_more: None });
    incoming.clear();
}
