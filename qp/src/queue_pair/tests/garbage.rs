//! Packets that no correct peer sends, fed to live queue pairs of every service: each is dropped, or refused by the
//! rules, and has no other effect. Memory that the packet does not validly name stays unchanged.
//!
//! The ICRC is not checked here; it is assumed to be correct. Random bytes derive from seeds, which a failure
//! names.

use super::host::XRC_SRQ;
use super::pair::Rng;
use super::*;
use crate::wire::headers::{DethFields, FethFields};
use crate::work::FlushKind;

/// The posted receive.
const RECEIVE: Sge = Sge { addr: LOCAL_START, length: 600, lkey: LOCAL };
/// Where the results of our own requests are stored.
const RESULTS: u64 = 1024;

/// A packet that a live queue pair accepts, and its preconditions.
struct Case {
    qp_type: QpType,
    /// Earlier packets.
    before: Vec<Out>,
    /// Our own requests in flight.
    posted: Vec<Operation>,
    packet: Out,
}

impl Case {
    fn new(qp_type: QpType, packet: Out) -> Self {
        Self { qp_type, before: vec![], posted: vec![], packet }
    }

    fn setup(&self) -> Setup {
        let rights = all_rights() | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let has_srq = self.qp_type == QpType::XrcRecv;
        let rq_psn = RQ - self.before.len() as u32;
        Setup { rights, has_srq, rq_psn, ..Setup::of(self.qp_type) }
    }

    /// The queue pair in the state before the packet.
    fn bench(&self) -> Bench {
        let mut b = self.setup().rts();
        // Memory is compared after each of half a million packets, so it is kept small.
        b.host.regions.iter_mut().for_each(|region| region.bytes.truncate(4096));
        b.host.regions[0].access |= Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        b.host.windows.push(Window { key: 77, bound_by: Some(OURS) });
        if b.qp.config.has_srq {
            b.host.shared.push_back(RecvWr { wr_id: 1, data: RECEIVE.into() });
        } else if self.qp_type != QpType::XrcSend {
            b.post_recv(1, &[RECEIVE]);
        }
        for (i, operation) in (0..).zip(&self.posted) {
            let sges: &[Sge] = match operation {
                Operation::Send { .. } | Operation::Write { .. } => &[local(RESULTS, MTU + 1)],
                Operation::Read { .. } => &[local(RESULTS, 2 * MTU + 8)],
                _ => &[local(RESULTS, 8)],
            };
            let to =
                if self.qp_type == QpType::XrcSend { Destination::XrcSrq(1) } else { Destination::Connected };
            let wr = SendWr::new(i, *operation, sges).to(to);
            b.qp.post_send(wr, &mut b.host).unwrap();
        }
        b.sent();
        self.before.iter().for_each(|packet| b.take(packet));
        b.sent();
        b.notes();
        b
    }
}

fn with_atomic(mut packet: Out) -> Out {
    packet.headers.atomic = AtomicFields { va: START + 64, rkey: KEY, swap_add: 5, compare: 6 };
    packet
}

fn flush() -> Out {
    let mut out = rdma(Opcode::RcFlush, RQ, START + 64, KEY, 100, &[]);
    out.headers.feth = FethFields { placement: 3, selectivity: 0 };
    out
}

/// Requests of the connected services.
fn requests(qp_type: QpType) -> Vec<Case> {
    let transport = qp_type.transport();
    // RC, UC and XRC opcodes agree in their low five bits.
    let of = |opcode: Opcode| {
        let base = match transport {
            crate::wire::Transport::Uc => 0x20,
            crate::wire::Transport::Xrc => 0xa0,
            _ => 0,
        };
        Opcode::from_u8(base | opcode as u8)
    };
    let target = |opcode, length, payload: &[u8]| rdma(opcode, RQ, START + 64, KEY, length, payload);
    let mut with_inv = request(Opcode::RcSendOnlyInv, RQ, &[1; 9]);
    with_inv.headers.ieth = 77;
    let first = || vec![request(Opcode::RcSendFirst, RQ - 1, &[1; MTU])];
    let writing = || vec![rdma(Opcode::RcWriteFirst, RQ - 1, START, KEY, 2 * MTU, &[1; MTU])];
    let all = [
        (vec![], request(Opcode::RcSendOnly, RQ, &[1; 9])),
        (vec![], request(Opcode::RcSendFirst, RQ, &[1; MTU])),
        (vec![], request(Opcode::RcSendOnlyImm, RQ, &[1; 10])),
        (vec![], with_inv),
        (first(), request(Opcode::RcSendMiddle, RQ, &[1; MTU])),
        (first(), request(Opcode::RcSendLast, RQ, &[1; 11])),
        (vec![], target(Opcode::RcWriteOnly, 13, &[2; 13])),
        (vec![], target(Opcode::RcWriteFirst, 300, &[2; MTU])),
        (vec![], target(Opcode::RcWriteOnlyImm, 8, &[2; 8])),
        (writing(), request(Opcode::RcWriteLast, RQ, &[2; MTU])),
        (vec![], target(Opcode::RcReadRequest, 600, &[])),
        (vec![], with_atomic(request(Opcode::RcFetchAdd, RQ, &[]))),
        (vec![], with_atomic(request(Opcode::RcCompareSwap, RQ, &[]))),
        (vec![], target(Opcode::RcAtomicWrite, 8, &[3; 8])),
        (vec![], flush()),
    ];
    let translated = |mut packet: Out| {
        packet.headers.opcode = of(packet.headers.opcode)?;
        packet.headers.xrc_srqn = XRC_SRQ;
        Some(packet)
    };
    all.into_iter()
        .filter_map(|(before, packet)| {
            let before = before.into_iter().map(translated).collect::<Option<Vec<_>>>()?;
            let mut case = Case::new(qp_type, translated(packet)?);
            case.before = before;
            Some(case)
        })
        .collect()
}

