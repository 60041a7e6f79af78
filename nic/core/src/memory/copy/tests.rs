use super::*;
use crate::memory::{MemoryBuffer, install};
use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

const PAGE: usize = 4096;

/// Linux maps nothing below `vm.mmap_min_addr`, which is never less than a page here.
const UNMAPPED: usize = 8;

/// A mapping of `pages` pages, for the test to cut holes into.
struct Pages {
    addr: usize,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        Self::map(pages * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, flags: i32, fd: i32) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, PROT_READ | PROT_WRITE, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { addr: start.expose_provenance(), len }
    }

    fn protect(&self, page: usize, protection: i32) {
        let at = std::ptr::with_exposed_provenance_mut(self.addr + page * PAGE);
        // SAFETY: changes a page of this mapping, which nothing refers to.
        assert_eq!(unsafe { libc::mprotect(at, PAGE, protection) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: unmaps this mapping, which nothing refers to.
        assert_eq!(unsafe { libc::munmap(at, self.len) }, 0);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Chosen,
    /// With the CRC, which is checked; as `Chosen` inwards.
    Summed,
    /// As `Summed`, by the routine for processors without AVX-512, where there is one.
    Narrow,
    Kernel,
    Portable,
}

/// Copies with the CRC by the routine for processors without AVX-512.
unsafe fn copy_out_narrow(src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on to the caller.
    if let Some(result) = unsafe { x86_64::copy_out_narrow(src, dst, crc) } {
        return result;
    }
    eprintln!("SKIPPED: this processor has no PCLMULQDQ");
    // SAFETY: passed on to the caller.
    unsafe { copy_out_summed(src, dst, crc) }
}

impl Way {
    fn copy_out(self, src: usize, dst: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the tests copy from their own mappings, or from where a fault is recovered.
        unsafe {
            match self {
                Self::Chosen => copy_out(src, dst),
                Self::Summed | Self::Narrow => {
                    let copy = if self == Self::Summed { copy_out_summed } else { copy_out_narrow };
                    copy(src, dst, 0xfeed_beef).map(|crc| {
                        assert_eq!(crc, icrc::extend(0xfeed_beef, dst), "{self:?}: {} bytes", dst.len());
                    })
                }
                Self::Kernel => platform::get().copy_out(src, dst).map_err(fault_of),
                Self::Portable => portable::copy_out(src, dst),
            }
        }
    }

    fn copy_in(self, src: &[u8], dst: usize) -> Result<(), Fault> {
        // SAFETY: as above.
        unsafe {
            match self {
                Self::Chosen | Self::Summed | Self::Narrow => copy_in(src, dst),
                Self::Kernel => platform::get().copy_in(src, dst).map_err(fault_of),
                Self::Portable => portable::copy_in(src, dst),
            }
        }
    }
}

fn fault_of(error: CopyError) -> Fault {
    match error {
        CopyError::Fault(fault) => fault,
        CopyError::Unavailable => panic!("this machine forbids process_vm_readv"),
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 * 13 + 1) as u8).collect()
}

/// Copies `len` bytes to and from address offset `shift`, and looks at the bytes around.
fn round_trip(way: Way, pages: &Pages, shift: usize, len: usize) {
    let at = pages.addr + 64 + shift;
    let data = pattern(len + 3);
    let data = &data[shift % 4..][..len];
    Way::Kernel.copy_in(&vec![0xee; len + 192], pages.addr).unwrap();
    way.copy_in(data, at).unwrap();
    let mut all = vec![0; len + 192];
    Way::Kernel.copy_out(pages.addr, &mut all).unwrap();
    assert_eq!(&all[64 + shift..][..len], data, "{way:?} in: {len} bytes at {shift}");
    assert!(all[..64 + shift].iter().chain(&all[64 + shift + len..]).all(|b| *b == 0xee));
    let mut out = vec![0x11; len + 2];
    way.copy_out(at, &mut out[1..=len]).unwrap();
    assert_eq!(&out[1..=len], data, "{way:?} out: {len} bytes at {shift}");
    assert_eq!((out[0], out[len + 1]), (0x11, 0x11));
}

#[test]
fn every_length_at_every_alignment() {
    install();
    let pages = Pages::new(2);
    for way in [Way::Chosen, Way::Summed, Way::Narrow, Way::Portable] {
        for shift in 0..9 {
            for len in 0..300 {
                round_trip(way, &pages, shift, len);
            }
        }
    }
    for len in 0..40 {
        round_trip(Way::Kernel, &pages, len % 9, len);
    }
}

#[test]
fn large_copies() {
    install();
    let pages = Pages::new(300);
    for way in [Way::Chosen, Way::Summed, Way::Narrow, Way::Kernel, Way::Portable] {
        for len in [511, 512, 700, 1023, 1024, 1025, 3071, 3072, 3073, 3080, 4096, 65_536, 1_000_001] {
            for shift in [0, 1, 8, 31, 54, 63] {
                round_trip(way, &pages, shift, len);
            }
        }
    }
}

/// Runs `body` where the second of two pages is gone or protected.
fn at_the_edge(protection: i32, body: impl Fn(Way, usize)) {
    install();
    for way in [Way::Chosen, Way::Summed, Way::Narrow, Way::Kernel] {
        let pages = Pages::new(2);
        pages.protect(1, protection);
        body(way, pages.addr + PAGE);
    }
}

#[test]
fn reading_over_the_edge_faults_at_the_edge() {
    at_the_edge(PROT_NONE, |way, edge| {
        for len in (1..300).chain([1024, 2048, 3072, 4096]) {
            let mut out = vec![0; len];
            for before in [0, 1.min(len - 1), len / 2, len - 1] {
                let fault = way.copy_out(edge - before, &mut out).unwrap_err();
                assert!(
                    (edge..edge + len).contains(&fault.addr),
                    "{way:?}: {len} bytes from {before} before the edge: {fault}"
                );
            }
            way.copy_out(edge - len, &mut out).unwrap();
        }
    });
}

#[test]
fn writing_over_the_edge_faults_and_the_rest_works_on() {
    at_the_edge(PROT_NONE, |way, edge| {
        for len in (1..300).chain([1024, 2048, 3072, 4096]) {
            let data = pattern(len);
            for before in [0, 1.min(len - 1), len / 2, len - 1] {
                let fault = way.copy_in(&data, edge - before).unwrap_err();
                assert!((edge..edge + len).contains(&fault.addr), "{way:?}: {fault}");
            }
            way.copy_in(&data, edge - len).unwrap();
            let mut out = vec![0; len];
            way.copy_out(edge - len, &mut out).unwrap();
            assert_eq!(out, data);
        }
    });
}

#[test]
fn read_only_memory_is_not_written() {
    at_the_edge(PROT_READ, |way, edge| {
        for len in [1, 8, 64, 1024, 4096] {
            assert!(way.copy_in(&vec![0xff; len], edge).is_err(), "{way:?}");
            let mut out = vec![0xff; len];
            way.copy_out(edge, &mut out).unwrap();
            assert_eq!(out, vec![0; len]);
        }
    });
}

#[test]
fn unmapped_and_impossible_addresses_fault() {
    install();
    // 2^63 is not canonical: the processor reports no address for it.
    for addr in [0, UNMAPPED, 1 << 63, usize::MAX - 63] {
        for way in [Way::Chosen, Way::Kernel] {
            let fault = way.copy_out(addr, &mut [0; 64]).unwrap_err();
            assert!((addr..=addr + 63).contains(&fault.addr), "{way:?} {addr:#x}: {fault}");
            if addr < usize::MAX - 1024 {
                let fault = Way::Summed.copy_out(addr, &mut [0; 1024]).unwrap_err();
                assert!((addr..addr + 1024).contains(&fault.addr), "{addr:#x}: {fault}");
            }
            assert!(way.copy_in(&[0; 64], addr).is_err(), "{way:?}");
        }
    }
}

#[test]
fn a_truncated_file_faults() {
    install();
    // SAFETY: makes a file without a name.
    let fd = unsafe { libc::memfd_create(c"memory".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: `fd` is ours.
    assert_eq!(unsafe { libc::ftruncate(fd, 2 * PAGE as i64) }, 0);
    let pages = Pages::map(2 * PAGE, MAP_SHARED, fd);
    Way::Chosen.copy_in(&pattern(2 * PAGE), pages.addr).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) }, 0);
    for way in [Way::Chosen, Way::Summed, Way::Narrow, Way::Kernel] {
        let mut out = vec![0; 2 * PAGE];
        let fault = way.copy_out(pages.addr, &mut out).unwrap_err();
        assert!(fault.addr >= pages.addr + PAGE, "{way:?}");
        assert!(way.copy_in(&[1; 64], pages.addr + 2 * PAGE - 64).is_err(), "{way:?}");
        way.copy_out(pages.addr, &mut out[..PAGE]).unwrap();
        assert_eq!(out[..PAGE], pattern(PAGE));
    }
    assert!(platform::get().probe_write(pages.addr + PAGE).is_err());
    // SAFETY: as above.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

#[test]
fn atomics_fault_and_change_nothing() {
    install();
    let pages = Pages::new(2);
    pages.protect(1, PROT_READ);
    let edge = pages.addr + PAGE;
    let add = AtomicOp::FetchAdd { add: 5 };
    let swap = AtomicOp::CompareSwap { compare: 1, swap: 2 };
    for op in [add, swap] {
        // SAFETY: memory of this test.
        assert_eq!(unsafe { fetch_update(edge, op) }, Err(Fault { addr: edge }));
    }
    assert_eq!(platform::get().probe_write(edge + 8), Err(Fault { addr: edge + 8 }));
    assert_eq!(platform::get().probe_write(edge - 8), Ok(()));
    assert!(platform::get().probe_write(UNMAPPED).is_err());
    let mut out = [1; 8];
    Way::Chosen.copy_out(edge, &mut out).unwrap();
    assert_eq!(out, [0; 8]);
}

#[test]
fn atomics_return_the_old_value() {
    install();
    type Update = unsafe fn(usize, AtomicOp) -> Result<u64, Fault>;
    for update in [fetch_update as Update, portable::fetch_update] {
        let buffer = MemoryBuffer::new(64).unwrap();
        let addr = buffer.addr() + 8;
        // SAFETY: memory of this test.
        let run = |op| unsafe { update(addr, op) }.unwrap();
        assert_eq!(run(AtomicOp::FetchAdd { add: u64::MAX }), 0);
        assert_eq!(run(AtomicOp::FetchAdd { add: 3 }), u64::MAX);
        assert_eq!(run(AtomicOp::CompareSwap { compare: 7, swap: 9 }), 2);
        assert_eq!(run(AtomicOp::CompareSwap { compare: 2, swap: 9 }), 2);
        assert_eq!(buffer.load_u64(8).unwrap(), 9);
    }
}

#[test]
fn atomics_from_several_threads_add_up() {
    install();
    let buffer = MemoryBuffer::new(8).unwrap();
    let addr = buffer.addr();
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(move || {
                for _ in 0..50_000 {
                    // SAFETY: memory of this test.
                    unsafe { fetch_update(addr, AtomicOp::FetchAdd { add: 1 }) }.unwrap();
                }
            });
            s.spawn(move || {
                for _ in 0..50_000 {
                    let mut expected = 0;
                    loop {
                        let op = AtomicOp::CompareSwap { compare: expected, swap: expected + 1 };
                        // SAFETY: memory of this test.
                        match unsafe { fetch_update(addr, op) }.unwrap() {
                            old if old == expected => break,
                            old => expected = old,
                        }
                    }
                }
            });
        }
    });
    assert_eq!(buffer.load_u64(0).unwrap(), 200_000);
}

