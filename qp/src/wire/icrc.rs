//! The invariant CRC: 4 bytes at the end of every packet, over everything that routers do not change.
//!
//! # Coverage
//!
//! The CRC is that of Ethernet (polynomial 0x04C11DB7, reflected, inverted before and after), sent with its low
//! byte first. It covers 8 bytes of ones in place of the InfiniBand link header, then the IP header, the UDP header
//! and the packet up to the ICRC itself (IBTA 7.8.1 and annex A17). Fields that a router may change are replaced by
//! ones:
//!
//! | header | replaced by ones |
//! |---|---|
//! | IPv4 | TOS, TTL, header checksum |
//! | IPv6 | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | byte 4: FECN, BECN and six reserved bits |
//!
//! The IPv4 identification, flags and fragment offset and the total length *are* covered. A program on top of a UDP
//! socket can neither set nor see the identification.
//!
//! # Sending
//!
//! An unconnected UDP socket with path MTU discovery sends "do not fragment" and the identification 0. The segments
//! of a train that the kernel splits have the identifications 0, 1, 2 and so on. The sender therefore uses the
//! packet's index in its train.
//!
//! # Receiving: finding the identification
//!
//! Other implementations choose arbitrary identifications. The identification can be recovered because a CRC is
//! linear. Read bits as coefficients of polynomials over GF(2). Let two messages of the same length differ only in
//! 16 bits `d(x)` (the exclusive or of two identifications), followed by `n` bytes. Then their CRCs differ by
//!
//! ```text
//! delta(x) = d(x) * x^(8n + 32)  mod  P(x)
//! ```
//!
//! regardless of the rest of the messages. `P` has a constant term, so `x` has an inverse modulo `P`, and
//!
//! ```text
//! d(x) = delta(x) * x^-(8n + 32)  mod  P(x)
//! ```
//!
//! One multiplication, by a constant that depends only on the length, gives the only `d` that could explain
//! `delta`. It *is* an explanation only if its degree is below 16. Of all 2^32 differences, 2^16 have an
//! explanation, so a corrupted packet passes with a probability of 2^-16 ([`IcrcVerdict::Identification`]). If only
//! the first [`TRAIN_INDICES`] identifications are accepted, the probability is 2^-26; if only the expected one is,
//! 2^-32. The flags are assumed to be "do not fragment", as RoCEv2 requires of senders (IBTA annex A17).
//!
//! IPv6 has no identification: an IPv6 packet is either exact or bad.

use crate::wire::packet::ICRC_LEN;
use std::net::{IpAddr, Ipv4Addr};

/// Addresses and ports of a packet: the fields of the IP and UDP headers that the ICRC covers and that a socket
/// knows.
///
/// IPv4-mapped IPv6 addresses are treated as IPv4. If only one of the two addresses is IPv4, which no real packet
/// has, both are treated as IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port; 4791 for RoCEv2.
    pub dst_port: u16,
}

impl Flow {
    /// The flow in the opposite direction.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port }
    }
}

/// The word of the IPv4 header that contains the flags and the fragment offset, with only "do not fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// Identifications below this are treated as indices in a train: a train of 64 KiB has at most this many packets of
/// 1 KiB, and older kernels split a buffer into at most 64 segments (UDP_MAX_SEGMENTS).
pub const TRAIN_INDICES: u16 = 64;

/// Length of the InfiniBand local route header, which is replaced by ones.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// IP protocol number of UDP.
const UDP: u8 = 17;
/// The byte of the BTH that contains FECN and BECN.
const BTH_ECN: usize = 4;

/// The ICRC of a packet with "do not fragment" and this IPv4 identification; for IPv6 the identification is
/// ignored.
///
/// `covered` are the bytes from the BTH up to the ICRC, which is excluded. Send the result with the low byte first.
#[must_use]
pub fn compute(flow: &Flow, ident: u16, covered: &[u8]) -> u32 {
    compute_fragment(flow, ident, DONT_FRAGMENT, covered)
}

/// Like [`compute`], for a packet whose IPv4 flags and fragment offset are known, such as one from a capture.
#[must_use]
pub fn compute_fragment(flow: &Flow, ident: u16, flags_fragment: u16, covered: &[u8]) -> u32 {
    extend(network(flow, ident, flags_fragment, covered.len()) ^ ecn_change(covered), covered)
}

/// The CRC-32 of some bytes and `bytes` behind them, given the CRC-32 `crc` of the former, which is 0 for none.
#[must_use]
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The CRC of everything before the BTH: the network headers and the ones in front of them.
fn network(flow: &Flow, ident: u16, flags_fragment: u16, covered: usize) -> u32 {
    // Lengths have 16 bits on the wire: anything longer is not a packet, and its ICRC is meaningless.
    let udp_len = (UDP_LEN + covered + ICRC_LEN) as u16;
    match (flow.src.to_canonical(), flow.dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut prefix = [0xff; LRH_LEN + IPV4_LEN + UDP_LEN];
            let ip = &mut prefix[LRH_LEN..];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&ident.to_be_bytes());
            ip[6..8].copy_from_slice(&flags_fragment.to_be_bytes());
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            fill_udp(&mut ip[IPV4_LEN..], flow, udp_len);
            crc32fast::hash(&prefix)
        }
        (src, dst) => {
            let mut prefix = [0xff; LRH_LEN + IPV6_LEN + UDP_LEN];
            let ip = &mut prefix[LRH_LEN..];
            // Version 6; the traffic class and the flow label that follow are ones.
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = UDP;
            ip[8..24].copy_from_slice(&octets_v6(src));
            ip[24..40].copy_from_slice(&octets_v6(dst));
            fill_udp(&mut ip[IPV6_LEN..], flow, udp_len);
            crc32fast::hash(&prefix)
        }
    }
}

