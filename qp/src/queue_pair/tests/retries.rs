//! Retransmission: timers, sequence errors, implied NAKs and RNR NAKs (IBTA 9.7.5.2.8, 9.7.6).

use super::*;
use crate::wire::syndrome::rnr_delay;

/// 4.096 us x 2^14, the timeout of [`Setup`].
const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const SEQUENCE: u8 = 0x60;
const RETRY_EXCEEDED: Note = Note::Sent(1, WcStatus::RetryExcErr);

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

/// 9.7.6.1.3: the timeout doubles with each step of the attribute, and retry_cnt 3 means one transmission and three
/// retries. 7 has no special meaning of "without limit" here.
#[test]
fn a_silent_peer_gets_as_many_tries_as_allowed() {
    for (timeout, retry_cnt) in [(1, 0), (12, 3), (14, 1), (20, 7), (31, 2)] {
        let mut b = Setup { timeout, retry_cnt, ..Setup::default() }.rts();
        b.post_with(1, SEND, &[local(0, MTU + 1)], SendFlags::empty());
        let first = b.sent();
        assert_eq!(psns(&first), [SQ, SQ + 1]);
        let wait = Duration::from_nanos(4096 << timeout);
        for _ in 0..retry_cnt {
            b.sleep(wait);
            assert_eq!(b.sent(), first);
        }
        b.sleep(wait);
        assert_eq!(b.notes(), [RETRY_EXCEEDED]);
        assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Err));
        let c = *b.qp.counters();
        assert_eq!(c.local_ack_timeout_err, u64::from(retry_cnt) + 1);
        assert_eq!(c.completer_retry_err, u64::from(retry_cnt));
        assert_eq!((c.retry_exceeded_err, c.retransmitted_pkts), (1, 2 * u64::from(retry_cnt)));
        assert_eq!(c.retransmitted_bytes, u64::from(retry_cnt) * (MTU as u64 + 1));
        assert_eq!(c.rdma_sends, 1);
    }
}

/// With adaptive timeouts, a queue pair that knows how long answers take waits that long and not the whole timeout. Its peer
/// has as much time to come back as without: early waits double up to the timeout, and only whole timeouts cost a retry.
#[test]
fn adaptive_timeouts_are_short_and_give_a_silent_peer_as_long() {
    let tuning = Tuning { adaptive_timeout: true, ..Setup::default().tuning };
    let mut b = Setup { retry_cnt: 2, tuning, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    // Nothing is known: the whole timeout.
    assert_eq!(b.qp.poll_timeout(), Some(b.now + TIMEOUT));
    b.now += Duration::from_micros(100);
    b.take(&ack(SQ, 1));
    assert_eq!(b.notes(), [success(1)]);
    b.post(1, SEND, &[]);
    assert_eq!(psns(&b.sent()), [SQ + 1]);
    // The first answer took 100 us: RFC 6298 waits for three times as long.
    let mut wait = Duration::from_micros(300);
    let mut early = 0;
    while wait < TIMEOUT {
        assert_eq!(b.qp.poll_timeout(), Some(b.now + wait));
        b.sleep(wait);
        assert_eq!(psns(&b.sent()), [SQ + 1]);
        (wait, early) = (wait * 2, early + 1);
    }
    assert_eq!(early, 8);
    for _ in 0..2 {
        b.sleep(TIMEOUT);
        assert_eq!(psns(&b.sent()), [SQ + 1]);
    }
    b.sleep(TIMEOUT);
    assert_eq!(b.notes(), [RETRY_EXCEEDED]);
    let c = *b.qp.counters();
    assert_eq!((c.local_ack_timeout_err, c.completer_retry_err, c.retry_exceeded_err), (8 + 3, 8 + 2, 1));
}

/// The answer to a repetition may be that to the original, so its time says nothing (Karn); and a new connection knows nothing.
#[test]
fn adaptive_timeouts_learn_from_what_was_sent_once() {
    let tuning = Tuning { adaptive_timeout: true, ..Setup::default().tuning };
    let setup = Setup { tuning, ..Setup::default() };
    let mut b = setup.rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.sent()), [SQ]);
    b.now += Duration::from_micros(1);
    b.take(&ack(SQ, 1));
    b.post(2, SEND, &[]);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), Some(b.now + TIMEOUT), "1 us was learnt");
    b.now += Duration::from_micros(50);
    b.take(&ack(SQ + 1, 2));
    b.post(3, SEND, &[]);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), Some(b.now + Duration::from_micros(150)));
    b.modify(&QpAttr::to_state(QpState::Reset));
    b.modify(&setup.to_init());
    b.modify(&setup.to_rtr());
    b.modify(&setup.to_rts());
    b.post(4, SEND, &[]);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), Some(b.now + TIMEOUT));
}

