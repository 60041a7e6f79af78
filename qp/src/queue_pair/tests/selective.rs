//! Selective repeat of READ responses: what comes beyond a gap is kept, what is missing is asked for alone, and memory and
//! completions are those of go-back-N at every moment.

use super::pair::{BIG, Pair, Rng, SOURCE, TARGET, Weather, remote, rough, sge};
use super::*;

const WHOLE: Duration = Duration::from_nanos(4096 << 14);
const RNR: u8 = 0x20;

fn setup() -> Setup {
    let tuning = Tuning { selective_repeat: true, ..Setup::default().tuning };
    Setup { tuning, ..Setup::default() }
}

/// A queue pair whose peer is a partner.
fn partner(setup: &Setup) -> Bench {
    let mut b = setup.rts();
    b.qp.set_selective_peer(true);
    b
}

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

/// The READ request for so many bytes, that many PSNs from the first one.
fn asked(from: u32, len: usize) -> Out {
    let mut headers = Headers::new(Opcode::RcReadRequest, PEERS, Psn::new(SQ + from));
    headers.ack_req = true;
    let va = REMOTE.addr + u64::from(from) * MTU as u64;
    headers.reth = RethFields { va, rkey: REMOTE.rkey, length: len as u32 };
    Out::new(headers, &[])
}

/// Posts a READ of so many packets to the start of the local region; returns the answer.
fn post_read(b: &mut Bench, packets: usize) -> Vec<Out> {
    b.post(1, READ, &[local(0, packets * MTU)]);
    assert_eq!(b.sent(), [asked(0, packets * MTU)]);
    read_responses(OURS, SQ, 1, &pattern(packets * MTU))
}

fn placed(b: &mut Bench) -> usize {
    let bytes = b.host.bytes(LOCAL).clone();
    bytes.iter().zip(pattern(REGION_LEN)).take_while(|(a, b)| *a == b).count()
}

/// The answer to a request for one packet of a READ.
fn only(answers: &[Out], at: usize) -> Out {
    let mut out = answers[at].clone();
    out.headers.opcode = Opcode::RcReadResponseOnly;
    out.headers.aeth = AethFields { syndrome: ACK, msn: 1 };
    out
}

#[test]
fn a_lost_response_is_asked_for_alone() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 6);
    for at in [0, 1, 3] {
        b.take(&answers[at]);
    }
    assert_eq!(b.sent(), [asked(2, MTU)]);
    assert!(b.qp.noticed_loss(), "congestion control hears of it");
    // Once, and not with each packet that comes.
    b.take(&answers[4]);
    b.take(&answers[5]);
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
    // What came beyond the gap does not show: a program may poll the last byte.
    assert_eq!(placed(&mut b), 2 * MTU);
    assert_eq!(b.host.bytes(LOCAL)[2 * MTU..].iter().find(|byte| **byte != 0), None);
    b.take(&only(&answers, 2));
    assert_eq!((b.sent(), b.notes(), placed(&mut b)), (NONE, vec![success(1)], 6 * MTU));
    let c = b.qp.counters();
    assert_eq!((c.held_pkts, c.retransmitted_pkts, c.implied_nak_seq_err), (3, 1, 0));
    assert_eq!(
        (b.qp.poll_timeout(), b.qp.requester.reads_asked(), b.qp.requester.responses_due),
        (None, 0, 0)
    );
}

#[test]
fn several_gaps_are_asked_for_one_by_one() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 9);
    for at in [1, 4, 5, 7] {
        b.take(&answers[at]);
    }
    assert_eq!(b.sent(), [asked(0, MTU), asked(2, 2 * MTU), asked(6, MTU)]);
    // Of the last, nothing tells.
    let mut second = read_responses(OURS, SQ + 2, 1, &pattern(9 * MTU)[2 * MTU..4 * MTU]);
    second.insert(0, only(&answers, 0));
    second.push(only(&answers, 6));
    second.iter().for_each(|answer| b.take(answer));
    assert_eq!((b.sent(), b.notes(), placed(&mut b)), (NONE, vec![], 8 * MTU));
    b.now = b.qp.poll_timeout().unwrap();
    b.qp.handle_timeout(b.now, &mut b.host);
    assert_eq!(b.sent(), [asked(8, MTU)]);
    b.take(&only(&answers, 8));
    assert_eq!((b.notes(), placed(&mut b)), (vec![success(1)], 9 * MTU));
}

