//! Runs two senders into one receiver and records a trace of each.

use super::link::counter;
use super::messages::pattern;
use super::{Failure, Outcome, expect};
use rnic::cc::Algorithm;
use rnic::link::LinkConfig;
use rnic::trace::{Header, LinkHeader, Recorder, RecorderThread, Trace, header_now};
use rnic::{Device, DeviceConfig, MemoryRegion, Mtu, RcEnd, WcStatus, WorkCompletion};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The size of a message in bytes, and the most outstanding messages of a sender.
const LEN: usize = 64 << 10;
const DEPTH: u64 = 16;

/// The time between samples: about the time in which the laptop preset lets a receiver send two CNPs to a queue pair.
const INTERVAL: Duration = Duration::from_millis(1);

/// How long to wait for outstanding WRITEs at the end.
const DRAIN: Duration = Duration::from_secs(20);

/// The parameters of a run.
pub(super) struct Plan<'a> {
    pub(super) link: &'a LinkConfig,
    pub(super) cc: &'a Algorithm,
    /// As text.
    pub(super) cc_words: &'a str,
    pub(super) time: Duration,
    pub(super) seed: u64,
    /// The start of the file names of the traces.
    pub(super) stem: &'a Path,
}

/// The result of a run.
pub(super) struct Run {
    pub(super) receiver: Device,
    pub(super) senders: [Device; 2],
    /// The traces of the receiver and of the senders.
    pub(super) port: Trace,
    pub(super) flows: [Trace; 2],
    /// The bytes that each sender completed in the second half, and its length.
    pub(super) bytes: [u64; 2],
    pub(super) half: Duration,
    /// The files.
    pub(super) files: [PathBuf; 3],
}

/// One sender, connected to the receiver.
struct Sender {
    end: RcEnd,
    source: MemoryRegion,
    target: MemoryRegion,
    _peer: RcEnd,
    posted: u64,
    completed: u64,
}

impl Sender {
    fn new(device: &Device, receiver: &Device, seed: u64, number: u64) -> Outcome<Self> {
        let (end, peer) = RcEnd::pair(device, receiver)?;
        let source = end.register(&pattern(seed, number, LEN))?;
        let target = peer.register_remote(LEN)?;
        Ok(Self { end, source, target, _peer: peer, posted: 0, completed: 0 })
    }

    /// Posts messages while there is room, if `more`, and takes completions.
    fn turn(&mut self, more: bool) -> Outcome {
        while more && self.posted - self.completed < DEPTH {
            self.end.qp.write(self.posted, self.source.all(), self.target.remote(0))?;
            self.posted += 1;
        }
        let mut done = [WorkCompletion::default(); DEPTH as usize];
        let n = self.end.cq().poll(&mut done);
        for wc in &done[..n] {
            expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))?;
            self.completed += 1;
        }
        Ok(())
    }
}

impl Plan<'_> {
    /// Runs it.
    pub(super) fn run(&self) -> Outcome<Run> {
        let config = DeviceConfig {
            fault_seed: self.seed,
            link: self.link.clone(),
            cc: self.cc.clone(),
            ..DeviceConfig::default()
        };
        let receiver = config.open()?;
        let devices = [config.open()?, config.open()?];
        let mut senders = [
            Sender::new(&devices[0], &receiver, self.seed, 1)?,
            Sender::new(&devices[1], &receiver, self.seed, 2)?,
        ];
        let names = ["receiver", "sender-1", "sender-2"];
        let files = names.map(|name| self.file(name));
        let mut threads = Vec::new();
        for (file, device) in files.iter().zip([&receiver, &devices[0], &devices[1]]) {
            let cannot = |error| Failure::new(format!("{}: {error}", file.display()));
            let recorder = Recorder::create(file, &self.header(device)?).map_err(cannot)?;
            let device = device.clone();
            threads.push((
                file,
                RecorderThread::start(recorder, INTERVAL, move || device.sample()).map_err(cannot)?,
            ));
        }
        let (bytes, half) = self.send(&mut senders)?;
        for (file, thread) in threads {
            thread.stop().map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        }
        for (sender, name) in senders.iter().zip(["1", "2"]) {
            expect(sender.target.to_vec()? == sender.source.to_vec()?, || {
                format!("the receiver's memory differs from what sender {name} sent")
            })?;
        }
        let read = |file: &Path| {
            Trace::open(file).map_err(|error| Failure::new(format!("{}: {error}", file.display())))
        };
        let (port, flows) = (read(&files[0])?, [read(&files[1])?, read(&files[2])?]);
        Ok(Run { receiver, senders: devices, port, flows, bytes, half, files })
    }

    fn file(&self, name: &str) -> PathBuf {
        let mut file = self.stem.as_os_str().to_owned();
        file.push(format!("-{name}.jsonl"));
        file.into()
    }

    fn header(&self, device: &Device) -> Outcome<Header> {
        let profile = self.link.at(self.cc, Mtu::B4096).map_err(rnic::Error::from)?;
        let red = profile.red.as_ref();
        let link = LinkHeader {
            name: profile.model.to_string(),
            rate: profile.rate.map(|rate| rate.bits_per_second()),
            buffer: Some(profile.buffer),
            kmin: red.map(|red| red.kmin),
            kmax: red.map(|red| red.kmax),
        };
        Ok(Header {
            title: "rnic demo: two senders, one receiver".to_owned(),
            device: device.address().to_string(),
            link: Some(link),
            cc: Some(self.cc_words.to_owned()),
            ..header_now()
        })
    }

    /// Lets both send as much as they can. Returns the bytes that each completed in the second half, and its length.
    fn send(&self, senders: &mut [Sender; 2]) -> Outcome<([u64; 2], Duration)> {
        let start = Instant::now();
        let mut at_half = None;
        while start.elapsed() < self.time {
            for sender in &mut *senders {
                sender.turn(true)?;
            }
            if at_half.is_none() && start.elapsed() >= self.time / 2 {
                at_half = Some((Instant::now(), [senders[0].completed, senders[1].completed]));
            }
        }
        let end = Instant::now();
        let (from, before) = at_half.unwrap_or((start, [0, 0]));
        let bytes = [0, 1].map(|n| (senders[n].completed - before[n]) * LEN as u64);
        while senders.iter().any(|sender| sender.completed < sender.posted) {
            for sender in &mut *senders {
                sender.turn(false)?;
            }
            expect(end.elapsed() < DRAIN, || "the last WRITEs did not complete".to_owned())?;
        }
        Ok((bytes, end.duration_since(from)))
    }
}

