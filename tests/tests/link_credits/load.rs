//! Many senders and one receiver.

use super::{STOCK_RMEM_MAX, moved, until};
use rnic::cc::Rate;
use rnic::link::wire_bytes;
use rnic::{
    Access, AddressHandle, AddressVector, CompletionQueue, ConnectOptions, Device, DeviceConfig, Gather,
    MemoryRegion, QKey, QpInit, QueuePair, WcStatus,
};
use rnic_tests::counter;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Outstanding send requests of one sender, and places for its messages on either side.
const DEPTH: usize = 64;

/// Maximum number of receives of a datagram queue pair; the same number is sent in one round.
const ROUND: u64 = 1 << 14;

/// If nothing arrives for this long, nothing more will.
const SILENCE: Duration = Duration::from_secs(30);

/// The Q_Key of datagrams.
const QKEY: QKey = QKey(0x0c0f_fee0);

/// Length of the network header in front of a datagram, in bytes.
const GRH: usize = 40;

/// Maximum number of senders.
const SENDERS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
}

/// The number of messages, one packet each, and the number of senders that share them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) service: Service,
    pub(crate) len: usize,
    pub(crate) senders: usize,
    pub(crate) messages: u64,
}

/// The links of the ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) credits: bool,
    /// The receiver's reading rate.
    pub(crate) receiver_rate: Option<Rate>,
}

/// The results.
#[derive(Debug)]
#[expect(dead_code, reason = "some of it is only printed")]
pub(crate) struct Outcome {
    pub(crate) took: Duration,
    pub(crate) arrived: u64,
    /// Packets dropped by the kernel, as the receiver counts them, and as the kernel counts them for all sockets of
    /// all ports.
    pub(crate) overrun: u64,
    pub(crate) kernel_drops: u64,
    pub(crate) dropped: u64,
    pub(crate) retransmitted: u64,
    pub(crate) mismatches: u64,
    pub(crate) partners_lost: u64,
    pub(crate) credit_stalls: u64,
    /// Link messages sent by the senders, and by the receiver.
    pub(crate) asked: u64,
    pub(crate) told: u64,
}

impl Load {
    /// The rate at which the messages arrived, as on Ethernet.
    pub(crate) fn rate(&self, took: Duration) -> Rate {
        let headers = match self.service {
            Service::Ud => 8,
            Service::Rc | Service::Uc => 16,
        };
        let bytes = u64::from(wire_bytes(12 + headers + self.len + 4, false)) * self.messages;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        Rate::from_bits_per_second(bytes * 8 * 1_000_000 / micros)
    }

    /// Runs the load.
    pub(crate) fn run(&self, links: Links) -> Outcome {
        let ground = Ground::take();
        let receiver = open(ground.addresses[0], links.credits, links.receiver_rate);
        let hub = Hub::new(self, &receiver);
        let mut lines: Vec<Line> = (0..self.senders)
            .map(|n| Line::new(self, &hub, ground.addresses[n + 1], links.credits, n as u64))
            .collect();
        // Nobody has met anybody: all start cold, and at once.
        let begin = Instant::now();
        let mut sent = 0;
        while sent < self.messages {
            let round = (self.messages - sent).min(ROUND - SENDERS as u64);
            hub.post(round);
            send(&mut lines, round, self.len);
            sent += round;
            // Messages that do not arrive are lost.
            hub.settle(sent);
        }
        let took = begin.elapsed();
        let mismatches = hub.mismatches(&lines);
        let all = || lines.iter().map(|line| &line.device).chain([&hub.device]);
        let sum = |name: &str| all().map(|device| counter(device, name)).sum::<u64>();
        Outcome {
            took,
            arrived: hub.arrived(),
            overrun: sum("socket_rx_overrun"),
            kernel_drops: all().map(|device| kernel_drops(device.address())).sum(),
            dropped: all().map(|device| device.counters().port.dropped_total()).sum(),
            retransmitted: sum("retransmitted_pkts"),
            mismatches,
            partners_lost: sum("partners_lost"),
            credit_stalls: sum("credit_stalls"),
            asked: lines.iter().map(|line| counter(&line.device, "tx_flow_control")).sum(),
            told: counter(&hub.device, "tx_flow_control"),
        }
    }
}

/// Addresses for one load at a time: two processors cannot serve the devices of several loads together.
struct Ground {
    addresses: MutexGuard<'static, Vec<IpAddr>>,
}

impl Ground {
    fn take() -> Self {
        static ADDRESSES: Mutex<Vec<IpAddr>> = Mutex::new(Vec::new());
        let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.is_empty() {
            addresses.extend((0..=SENDERS).map(|_| rnic_tests::fresh_address()));
        }
        Self { addresses }
    }
}

