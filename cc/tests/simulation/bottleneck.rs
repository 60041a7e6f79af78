//! One queue and its flows: each flow sends packets of one size as its pacer and its window allow, the queue transmits them at the
//! rate of its port, and what the receiver has to say reaches the sender after a fixed delay.
//!
//! Every byte of a packet counts, and it is the same number everywhere: in rates, in the queue, for RED, in the byte
//! counter. The queue has no bound, so nothing is lost. Packets take no time from sender to queue: the delay, which
//! the feedback has, is the whole control loop. The queue counts the packet in transmission.

use cc::dcqcn::{CongestionPoint, Notification, NotificationPoint};
use cc::hpcc::{Hop, Telemetry};
use cc::{Ack, Algorithm, Controller, Pacer, Policy, Rate};
use std::collections::VecDeque;
use time::{Duration, Instant};

struct Flow {
    controller: Controller,
    pacer: Pacer,
    notification: NotificationPoint,
    /// When it may send, and when its controller wants to be called.
    sends: Option<Instant>,
    timeout: Option<Instant>,
    delivered: u64,
    /// Packets that it has sent, and that were acknowledged.
    sent: u64,
    acked: u64,
    /// Bytes that no acknowledgement has arrived for.
    in_flight: u64,
}

impl Flow {
    /// Makes the pacer follow the controller.
    fn follow(&mut self, now: Instant) {
        self.pacer.set_rate(now, self.controller.rate());
        // A packet may always be in flight.
        let is_shut =
            self.in_flight > 0 && self.controller.window().is_some_and(|window| self.in_flight >= window);
        self.sends = self.pacer.next_send().filter(|_| !is_shut);
        self.timeout = self.controller.poll_timeout();
    }
}

/// What reaches a sender.
#[derive(Clone, Copy, Debug)]
struct Feedback {
    at: Instant,
    flow: usize,
    cnp: bool,
    ack: Ack,
    /// What the queue said when the packet left.
    telemetry: Telemetry,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Depart,
    Feedback,
    Send(usize),
    Timeout(usize),
}

pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    policy: Policy,
    packet: u64,
    delay: Duration,
    flows: Vec<Flow>,
    marking: Option<CongestionPoint>,
    /// Whether the port says nothing of itself.
    is_mute: bool,
    notification: Option<Notification>,
    /// The flows of the packets in the queue, and when they arrived.
    queue: VecDeque<(usize, Instant)>,
    departs: Option<Instant>,
    feedback: VecDeque<Feedback>,
    /// The integral of the queue over time, in bytes x seconds, and its largest length.
    area: f64,
    largest: u64,
    departed: u64,
    marked: u64,
}

/// What was seen between two moments.
pub(crate) struct Seen {
    pub(crate) mean_queue: f64,
    pub(crate) largest_queue: f64,
    pub(crate) mean_alpha: f64,
    pub(crate) marked: f64,
    pub(crate) utilisation: f64,
    pub(crate) delivered: Vec<u64>,
}

impl Seen {
    /// Jain's index of fairness: 1 if all got the same, 1/N if one got everything.
    pub(crate) fn jain(&self) -> f64 {
        let sum: f64 = self.delivered.iter().map(|d| *d as f64).sum();
        let squares: f64 = self.delivered.iter().map(|d| (*d as f64).powi(2)).sum();
        sum * sum / (self.delivered.len() as f64 * squares)
    }
}

impl World {
    pub(crate) fn new(algorithm: &Algorithm, line: Rate, packet: u64, delay: Duration, seed: u64) -> Self {
        let policy = algorithm.at(line).expect("settings in order");
        let start = Instant::EPOCH;
        Self {
            start,
            now: start,
            is_mute: false,
            marking: policy.red().map(|red| CongestionPoint::new(red, seed)),
            notification: policy.notification().cloned(),
            policy,
            packet,
            delay,
            flows: Vec::new(),
            queue: VecDeque::new(),
            departs: None,
            feedback: VecDeque::new(),
            area: 0.0,
            largest: 0,
            departed: 0,
            marked: 0,
        }
    }

    /// Adds a flow that begins now, at the rate of the port.
    pub(crate) fn join(&mut self) {
        self.join_with(self.policy.controller(0));
    }

    pub(crate) fn join_with(&mut self, controller: Controller) {
        let mut flow = Flow {
            pacer: Pacer::new(self.now, controller.rate(), 0),
            controller,
            notification: NotificationPoint::default(),
            sends: None,
            timeout: None,
            delivered: 0,
            sent: 0,
            acked: 0,
            in_flight: 0,
        };
        flow.follow(self.now);
        self.flows.push(flow);
    }

    /// From now on the port says nothing of itself.
    pub(crate) const fn mute(&mut self) {
        self.is_mute = true;
    }

    fn queued(&self) -> u64 {
        self.queue.len() as u64 * self.packet
    }

