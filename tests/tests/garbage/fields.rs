//! All values of each header field, or all kinds of values, and the exact effect of each.

use super::{ACCESS, INVALID, SEQUENCE, answered, refused, taken, taken_at};
use crate::rig::{Fate, MTU, REGION, RQ, Rig, SQ, STRANGER, Service, headers, packet, smallest};
use qp::wire::{FethFields, Headers, ICRC_LEN, IpHeader, NakCode, Opcode, Syndrome, Transport};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rnic::engine::DropReason;
use rnic::{Operation, PKey, Psn, Qpn, SendWr};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The effect of an opcode after a BTH with as many zeros as its headers take (`bare`) or with 64.
fn fate_of_opcode(service: Service, byte: u8, bare: bool) -> Fate {
    let Some(opcode) = Opcode::from_u8(byte) else { return Fate::Dropped(DropReason::BadOpcode) };
    let info = opcode.info();
    if !bare && !info.has_payload {
        return Fate::Dropped(DropReason::BadLength);
    }
    let ours = match service {
        Service::Rc => Transport::Rc,
        Service::Xrc => Transport::Xrc,
        Service::Uc => Transport::Uc,
        Service::Ud => Transport::Ud,
    };
    match info.transport {
        // They belong to the port, whatever the service of the queue pair.
        // The queue pair has sent nothing to where it comes from.
        Transport::Cnp if service == Service::Ud => return Fate::Dropped(DropReason::BadToken),
        Transport::Cnp => return Fate::Ignored,
        Transport::Rnic => return Fate::Dropped(DropReason::Stranger),
        other if other != ours => return Fate::Dropped(DropReason::WrongService),
        _ => {}
    }
    if !info.is_request {
        return Fate::Dropped(DropReason::Ghost);
    }
    // The names of RC, which have the same low five bits.
    use Opcode as O;
    let Some(of_rc) = Opcode::from_u8(byte & 0x1f) else { panic!("{opcode:?} has no brother") };
    match of_rc {
        _ if service == Service::Ud => Fate::Dropped(DropReason::BadQkey),
        // No shared receive queue has the number 0.
        _ if service == Service::Xrc && info.position.starts() => refused(service, INVALID),
        O::RcSendOnly | O::RcSendOnlyImm => taken(service),
        // Key 0 does not exist.
        O::RcSendOnlyInv | O::RcFetchAdd | O::RcCompareSwap => refused(service, ACCESS),
        // No bytes, so the key is not checked; or more than the length in the RETH.
        O::RcWriteOnly | O::RcWriteOnlyImm if bare => taken(service),
        O::RcReadRequest => answered(O::RcReadResponseOnly),
        _ => refused(service, INVALID),
    }
}

#[test]
fn every_opcode() {
    for (service, bare) in Service::ALL.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        let mut rig = Rig::new(service);
        let mut fates: BTreeMap<String, u32> = BTreeMap::new();
        for byte in 0..=u8::MAX {
            let len = match Opcode::from_u8(byte) {
                Some(opcode) if bare => smallest(opcode) - ICRC_LEN,
                _ => 12 + 64,
            };
            let mut bytes = vec![0; len];
            let bth = packet(&headers(&rig, Opcode::RcSendOnly), &[]);
            bytes[..12].copy_from_slice(&bth);
            bytes[0] = byte;
            let expected = fate_of_opcode(service, byte, bare);
            rig.expect(&bytes, &expected, &format!("{service:?}, opcode {byte:#x}"));
            *fates.entry(format!("{expected:?}")).or_default() += 1;
        }
        println!("{service:?}, bare {bare}: {fates:#?}");
        assert_eq!(rig.said, 256);
        rig.check_bystanders();
    }
}

/// An XRC queue pair accepts XRC requests; every other opcode has its own drop reason.
#[test]
fn every_opcode_at_an_xrc_queue_pair() {
    let mut rig = Rig::new(Service::Xrc);
    for opcode in Opcode::ALL {
        let bytes = packet(&Headers { ack_req: true, ..headers(&rig, *opcode) }, &[]);
        let info = opcode.info();
        let of_xrc = info.transport == Transport::Xrc;
        let expected = match (*opcode, info.is_request) {
            _ if info.transport == Transport::Cnp => Fate::Ignored,
            _ if info.transport == Transport::Rnic => Fate::Dropped(DropReason::Stranger),
            _ if !of_xrc => Fate::Dropped(DropReason::WrongService),
            (_, false) => Fate::Dropped(DropReason::Ghost),
            (
                Opcode::XrcSendOnly | Opcode::XrcSendOnlyImm | Opcode::XrcWriteOnly | Opcode::XrcWriteOnlyImm,
                _,
            ) => taken(Service::Xrc),
            (Opcode::XrcReadRequest, _) => answered(Opcode::XrcReadResponseOnly),
            (Opcode::XrcFetchAdd | Opcode::XrcCompareSwap, _) => answered(Opcode::XrcAtomicAcknowledge),
            (Opcode::XrcSendOnlyInv, _) => refused(Service::Xrc, ACCESS),
            _ => refused(Service::Xrc, INVALID),
        };
        rig.expect(&bytes, &expected, &format!("{opcode:?}"));
    }
    rig.check_bystanders();
}

