//! Computed traces. Two senders with the reaction points of `cc` share the queue of one port, packet by packet. A receiver
//! whose buffer is full at times makes a sender wait for credits.

use rnic::cc::dcqcn::{CongestionPoint, NotificationPoint};
use rnic::cc::{Algorithm, Controller, Pacer, Policy, Rate};
use rnic::time::{Duration, Instant};
use rnic::trace::{Header, LaneSample, LinkHeader, PortSample, QpSample, Sample, Trace};
use std::collections::VecDeque;

const PACKET: u64 = 4096;

/// The delay of a mark from the queue to the sender.
const LOOP: Duration = Duration::from_micros(100);

const SERVER: &str = "10.0.0.9";

/// A run of two senders into one port.
pub(super) struct Bottleneck {
    pub(super) rate: Rate,
    /// Bytes.
    pub(super) buffer: u64,
    pub(super) length: Duration,
    /// When the second sender starts.
    pub(super) late: Duration,
    pub(super) algorithm: &'static str,
}

impl Default for Bottleneck {
    fn default() -> Self {
        Self {
            rate: Rate::from_gbps(10),
            buffer: 1_000_000,
            length: Duration::from_secs(2),
            late: Duration::from_millis(500),
            algorithm: "dcqcn:preset=laptop",
        }
    }
}

struct Sender {
    begins: Duration,
    pacer: Pacer,
    controller: Controller,
    receiver: NotificationPoint,
    /// CNPs on their way to the sender.
    cnps: VecDeque<Instant>,
    qp: QpSample,
    port: PortSample,
    received: u64,
}

struct Run {
    policy: Policy,
    epoch: Instant,
    senders: Vec<Sender>,
    marking: CongestionPoint,
    queue: VecDeque<usize>,
    port: PortSample,
    buffer: u64,
}

impl Run {
    fn new(of: &Bottleneck) -> Self {
        let policy = of.algorithm.parse::<Algorithm>().expect("words of cc").at(of.rate).expect("settings");
        let epoch = Instant::EPOCH;
        let sender = |index: u32| Sender {
            begins: of.late * index,
            // A late packet leaves with the next one.
            pacer: Pacer::new(epoch, of.rate, PACKET as u32),
            controller: policy.controller(0),
            receiver: NotificationPoint::default(),
            cnps: VecDeque::new(),
            qp: QpSample { qpn: 17 + index, label: Some(SERVER.into()), ..Default::default() },
            port: PortSample::default(),
            received: 0,
        };
        Self {
            senders: (0..2).map(sender).collect(),
            marking: CongestionPoint::new(policy.red().expect("an algorithm with marks"), 1),
            epoch,
            policy,
            queue: VecDeque::new(),
            port: PortSample::default(),
            buffer: of.buffer,
        }
    }

    fn queued(&self) -> u64 {
        self.queue.len() as u64 * PACKET
    }

    /// The time of one packet on the link.
    fn step(&mut self, at: Duration) {
        let now = self.epoch + at;
        for index in 0..self.senders.len() {
            let full = self.queued() + PACKET > self.buffer;
            let sender = &mut self.senders[index];
            while sender.cnps.pop_front_if(|due| *due <= now).is_some() {
                sender.controller.on_cnp(now);
                sender.port.rp_cnp_handled += 1;
            }
            while sender.controller.poll_timeout().is_some_and(|due| due <= now) {
                sender.controller.handle_timeout(now);
            }
            sender.pacer.set_rate(now, sender.controller.rate());
            if at < sender.begins || !sender.pacer.may_send(now) {
                continue;
            }
            sender.pacer.on_sent(now, PACKET);
            sender.controller.on_bytes_sent(now, PACKET);
            if full {
                self.port.link_dropped += 1;
                sender.port.retransmitted_packets += 1;
            } else {
                sender.qp.sent_bytes += PACKET;
                self.queue.push_back(index);
            }
        }
        self.port.queue_max = self.port.queue_max.max(Some(self.queued()));
        let queued = self.queued();
        let Some(index) = self.queue.pop_front() else { return };
        let sender = &mut self.senders[index];
        let marked = self.marking.marks(queued);
        sender.received += PACKET;
        self.port.link_marked += u64::from(marked);
        let settings = self.policy.notification().expect("DCQCN");
        sender.receiver.handle_packet(settings, now, marked);
        if sender.receiver.poll_cnp(now) {
            self.port.np_cnp_sent += 1;
            sender.cnps.push_back(now + LOOP);
        }
    }

