//! The states of a queue pair, and which attributes each change of state needs, allows and refuses.
//!
//! The rules are those of IBTA 10.3.1 and 11.2.5.2 (tables 91 and 92) in the form that every Linux device shares
//! (`drivers/infiniband/core/verbs.c`): a program that sets up its queue pairs on hardware does so here, and one
//! that hardware refuses is refused here too, but told why.

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
    /// Just created: takes no work and no packets.
    #[default]
    #[doc(alias = "IBV_QPS_RESET")]
    Reset = 0,
    /// Receives may be posted; nothing is processed yet.
    #[doc(alias = "IBV_QPS_INIT")]
    Init = 1,
    /// Ready to receive: packets are answered, sends are not processed.
    #[doc(alias = "IBV_QPS_RTR")]
    Rtr = 2,
    /// Ready to send: everything works.
    #[doc(alias = "IBV_QPS_RTS")]
    Rts = 3,
    /// Send queue drained (or draining): what was sent is finished, no new send is started.
    #[doc(alias = "IBV_QPS_SQD")]
    Sqd = 4,
    /// Send queue error: a send failed; receives go on. Unreliable queue pairs only.
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

/// The kind of a queue pair. The values are the verbs' codes (`IBV_QPT_*`); GSI, which programs cannot create,
/// has the kernel's (`IB_QPT_GSI`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[doc(alias = "ibv_qp_type")]
pub enum QpType {
    /// QP1, the general services interface: datagrams between connection managers and the like.
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
    /// The sending half of an extended reliable connection (XRC initiator).
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    XrcSend = 9,
    /// The receiving half of an extended reliable connection (XRC target).
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

    /// Whether the queue pair talks to one peer only, named by `dest_qp_num` and `ah_attr`.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether lost packets are sent again.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// The transport of its packets.
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Gsi => Transport::Ud,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
        }
    }

    /// Whether packets of this transport belong to such queue pairs.
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

    /// "an RC queue pair": the type, with the article that fits its name when it is spelt out.
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
    /// Which attributes a modify sets. The bits are those of the verbs (`IBV_QP_*`).
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
        /// `qp_access_flags`: what the peer may do.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`: which partition.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        const PKEY_INDEX = 1 << 4;
        /// `port_num`: which port of the device.
        #[doc(alias = "IBV_QP_PORT")]
        const PORT = 1 << 5;
        /// `qkey`: the key that datagrams must carry.
        #[doc(alias = "IBV_QP_QKEY")]
        const QKEY = 1 << 6;
        /// `ah_attr`: the way to the peer.
        #[doc(alias = "IBV_QP_AV")]
        const AV = 1 << 7;
        /// `path_mtu`: payload bytes a packet.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        const PATH_MTU = 1 << 8;
        /// `timeout`: how long to wait for an acknowledgement.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`: how often to send again.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`: how often to send again when the peer has no receive.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`: first PSN to receive.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`: READs and atomics outstanding as requester.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`: a second way to the peer.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`: how long a peer waits when there is no receive.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`: first PSN to send.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`: READs and atomics outstanding as responder.
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
    /// This mask where `applies`, else nothing.
    const fn when(self, applies: bool) -> Self {
        if applies { self } else { Self::empty() }
    }

    /// The names of the fields of `ibv_qp_attr` that are set, in the order of the bits.
    pub fn field_names(self) -> impl Iterator<Item = &'static str> {
        self.iter().map(Self::field_name)
    }

    /// The name of the field of `ibv_qp_attr` that the lowest bit stands for.
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

/// The way to a peer (`ibv_ah_attr`). RoCE has no LIDs, so it always is a global one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias("ibv_ah_attr", "ibv_global_route"))]
pub struct AddressVector {
    /// The peer's address.
    pub dgid: Gid,
    /// Which of our addresses to send from: an index into the port's GID table.
    pub sgid_index: u8,
    /// Time to live, or IPv6 hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN bits: the IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; also the entropy of the UDP source port.
    pub flow_label: u32,
    /// Service level; over Ethernet, the priority.
    pub sl: u8,
    /// Which port of the device to send from, from 1.
    pub port_num: u8,
    /// Whether `dgid` and what goes with it is set. Without it there is no address in RoCE (IBTA A17.4.3).
    pub is_global: bool,
}