/// Whatever says that later requests were executed shows that data is missing.
#[test]
fn an_acknowledgement_shows_that_the_last_response_is_lost() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 3);
    b.post(2, WRITE, &[local(0, 1)]);
    b.post(3, ADD, &[local(REGION_LEN as u64 - 8, 8)]);
    b.post(4, SEND, &[]);
    b.sent();
    b.take(&answers[0]);
    b.take(&acked(SQ + 3));
    assert_eq!(b.sent(), [asked(1, 2 * MTU)]);
    // The data of the atomic waits for its turn, and that of an acknowledgement, too.
    b.take(&atomic_answer(SQ + 4, 7));
    b.take(&acked(SQ + 5));
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
    b.take(&answers[1]);
    assert_eq!((b.notes(), b.host.bytes(LOCAL)[REGION_LEN - 8]), (vec![], 0));
    b.take(&answers[2]);
    assert_eq!(b.notes(), [1, 2, 3, 4].map(success));
    assert_eq!((b.host.bytes(LOCAL)[REGION_LEN - 8], b.sent()), (7, NONE));
}

/// What was executed before a gap completes; what was executed behind it does not.
#[test]
fn an_answer_completes_requests_up_to_the_first_gap() {
    let mut b = partner(&setup());
    b.post(1, WRITE, &[local(0, 1)]);
    b.post(2, READ, &[local(0, MTU)]);
    b.post(3, WRITE, &[local(0, 1)]);
    b.post(4, READ, &[local(0, MTU)]);
    b.sent();
    b.take(&read_responses(OURS, SQ + 3, 1, &[4; MTU])[0]);
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!(psns(&b.sent()), [SQ + 1], "the first READ, and not the second WRITE");
    // Two READs into the same memory: the later one stays.
    b.take(&read_responses(OURS, SQ + 1, 1, &[2; MTU])[0]);
    assert_eq!(b.notes(), [2, 3, 4].map(success));
    assert_eq!(b.host.bytes(LOCAL)[..MTU], [4; MTU]);
}

#[test]
fn a_lost_atomic_response_is_asked_for_alone() {
    let mut b = partner(&setup());
    let place = |number: u64| local(8 * number, 8);
    (0..3).for_each(|number| b.post(number, ADD, &[place(number)]));
    let sent = b.sent();
    b.take(&atomic_answer(SQ + 1, 11));
    b.take(&atomic_answer(SQ + 2, 12));
    let again = b.sent();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].psn(), again[0].headers.atomic), (sent[0].psn(), sent[0].headers.atomic));
    b.take(&atomic_answer(SQ, 10));
    assert_eq!(b.notes(), [0, 1, 2].map(success));
    assert_eq!([0, 8, 16].map(|at| b.host.bytes(LOCAL)[at]), [10, 11, 12]);
}

/// A repetition is lost if data comes that was asked for later. Data that was asked for before it may come after it.
#[test]
fn a_lost_repetition_is_asked_for_again() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 3);
    b.post(2, READ, &[local(0, 2 * MTU)]);
    b.sent();
    let second = read_responses(OURS, SQ + 3, 2, &pattern(2 * MTU));
    b.take(&answers[1]);
    assert_eq!(b.sent(), [asked(0, MTU)]);
    b.take(&answers[2]);
    b.take(&second[0]);
    assert_eq!(b.sent(), NONE, "it left before");
    b.post(3, READ, &[local(0, MTU)]);
    assert_eq!(psns(&b.sent()), [SQ + 5]);
    b.take(&second[1]);
    b.take(&read_responses(OURS, SQ + 5, 3, &pattern(MTU))[0]);
    assert_eq!(b.sent(), [asked(0, MTU)]);
    b.take(&only(&answers, 0));
    assert_eq!((b.notes(), b.sent()), ([1, 2, 3].map(success).to_vec(), NONE));
}

