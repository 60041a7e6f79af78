//! Sequences of calls as a C program makes them: the exported symbols of our libibverbs, and the function tables of
//! its objects.
//!
//! Two devices of this process, at loopback addresses, use sockets and real time, so posted messages do flow.
//! Programs that would be undefined in C are not generated: objects are not used after they are destroyed, events
//! that are read are acknowledged, and memory that the library itself reads is mapped.

#![expect(unsafe_code, reason = "the C interface")]

mod book;
mod memory;
mod objects;
mod queue_pairs;
mod side;
mod symbols;
mod work;

use arbitrary::{Arbitrary, Unstructured};
use book::Book;
use memory::Arena;
use queue_pairs::{Attributes, Link, NewQp};
use side::Side;
use std::sync::Once;
use work::{Build, Receive, Send};

/// Maximum number of calls in a program.
const CALLS: usize = 60;

/// A call by one of the two sides. Objects are named by any number, modulo the number of objects.
#[derive(Arbitrary, Debug)]
enum Call {
    AllocPd,
    ParentDomain { pd: u8, thread: bool },
    ImportPd { pd: u8 },
    DeallocPd { pd: u8 },
    OpenOnceMore,
    Query { what: u8, port: u8, index: i16 },
    AsyncEvents,
    CreateChannel,
    DestroyChannel { channel: u8 },
    CreateCq { cqe: u32, channel: Option<u8>, vector: u8 },
    CreateCqEx { cqe: u32, channel: Option<u8>, wc_flags: u16, mask: u8, flags: u8 },
    ResizeCq { cq: u8, cqe: u32 },
    Arm { cq: u8, solicited: bool },
    CqEvents { channel: u8 },
    Poll { cq: u8, room: i8 },
    PollEx { cq: u8, steps: u8 },
    DestroyCq { cq: u8 },
    Register { pd: u8, place: Place, access: u32, iova: Option<u32> },
    RegisterOther { pd: u8, kind: u8, len: u16, access: u32 },
    Reregister { mr: u8, flags: u8, pd: u8, place: Place, access: u32 },
    Advise { pd: u8, advice: u8, flags: u8, mr: u8, place: Place, count: u8 },
    Deregister { mr: u8 },
    AllocMw { pd: u8, kind: u8 },
    BindMw { qp: u8, mw: u8, mr: u8, place: Place, access: u32, flags: u8 },
    DeallocMw { mw: u8 },
    CreateSrq { pd: u8, wr: u32, sge: u32 },
    CreateSrqEx { pd: u8, xrcd: u8, cq: u8, kind: u8, mask: u8, wr: u32 },
    ModifySrq { srq: u8, wr: u32, limit: u32, mask: u8 },
    PostSrq { srq: u8, receive: Receive },
    DestroySrq { srq: u8 },
    OpenXrcd { mask: u8, fd: u8, oflags: u8 },
    CloseXrcd { xrcd: u8 },
    CreateAh { pd: u8, way: Way },
    CreateAhFromWc { pd: u8, flags: u8, at: u16, port: u8 },
    DestroyAh { ah: u8 },
    CreateQp(NewQp),
    DestroyQp { qp: u8 },
    Connect { qp: u8, other: u8, here: bool, link: Link },
    Modify { qp: u8, mask: u32, attributes: Attributes },
    QueryQp { qp: u8, mask: u32 },
    Attach { qp: u8, group: u8 },
    Detach { qp: u8, group: u8 },
    PostSend { qp: u8, send: Send, times: u8 },
    PostRecv { qp: u8, receive: Receive },
    Build { qp: u8, build: Build },
    Settle { polls: u8 },
    TurnPage { there: bool },
}

/// A memory range: an address for [`Arena::address`], and a length.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    at: u32,
    len: u16,
    /// Bits that make it much longer.
    more: u8,
}

impl Place {
    fn length(self) -> u32 {
        u32::from(self.len) | if self.more > 0xf0 { u32::from(self.more) << 24 } else { 0 }
    }
}

/// A destination: the address of one of the sides, or an unused one, and the other attributes of an address handle.
#[derive(Arbitrary, Clone, Copy, Debug, Default)]
struct Way {
    to: u8,
    index: u8,
    global: u8,
    port: u8,
    sl: u8,
    class: u8,
}

/// Makes any calls in any order on two devices, and destroys everything.
///
/// # Panics
///
/// Panics if a call returns an undocumented error (EIO indicates a panic inside the library), if a completion
/// belongs to no posted work request or to one that has already completed, if work does not complete although its
/// queue pair is in ERR, or if an object that nothing uses any more cannot be destroyed.
pub fn c_calls(data: &[u8]) {
    two_devices();
    let mut input = Unstructured::new(data);
    let mut program = Program::new();
    program.set_up(input.arbitrary().unwrap_or_default());
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let Ok((right, call)) = <(bool, Call)>::arbitrary(&mut input) else { break };
        program.call(usize::from(right), call);
    }
    program.finish();
}

