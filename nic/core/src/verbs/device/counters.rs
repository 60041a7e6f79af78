//! The counters of a device, by name.

use crate::engine::PortCounters;
use crate::link::emulation::EmulationStats;
use crate::priority::{self, PRIORITIES, PriorityCounters};
use crate::tally::SocketCounters;
use qp::counters::QpCounters;

/// All counters of a device.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The port: traffic, and drops by reason.
    pub port: PortCounters,
    /// All queue pairs together, under the kernel's names.
    pub qp: QpCounters,
    /// The sockets; `None` in a simulation.
    pub socket: Option<SocketCounters>,
    /// The emulated link; `None` without one, in which case its counters are 0.
    pub link: Option<EmulationStats>,
}

impl Counters {
    /// The counters of each priority.
    #[must_use]
    pub fn priorities(&self) -> [PriorityCounters; PRIORITIES] {
        let stats = self.link.unwrap_or_default();
        std::array::from_fn(|priority| PriorityCounters {
            pauses: self.port.pauses[priority],
            queue: stats.priorities[priority],
        })
    }
}

/// A counter of the sockets: its name, its description, and its accessor.
type SocketCounter = (&'static str, &'static str, fn(&SocketCounters) -> u64);

const SOCKET: [SocketCounter; 3] = [
    (
        "socket_rx_overrun",
        "Datagrams that the kernel dropped because the socket's receive buffer was full.",
        |s| s.drops,
    ),
    (
        "socket_tx_refused",
        "Trains that the kernel refused to send, and that are lost: no such address here, no route, too long, a firewall.",
        |s| s.send_unreachable + s.send_too_big + s.send_filtered + s.send_failed,
    ),
    ("socket_tx_full", "Times that the kernel had no room for a train, which was sent later.", |s| {
        s.send_would_block
    }),
];

/// A counter of an emulated link: its name, its description, and its accessor.
type LinkCounter = (&'static str, &'static str, fn(&EmulationStats) -> u64);

const LINK: [LinkCounter; 7] = [
    ("link_rx_packets", "Packets that left the queue of the emulated port.", |s| s.dequeued_packets),
    ("link_rx_bytes", "Bytes that left it, as they count on Ethernet.", |s| s.dequeued_bytes),
    ("link_rx_marked", "Packets that it marked as having met congestion.", |s| s.marked),
    ("link_rx_dropped", "Packets that it dropped because its buffer was full.", |s| s.dropped),
    ("link_rx_queue_max", "The most bytes that ever waited in it.", |s| s.queue_bytes_max),
    ("link_tx_pause", "Pause frames that it had for its peers.", |s| s.pauses_sent),
    (
        "link_rx_overrun",
        "Packets that the socket buffer of a slow receiver had no room for, in a simulation.",
        |s| s.receiver_overrun,
    ),
];

impl Counters {
    /// Every counter with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let socket = self.socket.iter().flat_map(|s| SOCKET.map(|(name, _, value)| (name, value(s))));
        let stats = self.link.unwrap_or_default();
        let link = LINK.into_iter().map(move |(name, _, value)| (name, value(&stats)));
        let priorities = priority::counters(self.priorities());
        self.qp.iter().chain(self.port.iter()).chain(socket).chain(link).chain(priorities)
    }

    /// Every counter's name and description.
    pub fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
        let socket = SOCKET.iter().map(|(name, meaning, _)| (*name, *meaning));
        let link = LINK.iter().map(|(name, meaning, _)| (*name, *meaning));
        QpCounters::describe()
            .chain(PortCounters::describe())
            .chain(socket)
            .chain(link)
            .chain(priority::describe())
    }
}
