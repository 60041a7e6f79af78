//! Shared receive queues and XRC domains.

use super::numbers::{MAX_NUMBERS, Numbers};
use super::resources::{MAX_OBJECTS, MAX_SGE, within};
use super::{AsyncEvent, CqId, Engine, EventSource, ResourceError};
use crate::queue::SrqShared;
use crate::verbs::srq::{SrqAttr, SrqInit, SrqModify};
use qp::memory::{NoSharedRecv, SharedRecv};
use qp::{PdId, RecvWr};
use std::collections::VecDeque;
use std::sync::Arc;

/// Shared receive queues of a port.
pub(crate) const MAX_SRQ: usize = MAX_NUMBERS;
/// Work requests in a shared receive queue: mlx5 reports 2^15 less one.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 15;
/// Scatter/gather elements of a work request in a shared receive queue: as in any receive queue.
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;

/// A shared receive queue of this port, by its index in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SrqId(usize);

/// An XRC domain of this port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct XrcdId(usize);

/// The additional properties of a shared receive queue that XRC requests can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct XrcPart {
    /// The XRC domain; only its queue pairs can use the shared receive queue.
    pub(crate) xrcd: XrcdId,
    /// The completion queue for its receives.
    pub(crate) cq: CqId,
}

/// A shared receive queue, as the engine holds it.
struct Srq {
    shared: Arc<SrqShared>,
    pd: PdId,
    /// Work requests taken from the program's threads, oldest first.
    recvs: VecDeque<RecvWr>,
    /// If fewer work requests than this are outstanding, an event is due; 0: no event is requested.
    limit: u32,
    xrc: Option<XrcPart>,
    /// Queue pairs that receive through it.
    users: usize,
    /// Whether its completion queue overran.
    failed: bool,
}

impl Srq {
    /// Returns whether the limit event is due. This disarms the limit (IBTA 11.6.3).
    fn reached_limit(&mut self) -> bool {
        // A limit of 0 is never reached.
        let reached = self.shared.outstanding() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

/// The shared receive queues of a port, and its XRC domains.
pub(crate) struct SrqTable {
    numbers: Numbers,
    table: Vec<Option<Box<Srq>>>,
    live: usize,
    /// XRC domains, with the number of objects in each.
    xrcds: slab::Slab<usize>,
}

const UNKNOWN: ResourceError = ResourceError::Unknown { what: "shared receive queue" };

impl SrqTable {
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self { numbers, table: Vec::new(), live: 0, xrcds: slab::Slab::new() }
    }

    fn get(&self, id: SrqId) -> Option<&Srq> {
        self.table.get(id.0)?.as_deref()
    }

    fn get_mut(&mut self, id: SrqId) -> Option<&mut Srq> {
        self.table.get_mut(id.0)?.as_deref_mut()
    }

    /// The queue that an XRC request names, if it belongs to the queue pair's XRC domain.
    fn named(&self, number: u32, xrcd: XrcdId) -> Option<(SrqId, &Srq)> {
        let id = SrqId(self.numbers.index(number)?);
        let srq = self.get(id)?;
        srq.xrc.is_some_and(|xrc| xrc.xrcd == xrcd).then_some((id, srq))
    }

    /// The queue with this number in an XRC domain.
    pub(crate) fn find(&self, number: u32, xrcd: XrcdId) -> Option<SrqId> {
        self.named(number, xrcd).map(|(id, _)| id)
    }

    /// The completion queue of the queue with this number.
    pub(crate) fn cq(&self, number: u32, xrcd: XrcdId) -> Option<CqId> {
        self.named(number, xrcd)?.1.xrc.map(|xrc| xrc.cq)
    }

    /// The protection domain of the queue with this number.
    pub(crate) fn pd(&self, number: u32, xrcd: XrcdId) -> Option<PdId> {
        self.named(number, xrcd).map(|(_, srq)| srq.pd)
    }

    /// Takes the oldest work request, and returns whether this caused an event.
    pub(crate) fn take(&mut self, id: SrqId) -> Result<(SharedRecv, Option<AsyncEvent>), NoSharedRecv> {
        let Some(srq) = self.get_mut(id) else { return Err(NoSharedRecv::Unknown) };
        if srq.failed {
            return Err(NoSharedRecv::Failed);
        }
        if srq.recvs.is_empty() {
            srq.shared.collect_all(&mut srq.recvs);
        }
        let Some(wr) = srq.recvs.pop_front() else { return Err(NoSharedRecv::Empty) };
        srq.shared.finish_one();
        let event = srq.reached_limit().then(|| AsyncEvent::SrqLimitReached(srq.shared.number));
        Ok((SharedRecv { wr, pd: srq.pd }, event))
    }

    /// Marks the queues of an overrun completion queue as failed: their completions would be lost. Returns their
    /// numbers.
    pub(crate) fn fail_of(&mut self, cq: CqId) -> Vec<u32> {
        let all = self.table.iter_mut().flatten();
        let theirs = all.filter(|srq| !srq.failed && srq.xrc.is_some_and(|xrc| xrc.cq == cq));
        theirs
            .map(|srq| {
                srq.failed = true;
                srq.shared.number
            })
            .collect()
    }

    /// Number of queue pairs that receive through a queue.
    pub(crate) fn queue_pairs_of(&mut self, id: SrqId) -> Result<&mut usize, ResourceError> {
        self.get_mut(id).map(|srq| &mut srq.users).ok_or(UNKNOWN)
    }

    /// Returns whether queue pairs of types other than XRC_RECV can receive through the queue.
    pub(crate) fn is_for_queue_pairs(&self, id: SrqId) -> Result<bool, ResourceError> {
        self.get(id).map(|srq| srq.xrc.is_none()).ok_or(UNKNOWN)
    }

    /// Number of objects in an XRC domain.
    pub(crate) fn users_of(&mut self, xrcd: XrcdId) -> Result<&mut usize, ResourceError> {
        self.xrcds.get_mut(xrcd.0).ok_or(ResourceError::Unknown { what: "XRC domain" })
    }
}

impl Engine {
    /// Allocates an XRC domain.
    pub(crate) fn open_xrcd(&mut self) -> Result<XrcdId, ResourceError> {
        self.usable()?;
        let xrcds = &mut self.host.srqs.xrcds;
        if xrcds.len() >= MAX_OBJECTS {
            return Err(ResourceError::Exhausted { what: "XRC domain", max: MAX_OBJECTS });
        }
        Ok(XrcdId(xrcds.insert(0)))
    }

