//! Which work requests each queue pair accepts.

use super::{PostError, QpConfig};
use crate::attr::QpType;
use crate::wire::headers::XrcEth;
use crate::work::{Destination, Gather, Operation, RecvWr, SendWr};

/// Checks a request against a queue pair's configuration, regardless of its state and how full its queues are. A
/// driver can do this without holding the queue pair.
///
/// # Errors
///
/// [`PostError::NoQueue`], [`PostError::Unsupported`], [`PostError::Destination`], [`PostError::InlineResult`],
/// [`PostError::TooManySges`] or [`PostError::TooMuchInline`].
pub fn check_request(config: &QpConfig, wr: &SendWr) -> Result<(), PostError> {
    let qp_type = config.qp_type;
    if qp_type == QpType::XrcRecv {
        return Err(PostError::NoQueue { queue: "send", qp_type });
    }
    if !offers(qp_type, wr.operation) {
        return Err(PostError::Unsupported { operation: wr.operation.name(), qp_type });
    }
    if matches!(wr.operation, Operation::Send { imm: Some(_), invalidate: Some(_) }) {
        // No opcode carries both.
        let operation = "SEND with both immediate data and invalidation";
        return Err(PostError::Unsupported { operation, qp_type });
    }
    if let Some(needed) = missing_destination(qp_type, wr) {
        return Err(PostError::Destination { qp_type, needed });
    }
    if wr.operation.brings_data() && matches!(wr.data, Gather::Inline(_)) {
        return Err(PostError::InlineResult { operation: wr.operation.name() });
    }
    match &wr.data {
        Gather::Inline(bytes) if bytes.len() > config.cap.max_inline_data as usize => {
            Err(PostError::TooMuchInline { given: bytes.len(), max: config.cap.max_inline_data })
        }
        other if other.elements().len() > config.cap.max_send_sge as usize => {
            Err(PostError::TooManySges { given: other.elements().len(), max: config.cap.max_send_sge })
        }
        _ => Ok(()),
    }
}

/// Checks a receive against a queue pair's configuration, regardless of its state and how full its queues are.
///
/// # Errors
///
/// [`PostError::NoQueue`], [`PostError::UsesSharedReceiveQueue`] or [`PostError::TooManySges`].
pub fn check_receive(config: &QpConfig, wr: &RecvWr) -> Result<(), PostError> {
    let qp_type = config.qp_type;
    if matches!(qp_type, QpType::XrcSend | QpType::XrcRecv) {
        return Err(PostError::NoQueue { queue: "receive", qp_type });
    }
    if config.has_srq {
        return Err(PostError::UsesSharedReceiveQueue);
    }
    let (given, max) = (wr.data.elements().len(), config.cap.max_recv_sge);
    if given > max as usize { Err(PostError::TooManySges { given, max }) } else { Ok(()) }
}

/// The operations of each service (IBTA table 47; annex A19 for the last two; memory windows: 10.6.7.2).
fn offers(qp_type: QpType, operation: Operation) -> bool {
    let requester = matches!(qp_type, QpType::Rc | QpType::XrcSend);
    match operation {
        Operation::Send { invalidate: None, .. } => true,
        Operation::Send { invalidate: Some(_), .. }
        | Operation::Read { .. }
        | Operation::CompareSwap { .. }
        | Operation::FetchAdd { .. } => requester,
        Operation::Write { .. } | Operation::LocalInvalidate { .. } | Operation::BindWindow(_) => {
            qp_type.is_connected()
        }
        Operation::AtomicWrite { .. } | Operation::Flush { .. } => qp_type == QpType::Rc,
    }
}

/// The part of the destination that the request lacks.
fn missing_destination(qp_type: QpType, wr: &SendWr) -> Option<&'static str> {
    match (qp_type, &wr.to) {
        _ if wr.operation.is_local() => None,
        (QpType::Ud | QpType::Gsi, Destination::Datagram { .. }) => None,
        (QpType::Ud | QpType::Gsi, _) => Some("an address handle, a remote QPN and a Q_Key"),
        (QpType::XrcSend, Destination::XrcSrq(number)) if *number <= XrcEth::SRQN_MASK => None,
        (QpType::XrcSend, _) => Some("the number of a shared receive queue at the peer, below 2^24"),
        (_, Destination::Connected) => None,
        _ => Some("no destination: the queue pair is connected to its peer"),
    }
}
