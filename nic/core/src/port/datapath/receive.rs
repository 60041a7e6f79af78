//! Reception: from whoever reads the sockets through the layers of the link to the engine.

use super::Datapath;
use crate::datagram::Datagram;
use crate::engine::{Arrival, Batch, Engine, IpHeader};
use crate::link::{Direction, Fate, Frame, FrameRef, LinkStack, Now};
use crate::port::throttle::bytes_of;
use cc::hpcc::Telemetry;
use std::collections::VecDeque;
use std::iter;
use time::Instant;

impl Datapath {
    /// Takes in datagrams that were read. `arrived`: when each did, if the kernel says so; `has_more`: whether the
    /// socket may hold more, if that is known.
    pub fn take_in<'a>(
        &mut self,
        now: Instant,
        datagrams: impl Iterator<Item = Datagram<'a>>,
        arrived: impl Fn(&Datagram<'a>) -> Option<Instant>,
        has_more: Option<bool>,
    ) {
        let both = self.both_clocks(now);
        let Self { engine, link, incoming, .. } = self;
        take_in(engine, link, incoming, both, datagrams, arrived, has_more);
    }

    /// Takes in a packet of a simulation, which arrived at `arrived`.
    pub fn accept(
        &mut self,
        now: Instant,
        arrived: Instant,
        ip: &IpHeader,
        packet: &[u8],
        telemetry: Option<&Telemetry>,
    ) {
        if self.wrecked {
            return;
        }
        if let (Some(_), Some(unread)) = (&self.throttle, &mut self.unread) {
            unread.put(ip, packet, telemetry);
            self.read(now);
            return;
        }
        let datagram = Datagram { telemetry, ..Datagram::single(*ip, packet) };
        self.take_in(now, iter::once(datagram), |_| Some(arrived), None);
    }

    /// Lets a slow receiver of a simulation read as much as its rate allows.
    pub(super) fn read(&mut self, now: Instant) {
        let both = self.both_clocks(now);
        let Self { engine, link, incoming, throttle: Some(throttle), unread: Some(unread), .. } = self else {
            return;
        };
        while throttle.is_open(now) {
            let packet = unread.take();
            let datagram = packet.as_ref().map(|packet| Datagram {
                telemetry: packet.telemetry.as_deref(),
                ..Datagram::single(packet.ip, &packet.bytes)
            });
            take_in(engine, link, incoming, both, datagram.into_iter(), |_| None, Some(datagram.is_some()));
            let Some(datagram) = datagram else { return throttle.note_empty() };
            throttle.note_read(now, bytes_of(datagram.bytes.len(), 1, datagram.ip.src));
        }
    }
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
            let telemetry = datagram.telemetry.map(|telemetry| Box::new(*telemetry));
            let frame = Frame { telemetry, ..Frame::new(Direction::Rx, ip, packet.to_vec()) };
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
    let frames = incoming.iter().map(|frame| step(datagram(frame)));
    engine.receive(now, Batch { arrivals: entered.chain(frames), has_more: None });
    incoming.clear();
}

/// The datagram of a packet that left the link layers.
fn datagram(frame: &Frame) -> Datagram<'_> {
    Datagram { telemetry: frame.telemetry.as_deref(), ..Datagram::single(frame.ip, &frame.bytes) }
}
