//! Rates, from two looks at what programs publish.

use super::problem;
use crate::programs::Seen;
use rnic::engine::QpSnapshot;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// PSNs have 24 bits.
const PSNS: u32 = 1 << 24;

/// What counts as waiting: for the peer's window, pace, credit or pause.
const STALLS: [&str; 5] =
    ["window_stalls", "pace_stalls", "credit_stalls", "greeting_stalls", "pause_stalls"];

/// A program, with what it did since the last look.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) now: Seen,
    before: Option<Seen>,
    /// Between the two.
    time: Duration,
}

impl Line {
    /// A counter's increase per second; `None` before the second look.
    pub(super) fn rate(&self, counter: &str) -> Option<f64> {
        let before = self.before.as_ref()?;
        let more = self.now.counter(counter).saturating_sub(before.counter(counter));
        Some(more as f64 / self.time.as_secs_f64())
    }

    /// The sum of several.
    fn rates(&self, counters: &[&str]) -> Option<f64> {
        counters.iter().map(|counter| self.rate(counter)).sum()
    }

    /// Times per second that a queue pair waited.
    pub(super) fn stalls(&self) -> Option<f64> {
        self.rates(&STALLS)
    }

    /// Packets dropped per second, for any reason.
    pub(super) fn drops(&self) -> Option<f64> {
        let reasons = rnic::engine::DropReason::ALL.iter().map(|reason| self.rate(reason.name()));
        reasons.chain([self.rate("socket_rx_overrun")]).sum()
    }

    /// The queue pairs.
    pub(super) fn queue_pairs(&self) -> &[QpSnapshot] {
        self.now.queue_pairs.as_ref().map_or(&[], |published| &published.queue_pairs)
    }

    /// Packets per second that a queue pair sends and receives, by its PSNs.
    pub(super) fn qp_rates(&self, qp: &QpSnapshot) -> Option<(f64, f64)> {
        let published = self.before.as_ref()?.queue_pairs.as_ref()?;
        let before = published.queue_pairs.iter().find(|of| of.qpn == qp.qpn && of.peer == qp.peer)?;
        let rate =
            |now: u32, before: u32| f64::from(now.wrapping_sub(before) % PSNS) / self.time.as_secs_f64();
        Some((rate(qp.next_psn, before.next_psn), rate(qp.expected_psn, before.expected_psn)))
    }
}

/// What is known.
#[derive(Debug)]
pub(super) struct Model {
    /// Where programs are looked for.
    pub(super) places: String,
    pub(super) lines: Vec<Line>,
    /// Why a part of the programs is not seen.
    pub(super) warning: Option<String>,
    /// The chosen line.
    pub(super) chosen: usize,
    looked: Option<Instant>,
}

impl Model {
    pub(super) fn new(places: String) -> Self {
        Self { places, lines: Vec::new(), warning: None, chosen: 0, looked: None }
    }

    /// Takes in another look.
    pub(super) fn update(&mut self, seen: Vec<Seen>, warning: Option<String>, at: Instant) {
        let time = self.looked.map_or(Duration::ZERO, |last| at.saturating_duration_since(last));
        let chosen = self.lines.get(self.chosen).map(|line| key(&line.now));
        let mut before: Vec<Seen> =
            std::mem::take(&mut self.lines).into_iter().map(|line| line.now).collect();
        let line = |now: Seen| {
            let same = before.iter().position(|old| key(old) == key(&now) && !time.is_zero());
            Line { before: same.map(|at| before.swap_remove(at)), now, time }
        };
        self.lines = seen.into_iter().map(line).collect();
        let of = |line: &Line| line.rates(&["tx_bytes", "rx_bytes"]).unwrap_or(0.0);
        // The busiest first; among equals in the order in which they began.
        self.lines.sort_by(|a, b| of(b).total_cmp(&of(a)));
        let still = chosen.and_then(|one| self.lines.iter().position(|line| key(&line.now) == one));
        self.chosen = still.unwrap_or(self.chosen).min(self.lines.len().saturating_sub(1));
        (self.warning, self.looked) = (warning, Some(at));
    }

    /// Moves the choice up or down.
    pub(super) fn choose(&mut self, by: isize) {
        let most = self.lines.len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(most);
    }

    /// The most serious problem.
    pub(super) fn problem(&self) -> Option<String> {
        self.warning.clone().or_else(|| problem::first(&self.lines))
    }
}

/// What tells programs apart.
fn key(seen: &Seen) -> (IpAddr, Option<u8>, u32, String) {
    (seen.address, seen.slot, seen.pid, seen.device.clone())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rnic::process::{NetNamespace, Published};
    use std::time::SystemTime;

    /// A program with these counters.
    pub(in crate::top) fn seen(pid: u32, counters: &[(&str, u64)]) -> Seen {
        let address = IpAddr::from([10, 0, 0, 1]);
        let published = Published {
            device: "rnic0".to_owned(),
            address,
            namespace: NetNamespace::current(),
            pid,
            comm: "rping".to_owned(),
            running: true,
            updated: SystemTime::UNIX_EPOCH,
            counters: counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        Seen {
            device: "rnic0".to_owned(),
            address,
            pid,
            comm: "rping".to_owned(),
            slot: Some(3),
            uid: 1000,
            user: "alice".to_owned(),
            container: None,
            running: true,
            counters: Some(published),
            queue_pairs: None,
        }
    }

    /// A model after two looks, two seconds apart.
    pub(in crate::top) fn after(before: Vec<Seen>, now: Vec<Seen>) -> Model {
        let (mut model, at) = (Model::new("nowhere".to_owned()), Instant::now());
        model.update(before, None, at);
        model.update(now, None, at + Duration::from_secs(2));
        model
    }

    #[test]
    fn rates_are_increases_per_second_and_begin_with_the_second_look() {
        let mut model =
            after(vec![seen(7, &[("tx_bytes", 100)])], vec![seen(7, &[("tx_bytes", 500)]), seen(8, &[])]);
        assert_eq!(model.lines[0].rate("tx_bytes"), Some(200.0));
        assert_eq!((model.lines[1].now.pid, model.lines[1].rate("tx_bytes")), (8, None));
        // A program of the same number at another time is another one only if its counters say so: they never fall below 0.
        model.update(vec![seen(7, &[("tx_bytes", 10)])], None, Instant::now() + Duration::from_secs(9));
        assert_eq!(model.lines[0].rate("tx_bytes"), Some(0.0));
    }

    #[test]
    fn the_choice_stays_with_its_program() {
        let busy = |n: u64| seen(7, &[("tx_bytes", n)]);
        let mut model =
            after(vec![busy(0), seen(8, &[("tx_bytes", 0)])], vec![busy(9), seen(8, &[("tx_bytes", 0)])]);
        model.choose(1);
        assert_eq!(model.lines[model.chosen].now.pid, 8);
        let later = Instant::now() + Duration::from_secs(5);
        model.update(vec![busy(9), seen(8, &[("tx_bytes", 1000)])], None, later);
        assert_eq!((model.chosen, model.lines[0].now.pid), (0, 8), "it is the busiest now, and still chosen");
        model.choose(-5);
        model.update(Vec::new(), None, later);
        assert_eq!(model.chosen, 0);
    }
}
