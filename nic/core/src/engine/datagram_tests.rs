//! Which datagrams leave in the same train.

use super::Departure;
use crate::error::Result;
use crate::{AddressVector, Device, Gather, Gid, Operation, QKey, QpInit, Qpn, QueuePair, SendFlags, SendWr};
use std::net::{IpAddr, Ipv4Addr};
use time::Duration;

fn queue_pair(device: &Device) -> Result<QueuePair> {
    let cq = device.create_cq(256)?;
    let qp = device.alloc_pd()?.create_qp(&QpInit::ud(&cq, &cq))?;
    qp.activate(QKey(1))?;
    Ok(qp)
}

fn way(last: u8) -> AddressVector {
    AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, last)), 0)
}

/// Posts datagrams of these sizes along these paths. Returns the trains in which they leave, except for the first
/// datagram, which leaves immediately.
fn trains(posts: &[(&AddressVector, usize)]) -> Result<Vec<Departure>> {
    let device = crate::sim::Net::new().device();
    let qp = queue_pair(&device)?;
    let pd = device.alloc_pd()?;
    for (way, len) in [(&way(99), 1)].iter().chain(posts) {
        let ah = pd.create_ah(way)?;
        let operation = Operation::Send { imm: None, invalidate: None };
        let data = Gather::Inline(vec![0; *len].into());
        let wr = SendWr::new(0, operation, data).flags(SendFlags::SIGNALED);
        qp.post_send(wr.to(ah.datagram(Qpn::new(9), QKey(1))))?;
    }
    let port = device.inner.port()?;
    let now = port.now();
    let mut buf = vec![0; 65_507];
    Ok(port.with_datapath(|datapath| {
        std::iter::from_fn(|| datapath.engine.poll_transmit(now, &mut buf, 64)).collect::<Vec<_>>()
    }))
}

fn shape(trains: &[Departure]) -> Vec<(IpAddr, u32, usize)> {
    trains.iter().map(|t| (t.ip.dst, t.packets, t.segment_size)).collect()
}

#[test]
fn messages_of_one_way_leave_in_one_train() -> Result<()> {
    let (a, b) = (way(1), way(2));
    // BTH, DETH and ICRC around 100 bytes.
    let size = 12 + 8 + 100 + 4;
    let one = trains(&[(&a, 100); 6])?;
    assert_eq!(shape(&one), [(a.dgid.ip(), 6, size)]);
    // Another address handle for the same path does not end a train; a shorter packet does.
    let two = trains(&[(&a, 100), (&a, 100), (&a, 40), (&a, 100), (&b, 100), (&b, 100)])?;
    assert_eq!(shape(&two), [(a.dgid.ip(), 3, size), (a.dgid.ip(), 1, size), (b.dgid.ip(), 2, size)]);
    Ok(())
}

#[test]
fn different_ways_take_different_trains() -> Result<()> {
    let (a, b) = (way(1), way(2));
    let marked = AddressVector { traffic_class: 0xb8, hop_limit: 3, ..a };
    let four = trains(&[(&a, 8), (&b, 8), (&a, 8), (&marked, 8)])?;
    let ways: Vec<_> = four.iter().map(|t| (t.ip.dst, t.ip.tos, t.ip.hop_limit, t.packets)).collect();
    let (a, b) = (a.dgid.ip(), b.dgid.ip());
    assert_eq!(ways, [(a, 0, 64, 1), (b, 0, 64, 1), (a, 0, 64, 1), (a, 0xb8, 3, 1)]);
    Ok(())
}

#[test]
fn over_ipv4_a_flow_label_only_chooses_the_port() -> Result<()> {
    let labelled = AddressVector { flow_label: 0xabcde, ..way(1) };
    assert_eq!(trains(&[(&labelled, 8)])?[0].ip.flow_label, 0);
    Ok(())
}

#[test]
fn a_burst_of_posts_leaves_in_full_trains_without_a_turn() -> Result<()> {
    let net = crate::sim::Net::new();
    let (device, other) = (net.device(), net.device());
    let qp = queue_pair(&device)?;
    let path = device.alloc_pd()?.create_ah(&AddressVector::new(other.gid(), 0))?;
    let post = |count: usize| -> Result<()> {
        for id in 0..count {
            let operation = Operation::Send { imm: None, invalidate: None };
            let wr = SendWr::new(id as u64, operation, Gather::Empty);
            qp.post_send(wr.to(path.datagram(Qpn::new(9), QKey(1))))?;
        }
        Ok(())
    };
    post(1)?;
    assert_eq!(device.counters().port.tx_packets, 1, "the first at once");
    post(14)?;
    assert_eq!(device.counters().port.tx_packets, 1, "the next wait for more");
    post(1)?;
    assert_eq!(device.counters().port.tx_packets, 16, "fifteen are enough");
    net.run_for(Duration::from_micros(50));
    post(1)?;
    assert_eq!(device.counters().port.tx_packets, 17, "after a pause at once again");
    Ok(())
}
