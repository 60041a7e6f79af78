//! The size of a packet on the wire.

/// Bytes that a packet takes on Ethernet, where `len` is its RoCEv2 length, BTH to ICRC: with UDP (8), IPv4 (20) or
/// IPv6 (40), Ethernet (14), its checksum (4), preamble (8) and the gap to the next frame (12). All sizes and rates
/// of a port count packets this way.
#[must_use]
pub const fn wire_bytes(len: usize, is_ipv6: bool) -> u32 {
    let ip = if is_ipv6 { 40 } else { 20 };
    let bytes = len.saturating_add(8 + ip + 14 + 4 + 8 + 12);
    if bytes > u32::MAX as usize { u32::MAX } else { bytes as u32 }
}
