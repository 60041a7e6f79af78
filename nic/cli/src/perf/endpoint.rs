//! The queue pairs, memory and completion queue of one side.

use super::params::{HEADROOM, Op, Params};
use super::service::Service;
use super::{Counters, Failure};
use rnic::{
    Access, AddressVector, CompletionChannel, CompletionQueue, ConnectOptions, Destination, Device, Gid,
    MemoryRegion, Operation, ProtectionDomain, QKey, QpAddress, QpCap, QpInit, Qpn, QueuePair, Remote,
    SendFlags, SendWr, SharedReceiveQueue, SrqInit, WcStatus, WorkCompletion,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// Completions taken at once.
const BATCH: usize = 32;

/// How often to check for an interrupt while asleep on the channel.
const TICK: Duration = Duration::from_millis(100);

/// Marks the `wr_id` of a receive: the opcode of a failed completion is undefined.
const RECV: u64 = 1 << 63;

/// The position of the queue pair index in a `wr_id`. The bits below hold the message number.
const QP_SHIFT: u32 = 40;

/// The Q_Key of all datagrams: that of perftest.
const QKEY: QKey = QKey(0x1111_1111);

/// The size of the network header in front of a datagram, in bytes (IBTA 11.4.1.2).
const GRH: usize = 40;

/// What the other side needs to connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerEnd {
    qps: Vec<QpAddress>,
    /// XRC only: the receive queue pair that belongs to each, and the number of its shared receive queue.
    targets: Vec<(QpAddress, u32)>,
    /// The start of its region, and the key.
    addr: u64,
    rkey: u32,
}

impl PeerEnd {
    /// The largest path MTU of its port, in bytes.
    pub(super) fn mtu(&self) -> u32 {
        self.qps.iter().map(|qp| qp.mtu).min().unwrap_or(0)
    }

    /// The address of its device.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.qps.first().map(|qp| Gid(qp.gid).ip())
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) qp: usize,
    /// Whether it was a receive.
    pub(super) recv: bool,
    /// The number of the message, in posting order.
    pub(super) number: u64,
}

/// One side of a measurement.
pub(super) struct Endpoint {
    /// The first field, because fields are dropped in order: a peer that still sends must find no queue pair rather than
    /// one whose memory is gone.
    qps: Vec<QueuePair>,
    /// XRC only: the receive queue pair of each.
    targets: Vec<QueuePair>,
    /// With XRC one for each target, with `--srq` one for all queue pairs.
    srqs: Vec<SharedReceiveQueue>,
    /// The destination of each queue pair.
    ways: Vec<Destination>,
    pd: ProtectionDomain,
    pub(super) device: Device,
    pub(super) params: Params,
    /// [`Params::slot`], which each message asks for.
    slot: usize,
    region: MemoryRegion,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    peer: Option<PeerEnd>,
}

impl Endpoint {
    pub(super) fn new(device: &Device, params: &Params) -> Result<Self, Failure> {
        let pd = device.alloc_pd()?;
        let recv_depth = if params.takes_receives() { params.recv_depth() } else { 0 };
        let cqe = params.qps * (params.depth + recv_depth);
        let channel = params.events.then(|| device.create_comp_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => device.create_cq_with_channel(cqe, channel)?,
            None => device.create_cq(cqe)?,
        };
        let (mut srqs, mut targets) = (Vec::new(), Vec::new());
        let of = |max_wr| SrqInit { max_wr, ..SrqInit::default() };
        if params.srq {
            srqs.push(pd.create_srq(&of(recv_depth * params.qps))?);
        }
        if params.service == Service::Xrc {
            let xrcd = device.open_xrcd()?;
            for _ in 0..params.qps {
                // WRITE needs a shared receive queue as well: it determines the protection domain of the memory.
                srqs.push(pd.create_xrc_srq(&of(recv_depth.max(1)), &xrcd, &cq)?);
                targets.push(device.create_qp(&QpInit::xrc_recv(&xrcd))?);
            }
        }
        let mut init = match params.service {
            Service::Rc => QpInit::rc(&cq, &cq),
            Service::Uc => QpInit::uc(&cq, &cq),
            Service::Ud => QpInit::ud(&cq, &cq),
            Service::Xrc => QpInit::xrc_send(&cq),
        };
        let max_recv_wr = if srqs.is_empty() { recv_depth } else { 0 };
        init.cap = QpCap { max_send_wr: params.depth, max_recv_wr, ..init.cap };
        if params.srq {
            init.srq = srqs.first().cloned();
        }
        let qps = (0..params.qps).map(|_| pd.create_qp(&init)).collect::<rnic::Result<_>>()?;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let access = Access::LOCAL_WRITE | remote;
        let len = usize::try_from(params.region_len())
            .map_err(|_| "the memory region is too large for this machine")?;
        let region = pd.register(len, access)?;
        let (device, params, slot, ways, peer) =
            (device.clone(), params.clone(), params.slot(), Vec::new(), None);
        Ok(Self { qps, targets, srqs, ways, pd, device, params, slot, region, cq, channel, peer })
    }

