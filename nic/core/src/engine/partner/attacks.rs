//! Attacks by strangers and forgers, in virtual time.

use super::PartnerSetup;
use super::tests::{credits, device, done, exchange, forged};
use crate::engine::DropReason;
use crate::engine::peers::Peer;
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, Qpn, RcEnd, Result, WcStatus};
use cc::Rate;
use cc::credits::CreditMessage;
use cc::vl::Vl;
use qp::Psn;
use qp::wire::mad::hello::{Features, Kind};
use qp::wire::{Headers, IpHeader, Opcode, PauseTimes, icrc};
use std::net::{IpAddr, Ipv4Addr};
use time::Duration;

fn seal(arrival: &IpHeader, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; headers.wire_len()];
    headers.emit(&mut packet, payload.len());
    packet.extend(payload);
    packet.resize(packet.len().next_multiple_of(4), 0);
    packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
    packet
}

/// The source of packets from `of`, as `to` sees it.
fn arrival_from(of: &Device, to: &Device) -> IpHeader {
    let (arrival, _) = forged(of, to, |_| {}).expect("a device has a source port");
    arrival
}

fn stranger(nth: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a63_0000 + nth))
}

/// Number of peers that a device remembers, and number of partners' UDP ports.
fn remembered(device: &Device) -> (usize, usize) {
    device
        .inner
        .port
        .inspect(|engine| (engine.peers.iter().count(), engine.partners.by_port.len()))
        .expect("open")
}

/// A question costs the sender more than the receiver: the receiver keeps no state, and replies with no more bytes than
/// it received.
#[test]
fn questions_of_strangers_cost_no_memory_and_no_bytes() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    let begin = net.elapsed();
    for nth in 0..20_000 {
        let (mut arrival, packet) =
            forged(&b, &a, |hello| (hello.transaction_id, hello.proof) = (nth.into(), nth.into()))
                .expect("a port");
        arrival.src = stranger(nth);
        let icrc_at = packet.len() - 4;
        let mut packet = packet;
        let icrc = icrc::compute(&arrival.flow(), arrival.ident, &packet[..icrc_at]);
        packet[icrc_at..].copy_from_slice(&icrc.to_le_bytes());
        net.inject(&arrival, &packet);
        net.run_for(Duration::from_micros(20));
    }
    let port = a.counters().port;
    assert_eq!((port.rx_packets, port.dropped_total(), port.partners_met), (20_000, 0, 0));
    assert!(port.tx_packets > 1000, "questions are answered: {port:?}");
    // 512 at once, and then 5000 a second.
    let allowed = 512.0 + 5000.0 * (net.elapsed() - begin).as_secs_f64();
    assert!(port.tx_packets as f64 <= allowed + 1.0, "{} answers, not {allowed}", port.tx_packets);
    assert_eq!(port.tx_packets + port.hellos_ignored, 20_000);
    assert!(port.tx_bytes <= port.rx_bytes, "{} bytes for {}", port.tx_bytes, port.rx_bytes);
    assert_eq!(remembered(&a), (0, 0));
    exchange(&a, &b, 1 << 16)
}

/// A quiet time is made up for by one burst, however long it was.
#[test]
fn answers_to_strangers_do_not_save_up() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    let answered = |count: u32| {
        let before = a.counters().port.tx_packets;
        for nth in 0..count {
            let (arrival, packet) =
                forged(&b, &a, |hello| hello.transaction_id = nth.into()).expect("a port");
            net.inject(&arrival, &packet);
        }
        // Less than the time of one answer.
        net.run_for(Duration::from_micros(100));
        a.counters().port.tx_packets - before
    };
    assert_eq!(answered(2000), 512);
    assert_eq!(answered(2000), 0, "no time has passed");
    net.run_for(Duration::from_secs(3600));
    assert_eq!(answered(2000), 512);
    Ok(())
}

