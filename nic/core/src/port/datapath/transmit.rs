//! Transmission: from the engine through the layers of the link to the sockets.

use super::Datapath;
use crate::engine::{Departure, IpHeader};
use crate::link::{Direction, Fate, Frame, FrameRef, LinkStack, Now};
use crate::port::Io;
use time::Instant;

/// Limit of trains sent in a turn: a control call waits no longer than for [receiving](super::receive).
const SENDS_PER_TURN: usize = 16;

impl Datapath {
    /// Sends what is due, up to the limit of a turn. Returns the number of trains.
    pub fn transmit(&mut self, now: Instant, io: &mut impl Io) -> u32 {
        if self.wrecked {
            return 0;
        }
        if let Some(departure) = self.stalled.take()
            && !self.engine.loses(departure.packets)
            && !io.send(&departure, &self.buffer[..departure.len])
        {
            self.stalled = Some(departure);
            return 0;
        }
        if !self.send_frames(io) {
            return 0;
        }
        let mut count = 0;
        for _ in 0..SENDS_PER_TURN {
            let transforms = self.link.transforms(Direction::Tx);
            // One packet per train, so that the IPv4 identification in the ICRC matches that of the packet.
            let max_packets = if transforms { 1 } else { io.max_packets() };
            let Some(departure) = self.engine.poll_transmit(now, &mut self.buffer, max_packets) else {
                break;
            };
            count += 1;
            if self.link.observes() {
                self.show(now, &departure, &Fate::Pending, LinkStack::observe_departure);
            }
            if self.engine.loses(departure.packets) {
                continue;
            }
            let sent = if transforms {
                self.send_through(now, &departure, io)
            } else {
                self.send_whole(now, departure, io)
            };
            if !sent {
                break;
            }
        }
        count
    }

    /// Sends a train in one piece; observers see its packets.
    fn send_whole(&mut self, now: Instant, departure: Departure, io: &mut impl Io) -> bool {
        if self.link.observes() {
            self.show(now, &departure, &Fate::Delivered, LinkStack::observe);
        }
        let sent = io.send(&departure, &self.buffer[..departure.len]);
        if !sent {
            self.stalled = Some(departure);
        }
        sent
    }

    /// Shows the packets of a train to the observers.
    fn show(
        &mut self,
        now: Instant,
        departure: &Departure,
        fate: &Fate,
        to: impl Fn(&mut LinkStack, Now, &FrameRef<'_>),
    ) {
        let both = self.both_clocks(now);
        let bytes = &self.buffer[..departure.len];
        for (index, packet) in bytes.chunks(departure.segment_size.max(1)).enumerate() {
            let ip = IpHeader { ident: u16::try_from(index).unwrap_or(u16::MAX), ..departure.ip };
            to(&mut self.link, both, &FrameRef::new(Direction::Tx, &ip, packet, fate));
        }
    }

    /// Passes the one packet of a train through the link layers.
    fn send_through(&mut self, now: Instant, departure: &Departure, io: &mut impl Io) -> bool {
        let both = self.both_clocks(now);
        let frame = Frame::new(Direction::Tx, departure.ip, self.buffer[..departure.len].to_vec());
        let outgoing = &mut self.outgoing;
        self.link.egress(both, frame, &mut |frame| outgoing.push_back(frame));
        self.send_frames(io)
    }

    /// Sends what left the link layers; returns false if some packets have to wait.
    fn send_frames(&mut self, io: &mut impl Io) -> bool {
        while let Some(frame) = self.outgoing.pop_front() {
            if self.engine.loses(1) {
                continue;
            }
            let departure = Departure {
                ip: frame.ip,
                via: io.via(frame.ip.src_port),
                len: frame.bytes.len(),
                segment_size: frame.bytes.len(),
                packets: 1,
            };
            if !io.send(&departure, &frame.bytes) {
                self.outgoing.push_front(frame);
                return false;
            }
        }
        true
    }
}
