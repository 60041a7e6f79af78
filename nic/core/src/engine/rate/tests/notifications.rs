//! Marks, the CNPs that they cause, and the effects of CNPs.

use super::*;
use crate::engine::{DropReason, PartnerSetup};
use crate::{AddressVector, Operation, QKey, QpAttr, QpState, SendWr, WcStatus};
use qp::wire::mad::hello::Features;
use qp::wire::{Flow, Headers, IpHeader, UDP_PORT, icrc};
use std::net::{IpAddr, Ipv4Addr};

const PAPER: &str = "dcqcn:preset=paper";

/// A receiver for which these packets are marked, and a sender, both with this algorithm.
fn world(text: &str, marks: &str) -> Result<(Net, Device, Device)> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm(text)), device(&net, "b", &algorithm(text)));
    b.add_fault(marks)?;
    Ok((net, a, b))
}

#[test]
fn a_mark_is_answered_by_a_cnp_but_not_more_often_than_allowed() -> Result<()> {
    let (_net, a, b) = world(PAPER, "rx data mark ce")?;
    let log = Log::of(&b);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 20)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    let cnps = log.cnps();
    assert!(cnps.len() > 10, "{} CNPs", cnps.len());
    for two in cnps.windows(2) {
        assert!(two[1].at - two[0].at >= us(50), "{:?}", two[1].at - two[0].at);
    }
    let count = cnps.len() as u64;
    assert_eq!(notifications(&b), [256, count, 0, 0]);
    assert_eq!(notifications(&a), [0, 0, count, 0]);
    assert!(left.qp.rate() < Some(Rate::from_gbps(5)));
    Ok(())
}

/// The rate of the port does not delay a CNP, but what leaves after it.
#[test]
fn a_cnp_counts_towards_the_rate_of_the_port() -> Result<()> {
    let (net, slow) = (Net::new(), Rate::from_mbps(1));
    let a = device(&net, "a", &algorithm(PAPER));
    let b = device(&net, "b", &RateConfig { port_rate: Some(slow), ..algorithm(PAPER) });
    b.add_fault("rx data mark ce")?;
    let log = Log::of(&b);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 8)?;
    // The port owes nothing for the first message when the second arrives.
    for id in 0..2 {
        left.qp.write(id, from.all(), to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        net.run_for(Duration::from_millis(10));
    }
    let sent = log.sent(|_| true);
    let [.., cnp, ack] = &sent[..] else { panic!("too few packets: {sent:?}") };
    assert_eq!((cnp.opcode, ack.opcode), (Opcode::Cnp, Opcode::RcAcknowledge));
    // A port may have saved 64 bytes, and catches up on 100 us.
    let least = slow.time_for(cnp.size - 64) - us(100);
    assert!(ack.at - cnp.at >= least, "only {:?} later", ack.at - cnp.at);
    Ok(())
}

/// The CNP that a ConnectX-4 Lx sent, BTH to ICRC, from 10.0.17.1 to 10.0.18.1 with identification 0x718c and UDP source
/// port 0.
const GOLDEN: [u8; 32] = [
    0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0x82, 0xfd, 0x00, 0x2a,
];

#[test]
fn a_cnp_is_built_as_hardware_builds_it() -> Result<()> {
    let (_net, a, b) = world(PAPER, "rx data nth=3 mark ce")?;
    let log = Log::of(&b);
    let (left, right) =
        RcEnd::pair_with(&a, &b, &ConnectOptions { traffic_class: 0x68, ..ConnectOptions::default() })?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    left.wait()?;
    let cnp = log.cnps().pop().expect("one");
    let mut wanted = GOLDEN[..28].to_vec();
    wanted[5..8].copy_from_slice(&left.qp.qpn().value().to_be_bytes()[1..]);
    assert_eq!(cnp.bytes[..28], wanted);
    // DSCP 48, and ECN-capable, whatever the service level of the queue pair.
    assert_eq!((cnp.tos, cnp.bytes.len()), (0xc2, 32));
    let acks = log.sent(|s| s.opcode == Opcode::RcAcknowledge);
    assert!(
        acks.iter().all(|ack| ack.src_port == cnp.src_port && !ack.becn),
        "from the queue pair's own port"
    );
    // The golden packet, with its original network headers.
    let ip = |third| IpAddr::V4(Ipv4Addr::new(10, 0, third, 1));
    let flow = Flow { src: ip(17), dst: ip(18), src_port: 0, dst_port: UDP_PORT };
    let mut built = [0; 32];
    assert_eq!(Headers::cnp(Qpn::new(0x118)).emit(&mut built, 0), 28);
    let crc = icrc::compute(&flow, 0x718c, &built[..28]);
    built[28..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(built, GOLDEN);
    Ok(())
}

#[test]
fn a_cnp_halves_the_rate_which_recovers() -> Result<()> {
    let (net, a, b) = world(PAPER, "rx data nth=10 mark ce")?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 20)?;
    for id in 0..8 {
        left.qp.write(id, from.all(), to.remote(0))?;
    }
    while counters(&a).rp_cnp_handled == 0 {
        assert!(net.step());
    }
    let state = flow(&a, &left.qp).expect("it has sent");
    let line = Rate::from_gbps(10);
    assert_eq!((state.rate, state.target_rate), (Rate::from_gbps(5), Some(line)));
    assert_eq!((state.alpha, state.limited), (Some(1.0), true), "alpha begins with 1");
    net.run_for(us(120));
    let recovering = flow(&a, &left.qp).expect("still").rate;
    assert!(recovering > Rate::from_gbps(8) && recovering < line, "two timers later: {recovering}");
    for _ in 0..8 {
        assert_eq!(left.wait()?.status, WcStatus::Success);
    }
    let state = flow(&a, &left.qp).expect("still");
    assert_eq!((state.rate, state.alpha, state.limited), (line, None, false));
    let all = device_flows(&a);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0], state);
    Ok(())
}

