//! What ports tell one another: pauses and credits; and what befalls them: storms, cuts.

use super::hop::after;
use super::{Change, Drop, Event, Fabric, Role};
use crate::routing::Routes;
use crate::switch::buffer::Signal;
use crate::topology::NodeId;
use cc::pfc::{PRIORITIES, PauseFrame, Quanta, response_quanta};
use std::sync::Arc;
use time::Duration;

/// Bytes of a packet of flow control on an InfiniBand link: operand, lane, credits and checksum (IBTA 1.4, 7.9.4).
const CREDIT_BYTES: u32 = 8;

/// How often the watchdogs look in a detection time: SONiC's default is 200 ms for 100 ms of polling, and real switches
/// poll in hardware; four times is our choice.
const LOOKS: u32 = 4;

impl Fabric {
    /// Tells the peer of a port what its account asks for.
    pub(super) fn signal(&mut self, node: NodeId, port: usize, class: usize, signal: Signal) {
        match signal {
            Signal::None => {}
            Signal::Off => self.send_pause(node, port, class, Quanta::MAX),
            Signal::On => self.send_pause(node, port, class, Quanta(0)),
        }
    }

    /// Sends a pause frame for one class: as soon as the packet on the wire has left.
    fn send_pause(&mut self, node: NodeId, port: usize, class: usize, quanta: Quanta) {
        let now = self.now;
        let at = &mut self.nodes[node].ports[port];
        if !at.is_up {
            return;
        }
        if let Some(sent) = at.stats.pauses_sent.get_mut(class) {
            *sent += 1;
        }
        let (end, delay) = after(now, at, PauseFrame::WIRE_LEN);
        let reaction = Quanta(response_quanta(at.rate)).time(at.rate);
        let (peer, far) = at.peer;
        let frame = Event::Pause { node: peer as u32, port: far, classes: 1 << class, quanta: quanta.0 };
        self.agenda.set(end + delay + reaction, frame);
        let (bit, rate) = (1u8 << class, at.rate);
        if quanta.0 > 0 && at.repeats & bit == 0 {
            at.repeats |= bit;
            // Long before the pause ends by itself.
            let again = now + quanta.time(rate) / 2;
            self.agenda
                .set(again, Event::Repeat { node: node as u32, port: port as u16, class: class as u8 });
        }
    }

    /// A pause that was asked for some time ago is asked for again, if it is still needed.
    pub(super) fn repeat_pause(&mut self, node: NodeId, port: usize, class: u8) {
        self.nodes[node].ports[port].repeats &= !(1 << class);
        if self.wants_pause(node, port, class.into()) {
            self.send_pause(node, port, class.into(), Quanta::MAX);
        }
    }

    /// Whether a node has to be sent nothing of a class through a port.
    fn wants_pause(&self, node: NodeId, port: usize, class: usize) -> bool {
        match &self.nodes[node].role {
            Role::Host(host) => host.storm >> class & 1 == 1,
            Role::Switch(switch) => {
                switch.buffer.as_ref().is_some_and(|buffer| buffer.is_paused(port, class))
            }
        }
    }

    /// A pause frame takes effect at a port.
    pub(super) fn take_pause(&mut self, node: NodeId, port: usize, classes: u8, quanta: u16) {
        let at = &mut self.nodes[node].ports[port];
        let mut times = [None; PRIORITIES];
        for (class, time) in times.iter_mut().enumerate() {
            *time = (classes >> class & 1 == 1).then_some(Quanta(quanta));
        }
        at.paused.handle_frame(self.now, &PauseFrame::Priorities(times));
        if quanta == 0 {
            at.pauses &= !u16::from(classes);
            self.serve(node, port);
        } else {
            at.pauses |= u16::from(classes);
            let has_watchdogs = at.watchdogs.is_some();
            if has_watchdogs && !std::mem::replace(&mut self.nodes[node].is_watched, true) {
                self.watch(node);
            }
        }
    }

