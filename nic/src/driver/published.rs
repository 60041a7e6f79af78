//! The counters of a port, published for other programs.

use super::SocketPort;
use super::turns::Driven;
use crate::Counters;
use crate::os::fork;
use crate::process::Publication;
use std::os::fd::AsRawFd;
use time::Instant;

impl Driven {
    /// All counters.
    pub(super) fn counters(&mut self) -> Counters {
        self.datapath.counters(Some(self.udp.counters()))
    }
}

impl SocketPort {
    /// Starts to publish the counters.
    pub(crate) fn publish_as(&self, publication: Publication) {
        // Otherwise a forked child's copy of the descriptor would hold its lock after the program has ended.
        let fd = publication.file().as_raw_fd();
        publication.write(&self.with_driven(Driven::counters), crate::clock::now());
        if self.publication.set(publication).is_ok() {
            fork::close_in_child(std::iter::once(fd));
        }
    }

    /// Publishes the counters if it is time to. Returns the next time, if any.
    pub(super) fn publish_if_due(&self, now: Instant) -> Option<Instant> {
        self.publish_queue_pairs_if_due(now);
        let publication = self.publication.get()?;
        if publication.is_due(now) {
            publication.write(&self.with_driven(Driven::counters), now);
        }
        Some(publication.due())
    }

    /// Publishes the counters for the last time before the port is dropped.
    pub(super) fn publish_last(&mut self) {
        self.stop_publishing_queue_pairs();
        let Some(publication) = self.publication.take() else { return };
        publication.write(&self.lock().counters(), crate::clock::now());
        fork::forget(std::iter::once(publication.file().as_raw_fd()));
    }
}
