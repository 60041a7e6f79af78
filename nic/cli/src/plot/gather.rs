//! Turns the samples of a file into quantities over time.

use super::Failure;
use rnic::trace::{Header, LaneSample, QpSample, Reader, Sample};
use rnic_plot::series::{Counter, Gauge, Span};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most queue pairs of a file, equal to the limit of a sample.
const MAX_FLOWS: usize = rnic::trace::MAX_QPS;

/// The most lanes of a file, equal to the limit of a sample.
const MAX_LANES: usize = rnic::trace::MAX_LANES;

/// The result of reading a trace for the first time.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// The times of the first and the last sample since the start of the trace, in seconds.
    pub(super) first: f64,
    pub(super) last: f64,
    /// The time span in which samples differ from each other.
    pub(super) busy: Option<(f64, f64)>,
    samples: u64,
}

impl Survey {
    /// Reads a whole file.
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let named = |error: rnic::trace::TraceError| match error {
            rnic::trace::TraceError::Open { .. } => Failure::from(error),
            other => format!("{}: {other}", path.display()).into(),
        };
        let mut reader = Reader::open(path).map_err(named)?;
        let header = reader.header().clone();
        let (mut first, mut last, mut samples, mut busy) = (None, 0.0, 0, None);
        let mut before: Option<Sample> = None;
        for sample in &mut reader {
            let sample = sample.map_err(named)?;
            let since = last;
            last = sample.at.as_secs_f64();
            first.get_or_insert(last);
            samples += 1;
            if before.replace(sample).zip(before.as_ref()).is_some_and(|(old, new)| has_changed(&old, new)) {
                busy = Some((busy.map_or(since, |(from, _)| from), last));
            }
        }
        let Some(first) = first else {
            return Err(format!("{}: the trace has a header but no samples", path.display()).into());
        };
        if samples < 2 {
            return Err(format!("{}: the trace has only one sample; a line needs two", path.display()).into());
        }
        Ok(Self { path: path.to_owned(), header, first, last, busy, samples })
    }

    /// The mean time between samples in seconds.
    pub(super) fn interval(&self) -> f64 {
        (self.last - self.first) / (self.samples - 1) as f64
    }

    /// Reads the file again, for the data that is drawn. Time 0 of the figure is `zero` seconds after the start of the trace;
    /// a negative value is before it.
    pub(super) fn gather(&self, span: &Span, zero: f64) -> Result<Gathered, Failure> {
        let mut gathered = Gathered::default();
        for sample in Reader::open(&self.path)? {
            // A file that is still being written may have grown since.
            let sample = sample.map_err(|error| format!("{}: {error}", self.path.display()))?;
            gathered.take(span, sample.at.as_secs_f64() - zero, &sample);
        }
        Ok(gathered)
    }
}

fn has_changed(before: &Sample, now: &Sample) -> bool {
    (&before.port, &before.qps, &before.lanes) != (&now.port, &now.qps, &now.lanes)
}

/// A queue pair.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) label: Option<String>,
    pub(super) sent: Counter,
    pub(super) received: Counter,
    /// Bits per second.
    pub(super) allowed: Gauge,
    pub(super) alpha: Gauge,
    /// The number of the last sample that contained it.
    seen: u64,
}

impl Flow {
    fn take(&mut self, span: &Span, at: f64, sample: &QpSample) {
        if sample.label.is_some() {
            self.label.clone_from(&sample.label);
        }
        self.sent.add(span, at, sample.sent_bytes);
        self.received.add(span, at, sample.received_bytes);
        self.allowed.add(span, at, sample.rate.map(|rate| rate as f64));
        self.alpha.add(span, at, sample.alpha);
    }
}

/// A virtual lane or a priority towards one peer.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Blocks.
    pub(super) credits: Gauge,
    /// Nanoseconds.
    pub(super) stalled: Counter,
    /// Nanoseconds.
    pub(super) paused: Counter,
}

impl Lane {
    fn take(&mut self, span: &Span, at: f64, sample: &LaneSample) {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.credits.add(span, at, sample.credits.map(|blocks| blocks as f64));
        self.stalled.add(span, at, nanos(sample.stalled));
        self.paused.add(span, at, nanos(sample.paused));
    }
}

/// The data of a file.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By QP number.
    pub(super) flows: BTreeMap<u32, Flow>,
    /// By peer and lane number.
    pub(super) lanes: BTreeMap<(String, u8), Lane>,
    /// Bytes.
    pub(super) queue: Gauge,
    /// Bytes.
    pub(super) queue_max: Gauge,
    pub(super) marked: Counter,
    pub(super) cnps_sent: Counter,
    pub(super) cnps_handled: Counter,
    pub(super) link_dropped: Counter,
    pub(super) dropped: Counter,
    pub(super) retransmitted: Counter,
    samples: u64,
    /// The time of the previous sample.
    before: Option<f64>,
}

impl Gathered {
    fn take(&mut self, span: &Span, at: f64, sample: &Sample) {
        self.samples += 1;
        let port = &sample.port;
        self.queue.add(span, at, port.queue_bytes.map(|bytes| bytes as f64));
        self.queue_max.add(span, at, port.queue_max.map(|bytes| bytes as f64));
        for (counter, total) in [
            (&mut self.marked, port.link_marked),
            (&mut self.cnps_sent, port.np_cnp_sent),
            (&mut self.cnps_handled, port.rp_cnp_handled),
            (&mut self.link_dropped, port.link_dropped),
            (&mut self.dropped, port.dropped_packets),
            (&mut self.retransmitted, port.retransmitted_packets),
        ] {
            counter.add(span, at, total);
        }
        // An object that appears after the first sample was created since the previous one, and counted from 0.
        let born = || self.before.map(Counter::born).unwrap_or_default();
        for qp in &sample.qps {
            if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&qp.qpn) {
                continue;
            }
            let new = || Flow { sent: born(), received: born(), ..Flow::default() };
            let flow = self.flows.entry(qp.qpn).or_insert_with(new);
            flow.seen = self.samples;
            flow.take(span, at, qp);
        }
        for flow in self.flows.values_mut().filter(|flow| flow.seen != self.samples) {
            flow.allowed.add(span, at, None);
            flow.alpha.add(span, at, None);
        }
        for lane in &sample.lanes {
            let key = (lane.peer.clone(), lane.vl);
            if self.lanes.len() < MAX_LANES || self.lanes.contains_key(&key) {
                let new = || Lane { stalled: born(), paused: born(), ..Lane::default() };
                self.lanes.entry(key).or_insert_with(new).take(span, at, lane);
            }
        }
        self.before = Some(at);
    }
}
