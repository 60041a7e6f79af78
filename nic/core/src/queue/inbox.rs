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

    /// Queues work. Calls `ring` if there was none, before any other thread can add more: so whoever adds to what is there
    /// already knows that it will be collected. Returns whether it did.
    pub(super) fn leave(&self, works: impl Iterator<Item = T>, ring: impl FnOnce()) -> bool {
        let mut inbox = locked(&self.work);
        let is_first = inbox.is_empty();
        // Most often it is one.
        works.for_each(|work| inbox.push_back(work));
        let rings = is_first && !inbox.is_empty();
        if rings {
            self.filled.store(true, Ordering::Release);
            ring();
        }
        rings
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
/// A post goes straight to the engine if that may have to send it at once, and no other thread drives it at that moment.
/// Otherwise it waits in the inbox, with others: the next turn takes them in together. Either way the posting thread never
/// waits for the engine.
#[derive(Debug)]
pub struct QpShared {
    /// What it was created with.
    pub config: QpConfig,
    state: AtomicU8,
    sends: Places,
    recvs: Places,
    inbox: Inbox<Work>,
    /// Whether packets are in flight, or requests wait for something, so that the next turn comes soon.
    is_busy: AtomicBool,
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
            is_busy: AtomicBool::new(false),
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

    /// Queues work requests for the thread that drives the engine. Calls `ring` if there were none, which has to make sure
    /// that it takes them in; returns whether it did.
    pub fn leave(&self, works: impl Iterator<Item = Work>, ring: impl FnOnce()) -> bool {
        self.inbox.leave(works, ring)
    }

    /// Takes all queued work requests, in exchange for an empty queue.
    pub(crate) fn collect_all(&self, empty: &mut VecDeque<Work>) {
        self.inbox.collect_all(empty);
    }

    /// Records whether packets of requests are in flight, or requests wait for something.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Whether a work request for this queue may wait for the next turn, because it would not be sent earlier: a receive,
    /// or a send behind packets that are in flight or requests that wait. In ERR it is flushed at once instead.
    #[must_use]
    pub fn may_wait(&self, queue: WorkQueue) -> bool {
        match queue {
            WorkQueue::Send => self.is_busy.load(Ordering::Relaxed) && self.state() == QpState::Rts,
            WorkQueue::Recv => !matches!(self.state(), QpState::Reset | QpState::Err),
        }
    }

    /// Whether a send may wait for the next turn although nothing of this queue pair is in flight: others of its port have
    /// just sent. Without acknowledgements, [`Engine::is_urgent`](crate::engine::Engine::is_urgent) decides.
    #[must_use]
    pub fn may_join(&self) -> bool {
        self.config.qp_type.is_reliable() && self.state() == QpState::Rts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::queue_pair::Tuning;
    use qp::{Gather, Operation, PdId, QpCap, QpType, Qpn};
    use std::cell::Cell;

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
            least_timeout: 0,
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
    fn what_is_left_is_collected_in_order_and_rings_once() {
        let qp = shared();
        let mut found = VecDeque::new();
        qp.collect_all(&mut found);
        assert!(found.is_empty());
        let rings = Cell::new(0);
        let leave = |works: Vec<Work>| qp.leave(works.into_iter(), || rings.set(rings.get() + 1));
        assert!(!leave(vec![]), "nothing to ring for");
        assert!(leave(vec![Work::Send(send(1))]));
        assert!(!leave(vec![Work::Recv(RecvWr { wr_id: 2, ..RecvWr::default() }), Work::Send(send(3))]));
        assert_eq!(rings.get(), 1);
        qp.collect_all(&mut found);
        assert!(matches!(found.pop_front(), Some(Work::Send(wr)) if wr.wr_id == 1));
        assert!(matches!(found.pop_front(), Some(Work::Recv(wr)) if wr.wr_id == 2));
        assert!(matches!(found.pop_front(), Some(Work::Send(wr)) if wr.wr_id == 3));
        qp.collect_all(&mut found);
        assert!(found.is_empty());
        assert!(leave(vec![Work::Send(send(4))]), "what was collected does not ring for what follows");
    }

    #[test]
    fn sends_wait_behind_packets_in_flight_and_receives_unless_they_are_flushed() {
        let qp = shared();
        let waits = || [WorkQueue::Send, WorkQueue::Recv].map(|queue| qp.may_wait(queue));
        assert_eq!(waits(), [false, false], "RESET");
        qp.set_state(QpState::Rts);
        assert_eq!(waits(), [false, true]);
        assert!(qp.may_join());
        qp.set_busy(true);
        assert_eq!(waits(), [true, true]);
        qp.set_state(QpState::Err);
        assert_eq!((waits(), qp.may_join()), ([false, false], false));
        let unreliable = QpShared::new(QpConfig { qp_type: QpType::Uc, ..qp.config });
        unreliable.set_state(QpState::Rts);
        assert!(!unreliable.may_join());
    }
}
