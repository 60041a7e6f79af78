//! Copies and atomics in x86-64 assembly, at known addresses and with known recovery points.
//!
//! Each routine is a leaf that never moves the stack pointer, so its recovery point can return to the caller from
//! wherever the fault happened. It fills a fixed number of bytes, the last [`RECOVERY_BYTES`] of which are the
//! recovery point: a signal handler derives both from the routine's address.
#![expect(unsafe_code, reason = "assembly on registered memory")]

mod fold;

use super::{Fault, last_word};
use qp::AtomicOp;
use qp::wire::icrc;
use std::arch::naked_asm;

/// Bytes of code in `copy`, including the recovery point. The assembler refuses code that does not fit.
const COPY_BYTES: usize = 768;
/// Bytes of code in each atomic routine.
const ATOMIC_BYTES: usize = 64;
/// Bytes at the end of each routine that are its recovery point.
const RECOVERY_BYTES: usize = 16;

/// From this length on the string instruction beats the vector loop (measured on Zen 5, where memcpy of glibc
/// switches at a similar length).
const STRING_BYTES: usize = 3072;
/// Up to this length a copy is straight code, without a loop.
const STRAIGHT_BYTES: usize = 128;

/// The result of a routine, in RAX and RDX.
#[repr(C)]
struct Outcome {
    /// 0, or 1 after a fault.
    faulted: u64,
    /// After a fault the address that failed; otherwise the old value, for atomics.
    value: u64,
}

impl Outcome {
    fn check(self, start: usize) -> Result<u64, Fault> {
        match self.faulted {
            0 => Ok(self.value),
            // A non-canonical address raises a general protection fault, which comes without an address.
            _ if self.value == 0 => Err(Fault { addr: start }),
            _ => Err(Fault { addr: self.value as usize }),
        }
    }
}

/// See [`super::copy_out`]. Without our handler in place a fault goes to the program.
///
/// # Safety
///
/// As for [`super::copy_out`].
pub(super) unsafe fn copy_out(src: usize, dst: &mut [u8]) -> Result<(), Fault> {
    let n = dst.len();
    // SAFETY: `dst` takes `n` bytes; the caller allows reading the bytes at `src`.
    unsafe { copy(dst.as_mut_ptr() as usize, src, n, 0, wide(n)) }.check(src).map(drop)
}

/// See [`super::copy_out_summed`]. Without our handler in place a fault goes to the program.
///
/// # Safety
///
/// As for [`super::copy_out`].
pub(super) unsafe fn copy_out_summed(src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    match fold::best(dst.len()) {
        // SAFETY: passed on to the caller; the processor has the instructions.
        Some(fold) => unsafe { copy_out_by(fold, src, dst, crc) },
        None => {
            // SAFETY: passed on to the caller.
            unsafe { copy_out(src, dst) }?;
            Ok(icrc::extend(crc, dst))
        }
    }
}

/// As [`copy_out_summed`], by this routine and, for what it leaves, without one.
///
/// # Safety
///
/// As for [`super::copy_out`]. The routine must be supported.
unsafe fn copy_out_by(fold: fold::Fold, src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    let (folded, rest) = dst.split_at_mut(fold.part(dst.len()));
    let mut crc = crc;
    if !folded.is_empty() {
        // SAFETY: passed on to the caller; the routine copies this length.
        crc = unsafe { fold.copy_out(src, folded, crc) }?;
    }
    if !rest.is_empty() {
        // SAFETY: passed on to the caller.
        unsafe { copy_out(src + folded.len(), rest) }?;
        crc = icrc::extend(crc, rest);
    }
    Ok(crc)
}

/// As [`copy_out_summed`], by the routine for processors without AVX-512, if this one has its instructions.
///
/// # Safety
///
/// As for [`super::copy_out`].
#[cfg(test)]
pub(super) unsafe fn copy_out_narrow(src: usize, dst: &mut [u8], crc: u32) -> Option<Result<u32, Fault>> {
    // SAFETY: passed on to the caller.
    fold::NARROW.is_supported().then(|| unsafe { copy_out_by(fold::NARROW, src, dst, crc) })
}

/// See [`super::copy_in`]. Without our handler in place a fault goes to the program.
///
/// # Safety
///
/// As for [`super::copy_in`].
pub(super) unsafe fn copy_in(src: &[u8], dst: usize) -> Result<(), Fault> {
    if src.is_empty() {
        return Ok(());
    }
    let word = last_word(dst.wrapping_add(src.len()), src.len());
    let n = src.len() - word;
    // SAFETY: `src` holds `n + word` bytes; the caller allows writing as many at `dst`.
    unsafe { copy(dst, src.as_ptr() as usize, n, word, wide(n)) }.check(dst).map(drop)
}

