//! What the tests share: pairings of ends, connections, single messages.

use crate::api::Api;
use crate::end::{Completion, End, Memory, Options, Part, Qp, RECV, RECV_RDMA_WITH_IMM, WITH_IMM};
use crate::guest::Ip;
use crate::lines::Lines;
use rnic::{Access, Operation, QpType, WcStatus};

/// Which implementations run against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pairing {
    /// rnic's Rust API and rxe.
    RustRxe,
    /// A program on rnic's libibverbs, and the same program on rxe.
    ProgramRxe,
    /// Both on rxe: shows that the tests expect what Linux does.
    RxeRxe,
    /// Both on rnic.
    RustProgram,
}

impl Pairing {
    pub(crate) fn ends(self, ip: Ip) -> [Box<dyn End>; 2] {
        match self {
            Self::RustRxe => [Box::new(Api::new(ip)), Box::new(Lines::in_guest(ip))],
            Self::ProgramRxe => [Box::new(Lines::on_rnic(ip, &[])), Box::new(Lines::in_guest(ip))],
            Self::RxeRxe => [Box::new(Lines::in_guest(ip)), Box::new(Lines::in_guest(ip))],
            Self::RustProgram => [Box::new(Api::new(ip)), Box::new(Lines::on_rnic(ip, &[]))],
        }
    }

    /// Runs `test` with the first end as requester, then with the second.
    pub(crate) fn both_ways(self, ip: Ip, mut test: impl FnMut(&mut dyn End, &mut dyn End)) {
        let [mut one, mut other] = self.ends(ip);
        test(&mut *one, &mut *other);
        test(&mut *other, &mut *one);
    }
}

/// All access rights that a peer may have.
pub(crate) fn all_rights() -> Access {
    Options::default().access
}

/// Two connected queue pairs; `options` are those of the first.
pub(crate) fn connect(ends: [&mut dyn End; 2], qp_type: QpType, options: &Options) -> [Qp; 2] {
    let [a, b] = ends;
    let qps = [a.qp(qp_type, None), b.qp(qp_type, None)];
    a.connect(qps[0], b.gid(), qps[1].qpn, options);
    b.connect(qps[1], a.gid(), qps[0].qpn, &options.turned());
    qps
}

/// Panics unless this is a successful completion with this ID.
pub(crate) fn succeeded(completion: Completion, id: u64) -> Completion {
    assert_eq!((completion.id, completion.status), (id, WcStatus::Success), "{completion:?}");
    completion
}

/// The operation of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read];

    /// Whether it consumes a receive work request at the responder.
    pub(crate) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    pub(crate) fn operation(self, target: rnic::Remote, imm: u32) -> Operation {
        match self {
            Self::Send => Operation::Send { imm: None, invalidate: None },
            Self::SendImm => Operation::Send { imm: Some(imm), invalidate: None },
            Self::Write => Operation::Write { remote: target, imm: None },
            Self::WriteImm => Operation::Write { remote: target, imm: Some(imm) },
            Self::Read => Operation::Read { remote: target },
        }
    }

    /// Panics unless a receive completed as a message of this kind requires.
    pub(crate) fn check_receive(self, receive: Completion, length: usize, imm: u32) {
        let opcode = if self == Self::WriteImm { RECV_RDMA_WITH_IMM } else { RECV };
        let has_imm = self != Self::Send;
        let found = (receive.opcode, receive.length as usize, receive.flags & WITH_IMM != 0);
        assert_eq!(found, (opcode, length, has_imm), "{self:?} of {length} bytes: {receive:?}");
        assert!(!has_imm || receive.imm_or_rkey == imm, "{self:?}: {receive:?}, not {imm:#x}");
    }
}

/// Bytes before and after a message that must not change.
const MARGIN: u64 = 8;

