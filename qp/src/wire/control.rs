//! Messages between rnic ports about the link between them: credits and pauses.
//!
//! On a cable both are link-layer symbols that no software sees. Here the link ends in the process that owns the
//! queue pairs, so they are ordinary packets, with opcodes from the manufacturer-defined range
//! ([`Transport::Rnic`](super::Transport::Rnic)). They are sent only to peers that announced support in a [`hello`](super::mad::hello);
//! other receivers may interpret them differently, or fail.
//!
//! ```text
//! BTH  opcode 0xc0 or 0xc1, default partition
//!      destination QPN  | slot of the destination 8 | 0 16 |
//!      PSN              | slot of the sender 8 | sequence number 16 |
//! payload               | token 64 |, then
//! 0xc0 FLOW_CONTROL     1 to 15 flow control packets of 16 bytes, one for each virtual lane
//! 0xc1 PAUSE            | class-enable vector 16 | quanta of priority 0 16 | ... | of priority 7 16 | 0 16 |
//! ```
//!
//! A *slot* is the top byte of a port's queue pair numbers. It identifies the destination, as for other packets, if
//! several ports share an address. The sequence number distinguishes a stale message from the latest one.
//!
//! [`Telemetry`](super::telemetry) is of the same range, but for queue pairs.
//!
//! The credit algorithm defines the content of a flow control packet; this module treats it as 16 bytes. A pause
//! has the fields of IEEE 802.1Qbb.

use crate::ids::{Psn, Qpn};
use crate::wire::opcode::{Opcode, Operation};
use crate::wire::packet::{Headers, Packet};
use std::fmt;

/// Length of the token at the front of each message in bytes.
pub const TOKEN_LEN: usize = 8;

/// Length of one flow control packet in bytes.
pub const FLOW_CONTROL_LEN: usize = 16;

/// Maximum number of flow control packets in a message: one for each lane except VL15, which has no credits (IBTA
/// 7.9).
pub const MAX_FLOW_CONTROLS: usize = 15;

/// Number of Ethernet priorities (IEEE 802.1Q).
pub const PRIORITIES: usize = 8;

/// The sender, the receiver and the sequence number of a message between ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortMessage {
    /// The slot of the receiving port.
    pub dest_slot: u8,
    /// The slot of the sending port.
    pub src_slot: u8,
    /// The sender's sequence number, which wraps from 65535 to 0.
    pub sequence: u16,
}

impl PortMessage {
    /// Position of the slot in a queue pair number or a PSN.
    const SLOT_SHIFT: u32 = 16;

    fn headers(self, opcode: Opcode) -> Headers {
        let slot = |slot: u8| u32::from(slot) << Self::SLOT_SHIFT;
        let psn = slot(self.src_slot) | u32::from(self.sequence);
        Headers::new(opcode, Qpn::new(slot(self.dest_slot)), Psn::new(psn))
    }

    fn of(operation: Operation, dest_qpn: Qpn, psn: Psn) -> Option<Self> {
        let [_, dest_slot, zeros @ ..] = dest_qpn.value().to_be_bytes();
        let [_, src_slot, high, low] = psn.value().to_be_bytes();
        let is_one = matches!(operation, Operation::FlowControl | Operation::Pause) && zeros == [0; 2];
        is_one.then_some(Self { dest_slot, src_slot, sequence: u16::from_be_bytes([high, low]) })
    }
}

impl fmt::Display for PortMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from={} to={} seq={}", self.src_slot, self.dest_slot, self.sequence)
    }
}

impl Headers {
    /// Link credits for the port in slot `dest_slot`. Send them only to rnic peers that support credits.
    #[must_use]
    pub fn flow_control(dest_slot: u8, src_slot: u8, sequence: u16) -> Self {
        PortMessage { dest_slot, src_slot, sequence }.headers(Opcode::RnicFlowControl)
    }

    /// A pause for the port in slot `dest_slot`; [`PauseTimes::emit`] creates its payload. Send it only to rnic
    /// peers that obey pauses.
    #[must_use]
    pub fn pause(dest_slot: u8, src_slot: u8, sequence: u16) -> Self {
        PortMessage { dest_slot, src_slot, sequence }.headers(Opcode::RnicPause)
    }

    /// The sender and the receiver, if these are the headers of a message between ports.
    #[must_use]
    pub fn port_message(&self) -> Option<PortMessage> {
        PortMessage::of(self.opcode.info_ref().operation, self.dest_qpn, self.psn)
    }
}