#[test]
fn every_value_of_the_first_bytes() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        let send = service.opcode(Opcode::RcSendOnly).unwrap();
        for byte in 0..=u8::MAX {
            // Solicited, MigReq, pad count, version.
            let mut bytes = packet(&headers(&rig, send), &[5; 8]);
            bytes[1] = byte;
            let expected = match byte & 0x0f {
                0 => taken(service),
                _ => Fate::Dropped(DropReason::BadVersion),
            };
            rig.expect(&bytes, &expected, &format!("{service:?}, second byte {byte:#x}"));
        }
        // A pad count without a payload, and one that makes the payload differ from the length in the RETH.
        for (of_rc, payload, expected) in [
            (Opcode::RcSendOnly, 0, Fate::Dropped(DropReason::BadLength)),
            (Opcode::RcReadRequest, 0, Fate::Dropped(DropReason::BadLength)),
            (Opcode::RcWriteOnly, 8, refused(service, INVALID)),
            (Opcode::RcSendFirst, MTU, refused(service, INVALID)),
        ] {
            let Some(opcode) = service.opcode(of_rc) else { continue };
            for pad in 1..=3 {
                let mut headers = headers(&rig, opcode);
                headers.reth.length = payload as u32;
                let mut bytes = packet(&headers, &vec![5; payload]);
                bytes[1] |= pad << 4;
                rig.expect(&bytes, &expected, &format!("{opcode:?} with a pad count of {pad}"));
            }
        }
        rig.check_bystanders();
    }
}

/// C9-6: queue pairs ignore reserved bits, FECN and BECN.
#[test]
fn every_value_of_the_reserved_bits() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        let send = service.opcode(Opcode::RcSendOnly).unwrap();
        for byte in 0..=u8::MAX {
            let mut bytes = packet(&headers(&rig, send), &[5; 8]);
            bytes[4] = byte;
            rig.expect(&bytes, &taken(service), &format!("{service:?}, fifth byte {byte:#x}"));
            // AckReq and seven reserved bits.
            let mut bytes = packet(&headers(&rig, send), &[5; 8]);
            bytes[8] = byte;
            let quiet = Fate::Taken { answers: vec![], alive: true };
            let expected = if byte & 0x80 != 0 { taken(service) } else { quiet };
            rig.expect(&bytes, &expected, &format!("{service:?}, ninth byte {byte:#x}"));
        }
        rig.check_bystanders();
    }
}

/// All 65,536: the low 15 bits must be those of the default partition, of which the device is a full member.
#[test]
fn every_partition_key() {
    let mut rig = Rig::new(Service::Rc);
    // A duplicate is answered and changes nothing.
    let mut old = headers(&rig, Opcode::RcWriteOnly);
    old.psn = Psn::new(RQ - 1);
    let answer = taken_at(Service::Rc, RQ - 1);
    for pkey in 0..=u16::MAX {
        old.pkey = PKey(pkey);
        let expected =
            if pkey & 0x7fff == 0x7fff { answer.clone() } else { Fate::Dropped(DropReason::BadPkey) };
        assert_eq!(rig.say(&packet(&old, &[])), expected, "P_Key {pkey:#x}");
    }
    assert_eq!(rig.victim().counters().duplicate_request, 2);
    rig.check_bystanders();
}

#[test]
fn every_destination() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        let right = headers(&rig, service.opcode(Opcode::RcSendOnly).unwrap());
        let (ours, theirs) = (right.dest_qpn, rig.bystander());
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let flipped = (0..24).map(|bit| ours.value() ^ 1 << bit);
        let others = (0..10_000).map(|_| random.next_u32());
        let special = [0, 1, theirs.value(), Qpn::MULTICAST.value()];
        for qpn in flipped.chain(others).chain(special).map(Qpn::new).filter(|qpn| *qpn != ours) {
            let reason = match qpn {
                // It is connected to another peer.
                _ if qpn == theirs => DropReason::BadAddress,
                Qpn::MULTICAST => DropReason::NoGroup,
                // The port itself is behind QP1, for management datagrams.
                Qpn::GSI if service == Service::Ud => DropReason::BadQkey,
                Qpn::GSI => DropReason::WrongService,
                _ => DropReason::NoQp,
            };
            let bytes = packet(&Headers { dest_qpn: qpn, ..right }, &[5; 8]);
            assert_eq!(rig.say(&bytes), Fate::Dropped(reason), "{service:?} {qpn}");
        }
        rig.check_bystanders();
    }
}

