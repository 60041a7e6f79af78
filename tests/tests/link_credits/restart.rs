//! Partners that die, and others that take over their address.

use super::{PATIENCE, device, met, moved, until};
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, QpInit, QueuePair, RcEnd, Remote, WcStatus,
};
use rnic_tests::peer::{Peer, connect_local};
use rnic_tests::protocol::{Connection, Opening, Place};
use rnic_tests::{counter, fresh_address, reopen};
use std::net::IpAddr;
use std::time::Instant;

const LEN: usize = 1 << 20;

/// Messages that together are larger than the receive buffer of any port: as root, it has 32 MiB.
const MANY: u64 = 48;

fn opening(address: IpAddr) -> Opening {
    Opening { link: "ib-credits".into(), ..Opening::at(address) }
}

/// A connection that survives a while without answers.
fn patient() -> Connection {
    Connection { timeout: 16, ..Connection::default() }
}

/// Writes until the other end has been met `wanted` times.
fn write(end: &RcEnd, source: &MemoryRegion, remote: Remote, device: &Device, wanted: u64) {
    let mut writes = 0;
    until("they meet over writes", || {
        end.qp.write(1, source.all(), remote).expect("room");
        let wc = end.cq().wait(PATIENCE).expect("a completion");
        assert_eq!(wc.status, WcStatus::Success, "{:?}", moved(device));
        writes += 1;
        writes >= 4 && met(device) >= wanted
    });
}

#[test]
fn a_partner_that_is_killed_comes_back() {
    let device = device(fresh_address(), "ib-credits", "off");
    let mut peer = Peer::open(&opening(fresh_address()));
    let address = peer.address();
    let mut meetings = 0;
    for life in 1..=3 {
        let (end, _) = connect_local(&device, &mut peer, patient());
        let target = peer.register_zeroes(LEN);
        let source = rnic_tests::peer::register_pattern(end.pd(), LEN, life);
        write(&end, &source, target.place.into(), &device, meetings + 1);
        meetings = met(&device);
        assert_eq!(meetings, life);
        peer.check(target.all(), life, 0);
        assert!(peer.counter("rx_flow_control") > 0 && counter(&device, "rx_flow_control") > 0);
        // Under full load.
        for id in 0..16 {
            end.qp.write(id, source.all(), target.place.into()).expect("room");
        }
        assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
        peer.kill();
        peer = Peer::open(&opening(address));
    }
}

/// A UC queue pair gets no acknowledgements: it waits for credit until its partner is given up.
#[test]
fn a_sender_that_waits_for_credit_of_a_dead_partner_continues() {
    let device = device(fresh_address(), "ib-credits", "off");
    let mut peer = Peer::open(&opening(fresh_address()));
    let (end, _) = connect_local(&device, &mut peer, patient());
    let target = peer.register_zeroes(LEN);
    let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 1);
    write(&end, &source, target.place.into(), &device, 1);
    let uc = Uc::new(&device, &end);
    peer.kill();
    let killed = Instant::now();
    // More than the peer can have granted.
    for id in 0..MANY {
        uc.qp.write(id, source.all(), target.place.into()).expect("room");
    }
    for _ in 0..MANY {
        let wc = uc.cq.wait(PATIENCE).expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }
    println!("went on after {:?}", killed.elapsed());
    assert_eq!(counter(&device, "partners_lost"), 1);
}

/// A UC queue pair to the peer of a reliable one.
struct Uc {
    qp: QueuePair,
    cq: CompletionQueue,
}

impl Uc {
    fn new(device: &Device, like: &RcEnd) -> Self {
        let cq = device.create_cq(64).expect("a completion queue");
        let qp = like.pd().create_qp(&QpInit::uc(&cq, &cq)).expect("a queue pair");
        let attr = like.qp.query();
        let way = attr.ah_attr.expect("it is connected");
        let there = attr.dest_qp_num.expect("it is connected");
        let to = rnic::QpAddress { gid: way.dgid.0, qpn: there.value(), psn: 0, mtu: 4096 };
        qp.connect(&to, &ConnectOptions::default()).expect("connected");
        Self { qp, cq }
    }
}

/// The previous partner fell silent while a queue pair waited for its credit, and is given up only after another
/// took over its address and its UDP ports. Giving up the old one must not discard the state of the new one.
#[test]
fn a_partner_that_takes_the_place_of_another_keeps_it() {
    let here = device(fresh_address(), "ib-credits", "off");
    let mut peer = Peer::open(&opening(fresh_address()));
    let (old, _) = connect_local(&here, &mut peer, patient());
    let target = peer.register_zeroes(LEN);
    let before = rnic_tests::peer::register_pattern(old.pd(), LEN, 1);
    write(&old, &before, target.place.into(), &here, 1);
    let uc = Uc::new(&here, &old);
    peer.kill();
    let mut peer = Peer::open(&opening(peer.address()));
    // Waits for credit from the dead partner.
    for id in 0..8 {
        uc.qp.write(id, before.all(), target.place.into()).expect("room");
    }
    let (end, _) = connect_local(&here, &mut peer, patient());
    let target = peer.register_zeroes(LEN);
    let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 2);
    write(&end, &source, target.place.into(), &here, 2);
    for _ in 0..8 {
        let wc = uc.cq.wait(PATIENCE).expect("nobody waits for credit of the dead");
        assert_eq!(wc.status, WcStatus::Success);
    }
    let lost = counter(&here, "partners_lost");
    let begin = Instant::now();
    let mut writes = 0;
    // Longer than the timeout for a silent partner.
    while begin.elapsed() < std::time::Duration::from_secs(2) {
        end.qp.write(1, source.all(), target.place.into()).expect("room");
        assert_eq!(end.cq().wait(PATIENCE).expect("a completion").status, WcStatus::Success);
        writes += 1;
    }
    println!("{writes} writes");
    assert_eq!(counter(&here, "partners_lost"), lost, "{:?}", moved(&here));
    assert_eq!((met(&here), counter(&here, "dropped_stranger")), (2, 0), "{:?}", moved(&here));
    assert_eq!(counter(&here, "excessive_buffer_overrun_errors"), 0);
}

/// The same with devices of this process, which also disappear silently.
#[test]
fn a_device_that_is_opened_again_is_met_again() {
    let here = device(fresh_address(), "ib-credits", "off");
    let address = fresh_address();
    for life in 1..=5 {
        let there = reopen(&super::config(address, "ib-credits", "off"));
        let (left, right) = RcEnd::pair(&here, &there).expect("connected");
        let source = left.register(&vec![life; LEN]).expect("memory");
        let pd = right.pd();
        let target = pd.register(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
        let place = Place { addr: target.addr(), rkey: target.rkey() };
        write(&left, &source, place.into(), &here, u64::from(life));
        assert!(target.to_vec().expect("memory") == vec![life; LEN]);
        assert_eq!((met(&here), met(&there)), (u64::from(life), 1));
    }
}
