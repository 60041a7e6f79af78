//! Queues at their bounds and one past them, objects that are destroyed under traffic, and garbage from the
//! network.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rnic::engine::{AsyncEvent, DropReason};
use rnic::{
    ConnectOptions, Error, Gather, PostError, QpAttr, QpCap, QpInit, QpState, RcEnd, Remote, WcStatus,
};
use rnic_tests::peer::{Peer, connect_local, register_pattern};
use rnic_tests::protocol::{Command, Connection, Opening};
use rnic_tests::{counter, open, pattern};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

fn queue_full(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Post(PostError::QueueFull { .. })))
}

/// Waits until `condition` holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn work_queues() {
    let device = open();
    // There is no peer, so nothing completes.
    let nobody =
        rnic::QpAddress { gid: rnic::Gid::from(rnic_tests::fresh_address()).0, qpn: 5, psn: 0, mtu: 1024 };
    let end = RcEnd::new(&device).expect("an end");
    end.qp.connect(&nobody, &ConnectOptions { timeout: 0, ..ConnectOptions::default() }).expect("connects");
    for id in 0..128 {
        end.qp.recv(1000 + id, Gather::Empty).expect("room for 128");
        end.qp.write(id, Gather::Empty, Remote::default()).expect("room for 128");
    }
    assert!(queue_full(end.qp.recv(0, Gather::Empty)));
    assert!(queue_full(end.qp.send(0, Gather::Empty)));
    end.qp.modify(&QpAttr::to_state(QpState::Err)).expect("RTS leads to ERR");
    let mut flushed: Vec<u64> = Vec::new();
    for _ in 0..256 {
        let wc = end.wait().expect("a completion");
        assert_eq!(wc.status, WcStatus::WrFlushErr);
        flushed.push(wc.wr_id);
    }
    let (sends, recvs): (Vec<u64>, Vec<u64>) = flushed.into_iter().partition(|id| *id < 1000);
    assert!(sends.into_iter().eq(0..128) && recvs.into_iter().eq(1000..1128), "in order");
    // The slots were released; new work requests are flushed at once.
    end.qp.send(7, Gather::Empty).expect("room");
    assert_eq!(end.wait().expect("a completion").status, WcStatus::WrFlushErr);
    let counters = end.qp.counters();
    assert_eq!((counters.req_cqe_flush_error, counters.resp_cqe_flush_error), (129, 128));
}

#[test]
fn completion_queue() {
    let device = open();
    let mut peer = Peer::start();
    let cq = device.create_cq(4).expect("a completion queue");
    let recv_cq = device.create_cq(16).expect("a completion queue");
    let pd = device.alloc_pd().expect("a domain");
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 2, ..QpInit::rc(&cq, &recv_cq).cap };
    let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(&cq, &recv_cq) }).expect("a queue pair");
    let (far, address) = peer.qp();
    peer.connect(far, &qp.address(), Connection::default());
    qp.connect(&address, &ConnectOptions::default()).expect("connects");
    let target = peer.register_zeroes(8);
    let source = register_pattern(&pd, 8, 1);
    // Fill the queue twice: polling makes room.
    for round in 0..2 {
        for id in 0..4 {
            qp.write(round * 4 + id, source.all(), target.place.into()).expect("posted");
        }
        until("4 completions", || {
            device.progress();
            device.counters().qp.sent_pkts >= (round + 1) * 4 && !cq.is_empty()
        });
        for id in 0..4 {
            let wc = cq.wait(PATIENCE).expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (round * 4 + id, WcStatus::Success));
        }
    }
    assert!(!cq.is_overrun());
    qp.recv(50, Gather::Empty).expect("posted");
    qp.recv(51, Gather::Empty).expect("posted");
    // One past the bound.
    for id in 0..5 {
        qp.write(id, source.all(), target.place.into()).expect("posted");
    }
    until("an overrun", || {
        device.progress();
        cq.is_overrun()
    });
    until("the state ERR", || qp.state() == QpState::Err);
    let mut events = Vec::new();
    while let Some(event) = device.poll_event().expect("not forked") {
        events.push(event);
    }
    assert!(events.iter().any(|e| matches!(e, AsyncEvent::CompletionQueueError(_))), "{events:?}");
    let four: Vec<_> = std::iter::from_fn(|| cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(four, [0, 1, 2, 3].map(|id| (id, WcStatus::Success)), "what was there stays");
    // The other completion queue works: receives are flushed, and their slots are released.
    for id in [50, 51] {
        let wc = recv_cq.wait(PATIENCE).expect("a completion");
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlushErr));
    }
    for id in 0..4 {
        qp.recv(id, Gather::Empty).expect("places came back");
        assert_eq!(recv_cq.wait(PATIENCE).expect("a completion").status, WcStatus::WrFlushErr);
    }
    drop((qp, cq));
    assert!(pd.create_qp(&QpInit::rc(&recv_cq, &recv_cq)).is_ok());
}

