//! Segmentation-offloaded trains, captured before the kernel cut them into packets.

use super::dissect::Datagram;
use super::read;
use super::{Content, IcrcCheck};
use qp::wire::ICRC_LEN;

/// The longest packet: a path MTU of 4096, BTH, XRCETH, ATOMICETH and ICRC.
const MAX_PACKET: usize = 4096 + 12 + 4 + 28 + ICRC_LEN;
/// The shortest packet: BTH and ICRC.
const MIN_PACKET: usize = 12 + ICRC_LEN;

/// The IPv4 identification of a segment. The kernel counts up from that of the datagram.
pub(super) fn identification(datagram: &Datagram<'_>, index: u16) -> u16 {
    datagram.ip_id.map_or(0, |first| first.wrapping_add(index))
}

/// The size of the segments of a datagram that is a train of two packets or more.
///
/// A train does not say its segment size. The ICRC of its first packet does, because it covers the length of the packet,
/// and if that packet is damaged or not captured in full, then so does the ICRC of the second. There are about a thousand
/// sizes to try, and a check of 32 bits hardly ever agrees by chance.
pub(super) fn segment_size(datagram: &Datagram<'_>) -> Option<usize> {
    let is_good = |index: u16, size: usize| {
        let start = usize::from(index) * size;
        let end = (start + size).min(datagram.length);
        let Some(segment) = datagram.payload.get(start..end) else { return false };
        let (content, icrc) = read(datagram, identification(datagram, index), segment);
        matches!(content, Content::Packet { .. }) && icrc.is_some_and(IcrcCheck::is_ok)
    };
    let largest = MAX_PACKET.min(datagram.length.saturating_sub(MIN_PACKET));
    [0, 1].into_iter().find_map(|index| {
        (MIN_PACKET..=largest).step_by(4).find(|&size| {
            let last = datagram.length % size;
            (last == 0 || last >= MIN_PACKET) && is_good(index, size)
        })
    })
}
