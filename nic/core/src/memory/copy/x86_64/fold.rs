//! A copy that computes the CRC-32 on the way, with AVX-512 and VPCLMULQDQ.
//!
//! A CRC is the remainder of a message, as a polynomial over GF(2), modulo P(x). Multiplied by x^n modulo P(x), 16 bytes
//! that `n` bits follow become 16 bytes at the end of those: added there (exclusive or), they leave the remainder as it is.
//! So the message is folded into its last 16 bytes, 256 bytes at a time (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Intel, 2009). The CRC of those 16 bytes is that of the message.
#![expect(unsafe_code, reason = "assembly on registered memory")]

use super::{Fault, Outcome, RECOVERY_BYTES};
use qp::wire::icrc;
use std::arch::naked_asm;

/// Bytes of code in `copy_and_fold`, including the recovery point.
pub(super) const FOLD_BYTES: usize = 640;

/// The routine starts with four vectors of 64 bytes, and goes on with whole vectors.
const FIRST: usize = 256;
const VECTOR: usize = 64;

/// The number of bytes, of `len`, that [`copy_out`] can copy. The others are at the end.
pub(super) fn foldable(len: usize) -> usize {
    let capable = std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("vpclmulqdq")
        && len >= FIRST;
    if capable { len - len % VECTOR } else { 0 }
}

/// Copies the bytes at `src`, and extends the CRC by them.
///
/// # Safety
///
/// As for [`super::copy_out`]. The length must be [`foldable`].
pub(super) unsafe fn copy_out(src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    // Adding the CRC to the first bytes of a message continues it (it is inverted between messages).
    let mut folded = [0; 16];
    folded[..4].copy_from_slice(&(!crc).to_le_bytes());
    // SAFETY: `dst` takes as many bytes; the caller allows reading the bytes at `src`, and vouches for the processor.
    unsafe { copy_and_fold(dst.as_mut_ptr() as usize, src, dst.len(), &KEYS, &mut folded) }.check(src)?;
    Ok(icrc::extend(!0, &folded))
}

/// The factors of a fold over `bits` bits: for the first 8 of 16 bytes, which 64 more bits follow, and for the others.
/// The product of two reflected polynomials of 64 bits is 127 bits long, reflected: one place too low for 128 bits. A shift
/// of the factor by one place corrects this.
const fn key(bits: u32) -> [u64; 2] {
    [(icrc::power(bits + 32) as u64) << 1, (icrc::power(bits - 32) as u64) << 1]
}

/// What `copy_and_fold` multiplies by.
#[repr(C, align(64))]
pub(super) struct Keys {
    /// Folds the parts of a vector into its last one, which is not multiplied.
    lanes: [[u64; 2]; 4],
    /// Fold a vector over 1, 2, 3 and 4 vectors.
    vectors: [[u64; 2]; 4],
}

static KEYS: Keys = Keys {
    lanes: [key(384), key(256), key(128), [0; 2]],
    vectors: [key(512), key(1024), key(1536), key(2048)],
};

