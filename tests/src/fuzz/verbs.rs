//! Sequences of calls, including arguments that no sane program would pass.

use arbitrary::{Arbitrary, Unstructured};
use rnic::sim::Net;
use rnic::{
    Access, AddressHandle, AddressVector, Bind, CompletionQueue, ConnectOptions, Destination, Device,
    FlushKind, Gather, Gid, MemoryRegion, MemoryWindow, Mtu, MwType, NotDestroyed, Operation,
    ProtectionDomain, Psn, QKey, QpAttr, QpCap, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Remote,
    Rereg, SendFlags, SendWr, Sge, SharedReceiveQueue, SrqInit, SrqModify, XrcDomain,
};
use std::time::Duration;

/// Maximum number of objects of each kind, so that later calls use earlier objects.
const OBJECTS: usize = 4;
const CALLS: usize = 80;

/// A call. Objects are named by any number, modulo the number of objects.
#[derive(Arbitrary, Debug)]
enum Call {
    CreateCq { cqe: u32 },
    ResizeCq { cq: u8, cqe: u32 },
    DestroyCq { cq: u8 },
    Arm { cq: u8, solicited: bool },
    Poll { cq: u8, room: u8 },
    Register { len: u16, access: u32 },
    Reregister { mr: u8, len: u16, access: u32 },
    Deregister { mr: u8 },
    Touch { mr: u8, at: u16, len: u8 },
    AllocWindow { second: bool },
    Bind { qp: u8, mw: u8, mr: u8, start: u16, end: u16, access: u32 },
    Unbind { qp: u8, mw: u8 },
    DeallocWindow { mw: u8 },
    CreateSrq { wr: u32, sge: u32 },
    ModifySrq { srq: u8, wr: Option<u32>, limit: Option<u32> },
    PostSrq { srq: u8, data: Data },
    DestroySrq { srq: u8 },
    CreateQp { kind: u8, cq: u8, srq: Option<u8>, xrcd: u8, caps: Option<[u32; 5]>, all: bool },
    DestroyQp { qp: u8 },
    Connect { qp: u8, other: u8, mtu: u8, access: u32, timeout: u8, retries: u8, rnr: u8, depth: u8 },
    State { qp: u8, state: u8 },
    Modify { qp: u8, attr: Attributes },
    PostSend { qp: u8, what: u8, data: Data, to: u8, mr: u8, at: u16, word: u64, flags: u8 },
    PostRecv { qp: u8, data: Data },
    Query { qp: u8 },
    Event,
    Fault { which: u8 },
    Port { up: bool },
    Pass { micros: u16 },
    OpenXrcd,
    CloseXrcd { xrcd: u8 },
    CreateXrcSrq { xrcd: u8, cq: u8, wr: u32 },
    CreateAh { there: bool, index: u8 },
    DestroyAh { ah: u8 },
}

/// The local data of a work request.
#[derive(Arbitrary, Debug)]
enum Data {
    Nothing,
    Inside { mr: u8, at: u16, len: u16 },
    Anything { addr: u64, length: u32, lkey: u32 },
    Several { mr: u8, lens: [u8; 3] },
    Inline { len: u16 },
}

/// The attributes of a modify, each optional.
#[derive(Arbitrary, Debug)]
struct Attributes {
    state: Option<u8>,
    current: Option<u8>,
    pkey_index: Option<u16>,
    port: Option<u8>,
    qkey: Option<u32>,
    access: Option<u32>,
    mtu: Option<u8>,
    way: Option<[u8; 4]>,
    dest: Option<u32>,
    psns: [Option<u32>; 2],
    depths: [Option<u8>; 2],
    timers: [Option<u8>; 4],
}

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
const MTUS: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
/// The Q_Key of datagram queue pairs.
const QKEY: QKey = QKey(0x1357);
const FAULTS: [&str; 4] = ["tx data p=0.2 drop", "rx ack drop", "tx reorder 2", "rx dup"];

/// Makes any calls in any order on two devices in virtual time, and destroys everything.
///
/// # Panics
///
/// Panics if an object that nothing uses any more cannot be destroyed at the end: then something was not released.
pub fn verbs(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut program = Program::new();
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let Ok(call) = Call::arbitrary(&mut input) else { break };
        program.call(call);
    }
    program.finish();
}

/// The objects of a program. Calls go to the two sides in turn.
struct Program {
    net: Net,
    sides: [Side; 2],
}

