//! A port that goes down and comes back, and a device that fails, in virtual time.

use super::events;
use rnic::engine::{ModifyQpError, ResourceError};
use rnic::sim::Net;
use rnic::{
    Access, AsyncEvent, ConnectOptions, Device, Error, Gather, MwType, QpAttr, QpEvent, QpInit, QpState,
    RcEnd, Remote, SrqInit, WcStatus,
};
use rnic_core::engine::PortState;
use rnic_tests::counter;
use rnic_tests::datagram::UdEnd;
use std::time::Duration;

/// A connection whose 7 retries last 8 times 67 ms.
fn pair() -> Result<(Net, Device, Device, RcEnd, RcEnd), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;
    Ok((net, a, b, left, right))
}

/// Takes a device's port down, or up again.
type Switch = fn(&Device, bool) -> Result<(), Error>;

/// The ways in which a port goes down, with the events for going down and coming back.
const WAYS: [(Switch, &[&str], &[&str]); 2] = [
    (Device::inject_port_state, &["PORT_ERR"], &["PORT_ACTIVE"]),
    (Device::inject_gid_state, &["PORT_ERR", "GID_CHANGE"], &["GID_CHANGE", "PORT_ACTIVE"]),
];

#[test]
fn traffic_goes_on_when_the_port_comes_back() -> Result<(), Error> {
    const LEN: usize = 50_000;
    for (switch, gone, back) in WAYS {
        for far in [false, true] {
            let (net, a, b, left, right) = pair()?;
            let cut = if far { &b } else { &a };
            let source = left.register(&[7; LEN])?;
            let target = right.register_remote(LEN)?;
            switch(cut, false)?;
            assert_eq!(events(cut), gone);
            assert!(!cut.port_attr().active);
            left.qp.write(1, source.all(), target.remote(0))?;
            net.run_for(Duration::from_millis(200));
            assert!(left.cq().is_empty() && target.to_vec()? == vec![0; LEN], "nothing passed");
            assert_eq!((left.qp.state(), right.qp.state()), (QpState::Rts, QpState::Rts));
            switch(cut, true)?;
            assert_eq!(events(cut), back);
            assert!(cut.port_attr().active);
            assert_eq!(left.wait()?.status, WcStatus::Success);
            assert_eq!(target.to_vec()?, vec![7; LEN]);
            assert!(left.qp.counters().local_ack_timeout_err > 0, "the timeout brought it back");
            // Lost packets are counted on the side that lost them.
            let lost = [counter(cut, "tx_port_down"), counter(cut, "dropped_port_down")];
            assert!(lost[usize::from(far)] > 0, "{lost:?}");
            let whole = if far { &a } else { &b };
            assert_eq!(counter(whole, "tx_port_down") + counter(whole, "dropped_port_down"), 0);
            assert_eq!(events(whole), [""; 0], "the peer's port is as it was");
        }
    }
    Ok(())
}

#[test]
fn retries_that_do_not_last_end_the_connection() -> Result<(), Error> {
    let (net, a, _b, left, right) = pair()?;
    let target = right.register_remote(4)?;
    a.inject_port_state(false)?;
    let before = net.elapsed();
    let source = left.register(b"lost")?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::RetryExcErr);
    assert_eq!(net.elapsed() - before, 8 * Duration::from_nanos(4096 << 14));
    a.inject_port_state(true)?;
    assert_eq!(left.qp.state(), QpState::Err, "what failed stays failed");
    Ok(())
}

#[test]
fn packets_in_the_air_when_the_receiver_goes_down_are_lost() -> Result<(), Error> {
    let (net, _a, b, left, right) = pair()?;
    net.set_latency(Duration::from_millis(1));
    let target = right.register_remote(4)?;
    let source = left.register(b"late")?;
    left.qp.write(1, source.all(), target.remote(0))?;
    net.run_for(Duration::from_micros(500));
    b.inject_port_state(false)?;
    net.run_for(Duration::from_millis(2));
    assert_eq!(counter(&b, "dropped_port_down"), 1);
    b.inject_port_state(true)?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    Ok(())
}

