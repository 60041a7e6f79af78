//! How ports of ours know one another without a word.
//!
//! A peer that is not one of ours shall see nothing that it would not see otherwise, so nobody may be asked at a venture
//! whether it is. But everybody sends from some UDP port of its choice: ours are chosen so that they leave a certain
//! remainder. Whoever sends from another is not one of ours and is never asked. Whoever sends from such a port is one of
//! ours, or a foreign one by an accident of 1 in 61; only then does a [`hello`](qp::wire::mad::hello) follow, which is an
//! ordinary datagram to queue pair 1.

use super::SOURCE_PORTS;

/// There are 268 such ports among the 16,384 of RoCEv2: one for each of the 256 processes that can share an address.
const MODULUS: u16 = 61;

/// Any number would do.
const REMAINDER: u16 = 23;

/// Whether one of ours may be sending from this port.
pub(crate) const fn has_sign(port: u16) -> bool {
    port % MODULUS == REMAINDER
}

/// One of the ports with the sign, by number.
pub(crate) fn signed_port(number: u32) -> u16 {
    let first = *SOURCE_PORTS.start();
    let offset = (REMAINDER + MODULUS - first % MODULUS) % MODULUS;
    let count = (*SOURCE_PORTS.end() - first - offset) / MODULUS + 1;
    first + offset + MODULUS * u16::try_from(number % u32::from(count)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_such_ports_and_few_others() {
        let count = SOURCE_PORTS.filter(|port| has_sign(*port)).count();
        assert!((256..300).contains(&count), "{count}");
        let ports: Vec<_> = (0..count as u32).map(signed_port).collect();
        assert!(ports.iter().all(|port| has_sign(*port) && SOURCE_PORTS.contains(port)));
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(signed_port(count as u32), ports[0]);
    }
}
