//! Reading RoCEv2 packets from capture files.
//!
//! pcap and pcapng, with the link types Ethernet (also with VLAN tags), raw IP, Linux cooked (versions 1 and 2) and
//! BSD loopback. A packet is RoCEv2 if it is a UDP datagram to port 4791 over IPv4 or IPv6. Everything else is counted
//! and skipped.
//!
//! A capture contains whole IP headers, so the ICRC is checked exactly, with the identification, flags and fragment offset
//! of the packet. (A socket does not see these: [`qp::wire::icrc`].)
//!
//! A sender that uses segmentation offload hands the kernel a train of packets in one datagram, and a capture that is
//! taken before the kernel cuts it up (on loopback and veth interfaces, and on the sending host) shows that datagram.
//! Where a datagram is not one packet with a good ICRC, the [`Decoder`] looks for the segment size that makes a good packet
//! of its beginning, and then gives the packets of the train one by one, each with its own ICRC and, over IPv4, its own
//! identification: segment *i* gets that of the datagram plus *i*.
//!
//! Datagrams of connection management (the payload of packets to queue pair 1) are kept and decoded: the line of such a
//! packet shows its message, and the JSON form has all of its fields. The same holds for hellos, and for the messages of
//! rnic ports about credits and pauses.
//!
//! IPv6 extension headers and obsolete pcapng packet blocks (type 2) are not supported; such packets count as other
//! traffic.

mod control;
mod dissect;
mod file;
mod json;
mod train;

pub use control::Control;
pub use json::Report;

use crate::ladder::psn::{Place, Streams};
use dissect::{Datagram, dissect};
use file::{Record, Records};
use qp::Qpn;
use qp::wire::mad::MAD_LEN;
use qp::wire::{Headers, ICRC_LEN, Packet, WireError, icrc};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use thiserror::Error;
use time::Duration;

/// Why a capture cannot be read, or not to its end.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The reader failed.
    #[error("cannot read the capture: {0}")]
    Io(#[source] io::Error),
    /// The file has no bytes at all.
    #[error("the file is empty, without even the header of a capture")]
    Empty,
    /// The file does not start with the magic number of a capture.
    #[error("not a capture file: it starts with the magic number of neither pcap nor pcapng")]
    NotACapture,
    /// The file ends in the middle of a frame or of its header.
    #[error("the capture is cut off behind frame {frames}: the file ends after {bytes} bytes, inside {}", inside(*frames, *bytes))]
    CutOff {
        /// The number of whole frames.
        frames: u64,
        /// The length of the file in bytes.
        bytes: u64,
    },
    /// The file breaks a rule of its format.
    #[error("the capture is damaged behind frame {frames}: {reason}")]
    Damaged {
        /// The number of whole frames.
        frames: u64,
        /// Which rule.
        reason: String,
    },
    /// A link type in which RoCEv2 packets cannot be found.
    #[error("link type {0} is not supported (Ethernet, raw IP, Linux cooked and BSD loopback are)")]
    UnsupportedLink(u32),
}

/// The part of the file that its end cuts.
fn inside(frames: u64, bytes: u64) -> String {
    if frames == 0 && bytes < file::PCAP_HEADER_LEN {
        return "the header of the file".to_owned();
    }
    format!("frame {}", frames + 1)
}

/// Congestion marking of the IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ecn {
    /// The sender does not support ECN: a congested router drops.
    NotEct,
    /// The sender supports ECN, codepoint 1.
    Ect1,
    /// The sender supports ECN, codepoint 0.
    Ect0,
    /// A router on the path was congested.
    Ce,
}

impl Ecn {
    /// The low two bits of a TOS byte or a traffic class.
    #[must_use]
    pub const fn of_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// The ICRC that a packet carries, and the one that it should carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcCheck {
    /// The right one.
    pub computed: u32,
    /// The one in the packet.
    pub found: u32,
}

impl IcrcCheck {
    /// Whether they are equal.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.computed == self.found
    }
}

