//! The queue pairs of unreliable services other than UD: unreliable connections, and QP1.

use rnic::engine::ResourceError;
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, Error, Gather, Operation, ProtectionDomain, QKey,
    QpInit, QpState, Qpn, QueuePair, WcOpcode, WcStatus, WorkCompletion,
};
use rnic_tests::datagram::{QKEY, UdEnd};
use rnic_tests::{counter, pattern};
use std::time::Duration;

/// An endpoint of an unreliable connection.
struct UcEnd {
    qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl UcEnd {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(64).expect("a completion queue");
        Self { qp: pd.create_qp(&QpInit::uc(&cq, &cq)).expect("a queue pair"), cq, pd }
    }

    fn wait(&self) -> WorkCompletion {
        self.cq.wait(Duration::from_secs(1)).expect("a completion")
    }
}

#[test]
fn an_unreliable_connection_writes_and_loses_whole_messages() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = (UcEnd::new(&a), UcEnd::new(&b));
    left.qp.connect(&right.qp.address(), &ConnectOptions::default()).expect("connects");
    right.qp.connect(&left.qp.address(), &ConnectOptions::default()).expect("connects");
    assert_eq!((left.qp.state(), right.qp.state()), (QpState::Rts, QpState::Rts));
    let source = left.pd.register_bytes(&pattern::bytes(7, 10_000), Access::LOCAL_WRITE).expect("memory");
    let target = right.pd.register(10_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
    let write = |id: u64| {
        let operation = Operation::Write { remote: target.remote(0), imm: Some(70 + id as u32) };
        left.qp.post(id, operation, source.all()).expect("posted");
        let wc = left.wait();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success), "done when it left");
    };
    for id in 0..2 {
        right.qp.recv(id, Gather::Empty).expect("room");
    }
    // The middle packet of the second message is lost without a report.
    a.add_fault("tx data psn=#4 drop").expect("a rule");
    write(1);
    let wc = right.wait();
    assert_eq!((wc.opcode, wc.imm(), wc.byte_len), (WcOpcode::RecvRdmaWithImm, Some(71), 10_000));
    assert_eq!(target.to_vec().expect("memory"), pattern::bytes(7, 10_000));
    write(2);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert!(right.cq.is_empty());
    assert_eq!((a.faults()[0].hits, counter(&b, "dropped_unreliable")), (1, 1));
    write(3);
    assert_eq!(right.wait().imm(), Some(73));
}

/// A QP1.
fn gsi(device: &Device) -> UdEnd {
    let cq = || device.create_cq(64).expect("a completion queue");
    UdEnd::of(device, &QpInit::gsi(&cq(), &cq()), QKEY)
}

#[test]
fn qp1_is_found_by_its_number_and_takes_its_own_qkey() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = (gsi(&a), gsi(&b));
    assert_eq!((left.qp.qpn(), right.qp.qpn()), (Qpn::GSI, Qpn::GSI));
    right.post(2);
    left.send_along(1, b"a MAD", &UdEnd::way(&b), Qpn::GSI, QKey::GSI);
    let got = right.receive();
    assert_eq!(got.data, b"a MAD");
    assert_eq!((got.wc.src_qpn, got.wc.pkey_index), (Qpn::GSI, 0));
    // A UD queue pair may also send to QP1; if the privileged bit is set, its own Q_Key is sent.
    let ud = UdEnd::with_qkey(&a, QKey::GSI);
    ud.send_along(1, b"of a program", &UdEnd::way(&b), Qpn::GSI, QKey::GSI);
    assert_eq!(right.receive().wc.src_qpn, ud.qp.qpn());
    left.send_along(2, b"another key", &UdEnd::way(&b), Qpn::GSI, QKEY);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(counter(&b, "dropped_bad_qkey"), 1);
}

#[test]
fn a_port_has_one_qp1() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let first = gsi(&b);
    let cq = b.create_cq(4).expect("a completion queue");
    let pd = b.alloc_pd().expect("a domain");
    let second = || pd.create_qp(&QpInit::gsi(&cq, &cq));
    assert!(matches!(second(), Err(Error::Resource(ResourceError::Exhausted { max: 1, .. }))));
    drop(first);
    let sender = gsi(&a);
    sender.send_along(1, b"nobody", &UdEnd::way(&b), Qpn::GSI, QKey::GSI);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    // Without the program's QP1 the port itself looks at it: a management datagram has 256 bytes.
    assert_eq!(counter(&b, "dropped_bad_len"), 1);
    assert_eq!(second().expect("the number is free again").qpn(), Qpn::GSI);
    // The table slot that QP1 occupies has another number, which is not valid.
    let _again = gsi(&net.device());
    let other = UdEnd::new(&b);
    assert!(other.qp.qpn() > Qpn::GSI);
}
