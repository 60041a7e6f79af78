//! The engine, the layers of the link, and the ways of packets through them.

use super::Io;
use super::throttle::{SocketBuffer, Throttle};
use crate::datagram::LARGEST_DATAGRAM;
use crate::engine::{Departure, Engine, Membership, ResourceError};
use crate::error::Error;
use crate::link::emulation::{Emulation, EmulationStats};
use crate::link::{Direction, Frame, LinkProfile, LinkStack, Now};
use crate::tally::SocketCounters;
use crate::verbs::device::Counters;
use qp::{Gid, Qpn};
use std::collections::VecDeque;
use time::{Duration, Instant};

mod receive;
mod transmit;

/// How long to wait before the kernel is asked again whether it has room: a full send buffer of 208 KiB drains in 170
/// us at 10 Gb/s. While an address does not answer to ARP, the buffer stays full for seconds, which must not be spent
/// spinning.
const STALL: Duration = Duration::from_micros(250);

/// What the lock of a port protects, but for its sockets.
pub struct Datapath {
    /// The engine.
    pub engine: Engine,
    /// The layers of the link, below the engine.
    pub link: LinkStack,
    /// Where the engine writes the next train. In a simulation it is [lent](Self::lend): one for all devices.
    buffer: Box<[u8]>,
    /// A train for which the kernel had no room; nothing is sent before it.
    stalled: Option<Departure>,
    /// Packets that left the link layers but are not sent yet.
    outgoing: VecDeque<Frame>,
    /// Packets that left the link layers but are not handled yet.
    incoming: VecDeque<Frame>,
    /// Whether a panic left the engine half changed: it is not driven any more.
    wrecked: bool,
    /// The same instant on both clocks.
    clocks: Now,
    /// The read times of a slow receiver.
    pub throttle: Option<Throttle>,
    /// Packets that a slow receiver in a simulation has not read yet; `None` where there is a socket.
    unread: Option<SocketBuffer>,
}

/// A buffer for a train of any length.
pub fn train_buffer() -> Box<[u8]> {
    vec![0; LARGEST_DATAGRAM].into()
}

impl Datapath {
    /// A datapath behind sockets, whose driver reads them.
    pub fn behind_sockets(engine: Engine, clocks: Now) -> Self {
        Self {
            engine,
            link: LinkStack::new(),
            buffer: train_buffer(),
            stalled: None,
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
            wrecked: false,
            clocks,
            throttle: None,
            unread: None,
        }
    }

    /// A datapath of a simulation, which [hands in](Self::accept) packets one by one, and [lends](Self::lend) it a buffer.
    pub fn without_socket(engine: Engine, clocks: Now) -> Self {
        let unread = Some(SocketBuffer::default());
        Self { unread, buffer: Box::default(), ..Self::behind_sockets(engine, clocks) }
    }

