//! Two ports that meet, in virtual time.

use super::{CREDIT_TIMES, CreditSetup, PartnerSetup};
use crate::engine::Engine;
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, Gather, Operation, RcEnd, Result, WcStatus};
use cc::Rate;
use cc::pfc::{Action, PauseFrame, Quanta, WatchdogConfig};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::{Counting, Features, Hello, Kind, SourcePorts, VERSION};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, icrc};
use qp::{Psn, QKey, Qpn};
use time::Duration;

/// Credits for `buffer` bytes of packets.
pub(in crate::engine) fn credits(buffer: u32) -> PartnerSetup {
    PartnerSetup {
        features: Features::CREDITS,
        credits: Some(CreditSetup {
            lanes: 1,
            sl2vl: [0; 16],
            buffer,
            block: 64,
            counting: Counting::PacketBytes,
            local_counting: Counting::PacketBytes,
            lag: 64,
            said: 0,
            reserve: 0,
            held_back: 0,
            newcomers: 0,
        }),
        rate: Rate::from_gbps(10),
        ..PartnerSetup::default()
    }
}

pub(super) fn device(net: &Net, partner: &PartnerSetup) -> Result<Device> {
    net.device_with(&DeviceSetup { partner: partner.clone(), ..DeviceSetup::default() })
}

pub(super) fn done(end: &RcEnd) -> Result<()> {
    assert_eq!(end.wait()?.status, WcStatus::Success);
    Ok(())
}

/// Writes `len` bytes from `a` to `b`, READs them back, and expects no loss.
pub(super) fn exchange(a: &Device, b: &Device, len: usize) -> Result<()> {
    // 4.3 s: if asks and grants are lost, a packet may wait for credit longer than the usual acknowledgement timeout of
    // 67 ms.
    let options = ConnectOptions { timeout: 20, ..ConnectOptions::default() };
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
        // A wait is announced only after 50 us (CREDIT_TIMES.ask); otherwise there would be 23.
        assert!(port.tx_flow_control <= 16, "{port:?}");
        assert_eq!(port.excessive_buffer_overrun_errors, 0);
        assert_eq!(port.dropped_total(), 0);
    }
    assert!(a.counters().port.credit_stalls > 0, "a buffer of 25 packets holds no message of 256");
    // Idle partners cost nothing: each returns what it was lent, and then there is nothing left to say.
    assert!(net.run_until_idle(Duration::from_secs(10)));
    Ok(())
}

/// A port without features asks no peer, answers questions, and has no partners.
#[test]
fn a_port_that_speaks_nothing_is_left_alone() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, net.device());
    exchange(&a, &b, 1 << 16)?;
    for device in [&a, &b] {
        assert_eq!(device.counters().port.partners_met, 0);
        assert_eq!(device.counters().port.tx_flow_control, 0);
    }
    assert_eq!((a.counters().port.foreign_peers, b.counters().port.foreign_peers), (1, 0));
    assert_eq!(b.counters().port.dropped_total(), 0);
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    exchange(&a, &b, 1 << 16)?;
    assert_eq!(a.counters().port.partners_met, 0);
    assert!(net.run_until_idle(Duration::from_secs(10)));
    Ok(())
}

/// Lost updates cost only time: later totals include them.
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

