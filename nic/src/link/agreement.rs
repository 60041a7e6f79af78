//! How a link configuration sets up the engine: the rate of the port, and its protocols between rnic peers.

use super::{LinkProfile, Model};
use crate::engine::{CreditSetup, PartnerSetup, RateConfig};
use cc::inflight::{STOCK_RECEIVE_BUFFER, without_reserve};
use cc::pfc::WatchdogConfig;
use cc::{Algorithm, Rate};
use qp::wire::mad::hello::{Counting, Features};
use std::time::Duration;

/// The size of a credit block on a shared socket buffer, in bytes as the kernel charges them. The 2048 blocks that a
/// limit can reach ahead are then a mebibyte: more than a stock buffer holds, and enough of a large one that WRITEs
/// of 1 MiB gain nothing from more (with half of it they lose 4 %). The smallest packet, 832 bytes, takes two blocks,
/// as much as four of half the size.
const SOCKET_BLOCK: u16 = 512;

/// The size of a credit block on a cable, in bytes (IBTA 7.9).
const CABLE_BLOCK: u16 = 64;

/// How far limits lag behind the available room on a cable, in blocks: less than a packet of 4 KiB, so that the read
/// of every such packet is advertised. Our choice.
const CABLE_ON_FREE: u16 = 64;

/// The same between processes, where an update costs as much as a packet. A sixth of what a stock buffer lends, about
/// a train of 64 KiB: with the fewest updates, one for half a buffer, WRITEs of 1 MiB lose 5 % of their throughput.
const SOCKET_ON_FREE: u16 = 128;

/// The default buffer of each lane in a simulation, in bytes: all that a limit can reach ahead.
const CABLE_BUFFER: u32 = 2048 * CABLE_BLOCK as u32;

/// Pauses are counted at this rate if a port has no rate: all ports that communicate have to agree on it, and ports
/// without a rate send no pauses.
const PAUSE_RATE: Rate = Rate::from_gbps(10);

/// Where packets wait before they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Buffer {
    /// In a socket buffer of this many bytes, as the kernel grants them.
    Socket(u32),
    /// In a simulation: at the end of a cable.
    Cable,
}

impl LinkProfile {
    /// How the port paces its sending; `base` supplies the settings that the configuration of the link does not make.
    pub(crate) fn rate_config(&self, cc: &Algorithm, base: &RateConfig) -> RateConfig {
        RateConfig {
            policy: if *cc == Algorithm::Off { base.policy.clone() } else { Some(self.policy.clone()) },
            port_rate: self.rate.or(base.port_rate),
            ..base.clone()
        }
    }

    /// The protocol of the port between rnic peers; `base` supplies the settings that the configuration of the link
    /// does not make.
    pub(crate) fn partner_setup(&self, buffer: Buffer, base: &PartnerSetup) -> PartnerSetup {
        let mut setup = base.clone();
        if self.rate.is_some() || setup.rate == Rate::default() {
            setup.rate = self.rate.unwrap_or(PAUSE_RATE);
        }
        if self.watchdog != WatchdogConfig::default() {
            setup.watchdog = self.watchdog;
        }
        if self.is_lossless() {
            setup.features |= Features::PAUSE;
        }
        // The socket is in front of the queue of a lossless port, and pauses do not guard it: peers send only what
        // the socket has room for.
        let guards_socket = self.is_lossless() && matches!(buffer, Buffer::Socket(_));
        if self.model == Model::IbCredits || guards_socket {
            setup.features |= Features::CREDITS;
            setup.credits = Some(self.credits(buffer));
        }
        setup
    }

    /// Whether the port tells peers to pause any priority.
    fn is_lossless(&self) -> bool {
        self.thresholds.iter().any(Option::is_some)
    }

    fn credits(&self, buffer: Buffer) -> CreditSetup {
        // On Ethernet, credit guards only the socket; pauses guard the queue behind it.
        let guarded = self.rate.filter(|_| self.model == Model::IbCredits);
        let emulated = guarded.map(|_| u32::try_from(self.buffer).unwrap_or(u32::MAX));
        let counts_packets = self.emulates() && self.model == Model::IbCredits;
        let lanes = self.vls.max(1);
        let (said, reserve) = match buffer {
            Buffer::Socket(bytes) => (SAID, bytes - without_reserve(bytes)),
            Buffer::Cable => (0, 0),
        };
        // The other end of a cable is a single peer.
        let newcomers = match buffer {
            Buffer::Socket(_) => NEWCOMERS,
            Buffer::Cable => 0,
        };
        let held_back = match buffer {
            Buffer::Socket(bytes) if emulated.is_none() => may_hold_back(bytes),
            _ => 0,
        };
        let (buffer, block, counting, local_counting, on_free) = match buffer {
            // Packets that go on waiting in the queue of an emulated port leave it one by one.
            Buffer::Socket(bytes) => (
                match emulated {
                    // Packets leave its queue regardless of what the socket still holds back.
                    Some(emulated) => emulated.min(without_reserve(bytes) - may_hold_back(bytes)),
                    None => without_reserve(bytes),
                },
                SOCKET_BLOCK,
                Counting::DatagramCharge,
                if counts_packets { Counting::DatagramCharge } else { Counting::TrainCharge },
                SOCKET_ON_FREE,
            ),
            Buffer::Cable => (
                emulated.unwrap_or(CABLE_BUFFER * u32::from(lanes)),
                CABLE_BLOCK,
                Counting::PacketBytes,
                Counting::PacketBytes,
                CABLE_ON_FREE,
            ),
        };
        CreditSetup {
            lanes,
            sl2vl: self.vl.sl2vl.map(|vl| vl % lanes),
            buffer,
            block,
            counting,
            local_counting,
            on_free,
            period: Duration::from_micros(self.fcp_period.into()),
            said,
            reserve,
            held_back,
            newcomers,
        }
    }
}

/// The number of packets of the buffer that are reserved for new partners. A choice of this project: a stock buffer
/// has about 40, and a crashed program is seldom restarted more often within the time that its credit takes to come
/// back.
const NEWCOMERS: u16 = 4;

/// While packets wait in a socket buffer of `bytes`, Linux goes on charging it for packets that were read, until they
/// are a quarter of it (`forward_threshold` of net/ipv4/udp.c): their credit must not return before there is room.
const fn may_hold_back(bytes: u32) -> u32 {
    bytes / 4
}

/// The messages of a partner: that it waits, that it obeys, and its own loans. The kernel charges 832 bytes for each,
/// as for the smallest packet.
const SAID: u16 = 3 * 832;

/// The assumed size of a socket buffer if the real one is unknown: that of a stock kernel.
pub(crate) const STOCK_BUFFER: u32 = STOCK_RECEIVE_BUFFER;
