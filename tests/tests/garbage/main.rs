//! Packets that no correct peer sends, to live queue pairs of a device in virtual time: every illegal value of
//! every header field, every length, random bytes, and flipped bits with and without a valid ICRC.
//!
//! Every packet is dropped and counted under exactly one reason, or answered by the rules. It changes nothing else:
//! neither memory that it does not name, nor other queue pairs. [`rig::Rig::say_raw`] checks that for each packet;
//! the tests state its expected effect.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fields;
mod rig;

use qp::wire::{FethFields, Headers, Opcode, Packet};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rig::{Fate, MTU, REGION, RQ, Rig, Service, headers, packet};
use rnic::engine::DropReason;
use rnic::{Psn, QpState};
use std::collections::BTreeMap;

/// NAKs as on the wire.
const SEQUENCE: u8 = 0x60;
const INVALID: u8 = 0x61;
const ACCESS: u8 = 0x62;

/// Accepted; and, on reliable services, acknowledged with this PSN.
fn taken_at(service: Service, psn: u32) -> Fate {
    let ack = service.opcode(Opcode::RcAcknowledge);
    Fate::Taken { answers: ack.map(|ack| (ack as u8, psn, 0)).into_iter().collect(), alive: true }
}

fn taken(service: Service) -> Fate {
    taken_at(service, RQ)
}

/// Refused for good; or dropped, on services without NAKs.
fn refused(service: Service, code: u8) -> Fate {
    match service.opcode(Opcode::RcAcknowledge) {
        Some(ack) => Fate::Taken { answers: vec![(ack as u8, RQ, code)], alive: false },
        None => Fate::Dropped(DropReason::Unreliable),
    }
}

fn answered(opcode: Opcode) -> Fate {
    Fate::Taken { answers: vec![(opcode as u8, RQ, 0)], alive: true }
}

impl Rig {
    /// Sends a packet and checks its effect; then replaces the victim if its state has changed.
    fn expect(&mut self, bytes: &[u8], expected: &Fate, what: &str) {
        let fate = self.say(bytes);
        assert_eq!(fate, *expected, "{what}");
        if let Fate::Taken { .. } = fate {
            self.renew();
        }
    }
}

/// Valid packets of all kinds.
fn right_packets(rig: &Rig) -> Vec<(Headers, Vec<u8>)> {
    let all = [
        (Opcode::RcSendOnly, 0),
        (Opcode::RcSendOnly, 33),
        (Opcode::RcSendOnlyImm, 10),
        (Opcode::RcSendFirst, MTU),
        (Opcode::RcWriteOnly, 40),
        (Opcode::RcWriteOnlyImm, 7),
        (Opcode::RcWriteFirst, MTU),
        (Opcode::RcReadRequest, 0),
        (Opcode::RcFetchAdd, 0),
        (Opcode::RcCompareSwap, 0),
        (Opcode::RcAtomicWrite, 8),
        (Opcode::RcFlush, 0),
    ];
    let right = |(of_rc, len): (Opcode, usize)| {
        let mut headers = headers(rig, rig.service.opcode(of_rc)?);
        headers.reth.length = match of_rc {
            Opcode::RcWriteFirst => MTU as u32 + 1,
            Opcode::RcReadRequest => 300,
            _ => len as u32,
        };
        headers.feth = FethFields { placement: 1, selectivity: 0 };
        Some((headers, vec![9; len]))
    };
    all.into_iter().filter_map(right).collect()
}

/// All of these are accepted unmodified, so the following tests corrupt valid packets.
#[test]
fn the_unmodified_packets_are_accepted() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        for number in 0..right_packets(&rig).len() {
            let (headers, payload) = &right_packets(&rig)[number];
            let fate = rig.say(&packet(headers, payload));
            assert!(matches!(fate, Fate::Taken { alive: true, .. }), "{headers:?}: {fate:?}");
            rig.renew();
        }
        rig.check_bystanders();
    }
}

/// Every length, with a valid ICRC for it: a packet that is shorter than its headers, or not a multiple of 4 bytes,
/// is invalid. The other truncations break a rule, or are shorter messages.
#[test]
fn every_truncation_is_dropped() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        for number in 0..right_packets(&rig).len() {
            let (headers, payload) = right_packets(&rig).swap_remove(number);
            let whole = packet(&headers, &payload).len();
            for len in 0..whole {
                let dest_qpn = rig.victim().qpn();
                let cut = &packet(&Headers { dest_qpn, ..headers }, &payload)[..len];
                let shortest = headers.wire_len() + usize::from(cut.get(1).map_or(0, |b| b >> 4 & 3));
                let is_packet = len >= shortest && len % 4 == 0;
                let fate = rig.say(cut);
                assert_eq!(fate == Fate::Dropped(DropReason::BadLength), !is_packet, "{len} of {headers:?}");
                if is_packet {
                    let send = matches!(headers.opcode.info().operation, qp::wire::Operation::Send);
                    let only =
                        headers.opcode.info().position.starts() && headers.opcode.info().position.ends();
                    let expected = if send && only { taken(service) } else { refused(service, INVALID) };
                    assert_eq!(fate, expected, "{len} of {headers:?}");
                    rig.renew();
                }
            }
        }
        rig.check_bystanders();
    }
}

