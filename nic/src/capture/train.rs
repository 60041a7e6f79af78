//! Segmentation-offloaded trains that were captured before the kernel cut them up.

use super::dissect::Datagram;
use super::read;
use super::{Content, IcrcCheck};
use qp::wire::ICRC_LEN;

/// The longest packet: a path MTU of 4096, BTH, XRCETH, ATOMICETH and ICRC.
const MAX_PACKET: usize = 4096 + 12 + 4 + 28 + ICRC_LEN;
/// The shortest packet: BTH and ICRC.
const MIN_PACKET: usize = 12 + ICRC_LEN;

/// The IPv4 identification of a segment: the kernel counts up from that of the whole.
pub(super) fn identification(datagram: &Datagram<'_>, index: u16) -> u16 {
    datagram.ip_id.map_or(0, |first| first.wrapping_add(index))
}

/// The size of the segments with which a datagram is a train of two packets or more, all of them good.
///
/// A train does not say its segment size; the ICRC of its first packet does, because it covers the length. There are
/// about a thousand sizes to try, and a check of 32 bits hardly ever agrees by chance.
pub(super) fn segment_size(datagram: &Datagram<'_>) -> Option<usize> {
    let bytes = datagram.payload;
    let is_good = |index: u16, segment: &[u8]| {
        let (content, icrc) = read(datagram, identification(datagram, index), segment);
        matches!(content, Content::Packet { .. }) && icrc.is_some_and(IcrcCheck::is_ok)
    };
    (MIN_PACKET..=MAX_PACKET.min(bytes.len().saturating_sub(MIN_PACKET)))
        .step_by(4)
        .find(|&size| (0..).zip(bytes.chunks(size)).all(|(index, segment)| is_good(index, segment)))
}
