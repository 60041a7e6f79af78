//! The invariant CRC: 4 bytes at the end of every packet, over everything that no router changes.
//!
//! # What it covers
//!
//! The CRC is that of Ethernet (polynomial 0x04C11DB7, reflected, inverted before and after), sent with its low
//! byte first. It runs over 8 bytes of ones in place of the InfiniBand link header, then the IP header, the UDP
//! header and the packet up to the ICRC itself (IBTA 7.8.1 and annex A17). Whatever a router may change counts as
//! ones:
//!
//! | header | counted as ones |
//! |---|---|
//! | IPv4 | TOS, TTL, header checksum |
//! | IPv6 | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | byte 4: FECN, BECN and six reserved bits |
//!
//! The IPv4 identification, flags and fragment offset and the total length *are* covered. A program above a UDP
//! socket neither sets nor sees the identification.
//!
//! # Sending
//!
//! An unconnected UDP socket that discovers the path MTU sends "do not fragment" and the identification 0, and the
//! segments of a train that the kernel cuts up carry 0, 1, 2 and so on. So whoever sends computes with the index of
//! the packet in its train.
//!
//! # Receiving: finding the identification
//!
//! A foreign sender chooses any identification. It can be found, because a CRC is linear. Read bits as
//! coefficients of polynomials over GF(2). Let two messages of one length differ only in 16 bits `d(x)` (the
//! exclusive or of two identifications) with `n` bytes behind them. Then their CRCs differ by
//!
//! ```text
//! delta(x) = d(x) * x^(8n + 32)  mod  P(x)
//! ```
//!
//! whatever else the messages contain. `P` has a constant term, so `x` has an inverse modulo `P`, and
//!
//! ```text
//! d(x) = delta(x) * x^-(8n + 32)  mod  P(x)
//! ```
//!
//! One multiplication with a constant that depends on the length only gives the one `d` that could explain `delta`.
//! It *is* an explanation only if its degree is below 16: of all 2^32 differences 2^16 are explained, so a broken
//! packet passes with a probability of 2^-16 ([`IcrcVerdict::Identification`]). Where only the first
//! [`TRAIN_INDICES`] identifications are accepted it is 2^-26, and 2^-32 for the expected one alone.
//! The flags are taken to be "do not fragment", as RoCEv2 demands of senders (IBTA annex A17).
//!
//! IPv6 has no identification: there a packet is exact or bad.

use crate::wire::packet::ICRC_LEN;
use std::net::{IpAddr, Ipv4Addr};

/// Addresses and ports of a packet: what the ICRC covers of the IP and UDP headers and a socket knows.
///
/// IPv4-mapped IPv6 addresses count as IPv4. Where only one of the two addresses is IPv4, which no real packet has,
/// the other form is used for both.
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
    /// The flow of the answers.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port }
    }
}

/// The word of the IPv4 header that holds the flags and the fragment offset, with only "do not fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// Identifications below this are taken for indices in a train: a train of 64 KiB has no more packets of a
/// kibibyte, and the kernel cuts a buffer into 64 segments on older systems (UDP_MAX_SEGMENTS).
pub const TRAIN_INDICES: u16 = 64;

/// Ones in place of the InfiniBand local route header.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const BTH_LEN: usize = 12;
/// Protocol number of UDP.
const UDP: u8 = 17;
/// The byte of the BTH that holds FECN and BECN.
const BTH_ECN: usize = 4;

/// The ICRC of a packet with "do not fragment" and this IPv4 identification; IPv6 has none and ignores it.
///
/// `covered` are the bytes from the BTH up to, but without, the ICRC. Send the result with the low byte first.
#[must_use]
pub fn compute(flow: &Flow, ident: u16, covered: &[u8]) -> u32 {
    compute_fragment(flow, ident, DONT_FRAGMENT, covered)
}