#[test]
fn no_timeout_is_shorter_than_the_port_allows() {
    for (timeout, least_timeout, expected) in [(1, 10, 4194), (10, 10, 4194), (14, 10, 67_108), (1, 0, 8)] {
        let mut b = Setup { timeout, least_timeout, ..Setup::default() }.rts();
        b.post(1, SEND, &[]);
        b.sent();
        let due = b.qp.poll_timeout().map(|due| (due - b.now).as_micros());
        assert_eq!(due, Some(expected), "timeout {timeout}, at least {least_timeout}");
    }
    let mut endless = Setup { timeout: 0, least_timeout: 10, ..Setup::default() }.rts();
    endless.post(1, SEND, &[]);
    endless.sent();
    assert_eq!(endless.qp.poll_timeout(), None);
}

#[test]
fn timeout_0_never_expires() {
    let mut b = Setup { timeout: 0, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), None);
    b.now += Duration::from_secs(100_000);
    b.qp.handle_timeout(b.now, &mut b.host);
    assert_eq!(b.sent(), NONE);
}

/// Changing other attributes in RTS does not give the peer more retries.
#[test]
fn other_attributes_do_not_refill_the_retries() {
    let mut b = Setup { retry_cnt: 2, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    for _ in 0..2 {
        b.sleep(TIMEOUT);
        assert_eq!(psns(&b.sent()), [SQ]);
        b.modify(&QpAttr::to_state(QpState::Rts).min_rnr_timer(1));
    }
    b.sleep(TIMEOUT);
    assert_eq!(b.notes(), [RETRY_EXCEEDED]);
}

/// An answer to anything new refills the counter and restarts the timer.
#[test]
fn progress_refills_the_retries() {
    let mut b = Setup { retry_cnt: 1, ..Setup::default() }.rts();
    b.post(1, SEND, &[local(0, 5 * MTU)]);
    b.sent();
    for answered in 0..4 {
        b.sleep(TIMEOUT);
        assert_eq!(b.sent().len() as u32, 5 - answered);
        b.now += TIMEOUT / 2;
        b.take(&acked(SQ + answered));
    }
    b.take(&acked(SQ + 4));
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!(b.qp.poll_timeout(), None);
}

/// The timer runs from the first unanswered packet, not from the newest.
#[test]
fn later_packets_do_not_put_the_timer_off() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.now += TIMEOUT / 2;
    b.post(2, SEND, &[]);
    b.sent();
    b.sleep(TIMEOUT / 2);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
}

/// A sequence error NAK: everything before its PSN is answered, everything from it on is retransmitted. Copies of
/// the NAK have no effect.
#[test]
fn go_back_n() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.post(2, WRITE, &[local(0, 4 * MTU)]);
    b.post(3, SEND, &[]);
    let sent = b.sent();
    b.take(&refused(SEQUENCE, SQ + 2));
    assert_eq!(b.notes(), [success(1)]);
    b.take(&refused(SEQUENCE, SQ + 2));
    assert_eq!(b.sent(), sent[2..]);
    b.take(&refused(SEQUENCE, SQ + 2));
    assert_eq!(b.sent(), NONE);
    let c = b.qp.counters();
    assert_eq!((c.rcvd_seq_err, c.completer_retry_err, c.retransmitted_pkts), (3, 1, 4));
    b.take(&acked(SQ + 5));
    assert_eq!(b.notes(), [success(2), success(3)]);
}

/// Retransmitted packets count towards the acknowledgement interval like new ones.
#[test]
fn a_retransmission_asks_as_often() {
    let tuning = Tuning { ack_interval: 4, ..Setup::default().tuning };
    let mut b = Setup { tuning, ..Setup::default() }.rts();
    b.post(1, SEND, &[local(0, 10 * MTU)]);
    let mut buf = [0; 3 * (MTU + 16)];
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut train = Train::new(&mut buf, flow, 64);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::requests(100), &mut b.host);
    assert_eq!(train.packets(), 3);
    b.now += TIMEOUT;
    b.qp.handle_timeout(b.now, &mut b.host);
    let asked: Vec<_> = b.sent().iter().filter(|p| p.headers.ack_req).map(Out::psn).collect();
    assert_eq!(asked, [SQ, SQ + 4, SQ + 8, SQ + 9]);
}

/// Every sequence error without progress costs a retry (a timeout lies between them, because copies do not count).
#[test]
fn sequence_errors_exhaust_the_retries() {
    let mut b = Setup { retry_cnt: 1, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&refused(SEQUENCE, SQ));
    assert_eq!(psns(&b.sent()), [SQ]);
    b.sleep(TIMEOUT);
    assert_eq!(b.notes(), [RETRY_EXCEEDED]);
}

