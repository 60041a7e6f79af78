//! Extended reliable connections (IBTA annex A14): one side sends and names a shared receive queue in every
//! request, the other executes and answers. They follow the rules of RC; these tests cover the differences.

use super::host::XRC_SRQ;
use super::*;

const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const DONE: WcStatus = WcStatus::Success;
/// Protection domain of the shared receive queue.
const SRQ_PD: PdId = PdId(9);
const NO_SRQ: u32 = XRC_SRQ + 1;
/// A number that uses all 24 bits.
const THEIRS: u32 = 0xfe_dcba;

fn initiator() -> Setup {
    Setup::of(QpType::XrcSend)
}

/// Without a protection domain of its own.
fn target_setup() -> Setup {
    Setup { has_srq: true, pd: PdId(u32::MAX), ..Setup::of(QpType::XrcRecv) }
}

/// With receives of 600 bytes in the shared receive queue, which has a protection domain of its own; all memory
/// belongs to it.
fn target(receives: u64) -> Bench {
    let mut b = target_setup().rts();
    b.host.shared_pd = Some(SRQ_PD);
    for region in &mut b.host.regions {
        region.pd = SRQ_PD;
    }
    b.host.shared.extend((1..=receives).map(|wr_id| RecvWr { wr_id, data: local(0, 600).into() }));
    b
}

/// A request that names a shared receive queue.
fn naming(srqn: u32, mut request: Out) -> Out {
    request.headers.xrc_srqn = srqn;
    request
}

fn to_peer(opcode: Opcode, psn: u32, syndrome: u8, msn: u32, payload: &[u8]) -> Out {
    answer(PEERS, opcode, psn, syndrome, msn, payload)
}

fn to_us(opcode: Opcode, psn: u32, syndrome: u8, payload: &[u8]) -> Out {
    answer(OURS, opcode, psn, syndrome, 0, payload)
}

fn write(psn: u32, data: &[u8]) -> Out {
    rdma(Opcode::XrcWriteOnly, psn, START, KEY, data.len(), data)
}

fn add(psn: u32) -> Out {
    let mut out = request(Opcode::XrcFetchAdd, psn, &[]);
    out.headers.atomic = AtomicFields { va: START, rkey: KEY, swap_add: 5, compare: 0 };
    out
}

impl Bench {
    fn post_xrc(&mut self, wr_id: u64, operation: Operation, sges: &[Sge]) {
        let wr = SendWr::new(wr_id, operation, sges).flags(SendFlags::SIGNALED);
        self.qp.post_send(wr.to(Destination::XrcSrq(THEIRS)), &mut self.host).unwrap();
    }
}

#[test]
fn every_request_names_the_shared_receive_queue() {
    let mut b = initiator().rts();
    b.post_xrc(1, SEND, &[local(0, 2 * MTU + 1)]);
    b.post_xrc(2, Operation::Send { imm: Some(3), invalidate: None }, &[]);
    b.post_xrc(3, Operation::Send { imm: None, invalidate: Some(4) }, &[local(0, MTU + 1)]);
    b.post_xrc(4, WRITE, &[local(0, 2 * MTU + 1)]);
    b.post_xrc(5, Operation::Write { remote: REMOTE, imm: Some(6) }, &[]);
    b.post_xrc(6, READ, &[local(0, MTU + 1)]);
    b.post_xrc(7, ADD, &[local(0, 8)]);
    b.post_xrc(8, Operation::CompareSwap { remote: REMOTE, compare: 1, swap: 2 }, &[local(0, 8)]);
    let sent = b.sent();
    use Opcode as O;
    let opcodes: Vec<_> = sent.iter().map(|p| p.headers.opcode).collect();
    let expected = [
        O::XrcSendFirst,
        O::XrcSendMiddle,
        O::XrcSendLast,
        O::XrcSendOnlyImm,
        O::XrcSendFirst,
        O::XrcSendLastInv,
        O::XrcWriteFirst,
        O::XrcWriteMiddle,
        O::XrcWriteLast,
        O::XrcWriteOnlyImm,
        O::XrcReadRequest,
        O::XrcFetchAdd,
        O::XrcCompareSwap,
    ];
    assert_eq!(opcodes, expected);
    assert!(sent.iter().all(|p| p.headers.xrc_srqn == THEIRS), "{sent:?}");
    assert!(sent.iter().all(|p| p.headers.ack_req == p.headers.opcode.info().position.ends()));
    assert_eq!((sent[5].headers.ieth, sent[9].headers.imm), (4, 6));
    // Answers are those of RC, with opcodes of their own.
    b.take(&to_us(O::XrcAcknowledge, SQ + 9, ACK, &[]));
    b.take(&to_us(O::XrcReadResponseFirst, SQ + 10, ACK, &[1; MTU]));
    b.take(&to_us(O::XrcReadResponseLast, SQ + 11, ACK, &[2]));
    for psn in [SQ + 12, SQ + 13] {
        b.take(&to_us(O::XrcAtomicAcknowledge, psn, ACK, &[]));
    }
    assert_eq!(b.notes(), (1..=8).map(|id| Note::Sent(id, DONE)).collect::<Vec<_>>());
    assert_eq!(b.host.behind(local(MTU as u64, 1)), [2]);
}