/// Credit returns as the reader takes packets from its buffer, and so the reader is never idle.
#[test]
fn a_slow_reader_returns_credit_as_it_reads() -> Result<()> {
    let net = Net::new();
    let rate = Rate::from_gbps(1);
    let setup = DeviceSetup {
        partner: credits(100_000),
        link: format!("ethernet:receiver_rate={rate}").parse().expect("a link"),
        ..DeviceSetup::default()
    };
    let (a, b) = (device(&net, &credits(100_000))?, net.device_with(&setup)?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let target = right.register_remote(1 << 21)?;
    let source = left.register(&vec![5; 1 << 21])?;
    left.qp.write(1, source.all(), target.remote(0))?;
    done(&left)?;
    let least = rate.time_for(1 << 21);
    assert!(
        net.elapsed() > least && net.elapsed() < least * 5 / 4,
        "{:?}, at least {least:?}",
        net.elapsed()
    );
    let counters = b.counters().port;
    assert_eq!((counters.excessive_buffer_overrun_errors, counters.dropped_total()), (0, 0));
    assert!(a.counters().port.credit_stalls > 10);
    Ok(())
}

/// Lost packets took credit: it returns with the sender's next count.
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

/// A partner that pauses us for longer than a port can be full is broken: the watchdog takes the configured action, and
/// obeys again when the storm is over.
#[test]
fn a_pause_without_end_is_a_storm() -> Result<()> {
    let run = |action| {
        let net = Net::new();
        let setup = PartnerSetup {
            features: Features::PAUSE,
            rate: Rate::from_gbps(10),
            watchdog: WatchdogConfig { action, ..WatchdogConfig::default() },
            ..PartnerSetup::default()
        };
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        exchange(&a, &b, 4096)?;
        let (left, right) =
            RcEnd::pair_with(&a, &b, &ConnectOptions { timeout: 22, ..ConnectOptions::default() })?;
        let target = right.register_remote(1 << 16)?;
        let source = left.register(&vec![7; 1 << 16])?;
        let port = b.inner.port().expect("no fork");
        let storm = |periods: u32, posts: bool| -> Result<()> {
            for n in 0..periods {
                // 65,535 quanta of 512 bits: 3.36 ms at 10 Gb/s.
                let frame = PauseFrame::Priorities([Some(Quanta(u16::MAX)); 8]);
                port.control(|engine| engine.send_pause(a.address(), &frame));
                if posts && n == 1 {
                    left.qp.write(9, source.all(), target.remote(0))?;
                }
                net.run_for(Duration::from_millis(3));
            }
            Ok(())
        };
        storm(100, true)?;
        let counters = || a.counters().port;
        assert_eq!(counters().pause_storms, 0, "300 ms are within the detection time");
        assert_eq!(right.qp.counters().rx_write_requests, 0, "{action:?}: it waits");
        storm(60, false)?;
        assert_eq!(counters().pause_storms, 1, "{action:?}");
        let arrived = right.qp.counters().rx_write_requests == 1;
        assert_eq!(arrived, action == Action::Forward, "{action:?}");
        assert_eq!(counters().pause_storm_dropped_pkts > 0, action == Action::Drop, "{action:?}");
        // After the restoration time pauses are obeyed again.
        net.run_for(Duration::from_secs(20));
        done(&left)?;
        let before = counters().pause_stalls;
        storm(2, true)?;
        assert!(counters().pause_stalls > before, "{action:?}");
        done(&left)
    };
    [Action::Drop, Action::Forward, Action::Alert].into_iter().try_for_each(run)
}

/// A port that does not know who pauses it does not obey. One of the two asks the other, so that it obeys the next pause;
/// then there is nothing left to ask.
#[test]
fn a_port_that_is_paused_by_one_that_it_does_not_know_gets_to_know_it() -> Result<()> {
    let net = Net::new();
    let setup =
        PartnerSetup { features: Features::PAUSE, rate: Rate::from_gbps(10), ..PartnerSetup::default() };
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    // The answer to the first question of `b` is lost. The question of `a` is answered, and what it says of itself
    // afterwards is lost. A rule does not count the packets that a rule before it has dropped.
    for n in [1, 2, 2, 2, 2] {
        a.add_fault(&format!("tx ud.send nth={n} drop"))?;
    }
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (source, target) = (left.register(&[7; 64])?, right.register_remote(64)?);
    left.qp.write(1, source.all(), target.remote(0))?;
    done(&left)?;
    net.run_for(Duration::from_secs(1));
    a.clear_faults();
    let met = || (a.counters().port.partners_met, b.counters().port.partners_met);
    net.run_for(Duration::from_secs(10));
    assert_eq!(met(), (1, 0));
    let port = a.inner.port().expect("no fork");
    let pause = || {
        let frame = PauseFrame::Priorities([Some(Quanta(100)); 8]);
        port.control(|engine| engine.send_pause(b.address(), &frame));
        net.run_for(Duration::from_millis(10));
    };
    pause();
    assert_eq!(met(), (1, 1));
    let before = b.counters().port.rx_pause;
    net.run_for(Duration::from_secs(1));
    a.add_fault("tx ud.send drop")?;
    pause();
    let port = b.counters().port;
    assert_eq!(port.rx_pause, before + 1);
    assert!(port.pauses.iter().all(|of| of.rx_pause == port.rx_pause), "each named all priorities: {port:?}");
    assert_eq!(a.faults()[0].hits, 0, "the partner knows this port by now");
    Ok(())
}

/// The program at an address was killed and started again: what its predecessor was lent is free at once.
#[test]
fn a_partner_that_restarts_does_not_wait_for_the_loan_of_its_predecessor() -> Result<()> {
    let net = Net::new();
    let setup = credits(30_000);
    let b = device(&net, &setup)?;
    let address = Some([10, 0, 7, 7].into());
    let start =
        || net.device_with(&DeviceSetup { partner: setup.clone(), address, ..DeviceSetup::default() });
    let first = start()?;
    exchange(&first, &b, 1 << 16)?;
    drop(first);
    let second = start()?;
    let before = net.elapsed();
    exchange(&second, &b, 1 << 12)?;
    let took = net.elapsed() - before;
    assert!(took < CREDIT_TIMES.lease / 2, "{took:?}");
    assert_eq!(b.counters().port.partners_met, 2);
    Ok(())
}

/// Hellos of a partner may carry a token or not: it is the same partner.
#[test]
fn a_hello_of_a_partner_without_its_token_changes_nothing() -> Result<()> {
    let net = Net::new();
    let setup = credits(100_000);
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    exchange(&a, &b, 1 << 16)?;
    let instance = b.inner.port.inspect(|engine| engine.partners.instance).expect("no fork");
    let proof =
        a.inner.port.inspect(|engine| engine.partners.tokens.of(b.address(), 0, instance)).expect("no fork");
    let token = || {
        let of_b = |engine: &Engine| Some(engine.peers.iter().find_map(|peer| peer.partner.as_ref())?.token);
        a.inner.port.inspect(of_b).flatten()
    };
    let before = token();
    let (arrival, packet) = forged(&b, &a, |hello| hello.proof = proof).expect("a device has a source port");
    net.inject(&arrival, &packet);
    net.run_for(Duration::from_millis(1));
    exchange(&a, &b, 1 << 16)?;
    let port = a.counters().port;
    assert_eq!((port.partners_met, port.dropped_total()), (1, 0));
    assert!(before.is_some_and(|token| token != 0) && token() == before);
    // One with another token says which is the right one from now on.
    let (arrival, packet) =
        forged(&b, &a, |hello| (hello.proof, hello.token) = (proof, 7)).expect("a device has a source port");
    net.inject(&arrival, &packet);
    net.run_for(Duration::from_millis(1));
    assert_eq!((token(), a.counters().port.partners_met), (Some(7), 1));
    Ok(())
}

/// A partner that restarts has lost its state, and counts as a new partner.
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
    let before = net.elapsed();
    left.qp.write(2, source.all(), remote)?;
    let wc = left.wait()?;
    assert_eq!(wc.status, WcStatus::RetryExcErr);
    // It waits once for credit, not a second time for an answer to the question who is there.
    let (took, gone) = (net.elapsed() - before, CREDIT_TIMES.gone);
    assert!((gone..2 * gone).contains(&took), "{took:?}");
    assert!(net.run_until_idle(Duration::from_secs(100)));
    Ok(())
}

