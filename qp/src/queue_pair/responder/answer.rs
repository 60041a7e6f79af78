//! Writing responses into trains.

use super::{Nak, QueuePair, Refused, Response};
use crate::attr::QpType;
use crate::ids::Psn;
use crate::memory::{Access, Domain, Host};
use crate::queue_pair::Budget;
use crate::queue_pair::reasons::operation_name;
use crate::train::Train;
use crate::wire::headers::AethFields;
use crate::wire::opcode::{Extra, Opcode, Operation as WireOperation, Position};
use crate::wire::packet::Headers;
use crate::wire::syndrome::{Syndrome, encode_credits};

impl QueuePair {
    /// Writes responses into the train; true if some remain for lack of room or budget.
    pub(in crate::queue_pair) fn respond(
        &mut self,
        train: &mut Train<'_>,
        budget: &mut Budget,
        host: &mut impl Host,
    ) -> bool {
        while let Some(response) = self.responder.responses.front().copied() {
            let room = match response {
                Response::Acknowledge { psn, syndrome, msn } => {
                    let syndrome = match syndrome {
                        Syndrome::Ack { .. } => self.credits(),
                        refusal => refusal,
                    };
                    self.send_acknowledge(train, psn, WireOperation::Acknowledge, syndrome, msn, 0)
                }
                Response::Atomic { psn, original, msn, .. } => {
                    let operation = WireOperation::AtomicAcknowledge;
                    self.send_acknowledge(train, psn, operation, self.credits(), msn, original)
                }
                Response::Placed { psn, msn, .. } => {
                    self.send_acknowledge(train, psn, WireOperation::ReadResponse, self.credits(), msn, 0)
                }
                Response::Read { .. } if budget.responses == 0 => false,
                Response::Read { .. } => match self.send_read_response(train, response, host) {
                    Some(room) => {
                        budget.responses -= u32::from(room);
                        room
                    }
                    // Abandoned: it either answered a duplicate, or the QP entered ERR and the queue now holds the
                    // NAK.
                    None => continue,
                },
            };
            if !room {
                return true;
            }
        }
        self.responder.report_due && !self.send_selective_ack(train)
    }

    /// Writes a selective acknowledgement; false if there is no room.
    fn send_selective_ack(&mut self, train: &mut Train<'_>) -> bool {
        let ack = self.responder.held.tell(self.responder.expected);
        let mut headers = ack.headers(self.path.dest_qpn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        headers.becn = self.responder.echo;
        headers.aeth = AethFields { syndrome: self.credits().to_u8(), msn: self.responder.msn };
        if !train.has_room(&headers, ack.payload_len()) {
            return false;
        }
        let _: Result<(), std::convert::Infallible> = train.push(&headers, ack.payload_len(), |out| {
            ack.emit(out);
            Ok(())
        });
        self.counters.sent_selective_acks += 1;
        (self.responder.echo, self.responder.report_due) = (false, false);
        true
    }

    /// The acknowledgement, with the number of posted receives (IBTA 9.7.7.2.4). A shared receive queue belongs to
    /// no single queue pair, so no credits are advertised for it.
    fn credits(&self) -> Syndrome {
        if self.config.has_srq || !self.config.tuning.e2e_credits || self.config.qp_type != QpType::Rc {
            return Syndrome::ACK_UNLIMITED;
        }
        let receives = u32::try_from(self.responder.recvs()).unwrap_or(u32::MAX);
        Syndrome::Ack { credits: encode_credits(receives) }
    }

    /// The headers of a response packet.
    fn response_headers(
        &self,
        operation: WireOperation,
        position: Position,
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    ) -> Headers {
        let transport = self.config.qp_type.transport();
        let opcode =
            Opcode::compose(transport, operation, position, Extra::None).unwrap_or(Opcode::RcAcknowledge);
        let mut headers = Headers::new(opcode, self.path.dest_qpn, psn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        headers.becn = self.responder.echo;
        headers.aeth = AethFields { syndrome: syndrome.to_u8(), msn };
        headers
    }

    fn send_acknowledge(
        &mut self,
        train: &mut Train<'_>,
        psn: Psn,
        operation: WireOperation,
        syndrome: Syndrome,
        msn: u32,
        original: u64,
    ) -> bool {
        let mut headers = self.response_headers(operation, Position::Only, psn, syndrome, msn);
        headers.atomic_ack = original;
        if !train.has_room(&headers, 0) {
            return false;
        }
        let _: Result<(), std::convert::Infallible> = train.push(&headers, 0, |_| Ok(()));
        self.responder.echo = false;
        self.responder.responses.pop_front();
        true
    }

    /// Writes the next packet of a READ response. Returns whether there was room, or `None` if its memory is no
    /// longer accessible.
    fn send_read_response(
        &mut self,
        train: &mut Train<'_>,
        response: Response,
        host: &mut impl Host,
    ) -> Option<bool> {
        let Response::Read { first, psn, end, pd, va, rkey, left, started, msn, replay } = response else {
            return Some(true);
        };
        let mtu = self.path.mtu.bytes();
        let payload = left.min(mtu);
        let ends = left <= mtu;
        let position = match (started, ends) {
            (false, true) => Position::Only,
            (false, false) => Position::First,
            (true, false) => Position::Middle,
            (true, true) => Position::Last,
        };
        let operation = WireOperation::ReadResponse;
        let headers = self.response_headers(operation, position, psn, self.credits(), msn);
        if !train.has_room(&headers, payload as usize) {
            return Some(false);
        }
        let domain = Domain { pd, ..self.domain() };
        let pushed = train.push_summed(&headers, payload as usize, |out, crc| match crc {
            None => host.read(domain, rkey, va, Access::REMOTE_READ, out),
            Some(crc) => {
                *crc = host.read_summed(domain, rkey, va, Access::REMOTE_READ, out, *crc)?;
                Ok(())
            }
        });
        if pushed.is_err() && replay {
            // A duplicate is never answered with a NAK: the peer may already have its data.
            self.responder.responses.pop_front();
            return None;
        }
        if let Err(error) = pushed {
            // The region was revoked after the request was accepted (IBTA 9.7.4.1.5).
            self.responder.drop_responses();
            let nak = Nak::access(Refused::ReadMemory, error);
            self.refuse_request(psn, operation_name(WireOperation::ReadRequest, false), &nak, host);
            return None;
        }
        self.responder.echo = false;
        self.counters.sent_bytes += u64::from(payload);
        if ends {
            self.responder.responses.pop_front();
        } else if let Some(front) = self.responder.responses.front_mut() {
            *front = Response::Read {
                first,
                psn: psn.plus(1),
                end,
                pd,
                va: va.wrapping_add(u64::from(payload)),
                rkey,
                left: left - payload,
                started: true,
                msn,
                replay,
            };
        }
        Some(true)
    }
}
