//! From samples to quantities over time, of one file.

use super::Failure;
use super::series::{Counter, Gauge, Span};
use rnic::trace::{Header, LaneSample, QpSample, Reader, Sample};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Queue pairs of a file that are looked at, as many as a sample has at most.
const MAX_FLOWS: usize = rnic::trace::MAX_QPS;

/// Lanes of a file that are looked at, likewise.
const MAX_LANES: usize = rnic::trace::MAX_LANES;

/// A trace that was looked through once.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// Times of the first and the last sample, since the trace began, in seconds.
    pub(super) first: f64,
    pub(super) last: f64,
    /// From when on, and until when, anything changed from sample to sample.
    pub(super) busy: Option<(f64, f64)>,
    samples: u64,
}

impl Survey {
    /// Reads a whole file once.
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
            return Err(format!("{}: the trace has one sample; a line needs two", path.display()).into());
        }
        Ok(Self { path: path.to_owned(), header, first, last, busy, samples })
    }

    /// Seconds from sample to sample, on average.
    pub(super) fn interval(&self) -> f64 {
        (self.last - self.first) / (self.samples - 1) as f64
    }

    /// Reads the file again: what is to be drawn of it, if time 0 of the figure is `zero` seconds after the trace began
    /// (before, if negative).
    pub(super) fn gather(&self, span: &Span, zero: f64) -> Result<Gathered, Failure> {
        let mut gathered = Gathered::default();
        for sample in Reader::open(&self.path)? {
            // It was read a moment ago; a file that is still written to has grown, which is as well.
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
    /// Bits a second.
    pub(super) allowed: Gauge,
    pub(super) alpha: Gauge,
    /// The number of the last sample that it was in.
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

/// What is drawn of one file.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By number.
    pub(super) flows: BTreeMap<u32, Flow>,
    /// By peer and number.
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
    /// The time of the sample before.
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
        // What appears later than the first sample was made since the one before, and counted from 0.
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