impl<'a> Packet<'a> {
    /// The sender and the receiver, if this is a message between ports. Also `None` if the destination is a queue
    /// pair instead of a port: no peer sends that.
    #[must_use]
    pub fn port_message(&self) -> Option<PortMessage> {
        PortMessage::of(self.info().operation, self.dest_qpn(), self.psn())
    }

    /// The token that the sender of a message between ports, of telemetry or of a congestion notification shows. Peers that are not
    /// rnic leave the reserved bytes of a notification zero, which is no token.
    #[must_use]
    pub fn token(&self) -> u64 {
        match self.info().operation {
            Operation::Cnp => self.cnp_token().unwrap_or(0),
            Operation::FlowControl | Operation::Pause | Operation::Telemetry => {
                self.payload().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
            }
            _ => 0,
        }
    }

    /// What follows the token in a message of rnic.
    pub(super) fn said(&self) -> &'a [u8] {
        self.payload().get(TOKEN_LEN..).unwrap_or_default()
    }

    /// The flow control packets, if it is a message of link credits with 1 to 15 whole ones.
    #[must_use]
    pub fn flow_controls(&self) -> Option<&'a [[u8; FLOW_CONTROL_LEN]]> {
        let (packets, rest) = self.said().as_chunks();
        let whole = rest.is_empty() && (1..=MAX_FLOW_CONTROLS).contains(&packets.len());
        (whole && self.info().operation == Operation::FlowControl).then_some(packets)
    }

    /// The pause times, if this is a pause with a payload of the right length.
    #[must_use]
    pub fn pause_times(&self) -> Option<PauseTimes> {
        let payload = self.said().try_into().ok()?;
        (self.info().operation == Operation::Pause).then(|| PauseTimes::parse(payload))
    }
}

/// The pause time of each priority: `None` for no change, otherwise how long the peer must not send it, in units of
/// 512 bit times at the port's rate (IEEE 802.1Qbb). A time of 0 ends a pause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PauseTimes(pub [Option<u16>; PRIORITIES]);

impl PauseTimes {
    /// Length of a pause payload in bytes: the vector, the times, and zeros up to a multiple of 4.
    pub const LEN: usize = 20;

