//! What a device publishes at one place: its counters, and its queue pairs.
//!
//! A device publishes in the [run folder](super::ProcessConfig::run_dir), if its process has one; and at a shared address in
//! files that the daemon has made, and reads.

use super::publish::Publication;
use super::queue_pairs::QueuePairFile;
use crate::Counters;
use rnic_core::engine::QpSnapshot;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use time::Duration;

/// How often a device publishes. People read it, and ten times a second is as fast as they can follow.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// What a device publishes at one place.
#[derive(Default)]
pub(crate) struct Report {
    counters: Option<Publication>,
    queue_pairs: Option<QueuePairFile>,
    of_daemon: bool,
}

impl Report {
    /// Creates files in a run folder. What cannot be created is not published: nothing depends on it.
    pub(super) fn in_folder(run_dir: &Path, device: &str, address: IpAddr) -> Self {
        let warn = |what: &str, error| {
            tracing::warn!(%error, run_dir = %run_dir.display(), "{what} are not published");
        };
        let counters =
            Publication::in_folder(run_dir, device, address).map_err(|error| warn("counters", error));
        let queue_pairs =
            QueuePairFile::in_folder(run_dir, device, address).map_err(|error| warn("queue pairs", error));
        Self { counters: counters.ok(), queue_pairs: queue_pairs.ok(), of_daemon: false }
    }

    /// Publishes in the daemon's files: for counters, and for queue pairs.
    pub(crate) fn for_daemon(files: [OwnedFd; 2], device: &str, address: IpAddr) -> Self {
        let [counters, queue_pairs] = files.map(File::from);
        Self {
            counters: Some(Publication::new(counters, device, address)),
            queue_pairs: Some(QueuePairFile::new(queue_pairs, device, address)),
            of_daemon: true,
        }
    }

    /// Whether the daemon reads it.
    pub(crate) const fn is_for_daemon(&self) -> bool {
        self.of_daemon
    }

    /// The descriptors, which a forked child must close: its copies would hold locks after the program has ended.
    pub(crate) fn raw_fds(&self) -> Vec<RawFd> {
        let counters = self.counters.iter().map(|file| file.file().as_raw_fd());
        counters.chain(self.queue_pairs.iter().map(|file| file.file().as_raw_fd())).collect()
    }

    /// Writes the counters, if they have changed.
    pub(crate) fn write_counters(&self, counters: &Counters) {
        if let Some(file) = &self.counters {
            file.write(counters);
        }
    }

    /// Writes the queue pairs, if they have changed, and the number of those left out.
    pub(crate) fn write_queue_pairs(&self, queue_pairs: &(Vec<QpSnapshot>, usize)) {
        if let Some(file) = &self.queue_pairs {
            file.write(queue_pairs);
        }
    }

    /// Removes what nobody wants to read after the end of the device.
    pub(crate) fn end(&self) {
        if let Some(file) = &self.queue_pairs {
            file.remove();
        }
    }
}
