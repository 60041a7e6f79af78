//! A device with live queue pairs, and a stranger that can send anything to it.

use qp::QKey;
use qp::wire::{DethFields, Headers, ICRC_LEN, IpHeader, Opcode, Packet, icrc, pad_len};
use rnic::engine::{DropReason, PortCounters};
use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, Mtu, ProtectionDomain, Psn, QpAddress,
    QpInit, QpState, Qpn, QueuePair, RcEnd, RecvWr, SendFlags, SendWr, SharedReceiveQueue, SrqInit, WcStatus,
    XrcDomain,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Address and queue pair of the stranger; no device exists there.
pub(crate) const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1));
pub(crate) const STRANGERS: Qpn = Qpn::new(0x777);
/// First request PSNs of the stranger and of the victim.
pub(crate) const RQ: u32 = 5000;
pub(crate) const SQ: u32 = 0;
pub(crate) const MTU: usize = 256;
/// The Q_Key of datagram queue pairs.
pub(crate) const QKEY: QKey = QKey(0x1234_5678);
/// Size of each region in bytes; and the offset of the stranger's accesses in the target.
pub(crate) const REGION: usize = 4096;
pub(crate) const AT: u64 = 1024;

/// The service of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Rc,
    Xrc,
    Uc,
    Ud,
}

impl Service {
    pub(crate) const ALL: [Self; 4] = [Self::Rc, Self::Xrc, Self::Uc, Self::Ud];

    /// The service's opcode with the low five bits of an RC opcode, if there is one.
    pub(crate) fn opcode(self, of_rc: Opcode) -> Option<Opcode> {
        let base = match self {
            Self::Rc => 0,
            Self::Xrc => 0xa0,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
        };
        Opcode::from_u8(base | of_rc as u8)
    }

    pub(crate) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

/// A packet without its ICRC, from BTH to pad.
pub(crate) fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + pad_len(payload.len()), 0);
    bytes
}

/// The effect of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Dropped, and counted under this reason only.
    Dropped(DropReason),
    /// A congestion notification, counted as one without effect.
    Ignored,
    /// Accepted: opcode, PSN and syndrome (0 if there is none) of each answer, and whether the victim survives.
    Taken { answers: Vec<(u8, u32, u8)>, alive: bool },
}

/// Records the packets that the device sends to the stranger.
struct Ear(Arc<Mutex<Vec<Vec<u8>>>>);

impl Observer for Ear {
    fn name(&self) -> &'static str {
        "ear"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx && frame.ip.dst == STRANGER {
            self.0.lock().expect("nobody panics in here").push(frame.bytes.to_vec());
        }
    }
}

/// The shared receive queue of XRC victims and its domain.
struct Xrc {
    domain: XrcDomain,
    queue: SharedReceiveQueue,
}

pub(crate) struct Rig {
    pub(crate) service: Service,
    net: Net,
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// Memory that the stranger may access, memory that it may not, and buffers for receives and results.
    pub(crate) target: MemoryRegion,
    guard: MemoryRegion,
    local: MemoryRegion,
    xrc: Option<Xrc>,
    victim: Option<QueuePair>,
    /// Two endpoints unrelated to the stranger: one on the device, one elsewhere.
    bystanders: (RcEnd, RcEnd),
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Number of packets sent.
    pub(crate) said: u64,
}

fn all_rights() -> Access {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Access::LOCAL_WRITE | remote | Access::FLUSH_GLOBAL
}

impl Rig {
    pub(crate) fn new(service: Service) -> Self {
        let net = Net::new();
        let (device, other) = (net.device(), net.device());
        let bystanders = RcEnd::pair(&device, &other).expect("a pair");
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(1024).expect("a queue");
        let region = |fill: u8, access| {
            let region = pd.register(REGION, access).expect("memory");
            region.write_at(0, &[fill; REGION]).expect("mapped");
            region
        };
        let xrc = (service == Service::Xrc).then(|| {
            let domain = device.open_xrcd().expect("a domain");
            let queue = pd.create_xrc_srq(&SrqInit::default(), &domain, &cq).expect("a queue");
            Xrc { domain, queue }
        });
        let (target, guard, local) =
            (region(1, all_rights()), region(2, Access::LOCAL_WRITE), region(3, Access::LOCAL_WRITE));
        let heard = Arc::new(Mutex::new(Vec::new()));
        device.observe(Ear(Arc::clone(&heard))).expect("an observer");
        let victim = None;
        let mut rig = Self {
            service,
            net,
            device,
            pd,
            cq,
            target,
            guard,
            local,
            xrc,
            victim,
            bystanders,
            heard,
            said: 0,
        };
        rig.renew();
        rig
    }

