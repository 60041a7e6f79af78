//! The symbols of libibverbs that a program links against, and the calls in its function tables, which are inline
//! functions in the headers.

use rnic_dropin::abi::*;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

// SAFETY: these are the declarations of the headers of rdma-core.
unsafe extern "C-unwind" {
    pub(super) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(super) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(super) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(super) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(super) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub(super) fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    pub(super) fn ibv_query_gid(
        context: *mut ibv_context,
        port: u8,
        index: c_int,
        gid: *mut ibv_gid,
    ) -> c_int;
    pub(super) fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    pub(super) fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    pub(super) fn ibv_ack_async_event(event: *mut ibv_async_event);

    pub(super) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(super) fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    pub(super) fn ibv_unimport_pd(pd: *mut ibv_pd);
    pub(super) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;

    pub(super) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(super) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(super) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub(super) fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    pub(super) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(super) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(super) fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);

    pub(super) fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int)
    -> *mut ibv_mr;
    pub(super) fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr;
    pub(super) fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int;
    pub(super) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

    pub(super) fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(super) fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    pub(super) fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    pub(super) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

    pub(super) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(super) fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port: u8,
    ) -> *mut ibv_ah;
    pub(super) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;

    pub(super) fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(super) fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(super) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(super) fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(super) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(super) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(super) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

/// The extended table that contains a context (`verbs_get_ctx`).
///
/// # Safety
///
/// The context is open.
pub(super) unsafe fn table<'a>(context: *mut ibv_context) -> &'a verbs_context {
    let around = context.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: the caller guarantees it; `abi_compat` tells programs that the extended structure exists.
    unsafe { &*around.cast::<verbs_context>() }
}

/// The table of a context.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn ops<'a>(context: *mut ibv_context) -> &'a ibv_context_ops {
    // SAFETY: the caller guarantees it.
    unsafe { &(*context).ops }
}
