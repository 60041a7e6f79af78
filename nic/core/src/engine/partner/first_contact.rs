//! Ports that have never met, in virtual time: under the credit model nothing is sent before credit is available.

use super::tests::{credits, device};
use crate::link::{Direction, FrameRef, Now, Observer};
use crate::sim::Net;
use crate::{Access, ConnectOptions, Device, QKey, QpInit, QueuePair, Result, WcStatus};
use cc::credits::{CreditMessage, Kind};
use qp::attr::AddressVector;
use qp::wire::{Opcode, Packet};
use std::sync::{Arc, Mutex};
use time::Duration;

/// The packets that a device sent before it was first given credit; and those among them that were neither hellos nor
/// link messages.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(bool, Vec<Opcode>)>>);

impl Observer for Seen {
    fn name(&self) -> &'static str {
        "first contact"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes).expect("a packet");
        let mut seen = self.0.lock().expect("nobody panics");
        match frame.direction {
            Direction::Tx if !seen.0 => seen.1.push(packet.opcode()),
            Direction::Tx => {}
            Direction::Rx => {
                let gives = |bytes: &[u8; CreditMessage::LEN]| {
                    CreditMessage::decode(*bytes).is_ok_and(|m| m.kind == Kind::Grant && m.limit > 0)
                };
                seen.0 |= packet.flow_controls().is_some_and(|updates| updates.iter().any(gives));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Rc,
    Uc,
    Ud,
}

/// Sends a one-packet message over a new connection. Returns the queue pair with the objects that keep it alive.
fn send(service: Service, a: &Device, b: &Device) -> Result<(QueuePair, Box<dyn std::any::Any>)> {
    let (pd, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    let (other_pd, other_cq) = (b.alloc_pd()?, b.create_cq(16)?);
    let init = match service {
        Service::Rc => QpInit::rc,
        Service::Uc => QpInit::uc,
        Service::Ud => QpInit::ud,
    };
    let qp = pd.create_qp(&init(&cq, &cq))?;
    let other = other_pd.create_qp(&init(&other_cq, &other_cq))?;
    let source = pd.register_bytes(&[7; 4000], Access::LOCAL_WRITE)?;
    let target = other_pd.register(4096 + 40, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    if service == Service::Ud {
        qp.activate(QKey(1))?;
        other.activate(QKey(1))?;
        other.recv(1, target.all())?;
        let ah = pd.create_ah(&AddressVector::new(b.gid(), 0))?;
        qp.send_to(1, source.all(), &ah, other.qpn(), QKey(1))?;
        return Ok((qp, Box::new((ah, other, source, target, cq, other_cq, pd, other_pd))));
    }
    // Longer than the wait for a silent peer.
    let options = ConnectOptions { timeout: 20, ..ConnectOptions::default() };
    qp.connect(&other.address(), &options)?;
    other.connect(&qp.address(), &options)?;
    qp.write(1, source.all(), target.remote(0))?;
    Ok((qp, Box::new((other, source, target, cq, other_cq, pd, other_pd))))
}

#[test]
fn only_hellos_and_requests_for_credit_leave_before_the_first_credit() -> Result<()> {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let net = Net::new();
        let setup = credits(100_000);
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        let (seen, back) = (Seen::default(), Seen::default());
        a.observe(seen.clone())?;
        b.observe(back.clone())?;
        let alive = send(service, &a, &b)?;
        net.run_for(Duration::from_millis(100));
        for (device, seen) in [(&a, &seen), (&b, &back)] {
            let seen = seen.0.lock().expect("nobody panics");
            let early: Vec<_> = seen
                .1
                .iter()
                .filter(|op| !matches!(op, Opcode::UdSendOnly | Opcode::RnicFlowControl))
                .collect();
            assert!(
                early.is_empty(),
                "{service:?}: {early:?} left {} before there was credit",
                device.name()
            );
            assert!(!seen.1.is_empty(), "{service:?}");
        }
        assert!(seen.0.lock().expect("nobody panics").0, "{service:?}: credit was given");
        let arrived = b.counters().qp;
        assert_eq!(arrived.rx_write_requests + arrived.rdma_recvs, 1, "{service:?}");
        let port = a.counters().port;
        assert_eq!((port.partners_met, port.foreign_peers), (1, 0), "{service:?}: {port:?}");
        drop(alive);
    }
    Ok(())
}

/// A single buffer that holds a few packets, and 64 ports that start at the same moment.
#[test]
fn a_crowd_that_starts_cold_overruns_nothing() -> Result<()> {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let net = Net::new();
        let setup = credits(40_000);
        let b = device(&net, &setup)?;
        let others = (0..64).map(|_| device(&net, &setup)).collect::<Result<Vec<_>>>()?;
        let alive = others.iter().map(|a| send(service, a, &b)).collect::<Result<Vec<_>>>()?;
        net.run_for(Duration::from_secs(2));
        let (port, arrived) = (b.counters().port, b.counters().qp);
        assert_eq!(arrived.rx_write_requests + arrived.rdma_recvs, 64, "{service:?}: {port:?}");
        assert_eq!((port.excessive_buffer_overrun_errors, port.dropped_total()), (0, 0), "{service:?}");
        let sums = others.iter().map(Device::counters);
        assert_eq!(
            sums.map(|c| c.qp.retransmitted_pkts + c.port.foreign_peers).sum::<u64>(),
            0,
            "{service:?}"
        );
        drop(alive);
    }
    Ok(())
}

/// After two seconds, packets are sent to a peer that does not answer, and there is no second wait.
#[test]
fn a_peer_that_does_not_answer_counts_as_foreign() -> Result<()> {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let net = Net::new();
        let mut silent = credits(100_000);
        silent.is_foreign = true;
        let (a, b) = (device(&net, &credits(100_000))?, device(&net, &silent)?);
        let first = send(service, &a, &b)?;
        net.run_for(Duration::from_millis(1900));
        let arrived = || b.counters().qp.rx_write_requests + b.counters().qp.rdma_recvs;
        let port = a.counters().port;
        assert_eq!((arrived(), port.foreign_peers), (0, 0), "{service:?}");
        assert!((4..30).contains(&port.tx_packets), "{service:?}: asked {} times", port.tx_packets);
        net.run_for(Duration::from_millis(500));
        assert_eq!((arrived(), a.counters().port.foreign_peers), (1, 1), "{service:?}");
        let second = send(service, &a, &b)?;
        net.run_for(Duration::from_millis(1));
        assert_eq!((arrived(), a.counters().port.foreign_peers), (2, 1), "{service:?}");
        assert_eq!(a.counters().port.greeting_stalls, 1, "{service:?}");
        drop((first, second));
    }
    Ok(())
}

