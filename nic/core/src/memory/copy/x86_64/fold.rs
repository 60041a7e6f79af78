//! Copies that compute the CRC-32 on the way: one with AVX-512 and VPCLMULQDQ, and one with PCLMULQDQ, for other processors
//! and for short messages.
//!
//! A CRC is the remainder of a message, as a polynomial over GF(2), modulo P(x). Multiplied by x^n modulo P(x), 16 bytes
//! that `n` bits follow become 16 bytes at the end of those: added there (exclusive or), they leave the remainder as it is.
//! So the message is folded into its last 16 bytes, 256 or 64 bytes at a time (Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). The CRC of those 16 bytes is that of the message.
#![expect(unsafe_code, reason = "assembly on registered memory")]

use super::{Fault, Outcome, RECOVERY_BYTES};
use qp::wire::icrc;
use std::arch::naked_asm;

/// Bytes of code in each routine, including the recovery point.
pub(super) const FOLD_BYTES: usize = 640;

/// A routine, and what it can copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    pub(super) routine: unsafe extern "C" fn(usize, usize, usize, &Keys, &mut [u8; 16]) -> Outcome,
    /// It starts with this many bytes, and goes on with whole vectors.
    first: usize,
    vector: usize,
}

/// With vectors of 64 bytes.
pub(super) const WIDE: Fold = Fold { routine: copy_and_fold_wide, first: 256, vector: 64 };
/// With vectors of 16 bytes.
pub(super) const NARROW: Fold = Fold { routine: copy_and_fold_narrow, first: 64, vector: 16 };

/// What this processor does best with `len` bytes.
pub(super) fn best(len: usize) -> Option<Fold> {
    [WIDE, NARROW].into_iter().find(|fold| len >= fold.first && fold.is_supported())
}

impl Fold {
    /// Whether this processor has the instructions.
    pub(super) fn is_supported(self) -> bool {
        if self.vector == WIDE.vector {
            std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("vpclmulqdq")
        } else {
            std::arch::is_x86_feature_detected!("pclmulqdq")
        }
    }

    /// The number of bytes, of `len`, that [`copy_out`](Self::copy_out) can copy. The others are at the end.
    pub(super) fn part(self, len: usize) -> usize {
        if len >= self.first { len - len % self.vector } else { 0 }
    }

    /// Copies the bytes at `src`, and extends the CRC by them.
    ///
    /// # Safety
    ///
    /// As for [`super::copy_out`]. The length must be a [`part`](Self::part), and the routine supported.
    pub(super) unsafe fn copy_out(self, src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
        // Adding the CRC to the first bytes of a message continues it (it is inverted between messages).
        let mut folded = [0; 16];
        folded[..4].copy_from_slice(&(!crc).to_le_bytes());
        // SAFETY: `dst` takes as many bytes; the caller allows reading the bytes at `src`, and vouches for the processor.
        unsafe { (self.routine)(dst.as_mut_ptr() as usize, src, dst.len(), &KEYS, &mut folded) }
            .check(src)?;
        Ok(icrc::extend(!0, &folded))
    }
}

/// The factors of a fold over `bits` bits: for the first 8 of 16 bytes, which 64 more bits follow, and for the others.
/// The product of two reflected polynomials of 64 bits is 127 bits long, reflected: one place too low for 128 bits. A shift
/// of the factor by one place corrects this.
const fn key(bits: u32) -> [u64; 2] {
    [(icrc::power(bits + 32) as u64) << 1, (icrc::power(bits - 32) as u64) << 1]
}