struct Side {
    device: Device,
    pd: ProtectionDomain,
    cqs: Vec<CompletionQueue>,
    mrs: Vec<MemoryRegion>,
    mws: Vec<MemoryWindow>,
    srqs: Vec<SharedReceiveQueue>,
    xrcds: Vec<XrcDomain>,
    ahs: Vec<AddressHandle>,
    qps: Vec<QueuePair>,
}

/// What one side knows about the other.
struct Peer {
    address: std::net::IpAddr,
    memory: Remote,
    qpns: Vec<Qpn>,
    srqns: Vec<u32>,
}

fn pick<T>(list: &[T], which: u8) -> Option<&T> {
    list.get(usize::from(which) % list.len().max(1))
}

fn keep<T, E>(list: &mut Vec<T>, made: Result<T, E>) {
    if list.len() < OBJECTS {
        list.extend(made);
    }
}

/// Destroys an object; puts it back if it is in use.
fn destroy<T>(list: &mut Vec<T>, which: u8, how: impl FnOnce(T) -> Result<(), NotDestroyed<T>>) {
    if list.is_empty() {
        return;
    }
    let object = list.swap_remove(usize::from(which) % list.len());
    if let Err(refused) = how(object) {
        list.push(refused.object);
    }
}

/// A size that takes little memory, or that no device supports.
pub(super) const fn sane(size: u32) -> u32 {
    if size & 0x8000_0000 == 0 { size % 300 } else { size }
}

fn rights(bits: u32) -> Access {
    // Huge pages depend on the host, not on calls.
    Access::from_bits_retain(bits & 0x10_03ff).difference(Access::HUGETLB)
}

impl Program {
    fn new() -> Self {
        let net = Net::new();
        let side = || {
            let device = net.device();
            let pd = device.alloc_pd().expect("a domain");
            let cq = device.create_cq(64).expect("a queue");
            let (mrs, mws, srqs, qps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            Side { device, pd, cqs: vec![cq], mrs, mws, srqs, xrcds: Vec::new(), ahs: Vec::new(), qps }
        };
        let sides = [side(), side()];
        Self { net, sides }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Pass { micros } => self.net.run_for(Duration::from_micros(micros.into())),
            Call::Connect { qp, other, mtu, access, timeout, retries, rnr, depth } => {
                let [a, b] = &self.sides;
                let (Some(qp), Some(other)) = (pick(&a.qps, qp), pick(&b.qps, other)) else { return };
                let options = ConnectOptions {
                    access: rights(access),
                    mtu: MTUS.get(usize::from(mtu)).copied(),
                    timeout,
                    retry_cnt: retries,
                    rnr_retry: rnr,
                    rd_atomic: depth,
                    ..ConnectOptions::default()
                };
                for (qp, to) in [(qp, other), (other, qp)] {
                    // Datagram queue pairs cannot be connected.
                    let _ = qp.connect(&to.address(), &options).or_else(|_| qp.activate(QKEY));
                }
            }
            call => {
                let peer = self.sides[1].as_peer();
                self.sides[0].call(call, &peer);
                self.sides.swap(0, 1);
            }
        }
    }

    /// An unused object can be destroyed, so all can, in the right order.
    fn finish(self) {
        self.net.run_for(Duration::from_millis(20));
        for side in self.sides {
            side.finish();
        }
    }
}

impl Side {
    fn as_peer(&self) -> Peer {
        Peer {
            address: self.device.address(),
            memory: self.mrs.first().map(|mr| mr.remote(0)).unwrap_or_default(),
            qpns: self.qps.iter().map(QueuePair::qpn).collect(),
            srqns: self.srqs.iter().map(SharedReceiveQueue::srqn).collect(),
        }
    }

