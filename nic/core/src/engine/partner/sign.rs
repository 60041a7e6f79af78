//! How rnic ports recognise one another by their UDP source ports.
//!
//! A peer that is not rnic must not receive packets that it would not receive otherwise, so rnic cannot simply ask
//! peers. But a sender chooses its UDP source port, and rnic chooses ports with a certain remainder. A peer that
//! sends from any other port is not rnic, and is never asked. A peer that sends from such a port is rnic, or another
//! implementation with a chance of 1 in 61. Only such a peer is sent a [`hello`](qp::wire::mad::hello), which is an
//! ordinary datagram to queue pair 1.

use crate::datagram::SOURCE_PORTS;

/// There are 268 such ports among the 16,384 of RoCEv2: one for each of the 256 processes that can share an address.
const MODULUS: u16 = 61;

/// An arbitrary number.
const REMAINDER: u16 = 23;

/// Whether an rnic port may be sending from this UDP port.
pub const fn has_sign(port: u16) -> bool {
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
