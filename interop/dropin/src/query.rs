//! Attributes of devices and ports.

use crate::abi::*;
use crate::call::{In, InOut, Out, Status, verbs};
use crate::context::Context;
use crate::devices::put;
use crate::errno::Errno;
use rnic::Device;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, zeroed};
use std::time::Duration;

/// The vendor ID of no vendor: the IEEE has not assigned this OUI.
const VENDOR: u32 = 0xff_ffff;

/// Bits of `device_cap_flags_ex` that the headers of rdma-core 44 do not name.
const FLUSH_GLOBAL: u64 = 1 << 38;
const ATOMIC_WRITE: u64 = 1 << 40;

/// The capabilities of the device that verbs have a bit for.
const FLAGS: c_uint = IBV_DEVICE_BAD_PKEY_CNTR
    | IBV_DEVICE_BAD_QKEY_CNTR
    | IBV_DEVICE_UD_AV_PORT_ENFORCE
    | IBV_DEVICE_CURR_QP_STATE_MOD
    | IBV_DEVICE_PORT_ACTIVE_EVENT
    | IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_SRQ_RESIZE
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_XRC
    | IBV_DEVICE_MEM_MGT_EXTENSIONS
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B;

const _: () = assert!(FLAGS.count_ones() == 12, "each is there");

/// The same with those that only `ibv_query_device_ex` reports.
pub(crate) const ALL_FLAGS: u64 = FLAGS as u64 | FLUSH_GLOBAL | ATOMIC_WRITE;

/// Converts a count to the `int` in which verbs store it.
fn int(count: impl TryInto<c_int>) -> c_int {
    count.try_into().unwrap_or(c_int::MAX)
}