/// One thread writes messages, the other polls the last byte and then looks at all the others.
#[test]
fn who_sees_the_last_byte_sees_all() {
    install();
    for way in [Way::Chosen, Way::Kernel, Way::Portable] {
        let buffer = MemoryBuffer::new(8192).unwrap();
        let rounds = if way == Way::Kernel { 300 } else { 3000 };
        let lengths = [2, 3, 8, 9, 16, 61, 64, 256, 1000, 1024, 4000, 4096];
        let seen = AtomicU8::new(0);
        thread::scope(|s| {
            s.spawn(|| {
                for round in 1..=rounds {
                    let (len, at, value) = message(&buffer, &lengths, round);
                    way.copy_in(&vec![value; len], at).unwrap();
                    spin(|| seen.load(Ordering::Acquire) == value);
                }
            });
            for round in 1..=rounds {
                let (len, at, value) = message(&buffer, &lengths, round);
                let mut last = [0];
                spin(|| {
                    Way::Chosen.copy_out(at + len - 1, &mut last).unwrap();
                    last[0] == value
                });
                let mut out = vec![0; len];
                Way::Chosen.copy_out(at, &mut out).unwrap();
                assert_eq!(out, vec![value; len], "{way:?}, {len} bytes");
                seen.store(value, Ordering::Release);
            }
        });
    }
}