    pub(super) fn describe(&self) -> PeerEnd {
        PeerEnd {
            qps: self.qps.iter().map(QueuePair::address).collect(),
            targets: self
                .targets
                .iter()
                .zip(&self.srqs)
                .map(|(target, srq)| (target.address(), srq.srqn()))
                .collect(),
            addr: self.region.addr(),
            rkey: self.region.rkey(),
        }
    }

    /// Connects every queue pair to its counterpart and posts the receives.
    pub(super) fn connect(&mut self, peer: PeerEnd) -> Result<(), Failure> {
        let (ours, theirs) = (self.qps.len(), peer.qps.len());
        if ours != theirs {
            return Err(format!("the peer has {theirs} queue pairs, this side {ours}").into());
        }
        let mtu = self.params.path_mtu()?;
        for (port, carried) in [
            ("this side's port", self.device.port_attr().active_mtu.bytes()),
            ("the peer's port", peer.mtu()),
        ] {
            if let Some(mtu) = mtu
                && mtu.bytes() > carried
            {
                return Err(format!("--mtu {}: {port} supports at most {carried} bytes", mtu.bytes()).into());
            }
        }
        if self.params.service == Service::Ud {
            self.params.check_datagrams(peer.mtu().min(self.device.port_attr().active_mtu.bytes()))?;
        }
        let options = ConnectOptions { mtu, traffic_class: self.params.tclass, ..ConnectOptions::default() };
        self.ways = (0..ours).map(|qp| self.connect_one(qp, &peer, &options)).collect::<Result<_, _>>()?;
        self.peer = Some(peer);
        if self.params.takes_receives() {
            for qp in 0..self.qps.len() {
                for _ in 0..self.params.recv_depth() {
                    self.post_recv(qp)?;
                }
            }
        }
        Ok(())
    }

    /// Connects queue pair `number` and returns its destination.
    fn connect_one(
        &self,
        number: usize,
        peer: &PeerEnd,
        options: &ConnectOptions,
    ) -> Result<Destination, Failure> {
        let (qp, address) = (&self.qps[number], &peer.qps[number]);
        Ok(match self.params.service {
            Service::Rc | Service::Uc => {
                qp.connect(address, options)?;
                Destination::Connected
            }
            Service::Ud => {
                qp.activate(QKEY)?;
                let traffic_class = self.params.tclass;
                let way = AddressVector { traffic_class, ..AddressVector::new(Gid(address.gid), 0) };
                let ah = self.pd.create_ah(&way)?;
                ah.datagram(Qpn::new(address.qpn), QKEY)
            }
            Service::Xrc => {
                let Some((target, srqn)) = peer.targets.get(number) else {
                    return Err("the peer has no XRC receive queue pairs".into());
                };
                qp.connect(target, options)?;
                self.targets[number].connect(address, options)?;
                Destination::XrcSrq(*srqn)
            }
        })
    }

    /// The path MTU in use, in bytes; over UD, the longest datagram.
    pub(super) fn mtu(&self) -> u32 {
        let longest = || {
            let theirs = self.peer.as_ref().map_or(0, PeerEnd::mtu);
            theirs.min(self.device.port_attr().active_mtu.bytes())
        };
        self.qps.first().and_then(|qp| qp.query().path_mtu).map_or_else(longest, |mtu| mtu.bytes())
    }

    pub(super) fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// The offset in the region from which queue pair `qp` sends.
    pub(super) fn source(&self, qp: usize) -> usize {
        2 * qp * self.slot + HEADROOM
    }

