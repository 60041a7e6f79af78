//! Local operations: work requests that send nothing and are executed at once, in order.

use super::SendWqe;
use crate::memory::{BindError, Host};
use crate::queue_pair::{FailureContext, QueuePair};
use crate::work::{Operation, WcStatus};

impl QueuePair {
    /// Executes the next local operation; false if it failed the queue pair, now or once it is the oldest request.
    ///
    /// It completes after all earlier requests, and is never executed again: a retransmission skips it.
    pub(super) fn execute_locally(&mut self, index: usize, host: &mut impl Host) -> bool {
        let domain = self.domain();
        let Some(wqe) = self.requester.queue.get(index) else { return false };
        let outcome = match wqe.wr.operation {
            Operation::LocalInvalidate { key } => host
                .invalidate(domain, key)
                .map_err(|access| (WcStatus::LocQpOpErr, FailureContext::Invalidating, Some(access))),
            Operation::BindWindow(bind) => host.bind(domain, &bind).map_err(|error| {
                let access = if let BindError::Region(access) = error { Some(access) } else { None };
                (WcStatus::MwBindErr, FailureContext::Binding(error), access)
            }),
            _ => Ok(()),
        };
        let fresh = self.requester.fresh_psn;
        if let Err((status, context, access)) = outcome {
            self.note_cause(status, fresh, context, access);
        }
        let Some(SendWqe { started, first_psn, failed, .. }) = self.requester.queue.get_mut(index) else {
            return false;
        };
        *first_psn = fresh;
        if let Err((status, ..)) = outcome {
            *failed = Some(status);
            return false;
        }
        *started = true;
        self.requester.position = index + 1;
        if index == 0 {
            self.retire_oldest(0, host);
        }
        true
    }
}
