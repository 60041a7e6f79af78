//! End-to-end credits (IBTA 9.7.7.2): a responder advertises its receives; a requester sends at most that many
//! messages, plus one.

use super::*;
use crate::wire::syndrome::{CREDITS_UNLIMITED, decode_credits, encode_credits};

fn credited() -> Setup {
    Setup { tuning: Tuning { e2e_credits: true, ..Setup::default().tuning }, ..Setup::default() }
}

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

/// An ACK of our request from a peer that has completed `msn` messages and advertises the receives of `code`.
fn granting(psn: u32, msn: u32, code: u8) -> Out {
    answer(OURS, Opcode::RcAcknowledge, psn, code, msn, &[])
}

/// The credit code in the answer to a SEND that leaves this many receives.
fn code_with(receives: u64) -> u8 {
    let mut b = credited().rts();
    (0..=receives).for_each(|id| b.post_recv(id, &[]));
    b.take(&request(Opcode::RcSendOnly, RQ, b""));
    b.sent()[0].headers.aeth.syndrome
}

/// The table of the specification, rounded down: the responder never advertises a receive that does not exist.
#[test]
fn acknowledgements_carry_the_receives_that_are_left() {
    let codes: Vec<_> =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16, 23, 24, 31, 32, 47, 48, 63].map(code_with).into();
    assert_eq!(codes, [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]);
    for receives in [0, 1, 5, 33, 63] {
        let code = code_with(receives);
        assert_eq!(code, encode_credits(receives as u32));
        assert!(decode_credits(code).is_some_and(|credits| u64::from(credits) <= receives));
    }
}

/// Every answer that has an AETH and is not a NAK carries credits; the count is taken when it is sent.
#[test]
fn every_answer_carries_credits() {
    let mut b = credited().rts();
    (0..4).for_each(|id| b.post_recv(id, &[]));
    b.take(&read(RQ, 0, 2 * MTU));
    b.take(&fetch_add(RQ + 2, START + 4096, 1));
    b.take(&rdma(Opcode::RcAtomicWrite, RQ + 3, START, KEY, 8, &[1; 8]));
    b.take(&request(Opcode::RcSendOnly, RQ + 4, b""));
    b.post_recv(4, &[]);
    let codes: Vec<_> =
        b.sent().iter().map(|p| (p.headers.opcode, p.headers.aeth.syndrome, p.headers.aeth.msn)).collect();
    use Opcode as O;
    let expected = [
        (O::RcReadResponseFirst, 4, 1),
        (O::RcReadResponseLast, 4, 1),
        (O::RcAtomicAcknowledge, 4, 2),
        (O::RcReadResponseOnly, 4, 3),
        (O::RcAcknowledge, 4, 4),
    ];
    assert_eq!(codes, expected, "four were posted, one was used, one was posted before anything was sent");
    b.expect(&request(Opcode::RcSendOnly, RQ + 9, b""), &[nak(0x60, RQ + 5, 4)]);
}

/// Rule "SRQ always sends 31": its receives belong to no single queue pair. The same holds for XRC, and for a queue
/// pair with credits disabled.
#[test]
fn a_shared_receive_queue_gives_no_credits() {
    let mut shared = Setup { has_srq: true, ..credited() }.rts();
    shared.host.shared.extend((0..9).map(|wr_id| RecvWr { wr_id, ..RecvWr::default() }));
    let mut off = Setup::default().rts();
    (0..9).for_each(|id| off.post_recv(id, &[]));
    for b in [&mut shared, &mut off] {
        b.expect(&request(Opcode::RcSendOnly, RQ, b""), &[ack(RQ, 1)]);
        assert_eq!(ACK, CREDITS_UNLIMITED);
    }
}

/// LSN = MSN + credits; a SEND may be sent if its number is at most LSN + 1.
#[test]
fn one_message_beyond_the_limit_may_go() {
    let mut b = credited().rts();
    (1..=9).for_each(|id| b.post(id, SEND, &[]));
    // There is no limit until the peer advertises credits.
    assert_eq!(b.poll(64, &mut 1).len(), 1);
    b.take(&granting(SQ, 1, 3));
    // Three receives, for messages 2 to 4; number 5 probes for one more.
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2, SQ + 3, SQ + 4]);
    assert!(!b.qp.wants_to_transmit());
    // An answer without new receives does not raise the limit: MSN goes up as the credits go down.
    b.take(&granting(SQ + 1, 2, 2));
    b.take(&granting(SQ + 2, 3, 1));
    assert_eq!(b.sent(), NONE);
    // When everything is completed and no receive is left, one message may still probe.
    b.take(&granting(SQ + 4, 5, 0));
    assert_eq!(psns(&b.sent()), [SQ + 5]);
    b.take(&granting(SQ + 5, 6, 31));
    assert_eq!(psns(&b.sent()), [SQ + 6, SQ + 7, SQ + 8], "a peer that advertises no credits sets no limit");
    b.take(&granting(SQ + 8, 9, 31));
    assert_eq!(b.notes(), (1..=9).map(success).collect::<Vec<_>>());
}

