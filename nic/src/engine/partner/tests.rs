//! Two ports that find out about one another, in virtual time.

use super::{CreditSetup, PartnerSetup};
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, RcEnd, Result, WcStatus};
use cc::Rate;
use qp::wire::mad::hello::{Counting, Features};
use std::time::Duration;

/// Credits for `buffer` bytes of packets.
fn credits(buffer: u32) -> PartnerSetup {
    PartnerSetup {
        features: Features::CREDITS,
        credits: Some(CreditSetup {
            lanes: 1,
            sl2vl: [0; 16],
            buffer,
            block: 64,
            counting: Counting::PacketBytes,
            local_counting: Counting::PacketBytes,
            on_free: 64,
            said: 0,
            reserve: 0,
        }),
        rate: Rate::from_gbps(10),
        is_foreign: false,
    }
}

fn device(net: &Net, partner: &PartnerSetup) -> Result<Device> {
    net.device_with(&DeviceSetup { partner: partner.clone(), ..DeviceSetup::default() })
}

fn done(end: &RcEnd) -> Result<()> {
    assert_eq!(end.wait()?.status, WcStatus::Success);
    Ok(())
}

/// Writes `len` bytes from `a` to `b`, READs them back, and expects no loss.
fn exchange(a: &Device, b: &Device, len: usize) -> Result<()> {
    // 1 s: where updates get lost, a packet may wait for credit longer than the 67 ms in which it is usually answered.
    let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(a, b, &options)?;
    let bytes: Vec<_> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let source = left.register(&bytes)?;
    let target = right.register_remote(len)?;
    let back = left.register(&vec![0; len])?;
    left.qp.write(1, source.all(), target.remote(0))?;
    done(&left)?;
    assert_eq!(target.to_vec()?, bytes);
    left.qp.read(2, back.all(), target.remote(0))?;
    done(&left)?;
    assert_eq!(back.to_vec()?, bytes);
    for device in [a, b] {
        let counters: Vec<_> = device.counters().iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(device.counters().qp.retransmitted_pkts, 0, "{counters:?}");
    }
    Ok(())
}

#[test]
fn ports_that_speak_credits_find_out_and_use_them() -> Result<()> {
    let net = Net::new();
    let setup = credits(100_000);
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    exchange(&a, &b, 1 << 20)?;
    for device in [&a, &b] {
        let port = device.counters().port;
        assert_eq!((port.partners_met, port.partners_lost), (1, 0));
        assert!(port.tx_flow_control > 4 && port.rx_flow_control > 4, "{port:?}");
        assert_eq!(port.excessive_buffer_overrun_errors, 0);
        assert_eq!(port.dropped_total(), 0);
    }
    assert!(a.counters().port.credit_stalls > 0, "a buffer of 25 packets holds no message of 256");
    // Silence costs nothing: whoever is lent something gives it back, and then there is nothing left to say.
    assert!(net.run_until_idle(Duration::from_secs(10)));
    Ok(())
}

/// Whoever has nothing to agree on asks nobody, and answers who asks.
#[test]
fn a_port_that_speaks_nothing_is_left_alone() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, net.device());
    exchange(&a, &b, 1 << 16)?;
    assert_eq!(a.counters().port.partners_met, 1);
    assert_eq!(a.counters().port.tx_flow_control, 0);
    assert_eq!(b.counters().port.dropped_total(), 0);
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    exchange(&a, &b, 1 << 16)?;
    assert_eq!(a.counters().port.partners_met, 0);
    assert!(net.run_until_idle(Duration::from_secs(10)));
    Ok(())
}

/// Lost updates cost time, and nothing else: totals tell it all again.
#[test]
fn lost_flow_control_packets_heal() -> Result<()> {
    for seed in 0..20 {
        let net = Net::with_seed(seed);
        let setup = credits(50_000);
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        exchange(&a, &b, 1 << 14)?;
        for device in [&a, &b] {
            device.add_fault("tx flow_control drop p=0.3")?;
        }
        exchange(&a, &b, 1 << 19)?;
        let hits: u64 = a.faults().iter().chain(&b.faults()).map(|fault| fault.hits).sum();
        assert!(hits > 3, "seed {seed}");
        assert_eq!(a.counters().port.partners_lost, 0, "seed {seed}");
    }
    Ok(())
}

/// Packets that are lost took credit: it comes back with the sender's next count.
#[test]
fn credit_of_lost_packets_comes_back() -> Result<()> {
    let net = Net::new();
    let setup = credits(30_000);
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let target = right.register_remote(1 << 20)?;
    let source = left.register(&vec![5; 1 << 20])?;
    a.add_fault("tx data drop p=0.02")?;
    for wr_id in 0..4 {
        left.qp.write(wr_id, source.all(), target.remote(0))?;
        done(&left)?;
    }
    assert!(a.faults()[0].hits > 5);
    assert_eq!(b.counters().port.excessive_buffer_overrun_errors, 0);
    Ok(())
}

/// A partner that starts anew has forgotten everything, and is another.
#[test]
fn a_partner_that_is_gone_does_not_hold_anybody_up() -> Result<()> {
    let net = Net::new();
    let setup = credits(30_000);
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let target = right.register_remote(1 << 20)?;
    let source = left.register(&vec![5; 1 << 20])?;
    left.qp.write(1, source.all(), target.remote(0))?;
    done(&left)?;
    let remote = target.remote(0);
    drop((target, right));
    drop(b);
    left.qp.write(2, source.all(), remote)?;
    let wc = left.wait()?;
    assert_eq!(wc.status, WcStatus::RetryExcErr);
    assert!(net.run_until_idle(Duration::from_secs(100)));
    Ok(())
}
