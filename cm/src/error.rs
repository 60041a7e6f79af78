//! Misuse of the API.

use crate::state::ConnectionState;
use qp::QpType;
use thiserror::Error;

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    /// There is no such connection, or it is gone.
    #[error("there is no such connection")]
    UnknownConnection,
    /// There is no such listener.
    #[error("there is no such listener")]
    UnknownListener,
    /// There is no such query, or it was answered.
    #[error("there is no such query")]
    UnknownQuery,
    /// The connection is in a state in which the call means nothing.
    #[error("{call} needs another state than \"{state}\"")]
    WrongState {
        /// The call.
        call: &'static str,
        /// The connection's state.
        state: ConnectionState,
    },
    /// The connection is already established.
    #[error("the connection is already established")]
    AlreadyEstablished,
    /// There is more private data than the message carries.
    #[error("{len} bytes of private data; the {message} carries at most {max}")]
    PrivateDataTooLong {
        /// The message.
        message: &'static str,
        /// Length in bytes.
        len: usize,
        /// Capacity in bytes.
        max: usize,
    },
    /// Only queue pairs of some types can be connected, accept connections, or serve datagrams.
    #[error("{call} is not possible with a queue pair of type {qp_type}")]
    WrongType {
        /// The call.
        call: &'static str,
        /// The type.
        qp_type: QpType,
    },
    /// The service and address have a listener already.
    #[error("the service has a listener at this address already")]
    AddressInUse,
    /// A table is full.
    #[error("there are too many {of}; at most {max}")]
    Full {
        /// What there is too much of.
        of: &'static str,
        /// The bound.
        max: usize,
    },
    /// Attributes of this state do not exist, or not yet.
    #[error("the queue pair's attributes for this state are not known")]
    NoAttributes,
}
