//! One pass out: from the queue pairs that are ready to trains of packets.

use super::Engine;
use super::peers::{Flights, PACKET_OVERHEAD};
use qp::{Mtu, Train};
use qp::wire::{Flow, UDP_PORT};
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
            let room = peer.window.packets(Flights::packet_charge(mtu));
            // Close to the end of the window it is better to wait for answers than to send trains of what little room
            // they leave: a system call costs as much for two packets as for fifteen.
            let train = full_train(mtu, max_packets);
            let mut budget = if room < train && peer.window.is_half_used() { 0 } else { room };
            let src_port = self.config.source_ports.get(remote.via).copied().unwrap_or(UDP_PORT);
            let flow = Flow { src: self.config.address, dst: remote.address, src_port, dst_port: UDP_PORT };
            let mut train = Train::new(buf, flow, max_packets);
            let from = entry.qp.next_psn();
            let mut host = self.host.of(entry.send_cq, entry.recv_cq);
            let more = entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
            let departure = Departure {
                dst: remote.address,
                via: remote.via,
                tos: remote.tos,
                len: train.bytes().len(),
                segment_size: train.segment_size(),
                packets: train.packets(),
            };
            let to = entry.qp.next_psn();
            let charge = entry.flights.depart(from, to, departure.packets, departure.segment_size, mtu);
            peer.window.take(charge);
            if more && budget == 0 && !entry.waiting {
                entry.waiting = true;
                peer.waiting.push_back(index);
                self.counters.window_stalls += 1;
            }
            if more && budget > 0 {
                entry.ready = true;
                self.ready.push_back(index);
            }
            // A queue pair that waits for room is not ready, whatever it wants: settling must not make it so.
            let waits = more && budget == 0;
            self.settle_after_transmit(index, waits);
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
                entry.ready = false;
            }
        } else {
            self.settle(index);
        }
    }
}
