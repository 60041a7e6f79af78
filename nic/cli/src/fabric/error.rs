//! What can go wrong with `rnic fabric`.

use rnic_fabric::report::Report;
use rnic_fabric::scenario::ScenarioError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a command cannot do what was asked, in one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// A scenario has no run.
    #[error("{0} has nothing to run")]
    Nothing(String),
    /// Neither a name nor a file.
    #[error("there is no scenario `{name}`: {advice}; the name of a file ends in .toml")]
    NoScenario {
        /// What was written.
        name: String,
        /// What to write instead.
        advice: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {why}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// A scenario cannot be read or cannot run.
    #[error("{place}: {why}")]
    Scenario {
        /// Its name or file, perhaps with a line, or the option that changes it.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// An option asks for something impossible.
    #[error("{option}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// What to write instead.
        why: String,
    },
    /// A file is not a result of a sweep.
    #[error("{} is not a result of `rnic fabric sweep`: {why}", path.display())]
    NoPoint {
        /// The file.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// Some points of a sweep cannot run.
    #[error("points that could not run: {count}, the first: {first}")]
    Points {
        /// How many.
        count: usize,
        /// Why the first could not.
        first: String,
    },
    /// A picture cannot be drawn.
    #[cfg(feature = "plot")]
    #[error("{0}")]
    Picture(String),
    /// Threads cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A result cannot be written as JSON.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Standard output.
    #[error("cannot print: {0}")]
    Print(#[source] io::Error),
}

impl Problem {
    /// A scenario that cannot be read or run. `place`: its name, its file or an option.
    pub(super) fn scenario(place: impl Into<String>, why: &ScenarioError) -> Self {
        // The errors of TOML have several lines.
        let text = match why {
            ScenarioError::Syntax(error) => error.message().to_owned(),
            other => other.to_string(),
        };
        Self::Scenario { place: place.into(), why: one_line(&text) }
    }

    /// A file that cannot be written.
    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |why| Self::Write { path, why }
    }
}

/// A text in one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Everything is as expected.
    Passed,
    /// An expectation was not met.
    Failed,
    /// Ctrl-C came first.
    Interrupted,
}

impl Status {
    /// The exit code.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::Interrupted => crate::stop::INTERRUPTED,
        }
    }

    /// The more important of two.
    pub(super) fn and(self, other: Self) -> Self {
        if other.code() > self.code() { other } else { self }
    }

    /// Of a run whose expectations were met or not.
    pub(super) const fn of(report: &Report, has_passed: bool) -> Self {
        match (report.is_whole, has_passed) {
            (false, _) => Self::Interrupted,
            (true, true) => Self::Passed,
            (true, false) => Self::Failed,
        }
    }
}