    /// The watchdogs of a node look, and again as long as there is something to look at.
    pub(super) fn watch(&mut self, node: NodeId) {
        let mut is_needed = false;
        for port in 0..self.nodes[node].ports.len() {
            let at = &mut self.nodes[node].ports[port];
            let begun = at.watch(self.now);
            is_needed |= at.forced | at.discarded != 0 || at.paused.poll_timeout().is_some();
            for queue in super::port::bits(begun) {
                while let Some(first) = self.nodes[node].ports[port].queues.take(queue, self.now) {
                    self.leave(node, port, queue, first);
                    self.drop_packet(node, port, first.packet, Drop::Storm);
                }
            }
            self.serve(node, port);
        }
        self.nodes[node].is_watched = is_needed;
        if is_needed && let Role::Switch(switch) = &self.nodes[node].role {
            let watch = self.configs[switch.config].watchdog;
            let millis = watch.map_or(1, |watch| watch.detection_time.min(watch.restoration_time));
            let interval = Duration::from_millis(millis.into()) / LOOKS;
            self.agenda.set(self.now + interval, Event::Watch { node: node as u32 });
        }
    }

    /// A packet has left the buffer of a lane: its sender may learn of the room.
    pub(super) fn return_credit(&mut self, node: NodeId, port: usize, lane: usize, bytes: u32) {
        let now = self.now;
        let at = &mut self.nodes[node].ports[port];
        let Some(limit) = at.lanes.as_mut().map(|lanes| lanes[lane].release(bytes)) else { return };
        let (end, delay) = after(now, at, CREDIT_BYTES);
        let (peer, far) = at.peer;
        self.agenda.set(end + delay, Event::Credit { node: peer as u32, port: far, lane: lane as u8, limit });
    }

    /// Makes a planned change.
    pub(super) fn change(&mut self, number: usize) {
        match self.planned[number].clone() {
            Change::Routes(routes) => self.routes = routes,
            Change::Tables(tables) => self.forward_by(&tables),
            Change::Cable { cable, is_up } => self.cut(cable, is_up),
            Change::Storm { host, classes } => self.storm(host, classes),
        }
    }

    /// Cuts or repairs a cable.
    pub(super) fn cut(&mut self, cable: usize, is_up: bool) {
        for (node, port) in self.ends_of(cable) {
            let at = &mut self.nodes[node].ports[port];
            if at.is_up == is_up {
                continue;
            }
            at.is_up = is_up;
            at.cuts += u32::from(!is_up);
            if is_up {
                self.repair(node, port);
                continue;
            }
            for queue in super::port::bits(self.nodes[node].ports[port].queues.waiting()) {
                while let Some(first) = self.nodes[node].ports[port].queues.take(queue, self.now) {
                    self.leave(node, port, queue, first);
                    self.drop_packet(node, port, first.packet, Drop::CableCut);
                }
            }
        }
    }

    /// A port has its cable again: it gets credit for what the other end has room for, as counts of packets that were lost on
    /// the way agree no more, and the other end learns which classes must still pause.
    fn repair(&mut self, node: NodeId, port: usize) {
        let (peer, far) = self.nodes[node].ports[port].peer;
        let sent = self.nodes[node].ports[port].credit.as_ref().map(|lanes| lanes.map(|lane| lane.sent()));
        if let (Some(sent), Some(lanes)) = (sent, &mut self.nodes[peer].ports[usize::from(far)].lanes) {
            let limits: Vec<u64> = lanes.iter_mut().zip(sent).map(|(lane, sent)| lane.agree(sent)).collect();
            if let Some(credit) = &mut self.nodes[node].ports[port].credit {
                credit.iter_mut().zip(limits).for_each(|(lane, limit)| lane.grant(limit));
            }
        }
        for class in 0..PRIORITIES {
            if self.wants_pause(node, port, class) {
                self.send_pause(node, port, class, Quanta::MAX);
            }
        }
        self.serve(node, port);
    }

    /// The ends of a cable: node and port.
    fn ends_of(&self, cable: usize) -> Vec<(NodeId, usize)> {
        let mut ends = Vec::new();
        for (node, ports) in self.topology.ports().iter().enumerate() {
            ends.extend(ports.iter().position(|(of, _)| *of == cable).map(|port| (node, port)));
        }
        ends
    }

    /// A host pauses these classes from now on, and no others.
    fn storm(&mut self, host: NodeId, classes: u8) {
        let Some(Role::Host(of)) = self.nodes.get_mut(host).map(|node| &mut node.role) else { return };
        let old = std::mem::replace(&mut of.storm, classes);
        for class in 0..PRIORITIES {
            match (old >> class & 1 == 1, classes >> class & 1 == 1) {
                (false, true) => self.send_pause(host, 0, class, Quanta::MAX),
                (true, false) => self.send_pause(host, 0, class, Quanta(0)),
                _ => {}
            }
        }
    }

    /// The routes that are in use.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes)
    }
}
