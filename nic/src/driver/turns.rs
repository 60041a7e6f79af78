//! What the lock of a port on sockets protects, and the turns that drive it.

use super::attend::PutOff;
use super::burst::Burst;
use super::doorbells::Doorbells;
use super::hold::{AckHold, Begin, Caller, HELD_MESSAGES, Verdict};
use super::udp_io::UdpIo;
use crate::net::{RecvBatch, RecvError};
use rnic_core::datagram::Datagram;
use rnic_core::engine::Engine;
use rnic_core::link::{LinkProfile, Now};
use rnic_core::port::{Datapath, bytes_of};
use std::time::SystemTime;
use time::{Duration, Instant};

/// Limit of receive calls in a turn. A control call waits for a turn.
const RECEIVES_PER_TURN: usize = 8;

/// The bytes after which a turn receives no more, but sends what is due: three trains of 15 packets of 4 KiB, which are half of what
/// a peer has in flight towards a stock buffer. It waits for their acknowledgement when the window is used up; with all of the window
/// in one turn, WRITEs of 1 MiB are 8 % slower.
const BYTES_PER_TURN: usize = 128 << 10;

/// Limit of the turns that send what is left when a port is closed: enough for the DREQs of all connections.
const LAST_TURNS: u32 = 1024;

/// Largest plausible age of a timestamp: if one is older, the clock was set.
pub(super) const OLDEST_STAMP: Duration = Duration::from_secs(1);

/// The datapath of a port, its sockets, and what decides about turns.
pub(super) struct Driven {
    pub(super) datapath: Datapath,
    pub(super) udp: UdpIo,
    /// Decides whether an acknowledgement waits for the program's reply.
    hold: AckHold,
    /// Decides whether requests of idle queue pairs wait for one another.
    pub(super) burst: Burst,
    /// Decides when polls put off the background thread.
    pub(super) put_off: PutOff,
    /// Whether the last turn received nothing.
    quiet: bool,
}

impl Driven {
    pub(super) fn new(engine: Engine, udp: UdpIo, clocks: Now) -> Self {
        let datapath = Datapath::behind_sockets(engine, clocks);
        Self {
            datapath,
            udp,
            hold: AckHold::new(),
            burst: Burst::default(),
            put_off: PutOff::new(clocks.instant),
            quiet: true,
        }
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(super) fn set_link(&mut self, profile: &LinkProfile, now: Instant, seed: u64) {
        self.datapath.set_link(profile, now, seed);
        if self.datapath.link.emulation.is_some() && profile.receiver_rate.is_none() {
            self.udp.stamp_arrivals();
        }
    }

    /// Whether the program may be about to reply to what the last turn took in.
    pub(super) fn converses(&self) -> bool {
        self.hold.answered_by().is_some()
    }

    /// Receives packets, takes in what was posted, handles expired timers, and transmits, unless the acknowledgement is
    /// [held](super::hold). Returns the amount of work: datagrams received plus trains sent.
    pub(super) fn turn(&mut self, now: Instant, caller: Caller, doorbells: &Doorbells) -> u32 {
        if self.datapath.is_wrecked() {
            return 0;
        }
        if self.hold.begin(caller, now) == Begin::Wait {
            return 1;
        }
        rnic_core::memory::refresh(now);
        let datagrams = self.receive(now);
        doorbells.answer_bell(&mut self.datapath);
        self.datapath.handle_timeout(now);
        let few = self.datapath.engine.take_messages() <= HELD_MESSAGES;
        let only_acks =
            few && datagrams > 0 && self.datapath.has_work() && !self.datapath.engine.has_requests();
        if self.hold.take_in(caller, datagrams, only_acks, now, crate::clock::now) == Verdict::Hold {
            return datagrams;
        }
        let trains = self.transmit(now);
        self.hold.end(datagrams, trains);
        datagrams + trains
    }

    /// Sends what is due, up to the limit of a turn. Returns the number of trains.
    pub(super) fn transmit(&mut self, now: Instant) -> u32 {
        if self.datapath.is_wrecked() {
            return 0;
        }
        self.hold.sent();
        self.datapath.transmit(now, &mut self.udp)
    }

    /// Sends everything that is due, as far as the kernel has room for it.
    pub(super) fn flush(&mut self, now: Instant) {
        for _ in 0..LAST_TURNS {
            if self.transmit(now) == 0 {
                return;
            }
        }
    }

    /// Until when the program is expected to reply to what the last turn received.
    pub(super) fn reply_by(&self) -> Option<Instant> {
        self.hold.reply_by()
    }

    /// Records that the program sends something; returns whether the packet can carry a held acknowledgement.
    pub(super) fn note_posted(&mut self) -> bool {
        self.hold.posted()
    }

    /// Sends a held acknowledgement.
    pub(super) fn let_go(&mut self, now: Instant) {
        if self.hold.is_held() {
            self.transmit(now);
        }
    }

    /// Receives from the sockets, up to the limit of a turn. Returns the number of datagrams.
    fn receive(&mut self, now: Instant) -> u32 {
        let Self { datapath, udp, quiet, .. } = self;
        if datapath.throttle.as_ref().is_some_and(|t| !t.is_open(now)) {
            return 0;
        }
        let mut count = 0;
        // The first datagram after silence is most likely alone, and its receiver waits for it. Looking for another
        // takes 360 ns if there is none, so the next turn does that.
        let receives = if *quiet { 1 } else { RECEIVES_PER_TURN };
        let mut bytes = 0;
        for _ in 0..receives {
            let datagrams = u32::try_from(udp.recv()).unwrap_or(u32::MAX);
            take_in(datapath, now, &udp.batch, Some(datagrams > 0));
            if datagrams == 0 {
                break;
            }
            count += datagrams;
            if let Some(throttle) = &mut datapath.throttle {
                throttle.note_read(now, bytes_in(&udp.batch));
                if !throttle.is_open(now) {
                    break;
                }
            }
            bytes += udp.batch.bytes();
            if bytes >= BYTES_PER_TURN {
                break;
            }
        }
        let UdpIo { groups, batch, .. } = udp;
        groups.each_ready(|group| {
            let datagrams = received(group.recv(batch));
            count += datagrams;
            take_in(datapath, now, batch, None);
            if let (Some(throttle), 1..) = (&mut datapath.throttle, datagrams) {
                throttle.note_read(now, bytes_in(batch));
            }
        });
        if let (Some(throttle), 0) = (&mut datapath.throttle, count) {
            throttle.note_empty();
        }
        *quiet = count == 0;
        count
    }
}

/// Takes in everything from a receive call.
fn take_in(datapath: &mut Datapath, now: Instant, batch: &RecvBatch, has_more: Option<bool>) {
    let clocks = batch.is_stamped().then(|| (crate::clock::now(), SystemTime::now()));
    let arrived = |datagram: &Datagram<'_>| Some(instant_of(clocks?, datagram.stamp?));
    datapath.take_in(now, batch.datagrams(), arrived, has_more);
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

#[cfg(test)]
mod tests;