    /// Replaces the victim by a new one, connected to the stranger, with a receive of 600 bytes.
    pub(crate) fn renew(&mut self) {
        self.victim = None;
        let (pd, cq) = (&self.pd, &self.cq);
        let qp = match (self.service, &self.xrc) {
            (_, Some(xrc)) => self.device.create_qp(&QpInit::xrc_recv(&xrc.domain)),
            (Service::Uc, _) => pd.create_qp(&QpInit::uc(cq, cq)),
            (Service::Ud, _) => pd.create_qp(&QpInit::ud(cq, cq)),
            _ => pd.create_qp(&QpInit::rc(cq, cq)),
        };
        let qp = qp.expect("a queue pair");
        let IpAddr::V4(v4) = STRANGER else { panic!("the stranger has IPv4") };
        let stranger =
            QpAddress { gid: v4.to_ipv6_mapped().octets(), qpn: STRANGERS.value(), psn: RQ, mtu: MTU as u32 };
        let options = ConnectOptions {
            access: all_rights(),
            mtu: Some(Mtu::B256),
            rd_atomic: 4,
            ..ConnectOptions::default()
        };
        match self.service {
            Service::Ud => qp.activate(QKEY).expect("running"),
            _ => qp.connect(&stranger, &options).expect("connected"),
        }
        let recv = RecvWr { wr_id: 1, data: self.local.slice(0..600).expect("inside").into() };
        match &self.xrc {
            None => qp.post_recv(recv).expect("room"),
            // Shared: a receive that an earlier victim left is still posted.
            Some(xrc) if xrc.queue.outstanding() > 0 => {}
            Some(xrc) => xrc.queue.post_recv(recv).expect("room"),
        }
        while self.cq.poll_one().is_some() {}
        self.victim = Some(qp);
    }

    pub(crate) fn victim(&self) -> &QueuePair {
        self.victim.as_ref().expect("there always is one")
    }

    /// The number that XRC requests must name.
    pub(crate) fn srqn(&self) -> u32 {
        self.xrc.as_ref().map_or(0, |xrc| xrc.queue.srqn())
    }

    /// The number of the queue pair on the device that is unrelated to the stranger.
    pub(crate) fn bystander(&self) -> Qpn {
        self.bystanders.0.qp.qpn()
    }

    /// Makes the victim send requests of its own, and discards the packets.
    pub(crate) fn post(&mut self, wrs: &[SendWr]) {
        for wr in wrs {
            self.victim().post_send(wr.clone()).expect("room");
        }
        self.net.run_for(Duration::from_micros(5));
        self.heard.lock().expect("nobody panics").clear();
    }

    /// A part of the region for results.
    pub(crate) fn results(&self, len: usize) -> rnic::Sge {
        self.local.slice(1024..1024 + len).expect("inside")
    }

    pub(crate) fn arrival(&self) -> IpHeader {
        IpHeader { src: STRANGER, dst: self.device.address(), src_port: 0xc123, ..IpHeader::default() }
    }

    /// Sends a packet with a valid ICRC.
    pub(crate) fn say(&mut self, packet: &[u8]) -> Fate {
        self.say_from(&self.arrival(), packet)
    }

    pub(crate) fn say_from(&mut self, arrival: &IpHeader, packet: &[u8]) -> Fate {
        let icrc = icrc::compute(&arrival.flow(), arrival.ident, packet);
        self.say_raw(arrival, &[packet, &icrc.to_le_bytes()].concat())
    }

    /// Sends bytes, and determines their effect: they are accepted, or dropped and counted once, and change nothing
    /// that they do not name.
    pub(crate) fn say_raw(&mut self, arrival: &IpHeader, bytes: &[u8]) -> Fate {
        let before = self.device.counters();
        let memory = self.memory();
        self.net.inject(arrival, bytes);
        self.net.run_for(Duration::from_micros(5));
        self.said += 1;
        let after = self.device.counters();
        let shown = || Packet::parse(bytes).map_or_else(|e| e.to_string(), |p| p.to_string());
        assert_eq!(after.port.rx_packets, before.port.rx_packets + 1, "{}", shown());
        let reasons: Vec<_> = reasons(&before.port, &after.port).collect();
        let taken = after.qp.rcvd_pkts - before.qp.rcvd_pkts;
        let answers = self.answers();
        let alive = self.victim().state() == QpState::Rts;
        let ignored = after.port.rp_cnp_ignored - before.port.rp_cnp_ignored;
        if ignored == 1 && reasons.is_empty() {
            assert!(alive && answers.is_empty() && memory == self.memory() && taken == 0, "{}", shown());
            return Fate::Ignored;
        }
        assert_eq!(reasons.len() as u64 + taken, 1, "{}: {reasons:?}, taken {taken}", shown());
        if let [reason] = reasons[..] {
            assert!(alive && answers.is_empty() && memory == self.memory(), "{}: {reason:?}", shown());
            return Fate::Dropped(reason);
        }
        self.check_memory(bytes, &memory);
        Fate::Taken { answers, alive }
    }

