//! Work requests on their way from the program to the engine.

use super::completions::locked;
use qp::queue_pair::{PostError, QpConfig, check_receive, check_request};
use qp::{QpState, RecvWr, SendWr};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A work request.
#[derive(Debug)]
pub enum Work {
    /// For the send queue.
    Send(SendWr),
    /// For the receive queue.
    Recv(RecvWr),
}

impl Work {
    /// The queue that it is for.
    pub fn queue(&self) -> WorkQueue {
        match self {
            Self::Send(_) => WorkQueue::Send,
            Self::Recv(_) => WorkQueue::Recv,
        }
    }
}

/// Which queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkQueue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// The places of a queue: the bound, and the number taken.
#[derive(Debug)]
pub(super) struct Places {
    /// The bound in the upper half, and the number of work requests ever posted in the lower, wrapping around. They
    /// share one word, so that no post slips in between a check of the queue and a change of its bound.
    gate: AtomicU64,
    /// Work requests that left the queue, wrapping around.
    done: AtomicU32,
}

impl Places {
    pub(super) fn new(max: u32) -> Self {
        Self { gate: AtomicU64::new(u64::from(max) << 32), done: AtomicU32::new(0) }
    }

    fn taken(&self, gate: u64) -> u32 {
        (gate as u32).wrapping_sub(self.done.load(Ordering::Acquire))
    }

    /// Takes a place.
    ///
    /// # Errors
    /// The bound, if all places are taken.
    pub(super) fn reserve(&self) -> Result<(), u32> {
        self.gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
                let (max, posted) = ((gate >> 32) as u32, gate as u32);
                let next = u64::from(max) << 32 | u64::from(posted.wrapping_add(1));
                (self.taken(gate) < max).then_some(next)
            })
            .map_or_else(|gate| Err((gate >> 32) as u32), |_| Ok(()))
    }

    /// Changes the number of places.
    ///
    /// # Errors
    /// The number of taken places, if it is larger.
    pub(super) fn resize(&self, max: u32) -> Result<(), u32> {
        self.gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
                (self.taken(gate) <= max).then_some(u64::from(max) << 32 | (gate & u64::from(u32::MAX)))
            })
            .map_or_else(|gate| Err(self.taken(gate)), |_| Ok(()))
    }

    /// Frees places.
    pub(super) fn finish(&self, count: u32) {
        self.done.fetch_add(count, Ordering::AcqRel);
    }

    /// The number of places.
    pub(super) fn max(&self) -> u32 {
        (self.gate.load(Ordering::Acquire) >> 32) as u32
    }

    /// The number of taken places.
    pub(super) fn outstanding(&self) -> u32 {
        self.taken(self.gate.load(Ordering::Acquire))
    }
}

/// Work that the program's threads queue for the thread that drives the engine.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    work: Mutex<VecDeque<T>>,
    /// Whether there may be work, so that the engine can check without taking the lock.
    filled: AtomicBool,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Self {
        Self { work: Mutex::default(), filled: AtomicBool::new(false) }
    }

    pub(super) fn leave(&self, work: T) {
        let mut inbox = locked(&self.work);
        inbox.push_back(work);
        self.filled.store(true, Ordering::Release);
    }

    /// Takes the oldest.
    pub(super) fn collect(&self) -> Option<T> {
        if !self.filled.load(Ordering::Acquire) {
            return None;
        }
        let mut inbox = locked(&self.work);
        let work = inbox.pop_front();
        if inbox.is_empty() {
            self.filled.store(false, Ordering::Release);
        }
        work
    }

    /// Takes all, in exchange for an empty queue.
    pub(super) fn collect_all(&self, empty: &mut VecDeque<T>) {
        if self.filled.load(Ordering::Acquire) {
            let mut inbox = locked(&self.work);
            std::mem::swap(&mut *inbox, empty);
            self.filled.store(!inbox.is_empty(), Ordering::Release);
        }
    }
}