/// Datagrams that show the sign provoke questions: one to each sender, and to 64 senders in 10 seconds.
#[test]
fn senders_of_datagrams_are_asked_who_they_are_a_few_at_a_time() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    let (pd, cq) = (a.alloc_pd()?, a.create_cq(4096)?);
    let ud = pd.create_qp(&crate::QpInit::ud(&cq, &cq))?;
    ud.activate(qp::QKey(5))?;
    let buffer = pd.register(1024, crate::Access::LOCAL_WRITE)?;
    let from_b = arrival_from(&b, &a);
    let questions = |from: std::ops::Range<u32>, times: u32, len: usize| -> Result<u64> {
        let before = a.counters().port.tx_packets;
        for nth in from.flat_map(|nth| (0..times).map(move |_| nth)) {
            ud.recv(1, buffer.all())?;
            let arrival = IpHeader { src: stranger(nth), ..from_b };
            let mut headers = Headers::new(Opcode::UdSendOnly, ud.qpn(), Psn::new(0));
            headers.deth = qp::wire::DethFields { qkey: qp::QKey(5), src_qpn: Qpn::new(2) };
            net.inject(&arrival, &seal(&arrival, &headers, &vec![0; len]));
            net.run_for(Duration::from_micros(10));
            assert_eq!(cq.poll_one().map(|wc| wc.status), Some(WcStatus::Success));
        }
        Ok(a.counters().port.tx_packets - before)
    };
    assert_eq!(questions(0..100, 1, 64)?, 0, "a question would be longer than the datagram");
    assert_eq!(questions(0..1, 100, 300)?, 1, "a sender is asked once");
    assert_eq!(questions(1..1000, 1, 300)?, 63);
    assert_eq!(questions(1000..1100, 1, 300)?, 0);
    net.run_for(Duration::from_secs(10));
    assert_eq!(questions(1000..2000, 1, 300)?, 64, "after a while others are asked");
    assert_eq!(remembered(&a), (0, 0));
    Ok(())
}

/// Whatever a stranger sends, it never gets more bytes back than it sent.
#[test]
fn no_answer_to_a_stranger_is_longer_than_its_packet() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let from_b = arrival_from(&b, &a);
    let update = CreditMessage {
        kind: cc::credits::Kind::Ask,
        vl: Vl::new(0).expect("lane 0"),
        want: 66,
        number: 1,
        echo: 0,
        count: 0,
        limit: 0,
    };
    let said: Vec<_> = [0; 8].into_iter().chain(update.encode()).collect();
    let mut all = 0;
    for slot in [0, 1, 9] {
        for src_port in [from_b.src_port, 4791] {
            let arrival = IpHeader { src: stranger(1), src_port, ..from_b };
            let send = |headers: &Headers, payload: &[u8]| {
                let (before, _) = (a.counters().port, net.run_for(Duration::from_millis(1)));
                let packet = seal(&arrival, headers, payload);
                net.inject(&arrival, &packet);
                net.run_for(Duration::from_secs(3));
                let after = a.counters().port;
                let (sent, received) = (after.tx_bytes - before.tx_bytes, after.rx_bytes - before.rx_bytes);
                assert!(sent <= received, "{sent} bytes for {received}: {headers:?}");
                sent
            };
            all += send(&Headers::flow_control(0, slot, 1), &said);
            all += send(&Headers::pause(0, slot, 1), &[0; 28]);
            all += send(&Headers::cnp(left.qp.qpn()), &[]);
            for len in [0, 64, 256, 1024] {
                all += send(&Headers::new(Opcode::RcWriteOnly, left.qp.qpn(), Psn::new(0)), &vec![0; len]);
                all += send(&Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0)), &vec![0; len]);
            }
        }
    }
    println!("{all} bytes to strangers");
    drop((left, right));
    Ok(())
}

/// The number of partners without connected queue pairs is bounded; long silent ones are replaced.
#[test]
fn partners_that_nothing_is_connected_to_are_bounded() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    let ask = |nth: u32| {
        let (mut arrival, _) = forged(&b, &a, |_| {}).expect("a port");
        arrival.src = stranger(nth);
        // As if it had heard the answer to an earlier question.
        let token = |slot: u8, instance: u64| {
            a.inner
                .port
                .inspect(|engine| engine.partners.tokens.of(stranger(nth), slot, instance))
                .expect("open")
        };
        let (_, packet) = forged(&b, &a, |hello| {
            (hello.instance, hello.token) = (nth.into(), 7);
            hello.proof = token(hello.slot, hello.instance);
        })
        .expect("a port");
        let mut packet = packet;
        let at = packet.len() - 4;
        let icrc = icrc::compute(&arrival.flow(), arrival.ident, &packet[..at]);
        packet[at..].copy_from_slice(&icrc.to_le_bytes());
        net.inject(&arrival, &packet);
        net.run_for(Duration::from_micros(5));
    };
    (0..2000).for_each(ask);
    let port = a.counters().port;
    assert_eq!((port.partners_met, port.partners_refused), (512, 1488));
    assert_eq!(remembered(&a), (512, 512));
    net.run_for(Duration::from_secs(3));
    (2000..2100).for_each(ask);
    assert_eq!(a.counters().port.partners_met, 612);
    assert_eq!(remembered(&a), (512, 512));
    // A connected queue pair always finds room.
    exchange(&a, &b, 1 << 16)
}