/// With no known receive, messages go one at a time.
#[test]
fn with_no_credits_messages_go_one_by_one() {
    let mut b = credited().rts();
    b.post(0, WRITE, &[]);
    b.sent();
    b.take(&granting(SQ, 1, 0));
    (1..=5).for_each(|id| b.post(id, SEND, &[local(0, MTU + 1)]));
    for i in 0..5 {
        assert_eq!(psns(&b.sent()), [SQ + 1 + 2 * i, SQ + 2 + 2 * i], "a whole message");
        b.take(&granting(SQ + 2 + 2 * i, 2 + i, 0));
    }
    assert_eq!(b.notes().len(), 6);
}

/// 9.7.7.2: an operation that consumes no receive needs no credit. It still counts as a message.
#[test]
fn writes_reads_and_atomics_are_not_limited() {
    let mut b = credited().rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&granting(SQ, 1, 0));
    b.post(2, SEND, &[]);
    b.post(3, WRITE, &[]);
    b.post(4, READ, &[local(0, 1)]);
    b.post(5, ADD, &[local(0, 8)]);
    assert_eq!(b.sent().len(), 4);
    for (operation, limited) in [(SEND, true), (Operation::Write { remote: REMOTE, imm: Some(1) }, true)] {
        b.post(6, operation, &[]);
        assert_eq!(b.sent().is_empty(), limited, "{operation:?}");
    }
    b.take(&granting(SQ + 1, 2, 0));
    assert_eq!(b.sent(), NONE, "messages 3 to 5 are ahead of number 6");
    b.take(&granting(SQ + 2, 3, 2));
    assert_eq!(psns(&b.sent()), [SQ + 5], "LSN is 5: number 6 may be sent, number 7 may not");
}

/// Message numbers have 24 bits and wrap around.
#[test]
fn message_numbers_wrap() {
    let mut b = credited().rts();
    // The state after 2^24 - 3 messages.
    b.qp.requester.ssn = 0xff_fffd;
    (1..=9).for_each(|id| b.post(id, SEND, &[]));
    assert_eq!(b.poll(64, &mut 1).len(), 1);
    b.take(&granting(SQ, 0xff_fffe, 4));
    // LSN 2 permits numbers ff_ffff, 0, 1, 2, and 3.
    assert_eq!(b.sent().len(), 5);
    assert_eq!(b.qp.requester.ssn, 3);
    b.take(&granting(SQ + 1, 0xff_ffff, 3));
    assert_eq!(b.sent(), NONE);
    b.take(&granting(SQ + 5, 3, 1));
    assert_eq!(b.sent().len(), 2);
    // The same on the responder's side.
    let mut b = credited().rts();
    b.qp.responder.msn = 0xff_fffe;
    (0..4).for_each(|id| b.post_recv(id, &[]));
    for (i, msn) in [0xff_ffff, 0, 1].into_iter().enumerate() {
        b.take(&request(Opcode::RcSendOnly, RQ + i as u32, b""));
        let aeth = b.sent()[0].headers.aeth;
        assert_eq!((aeth.msn, aeth.syndrome), (msn, 3 - i as u8));
    }
}

/// An acknowledgement that arrives after a later one is stale: the limit never moves back.
#[test]
fn a_stale_acknowledgement_does_not_lower_the_limit() {
    let mut b = credited().rts();
    (1..=4).for_each(|id| b.post(id, SEND, &[]));
    b.sent();
    b.take(&granting(SQ + 2, 3, 6));
    for stale in [granting(SQ, 1, 0), granting(SQ + 1, 2, 4)] {
        assert_eq!(b.feed(&stale), Err(PacketDrop::Ghost));
    }
    (5..=20).for_each(|id| b.post(id, SEND, &[]));
    // LSN is 11: up to number 12.
    assert_eq!(b.sent().len(), 12 - 4);
}

/// Unsolicited acknowledgements: the PSN is old, the credits are new.
#[test]
fn an_unsolicited_credit_acknowledgement_opens_the_way() {
    let mut b = credited().rts();
    (1..=5).for_each(|id| b.post(id, SEND, &[]));
    b.poll(64, &mut 1);
    b.take(&granting(SQ, 1, 0));
    assert_eq!(psns(&b.sent()), [SQ + 1]);
    b.take(&granting(SQ + 1, 2, 0));
    assert_eq!(psns(&b.sent()), [SQ + 2]);
    // Number 3 is in flight; the peer posts a receive.
    b.take(&granting(SQ + 1, 2, 2));
    assert_eq!(psns(&b.sent()), [SQ + 3, SQ + 4]);
    assert_eq!(b.qp.counters().ghost_responses, 0);
    assert_eq!(
        b.feed(&granting(SQ + 1, 2, 2)),
        Err(PacketDrop::Ghost),
        "the second copy carries nothing new"
    );
    // Other old packets are still ghosts.
    let old = read_responses(OURS, SQ, 9, &[1])[0].clone();
    assert_eq!(b.feed(&old), Err(PacketDrop::Ghost));
    assert_eq!(b.notes(), [success(1), success(2)]);
}

