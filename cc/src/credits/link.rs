//! All lanes of a link to one peer.

use super::{CreditReceiver, CreditSender, FlowControlPacket, Op, Overrun, Stalls, distance};
use crate::setting::settable;
use crate::vl::Vl;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Settings of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The number of data lanes, 1 to 15.
    pub vls: u8,
    /// The buffer of each lane, in blocks of 64 bytes.
    pub blocks: u32,
    /// The longest time between two updates of a lane, in microseconds. InfiniBand's is 65,536 symbol times, which a
    /// process cannot meet; the default of 1 ms is our choice.
    pub fcp_period: u32,
    /// An update is sent at once when it would raise the limit by this many blocks. The default of 64 is our choice: a
    /// packet of 4 KiB.
    pub fcp_on_free_blocks: u16,
}

settable!(Config: vls blocks fcp_period fcp_on_free_blocks);

impl Default for Config {
    fn default() -> Self {
        Self { vls: 1, blocks: 2048, fcp_period: 1000, fcp_on_free_blocks: 64 }
    }
}

/// The state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Limits are being exchanged; only VL15 may send.
    Initialize,
    /// All lanes may send what their limits allow.
    Active,
}

/// Both ends of a lane, on this side of the link.
#[derive(Clone, Debug)]
struct Lane {
    sender: CreditSender,
    receiver: CreditReceiver,
    /// The limit in the latest update sent; `None` before the first one.
    announced: Option<u16>,
    next_update: Instant,
}

/// The credits of all lanes of a link, with the exchange at its start and the periodic updates.
#[derive(Clone, Debug)]
pub struct LinkCredits {
    lanes: Vec<Lane>,
    period: Duration,
    on_free: u16,
    /// The lane to poll first for an update.
    turn: usize,
}

impl LinkCredits {
    /// Brings up a link at `now`.
    #[must_use]
    pub fn new(config: &Config, now: Instant) -> Self {
        let lane = Lane {
            sender: CreditSender::new(None),
            receiver: CreditReceiver::new(config.blocks),
            announced: None,
            next_update: now,
        };
        Self {
            lanes: vec![lane; config.vls.clamp(1, 15).into()],
            period: Duration::from_micros(config.fcp_period.max(1).into()),
            on_free: config.fcp_on_free_blocks.max(1),
            turn: 0,
        }
    }

    /// The state of the link: it is active once every lane has received a limit.
    #[must_use]
    pub fn state(&self) -> LinkState {
        if self.lanes.iter().all(|l| l.sender.has_limit()) {
            LinkState::Active
        } else {
            LinkState::Initialize
        }
    }

    fn lane(&mut self, vl: Vl) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(vl.number()))
    }

    /// Takes credit for a packet of `blocks`. VL15 needs no credit; a lane that the link does not have gets no
    /// credit.
    pub fn try_take(&mut self, now: Instant, vl: Vl, blocks: u32) -> bool {
        if vl.is_management() {
            return true;
        }
        let is_active = self.state() == LinkState::Active;
        self.lane(vl).is_some_and(|l| {
            // While the link comes up, no packet fits.
            l.sender.try_take(now, if is_active { blocks } else { u32::MAX })
        })
    }

    /// The blocks that a lane may send now.
    #[must_use]
    pub fn available(&self, now: Instant, vl: Vl) -> u16 {
        self.lanes.get(usize::from(vl.number())).map_or(0, |l| l.sender.available(now))
    }

    /// How often and how long packets of a lane waited.
    #[must_use]
    pub fn stalls(&self, vl: Vl) -> Stalls {
        self.lanes.get(usize::from(vl.number())).map(|l| l.sender.stalls()).unwrap_or_default()
    }

    /// Accounts for the arrival of a packet of `blocks`. VL15 has no buffer here: the caller drops what it has no
    /// room for.
    ///
    /// # Errors
    ///
    /// There is no room, or no such lane: the caller must drop the packet.
    pub fn handle_packet(&mut self, vl: Vl, blocks: u32) -> Result<(), Overrun> {
        if vl.is_management() {
            return Ok(());
        }
        self.lane(vl).ok_or(Overrun { blocks, free: 0 })?.receiver.handle_packet(blocks)
    }

    /// Accounts for a packet of `blocks` that has left the buffer.
    pub fn release(&mut self, vl: Vl, blocks: u32) {
        if let Some(lane) = self.lane(vl) {
            lane.receiver.release(blocks);
        }
    }

    /// Handles an update. Returns whether the lane exists.
    pub fn handle_update(&mut self, now: Instant, update: &FlowControlPacket) -> bool {
        let Some(lane) = self.lane(update.vl) else { return false };
        lane.receiver.handle_update(update);
        lane.sender.handle_update(now, update);
        true
    }

    /// Returns an update that is due.
    pub fn poll_update(&mut self, now: Instant) -> Option<FlowControlPacket> {
        let op = match self.state() {
            LinkState::Initialize => Op::Init,
            LinkState::Active => Op::Normal,
        };
        for _ in 0..self.lanes.len() {
            let number = self.turn;
            self.turn = (self.turn + 1) % self.lanes.len();
            let (Some(lane), Some(vl)) = (self.lanes.get_mut(number), Vl::new(number as u8)) else { break };
            let fccl = lane.receiver.fccl();
            let raised = lane.announced.is_none_or(|old| distance(old, fccl) >= self.on_free && old != fccl);
            if lane.next_update <= now || raised {
                lane.announced = Some(fccl);
                lane.next_update = now.checked_add(self.period).unwrap_or(now);
                return Some(FlowControlPacket { op, vl, fctbs: lane.sender.fctbs(), fccl });
            }
        }
        None
    }

    /// When the next update is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.lanes.iter().map(|l| l.next_update).min()
    }
}
