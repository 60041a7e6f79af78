//! An all-reduce that the switches compute: one rank of it.
//!
//! The vector is cut into blocks, each of which fits into a packet. A rank sends its part of a block to the group, as a datagram,
//! and some switch answers with the sum: it goes to the whole group. So every rank sends its vector once, and receives one.
//!
//! Datagrams may be lost. A rank sends a block again when its result has not come in time; a switch adds no rank's block twice.
//! A rank whose oldest block without a result is block b sends nothing from b + `window` on, and nobody has the result of a block
//! that it has not sent. So the others wait for b + `window` at the latest, and send nothing from b + 2 `window` on: a switch
//! with twice as many slots as there are blocks in a window never forgets a block that somebody still needs.

use crate::block::{BLOCK_HEADER, BlockHeader, BlockKind};
use crate::communicator::{CollectiveError, Counts};
use crate::plan::{Algorithm, Collective, Plan, PlanError};
use rnic_core::{
    Access, AddressVector, CompletionQueue, Destination, Error, Gather, Gid, MemoryRegion, Operation,
    ProtectionDomain, QKey, QpInit, Qpn, QueuePair, RecvWr, SendFlags, SendWr, WcOpcode, WcStatus,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The bytes in front of a datagram in its receive: room for the GRH.
const GRH: usize = 40;

/// The Q_Key of all members.
const QKEY: QKey = QKey(0x5244_5543);

/// How a group computes, the same at all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InNetworkSettings {
    /// The multicast group.
    pub group: Gid,
    /// The number of the group in packets.
    pub number: u32,
    /// The most bytes of a packet behind its transport headers: the path MTU at most.
    pub packet: usize,
    /// Blocks under way: half of what switches remember at most.
    pub window: u16,
    /// After what time a block is sent again.
    pub timeout: Duration,
    /// How often a block is sent again before the operation fails.
    pub retries: u32,
    /// TOS byte of the packets.
    pub traffic_class: u8,
}

/// A block under way.
#[derive(Clone, Copy, Debug)]
struct Block {
    is_done: bool,
    /// Datagrams of it that were posted and not sent yet.
    posted: u32,
    /// When it was sent last, and how often again.
    sent: Duration,
    again: u32,
}

/// One rank of a group for which switches compute.
pub struct InNetwork {
    settings: InNetworkSettings,
    qp: QueuePair,
    cq: CompletionQueue,
    to: Destination,
    data: MemoryRegion,
    /// Headers of blocks under way, by block modulo the window.
    headers: MemoryRegion,
    /// Receives, each of one packet.
    slots: MemoryRegion,
    slot: usize,
    plan: Option<Plan>,
    /// Blocks of operations before this one.
    first: u32,
    /// Blocks of this operation that have left the window.
    base: usize,
    blocks: VecDeque<Block>,
    counts: Counts,
    repeated: u64,
    scratch: Vec<u8>,
}