/// Responses to repetitions come before others that were asked for earlier: those are not lost.
#[test]
fn a_repetition_that_overtakes_others_shows_no_loss() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 8);
    for at in [0, 2, 3] {
        b.take(&answers[at]);
    }
    assert_eq!(b.sent(), [asked(1, MTU)]);
    b.take(&only(&answers, 1));
    b.take(&answers[4]);
    b.take(&answers[6]);
    assert_eq!(b.sent(), [asked(5, MTU)]);
    b.take(&answers[7]);
    b.take(&only(&answers, 5));
    assert_eq!((b.notes(), b.sent()), (vec![success(1)], NONE));
    assert_eq!(b.qp.counters().retransmitted_pkts, 2);
}

#[test]
fn a_lost_request_is_sent_again_whole() {
    let mut b = partner(&setup());
    post_read(&mut b, 3);
    b.post(2, WRITE, &[]);
    b.sent();
    let mut held = crate::wire::selective::SelectiveAck::new(Psn::new(SQ), 0);
    held.add(3);
    let mut headers = held.headers(OURS);
    headers.aeth = AethFields { syndrome: ACK, msn: 0 };
    let mut payload = vec![0; held.payload_len()];
    held.emit(&mut payload);
    b.take(&Out::new(headers, &payload));
    assert_eq!(b.sent(), [asked(0, 3 * MTU)]);
}

/// A selective acknowledgement comes behind all data, so it shows what of that is lost.
#[test]
fn a_selective_acknowledgement_shows_lost_data() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 4);
    (2..5).for_each(|id| b.post(id, WRITE, &[]));
    b.sent();
    b.take(&answers[0]);
    let mut held = crate::wire::selective::SelectiveAck::new(Psn::new(SQ + 4), 0);
    held.add(1);
    let mut headers = held.headers(OURS);
    headers.aeth = AethFields { syndrome: ACK, msn: 1 };
    let mut payload = vec![0; held.payload_len()];
    held.emit(&mut payload);
    b.take(&Out::new(headers, &payload));
    let sent = b.sent();
    assert_eq!((&sent[0], psns(&sent)), (&asked(1, 3 * MTU), vec![SQ + 1, SQ + 4]));
    assert_eq!(b.qp.counters().implied_nak_seq_err, 0);
}

#[test]
fn responses_that_come_twice_are_dropped_and_make_it_tolerant() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 9);
    b.take(&answers[1]);
    assert_eq!(b.feed(&answers[1]), Err(PacketDrop::Ghost), "it is kept already");
    assert_eq!(b.sent(), [asked(0, MTU)]);
    // Not lost but late; then the answer to the repetition.
    b.take(&answers[0]);
    assert_eq!(b.feed(&only(&answers, 0)), Err(PacketDrop::Ghost));
    assert_eq!(placed(&mut b), 2 * MTU);
    // They came twice two times, so two packets may overtake one.
    b.take(&answers[3]);
    b.take(&answers[4]);
    assert_eq!(b.sent(), NONE);
    b.take(&answers[5]);
    assert_eq!(b.sent(), [asked(2, MTU)]);
    for at in [2, 6, 7, 8] {
        b.take(&answers[at]);
    }
    assert_eq!((b.notes(), placed(&mut b)), (vec![success(1)], 9 * MTU));
}

/// RNR NAKs and refusals beyond a gap are obeyed when the gap is closed.
#[test]
fn a_nak_waits_for_its_turn() {
    for (code, note) in [(RNR | 1, None), (0x62, Some(Note::Sent(2, WcStatus::RemAccessErr)))] {
        let mut b = partner(&setup());
        let answers = post_read(&mut b, 2);
        b.post(2, SEND, &[]);
        b.sent();
        b.take(&answers[0]);
        b.take(&refused(code, SQ + 2));
        assert_eq!((b.sent(), b.notes()), (vec![asked(1, MTU)], vec![]));
        b.now += Duration::from_micros(50);
        b.take(&only(&answers, 1));
        let notes = b.notes();
        assert_eq!(notes, [success(1)].into_iter().chain(note).collect::<Vec<_>>());
        if note.is_none() {
            assert_eq!(b.qp.counters().rcvd_rnr_err, 1);
            assert_eq!(b.sent(), NONE);
            b.sleep(crate::wire::syndrome::rnr_delay(1));
            assert_eq!(psns(&b.sent()), [SQ + 2]);
        }
    }
}

