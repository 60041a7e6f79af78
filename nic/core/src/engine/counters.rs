//! Counters of a port, and the reasons for which it drops packets.

use cc::pfc::PRIORITIES;
use qp::queue_pair::PacketDrop;
use qp::wire::WireError;
use time::Duration;

/// Declares each reason once: generates the enum, its names and the counters.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// Why a packet from the wire had no effect. Every packet that arrives is either handled or counted under
        /// exactly one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[doc = $doc])* $variant,)* }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What the reason means.
            #[must_use]
            pub fn explain(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim_ascii_start(),)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers indicate, or than any valid packet.
    BadLength = "dropped_bad_len",
    /// Transport version other than 0.
    BadVersion = "dropped_bad_tver",
    /// An opcode that RoCEv2 does not have.
    BadOpcode = "dropped_bad_opcode",
    /// The ICRC does not match for any IPv4 identification.
    BadIcrc = "dropped_bad_icrc",
    /// No queue pair has the destination number.
    NoQp = "dropped_no_qp",
    /// Its destination number is one of another process that shares the address.
    Misrouted = "dropped_misrouted",
    /// The queue pair's service differs from the opcode's.
    WrongService = "dropped_wrong_service",
    /// The queue pair is in a state that accepts no packets.
    BadState = "dropped_bad_state",
    /// The packet's partition key does not match.
    BadPkey = "dropped_bad_pkey",
    /// The datagram's Q_Key does not match.
    BadQkey = "dropped_bad_qkey",
    /// The packet does not come from the address that the queue pair is connected to.
    BadAddress = "dropped_bad_addr",
    /// A duplicate of a READ or atomic whose response is no longer kept.
    StaleDuplicate = "dropped_stale_duplicate",
    /// A request ahead of a gap, after the NAK for the gap was sent.
    OutOfSequence = "dropped_out_of_sequence",
    /// A response that matches no outstanding request.
    Ghost = "dropped_ghost_response",
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome = "dropped_reserved_syndrome",
    /// A message over an unreliable service for which no receive work request was posted.
    NoReceive = "dropped_no_receive",
    /// A packet over an unreliable service that cannot be delivered: it follows a gap, violates a rule, or is too long
    /// for its receive.
    Unreliable = "dropped_unreliable",
    /// A datagram to a multicast group that no queue pair is attached to, or one of whose address and destination queue
    /// pair number only one denotes a group.
    NoGroup = "dropped_no_group",
    /// Credits, a pause or telemetry from a peer that has not identified itself as rnic.
    Stranger = "dropped_stranger",
    /// Credits, a pause, telemetry or a congestion notification in the name of a peer, without its token; or
    /// a notification of a foreign peer that is not the queue pair's own, or that sends them more often than a
    /// receiver would.
    BadToken = "dropped_bad_token",
    /// A management datagram of a class or method that nothing at the port handles. A request is answered: the port does
    /// not support it.
    NoAgent = "dropped_no_agent",
    /// A request for a connection or a service from an unproven address, beyond the number that is processed per second.
    Requests = "dropped_requests",
    /// Telemetry without one to five hops, or of a port at a rate that does not exist.
    BadTelemetry = "dropped_bad_telemetry",
    /// A datagram that the receive buffer truncated.
    Truncated = "dropped_truncated",
    /// The port was disabled on purpose, or its device failed.
    PortDown = "dropped_port_down",
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::UnsupportedVersion(_) => Self::BadVersion,
            WireError::UnknownOpcode(_) => Self::BadOpcode,
            _ => Self::BadLength,
        }
    }
}

impl From<PacketDrop> for DropReason {
    fn from(drop: PacketDrop) -> Self {
        match drop {
            PacketDrop::State => Self::BadState,
            PacketDrop::Service => Self::WrongService,
            PacketDrop::StaleDuplicate => Self::StaleDuplicate,
            PacketDrop::OutOfSequence => Self::OutOfSequence,
            PacketDrop::Ghost => Self::Ghost,
            PacketDrop::ReservedSyndrome => Self::ReservedSyndrome,
            PacketDrop::QKey => Self::BadQkey,
            PacketDrop::NoReceive => Self::NoReceive,
            PacketDrop::Unreliable => Self::Unreliable,
        }
    }
}

/// Pauses of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityPauses {
    /// Received pauses that named it, including ends of pauses.
    pub rx_pause: u64,
    /// For how long peers have paused it, excluding current pauses. Pauses of several peers add up.
    pub rx_pause_duration: Duration,
    /// Pauses that ended.
    pub rx_pause_transition: u64,
    /// Sent pauses that named it, including ends of pauses.
    pub tx_pause: u64,
}

