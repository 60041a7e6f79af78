//! The packets of the bare path: headers copied from templates, a payload, an ICRC.

use super::super::Outcome;
use qp::wire::headers::{AethFields, RethFields};
use qp::wire::{Flow, HeaderSet, Headers, ICRC_LEN, Opcode, icrc};
use qp::{Psn, Qpn};
use rnic::net::{MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS};
use serde::{Deserialize, Serialize};

/// The payload of a full packet, in bytes: the largest MTU.
pub(crate) const MTU: usize = 4096;

/// Where the BTH has its congestion bits, which the ICRC does not cover (IBTA 9.2).
const ECN: usize = 4;

/// Where the BTH has its flag that asks for an acknowledgement, and its 24 bits of packet sequence number (IBTA 9.2).
const ACK_REQ: usize = 8;
const PSN: usize = 9;

/// Length of the BTH, behind which the RETH begins, with its address.
const BTH_LEN: usize = 12;

/// Number of packet sequence numbers.
pub(super) const PSNS: u64 = 1 << 24;

/// The operation of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Op {
    /// RDMA WRITE.
    Write,
    /// SEND.
    Send,
    /// The responses of an RDMA READ.
    Read,
}

impl Op {
    /// The opcodes of the first, a middle, the last and the only packet of a message.
    const fn opcodes(self) -> [Opcode; 4] {
        match self {
            Self::Write => {
                [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast, Opcode::RcWriteOnly]
            }
            Self::Send => [Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast, Opcode::RcSendOnly],
            Self::Read => [
                Opcode::RcReadResponseFirst,
                Opcode::RcReadResponseMiddle,
                Opcode::RcReadResponseLast,
                Opcode::RcReadResponseOnly,
            ],
        }
    }
}

/// What an opcode means to the receiver.
#[derive(Clone, Copy)]
struct Shape {
    /// Length of all headers.
    header_len: usize,
    /// Whether a message starts here, and whether with an address.
    starts: bool,
    has_address: bool,
}

/// By opcode. The headers of those that do not exist are longer than any packet.
const SHAPES: [Shape; 256] = {
    let mut shapes = [Shape { header_len: usize::MAX, starts: false, has_address: false }; 256];
    let mut opcode = 0u8;
    loop {
        if let Some(known) = Opcode::from_u8(opcode) {
            let info = known.info();
            shapes[opcode as usize] = Shape {
                header_len: info.header_len as usize,
                starts: info.position.starts(),
                has_address: info.headers.contains(HeaderSet::RETH),
            };
        }
        if opcode == u8::MAX {
            break shapes;
        }
        opcode += 1;
    }
};

/// Length of the headers of a packet.
pub(super) fn header_len(packet: &[u8]) -> usize {
    packet.first().map_or(usize::MAX, |opcode| SHAPES[usize::from(*opcode)].header_len)
}

/// The headers of a packet with this payload.
fn headers(opcode: Opcode, payload: usize) -> Vec<u8> {
    // The receiver has one queue pair and one region, and looks up neither.
    let mut headers = Headers::new(opcode, Qpn::new(0x11), Psn::new(0));
    headers.reth = RethFields { va: 0, rkey: 0x1234, length: u32::try_from(payload).unwrap_or(u32::MAX) };
    headers.aeth = AethFields { syndrome: 0, msn: 0 };
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload);
    bytes
}

/// A packet without payload.
pub(super) fn short(opcode: Opcode) -> Vec<u8> {
    [headers(opcode, 0), vec![0; ICRC_LEN]].concat()
}

/// The ICRCs of a flow.
///
/// A CRC is linear: for packets of one length, the CRC of the packet alone differs from its ICRC by a constant that
/// depends on the IPv4 identification, which is the packet's index in its train. So the network headers are hashed once
/// per length and index. The congestion bits, which the ICRC replaces by ones, are 0 in all packets here.
pub(super) struct Icrcs {
    flow: Flow,
    /// By the length of the packet without its ICRC.
    constants: Vec<(usize, [u32; MAX_TRAIN_SEGMENTS as usize])>,
}

impl Icrcs {
    pub(super) const fn new(flow: Flow) -> Self {
        Self { flow, constants: Vec::new() }
    }

    /// The ICRC of a packet; `covered` is all of it before that, at least a BTH.
    fn of(&mut self, index: usize, covered: &[u8]) -> u32 {
        let len = covered.len();
        let known = self.constants.iter().position(|(known, _)| *known == len);
        let known = known.unwrap_or_else(|| self.add(len));
        let constants = &self.constants[known].1;
        crc32fast::hash(covered) ^ constants[index % constants.len()]
    }

    /// Adds the constants of a length; returns their place.
    ///
    /// # Panics
    ///
    /// If they do not lead to the ICRC of the protocol crate.
    fn add(&mut self, len: usize) -> usize {
        let zeros = vec![0; len];
        let alone = crc32fast::hash(&zeros);
        let icrc = |index, covered: &[u8]| {
            icrc::compute(&self.flow, u16::try_from(index).unwrap_or(u16::MAX), covered)
        };
        let constants: [u32; MAX_TRAIN_SEGMENTS as usize] =
            std::array::from_fn(|index| icrc(index, &zeros) ^ alone);
        let mut some = super::super::pattern(len);
        some[ECN] = 0;
        for (index, constant) in constants.iter().enumerate().step_by(9) {
            assert_eq!(crc32fast::hash(&some) ^ constant, icrc(index, &some), "packets of {len} bytes");
        }
        self.constants.push((len, constants));
        self.constants.len() - 1
    }

