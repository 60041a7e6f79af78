//! Connected queue pairs: every operation, messages of all sizes, and PSNs that wrap.

use crate::Test;
use crate::case::{Kind, Pairing, Talk, all_rights, connect, succeeded};
use crate::end::{Options, WITH_INV};
use crate::guest::Ip;
use rnic::{Access, Operation, QpType, WcStatus};

pub(crate) const TESTS: &[Test] = &[
    ("data::rust_messages_of_all_sizes_over_ipv4_with_mtu_1024", || sizes(Pairing::RustRxe, Ip::V4, 1024)),
    ("data::rust_messages_of_all_sizes_over_ipv4_with_mtu_4096", || sizes(Pairing::RustRxe, Ip::V4, 4096)),
    ("data::rust_messages_of_all_sizes_over_ipv6_with_mtu_1024", || sizes(Pairing::RustRxe, Ip::V6, 1024)),
    ("data::rust_messages_of_all_sizes_over_ipv6_with_mtu_4096", || sizes(Pairing::RustRxe, Ip::V6, 4096)),
    ("data::program_messages_of_all_sizes_over_ipv4_with_mtu_4096", || {
        sizes(Pairing::ProgramRxe, Ip::V4, 4096);
    }),
    ("data::program_messages_of_all_sizes_over_ipv6_with_mtu_1024", || {
        sizes(Pairing::ProgramRxe, Ip::V6, 1024);
    }),
    ("data::rust_to_program_messages_of_all_sizes", || sizes(Pairing::RustProgram, Ip::V4, 1024)),
    ("data::rust_unreliable_connections_over_ipv4", || unreliable(Pairing::RustRxe, Ip::V4, 1024)),
    ("data::rust_unreliable_connections_over_ipv6", || unreliable(Pairing::RustRxe, Ip::V6, 4096)),
    ("data::program_unreliable_connections", || unreliable(Pairing::ProgramRxe, Ip::V4, 4096)),
    ("data::rust_atomics_over_ipv4", || atomics(Pairing::RustRxe, Ip::V4)),
    ("data::rust_atomics_over_ipv6", || atomics(Pairing::RustRxe, Ip::V6)),
    ("data::program_atomics", || atomics(Pairing::ProgramRxe, Ip::V4)),
    ("data::rxe_atomics_with_itself", || atomics(Pairing::RxeRxe, Ip::V4)),
    ("data::rust_windows_and_sends_that_invalidate_them", || windows(Pairing::RustRxe, Ip::V4)),
    ("data::program_windows_and_sends_that_invalidate_them", || windows(Pairing::ProgramRxe, Ip::V6)),
    ("data::rxe_windows_and_sends_that_invalidate_them", || windows(Pairing::RxeRxe, Ip::V4)),
    ("data::rust_psns_wrap_over_ipv4", || psns_wrap(Pairing::RustRxe, Ip::V4)),
    ("data::rust_psns_wrap_over_ipv6", || psns_wrap(Pairing::RustRxe, Ip::V6)),
    ("data::program_psns_wrap", || psns_wrap(Pairing::ProgramRxe, Ip::V4)),
    ("data::rust_shared_receive_queues", || shared_receives(Pairing::RustRxe, Ip::V4)),
    ("data::program_shared_receive_queues", || shared_receives(Pairing::ProgramRxe, Ip::V6)),
];

/// Sizes in ascending order: every padding, by itself and around one, two and many packets.
fn lengths(mtu: usize) -> Vec<usize> {
    let around = |packets: usize| packets * mtu - 1..=packets * mtu + 3;
    (0..=5).chain(around(1)).chain(around(2)).chain([65_533, 65_538, (1 << 20) - 1, 1 << 20]).collect()
}

fn sizes(pairing: Pairing, ip: Ip, mtu: u32) {
    let lengths = lengths(mtu as usize);
    pairing.both_ways(ip, |requester, responder| {
        let options = Options { mtu, ..Options::default() };
        let mut talk = Talk::new(requester, responder, QpType::Rc, &options, 1 << 20);
        for &length in &lengths {
            for kind in Kind::ALL {
                talk.message(kind, length);
            }
        }
        talk.end();
    });
}

fn unreliable(pairing: Pairing, ip: Ip, mtu: u32) {
    let lengths: Vec<_> = lengths(mtu as usize).into_iter().filter(|&length| length < 65_536).collect();
    pairing.both_ways(ip, |requester, responder| {
        let options = Options { mtu, ..Options::default() };
        let mut talk = Talk::new(requester, responder, QpType::Uc, &options, 65_536);
        for &length in &lengths {
            talk.untold_write(length);
            for kind in [Kind::Send, Kind::SendImm, Kind::WriteImm] {
                talk.message(kind, length);
            }
        }
        talk.end();
    });
}