/// Answers to the first transmission that arrive during the retransmission are valid, and what they answer is not
/// retransmitted.
#[test]
fn late_answers_overtake_a_retransmission() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(0, 4 * MTU)]);
    b.post(2, SEND, &[]);
    b.sent();
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.poll(1, &mut 1)), [SQ]);
    b.take(&acked(SQ + 2));
    assert_eq!(psns(&b.sent()), [SQ + 3, SQ + 4]);
    b.take(&acked(SQ + 4));
    assert_eq!(b.notes(), [success(1), success(2)]);
    assert_eq!(b.qp.next_psn(), Psn::new(SQ + 5));
}

/// The same for a READ: data that arrives late is not requested again, even after its retransmission was decided.
#[test]
fn late_data_shortens_the_next_read_request() {
    let mut b = Setup::default().rts();
    let data = pattern(3 * MTU);
    b.post(1, READ, &[local(0, data.len())]);
    b.sent();
    b.sleep(TIMEOUT);
    let responses = read_responses(OURS, SQ, 1, &data);
    b.take(&responses[0]);
    let [again] = &b.sent()[..] else { panic!("one request") };
    assert_eq!((again.psn(), again.headers.reth.length as usize), (SQ + 1, 2 * MTU));
    responses[1..].iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!(b.host.behind(local(0, data.len())), data);
}

/// 9.7.6.1.2.3: a response beyond an outstanding READ or atomic shows that its response was lost.
#[test]
fn answers_out_of_order_are_implied_naks() {
    let beyond =
        |psn| vec![acked(psn), atomic_answer(psn, 1), read_responses(OURS, psn, 1, &[1; 4])[0].clone()];
    for (operation, psns_taken) in [(READ, 2), (ADD, 1)] {
        for answer in beyond(SQ + 1 + psns_taken) {
            let mut b = Setup::default().rts();
            b.post(1, SEND, &[]);
            b.post(2, operation, &[local(0, if operation == READ { MTU + 1 } else { 8 })]);
            let last = if answer.headers.opcode == Opcode::RcAtomicAcknowledge { ADD } else { SEND };
            b.post(3, last, &[local(0, 8)]);
            let sent = b.sent();
            b.take(&answer);
            assert_eq!(b.notes(), [success(1)], "everything before it is answered");
            b.take(&answer);
            assert_eq!(b.sent(), sent[1..], "once");
            let c = b.qp.counters();
            assert_eq!((c.implied_nak_seq_err, c.completer_retry_err), (1, 1));
            assert_eq!(b.qp.state(), QpState::Rts);
        }
    }
}

/// C9-105: a READ whose response was partly lost is requested again from the missing PSN on, with address and
/// length adjusted.
#[test]
fn a_partial_read_goes_on_at_the_missing_packet() {
    let data = pattern(5 * MTU + 3);
    for lost in 0..6usize {
        let mut b = Setup::default().rts();
        b.post(1, READ, &[local(0, data.len())]);
        b.sent();
        let responses = read_responses(OURS, SQ, 1, &data);
        for (i, response) in responses.iter().enumerate() {
            if i != lost {
                b.take(response);
            }
        }
        if lost == 5 {
            // No later response reveals the loss.
            b.sleep(TIMEOUT);
        }
        let [again] = &b.sent()[..] else { panic!("one request") };
        let skipped = lost * MTU;
        assert_eq!(again.psn(), SQ + lost as u32);
        assert_eq!(again.headers.reth.va, REMOTE.addr + skipped as u64);
        assert_eq!(again.headers.reth.length as usize, data.len() - skipped);
        read_responses(OURS, again.psn(), 1, &data[skipped..]).iter().for_each(|p| b.take(p));
        assert_eq!(b.notes(), [success(1)]);
        assert_eq!(b.host.behind(local(0, data.len())), data);
    }
}

/// 9.7.5.2.8: the peer specifies the wait; the acknowledgement timer is stopped meanwhile.
#[test]
fn receiver_not_ready_waits_as_told() {
    for code in 0..32 {
        // A timeout shorter than most of the waits.
        let mut b = Setup { timeout: 1, rnr_retry: 1, retry_cnt: 0, ..Setup::default() }.rts();
        b.post(1, SEND, &[]);
        b.post(2, SEND, &[]);
        b.sent();
        b.take(&refused(0x20 | code, SQ));
        b.take(&refused(0x20 | code, SQ));
        assert_eq!(b.sent(), NONE);
        b.post(3, SEND, &[]);
        assert_eq!(b.sent(), NONE, "new work waits too");
        b.sleep(rnr_delay(code));
        assert_eq!(psns(&b.sent()), [SQ, SQ + 1, SQ + 2]);
        assert_eq!(b.qp.counters().rcvd_rnr_err, 2);
        assert_eq!(b.qp.counters().local_ack_timeout_err, 0);
        b.take(&acked(SQ + 2));
        assert_eq!(b.notes(), [1, 2, 3].map(success));
    }
}

