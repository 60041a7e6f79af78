//! Shared receive queues and XRC domains in the engine, without traffic.

use super::*;
use crate::engine::{EngineConfig, QpLinks, QpRequest};
use qp::queue_pair::Tuning;
use qp::{Gather, Mtu, QpCap, QpType};
use std::collections::HashSet;
use std::net::IpAddr;

fn engine_with(seed: Option<u64>) -> Engine {
    Engine::new(EngineConfig {
        address: IpAddr::from([10, 0, 0, 1]),
        source_ports: vec![0xc000],
        active_mtu: Mtu::B1024,
        slot: 0,
        share: None,
        seed,
        peer_window: None,
        host_buffer: None,
        least_timeout: 0,
        paces: cc::Paces::same(None),
        pkeys: Default::default(),
        partner: Default::default(),
        rate: Default::default(),
    })
}

fn engine() -> Engine {
    engine_with(Some(1))
}

const INIT: SrqInit = SrqInit { max_wr: 8, max_sge: 2, limit: 0 };

fn recv(wr_id: u64) -> RecvWr {
    RecvWr { wr_id, data: Gather::Empty }
}

/// A completion queue with this many entries, without a completion channel.
fn completion_queue(engine: &mut Engine, cqe: u32) -> CqId {
    let room = crate::engine::completion_room(cqe).expect("room");
    let (producer, _shared) = crate::queue::completion_queue(room, None);
    engine.create_cq(producer).expect("a completion queue")
}

/// Takes a work request; returns its number, and the event that this caused.
fn taken(engine: &mut Engine, id: SrqId) -> Result<(u64, Option<AsyncEvent>), NoSharedRecv> {
    engine.host.srqs.take(id).map(|(recv, event)| (recv.wr.wr_id, event))
}

fn size(what: &'static str, given: u32, min: u32, max: u32) -> ResourceError {
    ResourceError::Size { what, given, min, max }
}

fn request(qp_type: QpType, pd: Option<PdId>, links: QpLinks) -> QpRequest {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    QpRequest { qp_type, pd, cap, sq_sig_all: false, links, tuning: Tuning::default() }
}

#[test]
fn sizes_are_accepted_at_the_bound_and_refused_one_past_it() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    for (init, refusal) in [
        (SrqInit { max_wr: MAX_SRQ_WR, ..INIT }, None),
        (SrqInit { max_wr: MAX_SRQ_WR + 1, ..INIT }, Some(size("max_wr", MAX_SRQ_WR + 1, 1, MAX_SRQ_WR))),
        (SrqInit { max_wr: 1, ..INIT }, None),
        (SrqInit { max_wr: 0, ..INIT }, Some(size("max_wr", 0, 1, MAX_SRQ_WR))),
        (SrqInit { max_sge: MAX_SRQ_SGE, ..INIT }, None),
        (
            SrqInit { max_sge: MAX_SRQ_SGE + 1, ..INIT },
            Some(size("max_sge", MAX_SRQ_SGE + 1, 0, MAX_SRQ_SGE)),
        ),
        (SrqInit { limit: 8, ..INIT }, None),
        (SrqInit { limit: 9, ..INIT }, Some(size("srq_limit", 9, 0, 8))),
    ] {
        match (e.create_srq(pd, &init, None), refusal) {
            (Ok((id, _)), None) => {
                let attr = SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge, limit: init.limit };
                assert_eq!(e.query_srq(id), Ok(attr));
                e.destroy_srq(id).expect("nobody uses it");
            }
            (Err(error), Some(refusal)) => assert_eq!(error, refusal),
            (result, _) => panic!("{init:?}: {:?}", result.map(|(id, _)| id)),
        }
    }
    e.dealloc_pd(pd).expect("nothing is left in it");
}

#[test]
fn there_are_as_many_as_the_device_says_and_not_one_more() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let mut first = None;
    for _ in 0..MAX_SRQ {
        let (id, _) = e.create_srq(pd, &INIT, None).expect("within the bound");
        first.get_or_insert(id);
    }
    let full = ResourceError::Exhausted { what: "shared receive queue", max: MAX_SRQ };
    assert_eq!(e.create_srq(pd, &INIT, None).map(|(id, _)| id), Err(full));
    e.destroy_srq(first.expect("the first")).expect("nobody uses it");
    assert!(e.create_srq(pd, &INIT, None).is_ok(), "a place came back");
}