    /// Exchanges the buffer of trains with another one, while it sends. No train stalls in a simulation, so that none is in
    /// the buffer when it goes back.
    pub const fn lend(&mut self, buffer: &mut Box<[u8]>) {
        std::mem::swap(&mut self.buffer, buffer);
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub fn set_link(&mut self, profile: &LinkProfile, now: Instant, seed: u64) {
        self.link.emulation = Emulation::new(profile, now, seed);
        if self.engine.uses_telemetry()
            && let Some(emulation) = &mut self.link.emulation
        {
            emulation.write_telemetry();
        }
        self.throttle = profile.receiver_rate.map(|rate| Throttle::new(rate, now));
    }

    /// All counters, with those of the sockets, if there are any.
    pub fn counters(&mut self, socket: Option<SocketCounters>) -> Counters {
        let (port, qp) = (self.engine.port_counters(), self.engine.qp_counters());
        Counters { port, qp, socket, link: self.link_stats() }
    }

    /// Counters of the emulated link; `None` without one.
    pub fn link_stats(&mut self) -> Option<EmulationStats> {
        let stats = self.link.emulation.as_mut().map(|emulation| emulation.stats());
        let receiver_overrun = self.unread.as_ref().map_or(0, SocketBuffer::overrun);
        (stats.is_some() || self.throttle.is_some())
            .then(|| EmulationStats { receiver_overrun, ..stats.unwrap_or_default() })
    }

    /// The largest number of bytes in the queue of the emulated port since the last call; `None` without one.
    pub fn take_queue_peak(&mut self) -> Option<u64> {
        self.link.emulation.as_mut()?.take_queue_peak()
    }

    /// Returns whether the port reads its socket as soon as packets arrive; if not, [`next_timer`](Self::next_timer)
    /// tells when it reads.
    pub fn listens(&self) -> bool {
        self.throttle.as_ref().and_then(Throttle::opens_at).is_none()
    }

    /// `now` on both clocks.
    pub fn both_clocks(&self, now: Instant) -> Now {
        let passed = now.saturating_duration_since(self.clocks.instant);
        Now { instant: now, wall: self.clocks.wall + passed }
    }

    /// Returns whether a panic left the engine half changed.
    pub const fn is_wrecked(&self) -> bool {
        self.wrecked
    }

    /// Takes the contents of the inbox of a queue pair.
    pub fn ring(&mut self, qpn: Qpn) {
        if self.wrecked { self.engine.ring_after_panic(qpn) } else { self.engine.ring(qpn) }
    }

    /// Fails the device after a panic. From now on the datapath does nothing.
    pub fn give_up(&mut self) {
        self.wrecked = true;
        self.engine.fail_after_panic();
    }

    /// Attaches a queue pair to a multicast group, which the port joins if the queue pair is the first.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid, io: &mut dyn Io) -> Result<(), Error> {
        if self.engine.attach_mcast(qpn, group)? == Membership::Changed
            && let Err(error) = io.join(group.ip())
        {
            // The attachment was made just above.
            let _ = self.engine.detach_mcast(qpn, group);
            return Err(error.into());
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group, which the port leaves if the queue pair was the last.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid, io: &mut dyn Io) -> Result<(), ResourceError> {
        if self.engine.detach_mcast(qpn, group)? == Membership::Changed {
            io.leave(group.ip());
        }
        Ok(())
    }

    /// Handles expired timers of the engine and the link.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.wrecked {
            return;
        }
        self.engine.handle_timeout(now);
        self.read(now);
        if self.link.poll_timeout().is_some_and(|due| due <= now) {
            let both = self.both_clocks(now);
            let Self { engine, link, outgoing, incoming, .. } = self;
            link.handle_timeout(both, &mut |frame| match frame.direction {
                Direction::Tx => outgoing.push_back(frame),
                Direction::Rx => incoming.push_back(frame),
            });
            receive::deliver(engine, link, incoming, now);
        }
        self.pause_peers(now);
    }

    /// Pauses peers, or ends the pauses: received packets may have filled the emulated port, or a pause storm may have
    /// begun.
    fn pause_peers(&mut self, now: Instant) {
        if let Some(emulation) = self.link.emulation.as_mut() {
            while let Some((peer, frame)) = emulation.poll_pause(now) {
                self.engine.send_pause(peer, &frame);
            }
        }
        let rate = self.engine.config().partner.rate;
        if let Some(faults) = self.link.faults.as_mut() {
            while let Some((peer, frame)) = faults.poll_pause(now, rate) {
                self.engine.send_pause(peer, &frame);
            }
        }
    }

    /// When the next turn is needed.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if self.wrecked {
            None
        } else if self.is_stalled() {
            Some(now + STALL)
        } else if self.engine.has_ready() {
            Some(now)
        } else {
            self.next_timer()
        }
    }

    /// Returns whether something can be sent already.
    pub fn has_work(&self) -> bool {
        !self.wrecked && (self.engine.has_ready() || self.is_stalled())
    }

    /// Returns whether packets wait because the kernel has no room for them.
    fn is_stalled(&self) -> bool {
        self.stalled.is_some() || !self.outgoing.is_empty()
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Instant> {
        if self.wrecked {
            return None;
        }
        let reads = self.throttle.as_ref().and_then(Throttle::opens_at);
        [self.engine.poll_timeout(), self.link.poll_timeout(), reads].into_iter().flatten().min()
    }
}