/// A peer that sends code 31 sets no limit, whatever it advertised before.
#[test]
fn a_peer_that_sends_31_is_not_limited() {
    let mut b = credited().rts();
    (1..=30).for_each(|id| b.post(id, SEND, &[]));
    b.poll(64, &mut 1);
    b.take(&granting(SQ, 1, 31));
    assert_eq!(b.sent().len(), 29);
    // A queue pair with credits disabled obeys no limit either.
    let mut b = Setup::default().rts();
    (1..=30).for_each(|id| b.post(id, SEND, &[]));
    b.poll(64, &mut 1);
    b.take(&granting(SQ, 1, 0));
    assert_eq!(b.sent().len(), 29);
}

/// The probe beyond the limit that finds no receive gets an RNR NAK; its retransmission needs no credit.
#[test]
fn receiver_not_ready_and_credits() {
    let mut b = credited().rts();
    (1..=3).for_each(|id| b.post(id, SEND, &[]));
    b.poll(64, &mut 1);
    b.take(&granting(SQ, 1, 0));
    for _ in 0..2 {
        assert_eq!(psns(&b.sent()), [SQ + 1]);
        b.take(&answer(OURS, Opcode::RcAcknowledge, SQ + 1, 0x20 | 1, 1, &[]));
        b.sleep(Duration::from_micros(10));
    }
    assert_eq!(psns(&b.sent()), [SQ + 1]);
    b.take(&granting(SQ + 1, 2, 4));
    assert_eq!(psns(&b.sent()), [SQ + 2]);
}

/// A retransmission repeats what was permitted once, regardless of the limit.
#[test]
fn a_retransmission_needs_no_credit() {
    let mut b = credited().rts();
    (1..=4).for_each(|id| b.post(id, SEND, &[]));
    let sent = b.sent();
    b.take(&granting(SQ, 1, 0));
    b.take(&refused(0x60, SQ + 1));
    assert_eq!(b.sent(), sent[1..]);
}

/// The peer sees each piece of a long READ as a READ of its own and counts it in its MSN. A requester that counts
/// one message would assume credits that nobody advertised, and after 2^23 such READs never have credits again.
#[test]
fn the_pieces_of_a_read_count_as_messages() {
    let tuning = Tuning { read_chunk: MTU as u32, ..credited().tuning };
    let mut b = Setup { tuning, max_rd_atomic: 4, ..Setup::default() }.rts();
    b.post(1, READ, &[local(0, 4 * MTU)]);
    (2..=6).for_each(|id| b.post(id, SEND, &[]));
    // The peer has one receive.
    assert_eq!(b.poll(64, &mut 4).len(), 4);
    for i in 0..4 {
        let mut response = read_responses(OURS, SQ + i, i + 1, &[0; MTU])[0].clone();
        response.headers.aeth.syndrome = 1;
        b.take(&response);
    }
    // MSN 4 and one receive permit number 5, and 6 as a probe.
    assert_eq!(psns(&b.sent()), [SQ + 4, SQ + 5]);
    assert_eq!(b.qp.requester.ssn, 6);
    // Repeated pieces count once.
    let mut b = Setup { tuning, max_rd_atomic: 4, ..Setup::default() }.rts();
    b.post(1, READ, &[local(0, 3 * MTU)]);
    b.sent();
    b.take(&read_responses(OURS, SQ, 1, &[0; MTU])[0]);
    b.sleep(Duration::from_nanos(4096 << 14));
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2]);
    assert_eq!(b.qp.requester.ssn, 3);
}

/// An acknowledgement requested in the middle of a message: its receive is consumed, but the message is not counted
/// yet.
#[test]
fn a_message_that_is_being_received_is_not_promised_twice() {
    let mut b = credited().rts();
    (0..3).for_each(|id| b.post_recv(id, &[local(0, 600)]));
    let mut first = request(Opcode::RcSendFirst, RQ, &[1; MTU]);
    first.headers.ack_req = true;
    b.take(&first);
    let aeth = b.sent()[0].headers.aeth;
    assert_eq!((aeth.msn, aeth.syndrome), (0, 2), "at most two more after number 0");
    b.take(&request(Opcode::RcSendLast, RQ + 1, &[1]));
    let aeth = b.sent()[0].headers.aeth;
    assert_eq!((aeth.msn, aeth.syndrome), (1, 2));
}
