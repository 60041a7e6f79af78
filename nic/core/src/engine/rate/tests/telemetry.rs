//! Telemetry between two devices with emulated ports, and what strangers make of it.

use super::*;
use crate::WcStatus;
use crate::engine::DropReason;
use qp::wire::{Headers, IpHeader, icrc, telemetry};
use qp::{PKey, Psn};

const LINK: &str = "ethernet:rate=10Gb/s";

/// A device with HPCC, or another algorithm, behind a port of 10 Gb/s.
fn hpcc(net: &Net, name: &str, cc: &str, is_foreign: bool) -> Result<Device> {
    let setup = DeviceSetup {
        name: Some(name.to_owned()),
        link: LINK.parse().expect("a link"),
        cc: cc.parse().expect("an algorithm"),
        partner: PartnerSetup { is_foreign, ..PartnerSetup::default() },
        ..DeviceSetup::default()
    };
    net.device_with(&setup)
}

/// Writes from `a` to `b` one after another, with what is to happen between them.
fn write(a: &Device, b: &Device, messages: u64, between: &mut dyn FnMut(&QueuePair)) -> Result<Rate> {
    let (left, right) = RcEnd::pair(a, b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    for id in 0..messages {
        left.qp.write(id, from.all(), to.remote(0))?;
        between(&left.qp);
        assert_eq!(left.wait()?.status, WcStatus::Success);
    }
    Ok(left.qp.rate().expect("it has sent"))
}

#[test]
fn telemetry_returns_before_its_acknowledgement() -> Result<()> {
    let net = Net::new();
    let (a, b) = (hpcc(&net, "a", "hpcc:rtt=20", false)?, hpcc(&net, "b", "hpcc:rtt=20", false)?);
    let log = Log::of(&b);
    write(&a, &b, 40, &mut |_| ())?;
    let (sent, taken) = (counters(&b).tx_telemetry, counters(&a).rx_telemetry);
    assert!(sent > 100, "{sent}");
    assert_eq!((sent, counters(&a).tx_telemetry, counters(&a).dropped_total()), (taken, 0, 0));
    let answers = log.sent(|s| matches!(s.opcode, Opcode::RnicTelemetry | Opcode::RcAcknowledge));
    let psn = |seen: &Seen| Packet::parse(&seen.bytes).expect("it was sent").psn();
    let mut returned = 0;
    for pair in answers.windows(2) {
        if pair[0].opcode == Opcode::RnicTelemetry {
            let packet = Packet::parse(&pair[0].bytes).expect("it was sent");
            assert_eq!((pair[1].opcode, psn(&pair[1])), (Opcode::RcAcknowledge, packet.psn()));
            assert_eq!(packet.telemetry().map(|words| words.len()), Some(1), "one port is on the way");
            returned += 1;
        }
    }
    assert_eq!(returned, sent);
    Ok(())
}

/// Two senders into one port: with telemetry the queue stays short, without it their windows wait there.
#[test]
fn the_queue_of_an_emulated_port_stays_short() -> Result<()> {
    let peak = |receiver: &str| -> Result<u64> {
        let net = Net::new();
        let b = hpcc(&net, "b", receiver, false)?;
        let mut ends = Vec::new();
        for name in ["a", "c"] {
            let a = hpcc(&net, name, "hpcc:rtt=50", false)?;
            let (left, right) = RcEnd::pair(&a, &b)?;
            let (from, to) = memory(&left, &right, 1 << 20)?;
            for id in 0..16 {
                left.qp.write(id, from.all(), to.remote(0))?;
            }
            ends.push((a, left, right, from, to));
        }
        net.run_for(Duration::from_millis(5));
        let samples = (0..100).map(|_| {
            net.run_for(us(50));
            b.counters().link.expect("a port").queue_bytes
        });
        Ok(samples.max().expect("a hundred"))
    };
    let (with, without) = (peak("hpcc:rtt=50")?, peak("off")?);
    println!("{with} bytes with telemetry, {without} without");
    assert!(2 * with < without && without > 60_000, "{with} bytes with telemetry, {without} without");
    Ok(())
}

#[test]
fn only_partners_that_use_it_get_telemetry() -> Result<()> {
    for (receiver, is_foreign) in [("timely", false), ("off", false), ("hpcc:rtt=20", true)] {
        let net = Net::new();
        let (a, b) = (hpcc(&net, "a", "hpcc:rtt=20", false)?, hpcc(&net, "b", receiver, is_foreign)?);
        write(&a, &b, 10, &mut |_| ())?;
        let (sent, taken) = (counters(&b).tx_telemetry, counters(&a).rx_telemetry);
        assert_eq!((sent, taken), (0, 0), "{receiver}, foreign: {is_foreign}");
    }
    Ok(())
}

fn seal(arrival: &IpHeader, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; headers.wire_len()];
    headers.emit(&mut packet, payload.len());
    packet.extend(payload);
    packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
    packet
}