/// The part of a queue pair that the program's threads and the engine share.
///
/// A post goes straight to the engine if no other thread drives it at that moment. Otherwise it waits in the inbox,
/// and the thread that drives the engine takes it in before it releases the engine. Either way the posting thread
/// never waits for the engine.
#[derive(Debug)]
pub struct QpShared {
    /// What it was created with.
    pub config: QpConfig,
    state: AtomicU8,
    sends: Places,
    recvs: Places,
    inbox: Inbox<Work>,
    /// Whether the program was told of a lost datagram.
    noticed: AtomicBool,
}

impl QpShared {
    pub(crate) fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: AtomicU8::new(QpState::Reset as u8),
            sends: Places::new(config.cap.max_send_wr),
            recvs: Places::new(config.cap.max_recv_wr),
            inbox: Inbox::new(),
            noticed: AtomicBool::new(false),
        }
    }

    /// Whether this is the first lost datagram.
    pub(crate) fn notices_first(&self) -> bool {
        !self.noticed.swap(true, Ordering::Relaxed)
    }

    /// The state, as the engine last reported it.
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(u32::from(self.state.load(Ordering::Acquire))).unwrap_or_default()
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Checks a send work request and takes a place in the send queue for it.
    pub fn reserve_send(&self, wr: &SendWr) -> Result<(), PostError> {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State { queue: "send", state, needed: "RTS" });
        }
        check_request(&self.config, wr)?;
        self.sends.reserve().map_err(|max| PostError::QueueFull { queue: "send", max })
    }

    /// Checks a receive work request and takes a place in the receive queue for it.
    pub fn reserve_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        let state = self.state();
        check_receive(&self.config, wr)?;
        if state == QpState::Reset {
            return Err(PostError::State { queue: "receive", state, needed: "INIT" });
        }
        self.recvs.reserve().map_err(|max| PostError::QueueFull { queue: "receive", max })
    }

    /// Counts `count` work requests as finished.
    pub(crate) fn finish(&self, queue: WorkQueue, count: u32) {
        match queue {
            WorkQueue::Send => self.sends.finish(count),
            WorkQueue::Recv => self.recvs.finish(count),
        }
    }

    /// Queues a work request for the thread that drives the engine.
    pub fn leave(&self, work: Work) {
        self.inbox.leave(work);
    }

    /// Takes the oldest queued work request.
    pub(crate) fn collect(&self) -> Option<Work> {
        self.inbox.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::queue_pair::Tuning;
    use qp::{Gather, Operation, PdId, QpCap, QpType, Qpn};

    fn shared() -> QpShared {
        QpShared::new(QpConfig {
            qpn: Qpn::new(5),
            qp_type: QpType::Rc,
            pd: PdId(1),
            cap: QpCap {
                max_send_wr: 2,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 8,
            },
            sq_sig_all: false,
            has_srq: false,
            tuning: Tuning::default(),
        })
    }

    fn send(wr_id: u64) -> SendWr {
        let operation = Operation::Send { imm: None, invalidate: None };
        SendWr::new(wr_id, operation, Gather::Empty)
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let qp = shared();
        assert!(matches!(qp.reserve_send(&send(1)), Err(PostError::State { .. })));
        qp.set_state(QpState::Rts);
        qp.reserve_send(&send(1)).expect("room");
        qp.reserve_send(&send(2)).expect("room");
        assert_eq!(qp.reserve_send(&send(3)), Err(PostError::QueueFull { queue: "send", max: 2 }));
        qp.finish(WorkQueue::Send, 1);
        qp.reserve_send(&send(3)).expect("a place came back");
        qp.reserve_recv(&RecvWr::default()).expect("room");
        assert_eq!(
            qp.reserve_recv(&RecvWr::default()),
            Err(PostError::QueueFull { queue: "receive", max: 1 })
        );
    }

    #[test]
    fn what_is_left_is_collected_in_order() {
        let qp = shared();
        assert!(qp.collect().is_none());
        qp.leave(Work::Send(send(1)));
        qp.leave(Work::Recv(RecvWr { wr_id: 2, ..RecvWr::default() }));
        assert!(matches!(qp.collect(), Some(Work::Send(wr)) if wr.wr_id == 1));
        assert!(matches!(qp.collect(), Some(Work::Recv(wr)) if wr.wr_id == 2));
        assert!(qp.collect().is_none());
    }
}