/// Waits for the other thread; gives up after a number of turns that only a failure of that thread explains.
fn spin(mut done: impl FnMut() -> bool) {
    for turn in 0..50_000_000 {
        if done() {
            return;
        }
        if turn % 64 == 63 {
            thread::yield_now();
        }
    }
    panic!("the other thread failed, or its bytes never arrived");
}

/// Length, address and fill of the message of a round. Fills of neighbouring rounds differ and are not 0.
fn message(buffer: &MemoryBuffer, lengths: &[usize], round: usize) -> (usize, usize, u8) {
    let len = lengths[round % lengths.len()];
    (len, buffer.addr() + round * 5 % 64, (round % 251) as u8 + 1)
}

/// Faults show the order: a last word that cannot be stored finds all before it stored, and is not stored
/// itself if anything before it fails.
#[test]
fn the_last_word_is_stored_last_and_alone() {
    install();
    let pages = Pages::new(3);
    let edge = pages.addr + PAGE;
    for word in [1, 2, 4, 8] {
        for len in (word + 1..300).chain([1024, 3000, 3072, 4000]) {
            let bulk = len - word;
            Way::Chosen.copy_in(&vec![0; 3 * PAGE], pages.addr).unwrap();
            pages.protect(1, PROT_NONE);
            let fault = Way::Chosen.copy_in(&pattern(len), edge - bulk).unwrap_err();
            assert_eq!(fault.addr, edge, "{len} bytes");
            let mut out = vec![0; bulk];
            Way::Chosen.copy_out(edge - bulk, &mut out).unwrap();
            assert_eq!(out, pattern(len)[..bulk], "{len} bytes, the last {word} alone");

            let behind = edge + PAGE;
            Way::Chosen.copy_in(&pattern(len), behind - bulk.min(8)).unwrap_err();
            let mut out = vec![0xee; word];
            Way::Chosen.copy_out(behind - bulk.min(8) + bulk, &mut out).unwrap();
            assert_eq!(out, vec![0; word], "{len} bytes from an inaccessible page");
            pages.protect(1, PROT_READ | PROT_WRITE);
        }
    }
}