/// Responses to our own requests.
fn responses(qp_type: QpType) -> Vec<Case> {
    let remote = REMOTE;
    let flush =
        Operation::Flush { remote, len: 8, flush: FlushKind { global: true, ..FlushKind::default() } };
    let xrc = qp_type == QpType::XrcSend;
    let all = [
        (vec![SEND, WRITE], acked(SQ + 1)),
        (vec![SEND], refused(0x60, SQ)),
        (vec![SEND], refused(0x20 | 3, SQ)),
        (vec![WRITE], refused(0x62, SQ)),
        (vec![READ], read_responses(OURS, SQ, 1, &[4; 2 * MTU])[0].clone()),
        (vec![ADD], atomic_answer(SQ, 7)),
        (vec![Operation::AtomicWrite { remote }], read_responses(OURS, SQ, 1, &[])[0].clone()),
        (vec![flush], read_responses(OURS, SQ, 1, &[])[0].clone()),
    ];
    let cases = all.into_iter().filter_map(|(posted, mut packet)| {
        let placed =
            posted.iter().any(|o| matches!(o, Operation::AtomicWrite { .. } | Operation::Flush { .. }));
        if xrc {
            packet.headers.opcode = Opcode::from_u8(0xa0 | packet.headers.opcode as u8)?;
        }
        (!xrc || !placed).then(|| Case { posted, ..Case::new(qp_type, packet) })
    });
    cases.collect()
}

fn datagrams(qp_type: QpType) -> Vec<Case> {
    let qkey = if qp_type == QpType::Gsi { QKey::GSI } else { QKEY };
    let with = |opcode, len: usize| {
        let mut out = Out::new(Headers::new(opcode, OURS, Psn::new(3)), &vec![1; len]);
        out.headers.deth = DethFields { qkey, src_qpn: PEERS };
        Case::new(qp_type, out)
    };
    vec![with(Opcode::UdSendOnly, 0), with(Opcode::UdSendOnly, 33), with(Opcode::UdSendOnlyImm, MTU)]
}

fn cases() -> Vec<Case> {
    let mut all = requests(QpType::Rc);
    all.extend(requests(QpType::Uc));
    all.extend(requests(QpType::XrcRecv));
    all.extend(responses(QpType::Rc));
    all.extend(responses(QpType::XrcSend));
    all.extend(datagrams(QpType::Ud));
    all.extend(datagrams(QpType::Gsi));
    all
}

/// The range of a region that the packet names and may change, if any.
fn named(packet: &Packet<'_>) -> Option<(u32, std::ops::Range<u64>)> {
    let (rkey, va, len) = match (packet.reth(), packet.atomic_eth()) {
        (Some(reth), _) => (reth.rkey, reth.va, packet.payload().len() as u64),
        (None, Some(atomic)) => (atomic.rkey, atomic.va, 8),
        (None, None) => return None,
    };
    Some((rkey, va..va.wrapping_add(len)))
}

/// The effect of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Fate {
    /// The bytes are not a packet.
    Malformed,
    Dropped(PacketDrop),
    /// Accepted or dropped; the queue pair continues.
    Taken,
    /// The queue pair failed.
    Ended,
}

/// Describes an event for the failure message.
struct What<'a> {
    what: &'a dyn fmt::Display,
    qp_type: QpType,
    packet: &'a Packet<'a>,
    outcome: Result<(), PacketDrop>,
    sent: &'a [Out],
    notes: &'a [Note],
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, qp_type, packet, outcome, sent, notes } = self;
        write!(f, "{what}: {qp_type} {packet} {outcome:?} {sent:?} {notes:?}")
    }
}

