//! Creation and destruction of protection domains, completion queues and queue pairs.

use super::events::EventSource;
use super::host::Cq;
use super::multicast::{MAX_ATTACHED, MAX_GROUPS};
use super::srq::{MAX_SRQ, MAX_SRQ_SGE, MAX_SRQ_WR};
use super::{CqId, Engine, QpEntry, QpLinks};
use crate::memory::{BufferError, RegisterError};
use crate::queue::{CqProducer, CqRoom, QpShared};
use crate::verbs::device::DeviceAttr;
use qp::queue_pair::{QpConfig, Tuning};
use qp::wire::mad::hello::Features;
use qp::{Gid, PdId, QpCap, QpType, Qpn, QueuePair};
use std::sync::Arc;
use thiserror::Error;

/// Largest queue sizes, of the same order as those of Linux rxe and mlx5.
pub(crate) const MAX_QP_WR: u32 = 1 << 14;
/// Scatter/gather elements of a work request, as in Linux rxe.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline data: the 512 of Linux rxe, which suffice for perftest's largest inline size.
pub(crate) const MAX_INLINE: u32 = 512;
/// Completion queue entries: 2^22 less one, as mlx5 reports.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// Completion queues, protection domains, and XRC domains, of a port.
pub(crate) const MAX_OBJECTS: usize = 1 << 16;

/// Memory regions, and memory windows; both are of the order of Linux rxe's.
pub(crate) const MAX_MR: u32 = 1 << 20;

/// Address handles of a device, as in Linux rxe.
pub(crate) const MAX_AH: u32 = 1 << 20;

/// The capabilities of a device. This module enforces every figure.
pub(crate) fn device_attr() -> DeviceAttr {
    let limits = qp::attr::Limits::default();
    DeviceAttr {
        max_qp: u32::try_from(super::numbers::MAX_NUMBERS).unwrap_or(u32::MAX),
        max_qp_wr: MAX_QP_WR,
        max_sge: MAX_SGE,
        max_inline_data: MAX_INLINE,
        max_cq: MAX_OBJECTS as u32,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_mw: MAX_MR,
        // A message has at most 2^31 bytes; a region may span all memory.
        max_mr_size: usize::MAX as u64,
        max_pd: MAX_OBJECTS as u32,
        max_srq: u32::try_from(MAX_SRQ).unwrap_or(u32::MAX),
        max_srq_wr: MAX_SRQ_WR,
        max_srq_sge: MAX_SRQ_SGE,
        max_qp_rd_atom: u32::from(limits.max_dest_rd_atomic),
        max_qp_init_rd_atom: u32::from(limits.max_rd_atomic),
        max_ah: MAX_AH,
        max_mcast_grp: MAX_GROUPS as u32,
        max_mcast_qp_attach: MAX_ATTACHED as u32,
        max_total_mcast_qp_attach: (MAX_GROUPS * MAX_ATTACHED) as u32,
        max_pkeys: limits.pkeys,
        phys_port_cnt: limits.ports,
    }
}

