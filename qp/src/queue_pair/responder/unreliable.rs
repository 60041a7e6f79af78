//! The responder of an unreliable connection (IBTA 9.8.2).
//!
//! Nothing is acknowledged. If a message misses a packet or breaks a rule, everything up to the next First or Only
//! is dropped, and the next message uses its receive.

use super::{PacketDrop, QueuePair, Refusal};
use crate::memory::Host;
use crate::queue_pair::reasons::operation_name;
use crate::wire::opcode::Position;
use crate::wire::packet::Packet;
use crate::wire::syndrome::NakCode;

impl QueuePair {
    pub(super) fn receive_unreliable(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        let starts = matches!(packet.info().position, Position::First | Position::Only);
        if psn != self.responder.expected {
            self.counters.out_of_seq_request += 1;
        }
        if starts || psn != self.responder.expected {
            self.responder.drop_message();
        }
        // A First or Only starts a message at any PSN (IBTA C9-216).
        self.responder.expected = psn.plus(1);
        match self.execute(packet, host) {
            Ok(_) => Ok(()),
            Err(Refusal::NotReady) => {
                self.counters.out_of_buffer += 1;
                self.responder.drop_message();
                Err(PacketDrop::NoReceive)
            }
            Err(Refusal::Nak(nak)) if nak.code == NakCode::RemoteOperationalError => {
                // The receive itself is at fault, which only its owner can put right.
                let operation = operation_name(packet.info().operation, packet.imm().is_some());
                self.refuse_request(psn, operation, &nak, host);
                Ok(())
            }
            Err(Refusal::Nak(_)) => {
                self.responder.drop_message();
                Err(PacketDrop::Unreliable)
            }
        }
    }
}

impl super::Responder {
    /// Drops the message in progress; its receive is kept for the next one.
    fn drop_message(&mut self) {
        if let Some(recv) = self.abandon_message() {
            self.spare = Some(recv);
        }
    }
}
