//! One-line description of a packet, for listings, logs and test failures.
//!
//! `RC WRITE_FIRST dqp=0x000051 psn=200 ackreq va=0x7f52cbaf1000 rkey=0x0000438e len=8000 data=1024`
//!
//! Values are omitted if they are the default: flags that are not set, the default partition, an empty payload. For
//! a packet with a management datagram, the datagram is shown instead of the headers, unless those are unusual:
//!
//! `CM RTU comm=0xe1c2e0f5 peer=0xabe8e3ee`
//!
//! For messages between ports, the slots of both are shown instead of a queue pair:
//!
//! `RNIC FLOW_CONTROL from=1 to=2 seq=7 data=8`

use crate::ids::{PKey, QKey, Qpn};
use crate::wire::headers::{AethFields, AtomicFields, DethFields, FethFields};
use crate::wire::mad::{MAD_LEN, Summary};
use crate::wire::opcode::{HeaderSet, Opcode, Operation};
use crate::wire::packet::{Headers, Packet};
use crate::wire::syndrome::{Syndrome, decode_credits, rnr_delay};
use std::fmt;

/// Displays headers and the length of the payload. Created by [`Headers::line`].
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    headers: &'a Headers,
    payload_len: usize,
    mad: Option<&'a [u8; MAD_LEN]>,
}

impl Headers {
    /// Displays these headers as one line of text, for a packet with a payload of this length.
    #[must_use]
    pub const fn line(&self, payload_len: usize) -> Line<'_> {
        Line { headers: self, payload_len, mad: None }
    }

    /// Whether these are the usual headers of a management datagram, apart from fields that vary between packets.
    fn are_usual_for_mads(&self) -> bool {
        let usual = Self {
            deth: DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI },
            // Has no meaning in a datagram; Linux sets it.
            ack_req: self.ack_req,
            ..Self::new(Opcode::UdSendOnly, Qpn::GSI, self.psn)
        };
        *self == usual
    }
}