/// The bound is that of selective acknowledgements. What comes beyond it is dropped, and asked for when its turn comes.
#[test]
fn what_is_kept_has_a_bound() {
    const PACKETS: usize = 1030;
    let mut b = partner(&setup());
    b.host.register(0x7000, 0, PACKETS * MTU, all_rights());
    b.post(1, READ, &[Sge { addr: 0, length: (PACKETS * MTU) as u32, lkey: 0x7000 }]);
    b.sent();
    let answers = read_responses(OURS, SQ, 1, &pattern(PACKETS * MTU));
    for (at, answer) in answers.iter().enumerate().skip(1) {
        let fits = at <= crate::wire::selective::MAX_SPAN;
        assert_eq!(b.feed(answer), if fits { Ok(()) } else { Err(PacketDrop::OutOfSequence) }, "{at}");
    }
    assert_eq!(b.sent(), [asked(0, MTU)]);
    b.take(&only(&answers, 0));
    b.now = b.qp.poll_timeout().unwrap();
    b.qp.handle_timeout(b.now, &mut b.host);
    assert_eq!(b.sent(), [asked(1025, 5 * MTU)]);
    let rest = read_responses(OURS, SQ + 1025, 1, &pattern(PACKETS * MTU)[1025 * MTU..]);
    rest.iter().for_each(|answer| b.take(answer));
    assert_eq!(b.notes(), [success(1)]);
    assert!(*b.host.bytes(0x7000) == pattern(PACKETS * MTU));
}

#[test]
fn what_is_kept_is_freed_by_errors_and_resets() {
    for state in [QpState::Err, QpState::Reset] {
        let mut b = partner(&setup());
        let answers = post_read(&mut b, 3);
        b.take(&answers[1]);
        b.take(&answers[2]);
        assert!(!b.qp.requester.flight.kept.is_empty());
        b.modify(&QpAttr::to_state(state));
        assert!(b.qp.requester.flight.kept.is_empty());
        assert_eq!(b.feed(&answers[0]), Err(PacketDrop::State));
        assert!(b.host.bytes(LOCAL).iter().all(|byte| *byte == 0));
    }
}

/// The key is looked up when the turn of the data comes.
#[test]
fn memory_that_is_gone_by_then_fails_the_read() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 3);
    b.take(&answers[1]);
    b.sent();
    b.host.deregister(LOCAL);
    b.take(&answers[0]);
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::LocProtErr)]);
    assert!(b.qp.requester.flight.kept.is_empty());
}

/// A kept packet that is no answer to the request with its PSN is as if it had never come.
#[test]
fn a_kept_answer_of_the_wrong_kind_answers_nothing() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 3);
    b.take(&atomic_answer(SQ + 1, 1));
    b.take(&answers[2]);
    assert_eq!(b.sent(), [asked(0, MTU)]);
    b.take(&only(&answers, 0));
    assert_eq!((b.notes(), b.sent()), (vec![], NONE));
    b.take(&only(&answers, 1));
    assert_eq!((b.notes(), placed(&mut b)), (vec![success(1)], 3 * MTU));
}

#[test]
fn a_read_may_wrap_around_the_end_of_the_psns() {
    let mut b = partner(&Setup { sq_psn: 0xff_fffe, ..setup() });
    b.post(1, READ, &[local(0, 5 * MTU)]);
    b.sent();
    let mut answers = read_responses(OURS, 0xff_fffe, 1, &pattern(5 * MTU));
    let first = answers.remove(0);
    b.take(&answers[0]);
    let again = b.sent();
    assert_eq!((psns(&again), again[0].headers.reth.length), (vec![0xff_fffe], MTU as u32));
    b.take(&answers[2]);
    let again = b.sent();
    assert_eq!((psns(&again), again[0].headers.reth.va), (vec![0], REMOTE.addr + 2 * MTU as u64));
    for answer in [&answers[3], &answers[1], &first] {
        b.take(answer);
    }
    assert_eq!((b.notes(), placed(&mut b)), (vec![success(1)], 5 * MTU));
}