    fn call(&mut self, call: Call, peer: &Peer) {
        match call {
            Call::OpenXrcd => keep(&mut self.xrcds, self.device.open_xrcd()),
            Call::CloseXrcd { xrcd } => destroy(&mut self.xrcds, xrcd, XrcDomain::close),
            Call::CreateXrcSrq { xrcd, cq, wr } => {
                let (Some(xrcd), Some(cq)) = (pick(&self.xrcds, xrcd), pick(&self.cqs, cq)) else { return };
                let init = SrqInit { max_wr: sane(wr), ..SrqInit::default() };
                keep(&mut self.srqs, self.pd.create_xrc_srq(&init, xrcd, cq));
            }
            Call::CreateAh { there, index } => {
                let to = if there { peer.address } else { self.device.address() };
                keep(&mut self.ahs, self.pd.create_ah(&AddressVector::new(Gid::from(to), index & 1)));
            }
            Call::DestroyAh { ah } => {
                if let Some(at) = usize::from(ah).checked_rem(self.ahs.len()) {
                    self.ahs.swap_remove(at);
                }
            }
            Call::CreateCq { cqe } => keep(&mut self.cqs, self.device.create_cq(sane(cqe))),
            Call::ResizeCq { cq, cqe } => _ = pick(&self.cqs, cq).map(|cq| cq.resize(sane(cqe))),
            Call::DestroyCq { cq } => destroy(&mut self.cqs, cq, CompletionQueue::destroy),
            Call::Arm { cq, solicited } => _ = pick(&self.cqs, cq).map(|cq| cq.arm(solicited)),
            Call::Poll { cq, room } => {
                let mut out = vec![rnic::WorkCompletion::default(); usize::from(room)];
                if let Some(cq) = pick(&self.cqs, cq) {
                    assert!(cq.poll(&mut out) <= out.len());
                }
            }
            Call::CreateSrq { wr, sge } => {
                let init = SrqInit { max_wr: sane(wr), max_sge: sane(sge), limit: 0 };
                keep(&mut self.srqs, self.pd.create_srq(&init));
            }
            Call::ModifySrq { srq, wr, limit } => {
                let change = SrqModify { max_wr: wr.map(sane), limit: limit.map(sane) };
                let _ = pick(&self.srqs, srq).map(|srq| srq.modify(change));
            }
            Call::PostSrq { srq, data } => {
                let wr = RecvWr { wr_id: 1, data: self.gather(&data) };
                let _ = pick(&self.srqs, srq).map(|srq| srq.post_recv(wr));
            }
            Call::DestroySrq { srq } => destroy(&mut self.srqs, srq, SharedReceiveQueue::destroy),
            Call::Event => while let Ok(Some(_)) = self.device.poll_event() {},
            Call::Fault { which } => {
                let rule = FAULTS.get(usize::from(which) % (FAULTS.len() + 1));
                match rule {
                    Some(rule) if self.device.faults().len() < OBJECTS => _ = self.device.add_fault(rule),
                    _ => self.device.clear_faults(),
                }
            }
            Call::Port { up } => self.device.inject_port_state(up).expect("not forked"),
            call => self.call_about_memory(call, peer),
        }
    }

    fn call_about_memory(&mut self, call: Call, peer: &Peer) {
        match call {
            Call::Register { len, access } => {
                keep(&mut self.mrs, self.pd.register(len.into(), rights(access)));
            }
            Call::Reregister { mr, len, access } => {
                let count = self.mrs.len().max(1);
                let Some(mr) = self.mrs.get_mut(usize::from(mr) % count) else { return };
                let change = Rereg::new().access(rights(access));
                let memory = rnic::memory::MemoryBuffer::new(usize::from(len));
                let _ = match memory {
                    Ok(memory) if len % 2 == 0 => mr.rereg(change.memory(memory, None)),
                    _ => mr.rereg(change),
                };
            }
            Call::Deregister { mr } => destroy(&mut self.mrs, mr, MemoryRegion::deregister),
            Call::Touch { mr, at, len } => {
                let Some(mr) = pick(&self.mrs, mr) else { return };
                let mut out = vec![0; len.into()];
                let inside = usize::from(at) + out.len() <= mr.len();
                assert_eq!(mr.read_at(at.into(), &mut out).is_ok(), inside);
                assert_eq!(mr.write_at(at.into(), &out).is_ok(), inside);
                let _ = (mr.load_u64(at.into()), mr.store_u64(at.into(), 1));
            }
            Call::AllocWindow { second } => {
                let mw_type = if second { MwType::Type2 } else { MwType::Type1 };
                keep(&mut self.mws, self.pd.alloc_mw(mw_type));
            }
            Call::Bind { qp, mw, mr, start, end, access } => {
                let objects = (pick(&self.qps, qp), pick(&self.mws, mw), pick(&self.mrs, mr));
                let (Some(qp), Some(mw), Some(mr)) = objects else { return };
                let _ = qp.bind_mw(1, mw, mr, start.into()..end.into(), rights(access));
            }
            Call::Unbind { qp, mw } => {
                let (Some(qp), Some(mw)) = (pick(&self.qps, qp), pick(&self.mws, mw)) else { return };
                let _ = qp.unbind_mw(1, mw);
            }
            Call::DeallocWindow { mw } => destroy(&mut self.mws, mw, MemoryWindow::dealloc),
            call => self.call_about_queue_pairs(call, peer),
        }
    }

