//! Protection domains, memory regions, completion queues and queue pairs come and go.

use super::host::Cq;
use super::{CqId, Engine, QpEntry};
use crate::device::DeviceAttr;
use crate::memory::{BufferError, Keys, MemoryBuffer, RegisterError};
use crate::queue::{CqProducer, CqRoom, Direction, QpShared};
use qp::queue_pair::QpConfig;
use qp::{Access, PdId, QpCap, QpType, Qpn, QueuePair};
use std::sync::Arc;
use thiserror::Error;

/// Largest queue sizes; those of Linux rxe and mlx5 are of this order.
pub(crate) const MAX_QP_WR: u32 = 1 << 14;
/// Scatter/gather elements of a work request, as in Linux rxe.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline data: the 512 of Linux rxe, which perftest's largest inline size fits.
pub(crate) const MAX_INLINE: u32 = 512;
/// Completion queue entries: 2^22 less one, as mlx5 reports.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// Completion queues, and protection domains, of a port.
pub(crate) const MAX_OBJECTS: usize = 1 << 16;

/// Memory regions, as in Linux rxe.
pub(crate) const MAX_MR: u32 = 1 << 20;

/// What a device can do. Every figure is one that this module enforces.
pub(crate) fn device_attr() -> DeviceAttr {
    let limits = qp::attr::Limits::default();
    DeviceAttr {
        max_qp: u32::try_from(super::numbers::MAX_QPS).unwrap_or(u32::MAX),
        max_qp_wr: MAX_QP_WR,
        max_sge: MAX_SGE,
        max_inline_data: MAX_INLINE,
        max_cq: MAX_OBJECTS as u32,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        // A message is 2^31 bytes at most, a region may hold many.
        max_mr_size: u64::MAX >> 1,
        max_pd: MAX_OBJECTS as u32,
        max_qp_rd_atom: u32::from(limits.max_dest_rd_atomic),
        max_qp_init_rd_atom: u32::from(limits.max_rd_atomic),
        max_pkeys: limits.pkeys,
        phys_port_cnt: limits.ports,
    }
}

/// Why an object could not be created or destroyed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ResourceError {
    /// A size outside the device's bounds.
    #[error("{what} is {given}; this device takes {min} to {max}")]
    Size {
        /// What was asked for.
        what: &'static str,
        /// As given.
        given: u32,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// The device has no more of them.
    #[error("the device has no {what} left: all {max} are in use")]
    Exhausted {
        /// What was asked for.
        what: &'static str,
        /// How many there are.
        max: usize,
    },
    /// The object is in use.
    #[error("the {what} is still in use by {by} ({users})")]
    Busy {
        /// What was to be destroyed.
        what: &'static str,
        /// How many users.
        users: usize,
        /// What they are.
        by: &'static str,
    },
    /// A completion queue that is to become smaller than what waits in it.
    #[error("{waiting} completions wait to be polled, and {cqe} entries do not hold them: poll first")]
    Waiting {
        /// How many wait.
        waiting: usize,
        /// The size asked for.
        cqe: u32,
    },
    /// The host has no memory for it.
    #[error("no memory for a {what} of {entries} entries")]
    NoMemory {
        /// What was asked for.
        what: &'static str,
        /// How many entries.
        entries: u32,
    },
    /// The object belongs to another device, or is gone.
    #[error("the {what} does not belong to this device, or is gone")]
    Unknown {
        /// Which object.
        what: &'static str,
    },
    /// An address that cannot be reached from this port.
    #[error("the address vector cannot be used: {why}")]
    Address {
        /// What is wrong with it.
        why: &'static str,
    },
    /// This device does not offer that.
    #[error("{what} is not supported by this device")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
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
    fn users(&mut self, pd: PdId) -> Result<&mut usize, ResourceError> {
        self.table.get_mut(pd.0 as usize).ok_or(ResourceError::Unknown { what: "protection domain" })
    }
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRequest {
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdId,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) tuning: qp::queue_pair::Tuning,
}

fn within(what: &'static str, given: u32, min: u32, max: u32) -> Result<(), ResourceError> {
    if (min..=max).contains(&given) { Ok(()) } else { Err(ResourceError::Size { what, given, min, max }) }
}

/// The completion queues of a queue pair, which may be one and the same.
fn each_once(send: CqId, recv: CqId) -> impl Iterator<Item = CqId> {
    [Some(send), (recv != send).then_some(recv)].into_iter().flatten()
}

/// Room for the completions of a queue of `cqe` entries.
pub(crate) fn completion_room(cqe: u32) -> Result<CqRoom, ResourceError> {
    within("cqe", cqe, 1, MAX_CQE)?;
    CqRoom::new(cqe).map_err(|_| ResourceError::NoMemory { what: "completion queue", entries: cqe })
}

