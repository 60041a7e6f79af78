//! Copies between the structures of the kernel's interface and those of verbs.
//!
//! Programs do not call these functions; librdmacm does, with the answers of the connection manager's device. Each
//! sets the fields that the function of rdma-core sets, and leaves the others as they are: librdmacm stores the state
//! of a queue pair before the call.

use crate::abi::kernel::{AhAttr, GlobalRoute, PathRec, QpAttr};
use crate::abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_sa_path_rec};
use crate::call::{InOut, Value, verbs};
use std::ffi::c_int;

/// `ibv_ah_attr` of an address vector of the kernel.
fn ah_attr(from: &AhAttr) -> ibv_ah_attr {
    let GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class, .. } = from.grh;
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dgid },
            flow_label,
            sgid_index,
            hop_limit,
            traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Sets all fields but `qp_state` and `rate_limit`.
fn qp_attr(to: &mut ibv_qp_attr, from: &QpAttr) {
    to.cur_qp_state = from.cur_qp_state;
    to.path_mtu = from.path_mtu;
    to.path_mig_state = from.path_mig_state;
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = from.dest_qp_num;
    to.qp_access_flags = from.qp_access_flags;
    to.cap.max_send_wr = from.max_send_wr;
    to.cap.max_recv_wr = from.max_recv_wr;
    to.cap.max_send_sge = from.max_send_sge;
    to.cap.max_recv_sge = from.max_recv_sge;
    to.cap.max_inline_data = from.max_inline_data;
    to.ah_attr = ah_attr(&from.ah_attr);
    to.alt_ah_attr = ah_attr(&from.alt_ah_attr);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify;
    to.sq_draining = from.sq_draining;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
}

/// A path of verbs. The MTU is one byte there.
fn path_from(from: &PathRec) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

fn path_to(from: &ibv_sa_path_rec) -> PathRec {
    PathRec {
        // SAFETY: both union fields are the same 16 bytes.
        dgid: unsafe { from.dgid.raw },
        // SAFETY: as above.
        sgid: unsafe { from.sgid.raw },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

verbs! {
    fn ibv_copy_ah_attr_from_kern(to: InOut<'_, ibv_ah_attr>, from: InOut<'_, AhAttr>) -> Value<c_int> {
        let mut to = to;
        *to = ah_attr(&from);
        Ok(Value(0))
    }

    fn ibv_copy_qp_attr_from_kern(to: InOut<'_, ibv_qp_attr>, from: InOut<'_, QpAttr>) -> Value<c_int> {
        let mut to = to;
        qp_attr(&mut to, &from);
        Ok(Value(0))
    }

    fn ibv_copy_path_rec_from_kern(to: InOut<'_, ibv_sa_path_rec>, from: InOut<'_, PathRec>) -> Value<c_int> {
        let mut to = to;
        *to = path_from(&from);
        Ok(Value(0))
    }

    fn ibv_copy_path_rec_to_kern(to: InOut<'_, PathRec>, from: InOut<'_, ibv_sa_path_rec>) -> Value<c_int> {
        let mut to = to;
        *to = path_to(&from);
        Ok(Value(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    /// A structure in which every byte differs from its neighbours.
    fn numbered<T: FromBytes + IntoBytes>() -> T {
        let mut value = T::new_zeroed();
        value.as_mut_bytes().iter_mut().zip(1..=u8::MAX).for_each(|(byte, number)| *byte = number);
        value
    }

    /// A structure whose bytes are all the same.
    fn filled<T>(byte: u8) -> T {
        // SAFETY: only called for structures of numbers.
        let mut value: T = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(&raw mut value, byte, 1) };
        value
    }

    #[test]
    fn an_address_vector_is_copied_field_by_field() {
        let mut from: AhAttr = numbered();
        let mut to: ibv_ah_attr = filled(0xee);
        // SAFETY: both are structures of this test.
        unsafe { ibv_copy_ah_attr_from_kern(&raw mut to, &raw mut from) };
        // SAFETY: both union fields are the same 16 bytes.
        assert_eq!(unsafe { to.grh.dgid.raw }, from.grh.dgid);
        assert_eq!((to.grh.flow_label, to.grh.sgid_index), (from.grh.flow_label, 21));
        assert_eq!((to.grh.hop_limit, to.grh.traffic_class), (22, 23));
        assert_eq!((to.dlid, to.sl, to.src_path_bits), (from.dlid, 27, 28));
        assert_eq!((to.static_rate, to.is_global, to.port_num), (29, 30, 31));
    }

    #[test]
    fn attributes_of_a_queue_pair_are_copied_but_for_its_state() {
        let mut from: QpAttr = numbered();
        let mut to: ibv_qp_attr = filled(0xee);
        // SAFETY: both are structures of this test.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut to, &raw mut from) };
        assert_eq!(
            (to.qp_state, to.rate_limit),
            (0xeeee_eeee, 0xeeee_eeee),
            "librdmacm sets the state itself"
        );
        let numbers = [to.cur_qp_state, to.path_mtu, to.path_mig_state, to.qkey, to.rq_psn, to.sq_psn];
        let first = |n: u8| u32::from_ne_bytes([n, n + 1, n + 2, n + 3]);
        assert_eq!(numbers, [9, 13, 17, 21, 25, 29].map(first));
        assert_eq!([to.dest_qp_num, to.qp_access_flags], [33, 37].map(first));
        assert_eq!((to.ah_attr.port_num, to.alt_ah_attr.port_num), (71, 103));
        let cap = [to.cap.max_send_wr, to.cap.max_recv_wr, to.cap.max_send_sge, to.cap.max_recv_sge];
        assert_eq!(cap, [105, 109, 113, 117].map(first));
        assert_eq!(to.cap.max_inline_data, first(121));
        assert_eq!([to.pkey_index, to.alt_pkey_index], [from.pkey_index, from.alt_pkey_index]);
        let bytes = [to.en_sqd_async_notify, to.sq_draining, to.max_rd_atomic, to.max_dest_rd_atomic];
        assert_eq!(bytes, [129, 130, 131, 132]);
        let bytes = [to.min_rnr_timer, to.port_num, to.timeout, to.retry_cnt, to.rnr_retry];
        assert_eq!(bytes, [133, 134, 135, 136, 137]);
        assert_eq!([to.alt_port_num, to.alt_timeout], [138, 139]);
    }

    #[test]
    fn a_path_survives_the_way_to_the_kernel_and_back() {
        let mut from: PathRec = numbered();
        // The MTU is a code in one byte.
        from.mtu = 5;
        let mut path: ibv_sa_path_rec = filled(0xee);
        let mut back = PathRec::default();
        // SAFETY: all are structures of this test.
        unsafe {
            ibv_copy_path_rec_from_kern(&raw mut path, &raw mut from);
            ibv_copy_path_rec_to_kern(&raw mut back, &raw mut path);
        }
        assert_eq!(back.as_bytes(), from.as_bytes());
        assert_eq!((path.mtu, path.hop_limit, path.traffic_class, path.sl), (5, 55, 56, 58));
        assert_eq!(path.pkey, from.pkey);
        assert_eq!((path.packet_life_time, path.preference), (63, 64));
    }
}
