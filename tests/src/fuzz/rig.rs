//! A device with a live queue pair of any type, and a stranger as its peer.

use super::packet;
use qp::wire::{DethFields, Headers, IpHeader, Packet};
use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::sim::Net;
use rnic::{
    Access, AddressHandle, AddressVector, CompletionQueue, ConnectOptions, Destination, Device, MemoryRegion,
    Mtu, ProtectionDomain, Psn, QKey, QpAddress, QpAttr, QpInit, QpState, QpType, Qpn, QueuePair, RcEnd,
    RecvWr, SendWr, SharedReceiveQueue, SrqInit, WcStatus, XrcDomain,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The stranger's address, where no device exists.
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub(super) const STRANGERS: Qpn = Qpn::new(0x777);
/// The stranger's first PSN.
const RQ: u32 = 5000;
const QKEY: QKey = QKey(0x1234_5678);
/// Size of each region in bytes.
pub(super) const REGION: usize = 4096;

fn all_rights() -> Access {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Access::LOCAL_WRITE | remote | Access::FLUSH_GLOBAL | Access::MW_BIND
}

/// Records the PSN of the last packet that the device sent to the stranger.
struct Ear(Arc<Mutex<Psn>>);

impl Observer for Ear {
    fn name(&self) -> &'static str {
        "ear"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx && frame.ip.dst == STRANGER {
            let packet = Packet::parse(frame.bytes).expect("a device sends packets");
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = packet.psn();
        }
    }
}

/// The configuration of the victim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) qp_type: QpType,
    shared: bool,
    credits: bool,
    mtu: Mtu,
}

impl Kind {
    /// The configuration for each value of a byte.
    pub(super) fn of(byte: u8) -> Self {
        Self {
            qp_type: QpType::ALL[usize::from(byte & 7) % QpType::ALL.len()],
            shared: byte & 8 != 0,
            credits: byte & 0x10 != 0,
            mtu: if byte & 0x20 != 0 { Mtu::B1024 } else { Mtu::B256 },
        }
    }

    const fn is_datagram(self) -> bool {
        matches!(self.qp_type, QpType::Ud | QpType::Gsi)
    }
}

/// The work requests posted to the victim, and their outcome.
#[derive(Default)]
struct Book {
    next: u64,
    /// Those that must complete, and those that may complete because they are unsignalled.
    owed: BTreeSet<u64>,
    silent: BTreeSet<u64>,
    /// Receives in the shared queue, which outlive the victim.
    shared: BTreeSet<u64>,
}

pub(super) struct Rig {
    kind: Kind,
    pub(super) net: Net,
    pub(super) device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// Memory that the stranger may access; memory that it may not; buffers for receives and results.
    target: Option<MemoryRegion>,
    guard: MemoryRegion,
    local: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    xrcd: XrcDomain,
    ah: AddressHandle,
    victim: Option<QueuePair>,
    /// Two endpoints that are unrelated to the stranger.
    bystanders: (RcEnd, RcEnd),
    heard: Arc<Mutex<Psn>>,
    /// The PSN that the victim expects next, as far as an observer can tell.
    pub(super) expected: Psn,
    book: Book,
}

impl Rig {
    pub(super) fn new(kind: Kind) -> Self {
        let net = Net::new();
        let (device, other) = (net.device(), net.device());
        let bystanders = RcEnd::pair(&device, &other).expect("a pair");
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(1024).expect("a queue");
        let region = |fill: u8, access| pd.register_bytes(&[fill; REGION], access).expect("memory");
        let (target, guard) = (region(1, all_rights()), region(2, Access::LOCAL_WRITE));
        let local = region(3, Access::LOCAL_WRITE);
        let xrcd = device.open_xrcd().expect("a domain");
        let init = SrqInit::default();
        let srq = match kind.qp_type {
            QpType::XrcRecv => Some(pd.create_xrc_srq(&init, &xrcd, &cq).expect("a queue")),
            QpType::XrcSend => None,
            _ => kind.shared.then(|| pd.create_srq(&init).expect("a queue")),
        };
        let heard = Arc::new(Mutex::new(Psn::new(0)));
        device.observe(Ear(Arc::clone(&heard))).expect("an observer");
        let way = AddressVector::new(IpAddr::V4(STRANGER).into(), 0);
        let ah = pd.create_ah(&way).expect("an address handle");
        let mut rig = Self {
            kind,
            net,
            device,
            pd,
            cq,
            target: Some(target),
            guard,
            local,
            srq,
            xrcd,
            ah,
            victim: None,
            bystanders,
            heard,
            expected: Psn::new(RQ),
            book: Book::default(),
        };
        rig.renew();
        rig
    }

