//! How priorities and virtual lanes share a port.
//!
//! Two senders, each as fast as the receiver's port, one in each of two classes: what each gets is what its class is set to.

use crate::world::{Sender, Setup, World};
use rnic::Mtu;
use rnic::cc::Rate;
use rnic::link::LinkConfig;
use std::time::Duration;

/// Two priorities, which are service levels 1 and 2 on InfiniBand.
const CLASSES: [u8; 2] = [1 << 5, 2 << 5];

/// What the second class got, where the first got 1, and how many packets were dropped.
fn second_to_first(link: &str) -> (f64, u64) {
    let link: LinkConfig = link.parse().expect("a link");
    let rate = Rate::from_gbps(5);
    let us = Duration::from_micros(1);
    let mut world = World::new(&Setup {
        link: LinkConfig { rate: Some(rate), ..link.clone() },
        mtu: Mtu::B4096,
        there: us * 5,
        back: us * 5,
        ..Setup::new(rate)
    });
    for traffic_class in CLASSES {
        let link = LinkConfig { rate: Some(rate), ..link.clone() };
        world.join(&Sender { link, traffic_class, message: 256 << 10 });
    }
    world.run_for(Duration::from_millis(20));
    let seen = world.watch_for(Duration::from_millis(40));
    let counted: u64 = [1, 2].iter().map(|p| world.received(&format!("rx_prio{p}_bytes"))).sum();
    let stats = world.receiver.link_stats().expect("a link");
    assert_eq!(counted, stats.dequeued_bytes - stats.priorities[0].bytes - stats.priorities[6].bytes);
    (seen.delivered[1] as f64 / seen.delivered[0] as f64, world.received("link_rx_dropped"))
}

#[test]
fn ets_gives_each_class_its_share() {
    // Pauses hold back what a class is not served, so that nothing is lost.
    let (equal, dropped) = second_to_first("tsa=strict,ets,ets,tc_bw=0,50,50,pfc=1,2");
    assert!((0.97..1.03).contains(&equal) && dropped == 0, "{equal}, {dropped} dropped");
    let (third, dropped) = second_to_first("tsa=strict,ets,ets,tc_bw=0,25,75,pfc=1,2");
    assert!((2.85..3.15).contains(&third) && dropped == 0, "{third}, {dropped} dropped");
}

#[test]
fn a_strict_class_leaves_nothing_to_those_below_it() {
    let (ratio, dropped) = second_to_first("tsa=strict,strict,strict,pfc=1,2");
    assert!(ratio > 100.0 && dropped == 0, "{ratio}, {dropped} dropped");
}

#[test]
fn pauses_act_on_one_class_alone() {
    let of = |pfc: &str| {
        let (_, dropped) = second_to_first(&format!("tsa=strict,ets,ets,tc_bw=0,50,50{pfc}"));
        dropped
    };
    assert!(of("") > 0 && of(",pfc=1") > 0 && of(",pfc=2") > 0, "the other class is lossy");
    assert_eq!(of(",pfc=1,2"), 0);
}

/// The buffer holds what is sent before the ports know of each other's credits, and all credit beside it.
#[test]
fn virtual_lanes_are_served_by_their_weights() {
    let of = |low: &str| {
        let (ratio, dropped) =
            second_to_first(&format!("ib-credits:vls=2,buffer=16MB,sl2vl=0,0,1,vlarb_low={low},vlarb_high="));
        assert_eq!(dropped, 0, "{low}");
        ratio
    };
    let equal = of("0:128,1:128");
    assert!((0.9..1.1).contains(&equal), "{equal}");
    let third = of("0:64,1:192");
    assert!((2.7..3.3).contains(&third), "{third}");
}
