//! What a test does with one end of a connection. The end is rnic through its Rust API, or a program for libibverbs on
//! rnic's library or the kernel's.

use rnic::{Access, Operation, QpType, Remote, WcStatus};

/// Registered memory: the number by which the end refers to it, and what a peer has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) number: usize,
    pub(crate) remote: Remote,
}

impl Memory {
    /// A part of it, for a work request of this side.
    pub(crate) fn part(self, offset: u64, length: usize) -> Part {
        Part { memory: self, offset, length: u32::try_from(length).expect("32 bits") }
    }

    /// An address in it, for a peer.
    pub(crate) fn at(self, offset: u64) -> Remote {
        Remote { addr: self.remote.addr + offset, ..self.remote }
    }
}

/// A part of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) memory: Memory,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A queue pair: the number by which the end refers to it, and its queue pair number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) number: usize,
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
}

/// How a connection behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) mtu: u32,
    /// The first PSN that this side sends, and the first that it expects.
    pub(crate) psns: [u32; 2],
    pub(crate) access: Access,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

impl Options {
    /// The options of the other side.
    pub(crate) fn turned(self) -> Self {
        Self { psns: [self.psns[1], self.psns[0]], ..self }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: 1024,
            psns: [0x00_1234, 0x80_5678],
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            // 4.096 us x 2^18 = 1.07 s: an emulated processor is slow to answer, and needless retransmissions only make
            // it slower.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms (IBTA table 45).
            min_rnr_timer: 12,
        }
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    /// An address handle.
    pub(crate) ah: usize,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// How a work request completed. The fields of a receive that describe its message are meaningful on success only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: u32,
    pub(crate) length: u32,
    pub(crate) flags: u32,
    pub(crate) imm_or_rkey: u32,
    pub(crate) src_qpn: u32,
}

pub(crate) const RECV: u32 = 128;
pub(crate) const RECV_RDMA_WITH_IMM: u32 = 129;
pub(crate) const GRH: u32 = 1;
pub(crate) const WITH_IMM: u32 = 2;
pub(crate) const WITH_INV: u32 = 8;

/// One end. All operations must succeed: they panic otherwise.
pub(crate) trait End {
    fn gid(&self) -> [u8; 16];
    /// Registers memory filled with 0xee.
    fn register(&mut self, length: usize, access: Access) -> Memory;
    fn deregister(&mut self, memory: Memory);
    /// Creates a type 2 memory window; returns its number.
    fn window(&mut self) -> usize;
    /// Writes the pattern of a seed.
    fn fill(&mut self, part: Part, seed: u32);
    /// Panics unless the pattern of the seed is there.
    fn check(&mut self, part: Part, seed: u32);
    /// Panics unless all bytes have this value.
    fn same(&mut self, part: Part, byte: u8);
    fn put(&mut self, memory: Memory, offset: u64, value: u64);
    fn get(&mut self, memory: Memory, offset: u64) -> u64;
    /// Creates a shared receive queue; returns its number.
    fn srq(&mut self) -> usize;
    fn qp(&mut self, qp_type: QpType, srq: Option<usize>) -> Qp;
    /// Brings a queue pair to RTS.
    fn connect(&mut self, qp: Qp, gid: [u8; 16], qpn: u32, options: &Options);
    /// Brings a UD queue pair to RTS.
    fn activate(&mut self, qp: Qp, psn: u32, qkey: u32);
    /// Creates an address handle; returns its number.
    fn ah(&mut self, gid: [u8; 16]) -> usize;
    /// Posts a signalled request.
    fn post(&mut self, qp: Qp, id: u64, operation: Operation, data: Option<Part>, to: Option<To>);
    /// Posts a bind of a window to a part of memory; returns the new key.
    fn bind(&mut self, qp: Qp, id: u64, window: usize, part: Part, access: Access) -> u32;
    fn recv(&mut self, qp: Qp, id: u64, data: Option<Part>);
    fn srq_recv(&mut self, srq: usize, id: u64, data: Option<Part>);
    /// The next `count` completions of a queue pair, or fewer if `ms` milliseconds have passed.
    fn completions(&mut self, qp: Qp, count: usize, ms: u64) -> Vec<Completion>;
    /// Whether it is in the error state.
    fn has_failed(&mut self, qp: Qp) -> bool;
    fn destroy(&mut self, qp: Qp);

    /// The next completion, with a generous time limit.
    fn completion(&mut self, qp: Qp) -> Completion {
        let all = self.completions(qp, 1, 30_000);
        *all.first().expect("a completion")
    }
}

/// A byte of a pattern, as `interop/rxe/verbs.c` computes it.
pub(crate) fn pattern(seed: u32, at: u32) -> u8 {
    let mixed = at.wrapping_add(seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (((mixed ^ (mixed >> 15)) >> 8) & 0xff) as u8
}