impl Engine {
    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, ResourceError> {
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
                by: "memory regions and queue pairs",
            }),
        }
    }

    /// Registers a buffer under its own addresses.
    pub(crate) fn register(
        &mut self,
        pd: PdId,
        buffer: &Arc<MemoryBuffer>,
        access: Access,
    ) -> Result<Keys, ResourceError> {
        self.pds.users(pd)?;
        let keys = self.host.regions.register_buffer(pd, Arc::clone(buffer), access)?;
        *self.pds.users(pd)? += 1;
        Ok(keys)
    }

    /// Takes a region away from its key. No copy is under way: the engine is between two batches.
    pub(crate) fn deregister(&mut self, pd: PdId, key: u32) -> Result<(), ResourceError> {
        if self.host.regions.deregister(key).is_none() {
            return Err(ResourceError::Unknown { what: "memory region" });
        }
        if let Ok(users) = self.pds.users(pd) {
            *users = users.saturating_sub(1);
        }
        Ok(())
    }

    pub(crate) fn create_cq(&mut self, producer: CqProducer) -> Result<CqId, ResourceError> {
        if self.host.cqs.len() >= MAX_OBJECTS {
            return Err(ResourceError::Exhausted { what: "completion queue", max: MAX_OBJECTS });
        }
        Ok(CqId(self.host.cqs.insert(Cq { producer, users: 0 })))
    }

    /// Moves a completion queue to other room; `room` is the old one then.
    pub(crate) fn resize_cq(&mut self, cq: CqId, room: &mut CqRoom, cqe: u32) -> Result<(), ResourceError> {
        let entry = self.host.cqs.get_mut(cq.0).ok_or(ResourceError::Unknown { what: "completion queue" })?;
        entry.producer.resize(room).map_err(|waiting| ResourceError::Waiting { waiting, cqe })
    }

    /// Queue pairs that complete to this queue.
    pub(crate) fn cq_users(&self, cq: CqId) -> usize {
        self.host.cqs.get(cq.0).map_or(0, |entry| entry.users)
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), ResourceError> {
        let Some(entry) = self.host.cqs.get(cq.0) else {
            return Err(ResourceError::Unknown { what: "completion queue" });
        };
        if entry.users > 0 {
            let users = entry.users;
            return Err(ResourceError::Busy { what: "completion queue", users, by: "queue pairs" });
        }
        self.host.cqs.remove(cq.0);
        Ok(())
    }

    pub(crate) fn create_qp(&mut self, request: &QpRequest) -> Result<Arc<QpShared>, ResourceError> {
        if request.qp_type != QpType::Rc {
            return Err(ResourceError::Unsupported { what: "this type of queue pair" });
        }
        within("max_send_wr", request.cap.max_send_wr, 0, MAX_QP_WR)?;
        within("max_recv_wr", request.cap.max_recv_wr, 0, MAX_QP_WR)?;
        within("max_send_sge", request.cap.max_send_sge, 0, MAX_SGE)?;
        within("max_recv_sge", request.cap.max_recv_sge, 0, MAX_SGE)?;
        within("max_inline_data", request.cap.max_inline_data, 0, MAX_INLINE)?;
        for cq in [request.send_cq, request.recv_cq] {
            if !self.host.cqs.contains(cq.0) {
                return Err(ResourceError::Unknown { what: "completion queue" });
            }
        }
        self.pds.users(request.pd)?;
        let (qpn, index) = self
            .numbers
            .allocate()
            .ok_or(ResourceError::Exhausted { what: "queue pair", max: super::numbers::MAX_QPS })?;
        let config = QpConfig {
            qpn,
            qp_type: request.qp_type,
            pd: request.pd,
            cap: request.cap,
            sq_sig_all: request.sq_sig_all,
            has_srq: false,
            tuning: request.tuning,
        };
        let shared = Arc::new(QpShared::new(config));
        if self.qps.len() <= index {
            self.qps.resize_with(index + 1, || None);
        }
        self.qps[index] = Some(Box::new(QpEntry {
            qp: QueuePair::new(config),
            shared: Arc::clone(&shared),
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            remote: None,
            flights: super::Flights::default(),
            accepted: [0; 2],
            ready: false,
            waiting: false,
            called: false,
            turn: 0,
            timer: None,
        }));
        self.live += 1;
        for cq in each_once(request.send_cq, request.recv_cq) {
            self.host.cqs[cq.0].users += 1;
        }
        *self.pds.users(request.pd)? += 1;
        Ok(shared)
    }

    /// Destroys a queue pair: what is outstanding ends without a completion (IBTA 11.2.5.4).
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ResourceError> {
        let index = self.index(qpn).ok_or(ResourceError::Unknown { what: "queue pair" })?;
        let Some(mut entry) = self.qps[index].take() else {
            return Err(ResourceError::Unknown { what: "queue pair" });
        };
        self.departed.add(entry.qp.counters());
        if let Some(remote) = entry.remote {
            let freed = entry.flights.clear();
            let peer = self.peers.get_mut(remote.peer);
            peer.window.give_back(freed);
            peer.waiting.retain(|waiting| *waiting != index);
            self.call_waiting(remote.peer);
            self.peers.leave(remote.peer);
        }
        self.ready.retain(|ready| *ready != index);
        for cq in each_once(entry.send_cq, entry.recv_cq) {
            self.host.cqs[cq.0].users -= 1;
        }
        if let Ok(users) = self.pds.users(entry.qp.config().pd) {
            *users = users.saturating_sub(1);
        }
        self.numbers.release(index);
        self.live -= 1;
        for direction in [Direction::Send, Direction::Recv] {
            entry.shared.finish(direction, entry.accepted[direction as usize]);
        }
        Ok(())
    }

    /// Queue pairs that exist.
    #[must_use]
    pub fn qp_count(&self) -> usize {
        self.live
    }
}
