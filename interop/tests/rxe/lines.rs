//! `interop/rxe/verbs.c` as an end: on rxe in the guest, or under `rnic run` on this side.

use crate::end::{Completion, End, Memory, Options, Part, Qp, To};
use crate::guest::Ip;
use crate::prompt::Prompt;
use rnic::{Access, Operation, QpType, Remote, WcStatus};
use std::fmt::Write as _;

/// The program, with the objects that it was told to create.
pub(crate) struct Lines {
    prompt: Prompt,
    gid: [u8; 16],
    /// The next number of each kind of object.
    given: [usize; 5],
}

const MR: usize = 0;
const MW: usize = 1;
const SRQ: usize = 2;
const QP: usize = 3;
const AH: usize = 4;

impl Lines {
    /// In the guest, on the kernel's rxe.
    pub(crate) fn in_guest(ip: Ip) -> Self {
        Self::open(Prompt::in_guest("verbs"), "rxe0", ip.guest_gid_index())
    }

    /// On this side, on rnic's libibverbs, with these `rnic run` options.
    pub(crate) fn on_rnic(ip: Ip, options: &[&str]) -> Self {
        Self::open(Prompt::on_rnic("verbs", ip.program(), options), "rnic0", 0)
    }

    fn open(prompt: Prompt, device: &str, gid_index: u8) -> Self {
        let mut lines = Self { prompt, gid: [0; 16], given: [0; 5] };
        let answer = lines.tell(&format!("open {device} gid={gid_index}"));
        let gid = u128::from_str_radix(answer.split(' ').next().unwrap_or_default(), 16).expect("a GID");
        lines.gid = gid.to_be_bytes();
        lines
    }

    /// Sends it a line, which must succeed; returns the text after `ok`.
    fn tell(&mut self, line: &str) -> String {
        let answer = self.prompt.tell(line);
        let values = answer.strip_prefix("ok");
        values.unwrap_or_else(|| panic!("{}: `{line}`: {answer}", self.prompt)).trim_start().to_owned()
    }

    fn number(&mut self, line: &str) -> u64 {
        self.tell(line).split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
    }

    fn next(&mut self, kind: usize) -> usize {
        self.given[kind] += 1;
        self.given[kind] - 1
    }
}

fn hex(gid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(gid))
}

fn data(part: Option<Part>) -> String {
    part.map_or_else(String::new, |part| {
        format!(" mr={} off={} len={}", part.memory.number, part.offset, part.length)
    })
}

/// The words for an operation, without its data.
fn words(operation: Operation) -> String {
    let place = |remote: Remote| format!(" raddr={} rkey={}", remote.addr, remote.rkey);
    match operation {
        Operation::Send { imm: Some(imm), .. } => format!("send_imm imm={imm}"),
        Operation::Send { invalidate: Some(rkey), .. } => format!("send_inv inv={rkey}"),
        Operation::Send { .. } => "send".to_owned(),
        Operation::Write { remote, imm: Some(imm) } => format!("write_imm imm={imm}{}", place(remote)),
        Operation::Write { remote, imm: None } => format!("write{}", place(remote)),
        Operation::Read { remote } => format!("read{}", place(remote)),
        Operation::FetchAdd { remote, add } => format!("fetch_add value={add}{}", place(remote)),
        Operation::CompareSwap { remote, compare, swap } => {
            format!("cmp_swap compare={compare} value={swap}{}", place(remote))
        }
        other => panic!("{} is not of this program", other.name()),
    }
}

fn status(code: u8) -> WcStatus {
    (0..=21)
        .zip(STATUSES)
        .find(|(at, _)| *at == code)
        .map(|(_, status)| status)
        .expect("a status of the verbs")
}

/// The statuses in the order of their codes.
const STATUSES: [WcStatus; 22] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocEecOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::LocRddViolErr,
    WcStatus::RemInvRdReqErr,
    WcStatus::RemAbortErr,
    WcStatus::InvEecnErr,
    WcStatus::InvEecStateErr,
    WcStatus::FatalErr,
    WcStatus::RespTimeoutErr,
    WcStatus::GeneralErr,
];

fn completion(word: &str) -> Completion {
    let numbers: Vec<u64> = word.split(':').map(|number| number.parse().expect("a number")).collect();
    let [id, code, opcode, length, flags, imm_or_rkey, src_qpn] = numbers[..] else { panic!("{word}") };
    let short = |number: u64| u32::try_from(number).expect("32 bits");
    Completion {
        id,
        status: status(u8::try_from(code).expect("a status")),
        opcode: short(opcode),
        length: short(length),
        flags: short(flags),
        imm_or_rkey: short(imm_or_rkey),
        src_qpn: short(src_qpn),
    }
}

impl End for Lines {
    fn gid(&self) -> [u8; 16] {
        self.gid
    }

