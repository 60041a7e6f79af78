//! The receiving half of an extended reliable connection: each request names a shared receive queue, and stands in
//! the name of that queue (IBTA annex A14).

use super::host::XRC_SRQ;
use super::*;

/// Protection domain of the shared receive queue; the queue pair has none.
const SRQ_PD: PdId = PdId(9);
const NO_SRQ: u32 = XRC_SRQ + 1;

/// An XRC_RECV queue pair in RTS whose shared receive queue, and memory, are in a protection domain of their own.
fn target() -> Bench {
    let setup = Setup::default();
    let config = QpConfig {
        qpn: OURS,
        qp_type: QpType::XrcRecv,
        pd: PdId(u32::MAX),
        cap: QpCap::default(),
        sq_sig_all: false,
        has_srq: true,
        tuning: setup.tuning,
    };
    let mut bench = Bench { qp: QueuePair::new(config), ..setup.reset() };
    bench.host.shared_pd = Some(SRQ_PD);
    for region in &mut bench.host.regions {
        region.pd = SRQ_PD;
    }
    let peer = AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0);
    bench.modify(&QpAttr::to_init(1, 0, setup.rights));
    bench.modify(
        &QpAttr::to_rtr(peer, setup.mtu, PEERS, Psn::new(RQ)).max_dest_rd_atomic(4).min_rnr_timer(12),
    );
    bench.modify(&QpAttr::to_rts(Psn::new(SQ)).timeout(14));
    bench
}

/// A request that names a shared receive queue.
fn naming(srqn: u32, mut request: Out) -> Out {
    request.headers.xrc_srqn = srqn;
    request
}

fn write(psn: u32, data: &[u8]) -> Out {
    rdma(Opcode::XrcWriteOnly, psn, START, KEY, data.len(), data)
}

fn add(psn: u32) -> Out {
    let mut out = request(Opcode::XrcFetchAdd, psn, &[]);
    out.headers.atomic = AtomicFields { va: START, rkey: KEY, swap_add: 5, compare: 0 };
    out
}

fn xrc_answer(opcode: Opcode, psn: u32, syndrome: u8, msn: u32, payload: &[u8]) -> Out {
    answer(PEERS, opcode, psn, syndrome, msn, payload)
}

#[test]
fn a_send_takes_a_receive_of_the_queue_that_it_names() {
    let mut b = target();
    b.host.shared.push_back(RecvWr { wr_id: 7, data: local(0, 16).into() });
    let ack = xrc_answer(Opcode::XrcAcknowledge, RQ, ACK, 1, &[]);
    b.expect(&naming(XRC_SRQ, request(Opcode::XrcSendOnly, RQ, b"to that queue")), &[ack]);
    assert_eq!(b.notes(), [Note::Received(7, WcStatus::Success)]);
    assert_eq!((b.host.xrc_completions, b.host.recvs[0].0.qpn), (1, OURS));
    assert_eq!(&b.host.behind(local(0, 16))[..13], b"to that queue");
    // It has no more: the peer is told to wait.
    let not_ready = xrc_answer(Opcode::XrcAcknowledge, RQ + 1, 0x20 | 12, 1, &[]);
    b.expect(&naming(XRC_SRQ, request(Opcode::XrcSendOnly, RQ + 1, b"too early")), &[not_ready]);
}

#[test]
fn memory_is_that_of_the_protection_domain_of_the_queue_that_a_request_names() {
    let mut b = target();
    let long = pattern(2 * MTU);
    b.host.bytes(KEY)[..2 * MTU].copy_from_slice(&long);
    let read = |psn, len| naming(XRC_SRQ, rdma(Opcode::XrcReadRequest, psn, START, KEY, len, &[]));
    let first = xrc_answer(Opcode::XrcReadResponseFirst, RQ, ACK, 1, &long[..MTU]);
    let last = xrc_answer(Opcode::XrcReadResponseLast, RQ + 1, ACK, 1, &long[MTU..]);
    b.expect(&read(RQ, 2 * MTU), &[first.clone(), last.clone()]);
    b.expect(
        &naming(XRC_SRQ, write(RQ + 2, &7u64.to_ne_bytes())),
        &[xrc_answer(Opcode::XrcAcknowledge, RQ + 2, ACK, 2, &[])],
    );
    let mut old = xrc_answer(Opcode::XrcAtomicAcknowledge, RQ + 3, ACK, 3, &[]);
    old.headers.atomic_ack = 7;
    b.expect(&naming(XRC_SRQ, add(RQ + 3)), std::slice::from_ref(&old));
    assert_eq!(b.host.bytes(KEY)[..8], 12u64.to_ne_bytes());
    // Duplicates are answered from the same domain.
    b.host.bytes(KEY)[..8].copy_from_slice(&long[..8]);
    let again = |mut out: Out| {
        out.headers.aeth.msn = 3;
        out
    };
    b.expect(&read(RQ, 2 * MTU), &[again(first), again(last)]);
    b.expect(&naming(XRC_SRQ, add(RQ + 3)), &[old]);
    assert_eq!(b.host.bytes(KEY)[..8], long[..8], "executed once");
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    for request in [write(RQ, &[1]), add(RQ), rdma(Opcode::XrcReadRequest, RQ, START, KEY, 8, &[])] {
        let mut b = target();
        b.host.regions[0].pd = PD;
        let refusal = xrc_answer(Opcode::XrcAcknowledge, RQ, 0x62, 0, &[]);
        b.expect(&naming(XRC_SRQ, request), &[refusal]);
        assert!(b.notes().contains(&Note::Event(QpEvent::AccessError)));
        assert_eq!(b.host.bytes(KEY)[..8], [0; 8]);
    }
}

#[test]
fn a_request_that_names_no_queue_of_the_domain_is_invalid() {
    for request in [
        request(Opcode::XrcSendOnly, RQ, &[1]),
        write(RQ, &[1]),
        write(RQ, &[]),
        add(RQ),
        rdma(Opcode::XrcReadRequest, RQ, START, KEY, 8, &[]),
    ] {
        let mut b = target();
        b.host.shared.push_back(RecvWr { wr_id: 7, data: local(0, 16).into() });
        let refusal = xrc_answer(Opcode::XrcAcknowledge, RQ, 0x61, 0, &[]);
        b.expect(&naming(NO_SRQ, request), &[refusal]);
        assert_eq!(b.notes(), [Note::Event(QpEvent::RequestError), Note::Event(QpEvent::LastWqeReached)]);
        assert_eq!(b.qp.state(), QpState::Err);
        assert_eq!((b.host.shared.len(), b.host.xrc_completions), (1, 0));
    }
}