/// Writes the UDP header, with ones for its checksum.
fn fill_udp(out: &mut [u8], flow: &Flow, udp_len: u16) {
    out[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
    out[2..4].copy_from_slice(&flow.dst_port.to_be_bytes());
    out[4..6].copy_from_slice(&udp_len.to_be_bytes());
}

/// Computes the ICRCs of consecutive packets of a flow, most of which have the same length.
///
/// The network headers are hashed once per length. They differ only in the identification, and a CRC is linear: a
/// table provides the contribution of each identification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowCrc {
    flow: Flow,
    is_ipv4: bool,
    /// The length of the covered bytes.
    covered: usize,
    /// The CRC of the network headers for that length and the identification 0.
    network: u32,
}

impl FlowCrc {
    pub(crate) fn new(flow: Flow) -> Self {
        let is_ipv4 = is_ipv4(&flow);
        // No packet has this length.
        Self { flow, is_ipv4, covered: usize::MAX, network: 0 }
    }

    /// Like [`compute`].
    pub(crate) fn compute(&mut self, ident: u16, covered: &[u8]) -> u32 {
        self.begin(ident, covered.len(), covered)
    }

    /// The CRC up to the end of `start`, the first bytes of the `covered` ones, to be [extended](extend) by the others.
    pub(crate) fn begin(&mut self, ident: u16, covered: usize, start: &[u8]) -> u32 {
        extend(self.network(ident, covered) ^ ecn_change(start), start)
    }

    /// The CRC of the network headers.
    fn network(&mut self, ident: u16, covered: usize) -> u32 {
        if self.covered != covered {
            (self.covered, self.network) = (covered, network(&self.flow, 0, DONT_FRAGMENT, covered));
        }
        self.network ^ if self.is_ipv4 { ident_part(ident) } else { 0 }
    }
}

/// What to change in the CRC of the network headers so that the CRC of the packet is the one with ones in the byte of the
/// BTH that routers may change. Nothing is written, and nothing waits for that.
fn ecn_change(bth: &[u8]) -> u32 {
    /// For a byte of 0, which is what nearly all packets have.
    const OF_ZERO: u32 = ecn_difference(0);
    match bth.get(BTH_ECN) {
        Some(0) => OF_ZERO,
        Some(&byte) => ecn_difference(byte),
        None => 0,
    }
}

/// The difference between `byte` and ones, as a difference of the CRC before the BTH: the 4 bytes between multiply the
/// latter by x^32.
const fn ecn_difference(byte: u8) -> u32 {
    let mut difference = !byte as u32;
    let mut bit = 0;
    while bit < 8 * BTH_ECN {
        difference = over_x(difference);
        bit += 1;
    }
    difference
}

fn is_ipv4(flow: &Flow) -> bool {
    flow.src.to_canonical().is_ipv4() && flow.dst.to_canonical().is_ipv4()
}

fn octets_v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The result of checking the ICRC of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcrcVerdict {
    /// The ICRC matches the expected identification.
    Exact,
    /// The ICRC matches this identification, which is below [`TRAIN_INDICES`]: the packet's index in a train.
    Index(u16),
    /// The ICRC matches this identification, which may be wrong: this is a check of 16 bits only.
    Identification(u16),
    /// The ICRC matches no identification: the packet is corrupted.
    Bad,
}

/// P(x) without x^32, reflected: bit `i` is the coefficient of x^(31 - i).
const POLY: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// a(x) * x mod P(x).
const fn times_x(a: u32) -> u32 {
    if a & 1 != 0 { (a >> 1) ^ POLY } else { a >> 1 }
}

/// a(x) / x mod P(x): the inverse of [`times_x`]. A constant term can only come from a reduction.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 { ((a ^ POLY) << 1) | 1 } else { a << 1 }
}

/// a(x) * b(x) mod P(x).
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while b != 0 {
        if b & ONE != 0 {
            product ^= a;
        }
        a = times_x(a);
        b <<= 1;
    }
    product
}