/// Why an object could not be created or destroyed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ResourceError {
    /// A size is outside the device's limits.
    #[error("{what} is {given}; this device takes {min} to {max}")]
    Size {
        /// The kind of size.
        what: &'static str,
        /// The given value.
        given: u32,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// The device has no more objects of this kind.
    #[error("the device has no {what} left: all {max} are in use")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// Their maximum number.
        max: usize,
    },
    /// The object is in use.
    #[error("the {what} is still in use by {by} ({users})")]
    Busy {
        /// The object to be destroyed.
        what: &'static str,
        /// Number of users.
        users: usize,
        /// Kind of users.
        by: &'static str,
    },
    /// The program has created QP1, so that it handles connection management itself.
    #[error(
        "the program has its own QP1, which takes all management datagrams: destroy it to let the device manage connections"
    )]
    Qp1Taken,
    /// The device manages connections for the program, which therefore cannot have QP1 itself.
    #[error("the device manages connections over QP1: drop its connection manager to create QP1")]
    Qp1Managed,
    /// The address is shared with other processes, and QP1 belongs to the daemon.
    #[error(
        "QP1 of this address belongs to the daemon, for all its programs: a program that needs its own QP1 needs an address of its own"
    )]
    Qp1Shared,
    /// A completion queue cannot become smaller than the number of completions in it.
    #[error("{waiting} completions wait to be polled, and {cqe} entries do not hold them: poll first")]
    Waiting {
        /// Number of pending completions.
        waiting: usize,
        /// The requested size.
        cqe: u32,
    },
    /// The host has no memory for the object.
    #[error("no memory for a {what} of {entries} entries")]
    NoMemory {
        /// The kind of object.
        what: &'static str,
        /// Number of entries.
        entries: u32,
    },
    /// The object belongs to another device, or was destroyed.
    #[error("the {what} does not belong to this device, or is gone")]
    Unknown {
        /// The object.
        what: &'static str,
    },
    /// An address cannot be reached from this port.
    #[error("the address vector cannot be used: {why}")]
    Address {
        /// What is wrong with the address.
        why: &'static str,
    },
    /// A queue pair was requested with objects that its type does not have, or without one that it needs.
    #[error("{qp_type} queue pairs {rule}")]
    QpParts {
        /// The type of the queue pair.
        qp_type: QpType,
        /// The requirement of this type.
        rule: &'static str,
    },
    /// A queue pair cannot be attached to a multicast group, or detached from it.
    #[error("cannot attach to or detach from {group}: {why}")]
    Multicast {
        /// The group.
        group: Gid,
        /// What is wrong.
        why: &'static str,
    },
    /// The device is permanently unusable.
    #[error("the device has failed: close it, and open it again")]
    DeviceFailed,
    /// An index is beyond the end of a table.
    #[error("there is no {what} at index {index}: the table has {entries}")]
    Index {
        /// The kind of index.
        what: &'static str,
        /// The given value.
        index: u32,
        /// Number of entries of the table.
        entries: usize,
    },
    /// Memory could not be registered.
    #[error(transparent)]
    Register(RegisterError),
    /// Memory could not be allocated.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// Protection domains, with the number of objects in each.
#[derive(Debug, Default)]
pub(super) struct Domains {
    table: slab::Slab<usize>,
}

impl Domains {
    pub(super) fn users(&mut self, pd: PdId) -> Result<&mut usize, ResourceError> {
        self.table.get_mut(pd.0 as usize).ok_or(ResourceError::Unknown { what: "protection domain" })
    }
}

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRequest {
    pub(crate) qp_type: QpType,
    pub(crate) pd: Option<PdId>,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) links: QpLinks,
    pub(crate) tuning: Tuning,
}

/// The protection domain of queue pairs without one: no key belongs to it.
const NO_PD: PdId = PdId(u32::MAX);

impl QpRequest {
    /// Checks that the request has the objects that its type needs, and no others.
    fn check_parts(&self) -> Result<(), ResourceError> {
        let (send_cq, recv_cq) = (self.links.send_cq.is_some(), self.links.recv_cq.is_some());
        let (srq, xrcd) = (self.links.srq.is_some(), self.links.xrcd.is_some());
        let rules = match self.qp_type {
            QpType::XrcRecv => [
                (xrcd, "need an XRC domain"),
                (
                    self.pd.is_none(),
                    "have no protection domain: they use those of the queues that requests name",
                ),
                (!send_cq, "send nothing, so they have no send_cq"),
                (!recv_cq, "have no recv_cq: the queues that requests name have one each"),
                (!srq, "have no shared receive queue: each request names one"),
            ],
            QpType::XrcSend => [
                (self.pd.is_some(), "need a protection domain"),
                (send_cq, "need a send_cq"),
                (!recv_cq, "receive nothing, so they have no recv_cq"),
                (!srq, "receive nothing, so they have no shared receive queue"),
                (!xrcd, "have no XRC domain: that is the peer's"),
            ],
            _ => [
                (self.pd.is_some(), "need a protection domain"),
                (send_cq, "need a send_cq"),
                (recv_cq, "need a recv_cq"),
                (!xrcd, "have no XRC domain"),
                (true, ""),
            ],
        };
        match rules.into_iter().find(|(kept, _)| !kept) {
            None => Ok(()),
            Some((_, rule)) => Err(ResourceError::QpParts { qp_type: self.qp_type, rule }),
        }
    }

    /// Sizes of the requested queues: those of a receive queue only if the queue pair has one of its own.
    fn own_queues(&self) -> QpCap {
        let mut cap = self.cap;
        if self.links.srq.is_some() || matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if self.qp_type == QpType::XrcRecv {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
        }
        cap
    }
}

pub(super) fn within(what: &'static str, given: u32, min: u32, max: u32) -> Result<(), ResourceError> {
    if (min..=max).contains(&given) { Ok(()) } else { Err(ResourceError::Size { what, given, min, max }) }
}

/// The users of completion queues.
pub(crate) const CQ_USERS: &str = "queue pairs and shared receive queues";

