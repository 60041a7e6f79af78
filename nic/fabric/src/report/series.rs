//! Samples over time.

use super::micros;
use crate::network::{Fabric, Shared};
use crate::run::FlowState;
use crate::workload::Operation;
use rnic_core::sim::BEGINNING;
use serde::Serialize;
use time::Duration;

/// Values at equal distances in time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// The time between two samples, in microseconds.
    pub interval_us: f64,
    /// The times of the samples, in microseconds.
    pub time_us: Vec<f64>,
    /// What was sampled.
    pub lines: Vec<Line>,
}

/// One line of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its name: a port or a flow.
    pub name: String,
    /// What it shows: `queue` (bytes, at the sample), `rate` (Gb/s since the last sample: what a port has sent, and what the receiver
    /// of a flow has accepted), `paused` (share of the time since the last sample).
    pub kind: &'static str,
    /// Of the rate of a port: that of its cable, in Gb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// Of a queue that marks packets: Kmin and Kmax in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marking: Option<[f64; 2]>,
    /// A value for each time.
    pub values: Vec<f64>,
}

/// Where a line gets its values.
#[derive(Clone, Debug)]
enum Source {
    Queue {
        node: usize,
        port: usize,
        class: Option<usize>,
    },
    Rate {
        node: usize,
        port: usize,
        last: f64,
    },
    Paused {
        node: usize,
        port: usize,
        class: usize,
        last: u64,
    },
    /// `most`: the rate of the cable to the receiver, in Gb/s.
    Flow {
        flow: usize,
        last: u64,
        most: f64,
    },
}

/// Takes samples.
#[derive(Clone, Debug)]
pub struct Sampler {
    interval: Duration,
    next: Duration,
    sources: Vec<Source>,
    series: Series,
}

/// The most samples of a run: more than a picture shows.
const MOST: u128 = 100_000;

impl Sampler {
    /// Samples the ports of these names and the flows of these names. `until`: the length of the run, which the interval
    /// must divide into no more than 100,000 samples; it is lengthened otherwise.
    #[must_use]
    pub fn new(
        fabric: &Fabric,
        flows: &[FlowState],
        ports: &[String],
        names: &[String],
        interval: Duration,
        until: Duration,
    ) -> Self {
        let least = until.as_nanos() / MOST + 1;
        let interval = interval.max(Duration::from_nanos(u64::try_from(least).unwrap_or(u64::MAX)));
        let mut sampler = Self {
            interval,
            next: Duration::ZERO,
            sources: Vec::new(),
            series: Series { interval_us: micros(interval), ..Series::default() },
        };
        for (node, of) in fabric.topology().port_names().iter().enumerate() {
            for (port, name) in of.iter().enumerate().filter(|(_, name)| ports.contains(name)) {
                let config = fabric.port_config(node, port);
                let queue = sampler.add(name, "queue", Source::Queue { node, port, class: None });
                queue.marking = config.and_then(|(_, red)| red).map(|red| [red.kmin as f64, red.kmax as f64]);
                let rate = sampler.add(name, "rate", Source::Rate { node, port, last: 0.0 });
                rate.link_gbps = config.map(|(rate, _)| rate.as_f64() / 1e9);
                for class in 0..cc::pfc::PRIORITIES {
                    let name = format!("{name} class {class}");
                    sampler.add(&name, "paused", Source::Paused { node, port, class, last: 0 });
                }
            }
        }
        for (flow, state) in flows.iter().enumerate().filter(|(_, state)| names.contains(&state.flow.name)) {
            let receiver =
                if state.flow.common.operation == Operation::Read { state.flow.src } else { state.flow.dst };
            let most = fabric.port_config(receiver, 0).map_or(f64::INFINITY, |(rate, _)| rate.as_f64() / 1e9);
            sampler.add(&state.flow.name, "rate", Source::Flow { flow, last: 0, most });
        }
        sampler
    }

    fn add(&mut self, name: &str, kind: &'static str, source: Source) -> &mut Line {
        self.sources.push(source);
        let line = Line { name: name.to_owned(), kind, link_gbps: None, marking: None, values: Vec::new() };
        self.series.lines.push_mut(line)
    }

    /// When it wants to look next.
    #[must_use]
    pub const fn next(&self) -> Duration {
        self.next
    }

    /// Takes a sample, if its time has come.
    pub fn look(&mut self, now: Duration, fabric: &Shared, flows: &[FlowState]) {
        if now < self.next {
            return;
        }
        self.next += self.interval;
        self.series.time_us.push(micros(now));
        let mut fabric = fabric.lock();
        let (at, nanos) = (BEGINNING + now, self.interval.as_nanos() as f64);
        for (source, line) in self.sources.iter_mut().zip(&mut self.series.lines) {
            let value = match source {
                Source::Queue { node, port, class } => match class {
                    Some(class) => fabric.queued(*node, *port, *class) as f64,
                    None => fabric.queued_at(*node, *port) as f64,
                },
                Source::Rate { node, port, last } => {
                    let sent = fabric.sent(at, *node, *port);
                    8.0 * (sent - std::mem::replace(last, sent)) / nanos
                }
                Source::Paused { node, port, class, last } => {
                    let paused = fabric.paused_ns(at, *node, *port, *class);
                    (paused - std::mem::replace(last, paused)) as f64 / nanos
                }
                Source::Flow { flow, last, .. } => {
                    let accepted = flows.get(*flow).map_or(0, FlowState::delivered);
                    8.0 * (accepted - std::mem::replace(last, accepted)) as f64 / nanos
                }
            };
            line.values.push(value);
        }
    }

    /// What was sampled. Pauses of classes that were never paused are left out.
    #[must_use]
    pub fn finish(mut self) -> Series {
        for (source, line) in self.sources.iter().zip(&mut self.series.lines) {
            if let Source::Flow { most, .. } = source {
                spread(&mut line.values, *most);
            }
        }
        self.series
            .lines
            .retain(|line| line.kind != "paused" || line.values.iter().any(|value| *value > 0.0));
        self.series
    }
}

/// A packet counts when all of it is there. What is then more than the cable carries since the last sample has come before that.
fn spread(rates: &mut [f64], most: f64) {
    let mut early = 0.0;
    for rate in rates.iter_mut().rev() {
        let all = *rate + early;
        *rate = all.min(most);
        early = all - *rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pictures once showed flows that were faster than their cables.
    #[test]
    fn no_flow_is_faster_than_its_cable() {
        let mut rates = [0.0, 0.0, 4.0, 0.0, 0.0, 25.0, 10.0, 11.0, 3.0];
        spread(&mut rates, 10.0);
        assert_eq!(rates, [0.0, 0.0, 4.0, 6.0, 10.0, 10.0, 10.0, 10.0, 3.0]);
    }
}