/// Rule "RC and UC: source address must be that of the QP's path". The source port is ignored; and a datagram may
/// come from anywhere.
#[test]
fn packets_from_elsewhere_are_dropped() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        let send = service.opcode(Opcode::RcSendOnly).unwrap();
        let IpAddr::V4(stranger) = STRANGER else { panic!() };
        let flipped = (0..32).map(|bit| IpAddr::from((stranger.to_bits() ^ 1 << bit).to_be_bytes()));
        let mapped = IpAddr::V6(stranger.to_ipv6_mapped());
        for src in flipped.chain([mapped]) {
            let bytes = packet(&headers(&rig, send), &[5; 8]);
            let arrival = IpHeader { src, ..rig.arrival() };
            let fate = rig.say_from(&arrival, &bytes);
            if service == Service::Ud {
                assert_eq!(fate, taken(service), "{src}");
                rig.renew();
            } else {
                assert_eq!(fate, Fate::Dropped(DropReason::BadAddress), "{src}");
            }
        }
        for src_port in [0, 1, 4791, u16::MAX] {
            let bytes = packet(&headers(&rig, send), &[5; 8]);
            let arrival = IpHeader { src_port, ..rig.arrival() };
            assert_eq!(rig.say_from(&arrival, &bytes), taken(service));
            rig.renew();
        }
        rig.check_bystanders();
    }
}

/// Half of the PSN space is old, the other half is ahead.
#[test]
fn every_kind_of_psn() {
    let mut rig = Rig::new(Service::Rc);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let edges = [1, 2, 3, (1 << 23) - 2, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, (1 << 24) - 2, (1 << 24) - 1];
    let distances: Vec<u32> = edges
        .into_iter()
        .chain((0..500).map(|_| random.next_u32() & 0xff_ffff))
        .filter(|d| *d != 0)
        .collect();
    for distance in distances {
        let psn = Psn::new(RQ).plus(distance);
        let ahead = distance < 1 << 23;
        for (opcode, old) in [
            (Opcode::RcSendOnly, taken_at(Service::Rc, RQ - 1)),
            (Opcode::RcWriteOnly, taken_at(Service::Rc, RQ - 1)),
            (Opcode::RcReadRequest, Fate::Dropped(DropReason::StaleDuplicate)),
            (Opcode::RcFetchAdd, Fate::Dropped(DropReason::StaleDuplicate)),
            (Opcode::RcAtomicWrite, Fate::Dropped(DropReason::StaleDuplicate)),
            (Opcode::RcFlush, Fate::Dropped(DropReason::StaleDuplicate)),
        ] {
            let nak = Fate::Taken { answers: vec![(Opcode::RcAcknowledge as u8, RQ, SEQUENCE)], alive: true };
            let payload = if opcode == Opcode::RcAtomicWrite { &[5; 8][..] } else { &[] };
            let bytes = packet(&Headers { psn, ..headers(&rig, opcode) }, payload);
            let expected = if ahead { &nak } else { &old };
            rig.expect(&bytes, expected, &format!("{opcode:?} {distance} ahead"));
        }
    }
    rig.check_bystanders();
}

/// All 256 syndromes, in response to an outstanding SEND.
#[test]
fn every_syndrome() {
    let mut rig = Rig::new(Service::Rc);
    for byte in 0..=u8::MAX {
        let send = SendWr::new(1, Operation::Send { imm: None, invalidate: None }, rig.results(8));
        rig.post(&[send]);
        let mut headers = headers(&rig, Opcode::RcAcknowledge);
        (headers.psn, headers.aeth.syndrome, headers.ack_req) = (Psn::new(SQ), byte, false);
        let quiet = |alive| Fate::Taken { answers: vec![], alive };
        let again = Fate::Taken { answers: vec![(Opcode::RcSendOnly as u8, SQ, 0)], alive: true };
        let expected = match Syndrome::from_u8(byte) {
            Syndrome::Ack { .. } | Syndrome::Rnr { .. } => quiet(true),
            Syndrome::Nak(NakCode::PsnSequenceError) => again,
            Syndrome::Nak(_) => quiet(false),
            Syndrome::Reserved(_) => Fate::Dropped(DropReason::ReservedSyndrome),
        };
        let fate = rig.say(&packet(&headers, &[]));
        assert_eq!(fate, expected, "syndrome {byte:#x}");
        rig.renew();
    }
    rig.check_bystanders();
}

