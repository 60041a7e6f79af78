//! The scheduler, seen from queue pairs in virtual time.

mod same_host;

use super::FLIGHT_LIFE;
use crate::engine::partner::credits;
use crate::engine::peers::PACKET_OVERHEAD;
use crate::engine::{Engine, FlowState, PartnerSetup, RateConfig};
use crate::link::{Direction, FrameRef, Now, Observer};
use crate::queue::WorkQueue;
use crate::sim::{DeviceSetup, Net};
use crate::{
    Access, ConnectOptions, Device, MemoryRegion, QpAttr, QpInit, QpState, Qpn, QueuePair, RcEnd, Result,
    WcStatus,
};
use cc::{Algorithm, Charge, Rate};
use qp::wire::Packet;
use std::sync::{Arc, Mutex};
use time::Duration;

/// A packet that a device sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    to: Qpn,
    asks: bool,
    /// Its place in its train.
    place: u16,
    /// How many bytes the message has, if it says so.
    length: u32,
}

/// The requests, or the responses, that a device sent, in order.
#[derive(Clone, Default)]
struct Log {
    responses: bool,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Log {
    fn of(device: &Device) -> Self {
        Self::default().observes(device)
    }

    fn of_responses(device: &Device) -> Self {
        Self { responses: true, ..Self::default() }.observes(device)
    }

    fn observes(self, device: &Device) -> Self {
        device.observe(self.clone()).expect("ours");
        self
    }

    fn all(&self) -> Vec<Sent> {
        self.sent.lock().expect("no panic").clone()
    }

    /// The lengths of the trains.
    fn trains(&self) -> Vec<u16> {
        let sent = self.all();
        let ends = sent.iter().zip(sent.iter().skip(1).map(|next| next.place).chain([0]));
        ends.filter(|(_, next)| *next == 0).map(|(last, _)| last.place + 1).collect()
    }
}

impl Observer for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes).expect("a packet");
        if frame.direction == Direction::Tx
            && packet.info().is_request != self.responses
            && packet.dest_qpn().value() & 0xffff != Qpn::GSI.value()
        {
            let (place, length) = (frame.ip.ident, packet.reth().map_or(0, |reth| reth.length));
            let sent = Sent { to: packet.dest_qpn(), asks: packet.ack_req(), place, length };
            self.sent.lock().expect("no panic").push(sent);
        }
    }
}

/// A device whose window to each peer holds this many full packets that are sent one by one. More fit in trains.
fn with_window(net: &Net, packets: u32) -> Result<Device> {
    net.device_with(&DeviceSetup { peer_window: window(packets), ..DeviceSetup::default() })
}

fn window(packets: u32) -> Option<u32> {
    Some(packets * Charge::in_train(PACKET_OVERHEAD + 4096, 1))
}

/// Every queue pair has this rate.
fn fixed(rate: Rate) -> RateConfig {
    let policy = "off".parse::<Algorithm>().and_then(|a| a.at(rate)).expect("an algorithm");
    RateConfig { policy: Some(policy), ..RateConfig::default() }
}

/// A pair that never sends anything again.
fn patient(a: &Device, b: &Device) -> Result<(RcEnd, RcEnd)> {
    RcEnd::pair_with(a, b, &ConnectOptions { timeout: 0, ..ConnectOptions::default() })
}

/// Posts a WRITE of this many bytes; returns its memory.
fn write((from, to): &(RcEnd, RcEnd), len: usize) -> Result<[MemoryRegion; 2]> {
    let (source, target) = (from.register(&vec![7; len])?, to.register_remote(len)?);
    from.qp.write(1, source.all(), target.remote(0))?;
    Ok([source, target])
}

fn done(end: &RcEnd) -> Result<()> {
    assert_eq!(end.wait()?.status, WcStatus::Success);
    Ok(())
}

#[test]
fn no_more_is_in_flight_than_the_window_holds() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_millis(1));
    let (a, b) = (with_window(&net, 8)?, net.device());
    let pair = RcEnd::pair(&a, &b)?;
    let log = Log::of(&a);
    let _memory_1 = write(&pair, 1 << 20)?;
    net.run_for(Duration::from_micros(1900));
    assert!((8..16).contains(&log.all().len()), "{} before the first acknowledgement", log.all().len());
    done(&pair.0)?;
    assert_eq!(log.all().len(), 256);
    Ok(())
}

