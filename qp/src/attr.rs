//! Queue pair states, and the attributes that each state transition requires, allows and refuses.
//!
//! The rules are those of IBTA 10.3.1 and 11.2.5.2 (tables 91 and 92), in the form that every Linux device shares
//! (`drivers/infiniband/core/verbs.c`). A program that sets up its queue pairs on hardware can do the same here. A
//! modify that hardware refuses is refused here too, with an error that states the reason.

use crate::ids::{Gid, Mtu, Psn, QKey, Qpn};
use crate::memory::Access;
use crate::wire::opcode::Transport;
use bitflags::bitflags;
use std::fmt;

mod rules;
#[cfg(test)]
mod tests;

pub use rules::{Limits, ModifyError, Rule, Transition, ValueError, check, rule};

/// The state of a queue pair (IBTA 10.3.1). The values are the verbs' codes (`IBV_QPS_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[doc(alias = "ibv_qp_state")]
pub enum QpState {
    /// Just created: accepts no work and no packets.
    #[default]
    #[doc(alias = "IBV_QPS_RESET")]
    Reset = 0,
    /// Receives may be posted; nothing is processed yet.
    #[doc(alias = "IBV_QPS_INIT")]
    Init = 1,
    /// Ready to receive: incoming packets are processed, sends are not.
    #[doc(alias = "IBV_QPS_RTR")]
    Rtr = 2,
    /// Ready to send: sends and receives are processed.
    #[doc(alias = "IBV_QPS_RTS")]
    Rts = 3,
    /// Send queue drained (or draining): messages already started are finished, no new send is started.
    #[doc(alias = "IBV_QPS_SQD")]
    Sqd = 4,
    /// Send queue error: a send failed; receives continue. Unreliable queue pairs only.
    #[doc(alias = "IBV_QPS_SQE")]
    Sqe = 5,
    /// Error: all work requests are flushed, packets are dropped.
    #[doc(alias = "IBV_QPS_ERR")]
    Err = 6,
}

impl QpState {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The name, as verbs spell it without the `IBV_QPS_` prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }

    /// The state with the verbs' code 0 to 6.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|s| *s as u32 == code)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a queue pair. The values are the verbs' codes (`IBV_QPT_*`). GSI, which programs cannot create, has
/// the kernel's code (`IB_QPT_GSI`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[doc(alias = "ibv_qp_type")]
pub enum QpType {
    /// QP1, the general services interface: datagrams between connection managers and similar services.
    Gsi = 1,
    /// Reliable connection.
    #[doc(alias = "IBV_QPT_RC")]
    Rc = 2,
    /// Unreliable connection.
    #[doc(alias = "IBV_QPT_UC")]
    Uc = 3,
    /// Unreliable datagram.
    #[doc(alias = "IBV_QPT_UD")]
    Ud = 4,
    /// The send side of an extended reliable connection (XRC initiator).
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    XrcSend = 9,
    /// The receive side of an extended reliable connection (XRC target).
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    XrcRecv = 10,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv, Self::Gsi];

    /// The name, as verbs spell it without the `IBV_QPT_` prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gsi => "GSI",
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// The type with this verbs code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == code)
    }

    /// Whether the queue pair has a single peer, set by `dest_qp_num` and `ah_attr`.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether lost packets are retransmitted.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// The transport that the queue pair's packets belong to.
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Gsi => Transport::Ud,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
        }
    }

    /// Whether this type of queue pair accepts packets of `transport`.
    #[must_use]
    pub const fn speaks(self, transport: Transport) -> bool {
        matches!(
            (self, transport),
            (Self::Rc, Transport::Rc)
                | (Self::Uc, Transport::Uc)
                | (Self::Ud | Self::Gsi, Transport::Ud)
                | (Self::XrcSend | Self::XrcRecv, Transport::Xrc)
        )
    }

    /// The type with its article, such as "an RC queue pair".
    const fn described(self) -> &'static str {
        match self {
            Self::Gsi => "a GSI queue pair",
            Self::Rc => "an RC queue pair",
            Self::Uc => "a UC queue pair",
            Self::Ud => "a UD queue pair",
            Self::XrcSend => "an XRC_SEND queue pair",
            Self::XrcRecv => "an XRC_RECV queue pair",
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

bitflags! {
    /// The attributes that a modify sets. The bits are those of the verbs (`IBV_QP_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct AttrMask: u32 {
        /// `qp_state`: the next state.
        #[doc(alias = "IBV_QP_STATE")]
        const STATE = 1;
        /// `cur_qp_state`: the state that the program believes the queue pair is in.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`: whether to report that the send queue is drained.
        #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`: the rights that the peer has.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`: the partition.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        const PKEY_INDEX = 1 << 4;
        /// `port_num`: the port of the device.
        #[doc(alias = "IBV_QP_PORT")]
        const PORT = 1 << 5;
        /// `qkey`: the key that datagrams must carry.
        #[doc(alias = "IBV_QP_QKEY")]
        const QKEY = 1 << 6;
        /// `ah_attr`: the path to the peer.
        #[doc(alias = "IBV_QP_AV")]
        const AV = 1 << 7;
        /// `path_mtu`: payload bytes of a full packet.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        const PATH_MTU = 1 << 8;
        /// `timeout`: how long to wait for an acknowledgement.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`: number of retries after a timeout or a sequence error.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`: number of retries while the peer has no receive posted.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`: the PSN of the first packet to receive.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`: READs and atomics that the requester may have outstanding.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`: the alternate path to the peer.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`: how long the peer waits after an RNR NAK.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`: the PSN of the first packet to send.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`: READs and atomics that the responder may have outstanding.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`: automatic path migration.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`: queue sizes.
        #[doc(alias = "IBV_QP_CAP")]
        const CAP = 1 << 19;
        /// `dest_qp_num`: the peer's queue pair.
        #[doc(alias = "IBV_QP_DEST_QPN")]
        const DEST_QPN = 1 << 20;
        /// `rate_limit`: kbit/s of a raw packet queue pair.
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        const RATE_LIMIT = 1 << 25;
    }
}