#[test]
fn the_initiator_retries_as_rc_does() {
    let mut b = initiator().rts();
    b.post_xrc(1, SEND, &[local(0, MTU + 1)]);
    b.post_xrc(2, WRITE, &[]);
    let sent = b.sent();
    b.sleep(TIMEOUT);
    assert_eq!(b.sent(), sent);
    b.take(&to_us(Opcode::XrcAcknowledge, SQ + 1, 0x60, &[]));
    assert_eq!(b.sent(), sent[1..]);
    let late = to_us(Opcode::XrcAcknowledge, SQ, 0x20 | 1, &[]);
    assert_eq!(b.feed(&late), Err(PacketDrop::Ghost), "PSN SQ is answered");
    b.take(&to_us(Opcode::XrcAcknowledge, SQ + 2, 0x62, &[]));
    assert_eq!(b.notes(), [Note::Sent(1, DONE), Note::Sent(2, WcStatus::RemAccessErr)]);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn an_initiator_receives_no_requests_and_no_receives() {
    let mut b = initiator().rts();
    for opcode in [Opcode::XrcSendOnly, Opcode::XrcWriteOnly, Opcode::XrcReadRequest] {
        assert_eq!(b.feed(&request(opcode, RQ, &[])), Err(PacketDrop::Service));
    }
    for opcode in [Opcode::RcAcknowledge, Opcode::UcSendOnly, Opcode::UdSendOnly] {
        assert_eq!(b.feed(&request(opcode, RQ, &[])), Err(PacketDrop::Service));
    }
    let none = |queue, qp_type| Err(PostError::NoQueue { queue, qp_type });
    assert_eq!(b.qp.post_recv(RecvWr::default(), &mut b.host), none("receive", QpType::XrcSend));
    let mut t = target(0);
    assert_eq!(t.qp.post_recv(RecvWr::default(), &mut t.host), none("receive", QpType::XrcRecv));
    let send = SendWr::new(1, SEND, Gather::Empty).to(Destination::XrcSrq(1));
    assert_eq!(t.qp.post_send(send, &mut t.host), none("send", QpType::XrcRecv));
    // A response to a target, which has sent no request.
    assert_eq!(t.feed(&to_us(Opcode::XrcAcknowledge, SQ, ACK, &[])), Err(PacketDrop::Ghost));
    assert_eq!((b.sent(), t.sent()), (NONE, NONE));
}

#[test]
fn a_request_needs_the_number_of_a_shared_receive_queue() {
    let mut b = initiator().rts();
    let mut post =
        |operation, to| b.qp.post_send(SendWr::new(1, operation, Gather::Empty).to(to), &mut b.host);
    for to in [Destination::Connected, Destination::XrcSrq(1 << 24)] {
        for operation in [SEND, WRITE, READ] {
            let error = post(operation, to.clone()).unwrap_err().to_string();
            assert_eq!(
                error,
                "a send on XRC_SEND queue pairs needs the number of a shared receive queue at the peer, below 2^24"
            );
        }
    }
    assert_eq!(post(SEND, Destination::XrcSrq(0xff_ffff)), Ok(()));
    assert_eq!(post(Operation::LocalInvalidate { key: 1 }, Destination::Connected), Ok(()), "for nobody");
    for operation in [
        Operation::AtomicWrite { remote: REMOTE },
        Operation::Flush { remote: REMOTE, len: 1, flush: crate::work::FlushKind::default() },
    ] {
        let refused = PostError::Unsupported { operation: operation.name(), qp_type: QpType::XrcSend };
        assert_eq!(post(operation, Destination::XrcSrq(1)), Err(refused), "there are no such opcodes");
    }
}

#[test]
fn the_target_answers_in_opcodes_of_its_own_and_gives_no_credits() {
    let mut b = target(2);
    b.qp.config.tuning.e2e_credits = true;
    use Opcode as O;
    let ack = |psn, msn| to_peer(O::XrcAcknowledge, psn, ACK, msn, &[]);
    b.take(&naming(XRC_SRQ, request(O::XrcSendFirst, RQ, &[1; MTU])));
    b.expect(&naming(XRC_SRQ, request(O::XrcSendLast, RQ + 1, &[2])), &[ack(RQ + 1, 1)]);
    let mut write = rdma(O::XrcWriteOnlyImm, RQ + 2, START, KEY, 1, &[3]);
    write.headers.imm = 77;
    b.expect(&naming(XRC_SRQ, write), &[ack(RQ + 2, 2)]);
    assert_eq!(b.notes(), [1, 2].map(|id| Note::Received(id, DONE)));
    let [(send, _), (write, _)] = b.host.recvs[..] else { panic!() };
    assert_eq!((send.byte_len as usize, send.opcode, send.qpn), (MTU + 1, WcOpcode::Recv, OURS));
    assert_eq!((write.imm(), write.opcode), (Some(77), WcOpcode::RecvRdmaWithImm));
    assert_eq!(b.host.xrc_completions, 2);
    let read = naming(XRC_SRQ, rdma(O::XrcReadRequest, RQ + 3, START, KEY, 2 * MTU + 1, &[]));
    let opcodes = |sent: Vec<Out>| sent.iter().map(|p| p.headers.opcode).collect::<Vec<_>>();
    let responses = [O::XrcReadResponseFirst, O::XrcReadResponseMiddle, O::XrcReadResponseLast];
    b.take(&read);
    assert_eq!(opcodes(b.sent()), responses);
    let mut add = request(O::XrcFetchAdd, RQ + 6, &[]);
    add.headers.atomic = AtomicFields { va: START + 8, rkey: KEY, swap_add: 5, compare: 0 };
    for original in [0, 0] {
        let mut answer = to_peer(O::XrcAtomicAcknowledge, RQ + 6, ACK, 4, &[]);
        answer.headers.atomic_ack = original;
        b.expect(&naming(XRC_SRQ, add.clone()), &[answer]);
    }
    assert_eq!(b.host.bytes(KEY)[8], 5, "a duplicate is answered and not executed");
    b.take(&read);
    assert_eq!(opcodes(b.sent()), responses);
    b.expect(&naming(XRC_SRQ, request(O::XrcSendOnly, RQ, &[])), &[ack(RQ + 6, 4)]);
    assert_eq!(b.qp.counters().duplicate_request, 3);
    // A gap, and an empty queue.
    let sequence = to_peer(O::XrcAcknowledge, RQ + 7, 0x60, 4, &[]);
    b.expect(&naming(XRC_SRQ, request(O::XrcSendOnly, RQ + 9, &[])), &[sequence]);
    let not_ready = to_peer(O::XrcAcknowledge, RQ + 7, 0x20 | 12, 4, &[]);
    b.expect(&naming(XRC_SRQ, request(O::XrcSendOnly, RQ + 7, &[])), &[not_ready]);
}

/// The upper eight bits of the XRCETH are reserved and ignored on reception (C9-6).
#[test]
fn the_reserved_bits_of_the_xrceth_are_ignored() {
    let mut b = target(1);
    let mut bytes = naming(XRC_SRQ, request(Opcode::XrcSendOnly, RQ, b"x")).to_bytes();
    bytes[12] = 0xff;
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(b.qp.handle_packet(b.now, &IpHeader::default(), &packet, &mut b.host), Ok(()));
    assert_eq!(b.notes(), [Note::Received(1, DONE)]);
}

/// A receive consumed by an unfinished message is returned through the completion queue of its shared receive
/// queue.
#[test]
fn a_message_that_cannot_end_completes_its_receive_there() {
    let mut b = target(1);
    b.take(&naming(XRC_SRQ, request(Opcode::XrcSendFirst, RQ, &[1; MTU])));
    b.modify(&QpAttr::to_state(QpState::Err));
    let expected = [Note::Received(1, WcStatus::WrFlushErr), Note::Event(QpEvent::LastWqeReached)];
    assert_eq!((b.notes(), b.host.xrc_completions), (expected.to_vec(), 1));
    let mut b = target(1);
    b.take(&naming(XRC_SRQ, request(Opcode::XrcSendFirst, RQ, &[1; MTU])));
    b.take(&naming(XRC_SRQ, request(Opcode::XrcSendFirst, RQ + 1, &[1; MTU])));
    assert_eq!(b.notes()[0], Note::Received(1, WcStatus::RemInvReqErr));
    assert_eq!(b.host.xrc_completions, 1);
}

#[test]
fn communication_established_is_for_the_target() {
    let mut b = target_setup().rtr();
    b.host.shared.push_back(RecvWr::default());
    b.take(&naming(XRC_SRQ, request(Opcode::XrcSendOnly, RQ, b"")));
    assert_eq!(b.notes(), [Note::Event(QpEvent::CommunicationEstablished), Note::Received(0, DONE)]);
    let mut b = initiator().rtr();
    assert_eq!(b.feed(&request(Opcode::XrcSendOnly, RQ, b"")), Err(PacketDrop::Service));
    assert_eq!(b.notes(), []);
}

#[test]
fn memory_is_that_of_the_protection_domain_of_the_queue_that_a_request_names() {
    let mut b = target(0);
    let long = pattern(2 * MTU);
    b.host.bytes(KEY)[..2 * MTU].copy_from_slice(&long);
    let read = |psn, len| naming(XRC_SRQ, rdma(Opcode::XrcReadRequest, psn, START, KEY, len, &[]));
    let first = to_peer(Opcode::XrcReadResponseFirst, RQ, ACK, 1, &long[..MTU]);
    let last = to_peer(Opcode::XrcReadResponseLast, RQ + 1, ACK, 1, &long[MTU..]);
    b.expect(&read(RQ, 2 * MTU), &[first.clone(), last.clone()]);
    b.expect(
        &naming(XRC_SRQ, write(RQ + 2, &7u64.to_ne_bytes())),
        &[to_peer(Opcode::XrcAcknowledge, RQ + 2, ACK, 2, &[])],
    );
    let mut old = to_peer(Opcode::XrcAtomicAcknowledge, RQ + 3, ACK, 3, &[]);
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
        let mut b = target(0);
        b.host.regions[0].pd = PD;
        let refusal = to_peer(Opcode::XrcAcknowledge, RQ, 0x62, 0, &[]);
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
        let mut b = target(1);
        let refusal = to_peer(Opcode::XrcAcknowledge, RQ, 0x61, 0, &[]);
        b.expect(&naming(NO_SRQ, request), &[refusal]);
        assert_eq!(b.notes(), [Note::Event(QpEvent::RequestError), Note::Event(QpEvent::LastWqeReached)]);
        assert_eq!(b.qp.state(), QpState::Err);
        assert_eq!((b.host.shared.len(), b.host.xrc_completions), (1, 0));
    }
}