    /// Writes the ICRC to the end of a packet.
    pub(super) fn seal(&mut self, index: usize, packet: &mut [u8]) {
        let at = packet.len() - ICRC_LEN;
        let crc = self.of(index, &packet[..at]);
        packet[at..].copy_from_slice(&crc.to_le_bytes());
    }

    /// The packet without its ICRC; `None` if that is wrong.
    pub(super) fn open<'a>(&mut self, index: usize, packet: &'a [u8]) -> Option<&'a [u8]> {
        let (covered, crc) = packet.split_last_chunk::<ICRC_LEN>()?;
        if covered.len() < BTH_LEN {
            return None;
        }
        (self.of(index, covered) == u32::from_le_bytes(*crc)).then_some(covered)
    }
}

/// Numbers a packet.
pub(super) fn number(packet: &mut [u8], psn: u64, ack_req: bool) {
    let [.., a, b, c] = psn.to_be_bytes();
    packet[PSN..PSN + 3].copy_from_slice(&[a, b, c]);
    packet[ACK_REQ] = u8::from(ack_req) << 7;
}

/// A received packet.
pub(super) struct Received<'a> {
    pub(super) psn: u64,
    pub(super) ack_req: bool,
    /// The address of a RETH; 0 at the start of other messages, `None` inside a message.
    pub(super) start: Option<usize>,
    pub(super) payload: &'a [u8],
}

impl<'a> Received<'a> {
    /// Reads a packet without its ICRC. Its lengths are not checked further than to be safe.
    pub(super) fn read(covered: &'a [u8]) -> Option<Self> {
        let &[opcode, _, _, _, _, _, _, _, ack, a, b, c] = covered.first_chunk()?;
        let Shape { header_len, starts, has_address } = SHAPES[usize::from(opcode)];
        let start = if has_address {
            let address = covered.get(BTH_LEN..)?.first_chunk()?;
            Some(u64::from_be_bytes(*address) as usize)
        } else {
            starts.then_some(0)
        };
        let payload = covered.get(header_len..)?;
        Some(Self {
            psn: u64::from(u32::from_be_bytes([0, a, b, c])),
            ack_req: ack >> 7 != 0,
            start,
            payload,
        })
    }
}

/// The packets of a stream of equal messages: packet `k` is a function of `k`.
pub(super) struct Stream {
    size: usize,
    /// Packets per message.
    per_message: u64,
    /// Headers of the first, a middle, the last and the only packet.
    templates: [Vec<u8>; 4],
    /// The most packets of a train that are full.
    pub(super) full_train: u64,
    /// The length of a full packet.
    pub(super) packet_len: usize,
}

impl Stream {
    /// Messages of `size` bytes, a multiple of 4.
    pub(super) fn new(op: Op, size: usize) -> Outcome<Self> {
        if size == 0 || !size.is_multiple_of(4) {
            return Err(format!("the bare path has no messages of {size} bytes, only multiples of 4").into());
        }
        let templates = op.opcodes().map(|opcode| headers(opcode, size));
        let per_message = size.div_ceil(MTU) as u64;
        let header = templates[if per_message > 2 { 1 } else { 3 }].len();
        let packet_len = header + size.min(MTU) + ICRC_LEN;
        let full_train = (MAX_TRAIN_BYTES / packet_len).min(MAX_TRAIN_SEGMENTS as usize) as u64;
        Ok(Self { size, per_message, templates, full_train, packet_len })
    }

    /// Packets per message.
    pub(super) const fn per_message(&self) -> u64 {
        self.per_message
    }

    /// The message that a packet belongs to: the number of whole messages before it.
    pub(super) const fn message(&self, packet: u64) -> u64 {
        packet / self.per_message
    }

    /// The headers of a packet, and the range of its payload in the message.
    fn part(&self, packet: u64) -> (&[u8], std::ops::Range<usize>) {
        let at = packet % self.per_message;
        let template = match at {
            _ if self.per_message == 1 => 3,
            0 => 0,
            _ if at + 1 == self.per_message => 2,
            _ => 1,
        };
        let start = at as usize * MTU;
        (&self.templates[template], start..self.size.min(start + MTU))
    }

    /// Builds a train of up to `room` packets from `first` on; packet `end - 1` is the last of all, and asks for an
    /// acknowledgement. Returns their number, the length of each but the last, and their bytes. Packets of a train have
    /// one length, except that the last may be shorter.
    pub(super) fn train(
        &self,
        (first, room): (u64, u64),
        end: Option<u64>,
        region: &[u8],
        icrcs: &mut Icrcs,
        out: &mut [u8],
    ) -> (u64, usize, usize) {
        let (mut packets, mut segment, mut used) = (0, 0, 0);
        while packets < room.min(u64::from(MAX_TRAIN_SEGMENTS)) {
            let (header, range) = self.part(first + packets);
            let len = header.len() + range.len() + ICRC_LEN;
            if packets == 0 {
                segment = len;
            } else if len > segment || used + len > MAX_TRAIN_BYTES {
                break;
            }
            let packet = &mut out[used..used + len];
            packet[..header.len()].copy_from_slice(header);
            packet[header.len()..len - ICRC_LEN].copy_from_slice(&region[range]);
            number(packet, first + packets, end == Some(first + packets + 1));
            icrcs.seal(packets as usize, packet);
            packets += 1;
            used += len;
            if len < segment {
                break;
            }
        }
        (packets, segment, used)
    }
}
