use super::*;
use crate::{Mtu, RcEnd, WcStatus};
use std::sync::atomic::{AtomicBool, Ordering};

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The time that a WRITE takes, from the post to the completion.
fn round_trip(net: &Net, from: &Device, to: &Device) -> Duration {
    let (left, right) = RcEnd::pair(from, to).expect("connected");
    let source = left.register(b"hello").expect("memory");
    let target = right.register_remote(5).expect("memory");
    let before = net.elapsed();
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    net.elapsed() - before
}

#[test]
fn a_latency_of_its_own_holds_towards_that_device_only() {
    let net = Net::new();
    let [a, b, c] = [(); 3].map(|()| net.device());
    assert_eq!(round_trip(&net, &a, &b), micros(2));
    net.set_latency_of(&b, micros(10));
    assert_eq!(round_trip(&net, &a, &b), micros(11), "there 10, back 1");
    assert_eq!(round_trip(&net, &b, &a), micros(11));
    assert_eq!(round_trip(&net, &a, &c), micros(2), "others are not concerned");
    net.set_latency(micros(3));
    assert_eq!(round_trip(&net, &a, &b), micros(13), "its own stays");
    assert_eq!(round_trip(&net, &a, &c), micros(6));
}

#[test]
fn a_device_of_another_network_has_no_latency_here() {
    let (net, other) = (Net::new(), Net::new());
    let (a, b) = (net.device(), net.device());
    let strange = other.device();
    assert_eq!(strange.address(), a.address());
    net.set_latency_of(&strange, micros(10));
    assert_eq!(round_trip(&net, &b, &a), micros(2));
}

/// What a step costs must not depend on how many devices there are: only those are looked at that have a reason.
#[test]
fn idle_devices_are_not_looked_at() {
    let looks = |idle: usize| {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let (left, right) = RcEnd::pair(&a, &b).expect("connected");
        let others: Vec<Device> = (0..idle).map(|_| net.device()).collect();
        let source = left.register(&[7; 1 << 16]).expect("memory");
        let target = right.register_remote(1 << 16).expect("memory");
        net.run_for(micros(10));
        let before = net.world.sites().looks;
        for wr_id in 0..10 {
            left.qp.write(wr_id, source.all(), target.remote(0)).expect("posted");
            assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
        }
        assert_eq!(others.len(), idle);
        net.world.sites().looks - before
    };
    let alone = looks(0);
    assert!(alone >= 20, "each device, for each message: {alone}");
    assert_eq!(looks(300), alone);
}

#[test]
fn addresses_of_devices_that_are_gone_are_not_given_again() {
    let net = Net::new();
    let (a, b, c) = (net.device(), net.device(), net.device());
    let taken = [a.address(), c.address()];
    drop(b);
    net.run_for(micros(1));
    let d = net.device();
    assert!(!taken.contains(&d.address()), "{} is somebody's", d.address());
    assert_eq!(round_trip(&net, &c, &d), micros(2));
}

#[test]
fn timers_of_a_device_that_is_gone_end_with_it() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b).expect("connected");
    let source = left.register(b"hello").expect("memory");
    let target = right.register_remote(5).expect("memory");
    drop(right);
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    net.run_for(micros(100));
    assert!(net.step(), "a retransmission is to come");
    drop((left, source, a));
    assert!(net.run_until_idle(micros(100)), "nobody repeats any more");
}

/// A program's threads post while another moves time on: whichever of them has the engine, nothing is left behind.
#[test]
fn work_of_other_threads_is_seen() {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let options = crate::ConnectOptions { mtu: Some(Mtu::B256), ..Default::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options).expect("connected");
    let source = left.register(&[7; 600]).expect("memory");
    let target = right.register_remote(600).expect("memory");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                net.run_for(micros(1));
            }
        });
        for wr_id in 0..2000 {
            left.qp.write(wr_id, source.all(), target.remote(0)).expect("posted");
            let wc = loop {
                if let Some(wc) = left.cq().poll_one() {
                    break wc;
                }
            };
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(left.qp.counters().retransmitted_pkts, 0, "nothing lay around until a timeout");
}