fn device_flows(device: &Device) -> Vec<FlowState> {
    let port = &device.inner.port;
    port.inspect(|e| e.flows(port.now()).collect()).expect("no fork")
}

#[test]
fn a_queue_pair_that_waits_long_goes_on_when_its_rate_recovers() -> Result<()> {
    let net = Net::new();
    // The first CNP reduces the rate to 1 Mb/s, at which the next packet waits for 33 ms; two timers later the rate is
    // half of the line rate.
    let text = "dcqcn:preset=paper,rate_to_set_on_first_cnp=1,rpg_ai_rate=10000,rpg_threshold=0";
    let (a, b) = (device(&net, "a", &algorithm(text)), device(&net, "b", &algorithm(text)));
    b.add_fault("rx data nth=1 mark ce")?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 18)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    while counters(&a).rp_cnp_handled == 0 {
        assert!(net.step());
    }
    assert_eq!(left.qp.rate(), Some(Rate::from_mbps(1)));
    left.wait()?;
    assert!(net.elapsed() < Duration::from_millis(2), "{:?}", net.elapsed());
    Ok(())
}

#[test]
fn a_late_mark_is_answered_at_the_end_of_the_interval_if_so_set() -> Result<()> {
    for (text, count) in [("dcqcn:preset=paper,deferred_cnp=true", 2), (PAPER, 1)] {
        for datagrams in [false, true] {
            let (net, a, b) = world(text, "rx data mark ce")?;
            let log = Log::of(&b);
            let qp_type = if datagrams { QpType::Ud } else { QpType::Uc };
            let [(left, from), (right, to)] = unreliable(&a, &b, qp_type)?;
            let path = a.alloc_pd()?.create_ah(&AddressVector::new(b.gid(), 0))?;
            for id in 0..2 {
                let data = from.slice(0..8)?;
                let wr = if datagrams {
                    let send = Operation::Send { imm: None, invalidate: None };
                    SendWr::new(id, send, data).to(path.datagram(right.qpn(), QKey(1)))
                } else {
                    SendWr::new(id, Operation::Write { remote: to.remote(0), imm: None }, data)
                };
                left.post_send(wr)?;
                net.run_for(us(20));
            }
            assert!(net.run_until_idle(Duration::from_secs(1)));
            let cnps = log.cnps();
            assert_eq!(cnps.len(), count, "{text}");
            assert!(cnps.iter().all(|cnp| cnp.to == left.qpn()), "to the sender's queue pair");
            if count == 2 {
                assert_eq!(cnps[1].at - cnps[0].at, us(50));
            }
            assert_eq!(notifications(&b), [2, count as u64, 0, 0]);
            assert_eq!(notifications(&a), [0, 0, count as u64, 0], "{qp_type}: obeyed");
            assert!(left.rate() < Some(Rate::from_gbps(10)));
        }
    }
    Ok(())
}

#[test]
fn marks_on_read_responses_slow_the_responder() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm(PAPER)), device(&net, "b", &algorithm(PAPER)));
    a.add_fault("rx read.resp mark ce")?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (to, from) = memory(&left, &right, 1 << 20)?;
    left.qp.read(1, to.all(), from.remote(0))?;
    left.wait()?;
    let [marked, sent, handled, ignored] =
        [notifications(&a)[0], notifications(&a)[1], notifications(&b)[2], notifications(&b)[3]];
    assert!(marked == 256 && sent > 1 && handled == sent && ignored == 0);
    assert!(right.qp.rate() < Some(Rate::from_gbps(5)) && left.qp.rate() == Some(Rate::from_gbps(10)));
    Ok(())
}