/// Sets the library's devices: it reads the variable when it first lists devices.
pub(super) fn two_devices() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let addresses = format!("{},{}", crate::fresh_address(), crate::fresh_address());
        // SAFETY: everything here reads the environment through the standard library, which synchronises readers
        // and writers.
        unsafe { std::env::set_var("RNIC_ADDR", addresses) };
    });
}

/// State shared by both sides.
struct Common {
    arena: Arena,
    book: Book,
    /// GIDs of the two sides.
    gids: [rnic_dropin::abi::ibv_gid; 2],
}

struct Program {
    common: Common,
    sides: [Side; 2],
}

impl Program {
    fn new() -> Self {
        let sides = [Side::open(0), Side::open(1)];
        let gids = [sides[0].gid(), sides[1].gid()];
        Self { common: Common { arena: Arena::new(), book: Book::default(), gids }, sides }
    }

    /// Creates some of the objects that most calls need, as selected by the first byte of the input.
    fn set_up(&mut self, what: u8) {
        let place = Place { at: 0, len: 0x7000, more: 0 };
        for side in 0..2 {
            let ways = [1 - side as u8, side as u8].map(|to| Way { to, ..Way::default() });
            if what & 1 != 0 {
                self.call(side, Call::Register { pd: 0, place, access: 0x1f, iova: None });
            }
            for kind in 0..4 {
                if what & 2 << kind != 0 {
                    self.call(side, Call::CreateQp(NewQp::plain(kind)));
                }
            }
            if what & 4 != 0 {
                ways.into_iter().for_each(|way| self.call(side, Call::CreateAh { pd: 0, way }));
            }
        }
        for qp in 0..4 {
            self.connect(0, qp, 1, qp, Link::plain());
        }
    }

    fn call(&mut self, side: usize, call: Call) {
        let Self { common, sides } = self;
        let remote = sides[1 - side].as_remote();
        let Some(own) = sides.get_mut(side) else { return };
        match call {
            Call::Connect { qp, other, here, link } => {
                let peer = if here { side } else { 1 - side };
                self.connect(side, qp, peer, other, link);
            }
            Call::Settle { polls } => self.settle(polls),
            Call::TurnPage { there } => common.arena.turn(there),
            Call::PostSend { qp, send, times } => own.post_send(common, qp, &send, times, &remote),
            Call::PostRecv { qp, receive } => own.post_recv(common, qp, &receive),
            Call::PostSrq { srq, receive } => own.post_srq(common, srq, &receive),
            Call::Build { qp, build } => own.build(common, qp, &build, &remote),
            Call::BindMw { qp, mw, mr, place, access, flags } => {
                own.bind_mw(common, qp, mw, mr, place, access, flags);
            }
            Call::CreateQp(new) => own.create_qp(common, &new),
            Call::DestroyQp { qp } => own.destroy_qp(common, qp),
            Call::Modify { qp, mask, attributes } => own.modify_qp(common, qp, mask, &attributes),
            Call::QueryQp { qp, mask } => own.query_qp(qp, mask),
            Call::Attach { qp, group } => own.attach(qp, group),
            Call::Detach { qp, group } => own.detach(qp, group),
            call => own.call(common, call),
        }
    }

    fn connect(&mut self, side: usize, qp: u8, peer: usize, other: u8, link: Link) {
        let (Some(from), Some(to)) = (self.sides[side].number_of(qp), self.sides[peer].number_of(other))
        else {
            return;
        };
        let Self { common, sides } = self;
        sides[side].connect(common, qp, (peer, to), link);
        sides[peer].connect(common, other, (side, from), link);
    }

    /// Lets packets in flight arrive.
    fn settle(&mut self, polls: u8) {
        for _ in 0..polls % 64 {
            for side in &mut self.sides {
                side.poll_all(&mut self.common.book);
            }
        }
    }

    /// An unused object can be destroyed, so all can, in the right order.
    fn finish(mut self) {
        self.settle(20);
        for side in &mut self.sides {
            side.end_all(&mut self.common);
        }
        for side in self.sides {
            side.destroy_all(&mut self.common);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_dropin::abi::*;

    /// Everything that a typical program does succeeds: without traffic the target would find little.
    #[test]
    fn posted_messages_arrive() {
        two_devices();
        let mut program = Program::new();
        program.set_up(0xff);
        let opcodes = [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD];
        let posts = [(0, &opcodes[..]), (1, &opcodes[..1]), (2, &opcodes[..2])];
        for (qp, opcodes) in posts {
            program.call(1, Call::PostRecv { qp, receive: Receive::plain() });
            for opcode in opcodes {
                let len = if *opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { 8 } else { 500 };
                let send = Send::plain(*opcode as u8, len, qp);
                program.call(0, Call::PostSend { qp, send, times: 1 });
            }
        }
        // Seven are sent, and three of them are received.
        let done = |program: &Program| program.common.book.seen.values().sum::<u32>() >= 10;
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !done(&program) && std::time::Instant::now() < give_up {
            program.settle(63);
        }
        assert_eq!(program.common.book.seen, [(IBV_WC_SUCCESS, 10)].into());
        program.finish();
    }
}
