//! Ladders of packets that were captured.

use super::{Ladder, Record};
use crate::capture::{Content, DecodedPacket, Ecn, IcrcCheck};
use crate::link::{Direction, Fate};
use crate::queue::locked;
use std::collections::BTreeMap;
use std::net::IpAddr;
use time::{Duration, Instant};

impl Ladder {
    /// Ladders of captured packets: one for each pair of addresses, in the order in which the pairs appear. On the left is
    /// the address that sends the first packet of the pair. Packets that the capture does not hold in full are only
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
        for packet in packets {
            let passed = packet.time.saturating_sub(*first.get_or_insert(packet.time));
            let mut pair = [packet.src, packet.dst];
            pair.sort();
            let index = *by_pair.entry(pair).or_insert_with(|| {
                ladders.push((packet.src, Self::new(&packet.src.to_string(), &packet.dst.to_string(), 0)));
                ladders.len() - 1
            });
            let Some((left, ladder)) = ladders.get(index) else { continue };
            let mut book = locked(&ladder.book);
            match record(packet, *left, at(start, passed)) {
                Some(record) => book.records.push(record),
                None => book.missed += 1,
            }
        }
        ladders.into_iter().map(|(_, ladder)| ladder).collect()
    }
}

/// `start` and what has passed since. Damaged files have times that no clock reaches.
fn at(start: Instant, passed: Duration) -> Instant {
    start.checked_add(passed).unwrap_or(start)
}

/// The packet as a ladder keeps it, if the capture holds all of it.
fn record(packet: &DecodedPacket, left: IpAddr, at: Instant) -> Option<Record> {
    let (content, payload_len, mad, control) = match &packet.content {
        Content::Packet { headers, payload_len, mad, control } => {
            (Ok(*headers), *payload_len, mad.clone(), control.clone())
        }
        Content::Malformed(error) => (Err(*error), 0, None, None),
        Content::Truncated { .. } | Content::Fragment => return None,
    };
    let notes: Vec<String> =
        packet.comments.iter().flat_map(|text| text.split("; ")).map(str::to_owned).collect();
    let direction = if packet.src == left { Direction::Tx } else { Direction::Rx };
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