fn open(address: IpAddr, credits: bool, receiver_rate: Option<Rate>) -> Device {
    let mut link: rnic::link::LinkConfig =
        if credits { "ib-credits" } else { "ethernet" }.parse().expect("a link");
    link.receiver_rate = receiver_rate;
    let config = DeviceConfig {
        link,
        recv_buffer: Some(STOCK_RMEM_MAX),
        source_ports: Some(1),
        // As fast as possible if no credit is needed.
        unacked_rate: Some(0),
        ..DeviceConfig::at(address)
    };
    // The load before had the same addresses.
    rnic_tests::reopen(&config)
}

/// Packets that the kernel dropped at all UDP sockets of an address (proc(5), /proc/net/udp).
fn kernel_drops(address: IpAddr) -> u64 {
    let IpAddr::V4(v4) = address else { panic!("loopback addresses here are IPv4") };
    let hex = format!("{:08X}:", u32::from_ne_bytes(v4.octets()));
    let table = std::fs::read_to_string("/proc/net/udp").expect("the sockets of this host");
    let drops = |line: &str| line.split_whitespace().last().and_then(|drops| drops.parse::<u64>().ok());
    let ours = |line: &&str| line.split_whitespace().nth(1).is_some_and(|local| local.starts_with(&hex));
    let mut found: Vec<u64> = table.lines().filter(ours).filter_map(drops).collect();
    assert!(!found.is_empty(), "no socket at {address}:\n{table}");
    found.drain(..).sum()
}

/// The receiver: a queue pair for each connected sender, or one for all.
struct Hub {
    service: Service,
    device: Device,
    qps: Mutex<Vec<QueuePair>>,
    cq: CompletionQueue,
    pd: rnic::ProtectionDomain,
    target: MemoryRegion,
    /// Receives that were posted.
    posted: AtomicU64,
}

impl Hub {
    fn new(load: &Load, device: &Device) -> Self {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(1 << 15).expect("a completion queue");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let slots = if load.service == Service::Ud { 1 } else { load.senders * DEPTH };
        let target = pd.register(slots * (GRH + load.len), access).expect("memory");
        let mut qps = Vec::new();
        if load.service == Service::Ud {
            let mut init = QpInit::ud(&cq, &cq);
            init.cap.max_recv_wr = ROUND as u32;
            let qp = pd.create_qp(&init).expect("a queue pair");
            qp.activate(QKEY).expect("RTS");
            qps.push(qp);
        }
        let hub = Self {
            service: load.service,
            device: device.clone(),
            qps: Mutex::new(qps),
            cq,
            pd,
            target,
            posted: AtomicU64::new(0),
        };
        hub.post(SENDERS as u64);
        hub
    }

    /// Posts receives for `count` more datagrams. Only their number matters: all use the same buffer. Those of lost
    /// datagrams are still posted.
    fn post(&self, count: u64) {
        if self.service != Service::Ud {
            return;
        }
        while self.cq.poll_one().is_some() {}
        let qps = self.qps.lock().expect("nobody panics");
        let wanted = self.arrived() + count;
        for id in self.posted.fetch_max(wanted, Relaxed)..wanted {
            // A consumed receive releases its slot shortly after it is counted.
            until("there is room for a receive", || qps[0].recv(id, self.target.all()).is_ok());
        }
    }

    /// Number of messages that arrived, including greetings.
    fn arrived(&self) -> u64 {
        let name = if self.service == Service::Ud { "rdma_recvs" } else { "rx_write_requests" };
        counter(&self.device, name)
    }

