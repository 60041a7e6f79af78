//! Work requests on their way from the program to the engine.

use super::completions::locked;
use qp::queue_pair::{PostError, QpConfig, check_receive, check_request};
use qp::{QpState, RecvWr, SendWr};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// A work request.
#[derive(Debug)]
pub(crate) enum Work {
    /// For the send queue.
    Send(SendWr),
    /// For the receive queue.
    Recv(RecvWr),
}

/// Which queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// How many work requests a queue has taken and finished; both wrap around.
#[derive(Debug, Default)]
struct Occupancy {
    posted: AtomicU32,
    done: AtomicU32,
}

impl Occupancy {
    /// Takes a place in a queue of `max`.
    fn reserve(&self, max: u32) -> bool {
        self.posted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |posted| {
                let outstanding = posted.wrapping_sub(self.done.load(Ordering::Acquire));
                (outstanding < max).then(|| posted.wrapping_add(1))
            })
            .is_ok()
    }
}

/// What the program's threads and the engine share of a queue pair.
///
/// A post goes straight to the engine when nobody drives it at that moment; otherwise it waits in the inbox, and
/// whoever drives the engine takes it in before letting go. Either way the poster never waits for a turn of the
/// engine.
#[derive(Debug)]
pub(crate) struct QpShared {
    pub(crate) config: QpConfig,
    state: AtomicU8,
    sends: Occupancy,
    recvs: Occupancy,
    inbox: Mutex<VecDeque<Work>>,
    /// Whether the inbox may hold something: lets the engine look without taking the lock.
    filled: AtomicBool,
}

impl QpShared {
    pub(crate) fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: AtomicU8::new(QpState::Reset as u8),
            sends: Occupancy::default(),
            recvs: Occupancy::default(),
            inbox: Mutex::default(),
            filled: AtomicBool::new(false),
        }
    }

    /// The state, as the engine last reported it.
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(u32::from(self.state.load(Ordering::Acquire))).unwrap_or_default()
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Checks a send work request and takes a place in the send queue for it.
    pub(crate) fn reserve_send(&self, wr: &SendWr) -> Result<(), PostError> {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State { queue: "send", state, needed: "RTS" });
        }
        check_request(&self.config, wr)?;
        let max = self.config.cap.max_send_wr;
        if self.sends.reserve(max) { Ok(()) } else { Err(PostError::QueueFull { queue: "send", max }) }
    }

    /// Checks a receive work request and takes a place in the receive queue for it.
    pub(crate) fn reserve_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        let state = self.state();
        check_receive(&self.config, wr)?;
        if state == QpState::Reset {
            return Err(PostError::State { queue: "receive", state, needed: "INIT" });
        }
        let max = self.config.cap.max_recv_wr;
        if self.recvs.reserve(max) { Ok(()) } else { Err(PostError::QueueFull { queue: "receive", max }) }
    }

    /// Books `count` work requests as finished.
    pub(crate) fn finish(&self, direction: Direction, count: u32) {
        let occupancy = match direction {
            Direction::Send => &self.sends,
            Direction::Recv => &self.recvs,
        };
        occupancy.done.fetch_add(count, Ordering::AcqRel);
    }

    /// Leaves a work request for whoever drives the engine.
    pub(crate) fn leave(&self, work: Work) {
        let mut inbox = locked(&self.inbox);
        inbox.push_back(work);
        self.filled.store(true, Ordering::Release);
    }

    /// Takes the oldest work request that was left.
    pub(crate) fn collect(&self) -> Option<Work> {
        if !self.filled.load(Ordering::Acquire) {
            return None;
        }
        let mut inbox = locked(&self.inbox);
        let work = inbox.pop_front();
        if inbox.is_empty() {
            self.filled.store(false, Ordering::Release);
        }
        work
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
        qp.finish(Direction::Send, 1);
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