/// A hello as the program at `of` would send it to `to`, except for what `change` modifies.
pub(super) fn forged(
    of: &Device,
    to: &Device,
    change: impl FnOnce(&mut Hello),
) -> Option<(IpHeader, Vec<u8>)> {
    let known = of
        .inner
        .port
        .inspect(|engine| (engine.config().source_ports.first().copied(), engine.partners.instance));
    let (src_port, instance) = known?;
    let src_port = src_port?;
    let (src, dst) = (of.address(), to.address());
    let arrival = IpHeader { src, dst, src_port, tos: 0, hop_limit: 64, flow_label: 0, ident: 0 };
    let mut hello = Hello {
        kind: Kind::Ask,
        transaction_id: 7,
        version: VERSION,
        slot: 0,
        lanes: 1,
        features: Features::CREDITS,
        instance,
        block: 64,
        counting: Counting::PacketBytes,
        ports: SourcePorts::new(&[src_port])?,
        token: 0,
        proof: 0,
    };
    change(&mut hello);
    let mut mad = [0; MAD_LEN];
    hello.emit(&mut mad);
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
    let mut packet = vec![0; headers.wire_len()];
    headers.emit(&mut packet, mad.len());
    packet.extend(mad);
    packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
    Some((arrival, packet))
}

/// A WRITE with immediate data has more headers than one without, and padding: it waits if the credit covers only the
/// length of its data.
#[test]
fn credit_is_for_a_packet_with_all_of_its_headers() -> Result<()> {
    let net = Net::new();
    // Two full packets, so that each of these is followed by a different remainder.
    let setup = credits(9000);
    let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
    exchange(&a, &b, 1 << 16)?;
    let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    let source = left.register(&[7; 1500])?;
    let target = right.register_remote(1500)?;
    for chunk in (1..=1500).collect::<Vec<_>>().chunks(16) {
        for len in chunk {
            right.qp.recv(0, Gather::Empty)?;
            let write = Operation::Write { remote: target.remote(0), imm: Some(1) };
            left.qp.post(*len as u64, write, source.slice(0..*len)?)?;
        }
        for _ in chunk {
            done(&left)?;
            done(&right)?;
        }
    }
    for device in [&a, &b] {
        let counters = device.counters();
        assert_eq!(counters.port.excessive_buffer_overrun_errors, 0);
        assert_eq!(counters.qp.retransmitted_pkts, 0);
    }
    let stalls = a.counters().port.credit_stalls;
    assert!(stalls > 20, "it waited {stalls} times only");
    Ok(())
}