    /// Creates a new victim, connected to the stranger.
    fn renew(&mut self) {
        self.victim = None;
        let cq = &self.cq;
        let mut init = match self.kind.qp_type {
            QpType::Rc => QpInit::rc(cq, cq),
            QpType::Uc => QpInit::uc(cq, cq),
            QpType::Ud => QpInit::ud(cq, cq),
            QpType::Gsi => QpInit::gsi(cq, cq),
            QpType::XrcSend => QpInit::xrc_send(cq),
            QpType::XrcRecv => QpInit::xrc_recv(&self.xrcd),
        };
        init.tuning.e2e_credits = self.kind.credits;
        if self.kind.qp_type != QpType::XrcRecv {
            init.srq = self.srq.clone();
        }
        let qp = match self.kind.qp_type {
            QpType::XrcRecv => self.device.create_qp(&init),
            _ => self.pd.create_qp(&init),
        };
        let qp = qp.expect("a queue pair");
        let gid = STRANGER.to_ipv6_mapped().octets();
        let stranger = QpAddress { gid, qpn: STRANGERS.value(), psn: RQ, mtu: self.kind.mtu.bytes() };
        let options = ConnectOptions {
            access: all_rights(),
            mtu: Some(self.kind.mtu),
            rd_atomic: 4,
            rnr_retry: 2,
            retry_cnt: 2,
            ..ConnectOptions::default()
        };
        if self.kind.is_datagram() {
            qp.activate(QKEY).expect("running");
        } else {
            qp.connect(&stranger, &options).expect("connected");
        }
        self.expected = Psn::new(RQ);
        self.victim = Some(qp);
    }

    pub(super) fn victim(&self) -> &QueuePair {
        self.victim.as_ref().expect("there always is one")
    }

    pub(super) fn arrival(&self) -> IpHeader {
        let (src, dst) = (IpAddr::V4(STRANGER), self.device.address());
        IpHeader { src, dst, src_port: 0xc123, ..IpHeader::default() }
    }

