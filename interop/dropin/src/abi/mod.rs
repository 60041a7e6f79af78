//! The C structures.

// The headers are those of rdma-core 44; later versions only extend structures at ends that they mark. The bindings
// were made by `bindgen src/abi/headers.h --allowlist-type '(ibv_|verbs_|rdma_).*' --allowlist-var '(IBV_|RDMA_).*'
// --opaque-type 'ibv_flow_.*' --no-prepend-enum-name --ignore-functions --rust-edition 2024 --rust-target 1.85
// --use-core --no-doc-comments --no-derive-debug --override-abi '.*=C-unwind'`. The ABI is `C-unwind` because a thread
// may be cancelled in a call (see `cancel`).
#[expect(
    clippy::use_self,
    clippy::allow_attributes_without_reason,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "generated from C headers, under their names"
)]
mod bindings {
    include!("bindings.rs");
}

pub(crate) mod kernel;

pub use bindings::*;

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

/// A device, as the libraries of rdma-core see it. The fields after `ibv_device` identify the driver: libmlx5 and
/// libefa read them to find out whether the device is theirs.
#[repr(C)]
pub(crate) struct VerbsDevice {
    pub(crate) device: ibv_device,
    /// The driver's operations: NULL, because the device belongs to no driver.
    pub(crate) ops: *const c_void,
    pub(crate) refcount: c_int,
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut c_void,
    pub(crate) core_support: u64,
    /// The index of the configured device.
    pub(crate) index: usize,
}

/// The layout that programs built for rdma-core 22 and later rely on.
const _: () = {
    assert!(size_of::<ibv_device>() == 664);
    assert!(offset_of!(VerbsDevice, ops) == 664);
    assert!(size_of::<ibv_context>() == 328);
    assert!(size_of::<verbs_context>() == 648);
    assert!(offset_of!(verbs_context, context) == 320);
    assert!(offset_of!(verbs_context, sz) == 312);
    assert!(offset_of!(verbs_context, query_port) == 0);
    assert!(offset_of!(verbs_context, priv_) == 208);
    assert!(offset_of!(ibv_context, ops) == 8);
    assert!(offset_of!(ibv_context, cmd_fd) == 264);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_context, abi_compat) == 320);
    assert!(size_of::<ibv_cq>() == 128);
    assert!(size_of::<ibv_cq_ex>() == 288);
    assert!(offset_of!(ibv_cq_ex, status) == 132);
    assert!(size_of::<ibv_qp>() == 160);
    assert!(size_of::<ibv_qp_ex>() == 352);
    assert!(offset_of!(ibv_qp_ex, wr_id) == 168);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_device_attr_ex>() == 400);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_qp_init_attr_ex>() == 136);
    assert!(size_of::<ibv_gid_entry>() == 32);
    assert!(size_of::<rdma_cm_id>() == 416);
};