    /// Parses the payload of a pause. Ignores the reserved bits (the upper half of the vector, the last two bytes)
    /// and the times of priorities that are not set in the vector.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, vector, times @ .., _, _] = bytes;
        let (words, _) = times.as_chunks::<2>();
        let mut quanta = [None; PRIORITIES];
        for (priority, (time, word)) in quanta.iter_mut().zip(words).enumerate() {
            *time = (vector >> priority & 1 == 1).then_some(u16::from_be_bytes(*word));
        }
        Self(quanta)
    }

    /// The payload of a pause, with reserved bits set to zero.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let [_, vector, times @ .., _, _] = &mut bytes;
        let (words, _) = times.as_chunks_mut::<2>();
        for (priority, (time, word)) in self.0.iter().zip(words).enumerate() {
            if let Some(quanta) = time {
                *vector |= 1 << priority;
                *word = quanta.to_be_bytes();
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PKey;
    use proptest::prelude::*;

    const TOKEN: [u8; TOKEN_LEN] = [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8];

    /// A message with this behind its token.
    fn packet(headers: &Headers, said: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xee; headers.wire_len()];
        headers.emit(&mut bytes, TOKEN_LEN + said.len());
        bytes.extend(TOKEN);
        bytes.extend(said);
        bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
        bytes
    }

    #[test]
    fn bytes_of_a_flow_control_message() {
        let said: [u8; 32] = std::array::from_fn(|n| n as u8 + 1);
        let bytes = packet(&Headers::flow_control(0x12, 0x34, 0x5678), &said);
        let mut expected = vec![0xc0, 0, 0xff, 0xff, 0, 0x12, 0, 0, 0, 0x34, 0x56, 0x78];
        expected.extend(TOKEN);
        expected.extend(said);
        assert_eq!(bytes[..52], expected);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.token(), 0xa1a2_a3a4_a5a6_a7a8);
        let message = PortMessage { dest_slot: 0x12, src_slot: 0x34, sequence: 0x5678 };
        assert_eq!(packet.port_message(), Some(message));
        assert_eq!(packet.pkey(), PKey::DEFAULT);
        assert_eq!(packet.flow_controls().map(<[_]>::as_flattened), Some(&said[..]));
        assert_eq!(packet.pause_times(), None);
    }

    #[test]
    fn bytes_of_a_pause() {
        let mut times = PauseTimes::default();
        (times.0[0], times.0[3], times.0[7]) = (Some(0x1234), Some(0), Some(u16::MAX));
        let bytes = packet(&Headers::pause(1, 2, 3), &times.emit());
        let mut expected = vec![0xc1, 0, 0xff, 0xff, 0, 1, 0, 0, 0, 2, 0, 3];
        expected.extend(TOKEN);
        expected.extend([0, 0x89, 0x12, 0x34]);
        expected.extend([0; 12]);
        expected.extend([0xff, 0xff, 0, 0]);
        assert_eq!(bytes[..40], expected);
        let parsed = Packet::parse(&bytes).unwrap();
        assert_eq!(parsed.token(), 0xa1a2_a3a4_a5a6_a7a8);
        assert_eq!(parsed.pause_times(), Some(times));
        assert_eq!(parsed.flow_controls(), None, "it is the wrong kind of message");
        // Reserved bits, and times not enabled by the vector, have no effect.
        let mut other = bytes.clone();
        (other[20], other[25], other[38]) = (0xff, 0xff, 0xff);
        assert_eq!(Packet::parse(&other).unwrap().pause_times(), Some(times));
    }

    #[test]
    fn payloads_of_another_length_are_not_parsed() {
        for len in 0..280 {
            let bytes = packet(&Headers::flow_control(1, 2, 3), &vec![7; len]);
            let found = Packet::parse(&bytes).unwrap().flow_controls().map(<[_]>::len);
            let right = (16..=240).contains(&len) && len % 16 == 0;
            assert_eq!(found, right.then_some(len / 16), "{len} bytes");
            let bytes = packet(&Headers::pause(1, 2, 3), &vec![7; len]);
            assert_eq!(Packet::parse(&bytes).unwrap().pause_times().is_some(), len == 20, "{len} bytes");
        }
    }

    #[test]
    fn a_message_too_short_for_a_token_says_nothing() {
        for len in 0..TOKEN_LEN {
            for headers in [Headers::flow_control(1, 2, 3), Headers::pause(1, 2, 3)] {
                let mut bytes = vec![0; headers.wire_len()];
                headers.emit(&mut bytes, len);
                bytes.extend(vec![7; len]);
                bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
                let packet = Packet::parse(&bytes).unwrap();
                assert_eq!((packet.token(), packet.flow_controls(), packet.pause_times()), (0, None, None));
            }
        }
    }

    #[test]
    fn a_congestion_notification_shows_its_token_in_its_reserved_bytes() {
        let headers = Headers { token: 0x0102_0304_0506_0708, ..Headers::cnp(Qpn::new(5)) };
        let mut bytes = vec![0xee; headers.wire_len()];
        headers.emit(&mut bytes, 0);
        assert_eq!(bytes[12..28], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 4]);
        assert_eq!(Packet::parse(&bytes).unwrap().token(), headers.token);
        assert_eq!(Headers::of(&Packet::parse(&bytes).unwrap()), headers);
    }

    #[test]
    fn other_packets_are_not_for_ports() {
        for &opcode in Opcode::ALL {
            let headers = Headers::new(opcode, Qpn::new(0x05_0000), Psn::new(0x06_0007));
            let mut bytes = vec![0; headers.wire_len()];
            headers.emit(&mut bytes, 0);
            bytes.extend([0; 4]);
            let of_ports = matches!(opcode, Opcode::RnicFlowControl | Opcode::RnicPause);
            assert_eq!(Packet::parse(&bytes).unwrap().port_message().is_some(), of_ports, "{opcode:?}");
            assert_eq!(headers.port_message().is_some(), of_ports, "{opcode:?}");
        }
        for qpn in [1, 0x8000, 0xff_ffff] {
            let headers = Headers { dest_qpn: Qpn::new(qpn), ..Headers::pause(0, 0, 0) };
            assert_eq!(headers.port_message(), None, "queue pair {qpn:#x}");
        }
    }

    proptest! {
        #[test]
        fn emitted_fields_parse_back(dest_slot: u8, src_slot: u8, sequence: u16, times: [Option<u16>; PRIORITIES]) {
            let message = PortMessage { dest_slot, src_slot, sequence };
            let bytes = packet(&Headers::pause(dest_slot, src_slot, sequence), &PauseTimes(times).emit());
            let parsed = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(parsed.port_message(), Some(message));
            prop_assert_eq!(parsed.pause_times(), Some(PauseTimes(times)));
            prop_assert_eq!(Headers::flow_control(dest_slot, src_slot, sequence).port_message(), Some(message));
        }
    }
}