/// Pauses, credits and notifications in the name of a partner, without its token.
#[test]
fn forgers_off_the_path_do_not_speak_in_the_name_of_a_partner() -> Result<()> {
    let run = |forge: bool| -> Result<Duration> {
        let net = Net::new();
        let mut setup = credits(1 << 20);
        setup.features |= Features::PAUSE;
        let setup = DeviceSetup {
            partner: PartnerSetup { rate: Rate::from_gbps(10), ..setup },
            cc: "dcqcn:preset=laptop".parse().expect("an algorithm"),
            link: "ethernet:rate=10Gb/s".parse().expect("a link"),
            ..DeviceSetup::default()
        };
        let (a, b) = (net.device_with(&setup)?, net.device_with(&setup)?);
        exchange(&a, &b, 1 << 16)?;
        let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
        let source = left.register(&vec![7; 1 << 20])?;
        let target = right.register_remote(1 << 20)?;
        let arrival = arrival_from(&b, &a);
        let zero = CreditMessage {
            kind: cc::credits::Kind::Grant,
            vl: Vl::new(0).expect("lane 0"),
            want: 0,
            number: 1,
            echo: 0,
            count: 0,
            limit: 0,
        };
        let begin = net.elapsed();
        for wr_id in 0..32 {
            left.qp.write(wr_id, source.all(), target.remote(0))?;
            for token in 0..if forge { 20_u64 } else { 0 } {
                let said = |body: &[u8]| [&token.to_be_bytes()[..], body].concat();
                let pause = said(&PauseTimes([Some(u16::MAX); 8]).emit());
                let credits = said(&zero.encode());
                let cnp = Headers { token, ..Headers::cnp(left.qp.qpn()) };
                for (headers, payload) in [
                    (Headers::pause(0, 0, 7), &pause[..]),
                    (Headers::flow_control(0, 0, 7), &credits[..]),
                    (cnp, &[]),
                ] {
                    net.inject(&arrival, &seal(&arrival, &headers, payload));
                }
                net.run_for(Duration::from_micros(20));
            }
            done(&left)?;
        }
        let port = a.counters().port;
        assert_eq!(port.dropped(DropReason::BadToken) > 0, forge, "{port:?}");
        assert_eq!((port.rx_pause, port.rp_cnp_handled, port.partners_met), (0, 0, 1), "{port:?}");
        Ok(net.elapsed() - begin)
    };
    let (alone, forged) = (run(false)?, run(true)?);
    println!("{alone:?} alone, {forged:?} with a forger");
    assert!(forged < alone * 6 / 5, "{alone:?} alone, {forged:?} with a forger");
    Ok(())
}

/// A packet without credit shows that its sender is foreign, and opens the gate to those that wait for its answer. Before
/// they have their turn, a link message from its address makes it doubtful what is there, and it is asked again: once.
#[test]
fn a_peer_is_asked_once_when_it_is_doubted_before_those_that_waited_have_their_turn() -> Result<()> {
    let net = Net::new();
    let foreign = PartnerSetup { is_foreign: true, ..credits(100_000) };
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &foreign)?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (source, target) = (left.register(&[7; 64])?, right.register_remote(64)?);
    left.qp.write(1, source.all(), target.remote(0))?;
    net.run_for(Duration::from_millis(10));
    let before = a.counters().port;
    assert_eq!((before.greeting_stalls, before.tx_packets), (1, 1), "it waits for the answer to a question");
    // Both packets wait until the program runs again.
    net.preempt(&a, Duration::from_millis(1));
    let (back, here) = (right.register(&[9; 64])?, left.register_remote(64)?);
    right.qp.write(2, back.all(), here.remote(0))?;
    net.run_for(Duration::from_micros(100));
    let arrival = arrival_from(&b, &a);
    let said = [&5_u64.to_be_bytes()[..], &[0; CreditMessage::LEN]].concat();
    net.inject(&arrival, &seal(&arrival, &Headers::flow_control(0, 0, 5), &said));
    done(&left)?;
    done(&right)?;
    assert_eq!((target.to_vec()?, here.to_vec()?), (vec![7; 64], vec![9; 64]));
    net.run_for(Duration::from_secs(3));
    let port = a.counters().port;
    assert_eq!((port.foreign_peers, port.dropped(DropReason::Stranger)), (1, 1));
    // One question more, the WRITE, and an acknowledgement.
    assert_eq!(port.tx_packets, before.tx_packets + 3);
    Ok(())
}

