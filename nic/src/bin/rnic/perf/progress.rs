//! A line that shows that a long run is alive.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often the line changes; runs shorter than this have none.
const PERIOD: Duration = Duration::from_secs(1);

/// The progress line of one run, on standard error, and only if that is a terminal.
pub(super) struct Progress {
    shown: bool,
    wanted: bool,
    start: Instant,
    next: Instant,
    size: u32,
}

impl Progress {
    /// For a run with messages of `size` bytes; `quiet` for the side that reports nothing.
    pub(super) fn new(size: u32, quiet: bool) -> Self {
        let start = Instant::now();
        Self { shown: false, wanted: !quiet && stderr().is_terminal(), start, next: start + PERIOD, size }
    }

    /// Shows that `messages` are done, if it is time to.
    pub(super) fn show(&mut self, now: Instant, messages: u64) {
        if !self.wanted || now < self.next {
            return;
        }
        self.next = now + PERIOD;
        self.shown = true;
        let seconds = now.saturating_duration_since(self.start).as_secs();
        // A terminal that is gone is no reason to stop.
        let _ = write!(stderr(), "\r{} bytes: {messages} messages in {seconds} s", self.size);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            // Carriage return and "erase to the end of the line" (ECMA-48).
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
