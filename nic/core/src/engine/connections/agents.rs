//! Management datagrams that reach the port itself, and the answer to those that no agent handles.

use super::super::{Departure, DropReason, Engine};
use qp::wire::mad::cm::Attribute;
use qp::wire::mad::{DATA_LEN, HEADER_LEN, Header, MAD_LEN, Mad, MadError};
use qp::wire::{IpHeader, Packet};
use qp::{QKey, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use time::Instant;

/// Methods that ask for an answer (IBTA 13.4.5), and the bit that marks one.
const METHOD_GET: u8 = 0x01;
const METHOD_SET: u8 = 0x02;
const RESPONSE: u8 = 0x80;

/// The status "the method and attribute are not supported" (IBTA 13.4.7). Linux sends the same.
const UNSUPPORTED: u16 = 3 << 2;

/// Answers that wait to be sent. Our choice: as many as one turn sends; who asks more often is not answered.
const MAX_REFUSALS: usize = 16;

/// Answers to requests for agents that the port does not have.
#[derive(Default)]
pub(super) struct Refusals(VecDeque<Refusal>);

struct Refusal {
    to: IpAddr,
    dest_qpn: Qpn,
    mad: [u8; MAD_LEN],
}

/// Whether a message asks for something new, so that a stranger may send it.
fn is_request(header: &Header) -> bool {
    [Attribute::Req as u16, Attribute::SidrReq as u16].contains(&header.attribute_id)
}

impl Engine {
    /// Processes a datagram for queue pair 1, where no program has created one.
    pub(in crate::engine) fn take_mad(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let deth = packet.deth().ok_or(DropReason::WrongService)?;
        if deth.qkey != QKey::GSI {
            return Err(DropReason::BadQkey);
        }
        // QP1 accepts any P_Key of the port (IBTA C9-42).
        if self.config.pkeys.find(packet.pkey()).is_none() {
            return Err(DropReason::BadPkey);
        }
        let mad = Mad::parse(packet.payload()).map_err(|error| match error {
            MadError::BaseVersion(_) => DropReason::BadVersion,
            _ => DropReason::BadLength,
        })?;
        match (mad.header.class, mad.header.method) {
            (_, METHOD_GET | METHOD_SET) => self.refuse(now, arrival, deth.src_qpn, &mad),
            (Header::CLASS_CM, Header::METHOD_SEND) => {
                // Only the port itself sends from there, unless somebody forges address and port.
                let proven = self.partners.at(arrival.src, arrival.src_port).is_some();
                if !proven && is_request(&mad.header) && !self.may_request(now, arrival.src) {
                    return Err(DropReason::Requests);
                }
                let bytes = packet.payload().try_into().map_err(|_| DropReason::BadLength)?;
                if self.is_routed(arrival, bytes) {
                    return Ok(());
                }
                self.handle_connection_mad(now, arrival, proven, bytes);
                Ok(())
            }
            _ => Err(DropReason::NoAgent),
        }
    }

    /// Answers that the port has no agent for a request. The answer is as long as the request.
    fn refuse(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        from: Qpn,
        mad: &Mad<'_>,
    ) -> Result<(), DropReason> {
        let Refusals(waiting) = &mut self.connections.refusals;
        if waiting.len() >= MAX_REFUSALS || !self.partners.may_answer(now) {
            return Err(DropReason::NoAgent);
        }
        let header = Header { method: mad.header.method | RESPONSE, status: UNSUPPORTED, ..mad.header };
        let mut answer = [0; HEADER_LEN + DATA_LEN];
        // The length is right.
        let _ = Mad { header, data: mad.data }.emit(&mut answer);
        waiting.push_back(Refusal { to: arrival.src, dest_qpn: from, mad: answer });
        self.connections.pending = true;
        Err(DropReason::NoAgent)
    }

    pub(super) fn poll_refusal(&mut self, buf: &mut [u8]) -> Option<Departure> {
        let Refusal { to, dest_qpn, mad } = self.connections.refusals.0.pop_front()?;
        self.write_mad(IpHeader::to(to), dest_qpn, &mad, buf)
    }
}
