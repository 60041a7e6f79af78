//! The numbers that completions carry as `vendor_err`.

/// Declares the numbers once: the enum, the names and what they mean.
macro_rules! vendor_errors {
    ($($(#[doc = $doc:literal])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// Why a work request failed, as the number that its completion carries in `vendor_err`. The numbers stay what
        /// they are from version to version; 0 stands for no reason beyond the status.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u32)]
        pub enum VendorError { $($(#[doc = $doc])* $variant = $code,)* }

        impl VendorError {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number.
            #[must_use]
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The name, in the manner of the names of statuses.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it means.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim_ascii_start(),)* }
            }
        }
    };
}

vendor_errors! {
    /// Memory: no region or window has this key. It was never registered, or deregistered, or invalidated.
    UnknownKey = 1, "UNKNOWN_KEY";
    /// Memory: the key belongs to another protection domain than the queue pair.
    WrongDomain = 2, "WRONG_PD";
    /// Memory: the region was registered without a right that the access needs.
    Denied = 3, "RIGHT_MISSING";
    /// Memory: the range begins before the region or ends behind it.
    OutOfRange = 4, "OUT_OF_RANGE";
    /// Memory: an atomic operation at an address that is not a multiple of 8.
    Misaligned = 5, "MISALIGNED";
    /// Memory: the program unmapped or protected pages that are still registered.
    Fault = 6, "UNMAPPED";
    /// Memory: the key is that of a type 2 memory window which another queue pair bound.
    WrongQueuePair = 7, "WINDOW_OF_OTHER_QP";
    /// Memory: a work request cannot invalidate this key, because it is not that of a type 2 memory window.
    NotInvalidatable = 8, "NOT_INVALIDATABLE";
    /// Memory: the key of a memory window was used for local memory.
    RemoteOnly = 9, "WINDOW_AS_LKEY";
    /// Memory: the key is that of a memory window which is not bound.
    Unbound = 10, "WINDOW_NOT_BOUND";
    /// Bind: the key names no memory window of the protection domain.
    NoWindow = 32, "BIND_NO_WINDOW";
    /// Bind: a memory window of type 2 is bound already.
    Bound = 35, "BIND_ALREADY_BOUND";
    /// Bind: a memory window of type 2 was to be bound to no bytes.
    Empty = 36, "BIND_EMPTY";
    /// Bind: a memory window of type 1 was to be zero-based.
    ZeroBasedWindow = 37, "BIND_ZERO_BASED_WINDOW";
    /// Bind: the memory region is zero-based.
    ZeroBasedRegion = 38, "BIND_ZERO_BASED_REGION";
    /// Bind: the key that should name a memory region names a window.
    NotARegion = 39, "BIND_NOT_A_REGION";
    /// Bind: the memory region was registered without MW_BIND.
    NotBindable = 40, "BIND_NOT_ALLOWED";
    /// Bind: the memory region lacks a right that those of the window rest on.
    NeedsRight = 41, "BIND_RIGHT_MISSING";
    /// Peer: no answer ever came from the peer's queue pair.
    NeverAnswered = 64, "PEER_NEVER_ANSWERED";
    /// Peer: answers came from the peer's queue pair, and then no more.
    StoppedAnswering = 65, "PEER_STOPPED_ANSWERING";
    /// Peer: the peer expects other PSNs than this side sends. sq_psn here and rq_psn there differ.
    WrongPsn = 66, "WRONG_PSN";
    /// Peer: the peer had no receive posted, rnr_retry times in a row.
    NoReceiveAtPeer = 67, "PEER_NO_RECEIVE";
    /// Peer: it refused the access to its memory.
    PeerDenied = 68, "PEER_REFUSED_ACCESS";
    /// Peer: it found the request invalid.
    PeerFoundInvalid = 69, "PEER_FOUND_INVALID";
    /// Peer: it could not carry out the request, for a reason on its side.
    PeerFailed = 70, "PEER_FAILED";
    /// Peer: its response does not fit the request.
    BadResponse = 71, "BAD_RESPONSE";
    /// Request: the message is longer than 2^31 bytes.
    MessageTooLong = 80, "MESSAGE_TOO_LONG";
    /// Request: an atomic operation or ATOMIC_WRITE of other than 8 bytes.
    NotEightBytes = 81, "NOT_EIGHT_BYTES";
    /// Request: a READ or atomic operation on a queue pair whose max_rd_atomic is 0.
    NoInitiatorDepth = 82, "MAX_RD_ATOMIC_IS_0";
    /// Receive: the peer's packet does not belong to the message before it.
    OutOfPlace = 96, "OPCODE_OUT_OF_SEQUENCE";
    /// Receive: the peer asked for an operation that this device does not have.
    Unsupported = 97, "OPERATION_NOT_SUPPORTED";
    /// Receive: the length of the peer's packet does not fit the path MTU of this side.
    PacketLength = 98, "PATH_MTU_DIFFERS";
    /// Receive: the peer named a shared receive queue that does not exist.
    NoSharedReceive = 99, "NO_SUCH_SRQ";
    /// Receive: the shared receive queue failed.
    SharedReceiveFailed = 100, "SRQ_FAILED";
    /// Receive: the peer's message is longer than the receive that it met.
    ReceiveTooShort = 101, "RECEIVE_TOO_SHORT";
    /// Receive: qp_access_flags of the queue pair lack the right that the peer's request needs.
    NotEnabled = 102, "NOT_ENABLED_ON_QP";
    /// Receive: the peer's message is longer than 2^31 bytes, or its packets do not add up to the length announced.
    WrongLength = 103, "WRONG_LENGTH";
    /// Receive: the peer has more READs and atomics outstanding than max_dest_rd_atomic of the queue pair.
    TooManyReads = 104, "MAX_DEST_RD_ATOMIC_EXCEEDED";
    /// Receive: a header of the peer's request is missing or has reserved values.
    BadHeader = 105, "BAD_HEADER";
}

#[cfg(test)]
mod tests {
    use super::VendorError;

    #[test]
    fn each_vendor_error_has_a_number_and_a_name_of_its_own() {
        let codes: Vec<_> = VendorError::ALL.iter().map(|error| error.code()).collect();
        assert!(codes.is_sorted_by(|a, b| a < b) && codes[0] > 0, "{codes:?}");
        let mut names: Vec<_> = VendorError::ALL.iter().map(|error| error.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), codes.len());
    }
}