/// Keeps `depth` WRITEs of `size` bytes outstanding on each of `count` queue pairs until `total` are done. Returns
/// how many each completed.
fn share(count: usize, size: usize, depth: usize, total: usize) -> Vec<usize> {
    let device = open();
    let mut peer = Peer::start();
    let target = peer.register_zeroes(size);
    // A second: no working connection takes that long, even on a busy machine.
    let options = Connection { timeout: 18, ..Connection::default() };
    let ends: Vec<_> = (0..count).map(|_| connect_local(&device, &mut peer, options).0).collect();
    let sources: Vec<_> = ends.iter().map(|end| register_pattern(end.pd(), size, 1)).collect();
    let mut done = vec![0; count];
    for (end, source) in ends.iter().zip(&sources) {
        for id in 0..depth {
            end.qp.write(id as u64, source.all(), target.place.into()).expect("posted");
        }
    }
    let deadline = Instant::now() + 2 * PATIENCE;
    while done.iter().sum::<usize>() < total {
        for (i, end) in ends.iter().enumerate() {
            // At most as many as were outstanding. A loop that polls until the queue is empty may stay with one queue
            // pair, whose completions arrive as fast as they are polled, while the others have nothing to send.
            for wc in std::iter::from_fn(|| end.cq().poll_one()).take(depth) {
                assert_eq!(wc.status, WcStatus::Success);
                done[i] += 1;
                end.qp.write(0, sources[i].all(), target.place.into()).expect("posted");
            }
        }
        assert!(Instant::now() < deadline, "{done:?}");
    }
    // The window is shared, and no queue pair waits for an acknowledgement that was not requested.
    let counters = device.counters();
    assert_eq!(counters.qp.local_ack_timeout_err, 0, "{:?}", counters.qp);
    assert!(counters.port.window_stalls > 0);
    assert!(peer.counter("rx_write_requests") >= total as u64);
    done
}

#[test]
fn queue_pairs_share_fairly() {
    for (count, total) in [(3, 3000), (200, 20_000)] {
        let done = share(count, 16 << 10, 8, total);
        let mean = total / count;
        let (min, max) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        println!("{count} queue pairs: {min} to {max} messages, {mean} on average");
        assert!(*min * 2 >= mean && *max <= mean * 2, "{done:?}");
    }
}

/// Posts `count` WRITEs of a whole region.
fn post_many(end: &RcEnd, source: &rnic::MemoryRegion, place: Remote, count: u64) {
    for id in 0..count {
        end.qp.write(id, source.all(), place).expect("posted");
    }
}