impl AttrMask {
    /// This mask if `applies`, otherwise the empty mask.
    const fn when(self, applies: bool) -> Self {
        if applies { self } else { Self::empty() }
    }

    /// The names of the fields of `ibv_qp_attr` that are set, in bit order.
    pub fn field_names(self) -> impl Iterator<Item = &'static str> {
        self.iter().map(Self::field_name)
    }

    /// The name of the `ibv_qp_attr` field for the lowest set bit.
    fn field_name(self) -> &'static str {
        match self {
            Self::STATE => "qp_state",
            Self::CUR_STATE => "cur_qp_state",
            Self::EN_SQD_ASYNC_NOTIFY => "en_sqd_async_notify",
            Self::ACCESS_FLAGS => "qp_access_flags",
            Self::PKEY_INDEX => "pkey_index",
            Self::PORT => "port_num",
            Self::QKEY => "qkey",
            Self::AV => "ah_attr",
            Self::PATH_MTU => "path_mtu",
            Self::TIMEOUT => "timeout",
            Self::RETRY_CNT => "retry_cnt",
            Self::RNR_RETRY => "rnr_retry",
            Self::RQ_PSN => "rq_psn",
            Self::MAX_QP_RD_ATOMIC => "max_rd_atomic",
            Self::ALT_PATH => "alt_ah_attr",
            Self::MIN_RNR_TIMER => "min_rnr_timer",
            Self::SQ_PSN => "sq_psn",
            Self::MAX_DEST_RD_ATOMIC => "max_dest_rd_atomic",
            Self::PATH_MIG_STATE => "path_mig_state",
            Self::CAP => "cap",
            Self::DEST_QPN => "dest_qp_num",
            Self::RATE_LIMIT => "rate_limit",
            _ => "an unknown attribute",
        }
    }
}

/// Lists the fields as prose: `timeout, retry_cnt and sq_psn`.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.iter().count();
        for (i, name) in self.field_names().enumerate() {
            let separator = match i {
                0 => "",
                _ if i + 1 == count => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{name}")?;
        }
        Ok(())
    }
}

/// The path to a peer (`ibv_ah_attr`). RoCE has no LIDs, so every path is a global one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias("ibv_ah_attr", "ibv_global_route"))]
pub struct AddressVector {
    /// The peer's address.
    pub dgid: Gid,
    /// The source address: an index into the port's GID table.
    pub sgid_index: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN bits: the IPv4 TOS or the IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; it also selects the UDP source port.
    pub flow_label: u32,
    /// Service level; on Ethernet, the priority.
    pub sl: u8,
    /// The port of the device to send from; ports are numbered from 1.
    pub port_num: u8,
    /// Whether `dgid` and the fields that belong to it are set. RoCE has no other form of address (IBTA A17.4.3).
    pub is_global: bool,
}

impl AddressVector {
    /// The path to `dgid` from GID table entry `sgid_index` of port 1, with a hop limit of 64.
    #[must_use]
    pub fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self { dgid, sgid_index, hop_limit: 64, port_num: 1, is_global: true, ..Self::default() }
    }
}

/// Automatic path migration (IBTA 17.2.8). The values are the verbs' codes (`IBV_MIG_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
#[doc(alias = "ibv_mig_state")]
pub enum PathMigState {
    /// The only state without an alternate path.
    #[default]
    #[doc(alias = "IBV_MIG_MIGRATED")]
    Migrated = 0,
    /// Both sides load the alternate path.
    #[doc(alias = "IBV_MIG_REARM")]
    Rearm = 1,
    /// Ready to migrate.
    #[doc(alias = "IBV_MIG_ARMED")]
    Armed = 2,
}