/// Whether sends of each queue pair may wait for the next turn.
fn may_wait(device: &Device) -> Vec<bool> {
    let each = |engine: &Engine| {
        engine.qps.iter().flatten().map(|entry| entry.shared.may_wait(WorkQueue::Send)).collect()
    };
    device.inner.port.inspect(each).unwrap_or_default()
}

/// A thread that posts leaves a send to the next turn only behind what that turn has to wait for.
#[test]
fn threads_that_post_learn_whether_packets_are_in_flight() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let ends = patient(&a, &b)?;
    assert_eq!(may_wait(&a), [false]);
    let _regions = write(&ends, 4096)?;
    assert_eq!(may_wait(&a), [true]);
    done(&ends.0)?;
    assert_eq!(may_wait(&a), [false]);
    Ok(())
}

#[test]
fn threads_that_post_learn_whether_requests_wait_at_a_gate() -> Result<()> {
    let net = Net::new();
    let (a, b) = (with_window(&net, 1)?, net.device());
    let (holds, waits) = (patient(&a, &b)?, patient(&a, &b)?);
    let _memory_1 = write(&holds, 4096)?;
    let _memory_2 = write(&waits, 4096)?;
    assert_eq!(may_wait(&a), [true, true], "the second one has nothing in flight");
    done(&holds.0)?;
    assert_eq!(may_wait(&a), [false, true], "it has now");
    done(&waits.0)?;
    assert_eq!(may_wait(&a), [false, false]);
    Ok(())
}

#[test]
fn answers_need_no_room_where_requests_wait() -> Result<()> {
    let net = Net::new();
    let (a, b) = (with_window(&net, 1)?, net.device());
    let (holds, waits) = (patient(&a, &b)?, patient(&a, &b)?);
    a.add_fault("tx data drop once")?;
    let _memory_2 = write(&holds, 4096)?;
    net.run_for(Duration::from_micros(50));
    let _memory_3 = write(&waits, 4096)?;
    net.run_for(Duration::from_micros(50));
    assert_eq!(a.counters().port.window_stalls, 1);
    // The peer READs from the queue pair that waits.
    let (target, source) = (waits.1.register(&[0; 64])?, waits.0.register_remote(64)?);
    waits.1.qp.read(2, target.all(), source.remote(0))?;
    let before = net.elapsed();
    done(&waits.1)?;
    assert!(net.elapsed() - before < Duration::from_millis(1), "{:?}", net.elapsed() - before);
    assert_eq!(waits.0.cq().poll_one(), None, "it still waits");
    Ok(())
}

/// A queue pair that has the window for itself asks for an acknowledgement at its end only. If others take the rest of the
/// window meanwhile, it must ask beyond the window, or it would wait for room that its own packets take.
#[test]
fn whoever_has_not_asked_for_an_acknowledgement_asks_in_a_full_window() -> Result<()> {
    let net = Net::new();
    let setup =
        DeviceSetup { rate: fixed(Rate::from_gbps(1)), peer_window: window(3), ..DeviceSetup::default() };
    let (a, b) = (net.device_with(&setup)?, net.device());
    let (long, others) = (patient(&a, &b)?, [patient(&a, &b)?, patient(&a, &b)?]);
    // The packets of the others stay in flight. With a rule for its packets, a device sends them one by one.
    for other in &others {
        a.add_fault(&format!("tx data qp={} drop", other.1.qp.qpn()))?;
    }
    let log = Log::of(&a);
    let _long = write(&long, 1 << 16)?;
    let _others = [write(&others[0], 1 << 12)?, write(&others[1], 1 << 12)?];
    assert_eq!(log.all().iter().filter(|sent| sent.asks).count(), 2, "those of the others");
    done(&long.0)?;
    assert!(net.elapsed() < FLIGHT_LIFE / 2, "{:?}", net.elapsed());
    Ok(())
}