#[test]
fn the_last_word_is_aligned_and_inside() {
    assert_eq!(last_word(0x1000, 4096), 8);
    assert_eq!(last_word(0x1000, 8), 8);
    assert_eq!(last_word(0x1000, 7), 4);
    assert_eq!(last_word(0x1004, 8), 4);
    assert_eq!(last_word(0x1002, 8), 2);
    assert_eq!(last_word(0x1001, 8), 1);
    assert_eq!(last_word(0x1000, 1), 1);
    assert_eq!(last_word(0, 64), 8);
}

#[test]
fn copies_race_with_unmapping() {
    install();
    let pages = Pages::new(16);
    let done = AtomicU8::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..300 {
                for page in 0..16 {
                    pages.protect(page, PROT_NONE);
                }
                for page in 0..16 {
                    pages.protect(page, PROT_READ | PROT_WRITE);
                }
            }
            done.store(1, Ordering::Release);
        });
        let data = pattern(16 * PAGE);
        while done.load(Ordering::Acquire) == 0 {
            for len in [8, 100, 1000, 4096, 16 * PAGE] {
                // Success and fault are both right.
                let _ = Way::Chosen.copy_in(&data[..len], pages.addr);
                let _ = Way::Chosen.copy_out(pages.addr, &mut vec![0; len]);
                let _ = Way::Summed.copy_out(pages.addr, &mut vec![0; len]);
            }
        }
    });
    Way::Chosen.copy_in(&pattern(16 * PAGE), pages.addr).unwrap();
}

