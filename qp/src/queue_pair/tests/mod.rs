//! Tests of the queue pair, by role: feed a packet, and expect the exact answer.
//!
//! Names and comments cite the tested rules by their IBTA numbers.

mod asked;
mod attributes;
mod credits;
mod duplicates;
mod garbage;
mod host;
mod local;
mod lossy;
mod mixed;
mod paced;
mod pair;
mod placed;
mod reasons;
mod requester;
mod responder;
mod retries;
mod rxe_history;
mod selective;
mod sqe;
mod states;
mod trains;
mod uc;
mod ud;
mod xrc;

use super::*;
use crate::attr::{AttrMask, QpCap, QpState, QpType};
use crate::ids::{Gid, QKey};
use crate::memory::{Access, QpEvent};
use crate::wire::headers::{AethFields, AtomicFields, RethFields};
use crate::wire::icrc::Flow;
use crate::wire::opcode::Opcode;
use crate::wire::packet::{Headers, ICRC_LEN, pad_len};
use crate::work::{Destination, Gather, Operation, Remote, SendFlags, Sge, WcFlags, WcOpcode, WcStatus};
use host::{Note, TestHost, Window};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use time::Duration;

const OURS: Qpn = Qpn::new(0x11);
const PEERS: Qpn = Qpn::new(0x22);
const PD: PdId = PdId(1);
/// PSN of the peer's first request.
const RQ: u32 = 100;
/// PSN of our first request.
const SQ: u32 = 500;
/// The Q_Key of our datagram queue pairs.
const QKEY: QKey = QKey(0x1111_1111);
/// Payload of a full packet, unless a test says otherwise.
const MTU: usize = 256;

/// A region with every access right, which the peer's requests target.
const KEY: u32 = 0x1000;
const START: u64 = 0x10_0000;
/// A region with every access right, for receives, READ results and payloads.
const LOCAL: u32 = 0x2000;
const LOCAL_START: u64 = 0x20_0000;
/// A region without remote access rights.
const PRIVATE: u32 = 0x3000;
const PRIVATE_START: u64 = 0x30_0000;
const REGION_LEN: usize = 1 << 16;

const NONE: Vec<Out> = Vec::new();

/// The test pattern: byte `i` depends on `i`.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// A packet that was sent.
#[derive(Clone, PartialEq)]
struct Out {
    headers: Headers,
    payload: Vec<u8>,
}

impl Out {
    fn new(headers: Headers, payload: &[u8]) -> Self {
        Self { headers, payload: payload.to_vec() }
    }

    fn psn(&self) -> u32 {
        self.headers.psn.value()
    }

    /// The encoded packet; these tests do not check the ICRC.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.headers.wire_len()];
        self.headers.emit(&mut bytes, self.payload.len());
        bytes.extend(&self.payload);
        bytes.resize(bytes.len() + pad_len(self.payload.len()) + ICRC_LEN, 0);
        bytes
    }
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Packet::parse(&self.to_bytes()).unwrap())?;
        // A few bytes distinguish payloads.
        write!(f, " {:02x?}", &self.payload[..self.payload.len().min(8)])
    }
}

/// The configuration of a queue pair. Settings that its type does not have are ignored.
#[derive(Clone, Debug)]
struct Setup {
    qp_type: QpType,
    pd: PdId,
    qkey: QKey,
    mtu: Mtu,
    rights: Access,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    sq_psn: u32,
    rq_psn: u32,
    sq_sig_all: bool,
    has_srq: bool,
    least_timeout: u8,
    tuning: Tuning,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            pd: PD,
            qkey: QKEY,
            mtu: Mtu::B256,
            rights: all_rights(),
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 2,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            sq_psn: SQ,
            rq_psn: RQ,
            sq_sig_all: false,
            has_srq: false,
            least_timeout: 0,
            // No acknowledgement requests within a message and no split READs, unless a test enables them.
            tuning: Tuning {
                ack_interval: u32::MAX,
                read_chunk: 0,
                mig_req: false,
                e2e_credits: false,
                adaptive_timeout: false,
                selective_repeat: false,
                max_in_flight: 0,
                reorder_tolerance: 0,
            },
        }
    }
}

impl Setup {
    fn of(qp_type: QpType) -> Self {
        Self { qp_type, ..Self::default() }
    }

