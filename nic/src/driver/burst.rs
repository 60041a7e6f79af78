//! When requests of idle queue pairs wait for the next turn, to share its trains.
//!
//! A request of a queue pair that has nothing in flight leaves at once. A program that keeps hundreds of queue pairs busy posts
//! to one after the other before it polls: then each would leave in a train of its own, and a train of one packet costs as much
//! as one of 64. But what a program posts to its neighbours before it computes must not wait for its next poll.
//!
//! This is a state machine without I/O and without a clock, like [`hold`](super::hold). One bit is learned: whether the program
//! posts bursts. A burst is what is posted between two turns; it teaches that the program does if it was large, and the turn
//! came soon. Then only the first request of the next burst leaves at once, and up to [`WAITING`] may wait behind it. A wrong
//! guess delays those until the program polls, or until the background thread finds that it does not (see
//! [`attend`](super::attend)): for one or two standby periods, and once, because such a burst teaches the opposite.

use time::{Duration, Instant};

/// Requests that may wait behind one that left at once, until the next one leaves with all of them: as many short packets as
/// the kernel takes in one train (UDP_MAX_SEGMENTS, which was 64 until Linux 6.10).
pub(super) const WAITING: u32 = 64;

/// The size of a large burst, in requests that would each leave at once. Fewer cost less than what a wrong guess does.
const LARGE: u32 = 8;

/// How soon a program polls that posts bursts: 256 requests take about as long, and so does the wake-up of a thread.
const SOON: Duration = Duration::from_micros(100);

/// Decides whether requests wait for one another.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// When its first request left; `None` if none has since the last turn.
    since: Option<Instant>,
    requests: u32,
    /// How many were allowed to wait, at last.
    allowed: u32,
    /// Whether the program posts bursts.
    is_usual: bool,
}

impl Burst {
    /// Of a program that posts bursts.
    #[cfg(test)]
    pub(super) fn usual() -> Self {
        Self { is_usual: true, ..Self::default() }
    }

    /// A request has left at once. `unused`: of those that were allowed to wait, how many did not. Returns how many may wait
    /// from now on.
    pub(super) fn left(&mut self, now: Instant, unused: u32) -> u32 {
        self.since.get_or_insert(now);
        self.count(unused);
        self.requests = self.requests.saturating_add(1);
        self.allowed = if self.is_usual { WAITING } else { 0 };
        self.allowed
    }

    /// The port takes a turn.
    pub(super) fn end(&mut self, now: Instant, unused: u32) {
        let Some(since) = self.since else { return };
        self.count(unused);
        let is_usual = self.requests >= LARGE && now.saturating_duration_since(since) <= SOON;
        *self = Self { is_usual, ..Self::default() };
    }

    /// Adds those that wait.
    fn count(&mut self, unused: u32) {
        self.requests = self.requests.saturating_add(self.allowed.saturating_sub(unused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that posts so many requests, which may wait as far as they are allowed to, and polls after a time. Returns how
    /// many left at once.
    fn post(burst: &mut Burst, requests: u32, until_poll: Duration) -> u32 {
        let start = Instant::EPOCH + Duration::from_secs(1);
        let (mut unused, mut left) = (0_u32, 0);
        for _ in 0..requests {
            if let Some(rest) = unused.checked_sub(1) {
                unused = rest;
            } else {
                unused = burst.left(start, unused);
                left += 1;
            }
        }
        burst.end(start + until_poll, unused);
        left
    }

    #[test]
    fn whoever_posts_large_bursts_and_polls_soon_has_them_wait() {
        let mut burst = Burst::default();
        assert_eq!(post(&mut burst, LARGE, SOON), 8, "nothing is known yet");
        assert_eq!(post(&mut burst, 300, SOON), 5, "the first, and one in 65");
        assert_eq!(post(&mut burst, LARGE, SOON), 1, "it goes on");
        assert_eq!(post(&mut burst, LARGE - 1, SOON), 1, "small ones are not worth it");
        assert_eq!(post(&mut burst, LARGE - 1, SOON), 7);
        assert_eq!(post(&mut burst, 1000, SOON), 1000);
        assert_eq!(post(&mut burst, 66, SOON), 2);
    }

    #[test]
    fn whoever_computes_before_it_polls_does_not_wait_again() {
        let mut burst = Burst::usual();
        assert_eq!(post(&mut burst, 100, SOON + Duration::from_micros(1)), 2);
        assert_eq!(post(&mut burst, 100, SOON + Duration::from_micros(1)), 100);
        assert_eq!(post(&mut burst, 100, Duration::ZERO), 100);
        assert_eq!(post(&mut burst, 100, Duration::ZERO), 2);
    }

    #[test]
    fn turns_without_a_burst_teach_nothing() {
        let mut burst = Burst::usual();
        for _ in 0..3 {
            burst.end(Instant::EPOCH, 0);
        }
        assert_eq!(post(&mut burst, LARGE, SOON), 1);
    }
}
