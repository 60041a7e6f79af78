//! The contract of registered memory: a program may read and write it while the device does. Bytes have their old
//! or new value, words of 8 bytes that are a message of their own are never torn, and nothing else happens, even if
//! pages are unmapped meanwhile.

use rnic::sim::Net;
use rnic::{RcEnd, WcStatus};
use rnic_tests::os::unmap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Several packets, and not a whole number of them.
const LEN: usize = 20_008;

/// Rounds of WRITE and READ; each round is a few dozen packets.
const ROUNDS: u64 = 200;

/// All written bytes are below this.
const FILLS: u8 = 100;

/// All bytes the same, so that a word torn between two writers is detected.
const fn word(fill: u8) -> u64 {
    u64::from_ne_bytes([fill; 8])
}

const fn is_whole(word: u64) -> bool {
    let bytes = word.to_ne_bytes();
    word == u64::from_ne_bytes([bytes[0]; 8])
}

#[test]
fn bytes_are_old_or_new_and_words_whole_while_device_and_program_write() {
    let net = Net::new();
    let (left, right) = RcEnd::pair(&net.device(), &net.device()).expect("a pair");
    let source = left.register(&[1; LEN]).expect("memory");
    let target = right.register_remote(LEN).expect("memory");
    // A one-word message, from and to words that the program writes.
    let (from, to) = (left.register(&[1; 8]).expect("memory"), right.register_remote(8).expect("memory"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let (mut looks, mut fill) = (0_u64, 0_u8);
            while !stop.load(Ordering::Relaxed) || looks < 3 {
                for at in (0..LEN).step_by(8) {
                    let found = target.load_u64(at).expect("mapped");
                    assert!(found.to_ne_bytes().iter().all(|byte| *byte < FILLS), "{found:#x} at {at}");
                    if at % 64 == 0 {
                        fill = (fill + 1) % FILLS;
                        target.store_u64(at, word(fill)).expect("mapped");
                        source.store_u64(at, word(fill)).expect("mapped");
                        from.store_u64(0, word(fill)).expect("mapped");
                        let found = to.load_u64(0).expect("mapped");
                        assert!(is_whole(found), "{found:#x} is torn");
                    }
                }
                looks += 1;
            }
            looks
        });
        for round in 0..ROUNDS {
            left.qp.write(3 * round, source.all(), target.remote(0)).expect("room");
            left.qp.read(3 * round + 1, source.all(), target.remote(0)).expect("room");
            left.qp.write(3 * round + 2, from.all(), to.remote(0)).expect("room");
            for _ in 0..3 {
                assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(program.join().expect("the contract was kept") >= 3);
    });
}

/// Accesses to unmapped memory fail with an error, and so does the work request; the process survives.
#[test]
fn pages_that_go_away_in_mid_flight_end_the_request_and_nothing_else() {
    for round in 0..20_usize {
        let net = Net::new();
        let (left, right) = RcEnd::pair(&net.device(), &net.device()).expect("a pair");
        let len = 64 * 4096;
        let source = left.register(&vec![1; len]).expect("memory");
        let target = right.register_remote(len).expect("memory");
        left.qp.write(1, source.all(), target.remote(0)).expect("room");
        let status = thread::scope(|scope| {
            let unmapper = scope.spawn(|| {
                // At a random point in the message, which takes about as long as this loop.
                (0..round * 2000).for_each(|_| std::hint::spin_loop());
                let region = if round % 2 == 0 { &target } else { &source };
                unmap(region, len - 4096..len).expect("unmapped");
            });
            let status = left.wait().expect("a completion").status;
            unmapper.join().expect("no panic");
            status
        });
        let allowed = [WcStatus::Success, WcStatus::LocProtErr, WcStatus::RemAccessErr, WcStatus::RemOpErr];
        assert!(allowed.contains(&status), "{status:?}");
        let region = if round % 2 == 0 { &target } else { &source };
        let mut byte = [0];
        assert!(region.read_at(len - 1, &mut byte).is_err(), "the page is gone");
        assert!(region.read_at(0, &mut byte).is_ok());
    }
}