#[test]
fn a_cnp_that_is_marked_itself_causes_none() -> Result<()> {
    let (_net, a, b) = world(PAPER, "rx data nth=1 mark ce")?;
    a.add_fault("rx cnp mark ce")?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    left.wait()?;
    assert_eq!(notifications(&a), [1, 0, 1, 0]);
    assert_eq!(notifications(&b), [1, 1, 0, 0]);
    Ok(())
}

#[test]
fn packets_say_whether_marks_are_understood() -> Result<()> {
    let silent = |text| RateConfig { foreign_cnp: false, ..algorithm(text) };
    let cases = [
        (algorithm("dcqcn"), 0x6a),
        (algorithm("dctcp"), 0x6a),
        (algorithm("timely"), 0x68),
        (algorithm("off"), 0x68),
        (silent("dcqcn"), 0x68),
        (RateConfig { foreign_cnp: true, ..RateConfig::default() }, 0x68),
    ];
    for (rate, tos) in cases {
        let net = Net::new();
        let (a, b) = (device(&net, "a", &rate), device(&net, "b", &rate));
        let logs = [Log::of(&a), Log::of(&b)];
        let options = ConnectOptions { traffic_class: 0x68, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        left.qp.read(2, from.all(), to.remote(0))?;
        assert_eq!((left.wait()?.wr_id, left.wait()?.wr_id), (1, 2));
        for log in logs {
            let sent = log.sent(|_| true);
            assert!(!sent.is_empty() && sent.iter().all(|s| s.tos == tos), "{tos:#x}: {rate:?}");
        }
    }
    Ok(())
}

#[test]
fn who_does_not_listen_is_sent_no_cnp() -> Result<()> {
    let net = Net::new();
    let silent = RateConfig { foreign_cnp: false, ..algorithm(PAPER) };
    let (a, b) = (device(&net, "a", &algorithm(PAPER)), device(&net, "b", &silent));
    b.add_fault("rx data mark ce")?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    left.wait()?;
    assert_eq!(notifications(&b), [16, 0, 0, 0]);
    Ok(())
}

#[test]
fn a_cnp_without_effect_is_counted() -> Result<()> {
    for (text, obeyed) in [(Some(PAPER), true), (Some("timely"), false), (Some("off"), false), (None, false)]
    {
        let net = Net::new();
        let rate = text.map_or_else(RateConfig::default, algorithm);
        let (a, b) = (device(&net, "a", &rate), device(&net, "b", &algorithm(PAPER)));
        b.add_fault("rx data nth=1 mark ce")?;
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        assert_eq!(notifications(&a), [0, 0, u64::from(obeyed), u64::from(!obeyed)], "{text:?}");
        assert_eq!(counters(&a).dropped_total(), 0);
    }
    Ok(())
}

#[test]
fn a_cnp_is_obeyed_only_from_the_peer_of_a_queue_pair_that_has_sent() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm(PAPER)), device(&net, "b", &algorithm(PAPER)));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let inject = |src: IpAddr, qpn: Qpn| {
        let arrival = IpHeader { src, dst: a.address(), ..IpHeader::default() };
        let mut packet = [0; 32];
        Headers::cnp(qpn).emit(&mut packet, 0);
        let crc = icrc::compute(&arrival.flow(), 0, &packet[..28]);
        packet[28..].copy_from_slice(&crc.to_le_bytes());
        net.inject(&arrival, &packet);
        net.run_for(us(2));
        let port = counters(&a);
        let drops = [DropReason::NoQp, DropReason::BadAddress].map(|reason| port.dropped(reason));
        (port.rp_cnp_handled, port.rp_cnp_ignored, drops)
    };
    let elsewhere = IpAddr::from([10, 0, 0, 77]);
    assert_eq!(inject(b.address(), left.qp.qpn()), (0, 1, [0, 0]), "it has not sent");
    assert_eq!(inject(b.address(), Qpn::new(0x77)), (0, 2, [1, 0]), "there is none");
    let (from, to) = memory(&left, &right, 8)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    left.wait()?;
    net.run_for(us(50));
    assert_eq!(inject(elsewhere, left.qp.qpn()), (0, 3, [1, 1]), "not the peer");
    assert_eq!(left.qp.rate(), Some(Rate::from_gbps(10)));
    assert_eq!(inject(b.address(), left.qp.qpn()), (1, 3, [1, 1]));
    assert_eq!(left.qp.rate(), Some(Rate::from_gbps(5)));
    // A receiver never sends two CNPs within 50 us.
    assert_eq!(inject(b.address(), left.qp.qpn()), (1, 4, [1, 1]), "sooner than a receiver sends them");
    assert_eq!(left.qp.rate(), Some(Rate::from_gbps(5)));
    left.qp.modify(&QpAttr::to_state(QpState::Err))?;
    net.run_for(us(50));
    assert_eq!(inject(b.address(), left.qp.qpn()), (1, 5, [1, 1]), "it sends nothing any more");
    assert_eq!((counters(&a).dropped_total(), counters(&a).dropped(DropReason::BadToken)), (3, 1));
    Ok(())
}

