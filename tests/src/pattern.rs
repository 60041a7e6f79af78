//! Deterministic test data: each byte depends on a seed and its offset, so data can be checked in any order.

/// The 8 bytes at word `index` of the pattern with this seed: the output function of SplitMix64, which makes
/// neighbouring words unrelated. A packet at a wrong offset, or from another seed, cannot match.
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut x = (seed << 32).wrapping_add(index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).to_le_bytes()
}

/// The bytes of the pattern, starting at `offset`.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let bytes = &word(seed, at / 8)[skip..];
        let n = bytes.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&bytes[..n]);
        (at, rest) = (at + n as u64, tail);
    }
}

/// `len` bytes of the pattern.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(seed, 0, &mut out);
    out
}

/// The first position at which `got` differs from the pattern starting at `offset`.
#[must_use]
pub fn mismatch(seed: u64, offset: u64, got: &[u8]) -> Option<usize> {
    let mut want = [0; 4096];
    for (block, chunk) in got.chunks(want.len()).enumerate() {
        let want = &mut want[..chunk.len()];
        fill(seed, offset + (block * 4096) as u64, want);
        if let Some(at) = (0..chunk.len()).find(|i| chunk[*i] != want[*i]) {
            return Some(block * 4096 + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_part_of_the_whole() {
        let whole = bytes(5, 10_000);
        for (start, end) in [(0, 1), (3, 20), (8, 16), (4095, 9000), (7, 7)] {
            let mut part = vec![0; end - start];
            fill(5, start as u64, &mut part);
            assert_eq!(part, whole[start..end]);
            assert_eq!(mismatch(5, start as u64, &part), None);
        }
        assert_ne!(bytes(6, 64), whole[..64]);
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let mut got = bytes(1, 9000);
        got[5001] ^= 1;
        assert_eq!(mismatch(1, 0, &got), Some(5001));
    }
}