/// When a whole timeout has passed, everything that is not complete is asked for anew, and what was kept is dropped.
#[test]
fn a_whole_timeout_begins_go_back_n() {
    let mut b = partner(&setup());
    let answers = post_read(&mut b, 3);
    b.take(&answers[1]);
    assert_eq!(b.sent(), [asked(0, MTU)]);
    b.now += WHOLE;
    b.qp.handle_timeout(b.now, &mut b.host);
    assert!(b.qp.requester.flight.kept.is_empty());
    // What comes before its request is sent again says nothing.
    b.take(&answers[2]);
    assert_eq!(b.sent(), [asked(0, 3 * MTU)]);
    answers.iter().for_each(|answer| b.take(answer));
    assert_eq!((b.notes(), placed(&mut b)), (vec![success(1)], 3 * MTU));
    assert_eq!(b.qp.counters().local_ack_timeout_err, 1);
    // The first answers come late. The timeout explains that, so one packet beyond a gap is still enough.
    b.post(2, READ, &[local(0, 2 * MTU)]);
    b.sent();
    answers.iter().for_each(|answer| assert_eq!(b.feed(answer), Err(PacketDrop::Ghost)));
    b.take(&read_responses(OURS, SQ + 3, 2, &[0; 2 * MTU])[1]);
    assert_eq!(psns(&b.sent()), [SQ + 3]);
}

/// A READ takes one place in the initiator depth until all of it is here, in however many parts it comes.
#[test]
fn a_part_of_a_read_makes_no_room_for_another() {
    let mut b = partner(&Setup { max_rd_atomic: 1, ..setup() });
    b.post(2, READ, &[local(0, MTU)]);
    b.sent();
    b.take(&read_responses(OURS, SQ, 1, &pattern(MTU))[0]);
    assert_eq!(b.notes(), [success(2)]);
    b.post(1, READ, &[local(0, 4 * MTU)]);
    b.post(2, READ, &[local(0, MTU)]);
    assert_eq!(psns(&b.sent()), [SQ + 1]);
    let answers = read_responses(OURS, SQ + 1, 2, &pattern(4 * MTU));
    b.take(&answers[1]);
    assert_eq!(psns(&b.sent()), [SQ + 1]);
    b.take(&only(&answers, 0));
    b.take(&answers[2]);
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
    b.take(&answers[3]);
    assert_eq!((psns(&b.sent()), b.notes()), (vec![SQ + 5], vec![success(1)]));
}

/// To a peer that is no partner a response beyond a gap is what it always was.
#[test]
fn a_foreign_peer_is_asked_for_everything_from_the_gap_on() {
    let mut b = setup().rts();
    let answers = post_read(&mut b, 6);
    b.post(2, READ, &[local(0, MTU)]);
    b.sent();
    for at in [0, 1, 3, 4] {
        b.take(&answers[at]);
    }
    let again = b.sent();
    assert_eq!((&again[0], psns(&again)), (&asked(2, 4 * MTU), vec![SQ + 2, SQ + 6]));
    let c = b.qp.counters();
    assert_eq!((c.held_pkts, c.implied_nak_seq_err), (0, 1));
}

/// A responder repeats for a partner what is missing, at once; the rest of the response goes on, and so do later ones.
#[test]
fn a_responder_repeats_only_what_a_partner_misses() {
    let mut b = partner(&setup());
    b.host.bytes(KEY)[..9 * MTU].copy_from_slice(&pattern(9 * MTU));
    let whole = read_responses(PEERS, RQ, 1, &pattern(6 * MTU));
    b.take(&read(RQ, 0, 6 * MTU));
    b.take(&read(RQ + 6, 6 * MTU as u64, 3 * MTU));
    let mut sent = vec![];
    while sent.len() < 4 {
        let mut buf = [0; 2 * MTU];
        let mut train = Train::new(&mut buf, Bench::flow(), 1);
        b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
        sent.push(Packet::parse(train.bytes()).unwrap().psn().value());
    }
    assert_eq!(sent, [0, 1, 2, 3].map(|at| RQ + at));
    let part = |from: u64, packets: usize| read(RQ + from as u32, from * MTU as u64, packets * MTU);
    b.take(&part(1, 2));
    // It reaches into what waits.
    b.take(&part(3, 2));
    // What waits is not repeated.
    b.take(&part(4, 1));
    b.take(&part(1, 2));
    let sent = b.sent();
    assert_eq!(psns(&sent), [1, 2, 3, 4, 5, 6, 7, 8].map(|at| RQ + at));
    let opcodes: Vec<_> = sent.iter().map(|packet| packet.headers.opcode).collect();
    use Opcode as O;
    let (first, last) = (O::RcReadResponseFirst, O::RcReadResponseLast);
    assert_eq!(opcodes[..5], [first, last, O::RcReadResponseOnly, O::RcReadResponseMiddle, last]);
    assert_eq!(sent[3..5], whole[4..6]);
    assert!(
        sent.iter()
            .enumerate()
            .all(|(at, packet)| packet.payload == pattern(9 * MTU)[(at + 1) * MTU..][..MTU])
    );
}

