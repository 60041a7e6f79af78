//! The programs at a daemon, for whoever wants to see them.
//!
//! A program in a slot publishes its counters and queue pairs in files that the daemon has made, and the daemon gives them
//! out for reading: it neither copies nor interprets them. The daemon's own user, root and the observers of its configuration
//! see all programs; other users see their own.

use super::DaemonError;
use super::protocol::{Program, Reply, Request};
use super::slot::{PATIENCE, open, unexpected};
use crate::process::{Published, PublishedQueuePairs};
use std::fs::File;
use std::io;
use std::path::Path;

/// A program, and what it publishes.
#[derive(Debug)]
pub struct WatchedProgram {
    /// The program.
    pub program: Program,
    counters: File,
    queue_pairs: File,
}

impl WatchedProgram {
    /// Its counters as they are now; `None` before it has published any.
    #[must_use]
    pub fn counters(&self) -> Option<Published> {
        Some(Published { running: self.program.running, ..Published::read_from(&self.counters)? })
    }

    /// Its queue pairs as they are now; `None` before it has published any, and after it has ended.
    #[must_use]
    pub fn queue_pairs(&self) -> Option<PublishedQueuePairs> {
        PublishedQueuePairs::read_from(&self.queue_pairs).filter(|_| self.program.running)
    }
}

/// The programs at the daemon that listens there: those that have slots, and the last ones that ended.
///
/// # Errors
/// [`DaemonError`].
pub fn programs(path: &Path) -> Result<Vec<WatchedProgram>, DaemonError> {
    let mut channel = open(path)?;
    let lost = |source| DaemonError::Lost { path: path.to_owned(), source };
    channel.send(&Request::Programs, PATIENCE).map_err(lost)?;
    let mut all = Vec::new();
    loop {
        match channel.recv(PATIENCE).map_err(lost)? {
            Reply::Program(program) => {
                let files = channel.take_some();
                let [counters, queue_pairs] =
                    files.ok_or_else(|| lost(io::Error::other("it sent no files")))?.map(File::from);
                all.push(WatchedProgram { program, counters, queue_pairs });
            }
            Reply::Done(_) => return Ok(all),
            Reply::Refused(refusal) => return Err(DaemonError::Refused(refusal)),
            other => return Err(unexpected(path, &other)),
        }
    }
}
