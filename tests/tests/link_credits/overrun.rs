//! With credits, a stock socket buffer never overflows, however slow its reader and however many the senders.

use super::load::{Links, Load, Outcome, Service};
use rnic::cc::Rate;

/// Number of messages in a run: many times what the buffer holds (51 full packets, 512 of the smallest), or a
/// million.
fn messages(slower: u64) -> u64 {
    match std::env::var("RNIC_LONG") {
        Ok(long) if long == "1" => 1_000_000,
        // Slow receivers make everything take longer.
        _ if slower >= 10 => 2_000,
        _ => 6_000,
    }
}

fn check(load: &Load, slower: u64, rate: Rate, outcome: &Outcome) {
    let what = format!("{load:?} at 1/{slower}, {rate}: {outcome:?}");
    println!("{what}");
    assert_eq!((outcome.overrun, outcome.kernel_drops, outcome.dropped), (0, 0, 0), "{what}");
    assert_eq!((outcome.retransmitted, outcome.partners_lost), (0, 0), "{what}");
    assert_eq!((outcome.arrived, outcome.mismatches), (load.messages, 0), "{what}");
}

/// Runs a load against a receiver that reads at a fraction of `full`.
fn slowed(load: Load, full: Rate, slower: u64) {
    let rate = Rate::from_bits_per_second(full.bits_per_second() / slower);
    let load = Load { messages: messages(slower), ..load };
    let outcome = load.run(Links { credits: true, receiver_rate: Some(rate) });
    check(&load, slower, rate, &outcome);
    // A reliable connection may have to wait for acknowledgements instead.
    let waits = outcome.credit_stalls > 0 || load.service == Service::Rc;
    assert!(slower < 10 || waits, "nobody had to wait: {outcome:?}");
}

/// Nothing is lost, however slow the receiver; its full speed is what a single sender reaches.
fn nothing_is_lost(service: Service, senders: usize) {
    for len in [64, 4096] {
        let unbraked = |senders| {
            let load = Load { service, len, senders, messages: messages(1) };
            let outcome = load.run(Links { credits: true, receiver_rate: None });
            let rate = load.rate(outcome.took);
            check(&load, 1, rate, &outcome);
            rate
        };
        let full = unbraked(1);
        let load = Load { service, len, senders, messages: 0 };
        for slower in [2, 10, 100] {
            slowed(load, full, slower);
        }
        if senders == 64 {
            // So many do not reach that rate, so they hardly notice the half of it.
            let together = unbraked(senders);
            slowed(load, together, 2);
            slowed(load, together, 10);
        }
    }
}

#[test]
fn one_reliable_connection_overruns_no_slow_receiver() {
    nothing_is_lost(Service::Rc, 1);
}

#[test]
fn one_unreliable_connection_overruns_no_slow_receiver() {
    nothing_is_lost(Service::Uc, 1);
}

#[test]
fn one_sender_of_datagrams_overruns_no_slow_receiver() {
    nothing_is_lost(Service::Ud, 1);
}

/// The same with a few senders, without the slowest receiver.
#[test]
fn a_few_ports_overrun_no_slow_receiver() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        for senders in [4, 16] {
            for len in [64, 4096] {
                let load = Load { service, len, senders, messages: 2_000 };
                for rate in [None, Some(Rate::from_mbps(200))] {
                    let outcome = load.run(Links { credits: true, receiver_rate: rate });
                    check(&load, 1, rate.unwrap_or(Rate::from_gbps(100)), &outcome);
                }
            }
        }
    }
}

#[test]
fn reliable_connections_of_64_ports_overrun_no_slow_receiver() {
    nothing_is_lost(Service::Rc, 64);
}

#[test]
fn unreliable_connections_of_64_ports_overrun_no_slow_receiver() {
    nothing_is_lost(Service::Uc, 64);
}

#[test]
fn datagrams_of_64_ports_overrun_no_slow_receiver() {
    nothing_is_lost(Service::Ud, 64);
}

/// The same without credits.
#[test]
fn without_credits_a_slow_receiver_is_overrun() {
    for service in [Service::Uc, Service::Ud] {
        for (senders, len) in [(1, 64), (1, 4096), (64, 64), (64, 4096)] {
            let load = Load { service, len, senders, messages: messages(1) };
            let rate = Rate::from_mbps(if len == 64 { 2 } else { 100 });
            let outcome = load.run(Links { credits: false, receiver_rate: Some(rate) });
            println!("{load:?} without credits: {outcome:?}");
            assert!(outcome.overrun > 0 && outcome.kernel_drops > 0, "{load:?}: {outcome:?}");
            assert!(outcome.arrived < load.messages, "{load:?}: {outcome:?}");
        }
    }
}
/// The questions and asks of many ports must fit the buffer too, however long their answers take.
#[test]
fn messages_of_64_ports_overrun_no_receiver_of_1_mbps() {
    let load = Load { service: Service::Rc, len: 64, senders: 64, messages: 2_000 };
    for rate in [1, 2].map(Rate::from_mbps) {
        check(&load, 1, rate, &load.run(Links { credits: true, receiver_rate: Some(rate) }));
    }
}
