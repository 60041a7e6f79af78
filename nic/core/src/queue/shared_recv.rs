//! The part of a shared receive queue that the program's threads and the engine share.

use super::inbox::{Inbox, Places};
use qp::RecvWr;
use qp::queue_pair::PostError;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of a shared receive queue that the program's threads and the engine share.
///
/// A post never touches the engine, and rings no doorbell: a receive causes no packet, and a peer that got an RNR NAK
/// retries by itself. The engine looks here when it needs a receive.
#[derive(Debug)]
pub(crate) struct SrqShared {
    pub(crate) number: u32,
    pub(crate) max_sge: u32,
    places: Places,
    inbox: Inbox<RecvWr>,
    destroyed: AtomicBool,
}

impl SrqShared {
    pub(crate) fn new(number: u32, max_wr: u32, max_sge: u32) -> Self {
        Self {
            number,
            max_sge,
            places: Places::new(max_wr),
            inbox: Inbox::new(),
            destroyed: AtomicBool::new(false),
        }
    }

    /// Checks a work request, takes a place for it and queues it for the engine.
    pub(crate) fn post(&self, wr: RecvWr) -> Result<(), PostError> {
        let (given, max) = (wr.data.elements().len(), self.max_sge);
        if given > max as usize {
            return Err(PostError::TooManySges { given, max });
        }
        self.places.reserve().map_err(|max| PostError::QueueFull { queue: "shared receive", max })?;
        self.inbox.leave(std::iter::once(wr), || {});
        Ok(())
    }

    /// Takes all queued work requests, in exchange for an empty queue. They keep their places.
    pub(crate) fn collect_all(&self, empty: &mut VecDeque<RecvWr>) {
        self.inbox.collect_all(empty);
    }

    /// Frees the place of a work request that left the queue.
    pub(crate) fn finish_one(&self) {
        self.places.finish(1);
    }

    /// Work requests that were posted and not taken.
    pub(crate) fn outstanding(&self) -> u32 {
        self.places.outstanding()
    }

    /// The most work requests that it can hold.
    pub(crate) fn max_wr(&self) -> u32 {
        self.places.max()
    }

    /// Changes the number of work requests that it can hold.
    ///
    /// # Errors
    /// The number that it holds, if that is larger.
    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), u32> {
        self.places.resize(max_wr)
    }

    /// Whether the queue is gone, while the program still has a handle.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    pub(crate) fn set_destroyed(&self) {
        self.destroyed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::{Gather, Sge};

    fn recv(wr_id: u64) -> RecvWr {
        RecvWr { wr_id, data: Gather::Empty }
    }

    fn taken(shared: &SrqShared, queue: &mut VecDeque<RecvWr>) -> Option<u64> {
        if queue.is_empty() {
            shared.collect_all(queue);
        }
        let wr = queue.pop_front()?;
        shared.finish_one();
        Some(wr.wr_id)
    }

    #[test]
    fn places_are_bounded_and_come_back_when_a_work_request_is_taken() {
        let shared = SrqShared::new(5, 2, 1);
        let mut queue = VecDeque::new();
        let full = |max| Err(PostError::QueueFull { queue: "shared receive", max });
        shared.post(recv(1)).expect("room");
        shared.post(recv(2)).expect("room");
        assert_eq!(shared.post(recv(3)), full(2));
        assert_eq!(shared.outstanding(), 2);
        assert_eq!(taken(&shared, &mut queue), Some(1));
        shared.post(recv(3)).expect("a place came back");
        assert_eq!(shared.post(recv(4)), full(2), "one is taken by the engine but not by a message");
        assert_eq!(taken(&shared, &mut queue), Some(2));
        assert_eq!(taken(&shared, &mut queue), Some(3));
        assert_eq!(taken(&shared, &mut queue), None);
        assert_eq!(shared.outstanding(), 0);
    }

    #[test]
    fn elements_are_bounded() {
        let shared = SrqShared::new(5, 8, 2);
        let list = [Sge::default(); 3];
        let with = |count: usize| RecvWr { wr_id: 0, data: Gather::from(&list[..count]) };
        shared.post(with(2)).expect("as created");
        assert_eq!(shared.post(with(3)), Err(PostError::TooManySges { given: 3, max: 2 }));
        assert_eq!(shared.outstanding(), 1, "what was refused takes no place");
    }

    #[test]
    fn a_change_of_size_keeps_what_is_there_and_refuses_less_than_that() {
        let shared = SrqShared::new(5, 3, 1);
        let mut queue = VecDeque::new();
        for id in 0..3 {
            shared.post(recv(id)).expect("room");
        }
        assert_eq!(shared.resize(2), Err(3));
        assert_eq!(shared.max_wr(), 3);
        shared.resize(4).expect("larger");
        shared.post(recv(3)).expect("room for one more");
        assert!(shared.post(recv(4)).is_err());
        assert_eq!(taken(&shared, &mut queue), Some(0));
        shared.resize(3).expect("as many as are there");
        assert!(shared.post(recv(4)).is_err());
        for id in 1..4 {
            assert_eq!(taken(&shared, &mut queue), Some(id));
        }
        shared.post(recv(5)).expect("room");
    }

    #[test]
    fn posts_of_many_threads_stay_within_the_bound_while_it_changes() {
        const EACH: u64 = 20_000;
        let shared = SrqShared::new(5, 8, 1);
        let mut got = [0; 4];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    for i in 0..EACH {
                        while shared.post(recv(thread << 32 | i)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // An accepted bound holds: no post is in progress beyond it.
                    for max in [8, 3] {
                        if shared.resize(max).is_ok() {
                            assert!(shared.outstanding() <= max);
                        }
                    }
                    std::thread::yield_now();
                }
            });
            let mut queue = VecDeque::new();
            while got.iter().sum::<u64>() < 4 * EACH {
                match taken(&shared, &mut queue) {
                    Some(id) => {
                        let thread = (id >> 32) as usize;
                        assert_eq!(id & 0xffff_ffff, got[thread], "in the order of each thread");
                        got[thread] += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
