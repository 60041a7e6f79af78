//! Copies without assembly, for processors other than x86-64: correct, slow and without fault recovery.
//!
//! They serve memory that is known to be mapped. Other registered memory goes through the kernel. Every access is an
//! atomic of at most 8 bytes, so that races stay defined.
#![expect(unsafe_code, reason = "atomics on raw addresses")]

use super::{Fault, last_word};
use qp::AtomicOp;
use qp::wire::icrc;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// See [`super::copy_out`].
///
/// # Safety
///
/// The bytes at `src` are mapped, and registered for reading.
pub(super) unsafe fn copy_out(src: usize, dst: &mut [u8]) -> Result<(), Fault> {
    let mut at = src;
    let mut rest = dst;
    while !rest.is_empty() {
        let size = step(at, rest.len());
        let (word, behind) = rest.split_at_mut(size);
        // SAFETY: `at` is a multiple of `size`, and the `size` bytes there are among those of the caller.
        word.copy_from_slice(&unsafe { load(at, size) }.to_ne_bytes()[..size]);
        at += size;
        rest = behind;
    }
    Ok(())
}

/// See [`super::copy_out_summed`].
///
/// # Safety
///
/// As for [`copy_out`].
pub(super) unsafe fn copy_out_summed(src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    // SAFETY: passed on to the caller.
    unsafe { copy_out(src, dst) }?;
    Ok(icrc::extend(crc, dst))
}

/// See [`super::copy_in`].
///
/// # Safety
///
/// The bytes at `dst` are mapped, and registered for writing.
pub(super) unsafe fn copy_in(src: &[u8], dst: usize) -> Result<(), Fault> {
    if src.is_empty() {
        return Ok(());
    }
    let (bulk, last) = src.split_at(src.len() - last_word(dst + src.len(), src.len()));
    let mut at = dst;
    let mut rest = bulk;
    while !rest.is_empty() {
        let (word, behind) = rest.split_at(step(at, rest.len()));
        // SAFETY: `at` is a multiple of the word's size, and its bytes are among those of the caller.
        unsafe { store(at, word, Ordering::Relaxed) };
        at += word.len();
        rest = behind;
    }
    // SAFETY: the last word is aligned by its choice, and its bytes are among those of the caller.
    unsafe { store(at, last, Ordering::Release) };
    Ok(())
}

/// See [`super::fetch_update`].
///
/// # Safety
///
/// The 8 bytes at `addr`, a multiple of 8, are mapped, and registered for writing.
pub(super) unsafe fn fetch_update(addr: usize, op: AtomicOp) -> Result<u64, Fault> {
    // SAFETY: aligned and mapped, as the caller promises; all our accesses are atomic.
    let value = unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(addr)) };
    Ok(match op {
        AtomicOp::CompareSwap { compare, swap } => {
            match value.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
        AtomicOp::FetchAdd { add } => value.fetch_add(add, Ordering::SeqCst),
        AtomicOp::Store { value: new } => value.swap(new, Ordering::SeqCst),
    })
}

/// The largest aligned word at `at` that fits into `len` bytes.
fn step(at: usize, len: usize) -> usize {
    last_word(at, len)
}

/// Loads a word of `size` bytes into the first bytes of the result.
///
/// # Safety
///
/// `at` is a multiple of `size`, which is 1, 2, 4 or 8, and mapped.
unsafe fn load(at: usize, size: usize) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: aligned and mapped in each case, as the caller promises.
    unsafe {
        match size {
            8 => {
                bytes =
                    AtomicU64::from_ptr(with_exposed_provenance_mut(at)).load(Ordering::Acquire).to_ne_bytes()
            }
            4 => bytes[..4].copy_from_slice(
                &AtomicU32::from_ptr(with_exposed_provenance_mut(at)).load(Ordering::Acquire).to_ne_bytes(),
            ),
            2 => bytes[..2].copy_from_slice(
                &AtomicU16::from_ptr(with_exposed_provenance_mut(at)).load(Ordering::Acquire).to_ne_bytes(),
            ),
            _ => bytes[0] = AtomicU8::from_ptr(with_exposed_provenance_mut(at)).load(Ordering::Acquire),
        }
    }
    u64::from_ne_bytes(bytes)
}

/// Stores `word`, of 1, 2, 4 or 8 bytes.
///
/// # Safety
///
/// `at` is a multiple of the word's size, and mapped for writing.
unsafe fn store(at: usize, word: &[u8], order: Ordering) {
    // SAFETY: aligned and mapped in each case, as the caller promises.
    unsafe {
        match *word {
            [a, b, c, d, e, f, g, h] => {
                let value = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                AtomicU64::from_ptr(with_exposed_provenance_mut(at)).store(value, order);
            }
            [a, b, c, d] => AtomicU32::from_ptr(with_exposed_provenance_mut(at))
                .store(u32::from_ne_bytes([a, b, c, d]), order),
            [a, b] => {
                AtomicU16::from_ptr(with_exposed_provenance_mut(at)).store(u16::from_ne_bytes([a, b]), order);
            }
            _ => {
                for (i, byte) in word.iter().enumerate() {
                    AtomicU8::from_ptr(with_exposed_provenance_mut(at + i)).store(*byte, order);
                }
            }
        }
    }
}
