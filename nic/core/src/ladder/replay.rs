//! Ladders of packets that were captured.

use super::{Ladder, Record};
use crate::capture::{Content, DecodedPacket, Ecn, IcrcCheck};
use crate::link::{Direction, Fate};
use crate::queue::locked;
use qp::Qpn;
use qp::wire::Operation;
use std::collections::BTreeMap;
use std::net::IpAddr;
use time::{Duration, Instant};

impl Ladder {
    /// Ladders of captured packets: one for each pair of addresses, in the order in which the pairs appear. On the left is
    /// the address that sends the first packet of the pair. On a device that sends to itself, the queue pairs have sides: requests
    /// go right, unless their destination has been seen to be on the left. Packets that the capture does not hold in full are only
    /// counted, as [`missed`](Self::missed).
    ///
    /// Comments of the kind that rnic writes into its captures tell which packets were dropped.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// use rnic::capture::Decoder;
    /// use rnic::ladder::{Ladder, Style};
    ///
    /// let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/rg_loss_reqmiddle.pcap"))?;
    /// let packets = Decoder::new(file)?.collect::<Result<Vec<_>, _>>()?;
    /// let ladders = Ladder::of_capture(&packets);
    /// assert_eq!(ladders.len(), 1);
    /// assert!(ladders[0].render(&Style::default()).contains("NAK psn-sequence-error"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_capture<'a>(packets: impl IntoIterator<Item = &'a DecodedPacket>) -> Vec<Self> {
        let (start, mut first) = (Instant::EPOCH, None);
        let mut ladders = Vec::new();
        let mut by_pair = BTreeMap::<[IpAddr; 2], usize>::new();
        let mut sides = Sides::new();
        for packet in packets {
            let passed = packet.time.saturating_sub(*first.get_or_insert(packet.time));
            let mut pair = [packet.src, packet.dst];
            pair.sort();
            let index = *by_pair.entry(pair).or_insert_with(|| {
                ladders.push((packet.src, Self::new(&packet.src.to_string(), &packet.dst.to_string(), 0)));
                ladders.len() - 1
            });
            let Some((left, ladder)) = ladders.get(index) else { continue };
            let goes_right = match packet.src == packet.dst {
                true => goes_right(packet, &mut sides),
                false => packet.src == *left,
            };
            let mut book = locked(&ladder.book);
            match record(packet, goes_right, at(start, passed)) {
                Some(record) => book.records.push(record),
                None => book.missed += 1,
            }
        }
        ladders.into_iter().map(|(_, ladder)| ladder).collect()
    }
}

/// Whether a queue pair at an address is on the right.
type Sides = BTreeMap<(IpAddr, Qpn), bool>;

/// Whether a packet that a device sends to itself goes to the right, by its destination.
fn goes_right(packet: &DecodedPacket, sides: &mut Sides) -> bool {
    let Content::Packet { headers, .. } = &packet.content else { return true };
    let answers = matches!(
        headers.opcode.info().operation,
        Operation::Acknowledge | Operation::ReadResponse | Operation::AtomicAcknowledge
    );
    *sides.entry((packet.dst, headers.dest_qpn)).or_insert(!answers)
}

/// `start` and what has passed since. Damaged files have times that no clock reaches.
fn at(start: Instant, passed: Duration) -> Instant {
    start.checked_add(passed).unwrap_or(start)
}

/// The packet as a ladder keeps it, if the capture holds all of it.
fn record(packet: &DecodedPacket, goes_right: bool, at: Instant) -> Option<Record> {
    let (content, payload_len, mad, control) = match &packet.content {
        Content::Packet { headers, payload_len, mad, control } => {
            (Ok(*headers), *payload_len, mad.clone(), control.clone())
        }
        Content::Malformed(error) => (Err(*error), 0, None, None),
        Content::Truncated { .. } | Content::Fragment => return None,
    };
    let notes: Vec<String> =
        packet.comments.iter().flat_map(|text| text.split("; ")).map(str::to_owned).collect();
    let direction = if goes_right { Direction::Tx } else { Direction::Rx };
    Some(Record {
        at,
        direction,
        peer: if direction == Direction::Tx { packet.dst } else { packet.src },
        content,
        relative_psn: packet.relative_psn,
        payload_len,
        mad,
        control,
        icrc: packet.icrc.map_or(0, |icrc| icrc.found),
        icrc_ok: packet.icrc.is_some_and(IcrcCheck::is_ok),
        ce: packet.ecn() == Ecn::Ce,
        fate: fate(&notes),
        notes,
    })
}

/// What became of a packet, by the notes of the link's layers.
fn fate(notes: &[String]) -> Fate {
    let dropped = notes.iter().find_map(|note| {
        note.strip_suffix(super::render::DROPPED).or_else(|| note.strip_prefix("dropped by "))
    });
    match dropped {
        Some(by) => Fate::Dropped { by: by.into() },
        None => Fate::Delivered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Style;
    use qp::wire::{AethFields, Headers, Opcode};
    use qp::{Psn, Qpn};
    use std::net::Ipv4Addr;

    fn packet(opcode: Opcode, to: u32, syndrome: u8) -> DecodedPacket {
        let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let headers = Headers {
            aeth: AethFields { syndrome, ..AethFields::default() },
            ..Headers::new(opcode, Qpn::new(to), Psn::new(7))
        };
        DecodedPacket {
            frame: 1,
            segment: None,
            time: Duration::ZERO,
            src: own,
            src_port: 50_000,
            dst: own,
            dst_port: 4791,
            tos: 0,
            ttl: 64,
            ip_id: None,
            len: 20,
            content: Content::Packet { headers, payload_len: 0, mad: None, control: None },
            icrc: None,
            comments: Vec::new(),
            relative_psn: None,
            src_qpn: None,
        }
    }

    #[test]
    fn answers_of_a_device_to_itself_come_back() {
        let packets = [
            packet(Opcode::RcWriteOnly, 0x12, 0),
            packet(Opcode::RcAcknowledge, 0x11, 0),
            // The other way round.
            packet(Opcode::RcSendOnly, 0x11, 0),
            packet(Opcode::RcAcknowledge, 0x12, 0),
            // Other queue pairs, whose request was not captured.
            packet(Opcode::RcAcknowledge, 0x21, 0),
        ];
        let ladders = Ladder::of_capture(&packets);
        let [ladder] = &*ladders else { panic!("one host") };
        let directions: Vec<Direction> = ladder.records().iter().map(|record| record.direction).collect();
        use Direction::{Rx, Tx};
        assert_eq!(directions, [Tx, Rx, Rx, Tx, Rx], "{}", ladder.render(&Style::default()));
    }
}