/// The wait of a queue pair that is gone does not count for the next: a peer has the full time to answer.
#[test]
fn a_wait_that_nobody_finished_is_not_continued_by_the_next() -> Result<()> {
    let net = Net::new();
    let mut silent = credits(100_000);
    silent.is_foreign = true;
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &silent)?);
    let arrived = || b.counters().qp.rdma_recvs;
    let first = send(Service::Ud, &a, &b)?;
    net.run_for(Duration::from_millis(500));
    drop(first);
    net.run_for(Duration::from_secs(3));
    let second = send(Service::Ud, &a, &b)?;
    net.run_for(Duration::from_millis(1900));
    assert_eq!((arrived(), a.counters().port.foreign_peers), (0, 0), "it may still answer");
    net.run_for(Duration::from_millis(500));
    assert_eq!((arrived(), a.counters().port.foreign_peers), (1, 1));
    drop(second);
    Ok(())
}

/// A responder replies at once to a requester that gives no credits: a peer that sends without credit does not obey
/// credits either.
#[test]
fn a_requester_without_credits_need_not_wait_for_its_acknowledgement() -> Result<()> {
    let net = Net::new();
    let mut silent = credits(100_000);
    silent.is_foreign = true;
    let (a, b) = (device(&net, &silent)?, device(&net, &credits(100_000))?);
    let (left, right) = crate::RcEnd::pair(&a, &b)?;
    let source = left.register(&[7; 100])?;
    let target = right.register_remote(100)?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(left.qp.counters().retransmitted_pkts, 0);
    assert_eq!(b.counters().port.foreign_peers, 1);
    Ok(())
}