    /// The packets sent to the stranger since the last call.
    fn answers(&self) -> Vec<(u8, u32, u8)> {
        let heard = std::mem::take(&mut *self.heard.lock().expect("nobody panics"));
        let answer = |bytes: &Vec<u8>| {
            let packet = Packet::parse(bytes).expect("we send packets");
            assert_eq!(packet.dest_qpn(), STRANGERS);
            let syndrome = packet.aeth().map_or(0, |aeth| aeth.syndrome);
            // Credits do not matter here.
            let syndrome = if syndrome < 0x20 { 0 } else { syndrome };
            (packet.opcode() as u8, packet.psn().value(), syndrome)
        };
        heard.iter().map(answer).collect()
    }

    fn memory(&self) -> [Vec<u8>; 3] {
        [&self.target, &self.guard, &self.local].map(|region| region.to_vec().expect("mapped"))
    }

    /// The guard never changes; the target only where the packet names it with its key; the rest only where
    /// receives and results are stored.
    fn check_memory(&self, bytes: &[u8], before: &[Vec<u8>; 3]) {
        let packet = Packet::parse(bytes).expect("taken");
        let after = self.memory();
        assert_eq!(after[1], before[1], "{packet}: the guard");
        let (key, va, len) = match (packet.reth(), packet.atomic_eth()) {
            (Some(reth), _) => (reth.rkey, reth.va, packet.payload().len()),
            (None, Some(atomic)) => (atomic.rkey, atomic.va, 8),
            (None, None) => (0, 0, 0),
        };
        for (at, (new, old)) in after[0].iter().zip(&before[0]).enumerate() {
            let here = self.target.remote(at as u64).addr;
            let named = key == self.target.rkey() && (va..va.saturating_add(len as u64)).contains(&here);
            assert!(new == old || named, "{packet}: byte {at} of the target");
        }
        for (at, (new, old)) in after[2].iter().zip(&before[2]).enumerate() {
            assert!(new == old || at < 600 || (1024..2048).contains(&at), "{packet}: byte {at} of the rest");
        }
    }

    /// Checks that the other endpoints on the device work normally.
    pub(crate) fn check_bystanders(&self) {
        let (a, b) = &self.bystanders;
        let counters = |end: &RcEnd| {
            let c = end.qp.counters();
            [c.retransmitted_pkts, c.out_of_seq_request, c.duplicate_request, c.ghost_responses]
        };
        for (ours, theirs) in [(a, b), (b, a)] {
            let source = ours.register(&[7; 10_000]).expect("memory");
            let place = theirs.register_remote(10_000).expect("memory");
            let inbox = theirs.register(&[0; 8]).expect("memory");
            theirs.qp.recv(1, inbox.all()).expect("room");
            ours.qp.write(2, source.all(), place.remote(0)).expect("room");
            let send =
                SendWr::new(3, rnic::Operation::Send { imm: None, invalidate: None }, inbox_of(&source));
            ours.qp.post_send(send.flags(SendFlags::SIGNALED)).expect("room");
            for end in [ours, ours, theirs] {
                assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
            }
            assert_eq!(place.to_vec().expect("mapped"), [7; 10_000]);
            assert_eq!((counters(ours), ours.qp.state()), ([0; 4], QpState::Rts));
        }
    }
}

fn inbox_of(source: &MemoryRegion) -> rnic::Sge {
    source.slice(0..8).expect("inside")
}

/// The drop reasons counted between two snapshots, one entry for each packet.
fn reasons<'a>(before: &'a PortCounters, after: &'a PortCounters) -> impl Iterator<Item = DropReason> + 'a {
    DropReason::ALL.iter().flat_map(|reason| {
        let count = after.dropped(*reason) - before.dropped(*reason);
        std::iter::repeat_n(*reason, usize::try_from(count).expect("few"))
    })
}

/// Headers of a request from the stranger, with the expected PSN.
pub(crate) fn headers(rig: &Rig, opcode: Opcode) -> Headers {
    let mut headers = Headers::new(opcode, rig.victim().qpn(), Psn::new(RQ));
    headers.ack_req = opcode.info().position.ends();
    headers.reth.rkey = rig.target.rkey();
    headers.reth.va = rig.target.remote(AT).addr;
    headers.atomic.rkey = rig.target.rkey();
    headers.atomic.va = rig.target.remote(AT).addr;
    headers.xrc_srqn = rig.srqn();
    headers.deth = DethFields { qkey: QKEY, src_qpn: STRANGERS };
    headers
}

/// The length of an opcode's headers and the ICRC.
pub(crate) fn smallest(opcode: Opcode) -> usize {
    usize::from(opcode.info().header_len) + ICRC_LEN
}
