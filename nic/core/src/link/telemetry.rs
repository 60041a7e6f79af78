//! Which packets collect what the ports on their way say, and how much longer that makes them.

use cc::hpcc::{HEADER_LEN, Telemetry};
use qp::wire::{Opcode, Operation, Transport};

/// Whether a packet collects telemetry if its sender uses it: the acknowledged ones that carry a message. A packet begins
/// with its opcode.
#[must_use]
pub fn collects(packet: &[u8]) -> bool {
    let info = packet.first().copied().and_then(Opcode::from_u8).map(Opcode::info);
    info.is_some_and(|info| {
        matches!(info.transport, Transport::Rc | Transport::Xrc)
            && matches!(info.operation, Operation::Send | Operation::Write)
    })
}

/// What telemetry takes on a cable, in a packet that collects it: the same however much it has.
#[must_use]
pub const fn telemetry_bytes(telemetry: Option<&Telemetry>) -> u32 {
    if telemetry.is_some() { HEADER_LEN } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_collect_and_answers_do_not() {
        use Opcode as O;
        for opcode in [O::RcSendFirst, O::RcWriteMiddle, O::RcWriteLast, O::RcSendOnly, O::XrcWriteOnly] {
            assert!(collects(&[opcode as u8, 0]), "{opcode:?}");
        }
        for opcode in
            [O::RcAcknowledge, O::RcReadRequest, O::RcReadResponseOnly, O::UcSendOnly, O::UdSendOnly]
        {
            assert!(!collects(&[opcode as u8, 0]), "{opcode:?}");
        }
        assert!(!collects(&[]) && !collects(&[0xff]));
        assert_eq!((telemetry_bytes(None), telemetry_bytes(Some(&Telemetry::default()))), (0, 42));
    }
}