fn attributes(context: &Context) -> ibv_device_attr {
    let of = context.hub.device.attr();
    let guid = u64::from_ne_bytes(context.hub.named.guid);
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    put(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    (attr.node_guid, attr.sys_image_guid) = (guid, guid);
    attr.max_mr_size = of.max_mr_size;
    // Pages of 4 KiB and all larger powers of two: the device does not map memory in pages at all.
    attr.page_size_cap = 0xffff_ffff_ffff_f000;
    (attr.vendor_id, attr.vendor_part_id, attr.hw_ver) = (VENDOR, 0, 0);
    (attr.max_qp, attr.max_qp_wr) = (int(of.max_qp), int(of.max_qp_wr));
    attr.device_cap_flags = FLAGS;
    (attr.max_sge, attr.max_sge_rd) = (int(of.max_sge), int(of.max_sge));
    (attr.max_cq, attr.max_cqe) = (int(of.max_cq), int(of.max_cqe));
    (attr.max_mr, attr.max_mw, attr.max_pd) = (int(of.max_mr), int(of.max_mw), int(of.max_pd));
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (int(of.max_qp_rd_atom), int(of.max_qp_init_rd_atom));
    attr.max_res_rd_atom = int(u64::from(of.max_qp_rd_atom) * u64::from(of.max_qp));
    attr.atomic_cap = IBV_ATOMIC_HCA;
    (attr.max_mcast_grp, attr.max_mcast_qp_attach) = (int(of.max_mcast_grp), int(of.max_mcast_qp_attach));
    attr.max_total_mcast_qp_attach = int(of.max_total_mcast_qp_attach);
    attr.max_ah = int(of.max_ah);
    (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge) =
        (int(of.max_srq), int(of.max_srq_wr), int(of.max_srq_sge));
    attr.max_pkeys = of.max_pkeys;
    // 4.096 us x 2^15, the 0.13 s of other devices: a host whose processor is busy answers late.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = of.phys_port_cnt;
    attr
}

fn attributes_ex(context: &Context) -> ibv_device_attr_ex {
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
    attr.orig_attr = attributes(context);
    attr.phys_port_cnt_ex = u32::from(attr.orig_attr.phys_port_cnt);
    // Memory is never pinned, so any region can be on demand if the program asks for that.
    attr.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let all = datagrams | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    attr.odp_caps.per_transport_caps.rc_odp_caps = all;
    attr.odp_caps.per_transport_caps.uc_odp_caps = datagrams | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.per_transport_caps.ud_odp_caps = datagrams;
    attr.xrc_odp_caps = all;
    // The clock of completions counts nanoseconds in 64 bits; verbs report its frequency in kHz.
    (attr.completion_timestamp_mask, attr.hca_core_clock) = (u64::MAX, 1_000_000);
    attr.device_cap_flags_ex = ALL_FLAGS;
    attr.max_dm_size = crate::dm::MAX_BYTES;
    attr
}

/// A width and a speed that make 100 Gb/s. Programs print the product, or divide by it.
const WIDTH_4X: u8 = 2;
const SPEED_25_GBPS: u8 = 32;
/// Physical states of a port (IBTA table 146).
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

fn port(device: &Device, gids: u32) -> ibv_port_attr {
    let of = device.port_attr();
    // SAFETY: the structure consists of numbers.
    let mut port: ibv_port_attr = unsafe { zeroed() };
    (port.state, port.phys_state) =
        if of.active { (IBV_PORT_ACTIVE, LINK_UP) } else { (IBV_PORT_DOWN, DISABLED) };
    port.max_mtu = c_uint::from(of.max_mtu as u8);
    port.active_mtu = c_uint::from(of.active_mtu as u8);
    port.gid_tbl_len = int(gids);
    port.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    port.max_msg_sz = of.max_msg_sz;
    (port.bad_pkey_cntr, port.qkey_viol_cntr) = (of.bad_pkey_cntr, of.qkey_viol_cntr);
    port.pkey_tbl_len = of.pkey_tbl_len;
    port.max_vl_num = 1;
    (port.active_width, port.active_speed) = (WIDTH_4X, SPEED_25_GBPS);
    port.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    port
}

/// The part of `ibv_port_attr` that the exported symbol fills in: the fields up to `link_layer`.
const COMPAT_PORT: usize = offset_of!(ibv_port_attr, flags);

/// The error for a port that the device does not have.
fn no_port(number: impl std::fmt::Display) -> Errno {
    Errno::INVALID.because(format_args!("port {number}: the device has one port, 1"))
}

verbs! {
    fn ibv_query_device(context: &Context, attr: Out<ibv_device_attr>) -> () {
        attr.put(attributes(context));
        Ok(())
    }

    fn query_device_ex(
        context: &Context,
        input: Option<In<'_, ibv_query_device_ex_input>>,
        attr: Out<ibv_device_attr_ex>,
        room: usize,
    ) -> () {
        let least = offset_of!(ibv_device_attr_ex, comp_mask) + size_of::<u32>();
        if room < least || input.is_some_and(|input| input.comp_mask != 0) {
            return Err(Errno::INVALID.because("comp_mask is not 0, or the room is too small"));
        }
        attr.put_sized(&attributes_ex(context), room);
        Ok(())
    }

    fn query_port(context: &Context, number: u8, attr: Out<ibv_port_attr>, room: usize) -> () {
        if number != 1 {
            return Err(no_port(number));
        }
        attr.put_sized(&port(&context.hub.device, context.hub.gid_entries()), room);
        Ok(())
    }

    fn ibv_query_port(context: &Context, number: u8, attr: Out<ibv_port_attr>) -> () {
        if number != 1 {
            return Err(no_port(number));
        }
        attr.put_sized(&port(&context.hub.device, context.hub.gid_entries()), COMPAT_PORT);
        Ok(())
    }

    /// The speed of a port, in 100 Mb/s.
    fn ibv_query_port_speed(_context: &Context, number: u32, speed: Out<u64>) -> () {
        if number != 1 {
            return Err(no_port(number));
        }
        speed.put(1000);
        Ok(())
    }

    /// The current time of the completion clock.
    fn query_rt_values(context: &Context, values: InOut<'_, ibv_values_ex>) -> () {
        let asked = values.comp_mask;
        let mut values = values;
        values.comp_mask = asked & IBV_VALUES_MASK_RAW_CLOCK;
        if values.comp_mask != 0 {
            let now = Duration::from_nanos(context.hub.device.clock());
            let seconds = now.as_secs().try_into().unwrap_or(__time_t::MAX);
            values.raw_clock = timespec { tv_sec: seconds, tv_nsec: now.subsec_nanos().into() };
        }
        Ok(())
    }

    /// Reads a file of the `/sys` tree, without its trailing newline.
    fn ibv_read_sysfs_file(folder: &CStr, file: &CStr, out: *mut c_void, room: usize) -> Status {
        let path = format!("{}/{}", folder.to_string_lossy(), file.to_string_lossy());
        let text = std::fs::read(path)?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        if out.is_null() || room == 0 {
            return Err(Errno::INVALID);
        }
        let length = text.len().min(room - 1);
        let out: *mut u8 = out.cast();
        // SAFETY: the program guarantees `room` bytes.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr(), length);
            out.add(length).write(0);
        }
        Ok(Status(int(length)))
    }

    fn ibv_get_sysfs_path() -> crate::call::Handle<c_char> {
        Ok(crate::call::Handle(c"/sys".as_ptr().cast_mut()))
    }
}