    /// The PSN that the victim sent last.
    pub(super) fn said_last(&self) -> Psn {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the fields that address a packet to the victim.
    pub(super) fn aim(&self, headers: &mut Headers) {
        headers.dest_qpn = self.victim().qpn();
        let qkey = if self.kind.qp_type == QpType::Gsi { QKey::GSI } else { QKEY };
        headers.deth = DethFields { qkey, src_qpn: STRANGERS };
        headers.xrc_srqn = self.srq.as_ref().map_or(0, SharedReceiveQueue::srqn);
        if let Some(target) = &self.target {
            headers.reth.rkey = target.rkey();
            headers.reth.va = headers.reth.va.wrapping_add(target.addr());
            headers.atomic.rkey = target.rkey();
            headers.atomic.va = headers.atomic.va.wrapping_add(target.addr());
        }
    }

    /// Sends headers and payload that are well-formed.
    pub(super) fn say(&mut self, headers: &Headers, payload: &[u8]) {
        let bytes = packet(&self.arrival(), headers, payload);
        self.say_raw(&bytes);
    }

    /// Sends bytes. They must be counted once: as accepted, or under one drop reason.
    pub(super) fn say_raw(&mut self, bytes: &[u8]) {
        let before = self.device.counters();
        self.net.inject(&self.arrival(), bytes);
        self.net.run_for(Duration::from_micros(2));
        let after = self.device.counters();
        assert_eq!(after.port.rx_packets, before.port.rx_packets + 1);
        let reasons = rnic::engine::DropReason::ALL.iter();
        let dropped: u64 = reasons.map(|r| after.port.dropped(*r) - before.port.dropped(*r)).sum();
        let taken = after.qp.rcvd_pkts - before.qp.rcvd_pkts;
        let ignored = after.port.rp_cnp_ignored - before.port.rp_cnp_ignored;
        // A congestion notification that is dropped counts as ignored, too.
        assert!(
            dropped + taken <= 1 && ignored + taken <= 1,
            "dropped {dropped}, taken {taken}, ignored {ignored}"
        );
        let fresh = after.qp.duplicate_request == before.qp.duplicate_request
            && after.qp.out_of_seq_request == before.qp.out_of_seq_request;
        if let Ok(packet) = Packet::parse(bytes)
            && taken == 1
            && fresh
            && packet.info().is_request
        {
            let answers = match packet.reth() {
                Some(reth) if !packet.info().has_payload => {
                    reth.length.div_ceil(self.kind.mtu.bytes()).max(1)
                }
                _ => 1,
            };
            self.expected = packet.psn().plus(answers);
        }
    }

    /// Posts a send work request to the stranger.
    pub(super) fn post(&mut self, mut wr: SendWr, signalled: bool) {
        wr.wr_id = self.book.next;
        wr.to = match self.kind.qp_type {
            QpType::Ud | QpType::Gsi => self.ah.datagram(STRANGERS, QKEY),
            QpType::XrcSend => Destination::XrcSrq(5),
            _ => Destination::Connected,
        };
        if self.victim().post_send(wr).is_ok() {
            let list = if signalled { &mut self.book.owed } else { &mut self.book.silent };
            list.insert(self.book.next);
            self.book.next += 1;
        }
    }

    /// Posts a receive of `len` bytes.
    pub(super) fn post_recv(&mut self, len: usize) {
        let data = self.local.slice(0..len.min(REGION)).expect("inside").into();
        let wr = RecvWr { wr_id: self.book.next, data };
        let (posted, list) = match &self.srq {
            Some(srq) => (srq.post_recv(wr), &mut self.book.shared),
            None => (self.victim.as_ref().expect("there always is one").post_recv(wr), &mut self.book.owed),
        };
        if posted.is_ok() {
            list.insert(self.book.next);
        }
        self.book.next += 1;
    }

    /// A part of the region for results.
    pub(super) fn part(&self, len: usize) -> rnic::Sge {
        self.local.slice(0..len.min(REGION)).expect("inside")
    }

    pub(super) fn local_key(&self) -> u32 {
        self.local.lkey()
    }

    /// Polls completions, each of which must be owed and arrive once.
    pub(super) fn poll(&mut self) {
        while let Some(wc) = self.cq.poll_one() {
            let book = &mut self.book;
            let mut lists = [&mut book.owed, &mut book.silent, &mut book.shared].into_iter();
            let known = lists.any(|list| list.remove(&wc.wr_id));
            assert!(known, "a completion of nothing that is posted: {wc:?}");
        }
    }

    /// Deregisters the stranger's memory, or registers it again.
    pub(super) fn turn_target(&mut self) {
        self.target = match self.target.take() {
            Some(target) => {
                target.deregister().expect("nothing is bound to it");
                None
            }
            None => Some(self.pd.register_bytes(&[1; REGION], all_rights()).expect("memory")),
        };
    }

    /// Moves the victim to ERR, where everything completes, and creates a new one.
    pub(super) fn restart(&mut self) {
        self.end();
        self.renew();
    }

    fn end(&mut self) {
        if self.victim().state() != QpState::Reset {
            self.victim().modify(&QpAttr::to_state(QpState::Err)).expect("any other state leads to ERR");
        }
        self.poll();
        assert!(self.book.owed.is_empty(), "never completed: {:?}", self.book.owed);
        self.book.silent.clear();
        self.victim().modify(&QpAttr::to_state(QpState::Reset)).expect("RESET follows ERR");
    }

    /// Checks the final state, and destroys everything.
    pub(super) fn finish(mut self) {
        self.end();
        assert_eq!(self.guard.to_vec().expect("mapped"), [2; REGION], "the stranger has no right to this");
        let (ours, theirs) = self.bystanders;
        let source = ours.register(&[7; 600]).expect("memory");
        let place = theirs.register_remote(600).expect("memory");
        ours.qp.write(1, source.all(), place.remote(0)).expect("room");
        assert_eq!(ours.wait().expect("a completion").status, WcStatus::Success);
        assert_eq!(place.to_vec().expect("mapped"), [7; 600]);
        self.victim.expect("there always is one").destroy().expect("nothing uses it");
        drop(self.srq);
        drop(self.ah);
        for region in [Some(self.guard), Some(self.local), self.target].into_iter().flatten() {
            region.deregister().expect("nothing is bound to it");
        }
        self.xrcd.close().expect("nothing is in it");
        self.cq.destroy().expect("nothing completes to it");
        self.pd.destroy().expect("nothing is in it");
    }
}
