//! Tests of completion queues and channels below the API.

use super::ring::ring;
use super::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use qp::{Qpn, WorkCompletion};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A time limit for a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(60);

fn completion(wr_id: u64) -> WorkCompletion {
    WorkCompletion { wr_id, ..WorkCompletion::default() }
}

fn queue(capacity: u32, channel: Option<&Arc<ChannelShared>>) -> (CqProducer, Arc<CqShared>) {
    completion_queue(CqRoom::new(capacity).expect("memory"), channel.map(Arc::clone))
}

fn channel() -> Arc<ChannelShared> {
    Arc::new(ChannelShared::new(crate::port::portable().expect("descriptors")))
}

/// The numbers of all completions that wait.
fn drain(shared: &CqShared) -> Vec<u64> {
    let mut out = [WorkCompletion::default(); 7];
    let mut all = Vec::new();
    loop {
        let taken = shared.take(&mut out);
        if taken == 0 {
            return all;
        }
        all.extend(out[..taken].iter().map(|wc| wc.wr_id));
    }
}

/// Whether a descriptor is readable within `millis`.
fn readable(channel: &ChannelShared, millis: u16) -> bool {
    let mut fds = [PollFd::new(channel.flag().as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(millis)).expect("poll") == 1
}

mod rings {
    use super::*;

    #[test]
    fn fills_refuses_and_wraps() {
        for capacity in [1, 3, 4] {
            let (mut tx, mut rx) = ring::<u32>(capacity).expect("memory");
            let count = u32::try_from(capacity).expect("small");
            for round in 0..10 {
                for i in 0..count {
                    assert!(tx.push(round * count + i));
                }
                assert!(!tx.push(99), "{capacity} entries, and one past");
                assert_eq!(rx.len(), capacity);
                let mut out = [0; 8];
                assert_eq!(rx.take(&mut out), capacity);
                assert!(out[..capacity].iter().copied().eq(round * count..(round + 1) * count));
                assert_eq!((rx.take(&mut out), rx.len()), (0, 0));
            }
        }
    }

    #[test]
    fn takes_no_more_than_there_is_room_for() {
        let (mut tx, mut rx) = ring::<u32>(8).expect("memory");
        (0..8).for_each(|i| assert!(tx.push(i)));
        let mut out = [0; 3];
        assert_eq!((rx.take(&mut []), rx.take(&mut out), out), (0, 3, [0, 1, 2]));
        assert_eq!((rx.take(&mut out), out), (3, [3, 4, 5]));
        assert_eq!((rx.take(&mut out), out[..2].to_vec()), (2, vec![6, 7]));
    }

    #[test]
    fn two_threads_see_every_entry_in_order() {
        const N: u64 = 200_000;
        let (mut tx, mut rx) = ring::<u64>(50).expect("memory");
        let writer = std::thread::spawn(move || {
            for i in 0..N {
                while !tx.push(i) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut out, mut next) = ([0; 16], 0);
        while next < N {
            let taken = rx.take(&mut out);
            for value in &out[..taken] {
                assert_eq!(*value, next);
                next += 1;
            }
            if taken == 0 {
                std::thread::yield_now();
            }
        }
        writer.join().expect("the writer does not panic");
    }
}

#[test]
fn the_bound_is_the_capacity_and_an_overrun_stays() {
    let (mut producer, shared) = queue(3, None);
    for i in 0..3 {
        assert_eq!(producer.push(completion(i), false), Pushed::Quiet);
    }
    assert_eq!(producer.push(completion(3), false), Pushed::Overrun);
    assert!(shared.is_overrun());
    assert_eq!(drain(&shared), [0, 1, 2]);
    assert_eq!(producer.push(completion(4), false), Pushed::Overrun, "a queue in error takes nothing");
    producer.resize(&mut CqRoom::new(10).expect("memory")).expect("room for all");
    assert!(shared.is_overrun(), "nor after it was resized");
    assert_eq!(producer.push(completion(5), false), Pushed::Overrun);
}

#[test]
fn resizing_keeps_what_waits_in_order() {
    let (mut producer, shared) = queue(5, None);
    // From the middle of the ring, so that the waiting completions wrap around.
    (0..3).for_each(|i| assert_eq!(producer.push(completion(i), false), Pushed::Quiet));
    assert_eq!(drain(&shared), [0, 1, 2]);
    (3..8).for_each(|i| assert_eq!(producer.push(completion(i), false), Pushed::Quiet));
    assert_eq!(producer.resize(&mut CqRoom::new(4).expect("memory")), Err(5));
    assert_eq!(shared.capacity(), 5, "as it was");
    producer.resize(&mut CqRoom::new(100).expect("memory")).expect("larger");
    assert_eq!(shared.capacity(), 100);
    (8..103).for_each(|i| assert_eq!(producer.push(completion(i), false), Pushed::Quiet));
    let mut some = [WorkCompletion::default(); 98];
    assert_eq!(shared.take(&mut some), 98);
    assert!(some.iter().map(|wc| wc.wr_id).eq(3..101));
    let mut room = CqRoom::new(2).expect("memory");
    producer.resize(&mut room).expect("exactly as many as wait");
    assert!(!shared.is_overrun());
    assert_eq!(producer.push(completion(103), false), Pushed::Overrun, "one past the new bound");
    assert_eq!(drain(&shared), [101, 102]);
}

/// An engine that completes, a program that polls in two threads, and a third that resizes all the time.
#[test]
fn resizing_loses_nothing_while_others_push_and_poll() {
    const N: u64 = 100_000;
    const SIZES: [u32; 4] = [64, 7, 1000, 33];
    let (producer, shared) = queue(64, None);
    // Stands in for the port's lock.
    let producer = Mutex::new(producer);
    let (taken, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let poll_all = || {
        let (mut mine, mut out) = (Vec::new(), [WorkCompletion::default(); 5]);
        while taken.load(Ordering::Relaxed) < N {
            let count = shared.take(&mut out);
            mine.extend(out[..count].iter().map(|wc| wc.wr_id));
            taken.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 {
                std::thread::yield_now();
            }
        }
        assert!(mine.is_sorted(), "each thread sees the order of completion");
        mine
    };
    let (mut resized, mut refused) = (0, 0);
    let mut seen = std::thread::scope(|scope| {
        let pollers = [scope.spawn(poll_all), scope.spawn(poll_all)];
        scope.spawn(|| {
            let mut sent = 0;
            while sent < N {
                let mut producer = locked(&producer);
                let room = u64::from(producer.shared.capacity());
                if sent - taken.load(Ordering::Relaxed) < room {
                    assert_eq!(producer.push(completion(sent), false), Pushed::Quiet);
                    sent += 1;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        for size in SIZES.into_iter().cycle() {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let mut room = CqRoom::new(size).expect("memory");
            match locked(&producer).resize(&mut room) {
                Ok(()) => resized += 1,
                Err(waiting) => {
                    assert!(waiting > size as usize);
                    refused += 1;
                }
            }
        }
        pollers.map(|poller| poller.join().expect("no panic")).concat()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..N), "each completion comes once");
    println!("{resized} times resized, {refused} times refused");
    assert!(resized > 10, "{resized} times only: the test did not test resizing");
}

#[test]
fn events_come_once_and_only_when_asked() {
    let (mut producer, shared) = queue(16, None);
    assert_eq!(producer.push(completion(0), true), Pushed::Quiet);
    shared.wish(Wish::SOLICITED);
    assert_eq!(producer.push(completion(1), false), Pushed::Quiet, "not solicited");
    assert_eq!(producer.push(completion(2), true), Pushed::Notify);
    assert_eq!(producer.push(completion(3), true), Pushed::Quiet, "disarmed");
    shared.wish(Wish::ANY);
    shared.wish(Wish::SOLICITED);
    assert_eq!(producer.push(completion(4), false), Pushed::Notify, "the wider wish stands");
    assert_eq!(producer.push(completion(5), true), Pushed::Quiet, "both were granted at once");
}

/// Takes the events that are on the channel.
fn events(channel: &ChannelShared) -> usize {
    std::iter::from_fn(|| channel.next()).count()
}

#[test]
fn arming_a_queue_that_holds_a_completion_that_no_event_announced_delivers_one_at_once() {
    let channel = channel();
    let (mut producer, shared) = queue(16, Some(&channel));
    shared.arm(false);
    assert_eq!(events(&channel), 0, "empty");
    assert_eq!(producer.push(completion(0), false), Pushed::Notify);
    shared.deliver(&mut Vec::new());
    assert_eq!(events(&channel), 1);
    assert_eq!(producer.push(completion(1), false), Pushed::Quiet, "disarmed");
    shared.arm(false);
    assert!(readable(&channel, 0));
    assert_eq!(events(&channel), 1, "nobody was told of the second one");
    shared.arm(false);
    assert_eq!(events(&channel), 0, "all that it holds were announced");
    assert_eq!(shared.take(&mut [WorkCompletion::default(); 2]), 2);
    shared.arm(false);
    assert_eq!(events(&channel), 0, "empty");
    assert_eq!(producer.push(completion(2), false), Pushed::Notify, "armed");
}

#[test]
fn arming_for_solicited_completions_looks_at_those_that_wait_to_be_taken() {
    let channel = channel();
    let (mut producer, shared) = queue(16, Some(&channel));
    let mut one = [WorkCompletion::default()];
    assert_eq!(producer.push(completion(0), false), Pushed::Quiet);
    shared.arm(true);
    assert_eq!(events(&channel), 0, "it holds one that is not solicited");
    assert_eq!(producer.push(completion(1), true), Pushed::Notify);
    shared.deliver(&mut Vec::new());
    assert_eq!(events(&channel), 1);
    assert_eq!(producer.push(completion(2), false), Pushed::Quiet);
    shared.arm(true);
    assert_eq!(events(&channel), 0, "the solicited one was announced");
    assert_eq!(producer.push(completion(3), true), Pushed::Notify);
    shared.deliver(&mut Vec::new());
    assert_eq!(events(&channel), 1);
    assert_eq!(producer.push(completion(4), true), Pushed::Quiet, "disarmed");
    producer.resize(&mut CqRoom::new(32).expect("memory")).expect("there is room for five");
    assert_eq!(shared.take(&mut one), 1);
    shared.arm(true);
    assert_eq!(events(&channel), 1, "nobody was told of the last one");
    assert_eq!(producer.push(completion(5), false), Pushed::Quiet);
    shared.arm(true);
    assert_eq!(events(&channel), 0, "one that is not solicited");
    shared.arm(false);
    assert_eq!(events(&channel), 1, "it is there");
}

#[test]
fn a_solicited_completion_is_told_of_after_others_were_discarded() {
    let channel = channel();
    let (mut producer, shared) = queue(16, Some(&channel));
    let of = |number: u32, wr_id| WorkCompletion { qpn: Qpn::new(number), ..completion(wr_id) };
    for (wr_id, wakes) in [(0, false), (1, true), (2, false), (3, false)] {
        assert_eq!(producer.push(of(if wr_id == 1 { 7 } else { 8 }, wr_id), wakes), Pushed::Quiet);
    }
    assert_eq!(producer.discard(Qpn::new(8)), 3);
    shared.arm(true);
    assert_eq!(events(&channel), 1, "it is left");
    assert_eq!(producer.discard(Qpn::new(7)), 1);
    shared.arm(true);
    assert_eq!(events(&channel), 0, "nothing is left");
    assert_eq!(producer.push(of(9, 4), true), Pushed::Notify);
}

#[test]
fn a_wish_outlives_resizing() {
    let (mut producer, shared) = queue(1, None);
    shared.wish(Wish::ANY);
    producer.resize(&mut CqRoom::new(2).expect("memory")).expect("empty");
    assert_eq!(producer.push(completion(0), false), Pushed::Notify);
}

#[test]
fn tasks_and_the_channel_are_told_on_their_own() {
    let channel = channel();
    let (mut producer, shared) = queue(8, Some(&channel));
    let mut woken = Vec::new();
    shared.waiters.sleep(shared.waiters.place(), std::task::Waker::noop());
    shared.wish(Wish::SOLICITED);
    shared.wish(Wish::AWAITED);
    assert_eq!(producer.push(completion(0), false), Pushed::Notify);
    shared.deliver(&mut woken);
    assert_eq!(woken.len(), 1, "tasks are woken by any completion");
    assert!(channel.next().is_none(), "the channel waits for a solicited one");
    assert_eq!(producer.push(completion(1), true), Pushed::Notify);
    shared.deliver(&mut woken);
    assert_eq!(woken.len(), 1, "nobody waits any more");
    assert!(channel.next().is_some());
    shared.wish(Wish::AWAITED);
    let place = shared.waiters.place();
    shared.waiters.sleep(place, std::task::Waker::noop());
    shared.waiters.sleep(place, std::task::Waker::noop());
    shared.waiters.sleep(shared.waiters.place(), std::task::Waker::noop());
    shared.waiters.leave(place);
    assert_eq!(producer.push(completion(2), false), Pushed::Notify);
    shared.deliver(&mut woken);
    assert_eq!(woken.len(), 2, "one has left, the other is woken");
}

#[test]
fn an_overrun_wakes_whoever_sleeps() {
    let channel = channel();
    let (mut producer, shared) = queue(1, Some(&channel));
    assert_eq!(producer.push(completion(0), false), Pushed::Quiet);
    shared.wish(Wish::ANY);
    shared.wish(Wish::AWAITED);
    shared.waiters.sleep(shared.waiters.place(), std::task::Waker::noop());
    assert_eq!(producer.push(completion(1), false), Pushed::Overrun);
    let mut woken = Vec::new();
    shared.deliver(&mut woken);
    assert_eq!((woken.len(), channel.next().is_some()), (1, true));
}

#[test]
fn a_channel_hands_out_each_event_once() {
    let channel = channel();
    let (mut producer, shared) = queue(8, Some(&channel));
    let (_other, idle) = queue(1, Some(&channel));
    assert!(channel.next().is_none() && !readable(&channel, 0));
    for round in 0..3 {
        shared.wish(Wish::ANY);
        assert_eq!(producer.push(completion(round), false), Pushed::Notify);
        // Two of them before the driver delivers, one after.
        if round > 0 {
            shared.deliver(&mut Vec::new());
        }
    }
    for left in (0..3).rev() {
        assert!(readable(&channel, 0));
        assert!(channel.next().is_some_and(|cq| std::ptr::eq(cq.as_ptr(), Arc::as_ptr(&shared))));
        assert_eq!(shared.events().unacknowledged(), 3 - left);
    }
    assert!(channel.next().is_none());
    assert!(!readable(&channel, 0), "the descriptor is not readable any more");
    (0..3).for_each(|_| shared.events().acknowledge(1));
    assert_eq!((shared.events().unacknowledged(), idle.events().unacknowledged()), (0, 0));
}

#[test]
fn the_events_of_a_queue_go_with_it() {
    let channel = channel();
    let queues: Vec<_> = (0..3).map(|_| queue(1, Some(&channel))).collect();
    assert_eq!(channel.queues(), 3);
    for (mut producer, shared) in queues {
        shared.wish(Wish::ANY);
        assert_eq!(producer.push(completion(0), false), Pushed::Notify);
        shared.deliver(&mut Vec::new());
        assert!(readable(&channel, 0));
        shared.detach();
        assert!(!readable(&channel, 0));
        assert!(channel.next().is_none());
    }
    assert_eq!(channel.queues(), 0);
}

/// The engine in one thread and a program that sleeps on the channel in another. The pauses shift the two relative to
/// each other; whatever their length, the program must not sleep while completions wait.
fn sleep_between(wish: Wish, solicited: impl Fn(u64) -> bool + Sync) {
    const N: u64 = 50_000;
    let channel = channel();
    let (mut producer, shared) = queue(4096, Some(&channel));
    let taken = AtomicU64::new(0);
    let deadline = Instant::now() + PATIENCE;
    let slept = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut woken = Vec::new();
            for i in 0..N {
                while i - taken.load(Ordering::Acquire) >= 4096 {
                    assert!(Instant::now() < deadline, "the program stopped taking");
                    std::thread::yield_now();
                }
                (0..(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55)).for_each(|_| std::hint::spin_loop());
                if producer.push(completion(i), solicited(i) || i == N - 1) == Pushed::Notify {
                    producer.shared.deliver(&mut woken);
                }
            }
        });
        let (mut out, mut next, mut slept) = ([WorkCompletion::default(); 8], 0, 0);
        while next < N {
            let count = shared.take(&mut out);
            for wc in &out[..count] {
                assert_eq!(wc.wr_id, next);
                next += 1;
            }
            taken.store(next, Ordering::Release);
            if count > 0 {
                continue;
            }
            shared.wish(wish);
            if shared.len() == 0 {
                assert!(readable(&channel, 30_000), "no wake-up after {next} completions");
                assert!(channel.next().is_some(), "a readable channel has an event");
                shared.events().acknowledge(1);
                slept += 1;
            }
        }
        slept
    });
    println!("slept {slept} times");
    assert!(slept > 10, "slept {slept} times only: the test did not test sleeping");
}

#[test]
fn no_wake_up_is_lost_between_arming_and_polling() {
    sleep_between(Wish::ANY, |_| false);
}

#[test]
fn no_solicited_wake_up_is_lost_either() {
    sleep_between(Wish::SOLICITED, |i| i % 3 == 0);
}
