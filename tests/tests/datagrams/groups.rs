//! Multicast groups in virtual time, and their bounds.

use rnic::engine::ResourceError;
use rnic::sim::Net;
use rnic::{AddressVector, Device, Error, Gid, QKey, QpInit, Qpn, RcEnd};
use rnic_tests::counter;
use rnic_tests::datagram::{QKEY, UdEnd};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

fn group(last: u16) -> Gid {
    let [high, low] = last.to_be_bytes();
    Gid::from(Ipv4Addr::new(239, 1, high, low))
}

fn settle(net: &Net) {
    assert!(net.run_until_idle(Duration::from_secs(1)), "the network comes to rest");
}

fn texts(end: &UdEnd) -> Vec<String> {
    end.drain().into_iter().map(|m| String::from_utf8(m.data).expect("text")).collect()
}

fn refusal(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Resource(error @ ResourceError::Multicast { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_attached_queue_pair_gets_each_datagram_once() {
    let net = Net::new();
    let devices: Vec<Device> = (0..3).map(|_| net.device()).collect();
    let ends: Vec<UdEnd> = devices.iter().map(UdEnd::new).collect();
    let second_of_0 = UdEnd::new(&devices[0]);
    for end in ends.iter().chain([&second_of_0]) {
        end.post(8);
    }
    for end in [&ends[0], &second_of_0, &ends[1]] {
        end.qp.attach_mcast(group(1)).expect("attached");
    }
    ends[2].send_to_group(1, b"from outside", group(1));
    settle(&net);
    // The sender is a member too.
    ends[0].send_to_group(2, b"from inside", group(1));
    settle(&net);
    for end in [&ends[0], &second_of_0, &ends[1]] {
        assert_eq!(texts(end), ["from outside", "from inside"]);
    }
    assert!(texts(&ends[2]).is_empty(), "it is in no group");
    assert_eq!(counter(&devices[0], "mcast_copies"), 4);
    assert_eq!(counter(&devices[1], "mcast_copies"), 2);
    assert_eq!(devices.iter().map(|d| d.counters().port.dropped_total()).sum::<u64>(), 0);
    // A queue pair that leaves receives no more; others on the same port continue.
    ends[0].qp.detach_mcast(group(1)).expect("detached");
    ends[1].qp.detach_mcast(group(1)).expect("detached");
    ends[2].send_to_group(3, b"later", group(1));
    settle(&net);
    assert_eq!(
        (texts(&ends[0]), texts(&second_of_0), texts(&ends[1])),
        (vec![], vec!["later".to_owned()], vec![])
    );
}

#[test]
fn members_hear_a_datagram_after_their_own_latencies() {
    let net = Net::new();
    let devices: Vec<Device> = (0..3).map(|_| net.device()).collect();
    let ends: Vec<UdEnd> = devices.iter().map(UdEnd::new).collect();
    for end in &ends {
        end.post(2);
        end.qp.attach_mcast(group(1)).expect("attached");
    }
    net.set_latency_of(&devices[2], Duration::from_micros(5));
    ends[0].send_to_group(1, b"news", group(1));
    let heard = || ends.iter().map(|end| texts(end).len()).collect::<Vec<_>>();
    net.run_for(Duration::from_micros(1));
    assert_eq!(heard(), [1, 1, 0], "the network's latency");
    net.run_for(Duration::from_nanos(3_999));
    assert_eq!(heard(), [0, 0, 0]);
    net.run_for(Duration::from_nanos(1));
    assert_eq!(heard(), [0, 0, 1], "its own");
    settle(&net);
    assert_eq!(heard(), [0, 0, 0], "each once");
}

#[test]
fn the_network_header_names_the_group() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(1);
    b.qp.attach_mcast(group(0x0203)).expect("attached");
    // Within the local network: for a group, a hop limit of 1 is taken literally.
    let way = AddressVector { hop_limit: 1, ..AddressVector::new(group(0x0203), 0) };
    a.send_along(1, b"x", &way, Qpn::MULTICAST, QKEY);
    let got = b.receive();
    assert_eq!((&got.grh[36..40], got.grh[28]), (&[239, 1, 2, 3][..], 1));
    let back = b.pd.create_ah_from_wc(&got.wc, &got.grh).expect("an address handle");
    assert_eq!(back.attr().dgid, a.device.gid(), "answers go to the sender alone");
}

#[test]
fn each_queue_pair_of_a_group_judges_for_itself() {
    let net = Net::new();
    let (sender, device) = (UdEnd::new(&net.device()), net.device());
    let (friend, stranger) = (UdEnd::new(&device), UdEnd::with_qkey(&device, QKey(5)));
    for end in [&friend, &stranger] {
        end.post(4);
        end.qp.attach_mcast(group(1)).expect("attached");
    }
    sender.send_to_group(1, b"x", group(1));
    settle(&net);
    assert_eq!((texts(&friend).len(), texts(&stranger).len()), (1, 0));
    assert_eq!((counter(&device, "mcast_copies"), counter(&device, "mcast_copies_refused")), (1, 1));
    assert_eq!(device.counters().port.dropped_total(), 0, "one took it");
    friend.qp.detach_mcast(group(1)).expect("detached");
    sender.send_to_group(2, b"x", group(1));
    settle(&net);
    assert_eq!(counter(&device, "dropped_bad_qkey"), 1, "nobody took it");
}

#[test]
fn groups_and_their_queue_pair_number_go_together() {
    let net = Net::new();
    let (sender, end) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    end.post(4);
    end.qp.attach_mcast(group(1)).expect("attached");
    // The queue pair number for groups, with the address of a host.
    sender.send_along(1, b"x", &UdEnd::way(&end.device), Qpn::MULTICAST, QKEY);
    settle(&net);
    assert_eq!(counter(&end.device, "dropped_no_group"), 1);
    // The address of a group, with the number of a queue pair.
    sender.send_along(2, b"x", &AddressVector::new(group(1), 0), end.qp.qpn(), QKEY);
    settle(&net);
    assert_eq!(counter(&end.device, "dropped_no_group"), 2);
    assert!(texts(&end).is_empty());
    sender.send_to_group(3, b"both", group(1));
    settle(&net);
    assert_eq!(texts(&end), ["both"]);
}

#[test]
fn attaching_has_rules() {
    let net = Net::new();
    let (device, peer) = (net.device(), net.device());
    let end = UdEnd::new(&device);
    assert!(refusal(end.qp.attach_mcast(device.gid())).contains("no multicast group"));
    let v6 = Gid::from("ff0e::1".parse::<Ipv6Addr>().expect("an address"));
    assert!(refusal(end.qp.attach_mcast(v6)).contains("IP family"));
    let (rc, _peer) = RcEnd::pair(&device, &peer).expect("a connection");
    assert!(refusal(rc.qp.attach_mcast(group(1))).contains("only UD"));
    assert!(refusal(end.qp.detach_mcast(group(1))).contains("not attached"));
    // Attaching twice has no further effect.
    end.qp.attach_mcast(group(1)).expect("attached");
    end.qp.attach_mcast(group(1)).expect("attached");
    end.qp.detach_mcast(group(1)).expect("detached");
    assert!(refusal(end.qp.detach_mcast(group(1))).contains("not attached"));
}

#[test]
fn an_attached_queue_pair_is_in_use_until_it_is_dropped() {
    let net = Net::new();
    let (sender, device) = (UdEnd::new(&net.device()), net.device());
    let cq = device.create_cq(4).expect("a completion queue");
    let pd = device.alloc_pd().expect("a domain");
    let create = || {
        let qp = pd.create_qp(&QpInit::ud(&cq, &cq)).expect("a queue pair");
        qp.activate(QKEY).expect("RTS");
        qp
    };
    let qp = create();
    for n in [1, 2] {
        qp.attach_mcast(group(n)).expect("attached");
    }
    let refused = qp.destroy().expect_err("in use");
    assert!(matches!(refused.error, Error::Resource(ResourceError::Busy { users: 2, .. })), "{refused}");
    let qp = refused.object;
    for n in [1, 2] {
        qp.detach_mcast(group(n)).expect("detached");
    }
    assert!(qp.destroy().is_ok());
    let qp = create();
    qp.attach_mcast(group(1)).expect("attached");
    drop(qp);
    sender.send_to_group(1, b"x", group(1));
    settle(&net);
    assert_eq!(device.counters().port.rx_packets, 0, "the port has left the group");
    // A new queue pair with the same number or slot does not inherit the attachments.
    let heir = create();
    assert!(refusal(heir.detach_mcast(group(1))).contains("not attached"));
}

#[test]
fn a_group_takes_as_many_queue_pairs_as_the_device_says() {
    let net = Net::new();
    let (sender, device) = (UdEnd::new(&net.device()), net.device());
    let most = device.attr().max_mcast_qp_attach;
    assert_eq!(most, 56);
    let cq = device.create_cq(64).expect("a completion queue");
    let pd = device.alloc_pd().expect("a domain");
    let qps: Vec<_> = (0..=most)
        .map(|_| {
            let qp = pd.create_qp(&QpInit::ud(&cq, &cq)).expect("a queue pair");
            qp.activate(QKEY).expect("RTS");
            qp
        })
        .collect();
    let (last, first) = qps.split_last().expect("57 queue pairs");
    for qp in first {
        qp.attach_mcast(group(1)).expect("room for 56");
    }
    let error = last.attach_mcast(group(1)).expect_err("one too many");
    assert!(matches!(error, Error::Resource(ResourceError::Exhausted { max: 56, .. })), "{error}");
    first[0].attach_mcast(group(1)).expect("again is no more than once");
    sender.send_to_group(1, b"x", group(1));
    settle(&net);
    // Without receives, each member refuses the packet, which is dropped as a whole for that reason.
    assert_eq!(counter(&device, "dropped_no_receive"), 1);
    first[7].detach_mcast(group(1)).expect("detached");
    last.attach_mcast(group(1)).expect("a place came free");
}

#[test]
fn a_device_takes_as_many_groups_as_it_says() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    let attr = end.device.attr();
    assert_eq!((attr.max_mcast_grp, attr.max_total_mcast_qp_attach), (8192, 8192 * 56));
    for n in 0..8192 {
        end.qp.attach_mcast(group(n)).expect("room for 8192");
    }
    let error = end.qp.attach_mcast(group(8192)).expect_err("one too many");
    assert!(matches!(error, Error::Resource(ResourceError::Exhausted { max: 8192, .. })), "{error}");
    let other = UdEnd::new(&end.device);
    other.qp.attach_mcast(group(8191)).expect("a group that is there already");
    end.qp.detach_mcast(group(0)).expect("detached");
    end.qp.attach_mcast(group(8192)).expect("a place came free");
    drop(end);
    other.qp.attach_mcast(group(9000)).expect("all places came free");
}
