//! The handles of queue pairs.

mod post;

use crate::engine::{Engine, FlowState, QpLinks, QpRequest, ResourceError};
use crate::error::Result;
use crate::queue::QpShared;
use crate::verbs::completion::{CompletionQueue, CqInner};
use crate::verbs::destroy::NotDestroyed;
use crate::verbs::device::DeviceInner;
use crate::verbs::domain::PdInner;
use crate::verbs::srq::{SharedReceiveQueue, SrqInner};
use crate::verbs::xrc::{XrcDomain, XrcdInner};
use qp::attr::AddressVector;
use qp::counters::QpCounters;
use qp::queue_pair::{Failure, Tuning};
use qp::{Access, Gid, Mtu, Psn, QKey, QpAttr, QpCap, QpState, QpType, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attributes with which a queue pair is created (`ibv_qp_init_attr`).
#[derive(Clone)]
#[doc(alias("ibv_qp_init_attr", "ibv_qp_init_attr_ex"))]
pub struct QpInit {
    /// The transport service type.
    pub qp_type: QpType,
    /// The completion queue of sends. XRC_RECV has none, because it does not send.
    pub send_cq: Option<CompletionQueue>,
    /// The completion queue of receives. XRC queue pairs have none: XRC_SEND does not receive, and the receives of
    /// XRC_RECV complete to the queue of the shared receive queue.
    pub recv_cq: Option<CompletionQueue>,
    /// The shared receive queue to take receives from. The queue pair then has no receive queue, and `max_recv_wr` and
    /// `max_recv_sge` are ignored.
    pub srq: Option<SharedReceiveQueue>,
    /// The XRC domain; only for XRC_RECV.
    pub xrcd: Option<XrcDomain>,
    /// The sizes of the queues. Sizes of queues that the type does not have count as 0.
    pub cap: QpCap,
    /// Whether every send generates a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Parameters that the protocol leaves to the implementation.
    pub tuning: Tuning,
}

impl QpInit {
    /// A reliable connection: 128 sends and 128 receives of up to 4 elements, 256 bytes of inline data, completions for
    /// signalled sends only.
    #[must_use]
    pub fn rc(send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self::of(QpType::Rc, send_cq, recv_cq)
    }

    /// An unreliable connection, with the sizes of [`rc`](Self::rc).
    #[must_use]
    pub fn uc(send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self::of(QpType::Uc, send_cq, recv_cq)
    }

    /// Unreliable datagrams, with the sizes of [`rc`](Self::rc).
    #[must_use]
    pub fn ud(send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self::of(QpType::Ud, send_cq, recv_cq)
    }

    /// QP1, the general services interface, with the sizes of [`rc`](Self::rc). A port has one.
    #[must_use]
    pub fn gsi(send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self::of(QpType::Gsi, send_cq, recv_cq)
    }

    fn of(qp_type: QpType, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self {
            qp_type,
            send_cq: Some(send_cq.clone()),
            recv_cq: Some(recv_cq.clone()),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            sq_sig_all: false,
            tuning: Tuning::default(),
        }
    }

    /// The same, with receives from a shared receive queue.
    #[must_use]
    pub fn with_srq(self, srq: &SharedReceiveQueue) -> Self {
        Self { srq: Some(srq.clone()), ..self }
    }

    /// The sending half of an extended reliable connection: 128 sends with the sizes of [`rc`](Self::rc), each
    /// [to](qp::SendWr::to) a shared receive queue of the peer.
    #[must_use]
    pub fn xrc_send(send_cq: &CompletionQueue) -> Self {
        let rc = Self::rc(send_cq, send_cq);
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..rc.cap };
        Self { qp_type: QpType::XrcSend, recv_cq: None, cap, ..rc }
    }

    /// The receiving half of an extended reliable connection, which has no queues of its own. It is
    /// [created](crate::Device::create_qp) without a protection domain.
    #[must_use]
    pub fn xrc_recv(xrcd: &XrcDomain) -> Self {
        Self {
            qp_type: QpType::XrcRecv,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: Some(xrcd.clone()),
            cap: QpCap::default(),
            sq_sig_all: false,
            tuning: Tuning::default(),
        }
    }
}

/// The addresses that the two ends of a connection exchange before they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QpAddress {
    /// Address of the port.
    pub gid: [u8; 16],
    /// Number of the queue pair.
    pub qpn: u32,
    /// The first PSN that it will send.
    pub psn: u32,
    /// Bytes of the largest path MTU of its port.
    pub mtu: u32,
}