/// The ends of a response leave in trains of their own, and while the requester waits for the last one, the responder does
/// nothing.
#[test]
fn reads_are_requested_in_whole_pieces_while_others_are_answered() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_micros(20));
    let rate = Rate::from_gbps(10);
    let (a, b) =
        (net.device(), net.device_with(&DeviceSetup { rate: fixed(rate), ..DeviceSetup::default() })?);
    let (left, right) = patient(&a, &b)?;
    let log = Log::of(&a);
    let (target, source) = (left.register(&[0; 1 << 20])?, right.register_remote(1 << 20)?);
    for number in 0..2 {
        left.qp.read(number, target.all(), source.remote(0))?;
    }
    done(&left)?;
    done(&left)?;
    let lengths: Vec<_> = log.all().iter().map(|sent| sent.length).collect();
    assert_eq!(lengths, [128 << 10; 16], "two READs of 1 MiB");
    // 84 bytes of Ethernet, IPv4, UDP, BTH and ICRC for each packet of 4096.
    let least = rate.time_for(512 * (4096 + 84));
    assert!(net.elapsed() < least + least / 20, "{:?}, not {least:?}", net.elapsed());
    Ok(())
}

/// What has the window for itself needs no acknowledgement of its first trains to go on.
#[test]
fn whoever_is_alone_asks_in_time_and_not_at_the_end_of_each_train() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_micros(100));
    let (a, b) = (with_window(&net, 64)?, net.device());
    let pair = RcEnd::pair(&a, &b)?;
    let log = Log::of(&a);
    let _memory = write(&pair, 40 * 4096)?;
    let asks: Vec<_> = log.all().iter().map(|sent| sent.asks).collect();
    assert_eq!(asks.len(), 40);
    assert!(asks[..30].iter().all(|asks| !asks) && asks[39], "{asks:?}");
    done(&pair.0)
}

/// A system call for a few packets costs as much as one for a full train.
#[test]
fn whoever_begins_does_not_send_a_short_train_into_what_is_left_of_the_window() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_millis(1));
    let (a, b) = (with_window(&net, 10)?, net.device());
    let (first, second) = (RcEnd::pair(&a, &b)?, RcEnd::pair(&a, &b)?);
    let log = Log::of(&a);
    let of = |end: &RcEnd| log.all().iter().filter(|sent| sent.to == end.qp.qpn()).count();
    let _first = write(&first, 12 * 4096)?;
    let _second = write(&second, 40 * 4096)?;
    assert_eq!((of(&first.1), of(&second.1)), (12, 0));
    done(&first.0)?;
    done(&second.0)?;
    assert_eq!(of(&second.1), 40);
    Ok(())
}

/// While several queue pairs share a window, each asks for an acknowledgement at the end of its train.
#[test]
fn queue_pairs_that_share_a_window_take_turns_and_ask_at_the_end_of_each() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_micros(100));
    let (a, b) = (with_window(&net, 40)?, net.device());
    let (one, two) = (RcEnd::pair(&a, &b)?, RcEnd::pair(&a, &b)?);
    let log = Log::of(&a);
    let _memory_6 = write(&one, 1 << 20)?;
    let _memory_7 = write(&two, 1 << 20)?;
    done(&one.0)?;
    done(&two.0)?;
    let sent = log.all();
    let both = sent.iter().position(|s| s.to == two.1.qp.qpn()).expect("the second sends");
    let end = sent.iter().rposition(|s| s.to == one.1.qp.qpn()).expect("the first ends");
    let shared = &sent[both..end];
    let ends: Vec<bool> = shared.windows(2).filter(|w| w[0].to != w[1].to).map(|w| w[0].asks).collect();
    // The first began when it was alone.
    assert!(ends.len() > 10 && ends[1..].iter().all(|asks| *asks), "{ends:?}");
    Ok(())
}

/// What is left of a credit may suffice for a short packet, but not for the long one that waits.
#[test]
fn no_newcomer_overtakes_a_packet_that_waits_for_credit() -> Result<()> {
    for size in (0..4096).step_by(512) {
        let net = Net::new();
        let slow = PartnerSetup { rate: Rate::from_mbps(100), ..credits(30_000) };
        let setup = |partner: PartnerSetup| DeviceSetup { partner, ..DeviceSetup::default() };
        let (a, b) = (net.device_with(&setup(credits(30_000)))?, net.device_with(&setup(slow))?);
        net.set_latency(Duration::from_millis(1));
        let pairs = [RcEnd::pair(&a, &b)?, RcEnd::pair(&a, &b)?];
        let _memory_8 = write(&pairs[0], 64)?;
        done(&pairs[0].0)?;
        let log = Log::of(&a);
        let _memory_9 = write(&pairs[0], 40_000 + size)?;
        while a.counters().port.credit_stalls == 0 {
            net.run_for(Duration::from_micros(1));
        }
        let before = log.all().len();
        let _memory_10 = write(&pairs[1], 8)?;
        done(&pairs[1].0)?;
        let next = log.all()[before];
        assert_eq!(next.to, pairs[0].1.qp.qpn(), "the one that waited goes first, with {size} bytes more");
    }
    Ok(())
}