    fn call_about_queue_pairs(&mut self, call: Call, peer: &Peer) {
        match call {
            Call::CreateQp { kind, cq, srq, xrcd, caps, all } => {
                self.create_qp(kind, cq, srq, xrcd, caps, all);
            }
            Call::DestroyQp { qp } => destroy(&mut self.qps, qp, QueuePair::destroy),
            Call::State { qp, state } => {
                let state = STATES[usize::from(state) % STATES.len()];
                let _ = pick(&self.qps, qp).map(|qp| qp.modify(&QpAttr::to_state(state)));
            }
            Call::Modify { qp, attr } => {
                let Some(qp) = pick(&self.qps, qp) else { return };
                let before = qp.query();
                if qp.modify(&attr.into()).is_err() {
                    let after = qp.query();
                    // Posted work continues meanwhile, and may fail.
                    let by_itself = matches!(after.qp_state, Some(QpState::Sqe | QpState::Err));
                    let (qp_state, cur_qp_state) = match by_itself {
                        true => (after.qp_state, after.cur_qp_state),
                        false => (before.qp_state, before.cur_qp_state),
                    };
                    let expected = QpAttr { qp_state, cur_qp_state, ..before };
                    assert!(after == expected, "what was refused changed something");
                }
            }
            Call::PostSend { qp, what, data, to, mr, at, word, flags } => {
                let wr = self.send(what, &data, to, mr, at, word, flags, peer);
                let _ = pick(&self.qps, qp).map(|qp| qp.post_send(wr));
            }
            Call::PostRecv { qp, data } => {
                let wr = RecvWr { wr_id: 2, data: self.gather(&data) };
                let _ = pick(&self.qps, qp).map(|qp| qp.post_recv(wr));
            }
            Call::Query { qp } => {
                if let Some(qp) = pick(&self.qps, qp) {
                    assert_eq!(qp.query().qp_state, Some(qp.state()));
                    let _ = (qp.counters(), qp.failure(), qp.flow());
                }
            }
            other => panic!("{other:?} is somebody else's"),
        }
    }

    fn create_qp(&mut self, kind: u8, cq: u8, srq: Option<u8>, xrcd: u8, caps: Option<[u32; 5]>, all: bool) {
        let qp_type = QpType::ALL[usize::from(kind) % QpType::ALL.len()];
        let Some(cq) = pick(&self.cqs, cq) else { return };
        let mut init = QpInit { qp_type, sq_sig_all: all, ..QpInit::rc(cq, cq) };
        if qp_type == QpType::XrcSend {
            init = QpInit::xrc_send(cq);
        }
        if qp_type == QpType::XrcRecv {
            let Some(xrcd) = pick(&self.xrcds, xrcd) else { return };
            return keep(&mut self.qps, self.device.create_qp(&QpInit::xrc_recv(xrcd)));
        }
        init.srq = srq.and_then(|srq| pick(&self.srqs, srq)).cloned();
        if let Some([send_wr, recv_wr, send_sge, recv_sge, inline]) = caps {
            init.cap = QpCap {
                max_send_wr: sane(send_wr),
                max_recv_wr: sane(recv_wr),
                max_send_sge: sane(send_sge),
                max_recv_sge: sane(recv_sge),
                max_inline_data: sane(inline),
            };
        }
        keep(&mut self.qps, self.pd.create_qp(&init));
    }