impl Run {
    /// The goodput of each sender in the second half, in bits per second.
    pub(super) fn goodput(&self) -> [f64; 2] {
        self.bytes.map(|bytes| bytes as f64 * 8.0 / self.half.as_secs_f64())
    }

    /// Jain's index in the second half: 1 for equal shares, 0.5 if one sender got everything.
    pub(super) fn jain(&self) -> f64 {
        jain(self.goodput())
    }

    /// The queue of the receiver's port over time, in bytes.
    pub(super) fn queue(&self) -> Vec<(Duration, f64)> {
        let samples = self.port.samples.iter();
        samples.map(|s| (s.at, s.port.queue_bytes.unwrap_or_default() as f64)).collect()
    }

    /// The mean queue in bytes.
    pub(super) fn mean_queue(&self) -> f64 {
        let queue = self.queue();
        queue.iter().map(|(_, bytes)| bytes).sum::<f64>() / (queue.len() as f64).max(1.0)
    }

    /// The rate that congestion control allows a sender over time, in bits per second.
    pub(super) fn allowed(&self, sender: usize) -> Vec<(Duration, f64)> {
        let rate = |s: &rnic::trace::Sample| s.qps.iter().find_map(|qp| qp.rate);
        let samples = self.flows[sender].samples.iter();
        samples.filter_map(|s| Some((s.at, rate(s)? as f64))).collect()
    }

    /// The sum of a counter over both senders.
    pub(super) fn of_senders(&self, name: &str) -> u64 {
        self.senders.iter().map(|sender| counter(sender, name)).sum()
    }
}

/// Jain's index of two shares.
pub(super) fn jain(shares: [f64; 2]) -> f64 {
    let [sum, squares] = [shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>()];
    if squares > 0.0 { sum * sum / (2.0 * squares) } else { 0.0 }
}

/// A chart of one line: averages over equal parts of the time; `top` and more is a full block.
pub(super) fn chart(series: &[(Duration, f64)], top: f64) -> String {
    const COLUMNS: usize = 60;
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some((from, first)), Some((to, _))) = (series.first(), series.last()) else { return String::new() };
    let span = to.saturating_sub(*from).as_secs_f64();
    let mut bins = [(0.0, 0u32); COLUMNS];
    for (at, value) in series {
        let place = at.saturating_sub(*from).as_secs_f64() / span * COLUMNS as f64;
        let (sum, count) = &mut bins[(place as usize).min(COLUMNS - 1)];
        (*sum, *count) = (*sum + value, *count + 1);
    }
    let mut last = *first;
    let mut line = String::new();
    for (sum, count) in bins {
        // Samples that repeat the last one are not recorded.
        last = if count > 0 { sum / f64::from(count) } else { last };
        let height = (last / top * 8.0).ceil() as usize;
        line.push(BLOCKS[height.min(BLOCKS.len() - 1)]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_all_for_one_is_not() {
        assert_eq!(jain([3.0, 3.0]), 1.0);
        assert_eq!(jain([3.0, 0.0]), 0.5);
        assert_eq!(jain([0.0, 0.0]), 0.0);
    }

    #[test]
    fn a_chart_shows_heights_and_bridges_gaps() {
        let at = Duration::from_millis;
        let line = chart(&[(at(0), 0.0), (at(30), 4.0), (at(60), 9.0)], 8.0);
        assert_eq!(line.chars().count(), 60);
        assert_eq!(line.chars().filter(|c| *c == '▄').count(), 29);
        assert!(line.starts_with(' ') && line.ends_with('█'));
        assert_eq!(chart(&[], 1.0), "");
        assert_eq!(chart(&[(at(5), 1.0)], 0.0).chars().count(), 60);
    }
}