/// What the routines multiply by.
#[repr(C, align(64))]
pub(super) struct Keys {
    /// Fold 16 bytes over 48, 32 and 16: the parts of 64 bytes into the last one, which is not multiplied.
    lanes: [[u64; 2]; 4],
    /// Fold 64 bytes over 64, 128, 192 and 256.
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
pub(super) unsafe extern "C" fn copy_and_fold_wide(
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

/// Copies `n` bytes, a multiple of 16 and at least 64, as [`copy_and_fold_wide`] does.
///
/// Register use: RDI, RSI and RDX as passed, RCX `keys`, R8 `folded`; XMM0 to XMM3 the folds, XMM4 to XMM7 the data, XMM8 to
/// XMM11 products, XMM12 the key.
///
/// # Safety
///
/// As for `copy_out`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn copy_and_fold_narrow(
    dst: usize,
    src: usize,
    n: usize,
    keys: &Keys,
    folded: &mut [u8; 16],
) -> Outcome {
    naked_asm!(
        ".cfi_startproc",
        "10:",
        "movdqu xmm0, [rsi]",
        "movdqu xmm1, [rsi + 16]",
        "movdqu xmm2, [rsi + 32]",
        "movdqu xmm3, [rsi + 48]",
        "movdqu [rdi], xmm0",
        "movdqu [rdi + 16], xmm1",
        "movdqu [rdi + 32], xmm2",
        "movdqu [rdi + 48], xmm3",
        "movdqu xmm4, [r8]",
        "pxor xmm0, xmm4",
        "movdqa xmm12, [rcx + 64]",
        "jmp 24f",
        ".p2align 6",
        "22:",
        "movdqu xmm4, [rsi]",
        "movdqu xmm5, [rsi + 16]",
        "movdqu xmm6, [rsi + 32]",
        "movdqu xmm7, [rsi + 48]",
        "movdqu [rdi], xmm4",
        "movdqu [rdi + 16], xmm5",
        "movdqu [rdi + 32], xmm6",
        "movdqu [rdi + 48], xmm7",
        "movdqa xmm8, xmm0",
        "movdqa xmm9, xmm1",
        "movdqa xmm10, xmm2",
        "movdqa xmm11, xmm3",
        "pclmulqdq xmm8, xmm12, 0x00",
        "pclmulqdq xmm0, xmm12, 0x11",
        "pclmulqdq xmm9, xmm12, 0x00",
        "pclmulqdq xmm1, xmm12, 0x11",
        "pclmulqdq xmm10, xmm12, 0x00",
        "pclmulqdq xmm2, xmm12, 0x11",
        "pclmulqdq xmm11, xmm12, 0x00",
        "pclmulqdq xmm3, xmm12, 0x11",
        "pxor xmm4, xmm8",
        "pxor xmm5, xmm9",
        "pxor xmm6, xmm10",
        "pxor xmm7, xmm11",
        "pxor xmm0, xmm4",
        "pxor xmm1, xmm5",
        "pxor xmm2, xmm6",
        "pxor xmm3, xmm7",
        "24:",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 22b",
        // Four vectors to the last one.
        "movdqa xmm12, [rcx]",
        "movdqa xmm8, xmm0",
        "pclmulqdq xmm8, xmm12, 0x00",
        "pclmulqdq xmm0, xmm12, 0x11",
        "movdqa xmm12, [rcx + 16]",
        "movdqa xmm9, xmm1",
        "pclmulqdq xmm9, xmm12, 0x00",
        "pclmulqdq xmm1, xmm12, 0x11",
        "movdqa xmm12, [rcx + 32]",
        "movdqa xmm10, xmm2",
        "pclmulqdq xmm10, xmm12, 0x00",
        "pclmulqdq xmm2, xmm12, 0x11",
        "pxor xmm8, xmm0",
        "pxor xmm9, xmm1",
        "pxor xmm10, xmm2",
        "pxor xmm3, xmm8",
        "pxor xmm3, xmm9",
        "pxor xmm3, xmm10",
        "jmp 28f",
        // Single vectors.
        "26:",
        "movdqu xmm4, [rsi]",
        "movdqu [rdi], xmm4",
        "movdqa xmm8, xmm3",
        "pclmulqdq xmm8, xmm12, 0x00",
        "pclmulqdq xmm3, xmm12, 0x11",
        "pxor xmm4, xmm8",
        "pxor xmm3, xmm4",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "28:",
        "test edx, edx",
        "jnz 26b",
        "movdqu [r8], xmm3",
        "xor eax, eax",
        "ret",
        ".org 10b + {bytes} - {recovery}, 0xcc",
        "mov eax, 1",
        "ret",
        ".org 10b + {bytes}, 0xcc",
        ".cfi_endproc",
        bytes = const FOLD_BYTES,
        recovery = const RECOVERY_BYTES,
    )
}