impl InNetwork {
    /// A rank in a protection domain, with `bytes` bytes of data.
    ///
    /// # Errors
    /// A setting is out of its range, or a verb fails.
    pub fn new(
        pd: &ProtectionDomain,
        bytes: usize,
        settings: &InNetworkSettings,
    ) -> Result<Self, CollectiveError> {
        let range = |what, value, ok, advice| {
            if ok { Ok(()) } else { Err(CollectiveError::Range { what, value, advice }) }
        };
        let InNetworkSettings { packet, window, .. } = *settings;
        let mtu = pd.device().port_attr().active_mtu.bytes() as usize;
        range("packet", packet, packet >= BLOCK_HEADER + 8 && packet <= mtu, "write 24 up to the path MTU")?;
        range("window", window.into(), (1..=4096).contains(&window), "write 1 to 4096")?;
        // As many results may be on their way as there are blocks in two windows.
        let (depth, slot) = (2 * usize::from(window), GRH + packet);
        let cq = pd.device().create_cq(4 * u32::from(window) + 16)?;
        let mut init = QpInit::ud(&cq, &cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (2 * u32::from(window), depth as u32);
        (init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data) = (2, 1, 0);
        let qp = pd.create_qp(&init)?;
        qp.activate(QKEY)?;
        qp.attach_mcast(settings.group)?;
        let mut way = AddressVector::new(settings.group, 0);
        (way.traffic_class, way.hop_limit) = (settings.traffic_class, 64);
        let ours = Self {
            to: pd.create_ah(&way)?.datagram(Qpn::MULTICAST, QKEY),
            data: pd.register(bytes.max(1), Access::LOCAL_WRITE)?,
            headers: pd.register(BLOCK_HEADER * usize::from(window), Access::LOCAL_WRITE)?,
            slots: pd.register(slot * depth, Access::LOCAL_WRITE)?,
            slot,
            settings: settings.clone(),
            qp,
            cq,
            plan: None,
            first: 0,
            base: 0,
            blocks: VecDeque::new(),
            counts: Counts::default(),
            repeated: 0,
            scratch: Vec::new(),
        };
        (0..depth).try_for_each(|slot| ours.post_receive(slot))?;
        Ok(ours)
    }

    fn post_receive(&self, slot: usize) -> Result<(), Error> {
        let data = self.slots.slice(slot * self.slot..(slot + 1) * self.slot)?;
        self.qp.post_recv(RecvWr { wr_id: slot as u64, data: data.into() })
    }

    /// The data of the operations. While one goes on, they change.
    #[must_use]
    pub const fn data(&self) -> &MemoryRegion {
        &self.data
    }

    /// What was sent until now, with the headers of blocks, and without repetitions.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How many blocks were sent again.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Begins an operation at a time. All ranks begin the same operations in the same order.
    ///
    /// # Errors
    /// Another one goes on, the plan is no all-reduce in the network, or its vector is longer than the data; a verb fails.
    pub fn start(&mut self, plan: &Plan, now: Duration) -> Result<(), CollectiveError> {
        if self.plan.is_some() {
            return Err(CollectiveError::Busy);
        }
        let Plan { collective, algorithm, .. } = *plan;
        if collective != Collective::AllReduce || algorithm != Algorithm::InNetwork {
            let advice = "all-reduce and in-network";
            return Err(PlanError::NoAlgorithm { collective, algorithm, advice }.into());
        }
        let (needed, there) = (plan.vector(), self.data.len());
        if needed > there {
            return Err(CollectiveError::TooLong { needed, there });
        }
        self.plan = Some(*plan);
        self.base = 0;
        self.advance(plan, now)
    }

    /// Takes completions, sends what the window allows, and sends again what has had no result in time. Returns whether no
    /// operation goes on.
    ///
    /// # Errors
    /// A block had no result however often it was sent, or a verb fails.
    pub fn poll(&mut self, now: Duration) -> Result<bool, CollectiveError> {
        while let Some(completion) = self.cq.poll_one() {
            if completion.status != WcStatus::Success {
                return Err(CollectiveError::Network { status: completion.status });
            }
            if completion.opcode == WcOpcode::Recv {
                let slot = usize::try_from(completion.wr_id).unwrap_or(0);
                let bytes = (completion.byte_len as usize).clamp(GRH, self.slot);
                self.take(slot * self.slot + GRH, bytes - GRH)?;
                self.post_receive(slot)?;
            } else if let Some(block) = self.under_way(completion.wr_id as u32) {
                block.posted -= 1;
            }
        }
        let Some(plan) = self.plan else { return Ok(true) };
        self.advance(&plan, now)?;
        Ok(self.plan.is_none())
    }

    /// When to poll at the latest, whatever happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let waiting = self.blocks.iter().filter(|block| !block.is_done);
        waiting.map(|block| block.sent + self.settings.timeout).min()
    }

