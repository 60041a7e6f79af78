//! Endpoints of datagram traffic.

use rnic::{
    Access, AddressHandle, AddressVector, CompletionQueue, Device, Gather, Gid, MemoryRegion, Operation,
    ProtectionDomain, QKey, QpInit, Qpn, QueuePair, SendFlags, SendWr, WcStatus, WorkCompletion,
};
use std::time::Duration;

/// The Q_Key of all endpoints that do not set one.
pub const QKEY: QKey = QKey(0x1234_5678);

/// Length of the network header in front of a datagram, in bytes.
pub const GRH: usize = 40;

/// Size of a receive buffer in bytes: the network header and the longest datagram.
const SLOT: usize = GRH + 4096;

/// Number of buffers of an endpoint; receive `n` uses buffer `n` modulo this.
const SLOTS: usize = 64;

/// Longer than any delivery takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A UD queue pair and its resources.
pub struct UdEnd {
    /// The queue pair, in RTS.
    pub qp: QueuePair,
    /// The completion queue for sends.
    pub send_cq: CompletionQueue,
    /// The completion queue for receives.
    pub recv_cq: CompletionQueue,
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The device.
    pub device: Device,
    slots: MemoryRegion,
}

/// A received datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its completion.
    pub wc: WorkCompletion,
    /// The network header in front of it.
    pub grh: [u8; GRH],
    /// The payload.
    pub data: Vec<u8>,
}

impl UdEnd {
    /// An endpoint with the common Q_Key.
    ///
    /// # Panics
    ///
    /// Like all functions here, panics if a resource cannot be created.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self::with_qkey(device, QKEY)
    }

    /// An endpoint that accepts datagrams with this Q_Key.
    #[must_use]
    pub fn with_qkey(device: &Device, qkey: QKey) -> Self {
        let cq = || device.create_cq(4096).expect("a completion queue");
        let (send_cq, recv_cq) = (cq(), cq());
        let mut init = QpInit::ud(&send_cq, &recv_cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (2048, 2048);
        Self::of(device, &init, qkey)
    }

    /// An endpoint whose queue pair has its own capacities or type.
    #[must_use]
    pub fn of(device: &Device, init: &QpInit, qkey: QKey) -> Self {
        let pd = device.alloc_pd().expect("a domain");
        let qp = pd.create_qp(init).expect("a queue pair");
        qp.activate(qkey).expect("RTS");
        let slots = pd.register(SLOT * SLOTS, Access::LOCAL_WRITE).expect("memory");
        let cq = |cq: &Option<CompletionQueue>| cq.clone().expect("datagram queue pairs have both");
        let (send_cq, recv_cq) = (cq(&init.send_cq), cq(&init.recv_cq));
        Self { qp, send_cq, recv_cq, pd, device: device.clone(), slots }
    }

    /// Posts `count` receives for datagrams of any length.
    pub fn post(&self, count: u64) {
        for id in 0..count {
            let start = Self::slot(id);
            let buffer = self.slots.slice(start..start + SLOT).expect("a slot");
            self.qp.recv(id, buffer).expect("room for a receive");
        }
    }

    fn slot(id: u64) -> usize {
        usize::try_from(id).expect("a small number") % SLOTS * SLOT
    }

    /// The path to the port of `to`.
    #[must_use]
    pub fn way(to: &Device) -> AddressVector {
        AddressVector::new(to.gid(), 0)
    }

    /// An address handle of this endpoint.
    #[must_use]
    pub fn ah(&self, gid: Gid) -> AddressHandle {
        self.pd.create_ah(&AddressVector::new(gid, 0)).expect("an address handle")
    }

    /// Sends to another endpoint. The bytes are copied.
    pub fn send(&self, wr_id: u64, bytes: &[u8], to: &Self) {
        self.send_along(wr_id, bytes, &Self::way(&to.device), to.qp.qpn(), QKEY);
    }

    /// Sends to a multicast group.
    pub fn send_to_group(&self, wr_id: u64, bytes: &[u8], group: Gid) {
        self.send_along(wr_id, bytes, &AddressVector::new(group, 0), Qpn::MULTICAST, QKEY);
    }

    /// Sends along any path.
    pub fn send_along(&self, wr_id: u64, bytes: &[u8], way: &AddressVector, qpn: Qpn, qkey: QKey) {
        let ah = self.pd.create_ah(way).expect("an address handle");
        let operation = Operation::Send { imm: None, invalidate: None };
        let wr = SendWr::new(wr_id, operation, Gather::Inline(bytes.into())).flags(SendFlags::SIGNALED);
        self.qp.post_send(wr.to(ah.datagram(qpn, qkey))).expect("posted");
    }

    /// Waits for a send to complete.
    pub fn sent(&self) -> WorkCompletion {
        self.send_cq.wait(PATIENCE).expect("a send completes")
    }

    /// Waits for a datagram.
    #[must_use]
    pub fn receive(&self) -> Message {
        let wc = self.recv_cq.wait(PATIENCE).expect("a datagram arrives");
        self.message(wc)
    }

    /// The datagram that a completion refers to.
    #[must_use]
    pub fn message(&self, wc: WorkCompletion) -> Message {
        assert_eq!(wc.status, WcStatus::Success);
        let len = wc.byte_len as usize;
        let mut bytes = vec![0; len];
        self.slots.read_at(Self::slot(wc.wr_id), &mut bytes).expect("it lies in its slot");
        let (grh, data) = bytes.split_first_chunk().expect("a network header is always there");
        Message { wc, grh: *grh, data: data.to_vec() }
    }

    /// All datagrams that have already arrived.
    #[must_use]
    pub fn drain(&self) -> Vec<Message> {
        std::iter::from_fn(|| self.recv_cq.poll_one()).map(|wc| self.message(wc)).collect()
    }
}