#[test]
fn numbers_cannot_be_guessed_and_are_unique() {
    let mut seen = HashSet::new();
    let mut e = engine_with(None);
    let pd = e.alloc_pd().expect("a domain");
    let numbers: Vec<u32> =
        (0..64).map(|_| e.create_srq(pd, &INIT, None).expect("created").1.number).collect();
    assert!(numbers.iter().all(|n| *n < 1 << 24 && seen.insert(*n)));
    let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert!(gaps > 32, "they do not count up: {numbers:?}");
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    assert_eq!(e.create_srq(pd, &INIT, None).expect("created").1.number, 2, "in a simulation they do");
}

#[test]
fn the_limit_is_reached_once_for_each_time_that_it_was_set() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let (id, srq) = e.create_srq(pd, &SrqInit { limit: 3, ..INIT }, None).expect("created");
    let reached = Some(AsyncEvent::SrqLimitReached(srq.number));
    for i in 0..5 {
        srq.post(recv(i)).expect("room");
    }
    assert_eq!(e.poll_event(), None, "nothing was taken yet");
    assert_eq!(taken(&mut e, id), Ok((0, None)), "4 are left");
    assert_eq!(taken(&mut e, id), Ok((1, None)), "3 are left: not below");
    assert_eq!(taken(&mut e, id), Ok((2, reached)), "2 are left");
    assert_eq!(e.query_srq(id).map(|attr| attr.limit), Ok(0));
    assert_eq!(taken(&mut e, id), Ok((3, None)), "not again");
    for i in 5..9 {
        srq.post(recv(i)).expect("room");
    }
    e.modify_srq(id, &SrqModify::limit(5)).expect("armed");
    assert_eq!(e.poll_event(), None, "5 are there");
    assert_eq!(taken(&mut e, id), Ok((4, reached)));
    // Below the limit already when it is set: possibly no message arrives that could trigger the event.
    e.modify_srq(id, &SrqModify::limit(5)).expect("armed");
    assert_eq!(e.poll_event(), reached);
    assert_eq!(e.query_srq(id).map(|attr| attr.limit), Ok(0));
    e.modify_srq(id, &SrqModify::limit(0)).expect("disarmed");
    for i in 5..9 {
        assert_eq!(taken(&mut e, id), Ok((i, None)));
    }
    assert_eq!(taken(&mut e, id), Err(NoSharedRecv::Empty));
    assert_eq!(e.poll_event(), None);
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let (id, srq) = e.create_srq(pd, &SrqInit { limit: 2, ..INIT }, None).expect("created");
    for i in 0..6 {
        srq.post(recv(i)).expect("room");
    }
    let before = e.query_srq(id).expect("it is there");
    let change = |max_wr, limit| SrqModify { max_wr, limit };
    for (change, refusal) in [
        (change(Some(5), None), size("max_wr", 5, 6, MAX_SRQ_WR)),
        (change(Some(5), Some(1)), size("max_wr", 5, 6, MAX_SRQ_WR)),
        (change(Some(0), None), size("max_wr", 0, 1, MAX_SRQ_WR)),
        (change(Some(MAX_SRQ_WR + 1), None), size("max_wr", MAX_SRQ_WR + 1, 1, MAX_SRQ_WR)),
        (change(None, Some(9)), size("srq_limit", 9, 0, 8)),
        (change(Some(7), Some(8)), size("srq_limit", 8, 0, 7)),
        (change(Some(1), None), size("srq_limit", 2, 0, 1)),
    ] {
        assert_eq!(e.modify_srq(id, &change), Err(refusal));
        assert_eq!(e.query_srq(id), Ok(before));
    }
    e.modify_srq(id, &change(Some(6), Some(6))).expect("as many as are there");
    assert_eq!(e.query_srq(id), Ok(SrqAttr { max_wr: 6, max_sge: 2, limit: 6 }));
    assert!(srq.post(recv(6)).is_err(), "it is full");
    e.modify_srq(id, &change(Some(MAX_SRQ_WR), None)).expect("as large as there are");
    srq.post(recv(6)).expect("room");
    for i in 0..7 {
        assert_eq!(taken(&mut e, id).map(|(wr_id, _)| wr_id), Ok(i), "in order");
    }
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let cq = completion_queue(&mut e, 4);
    let (id, _) = e.create_srq(pd, &INIT, None).expect("created");
    let busy = |what, users, by| Err(ResourceError::Busy { what, users, by });
    assert_eq!(
        e.dealloc_pd(pd),
        busy("protection domain", 1, "memory regions, memory windows, queue pairs and shared receive queues")
    );
    let links = QpLinks { send_cq: Some(cq), recv_cq: Some(cq), srq: Some(id), xrcd: None };
    let other_pd = e.alloc_pd().expect("a domain");
    let qps: Vec<_> = (0..2)
        .map(|_| e.create_qp(&request(QpType::Rc, Some(other_pd), links)).expect("a queue pair").config.qpn)
        .collect();
    assert_eq!(e.destroy_srq(id), busy("shared receive queue", 2, "queue pairs"));
    e.destroy_qp(qps[0]).expect("destroyed");
    assert_eq!(e.destroy_srq(id), busy("shared receive queue", 1, "queue pairs"));
    e.destroy_qp(qps[1]).expect("destroyed");
    e.destroy_srq(id).expect("nobody uses it");
    assert_eq!(e.destroy_srq(id), Err(UNKNOWN));
    assert_eq!(e.query_srq(id), Err(UNKNOWN));
    assert_eq!(e.create_qp(&request(QpType::Rc, Some(other_pd), links)).map(drop), Err(UNKNOWN));
    e.dealloc_pd(pd).expect("empty");

    let xrcd = e.open_xrcd().expect("an XRC domain");
    let (xrc, _) = e.create_srq(other_pd, &INIT, Some(XrcPart { xrcd, cq })).expect("created");
    let target = QpLinks { xrcd: Some(xrcd), ..QpLinks::default() };
    let qp = e.create_qp(&request(QpType::XrcRecv, None, target)).expect("a queue pair").config.qpn;
    let by = "queue pairs and shared receive queues";
    assert_eq!(e.close_xrcd(xrcd), busy("XRC domain", 2, by));
    assert_eq!(e.destroy_cq(cq), busy("completion queue", 1, by));
    e.destroy_qp(qp).expect("destroyed");
    assert_eq!(e.close_xrcd(xrcd), busy("XRC domain", 1, by));
    e.destroy_srq(xrc).expect("no queue pair is tied to it");
    e.close_xrcd(xrcd).expect("empty");
    assert_eq!(e.close_xrcd(xrcd), Err(ResourceError::Unknown { what: "XRC domain" }));
    e.destroy_cq(cq).expect("unused");
    e.dealloc_pd(other_pd).expect("empty");
}