/// Every bit of the keys, boundary values of lengths, and addresses outside the region.
#[test]
fn every_field_of_the_rdma_header() {
    for service in [Service::Rc, Service::Xrc, Service::Uc] {
        let mut rig = Rig::new(service);
        let write = service.opcode(Opcode::RcWriteOnly).unwrap();
        let first = service.opcode(Opcode::RcWriteFirst).unwrap();
        // An unreliable connection has neither.
        let read = service.opcode(Opcode::RcReadRequest);
        let add = service.opcode(Opcode::RcFetchAdd);
        let rkey = rig.target.rkey();
        for key in (0..32).map(|bit| rkey ^ 1 << bit).chain([0, u32::MAX]) {
            for opcode in [Some(write), read, add].into_iter().flatten() {
                let mut headers = headers(&rig, opcode);
                (headers.reth.rkey, headers.reth.length, headers.atomic.rkey) = (key, 8, key);
                let payload: &[u8] = if opcode == write { &[9; 8] } else { &[] };
                rig.expect(&packet(&headers, payload), &refused(service, ACCESS), &format!("{key:#x}"));
            }
        }
        let base = rig.target.addr();
        let end = base + REGION as u64;
        for va in [0, base - 1, end - 7, end, end + 8, u64::MAX - 7, u64::MAX, base ^ 1 << 63] {
            for opcode in [Some(write), read].into_iter().flatten() {
                let mut headers = headers(&rig, opcode);
                (headers.reth.va, headers.reth.length) = (va, 8);
                let payload: &[u8] = if opcode == write { &[9; 8] } else { &[] };
                rig.expect(&packet(&headers, payload), &refused(service, ACCESS), &format!("{va:#x}"));
            }
        }
        for length in [1, 7, 9, MTU as u32, 1 << 31, (1 << 31) + 1, u32::MAX] {
            let mut headers = headers(&rig, write);
            headers.reth.length = length;
            let what = format!("a WRITE of 8 bytes that says {length}");
            rig.expect(&packet(&headers, &[9; 8]), &refused(service, INVALID), &what);
        }
        for (opcode, length, code) in [
            (read, REGION as u32 + 1, ACCESS),
            (read, 1 << 31, ACCESS),
            (read, (1 << 31) + 1, INVALID),
            (read, u32::MAX, INVALID),
            (Some(first), 0, INVALID),
            (Some(first), MTU as u32, INVALID),
            (Some(first), 1 << 31, ACCESS),
            (Some(first), (1 << 31) + 1, INVALID),
        ] {
            let Some(opcode) = opcode else { continue };
            let mut headers = headers(&rig, opcode);
            (headers.reth.length, headers.ack_req) = (length, true);
            let payload: &[u8] = if opcode == first { &[9; MTU] } else { &[] };
            let what = format!("{opcode:?} of {length} bytes");
            rig.expect(&packet(&headers, payload), &refused(service, code), &what);
        }
        // Atomics: every misalignment, and the ends of the region.
        for (va, code) in (1..8)
            .map(|offset| (base + offset, INVALID))
            .chain([0, base - 8, end, u64::MAX - 7].map(|va| (va, ACCESS)))
        {
            let Some(add) = add else { break };
            let mut headers = headers(&rig, add);
            headers.atomic.va = va;
            rig.expect(&packet(&headers, &[]), &refused(service, code), &format!("atomic at {va:#x}"));
        }
        assert_eq!(rig.target.to_vec().unwrap(), [1; REGION], "nothing was written");
        rig.check_bystanders();
    }
}

/// Every value of the FETH: four bits of placement type, two of selectivity, and reserved bits that are ignored.
#[test]
fn every_value_of_the_flush_header() {
    let mut rig = Rig::new(Service::Rc);
    for placement in 0..16 {
        for selectivity in 0..4 {
            let mut headers = headers(&rig, Opcode::RcFlush);
            headers.feth = FethFields { placement, selectivity };
            headers.reth.length = 8;
            // The queue pair only allows the first type.
            let right = placement == FethFields::GLOBAL && selectivity < 2;
            let expected =
                if right { answered(Opcode::RcReadResponseOnly) } else { refused(Service::Rc, INVALID) };
            rig.expect(&packet(&headers, &[]), &expected, &format!("{placement} {selectivity}"));
            // The 26 bits above are reserved.
            for byte in 12..15 {
                let mut bytes = packet(&Headers { dest_qpn: rig.victim().qpn(), ..headers }, &[]);
                bytes[byte] = 0xff;
                rig.expect(&bytes, &expected, &format!("{placement} {selectivity}, byte {byte}"));
            }
        }
    }
    rig.check_bystanders();
}

