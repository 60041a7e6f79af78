//! Datagrams and trains at the sockets of a port.

use super::*;
use crate::driver::SocketPort;
use crate::{ConnectOptions, Device, DeviceConfig, Mtu, Psn, RcEnd, Result, WcStatus};
use qp::wire::Packet;
use rnic_core::engine::DropReason;
use rnic_core::link::{Direction, FrameRef, Observer};
use rnic_core::port::Io;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device at an address of loopback that is probably unused elsewhere.
fn device() -> Result<(Device, Arc<SocketPort>)> {
    let ip = Ipv4Addr::new(127, rand::random_range(1..=250), rand::random(), rand::random_range(1..=250));
    DeviceConfig::at(ip.into()).open_as("rnic0")
}

/// Replaces the buffers for received datagrams by smaller ones, or by those of every port.
fn set_stride(port: &SocketPort, stride: usize) {
    port.with_driven(|driven| driven.udp.batch = RecvBatch::with_buffers(1, stride));
}

fn truncated(device: &Device) -> u64 {
    device.counters().port.dropped(DropReason::Truncated)
}

/// The peer of a stream has its acknowledgements before the turn has received all that is in flight; small datagrams are received
/// together.
#[test]
fn a_turn_sends_after_half_a_window_of_bytes() -> Result<()> {
    let (_device, port) = device()?;
    let from = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let at = port.address;
    for (len, wanted) in [(60_000, [1, 3, 1]), (100, [1, 4, 0])] {
        let counts = port.with_driven(|driven| {
            while driven.receive(crate::clock::now()) > 0 {}
            for _ in 0..5 {
                assert_eq!(from.send_to(&vec![0; len], (at, 4791)).expect("sent"), len);
            }
            [(); 3].map(|()| driven.receive(crate::clock::now()))
        });
        assert_eq!(counts, wanted, "{len} bytes");
    }
    Ok(())
}

/// A datagram that does not fit the buffer is counted as such, and nothing else is made of it. Without what was cut
/// off it looks like damage, or, with a length and a checksum made for it, like a packet.
#[test]
fn a_datagram_that_was_cut_off_is_dropped() -> Result<()> {
    let ((a, _), (b, port_of_b)) = (device()?, device()?);
    let options = ConnectOptions { timeout: 12, retry_cnt: 7, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    let (source, target) = (left.register(&[7; 1000])?, right.register_remote(1000)?);
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.cq().wait(PATIENCE)?.status, WcStatus::Success);
    assert_eq!(truncated(&b), 0, "an ordinary buffer holds any datagram");
    set_stride(&port_of_b, 512);
    left.qp.write(2, source.all(), target.remote(0))?;
    let deadline = crate::clock::now() + PATIENCE;
    while truncated(&b) == 0 {
        assert!(crate::clock::now() < deadline, "{:?}", b.counters().port);
        a.progress();
        std::thread::yield_now();
    }
    let port = b.counters().port;
    assert_eq!(port.dropped_total(), port.dropped(DropReason::Truncated), "{port:?}");
    set_stride(&port_of_b, 1 << 16);
    // Retransmission brings it, unless all tries came in between: the test may have waited long for the processor.
    let status = left.cq().wait(PATIENCE)?.status;
    assert!(matches!(status, WcStatus::Success | WcStatus::RetryExcErr), "{status}");
    Ok(())
}

/// The PSNs of the packets with a payload that passed an observer in a direction.
struct Seen(Direction, Arc<Mutex<Vec<Psn>>>);

impl Observer for Seen {
    fn name(&self) -> &str {
        "psns"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes).expect("a packet");
        if frame.direction == self.0 && !packet.payload().is_empty() {
            self.1.lock().expect("nobody panics").push(packet.psn());
        }
    }
}

fn seen(device: &Device, direction: Direction) -> Result<Arc<Mutex<Vec<Psn>>>> {
    let psns = Arc::default();
    device.observe(Seen(direction, Arc::clone(&psns)))?;
    Ok(psns)
}

/// Observers see all packets of a train, from the first to the last, where it leaves and where it arrives: also of a
/// train whose last packet is shorter.
#[test]
fn observers_see_every_packet_of_a_train() -> Result<()> {
    let ((a, port_of_a), (b, _)) = (device()?, device()?);
    if port_of_a.with_driven(|driven| driven.udp.max_packets()) == 1 {
        eprintln!("SKIPPED: the kernel takes no trains");
        return Ok(());
    }
    let (out, into) = (seen(&a, Direction::Tx)?, seen(&b, Direction::Rx)?);
    let options = ConnectOptions { mtu: Some(Mtu::B1024), timeout: 18, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    let sends = || port_of_a.with_driven(|driven| driven.udp.counters().sends);
    let before = (sends(), a.counters().port.tx_packets);
    let mut all = BTreeSet::new();
    let mut next = left.qp.address().psn;
    for (wr_id, packets, rest) in [(1, 20, 0), (2, 20, 100), (3, 1, 0), (4, 2, 1)] {
        let len = packets * 1024 + rest;
        let (source, target) = (left.register(&vec![wr_id as u8; len])?, right.register_remote(len)?);
        left.qp.write(wr_id, source.all(), target.remote(0))?;
        assert_eq!(left.cq().wait(PATIENCE)?.status, WcStatus::Success);
        for _ in 0..len.div_ceil(1024) {
            all.insert(next & 0xff_ffff);
            next += 1;
        }
    }
    let trains = (sends() - before.0, a.counters().port.tx_packets - before.1);
    assert!(trains.0 < trains.1, "{} packets left in {} calls: no trains", trains.1, trains.0);
    for (name, psns) in [("sent", out), ("arrived", into)] {
        let psns: BTreeSet<_> = psns.lock().expect("nobody panics").iter().map(|psn| psn.value()).collect();
        let missing: Vec<_> = all.difference(&psns).collect();
        assert!(missing.is_empty() && psns.len() == all.len(), "{name}: {missing:?} were not seen");
    }
    Ok(())
}

/// A stamp says how long ago a datagram arrived, unless the clock was set since.
#[test]
fn a_stamp_of_the_kernel_is_as_old_as_the_clock_says() {
    let (now, epoch) = (crate::clock::now(), SystemTime::UNIX_EPOCH);
    let wall = Duration::from_secs(1_000_000_000);
    let at = |stamp| instant_of((now, epoch + wall), stamp);
    assert_eq!(at(wall), now);
    assert_eq!(at(wall - Duration::from_micros(70)), now - Duration::from_micros(70));
    assert_eq!(at(wall - OLDEST_STAMP), now - OLDEST_STAMP);
    assert_eq!(at(wall - OLDEST_STAMP - Duration::from_nanos(1)), now, "the clock was put forward");
    assert_eq!(at(wall + Duration::from_secs(9)), now, "the clock was put back");
}
