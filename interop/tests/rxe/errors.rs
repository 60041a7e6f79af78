//! What a responder refuses, and what the requester learns of it.

use crate::Test;
use crate::case::{Pairing, all_rights, connect, succeeded};
use crate::end::{End, Options};
use crate::guest::Ip;
use rnic::{Access, Operation, QpType, Remote, WcStatus};

pub(crate) const TESTS: &[Test] = &[
    ("errors::rust_memory_that_may_not_be_used_so", || refused(Pairing::RustRxe, Ip::V4)),
    ("errors::program_memory_that_may_not_be_used_so", || refused(Pairing::ProgramRxe, Ip::V6)),
    ("errors::rxe_memory_that_may_not_be_used_so", || refused(Pairing::RxeRxe, Ip::V4)),
    ("errors::rust_atomics_beside_a_multiple_of_8", || misaligned(Pairing::RustRxe, Ip::V6)),
    ("errors::program_atomics_beside_a_multiple_of_8", || misaligned(Pairing::ProgramRxe, Ip::V4)),
    ("errors::rust_messages_longer_than_the_receive", || too_long(Pairing::RustRxe, Ip::V4)),
    ("errors::program_messages_longer_than_the_receive", || too_long(Pairing::ProgramRxe, Ip::V6)),
    ("errors::rust_receives_that_are_posted_late", || late_receives(Pairing::RustRxe, Ip::V4)),
    ("errors::program_receives_that_are_posted_late", || late_receives(Pairing::ProgramRxe, Ip::V6)),
    ("errors::rust_receives_that_are_never_posted", || no_receives(Pairing::RustRxe, Ip::V6)),
    ("errors::program_receives_that_are_never_posted", || no_receives(Pairing::ProgramRxe, Ip::V4)),
];

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Write,
    Read,
    Atomic,
}

/// A request that fails: its operation and address, what the responder allows, and how it completes.
struct Refusal {
    what: &'static str,
    asks: Asks,
    /// Its offset in the memory of [`SIZE`] bytes.
    offset: u64,
    /// Bits to invert in the key.
    key: u32,
    length: usize,
    /// The rights that the memory lacks, and those that the queue pair lacks.
    without: [Access; 2],
    status: WcStatus,
}

const SIZE: u64 = 4096;

/// Bits of the index in the keys of rnic and of rxe: with another index a key belongs to no region.
const INDEX: u32 = 0x0055_5500;

fn refusals() -> Vec<Refusal> {
    use Asks::{Atomic, Read, Write};
    let refusal = |what, asks, length| Refusal {
        what,
        asks,
        offset: 8,
        key: 0,
        length,
        without: [Access::empty(); 2],
        status: WcStatus::RemAccessErr,
    };
    let memory = |right| [right, Access::empty()];
    let qp = |right| [Access::empty(), right];
    let invalid = WcStatus::RemInvReqErr;
    vec![
        Refusal { key: INDEX, ..refusal("a WRITE with a key of nothing", Write, 8) },
        Refusal { key: INDEX, ..refusal("a READ with a key of nothing", Read, 8) },
        Refusal { key: INDEX, ..refusal("an atomic with a key of nothing", Atomic, 8) },
        Refusal { key: 1, ..refusal("a WRITE with an old key", Write, 8) },
        Refusal { offset: SIZE - 7, ..refusal("a WRITE that ends a byte too far", Write, 8) },
        Refusal { offset: SIZE - 2999, ..refusal("a long WRITE that ends a byte too far", Write, 3000) },
        Refusal { offset: SIZE - 2999, ..refusal("a READ that ends a byte too far", Read, 3000) },
        Refusal {
            without: memory(Access::REMOTE_WRITE),
            ..refusal("a WRITE to memory for reading", Write, 8)
        },
        Refusal { without: memory(Access::REMOTE_READ), ..refusal("a READ of memory for writing", Read, 8) },
        Refusal {
            without: memory(Access::REMOTE_ATOMIC),
            ..refusal("an atomic on memory without that right", Atomic, 8)
        },
        Refusal {
            without: qp(Access::REMOTE_WRITE),
            status: invalid,
            ..refusal("a WRITE to a queue pair without that right", Write, 8)
        },
        Refusal {
            without: qp(Access::REMOTE_READ),
            status: invalid,
            ..refusal("a READ from a queue pair without that right", Read, 8)
        },
        Refusal {
            without: qp(Access::REMOTE_ATOMIC),
            status: invalid,
            ..refusal("an atomic at a queue pair without that right", Atomic, 8)
        },
    ]
}

fn refused(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        for refusal in refusals() {
            check_refusal(requester, responder, &refusal);
        }
    });
}

/// Linux does not even accept such a request from its own programs.
fn misaligned(pairing: Pairing, ip: Ip) {
    let [mut requester, mut responder] = pairing.ends(ip);
    let refusal = Refusal {
        what: "an atomic beside a multiple of 8",
        asks: Asks::Atomic,
        offset: 12,
        key: 0,
        length: 8,
        without: [Access::empty(); 2],
        status: WcStatus::RemInvReqErr,
    };
    check_refusal(&mut *requester, &mut *responder, &refusal);
}

