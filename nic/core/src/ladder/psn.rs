//! PSNs counted from the first one of their sequence, and who sent them.

use qp::wire::{HeaderSet, Headers, Transport};
use qp::{Psn, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;

/// The most sequences that are remembered. When there are more, the oldest is forgotten.
const MAX_STREAMS: usize = 256;

/// The requests from one queue pair to another.
struct Stream {
    from: IpAddr,
    to: IpAddr,
    /// The queue pair that executes them.
    qpn: Qpn,
    /// The queue pair that sends them, if their headers name it.
    sender: Option<Qpn>,
    /// The queue pair that gets the answers, once an answer was seen.
    answers_to: Option<Qpn>,
    first: Psn,
    newest: Psn,
}

/// Where a packet belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    /// How far its PSN is from the first of its sequence.
    pub(crate) relative_psn: Option<i32>,
    /// The queue pair that sent it.
    pub(crate) sender: Option<Qpn>,
}

/// The sequences seen so far.
#[derive(Default)]
pub(crate) struct Streams {
    known: VecDeque<Stream>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Streams({})", self.known.len())
    }
}

impl Streams {
    /// Where a packet from `from` to `to` belongs, as far as the packets before it tell.
    pub(crate) fn place(&mut self, from: IpAddr, to: IpAddr, headers: &Headers) -> Place {
        let info = headers.opcode.info();
        let named = info.headers.contains(HeaderSet::DETH).then_some(headers.deth.src_qpn);
        let mut place = match info.operation {
            operation if !operation.has_psn() => Place::default(),
            _ if info.is_request => self.request(from, to, headers),
            _ => self.answer(from, to, headers),
        };
        place.sender = named.or(place.sender);
        place
    }

    fn request(&mut self, from: IpAddr, to: IpAddr, headers: &Headers) -> Place {
        let psn = headers.psn;
        let is_datagram = headers.opcode.info().transport == Transport::Ud;
        let sender = is_datagram.then_some(headers.deth.src_qpn);
        let mine = |s: &&mut Stream| (s.from, s.to, s.qpn, s.sender) == (from, to, headers.dest_qpn, sender);
        if let Some(stream) = self.known.iter_mut().find(mine) {
            if stream.newest.is_before(psn) {
                stream.newest = psn;
            }
            return Place { relative_psn: Some(psn.distance_from(stream.first)), sender: stream.answers_to };
        }
        if self.known.len() == MAX_STREAMS {
            self.known.pop_front();
        }
        self.known.push_back(Stream {
            from,
            to,
            qpn: headers.dest_qpn,
            sender,
            answers_to: None,
            first: psn,
            newest: psn,
        });
        Place { relative_psn: Some(0), sender: None }
    }

    /// An answer names the queue pair that asked, but not the one that was asked. The first one is taken to answer the
    /// requests whose PSNs are nearest.
    fn answer(&mut self, from: IpAddr, to: IpAddr, headers: &Headers) -> Place {
        let (psn, asker) = (headers.psn, headers.dest_qpn);
        let between = |s: &&mut Stream| s.from == to && s.to == from;
        let known = self.known.iter_mut().filter(between).find(|s| s.answers_to == Some(asker));
        let stream = match known {
            Some(stream) => Some(stream),
            None => {
                let open = self.known.iter_mut().filter(between).filter(|s| s.answers_to.is_none());
                open.min_by_key(|s| psn.distance_from(s.newest).unsigned_abs())
            }
        };
        let Some(stream) = stream else { return Place::default() };
        stream.answers_to = Some(asker);
        Place { relative_psn: Some(psn.distance_from(stream.first)), sender: Some(stream.qpn) }
    }
}