    /// A queue pair in RESET.
    fn reset(&self) -> Bench {
        let config = QpConfig {
            qpn: OURS,
            qp_type: self.qp_type,
            pd: self.pd,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 64,
            },
            sq_sig_all: self.sq_sig_all,
            has_srq: self.has_srq,
            least_timeout: self.least_timeout,
            tuning: self.tuning,
        };
        let mut host = TestHost::default();
        host.register(KEY, START, REGION_LEN, all_rights());
        host.register(LOCAL, LOCAL_START, REGION_LEN, all_rights());
        host.register(PRIVATE, PRIVATE_START, REGION_LEN, Access::LOCAL_WRITE);
        // A datagram queue pair has no path MTU and uses that of the port.
        let limits = if self.qp_type.is_connected() {
            Limits::default()
        } else {
            Limits { path_mtu: self.mtu, ..Limits::default() }
        };
        Bench { qp: QueuePair::new(config), host, now: Instant::EPOCH, limits }
    }

    fn init(&self) -> Bench {
        let mut bench = self.reset();
        bench.modify(&self.to_init());
        bench
    }

    fn to_init(&self) -> QpAttr {
        match self.qp_type {
            QpType::Gsi => QpAttr::to_state(QpState::Init).pkey_index(0).qkey(self.qkey),
            QpType::Ud => QpAttr::to_init_datagram(1, 0, self.qkey),
            _ => QpAttr::to_init(1, 0, self.rights),
        }
    }

    fn rtr(&self) -> Bench {
        let mut bench = self.init();
        bench.modify(&self.to_rtr());
        bench
    }

    fn to_rtr(&self) -> QpAttr {
        let peer = AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0);
        let connected = QpAttr::to_rtr(peer, self.mtu, PEERS, Psn::new(self.rq_psn));
        match self.qp_type {
            QpType::Gsi | QpType::Ud => QpAttr::to_state(QpState::Rtr),
            QpType::Uc | QpType::XrcSend => connected,
            QpType::Rc | QpType::XrcRecv => {
                connected.max_dest_rd_atomic(self.max_dest_rd_atomic).min_rnr_timer(self.min_rnr_timer)
            }
        }
    }

    fn rts(&self) -> Bench {
        let mut bench = self.rtr();
        bench.modify(&self.to_rts());
        bench
    }

    fn to_rts(&self) -> QpAttr {
        let start = QpAttr::to_rts(Psn::new(self.sq_psn));
        match self.qp_type {
            QpType::Gsi | QpType::Ud | QpType::Uc => start,
            QpType::XrcRecv => start.timeout(self.timeout),
            QpType::Rc | QpType::XrcSend => start
                .timeout(self.timeout)
                .retry_cnt(self.retry_cnt)
                .rnr_retry(self.rnr_retry)
                .max_rd_atomic(self.max_rd_atomic),
        }
    }
}

/// A queue pair, its host and the time.
struct Bench {
    qp: QueuePair,
    host: TestHost,
    now: Instant,
    limits: Limits,
}

impl Bench {
    fn modify(&mut self, attr: &QpAttr) {
        self.qp.modify(attr, &self.limits, &mut self.host).unwrap();
    }

    /// Feeds a packet to the queue pair.
    fn feed(&mut self, packet: &Out) -> Result<(), PacketDrop> {
        let bytes = packet.to_bytes();
        self.qp.handle_packet(self.now, &IpHeader::default(), &Packet::parse(&bytes).unwrap(), &mut self.host)
    }

    /// Feeds a packet that must be accepted.
    fn take(&mut self, packet: &Out) {
        assert_eq!(self.feed(packet), Ok(()), "{packet:?}");
    }

    fn flow() -> Flow {
        Flow {
            src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            src_port: 0xc000,
            dst_port: crate::wire::UDP_PORT,
        }
    }

    /// Everything that the queue pair can send now, in trains of at most `max` packets.
    fn poll(&mut self, max: u32, requests: &mut u32) -> Vec<Out> {
        let flow = Self::flow();
        let mut out = Vec::new();
        loop {
            let mut buf = [0; 65_536];
            let mut train = Train::new(&mut buf, flow, max);
            let mut budget = Budget::requests(*requests);
            let more = self.qp.poll_transmit(self.now, &mut train, &mut budget, &mut self.host);
            *requests = budget.requests;
            let size = train.segment_size().max(1);
            for bytes in train.bytes().chunks(size) {
                let packet = Packet::parse(bytes).unwrap();
                out.push(Out::new(Headers::of(&packet), packet.payload()));
            }
            if train.packets() == 0 || !more {
                assert!(
                    *requests == 0 || !self.qp.wants_to_transmit(),
                    "it announces packets but sends none"
                );
                return out;
            }
        }
    }

    /// Everything that the queue pair can send now.
    fn sent(&mut self) -> Vec<Out> {
        self.poll(64, &mut u32::MAX.clone())
    }

    /// Feeds a request and expects these answers.
    fn expect(&mut self, request: &Out, answers: &[Out]) {
        self.take(request);
        assert_eq!(self.sent(), answers, "after {request:?}");
    }

    fn notes(&mut self) -> Vec<Note> {
        self.host.take_notes()
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(RecvWr { wr_id, data: sges.into() }, &mut self.host).unwrap();
    }

    fn post(&mut self, wr_id: u64, operation: Operation, sges: &[Sge]) {
        self.post_with(wr_id, operation, sges, SendFlags::SIGNALED);
    }

    fn post_with(&mut self, wr_id: u64, operation: Operation, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr::new(wr_id, operation, sges).flags(flags);
        self.qp.post_send(wr, &mut self.host).unwrap();
    }