fn check_refusal(requester: &mut dyn End, responder: &mut dyn End, refusal: &Refusal) {
    let Refusal { what, length, .. } = *refusal;
    let [memory, qp] = refusal.without.map(|right| all_rights() - right);
    let far = responder.register(usize::try_from(SIZE).expect("small"), memory);
    let near = requester.register(length, all_rights());
    let (a, b) = (requester.qp(QpType::Rc, None), responder.qp(QpType::Rc, None));
    let options = Options::default();
    requester.connect(a, responder.gid(), b.qpn, &options);
    responder.connect(b, requester.gid(), a.qpn, &Options { access: qp, ..options.turned() });
    let place = far.at(refusal.offset);
    let remote = Remote { rkey: place.rkey ^ refusal.key, ..place };
    let operation = match refusal.asks {
        Asks::Write => Operation::Write { remote, imm: None },
        Asks::Read => Operation::Read { remote },
        Asks::Atomic => Operation::FetchAdd { remote, add: 1 },
    };
    responder.recv(b, 9, None);
    requester.fill(near.part(0, length), 3);
    requester.post(a, 1, operation, Some(near.part(0, length)), None);
    requester.post(a, 2, Operation::Send { imm: None, invalidate: None }, Some(near.part(0, 1)), None);
    let done: Vec<_> = requester.completions(a, 2, 30_000).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(done, [(1, refusal.status), (2, WcStatus::WrFlushErr)], "{what}");
    assert!(requester.has_failed(a), "{what}: the requester goes on");
    // A refused request changes nothing, except a WRITE of several packets whose last packet does not fit.
    if !(refusal.asks == Asks::Write && length > 1024) {
        responder.same(far.part(0, usize::try_from(SIZE).expect("small")), 0xee);
    }
    if refusal.asks != Asks::Write {
        requester.check(near.part(0, length), 3);
    }
    // The responder's queue pair fails as well, and flushes its receive (IBTA 9.9.3.1).
    let flushed = responder.completions(b, 1, 30_000);
    let flushed: Vec<_> = flushed.iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(flushed, [(9, WcStatus::WrFlushErr)], "{what}");
    assert!(responder.has_failed(b), "{what}: the responder goes on");
    requester.destroy(a);
    responder.destroy(b);
}

/// The responder's receive completes with a length error, and the requester is told.
fn too_long(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        for (room, length) in [(99, 100), (1024, 1025), (2000, 5000)] {
            let [a, b] = connect([requester, responder], QpType::Rc, &Options::default());
            let near = requester.register(length, all_rights());
            let far = responder.register(room + 64, all_rights());
            responder.recv(b, 1, Some(far.part(0, room)));
            let send = Operation::Send { imm: None, invalidate: None };
            requester.post(a, 2, send, Some(near.part(0, length)), None);
            let status = requester.completion(a).status;
            let told = matches!(status, WcStatus::RemInvReqErr | WcStatus::RemOpErr);
            assert!(told, "{length} bytes for {room}: {status:?}");
            let receive = responder.completion(b);
            // Linux reports the second status.
            let fits = matches!(receive.status, WcStatus::LocLenErr | WcStatus::LocQpOpErr);
            assert!(receive.id == 1 && fits, "{length} bytes for {room}: {receive:?}");
            responder.same(far.part(room as u64, 64), 0xee);
            requester.destroy(a);
            responder.destroy(b);
        }
    });
}

/// The requester waits as long as the RNR NAK says, and nothing is lost or executed twice.
fn late_receives(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        // 10.24 ms (IBTA table 45).
        let options = Options { min_rnr_timer: 20, ..Options::default() };
        let [a, b] = connect([requester, responder], QpType::Rc, &options);
        let (near, far) = (requester.register(4000, all_rights()), responder.register(20_000, all_rights()));
        requester.fill(near.part(0, 4000), 1);
        for id in 0..5 {
            let operation = match id {
                1 => Operation::Write { remote: far.at(id * 4000), imm: Some(11) },
                _ => Operation::Send { imm: None, invalidate: None },
            };
            requester.post(a, id, operation, Some(near.part(0, 4000)), None);
        }
        for id in 0..5 {
            let early = requester.completions(a, 1, 60);
            assert_eq!(early, [], "message {id} without a receive");
            responder.recv(b, id, (id != 1).then(|| far.part(id * 4000, 4000)));
            succeeded(requester.completion(a), id);
            succeeded(responder.completion(b), id);
            responder.check(far.part(id * 4000, 4000), 1);
        }
        requester.destroy(a);
        responder.destroy(b);
    });
}

fn no_receives(pairing: Pairing, ip: Ip) {
    pairing.both_ways(ip, |requester, responder| {
        let options = Options { rnr_retry: 2, ..Options::default() };
        let [a, b] = connect([requester, responder], QpType::Rc, &options);
        let near = requester.register(100, all_rights());
        let send = Operation::Send { imm: None, invalidate: None };
        requester.post(a, 1, send, Some(near.part(0, 100)), None);
        assert_eq!(requester.completion(a).status, WcStatus::RnrRetryExcErr);
        assert!(requester.has_failed(a));
        assert!(!responder.has_failed(b), "the responder has done nothing wrong");
        requester.destroy(a);
        responder.destroy(b);
    });
}