/// The content of a datagram to port 4791.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A packet.
    Packet {
        /// Its headers.
        headers: Headers,
        /// Length of its payload in bytes, without padding.
        payload_len: usize,
        /// Its payload, if that is a management datagram; [`qp::wire::mad`] decodes it.
        mad: Option<Box<[u8; MAD_LEN]>>,
        /// Its content, if it is a message between rnic ports.
        control: Option<Control>,
    },
    /// Not a packet.
    Malformed(WireError),
    /// The capture does not contain all of it.
    Truncated {
        /// Bytes of UDP payload in the capture.
        captured: usize,
        /// Bytes of UDP payload on the wire.
        length: usize,
    },
    /// The first fragment of an IP datagram. RoCEv2 packets are never fragmented.
    Fragment,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet { headers, payload_len, mad, control } => {
                headers.line(*payload_len).with_mad(mad.as_deref()).fmt(f)?;
                control.iter().try_for_each(|control| write!(f, " {control}"))
            }
            Self::Malformed(error) => write!(f, "malformed: {error}"),
            Self::Truncated { captured, length } => {
                write!(f, "truncated: {captured} of {length} bytes were captured")
            }
            Self::Fragment => f.write_str("a fragment of an IP datagram"),
        }
    }
}

/// A RoCEv2 packet of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedPacket {
    /// Number of the frame in the capture, from 1, as other tools count too.
    pub frame: u64,
    /// Place in the train, from 0, if the frame held a segmentation-offloaded train of packets.
    pub segment: Option<u16>,
    /// The time of capture, since 1970-01-01 UTC.
    pub time: Duration,
    /// Source address.
    pub src: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP destination port: 4791.
    pub dst_port: u16,
    /// The TOS byte of IPv4, or the traffic class of IPv6.
    pub tos: u8,
    /// The time to live of IPv4, or the hop limit of IPv6.
    pub ttl: u8,
    /// IPv4 identification; that of a segment of a train is the one that the kernel gives it.
    pub ip_id: Option<u16>,
    /// Length from the BTH to the ICRC in bytes.
    pub len: usize,
    /// The headers, or why there are none.
    pub content: Content,
    /// The ICRC; `None` if the packet is not complete.
    pub icrc: Option<IcrcCheck>,
    /// Comments on the packet; pcapng only.
    pub comments: Vec<String>,
    /// Its PSN, counted from the first one that the capture has of its sequence. An answer counts in the sequence of the
    /// requests that it answers. `None` where that is not known.
    pub relative_psn: Option<i32>,
    /// The queue pair that sent it: from the headers of a datagram, otherwise inferred from the packets before it, as far as
    /// these tell.
    pub src_qpn: Option<Qpn>,
}

impl DecodedPacket {
    /// Congestion marking.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::of_tos(self.tos)
    }
}

/// The numbers of packets in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// RoCEv2 packets, including damaged and incomplete ones.
    pub packets: u64,
    /// Packets whose ICRC is wrong.
    pub bad_icrc: u64,
    /// Datagrams to port 4791 that are not packets, and fragments.
    pub malformed: u64,
    /// Packets that the capture does not contain in full.
    pub truncated: u64,
    /// Frames with other traffic.
    pub other_frames: u64,
    /// Frames that held a segmentation-offloaded train and were split into its packets.
    pub trains: u64,
}

