//! Captures of ports: what leaves a port, what comes in through it, and what becomes of that.

use super::{Drop, Fabric};
use crate::topology::NodeId;
use rnic_core::link::capture::{Capture, CaptureStatus};
use rnic_core::link::{Direction, Fate, FrameRef, Now, Observer as _};
use rnic_core::sim::{BEGINNING, Packet};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The captures of a fabric.
#[derive(Default)]
pub(super) struct Taps {
    /// By node and port.
    captures: BTreeMap<(NodeId, usize), Capture>,
    /// The packet that was dropped last, and why.
    dropped: Option<(u32, Drop)>,
    /// The packet that is written.
    buffer: Vec<u8>,
}

impl fmt::Debug for Taps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.captures.keys()).finish()
    }
}

impl Taps {
    /// Notes that a packet was dropped.
    pub(super) fn drop(&mut self, packet: u32, why: Drop) {
        self.dropped = Some((packet, why));
    }

    fn write(
        &mut self,
        at: (NodeId, usize),
        now: Now,
        direction: Direction,
        packet: &Packet,
        notes: &[String],
    ) {
        let Some(capture) = self.captures.get_mut(&at) else { return };
        packet.write_to(&mut self.buffer);
        let frame =
            FrameRef { direction, ip: &packet.ip, bytes: &self.buffer, fate: &Fate::Delivered, notes };
        capture.observe(now, &frame);
    }
}

impl Fabric {
    /// Captures a port from now on: outbound what leaves, inbound what comes in. A comment says if a packet was damaged
    /// on its cable, and why it was dropped, if it was dropped as it came in. Times are those since the beginning. Returns
    /// the state of the capture; `None` if there is no such port. The file is
    /// complete after [`flush_captures`](Self::flush_captures).
    pub fn capture(&mut self, node: NodeId, port: usize, capture: Capture) -> Option<Arc<CaptureStatus>> {
        self.nodes.get_mut(node)?.ports.get_mut(port)?.is_captured = true;
        let status = capture.status();
        self.taps.captures.insert((node, port), capture);
        Some(status)
    }

    /// Writes all that was captured until now.
    pub fn flush_captures(&mut self) {
        self.taps.captures.values_mut().for_each(Capture::flush);
    }

    const fn stamp(&self) -> Now {
        Now { instant: self.now, wall: self.now.saturating_duration_since(BEGINNING) }
    }

    /// A packet leaves a port.
    pub(super) fn capture_departure(&mut self, node: NodeId, port: usize, packet: u32) {
        if self.nodes[node].ports[port].is_captured {
            let now = self.stamp();
            let packet = &self.packets[packet as usize].packet;
            self.taps.write((node, port), now, Direction::Tx, packet, &[]);
        }
    }

    /// A packet comes to a node through a port, of which there is a capture.
    pub(super) fn capture_arrival(&mut self, node: NodeId, port: u16, packet: u32, cuts: u32) {
        let travelling = &self.packets[packet as usize];
        let mut notes: Vec<String> =
            travelling.is_damaged.then(|| "damaged on the cable".to_owned()).into_iter().collect();
        let copy = travelling.packet.clone();
        self.taps.dropped = None;
        self.arrive(node, port, packet, cuts);
        if let Some((_, why)) = self.taps.dropped.take_if(|(dropped, _)| *dropped == packet) {
            notes.push(format!("dropped: {}", why.name()));
        }
        let now = self.stamp();
        self.taps.write((node, port.into()), now, Direction::Rx, &copy, &notes);
    }

    /// A packet comes to a node.
    pub(super) fn handle_arrival(&mut self, node: NodeId, port: u16, packet: u32, cuts: u32) {
        if self.nodes[node].ports[usize::from(port)].is_captured {
            self.capture_arrival(node, port, packet, cuts);
        } else {
            self.arrive(node, port, packet, cuts);
        }
    }
}
