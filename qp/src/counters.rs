//! The counters of a queue pair.

/// Declares the counters once, and derives the struct, iteration by name, and addition.
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[doc = $doc])* pub $field: u64,)* }

        impl $name {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Every counter's name and description.
            pub fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$((stringify!($field), concat!($($doc),*).trim_ascii_start())),*].into_iter()
            }

            /// Adds another set of counters to this one.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// A counter set with a different value in each counter.
            #[cfg(test)]
            fn numbered() -> Self {
                let mut values = 1..;
                Self { $($field: values.next().unwrap()),* }
            }
        }
    };
}

counters! {
    /// Counters of one queue pair. They have the names that Linux uses (`rxe` first, `mlx5` where rxe has none), so
    /// that readers of `rdma statistic` recognise them. Counters that only rnic has use names of their own.
    pub struct QpCounters {
        /// Packets sent, retransmissions included.
        sent_pkts,
        /// Packets accepted from the wire.
        rcvd_pkts,
        /// Payload bytes sent, retransmissions included.
        sent_bytes,
        /// Payload bytes accepted.
        rcvd_bytes,
        /// Duplicate requests: answered again, but not executed again.
        duplicate_request,
        /// Requests that arrived ahead of the expected PSN.
        out_of_seq_request,
        /// Packets beyond a gap that were kept until it was closed: requests, and answers behind missing data (selective repeat).
        held_pkts,
        /// Selective acknowledgements sent.
        sent_selective_acks,
        /// Selective acknowledgements received.
        rcvd_selective_acks,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Sequence error NAKs received.
        rcvd_seq_err,
        /// Retransmissions that the completer started, for any reason.
        completer_retry_err,
        /// Requests that failed because the retry counter was exhausted.
        retry_exceeded_err,
        /// Requests that failed because the RNR retry counter was exhausted.
        retry_rnr_exceeded_err,
        /// Acknowledgements that were coalesced into a later one.
        ack_deferred,
        /// SEND messages whose first packet was sent.
        rdma_sends,
        /// Messages delivered to a receive work request.
        rdma_recvs,
        /// Expiries of the acknowledgement timer.
        local_ack_timeout_err,
        /// Responses that showed that an earlier READ or atomic response was lost (implied NAKs).
        implied_nak_seq_err,
        /// RDMA WRITE messages accepted.
        rx_write_requests,
        /// RDMA READ requests accepted.
        rx_read_requests,
        /// Atomic requests accepted.
        rx_atomic_requests,
        /// FLUSH requests accepted.
        rx_flush_requests,
        /// Requests that found no receive posted.
        out_of_buffer,
        /// Messages longer than the receive buffer.
        resp_local_length_error,
        /// Requests refused because of memory access rights.
        resp_remote_access_errors,
        /// Receive work requests that completed with an error.
        resp_cqe_error,
        /// Receive work requests flushed.
        resp_cqe_flush_error,
        /// Send work requests that completed with an error.
        req_cqe_error,
        /// Send work requests flushed.
        req_cqe_flush_error,
        /// Requests that the peer rejected as invalid.
        req_remote_invalid_request,
        /// Requests that the peer refused because of memory access rights.
        req_remote_access_errors,
        /// Packets retransmitted.
        retransmitted_pkts,
        /// Payload bytes retransmitted.
        retransmitted_bytes,
        /// Responses that matched no outstanding request and were ignored.
        ghost_responses,
    }
}

impl QpCounters {
    /// The counters that Linux shows for rxe devices (`rdma statistic`, `rxe_hw_counters.c`), under those names.
    /// `send_err` and `link_downed` belong to the port and are left out.
    pub fn rxe(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent_pkts", self.sent_pkts),
            ("rcvd_pkts", self.rcvd_pkts),
            ("duplicate_request", self.duplicate_request),
            ("out_of_seq_request", self.out_of_seq_request),
            ("rcvd_rnr_err", self.rcvd_rnr_err),
            ("send_rnr_err", self.send_rnr_err),
            ("rcvd_seq_err", self.rcvd_seq_err),
            ("ack_deferred", self.ack_deferred),
            ("retry_exceeded_err", self.retry_exceeded_err),
            ("retry_rnr_exceeded_err", self.retry_rnr_exceeded_err),
            ("completer_retry_err", self.completer_retry_err),
            ("rdma_sends", self.rdma_sends),
            ("rdma_recvs", self.rdma_recvs),
        ]
        .into_iter()
    }

    /// The counters that Linux shows for mlx5 devices (`mlx5/counters.c`), under those names, where they have a
    /// meaning here. Some count the same events as an rxe counter of another name.
    pub fn mlx5(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("rx_write_requests", self.rx_write_requests),
            ("rx_read_requests", self.rx_read_requests),
            ("rx_atomic_requests", self.rx_atomic_requests),
            ("out_of_buffer", self.out_of_buffer),
            ("out_of_sequence", self.out_of_seq_request),
            ("duplicate_request", self.duplicate_request),
            ("rnr_nak_retry_err", self.rcvd_rnr_err),
            ("packet_seq_err", self.rcvd_seq_err),
            ("implied_nak_seq_err", self.implied_nak_seq_err),
            ("local_ack_timeout_err", self.local_ack_timeout_err),
            ("resp_local_length_error", self.resp_local_length_error),
            ("resp_cqe_error", self.resp_cqe_error),
            ("req_cqe_error", self.req_cqe_error),
            ("req_remote_invalid_request", self.req_remote_invalid_request),
            ("req_remote_access_errors", self.req_remote_access_errors),
            ("resp_remote_access_errors", self.resp_remote_access_errors),
            ("resp_cqe_flush_error", self.resp_cqe_flush_error),
            ("req_cqe_flush_error", self.req_cqe_flush_error),
            ("req_transport_retries_exceeded", self.retry_exceeded_err),
            ("req_rnr_retries_exceeded", self.retry_rnr_exceeded_err),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addition() {
        let mut a = QpCounters { sent_pkts: 2, ..Default::default() };
        a.add(&QpCounters { sent_pkts: 3, ghost_responses: 1, ..Default::default() });
        assert!(QpCounters::describe().map(|(name, _)| name).eq(a.iter().map(|(name, _)| name)));
        assert_eq!(
            QpCounters::describe().next(),
            Some(("sent_pkts", "Packets sent, retransmissions included."))
        );
        let named: Vec<_> = a.iter().filter(|(_, v)| *v > 0).collect();
        assert_eq!(named, [("sent_pkts", 5), ("ghost_responses", 1)]);
    }

    /// A counter with the same name in Linux counts the same events. Where mlx5 uses another name, the test maps it
    /// to ours.
    #[test]
    fn counters_under_the_names_of_linux() {
        let counted = QpCounters::numbered();
        let ours = |wanted: &str| counted.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let of_mlx5 = |name| match name {
            "out_of_sequence" => "out_of_seq_request",
            "rnr_nak_retry_err" => "rcvd_rnr_err",
            "packet_seq_err" => "rcvd_seq_err",
            "req_transport_retries_exceeded" => "retry_exceeded_err",
            "req_rnr_retries_exceeded" => "retry_rnr_exceeded_err",
            same => same,
        };
        // `rxe_counter_descs` has 15 names, two of them for the port; we provide 20 of mlx5's.
        assert_eq!((counted.rxe().count(), counted.mlx5().count()), (13, 20));
        for (name, value) in counted.rxe() {
            assert_eq!(ours(name), Some(value), "{name}");
        }
        for (name, value) in counted.mlx5() {
            assert_eq!(ours(of_mlx5(name)), Some(value), "{name}");
        }
    }
}