impl Summary {
    /// Counts a packet.
    pub fn add(&mut self, packet: &DecodedPacket) {
        self.packets += 1;
        self.trains += u64::from(packet.segment == Some(0));
        self.bad_icrc += u64::from(packet.icrc.is_some_and(|icrc| !icrc.is_ok()));
        match packet.content {
            Content::Packet { .. } => {}
            Content::Malformed(_) | Content::Fragment => self.malformed += 1,
            Content::Truncated { .. } => self.truncated += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets, {} bad ICRC", self.packets, self.bad_icrc)?;
        for (count, what) in [
            (self.malformed, "malformed"),
            (self.truncated, "truncated"),
            (self.other_frames, "other frames skipped"),
            (self.trains, "segmentation-offloaded frames split"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// The RoCEv2 packets of a capture, in the order of the file.
///
/// It ends after the first error, because nothing behind damage can be trusted.
#[derive(Debug)]
pub struct Decoder<R: Read> {
    records: Records<R>,
    frames: u64,
    summary: Summary,
    /// Packets of the current frame.
    pending: VecDeque<DecodedPacket>,
    streams: Streams,
    failed: bool,
}

impl<R: Read> Decoder<R> {
    /// Starts to read a capture. The reader needs no buffer of its own.
    ///
    /// # Errors
    /// The file is not a capture, its header is cut off, or its link type is not supported.
    pub fn new(reader: R) -> Result<Self, CaptureError> {
        Ok(Self {
            records: Records::new(reader)?,
            frames: 0,
            summary: Summary::default(),
            pending: VecDeque::new(),
            streams: Streams::default(),
            failed: false,
        })
    }

    /// The numbers of packets so far.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        self.summary
    }
}

impl<R: Read> Iterator for Decoder<R> {
    type Item = Result<DecodedPacket, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(mut packet) = self.pending.pop_front() {
                self.summary.add(&packet);
                if let Content::Packet { headers, .. } = &packet.content {
                    let place = self.streams.place(packet.src, packet.dst, headers);
                    Place { relative_psn: packet.relative_psn, sender: packet.src_qpn } = place;
                }
                return Some(Ok(packet));
            }
            if self.failed {
                return None;
            }
            match self.records.next_record(self.frames)? {
                Ok(record) => {
                    self.frames += 1;
                    match record.link.and_then(|link| dissect(link, &record.data)) {
                        Some(datagram) => decode(self.frames, &record, &datagram, &mut self.pending),
                        None => self.summary.other_frames += 1,
                    }
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The packets of a datagram: one, or those of a train.
fn decode(frame: u64, record: &Record<'_>, datagram: &Datagram<'_>, out: &mut VecDeque<DecodedPacket>) {
    let whole = DecodedPacket {
        frame,
        segment: None,
        time: record.time,
        src: datagram.flow.src,
        src_port: datagram.flow.src_port,
        dst: datagram.flow.dst,
        dst_port: datagram.flow.dst_port,
        tos: datagram.tos,
        ttl: datagram.ttl,
        ip_id: datagram.ip_id,
        len: datagram.length,
        content: Content::Fragment,
        icrc: None,
        comments: record.comments.clone(),
        relative_psn: None,
        src_qpn: None,
    };
    if datagram.more_fragments() {
        out.push_back(whole);
        return;
    }
    let truncated = |captured, length| Content::Truncated { captured, length };
    let (content, icrc) = match datagram.payload.len() {
        captured if captured < datagram.length => (truncated(captured, datagram.length), None),
        _ => read(datagram, datagram.ip_id.unwrap_or(0), datagram.payload),
    };
    let good = icrc.is_some_and(IcrcCheck::is_ok);
    let Some(size) = (if good { None } else { train::segment_size(datagram) }) else {
        out.push_back(DecodedPacket { content, icrc, ..whole });
        return;
    };
    for (index, start) in (0..).zip((0..datagram.length).step_by(size)) {
        let len = size.min(datagram.length - start);
        let rest = datagram.payload.get(start..).unwrap_or_default();
        let (content, icrc) = match rest.get(..len) {
            Some(bytes) => read(datagram, train::identification(datagram, index), bytes),
            None => (truncated(rest.len(), len), None),
        };
        let ip_id = datagram.ip_id.map(|_| train::identification(datagram, index));
        out.push_back(DecodedPacket { segment: Some(index), len, ip_id, content, icrc, ..whole.clone() });
    }
}

/// The headers of a packet, and its ICRC for this identification.
fn read(datagram: &Datagram<'_>, ident: u16, bytes: &[u8]) -> (Content, Option<IcrcCheck>) {
    let content = match Packet::parse(bytes) {
        Ok(packet) => Content::Packet {
            headers: Headers::of(&packet),
            payload_len: packet.payload().len(),
            mad: packet.mad().map(|mad| Box::new(*mad)),
            control: Control::of(&packet),
        },
        Err(error) => Content::Malformed(error),
    };
    let icrc = bytes.split_last_chunk::<ICRC_LEN>().map(|(covered, found)| IcrcCheck {
        computed: icrc::compute_fragment(&datagram.flow, ident, datagram.flags_fragment, covered),
        found: u32::from_le_bytes(*found),
    });
    (content, icrc)
}

#[cfg(test)]
mod tests;
