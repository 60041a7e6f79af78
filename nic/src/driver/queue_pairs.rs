//! The queue pairs of a port, published for other programs.

use super::SocketPort;
use crate::os::fork;
use crate::process::{MOST_QUEUE_PAIRS, QueuePairFile};
use std::os::fd::AsRawFd;
use time::Instant;

impl SocketPort {
    /// Starts to publish the queue pairs.
    pub(crate) fn publish_queue_pairs_in(&self, file: QueuePairFile) {
        // Otherwise a forked child's copy of the descriptor would hold its lock after the program has ended.
        let fd = file.file().as_raw_fd();
        if self.queue_pairs.set(file).is_ok() {
            fork::close_in_child(std::iter::once(fd));
        }
    }

    /// Publishes the queue pairs if it is time to.
    pub(super) fn publish_queue_pairs_if_due(&self, now: Instant) {
        if let Some(file) = self.queue_pairs.get()
            && file.is_due(now)
        {
            file.write(self.with_driven(|driven| driven.datapath.engine.snapshots(MOST_QUEUE_PAIRS)), now);
        }
    }

    /// Called before the port and its queue pairs are dropped.
    pub(super) fn stop_publishing_queue_pairs(&mut self) {
        let Some(file) = self.queue_pairs.take() else { return };
        file.remove();
        fork::forget(std::iter::once(file.file().as_raw_fd()));
    }
}