/// Memory for a completion queue of `cqe` entries.
pub(crate) fn completion_room(cqe: u32) -> Result<CqRoom, ResourceError> {
    within("cqe", cqe, 1, MAX_CQE)?;
    CqRoom::new(cqe).map_err(|_| ResourceError::NoMemory { what: "completion queue", entries: cqe })
}

impl Engine {
    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, ResourceError> {
        self.usable()?;
        if self.pds.table.len() >= MAX_OBJECTS {
            return Err(ResourceError::Exhausted { what: "protection domain", max: MAX_OBJECTS });
        }
        Ok(PdId(u32::try_from(self.pds.table.insert(0)).unwrap_or(u32::MAX)))
    }

    pub(crate) fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ResourceError> {
        match *self.pds.users(pd)? {
            0 => {
                self.pds.table.remove(pd.0 as usize);
                Ok(())
            }
            users => Err(ResourceError::Busy {
                what: "protection domain",
                users,
                by: "memory regions, memory windows, queue pairs and shared receive queues",
            }),
        }
    }

    pub(crate) fn create_cq(&mut self, producer: CqProducer) -> Result<CqId, ResourceError> {
        self.usable()?;
        if self.host.cqs.len() >= MAX_OBJECTS {
            return Err(ResourceError::Exhausted { what: "completion queue", max: MAX_OBJECTS });
        }
        Ok(CqId(self.host.cqs.insert(Cq { producer, users: 0 })))
    }

    /// Moves a completion queue to new memory; `room` holds the old memory afterwards.
    pub(crate) fn resize_cq(&mut self, cq: CqId, room: &mut CqRoom, cqe: u32) -> Result<(), ResourceError> {
        let entry = self.host.cqs.get_mut(cq.0).ok_or(ResourceError::Unknown { what: "completion queue" })?;
        entry.producer.resize(room).map_err(|waiting| ResourceError::Waiting { waiting, cqe })
    }

    /// Removes unpolled completions of a queue pair from its completion queues; returns their number.
    pub(crate) fn discard_completions(&mut self, qpn: Qpn) -> usize {
        self.links(qpn).map_or(0, |links| self.discard_from(&links, qpn))
    }

    fn discard_from(&mut self, links: &QpLinks, qpn: Qpn) -> usize {
        let cqs = links.cqs().filter_map(|cq| Some(self.host.cqs.get_mut(cq.0)?.producer.discard(qpn)));
        cqs.sum()
    }

    /// Number of objects, of the kinds that [`CQ_USERS`] names, that use this completion queue.
    pub(crate) fn cq_users(&self, cq: CqId) -> usize {
        self.host.cqs.get(cq.0).map_or(0, |entry| entry.users)
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), ResourceError> {
        let Some(entry) = self.host.cqs.get(cq.0) else {
            return Err(ResourceError::Unknown { what: "completion queue" });
        };
        if entry.users > 0 {
            let users = entry.users;
            return Err(ResourceError::Busy { what: "completion queue", users, by: CQ_USERS });
        }
        self.host.cqs.remove(cq.0);
        self.host.events.forget(EventSource::CompletionQueue(cq.0));
        Ok(())
    }

    /// Validates the parameters of a new queue pair; returns the sizes of its queues.
    fn check_qp(&mut self, request: &QpRequest) -> Result<QpCap, ResourceError> {
        self.usable()?;
        if request.qp_type == QpType::Gsi && self.gsi.is_some() {
            return Err(ResourceError::Exhausted { what: "GSI queue pair", max: 1 });
        }
        if request.qp_type == QpType::Gsi && self.connections.is_used() {
            return Err(ResourceError::Qp1Managed);
        }
        if request.qp_type == QpType::Gsi && self.config.share.is_some() {
            return Err(ResourceError::Qp1Shared);
        }
        request.check_parts()?;
        let cap = request.own_queues();
        within("max_send_wr", cap.max_send_wr, 0, MAX_QP_WR)?;
        within("max_recv_wr", cap.max_recv_wr, 0, MAX_QP_WR)?;
        within("max_send_sge", cap.max_send_sge, 0, MAX_SGE)?;
        within("max_recv_sge", cap.max_recv_sge, 0, MAX_SGE)?;
        within("max_inline_data", cap.max_inline_data, 0, MAX_INLINE)?;
        for cq in request.links.cqs() {
            self.host.cq(cq)?;
        }
        if let Some(srq) = request.links.srq
            && !self.host.srqs.is_for_queue_pairs(srq)?
        {
            let rule = "cannot use a queue of an XRC domain: only XRC requests reach it";
            return Err(ResourceError::QpParts { qp_type: request.qp_type, rule });
        }
        if let Some(xrcd) = request.links.xrcd {
            self.host.srqs.users_of(xrcd)?;
        }
        if let Some(pd) = request.pd {
            self.pds.users(pd)?;
        }
        Ok(cap)
    }