#[test]
fn queue_pairs_have_the_parts_of_their_type_and_no_others() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let cq = completion_queue(&mut e, 4);
    let xrcd = e.open_xrcd().expect("an XRC domain");
    let (basic, _) = e.create_srq(pd, &INIT, None).expect("created");
    let (xrc, _) = e.create_srq(pd, &INIT, Some(XrcPart { xrcd, cq })).expect("created");
    let rc = QpLinks { send_cq: Some(cq), recv_cq: Some(cq), srq: None, xrcd: None };
    let send = QpLinks { recv_cq: None, ..rc };
    let recv = QpLinks { xrcd: Some(xrcd), ..QpLinks::default() };
    let (pd, none) = (Some(pd), None);
    let mut created = 0;
    for (qp_type, pd, links, refusal) in [
        (QpType::Rc, pd, rc, ""),
        (QpType::Rc, pd, QpLinks { srq: Some(basic), ..rc }, ""),
        (QpType::Rc, none, rc, "RC queue pairs need a protection domain"),
        (QpType::Rc, pd, QpLinks { send_cq: None, ..rc }, "need a send_cq"),
        (QpType::Rc, pd, send, "need a recv_cq"),
        (QpType::Rc, pd, QpLinks { xrcd: Some(xrcd), ..rc }, "have no XRC domain"),
        (QpType::Rc, pd, QpLinks { srq: Some(xrc), ..rc }, "cannot use a queue of an XRC domain"),
        (QpType::XrcSend, pd, send, ""),
        (QpType::XrcSend, none, send, "need a protection domain"),
        (QpType::XrcSend, pd, QpLinks { send_cq: None, ..send }, "need a send_cq"),
        (QpType::XrcSend, pd, rc, "receive nothing, so they have no recv_cq"),
        (QpType::XrcSend, pd, QpLinks { srq: Some(basic), ..send }, "no shared receive queue"),
        (QpType::XrcSend, pd, QpLinks { xrcd: Some(xrcd), ..send }, "have no XRC domain"),
        (QpType::XrcRecv, none, recv, ""),
        (QpType::XrcRecv, none, QpLinks::default(), "XRC_RECV queue pairs need an XRC domain"),
        (QpType::XrcRecv, pd, recv, "have no protection domain"),
        (QpType::XrcRecv, none, QpLinks { send_cq: Some(cq), ..recv }, "have no send_cq"),
        (QpType::XrcRecv, none, QpLinks { recv_cq: Some(cq), ..recv }, "have no recv_cq"),
        (QpType::XrcRecv, none, QpLinks { srq: Some(xrc), ..recv }, "no shared receive queue"),
    ] {
        match e.create_qp(&request(qp_type, pd, links)) {
            Ok(shared) => {
                assert_eq!(refusal, "", "{qp_type} {links:?}");
                // Queues that the queue pair does not have hold nothing.
                let own = qp_type == QpType::Rc && links.srq.is_none();
                assert_eq!(shared.config.cap.max_recv_wr, if own { 4 } else { 0 });
                let sends = qp_type != QpType::XrcRecv;
                assert_eq!(shared.config.cap.max_send_wr, if sends { 4 } else { 0 });
                created += 1;
            }
            Err(error) => {
                assert!(!refusal.is_empty() && error.to_string().contains(refusal), "{error}, not {refusal}");
            }
        }
    }
    assert_eq!((created, e.qp_count()), (4, 4));
}

