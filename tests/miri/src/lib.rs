//! Runs the ring and the notification requests of completion queues under Miri, which detects undefined behaviour,
//! data races and reads of uninitialised memory, in real threads with weak memory ordering. (loom explores all
//! orders of small cases: `nic/core/src/queue/model.rs`.)

#![cfg(test)]
#![allow(dead_code, reason = "the engine uses more of it than the tests")]

#[path = "../../../nic/core/src/queue/primitives.rs"]
mod primitives;
#[path = "../../../nic/core/src/queue/ring.rs"]
mod ring;
#[path = "../../../nic/core/src/queue/wishes.rs"]
mod wishes;

use ring::ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use wishes::{Wish, Wishes};

/// Entries with padding, part of which is never initialised.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Entry {
    number: u64,
    status: u8,
}

#[test]
fn entries_arrive_whole_and_in_order() {
    const N: u64 = 120;
    let (mut tx, mut rx) = ring::<Entry>(5).expect("memory");
    let writer = thread::spawn(move || {
        for number in 0..N {
            while !tx.push(Entry { number, status: number as u8 }) {
                thread::yield_now();
            }
        }
    });
    let (mut out, mut next) = ([Entry::default(); 3], 0);
    while next < N {
        let taken = rx.take(&mut out);
        for entry in &out[..taken] {
            assert_eq!(*entry, Entry { number: next, status: next as u8 });
            next += 1;
        }
        if taken == 0 {
            thread::yield_now();
        }
    }
    writer.join().expect("the writer does not panic");
}

#[test]
fn writes_before_an_entry_are_visible_after_it() {
    let memory: Arc<[AtomicU64; 8]> = Arc::default();
    let (mut tx, mut rx) = ring::<usize>(8).expect("memory");
    let theirs = Arc::clone(&memory);
    let writer = thread::spawn(move || {
        for (place, word) in theirs.iter().enumerate() {
            word.store(7, Ordering::Relaxed);
            assert!(tx.push(place));
        }
    });
    let (mut out, mut seen) = ([0; 8], 0);
    while seen < 8 {
        let taken = rx.take(&mut out);
        assert!(out[..taken].iter().all(|place| memory[*place].load(Ordering::Relaxed) == 7));
        seen += taken;
        thread::yield_now();
    }
    writer.join().expect("the writer does not panic");
}

#[test]
fn a_ring_that_goes_with_entries_in_it_leaks_nothing() {
    let (mut tx, mut rx) = ring::<Entry>(4).expect("memory");
    assert!(tx.push(Entry::default()) && tx.push(Entry::default()));
    assert_eq!(rx.take(&mut [Entry::default()]), 1);
    drop(tx);
    assert_eq!(rx.len(), 1);
}

/// A thread that requests a notification on an empty queue is woken by the next entry.
#[test]
fn no_wish_is_overlooked() {
    let wishes = Arc::new(Wishes::new());
    let (mut tx, mut rx) = ring::<u32>(1).expect("memory");
    let theirs = Arc::clone(&wishes);
    let engine = thread::spawn(move || {
        assert!(tx.push(1));
        theirs.grant(false)
    });
    wishes.make(Wish::ANY);
    let found = rx.len() == 1;
    let granted = engine.join().expect("the engine does not panic");
    assert!(found || granted == Wish::ANY);
}
