//! One pass out: from the queue pairs that are ready to trains of packets.

use super::peers::{Flights, PACKET_OVERHEAD, Peer};
use super::{Engine, QpEntry};
use qp::wire::{Flow, UDP_PORT};
use qp::{Mtu, Train};
use std::net::IpAddr;
use std::time::Instant;

/// A train that is ready to leave. Its bytes are in the buffer that was given to [`Engine::poll_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// Where to.
    pub dst: IpAddr,
    /// Which of the source ports.
    pub via: usize,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for none.
    pub flow_label: u32,
    /// Bytes in all.
    pub len: usize,
    /// Bytes of every packet but perhaps the last.
    pub segment_size: usize,
    /// Number of packets.
    pub packets: u32,
}

/// How many full packets of this path MTU make a train.
fn full_train(mtu: Mtu, max_packets: u32) -> u32 {
    // What UDP over IPv4 carries.
    (65_507 / (mtu.bytes() + PACKET_OVERHEAD)).min(max_packets)
}

impl QpEntry {
    /// How many packets it may send now. With a peer's window to itself it takes what room there is. With others it
    /// takes turns of one full train's packets: where the budget ends the requester asks for an answer, so nobody
    /// waits with packets on the way that hold room and that nobody will acknowledge.
    fn budget(&self, peer: &Peer, called: bool, train: u32) -> u32 {
        let room = peer.window.packets(Flights::packet_charge(self.qp.mtu()));
        if self.turn > 0 {
            return room.min(self.turn);
        }
        // First come, first served: who is not called stands behind those who wait.
        if !called && !peer.waiting.is_empty() {
            return 0;
        }
        // Close to the end of the window it is better to wait for answers than to send trains of what little room
        // they leave: a system call costs as much for two packets as for fifteen.
        if room < train && peer.window.is_half_used() {
            return 0;
        }
        if peer.is_for(&self.flights) { room } else { room.min(train) }
    }
}

impl Engine {
    /// Writes the next train into `buf`: at most `max_packets` packets of one queue pair. `None` once there is
    /// nothing more to send for now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8], max_packets: u32) -> Option<Departure> {
        while let Some(index) = self.ready.pop_front() {
            let Some(entry) = self.qps[index].as_mut() else { continue };
            entry.ready = false;
            let Some(remote) = entry.remote else { continue };
            let mtu = entry.qp.mtu();
            let peer = self.peers.get_mut(remote.peer);
            let called = std::mem::take(&mut entry.called);
            let alone = peer.is_for(&entry.flights);
            let mut budget = entry.budget(peer, called, full_train(mtu, max_packets));
            let src_port = self.config.source_ports.get(remote.via).copied().unwrap_or(UDP_PORT);
            let flow = Flow { src: self.config.address, dst: remote.address, src_port, dst_port: UDP_PORT };
            let mut train = Train::new(buf, flow, max_packets);
            let from = entry.qp.next_psn();
            let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
            let more = entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
            let departure = Departure {
                dst: remote.address,
                via: remote.via,
                tos: remote.tos,
                hop_limit: remote.hop_limit,
                flow_label: remote.flow_label,
                len: train.bytes().len(),
                segment_size: train.segment_size(),
                packets: train.packets(),
            };
            let to = entry.qp.next_psn();
            let charge = entry.flights.depart(from, to, departure.packets, departure.segment_size, mtu);
            peer.window.take(charge);
            // A queue pair that waits for room is not ready, whatever it wants: settling must not make it so.
            let waits = more && budget == 0;
            let in_vain = waits && charge == 0;
            if waits && !entry.waiting {
                entry.waiting = true;
                if called && in_vain {
                    peer.waiting.push_front(index);
                } else {
                    peer.waiting.push_back(index);
                    self.counters.window_stalls += 1;
                }
            }
            entry.turn = if more && !alone { budget } else { 0 };
            if more && budget > 0 {
                entry.ready = true;
                if entry.turn > 0 { self.ready.push_front(index) } else { self.ready.push_back(index) }
            }
            self.settle_after_transmit(index, waits);
            if called && !in_vain {
                self.call_waiting(remote.peer);
            }
            if departure.packets > 0 {
                self.counters.tx_packets += u64::from(departure.packets);
                self.counters.tx_bytes += departure.len as u64;
                return Some(departure);
            }
        }
        None
    }

    fn settle_after_transmit(&mut self, index: usize, waits: bool) {
        if waits && let Some(entry) = self.qps[index].as_mut() {
            // Stands in for a place in the ready queue while the rest is settled.
            entry.ready = true;
            self.settle(index);
            if let Some(entry) = self.qps[index].as_mut() {
                // Room that came back meanwhile may have called it.
                entry.ready = entry.called;
                if entry.called {
                    self.ready.push_back(index);
                }
            }
        } else {
            self.settle(index);
        }
    }
}