/// Every place of a fault in the middle of a copy with CRC: in each of the first vectors, in the loops and in the rest.
#[test]
fn a_copy_with_crc_faults_anywhere() {
    install();
    let pages = Pages::new(2);
    pages.protect(1, PROT_NONE);
    let edge = pages.addr + PAGE;
    for len in [256, 512, 1024, 1000, 2047, 4096] {
        for before in (0..len).step_by(32).chain([1, len - 1]) {
            let mut out = vec![0; len];
            let fault = Way::Summed.copy_out(edge - before, &mut out).unwrap_err();
            assert!(
                (edge..edge + len).contains(&fault.addr),
                "{len} bytes, {before} before the edge: {fault}"
            );
        }
        Way::Summed.copy_out(edge - len, &mut vec![0; len]).unwrap();
    }
}

/// The program changes the bytes meanwhile: the CRC is that of the copy, whatever it is.
#[test]
fn the_crc_is_that_of_the_copy() {
    install();
    let buffer = MemoryBuffer::new(4096).unwrap();
    let done = AtomicU8::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            for round in 0..20_000u32 {
                Way::Chosen.copy_in(&[round as u8; 512], buffer.addr() + round as usize % 7 * 512).unwrap();
            }
            done.store(1, Ordering::Release);
        });
        while done.load(Ordering::Acquire) == 0 {
            Way::Summed.copy_out(buffer.addr(), &mut [0; 4096]).unwrap();
        }
    });
}

proptest! {
    /// Of any length, from anywhere to anywhere, in any two parts.
    #[test]
    fn a_copy_with_crc_is_a_copy_and_a_crc(
        data in proptest::collection::vec(any::<u8>(), 0..9000), crc: u32, to in 0..64_usize, split: prop::sample::Index,
    ) {
        install();
        let split = split.index(data.len() + 1);
        let mut out = vec![0; to + data.len()];
        type Summed = unsafe fn(usize, &mut [u8], u32) -> Result<u32, Fault>;
        for summed in [copy_out_summed as Summed, direct::copy_out_summed, portable::copy_out_summed] {
            out.fill(0);
            let (first, second) = out[to..].split_at_mut(split);
            // SAFETY: the bytes are those of `data`.
            let before = unsafe { summed(data.as_ptr().expose_provenance(), first, crc) }.unwrap();
            // SAFETY: as above.
            let got = unsafe { summed(data[split..].as_ptr().expose_provenance(), second, before) }.unwrap();
            let mut plain = crc32fast::Hasher::new_with_initial(crc);
            plain.update(&data);
            prop_assert_eq!(got, plain.finalize());
            prop_assert_eq!(&out[to..], &data[..]);
            prop_assert!(out[..to].iter().all(|byte| *byte == 0));
        }
    }
}
