//! The structures of the kernel's interface for the connection manager (`rdma/rdma_user_cm.h`, ABI 4).

use crate::abi::kernel::{AhAttr, PathRec, plain};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Room for an address of any family: `struct __kernel_sockaddr_storage`.
pub(super) const STORAGE: usize = 128;

/// `RDMA_MAX_PRIVATE_DATA`.
pub(super) const PRIVATE: usize = 256;

/// The bytes of `sockaddr_in6`.
pub(super) const IN6: usize = 28;

plain! {
    /// `struct rdma_ucm_cmd_hdr`.
    pub(crate) struct Header {
        cmd: u32,
        input: u16,
        output: u16,
    }

    /// `struct rdma_ucm_create_id`.
    pub(crate) struct CreateId {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }

    /// A command about an object that answers with a number: `struct rdma_ucm_destroy_id`, which LEAVE_MCAST uses too.
    pub(crate) struct DestroyId {
        response: u64,
        id: u32,
        reserved: u32,
    }

    /// `struct rdma_ucm_migrate_id`.
    pub(crate) struct MigrateId {
        response: u64,
        id: u32,
        fd: u32,
    }

    /// `struct rdma_ucm_bind_ip`.
    pub(crate) struct BindIp {
        response: u64,
        addr: [u8; IN6],
        id: u32,
    }

    /// `struct rdma_ucm_bind`.
    pub(crate) struct Bind {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: [u8; STORAGE],
    }

    /// `struct rdma_ucm_resolve_ip`.
    pub(crate) struct ResolveIp {
        src: [u8; IN6],
        dst: [u8; IN6],
        id: u32,
        timeout_ms: u32,
    }

    /// `struct rdma_ucm_resolve_addr`.
    pub(crate) struct ResolveAddr {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src: [u8; STORAGE],
        dst: [u8; STORAGE],
    }

    /// `struct rdma_ucm_resolve_route`.
    pub(crate) struct ResolveRoute {
        id: u32,
        timeout_ms: u32,
    }

    /// `struct rdma_ucm_query`.
    pub(crate) struct Query {
        response: u64,
        id: u32,
        option: u32,
    }

    /// `struct rdma_ucm_query_route_resp`.
    pub(crate) struct QueryRouteAnswer {
        node_guid: u64,
        paths: [PathRec; 2],
        src: [u8; IN6],
        dst: [u8; IN6],
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }

    /// `struct rdma_ucm_query_addr_resp`.
    pub(crate) struct QueryAddrAnswer {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        src_size: u16,
        dst_size: u16,
        src: [u8; STORAGE],
        dst: [u8; STORAGE],
        ibdev_index: u32,
        reserved1: u32,
    }

    /// `struct rdma_ucm_query_path_resp` with one `struct ib_path_rec_data`.
    pub(crate) struct QueryPathAnswer {
        num_paths: u32,
        reserved: u32,
        flags: u32,
        reserved1: u32,
        path: [u8; 64],
    }

    /// `struct rdma_ucm_conn_param`.
    pub(crate) struct ConnParam {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; PRIVATE],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }

    /// `struct rdma_ucm_ud_param`.
    pub(crate) struct UdParam {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; PRIVATE],
        private_data_len: u8,
        reserved: [u8; 7],
    }

    /// `struct rdma_ucm_ece`.
    pub(crate) struct Ece {
        vendor_id: u32,
        attr_mod: u32,
    }

    /// `struct rdma_ucm_connect`.
    pub(crate) struct Connect {
        param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `struct rdma_ucm_listen`.
    pub(crate) struct Listen {
        id: u32,
        backlog: u32,
    }

    /// `struct rdma_ucm_accept`.
    pub(crate) struct Accept {
        uid: u64,
        param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `struct rdma_ucm_reject`.
    pub(crate) struct Reject {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE],
    }

    /// `struct rdma_ucm_disconnect`.
    pub(crate) struct Disconnect {
        id: u32,
    }

    /// `struct rdma_ucm_init_qp_attr`.
    pub(crate) struct InitQpAttr {
        response: u64,
        id: u32,
        qp_state: u32,
    }

    /// `struct rdma_ucm_notify`.
    pub(crate) struct Notify {
        id: u32,
        event: u32,
    }

    /// `struct rdma_ucm_join_ip_mcast`.
    pub(crate) struct JoinIpMcast {
        response: u64,
        uid: u64,
        addr: [u8; IN6],
        id: u32,
    }

    /// `struct rdma_ucm_join_mcast`.
    pub(crate) struct JoinMcast {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: [u8; STORAGE],
    }

    /// `struct rdma_ucm_get_event`.
    pub(crate) struct GetEvent {
        response: u64,
    }

    /// `struct rdma_ucm_set_option`.
    pub(crate) struct SetOption {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }

    /// `struct rdma_ucm_write_cm_event` of rdma-core 61.
    pub(crate) struct WriteCmEvent {
        id: u32,
        reserved: u32,
        event: u32,
        status: u32,
        arg: u64,
    }
}

/// `struct rdma_ucm_event_resp`, packed because the union in it is not aligned to eight bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub(crate) struct EventAnswer {
    pub(crate) uid: u64,
    pub(crate) id: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    /// A `ConnParam` or a `UdParam`, by the type of the queue pair.
    pub(crate) param: [u8; size_of::<UdParam>()],
    pub(crate) reserved: u32,
    pub(crate) ece: [u8; size_of::<Ece>()],
}

impl Default for EventAnswer {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// The least room for an event: that of programs which know neither `reserved` nor `ece`.
pub(super) const LEAST_EVENT: usize = size_of::<EventAnswer>() - 4 - size_of::<Ece>();

const _: () = {
    assert!(size_of::<CreateId>() == 24);
    assert!(size_of::<BindIp>() == 40 && size_of::<Bind>() == 136);
    assert!(size_of::<ResolveIp>() == 64 && size_of::<ResolveAddr>() == 272);
    assert!(size_of::<QueryRouteAnswer>() == 208);
    assert!(size_of::<QueryAddrAnswer>() == 280);
    assert!(size_of::<QueryPathAnswer>() == 80);
    assert!(size_of::<Connect>() == 288 && size_of::<Accept>() == 296 && size_of::<Reject>() == 264);
    assert!(size_of::<JoinIpMcast>() == 48 && size_of::<JoinMcast>() == 152);
    assert!(size_of::<SetOption>() == 24);
    assert!(size_of::<EventAnswer>() == 336 && LEAST_EVENT == 324);
};

/// The kinds of events (`enum rdma_cm_event_type`).
pub(super) mod event {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ADDR_ERROR: u32 = 1;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const DEVICE_REMOVAL: u32 = 11;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
    pub(crate) const USER: u32 = 18;
    pub(crate) const INTERNAL: u32 = 19;
}