    /// Deallocates an XRC domain that is not in use.
    pub(crate) fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<(), ResourceError> {
        match *self.host.srqs.users_of(xrcd)? {
            0 => {
                self.host.srqs.xrcds.remove(xrcd.0);
                Ok(())
            }
            users => Err(ResourceError::Busy {
                what: "XRC domain",
                users,
                by: "queue pairs and shared receive queues",
            }),
        }
    }

    /// Creates a shared receive queue.
    pub(crate) fn create_srq(
        &mut self,
        pd: PdId,
        init: &SrqInit,
        xrc: Option<XrcPart>,
    ) -> Result<(SrqId, Arc<SrqShared>), ResourceError> {
        within("max_wr", init.max_wr, 1, MAX_SRQ_WR)?;
        within("max_sge", init.max_sge, 0, MAX_SRQ_SGE)?;
        within("srq_limit", init.limit, 0, init.max_wr)?;
        self.usable()?;
        self.pds.users(pd)?;
        if let Some(XrcPart { xrcd, cq }) = xrc {
            self.host.srqs.users_of(xrcd)?;
            self.host.cq(cq)?;
        }
        let full = ResourceError::Exhausted { what: "shared receive queue", max: MAX_SRQ };
        let srqs = &mut self.host.srqs;
        if srqs.live >= MAX_SRQ {
            return Err(full);
        }
        let (number, index) = srqs.numbers.allocate().ok_or(full)?;
        let shared = Arc::new(SrqShared::new(number, init.max_wr, init.max_sge));
        if srqs.table.len() <= index {
            srqs.table.resize_with(index + 1, || None);
        }
        srqs.table[index] = Some(Box::new(Srq {
            shared: Arc::clone(&shared),
            pd,
            recvs: VecDeque::new(),
            limit: init.limit,
            xrc,
            users: 0,
            failed: false,
        }));
        srqs.live += 1;
        *self.pds.users(pd)? += 1;
        if let Some(XrcPart { xrcd, cq }) = xrc {
            *self.host.srqs.users_of(xrcd)? += 1;
            self.host.cq(cq)?.users += 1;
        }
        Ok((SrqId(index), shared))
    }

    /// Destroys a shared receive queue that no queue pair uses: its work requests end without a completion.
    pub(crate) fn destroy_srq(&mut self, id: SrqId) -> Result<(), ResourceError> {
        let srqs = &mut self.host.srqs;
        let users = srqs.get(id).ok_or(UNKNOWN)?.users;
        if users > 0 {
            return Err(ResourceError::Busy { what: "shared receive queue", users, by: "queue pairs" });
        }
        let srq = srqs.table[id.0].take().ok_or(UNKNOWN)?;
        srq.shared.set_destroyed();
        srqs.numbers.release(id.0);
        srqs.live -= 1;
        self.host.events.forget(EventSource::SharedReceiveQueue(srq.shared.number));
        if let Ok(users) = self.pds.users(srq.pd) {
            *users = users.saturating_sub(1);
        }
        if let Some(XrcPart { xrcd, cq }) = srq.xrc {
            *self.host.srqs.users_of(xrcd)? -= 1;
            self.host.cq(cq)?.users -= 1;
        }
        Ok(())
    }

    /// Modifies size and limit of a shared receive queue: both or neither.
    pub(crate) fn modify_srq(&mut self, id: SrqId, change: &SrqModify) -> Result<(), ResourceError> {
        self.usable()?;
        let srq = self.host.srqs.get_mut(id).ok_or(UNKNOWN)?;
        let max_wr = change.max_wr.unwrap_or_else(|| srq.shared.max_wr());
        let limit = change.limit.unwrap_or(srq.limit);
        within("max_wr", max_wr, 1, MAX_SRQ_WR)?;
        within("srq_limit", limit, 0, max_wr)?;
        if change.max_wr.is_some() {
            srq.shared.resize(max_wr).map_err(|outstanding| ResourceError::Size {
                what: "max_wr",
                given: max_wr,
                min: outstanding,
                max: MAX_SRQ_WR,
            })?;
        }
        srq.limit = limit;
        // The queue may already be below the limit, and no message may take another request from it: then the event is
        // due now.
        if change.limit.is_some() && srq.reached_limit() {
            let event = AsyncEvent::SrqLimitReached(srq.shared.number);
            self.host.events.push(event);
        }
        Ok(())
    }

    /// Size and limit of a shared receive queue; the limit is 0 once its event was delivered.
    pub(crate) fn query_srq(&self, id: SrqId) -> Result<SrqAttr, ResourceError> {
        let srq = self.host.srqs.get(id).ok_or(UNKNOWN)?;
        Ok(SrqAttr { max_wr: srq.shared.max_wr(), max_sge: srq.shared.max_sge, limit: srq.limit })
    }
}

#[cfg(test)]
mod tests;