/// Bits that routers may change are outside of the ICRC: byte 4 of the BTH.
fn is_masked(bit: usize) -> bool {
    bit / 8 == 4
}

/// Rule "the ICRC is checked before any side effect": a packet with any one bit flipped is dropped.
#[test]
fn bit_flips_without_repair_are_dropped() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        for number in 0..right_packets(&rig).len() {
            let (headers, payload) = right_packets(&rig).swap_remove(number);
            let covered = packet(&headers, &payload);
            let arrival = rig.arrival();
            let icrc = qp::wire::icrc::compute(&arrival.flow(), arrival.ident, &covered);
            let bytes = [&covered[..], &icrc.to_le_bytes()].concat();
            for bit in (0..8 * bytes.len()).filter(|bit| !is_masked(*bit)) {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                let fate = rig.say_raw(&arrival, &flipped);
                // Malformed packets are detected before their ICRC is checked.
                let reason = match Packet::parse(&flipped) {
                    Ok(_) => DropReason::BadIcrc,
                    Err(error) => error.into(),
                };
                assert_eq!(fate, Fate::Dropped(reason), "bit {bit} of {headers:?}");
            }
        }
        assert_eq!(rig.victim().state(), QpState::Rts);
        rig.check_bystanders();
    }
}

/// With the ICRC repaired, a flipped bit may have any meaning; `say_raw` checks that it has no illegal effect.
#[test]
fn bit_flips_with_repair_do_no_harm() {
    for service in Service::ALL {
        let mut rig = Rig::new(service);
        let mut fates: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..right_packets(&rig).len() {
            let (headers, payload) = right_packets(&rig).swap_remove(number);
            let bits = 8 * packet(&headers, &payload).len();
            for bit in 0..bits.min(8 * 64) {
                let dest_qpn = rig.victim().qpn();
                let mut flipped = packet(&Headers { dest_qpn, ..headers }, &payload);
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                let fate = rig.say(&flipped);
                if let Fate::Taken { .. } = fate {
                    rig.renew();
                }
                let kind = match fate {
                    Fate::Dropped(reason) => reason.name(),
                    Fate::Ignored => "ignored",
                    Fate::Taken { alive: true, .. } => "taken",
                    Fate::Taken { .. } => "refused",
                };
                *fates.entry(kind.to_owned()).or_default() += 1;
            }
        }
        println!("{service:?}: {fates:?}");
        for kind in ["taken", "dropped_no_qp", "dropped_bad_pkey", "dropped_bad_tver"] {
            assert!(fates.contains_key(kind), "{kind}");
        }
        assert_eq!(fates.contains_key("refused"), service.is_reliable());
        assert_eq!(fates.contains_key("dropped_bad_qkey"), service == Service::Ud);
        rig.check_bystanders();
    }
}

/// A hundred thousand packets of random bytes, a quarter to each service, half of them with a valid ICRC, half of
/// those with a plausible start.
#[test]
fn random_bytes_do_no_harm() {
    const SEED: u64 = 4791;
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for service in Service::ALL {
        let fates = random_bytes(service, &mut random);
        println!("{service:?}: {fates:?}");
        for kind in ["dropped_bad_icrc", "dropped_bad_opcode", "dropped_wrong_service"] {
            assert!(fates.contains_key(kind), "{kind}");
        }
        // No random packet has the right Q_Key.
        assert_eq!(fates.contains_key("taken"), service != Service::Ud);
        assert_eq!(fates.contains_key("refused"), service.is_reliable());
    }
}

fn random_bytes(service: Service, random: &mut ChaCha8Rng) -> BTreeMap<&'static str, u32> {
    let mut rig = Rig::new(service);
    let mut fates = BTreeMap::new();
    for i in 0..25_000u32 {
        let mut bytes = vec![0; (random.next_u32() % 400) as usize];
        random.fill_bytes(&mut bytes);
        let arrival = rig.arrival();
        let fate = if i % 2 == 0 {
            rig.say_raw(&arrival, &bytes)
        } else {
            if i % 4 == 1 && bytes.len() >= 12 {
                bytes.truncate(bytes.len() & !3);
                let opcode = Opcode::ALL[random.next_u32() as usize % Opcode::ALL.len()];
                let near = Psn::new(RQ).plus(random.next_u32() % 3).minus(1);
                let plausible = packet(&Headers { psn: near, ..headers(&rig, opcode) }, &[]);
                bytes[..12].copy_from_slice(&plausible[..12]);
            }
            rig.say(&bytes)
        };
        let kind = match fate {
            Fate::Dropped(reason) => reason.name(),
            Fate::Ignored => "ignored",
            Fate::Taken { alive: true, .. } => "taken",
            Fate::Taken { .. } => "refused",
        };
        *fates.entry(kind).or_default() += 1;
        if let Fate::Taken { .. } = fate {
            rig.renew();
        }
    }
    assert_eq!(rig.said, 25_000);
    assert_eq!(rig.target.to_vec().unwrap(), [1; REGION], "nobody guesses a key");
    rig.check_bystanders();
    fates
}
