//! What the messages carry: parameters, private data, and the attributes of queue pairs that follow from them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{
    Accept, CallError, CmTimeout, Connect, ConnectionState, Ece, Event, IpCm, Listen, Path, Placement,
    RejReason, ServiceId, unconnected,
};
use qp::attr::AddressVector;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Attribute, Body, Failover, MtuCode, Req, Transport};
use qp::{Access, AttrMask, Gid, Mtu, PKey, QpAttr, QpState, QpType, Qpn, attr};
use std::net::IpAddr;
use support::*;
use time::Duration;

fn ip(host: usize) -> IpAddr {
    match gid(host).ip() {
        IpAddr::V6(v6) => v6.to_canonical(),
        v4 => v4,
    }
}

/// The datagram of this type that was sent last.
fn sent(world: &World, attribute: Attribute) -> [u8; MAD_LEN] {
    let mut all = world.sent.iter().rev();
    all.find(|(_, t)| parse(&t.mad).attribute() == attribute).expect("it was sent").1.mad
}

/// The same depths go out and come in: each side learns the other's, in its own words.
#[test]
fn depths_are_swapped() {
    let mut world = World::new(1);
    world.listen();
    let now = world.now;
    let ask = Connect { responder_resources: 3, initiator_depth: 5, ..connect(A, B, 0x11) };
    let a = world.hosts[A].connect(now, &ask).unwrap();
    world.settle();
    let (b, request) = world.request(B);
    assert_eq!((request.responder_resources, request.initiator_depth), (5, 3));
    // Before the program answers, the attributes are those that it is asked for.
    assert_eq!(world.hosts[B].negotiated(b).unwrap().responder_resources, 5);
    let accept =
        Accept { responder_resources: 4, initiator_depth: 2, ..Accept::new(Qpn::new(0x22), &request) };
    world.hosts[B].accept(now, b, &accept).unwrap();
    world.settle();
    let Event::ConnectResponse { response, .. } = world.one(A) else { panic!() };
    assert_eq!((response.responder_resources, response.initiator_depth), (2, 4));
    for (host, id, serves, asks) in [(A, a, 2, 4), (B, b, 4, 2)] {
        let of = |state| world.hosts[host].attributes(id, state, &Placement::default()).unwrap();
        assert_eq!(of(QpState::Rtr).max_dest_rd_atomic, Some(serves));
        assert_eq!(of(QpState::Rts).max_rd_atomic, Some(asks));
    }
}

#[test]
fn private_data_is_padded_and_bounded() {
    let mut world = World::new(2);
    let listen = Listen { with_addresses: true, ..listen() };
    let now = world.now;
    world.hosts[B].listen(now, &listen).unwrap();
    let addresses = Some(IpCm { src_port: 5, src: ip(A), dst: ip(B) });
    let with = |private_data| Connect { addresses, private_data, ..connect(A, B, 0x11) };
    let too_long = |message, len, max| CallError::PrivateDataTooLong { message, len, max };
    assert_eq!(world.hosts[A].connect(now, &with(&[7; 57])), Err(too_long("REQ", 57, 56)));
    let raw = Connect { private_data: &[7; 93], ..connect(A, B, 0x11) };
    assert_eq!(world.hosts[A].connect(now, &raw), Err(too_long("REQ", 93, 92)));
    let a = world.hosts[A].connect(now, &with(&[7; 3])).unwrap();
    world.settle();
    let (b, request) = world.request(B);
    assert_eq!((request.addresses, request.private_data.len()), (addresses, 56));
    assert_eq!(request.private_data[..4], [7, 7, 7, 0]);
    let accept = |private_data| Accept { private_data, ..Accept::new(Qpn::new(0x22), &request) };
    assert_eq!(world.hosts[B].accept(now, b, &accept(&[1; 197])), Err(too_long("REP", 197, 196)));
    assert_eq!(
        world.hosts[B].reject(now, b, RejReason::ConsumerDefined, &[], &[1; 149]),
        Err(too_long("REJ", 149, 148))
    );
    assert_eq!(
        world.hosts[B].reject(now, b, RejReason::ConsumerDefined, &[1; 73], &[]),
        Err(too_long("REJ", 73, 72))
    );
    assert_eq!(world.hosts[B].state(b), ConnectionState::ReqReceived, "nothing has changed");
    world.hosts[B].accept(now, b, &accept(&[1; 196])).unwrap();
    world.settle();
    let Event::ConnectResponse { response, .. } = world.one(A) else { panic!() };
    assert_eq!(response.private_data[..], [1; 196]);
    assert_eq!(world.hosts[A].establish(now, a, &[1; 225]), Err(too_long("RTU", 225, 224)));
    world.hosts[A].establish(now, a, &[1; 224]).unwrap();
    world.settle();
    world.take(B);
    assert_eq!(world.hosts[A].disconnect(now, a, &[1; 221]), Err(too_long("DREQ", 221, 220)));
    world.hosts[A].disconnect(now, a, &[1; 220]).unwrap();
    world.settle();
    assert_eq!(world.hosts[B].disconnect(now, b, &[1; 225]), Err(too_long("DREP", 225, 224)));
    world.hosts[B].disconnect(now, b, &[1; 224]).unwrap();
}