/// Entry `k` is x^-(2^k) mod P(x).
const INVERSE_SQUARES: [u32; 32] = {
    let mut table = [over_x(ONE); 32];
    let mut k = 1;
    while k < table.len() {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
};

/// x^-exponent mod P(x), by squaring.
fn inverse_power(exponent: u32) -> u32 {
    INVERSE_SQUARES
        .iter()
        .enumerate()
        .filter(|&(bit, _)| exponent >> bit & 1 != 0)
        .fold(ONE, |power, (_, &square)| multiply(power, square))
}

/// x^exponent mod P(x), in `exponent` steps. Reflected: bit `i` is the coefficient of x^(31 - i).
#[must_use]
pub const fn power(exponent: u32) -> u32 {
    let mut power = ONE;
    let mut k = 0;
    while k < exponent {
        power = times_x(power);
        k += 1;
    }
    power
}

/// Number of bytes after the identification in the IPv4 header (it starts with the length, 4 bytes, and the
/// identification, 2), plus the UDP header.
const BEHIND: u32 = (IPV4_LEN - 6 + UDP_LEN) as u32;

/// The contribution of an identification to the CRC of the network headers.
const fn ident_delta(ident: u16) -> u32 {
    const SHIFT: u32 = power(8 * BEHIND + 32);
    // As in `explain`: the bits of the first byte are the low bits of the reflected form.
    multiply((ident.swap_bytes() as u32) << 16, SHIFT)
}

/// [`ident_delta`] for every index in a train.
const IDENT_PARTS: [u32; TRAIN_INDICES as usize] = {
    let mut table = [0; TRAIN_INDICES as usize];
    let mut ident = 0;
    while ident < TRAIN_INDICES {
        table[ident as usize] = ident_delta(ident);
        ident += 1;
    }
    table
};

fn ident_part(ident: u16) -> u32 {
    IDENT_PARTS.get(usize::from(ident)).copied().unwrap_or_else(|| ident_delta(ident))
}

/// x^-(8n + 32) for a packet with `covered` bytes from the BTH up to the ICRC; `n` bytes of the packet and of the
/// IP and UDP headers follow the IPv4 identification.
fn inverse_for(covered: u32) -> u32 {
    inverse_power(8 * (BEHIND + covered) + 32)
}

/// Number of packet lengths whose constant is cached. Traffic has few lengths: full packets, acknowledgements, last
/// packets.
const CACHED: usize = 64;

/// Checks ICRCs of packets whose IPv4 identification is not known (see the [module](self)).
///
/// Caches the constants of recent packet lengths in 5 KiB. A missing constant takes about ten polynomial
/// multiplications. A packet with the expected identification costs a single CRC.
#[derive(Clone, Debug)]
pub struct IdentSolver {
    /// Direct-mapped by length: the length of the covered bytes, and the constant for it.
    cache: [(u32, u32); CACHED],
    /// Direct-mapped by length as well: the flow of the last packet.
    recent: [FlowCrc; CACHED],
}

impl Default for IdentSolver {
    fn default() -> Self {
        Self::new()
    }
}

impl IdentSolver {
    /// A solver with an empty cache.
    #[must_use]
    pub fn new() -> Self {
        // The initial entry is correct for length 0, so no "empty" marker is needed.
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let crc = FlowCrc::new(Flow { src: nobody, dst: nobody, src_port: 0, dst_port: 0 });
        Self { cache: [(0, inverse_for(0)); CACHED], recent: [crc; CACHED] }
    }

    /// Checks the ICRC at the end of a UDP payload.
    pub fn verify(&mut self, flow: &Flow, expected_ident: u16, datagram: &[u8]) -> IcrcVerdict {
        let Some((covered, received)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            return IcrcVerdict::Bad;
        };
        let delta = self.compute(flow, expected_ident, covered) ^ u32::from_le_bytes(*received);
        if delta == 0 {
            return IcrcVerdict::Exact;
        }
        match u32::try_from(covered.len()) {
            Ok(len) if is_ipv4(flow) && len <= u32::from(u16::MAX) => {
                self.explain(delta, expected_ident, len)
            }
            _ => IcrcVerdict::Bad,
        }
    }

    /// Like [`compute`].
    fn compute(&mut self, flow: &Flow, ident: u16, covered: &[u8]) -> u32 {
        let recent = &mut self.recent[(covered.len() >> 2) % CACHED];
        if recent.flow != *flow {
            *recent = FlowCrc::new(*flow);
        }
        recent.compute(ident, covered)
    }

    /// Finds the identification whose difference to `expected_ident` explains `delta`.
    fn explain(&mut self, delta: u32, expected_ident: u16, covered: u32) -> IcrcVerdict {
        // A reflected polynomial of degree below 16 has its coefficients in the upper half.
        let difference = multiply(delta, self.constant(covered));
        if difference & 0xffff != 0 {
            return IcrcVerdict::Bad;
        }
        // The first byte on the wire holds the highest powers, which are the low bits of the reflected form.
        let ident = expected_ident ^ ((difference >> 16) as u16).swap_bytes();
        if ident < TRAIN_INDICES { IcrcVerdict::Index(ident) } else { IcrcVerdict::Identification(ident) }
    }

    fn constant(&mut self, covered: u32) -> u32 {
        // Packet lengths are multiples of 4, so the low two bits carry no information.
        let entry = &mut self.cache[(covered as usize >> 2) % CACHED];
        if entry.0 != covered {
            *entry = (covered, inverse_for(covered));
        }
        entry.1
    }
}

#[cfg(test)]
mod tests;