/// Every bit of the number in an XRCETH; the eight bits above are reserved (C9-6).
#[test]
fn every_bit_of_the_xrc_header() {
    let mut rig = Rig::new(Service::Xrc);
    for bit in 0..32 {
        for opcode in [Opcode::XrcSendOnly, Opcode::XrcWriteOnly, Opcode::XrcReadRequest, Opcode::XrcFetchAdd]
        {
            let mut bytes = packet(&headers(&rig, opcode), &[]);
            bytes[15 - bit / 8] ^= 1 << (bit % 8);
            let expected = match opcode {
                _ if bit < 24 => refused(Service::Xrc, INVALID),
                Opcode::XrcReadRequest => answered(Opcode::XrcReadResponseOnly),
                Opcode::XrcFetchAdd => answered(Opcode::XrcAtomicAcknowledge),
                _ => taken(Service::Xrc),
            };
            rig.expect(&bytes, &expected, &format!("{opcode:?} with bit {bit} flipped"));
        }
    }
    rig.check_bystanders();
}

/// Every bit of the Q_Key must match; any sender is accepted, and eight bits are reserved.
#[test]
fn every_bit_of_the_datagram_header() {
    let mut rig = Rig::new(Service::Ud);
    for bit in 0..64 {
        for opcode in [Opcode::UdSendOnly, Opcode::UdSendOnlyImm] {
            let mut bytes = packet(&headers(&rig, opcode), &[5; 8]);
            bytes[12 + bit / 8] ^= 0x80 >> (bit % 8);
            let expected = if bit < 32 { Fate::Dropped(DropReason::BadQkey) } else { taken(Service::Ud) };
            rig.expect(&bytes, &expected, &format!("{opcode:?} with bit {bit} flipped"));
        }
    }
    rig.check_bystanders();
}

/// The PSN of a datagram is ignored. On an unreliable connection a message may start at any PSN, and must continue
/// with the next one.
#[test]
fn every_kind_of_psn_of_unreliable_services() {
    for service in [Service::Uc, Service::Ud] {
        let mut rig = Rig::new(service);
        for distance in [0, 1, 2, 1 << 22, (1 << 23) - 1, 1 << 23, (1 << 24) - 2, (1 << 24) - 1] {
            let psn = Psn::new(RQ).plus(distance);
            let send = service.opcode(Opcode::RcSendOnly).unwrap();
            let bytes = packet(&Headers { psn, ..headers(&rig, send) }, &[5; 8]);
            rig.expect(&bytes, &taken(service), &format!("{service:?} {distance} ahead"));
            if service == Service::Uc {
                for opcode in [Opcode::UcSendMiddle, Opcode::UcSendLast, Opcode::UcWriteLast] {
                    let first = packet(&headers(&rig, Opcode::UcSendFirst), &[5; MTU]);
                    assert_eq!(rig.say(&first), taken(service));
                    let bytes = packet(&Headers { psn, ..headers(&rig, opcode) }, &[5; MTU]);
                    let goes_on = distance == 1 && opcode != Opcode::UcWriteLast;
                    let dropped = Fate::Dropped(DropReason::Unreliable);
                    let expected = if goes_on { taken(service) } else { dropped };
                    rig.expect(&bytes, &expected, &format!("{opcode:?} {distance} behind a First"));
                    rig.renew();
                }
            }
        }
        rig.check_bystanders();
    }
}

/// C9-205 and similar rules: a message that finds no receive, or none that is long enough.
#[test]
fn messages_without_room() {
    for (service, length) in [(Service::Uc, 601), (Service::Ud, 561)] {
        let mut rig = Rig::new(service);
        let send = service.opcode(Opcode::RcSendOnly).unwrap();
        if service == Service::Ud {
            let long = packet(&headers(&rig, send), &vec![5; length]);
            assert_eq!(
                rig.say(&long),
                Fate::Dropped(DropReason::Unreliable),
                "40 bytes are for the network header"
            );
        }
        let fits = packet(&headers(&rig, send), &[5; MTU]);
        assert_eq!(rig.say(&fits), taken(service));
        assert_eq!(rig.say(&fits), Fate::Dropped(DropReason::NoReceive));
        rig.check_bystanders();
    }
}
