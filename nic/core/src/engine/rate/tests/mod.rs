//! Pacing and congestion notifications in virtual time.

mod acks;
mod managed;
mod notifications;
mod pacing;
mod telemetry;

use super::Rates;
use crate::engine::{FlowState, PartnerSetup, PortCounters, RateConfig};
use crate::error::Result;
use crate::link::{Direction, FrameRef, Now, Observer, wire_bytes};
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, MemoryRegion, QpInit, Qpn, QueuePair, RcEnd};
use cc::{Algorithm, Policy, Rate};
use qp::wire::{Opcode, Packet};
use qp::{Access, QpType};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use time::{Duration, Instant};

#[test]
fn a_port_without_a_rate_never_waits() {
    assert!(!Rates::new(&RateConfig::default()).port_waits());
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn policy(text: &str, line: Rate) -> Option<Policy> {
    Some(text.parse::<Algorithm>().and_then(|a| a.at(line)).expect("an algorithm"))
}

/// Every queue pair has this fixed rate.
fn fixed(rate: Rate) -> RateConfig {
    RateConfig { policy: policy("off", rate), ..RateConfig::default() }
}

/// An algorithm at 10 Gb/s, with hosts that all obey.
fn algorithm(text: &str) -> RateConfig {
    RateConfig { policy: policy(text, Rate::from_gbps(10)), foreign_cnp: true, ..RateConfig::default() }
}

fn device(net: &Net, name: &str, rate: &RateConfig) -> Device {
    let partner = PartnerSetup { is_foreign: true, ..PartnerSetup::default() };
    let name = Some(name.to_owned());
    let setup = DeviceSetup { name, rate: rate.clone(), partner, ..DeviceSetup::default() };
    net.device_with(&setup).expect("a device")
}

/// A packet that a device sent or received.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    direction: Direction,
    opcode: Opcode,
    dst: IpAddr,
    to: Qpn,
    becn: bool,
    tos: u8,
    src_port: u16,
    /// As on Ethernet.
    size: u64,
    bytes: Vec<u8>,
}

/// The packets that passed a device.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Seen>>>);

impl Observer for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn observe(&mut self, now: Now, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes).expect("a packet");
        self.0.lock().expect("no panic").push(Seen {
            at: now.instant,
            direction: frame.direction,
            opcode: packet.opcode(),
            dst: frame.ip.dst,
            to: packet.dest_qpn(),
            becn: packet.becn(),
            tos: frame.ip.tos,
            src_port: frame.ip.src_port,
            size: u64::from(wire_bytes(frame.bytes.len(), frame.ip.dst.is_ipv6())),
            bytes: frame.bytes.to_vec(),
        });
    }
}

impl Log {
    fn of(device: &Device) -> Self {
        let log = Self::default();
        let port = device.inner.port().expect("no fork");
        port.with_datapath(|datapath| datapath.link.push_observer(log.clone()));
        log
    }

    fn sent(&self, choose: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let seen = self.0.lock().expect("no panic");
        seen.iter().filter(|s| s.direction == Direction::Tx && choose(s)).cloned().collect()
    }

    fn cnps(&self) -> Vec<Seen> {
        self.sent(|s| s.opcode == Opcode::Cnp)
    }
}

/// Departure times, with the number of bytes that left at each.
fn departures(seen: &[Seen]) -> Vec<(Instant, u64)> {
    let mut all: Vec<(Instant, u64)> = Vec::new();
    for packet in seen {
        match all.last_mut() {
            Some((at, bytes)) if *at == packet.at => *bytes += packet.size,
            _ => all.push((packet.at, packet.size)),
        }
    }
    all
}

/// Checks that each train left at its departure time, rounded up to a nanosecond, within the burst of two nanoseconds.
fn assert_paced(seen: &[Seen], rate: Rate) {
    let all = departures(seen);
    assert!(all.len() > 10, "{} trains are too few to tell", all.len());
    let (mut sent, start) = (0, all[0].0);
    for (at, bytes) in all {
        let allowed = rate.bytes_in(at - start);
        let slack = rate.bytes_in(Duration::from_nanos(1)) + 64;
        assert!(sent <= allowed + 64, "{sent} of {allowed} bytes after {:?}", at - start);
        assert!(allowed <= sent + slack, "only {sent} of {allowed} bytes after {:?}", at - start);
        sent += bytes;
    }
}

fn flow(device: &Device, qp: &QueuePair) -> Option<FlowState> {
    let port = &device.inner.port;
    port.inspect(|e| e.flow(qp.qpn(), port.now())).flatten()
}

fn counters(device: &Device) -> PortCounters {
    device.counters().port
}

/// Number of marked packets, and of CNPs sent, obeyed, and ignored.
fn notifications(device: &Device) -> [u64; 4] {
    let c = counters(device);
    [c.np_ecn_marked_roce_packets, c.np_cnp_sent, c.rp_cnp_handled, c.rp_cnp_ignored]
}

/// Memory of both sides of a connection.
fn memory(left: &RcEnd, right: &RcEnd, len: usize) -> Result<(MemoryRegion, MemoryRegion)> {
    Ok((left.pd().register(len, Access::LOCAL_WRITE)?, right.register_remote(len)?))
}

/// Two queue pairs of an unreliable service, connected if the service has connections, with memory to send from.
fn unreliable(a: &Device, b: &Device, qp_type: QpType) -> Result<[(QueuePair, MemoryRegion); 2]> {
    let make = |device: &Device| -> Result<(QueuePair, MemoryRegion)> {
        let (cq, pd) = (device.create_cq(1024)?, device.alloc_pd()?);
        let init = QpInit { qp_type, ..QpInit::uc(&cq, &cq) };
        let memory = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok((pd.create_qp(&init)?, memory))
    };
    let (left, right) = (make(a)?, make(b)?);
    for (one, other) in [(&left.0, &right.0), (&right.0, &left.0)] {
        if qp_type == QpType::Ud {
            one.activate(crate::QKey(1))?;
        } else {
            one.connect(&other.address(), &ConnectOptions::default())?;
        }
    }
    Ok([left, right])
}
