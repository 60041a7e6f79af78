//! Taking completions.

use crate::abi::*;
use crate::call::{Out, Status, verbs};
use crate::cq::Cq;
use crate::errno::Errno;
use rnic::{WcFlags, WorkCompletion};
use std::ffi::c_int;

/// Completions that are taken at a time: what most programs ask for.
const BATCH: usize = 16;

/// Immediate data, which travels and is read in network order, or a key, which is a number.
pub(crate) fn number(of: &WorkCompletion) -> u32 {
    if of.flags.contains(WcFlags::WITH_INV) { of.imm_or_rkey } else { of.imm_or_rkey.to_be() }
}

/// A completion as verbs have it.
fn structure(of: &WorkCompletion) -> ibv_wc {
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
        sl: of.sl,
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
        let inner = cq.inner.get()?;
        let mut some = [WorkCompletion::default(); BATCH];
        let mut done = 0;
        while done < wanted {
            let room = some.get_mut(..BATCH.min(wanted - done)).unwrap_or_default();
            let room_for = room.len();
            let taken = inner.poll(room);
            for completion in room.iter().take(taken) {
                out.offset(done * size_of::<ibv_wc>()).put(structure(completion));
                done += 1;
            }
            if taken < room_for {
                break;
            }
        }
        Ok(Status(c_int::try_from(done).unwrap_or(0)))
    }

    fn req_notify_cq(cq: &Cq, solicited_only: c_int) -> () {
        Ok(cq.inner.get()?.arm(solicited_only != 0)?)
    }
}