/// Feeds bytes to a queue pair and checks that their effect is one of the few that packets may have.
fn judge(case: &Case, b: &mut Bench, bytes: &[u8], what: &dyn fmt::Display) -> Fate {
    let Ok(packet) = Packet::parse(bytes) else { return Fate::Malformed };
    let old = b.host.regions.clone();
    let counters = *b.qp.counters();
    let outcome = b.qp.handle_packet(b.now, &IpHeader::default(), &packet, &mut b.host);
    let sent = if b.qp.wants_to_transmit() { b.sent() } else { NONE };
    let notes = b.notes();
    let what = What { what, qp_type: case.qp_type, packet: &packet, outcome, sent: &sent, notes: &notes };
    check_memory(case, &packet, &old, b, &what);
    let reliable = case.qp_type.is_reliable();
    assert!(reliable || sent.is_empty(), "{what}: unreliable services do not answer");
    let state = b.qp.state();
    if let Err(drop) = outcome {
        assert_eq!((state, &*sent, &*notes), (QpState::Rts, &*NONE, &[][..]), "{what}");
        assert!(b.host.regions.iter().zip(&old).all(|(new, old)| new.bytes == old.bytes), "{what}");
        assert_eq!(b.qp.counters().rcvd_pkts, counters.rcvd_pkts, "{what}");
        return Fate::Dropped(drop);
    }
    assert_eq!(b.qp.counters().rcvd_pkts, counters.rcvd_pkts + 1, "{what}");
    if state == QpState::Rts {
        assert!(b.qp.failure().is_none(), "{what}");
        assert!(sent.iter().all(|p| !is_fatal(p)), "{what}");
        return Fate::Taken;
    }
    assert_eq!(state, QpState::Err, "{what}");
    assert!(b.qp.failure().is_some(), "{what}");
    if reliable && packet.info().is_request {
        // One NAK, at the position of the request.
        let last = sent.last().unwrap();
        assert!(is_fatal(last) && last.headers.psn == packet.psn(), "{what}");
        assert!(sent[..sent.len() - 1].iter().all(|p| !is_fatal(p)), "{what}");
        assert_eq!(last.headers.aeth.msn, b.qp.responder.msn, "{what}");
    } else {
        assert_eq!(sent, NONE, "{what}");
    }
    Fate::Ended
}

/// A NAK that ends a connection.
fn is_fatal(packet: &Out) -> bool {
    packet.headers.aeth.syndrome & 0xe0 == 0x60 && packet.headers.aeth.syndrome != 0x60
}

fn check_memory(case: &Case, packet: &Packet<'_>, old: &[host::Region], b: &Bench, what: &What<'_>) {
    let writing = case.before.iter().find_map(|p| (p.headers.reth.length > 0).then_some(p.headers.reth));
    for (new, old) in b.host.regions.iter().zip(old) {
        let changed = |at: usize| new.bytes[at] != old.bytes[at];
        let allowed = |at: usize| {
            let va = new.start + at as u64;
            match new.key {
                // The rest of a WRITE that has begun.
                KEY => {
                    let begun = writing.is_some_and(|r| va >= r.va && va < r.va + u64::from(r.length));
                    begun || named(packet).is_some_and(|(key, range)| key == KEY && range.contains(&va))
                }
                LOCAL => at < 600 || (1024..1024 + 2 * MTU + 8).contains(&at) && !case.posted.is_empty(),
                _ => false,
            }
        };
        if new.bytes != old.bytes {
            let wrong = (0..new.bytes.len()).find(|at| changed(*at) && !allowed(*at));
            assert_eq!(wrong, None, "{what}: memory of key {:#x} changed", new.key);
        }
    }
}

/// Runs cases repeatedly; a queue pair that a packet left unchanged is reused for the next one.
struct Rig<'c> {
    case: &'c Case,
    bench: Bench,
    fates: std::collections::HashMap<Fate, u32>,
}

impl<'c> Rig<'c> {
    fn new(case: &'c Case) -> Self {
        Self { case, bench: case.bench(), fates: Default::default() }
    }

    fn give(&mut self, bytes: &[u8], what: impl fmt::Display) -> Fate {
        let fate = judge(self.case, &mut self.bench, bytes, &what);
        if matches!(fate, Fate::Taken | Fate::Ended) {
            self.bench = self.case.bench();
        }
        *self.fates.entry(fate).or_default() += 1;
        fate
    }
}

/// The unmodified packets of all cases are valid.
#[test]
fn the_unmodified_packets_are_valid() {
    for case in cases() {
        let mut rig = Rig::new(&case);
        let fatal = is_fatal(&case.packet);
        let expected = if fatal { Fate::Ended } else { Fate::Taken };
        assert_eq!(rig.give(&case.packet.to_bytes(), "untouched"), expected, "{:?}", case.packet);
    }
    assert_eq!(cases().len(), 15 + 9 + 13 + 8 + 6 + 3 + 3);
}