    fn gather(&self, data: &Data) -> Gather {
        match *data {
            Data::Nothing => Gather::Empty,
            Data::Inside { mr, at, len } => {
                let found = pick(&self.mrs, mr);
                let (at, end) = (usize::from(at), usize::from(at) + usize::from(len));
                found.and_then(|mr| mr.slice(at..end).ok()).map_or(Gather::Empty, Gather::from)
            }
            Data::Anything { addr, length, lkey } => Sge { addr, length, lkey }.into(),
            Data::Several { mr, lens } => {
                let Some(mr) = pick(&self.mrs, mr) else { return Gather::Empty };
                let list = lens.map(|len| Sge { length: len.into(), ..mr.all() });
                list[..].into()
            }
            Data::Inline { len } => Gather::Inline(vec![1; usize::from(len % 1024)].into()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as many as the call has")]
    fn send(
        &self,
        what: u8,
        data: &Data,
        to: u8,
        mr: u8,
        at: u16,
        word: u64,
        flags: u8,
        peer: &Peer,
    ) -> SendWr {
        let remote = match to & 3 {
            0 => Remote { addr: word, rkey: word as u32 },
            _ => Remote { addr: peer.memory.addr.wrapping_add(at.into()), ..peer.memory },
        };
        let imm = (flags & 0x40 != 0).then_some(word as u32);
        let flush =
            FlushKind { global: flags & 8 != 0, persistent: flags & 16 != 0, whole_region: flags & 32 != 0 };
        let lkey = pick(&self.mrs, mr).map_or(0, MemoryRegion::lkey);
        let operation = match what % 9 {
            0 => Operation::Send { imm, invalidate: (flags & 0x80 != 0).then_some(remote.rkey) },
            1 => Operation::Write { remote, imm },
            2 => Operation::Read { remote },
            3 => Operation::CompareSwap { remote, compare: word, swap: !word },
            4 => Operation::FetchAdd { remote, add: word },
            5 => Operation::AtomicWrite { remote },
            6 => Operation::Flush { remote, len: word as u32, flush },
            7 => Operation::LocalInvalidate { key: lkey ^ u32::from(at) },
            _ => {
                let access = rights(word as u32);
                let window = pick(&self.mws, mr).map_or(0, MemoryWindow::rkey);
                let bind =
                    Bind { window, key: window ^ u32::from(to), lkey, access, addr: word, len: at.into() };
                Operation::BindWindow(bind)
            }
        };
        let wr = SendWr::new(3, operation, self.gather(data));
        let wr = wr.flags(SendFlags::from_bits_retain(u32::from(flags & 7)));
        let key = if word & 1 == 0 { QKEY } else { QKey(word as u32) };
        let qpn = pick(&peer.qpns, word as u8 >> 1).copied().unwrap_or(Qpn::new(at.into()));
        match (to >> 6, pick(&self.ahs, at as u8)) {
            (0 | 1, _) => wr,
            (2, _) => wr.to(Destination::XrcSrq(pick(&peer.srqns, at as u8).copied().unwrap_or(word as u32))),
            (_, Some(ah)) => wr.to(ah.datagram(qpn, key)),
            (_, None) => {
                let path = AddressVector::new(Gid::from(self.device.address()), at as u8 & 1).into();
                wr.to(Destination::Datagram { path, qpn: Qpn::new(at.into()), qkey: QKey(word as u32) })
            }
        }
    }

    fn finish(mut self) {
        for qp in std::mem::take(&mut self.qps) {
            qp.destroy().expect("no group was joined");
        }
        for srq in std::mem::take(&mut self.srqs) {
            srq.destroy().expect("its queue pairs are gone");
        }
        for window in std::mem::take(&mut self.mws) {
            window.dealloc().expect("windows always go");
        }
        for region in std::mem::take(&mut self.mrs) {
            region.deregister().expect("its windows are gone");
        }
        for cq in std::mem::take(&mut self.cqs) {
            cq.destroy().expect("nothing completes to it");
        }
        for xrcd in std::mem::take(&mut self.xrcds) {
            xrcd.close().expect("nothing is in it");
        }
        self.ahs.clear();
        self.pd.destroy().expect("nothing is in it");
    }
}

impl From<Attributes> for QpAttr {
    fn from(a: Attributes) -> Self {
        let state = |state: Option<u8>| state.map(|s| STATES[usize::from(s) % STATES.len()]);
        let way = a.way.map(|[a, b, index, class]| AddressVector {
            traffic_class: class,
            ..AddressVector::new(Gid::from(std::net::IpAddr::from([10, 0, a & 1, b & 3])), index & 1)
        });
        let ([rq_psn, sq_psn], [depth, dest_depth]) = (a.psns, a.depths);
        let [timeout, retry_cnt, rnr_retry, min_rnr_timer] = a.timers;
        Self {
            qp_state: state(a.state),
            cur_qp_state: state(a.current),
            pkey_index: a.pkey_index,
            port_num: a.port,
            qkey: a.qkey.map(QKey),
            qp_access_flags: a.access.map(rights),
            path_mtu: a.mtu.map(|mtu| MTUS[usize::from(mtu) % MTUS.len()]),
            ah_attr: way,
            dest_qp_num: a.dest.map(Qpn::new),
            rq_psn: rq_psn.map(Psn::new),
            sq_psn: sq_psn.map(Psn::new),
            max_rd_atomic: depth,
            max_dest_rd_atomic: dest_depth,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            ..Self::default()
        }
    }
}