/// More gaps may be closed at once than READs be outstanding, up to a bound.
#[test]
fn a_responder_closes_many_gaps_at_once() {
    let mut b = partner(&Setup { max_dest_rd_atomic: 1, ..setup() });
    b.take(&read(RQ, 0, 150 * MTU));
    b.sent();
    let gap = |number: u32| read(RQ + 2 * number, u64::from(2 * number) * MTU as u64, MTU);
    (0..64).for_each(|number| b.take(&gap(number)));
    assert_eq!(b.feed(&gap(64)), Err(PacketDrop::StaleDuplicate));
    assert_eq!(psns(&b.sent()), (0..64).map(|number| RQ + 2 * number).collect::<Vec<_>>());
    b.take(&gap(64));
}

/// READs of all sizes, many at a time and into memory that they share, in any weather: in the end each place has the data of the
/// last READ into it, completions are in order, and little is sent in vain.
#[test]
fn reads_survive_any_weather() {
    const SLOT: usize = 6000;
    let mut sums = [(0, 0); 2];
    for seed in 0..60 {
        let loss = [0, 1, 5, 20][seed as usize % 4];
        let disorder = if seed % 3 == 0 { 10 } else { 0 };
        let weather = Weather { loss, double: disorder, reorder: disorder };
        let mtu = [Mtu::B256, Mtu::B1024, Mtu::B512][seed as usize % 3];
        for (sum, selective_repeat) in sums.iter_mut().zip([false, true]) {
            let base = rough(mtu, seed);
            let tuning = Tuning { selective_repeat, ..base.tuning };
            let setup = Setup { tuning, max_rd_atomic: 8, max_dest_rd_atomic: 8, ..base };
            let mut pair = Pair::of(&setup, &setup, weather, seed);
            let mut rng = Rng(seed ^ 5);
            let source = pair.sides[1].host.bytes(SOURCE).clone();
            let mut expected = vec![0; 4 * SLOT];
            let (mut posted, mut needed) = (0, 0);
            pair.run(|pair| {
                let side = &mut pair.sides[0];
                if posted < 80 && side.qp.sends_outstanding() < 30 {
                    let (len, to) = (rng.below(SLOT), rng.below(3 * SLOT));
                    let from = rng.below(BIG - SLOT);
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);
                    side.post(
                        posted,
                        Operation::Read { remote: remote(SOURCE, from) },
                        &[sge(TARGET, to, len)],
                    );
                    posted += 1;
                    needed += len as u64;
                }
            });
            let [ours, theirs] = &pair.sides;
            let what = format!("seed {seed}, {weather:?}, selective: {selective_repeat}");
            let done: Vec<_> = ours.host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(done, (0..80).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>(), "{what}");
            assert!(ours.host.behind(sge(TARGET, 0, 4 * SLOT)) == expected, "{what}");
            assert!(
                ours.qp.requester.flight.kept.is_empty() && ours.qp.requester.flight.is_empty(),
                "{what}"
            );
            if loss > 0 && disorder == 0 {
                *sum = (sum.0 + theirs.qp.counters().sent_bytes, sum.1 + needed);
            }
        }
    }
    let [back, selective] = sums.map(|(sent, needed)| sent as f64 / needed as f64);
    assert!(selective < 1.3 && back > 2.0 * selective, "sent for each byte needed: {back}, {selective}");
}
