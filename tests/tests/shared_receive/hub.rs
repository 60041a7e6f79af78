//! A device that receives through one shared receive queue, its senders, and a ledger of the received messages.

use rnic::engine::AsyncEvent;
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QpEvent, QpInit,
    Qpn, QueuePair, RcEnd, SharedReceiveQueue, SrqInit, WcOpcode, WcStatus, WorkCompletion,
};
use rnic_tests::pattern;
use std::collections::HashMap;
use std::time::Duration;

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Size of a receive buffer in bytes.
pub(super) const SLOT: usize = 8192;

/// A device that receives through one shared receive queue.
pub(super) struct Hub {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) srq: SharedReceiveQueue,
    pub(super) buffers: MemoryRegion,
}

impl Hub {
    pub(super) fn new(device: &Device, init: SrqInit) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4096)?;
        let srq = pd.create_srq(&init)?;
        let buffers = pd.register(SLOT * init.max_wr as usize, Access::LOCAL_WRITE)?;
        Ok(Self { device: device.clone(), pd, cq, srq, buffers })
    }

    /// A queue pair that receives through the queue.
    pub(super) fn qp(&self) -> Result<QueuePair, Error> {
        self.pd.create_qp(&QpInit::rc(&self.cq, &self.cq).with_srq(&self.srq))
    }

    /// Connects a queue pair of the hub with an endpoint at `peer`.
    pub(super) fn join(&self, peer: &Device, options: &ConnectOptions) -> Result<(RcEnd, QueuePair), Error> {
        let (end, qp) = (RcEnd::new(peer)?, self.qp()?);
        end.qp.connect(&qp.address(), options)?;
        qp.connect(&end.qp.address(), options)?;
        Ok((end, qp))
    }

    /// Posts the buffer with this number.
    pub(super) fn post(&self, slot: u64) -> Result<(), Error> {
        let start = SLOT * slot as usize;
        self.srq.recv(slot, self.buffers.slice(start..start + SLOT)?)
    }

    pub(super) fn wait(&self) -> Result<WorkCompletion, Error> {
        self.cq.wait(PATIENCE)
    }

    /// Waits for a completion in virtual time, calling `work` at every step.
    pub(super) fn wait_while(
        &self,
        net: &Net,
        mut work: impl FnMut() -> Result<(), Error>,
    ) -> Result<WorkCompletion, Error> {
        let mut moved = true;
        loop {
            work()?;
            if let Some(wc) = self.cq.poll_one() {
                return Ok(wc);
            }
            // Newly posted work can continue the simulation; nothing else can.
            if !net.step() && !std::mem::take(&mut moved) {
                return Err(Error::Stalled);
            }
        }
    }

    /// The message that a completion refers to.
    pub(super) fn message(&self, wc: &WorkCompletion) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; wc.byte_len as usize];
        self.buffers.read_at(SLOT * wc.wr_id as usize, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.poll_event().expect("not forked"))
            // Events that a connection is established do not matter here.
            .filter(|e| !matches!(e, AsyncEvent::QueuePair(_, QpEvent::CommunicationEstablished)))
            .collect()
    }
}

/// Sends messages that contain their sender's number and a sequence number.
pub(super) struct Sender {
    pub(super) end: RcEnd,
    region: MemoryRegion,
    pub(super) number: u64,
    pub(super) posted: u64,
    pub(super) done: u64,
    pub(super) total: u64,
}

impl Sender {
    /// Number of messages in flight.
    const DEPTH: u64 = 32;

    pub(super) fn new(end: RcEnd, number: u64, total: u64) -> Result<Self, Error> {
        let region = end.register(&vec![0; SLOT * Self::DEPTH as usize])?;
        Ok(Self { end, region, number, posted: 0, done: 0, total })
    }

    /// Message `nth` of sender `number`: its length depends on both.
    pub(super) fn bytes(number: u64, nth: u64) -> Vec<u8> {
        const LENGTHS: [usize; 6] = [16, 100, 1024, 4096, 5000, SLOT];
        let mut bytes = pattern::bytes(number << 20 | nth, LENGTHS[((nth * 7 + number) % 6) as usize]);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&nth.to_le_bytes());
        bytes
    }

    /// Polls completions and posts as much as there is room for.
    pub(super) fn work(&mut self) -> Result<(), Error> {
        while let Some(wc) = self.end.cq().poll_one() {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, self.done), "{:?}", self.end.qp.failure());
            self.done += 1;
        }
        while self.posted < self.total && self.posted - self.done < Self::DEPTH {
            let bytes = Self::bytes(self.number, self.posted);
            let start = SLOT * (self.posted % Self::DEPTH) as usize;
            self.region.write_at(start, &bytes)?;
            self.end.qp.send(self.posted, self.region.slice(start..start + bytes.len())?)?;
            self.posted += 1;
        }
        Ok(())
    }
}

/// Counts the received messages of each queue pair, and checks their order and content.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) seen: HashMap<Qpn, (u64, u64)>,
}

impl Ledger {
    pub(super) fn note(&mut self, hub: &Hub, wc: &WorkCompletion) -> Result<(), Error> {
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
        let message = hub.message(wc)?;
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        let (number, nth) = (word(0), word(8));
        let (sender, next) = self.seen.entry(wc.qpn).or_insert((number, 0));
        assert_eq!((number, nth), (*sender, *next), "in order, each from its own sender");
        assert!(message == Sender::bytes(number, nth), "message {nth} of sender {number} is damaged");
        *next += 1;
        Ok(())
    }

    pub(super) fn total(&self) -> u64 {
        self.seen.values().map(|(_, count)| count).sum()
    }
}
