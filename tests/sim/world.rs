//! Senders, one receiver, and the shared port in front of it.

use crate::series::Series;
use rnic::cc::{Algorithm, Rate};
use rnic::link::{LinkConfig, wire_bytes};
use rnic::sim::{DeviceSetup, Net};
use rnic::{
    Access, ConnectOptions, Device, MemoryRegion, Mtu, ProtectionDomain, RateConfig, RcEnd, WcStatus,
    WorkCompletion,
};
use rnic_tests::counter;
use std::time::Duration;

/// Number of messages that each flow keeps posted: more than it sends between two polls of its completions.
const DEPTH: u64 = 8;

/// Interval at which flows are polled and the queue is sampled. 40 Gb/s carry less than half a message in that
/// time.
const LOOK: Duration = Duration::from_micros(5);

/// Number of polls between two samples of congestion control: in 50 us it changes each flow at most once.
const LOOKS_PER_SAMPLE: u32 = 10;

/// Bytes around the payload of a packet within a message: BTH and ICRC.
const AROUND: usize = 12 + 4;

/// Length of a packet with this path MTU on Ethernet. The first packet of a message also has a RETH of 16 bytes.
pub(crate) fn packet_bytes(mtu: Mtu) -> u32 {
    wire_bytes(AROUND + mtu.bytes() as usize, false)
}

/// A sender and its traffic.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// Its port. If it has a rate, the sender's total rate is limited to it, and incoming packets pass through a
    /// port with that rate.
    pub(crate) link: LinkConfig,
    /// The TOS byte of its packets.
    pub(crate) traffic_class: u8,
    /// Length of its messages in bytes; they follow one another without end.
    pub(crate) message: usize,
}

impl Default for Sender {
    fn default() -> Self {
        Self { link: LinkConfig::default(), traffic_class: 0, message: 64 << 10 }
    }
}

/// The configuration of a world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The port in front of the receiver.
    pub(crate) link: LinkConfig,
    /// The congestion control of all devices.
    pub(crate) algorithm: Algorithm,
    /// The initial rate of flows with congestion control: that of the senders' ports.
    pub(crate) line: Rate,
    /// The path MTU.
    pub(crate) mtu: Mtu,
    /// The delay from a sender to the port. Whole packets leave and arrive at an instant.
    pub(crate) there: Duration,
    /// The delay back to a sender.
    pub(crate) back: Duration,
    /// Maximum duration of a train at the rate of its queue pair; 0 for packets that leave one by one.
    pub(crate) train_time: Duration,
    /// How much a sender has on the way, in bytes of charge.
    pub(crate) peer_window: Option<u32>,
    /// What all randomness follows from.
    pub(crate) seed: u64,
}

impl Setup {
    /// A port, senders that are as fast, packets of 1 KiB and no delay.
    pub(crate) fn new(line: Rate) -> Self {
        Self {
            link: LinkConfig { rate: Some(line), ..LinkConfig::default() },
            algorithm: Algorithm::Off,
            line,
            mtu: Mtu::B1024,
            there: Duration::ZERO,
            back: Duration::ZERO,
            train_time: Duration::ZERO,
            peer_window: Some(1 << 30),
            seed: 1,
        }
    }
}

/// One sender's connection to the receiver.
pub(crate) struct Flow {
    pub(crate) device: Device,
    pub(crate) left: RcEnd,
    right: RcEnd,
    source: MemoryRegion,
    target: MemoryRegion,
    stopped: bool,
}

impl Flow {
    fn post(&self, wr_id: u64) {
        self.left.qp.write(wr_id, self.source.all(), self.target.remote(0)).expect("posted");
    }

    /// Posts a message for each completed one.
    fn go_on(&self, found: &mut [WorkCompletion]) {
        let count = self.left.cq().poll(found);
        for wc in &found[..count] {
            assert_eq!(wc.status, WcStatus::Success, "{:?}", self.left.qp.failure());
            if !self.stopped {
                self.post(wc.wr_id);
            }
        }
    }

    /// Payload that the receiver accepted.
    pub(crate) fn delivered(&self) -> u64 {
        self.right.qp.counters().rcvd_bytes
    }
}

/// Measurements between two instants.
pub(crate) struct Seen {
    pub(crate) time: Duration,
    /// Bytes in the queue, including the packet being sent.
    pub(crate) queue: Series,
    /// Alpha, averaged over all flows.
    pub(crate) alpha: Series,
    /// Delivered payload of each flow.
    pub(crate) delivered: Vec<u64>,
    /// Packets that left the queue, and their bytes.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Those of them that were marked.
    pub(crate) marked: u64,
}

impl Seen {
    /// Jain's fairness index: 1 if all flows got the same, 1/N if one got everything.
    pub(crate) fn jain(&self) -> f64 {
        let sum: f64 = self.delivered.iter().map(|d| *d as f64).sum();
        let squares: f64 = self.delivered.iter().map(|d| (*d as f64).powi(2)).sum();
        sum * sum / (self.delivered.len() as f64 * squares)
    }

    /// The fraction of packets that was marked.
    pub(crate) fn marked(&self) -> f64 {
        self.marked as f64 / self.packets as f64
    }

    /// The rate at which packets left the queue, in bits per second.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.time.as_secs_f64()
    }

    /// The fraction of the delivered payload that belongs to one flow.
    pub(crate) fn part(&self, flow: usize) -> f64 {
        self.delivered[flow] as f64 / self.delivered.iter().sum::<u64>() as f64
    }
}