/// The attributes of RTR and RTS that a program usually chooses.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// The operations allowed to the peer.
    pub access: Access,
    /// Path MTU; `None` for the largest that both ports carry.
    pub mtu: Option<Mtu>,
    /// Acknowledgement timeout: 4.096 us x 2^timeout, on sockets at least 4.2 ms.
    pub timeout: u8,
    /// Retransmissions before RETRY_EXC_ERR, 0 to 7.
    pub retry_cnt: u8,
    /// Receiver-not-ready retries, 0 to 6; 7 means without limit.
    pub rnr_retry: u8,
    /// The RNR timer: how long a peer has to wait when no receive is posted, as a code of IBTA table 45.
    pub min_rnr_timer: u8,
    /// Outstanding READs and atomics, in both directions.
    pub rd_atomic: u8,
    /// TOS byte of the packets.
    pub traffic_class: u8,
    /// Entropy for equal-cost paths, 20 bits: it selects the UDP source port. 0 for one that the destination selects.
    pub flow_label: u32,
    /// TTL or hop limit of the packets; 0 for the host's default.
    pub hop_limit: u8,
    /// The index of the partition in the P_Key table of this side's port.
    pub pkey_index: u16,
}

impl Default for ConnectOptions {
    /// The values of perftest: timeout 14 (67 ms), 7 retries, unlimited RNR retries with waits of 0.64 ms, 16
    /// outstanding READs, all rights, the first P_Key.
    fn default() -> Self {
        Self {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
            mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
            pkey_index: 0,
        }
    }
}

/// A queue pair. Dropping it destroys it: outstanding work requests then end without a completion.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, ConnectOptions, Operation, QpInit, QpState, SendFlags, SendWr, WcStatus};
/// use std::time::Duration;
///
/// let net = rnic::sim::Net::new();
/// let (a, b) = (net.device(), net.device());
/// let (pd, peer_pd) = (a.alloc_pd()?, b.alloc_pd()?);
/// let (cq, peer_cq) = (a.create_cq(16)?, b.create_cq(16)?);
/// let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
/// let peer = peer_pd.create_qp(&QpInit::rc(&peer_cq, &peer_cq))?;
///
/// // Programs exchange these addresses over a connection of their own, such as TCP.
/// qp.connect(&peer.address(), &ConnectOptions::default())?;
/// peer.connect(&qp.address(), &ConnectOptions::default())?;
/// assert_eq!(qp.state(), QpState::Rts);
///
/// let target = peer_pd.register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
/// let before = pd.register(8, Access::LOCAL_WRITE)?;
/// let add = Operation::FetchAdd { remote: target.remote(0), add: 5 };
/// qp.post_send(SendWr::new(1, add, before.all()).flags(SendFlags::SIGNALED))?;
/// assert_eq!(cq.wait(Duration::from_secs(1))?.status, WcStatus::Success);
/// assert_eq!((before.load_u64(0)?, target.load_u64(0)?), (0, 5));
/// # Ok::<(), rnic::Error>(())
/// ```
#[doc(alias("ibv_qp", "ibv_qp_ex"))]
pub struct QueuePair {
    device: Arc<DeviceInner>,
    shared: Arc<QpShared>,
    psn: Psn,
    destroyed: AtomicBool,
    /// Kept alive while the engine may use them.
    parts: Parts,
}

/// The objects that a queue pair uses.
struct Parts {
    pd: Option<Arc<PdInner>>,
    _cqs: [Option<Arc<CqInner>>; 2],
    _srq: Option<Arc<SrqInner>>,
    _xrcd: Option<Arc<XrcdInner>>,
}