impl PriorityPauses {
    /// [`rx_pause_duration`](Self::rx_pause_duration) in whole microseconds.
    #[must_use]
    pub fn rx_pause_duration_us(&self) -> u64 {
        u64::try_from(self.rx_pause_duration.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Declares each counter that does not count drops once: generates fields, names and descriptions.
macro_rules! port_counters {
    ($($(#[doc = $doc:literal])* $field:ident,)*) => {
        /// Counters of a port that belong to no queue pair.
        #[derive(Clone, Debug)]
        pub struct PortCounters {
            drops: [u64; DropReason::ALL.len()],
            /// Pauses of each priority.
            pub pauses: [PriorityPauses; PRIORITIES],
            /// Counters of the connection manager.
            pub cm: cm::Counters,
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl Default for PortCounters {
            fn default() -> Self {
                Self {
                    drops: [0; DropReason::ALL.len()],
                    pauses: [PriorityPauses::default(); PRIORITIES],
                    cm: cm::Counters::default(),
                    $($field: 0,)*
                }
            }
        }

        impl PortCounters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let own = [$((stringify!($field), self.$field)),*];
                let drops = DropReason::ALL.iter().map(|r| (r.name(), self.dropped(*r)));
                own.into_iter().chain(drops).chain(self.cm.iter())
            }

            /// Name and description of every counter.
            pub fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
                let own = [$((stringify!($field), concat!($($doc),*).trim_ascii_start())),*];
                let drops = DropReason::ALL.iter().map(|r| (r.name(), r.explain()));
                own.into_iter().chain(drops).chain(cm::Counters::describe())
            }
        }
    };
}

port_counters! {
    /// Packets received, dropped ones included.
    rx_packets,
    /// Bytes received, BTH to ICRC.
    rx_bytes,
    /// Packets sent.
    tx_packets,
    /// Bytes sent, BTH to ICRC.
    tx_bytes,
    /// Packets whose ICRC matches only for an IPv4 identification that had to be solved for: this weakens the check to
    /// 16 bits.
    icrc_solved,
    /// Packets that arrived with the ECN field saying "congestion experienced".
    np_ecn_marked_roce_packets,
    /// Congestion notifications (CNPs) sent in response to such packets.
    np_cnp_sent,
    /// CNPs received that a queue pair obeyed.
    rp_cnp_handled,
    /// CNPs received that had no effect: there is no congestion control that reacts to them, or the queue pair does not
    /// exist, is not connected to their sender, or has not sent anything.
    rp_cnp_ignored,
    /// Telemetry of packets that was returned to their senders.
    tx_telemetry,
    /// Telemetry received that a queue pair obeyed.
    rx_telemetry,
    /// Times that a queue pair waited because the peer's window was full.
    window_stalls,
    /// Times that a queue pair whose packets are not acknowledged waited, so as not to overrun the receiver.
    pace_stalls,
    /// Times that a queue pair waited because the NIC in front of the wire had enough of its priority: counted in a
    /// simulated network.
    wire_stalls,
    /// Times that a queue pair waited because its congestion window was full: with Swift, NSCC and HPCC.
    congestion_stalls,
    /// Times that a queue pair waited for link credit.
    credit_stalls,
    /// Times that a queue pair waited to learn the kind of its peer, under the credit model.
    greeting_stalls,
    /// Times that a queue pair waited for the end of a pause.
    pause_stalls,
    /// Pauses that did not end, so that the watchdog of their priority treated them as a storm.
    pause_storms,
    /// Packets that the watchdog dropped instead of sending them.
    pause_storm_dropped_pkts,
    /// Flow control packets sent: they report how much was sent, and how much more the peer may send.
    tx_flow_control,
    /// Flow control packets received.
    rx_flow_control,
    /// Pauses sent.
    tx_pause,
    /// Pauses received.
    rx_pause,
    /// Datagrams for which their sender had no credit.
    excessive_buffer_overrun_errors,
    /// Peers that identified themselves as rnic; one that restarts counts again.
    partners_met,
    /// Peers that are rnic and fell silent while a queue pair waited for their credit.
    partners_lost,
    /// Peers that could not be remembered as partners, because too many peers without connected queue pairs were known.
    partners_refused,
    /// Peers that give no link credits to a port that supports them: a window bounds what is sent to them.
    foreign_peers,
    /// Unsolicited hellos, and questions beyond the number that is answered per second.
    hellos_ignored,
    /// Copies of datagrams to multicast groups that queue pairs accepted.
    mcast_copies,
    /// Copies that a queue pair refused, because of its Q_Key, its state or the lack of a receive, while others
    /// accepted theirs.
    mcast_copies_refused,
    /// Packets that did not leave because the port was disabled on purpose, or its device failed.
    tx_port_down,
    /// Asynchronous events that were not read before 1,024 newer ones came.
    async_events_lost,
}

impl PortCounters {
    /// Counts a dropped packet.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Number of packets dropped for one reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Number of packets dropped, for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.drops.iter().sum()
    }
}
