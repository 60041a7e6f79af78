//! The model in motion: delay differential equations, integrated by Heun's method in steps that divide the delay.

use super::Model;
use crate::rate::Rate;
use std::collections::VecDeque;
use time::Duration;

/// The longest step, in seconds, and the fewest steps in a loop delay, which is the fastest process in the model.
/// With these values the reference's tables are reproduced.
const LONGEST_STEP: f64 = 2e-6;
const FEWEST_STEPS: f64 = 4.0;

/// Identical flows that began together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The number of flows.
    pub flows: u32,
    /// The rate at which they begin; DCQCN has no slow start: the rate of the port.
    pub rate: Rate,
}

/// The state of a flow of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) alpha: f64,
    pub(super) target: f64,
    pub(super) current: f64,
}

/// The past values that a delayed equation reads.
#[derive(Clone, Debug)]
struct Past {
    p: f64,
    rates: Vec<f64>,
}

/// The course of a model in time.
#[derive(Clone, Debug)]
pub struct Trajectory {
    model: Model,
    step: f64,
    steps: u64,
    sizes: Vec<f64>,
    flows: Vec<Flow>,
    /// In packets.
    queue: f64,
    /// One entry per step, the oldest first: the inputs of the equations at the beginning of the next step.
    past: VecDeque<Past>,
    /// Buffer for the slopes at the beginning of a step.
    slopes: Vec<Flow>,
}

impl Trajectory {
    /// Starts `groups` of flows with an empty queue, alpha at 1, and a loop delay of `delay`, at least a nanosecond.
    #[must_use]
    pub fn new(model: Model, delay: Duration, groups: &[Group]) -> Self {
        let delay = delay.as_secs_f64().max(1e-9);
        let lag = (delay / LONGEST_STEP).ceil().max(FEWEST_STEPS);
        let step = delay / lag;
        let mut trajectory = Self {
            model,
            step,
            steps: 0,
            sizes: Vec::new(),
            flows: Vec::new(),
            queue: 0.0,
            past: VecDeque::new(),
            slopes: Vec::new(),
        };
        // Before the beginning there are no marks. One entry more than the lag: the step's end looks back too.
        for _ in 0..=(lag as usize) {
            trajectory.past.push_back(Past { p: 0.0, rates: Vec::new() });
        }
        for group in groups {
            trajectory.join(*group);
        }
        trajectory
    }

    /// Adds flows that begin now.
    pub fn join(&mut self, group: Group) {
        let rate = group.rate.as_f64() / 8.0 / self.model.packet;
        self.sizes.push(f64::from(group.flows));
        self.flows.push(Flow { alpha: 1.0, target: rate, current: rate });
        for past in &mut self.past {
            past.rates.push(rate);
        }
    }

    /// The time since the beginning.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.steps as f64 * self.step)
    }

    /// The length of the queue, in bytes.
    #[must_use]
    pub fn queue(&self) -> f64 {
        self.queue * self.model.packet
    }

    /// The rate of each flow of a group, counted in the order in which they joined.
    #[must_use]
    pub fn rate(&self, group: usize) -> Option<Rate> {
        self.flows.get(group).map(|f| self.model.rate(f.current))
    }

    /// The target rate of each flow of a group.
    #[must_use]
    pub fn target(&self, group: usize) -> Option<Rate> {
        self.flows.get(group).map(|f| self.model.rate(f.target))
    }

    /// Alpha of each flow of a group.
    #[must_use]
    pub fn alpha(&self, group: usize) -> Option<f64> {
        self.flows.get(group).map(|f| f.alpha)
    }

    /// Continues until `time` since the beginning, and calls `seen` after every step.
    pub fn run_until(&mut self, time: Duration, mut seen: impl FnMut(&Self)) {
        while self.time() < time {
            self.step();
            seen(self);
        }
    }

    /// Continues by one step: at most two microseconds.
    pub fn step(&mut self) {
        self.steps += 1;
        let Some(then) = self.past.pop_front() else { return };
        let (model, step) = (&self.model, self.step);

        // Heun: the slopes at the beginning lead to an estimate of the end; the mean of the slopes at both counts.
        self.slopes.clear();
        let arriving =
            |flows: &[Flow]| flows.iter().zip(&self.sizes).map(|(f, n)| f.current * n).sum::<f64>();
        let growth_here = arriving(&self.flows) - model.capacity;
        for (flow, rate) in self.flows.iter_mut().zip(&then.rates) {
            let slope = model.slope(*flow, then.p, *rate);
            *flow = model.bounded(flow.moved(slope, step));
            self.slopes.push(slope);
        }
        let growth_there = arriving(&self.flows) - model.capacity;
        if let Some(next) = self.past.front() {
            let ends = self.flows.iter_mut().zip(&next.rates).zip(&self.slopes);
            for ((flow, rate), first) in ends {
                let second = model.slope(*flow, next.p, *rate);
                // From the estimate: half of the first slope back, half of the second one forth.
                *flow = model.bounded(flow.moved(second, step / 2.0).moved(*first, -step / 2.0));
            }
        }
        self.queue = (self.queue + step * f64::midpoint(growth_here, growth_there)).max(0.0);

        let mut rates = then.rates;
        rates.clear();
        rates.extend(self.flows.iter().map(|f| f.current));
        self.past.push_back(Past { p: model.red.probability(self.queue * model.packet), rates });
    }
}

impl Flow {
    fn moved(self, slope: Self, by: f64) -> Self {
        Self {
            alpha: self.alpha + slope.alpha * by,
            target: self.target + slope.target * by,
            current: self.current + slope.current * by,
        }
    }
}

impl Model {
    /// The slopes of a flow that reacts to the marks `p` and the rate `then`.
    pub(super) fn slope(&self, flow: Flow, p: f64, then: f64) -> Flow {
        let t = self.terms(p, then);
        let gap = flow.target - flow.current;
        Flow {
            alpha: self.gain / self.alpha_period * (self.alpha_goal(p, then) - flow.alpha),
            target: -gap / self.tau * t.a + self.additive * then * t.c_plus_e,
            current: -flow.current * flow.alpha / (2.0 * self.tau) * t.a + gap / 2.0 * then * t.b_plus_d,
        }
    }

    fn bounded(&self, flow: Flow) -> Flow {
        let rate = |r: f64| r.min(self.capacity).max(self.min_rate);
        Flow { alpha: flow.alpha.clamp(0.0, 1.0), target: rate(flow.target), current: rate(flow.current) }
    }
}
