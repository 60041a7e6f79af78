//! How a link configuration sets up the engine: the rate of the port, and its protocols between rnic peers.

use super::{LinkProfile, Model};
use crate::engine::{CreditSetup, PartnerSetup, RateConfig};
use cc::inflight::{STOCK_RECEIVE_BUFFER, without_reserve};
use cc::pfc::WatchdogConfig;
use cc::{Algorithm, Rate};
use qp::wire::mad::hello::{Counting, Features};

/// The size of a credit block, in bytes of a packet on a cable (IBTA 7.9), or of the memory for which the kernel charges
/// a socket buffer.
const BLOCK: u16 = 64;

/// How far limits lag behind the available room on a cable, in blocks: less than a packet of 4 KiB, so that the read
/// of every such packet is advertised. Our choice.
const CABLE_LAG: u32 = 64;

/// The same between processes: as far as a pool lets it lag. A grant costs its sender as much as a packet, and the one
/// that it goes to as well: see the [measurements](cc::credits#what-it-costs).
const SOCKET_LAG: u32 = u32::MAX;

/// The default buffer of each lane in a simulation, in bytes: as far as a limit of InfiniBand can reach ahead.
const CABLE_BUFFER: u32 = 2048 * BLOCK as u32;

/// Pauses are counted at this rate if a port has no rate: all ports that communicate have to agree on it, and ports
/// without a rate send no pauses.
const PAUSE_RATE: Rate = Rate::from_gbps(10);

/// Where packets wait before they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// In a socket buffer of this many bytes, as the kernel grants them.
    Socket(u32),
    /// In a simulation: at the end of a cable.
    Cable,
}

impl LinkProfile {
    /// How the port paces its sending; `base` supplies the settings that the configuration of the link does not make.
    pub fn rate_config(&self, cc: &Algorithm, base: &RateConfig) -> RateConfig {
        RateConfig {
            policy: if *cc == Algorithm::Off { base.policy.clone() } else { Some(self.policy.clone()) },
            port_rate: self.rate.or(base.port_rate),
            ..base.clone()
        }
    }

    /// The protocol of the port between rnic peers; `base` supplies the settings that the configuration of the link
    /// does not make.
    pub fn partner_setup(&self, buffer: Buffer, base: &PartnerSetup) -> PartnerSetup {
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
        let (buffer, counting, local_counting, lag) = match buffer {
            // Packets that go on waiting in the queue of an emulated port leave it one by one.
            Buffer::Socket(bytes) => (
                match emulated {
                    // Packets leave its queue regardless of what the socket still holds back.
                    Some(emulated) => emulated.min(without_reserve(bytes) - may_hold_back(bytes)),
                    None => without_reserve(bytes),
                },
                Counting::DatagramCharge,
                if counts_packets { Counting::DatagramCharge } else { Counting::TrainCharge },
                SOCKET_LAG,
            ),
            Buffer::Cable => (
                emulated.unwrap_or(CABLE_BUFFER * u32::from(lanes)),
                Counting::PacketBytes,
                Counting::PacketBytes,
                CABLE_LAG,
            ),
        };
        CreditSetup {
            lanes,
            sl2vl: self.vl.sl2vl.map(|vl| vl % lanes),
            buffer,
            block: BLOCK,
            counting,
            local_counting,
            lag,
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

/// The messages of a partner that may wait in the buffer together: two asks ahead of what this port is known to have
/// heard ([`CreditSender::must_not_ask_until`](cc::credits::CreditSender::must_not_ask_until)), a third if they wait for
/// longer than a lease, and its own loan. With room for three, 64 partners whose leases ended together overran a stock
/// buffer that was read at 1 Mb/s. The kernel charges 832 bytes for each, as for the smallest packet.
const SAID: u16 = 4 * 832;

/// The assumed size of a socket buffer if the real one is unknown: that of a stock kernel.
pub const STOCK_BUFFER: u32 = STOCK_RECEIVE_BUFFER;
