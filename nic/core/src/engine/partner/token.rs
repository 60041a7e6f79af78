//! Stateless proof of an address.
//!
//! Instead of storing which token it gave to which peer, a port computes the token that it expects from the peer's
//! identity and a secret of its own: a question from a possibly forged address costs nothing but the answer. SYN
//! cookies and the address tokens of QUIC (RFC 9000, 8.1) work the same way.

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// The secret of one life of a port.
#[derive(Clone)]
pub(super) struct Tokens {
    key: [u8; 16],
}

impl Tokens {
    pub(super) fn new(key: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        let (words, _) = bytes.as_chunks_mut();
        for (word, half) in words.iter_mut().zip(key) {
            *word = half.to_le_bytes();
        }
        Self { key: bytes }
    }

    /// The token for the port with this slot and instance at `address`, which it shows in all its messages to us.
    pub(super) fn of(&self, address: IpAddr, slot: u8, instance: u64) -> u64 {
        self.hash((b't', address, slot, instance))
    }

    /// The transaction ID of a question to `address`. An answer that repeats it comes from that address.
    pub(super) fn challenge(&self, address: IpAddr) -> u64 {
        self.hash((b'c', address))
    }

    /// Never 0, which means no token.
    fn hash(&self, of: impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        of.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// The output omits the secret.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tokens_differ_by_all_that_they_stand_for() {
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let all: BTreeSet<_> = [[1, 2], [1, 3], [2, 2]]
            .map(Tokens::new)
            .iter()
            .flat_map(|t| {
                [
                    t.of(here, 0, 1),
                    t.of(there, 0, 1),
                    t.of(here, 1, 1),
                    t.of(here, 0, 2),
                    t.challenge(here),
                    t.challenge(there),
                ]
            })
            .collect();
        assert_eq!(all.len(), 18);
        let again = Tokens::new([1, 2]);
        assert_eq!(again.of(here, 0, 1), Tokens::new([1, 2]).of(here, 0, 1));
        assert_eq!(format!("{again:?}"), "Tokens");
    }
}
