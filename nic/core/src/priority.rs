//! The counters of a port for each of its priorities, under the names of NVIDIA's mlx5 driver in `ethtool -S`.

use crate::engine::PriorityPauses;
use crate::link::emulation::PriorityStats;

/// Priorities of a port.
pub const PRIORITIES: usize = cc::pfc::PRIORITIES;

/// The counters of one priority: pauses, and the queue of an emulated port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityCounters {
    /// Pauses, of this port's packets and of those of its peers.
    pub pauses: PriorityPauses,
    /// The queue of the emulated port; all zero without one.
    pub queue: PriorityStats,
}

/// One kind of counter: its name for each priority, its description, and its accessor.
struct Kind {
    names: [&'static str; PRIORITIES],
    meaning: &'static str,
    value: fn(&PriorityCounters) -> u64,
}

macro_rules! names {
    ($before:literal $after:literal) => {
        [
            concat!($before, 0, $after),
            concat!($before, 1, $after),
            concat!($before, 2, $after),
            concat!($before, 3, $after),
            concat!($before, 4, $after),
            concat!($before, 5, $after),
            concat!($before, 6, $after),
            concat!($before, 7, $after),
        ]
    };
}

const KINDS: [Kind; 10] = [
    Kind {
        names: names!("rx_prio" "_packets"),
        meaning: "Packets of this priority that left the queue of the emulated port.",
        value: |c| c.queue.packets,
    },
    Kind {
        names: names!("rx_prio" "_bytes"),
        meaning: "Bytes of this priority that left it, as they count on Ethernet.",
        value: |c| c.queue.bytes,
    },
    Kind {
        names: names!("rx_prio" "_marked"),
        meaning: "Packets of this priority that it marked as having met congestion.",
        value: |c| c.queue.marked,
    },
    Kind {
        names: names!("rx_prio" "_discards"),
        meaning: "Packets of this priority that it dropped, for any reason.",
        value: |c| c.queue.discards(),
    },
    Kind {
        names: names!("rx_prio" "_cong_discard"),
        meaning: "Packets of this priority, if it is lossy, that it dropped because its buffer was full.",
        value: |c| c.queue.cong_discard,
    },
    Kind {
        names: names!("rx_prio" "_buf_discard"),
        meaning: "Packets of this priority, if it is lossless, that it dropped because the headroom was full.",
        value: |c| c.queue.buf_discard,
    },
    Kind {
        names: names!("rx_prio" "_pause"),
        meaning: "Pauses received that named this priority, ends of pauses included.",
        value: |c| c.pauses.rx_pause,
    },
    Kind {
        names: names!("rx_prio" "_pause_duration"),
        meaning: "Microseconds for which peers have had this port pause this priority.",
        value: |c| c.pauses.rx_pause_duration_us(),
    },
    Kind {
        names: names!("rx_prio" "_pause_transition"),
        meaning: "Pauses of this priority that ended.",
        value: |c| c.pauses.rx_pause_transition,
    },
    Kind {
        names: names!("tx_prio" "_pause"),
        meaning: "Pauses sent that named this priority, ends of pauses included.",
        value: |c| c.pauses.tx_pause,
    },
];

/// Every counter of every priority, with its name.
pub(crate) fn counters(all: [PriorityCounters; PRIORITIES]) -> impl Iterator<Item = (&'static str, u64)> {
    KINDS
        .iter()
        .flat_map(move |kind| kind.names.into_iter().zip(all).map(|(name, of)| (name, (kind.value)(&of))))
}

/// Every counter's name and description.
pub(crate) fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().flat_map(|kind| kind.names.map(|name| (name, kind.meaning)))
}