fn atomics(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        let [a, b] = connect([requester, responder], QpType::Rc, &Options::default());
        let near = requester.register(8, all_rights());
        let far = responder.register(64, all_rights());
        let mut expected = 0xffff_ffff_ffff_fff0;
        responder.put(far, 16, expected);
        for id in 0..12 {
            let remote = far.at(16);
            // Additions carry from one half to the other and wrap; every second comparison fails.
            let (operation, next) = match id % 4 {
                0 | 2 => {
                    let add = 0x1_0000_0000 + 7 * id;
                    (Operation::FetchAdd { remote, add }, expected.wrapping_add(add))
                }
                1 => {
                    let swap = 0x0123_4567_89ab_cdef ^ id;
                    (Operation::CompareSwap { remote, compare: expected, swap }, swap)
                }
                _ => (Operation::CompareSwap { remote, compare: !expected, swap: 1 }, expected),
            };
            requester.post(a, id, operation, Some(near.part(0, 8)), None);
            succeeded(requester.completion(a), id);
            assert_eq!(requester.get(near, 0), expected, "the old value, of {operation:?}");
            assert_eq!(responder.get(far, 16), next, "the new value, of {operation:?}");
            expected = next;
        }
        responder.same(far.part(0, 16), 0xee);
        responder.same(far.part(24, 40), 0xee);
        requester.destroy(a);
        responder.destroy(b);
    });
}

/// The responder opens a window. The requester writes through it and closes it with a SEND, of one packet or of three;
/// then the window is closed.
fn windows(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        let [a, b] = connect([requester, responder], QpType::Rc, &Options::default());
        let near = requester.register(4096, all_rights());
        let far = responder.register(4096, all_rights() | Access::MW_BIND);
        let window = responder.window();
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut opened = 0;
        for (length, seed) in [(9, 5), (3001, 6)] {
            let rkey = responder.bind(b, 1, window, far.part(100, 200), rights);
            succeeded(responder.completion(b), 1);
            assert_ne!(rkey, opened, "a window has a new key each time");
            opened = rkey;

            requester.fill(near.part(0, length.max(64)), seed);
            let inside = rnic::Remote { addr: far.remote.addr + 110, rkey };
            let write = Operation::Write { remote: inside, imm: None };
            requester.post(a, 2, write, Some(near.part(0, 64)), None);
            succeeded(requester.completion(a), 2);
            // The pattern does not depend on its length.
            responder.check(far.part(110, 64), seed);

            responder.recv(b, 3, Some(far.part(0, length)));
            let close = Operation::Send { imm: None, invalidate: Some(rkey) };
            requester.post(a, 3, close, Some(near.part(0, length)), None);
            succeeded(requester.completion(a), 3);
            let receive = succeeded(responder.completion(b), 3);
            let found = (receive.flags & WITH_INV, receive.imm_or_rkey, receive.length as usize);
            assert_eq!(found, (WITH_INV, rkey, length), "{receive:?}");
            responder.check(far.part(0, length), seed);
        }

        let inside = rnic::Remote { addr: far.remote.addr + 110, rkey: opened };
        let read = Operation::Read { remote: inside };
        requester.post(a, 4, read, Some(near.part(0, 64)), None);
        assert_eq!(requester.completion(a).status, WcStatus::RemAccessErr, "the window is closed");
        requester.destroy(a);
        responder.destroy(b);
    });
}

/// Messages of 65 packets whose PSNs wrap within the first message, in each direction.
fn psns_wrap(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        let options = Options { psns: [0xff_fff0, 0xff_ffe0], ..Options::default() };
        let mut talk = Talk::new(requester, responder, QpType::Rc, &options, 65_537);
        for kind in Kind::ALL {
            talk.message(kind, 65_537);
        }
        talk.end();
        // The largest PSN ends a message, and the next PSN begins another.
        let options = Options { psns: [0xff_ffff, 0xff_ffff], ..Options::default() };
        for kind in [Kind::Read, Kind::Send, Kind::Write] {
            let mut talk = Talk::new(requester, responder, QpType::Rc, &options, 3000);
            talk.message(kind, 1);
            talk.message(kind, 3000);
            talk.end();
        }
    });
}

/// Two connections take their receives from one shared queue, in the order of the messages.
fn shared_receives(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        let srq = responder.srq();
        let options = Options::default();
        let qps: Vec<_> = (0..2)
            .map(|_| {
                let (a, b) = (requester.qp(QpType::Rc, None), responder.qp(QpType::Rc, Some(srq)));
                requester.connect(a, responder.gid(), b.qpn, &options);
                responder.connect(b, requester.gid(), a.qpn, &options.turned());
                (a, b)
            })
            .collect();
        let (near, far) = (requester.register(2000, all_rights()), responder.register(8000, all_rights()));
        for id in 0..4 {
            responder.srq_recv(srq, id, Some(far.part(id * 2000, 2000)));
        }
        for (id, seed) in (0..4).zip(1..) {
            let (a, b) = qps[usize::from(id % 2 == 1)];
            requester.fill(near.part(0, 1999), seed);
            let send = Operation::Send { imm: None, invalidate: None };
            requester.post(a, id, send, Some(near.part(0, 1999)), None);
            succeeded(requester.completion(a), id);
            succeeded(responder.completion(b), id);
            responder.check(far.part(id * 2000, 1999), seed);
        }
        for (a, b) in qps {
            requester.destroy(a);
            responder.destroy(b);
        }
    });
}