#[test]
fn a_number_finds_a_queue_in_its_own_xrc_domain_only() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let other_pd = e.alloc_pd().expect("a domain");
    let cq = completion_queue(&mut e, 4);
    let other_cq = completion_queue(&mut e, 4);
    let (here, there) = (e.open_xrcd().expect("a domain"), e.open_xrcd().expect("a domain"));
    let (a, a_shared) = e.create_srq(pd, &INIT, Some(XrcPart { xrcd: here, cq })).expect("created");
    let (b, b_shared) =
        e.create_srq(other_pd, &INIT, Some(XrcPart { xrcd: there, cq: other_cq })).expect("created");
    let (_, basic) = e.create_srq(pd, &INIT, None).expect("created");
    let srqs = &e.host.srqs;
    let found = |number, xrcd| srqs.find(number, xrcd).zip(srqs.cq(number, xrcd)).zip(srqs.pd(number, xrcd));
    assert_eq!(found(a_shared.number, here), Some(((a, cq), pd)));
    assert_eq!(found(b_shared.number, there), Some(((b, other_cq), other_pd)));
    assert_eq!(found(a_shared.number, there), None);
    assert_eq!(found(b_shared.number, here), None);
    assert_eq!(found(basic.number, here), None, "not a queue for XRC requests");
    assert_eq!(found(0xff_fffe, here), None, "no such number");
}

#[test]
fn a_completion_queue_that_overran_fails_the_queues_that_complete_to_it() {
    let mut e = engine();
    let pd = e.alloc_pd().expect("a domain");
    let cq = completion_queue(&mut e, 1);
    let sound = completion_queue(&mut e, 1);
    let xrcd = e.open_xrcd().expect("an XRC domain");
    let (lost, lost_shared) = e.create_srq(pd, &INIT, Some(XrcPart { xrcd, cq })).expect("created");
    let (kept, kept_shared) = e.create_srq(pd, &INIT, Some(XrcPart { xrcd, cq: sound })).expect("created");
    for srq in [&lost_shared, &kept_shared] {
        srq.post(recv(1)).expect("room");
    }
    e.host.overrun.push(cq);
    e.fail_overrun();
    assert_eq!(e.poll_event(), Some(AsyncEvent::SrqError(lost_shared.number)));
    assert_eq!(e.poll_event(), None);
    assert_eq!(taken(&mut e, lost), Err(NoSharedRecv::Failed));
    assert_eq!(taken(&mut e, kept), Ok((1, None)));
    e.host.overrun.push(cq);
    e.fail_overrun();
    assert_eq!(e.poll_event(), None, "once");
}
