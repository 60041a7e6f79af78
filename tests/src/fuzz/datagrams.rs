//! Datagrams from a stranger to a live queue pair.

use super::rig::{Kind, Rig};
use super::{byte, bytes, sealed};
use arbitrary::Unstructured;
use qp::wire::{Headers, Opcode};
use rnic::{Access, Bind, FlushKind, Gather, Operation, Psn, QpAttr, QpState, Remote, SendFlags, SendWr};
use std::time::Duration;

/// Enough steps to reach every state, and few enough for no queue to overflow.
const STEPS: u32 = 100;

/// Sends arbitrary packets from a stranger to a queue pair, as valid as the input makes them, while the program
/// posts, polls and changes attributes.
///
/// # Panics
///
/// Panics if a packet is counted twice, a work request completes twice or not at all, memory changes without
/// permission, other queue pairs are affected, or something cannot be destroyed at the end.
pub fn datagrams(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let kind = Kind::of(byte(&mut input));
    let mut rig = Rig::new(kind);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut rig, &mut input);
    }
    rig.finish();
}

fn step(rig: &mut Rig, input: &mut Unstructured<'_>) {
    match byte(input) {
        selector @ 0..=0x5f => say_headers(rig, selector, input),
        selector @ 0x60..=0x9f => say_bytes(rig, selector, input),
        0xa0..=0xbf => post(rig, input),
        0xc0..=0xcf => rig.post_recv(usize::from(byte(input)) * 16),
        0xd0..=0xdf => {
            // Up to 2^15 us: half of the retransmission timeout.
            let passes = Duration::from_micros(1 << (byte(input) & 0xf));
            rig.net.run_for(passes);
        }
        0xe0..=0xef => rig.poll(),
        0xf0..=0xf3 => rig.restart(),
        0xf4..=0xf7 => rig.turn_target(),
        0xf8..=0xfb => _ = rig.victim().modify(&QpAttr::to_state(QpState::Sqd)),
        0xfc..=0xfe => _ = rig.victim().modify(&QpAttr::to_state(QpState::Rts)),
        0xff => _ = rig.victim().modify(&QpAttr::to_state(QpState::Err)),
    }
}

/// A PSN close to the one that the victim expects in a request, or in a response.
fn near(rig: &Rig, is_request: bool, distance: u8) -> Psn {
    let base = if is_request { rig.expected } else { rig.said_last() };
    match distance as i8 {
        back @ ..0 => base.minus(u32::from(back.unsigned_abs())),
        ahead => base.plus(u32::from(ahead.unsigned_abs())),
    }
}

/// A packet with the headers of its opcode, mostly with plausible values.
fn say_headers(rig: &mut Rig, selector: u8, input: &mut Unstructured<'_>) {
    let opcode = Opcode::ALL[usize::from(selector) % Opcode::ALL.len()];
    let mut headers = Headers::new(opcode, rig.victim().qpn(), Psn::new(0));
    headers.psn = near(rig, opcode.info().is_request, byte(input));
    let flags = byte(input);
    (headers.ack_req, headers.solicited) = (flags & 1 != 0, flags & 2 != 0);
    (headers.mig_req, headers.becn) = (flags & 4 != 0, flags & 8 != 0);
    let at = u64::from(byte(input)) * 16;
    let scale = 1 << (flags >> 4);
    headers.reth.va = at;
    headers.reth.length = u32::from(byte(input)) * scale;
    headers.atomic.va = at;
    (headers.atomic.swap_add, headers.atomic.compare) = (at, 0x0101_0101_0101_0101);
    (headers.aeth.syndrome, headers.aeth.msn) = (byte(input), u32::from(flags));
    headers.feth.placement = byte(input) & 0xf;
    headers.ieth = rig.local_key() ^ u32::from(flags);
    rig.aim(&mut headers);
    let len = match byte(input) {
        len @ 0..=0x7f => usize::from(len) * 8,
        // Exactly one path MTU, and one byte more.
        0x80..=0x9f => 256,
        0xa0..=0xaf => 1024,
        0xb0..=0xbf => 257,
        // The length in the RETH.
        _ => (headers.reth.length as usize).min(1100),
    };
    let len = if opcode.info().has_payload { len } else { 0 };
    rig.say(&headers, &vec![at as u8; len]);
}

/// Arbitrary bytes, made valid in some places.
fn say_bytes(rig: &mut Rig, selector: u8, input: &mut Unstructured<'_>) {
    let len = usize::from(byte(input)) * if selector & 0x10 != 0 { 4 } else { 1 };
    let mut said = bytes(input, len).to_vec();
    if let Some(bth) = said.first_chunk_mut::<12>() {
        if selector & 1 != 0 {
            // No pad, version 0, the default partition.
            (bth[1], bth[2], bth[3]) = (bth[1] & 0xc0, 0xff, 0xff);
        }
        if selector & 2 != 0 {
            bth[5..8].copy_from_slice(&rig.victim().qpn().value().to_be_bytes()[1..]);
        }
        if selector & 4 != 0 {
            let is_request = Opcode::from_u8(bth[0]).is_none_or(|opcode| opcode.info().is_request);
            let psn = near(rig, is_request, bth[11]);
            bth[9..].copy_from_slice(&psn.value().to_be_bytes()[1..]);
        }
    }
    if selector & 8 == 0 {
        said.truncate(said.len() & !3);
        said = sealed(&rig.arrival(), said);
    }
    rig.say_raw(&said);
}

fn post(rig: &mut Rig, input: &mut Unstructured<'_>) {
    let (kind, flags, size) = (byte(input), byte(input), byte(input));
    let remote = Remote { addr: u64::from(size) * 8, rkey: 0x4242 };
    let imm = (flags & 0x10 != 0).then_some(7);
    let operation = match kind % 11 {
        0 => Operation::Send { imm, invalidate: None },
        1 => Operation::Send { imm: None, invalidate: Some(9) },
        2 => Operation::Write { remote, imm },
        3 => Operation::Read { remote },
        4 => Operation::CompareSwap { remote, compare: 1, swap: 2 },
        5 => Operation::FetchAdd { remote, add: 1 },
        6 => Operation::AtomicWrite { remote },
        7 => {
            let flush =
                FlushKind { global: true, persistent: flags & 0x20 != 0, whole_region: flags & 0x40 != 0 };
            Operation::Flush { remote, len: u32::from(size), flush }
        }
        8 => Operation::LocalInvalidate { key: rig.local_key() },
        9 => Operation::BindWindow(Bind {
            window: 77,
            key: 78,
            lkey: rig.local_key(),
            access: Access::REMOTE_READ,
            addr: 0,
            len: u64::from(size),
        }),
        _ => Operation::Send { imm, invalidate: None },
    };
    let len = match operation {
        Operation::CompareSwap { .. } | Operation::FetchAdd { .. } | Operation::AtomicWrite { .. } => 8,
        Operation::Flush { .. } | Operation::LocalInvalidate { .. } | Operation::BindWindow(_) => 0,
        _ => usize::from(size) * 9,
    };
    let data = if len == 0 { Gather::Empty } else { rig.part(len).into() };
    let flags = SendFlags::from_bits_truncate(u32::from(flags));
    rig.post(SendWr::new(0, operation, data).flags(flags), flags.contains(SendFlags::SIGNALED));
    rig.net.run_for(Duration::from_micros(2));
}