    /// Adds a queue pair to the users of its objects, or (`change` is -1) removes it.
    fn count_user(&mut self, pd: PdId, links: QpLinks, change: isize) {
        // All objects were just looked up, except for the placeholder protection domain, which has no user count.
        let count = |users: Result<&mut usize, ResourceError>| {
            if let Ok(users) = users {
                *users = users.saturating_add_signed(change);
            }
        };
        for cq in links.cqs() {
            count(self.host.cq(cq).map(|cq| &mut cq.users));
        }
        if let Some(srq) = links.srq {
            count(self.host.srqs.queue_pairs_of(srq));
        }
        if let Some(xrcd) = links.xrcd {
            count(self.host.srqs.users_of(xrcd));
        }
        count(self.pds.users(pd));
    }

    pub(crate) fn create_qp(&mut self, request: &QpRequest) -> Result<Arc<QpShared>, ResourceError> {
        let cap = self.check_qp(request)?;
        let links = request.links;
        let max = super::numbers::MAX_NUMBERS;
        let (number, index) =
            self.numbers.allocate().ok_or(ResourceError::Exhausted { what: "queue pair", max })?;
        let qpn = if request.qp_type == QpType::Gsi {
            self.gsi = Some(index);
            self.connections.give_way();
            Qpn::GSI
        } else {
            Qpn::new(number)
        };
        let config = QpConfig {
            qpn,
            qp_type: request.qp_type,
            pd: request.pd.unwrap_or(NO_PD),
            cap,
            sq_sig_all: request.sq_sig_all,
            has_srq: links.srq.is_some() || request.qp_type == QpType::XrcRecv,
            least_timeout: self.config.least_timeout,
            tuning: Tuning {
                selective_repeat: request.tuning.selective_repeat
                    && self.partners.offers(Features::SELECTIVE),
                ..request.tuning
            },
        };
        let shared = Arc::new(QpShared::new(config));
        if self.qps.len() <= index {
            self.qps.resize_with(index + 1, || None);
        }
        self.qps[index] = Some(Box::new(QpEntry {
            qp: QueuePair::new(config),
            shared: Arc::clone(&shared),
            links,
            path: None,
            flights: super::Flights::default(),
            taken: super::Taken::default(),
            last_sent: None,
            last_to: None,
            foreign_cnp: None,
            alarm: super::schedule::Alarm::default(),
            flow: None,
            notifier: None,
            returns: None,
            explained: super::explain::Explained::default(),
        }));
        self.live += 1;
        self.count_user(config.pd, links, 1);
        Ok(shared)
    }

    /// Destroys a queue pair: outstanding work requests end without a completion (IBTA 11.2.5.4). A queue pair that is
    /// attached to a multicast group is in use (IBTA o10-2.2.3).
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ResourceError> {
        let index = self.index(qpn).ok_or(ResourceError::Unknown { what: "queue pair" })?;
        let users = self.groups.of(index).count();
        if users > 0 {
            return Err(ResourceError::Busy { what: "queue pair", users, by: "multicast groups" });
        }
        self.disconnect(index);
        let Some(mut entry) = self.qps[index].take() else {
            return Err(ResourceError::Unknown { what: "queue pair" });
        };
        if self.gsi == Some(index) {
            self.gsi = None;
        }
        self.note_follower(qpn, None);
        self.departed.add(entry.qp.counters());
        self.count_user(entry.qp.config().pd, entry.links, -1);
        self.host.regions.unbind_all_of(qpn);
        self.host.events.forget(EventSource::QueuePair(qpn));
        self.numbers.release(index);
        self.live -= 1;
        entry.taken.settle([0; 2], &entry.shared);
        Ok(())
    }

    /// Destroys a queue pair, and removes its unpolled completions; returns their number.
    pub(crate) fn destroy_qp_and_completions(&mut self, qpn: Qpn) -> Result<usize, ResourceError> {
        let links = self.links(qpn);
        self.destroy_qp(qpn)?;
        // The queue pair no longer uses its completion queues.
        Ok(links.map_or(0, |links| self.discard_from(&links, qpn)))
    }

    /// Number of existing queue pairs.
    #[must_use]
    pub fn qp_count(&self) -> usize {
        self.live
    }
}