#[test]
fn rnr_retries_are_counted_and_7_is_without_end() {
    for (rnr_retry, sends) in [(0, 1), (2, 3), (6, 7), (7, 100)] {
        let mut b = Setup { rnr_retry, retry_cnt: 0, ..Setup::default() }.rts();
        b.post_with(1, SEND, &[], SendFlags::empty());
        for i in 1..=sends {
            assert_eq!(psns(&b.sent()), [SQ]);
            b.take(&refused(0x20 | 14, SQ));
            if i < sends || rnr_retry == 7 {
                b.sleep(rnr_delay(14));
            }
        }
        if rnr_retry == 7 {
            assert_eq!(b.notes(), []);
        } else {
            assert_eq!(b.notes(), [Note::Sent(1, WcStatus::RnrRetryExcErr)]);
            assert_eq!(b.qp.counters().retry_rnr_exceeded_err, 1);
            assert_eq!(b.sent(), NONE);
        }
    }
}

/// An RNR NAK answers everything before it, and progress refills its counter.
#[test]
fn rnr_retries_start_over_with_progress() {
    let mut b = Setup { rnr_retry: 1, ..Setup::default() }.rts();
    (1..=4).for_each(|id| b.post(id, SEND, &[]));
    b.sent();
    for id in 0..4 {
        b.take(&refused(0x20 | 14, SQ + id));
        b.sleep(rnr_delay(14));
        assert_eq!(b.sent().len() as u32, 4 - id);
    }
    b.take(&acked(SQ + 3));
    assert_eq!(b.notes(), [1, 2, 3, 4].map(success));
}

/// Fences, depth limits and the end of the queue apply to a retransmission as to the first transmission.
#[test]
fn a_retransmission_obeys_the_depth() {
    let mut b = Setup { max_rd_atomic: 1, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.post(2, ADD, &[local(0, 8)]);
    b.post(3, ADD, &[local(8, 8)]);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
    b.take(&atomic_answer(SQ + 1, 0));
    assert_eq!(psns(&b.sent()), [SQ + 2]);
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.sent()), [SQ + 2]);
    b.take(&atomic_answer(SQ + 2, 0));
    assert_eq!(b.notes(), [1, 2, 3].map(success));
}

/// A duplicate READ may only request a part of one original (IBTA 9.7.5.1.4). Whatever the budgets were at the
/// first transmission and at the retransmission, no request extends beyond the end of one that was sent before.
#[test]
fn reads_are_repeated_within_their_first_requests() {
    let mut b = Setup::default().rts();
    b.post(1, READ, &[local(0, 6 * MTU)]);
    b.post(2, READ, &[local(0, 2 * MTU)]);
    let pieces = |sent: &[Out]| -> Vec<_> {
        sent.iter().map(|p| (p.psn() - SQ, p.headers.reth.length / MTU as u32)).collect()
    };
    assert_eq!(pieces(&b.poll(64, &mut 3)), [(0, 3)]);
    assert_eq!(pieces(&b.poll(64, &mut 2)), [(3, 2)]);
    assert_eq!(pieces(&b.sent()), [(5, 1), (6, 2)]);
    // The middle of the first piece is lost, and the budget has grown or shrunk since.
    let data = pattern(8 * MTU);
    b.take(&read_responses(OURS, SQ, 1, &data[..3 * MTU])[0]);
    b.sleep(TIMEOUT);
    assert_eq!(pieces(&b.sent()), [(1, 2), (3, 2), (5, 1), (6, 2)]);
    b.sleep(TIMEOUT);
    let mut budget = 1;
    assert_eq!(pieces(&b.poll(64, &mut budget)), [(1, 2)], "it was budgeted the first time");
    assert_eq!(budget, 0);
    read_responses(OURS, SQ + 1, 1, &data[MTU..3 * MTU]).iter().for_each(|p| b.take(p));
    assert_eq!(pieces(&b.sent()), [(3, 2), (5, 1), (6, 2)]);
    read_responses(OURS, SQ + 3, 2, &data[3 * MTU..5 * MTU]).iter().for_each(|p| b.take(p));
    b.take(&read_responses(OURS, SQ + 5, 3, &data[5 * MTU..6 * MTU])[0]);
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!(b.host.behind(local(0, 6 * MTU)), &data[..6 * MTU]);
    read_responses(OURS, SQ + 6, 4, &data[6 * MTU..]).iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), [success(2)]);
}