#[test]
fn queue_pair_destroyed_with_traffic_in_flight() {
    const LEN: usize = 256 << 10;
    let device = open();
    let mut peer = Peer::start();
    let (steady, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(steady.pd(), LEN, 1);
    for _ in 0..20 {
        let (end, _) = connect_local(&device, &mut peer, Connection::default());
        let own = register_pattern(end.pd(), LEN, 2);
        post_many(&end, &own, target.place.into(), 64);
        post_many(&steady, &source, target.place.into(), 4);
        drop(end);
        for id in 0..4 {
            let wc = steady.wait().expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
    }
    // Late acknowledgements find no queue pair.
    until("late packets", || {
        device.progress();
        counter(&device, "dropped_no_qp") > 0
    });
    // The opposite case: the responder's queue pair is destroyed.
    let (end, far) = connect_local(&device, &mut peer, Connection::brief());
    let own = register_pattern(end.pd(), LEN, 3);
    post_many(&end, &own, target.place.into(), 64);
    peer.ask(&Command::DestroyQp(far));
    let statuses: Vec<_> = (0..64).map(|_| end.wait().expect("a completion").status).collect();
    let failed = statuses.iter().position(|s| *s != WcStatus::Success).expect("a failure");
    assert_eq!(statuses[failed], WcStatus::RetryExcErr);
    assert!(statuses[failed + 1..].iter().all(|s| *s == WcStatus::WrFlushErr), "{statuses:?}");
    assert!(peer.counter("dropped_no_qp") > 0);
    post_many(&steady, &source, target.place.into(), 1);
    assert_eq!(steady.wait().expect("a completion").status, WcStatus::Success);
    peer.check(target.all(), 1, 0);
}

#[test]
fn memory_deregistered_with_traffic_in_flight() {
    const LEN: usize = 1 << 20;
    let device = open();
    let mut peer = Peer::start();
    // The peer deregisters its memory.
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(end.pd(), LEN, 1);
    post_many(&end, &source, target.place.into(), 120);
    peer.tell(&Command::Deregister(target.id));
    let statuses: Vec<_> = (0..120).map(|_| end.wait().expect("a completion").status).collect();
    peer.answer();
    let failed = statuses.iter().position(|s| *s != WcStatus::Success).expect("a failure");
    assert_eq!(statuses[failed], WcStatus::RemAccessErr);
    assert!(statuses[failed + 1..].iter().all(|s| *s == WcStatus::WrFlushErr), "{statuses:?}");
    assert_eq!(peer.counter("resp_remote_access_errors"), 1);
    // This side deregisters its memory.
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(end.pd(), LEN, 1);
    post_many(&end, &source, target.place.into(), 120);
    drop(source);
    let statuses: Vec<_> = (0..120).map(|_| end.wait().expect("a completion").status).collect();
    let failed = statuses.iter().position(|s| *s != WcStatus::Success).expect("a failure");
    assert_eq!(statuses[failed], WcStatus::LocProtErr);
    assert!(statuses[failed + 1..].iter().all(|s| *s == WcStatus::WrFlushErr), "{statuses:?}");
    assert_eq!(counter(&device, "req_cqe_error"), 2);
    // A queue pair in ERR with packets in flight does not occupy room that the next one needs.
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let source = register_pattern(end.pd(), LEN, 4);
    post_many(&end, &source, target.place.into(), 1);
    assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
    peer.check(target.all(), 4, 0);
}

#[test]
fn restarted_peer_does_not_know_old_queue_pairs() {
    let device = open();
    let mut peer = Peer::start();
    let address = peer.address();
    let (old, _) = connect_local(&device, &mut peer, Connection::brief());
    let target = peer.register_zeroes(64);
    peer.kill();
    let mut next = Peer::open(&Opening::at(address));
    let (new, _) = connect_local(&device, &mut next, Connection::default());
    let source = register_pattern(old.pd(), 64, 1);
    old.qp.write(1, source.all(), target.place.into()).expect("posted");
    assert_eq!(old.wait().expect("a completion").status, WcStatus::RetryExcErr);
    let there = next.register(100, 9);
    let here = new.register(&[0; 100]).expect("memory");
    new.qp.read(1, here.all(), there.place.into()).expect("posted");
    assert_eq!(new.wait().expect("a completion").status, WcStatus::Success);
    // The request and its 3 retransmissions; the queue pair number belongs to another slot, or does not exist. They
    // were sent before this side gave up, but the peer processes them later.
    until("all four counted", || next.counter("dropped_no_qp") >= 4);
    assert_eq!(next.counter("dropped_no_qp"), 4);
    assert_eq!(here.to_vec().expect("mapped"), pattern::bytes(9, 100));
}

/// The UDP payloads of captures of another implementation.
fn golden_packets() -> Vec<Vec<u8>> {
    /// Ethernet, IPv4 without options and UDP.
    const HEADERS: usize = 14 + 20 + 8;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let mut packets = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the captures").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let file = std::fs::File::open(&path).expect("readable");
        let mut reader = pcap_file::pcap::PcapReader::new(file).expect("a capture");
        while let Some(Ok(frame)) = reader.next_packet() {
            // EtherType 0x0800, version 4 with a 5-word header, UDP.
            let data = &frame.data;
            if data.len() > HEADERS && data[12..15] == [8, 0, 0x45] && data[23] == 17 {
                packets.push(data[HEADERS..].to_vec());
            }
        }
    }
    assert!(packets.len() > 100, "{} packets", packets.len());
    packets
}

/// Garbage of all kinds: random bytes; packets from strangers, complete, truncated and corrupted.
fn rubbish(seed: u64) -> Vec<Vec<u8>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut all = Vec::new();
    for _ in 0..1000 {
        let mut bytes = vec![0; (random.next_u32() % 1500) as usize];
        random.fill_bytes(&mut bytes);
        // Half of them with a plausible start: SEND only, version 0.
        if bytes.len() > 2 && random.next_u32() % 2 == 0 {
            (bytes[0], bytes[1]) = (4, 0);
        }
        all.push(bytes);
    }
    for packet in golden_packets() {
        let cut = random.next_u32() as usize % packet.len();
        all.push(packet[..cut].to_vec());
        let mut damaged = packet.clone();
        damaged[cut] ^= 1 << (random.next_u32() % 8);
        all.push(damaged);
        all.push(packet);
    }
    all
}

#[test]
fn garbage_is_counted_by_reason_and_has_no_other_effect() {
    const SEED: u64 = 4791;
    const LEN: usize = 100_000;
    println!("seed {SEED}");
    let device = open();
    let mut peer = Peer::start();
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(end.pd(), LEN, 1);
    let stranger = UdpSocket::bind((rnic_tests::fresh_address(), 0)).expect("a socket");
    let rubbish = rubbish(SEED);
    // In small batches, so that the socket buffer, which does not count drops, never overflows.
    for dose in rubbish.chunks(20) {
        for datagram in dose {
            stranger.send_to(datagram, (device.address(), 4791)).expect("sent");
        }
        end.qp.write(1, source.all(), target.place.into()).expect("posted");
        assert_eq!(end.wait().expect("a completion").status, WcStatus::Success);
    }
    let dropped = || device.counters().port.dropped_total();
    until("all rubbish counted", || {
        device.progress();
        dropped() >= rubbish.len() as u64
    });
    let counters = device.counters();
    assert_eq!(counters.port.dropped_total(), rubbish.len() as u64, "{:?}", counters.port);
    let reasons = [DropReason::BadLength, DropReason::BadVersion, DropReason::BadOpcode, DropReason::BadIcrc];
    for reason in reasons {
        assert!(counters.port.dropped(reason) > 0, "{} is zero", reason.name());
    }
    assert_eq!(end.qp.counters().local_ack_timeout_err, 0);
    peer.check(target.all(), 1, 0);
}