/// False claims about a partner that a hello can make.
const LIES: [fn(&mut Hello); 5] = [
    |hello| hello.instance ^= 0xbad,
    |hello| hello.slot = 19,
    |hello| hello.features = Features::CNP,
    |hello| hello.block = 6,
    |hello| (hello.instance, hello.slot) = (7, 1),
];

/// Messages in the name of a partner, without a proof, change nothing.
#[test]
fn a_forged_hello_does_not_part_partners() -> Result<()> {
    for lie in LIES {
        let net = Net::new();
        let setup = credits(100_000);
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        exchange(&a, &b, 1 << 16)?;
        let (arrival, packet) = forged(&b, &a, lie).expect("a device has a source port");
        net.inject(&arrival, &packet);
        net.run_for(Duration::from_millis(1));
        let after = a.counters().port;
        assert_eq!((after.partners_met, after.dropped_total()), (1, 0));
        // The answer goes to the port that supposedly asked: it did not ask.
        assert!(b.counters().port.hellos_ignored <= 1);
        exchange(&a, &b, 1 << 16)?;
        assert_eq!(a.counters().port.partners_met, 1);
    }
    Ok(())
}

/// Messages in the name of a peer are not believed before the peer was met either.
#[test]
fn a_forged_hello_of_a_newcomer_makes_nobody_a_partner() -> Result<()> {
    for (at, lie) in LIES.into_iter().enumerate() {
        let net = Net::new();
        let setup = credits(100_000);
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        let (arrival, packet) = forged(&b, &a, lie).expect("a device has a source port");
        net.inject(&arrival, &packet);
        net.run_for(Duration::from_millis(1));
        assert_eq!(a.counters().port.partners_met, 0, "lie {at}");
        exchange(&a, &b, 1 << 16)?;
        assert_eq!(a.counters().port.partners_met, 1, "lie {at}");
    }
    Ok(())
}
