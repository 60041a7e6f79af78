//! The attributes of a queue pair, computed from what the messages of its connection said.

use crate::params::Path;
use qp::attr::AddressVector;
use qp::wire::mad::cm::CmTimeout;
use qp::{Access, Psn, QKey, QpAttr, QpState, QpType, Qpn};

/// What both sides agreed on, as this side sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Type of this side's queue pair.
    pub qp_type: QpType,
    /// The path to the peer.
    pub path: Path,
    /// The peer's queue pair; `None` until its REP.
    pub remote_qpn: Option<Qpn>,
    /// The starting PSN that this side's message carried. The peer begins to send with it.
    pub rq_psn: Psn,
    /// The starting PSN of the peer's message. This side begins to send with it.
    pub sq_psn: Psn,
    /// READs and atomics that this side serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry_count: u8,
    /// The acknowledgement timeout.
    pub ack_timeout: CmTimeout,
}

/// Where a queue pair is on this host: what the connection manager does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Port of the device, from 1.
    pub port_num: u8,
    /// Index of the connection's local address in the port's GID table.
    pub sgid_index: u8,
    /// Index of the connection's partition in the port's P_Key table.
    pub pkey_index: u16,
    /// The wait that RNR NAKs ask the peer for. Linux gives user programs 0, which means 655 ms.
    pub min_rnr_timer: u8,
}

impl Default for Placement {
    fn default() -> Self {
        Self { port_num: 1, sgid_index: 0, pkey_index: 0, min_rnr_timer: 0 }
    }
}

impl Negotiated {
    /// The attributes that bring this side's queue pair into a state: INIT, RTR or RTS. They are those that Linux
    /// computes (`cm_init_qp_init_attr` and its siblings). `None` for other states, and for RTR and RTS while the
    /// peer's queue pair is unknown.
    #[must_use]
    pub fn attributes(&self, state: QpState, placement: &Placement) -> Option<QpAttr> {
        match state {
            QpState::Init => Some(self.init(placement)),
            QpState::Rtr => self.remote_qpn.map(|qpn| self.ready_to_receive(qpn, placement)),
            QpState::Rts => self.remote_qpn.map(|_| self.ready_to_send()),
            _ => None,
        }
    }

    fn init(&self, placement: &Placement) -> QpAttr {
        let mut access = Access::REMOTE_WRITE;
        if self.responder_resources > 0 {
            access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        QpAttr::to_init(placement.port_num, placement.pkey_index, access)
    }

    fn ready_to_receive(&self, remote_qpn: Qpn, placement: &Placement) -> QpAttr {
        let to = self.path.to;
        let peer = AddressVector {
            dgid: to.remote,
            sgid_index: placement.sgid_index,
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
            flow_label: to.flow_label,
            sl: to.sl,
            port_num: placement.port_num,
            is_global: true,
        };
        let attr = QpAttr::to_rtr(peer, self.path.mtu, remote_qpn, self.rq_psn);
        match self.qp_type {
            QpType::Rc | QpType::XrcRecv => {
                attr.max_dest_rd_atomic(self.responder_resources).min_rnr_timer(placement.min_rnr_timer)
            }
            _ => attr,
        }
    }

    fn ready_to_send(&self) -> QpAttr {
        let attr = QpAttr::to_rts(self.sq_psn);
        match self.qp_type {
            QpType::Rc | QpType::XrcSend => attr
                .timeout(self.ack_timeout.code())
                .retry_cnt(self.retry_count)
                .rnr_retry(self.rnr_retry_count)
                .max_rd_atomic(self.initiator_depth),
            QpType::XrcRecv => attr.timeout(self.ack_timeout.code()),
            _ => attr,
        }
    }
}

/// The attributes of a queue pair in INIT before it has a connection, as Linux computes them (`cma_ib_init_qp_attr`):
/// without rights for the peer, or with the key of datagrams.
#[must_use]
pub fn unconnected(qp_type: QpType, placement: &Placement) -> QpAttr {
    if qp_type.is_connected() {
        QpAttr::to_init(placement.port_num, placement.pkey_index, Access::empty())
    } else {
        QpAttr::to_init_datagram(placement.port_num, placement.pkey_index, UDP_QKEY)
    }
}

/// The key of datagrams between programs that use UDP ports (`RDMA_UDP_QKEY` of Linux).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// The acknowledgement timeout for a path with this lifetime to a device with this delay: the smallest code that
/// is, by the rounding of Linux (`cm_ack_timeout`), at least twice the lifetime and the delay.
#[must_use]
pub fn ack_timeout(delay: CmTimeout, lifetime: CmTimeout) -> CmTimeout {
    let (delay, twice) = (delay.code(), lifetime.code() + 1);
    let code = if twice >= delay {
        twice + u8::from(delay >= twice - 1)
    } else {
        delay + u8::from(twice >= delay - 1)
    };
    CmTimeout::new(code.min(CmTimeout::MAX.code()))
}