/// Senders, a receiver, and their shared port.
pub(crate) struct World {
    setup: Setup,
    net: Net,
    pub(crate) receiver: Device,
    pub(crate) flows: Vec<Flow>,
    domain: ProtectionDomain,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let net = Net::with_seed(setup.seed);
        let of = DeviceSetup {
            mtu: setup.mtu,
            link: setup.link.clone(),
            cc: setup.algorithm.clone(),
            rate: RateConfig { train_time: setup.train_time, ..RateConfig::default() },
            ..DeviceSetup::default()
        };
        let receiver = net.device_with(&of).expect("a receiver");
        net.set_latency(setup.back);
        net.set_latency_of(&receiver, setup.there);
        let domain = receiver.alloc_pd().expect("a domain");
        Self { setup: setup.clone(), net, receiver, flows: Vec::new(), domain }
    }

    /// Adds a flow from a new device, which starts now.
    pub(crate) fn join(&mut self, sender: &Sender) {
        let Setup { mtu, train_time, line, .. } = self.setup;
        let policy = (self.setup.algorithm != Algorithm::Off)
            .then(|| self.setup.algorithm.at(line).expect("settings in order"));
        let of = DeviceSetup {
            mtu,
            // How much may be on the way is left to credits, pauses and congestion control.
            peer_window: self.setup.peer_window,
            rate: RateConfig { policy, train_time, ..RateConfig::default() },
            link: sender.link.clone(),
            ..DeviceSetup::default()
        };
        let device = self.net.device_with(&of).expect("a sender");
        let left = RcEnd::new(&device).expect("an end");
        let right = RcEnd::in_domain(&self.domain).expect("an end");
        let options = ConnectOptions {
            mtu: Some(mtu),
            traffic_class: sender.traffic_class,
            ..ConnectOptions::default()
        };
        left.qp.connect(&right.qp.address(), &options).expect("connected");
        right.qp.connect(&left.qp.address(), &options).expect("connected");
        let source = left.pd().register(sender.message, Access::LOCAL_WRITE).expect("memory");
        let target = right.register_remote(sender.message).expect("memory");
        let flow = Flow { device, left, right, source, target, stopped: false };
        for wr_id in 0..DEPTH {
            flow.post(wr_id);
        }
        self.flows.push(flow);
    }

    /// Adds flows that start together.
    pub(crate) fn join_all(&mut self, count: u32) {
        for _ in 0..count {
            self.join(&Sender::default());
        }
    }

    /// The program of the receiver does not run for `time`.
    pub(crate) fn preempt_receiver(&self, time: Duration) {
        self.net.preempt(&self.receiver, time);
    }

    /// The program of a sender does not run for `time`.
    pub(crate) fn preempt_sender(&self, flow: usize, time: Duration) {
        self.net.preempt(&self.flows[flow].device, time);
    }

    /// A flow posts nothing more.
    pub(crate) fn stop(&mut self, flow: usize) {
        self.flows[flow].stopped = true;
    }

    fn look(&self, found: &mut [WorkCompletion]) {
        self.net.run_for(LOOK);
        for flow in &self.flows {
            flow.go_on(found);
        }
    }

    /// Advances time, in whole polling intervals.
    pub(crate) fn run_for(&self, time: Duration) {
        let end = self.net.elapsed() + time;
        let mut found = vec![WorkCompletion::default(); DEPTH as usize];
        while self.net.elapsed() < end {
            self.look(&mut found);
        }
    }

    /// Advances time, in whole polling intervals, and returns measurements.
    pub(crate) fn watch_for(&self, time: Duration) -> Seen {
        let link = || self.receiver.link_stats().expect("a link");
        let (start, before) = (self.net.elapsed(), link());
        let delivered: Vec<u64> = self.flows.iter().map(Flow::delivered).collect();
        let (mut queue, mut alpha) = (Series::default(), Series::default());
        let mut found = vec![WorkCompletion::default(); DEPTH as usize];
        let mut looks = 0;
        while self.net.elapsed() < start + time {
            self.look(&mut found);
            queue.push(link().queue_bytes as f64);
            looks += 1;
            if looks % LOOKS_PER_SAMPLE == 0 {
                alpha.push(self.mean_alpha());
            }
        }
        let after = link();
        Seen {
            time: self.net.elapsed() - start,
            queue,
            alpha,
            delivered: self.flows.iter().zip(&delivered).map(|(flow, d)| flow.delivered() - d).collect(),
            packets: after.dequeued_packets - before.dequeued_packets,
            bytes: after.dequeued_bytes - before.dequeued_bytes,
            marked: after.marked - before.marked,
        }
    }

    fn mean_alpha(&self) -> f64 {
        let alphas = self.flows.iter().filter_map(|flow| flow.left.qp.flow()?.alpha);
        alphas.sum::<f64>() / self.flows.len() as f64
    }

    /// A counter of the receiver.
    pub(crate) fn received(&self, name: &str) -> u64 {
        counter(&self.receiver, name)
    }

    /// A counter, summed over all senders.
    pub(crate) fn sent(&self, name: &str) -> u64 {
        self.flows.iter().map(|flow| counter(&flow.device, name)).sum()
    }
}