/// Programs take the addresses in the private data for the peer's, so they must be those of the packet.
#[test]
fn addresses_in_the_private_data_are_those_of_the_packet() {
    for (src, dst, reached) in [
        (Some(ip(A)), ip(B), true),
        (Some(ip(B)), ip(B), false),
        (Some(ip(A)), ip(A), false),
        // The mapped form is the same address.
        (Some(IpAddr::from(gid(A).0)), ip(B), true),
        (None, ip(B), false),
    ] {
        let mut world = World::new(3);
        let now = world.now;
        world.hosts[B].listen(now, &Listen { with_addresses: true, ..listen() }).unwrap();
        let addresses = src.map(|src| IpCm { src_port: 5, src, dst });
        world.hosts[A].connect(now, &Connect { addresses, ..connect(A, B, 0x11) }).unwrap();
        world.settle();
        assert_eq!(world.take(B).len(), usize::from(reached), "{addresses:?}");
        match &world.take(A)[..] {
            [] if reached => {}
            [Event::Rejected { rejection, .. }] => assert_eq!(rejection.reason, RejReason::ConsumerDefined),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn options_of_a_vendor_are_carried() {
    let mut world = World::new(4);
    world.listen();
    let now = world.now;
    let (mine, yours) =
        (Ece { vendor_id: 0x15b3, options: 0x10 }, Ece { vendor_id: 0xab_cdef, options: 0x20 });
    world.hosts[A].connect(now, &Connect { ece: mine, ..connect(A, B, 0x11) }).unwrap();
    world.settle();
    let (b, request) = world.request(B);
    assert_eq!(request.ece, mine);
    world.hosts[B].accept(now, b, &Accept { ece: yours, ..Accept::new(Qpn::new(0x22), &request) }).unwrap();
    world.settle();
    let Event::ConnectResponse { response, .. } = world.one(A) else { panic!() };
    assert_eq!(response.ece, yours);
}

/// Delivers a REQ of host A with a change; returns the reason of the REJ, if any, and whether the program hears of it.
fn changed(listen: &Listen, change: impl Fn(&mut Req<'_>)) -> (Option<RejReason>, bool) {
    let mut world = World::with(5, |config| (config.hold, config.max_mtu) = (Duration::ZERO, Mtu::B2048));
    let now = world.now;
    world.hosts[B].listen(now, listen).unwrap();
    world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
    world.lose();
    let mad = sent(&world, Attribute::Req);
    let mut message = parse(&mad);
    if let Body::Req(req) = &mut message.body {
        change(req);
    }
    world.deliver(gid(A), gid(B), &emit(&message));
    world.transmit();
    let last = world.sent.last().expect("the REQ").1;
    let reason = match parse(&last.mad).body {
        Body::Rej(rej) => Some(rej.reason),
        _ => None,
    };
    (reason, !world.take(B).is_empty())
}

#[test]
fn requests_that_cannot_be_met_are_rejected_with_the_reason() {
    let of = |qp_type| Listen { qp_type, ..listen() };
    let rc = of(QpType::Rc);
    let rejected = |reason| (Some(reason), false);
    assert_eq!(changed(&rc, |_| {}), (None, true));
    assert_eq!(changed(&rc, |r| r.service_id = ServiceId(1)), rejected(RejReason::InvalidServiceId));
    assert_eq!(changed(&rc, |r| r.primary.remote_gid = gid(A)), rejected(RejReason::InvalidGid));
    // The port is in the default partition, as a full member.
    assert_eq!(changed(&rc, |r| r.pkey = PKey(0x7fff)), (None, true));
    assert_eq!(changed(&rc, |r| r.pkey = PKey(0x8001)), rejected(RejReason::InvalidGid));
    assert_eq!(changed(&rc, |r| r.path_mtu = MtuCode::new(4)), (None, true));
    for code in [0, 5, 6, 15] {
        assert_eq!(changed(&rc, |r| r.path_mtu = MtuCode::new(code)), rejected(RejReason::InvalidMtu));
    }
    let transport = |transport, extended| {
        move |r: &mut Req<'_>| (r.transport, r.extended_transport) = (transport, extended)
    };
    for (qp_type, good) in [
        (QpType::Rc, (Transport::Rc, 0)),
        (QpType::Uc, (Transport::Uc, 0)),
        (QpType::XrcRecv, (Transport::Extended, 1)),
    ] {
        for other in [
            (Transport::Rc, 0),
            (Transport::Uc, 0),
            (Transport::Rd, 0),
            (Transport::Extended, 1),
            (Transport::Extended, 2),
        ] {
            let expected =
                if other == good { (None, true) } else { rejected(RejReason::InvalidTransportType) };
            assert_eq!(changed(&of(qp_type), transport(other.0, other.1)), expected, "{qp_type} {other:?}");
        }
    }
    // A service for datagrams is none for connections; another address is another service.
    assert_eq!(changed(&of(QpType::Ud), |_| {}), rejected(RejReason::InvalidServiceId));
    assert_eq!(changed(&Listen { address: Some(gid(B)), ..rc }, |_| {}), (None, true));
    assert_eq!(
        changed(&Listen { address: Some(gid(A)), ..rc }, |_| {}),
        rejected(RejReason::InvalidServiceId)
    );
    assert_eq!(changed(&Listen { backlog: 0, ..rc }, |_| {}), (None, false));
}

/// A peer that uses its ID for another connection.
#[test]
fn an_id_is_used_once() {
    let mut world = World::new(6);
    let (_, b) = world.requested();
    let mad = sent(&world, Attribute::Req);
    let mut message = parse(&mad);
    if let Body::Req(req) = &mut message.body {
        req.local_qpn = Qpn::new(0x12);
    }
    world.deliver(gid(A), gid(B), &emit(&message));
    world.transmit();
    let mad = sent(&world, Attribute::Rej);
    let Body::Rej(rej) = parse(&mad).body else { panic!() };
    assert_eq!(rej.reason, RejReason::DuplicateLocalCommId);
    assert_eq!((world.hosts[B].state(b), world.take(B)), (ConnectionState::ReqReceived, vec![]));
}

#[test]
fn an_alternate_path_is_not_taken() {
    for (asked, expected) in [(false, Failover::Accepted), (true, Failover::NotSupported)] {
        let mut world = World::new(7);
        world.listen();
        let now = world.now;
        world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
        world.lose();
        let mad = sent(&world, Attribute::Req);
        let mut message = parse(&mad);
        if let Body::Req(req) = &mut message.body
            && asked
        {
            req.alternate = req.primary;
        }
        world.deliver(gid(A), gid(B), &emit(&message));
        let (b, _) = world.request(B);
        world.accept(b, 0x22);
        world.settle();
        let mad = sent(&world, Attribute::Rep);
        let Body::Rep(rep) = parse(&mad).body else { panic!() };
        assert_eq!(rep.failover, expected);
    }
}

#[test]
fn listeners_have_an_address_each() {
    let mut world = World::new(8);
    let now = world.now;
    let any = world.listen();
    assert_eq!(world.hosts[B].listen(now, &listen()), Err(CallError::AddressInUse));
    let exact = world.hosts[B].listen(now, &Listen { address: Some(gid(B)), ..listen() }).unwrap();
    let reached = |world: &mut World, qpn| {
        let now = world.now;
        world.hosts[A].connect(now, &connect(A, B, qpn)).unwrap();
        world.settle();
        world.request(B).1.listener
    };
    assert_eq!(reached(&mut world, 0x11), exact);
    world.hosts[B].unlisten(exact).unwrap();
    assert_eq!(world.hosts[B].unlisten(exact), Err(CallError::UnknownListener));
    assert_eq!(reached(&mut world, 0x12), any);
    let wrong = Listen { qp_type: QpType::XrcSend, ..listen() };
    assert_eq!(
        world.hosts[B].listen(now, &wrong),
        Err(CallError::WrongType { call: "listen", qp_type: QpType::XrcSend })
    );
    let wrong = Connect { qp_type: QpType::XrcRecv, ..connect(A, B, 0x11) };
    assert!(matches!(world.hosts[A].connect(now, &wrong), Err(CallError::WrongType { call: "connect", .. })));
}

/// Attributes of both sides, for each type of queue pair: what a transition needs, and nothing that it refuses.
#[test]
fn attributes_bring_queue_pairs_to_rts() {
    for (active, passive) in
        [(QpType::Rc, QpType::Rc), (QpType::Uc, QpType::Uc), (QpType::XrcSend, QpType::XrcRecv)]
    {
        let mut world = World::new(9);
        let now = world.now;
        world.hosts[B].listen(now, &Listen { qp_type: passive, ..listen() }).unwrap();
        let mut ask = Connect { qp_type: active, ..connect(A, B, 0x11) };
        ask.path.to.flow_label = Path::flow_label(1, 2);
        ask.path.to.traffic_class = 0x68;
        let a = world.hosts[A].connect(now, &ask).unwrap();
        assert_eq!(
            world.hosts[A].attributes(a, QpState::Rtr, &Placement::default()),
            Err(CallError::NoAttributes),
            "the peer is not known yet"
        );
        world.settle();
        let (b, request) = world.request(B);
        assert_eq!((request.qp_type, request.remote_qpn), (passive, Qpn::new(0x11)));
        world.accept(b, 0x22);
        world.settle();
        let Event::ConnectResponse { response, .. } = world.one(A) else { panic!() };
        assert_eq!(response.remote_qpn, Qpn::new(0x22));
        let placement = Placement { port_num: 1, sgid_index: 3, pkey_index: 0, min_rnr_timer: 12 };
        for (host, id, qp_type) in [(A, a, active), (B, b, passive)] {
            let of = |state| world.hosts[host].attributes(id, state, &placement).unwrap();
            let steps = [
                (QpState::Reset, QpState::Init),
                (QpState::Init, QpState::Rtr),
                (QpState::Rtr, QpState::Rts),
            ];
            for (from, to) in steps {
                let limits = attr::Limits { gids: 4, ..attr::Limits::default() };
                assert_eq!(attr::check(qp_type, from, &of(to), &limits), Ok(to), "{qp_type}");
            }
            let peer = AddressVector {
                dgid: gid(1 - host),
                sgid_index: 3,
                hop_limit: 64,
                traffic_class: 0x68,
                flow_label: 33,
                sl: 0,
                port_num: 1,
                is_global: true,
            };
            let rtr = of(QpState::Rtr);
            assert_eq!((rtr.ah_attr, rtr.path_mtu), (Some(peer), Some(Mtu::B1024)));
            if qp_type == QpType::Rc {
                let rts = of(QpState::Rts);
                assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (Some(19), Some(7), Some(7)));
                assert_eq!(rtr.min_rnr_timer, Some(12));
            }
        }
        world.hosts[A].destroy(now, a).unwrap();
        assert_eq!(
            world.hosts[A].attributes(a, QpState::Init, &placement),
            Err(CallError::UnknownConnection)
        );
    }
}

#[test]
fn rights_follow_from_the_depth() {
    let mut world = World::new(10);
    let now = world.now;
    for (depth, access) in
        [(0, Access::REMOTE_WRITE), (1, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)]
    {
        let ask = Connect { responder_resources: depth, ..connect(A, B, 0x11) };
        let a = world.hosts[A].connect(now, &ask).unwrap();
        let init = world.hosts[A].attributes(a, QpState::Init, &Placement::default()).unwrap();
        assert_eq!(init, QpAttr::to_init(1, 0, access));
    }
    let placement = Placement::default();
    assert_eq!(unconnected(QpType::Rc, &placement), QpAttr::to_init(1, 0, Access::empty()));
    assert_eq!(unconnected(QpType::Ud, &placement).qkey, Some(cm::UDP_QKEY));
    assert!(unconnected(QpType::Ud, &placement).mask().contains(AttrMask::QKEY));
}

/// The acknowledgement timeout: at least twice the lifetime and the delay. The values are those of Linux's formula.
#[test]
fn acknowledgement_timeouts() {
    for (delay, lifetime, expected) in
        [(15, 18, 19), (0, 18, 19), (18, 18, 20), (25, 18, 25), (20, 18, 21), (31, 31, 31)]
    {
        let timeout = cm::ack_timeout(CmTimeout::new(delay), CmTimeout::new(lifetime));
        assert_eq!(timeout.code(), expected, "{delay}, {lifetime}");
    }
    for delay in 0..=31 {
        for lifetime in 0..=29 {
            let timeout = cm::ack_timeout(CmTimeout::new(delay), CmTimeout::new(lifetime));
            assert!(timeout >= CmTimeout::new(delay) && timeout.code() > lifetime);
        }
    }
}

/// Some Linux programs connect by IPv6; the GIDs are the addresses then.
#[test]
fn ipv6_addresses() {
    let (src, dst): (IpAddr, IpAddr) = ("fd77::2".parse().unwrap(), "fd77::1".parse().unwrap());
    let mut world = World::new(11);
    let now = world.now;
    world.hosts[B].listen(now, &Listen { with_addresses: true, ..listen() }).unwrap();
    let path = Path::new(Gid::from(src), Gid::from(dst), Mtu::B1024);
    let addresses = Some(IpCm { src_port: 9, src, dst });
    let ask = Connect { addresses, ..Connect::new(SERVICE, path, Qpn::new(0x11)) };
    world.hosts[A].connect(now, &ask).unwrap();
    let transmit = world.hosts[A].poll_transmit(now).unwrap();
    let source = cm::Source { remote: path.to.local, local: path.to.remote, proven: false };
    world.hosts[B].handle_mad(now, &source, &transmit.mad);
    world.collect();
    assert_eq!(world.request(B).1.addresses, addresses);
}