/// Copies `n` bytes, a multiple of 64 and at least 256, from `src` to `dst`. Adds `folded` to the first 16 of them, and
/// folds them into `folded`.
///
/// Register use: RDI, RSI and RDX as passed, RCX `keys`, R8 `folded`; ZMM0 to ZMM3 the folds, ZMM4 to ZMM7 the data,
/// ZMM16 to ZMM19 the keys for 1 to 4 vectors.
///
/// # Safety
///
/// As for `copy_out`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn copy_and_fold(
    dst: usize,
    src: usize,
    n: usize,
    keys: &Keys,
    folded: &mut [u8; 16],
) -> Outcome {
    naked_asm!(
        ".cfi_startproc",
        "10:",
        "vbroadcasti32x4 zmm19, [rcx + 112]",
        "vmovdqu64 zmm0, [rsi]",
        "vmovdqu64 zmm1, [rsi + 64]",
        "vmovdqu64 zmm2, [rsi + 128]",
        "vmovdqu64 zmm3, [rsi + 192]",
        "vmovdqu64 [rdi], zmm0",
        "vmovdqu64 [rdi + 64], zmm1",
        "vmovdqu64 [rdi + 128], zmm2",
        "vmovdqu64 [rdi + 192], zmm3",
        // This clears the rest of the vector.
        "vmovdqu xmm4, [r8]",
        "vpxorq zmm0, zmm0, zmm4",
        "vbroadcasti32x4 zmm16, [rcx + 64]",
        "vbroadcasti32x4 zmm17, [rcx + 80]",
        "vbroadcasti32x4 zmm18, [rcx + 96]",
        "jmp 24f",
        ".p2align 6",
        "22:",
        "vmovdqu64 zmm4, [rsi]",
        "vmovdqu64 zmm5, [rsi + 64]",
        "vmovdqu64 zmm6, [rsi + 128]",
        "vmovdqu64 zmm7, [rsi + 192]",
        "vmovdqu64 [rdi], zmm4",
        "vmovdqu64 [rdi + 64], zmm5",
        "vmovdqu64 [rdi + 128], zmm6",
        "vmovdqu64 [rdi + 192], zmm7",
        "vpclmulqdq zmm8, zmm0, zmm19, 0x00",
        "vpclmulqdq zmm0, zmm0, zmm19, 0x11",
        "vpclmulqdq zmm9, zmm1, zmm19, 0x00",
        "vpclmulqdq zmm1, zmm1, zmm19, 0x11",
        "vpclmulqdq zmm10, zmm2, zmm19, 0x00",
        "vpclmulqdq zmm2, zmm2, zmm19, 0x11",
        "vpclmulqdq zmm11, zmm3, zmm19, 0x00",
        "vpclmulqdq zmm3, zmm3, zmm19, 0x11",
        "vpternlogq zmm0, zmm8, zmm4, 0x96",
        "vpternlogq zmm1, zmm9, zmm5, 0x96",
        "vpternlogq zmm2, zmm10, zmm6, 0x96",
        "vpternlogq zmm3, zmm11, zmm7, 0x96",
        "24:",
        "add rsi, 256",
        "add rdi, 256",
        "sub rdx, 256",
        "cmp rdx, 256",
        "jae 22b",
        // Four vectors to the last one.
        "vpclmulqdq zmm8, zmm0, zmm18, 0x00",
        "vpclmulqdq zmm0, zmm0, zmm18, 0x11",
        "vpclmulqdq zmm9, zmm1, zmm17, 0x00",
        "vpclmulqdq zmm1, zmm1, zmm17, 0x11",
        "vpclmulqdq zmm10, zmm2, zmm16, 0x00",
        "vpclmulqdq zmm2, zmm2, zmm16, 0x11",
        "vpternlogq zmm3, zmm8, zmm0, 0x96",
        "vpternlogq zmm9, zmm1, zmm10, 0x96",
        "vpternlogq zmm3, zmm9, zmm2, 0x96",
        "jmp 28f",
        // Single vectors.
        "26:",
        "vmovdqu64 zmm4, [rsi]",
        "vmovdqu64 [rdi], zmm4",
        "vpclmulqdq zmm8, zmm3, zmm16, 0x00",
        "vpclmulqdq zmm3, zmm3, zmm16, 0x11",
        "vpternlogq zmm3, zmm8, zmm4, 0x96",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "28:",
        "test edx, edx",
        "jnz 26b",
        // The parts of the vector.
        "vmovdqa64 zmm4, [rcx]",
        "vpclmulqdq zmm0, zmm3, zmm4, 0x00",
        "vpclmulqdq zmm1, zmm3, zmm4, 0x11",
        "vextracti32x4 xmm3, zmm3, 3",
        "vpxorq zmm0, zmm0, zmm1",
        "vextracti64x4 ymm1, zmm0, 1",
        "vpxor ymm0, ymm0, ymm1",
        "vextracti128 xmm1, ymm0, 1",
        "vpxor xmm0, xmm0, xmm1",
        "vpxor xmm0, xmm0, xmm3",
        "vmovdqu [r8], xmm0",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        ".org 10b + {bytes} - {recovery}, 0xcc",
        "vzeroupper",
        "mov eax, 1",
        "ret",
        ".org 10b + {bytes}, 0xcc",
        ".cfi_endproc",
        bytes = const FOLD_BYTES,
        recovery = const RECOVERY_BYTES,
    )
}