/// Ports that have only proven their addresses request credit continually. What they are given is not taken from the
/// peers that a queue pair is connected to.
#[test]
fn two_hundred_strangers_that_ask_for_credit_take_little_of_it() -> Result<()> {
    let run = |strangers: usize| -> Result<Duration> {
        let net = Net::new();
        let setup = credits(200_000);
        let (a, b) = (device(&net, &setup)?, device(&net, &setup)?);
        let others = (0..strangers).map(|_| device(&net, &setup)).collect::<Result<Vec<_>>>()?;
        // Datagrams to a queue pair that does not exist: no queue pair of `b` is involved.
        let mut ends = Vec::new();
        for other in &others {
            let pd = other.alloc_pd()?;
            let cq = other.create_cq(64)?;
            let ud = pd.create_qp(&crate::QpInit::ud(&cq, &cq))?;
            let init = crate::QpAttr::to_init_datagram(1, 0, qp::QKey(5));
            for attr in
                [init, crate::QpAttr::to_state(crate::QpState::Rtr), crate::QpAttr::to_rts(Psn::new(0))]
            {
                ud.modify(&attr)?;
            }
            let ah = pd.create_ah(&qp::attr::AddressVector::new(b.address().into(), 0))?;
            let region = pd.register_bytes(&[7; 4096], crate::Access::LOCAL_WRITE)?;
            ends.push((ud, cq, ah, region));
        }
        let (left, right) = RcEnd::pair(&a, &b)?;
        let source = left.register(&vec![7; 1 << 20])?;
        let target = right.register_remote(1 << 20)?;
        let spam = || -> Result<()> {
            for (ud, cq, ah, region) in &ends {
                while cq.poll_one().is_some() {}
                let _ = ud.send_to(1, region.all(), ah, Qpn::new(0x4321), qp::QKey(5));
            }
            Ok(())
        };
        spam()?;
        net.run_for(Duration::from_millis(200));
        let begin = net.elapsed();
        for wr_id in 0..16 {
            left.qp.write(wr_id, source.all(), target.remote(0))?;
            spam()?;
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
        let port = b.counters().port;
        assert_eq!(port.excessive_buffer_overrun_errors, 0);
        if strangers > 0 {
            assert!(port.partners_met as usize > strangers, "{port:?}");
            let trusts =
                |peer: &&Peer| peer.is_connected() || peer.partner.as_ref().is_some_and(|p| p.is_trusted);
            let trusted = b.inner.port.inspect(|engine| engine.peers.iter().filter(trusts).count());
            assert_eq!(trusted, Some(1), "the one that a queue pair is connected to");
        }
        Ok(net.elapsed() - begin)
    };
    let (alone, beset) = (run(0)?, run(200)?);
    println!("{alone:?} alone, {beset:?} with 200 strangers");
    assert!(beset < alone * 6 / 5, "{alone:?} alone, {beset:?} with 200 strangers");
    Ok(())
}

/// A question in the name of a restarted partner is believed only once the partner's address has answered.
#[test]
fn only_the_port_that_was_asked_answers() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, &credits(100_000))?, device(&net, &credits(100_000))?);
    for transaction_id in 0..1000 {
        let (arrival, packet) = forged(&b, &a, |hello| {
            (hello.kind, hello.transaction_id) = (Kind::Answer, transaction_id);
        })
        .expect("a port");
        net.inject(&arrival, &packet);
    }
    net.run_for(Duration::from_millis(1));
    let port = a.counters().port;
    assert_eq!((port.hellos_ignored, port.partners_met, port.tx_packets), (1000, 0, 0));
    Ok(())
}
