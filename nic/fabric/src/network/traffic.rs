//! What performance management counts at a port, beside the statistics of a run.

use super::{Drop, Fabric};
use crate::subnet::PortTraffic;
use crate::switch::lanes::LANES;
use crate::topology::NodeId;
use cc::Rate;
use time::Instant;

/// Bytes of a link's header, which packets have in front of BTH on InfiniBand (LRH).
const LINK_HEADER: usize = 8;

/// Bits of a word.
const WORD: u128 = 32;

/// Packets of a lane, and how long they waited.
#[derive(Clone, Debug, Default)]
struct Lane {
    packets: u64,
    words: u64,
    /// Since when its first packet waits for credit or the end of a pause, and for how long others did.
    since: Option<Instant>,
    picos: u64,
}

/// Packets of a port by lane, and how long they waited.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Flow {
    rcv_packets: u64,
    rcv_words: u64,
    /// As in a lane, while packets wait and none may be sent.
    since: Option<Instant>,
    picos: u64,
    lanes: [Lane; LANES],
}

/// The words of a packet from LRH to ICRC.
const fn words(bytes: usize) -> u64 {
    (bytes + LINK_HEADER).div_ceil(4) as u64
}

fn picos_since(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.picos_since(since)).unwrap_or(u64::MAX)
}

impl Flow {
    pub(super) fn send(&mut self, now: Instant, lane: usize, bytes: usize) {
        let lane = &mut self.lanes[lane];
        lane.packets += 1;
        lane.words += words(bytes);
        if let Some(since) = self.since.take() {
            self.picos += picos_since(now, since);
        }
    }

    pub(super) const fn receive(&mut self, bytes: usize) {
        self.rcv_packets += 1;
        self.rcv_words += words(bytes);
    }

    /// The line is free: lanes that wait and may not send wait from now on, and so does the port if none may.
    pub(super) fn note_waits(&mut self, now: Instant, waiting: u16, eligible: u16) {
        let blocked = waiting & !eligible;
        if blocked == 0 {
            return;
        }
        for lane in super::port::bits(blocked) {
            self.lanes[lane].since.get_or_insert(now);
        }
        if eligible == 0 {
            self.since.get_or_insert(now);
        }
    }

    /// The first packet of a lane leaves its queue.
    pub(super) fn end_wait(&mut self, now: Instant, lane: usize) {
        let lane = &mut self.lanes[lane];
        if let Some(since) = lane.since.take() {
            lane.picos += picos_since(now, since);
        }
    }
}

/// The number of words that a port of this rate sends in a time.
fn in_words(picos: u64, rate: Rate) -> u64 {
    let bits = u128::from(picos) * u128::from(rate.bits_per_second()) / 1_000_000_000_000;
    u64::try_from(bits / WORD).unwrap_or(u64::MAX)
}

impl Fabric {
    /// What a port has counted for performance management until `now`.
    #[must_use]
    pub fn port_traffic(&self, node: NodeId, port: usize, now: Instant) -> Option<PortTraffic> {
        let port = self.nodes.get(node)?.ports.get(port)?;
        let (flow, stats) = (&port.flow, &port.stats);
        let drops = |reasons: &[Drop]| reasons.iter().filter_map(|why| stats.drops.get(why)).sum();
        let waits = |picos: u64, since: Option<Instant>| {
            let still = since.map_or(0, |since| picos_since(now.max(since), since));
            in_words(picos.saturating_add(still), port.rate)
        };
        Some(PortTraffic {
            xmit_words: flow.lanes.iter().map(|lane| lane.words).sum(),
            rcv_words: flow.rcv_words,
            xmit_packets: stats.packets,
            rcv_packets: flow.rcv_packets,
            xmit_wait: waits(flow.picos, flow.since),
            damaged: drops(&[Drop::Damaged]),
            overruns: drops(&[Drop::NoCredit]),
            no_route: drops(&[Drop::NoRoute, Drop::NoHost]),
            no_lane: drops(&[Drop::NoLane]),
            looping: drops(&[Drop::TimeToLive]),
            inactive: drops(&[Drop::CableCut]),
            lifetime: drops(&[Drop::Lifetime]),
            head_of_queue: drops(&[Drop::HeadOfQueue]),
            full: drops(&[Drop::SharedFull, Drop::QueueFull, Drop::HeadroomFull, Drop::Storm]),
            link_downed: 0,
            lane_packets: flow.lanes.each_ref().map(|lane| lane.packets),
            lane_words: flow.lanes.each_ref().map(|lane| lane.words),
            lane_wait: flow.lanes.each_ref().map(|lane| waits(lane.picos, lane.since)),
        })
    }
}
