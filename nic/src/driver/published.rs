//! What a port publishes for other programs: counters and queue pairs.

use super::SocketPort;
use super::turns::Driven;
use crate::os::fork;
use crate::process::{MOST_QUEUE_PAIRS, PUBLISHING_PERIOD, Report};
use crate::{Counters, clock};
use rnic_core::queue::locked;
use time::Instant;

/// The places where a port publishes. Their lock may be taken while the engine's is held, but not the reverse.
#[derive(Default)]
pub(super) struct Reports {
    all: Vec<Report>,
    /// When it publishes next; `None` before the first place is known.
    due: Option<Instant>,
}

impl Driven {
    /// All counters.
    pub(super) fn counters(&mut self) -> Counters {
        self.datapath.counters(Some(self.udp.counters()))
    }
}

impl SocketPort {
    /// Starts to publish at another place. There is one for the daemon: that of an earlier daemon is left.
    pub(crate) fn publish_in(&self, report: Report) {
        fork::close_in_child(report.raw_fds().into_iter());
        report.write_counters(&self.with_driven(Driven::counters));
        let mut reports = locked(&self.reports);
        if report.is_for_daemon() {
            let left = reports.all.extract_if(.., |old| old.is_for_daemon());
            left.for_each(|old| fork::forget(old.raw_fds().into_iter()));
        }
        reports.all.push(report);
        reports.due = Some(clock::now());
    }

    /// Publishes if it is time to. Returns the next time, if any.
    pub(super) fn publish_if_due(&self, now: Instant) -> Option<Instant> {
        let due = locked(&self.reports).due?;
        if now < due {
            return Some(due);
        }
        // Without the lock of the reports: whoever releases the engine may wake the program, which may close the device.
        let (counters, queue_pairs) = self
            .with_driven(|driven| (driven.counters(), driven.datapath.engine.snapshots(MOST_QUEUE_PAIRS)));
        let mut reports = locked(&self.reports);
        for report in &reports.all {
            report.write_counters(&counters);
            report.write_queue_pairs(&queue_pairs);
        }
        reports.due = Some(now + PUBLISHING_PERIOD);
        reports.due
    }

    /// Publishes the counters of a process that exits, unless another thread publishes at this moment: it may not run again.
    pub(super) fn publish_at_exit(&self, counters: &Counters) {
        if let Ok(reports) = self.reports.try_lock() {
            reports.all.iter().for_each(|report| report.write_counters(counters));
        }
    }

    /// Publishes the counters for the last time before the port is dropped.
    pub(super) fn publish_last(&mut self) {
        let reports = std::mem::take(&mut *locked(&self.reports)).all;
        if reports.is_empty() {
            return;
        }
        let counters = self.lock().counters();
        for report in reports {
            report.end();
            report.write_counters(&counters);
            fork::forget(report.raw_fds().into_iter());
        }
    }
}
