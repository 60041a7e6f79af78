//! PSNs counted from the first one of their sequence.

use qp::wire::{Flow, Packet, Transport};
use qp::{Psn, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Sequences that are remembered; the oldest gives way. More than anybody draws at a time.
const MAX_STREAMS: usize = 256;

/// The requests from one queue pair to another.
struct Stream {
    from: IpAddr,
    to: IpAddr,
    /// The queue pair that executes them.
    qpn: Qpn,
    /// The queue pair that sends them, where they say so.
    sender: Option<Qpn>,
    /// The queue pair that gets the answers, once one was seen.
    answers_to: Option<Qpn>,
    first: Psn,
    newest: Psn,
}

/// The sequences seen so far.
#[derive(Default)]
pub(super) struct Streams {
    known: VecDeque<Stream>,
}

impl Streams {
    /// How far a packet's PSN lies behind the first of its sequence.
    pub(super) fn place(&mut self, flow: &Flow, packet: &Packet<'_>) -> Option<i32> {
        let info = packet.info();
        match info.operation {
            operation if !operation.has_psn() => None,
            _ if info.is_request => Some(self.request(flow, packet)),
            _ => self.answer(flow, packet),
        }
    }

    fn request(&mut self, flow: &Flow, packet: &Packet<'_>) -> i32 {
        let psn = packet.psn();
        let is_datagram = packet.info().transport == Transport::Ud;
        let sender = packet.deth().filter(|_| is_datagram).map(|d| d.src_qpn);
        let mine = |s: &&mut Stream| {
            (s.from, s.to, s.qpn, s.sender) == (flow.src, flow.dst, packet.dest_qpn(), sender)
        };
        if let Some(stream) = self.known.iter_mut().find(mine) {
            if stream.newest.is_before(psn) {
                stream.newest = psn;
            }
            return psn.distance_from(stream.first);
        }
        if self.known.len() == MAX_STREAMS {
            self.known.pop_front();
        }
        self.known.push_back(Stream {
            from: flow.src,
            to: flow.dst,
            qpn: packet.dest_qpn(),
            sender,
            answers_to: None,
            first: psn,
            newest: psn,
        });
        0
    }

    /// An answer names the queue pair that asked, but not the one that was asked. The first time, the requests whose
    /// PSNs are nearest are taken for what it answers.
    fn answer(&mut self, flow: &Flow, packet: &Packet<'_>) -> Option<i32> {
        let (psn, asker) = (packet.psn(), packet.dest_qpn());
        let between = |s: &&mut Stream| s.from == flow.dst && s.to == flow.src;
        let known = self.known.iter_mut().filter(between).find(|s| s.answers_to == Some(asker));
        let stream = match known {
            Some(stream) => stream,
            None => {
                let open = self.known.iter_mut().filter(between).filter(|s| s.answers_to.is_none());
                open.min_by_key(|s| psn.distance_from(s.newest).unsigned_abs())?
            }
        };
        stream.answers_to = Some(asker);
        Some(psn.distance_from(stream.first))
    }
}