    /// A block that is under way, by its number in packets.
    fn under_way(&mut self, number: u32) -> Option<&mut Block> {
        let oldest = self.first.wrapping_add(self.base as u32);
        self.blocks.get_mut(number.wrapping_sub(oldest) as usize)
    }

    /// The bytes of a block of an operation.
    fn range(&self, plan: &Plan, block: usize) -> Range<usize> {
        let size = plan.element.size();
        let most = (self.settings.packet - BLOCK_HEADER) / size * size;
        let start = block.saturating_mul(most).min(plan.vector());
        start..plan.vector().min(start + most)
    }

    /// A datagram has arrived.
    fn take(&mut self, at: usize, bytes: usize) -> Result<(), CollectiveError> {
        let mut packet = std::mem::take(&mut self.scratch);
        packet.resize(bytes, 0);
        self.slots.read_at(at, &mut packet)?;
        let (plan, group) = (self.plan, self.settings.number);
        if let Some((header, sums)) = BlockHeader::parse(&packet)
            && let Some(plan) = plan
            && (header.kind, header.group, header.element) == (BlockKind::Result, group, plan.element)
        {
            let range = self.range(&plan, header.block.wrapping_sub(self.first) as usize);
            if range.len() == sums.len()
                && let Some(block) = self.under_way(header.block)
                && !std::mem::replace(&mut block.is_done, true)
            {
                self.data.write_at(range.start, sums)?;
            }
        }
        self.scratch = packet;
        Ok(())
    }

    fn advance(&mut self, plan: &Plan, now: Duration) -> Result<(), CollectiveError> {
        // A header, and the data of a block, are not touched while a datagram of it waits to be sent.
        while self.blocks.front().is_some_and(|block| block.is_done && block.posted == 0) {
            self.blocks.pop_front();
            self.base += 1;
        }
        for index in 0..self.blocks.len() {
            let block = self.blocks[index];
            if block.is_done || block.posted > 0 || now < block.sent + self.settings.timeout {
                continue;
            }
            if block.again >= self.settings.retries {
                return Err(CollectiveError::NoAnswer { times: block.again + 1 });
            }
            self.blocks[index] = Block { posted: 1, sent: now, again: block.again + 1, is_done: false };
            self.repeated += 1;
            self.send(plan, self.base + index)?;
        }
        while self.blocks.len() < usize::from(self.settings.window) {
            let block = self.base + self.blocks.len();
            let bytes = self.range(plan, block).len();
            if bytes == 0 {
                break;
            }
            let header = BlockHeader {
                kind: BlockKind::Contribution,
                element: plan.element,
                group: self.settings.number,
                block: self.first.wrapping_add(block as u32),
                count: (bytes / plan.element.size()) as u16,
            };
            self.headers.write_at(self.header(block), &header.emit())?;
            self.counts.messages += 1;
            self.counts.bytes += (BLOCK_HEADER + bytes) as u64;
            self.blocks.push_back(Block { is_done: false, posted: 1, sent: now, again: 0 });
            self.send(plan, block)?;
        }
        if self.blocks.is_empty() {
            self.first = self.first.wrapping_add(self.base as u32);
            self.base = 0;
            self.plan = None;
        }
        Ok(())
    }

    /// Where the header of a block is.
    fn header(&self, block: usize) -> usize {
        block % usize::from(self.settings.window) * BLOCK_HEADER
    }

    fn send(&self, plan: &Plan, block: usize) -> Result<(), Error> {
        let header = self.header(block);
        let parts =
            [self.headers.slice(header..header + BLOCK_HEADER)?, self.data.slice(self.range(plan, block))?];
        let number = self.first.wrapping_add(block as u32);
        let operation = Operation::Send { imm: None, invalidate: None };
        let wr = SendWr::new(number.into(), operation, Gather::Many(Box::new(parts)));
        self.qp.post_send(wr.flags(SendFlags::SIGNALED).to(self.to.clone()))
    }
}

impl std::fmt::Debug for InNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InNetwork({})", self.settings.number)
    }
}
