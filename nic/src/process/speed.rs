//! The rate of a port in the units of verbs: lanes, and the speed of each.

use cc::Rate;

/// The rate of a port in the units of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpeed {
    /// `active_width` of `ibv_port_attr`.
    pub width: u8,
    /// `active_speed` of `ibv_port_attr`, or `active_speed_ex`.
    pub speed: u16,
    text: &'static str,
}

impl PortSpeed {
    /// The text in sysfs: `100 Gb/sec (4X EDR)`.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }
}

/// The speeds that Linux reports for Ethernet rates (`ib_get_eth_speed` and mlx5), each up to a number of Gb/s.
const SPEEDS: [(u64, PortSpeed); 9] = [
    (1, PortSpeed { width: 1, speed: 1, text: "2.5 Gb/sec (1X SDR)" }),
    (10, PortSpeed { width: 1, speed: 4, text: "10 Gb/sec (1X QDR)" }),
    (20, PortSpeed { width: 2, speed: 2, text: "20 Gb/sec (4X DDR)" }),
    (25, PortSpeed { width: 1, speed: 32, text: "25 Gb/sec (1X EDR)" }),
    (40, PortSpeed { width: 2, speed: 4, text: "40 Gb/sec (4X QDR)" }),
    (50, PortSpeed { width: 16, speed: 32, text: "50 Gb/sec (2X EDR)" }),
    (100, UNLIMITED),
    (200, PortSpeed { width: 2, speed: 64, text: "200 Gb/sec (4X HDR)" }),
    (400, PortSpeed { width: 2, speed: 128, text: "400 Gb/sec (4X NDR)" }),
];

/// The speed of a port without a rate limit. Programs size their queues by it, and no host that runs rnic is faster.
const UNLIMITED: PortSpeed = PortSpeed { width: 2, speed: 32, text: "100 Gb/sec (4X EDR)" };

/// The speed of a port with a link of this rate: the slowest Ethernet speed that is at least this rate, if there is
/// one.
#[must_use]
#[doc(alias = "ibv_query_port_speed")]
pub fn speed(rate: Option<Rate>) -> PortSpeed {
    let Some(rate) = rate else { return UNLIMITED };
    let found = SPEEDS.iter().find(|(gbps, _)| rate <= Rate::from_gbps(*gbps)).or(SPEEDS.last());
    found.map_or(UNLIMITED, |(_, speed)| *speed)
}