impl QueuePair {
    pub(crate) fn new(device: &Arc<DeviceInner>, pd: Option<&Arc<PdInner>>, init: &QpInit) -> Result<Self> {
        let cqs = [&init.send_cq, &init.recv_cq].map(|cq| cq.as_ref().map(|cq| &cq.inner));
        let srq = init.srq.as_ref().map(|srq| &srq.inner);
        let xrcd = init.xrcd.as_ref().map(|xrcd| &xrcd.inner);
        let links = QpLinks {
            send_cq: cqs[0].map(|cq| cq.id),
            recv_cq: cqs[1].map(|cq| cq.id),
            srq: srq.map(|srq| srq.id),
            xrcd: xrcd.map(|xrcd| xrcd.id),
        };
        let request = QpRequest {
            qp_type: init.qp_type,
            pd: pd.map(|pd| pd.id),
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            links,
            tuning: init.tuning,
        };
        let (shared, psn) = device.port()?.control(|e| {
            if cqs.iter().flatten().any(|cq| !Arc::ptr_eq(&cq.device, device)) {
                return Err(ResourceError::Unknown { what: "completion queue" });
            }
            srq.map_or(Ok(()), |srq| srq.check(device))?;
            xrcd.map_or(Ok(()), |xrcd| xrcd.check(device))?;
            let psn = e.first_psn();
            e.create_qp(&request).map(|shared| (shared, psn))
        })?;
        let parts = Parts {
            pd: pd.cloned(),
            _cqs: cqs.map(Option::<&_>::cloned),
            _srq: srq.cloned(),
            _xrcd: xrcd.cloned(),
        };
        Ok(Self { device: Arc::clone(device), shared, psn, destroyed: AtomicBool::new(false), parts })
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.shared.config.qpn
    }

    /// Its transport service type.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.shared.config.qp_type
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// The address that a peer needs to connect to it.
    #[must_use]
    pub fn address(&self) -> QpAddress {
        let port = &self.device.port;
        QpAddress {
            gid: Gid::from(port.address()).0,
            qpn: self.qpn().value(),
            psn: self.psn.value(),
            mtu: port.active_mtu().bytes(),
        }
    }

    /// Goes from RESET to RTS, connected to `peer`. Options that do not apply to the service type are ignored.
    ///
    /// # Errors
    /// [`Error::Modify`](crate::Error::Modify).
    pub fn connect(&self, peer: &QpAddress, options: &ConnectOptions) -> Result<()> {
        let ours = self.device.port()?.active_mtu();
        let theirs = Mtu::from_bytes(peer.mtu).unwrap_or(Mtu::B1024);
        let mtu = options.mtu.unwrap_or_else(|| ours.min(theirs));
        let mut way = AddressVector::new(Gid(peer.gid), 0);
        way.traffic_class = options.traffic_class;
        way.flow_label = options.flow_label;
        way.hop_limit = options.hop_limit;
        let qp_type = self.shared.config.qp_type;
        let mut to_rtr = QpAttr::to_rtr(way, mtu, Qpn::new(peer.qpn), Psn::new(peer.psn));
        if !matches!(qp_type, QpType::XrcSend | QpType::Uc) {
            to_rtr = to_rtr.max_dest_rd_atomic(options.rd_atomic).min_rnr_timer(options.min_rnr_timer);
        }
        let mut to_rts = QpAttr::to_rts(self.psn);
        if qp_type.is_reliable() {
            to_rts = to_rts.timeout(options.timeout);
        }
        if !matches!(qp_type, QpType::XrcRecv | QpType::Uc) {
            to_rts = to_rts
                .retry_cnt(options.retry_cnt)
                .rnr_retry(options.rnr_retry)
                .max_rd_atomic(options.rd_atomic);
        }
        self.modify(&QpAttr::to_init(1, options.pkey_index, options.access))?;
        self.modify(&to_rtr)?;
        self.modify(&to_rts)
    }

    /// Moves a datagram queue pair from RESET to RTS. `qkey` is the key that datagrams to it must carry; QP1 has a
    /// fixed one.
    ///
    /// # Errors
    /// [`Error::Modify`](crate::Error::Modify).
    pub fn activate(&self, qkey: QKey) -> Result<()> {
        let mut init = QpAttr::to_init_datagram(1, 0, qkey);
        if self.shared.config.qp_type == QpType::Gsi {
            init.port_num = None;
        }
        self.modify(&init)?;
        self.modify(&QpAttr::to_state(QpState::Rtr))?;
        self.modify(&QpAttr::to_rts(self.psn))
    }