#[test]
fn senders_of_datagrams_are_told_one_by_one() -> Result<()> {
    let net = Net::new();
    let b = device(&net, "b", &algorithm(PAPER));
    b.add_fault("rx data mark ce")?;
    let senders = ["x", "y"].map(|name| device(&net, name, &algorithm(PAPER)));
    let log = Log::of(&b);
    let (cq, pd) = (b.create_cq(16)?, b.alloc_pd()?);
    let target = pd.create_qp(&QpInit::ud(&cq, &cq))?;
    target.activate(QKey(1))?;
    let mut qps = Vec::new();
    for sender in &senders {
        let (cq, pd) = (sender.create_cq(16)?, sender.alloc_pd()?);
        let ah = pd.create_ah(&AddressVector::new(b.gid(), 0))?;
        for _ in 0..2 {
            let qp = pd.create_qp(&QpInit::ud(&cq, &cq))?;
            qp.activate(QKey(1))?;
            for _ in 0..3 {
                qp.send_to(1, crate::Gather::Empty, &ah, target.qpn(), QKey(1))?;
            }
            qps.push(qp);
        }
    }
    assert!(net.run_until_idle(Duration::from_secs(1)));
    let told: std::collections::BTreeSet<_> = log.cnps().iter().map(|s| (s.to, s.at)).collect();
    assert_eq!(
        (told.len(), notifications(&b)),
        (2, [12, 4, 0, 0]),
        "two hosts, each with the same two numbers"
    );
    assert!(qps.iter().all(|qp| qp.rate() == Some(Rate::from_gbps(5))));
    Ok(())
}

#[test]
fn marks_of_multicast_are_not_answered() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm(PAPER)), device(&net, "b", &algorithm(PAPER)));
    b.add_fault("rx data mark ce")?;
    let log = Log::of(&a);
    let [(left, _), (right, _)] = unreliable(&a, &b, QpType::Ud)?;
    let group = crate::Gid::from(Ipv4Addr::new(239, 1, 1, 1));
    right.attach_mcast(group)?;
    let ah = a.alloc_pd()?.create_ah(&AddressVector::new(group, 0))?;
    let send = Operation::Send { imm: None, invalidate: None };
    left.post_send(SendWr::new(1, send, crate::Gather::Empty).to(ah.datagram(Qpn::MULTICAST, QKey(1))))?;
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(notifications(&b), [1, 0, 0, 0]);
    assert_eq!(log.sent(|_| true)[0].tos, 0, "and not asked for");
    Ok(())
}

#[test]
fn a_queue_pair_that_is_gone_sends_no_cnp_late() -> Result<()> {
    let (net, a, b) = world("dcqcn:preset=paper,deferred_cnp=true", "rx data mark ce")?;
    let [(left, from), (right, to)] = unreliable(&a, &b, QpType::Uc)?;
    for id in 0..2 {
        let write = Operation::Write { remote: to.remote(0), imm: None };
        left.post_send(SendWr::new(id, write, from.slice(0..8)?))?;
        net.run_for(us(5));
    }
    drop(right);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(notifications(&b), [2, 1, 0, 0]);
    Ok(())
}

#[test]
fn ports_that_are_rnic_tell_one_another_whether_they_listen() -> Result<()> {
    for both in [true, false] {
        let net = Net::new();
        let make = |listens| {
            let features = if listens { Features::empty() } else { Features::PAUSE };
            let paced = RateConfig { foreign_cnp: false, ..algorithm(PAPER) };
            let rate = if listens { paced } else { RateConfig::default() };
            let partner = PartnerSetup { features, ..PartnerSetup::default() };
            net.device_with(&DeviceSetup { partner, rate, ..DeviceSetup::default() })
        };
        // A peer that supports only pauses is greeted, and states this.
        let (a, b) = (make(both)?, make(true)?);
        b.add_fault("rx data mark ce")?;
        let log = Log::of(&b);
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 18)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        let [_, sent, ..] = notifications(&b);
        assert_eq!((sent > 0, notifications(&a)), (both, [0, 0, sent, 0]));
        left.qp.read(2, from.all(), to.remote(0))?;
        left.wait()?;
        let responses = log.sent(|s| s.opcode == Opcode::RcReadResponseMiddle);
        let tos = if both { 2 } else { 0 };
        assert!(!responses.is_empty() && responses.iter().all(|s| s.tos == tos), "told by now: {both}");
    }
    Ok(())
}