#[test]
fn no_newcomer_overtakes_a_datagram_that_waits_for_its_receiver() -> Result<()> {
    // Room comes back with time: later newcomers find more.
    for delay in (0..1000).step_by(100).map(Duration::from_micros) {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let (near_pd, near_cq, far_pd, far_cq) =
            (a.alloc_pd()?, a.create_cq(64)?, b.alloc_pd()?, b.create_cq(64)?);
        let pair = || -> Result<(QueuePair, QueuePair)> {
            let near = near_pd.create_qp(&QpInit::uc(&near_cq, &near_cq))?;
            let far = far_pd.create_qp(&QpInit::uc(&far_cq, &far_cq))?;
            near.connect(&far.address(), &ConnectOptions::default())?;
            far.connect(&near.address(), &ConnectOptions::default())?;
            Ok((near, far))
        };
        let (first, second) = (pair()?, pair()?);
        let memory = near_pd.register(1 << 20, Access::LOCAL_WRITE)?;
        let target = far_pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let log = Log::of(&a);
        first.0.write(1, memory.all(), target.remote(0))?;
        while a.counters().port.pace_stalls == 0 {
            net.run_for(Duration::from_nanos(100));
        }
        net.run_for(delay);
        let before = log.all().len();
        second.0.write(2, memory.slice(0..8)?, target.remote(0))?;
        while log.all().len() == before {
            net.run_for(Duration::from_nanos(100));
        }
        assert_eq!(log.all()[before].to, first.1.qpn(), "after {delay:?}");
    }
    Ok(())
}

/// A sender that does not get to run for a while makes up for it, within the limits of its flow.
#[test]
fn a_sender_whose_turns_come_late_keeps_its_rate() -> Result<()> {
    let rate = Rate::from_gbps(1);
    let net = Net::new();
    let (a, b) =
        (net.device_with(&DeviceSetup { rate: fixed(rate), ..DeviceSetup::default() })?, net.device());
    let pair = RcEnd::pair(&a, &b)?;
    let _memory_11 = write(&pair, 1 << 20)?;
    let mut late = 0;
    while pair.0.cq().is_empty() {
        net.preempt(&a, Duration::from_micros(50));
        net.run_for(Duration::from_micros(100));
        late += 1;
    }
    let sent = a.inner.port.inspect(|e| e.flow(pair.0.qp.qpn(), a.inner.port.now())).flatten();
    let FlowState { sent_bytes, .. } = sent.expect("a flow");
    let due = rate.time_for(sent_bytes);
    assert!(net.elapsed() < due + due / 20, "{:?}, late {late} times, instead of {due:?}", net.elapsed());
    Ok(())
}

/// A queue pair without a timeout holds the window with a lost packet. The time after which that no longer counts passes
/// once while nobody waits, and has to be watched for again when somebody does.
#[test]
fn a_window_is_watched_again_after_nobody_waited() -> Result<()> {
    let net = Net::new();
    let setup = DeviceSetup { peer_window: Some(1), ..DeviceSetup::default() };
    let (a, b) = (net.device_with(&setup)?, net.device());
    let pair = || RcEnd::pair_with(&a, &b, &ConnectOptions { timeout: 0, ..ConnectOptions::default() });
    let lost = |end: &(RcEnd, RcEnd)| -> Result<()> {
        a.add_fault("tx data drop once")?;
        let (source, target) = (end.0.register(&[7; 64])?, end.1.register_remote(64)?);
        end.0.qp.write(1, source.all(), target.remote(0))?;
        Ok(())
    };
    let holds = pair()?;
    lost(&holds)?;
    net.run_for(FLIGHT_LIFE / 2);
    // Somebody waits, and goes away.
    let waits = pair()?;
    lost(&waits)?;
    net.run_for(Duration::from_micros(50));
    assert_eq!(a.counters().port.window_stalls, 1);
    drop(waits);
    net.run_for(FLIGHT_LIFE * 2);
    a.clear_faults();
    let third = pair()?;
    let (source, target) = (third.0.register(&[9; 64])?, third.1.register_remote(64)?);
    third.0.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(third.0.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, [9; 64]);
    Ok(())
}

