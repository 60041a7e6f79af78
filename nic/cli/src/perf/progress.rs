//! The progress bar of a run.

use super::params::{Limit, Params};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// How often the bar changes. Shorter runs show none.
const PERIOD: Duration = Duration::from_millis(250);

/// A progress bar on standard error, shown only if that is a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    limit: Limit,
    start: Instant,
    next: Instant,
}

impl Progress {
    /// For the run with messages of `size` bytes.
    pub(super) fn new(params: &Params, size: u32) -> Self {
        let (length, template) = match params.limit {
            Limit::Iterations(iterations) => (
                iterations.saturating_mul(params.qps.into()),
                "{msg} [{bar:30}] {human_pos}/{human_len} messages, {eta} left",
            ),
            Limit::Seconds(seconds) => ((seconds * 1e3) as u64, "{msg} [{bar:30}] {eta} left"),
        };
        let bar = ProgressBar::new(length);
        // If the style cannot be parsed, the default style is used.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        let run = params.sizes.iter().position(|other| *other == size).unwrap_or(0) + 1;
        bar.set_message(match params.sizes.len() {
            1 => format!("{size} bytes"),
            runs => format!("{size} bytes (run {run} of {runs})"),
        });
        let start = Instant::now();
        Self { bar, limit: params.limit, start, next: start + PERIOD }
    }

    /// For the side that shows nothing.
    pub(super) fn hidden() -> Self {
        let start = Instant::now();
        Self { bar: ProgressBar::hidden(), limit: Limit::Iterations(0), start, next: start + PERIOD }
    }

    /// Shows that `messages` have completed, unless the bar changed a moment ago.
    pub(super) fn show(&mut self, now: Instant, messages: u64) {
        if now < self.next {
            return;
        }
        self.next = now + PERIOD;
        self.bar.set_position(match self.limit {
            Limit::Iterations(_) => messages,
            Limit::Seconds(_) => {
                let elapsed = now.saturating_duration_since(self.start).as_millis();
                u64::try_from(elapsed).unwrap_or(u64::MAX)
            }
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