    /// The offset in the region at which queue pair `qp` receives.
    pub(super) fn target(&self, qp: usize) -> usize {
        self.source(qp) + self.slot
    }

    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Posts message `number` of `size` bytes.
    pub(super) fn post(&self, qp: usize, number: u64, size: u32, signalled: bool) -> Result<(), Failure> {
        let Some(peer) = &self.peer else { return Err("the queue pairs are not connected".into()) };
        // Both sides use the same region layout.
        let remote = |offset: usize| Remote { addr: peer.addr.wrapping_add(offset as u64), rkey: peer.rkey };
        let imm = self.params.imm.then_some(number as u32);
        let (source, target) = (self.source(qp), self.target(qp));
        let (operation, offset) = match self.params.op {
            Op::Write => (Operation::Write { remote: remote(target), imm }, source),
            Op::Read => (Operation::Read { remote: remote(source) }, target),
            Op::Send => (Operation::Send { imm, invalidate: None }, source),
            Op::FetchAdd => (Operation::FetchAdd { remote: remote(source), add: 1 }, target),
            Op::CmpSwap => {
                // Swap the word with itself, so that every operation finds the expected value.
                let word = self.word(qp);
                (Operation::CompareSwap { remote: remote(source), compare: word, swap: word }, target)
            }
        };
        let data = self.region.slice(offset..offset + size as usize)?;
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr_id = (qp as u64) << QP_SHIFT | number & ((1 << QP_SHIFT) - 1);
        let wr = SendWr::new(wr_id, operation, data).flags(flags);
        Ok(self.qps[qp].post_send(wr.to(self.ways[qp].clone()))?)
    }

    /// The slot into which queue pair `qp` receives. With a shared receive queue all use slot 0, because any of them may
    /// take a receive.
    fn inbox(&self, qp: usize) -> usize {
        if self.params.srq { 0 } else { qp }
    }

    pub(super) fn post_recv(&self, qp: usize) -> Result<(), Failure> {
        let target = self.target(self.inbox(qp));
        let header = if self.params.service == Service::Ud { GRH } else { 0 };
        let data = self.region.slice(target - header..target + self.params.largest())?;
        let wr_id = RECV | (qp as u64) << QP_SHIFT;
        match self.srqs.get(self.inbox(qp)) {
            Some(srq) => Ok(srq.recv(wr_id, data)?),
            None => Ok(self.qps[qp].recv(wr_id, data)?),
        }
    }

    /// Messages that have arrived since the queue pairs were created, for unreliable services.
    pub(super) fn arrived(&self) -> u64 {
        let count = |qp: &QueuePair| {
            let counters = qp.counters();
            if self.params.op == Op::Write { counters.rx_write_requests } else { counters.rdma_recvs }
        };
        self.qps.iter().map(count).sum()
    }