#[test]
fn a_port_is_active_when_nothing_is_missing_any_more() -> Result<(), Error> {
    let device = Net::new().device();
    let gids = |device: &Device| device.gid_table().len();
    device.inject_port_state(false)?;
    device.inject_port_state(false)?;
    assert_eq!((events(&device), gids(&device)), (vec!["PORT_ERR"], 1), "down is down");
    device.inject_gid_state(false)?;
    assert_eq!((events(&device), gids(&device)), (vec!["GID_CHANGE"], 0));
    let missing = device.query_gid(0).expect_err("no address").to_string();
    assert_eq!(missing, "there is no GID at index 0: the table has 0");
    device.inject_port_state(true)?;
    assert_eq!((events(&device), device.port_attr().active), (vec![], false), "the address is missing");
    device.inject_gid_state(true)?;
    assert_eq!(events(&device), ["GID_CHANGE", "PORT_ACTIVE"]);
    assert_eq!((device.port_attr().active, gids(&device)), (true, 1));
    Ok(())
}

#[test]
fn what_the_host_does_and_what_tests_do_add_up() {
    use rnic_core::engine::{Engine, EngineConfig};
    let mut engine = Engine::new(EngineConfig {
        address: [10, 0, 0, 1].into(),
        source_ports: vec![0xc000],
        active_mtu: rnic::Mtu::B4096,
        slot: 0,
        share: None,
        seed: Some(1),
        peer_window: None,
        host_buffer: None,
        least_timeout: 0,
        paces: rnic::cc::Paces::same(None),
        pkeys: Default::default(),
        partner: Default::default(),
        rate: Default::default(),
    });
    let mut told = |change: &mut dyn FnMut(&mut Engine)| {
        change(&mut engine);
        let mut names = Vec::new();
        while let Some(event) = engine.poll_event() {
            names.push(event.name());
        }
        (names, engine.is_active())
    };
    let no_link = PortState { link: false, ..PortState::ACTIVE };
    let no_address = PortState { address: false, ..PortState::ACTIVE };
    assert_eq!(told(&mut |e| e.handle_port_state(no_link)), (vec!["PORT_ERR"], false));
    assert_eq!(told(&mut |e| e.inject_port_state(no_link)), (vec![], false));
    assert_eq!(told(&mut |e| e.handle_port_state(PortState::ACTIVE)), (vec![], false));
    assert_eq!(told(&mut |e| e.handle_port_state(no_address)), (vec!["GID_CHANGE"], false));
    assert_eq!(told(&mut |e| e.inject_port_state(PortState::ACTIVE)), (vec![], false));
    assert_eq!(
        told(&mut |e| e.handle_port_state(PortState::ACTIVE)),
        (vec!["GID_CHANGE", "PORT_ACTIVE"], true)
    );
    assert_eq!(told(&mut Engine::fail), (vec!["DEVICE_FATAL"], false));
    assert_eq!(told(&mut |e| e.handle_port_state(no_link)), (vec![], false), "nothing to add to that");
}