/// A device with a window of 15 full packets, which `holds` has in flight to `b`: what is posted to `b` now waits, and is
/// due when they are acknowledged.
fn with_full_window(net: &Net, b: &Device) -> Result<(Device, (RcEnd, RcEnd), [MemoryRegion; 2])> {
    net.set_latency(Duration::from_micros(100));
    let a = with_window(net, 8)?;
    let holds = RcEnd::pair(&a, b)?;
    let memory = write(&holds, 15 * 4096)?;
    Ok((a, holds, memory))
}

/// WRITEs of these sizes, each on a queue pair of its own to the same peer, all due at once. Returns the lengths of the
/// trains of their requests and of the responses.
fn trains_of(sizes: &[usize]) -> Result<[Vec<u16>; 2]> {
    let net = Net::new();
    let b = net.device();
    let (a, _holds, _memory) = with_full_window(&net, &b)?;
    let logs = [Log::of(&a), Log::of_responses(&b)];
    let pairs = sizes.iter().map(|_| RcEnd::pair(&a, &b)).collect::<Result<Vec<_>>>()?;
    let memory =
        pairs.iter().zip(sizes).map(|(pair, size)| write(pair, *size)).collect::<Result<Vec<_>>>()?;
    assert_eq!(a.counters().port.window_stalls, sizes.len() as u64);
    for (pair, [_, target]) in pairs.iter().zip(&memory) {
        done(&pair.0)?;
        assert!(target.to_vec()?.iter().all(|byte| *byte == 7));
    }
    Ok(logs.map(|log| log.trains()))
}

#[test]
fn queue_pairs_with_the_same_peer_share_a_train() -> Result<()> {
    let [requests, responses] = trains_of(&[64; 16])?;
    assert_eq!(requests, [16]);
    assert_eq!(responses, [1, 16], "one for what held the window, and one for each of the others");
    Ok(())
}

/// The shortest packet of a train is its last, and none is longer than the first.
#[test]
fn packets_that_do_not_fit_begin_the_next_train_in_their_turn() -> Result<()> {
    let [requests, _] = trains_of(&[64, 256, 256, 64, 64, 1000, 64, 64])?;
    assert_eq!(requests, [1, 3, 1, 2, 1]);
    Ok(())
}

#[test]
fn a_train_has_one_destination_and_traffic_class() -> Result<()> {
    let net = Net::new();
    let (b, c) = (net.device(), net.device());
    let (a, _holds, _memory) = with_full_window(&net, &b)?;
    let also = RcEnd::pair(&a, &c)?;
    let _also = write(&also, 15 * 4096)?;
    let log = Log::of(&a);
    let to = |peer, traffic_class| {
        RcEnd::pair_with(&a, peer, &ConnectOptions { traffic_class, ..ConnectOptions::default() })
    };
    let pairs = [to(&b, 0)?, to(&b, 32)?, to(&b, 32)?, to(&b, 0)?, to(&c, 0)?, to(&c, 0)?];
    let _memory = pairs.iter().map(|pair| write(pair, 64)).collect::<Result<Vec<_>>>()?;
    pairs.iter().try_for_each(|pair| done(&pair.0))?;
    let mut trains = log.trains();
    trains.sort_unstable();
    assert_eq!(trains, [1, 1, 2, 2]);
    Ok(())
}

#[test]
fn long_packets_are_not_starved_by_short_ones() -> Result<()> {
    let net = Net::new();
    let b = net.device();
    let (a, _holds, _memory) = with_full_window(&net, &b)?;
    let pairs = (0..9).map(|_| RcEnd::pair(&a, &b)).collect::<Result<Vec<_>>>()?;
    let (long, short) = pairs.split_last().expect("nine");
    let log = Log::of(&a);
    for pair in short {
        let (source, target) = (pair.0.register(&[7; 64])?, pair.1.register_remote(64)?);
        for id in 0..64 {
            pair.0.qp.write(id, source.all(), target.remote(0))?;
        }
    }
    let _long = write(long, 4096)?;
    done(&long.0)?;
    let before = log.all().iter().position(|sent| sent.to == long.1.qp.qpn()).expect("it is sent");
    // The window does not hold a turn of each of the others.
    assert!(before <= 8 * 64, "{before} packets before its first turn");
    Ok(())
}

