//! The state behind the lock of a port: the engine, the link and the sockets, and the turns that drive them.

use super::hold::{AckHold, Begin, Caller, Verdict};
use super::io::Io;
use super::throttle::{SocketBuffer, Throttle};
use crate::engine::{Departure, Engine, Membership, ResourceError};
use crate::error::Error;
use crate::link::emulation::{Emulation, EmulationStats};
use crate::link::{Direction, Frame, LinkProfile, LinkStack, Now};
use qp::{Gid, Qpn};
use std::collections::VecDeque;
use time::{Duration, Instant};

mod receive;
#[cfg(test)]
mod tests;
mod transmit;

/// How long to wait before the kernel is asked again whether it has room: a full send buffer of 208 KiB drains in 170
/// us at 10 Gb/s. While an address does not answer to ARP, the buffer stays full for seconds, which must not be spent
/// spinning.
const STALL: Duration = Duration::from_micros(250);

/// Size of the buffer for one train: the largest UDP payload over IPv4.
const TRAIN_BYTES: usize = 65_507;

/// The state behind the lock of a port.
pub(crate) struct Datapath {
    pub(crate) engine: Engine,
    pub(crate) link: LinkStack,
    pub(crate) io: Io,
    buffer: Box<[u8]>,
    /// A train for which the kernel had no room; nothing is sent before it.
    stalled: Option<Departure>,
    /// Packets that left the link layers but are not sent yet.
    outgoing: VecDeque<Frame>,
    /// Packets that left the link layers but are not handled yet.
    incoming: VecDeque<Frame>,
    /// Decides whether an acknowledgement waits for the program's reply.
    hold: AckHold,
    /// Whether the last turn received nothing.
    quiet: bool,
    /// Whether a panic left the engine half changed: it is not driven any more.
    wrecked: bool,
    /// The same instant on both clocks.
    clocks: Now,
    /// The read times of a slow receiver.
    throttle: Option<Throttle>,
    /// Packets that a slow receiver in a simulation has not read yet.
    unread: SocketBuffer,
}

impl Datapath {
    pub(super) fn new(engine: Engine, io: Io, clocks: Now) -> Self {
        Self {
            engine,
            link: LinkStack::new(),
            io,
            buffer: vec![0; TRAIN_BYTES].into(),
            stalled: None,
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
            hold: AckHold::new(),
            quiet: true,
            wrecked: false,
            clocks,
            throttle: None,
            unread: SocketBuffer::default(),
        }
    }

    /// Makes the port behave like that of `profile`, before anything arrives. `seed` determines the randomness.
    pub(crate) fn set_link(&mut self, profile: &LinkProfile, now: Instant, seed: u64) {
        self.link.emulation = Emulation::new(profile, now, seed);
        if self.link.emulation.is_some() && profile.receiver_rate.is_none() {
            self.io.stamp_arrivals();
        }
        self.throttle = profile.receiver_rate.map(|rate| Throttle::new(rate, now));
    }

    /// Counters of the emulated link; `None` without one.
    pub(crate) fn link_stats(&mut self) -> Option<EmulationStats> {
        let stats = self.link.emulation.as_mut().map(|emulation| emulation.stats());
        let receiver_overrun = self.unread.overrun();
        (stats.is_some() || self.throttle.is_some())
            .then(|| EmulationStats { receiver_overrun, ..stats.unwrap_or_default() })
    }

    /// The largest number of bytes in the queue of the emulated port since the last call; `None` without one.
    pub(crate) fn take_queue_peak(&mut self) -> Option<u64> {
        self.link.emulation.as_mut()?.take_queue_peak()
    }

    /// Returns whether the port reads its socket as soon as packets arrive; if not, [`next_timer`](Self::next_timer)
    /// tells when it reads.
    pub(super) fn listens(&self) -> bool {
        self.throttle.as_ref().and_then(Throttle::opens_at).is_none()
    }

    /// `now` on both clocks.
    pub(crate) fn both_clocks(&self, now: Instant) -> Now {
        let passed = now.saturating_duration_since(self.clocks.instant);
        Now { instant: now, wall: self.clocks.wall + passed }
    }

    /// Receives packets, handles expired timers, and transmits, unless the acknowledgement is [held](super::hold).
    /// Returns the amount of work: datagrams received plus trains sent.
    pub(super) fn turn(&mut self, now: Instant, caller: Caller) -> u32 {
        if self.wrecked {
            return 0;
        }
        if self.hold.begin(caller, now) == Begin::Wait {
            return 1;
        }
        crate::memory::refresh(now);
        let datagrams = self.receive(now);
        self.handle_timeout(now);
        let only_acks = datagrams > 0 && self.has_work() && !self.engine.has_requests();
        if self.hold.take_in(caller, datagrams, only_acks, now) == Verdict::Hold {
            return datagrams;
        }
        let trains = self.transmit(now);
        self.hold.end(datagrams, trains);
        datagrams + trains
    }

    /// Returns whether the program may be about to reply to what the last turn received.
    pub(super) fn may_be_answered(&self) -> bool {
        self.hold.may_be_answered()
    }

    /// Records that the program sends something; returns whether the packet can carry a held acknowledgement.
    pub(super) fn note_posted(&mut self) -> bool {
        self.hold.posted()
    }

    /// Fails the device after a panic. From now on the datapath does nothing.
    pub(super) fn give_up(&mut self) {
        self.wrecked = true;
        self.engine.fail_after_panic();
    }

    /// Sends a held acknowledgement.
    pub(super) fn let_go(&mut self, now: Instant) {
        if self.hold.is_held() {
            self.transmit(now);
        }
    }

    /// Attaches a queue pair to a multicast group, which the port joins if the queue pair is the first.
    pub(crate) fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        if self.engine.attach_mcast(qpn, group)? == Membership::Changed
            && let Err(error) = self.io.join(group.ip())
        {
            // The attachment was made just above.
            let _ = self.engine.detach_mcast(qpn, group);
            return Err(error.into());
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group, which the port leaves if the queue pair was the last.
    pub(crate) fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        if self.engine.detach_mcast(qpn, group)? == Membership::Changed {
            self.io.leave(group.ip());
        }
        Ok(())
    }

    /// Handles expired timers of the engine and the link.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.wrecked {
            return;
        }
        self.engine.handle_timeout(now);
        if matches!(self.io, Io::Sim(_)) {
            self.read(now);
        }
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
                self.engine.send_pause(now, peer, &frame);
            }
        }
        let rate = self.engine.config().partner.rate;
        if let Some(faults) = self.link.faults.as_mut() {
            while let Some((peer, frame)) = faults.poll_pause(now, rate) {
                self.engine.send_pause(now, peer, &frame);
            }
        }
    }

    /// When the next turn is needed.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
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
    pub(super) fn has_work(&self) -> bool {
        !self.wrecked && (self.engine.has_ready() || self.is_stalled())
    }

    /// Returns whether packets wait because the kernel has no room for them.
    fn is_stalled(&self) -> bool {
        self.stalled.is_some() || !self.outgoing.is_empty()
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        if self.wrecked {
            return None;
        }
        let reads = self.throttle.as_ref().and_then(Throttle::opens_at);
        [self.engine.poll_timeout(), self.link.poll_timeout(), reads].into_iter().flatten().min()
    }
}
