//! Datagrams: UD queue pairs, and QP1, which is a UD queue pair with a well-known Q_Key (IBTA 9.8.3, 13.5).
//!
//! Each message is one packet, and each may have a different destination. Datagrams are not acknowledged: a message
//! completes when it is sent, and one that cannot be received is dropped.

use super::requester::gather;
use super::{FailureContext, Notice, PacketDrop, QueuePair, Refused, TakenRecv, VendorError};
use crate::attr::{AddressVector, QpState, QpType};
use crate::ids::{QKey, Qpn};
use crate::memory::{Access, AccessError, Domain, Host, NoSharedRecv, SharedRecv};
use crate::train::Train;
use crate::wire::IpHeader;
use crate::wire::headers::{DethFields, GRH_LEN, Grh};
use crate::wire::opcode::Opcode;
use crate::wire::packet::{Headers, ICRC_LEN, Packet};
use crate::work::{Destination, Operation, SendFlags, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use std::net::IpAddr;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// If the most significant bit of the Q_Key in a work request is set, the Q_Key of the queue pair is used instead:
/// such keys are privileged (IBTA 10.2.5).
const CONTROLLED: u32 = 1 << 31;

/// The IP protocol number of UDP.
const UDP: u8 = 17;

/// Length of the UDP header in bytes.
const UDP_HEADER: usize = 8;

/// Length of an IPv4 header without options, in bytes.
const IPV4_HEADER: usize = 20;

impl QueuePair {
    /// The path and the queue pair that the next packet of a datagram queue pair goes to; `None` if there is no
    /// packet to send. All packets of a train take the same path, to queue pairs of the same slot.
    #[must_use]
    pub fn next_destination(&self) -> Option<(&Arc<AddressVector>, Qpn)> {
        match &self.requester.next()?.wr.to {
            Destination::Datagram { path, qpn, .. } => Some((path, *qpn)),
            _ => None,
        }
    }

    /// Writes datagrams that take the path of the first; true if more could follow with a new train or budget.
    pub(super) fn send_datagrams(
        &mut self,
        train: &mut Train<'_>,
        budget: &mut u32,
        host: &mut impl Host,
    ) -> bool {
        let Some((way, first)) = self.next_destination().map(|(path, qpn)| (Arc::clone(path), qpn)) else {
            return false;
        };
        while self.can_request() {
            let Some(wqe) = self.requester.next() else { break };
            let Destination::Datagram { path, qpn, qkey } = &wqe.wr.to else { break };
            let elsewhere = qpn.slot() != first.slot() || (!Arc::ptr_eq(path, &way) && **path != *way);
            if *budget == 0 || elsewhere {
                return true;
            }
            let len = wqe.wr.data.len();
            let fits = |len: &usize| *len <= self.path.mtu.bytes() as usize;
            let Some(packed) = usize::try_from(len).ok().filter(fits) else {
                // Too long for one packet: nothing is sent, and that is no error (IBTA C10-93.1.1).
                let (wr_id, mtu) = (wqe.wr.wr_id, self.path.mtu.bytes());
                host.notice(Notice::DatagramTooLong { wr_id, len, mtu });
                self.retire_oldest(0, host);
                continue;
            };
            let headers = self.datagram_headers(&wqe.wr.operation, *qpn, *qkey, wqe.wr.flags);
            if !train.has_room(&headers, packed) {
                return true;
            }
            let (domain, data) = (self.domain(), &wqe.wr.data);
            let filled =
                train.push_summed(&headers, packed, |out, crc| gather(host, domain, data, 0, out, crc));
            if let Err(error) = filled {
                let psn = headers.psn;
                self.note_failure(WcStatus::LocProtErr, psn, FailureContext::GatheringPayload, Some(error));
                self.fail_oldest(WcStatus::LocProtErr, host);
                break;
            }
            *budget -= 1;
            self.counters.rdma_sends += 1;
            self.counters.sent_bytes += len;
            self.requester.set_psn(headers.psn.plus(1));
            self.retire_oldest(0, host);
        }
        false
    }

    fn datagram_headers(&self, operation: &Operation, qpn: Qpn, qkey: QKey, flags: SendFlags) -> Headers {
        let imm = match operation {
            Operation::Send { imm, .. } => *imm,
            _ => None,
        };
        let opcode = if imm.is_some() { Opcode::UdSendOnlyImm } else { Opcode::UdSendOnly };
        let mut headers = Headers::new(opcode, qpn, self.requester.next_psn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        headers.imm = imm.unwrap_or(0);
        headers.solicited = flags.contains(SendFlags::SOLICITED);
        let qkey = if qkey.0 & CONTROLLED != 0 { self.qkey() } else { qkey };
        headers.deth = DethFields { qkey, src_qpn: self.config.qpn };
        headers
    }

    /// The Q_Key that arriving datagrams must carry.
    fn qkey(&self) -> QKey {
        match self.config.qp_type {
            QpType::Gsi => QKey::GSI,
            _ => self.attr.qkey.unwrap_or_default(),
        }
    }

    /// Receives a datagram: writes the network header first, then the message.
    pub(super) fn receive_datagram(
        &mut self,
        arrival: &IpHeader,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(PacketDrop::State);
        }
        let deth = packet.deth().ok_or(PacketDrop::Service)?;
        if deth.qkey != self.qkey() {
            return Err(PacketDrop::QKey);
        }
        let data = packet.payload();
        if data.len() > self.path.mtu.bytes() as usize {
            return Err(PacketDrop::Unreliable);
        }
        let recv = self.take_for_datagram(GRH_LEN + data.len(), host)?;
        let stored = self.store_datagram(&recv, arrival, packet, host);
        let (status, vendor_err) = match stored {
            Ok(()) => (WcStatus::Success, 0),
            Err(StoreError::TooLong) => (WcStatus::LocLenErr, VendorError::ReceiveTooShort.code()),
            Err(StoreError::Memory(error)) => {
                let context = FailureContext::ServingRequest(Refused::ReceiveBuffer);
                self.note_failure(WcStatus::LocProtErr, packet.psn(), context, Some(error));
                (WcStatus::LocProtErr, error.vendor_code())
            }
        };
        if status == WcStatus::Success {
            self.counters.rdma_recvs += 1;
        } else {
            self.counters.resp_cqe_error += 1;
        }
        let mut flags = WcFlags::GRH;
        flags.set(WcFlags::WITH_IMM, packet.imm().is_some());
        let completion = WorkCompletion {
            wr_id: recv.wr.wr_id,
            status,
            opcode: WcOpcode::Recv,
            flags,
            byte_len: u32::try_from(GRH_LEN + data.len()).unwrap_or(u32::MAX),
            imm_or_rkey: packet.imm().unwrap_or(0),
            qpn: self.config.qpn,
            src_qpn: deth.src_qpn,
            vendor_err,
            ..WorkCompletion::default()
        };
        host.complete_recv(None, completion, packet.solicited());
        if status == WcStatus::LocProtErr {
            // The program's receive is invalid (IBTA 10.10.3: the receive queue enters the error state).
            self.enter_error(host);
        }
        Ok(())
    }

    /// Takes a receive for `len` bytes. If the next receive of the queue pair's own queue is too short, it stays
    /// for the next message (IBTA C9-205). The length of a receive from a shared receive queue is only known after
    /// taking it.
    fn take_for_datagram(&mut self, len: usize, host: &mut impl Host) -> Result<TakenRecv, PacketDrop> {
        let mut none_left = || {
            self.counters.out_of_buffer += 1;
            PacketDrop::NoReceive
        };
        if self.config.has_srq {
            return match host.take_shared_recv(None) {
                Ok(SharedRecv { wr, pd }) => Ok(TakenRecv::own(wr, pd)),
                Err(NoSharedRecv::Empty | NoSharedRecv::Unknown | NoSharedRecv::Failed) => Err(none_left()),
            };
        }
        let room = self.responder.peek().map(|wr| wr.data.len()).ok_or_else(none_left)?;
        if (len as u64) > room {
            self.counters.resp_local_length_error += 1;
            host.notice(Notice::DatagramReceiveTooShort { len: len as u64, room });
            return Err(PacketDrop::Unreliable);
        }
        let recv = self.responder.pop(self.config.pd).ok_or(PacketDrop::NoReceive)?;
        host.release_recv();
        Ok(recv)
    }

    fn store_datagram(
        &mut self,
        recv: &TakenRecv,
        arrival: &IpHeader,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), StoreError> {
        let data = packet.payload();
        let (len, room) = ((GRH_LEN + data.len()) as u64, recv.wr.data.len());
        if len > room {
            self.counters.resp_local_length_error += 1;
            host.notice(Notice::DatagramReceiveTooShort { len, room });
            return Err(StoreError::TooLong);
        }
        let domain = Domain { pd: recv.pd(), qpn: self.config.qpn };
        let elements = recv.wr.data.elements();
        let network = network_header(arrival, packet.bytes().len());
        let access = Access::LOCAL_WRITE;
        // Programs poll the end of the message, so it is written last.
        super::responder::scatter(host, domain, elements, 0, &network, access)?;
        super::responder::scatter(host, domain, elements, GRH_LEN as u64, data, access)?;
        Ok(())
    }
}

/// Why a datagram could not be stored.
enum StoreError {
    TooLong,
    Memory(AccessError),
}

impl From<AccessError> for StoreError {
    fn from(error: AccessError) -> Self {
        Self::Memory(error)
    }
}

/// The 40 bytes in front of a datagram: the received IPv6 header, or 20 zero bytes and the IPv4 header (IBTA
/// A17.4.5.2). `transport` is the length from BTH to ICRC.
fn network_header(arrival: &IpHeader, transport: usize) -> [u8; GRH_LEN] {
    debug_assert!(transport > ICRC_LEN, "a packet has a BTH and an ICRC");
    let payload = u16::try_from(UDP_HEADER + transport).unwrap_or(u16::MAX);
    let mut header = [0; GRH_LEN];
    match (arrival.src, arrival.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = payload.saturating_add(IPV4_HEADER as u16).to_be_bytes();
            let ident = arrival.ident.to_be_bytes();
            let ip = &mut header[GRH_LEN - IPV4_HEADER..];
            // Version 4, header length five words; don't fragment.
            ip[..12].copy_from_slice(&[
                0x45,
                arrival.tos,
                total[0],
                total[1],
                ident[0],
                ident[1],
                0x40,
                0,
                arrival.hop_limit,
                UDP,
                0,
                0,
            ]);
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let checksum = ipv4_checksum(ip).to_be_bytes();
            ip[10..12].copy_from_slice(&checksum);
        }
        (src, dst) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let grh = Grh::new(
                arrival.tos,
                arrival.flow_label,
                payload,
                UDP,
                arrival.hop_limit,
                octets(src),
                octets(dst),
            );
            header.copy_from_slice(grh.as_bytes());
        }
    }
    header
}

/// The Internet checksum of a header, computed with its checksum field set to 0 (RFC 1071).
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
