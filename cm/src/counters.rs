//! What an endpoint counts.

use qp::wire::mad::cm::Attribute;

macro_rules! drop_reasons {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $name:literal, )*) => {
        /// Why a datagram was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason {
            $( $(#[doc = $doc])+ $variant, )*
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The name, as a counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => concat!("cm_dropped_", $name), )* }
            }

            /// What it counts.
            #[must_use]
            pub fn explain(self) -> &'static str {
                match self { $( Self::$variant => concat!($($doc),+).trim_ascii_start(), )* }
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

/// Declares what an endpoint counts besides messages and drops: fields, names and descriptions.
macro_rules! counters {
    ($( $(#[doc = $doc:literal])+ $field:ident = $name:literal, )*) => {
        /// Counters of an endpoint.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            received: [u64; Attribute::ALL.len()],
            sent: [u64; Attribute::ALL.len()],
            dropped: [u64; DropReason::ALL.len()],
            $( $(#[doc = $doc])+ pub $field: u64, )*
        }

        impl Counters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let messages = Attribute::ALL.into_iter().zip(NAMES);
                let messages = messages.flat_map(|(attribute, (_, rx, tx))| {
                    [(rx, self.received(attribute)), (tx, self.sent(attribute))]
                });
                let own = [$( ($name, self.$field) ),*];
                let dropped = DropReason::ALL.iter().map(|reason| (reason.name(), self.dropped(*reason)));
                messages.chain(own).chain(dropped)
            }

            /// Name and description of every counter.
            pub fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
                let messages = NAMES.into_iter().flat_map(|(what, rx, tx)| [(rx, what), (tx, what)]);
                let own = [$( ($name, concat!($($doc),+).trim_ascii_start()) ),*];
                let dropped = DropReason::ALL.iter().map(|reason| (reason.name(), reason.explain()));
                messages.chain(own).chain(dropped)
            }
        }
    };
}

/// The messages in the order of [`Attribute::ALL`]: what is counted, and the names of those received and sent.
const NAMES: [(&str, &str, &str); Attribute::ALL.len()] = [
    ("Requests for a connection (REQ).", "cm_rx_req", "cm_tx_req"),
    ("Messages that ask the peer to wait (MRA).", "cm_rx_mra", "cm_tx_mra"),
    ("Rejections (REJ).", "cm_rx_rej", "cm_tx_rej"),
    ("Replies to requests (REP).", "cm_rx_rep", "cm_tx_rep"),
    ("Messages that a connection is ready (RTU).", "cm_rx_rtu", "cm_tx_rtu"),
    ("Requests to close a connection (DREQ).", "cm_rx_dreq", "cm_tx_dreq"),
    ("Confirmations that a connection is closed (DREP).", "cm_rx_drep", "cm_tx_drep"),
    ("Questions for the queue pair of a service (SIDR_REQ).", "cm_rx_sidr_req", "cm_tx_sidr_req"),
    ("Answers to such questions (SIDR_REP).", "cm_rx_sidr_rep", "cm_tx_sidr_rep"),
    ("Requests for an alternate path (LAP).", "cm_rx_lap", "cm_tx_lap"),
    ("Answers to such requests (APR).", "cm_rx_apr", "cm_tx_apr"),
];

counters! {
    /// Messages sent again because no answer came.
    retries = "cm_tx_retries",
    /// Messages sent again because the message that they answer came again.
    repeated = "cm_rx_duplicates",
    /// Requests for a connection that were rejected by the connection manager itself, not by the program.
    rejected = "cm_rejected",
    /// Requests for a connection or a resolution that were held for a listener to come.
    held = "cm_held",
    /// Half-open connections that made room for others.
    evicted = "cm_evicted",
    /// Connections that left TIMEWAIT early, to make room for others.
    time_wait_overflow = "cm_time_wait_overflow",
    /// Requests that named the remote queue pair of an established connection.
    stale = "cm_stale",
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_counter_has_a_name_and_a_description() {
        let mut counters = Counters::default();
        for attribute in Attribute::ALL {
            counters.count_received(attribute);
        }
        let names: Vec<_> = counters.iter().map(|(name, _)| name).collect();
        assert!(Counters::describe().map(|(name, _)| name).eq(names.iter().copied()));
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(Counters::describe().all(|(name, what)| name.starts_with("cm_") && what.ends_with('.')));
        let received = counters.iter().filter(|(_, count)| *count == 1);
        assert!(received.map(|(name, _)| name).eq(NAMES.map(|(_, rx, _)| rx)));
        for (attribute, (what, rx, tx)) in Attribute::ALL.into_iter().zip(NAMES) {
            let name = attribute.name().to_ascii_lowercase();
            assert_eq!((rx, tx), (&*format!("cm_rx_{name}"), &*format!("cm_tx_{name}")));
            assert!(what.contains(attribute.name()), "{what}");
        }
    }
}
