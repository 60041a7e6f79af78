//! Maps each exported symbol and version to its function.
//!
//! The versions are those in which rdma-core introduced the symbols. Symbols that changed between IBVERBS_1.0 and 1.1,
//! in 2006, exist as of 1.1 only.

use crate::trampoline::{exports, jump};
use crate::{
    ah, channel, context, cq, devices, ece, events, fork, gid, import, kern, mr, pd, qp, qp_ex, query, srq,
    strings,
};

exports! {
    "_ibv_query_gid_ex" "@@IBVERBS_1.11" => gid::ibv_query_gid_ex;
    "_ibv_query_gid_table" "@@IBVERBS_1.11" => gid::ibv_query_gid_table;
    "ibv_ack_async_event" "@@IBVERBS_1.1" => events::ibv_ack_async_event;
    "ibv_ack_cq_events" "@@IBVERBS_1.1" => channel::ibv_ack_cq_events;
    "ibv_alloc_pd" "@@IBVERBS_1.1" => pd::ibv_alloc_pd;
    "ibv_attach_mcast" "@@IBVERBS_1.1" => qp::ibv_attach_mcast;
    "ibv_close_device" "@@IBVERBS_1.1" => context::ibv_close_device;
    "ibv_copy_ah_attr_from_kern" "@@IBVERBS_1.1" => kern::ibv_copy_ah_attr_from_kern;
    "ibv_copy_path_rec_from_kern" "@@IBVERBS_1.0" => kern::ibv_copy_path_rec_from_kern;
    "ibv_copy_path_rec_to_kern" "@@IBVERBS_1.0" => kern::ibv_copy_path_rec_to_kern;
    "ibv_copy_qp_attr_from_kern" "@@IBVERBS_1.0" => kern::ibv_copy_qp_attr_from_kern;
    "ibv_create_ah" "@@IBVERBS_1.1" => ah::ibv_create_ah;
    "ibv_create_ah_from_wc" "@@IBVERBS_1.1" => ah::ibv_create_ah_from_wc;
    "ibv_create_comp_channel" "@@IBVERBS_1.0" => channel::ibv_create_comp_channel;
    "ibv_create_cq" "@@IBVERBS_1.1" => cq::ibv_create_cq;
    "ibv_create_qp" "@@IBVERBS_1.1" => qp::ibv_create_qp;
    "ibv_create_srq" "@@IBVERBS_1.1" => srq::ibv_create_srq;
    "ibv_dealloc_pd" "@@IBVERBS_1.1" => pd::ibv_dealloc_pd;
    "ibv_dereg_mr" "@@IBVERBS_1.1" => mr::ibv_dereg_mr;
    "ibv_destroy_ah" "@@IBVERBS_1.1" => ah::ibv_destroy_ah;
    "ibv_destroy_comp_channel" "@@IBVERBS_1.0" => channel::ibv_destroy_comp_channel;
    "ibv_destroy_cq" "@@IBVERBS_1.1" => cq::ibv_destroy_cq;
    "ibv_destroy_qp" "@@IBVERBS_1.1" => qp::ibv_destroy_qp;
    "ibv_destroy_srq" "@@IBVERBS_1.1" => srq::ibv_destroy_srq;
    "ibv_detach_mcast" "@@IBVERBS_1.1" => qp::ibv_detach_mcast;
    "ibv_dofork_range" "@@IBVERBS_1.1" => fork::ibv_dofork_range;
    "ibv_dontfork_range" "@@IBVERBS_1.1" => fork::ibv_dontfork_range;
    "ibv_event_type_str" "@@IBVERBS_1.1" => strings::ibv_event_type_str;
    "ibv_fork_init" "@@IBVERBS_1.1" => fork::ibv_fork_init;
    "ibv_free_device_list" "@@IBVERBS_1.1" => devices::ibv_free_device_list;
    "ibv_get_async_event" "@@IBVERBS_1.1" => events::ibv_get_async_event;
    "ibv_get_cq_event" "@@IBVERBS_1.1" => channel::ibv_get_cq_event;
    "ibv_get_device_guid" "@@IBVERBS_1.1" => devices::ibv_get_device_guid;
    "ibv_get_device_index" "@@IBVERBS_1.9" => devices::ibv_get_device_index;
    "ibv_get_device_list" "@@IBVERBS_1.1" => devices::ibv_get_device_list;
    "ibv_get_device_name" "@@IBVERBS_1.1" => devices::ibv_get_device_name;
    "ibv_get_pkey_index" "@@IBVERBS_1.5" => gid::ibv_get_pkey_index;
    "ibv_get_sysfs_path" "@@IBVERBS_1.0" => query::ibv_get_sysfs_path;
    "ibv_import_device" "@@IBVERBS_1.10" => context::ibv_import_device;
    "ibv_import_dm" "@@IBVERBS_1.13" => import::ibv_import_dm;
    "ibv_import_mr" "@@IBVERBS_1.10" => import::ibv_import_mr;
    "ibv_import_pd" "@@IBVERBS_1.10" => pd::ibv_import_pd;
    "ibv_init_ah_from_wc" "@@IBVERBS_1.1" => ah::ibv_init_ah_from_wc;
    "ibv_is_fork_initialized" "@@IBVERBS_1.13" => fork::ibv_is_fork_initialized;
    "ibv_modify_qp" "@@IBVERBS_1.1" => qp::ibv_modify_qp;
    "ibv_modify_srq" "@@IBVERBS_1.1" => srq::ibv_modify_srq;
    "ibv_node_type_str" "@@IBVERBS_1.1" => strings::ibv_node_type_str;
    "ibv_open_device" "@@IBVERBS_1.1" => context::ibv_open_device;
    "ibv_port_state_str" "@@IBVERBS_1.1" => strings::ibv_port_state_str;
    "ibv_qp_to_qp_ex" "@@IBVERBS_1.6" => qp_ex::ibv_qp_to_qp_ex;
    "ibv_query_device" "@@IBVERBS_1.1" => query::ibv_query_device;
    "ibv_query_ece" "@@IBVERBS_1.10" => ece::ibv_query_ece;
    "ibv_query_gid" "@@IBVERBS_1.1" => gid::ibv_query_gid;
    "ibv_query_pkey" "@@IBVERBS_1.1" => gid::ibv_query_pkey;
    "ibv_query_port" "@@IBVERBS_1.1" => query::ibv_query_port;
    "ibv_query_port_speed" "@@IBVERBS_1.16" => query::ibv_query_port_speed;
    "ibv_query_qp" "@@IBVERBS_1.1" => qp::ibv_query_qp;
    "ibv_query_qp_data_in_order" "@@IBVERBS_1.14" => ece::ibv_query_qp_data_in_order;
    "ibv_query_srq" "@@IBVERBS_1.1" => srq::ibv_query_srq;
    "ibv_rate_to_mbps" "@@IBVERBS_1.1" => strings::ibv_rate_to_mbps;
    "ibv_rate_to_mult" "@@IBVERBS_1.0" => strings::ibv_rate_to_mult;
    "ibv_read_sysfs_file" "@@IBVERBS_1.0" => query::ibv_read_sysfs_file;
    "ibv_reg_dmabuf_mr" "@@IBVERBS_1.12" => mr::ibv_reg_dmabuf_mr;
    "ibv_reg_mr" "@@IBVERBS_1.1" => mr::ibv_reg_mr;
    "ibv_reg_mr_iova" "@@IBVERBS_1.7" => mr::ibv_reg_mr_iova;
    "ibv_reg_mr_iova2" "@@IBVERBS_1.8" => mr::ibv_reg_mr_iova2;
    "ibv_rereg_mr" "@@IBVERBS_1.1" => mr::ibv_rereg_mr;
    "ibv_resize_cq" "@@IBVERBS_1.1" => cq::ibv_resize_cq;
    "ibv_resolve_eth_l2_from_gid" "@@IBVERBS_1.1" => ah::ibv_resolve_eth_l2_from_gid;
    "ibv_set_ece" "@@IBVERBS_1.10" => ece::ibv_set_ece;
    "ibv_unimport_dm" "@@IBVERBS_1.13" => import::ibv_unimport_dm;
    "ibv_unimport_mr" "@@IBVERBS_1.10" => import::ibv_unimport_mr;
    "ibv_unimport_pd" "@@IBVERBS_1.10" => pd::ibv_unimport_pd;
    "ibv_wc_status_str" "@@IBVERBS_1.1" => strings::ibv_wc_status_str;
    "mbps_to_ibv_rate" "@@IBVERBS_1.1" => strings::mbps_to_ibv_rate;
    "mult_to_ibv_rate" "@@IBVERBS_1.0" => strings::mult_to_ibv_rate;
    "ibv_query_gid_type" "@@IBVERBS_PRIVATE_34" => gid::ibv_query_gid_type;
    "ibv_query_gid_type" "@IBVERBS_PRIVATE_57" => gid::ibv_query_gid_type;
    "ibv_query_gid_type" "@IBVERBS_PRIVATE_59" => gid::ibv_query_gid_type;
    "ibv_query_gid_type" "@IBVERBS_PRIVATE_64" => gid::ibv_query_gid_type;
}
