//! What an endpoint counts.

use qp::wire::mad::cm::Attribute;

macro_rules! drop_reasons {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal, )*) => {
        /// Why a datagram was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason {
            $( $(#[$doc])* $variant, )*
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The name, as a counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }
        }
    };
}

drop_reasons! {
    /// It is no connection management datagram of a known version.
    Malformed = "malformed",
    /// The address in the REQ is not the one that the packet came from.
    ForgedAddress = "forged_address",
    /// The message names a connection of another address, or its IDs, transaction ID or queue pair are wrong.
    NotThisConnection = "not_this_connection",
    /// No connection has the communication ID of the message, and the message needs no answer.
    UnknownConnection = "unknown_connection",
    /// The message means nothing in the connection's state.
    WrongState = "wrong_state",
    /// A message that was already processed, and needs no answer.
    Duplicate = "duplicate",
    /// The listener's backlog is full.
    BacklogFull = "backlog_full",
    /// There are too many half-open connections.
    HalfOpenFull = "half_open_full",
    /// The source has too many half-open connections or queries.
    SourceQuota = "source_quota",
    /// There are too many connections.
    ConnectionsFull = "connections_full",
    /// Too many events wait for the program.
    EventsFull = "events_full",
    /// There are too many queries.
    QueriesFull = "queries_full",
    /// The answer could not wait to be sent: there are too many.
    AnswersFull = "answers_full",
}

/// Counters of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    received: [u64; Attribute::ALL.len()],
    sent: [u64; Attribute::ALL.len()],
    dropped: [u64; DropReason::ALL.len()],
    /// Messages sent again because no answer came.
    pub retries: u64,
    /// Messages sent again because the message that they answer came again.
    pub repeated: u64,
    /// REQs rejected by the endpoint itself, not by the program.
    pub rejected: u64,
    /// REQs held for a listener to come.
    pub held: u64,
    /// Half-open connections that made room for others.
    pub evicted: u64,
    /// Connections that left TIMEWAIT early, to make room for others.
    pub time_wait_overflow: u64,
    /// REQs that named the remote queue pair of an established connection.
    pub stale: u64,
}

/// The number of a message type, from 0.
const fn index(attribute: Attribute) -> usize {
    attribute as usize - Attribute::Req as usize
}

impl Counters {
    /// Messages received of this type.
    #[must_use]
    pub fn received(&self, attribute: Attribute) -> u64 {
        self.received.get(index(attribute)).copied().unwrap_or_default()
    }

    /// Messages sent of this type.
    #[must_use]
    pub fn sent(&self, attribute: Attribute) -> u64 {
        self.sent.get(index(attribute)).copied().unwrap_or_default()
    }

    /// Datagrams dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).copied().unwrap_or_default()
    }

    pub(crate) fn count_received(&mut self, attribute: Attribute) {
        if let Some(count) = self.received.get_mut(index(attribute)) {
            *count += 1;
        }
    }

    pub(crate) fn count_sent(&mut self, attribute: Attribute) {
        if let Some(count) = self.sent.get_mut(index(attribute)) {
            *count += 1;
        }
    }

    pub(crate) fn count_dropped(&mut self, reason: DropReason) {
        if let Some(count) = self.dropped.get_mut(reason as usize) {
            *count += 1;
        }
    }
}