/// Two ends with memory and queue pairs, and the number of messages exchanged.
pub(crate) struct Talk<'a> {
    pub(crate) requester: &'a mut dyn End,
    pub(crate) responder: &'a mut dyn End,
    pub(crate) qps: [Qp; 2],
    pub(crate) memory: [Memory; 2],
    count: u32,
}

impl<'a> Talk<'a> {
    /// Two connected ends, with memory for messages of up to `most` bytes.
    pub(crate) fn new(
        requester: &'a mut dyn End,
        responder: &'a mut dyn End,
        qp_type: QpType,
        options: &Options,
        most: usize,
    ) -> Self {
        let qps = connect([requester, responder], qp_type, options);
        let room = most + 2 * usize::try_from(MARGIN).expect("small");
        let memory = [requester.register(room, all_rights()), responder.register(room, all_rights())];
        Self { requester, responder, qps, memory, count: 0 }
    }

    /// Exchanges a message. No longer message may precede it: then the bytes behind it show whether too much was
    /// written.
    pub(crate) fn message(&mut self, kind: Kind, length: usize) {
        self.post(kind, length);
        self.finish(kind, length);
    }

    /// Fills the source of a message and posts it, with a receive if it consumes one.
    pub(crate) fn post(&mut self, kind: Kind, length: usize) {
        self.count += 1;
        let (seed, id) = (self.count, u64::from(self.count));
        let [near, far] = self.memory.map(|memory| memory.part(MARGIN, length));
        if kind == Kind::Read {
            self.responder.fill(far, seed);
        } else {
            self.requester.fill(near, seed);
        }
        if kind.takes_receive() {
            // WRITEs go where the key says, not to the buffer of the receive.
            let buffer = (kind != Kind::WriteImm).then_some(far);
            self.responder.recv(self.qps[1], id, buffer);
        }
        let operation = kind.operation(self.memory[1].at(MARGIN), seed ^ 0x8000_0000);
        self.requester.post(self.qps[0], id, operation, Some(near), None);
    }

    /// Takes the completions of the posted message, and checks the data that arrived.
    pub(crate) fn finish(&mut self, kind: Kind, length: usize) {
        let (seed, id) = (self.count, u64::from(self.count));
        let done = self.requester.completion(self.qps[0]);
        assert_eq!((done.id, done.status), (id, WcStatus::Success), "{kind:?} of {length} bytes: {done:?}");
        if kind.takes_receive() {
            let receive = succeeded(self.responder.completion(self.qps[1]), id);
            kind.check_receive(receive, length, seed ^ 0x8000_0000);
        }
        self.check(kind, length, seed);
    }

    /// A WRITE that completes without notifying the responder, followed by an empty message that does.
    pub(crate) fn untold_write(&mut self, length: usize) {
        self.post(Kind::Write, length);
        let seed = self.count;
        succeeded(self.requester.completion(self.qps[0]), u64::from(seed));
        self.post(Kind::Send, 0);
        for at in [0, 1] {
            let end: &mut dyn End = if at == 0 { self.requester } else { self.responder };
            succeeded(end.completion(self.qps[at]), u64::from(self.count));
        }
        self.check(Kind::Write, length, seed);
    }

    fn check(&mut self, kind: Kind, length: usize, seed: u32) {
        let at = usize::from(kind != Kind::Read);
        let end: &mut dyn End = if at == 0 { self.requester } else { self.responder };
        let memory = self.memory[at];
        end.check(memory.part(MARGIN, length), seed);
        let margin = usize::try_from(MARGIN).expect("small");
        let behind = Part { offset: MARGIN + length as u64, ..memory.part(0, margin) };
        end.same(memory.part(0, margin), 0xee);
        end.same(behind, 0xee);
    }

    /// Destroys the queue pairs and deregisters the memory.
    pub(crate) fn end(self) {
        self.requester.destroy(self.qps[0]);
        self.responder.destroy(self.qps[1]);
        self.requester.deregister(self.memory[0]);
        self.responder.deregister(self.memory[1]);
    }
}