#[test]
fn a_device_that_fails_flushes_everything() -> Result<(), Error> {
    let (net, a, b, left, right) = pair()?;
    let target = right.register_remote(4)?;
    let source = left.register(b"last")?;
    let idle = left.pd().create_qp(&QpInit::rc(left.cq(), left.cq()))?;
    for id in 0..3 {
        left.qp.recv(10 + id, Gather::Empty)?;
        left.qp.write(id, source.all(), target.remote(0))?;
    }
    a.inject_device_fatal()?;
    let flushed: Vec<_> =
        (0..6).map(|_| left.wait().map(|wc| (wc.wr_id, wc.status))).collect::<Result<_, _>>()?;
    assert_eq!(flushed, [0, 1, 2, 10, 11, 12].map(|id| (id, WcStatus::WrFlushErr)));
    assert_eq!(events(&a), ["DEVICE_FATAL"]);
    assert!(!a.port_attr().active && a.gid_table().is_empty());
    assert_eq!((left.qp.state(), idle.state()), (QpState::Err, QpState::Reset));
    // New work is flushed; new resources cannot be created.
    left.qp.write(4, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::WrFlushErr);
    let failed = |error: Error| matches!(error, Error::Resource(ResourceError::DeviceFailed));
    assert!(failed(a.alloc_pd().map(drop).unwrap_err()));
    assert!(failed(a.create_cq(1).map(drop).unwrap_err()));
    assert!(failed(left.pd().register(8, Access::LOCAL_WRITE).map(drop).unwrap_err()));
    assert!(failed(left.pd().alloc_mw(MwType::Type2).map(drop).unwrap_err()));
    assert!(failed(left.pd().create_srq(&SrqInit::default()).map(drop).unwrap_err()));
    assert!(failed(a.open_xrcd().map(drop).unwrap_err()));
    assert!(failed(left.pd().create_qp(&QpInit::rc(left.cq(), left.cq())).map(drop).unwrap_err()));
    let refused = idle.modify(&QpAttr::to_init(1, 0, Access::empty())).unwrap_err();
    assert!(matches!(refused, Error::Modify(ModifyQpError::DeviceFailed)), "{refused}");
    assert_eq!(refused.to_string(), "the device has failed: close it, and open it again");
    // A repeated failure has no further effect, and a failure cannot be undone.
    a.inject_device_fatal()?;
    a.inject_port_state(true)?;
    assert_eq!((events(&a), a.port_attr().active), (vec![], false));
    // The peer gets no answers.
    right.qp.write(1, Gather::Empty, Remote::default())?;
    assert_eq!(right.wait()?.status, WcStatus::RetryExcErr);
    assert_eq!(events(&b), [""; 0]);
    drop((idle, left, source));
    assert!(net.run_until_idle(Duration::from_secs(1)));
    Ok(())
}

#[test]
fn datagram_queue_pairs_fail_with_their_device() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = (UdEnd::new(&a), UdEnd::new(&b));
    // Packets sent from a port that is down are lost, and their requests complete anyway.
    a.inject_port_state(false)?;
    right.post(2);
    left.send(1, b"lost", &right);
    assert_eq!(left.sent().status, WcStatus::Success);
    assert_eq!(counter(&a, "tx_port_down"), 1);
    a.inject_port_state(true)?;
    left.send(2, b"heard", &right);
    assert_eq!(right.receive().data, b"heard");
    a.inject_device_fatal()?;
    assert_eq!(left.qp.state(), QpState::Err);
    let group = rnic::Gid::from(std::net::Ipv4Addr::new(239, 1, 2, 3));
    let refused = left.qp.attach_mcast(group).expect_err("the device failed");
    assert!(matches!(refused, Error::Resource(ResourceError::DeviceFailed)), "{refused}");
    Ok(())
}

#[test]
fn a_failure_overruns_completion_queues_as_anything_else_does() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let tiny = a.create_cq(1)?;
    let pd = a.alloc_pd()?;
    let qp = pd.create_qp(&QpInit::rc(&tiny, &tiny))?;
    qp.connect(&RcEnd::new(&b)?.qp.address(), &ConnectOptions::default())?;
    qp.recv(1, Gather::Empty)?;
    qp.recv(2, Gather::Empty)?;
    a.inject_device_fatal()?;
    assert_eq!(tiny.poll_one().map(|wc| wc.wr_id), Some(1));
    assert!(tiny.is_overrun());
    assert_eq!(events(&a), ["DEVICE_FATAL", "CQ_ERR"]);
    Ok(())
}

#[test]
fn a_failure_leaves_shared_receive_queues_to_their_program() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (cq, pd) = (a.create_cq(16)?, a.alloc_pd()?);
    let srq = pd.create_srq(&SrqInit::default())?;
    let qp = pd.create_qp(&QpInit::rc(&cq, &cq).with_srq(&srq))?;
    qp.connect(&RcEnd::new(&b)?.qp.address(), &ConnectOptions::default())?;
    a.inject_device_fatal()?;
    assert_eq!(a.poll_event()?, Some(AsyncEvent::DeviceFatal));
    assert_eq!(a.poll_event()?, Some(AsyncEvent::QueuePair(qp.qpn(), QpEvent::LastWqeReached)));
    assert_eq!(a.poll_event()?, None);
    Ok(())
}
