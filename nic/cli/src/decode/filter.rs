//! Which packets of a capture to show.

use rnic::Psn;
use rnic::capture::{Content, DecodedPacket};
use rnic::cc::quantity::parse_seconds;
use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Queue pair numbers and PSNs have 24 bits.
const MAX_24_BITS: u32 = 0xff_ffff;

/// Each option narrows the choice.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub(super) struct Filter {
    /// Only packets to or from this queue pair, such as 17 or 0x11. Repeat for several.
    #[arg(long, value_name = "NUMBER", value_parser = parse_qpn)]
    qpn: Vec<u32>,
    /// Only packets with these PSNs, such as 100 or 100-120; `#0-#3` counts from the first packet of each queue pair, as
    /// ladders do.
    #[arg(long, value_name = "FIRST-LAST")]
    psn: Option<PsnRange>,
    /// Only packets from this time on, counted from the first packet, such as 1.5 (seconds) or 20ms.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    from: Option<Duration>,
    /// Only packets up to this time, counted likewise.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    to: Option<Duration>,
}

impl Filter {
    /// Whether every packet passes.
    pub(super) fn is_empty(&self) -> bool {
        self.qpn.is_empty() && self.psn.is_none() && self.from.is_none() && self.to.is_none()
    }

    /// Whether [`takes`](Self::takes) asks for the senders of packets.
    pub(super) fn needs_partners(&self) -> bool {
        !self.qpn.is_empty()
    }

    /// Whether to show a packet, `time` after the first one.
    pub(super) fn takes(&self, packet: &DecodedPacket, time: Duration, partners: &Partners) -> bool {
        if self.from.is_some_and(|from| time < from) || self.to.is_some_and(|to| time > to) {
            return false;
        }
        if self.qpn.is_empty() && self.psn.is_none() {
            return true;
        }
        let Content::Packet { headers, .. } = &packet.content else { return false };
        let ends = || {
            let sender = packet.src_qpn.map(|qpn| qpn.value()).or_else(|| partners.sender(packet));
            [Some(headers.dest_qpn.value()), sender].into_iter().flatten()
        };
        let has_psn = headers.opcode.info().operation.has_psn();
        (self.qpn.is_empty() || ends().any(|qpn| self.qpn.contains(&qpn)))
            && self.psn.is_none_or(|range| has_psn && range.has(headers.psn, packet.relative_psn))
    }
}

/// Parses a number, decimal as decode shows it, or hexadecimal.
fn parse_24_bits(text: &str) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    (number <= MAX_24_BITS).then_some(number)
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    parse_24_bits(text)
        .ok_or_else(|| "a queue pair number is from 0 to 0xffffff, such as 17 or 0x11".to_owned())
}

/// A range of PSNs. PSNs wrap: after 0xffffff comes 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PsnRange {
    first: u32,
    last: u32,
    /// Whether they count from the first packet of the sequence.
    relative: bool,
}

impl PsnRange {
    fn has(self, psn: Psn, relative: Option<i32>) -> bool {
        let psn = match relative {
            _ if !self.relative => psn.value(),
            // PSNs before the first packet wrap around to the end of the range.
            Some(relative) => relative.cast_unsigned() & MAX_24_BITS,
            None => return false,
        };
        let after = |psn: u32| psn.wrapping_sub(self.first) & MAX_24_BITS;
        after(psn) <= after(self.last)
    }
}

impl FromStr for PsnRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let relative = first.starts_with('#');
        let number = |part: &str| match part.strip_prefix('#') {
            Some(digits) => parse_24_bits(digits).filter(|_| relative),
            None => parse_24_bits(part).filter(|_| !relative),
        };
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(
                "PSNs are from 0 to 0xffffff: one, such as 100, or a range, such as 100-120 or #0-#3"
                    .to_owned(),
            );
        };
        Ok(Self { first, last, relative })
    }
}

/// The sending queue pairs, by addresses and destination queue pair. Requests over a connection do not name their
/// sender; the responses to them do.
#[derive(Debug, Default)]
pub(super) struct Partners(HashMap<(IpAddr, IpAddr, u32), u32>);

impl Partners {
    /// Collects them from the packets of a capture.
    pub(super) fn of(packets: impl Iterator<Item = DecodedPacket>) -> Self {
        let mut known = HashMap::new();
        for packet in packets {
            let (Content::Packet { headers, .. }, Some(sender)) = (&packet.content, packet.src_qpn) else {
                continue;
            };
            let (sender, receiver) = (sender.value(), headers.dest_qpn.value());
            known.entry((packet.src, packet.dst, receiver)).or_insert(sender);
            known.entry((packet.dst, packet.src, sender)).or_insert(receiver);
        }
        Self(known)
    }

    fn sender(&self, packet: &DecodedPacket) -> Option<u32> {
        let Content::Packet { headers, .. } = &packet.content else { return None };
        self.0.get(&(packet.src, packet.dst, headers.dest_qpn.value())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_ranges_are_absolute_or_relative_and_wrap() {
        let range = |text: &str| text.parse::<PsnRange>().expect(text);
        assert!(range("100-120").has(Psn::new(100), None) && range("100-120").has(Psn::new(120), None));
        assert!(!range("100-120").has(Psn::new(99), None) && !range("100-120").has(Psn::new(121), None));
        assert!(range("7").has(Psn::new(7), Some(0)) && !range("7").has(Psn::new(0), Some(7)));
        assert!(
            range("0xfffffe-1").has(Psn::new(0xff_ffff), None) && range("0xfffffe-1").has(Psn::new(0), None)
        );
        assert!(!range("0xfffffe-1").has(Psn::new(2), None));
        assert!(range("#0-#3").has(Psn::new(9), Some(3)) && !range("#0-#3").has(Psn::new(2), Some(4)));
        assert!(!range("#0-#3").has(Psn::new(2), Some(-1)) && !range("#0-#3").has(Psn::new(2), None));
        for wrong in ["", "#", "-", "1-", "-1", "#1-2", "1-#2", "0x1000000", "16777216", "1-2-3", "a"] {
            assert!(wrong.parse::<PsnRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn queue_pair_numbers_are_decimal_or_hexadecimal() {
        assert_eq!(parse_qpn("0x11"), Ok(17));
        assert_eq!(parse_qpn("17"), Ok(17));
        assert!(parse_qpn("0x1000000").is_err() && parse_qpn("-1").is_err() && parse_qpn("").is_err());
    }
}