    fn next_event(&self) -> Option<(Instant, Event)> {
        let mut first: Option<(Instant, Event)> = None;
        let mut offer = |at: Option<Instant>, event: Event| {
            if let Some(at) = at
                && first.is_none_or(|(earliest, _)| at < earliest)
            {
                first = Some((at, event));
            }
        };
        offer(self.departs, Event::Depart);
        offer(self.feedback.front().map(|f| f.at), Event::Feedback);
        for (n, flow) in self.flows.iter().enumerate() {
            offer(flow.sends, Event::Send(n));
            offer(flow.timeout, Event::Timeout(n));
        }
        first
    }

    /// Goes on until `at` after the start.
    pub(crate) fn run_until(&mut self, at: Duration) {
        let end = self.start + at;
        while let Some((at, event)) = self.next_event().filter(|(at, _)| *at < end) {
            // What was due before the present is done now.
            self.pass(at.max(self.now));
            match event {
                Event::Depart => self.depart(),
                Event::Feedback => self.take_feedback(),
                Event::Send(n) => self.send(n),
                Event::Timeout(n) => {
                    let now = self.now;
                    self.flows[n].controller.handle_timeout(now);
                    self.flows[n].follow(self.now);
                }
            }
        }
        self.pass(end);
    }

    fn pass(&mut self, to: Instant) {
        self.area += self.queued() as f64 * (to - self.now).as_secs_f64();
        self.now = to;
    }

    fn send(&mut self, n: usize) {
        let (now, flow) = (self.now, &mut self.flows[n]);
        flow.controller.on_bytes_sent(now, self.packet);
        flow.pacer.on_sent(now, self.packet);
        flow.in_flight += self.packet;
        flow.sent += 1;
        self.flows[n].follow(self.now);
        self.queue.push_back((n, now));
        self.largest = self.largest.max(self.queued());
        if self.departs.is_none() {
            self.departs = Some(now + self.policy.line().time_for(self.packet));
        }
    }

    fn depart(&mut self) {
        let (now, queued) = (self.now, self.queued());
        let Some((n, arrived)) = self.queue.pop_front() else { return };
        let marked = self.marking.as_mut().is_some_and(|m| m.marks(queued));
        self.departed += 1;
        self.marked += u64::from(marked);
        let flow = &mut self.flows[n];
        flow.delivered += self.packet;
        let cnp = self.notification.as_ref().is_some_and(|settings| {
            flow.notification.handle_packet(settings, now, marked);
            flow.notification.poll_cnp(now)
        });
        let ack = Ack {
            bytes: self.packet,
            marked: if marked { self.packet } else { 0 },
            rtt: Some(now + self.delay - arrived),
        };
        let hop = Hop::new(self.policy.line(), now, self.departed * self.packet, self.queued());
        let said = if self.is_mute { &[][..] } else { &[hop] };
        let telemetry = Telemetry::of(said).expect("room for one");
        // DCQCN has no use for acknowledgements.
        if cnp || self.notification.is_none() {
            self.feedback.push_back(Feedback { at: now + self.delay, flow: n, cnp, ack, telemetry });
        }
        self.departs = (!self.queue.is_empty()).then(|| now + self.policy.line().time_for(self.packet));
    }

    fn take_feedback(&mut self) {
        let Some(Feedback { flow: n, cnp, ack, telemetry, .. }) = self.feedback.pop_front() else { return };
        let (now, flow) = (self.now, &mut self.flows[n]);
        if cnp {
            flow.controller.on_cnp(now);
        } else {
            flow.in_flight -= ack.bytes;
            flow.acked += 1;
            flow.controller.on_ack(now, &ack);
            flow.controller.on_telemetry(now, flow.acked, flow.sent, &telemetry);
        }
        self.flows[n].follow(self.now);
    }

    /// Runs from now until `at` after the start, and tells what was seen.
    pub(crate) fn watch_until(&mut self, at: Duration) -> Seen {
        let (from, area) = (self.now, self.area);
        let (departed, marked) = (self.departed, self.marked);
        let before: Vec<_> = self.flows.iter().map(|f| f.delivered).collect();
        self.largest = self.queued();
        let (mut alpha, mut samples) = (0.0, 0.0);
        while self.now < self.start + at {
            self.run_until((self.now - self.start + Duration::from_micros(100)).min(at));
            for flow in &self.flows {
                alpha += flow.controller.alpha(self.now).unwrap_or(0.0);
                samples += 1.0;
            }
        }
        let time = (self.now - from).as_secs_f64();
        let bytes = (self.departed - departed) * self.packet;
        Seen {
            mean_queue: (self.area - area) / time,
            largest_queue: self.largest as f64,
            mean_alpha: alpha / samples,
            marked: (self.marked - marked) as f64 / (self.departed - departed) as f64,
            utilisation: bytes as f64 * 8.0 / time / self.policy.line().as_f64(),
            delivered: self.flows.iter().zip(&before).map(|(f, b)| f.delivered - b).collect(),
        }
    }
}