/// See [`super::fetch_update`]. Without our handler in place a fault goes to the program.
///
/// # Safety
///
/// As for [`super::fetch_update`].
pub(super) unsafe fn fetch_update(addr: usize, op: AtomicOp) -> Result<u64, Fault> {
    match op {
        // SAFETY: the caller allows updating the 8 bytes at `addr`.
        AtomicOp::CompareSwap { compare, swap } => unsafe { compare_swap(addr, compare, swap) },
        // SAFETY: as above.
        AtomicOp::FetchAdd { add } => unsafe { fetch_add(addr, add) },
        AtomicOp::Store { value } => {
            // SAFETY: as above.
            let mut expected = unsafe { fetch_add(addr, 0) }.check(addr)?;
            loop {
                // SAFETY: as above.
                match unsafe { compare_swap(addr, expected, value) }.check(addr)? {
                    found if found == expected => return Ok(found),
                    found => expected = found,
                }
            }
        }
    }
    .check(addr)
}

/// Whether to copy `n` bytes with 32-byte vectors.
fn wide(n: usize) -> bool {
    n > STRAIGHT_BYTES && n < STRING_BYTES && std::arch::is_x86_feature_detected!("avx")
}

/// Where a thread that faulted at the instruction `at` goes on if that is in one of our routines: at its recovery point,
/// with the address of the fault in RDX. Async-signal-safe.
pub fn recovery_point(at: usize) -> Option<usize> {
    let routines = [
        (copy as *const () as usize, COPY_BYTES),
        (fold::WIDE.routine as *const () as usize, fold::FOLD_BYTES),
        (fold::NARROW.routine as *const () as usize, fold::FOLD_BYTES),
        (compare_swap as *const () as usize, ATOMIC_BYTES),
        (fetch_add as *const () as usize, ATOMIC_BYTES),
    ];
    let faulted =
        routines.into_iter().find(|(start, bytes)| at.wrapping_sub(*start) < bytes - RECOVERY_BYTES);
    faulted.map(|(start, bytes)| start + bytes - RECOVERY_BYTES)
}