impl AddressVector {
    /// The way to `dgid` from GID table entry `sgid_index` of port 1, with a hop limit of 64.
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
    /// Both sides shall load the alternate path.
    #[doc(alias = "IBV_MIG_REARM")]
    Rearm = 1,
    /// Ready to migrate.
    #[doc(alias = "IBV_MIG_ARMED")]
    Armed = 2,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send may carry inline.
    pub max_inline_data: u32,
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $field:ident : $type:ty = $bit:ident,)*) => {
        /// What a modify sets: one field for each bit of [`AttrMask`], under the name that verbs give it.
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

            /// Takes over every attribute that is set in `other`.
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
    /// The next state; without it the queue pair stays in its state.
    qp_state: QpState = STATE,
    /// The state that the queue pair must be in: a guard against changes that the program has not seen.
    cur_qp_state: QpState = CUR_STATE,
    /// Report an event when the send queue is drained.
    en_sqd_async_notify: bool = EN_SQD_ASYNC_NOTIFY,
    /// What the peer may do: `REMOTE_WRITE`, `REMOTE_READ`, `REMOTE_ATOMIC`.
    qp_access_flags: Access = ACCESS_FLAGS,
    /// Index into the partition key table.
    pkey_index: u16 = PKEY_INDEX,
    /// Port of the device, from 1.
    port_num: u8 = PORT,
    /// The key that datagrams must carry.
    qkey: QKey = QKEY,
    /// The way to the peer.
    ah_attr: AddressVector = AV,
    /// Payload bytes of a full packet.
    path_mtu: Mtu = PATH_MTU,
    /// Acknowledgement timeout: 4.096 us * 2^timeout, 0 for never, 31 at most (IBTA 9.7.6.1.3).
    timeout: u8 = TIMEOUT,
    /// How often to send again after a timeout or a sequence error: 7 at most.
    retry_cnt: u8 = RETRY_CNT,
    /// How often to send again when the peer has no receive posted: 6 at most, 7 for without end.
    rnr_retry: u8 = RNR_RETRY,
    /// The PSN of the first packet to receive.
    rq_psn: Psn = RQ_PSN,
    /// READs and atomics outstanding as requester.
    max_rd_atomic: u8 = MAX_QP_RD_ATOMIC,
    /// A second way to the peer. Not available over RoCE.
    alt_ah_attr: AddressVector = ALT_PATH,
    /// The wait that a peer is told when no receive is posted: a code up to 31 (IBTA table 45).
    min_rnr_timer: u8 = MIN_RNR_TIMER,
    /// The PSN of the first packet to send.
    sq_psn: Psn = SQ_PSN,
    /// READs and atomics outstanding as responder.
    max_dest_rd_atomic: u8 = MAX_DEST_RD_ATOMIC,
    /// Automatic path migration.
    path_mig_state: PathMigState = PATH_MIG_STATE,
    /// Queue sizes. No change of state takes them: queues keep the size they were created with.
    cap: QpCap = CAP,
    /// The peer's queue pair number.
    dest_qp_num: Qpn = DEST_QPN,
    /// Rate of a raw packet queue pair, kbit/s. No type of queue pair here takes it.
    rate_limit: u32 = RATE_LIMIT,
}

impl QpAttr {
    /// A change of state alone.
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

    /// INIT -> RTR of a connected queue pair: all that UC and XRC_SEND need. RC and XRC_RECV add
    /// `max_dest_rd_atomic` and `min_rnr_timer`. (Datagram queue pairs need [`QpAttr::to_state`] only.)
    #[must_use]
    pub fn to_rtr(peer: AddressVector, path_mtu: Mtu, dest_qp_num: Qpn, rq_psn: Psn) -> Self {
        Self::to_state(QpState::Rtr).ah_attr(peer).path_mtu(path_mtu).dest_qp_num(dest_qp_num).rq_psn(rq_psn)
    }

    /// RTR -> RTS: all that UC, UD and GSI need. RC and XRC_SEND add `timeout`, `retry_cnt`, `rnr_retry` and
    /// `max_rd_atomic`; XRC_RECV adds `timeout`.
    #[must_use]
    pub fn to_rts(sq_psn: Psn) -> Self {
        Self::to_state(QpState::Rts).sq_psn(sq_psn)
    }
}