/// Whenever the queue pair under test goes back, another one takes the room that this frees, and never gives it back.
#[test]
fn retries_end_in_time_while_others_fill_the_window() -> Result<()> {
    let net = Net::new();
    let (a, b) = (with_window(&net, 1)?, net.device());
    let options = ConnectOptions { timeout: 10, retry_cnt: 3, ..ConnectOptions::default() };
    let gone = RcEnd::pair_with(&a, &b, &options)?;
    a.add_fault("tx data drop")?;
    let _memory = write(&gone, 4096)?;
    let others = (0..4).map(|_| patient(&a, &b)).collect::<Result<Vec<_>>>()?;
    let _others = others.iter().map(|other| write(other, 4096)).collect::<Result<Vec<_>>>()?;
    let log = Log::of(&a);
    assert_eq!(gone.0.wait()?.status, WcStatus::RetryExcErr);
    // The first and three retries, of 4.096 us x 2^10 each.
    let due = Duration::from_nanos(4 * (4096 << 10));
    assert!((due..due + Duration::from_micros(10)).contains(&net.elapsed()), "{:?}", net.elapsed());
    let others = log.all().iter().filter(|sent| sent.to != gone.1.qp.qpn()).count();
    assert_eq!(others, 1, "the retries make no room for more");
    Ok(())
}

/// The time at which the life of a flight ends is known, and nobody waits longer: not until it is looked at again.
#[test]
fn a_lost_packet_holds_the_window_for_its_life() -> Result<()> {
    let net = Net::new();
    let (a, b) = (with_window(&net, 1)?, net.device());
    let [first, second, third] = [patient(&a, &b)?, patient(&a, &b)?, patient(&a, &b)?];
    a.add_fault("tx data drop")?;
    let log = Log::of(&a);
    let _first = write(&first, 4096)?;
    net.run_for(FLIGHT_LIFE / 5);
    let _second = write(&second, 4096)?;
    net.run_for(FLIGHT_LIFE / 5);
    // The second has waited for a while, and goes now. When it had waited for a life, it will have flown for less.
    drop(first);
    let _third = write(&third, 4096)?;
    net.run_for(FLIGHT_LIFE * 9 / 10);
    assert_eq!(log.all().len(), 2);
    net.run_for(FLIGHT_LIFE / 5);
    assert_eq!(log.all().len(), 3);
    Ok(())
}

/// Two gates open at the same time, and turns wait at both: the window of the peer, and the NIC in front of the wire. Turns
/// called from one used to queue at the other, and back again, so that none was ever sent and virtual time stood still.
#[test]
fn turns_that_wait_at_the_window_and_at_the_wire_all_go() -> Result<()> {
    let net = Net::new();
    let (a, b) = (with_window(&net, 1)?, net.device());
    let [holds, second, third, fourth] =
        [patient(&a, &b)?, patient(&a, &b)?, patient(&a, &b)?, patient(&a, &b)?];
    a.add_fault("tx data drop once")?;
    let mut memory = vec![write(&holds, 4096)?];
    net.run_for(Duration::from_micros(50));
    memory.extend([write(&second, 4096)?, write(&third, 4096)?]);
    net.run_for(Duration::from_micros(50));
    assert_eq!(a.counters().port.window_stalls, 2);
    let port = a.inner.port()?;
    port.with_datapath(|datapath| datapath.engine.set_room(&[0; 8]));
    memory.push(write(&fourth, 4096)?);
    net.run_for(Duration::from_micros(50));
    assert_eq!(a.counters().port.wire_stalls, 1);
    port.with_datapath(|datapath| {
        let engine = &mut datapath.engine;
        engine.modify_qp(holds.0.qp.qpn(), &QpAttr::to_state(QpState::Err)).expect("it may fail at any time");
        engine.set_room(&[u32::MAX; 8]);
    });
    for waits in [&second, &third, &fourth] {
        done(&waits.0)?;
    }
    Ok(())
}