    /// The counters of all queue pairs of this measurement, summed. Those of the device include other clients.
    pub(super) fn counters(&self) -> Counters {
        let mut sums = Counters::new();
        for qp in self.qps.iter().chain(&self.targets) {
            for (name, value) in qp.counters().iter() {
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
        sums
    }

    /// The initial value of the word that the atomics of queue pair `qp` operate on.
    fn word(&self, qp: usize) -> u64 {
        let mut bytes = [0; 8];
        fill_pattern(&mut bytes, 8, self.inbox(qp));
        u64::from_ne_bytes(bytes)
    }

    /// The sum that FETCH_ADD has added to the words of this side.
    pub(super) fn added(&self) -> Result<u64, Failure> {
        let mut sum = 0u64;
        if self.params.op == Op::FetchAdd {
            for qp in 0..self.qps.len() {
                let now = self.region.load_u64(self.source(qp))?;
                sum = sum.wrapping_add(now.wrapping_sub(self.word(qp)));
            }
        }
        Ok(sum)
    }

    /// Takes completions. With `--events`, sleeps up to a tick if there are none. A failed completion is an error.
    pub(super) fn poll(&self, each: impl FnMut(Completed) -> Result<(), Failure>) -> Result<usize, Failure> {
        self.take(self.channel.as_ref(), each)
    }

    /// As [`poll`](Self::poll), without sleeping.
    pub(super) fn poll_now(
        &self,
        each: impl FnMut(Completed) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        self.take(None, each)
    }

    fn take(
        &self,
        sleep_on: Option<&CompletionChannel>,
        mut each: impl FnMut(Completed) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let mut completions = [WorkCompletion::default(); BATCH];
        let mut taken = self.cq.poll(&mut completions);
        if taken == 0
            && let Some(channel) = sleep_on
        {
            self.cq.arm(false)?;
            taken = self.cq.poll(&mut completions);
            if taken == 0 {
                // The caller polls again in any case.
                let _ = channel.wait(TICK);
                taken = self.cq.poll(&mut completions);
            }
        }
        for completion in &completions[..taken] {
            each(self.judge(completion)?)?;
        }
        if taken == 0 && self.cq.is_overrun() {
            return Err("the completion queue overran".into());
        }
        Ok(taken)
    }

    /// Decodes a completion. If it failed, returns an error with the status and its cause.
    fn judge(&self, completion: &WorkCompletion) -> Result<Completed, Failure> {
        let recv = completion.wr_id & RECV != 0;
        let qp = ((completion.wr_id & !RECV) >> QP_SHIFT) as usize;
        if completion.status == WcStatus::Success {
            let number = completion.wr_id & ((1 << QP_SHIFT) - 1);
            return Ok(Completed { qp, recv, number });
        }
        let what = if recv { "a receive" } else { self.params.op.name() };
        let status = completion.status;
        let failure = self.qps.get(qp).and_then(QueuePair::failure);
        let detail = failure.map(|failure| format!(" ({failure})")).unwrap_or_default();
        Err(format!("{what} ended with {status}: {}{detail}", status.explain()).into())
    }

    /// Fills the sources with a pattern and clears the targets.
    pub(super) fn prepare(&self, size: u32) -> Result<(), Failure> {
        let len = size as usize;
        let mut pattern = vec![0; len];
        for qp in 0..self.qps.len() {
            fill_pattern(&mut pattern, size, self.inbox(qp));
            self.region.write_at(self.source(qp), &pattern)?;
            pattern.fill(0);
            self.region.write_at(self.target(qp), &pattern)?;
        }
        Ok(())
    }

    /// Compares the first `len` bytes that each queue pair received with the pattern of messages of `size`, and describes
    /// the first difference. Over unreliable services, cleared memory means that a message was lost.
    pub(super) fn verify(&self, size: u32, len: usize) -> Result<Option<String>, Failure> {
        let (mut wanted, mut found) = (vec![0; size as usize], vec![0; size as usize]);
        let may_be_cleared = !self.params.service.is_reliable();
        let wrong = |(wanted, found): (&u8, &u8)| wanted != found && !(may_be_cleared && *found == 0);
        for qp in 0..self.inbox(self.qps.len() - 1) + 1 {
            fill_pattern(&mut wanted, size, qp);
            self.region.read_at(self.target(qp), &mut found)?;
            let differs = wanted.iter().zip(&found).take(len).position(wrong);
            if let Some(at) = differs {
                let (wanted, found) = (wanted[at], found[at]);
                return Ok(Some(format!(
                    "byte {at} of {size} received by queue pair {qp} is {found:#04x}, not {wanted:#04x}"
                )));
            }
        }
        Ok(None)
    }
}

/// Fills `bytes` with a pattern that depends on position, message size and queue pair, so that neither data shifted by a
/// packet nor leftovers of an earlier run look correct. No byte is 0, the value of cleared memory.
fn fill_pattern(bytes: &mut [u8], size: u32, qp: usize) {
    let seed = (size as usize).wrapping_mul(31).wrapping_add(qp.wrapping_mul(131));
    for (at, byte) in bytes.iter_mut().enumerate() {
        // 251 is prime, so that no packet size is a multiple of the period.
        *byte = ((at + at / 4096 * 7 + seed) % 251 + 1) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_place_size_and_queue_pair() {
        let pattern = |size: u32, qp| {
            let mut bytes = vec![0; size as usize];
            fill_pattern(&mut bytes, size, qp);
            bytes
        };
        let base = pattern(16_384, 0);
        assert!(base.iter().all(|byte| *byte != 0));
        for mtu in [256, 512, 1024, 2048, 4096] {
            assert_ne!(base[..mtu], base[mtu..2 * mtu]);
        }
        assert_ne!(pattern(64, 0), pattern(64, 1));
        assert_ne!(pattern(64, 0), pattern(128, 0)[..64]);
    }
}
