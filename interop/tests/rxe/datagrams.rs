//! UD: datagrams preceded by the global routing header.

use crate::Test;
use crate::case::{Pairing, all_rights, succeeded};
use crate::end::{End, GRH, Memory, RECV, To, WITH_IMM};
use crate::guest::Ip;
use rnic::{Operation, QpType};

pub(crate) const TESTS: &[Test] = &[
    ("datagrams::rust_over_ipv4", || datagrams(Pairing::RustRxe, Ip::V4)),
    ("datagrams::rust_over_ipv6", || datagrams(Pairing::RustRxe, Ip::V6)),
    ("datagrams::program_over_ipv4", || datagrams(Pairing::ProgramRxe, Ip::V4)),
    ("datagrams::program_over_ipv6", || datagrams(Pairing::ProgramRxe, Ip::V6)),
    ("datagrams::rxe_with_itself", || datagrams(Pairing::RxeRxe, Ip::V4)),
];

const QKEY: u32 = 0x1122_3344;

/// The size of the header before a datagram.
const HEADER: usize = 40;

fn datagrams(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |sender, receiver| {
        let (a, b) = (sender.qp(QpType::Ud, None), receiver.qp(QpType::Ud, None));
        // One of the two PSNs wraps.
        sender.activate(a, 0xff_fffe, QKEY);
        receiver.activate(b, 7, QKEY);
        let to = To { ah: sender.ah(receiver.gid()), qpn: b.qpn, qkey: QKEY };
        let (near, far) =
            (sender.register(4096, all_rights()), receiver.register(HEADER + 4104, all_rights()));
        for (length, seed) in [0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 4093, 4096].into_iter().zip(1..) {
            let id = u64::from(seed);
            let imm = (seed % 2 == 0).then_some(0xfeed_0000 + seed);
            sender.fill(near.part(0, length), seed);
            receiver.recv(b, id, Some(far.part(0, HEADER + length)));
            let send = Operation::Send { imm, invalidate: None };
            sender.post(a, id, send, Some(near.part(0, length)), Some(to));
            succeeded(sender.completion(a), id);
            let wc = succeeded(receiver.completion(b), id);
            let found = (wc.opcode, wc.length as usize, wc.flags & GRH, wc.src_qpn);
            assert_eq!(found, (RECV, HEADER + length, GRH, a.qpn), "{wc:?}");
            assert_eq!((wc.flags & WITH_IMM != 0).then_some(wc.imm_or_rkey), imm, "{wc:?}");
            receiver.check(far.part(HEADER as u64, length), seed);
            receiver.same(far.part((HEADER + length) as u64, 8), 0xee);
            let gids = [sender.gid(), receiver.gid()];
            check_header(receiver, far, ip, gids);
        }
        // A datagram with another Q_Key is dropped silently. The next one shows that nothing was delivered.
        receiver.recv(b, 100, Some(far.part(0, HEADER + 8)));
        let send = Operation::Send { imm: None, invalidate: None };
        for (id, qkey, seed) in [(98, QKEY ^ 1, 98), (99, QKEY, 99)] {
            sender.fill(near.part(0, 8), seed);
            sender.post(a, id, send, Some(near.part(0, 8)), Some(To { qkey, ..to }));
            succeeded(sender.completion(a), id);
        }
        succeeded(receiver.completion(b), 100);
        receiver.check(far.part(HEADER as u64, 8), 99);
        sender.destroy(a);
        receiver.destroy(b);
    });
}

/// The header names the sender and the destination of the datagram, as an IPv6 header, or as an IPv4 header in its last
/// 20 bytes (IBTA A17.4.5.2).
fn check_header(receiver: &mut dyn End, memory: Memory, ip: Ip, gids: [[u8; 16]; 2]) {
    let words: Vec<u8> = (0..5).flat_map(|word| receiver.get(memory, word * 8).to_ne_bytes()).collect();
    let (version, from, to) = match ip {
        Ip::V4 => (words[20] >> 4, &words[32..36], &words[36..40]),
        Ip::V6 => (words[0] >> 4, &words[8..24], &words[24..40]),
    };
    let [source, target] = &gids;
    let length = from.len();
    let expected = (if ip == Ip::V4 { 4 } else { 6 }, &source[16 - length..], &target[16 - length..]);
    assert_eq!((version, from, to), expected, "{words:02x?}");
}
