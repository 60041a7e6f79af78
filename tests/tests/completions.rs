//! Completion queues that are resized while in use.

use rnic::{RcEnd, WcStatus, WorkCompletion};
use rnic_tests::open;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// One thread posts, one polls, one resizes continuously.
#[test]
fn a_queue_is_resized_under_traffic() {
    const COUNT: u64 = 20_000;
    /// Maximum number of sends that are posted and not polled.
    const DEPTH: u64 = 100;
    const SIZES: [u32; 4] = [100, 5000, 101, 1024];
    let (a, b) = (open(), open());
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    let source = left.register(&[1; 32]).expect("memory");
    let target = right.register_remote(32).expect("memory");
    let polled = AtomicU64::new(0);
    let deadline = Instant::now() + PATIENCE;
    let resized = std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..COUNT {
                while id - polled.load(Ordering::Acquire) >= DEPTH {
                    assert!(Instant::now() < deadline, "stuck after {id}");
                    std::thread::yield_now();
                }
                left.qp.write(id, source.all(), target.remote(0)).expect("posted");
            }
        });
        scope.spawn(|| {
            let (mut next, mut out) = (0, [WorkCompletion::default(); 9]);
            while next < COUNT {
                let count = left.cq().poll(&mut out);
                for wc in &out[..count] {
                    assert_eq!((wc.wr_id, wc.status), (next, WcStatus::Success));
                    next += 1;
                }
                polled.store(next, Ordering::Release);
                assert!(Instant::now() < deadline, "stuck after {next}");
            }
        });
        let mut resized = 0;
        for cqe in SIZES.into_iter().cycle() {
            if polled.load(Ordering::Relaxed) == COUNT || Instant::now() > deadline {
                break;
            }
            left.cq().resize(cqe).expect("no more wait than were posted");
            assert_eq!(left.cq().capacity(), cqe);
            resized += 1;
        }
        resized
    });
    println!("resized {resized} times");
    assert!(resized > 10, "{resized} times only: the test did not test resizing");
    assert!(!left.cq().is_overrun());
}