    fn samples(&mut self, at: Duration) -> [Sample; 3] {
        let now = self.epoch + at;
        let mut receiving = Vec::new();
        let mut one = |sender: &Sender| {
            let qp = QpSample {
                rate: Some(sender.controller.rate().bits_per_second()),
                target_rate: sender.controller.target_rate().map(Rate::bits_per_second),
                alpha: sender.controller.alpha(now),
                ..sender.qp.clone()
            };
            let peer = format!("10.0.0.{}", sender.qp.qpn - 16);
            receiving.push(QpSample {
                qpn: 16 + qp.qpn,
                label: Some(peer),
                received_bytes: sender.received,
                ..Default::default()
            });
            let qps = if at < sender.begins { vec![] } else { vec![qp] };
            Sample { at, port: sender.port.clone(), qps, lanes: vec![] }
        };
        let (first, second) = (one(&self.senders[0]), one(&self.senders[1]));
        let port = PortSample { queue_bytes: Some(self.queued()), ..self.port.clone() };
        self.port.queue_max = Some(self.queued());
        [first, second, Sample { at, port, qps: receiving, lanes: vec![] }]
    }
}

impl Bottleneck {
    /// The traces of both senders and of the receiver, which has the queue.
    pub(super) fn run(&self) -> [Trace; 3] {
        let mut run = Run::new(self);
        let red = run.policy.red().expect("an algorithm with marks");
        let header = |device: &str| Header {
            title: "Two flows into one port (computed, not measured)".into(),
            device: device.into(),
            started: Duration::from_secs(1_767_225_600),
            cc: Some(self.algorithm.into()),
            ..Header::new()
        };
        let link = LinkHeader {
            name: format!("{} Gb/s, buffer {} KB", self.rate.as_mbps() / 1e3, self.buffer / 1000),
            rate: Some(self.rate.bits_per_second()),
            buffer: Some(self.buffer),
            kmin: Some(red.kmin),
            kmax: Some(red.kmax),
        };
        let mut traces =
            ["10.0.0.1", "10.0.0.2", SERVER].map(|device| Trace { header: header(device), samples: vec![] });
        traces[2].header.link = Some(link);
        let step = self.rate.time_for(PACKET);
        let (mut at, mut sampled) = (Duration::ZERO, Duration::ZERO);
        while at < self.length {
            if at >= sampled {
                for (trace, sample) in traces.iter_mut().zip(run.samples(at)) {
                    trace.samples.push(sample);
                }
                sampled += Duration::from_millis(1);
            }
            run.step(at);
            at += step;
        }
        traces
    }
}

/// A sender on a link with credits, whose receiver reads nothing for 15 of every 100 ms.
pub(super) fn credits() -> Trace {
    /// The receiver's buffer in blocks, and the blocks that it and the link take per tenth of a millisecond.
    const ROOM: u64 = 2048;
    const DRAIN: u64 = 190;
    const LINE: u64 = 160;
    let header = Header {
        title: "Credits of a slow receiver (computed, not measured)".into(),
        device: "10.0.0.1".into(),
        link: Some(LinkHeader { name: "virtual lanes with credits".into(), ..Default::default() }),
        ..Header::new()
    };
    let (mut filled, mut sent, mut lane) = (0, 0, LaneSample { peer: SERVER.into(), ..Default::default() });
    let mut samples = Vec::new();
    for tick in 0..10_000 {
        let at = Duration::from_micros(100 * tick);
        if tick % 10 == 0 {
            let qp =
                QpSample { qpn: 17, label: Some(SERVER.into()), sent_bytes: 64 * sent, ..Default::default() };
            lane.credits = Some(ROOM - filled);
            samples.push(Sample {
                at,
                port: PortSample::default(),
                qps: vec![qp],
                lanes: vec![lane.clone()],
            });
        }
        let takes = if tick % 1000 < 150 { 0 } else { DRAIN + tick % 7 * 12 };
        filled -= takes.min(filled);
        let goes = LINE.min(ROOM - filled);
        (filled, sent) = (filled + goes, sent + goes);
        if goes < LINE {
            lane.stalls += 1;
            lane.stalled += Duration::from_micros(100 - 100 * goes / LINE);
        }
    }
    Trace { header, samples }
}