#[test]
fn every_bit_of_every_packet_flipped() {
    let mut fates = std::collections::HashSet::new();
    for case in cases() {
        let mut rig = Rig::new(&case);
        let bytes = case.packet.to_bytes();
        // All bytes of a long payload are alike: flip bits in all of the headers, and in the first and last bytes
        // of the rest.
        let headers = 8 * (case.packet.headers.wire_len() + 4);
        let end = 8 * (bytes.len() - ICRC_LEN);
        for bit in (0..end).filter(|bit| *bit < headers || *bit >= end - 64) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            fates.insert(rig.give(&flipped, format_args!("bit {bit} flipped")));
        }
    }
    // Checks that the test reaches the intended outcomes.
    for fate in [
        Fate::Malformed,
        Fate::Taken,
        Fate::Ended,
        Fate::Dropped(PacketDrop::Service),
        Fate::Dropped(PacketDrop::StaleDuplicate),
        Fate::Dropped(PacketDrop::Ghost),
        Fate::Dropped(PacketDrop::ReservedSyndrome),
        Fate::Dropped(PacketDrop::QKey),
        Fate::Dropped(PacketDrop::Unreliable),
    ] {
        assert!(fates.contains(&fate), "{fate:?}");
    }
}

/// All values of one-byte fields, and the boundary values of longer ones, two at a time.
#[test]
fn every_value_of_every_byte_of_the_headers() {
    for case in cases() {
        let mut rig = Rig::new(&case);
        let bytes = case.packet.to_bytes();
        for at in 0..case.packet.headers.wire_len() {
            for value in 0..=u8::MAX {
                let mut spoiled = bytes.clone();
                spoiled[at] = value;
                rig.give(&spoiled, format_args!("byte {at} is {value:#x}"));
            }
        }
    }
}

#[test]
fn every_length_of_every_packet() {
    for case in cases() {
        let mut rig = Rig::new(&case);
        let bytes = case.packet.to_bytes();
        let headers = case.packet.headers.wire_len();
        for len in 0..bytes.len() {
            let fate = rig.give(&bytes[..len], format_args!("{len} bytes"));
            let whole = len >= headers + ICRC_LEN && len % 4 == 0;
            // A packet whose pad is cut off is not valid either.
            assert!(whole || fate == Fate::Malformed, "{len} bytes of {:?}", case.packet);
        }
        // Longer than it should be: zeros appended.
        for more in 1..=MTU {
            let mut long = bytes.clone();
            long.resize(bytes.len() + more, 0);
            let fate = rig.give(&long, format_args!("{more} excess bytes"));
            let carries = case.packet.headers.opcode.info().has_payload;
            assert!(more % 4 == 0 && carries || fate == Fate::Malformed, "{more} more: {:?}", case.packet);
        }
    }
}

/// Random bytes, most of them with a plausible start: the right version, a known opcode, the right queue pair, a
/// PSN close to the expected one.
#[test]
fn random_bytes() {
    const EACH: u32 = 3000;
    for (number, case) in (0..).zip(cases()) {
        let mut rig = Rig::new(&case);
        for i in 0..EACH {
            let seed = number * u64::from(EACH) + u64::from(i);
            let mut rng = Rng(seed);
            let mut bytes: Vec<u8> = (0..rng.below(400)).map(|_| rng.next() as u8).collect();
            if bytes.len() >= 12 && i % 8 != 0 {
                bytes.truncate(bytes.len() & !3);
                bytes[0] = if i % 3 == 0 {
                    case.packet.headers.opcode as u8
                } else {
                    Opcode::ALL[rng.below(Opcode::ALL.len())] as u8
                };
                bytes[1] &= 0xf0;
                let psn = case.packet.headers.psn.value().wrapping_add(rng.below(9) as u32).wrapping_sub(4);
                bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
            }
            rig.give(&bytes, format_args!("seed {seed}"));
        }
    }
}

/// Two packets of different kinds with their bytes mixed, and valid packets in the wrong order.
#[test]
fn packets_of_others_and_mixtures() {
    let all = cases();
    for (i, case) in all.iter().enumerate() {
        let mut rig = Rig::new(case);
        for (j, other) in all.iter().enumerate() {
            rig.give(&other.packet.to_bytes(), format_args!("packet {j} to queue pair {i}"));
            let (ours, theirs) = (case.packet.to_bytes(), other.packet.to_bytes());
            for cut in (12..ours.len().min(theirs.len())).step_by(4) {
                let mixed = [&ours[..cut], &theirs[cut..]].concat();
                rig.give(&mixed, format_args!("packet {i} up to {cut}, then {j}"));
            }
        }
    }
}