/// Telemetry of a port that is used three times over, in the name of `b`: what is wrong with it, and how that is counted.
#[test]
fn forged_telemetry_is_dropped_and_counted_by_its_reason() -> Result<()> {
    type Forge = fn(&mut IpHeader, &mut Headers, &mut Vec<u8>);
    let cases: [(Option<DropReason>, Forge); 9] = [
        (None, |_, _, _| ()),
        (Some(DropReason::BadToken), |_, _, said| said[0] ^= 1),
        (Some(DropReason::BadAddress), |from, _, _| from.src = IpAddr::from([10, 99, 0, 1])),
        (Some(DropReason::BadPkey), |_, headers, _| headers.pkey = PKey(0x8123)),
        (Some(DropReason::BadTelemetry), |_, _, said| said.truncate(12)),
        (Some(DropReason::BadTelemetry), |_, _, said| said[9] = 2),
        (Some(DropReason::BadTelemetry), |_, _, said| said[12] |= 0xe0),
        (Some(DropReason::Ghost), |_, headers, _| headers.psn = headers.psn.plus(1000)),
        (Some(DropReason::Ghost), |_, headers, _| headers.psn = headers.psn.plus((1 << 24) - 1000)),
    ];
    for (wanted, forge) in cases {
        let net = Net::new();
        let (a, b) = (hpcc(&net, "a", "hpcc:rtt=20", false)?, hpcc(&net, "b", "hpcc:rtt=20", false)?);
        let log = Log::of(&b);
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        left.wait()?;
        // From now on nothing is acknowledged.
        b.add_fault("tx drop")?;
        left.qp.write(2, from.all(), to.remote(0))?;
        net.run_for(us(5));
        let genuine = log.sent(|s| s.opcode == Opcode::RnicTelemetry).pop().expect("telemetry returned");
        let packet = Packet::parse(&genuine.bytes).expect("it was sent");
        let port = a.inner.port()?;
        let outstanding = port.with_datapath(|datapath| {
            let entry = datapath.engine.qps.iter().flatten().find(|entry| entry.qp.qpn() == left.qp.qpn());
            entry.map(|entry| (entry.qp.unacked_psn(), entry.qp.next_psn()))
        });
        let (unacked, next) = outstanding.expect("the queue pair");
        assert!(unacked.is_before(next), "something is outstanding");
        let mut arrival =
            IpHeader { src: b.address(), src_port: genuine.src_port, ..IpHeader::to(a.address()) };
        let mut headers = Headers::telemetry(left.qp.qpn(), unacked);
        let mut payload = [0; telemetry::MAX_LEN];
        let words = packet.telemetry().expect("telemetry");
        let len = telemetry::emit(packet.token(), words, &mut payload).expect("one hop");
        let mut said = payload[..len].to_vec();
        forge(&mut arrival, &mut headers, &mut said);
        let before = counters(&a);
        net.inject(&arrival, &seal(&arrival, &headers, &said));
        net.run_for(us(5));
        let after = counters(&a);
        let dropped =
            DropReason::ALL.iter().find(|why| after.dropped(**why) > before.dropped(**why)).copied();
        assert_eq!(dropped, wanted);
        assert_eq!(after.rx_telemetry - before.rx_telemetry, u64::from(wanted.is_none()), "{wanted:?}");
        b.clear_faults();
        left.wait()?;
    }
    Ok(())
}

#[test]
fn telemetry_of_strangers_is_dropped() -> Result<()> {
    let net = Net::new();
    let a = hpcc(&net, "a", "hpcc:rtt=20", false)?;
    let arrival =
        IpHeader { src: IpAddr::from([10, 99, 0, 1]), src_port: 0xc000, ..IpHeader::to(a.address()) };
    let mut payload = [0; telemetry::MAX_LEN];
    let len = telemetry::emit(7, [0].into_iter(), &mut payload).expect("one hop");
    net.inject(&arrival, &seal(&arrival, &Headers::telemetry(Qpn::new(5), Psn::new(0)), &payload[..len]));
    net.run_for(us(10));
    assert_eq!(counters(&a).dropped(DropReason::Stranger), 1);
    Ok(())
}