/// Like [`compute`], for a packet whose IPv4 flags and fragment offset are known, as in a capture.
#[must_use]
pub fn compute_fragment(flow: &Flow, ident: u16, flags_fragment: u16, covered: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(network(flow, ident, flags_fragment, covered.len()));
    let (bth, rest) = covered.split_at(covered.len().min(BTH_LEN));
    let mut masked = [0; BTH_LEN];
    masked[..bth.len()].copy_from_slice(bth);
    masked[BTH_ECN] = 0xff;
    hasher.update(&masked[..bth.len()]);
    hasher.update(rest);
    hasher.finalize()
}

/// The CRC of what lies before the BTH: the headers of the network, and the ones before them.
fn network(flow: &Flow, ident: u16, flags_fragment: u16, covered: usize) -> u32 {
    // Lengths of 16 bits on the wire: what does not fit is no packet, and its ICRC has no meaning.
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
            // Version 6; the traffic class and the flow label behind it are ones.
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

/// Writes the UDP header, its checksum left as ones.
fn fill_udp(out: &mut [u8], flow: &Flow, udp_len: u16) {
    out[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
    out[2..4].copy_from_slice(&flow.dst_port.to_be_bytes());
    out[4..6].copy_from_slice(&udp_len.to_be_bytes());
}

/// ICRCs of packets of one flow that follow each other, most of them of one length.
///
/// The headers of the network are hashed once for each length. Packets differ there in their identification alone, and
/// a CRC is linear: what that adds to it comes from a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowCrc {
    flow: Flow,
    is_ipv4: bool,
    /// The length of the covered bytes.
    covered: usize,
    /// The CRC of the headers of the network, for that length and the identification 0.
    network: u32,
}

impl FlowCrc {
    pub(crate) fn new(flow: Flow) -> Self {
        let is_ipv4 = is_ipv4(&flow);
        // No packet is as long.
        Self { flow, is_ipv4, covered: usize::MAX, network: 0 }
    }

    /// As [`compute`]. The byte of the BTH that routers may change is set to ones for the time of the call.
    pub(crate) fn compute(&mut self, ident: u16, covered: &mut [u8]) -> u32 {
        let Some(ecn) = covered.get_mut(BTH_ECN) else { return compute(&self.flow, ident, covered) };
        let kept = std::mem::replace(ecn, 0xff);
        let crc = self.hash(ident, covered);
        covered[BTH_ECN] = kept;
        crc
    }

    /// The CRC of the headers of the network and of `covered` as it is.
    fn hash(&mut self, ident: u16, covered: &[u8]) -> u32 {
        if self.covered != covered.len() {
            (self.covered, self.network) =
                (covered.len(), network(&self.flow, 0, DONT_FRAGMENT, covered.len()));
        }
        let ident = if self.is_ipv4 { ident_part(ident) } else { 0 };
        let mut hasher = crc32fast::Hasher::new_with_initial(self.network ^ ident);
        hasher.update(covered);
        hasher.finalize()
    }
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

/// How well the ICRC of a received packet fits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcrcVerdict {
    /// It is that of the expected identification.
    Exact,
    /// It is that of this identification, which is below [`TRAIN_INDICES`]: the packet's place in a train.
    Index(u16),
    /// It is that of this identification, which is not known to be right: a check of 16 bits only.
    Identification(u16),
    /// No identification explains it: the packet is broken.
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

/// a(x) / x mod P(x): the inverse of [`times_x`]. A constant term can only have come from a reduction.
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

/// x^exponent mod P(x), in as many steps.
const fn power(exponent: u32) -> u32 {
    let mut power = ONE;
    let mut k = 0;
    while k < exponent {
        power = times_x(power);
        k += 1;
    }
    power
}

/// Bytes of the IPv4 header behind the identification (it starts with the length, 4 bytes, and the identification, 2), and
/// the UDP header.
const BEHIND: u32 = (IPV4_LEN - 6 + UDP_LEN) as u32;

/// What an identification adds to the CRC of the headers of the network.
const fn ident_delta(ident: u16) -> u32 {
    const SHIFT: u32 = power(8 * BEHIND + 32);
    // As in `explain`: the bits of the first byte are the low bits of the reflected form.
    multiply((ident.swap_bytes() as u32) << 16, SHIFT)
}

/// [`ident_delta`] of the places in a train.
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

/// x^-(8n + 32) for a packet with `covered` bytes from the BTH up to the ICRC: `n` bytes of it and of the IP and
/// UDP headers lie behind the IPv4 identification.
fn inverse_for(covered: u32) -> u32 {
    inverse_power(8 * (BEHIND + covered) + 32)
}

/// Number of packet lengths whose constant is kept. Traffic has few: full packets, acknowledges, last packets.
const CACHED: usize = 64;

/// Checks ICRCs of packets whose IPv4 identification is not known (see the [module](self)).
///
/// Keeps the constants of recent packet lengths, 5 KiB; one that is not there is computed by some ten
/// polynomial multiplications. Packets with the expected identification cost their CRC and nothing more.
#[derive(Clone, Debug)]
pub struct IdentSolver {
    /// Direct-mapped by length: length of the covered bytes, and the constant for it.
    cache: [(u32, u32); CACHED],
    recent: [Recent; CACHED],
}

/// What is known of packets of one length, as many as [`CACHED`] by that length.
#[derive(Clone, Copy, Debug)]
struct Recent {
    crc: FlowCrc,
    covered: usize,
    /// What it adds to the CRC that the byte of the BTH which routers may change counts as ones, and is 0.
    ones: u32,
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
        // The entry for length 0 is right as it stands, so no "empty" mark is needed.
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let crc = FlowCrc::new(Flow { src: nobody, dst: nobody, src_port: 0, dst_port: 0 });
        let recent = Recent { crc, covered: usize::MAX, ones: 0 };
        Self { cache: [(0, inverse_for(0)); CACHED], recent: [recent; CACHED] }
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

    /// As [`compute`].
    fn compute(&mut self, flow: &Flow, ident: u16, covered: &[u8]) -> u32 {
        if covered.get(BTH_ECN) != Some(&0) {
            return compute(flow, ident, covered);
        }
        let recent = &mut self.recent[(covered.len() >> 2) % CACHED];
        if recent.crc.flow != *flow {
            recent.crc = FlowCrc::new(*flow);
        }
        let crc = recent.crc.hash(ident, covered);
        if recent.covered != covered.len() {
            // A CRC is linear: what a byte of ones adds to it depends on how many bytes there are behind it, and on
            // nothing else.
            *recent = Recent { covered: covered.len(), ones: crc ^ compute(flow, ident, covered), ..*recent };
        }
        crc ^ recent.ones
    }

    /// Looks for the identification that makes this difference to `expected_ident`.
    fn explain(&mut self, delta: u32, expected_ident: u16, covered: u32) -> IcrcVerdict {
        // A reflected polynomial of a degree below 16 has its coefficients in the upper half.
        let difference = multiply(delta, self.constant(covered));
        if difference & 0xffff != 0 {
            return IcrcVerdict::Bad;
        }
        // The first byte on the wire holds the highest powers, which are the low bits of the reflected form.
        let ident = expected_ident ^ ((difference >> 16) as u16).swap_bytes();
        if ident < TRAIN_INDICES { IcrcVerdict::Index(ident) } else { IcrcVerdict::Identification(ident) }
    }

    fn constant(&mut self, covered: u32) -> u32 {
        // Packets are whole words, so the low two bits of a length say nothing.
        let entry = &mut self.cache[(covered as usize >> 2) % CACHED];
        if entry.0 != covered {
            *entry = (covered, inverse_for(covered));
        }
        entry.1
    }
}

#[cfg(test)]
mod tests;