    /// Advances time to the next timer, which must be due `after` from now.
    fn sleep(&mut self, after: Duration) {
        assert_eq!(self.qp.poll_timeout().map(|t| t - self.now), Some(after));
        // One nanosecond before that, nothing happens.
        self.now += after - Duration::from_nanos(1);
        self.qp.handle_timeout(self.now, &mut self.host);
        assert_eq!(self.sent(), NONE, "too early");
        self.now += Duration::from_nanos(1);
        self.qp.handle_timeout(self.now, &mut self.host);
    }
}

/// `len` bytes at `offset` of the local region.
fn local(offset: u64, len: usize) -> Sge {
    Sge { addr: LOCAL_START + offset, length: len as u32, lkey: LOCAL }
}

/// A request from the peer; the last packet of a message asks for an acknowledgement.
fn request(opcode: Opcode, psn: u32, payload: &[u8]) -> Out {
    let ack_req = opcode.info().position.ends();
    Out::new(Headers { ack_req, ..Headers::new(opcode, OURS, Psn::new(psn)) }, payload)
}

/// A request with a RETH.
fn rdma(opcode: Opcode, psn: u32, va: u64, rkey: u32, length: usize, payload: &[u8]) -> Out {
    let mut out = request(opcode, psn, payload);
    out.headers.reth = RethFields { va, rkey, length: length as u32 };
    out
}

/// A READ request for `length` bytes at `offset` of the remote region.
fn read(psn: u32, offset: u64, length: usize) -> Out {
    rdma(Opcode::RcReadRequest, psn, START + offset, KEY, length, &[])
}

fn fetch_add(psn: u32, va: u64, add: u64) -> Out {
    let mut out = request(Opcode::RcFetchAdd, psn, &[]);
    out.headers.atomic = AtomicFields { va, rkey: KEY, swap_add: add, compare: 0 };
    out
}

/// An answer to the peer's (`dest` [`PEERS`]) or our own (`dest` [`OURS`]) request.
fn answer(dest: Qpn, opcode: Opcode, psn: u32, syndrome: u8, msn: u32, payload: &[u8]) -> Out {
    let mut headers = Headers::new(opcode, dest, Psn::new(psn));
    headers.aeth = AethFields { syndrome, msn };
    if opcode == Opcode::RcReadResponseMiddle {
        // This opcode has no AETH.
        headers.aeth = AethFields::default();
    }
    Out::new(headers, payload)
}

/// The syndrome of an ACK.
const ACK: u8 = 0x1f;

fn ack(psn: u32, msn: u32) -> Out {
    answer(PEERS, Opcode::RcAcknowledge, psn, ACK, msn, &[])
}

fn nak(code: u8, psn: u32, msn: u32) -> Out {
    answer(PEERS, Opcode::RcAcknowledge, psn, code, msn, &[])
}

fn atomic_ack(psn: u32, msn: u32, original: u64) -> Out {
    let mut out = answer(PEERS, Opcode::RcAtomicAcknowledge, psn, ACK, msn, &[]);
    out.headers.atomic_ack = original;
    out
}

/// The response packets of a READ of `data`.
fn read_responses(dest: Qpn, psn: u32, msn: u32, data: &[u8]) -> Vec<Out> {
    let pieces: Vec<&[u8]> = if data.is_empty() { vec![data] } else { data.chunks(MTU).collect() };
    let last = pieces.len() - 1;
    let one = |(i, piece): (usize, &&[u8])| {
        let opcode = match (i, i == last) {
            (0, true) => Opcode::RcReadResponseOnly,
            (0, false) => Opcode::RcReadResponseFirst,
            (_, false) => Opcode::RcReadResponseMiddle,
            (_, true) => Opcode::RcReadResponseLast,
        };
        answer(dest, opcode, Psn::new(psn + i as u32).value(), ACK, msn, piece)
    };
    pieces.iter().enumerate().map(one).collect()
}

/// An ACK of our own request.
fn acked(psn: u32) -> Out {
    answer(OURS, Opcode::RcAcknowledge, psn, ACK, 0, &[])
}

fn refused(code: u8, psn: u32) -> Out {
    answer(OURS, Opcode::RcAcknowledge, psn, code, 0, &[])
}

fn atomic_answer(psn: u32, original: u64) -> Out {
    let mut out = answer(OURS, Opcode::RcAtomicAcknowledge, psn, ACK, 0, &[]);
    out.headers.atomic_ack = original;
    out
}

const SEND: Operation = Operation::Send { imm: None, invalidate: None };
const REMOTE: Remote = Remote { addr: 0xdead_0000, rkey: 0xbeef };
const WRITE: Operation = Operation::Write { remote: REMOTE, imm: None };
const READ: Operation = Operation::Read { remote: REMOTE };
const ADD: Operation = Operation::FetchAdd { remote: REMOTE, add: 1 };

fn psns(packets: &[Out]) -> Vec<u32> {
    packets.iter().map(Out::psn).collect()
}
