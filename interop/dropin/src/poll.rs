//! Polling for completions.

use crate::abi::*;
use crate::call::{Out, Status, verbs};
use crate::cq::Cq;
use crate::errno::Errno;
use rnic::{WcFlags, WorkCompletion};
use std::ffi::c_int;
use std::net::IpAddr;

/// Completions per batch: the number that most programs ask for.
const BATCH: usize = 16;

/// The immediate data, which is in network byte order on the wire and in the program, or a key, which is a number.
pub(crate) fn number(of: &WorkCompletion) -> u32 {
    if of.flags.contains(WcFlags::WITH_INV) { of.imm_or_rkey } else { of.imm_or_rkey.to_be() }
}

/// The value of `sl` in the completion of a datagram: the type of its network header, in the encoding of mlx5. Bit 3
/// means UDP; the bits below it are 1 for IPv6 and 2 for IPv4.
///
/// RoCE carries no service level, so nothing is lost, and IBTA A17.4.5.1 requires completions to report the header
/// type. UCX reads it here to find the receiver's address in the 40 bytes in front of a datagram. Other programs look
/// at the version in the header itself, as `ibv_init_ah_from_wc` does, and ignore this field.
pub(crate) fn network_type(of: &WorkCompletion, port: IpAddr) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match (of.flags.contains(WcFlags::GRH), port.to_canonical()) {
        (false, _) => 0,
        (true, IpAddr::V4(_)) => UDP | IPV4,
        (true, IpAddr::V6(_)) => UDP | IPV6,
    }
}

/// Converts a completion of the port with address `port` to the structure of verbs.
fn structure(of: &WorkCompletion, port: IpAddr) -> ibv_wc {
    ibv_wc {
        wr_id: of.wr_id,
        status: of.status as ibv_wc_status,
        opcode: of.opcode as ibv_wc_opcode,
        vendor_err: of.vendor_err,
        byte_len: of.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: number(of) },
        qp_num: of.qpn.value(),
        src_qp: of.src_qpn.value(),
        wc_flags: of.flags.bits(),
        pkey_index: of.pkey_index,
        slid: 0,
        sl: network_type(of, port),
        dlid_path_bits: 0,
    }
}

verbs! {
    fn poll_cq(cq: &Cq, entries: c_int, out: Option<Out<ibv_wc>>) -> Status {
        let wanted = usize::try_from(entries)
            .map_err(|_| Errno::INVALID.because(format_args!("num_entries is {entries}")))?;
        if wanted == 0 {
            return Ok(Status(0));
        }
        let out = out.ok_or_else(|| Errno::INVALID.because("wc is NULL"))?;
        let (inner, port) = (cq.inner.get()?, cq.hub.device.address());
        let mut some = [WorkCompletion::default(); BATCH];
        let mut done = 0;
        while done < wanted {
            let room = some.get_mut(..BATCH.min(wanted - done)).unwrap_or_default();
            let room_for = room.len();
            let taken = inner.poll(room);
            for completion in room.iter().take(taken) {
                out.offset(done * size_of::<ibv_wc>()).put(structure(completion, port));
                done += 1;
            }
            if taken < room_for {
                break;
            }
        }
        if done == 0 && cq.hub.device.has_panicked() {
            return Err(Errno::IO.because("the device has failed because of a bug in rnic"));
        }
        Ok(Status(c_int::try_from(done).unwrap_or(0)))
    }

    fn req_notify_cq(cq: &Cq, solicited_only: c_int) -> () {
        Ok(cq.inner.get()?.arm(solicited_only != 0)?)
    }
}