    /// Waits until `sent` messages arrived, or nothing arrives any more.
    fn settle(&self, sent: u64) {
        let lost = || counter(&self.device, "socket_rx_overrun");
        let (mut last, mut since) = (self.arrived(), Instant::now());
        while self.arrived() < sent {
            let patience = if lost() > 0 { Duration::from_secs(2) } else { SILENCE };
            if self.arrived() != last {
                (last, since) = (self.arrived(), Instant::now());
            }
            if since.elapsed() > patience {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Number of places in the target that do not hold the last message written to them.
    fn mismatches(&self, lines: &[Line]) -> u64 {
        if self.service == Service::Ud {
            return 0;
        }
        let bad = |line: &Line| {
            let first = line.next.saturating_sub(DEPTH as u64);
            let is_wrong = |number: &u64| {
                let mut found = [0; 8];
                let at = line.base + line.slot(*number);
                self.target.read_at(at, &mut found).expect("it lies in the target");
                found != line.mark(*number).to_le_bytes()
            };
            (first..line.next).filter(is_wrong).count() as u64
        };
        lines.iter().map(bad).sum()
    }
}

/// A sender.
struct Line {
    device: Device,
    qp: QueuePair,
    cq: CompletionQueue,
    source: MemoryRegion,
    len: usize,
    name: u64,
    /// Offset of its messages in the target.
    base: usize,
    remote: Option<rnic::Remote>,
    ah: Option<(AddressHandle, rnic::Qpn)>,
    /// Number of messages sent, including greetings, and of completed ones.
    next: u64,
    done: u64,
    left: u64,
}

impl Line {
    fn new(load: &Load, hub: &Hub, address: IpAddr, credits: bool, name: u64) -> Self {
        let device = open(address, credits, None);
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(1024).expect("a completion queue");
        let source = pd.register(DEPTH * load.len, Access::LOCAL_WRITE).expect("memory");
        let init = match load.service {
            Service::Rc => QpInit::rc,
            Service::Uc => QpInit::uc,
            Service::Ud => QpInit::ud,
        };
        let qp = pd.create_qp(&init(&cq, &cq)).expect("a queue pair");
        let base = name as usize * DEPTH * load.len;
        let (mut remote, mut ah) = (None, None);
        let mut theirs = hub.qps.lock().expect("nobody panics");
        if load.service == Service::Ud {
            qp.activate(QKEY).expect("RTS");
            let way = AddressVector::new(hub.device.gid(), 0);
            ah = Some((pd.create_ah(&way).expect("an address handle"), theirs[0].qpn()));
        } else {
            let other = hub.pd.create_qp(&init(&hub.cq, &hub.cq)).expect("a queue pair");
            // 17 s: a slow receiver answers late, which is not a loss.
            let options = ConnectOptions { timeout: 22, ..ConnectOptions::default() };
            qp.connect(&other.address(), &options).expect("connected");
            other.connect(&qp.address(), &options).expect("connected");
            theirs.push(other);
            remote = Some(hub.target.remote(base as u64));
        }
        let len = load.len;
        Self { device, qp, cq, source, len, name, base, remote, ah, next: 0, done: 0, left: 0 }
    }

    fn slot(&self, number: u64) -> usize {
        number as usize % DEPTH * self.len
    }

    /// The first bytes of a message.
    fn mark(&self, number: u64) -> u64 {
        self.name << 48 | number
    }

    fn post(&mut self) {
        let at = self.slot(self.next);
        self.source.write_at(at, &self.mark(self.next).to_le_bytes()).expect("a place");
        let data: Gather = self.source.slice(at..at + self.len).expect("a place").into();
        let posted = match (&self.remote, &self.ah) {
            (Some(to), _) => {
                let to = rnic::Remote { addr: to.addr + at as u64, ..*to };
                self.qp.write(self.next, data, to)
            }
            (None, Some((ah, qpn))) => self.qp.send_to(self.next, data, ah, *qpn, QKEY),
            (None, None) => panic!("a sender has somebody to send to"),
        };
        posted.expect("room for a message");
        self.next += 1;
    }

    /// Polls completions; returns whether there were any.
    fn poll(&mut self) -> bool {
        let before = self.done;
        while let Some(wc) = self.cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}, {:?}", moved(&self.device));
            self.done += 1;
        }
        self.done > before
    }

    /// Posts requests while there is room, and takes completions. Returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut acted = false;
        while self.left > 0 && self.next - self.done < DEPTH as u64 {
            self.post();
            self.left -= 1;
            acted = true;
        }
        self.poll() || acted
    }
}

/// Lets all senders together send `count` messages, in equal parts.
fn send(lines: &mut [Line], count: u64, len: usize) {
    let parts = lines.len() as u64;
    for (n, line) in lines.iter_mut().enumerate() {
        line.left = count / parts + u64::from((n as u64) < count % parts);
    }
    let (mut last, mut idle) = (Instant::now(), 0_u32);
    while lines.iter().any(|line| line.left > 0 || line.done < line.next) {
        let acted = lines.iter_mut().filter_map(|line| line.turn().then_some(())).count() > 0;
        if acted {
            (last, idle) = (Instant::now(), 0);
        } else {
            // Polling senders continuously while they wait would take the processor time that a slow receiver
            // needs.
            std::thread::sleep(Duration::from_micros(50 << (idle / 8).min(5)));
            idle += 1;
        }
        let stuck = lines.iter().find(|line| line.done < line.next && last.elapsed() > SILENCE);
        if let Some(stuck) = stuck {
            panic!("messages of {len} bytes do not leave: {:?}", moved(&stuck.device));
        }
    }
}
