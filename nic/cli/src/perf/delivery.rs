//! What the counters of both sides say about lost and repeated packets.

use super::Counters;
use super::report::Run;
use serde::Serialize;
use std::fmt;

/// Counters that increase only if a packet of a measurement did not arrive. Drops for other reasons may come from
/// earlier clients, or from messages between ports.
const LOST: [&str; 12] = [
    "out_of_seq_request",
    "rcvd_seq_err",
    "implied_nak_seq_err",
    "socket_rx_overrun",
    "link_rx_dropped",
    "link_rx_overrun",
    "dropped_bad_icrc",
    "dropped_bad_len",
    "dropped_out_of_sequence",
    "dropped_no_receive",
    "dropped_unreliable",
    "dropped_truncated",
];

/// Counters of retransmissions, which follow a loss or a late answer.
const REPEATED: [&str; 5] = [
    "local_ack_timeout_err",
    "retransmitted_pkts",
    "duplicate_request",
    "dropped_stale_duplicate",
    "dropped_ghost_response",
];

/// Counters of receivers that were not ready.
const NOT_READY: [&str; 1] = ["rcvd_rnr_err"];

/// Whether every packet arrived in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Delivery {
    /// Nothing was lost or repeated.
    Clean,
    /// A receiver had no receive posted, and packets were retransmitted later.
    NotReady,
    /// Acknowledgement timers expired, but all retransmitted packets had arrived before.
    LateAnswers,
    /// Packets were lost.
    Lost,
}

impl Delivery {
    /// A sentence for the report; `None` if all is well.
    pub(super) fn explain(self) -> Option<&'static str> {
        match self {
            Self::Clean => None,
            Self::NotReady => Some("No packet was lost, but a receiver was not ready:"),
            Self::LateAnswers => {
                Some("No packet was lost, but acknowledgements came too late and packets were repeated:")
            }
            Self::Lost => Some("Packets were lost:"),
        }
    }
}

/// Sums of the relevant counters that are not 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) client: Counters,
    pub(super) server: Counters,
    /// Messages of an unreliable service that did not arrive.
    pub(super) lost_messages: u64,
}

fn matters(name: &str) -> bool {
    [&LOST[..], &REPEATED, &NOT_READY].iter().any(|group| group.contains(&name))
}

fn add(sums: &mut Counters, name: &str, value: u64) {
    if value > 0 && matters(name) {
        *sums.entry(name.to_owned()).or_default() += value;
    }
}

impl Tally {
    /// Adds the counters of a run. On the server's side, those of this client's queue pairs count. Only the device
    /// counts packets that were dropped before they reached a queue pair.
    pub(super) fn add(&mut self, run: &Run) {
        self.lost_messages += run.loss.map_or(0, |loss| loss.lost);
        for (name, value) in &run.client {
            add(&mut self.client, name, *value);
        }
        let of_device = run.server.iter().filter(|(name, _)| !run.server_qps.contains_key(*name));
        for (name, value) in of_device.chain(&run.server_qps) {
            add(&mut self.server, name, *value);
        }
    }

    /// The relevant counters of the server's queue pairs only.
    pub(super) fn of_server(counted: &Counters) -> Counters {
        let mut sums = Counters::new();
        for (name, value) in counted {
            add(&mut sums, name, *value);
        }
        sums
    }

    /// Whether all counters are 0.
    pub(super) fn is_empty(&self) -> bool {
        self.client.is_empty() && self.server.is_empty()
    }

    fn sum(&self, names: &[&str]) -> u64 {
        let of = |counters: &Counters| names.iter().filter_map(|name| counters.get(*name)).sum::<u64>();
        of(&self.client) + of(&self.server)
    }

    /// The conclusion. In a reliable service, a retransmitted packet that was not a duplicate to its receiver had been
    /// lost.
    pub(super) fn delivery(&self, is_reliable: bool) -> Delivery {
        if self.sum(&LOST) + self.lost_messages > 0 {
            return Delivery::Lost;
        }
        if self.sum(&NOT_READY) > 0 {
            return Delivery::NotReady;
        }
        if is_reliable && self.sum(&["retransmitted_pkts"]) > self.sum(&["duplicate_request"]) {
            return Delivery::Lost;
        }
        if self.sum(&REPEATED) > 0 { Delivery::LateAnswers } else { Delivery::Clean }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (side, counters) in [("client", &self.client), ("server", &self.server)] {
            if !counters.is_empty() {
                let list: Vec<_> = counters.iter().map(|(name, value)| format!("{name} {value}")).collect();
                writeln!(f, "  {side}: {}", list.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(list: &[(&str, u64)]) -> Counters {
        list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn tally(client: &[(&str, u64)], server: &[(&str, u64)]) -> Tally {
        Tally { client: counters(client), server: counters(server), lost_messages: 0 }
    }

    #[test]
    fn late_answers_are_told_from_losses() {
        let late =
            tally(&[("local_ack_timeout_err", 1), ("retransmitted_pkts", 3)], &[("duplicate_request", 3)]);
        assert_eq!(late.delivery(true), Delivery::LateAnswers);
        // One of the three had not arrived before.
        let lost =
            tally(&[("local_ack_timeout_err", 1), ("retransmitted_pkts", 3)], &[("duplicate_request", 2)]);
        assert_eq!(lost.delivery(true), Delivery::Lost);
        let gap = tally(&[("retransmitted_pkts", 3)], &[("duplicate_request", 3), ("out_of_seq_request", 1)]);
        assert_eq!(gap.delivery(true), Delivery::Lost);
        let drop = tally(&[], &[("dropped_bad_icrc", 1)]);
        assert_eq!(drop.delivery(false), Delivery::Lost);
        let rnr = tally(&[("rcvd_rnr_err", 2), ("retransmitted_pkts", 2)], &[]);
        assert_eq!(rnr.delivery(true), Delivery::NotReady);
        assert_eq!(tally(&[], &[]).delivery(true), Delivery::Clean);
        let messages = Tally { lost_messages: 1, ..Tally::default() };
        assert_eq!(messages.delivery(false), Delivery::Lost);
    }

    #[test]
    fn only_counters_that_moved_and_matter_are_listed() {
        let mut sums = Counters::new();
        for (name, value) in [("sent_pkts", 9), ("retransmitted_pkts", 2), ("duplicate_request", 0)] {
            add(&mut sums, name, value);
        }
        let all = Tally { client: sums, ..Tally::default() };
        assert_eq!(all.to_string(), "  client: retransmitted_pkts 2\n");
    }
}