    /// Attaches a UD queue pair to a multicast group: ::ffff:224.0.0.0/100 or ff00::/8. It receives a copy of
    /// every datagram to the group with its Q_Key, including its own. Attaching it again changes nothing.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource): the address is not a group, the queue pair is not UD, or the
    /// device has no room for more; [`Error::Join`](crate::Error::Join) names the reason why the port cannot join the
    /// group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<()> {
        self.device.port()?.attach_mcast(self.qpn(), group)?;
        self.device.serve()
    }

    /// Detaches a UD queue pair from a multicast group.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) if it is not attached to it.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<()> {
        Ok(self.device.port()?.detach_mcast(self.qpn(), group)?)
    }

    /// Destroys the queue pair, unless it is in use. (Dropping it destroys it in any case.)
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) while it is attached to multicast groups: verbs require it to be
    /// detached first (IBTA o10-2.2.3). [`Error::Forked`](crate::Error::Forked).
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let destroyed = self.destroy_by(Engine::destroy_qp);
        NotDestroyed::unless(self, destroyed)
    }

    /// Destroys the queue pair as [`destroy`](Self::destroy) does, and removes its unpolled completions from its
    /// completion queues, as drivers for C programs do. Returns the number of completions removed.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy); all of its completions are kept then.
    pub fn destroy_with_completions(self) -> std::result::Result<usize, NotDestroyed<Self>> {
        match self.destroy_with_completions_in_place() {
            Ok(taken) => Ok(taken),
            Err(error) => Err(NotDestroyed::new(self, error)),
        }
    }

    /// As [`destroy_with_completions`](Self::destroy_with_completions), for a queue pair that threads share.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn destroy_with_completions_in_place(&self) -> Result<usize> {
        self.destroy_by(Engine::destroy_qp_and_completions)
    }

    fn destroy_by<R>(
        &self,
        how: impl FnOnce(&mut Engine, Qpn) -> std::result::Result<R, ResourceError>,
    ) -> Result<R> {
        let outcome = self.device.port()?.control(|engine| how(engine, self.qpn()))?;
        self.destroyed.store(true, Ordering::Release);
        Ok(outcome)
    }

    /// Changes attributes and state.
    ///
    /// # Errors
    /// [`Error::Modify`](crate::Error::Modify) names what is missing, what does not apply, or what is out of range.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<()> {
        let port = self.device.port()?;
        port.control(|e| e.modify_qp(self.qpn(), attr))?;
        if attr.qp_state == Some(QpState::Rtr) {
            self.device.serve()?;
        }
        Ok(())
    }

    /// Removes its unpolled completions from its completion queues, as drivers do for a queue pair that goes to
    /// RESET, and returns their number; 0 in a forked child. Until the queue pair is destroyed, more may follow:
    /// [`destroy_with_completions`](Self::destroy_with_completions) does both at once.
    pub fn discard_completions(&self) -> usize {
        let Ok(port) = self.device.port() else { return 0 };
        port.control(|e| e.discard_completions(self.qpn()))
    }

    /// All attributes that were set, and the state; empty in a forked child.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        self.look(qp::QueuePair::query).unwrap_or_default()
    }

    /// Its counters; zeroes in a forked child.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.look(|qp| *qp.counters()).unwrap_or_default()
    }

    /// The number of outstanding send work requests that generate no completion on success; 0 in a forked child.
    #[must_use]
    pub fn unsignalled(&self) -> usize {
        self.look(qp::QueuePair::unsignalled).unwrap_or_default()
    }

    /// The reason why it is in ERR, if it went there by itself; `None` in a forked child.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.look(|qp| qp.failure().copied()).flatten()
    }

    /// The rate at which congestion control lets it send; `None` without congestion control, before it has sent
    /// anything, and in a forked child.
    #[must_use]
    pub fn rate(&self) -> Option<cc::Rate> {
        let port = &self.device.port;
        port.inspect(|e| e.flow(self.qpn(), port.now()).map(|flow| flow.rate)).flatten()
    }

    /// The state of its congestion control; `None` as for [`rate`](Self::rate).
    #[must_use]
    pub fn flow(&self) -> Option<FlowState> {
        let port = &self.device.port;
        port.inspect(|e| e.flow(self.qpn(), port.now())).flatten()
    }

    /// Accesses the queue pair in the engine; `None` in a forked child.
    fn look<R>(&self, look: impl FnOnce(&qp::QueuePair) -> R) -> Option<R> {
        self.device.port.inspect(|e| e.qp(self.qpn()).map(look)).flatten()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !*self.destroyed.get_mut()
            && let Ok(port) = self.device.port()
        {
            port.discard_qp(self.qpn());
        }
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueuePair({} {} in {})", self.shared.config.qp_type, self.qpn(), self.state())
    }
}
