//! The progress bar of experiments that take long.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// How long an experiment runs before it has a bar: most have ended by then.
const PATIENCE: Duration = Duration::from_secs(1);

/// Steps of the bar.
const STEPS: u64 = 1000;

/// A bar on standard error. Indicatif draws none if that is no terminal.
pub(super) struct Progress {
    name: String,
    begin: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For the experiment of this name.
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), begin: Instant::now(), bar: None }
    }

    /// This share is done.
    pub(super) fn show(&mut self, share: f64) {
        if self.begin.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(STEPS).with_message(self.name.clone());
            // If the style cannot be parsed, the default style is used.
            match ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {eta} left") {
                Ok(style) => bar.with_style(style.progress_chars("=> ")),
                Err(_) => bar,
            }
        });
        bar.set_position((share * STEPS as f64) as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
