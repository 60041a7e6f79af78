//! Private symbols that the libraries of rdma-core share.
//!
//! Programs linked against libmlx5 or libefa need these symbols to start. Nothing here calls them for a device of
//! rnic.

use crate::errno::Errno;
use std::ffi::c_void;

/// Defines symbols without a version of their own: the loader accepts them for any version whose node exists.
macro_rules! private {
    ($($name:ident)*) => {$(
        #[expect(unsafe_code, reason = "an exported symbol")]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            unsupported()
        }
    )*};
}

/// Refuses a request to a kernel driver, because there is no such driver. The refusal is silent: constructors of
/// libraries make such requests.
fn unsupported() -> *mut c_void {
    Errno::UNSUPPORTED.set();
    std::ptr::null_mut()
}

private! {
    __ioctl_final_num_attrs
    __verbs_log
    _verbs_init_and_alloc_context
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    ibv_read_ibdev_sysfs_file
    verbs_allow_disassociate_destroy
    verbs_init_cq
    verbs_open_device
    verbs_register_driver_34
    verbs_register_driver_57
    verbs_register_driver_59
    verbs_register_driver_64
    verbs_set_ops
    verbs_uninit_context
}