    fn register(&mut self, length: usize, access: Access) -> Memory {
        let number = self.next(MR);
        let answer = self.tell(&format!("mr {number} len={length} access={}", access.bits()));
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let rkey = u32::try_from(numbers[2]).expect("a key");
        Memory { number, remote: Remote { addr: numbers[0], rkey } }
    }

    fn deregister(&mut self, memory: Memory) {
        self.tell(&format!("dereg {}", memory.number));
    }

    fn window(&mut self) -> usize {
        let number = self.next(MW);
        self.tell(&format!("mw {number}"));
        number
    }

    fn fill(&mut self, part: Part, seed: u32) {
        self.tell(&format!(
            "fill {} off={} len={} seed={seed}",
            part.memory.number, part.offset, part.length
        ));
    }

    fn check(&mut self, part: Part, seed: u32) {
        self.tell(&format!(
            "check {} off={} len={} seed={seed}",
            part.memory.number, part.offset, part.length
        ));
    }

    fn same(&mut self, part: Part, byte: u8) {
        self.tell(&format!(
            "same {} off={} len={} byte={byte}",
            part.memory.number, part.offset, part.length
        ));
    }

    fn put(&mut self, memory: Memory, offset: u64, value: u64) {
        self.tell(&format!("put {} off={offset} value={value}", memory.number));
    }

    fn get(&mut self, memory: Memory, offset: u64) -> u64 {
        self.number(&format!("get {} off={offset}", memory.number))
    }

    fn srq(&mut self) -> usize {
        let number = self.next(SRQ);
        self.tell(&format!("srq {number}"));
        number
    }

    fn qp(&mut self, qp_type: QpType, srq: Option<usize>) -> Qp {
        let number = self.next(QP);
        let name = match qp_type {
            QpType::Uc => "uc",
            QpType::Ud => "ud",
            _ => "rc",
        };
        let mut line = format!("qp {number} {name}");
        if let Some(srq) = srq {
            let _ = write!(line, " srq={srq}");
        }
        let qpn = u32::try_from(self.number(&line)).expect("24 bits");
        Qp { number, qpn, qp_type }
    }

    fn connect(&mut self, qp: Qp, gid: [u8; 16], qpn: u32, o: &Options) {
        let [psn, rpsn] = o.psns;
        self.tell(&format!(
            "connect {} {} qpn={qpn} psn={psn} rpsn={rpsn} mtu={} timeout={} retry={} rnr={} minrnr={} rd=16 access={}",
            qp.number,
            hex(gid),
            o.mtu,
            o.timeout,
            o.retry_cnt,
            o.rnr_retry,
            o.min_rnr_timer,
            o.access.bits()
        ));
    }

    fn activate(&mut self, qp: Qp, psn: u32, qkey: u32) {
        self.tell(&format!("connect {} psn={psn} qkey={qkey}", qp.number));
    }

    fn ah(&mut self, gid: [u8; 16]) -> usize {
        let number = self.next(AH);
        self.tell(&format!("ah {number} {}", hex(gid)));
        number
    }

    fn post(&mut self, qp: Qp, id: u64, operation: Operation, part: Option<Part>, to: Option<To>) {
        let to = to.map_or_else(String::new, |to| format!(" ah={} qpn={} qkey={}", to.ah, to.qpn, to.qkey));
        let operation = words(operation);
        let (name, rest) = operation.split_once(' ').unwrap_or((&operation, ""));
        self.tell(&format!("post {} {name} id={id} {rest}{}{to}", qp.number, data(part)));
    }

    fn bind(&mut self, qp: Qp, id: u64, window: usize, part: Part, access: Access) -> u32 {
        let line = format!(
            "post {} bind id={id} mw={window} access={}{}",
            qp.number,
            access.bits(),
            data(Some(part))
        );
        u32::try_from(self.number(&line)).expect("a key")
    }

    fn recv(&mut self, qp: Qp, id: u64, part: Option<Part>) {
        self.tell(&format!("recv {} id={id}{}", qp.number, data(part)));
    }

    fn srq_recv(&mut self, srq: usize, id: u64, part: Option<Part>) {
        self.tell(&format!("recv 0 srq={srq} id={id}{}", data(part)));
    }

    fn completions(&mut self, qp: Qp, count: usize, ms: u64) -> Vec<Completion> {
        let answer = self.tell(&format!("wait {} count={count} ms={ms}", qp.number));
        answer.split_whitespace().map(completion).collect()
    }

    fn has_failed(&mut self, qp: Qp) -> bool {
        // IBV_QPS_ERR.
        self.number(&format!("state {}", qp.number)) == 6
    }

    fn destroy(&mut self, qp: Qp) {
        self.tell(&format!("destroy {}", qp.number));
    }
}