impl<'a> Line<'a> {
    /// Adds the management datagram of the packet ([`Packet::mad`]).
    #[must_use]
    pub const fn with_mad(self, mad: Option<&'a [u8; MAD_LEN]>) -> Self {
        Line { mad, ..self }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Headers::of(self).line(self.payload().len()).with_mad(self.mad()).fmt(f)
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({self} icrc={:#010x})", self.icrc())
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = self.headers;
        if let Some(mad) = self.mad.filter(|_| h.are_usual_for_mads()) {
            return Summary(mad).fmt(f);
        }
        let info = h.opcode.info();
        match h.port_message() {
            Some(message) => write!(f, "{} {message}", info.name)?,
            None => write!(f, "{} dqp={} psn={}", info.name, h.dest_qpn, h.psn)?,
        }
        for (set, name) in [
            (h.solicited, " se"),
            (h.mig_req, " migreq"),
            (h.fecn, " fecn"),
            (h.becn, " becn"),
            (h.ack_req, " ackreq"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        if h.pkey != PKey::DEFAULT {
            write!(f, " pkey={:#06x}", h.pkey.0)?;
        }
        let has = |header| info.headers.contains(header);
        if has(HeaderSet::XRCETH) {
            write!(f, " srq={:#08x}", h.xrc_srqn)?;
        }
        if has(HeaderSet::DETH) {
            write!(f, " sqp={} qkey={:#010x}", h.deth.src_qpn, h.deth.qkey.0)?;
        }
        if has(HeaderSet::FETH) {
            write_flush(f, h.feth)?;
        }
        if has(HeaderSet::RETH) {
            write!(f, " va={:#x} rkey={:#010x} len={}", h.reth.va, h.reth.rkey, h.reth.length)?;
        }
        if has(HeaderSet::ATOMIC_ETH) {
            write_atomic(f, info.operation, h.atomic)?;
        }
        if has(HeaderSet::AETH) {
            write_aeth(f, h.aeth)?;
        }
        if has(HeaderSet::ATOMIC_ACK_ETH) {
            write!(f, " orig={:#x}", h.atomic_ack)?;
        }
        if has(HeaderSet::IMM_DT) {
            write!(f, " imm={:#010x}", h.imm)?;
        }
        if has(HeaderSet::IETH) {
            write!(f, " inv={:#010x}", h.ieth)?;
        }
        if self.payload_len > 0 {
            write!(f, " data={}", self.payload_len)?;
        }
        if let Some(mad) = self.mad {
            write!(f, " {}", Summary(mad))?;
        }
        Ok(())
    }
}

fn write_flush(f: &mut fmt::Formatter<'_>, feth: FethFields) -> fmt::Result {
    let placement = match feth.placement {
        FethFields::GLOBAL => "global",
        FethFields::PERSISTENT => "persistent",
        0 => "none",
        both if both == FethFields::GLOBAL | FethFields::PERSISTENT => "global+persistent",
        _ => "reserved",
    };
    let selectivity = match feth.selectivity {
        0 => "range",
        1 => "region",
        _ => "reserved",
    };
    write!(f, " placement={placement} select={selectivity}")
}

fn write_atomic(f: &mut fmt::Formatter<'_>, operation: Operation, atomic: AtomicFields) -> fmt::Result {
    write!(f, " va={:#x} rkey={:#010x}", atomic.va, atomic.rkey)?;
    if operation == Operation::CompareSwap {
        write!(f, " compare={:#x} swap={:#x}", atomic.compare, atomic.swap_add)
    } else {
        write!(f, " add={:#x}", atomic.swap_add)
    }
}

fn write_aeth(f: &mut fmt::Formatter<'_>, aeth: AethFields) -> fmt::Result {
    match aeth.kind() {
        // Most acknowledgements advertise no credits, so that case is omitted.
        Syndrome::Ack { credits } => {
            if let Some(messages) = decode_credits(credits) {
                write!(f, " credits={messages}")?;
            }
        }
        Syndrome::Rnr { timer } => write!(f, " RNR {:?}", rnr_delay(timer))?,
        Syndrome::Nak(code) => write!(f, " NAK {}", code.name())?,
        Syndrome::Reserved(byte) => write!(f, " syndrome={byte:#04x}")?,
    }
    write!(f, " msn={}", aeth.msn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Psn;
    use crate::wire::headers::RethFields;
    use crate::wire::mad::cm::{Body, CommId, Message, Rtu};

    fn line(headers: &Headers, payload_len: usize) -> String {
        headers.line(payload_len).to_string()
    }

    fn new(opcode: Opcode) -> Headers {
        Headers::new(opcode, Qpn::new(0x51), Psn::new(200))
    }

    #[test]
    fn write_shows_its_target() {
        let mut h = new(Opcode::RcWriteFirst);
        h.ack_req = true;
        h.reth = RethFields { va: 0x7f52_cbaf_1000, rkey: 0x438e, length: 8000 };
        assert_eq!(
            line(&h, 1024),
            "RC WRITE_FIRST dqp=0x000051 psn=200 ackreq va=0x7f52cbaf1000 rkey=0x0000438e len=8000 data=1024"
        );
    }

    #[test]
    fn acknowledges_show_their_kind() {
        let mut h = new(Opcode::RcAcknowledge);
        let mut with = |syndrome| {
            h.aeth = AethFields { syndrome, msn: 7 };
            line(&h, 0).trim_start_matches("RC ACK dqp=0x000051 psn=200 ").to_owned()
        };
        assert_eq!(with(0x1f), "msn=7");
        assert_eq!(with(0x05), "credits=6 msn=7");
        assert_eq!(with(0x34), "RNR 10.24ms msn=7");
        assert_eq!(with(0x60), "NAK psn-sequence-error msn=7");
        assert_eq!(with(0x41), "syndrome=0x41 msn=7");
    }

    #[test]
    fn other_headers() {
        let mut h = new(Opcode::UdSendOnlyImm);
        h.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        h.imm = 5;
        h.pkey = PKey(0x8001);
        assert_eq!(
            line(&h, 3),
            "UD SEND_ONLY_IMM dqp=0x000051 psn=200 pkey=0x8001 sqp=0x000001 qkey=0x80010000 imm=0x00000005 data=3"
        );
        let mut h = new(Opcode::XrcCompareSwap);
        h.xrc_srqn = 9;
        h.atomic = AtomicFields { va: 0x1000, rkey: 1, swap_add: 2, compare: 3 };
        assert_eq!(
            line(&h, 0),
            "XRC CMP_SWAP dqp=0x000051 psn=200 srq=0x000009 va=0x1000 rkey=0x00000001 compare=0x3 swap=0x2"
        );
        assert_eq!(line(&Headers::cnp(Qpn::new(0xd2)), 0), "CNP dqp=0x0000d2 psn=0 becn");
        assert_eq!(line(&Headers::flow_control(2, 1, 7), 8), "RNIC FLOW_CONTROL from=1 to=2 seq=7 data=8");
        let mut h = Headers::pause(2, 1, 0xffff);
        assert_eq!(line(&h, 20), "RNIC PAUSE from=1 to=2 seq=65535 data=20");
        let telemetry = Headers::telemetry(Qpn::new(0x02_0001), Psn::new(9));
        assert_eq!(line(&telemetry, 20), "RNIC TELEMETRY dqp=0x020001 psn=9 data=20");
        h.dest_qpn = Qpn::new(0x02_0001);
        assert_eq!(line(&h, 20), "RNIC PAUSE dqp=0x020001 psn=131071 data=20", "not for a port");
    }

    #[test]
    fn flushes_show_placement_and_selectivity() {
        for (placement, selectivity, shown) in [
            (0, 0, "placement=none select=range"),
            (1, 0, "placement=global select=range"),
            (2, 1, "placement=persistent select=region"),
            (3, 1, "placement=global+persistent select=region"),
            (4, 2, "placement=reserved select=reserved"),
            (15, 3, "placement=reserved select=reserved"),
        ] {
            let mut h = new(Opcode::RcFlush);
            h.feth = FethFields { placement, selectivity };
            let whole = format!("RC FLUSH dqp=0x000051 psn=200 {shown} va=0x0 rkey=0x00000000 len=0");
            assert_eq!(line(&h, 0), whole);
        }
    }

    #[test]
    fn management_datagrams_are_shown_instead_of_usual_headers() {
        let rtu = Rtu { local_comm_id: CommId(1), remote_comm_id: CommId(2), private_data: &[] };
        let mut mad = [0; MAD_LEN];
        Message { transaction_id: 3, attribute_modifier: 0, body: Body::Rtu(rtu) }.emit(&mut mad).unwrap();
        let mut h = new(Opcode::UdSendOnly);
        h.dest_qpn = Qpn::GSI;
        h.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        let line = |h: &Headers| h.line(MAD_LEN).with_mad(Some(&mad)).to_string();
        assert_eq!(line(&h), "CM RTU comm=0x00000001 peer=0x00000002");
        h.ack_req = true;
        assert_eq!(line(&h), "CM RTU comm=0x00000001 peer=0x00000002");
        h.deth.src_qpn = Qpn::new(7);
        assert_eq!(
            line(&h),
            "UD SEND_ONLY dqp=0x000001 psn=200 ackreq sqp=0x000007 qkey=0x80010000 data=256 CM RTU comm=0x00000001 \
             peer=0x00000002"
        );
        // A packet displays its own management datagram.
        h.deth.src_qpn = Qpn::GSI;
        let mut bytes = vec![0; h.wire_len()];
        h.emit(&mut bytes, mad.len());
        bytes.extend(mad);
        bytes.extend([0; 4]);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.to_string(), "CM RTU comm=0x00000001 peer=0x00000002");
    }
}