/// Capacities of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Send work requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather elements per send.
    pub max_send_sge: u32,
    /// Scatter/gather elements per receive.
    pub max_recv_sge: u32,
    /// Bytes that a send may carry inline.
    pub max_inline_data: u32,
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $field:ident : $type:ty = $bit:ident,)*) => {
        /// The attributes of a modify: one field for each bit of [`AttrMask`], with the name that verbs use.
        #[derive(Clone, Debug, Default, PartialEq)]
        #[doc(alias = "ibv_qp_attr")]
        pub struct QpAttr {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl QpAttr {
            /// Which attributes are set.
            #[must_use]
            pub fn mask(&self) -> AttrMask {
                AttrMask::empty() $(| AttrMask::$bit.when(self.$field.is_some()))*
            }

            /// Copies every attribute that is set in `other`.
            pub fn merge(&mut self, other: &Self) {
                $(if other.$field.is_some() {
                    self.$field = other.$field;
                })*
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, value: $type) -> Self {
                    self.$field = Some(value);
                    self
                }
            )*
        }
    };
}

attributes! {
    /// The next state. If unset, the queue pair stays in its current state.
    qp_state: QpState = STATE,
    /// The state that the queue pair must be in. It guards against transitions that the program has not noticed.
    cur_qp_state: QpState = CUR_STATE,
    /// Whether to report an event when the send queue is drained.
    en_sqd_async_notify: bool = EN_SQD_ASYNC_NOTIFY,
    /// The peer's rights: `REMOTE_WRITE`, `REMOTE_READ`, `REMOTE_ATOMIC`.
    qp_access_flags: Access = ACCESS_FLAGS,
    /// Index into the partition key table.
    pkey_index: u16 = PKEY_INDEX,
    /// Port of the device, numbered from 1.
    port_num: u8 = PORT,
    /// The key that datagrams must carry.
    qkey: QKey = QKEY,
    /// The path to the peer.
    ah_attr: AddressVector = AV,
    /// Payload bytes of a full packet.
    path_mtu: Mtu = PATH_MTU,
    /// Acknowledgement timeout: 4.096 us * 2^timeout; 0 means never; at most 31 (IBTA 9.7.6.1.3).
    timeout: u8 = TIMEOUT,
    /// Number of retries after a timeout or a sequence error: at most 7.
    retry_cnt: u8 = RETRY_CNT,
    /// Number of retries after an RNR NAK: at most 6; 7 means without limit.
    rnr_retry: u8 = RNR_RETRY,
    /// The PSN of the first packet to receive.
    rq_psn: Psn = RQ_PSN,
    /// READs and atomics that the requester may have outstanding.
    max_rd_atomic: u8 = MAX_QP_RD_ATOMIC,
    /// The alternate path to the peer. Not available over RoCE.
    alt_ah_attr: AddressVector = ALT_PATH,
    /// The wait that RNR NAKs ask the peer for: a code from 0 to 31 (IBTA table 45).
    min_rnr_timer: u8 = MIN_RNR_TIMER,
    /// The PSN of the first packet to send.
    sq_psn: Psn = SQ_PSN,
    /// READs and atomics that the responder may have outstanding.
    max_dest_rd_atomic: u8 = MAX_DEST_RD_ATOMIC,
    /// Automatic path migration.
    path_mig_state: PathMigState = PATH_MIG_STATE,
    /// Queue capacities. No transition accepts them: a queue keeps the size that it was created with.
    cap: QpCap = CAP,
    /// The peer's queue pair number.
    dest_qp_num: Qpn = DEST_QPN,
    /// Rate of a raw packet queue pair, in kbit/s. No queue pair type here accepts it.
    rate_limit: u32 = RATE_LIMIT,
}

impl QpAttr {
    /// A change of state without other attributes.
    #[must_use]
    pub fn to_state(next: QpState) -> Self {
        Self::default().qp_state(next)
    }

    /// RESET -> INIT of a connected queue pair.
    #[must_use]
    pub fn to_init(port_num: u8, pkey_index: u16, access: Access) -> Self {
        Self::to_state(QpState::Init).port_num(port_num).pkey_index(pkey_index).qp_access_flags(access)
    }

    /// RESET -> INIT of a UD queue pair.
    #[must_use]
    pub fn to_init_datagram(port_num: u8, pkey_index: u16, qkey: QKey) -> Self {
        Self::to_state(QpState::Init).port_num(port_num).pkey_index(pkey_index).qkey(qkey)
    }

    /// INIT -> RTR of a connected queue pair. This is all that UC and XRC_SEND need; RC and XRC_RECV also need
    /// `max_dest_rd_atomic` and `min_rnr_timer`. (Datagram queue pairs only need [`QpAttr::to_state`].)
    #[must_use]
    pub fn to_rtr(peer: AddressVector, path_mtu: Mtu, dest_qp_num: Qpn, rq_psn: Psn) -> Self {
        Self::to_state(QpState::Rtr).ah_attr(peer).path_mtu(path_mtu).dest_qp_num(dest_qp_num).rq_psn(rq_psn)
    }

    /// RTR -> RTS. This is all that UC, UD and GSI need; RC and XRC_SEND also need `timeout`, `retry_cnt`,
    /// `rnr_retry` and `max_rd_atomic`; XRC_RECV also needs `timeout`.
    #[must_use]
    pub fn to_rts(sq_psn: Psn) -> Self {
        Self::to_state(QpState::Rts).sq_psn(sq_psn)
    }
}