/// Copies `n` bytes from `src` to `dst` in any order, then the `word` bytes (0, 1, 2, 4 or 8) behind them by one load
/// and one store. `wide` selects 32-byte vectors for lengths where they pay off (the processor must have AVX).
///
/// Stores of x86 become visible in program order, those of the string instruction before any later store; so
/// the final store is a release.
///
/// Register use: RDI, RSI, RDX and ECX as passed, R8D `wide`, R10 and R11 the ends of the `n` bytes.
///
/// # Safety
///
/// As for `copy_in` and `copy_out` together.
#[unsafe(naked)]
unsafe extern "C" fn copy(dst: usize, src: usize, n: usize, word: usize, wide: bool) -> Outcome {
    naked_asm!(
        ".cfi_startproc",
        "10:",
        "lea r10, [rdi + rdx]",
        "lea r11, [rsi + rdx]",
        "cmp rdx, 16",
        "jae 16f",
        "cmp edx, 8",
        "jae 18f",
        "cmp edx, 4",
        "jae 14f",
        "cmp edx, 2",
        "jae 12f",
        "test edx, edx",
        "jz 50f",
        "movzx eax, byte ptr [rsi]",
        "mov byte ptr [rdi], al",
        "jmp 50f",
        // 2 to 15 bytes: the first and the last word, which may overlap.
        "12:",
        "movzx eax, word ptr [rsi]",
        "movzx edx, word ptr [r11 - 2]",
        "mov word ptr [rdi], ax",
        "mov word ptr [r10 - 2], dx",
        "jmp 50f",
        "14:",
        "mov eax, dword ptr [rsi]",
        "mov edx, dword ptr [r11 - 4]",
        "mov dword ptr [rdi], eax",
        "mov dword ptr [r10 - 4], edx",
        "jmp 50f",
        "18:",
        "mov rax, qword ptr [rsi]",
        "mov rdx, qword ptr [r11 - 8]",
        "mov qword ptr [rdi], rax",
        "mov qword ptr [r10 - 8], rdx",
        "jmp 50f",
        // 16 to 128 bytes: as many vectors from the front as from the back, which may overlap.
        "16:",
        "movups xmm0, [rsi]",
        "movups xmm3, [r11 - 16]",
        "cmp rdx, 32",
        "ja 20f",
        "movups [rdi], xmm0",
        "movups [r10 - 16], xmm3",
        "jmp 50f",
        "20:",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [r11 - 32]",
        "cmp rdx, 64",
        "ja 22f",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [r10 - 32], xmm2",
        "movups [r10 - 16], xmm3",
        "jmp 50f",
        "22:",
        "cmp rdx, {straight}",
        "ja 30f",
        "movups xmm4, [rsi + 32]",
        "movups xmm5, [rsi + 48]",
        "movups xmm6, [r11 - 64]",
        "movups xmm7, [r11 - 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm4",
        "movups [rdi + 48], xmm5",
        "movups [r10 - 64], xmm6",
        "movups [r10 - 48], xmm7",
        "movups [r10 - 32], xmm2",
        "movups [r10 - 16], xmm3",
        "jmp 50f",
        "30:",
        "test r8b, r8b",
        "jz 40f",
        // Vectors of 32 bytes: the first unaligned, then 128 bytes a turn to aligned addresses, and the
        // last 128 unaligned.
        "vmovups ymm0, [rsi]",
        "vmovups ymm4, [r11 - 128]",
        "vmovups ymm5, [r11 - 96]",
        "vmovups ymm6, [r11 - 64]",
        "vmovups ymm7, [r11 - 32]",
        "vmovups [rdi], ymm0",
        "sub rsi, rdi",
        "and rdi, -32",
        "add rdi, 32",
        "add rsi, rdi",
        "lea rdx, [r10 - 128]",
        "cmp rdi, rdx",
        "jae 34f",
        ".p2align 5",
        "32:",
        "vmovups ymm0, [rsi]",
        "vmovups ymm1, [rsi + 32]",
        "vmovups ymm2, [rsi + 64]",
        "vmovups ymm3, [rsi + 96]",
        "sub rsi, -128",
        "vmovaps [rdi], ymm0",
        "vmovaps [rdi + 32], ymm1",
        "vmovaps [rdi + 64], ymm2",
        "vmovaps [rdi + 96], ymm3",
        "sub rdi, -128",
        "cmp rdi, rdx",
        "jb 32b",
        "34:",
        "vmovups [r10 - 128], ymm4",
        "vmovups [r10 - 96], ymm5",
        "vmovups [r10 - 64], ymm6",
        "vmovups [r10 - 32], ymm7",
        "vzeroupper",
        "jmp 50f",
        // The string instruction, to an address that is a multiple of 64: it is slow otherwise.
        "40:",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "mov eax, ecx",
        "sub rsi, rdi",
        "and rdi, -64",
        "add rdi, 64",
        "add rsi, rdi",
        "mov rcx, r10",
        "sub rcx, rdi",
        "rep movsb",
        "mov ecx, eax",
        // The final word.
        "50:",
        "cmp ecx, 1",
        "jb 58f",
        "je 51f",
        "cmp ecx, 4",
        "jb 52f",
        "je 54f",
        "mov rax, qword ptr [r11]",
        "mov qword ptr [r10], rax",
        "58:",
        "xor eax, eax",
        "ret",
        "51:",
        "movzx eax, byte ptr [r11]",
        "mov byte ptr [r10], al",
        "xor eax, eax",
        "ret",
        "52:",
        "movzx eax, word ptr [r11]",
        "mov word ptr [r10], ax",
        "xor eax, eax",
        "ret",
        "54:",
        "mov eax, dword ptr [r11]",
        "mov dword ptr [r10], eax",
        "xor eax, eax",
        "ret",
        ".org 10b + {bytes} - {recovery}, 0xcc",
        "test r8b, r8b",
        "jz 60f",
        "vzeroupper",
        "60:",
        "mov eax, 1",
        "ret",
        ".org 10b + {bytes}, 0xcc",
        ".cfi_endproc",
        straight = const STRAIGHT_BYTES,
        bytes = const COPY_BYTES,
        recovery = const RECOVERY_BYTES,
    )
}

/// Stores `swap` at `addr` if the value there equals `compare`; returns the old value.
///
/// # Safety
///
/// As for `fetch_update`.
#[unsafe(naked)]
unsafe extern "C" fn compare_swap(addr: usize, compare: u64, swap: u64) -> Outcome {
    naked_asm!(
        ".cfi_startproc",
        "10:",
        "mov rax, rsi",
        "lock cmpxchg qword ptr [rdi], rdx",
        "mov rdx, rax",
        "xor eax, eax",
        "ret",
        ".org 10b + {bytes} - {recovery}, 0xcc",
        "mov eax, 1",
        "ret",
        ".org 10b + {bytes}, 0xcc",
        ".cfi_endproc",
        bytes = const ATOMIC_BYTES,
        recovery = const RECOVERY_BYTES,
    )
}

/// Adds `add` to the value at `addr`, modulo 2^64; returns the old value.
///
/// # Safety
///
/// As for `fetch_update`.
#[unsafe(naked)]
unsafe extern "C" fn fetch_add(addr: usize, add: u64) -> Outcome {
    naked_asm!(
        ".cfi_startproc",
        "10:",
        "mov rdx, rsi",
        "lock xadd qword ptr [rdi], rdx",
        "xor eax, eax",
        "ret",
        ".org 10b + {bytes} - {recovery}, 0xcc",
        "mov eax, 1",
        "ret",
        ".org 10b + {bytes}, 0xcc",
        ".cfi_endproc",
        bytes = const ATOMIC_BYTES,
        recovery = const RECOVERY_BYTES,
    )
}
