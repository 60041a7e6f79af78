//! The environment of queue pairs: memory, completion queues and events.

use super::ResourceError;
use super::events::{AsyncEvent, EventQueue};
use super::srq::{SrqId, SrqTable, XrcdId};
use crate::memory::RegionTable;
use crate::queue::{CqProducer, CqShared, Pushed, QpShared, WorkQueue};
use crate::reasons::{self, Reason};
use qp::memory::{Bind, BindError, NoSharedRecv, QpEvent, SharedRecv};
use qp::queue_pair::Notice;
use qp::{Access, AccessError, AtomicOp, Domain, Host, Memory, PdId, QpState, Qpn, WcStatus, WorkCompletion};
use std::sync::Arc;

/// A completion queue of this port, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CqId(pub(crate) usize);

/// A completion queue, as the engine holds it.
pub(crate) struct Cq {
    pub(crate) producer: CqProducer,
    /// Queue pairs and shared receive queues that use it.
    pub(crate) users: usize,
}

/// The objects that a queue pair is created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QpLinks {
    /// The send completion queue.
    pub(crate) send_cq: Option<CqId>,
    /// The receive completion queue.
    pub(crate) recv_cq: Option<CqId>,
    /// The shared receive queue, unless the queue pair has a receive queue of its own.
    pub(crate) srq: Option<SrqId>,
    /// The XRC domain, whose shared receive queues requests may name.
    pub(crate) xrcd: Option<XrcdId>,
}

impl QpLinks {
    /// Its completion queues; one that serves both directions appears once.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = CqId> {
        let recv_cq = self.recv_cq.filter(|_| self.recv_cq != self.send_cq);
        [self.send_cq, recv_cq].into_iter().flatten()
    }
}

/// State shared by the queue pairs of a port.
pub(crate) struct PortObjects {
    pub(crate) regions: RegionTable,
    pub(crate) srqs: SrqTable,
    pub(crate) cqs: slab::Slab<Cq>,
    pub(crate) events: EventQueue,
    /// Completion queues whose completion channel is to be notified.
    pub(crate) notify: Vec<Arc<CqShared>>,
    /// Completion queues that overran since the engine last checked.
    pub(crate) overrun: Vec<CqId>,
}

impl PortObjects {
    pub(crate) fn new(regions: RegionTable, srqs: SrqTable) -> Self {
        Self {
            regions,
            srqs,
            cqs: slab::Slab::new(),
            events: EventQueue::default(),
            notify: Vec::new(),
            overrun: Vec::new(),
        }
    }

    /// The environment of one queue pair.
    pub(crate) fn of<'a>(
        &'a mut self,
        links: &'a QpLinks,
        shared: &'a QpShared,
        taken: &'a mut Taken,
    ) -> QpHost<'a> {
        QpHost { state: self, links, shared, taken, pkey_index: 0 }
    }

    /// Looks up a completion queue.
    pub(crate) fn cq(&mut self, cq: CqId) -> Result<&mut Cq, ResourceError> {
        self.cqs.get_mut(cq.0).ok_or(ResourceError::Unknown { what: "completion queue" })
    }

    /// Delivers a completion; without a completion queue, it is discarded.
    fn complete(&mut self, cq: Option<CqId>, qp: &QpShared, completion: WorkCompletion, wakes: bool) {
        let Some(cq) = cq else { return };
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        let already = queue.producer.shared.is_overrun();
        match queue.producer.push(completion, wakes) {
            Pushed::Quiet => {}
            Pushed::Notify => self.notify.push(Arc::clone(&queue.producer.shared)),
            Pushed::Overrun if already && qp.state() == QpState::Err => {}
            Pushed::Overrun => {
                // A queue pair that was in RESET when the queue overran, or was created later, fails once it loses a
                // completion too.
                if !self.overrun.contains(&cq) {
                    self.overrun.push(cq);
                }
                if !already {
                    self.notify.push(Arc::clone(&queue.producer.shared));
                    self.events.push(AsyncEvent::CompletionQueueError(cq.0));
                }
            }
        }
    }
}

/// The places in the queues of a queue pair that its work requests take.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Per queue.
    places: [u32; 2],
    /// Those of send requests that have left the queue. The program does not know of them before it finds a completion, so
    /// they are released before the next one, or once the queue pair is settled: many at once.
    left: u32,
}

impl Taken {
    /// A work request takes a place.
    pub(super) fn add(&mut self, queue: WorkQueue) {
        let taken = &mut self.places[queue as usize];
        *taken = taken.wrapping_add(1);
    }

    /// Releases all places but those of the `outstanding` work requests that are in the queues.
    pub(super) fn settle(&mut self, outstanding: [usize; 2], shared: &QpShared) {
        self.left = 0;
        for (queue, outstanding) in [WorkQueue::Send, WorkQueue::Recv].into_iter().zip(outstanding) {
            let taken = &mut self.places[queue as usize];
            let finished = taken.wrapping_sub(u32::try_from(outstanding).unwrap_or(u32::MAX));
            if finished > 0 {
                shared.finish(queue, finished);
                *taken = taken.wrapping_sub(finished);
            }
        }
    }
}

/// The environment of one queue pair during an operation.
pub(crate) struct QpHost<'a> {
    state: &'a mut PortObjects,
    links: &'a QpLinks,
    shared: &'a QpShared,
    taken: &'a mut Taken,
    /// Index of the port's P_Key that the current packet carries, for QP1; 0 for others.
    pub(super) pkey_index: u16,
}

impl QpHost<'_> {
    fn release(&mut self, queue: WorkQueue, count: u32) {
        let taken = &mut self.taken.places[queue as usize];
        *taken = taken.wrapping_sub(count);
        self.shared.finish(queue, count);
    }
}

impl Memory for QpHost<'_> {
    fn check(&self, domain: Domain, key: u32, va: u64, len: u64, access: Access) -> Result<(), AccessError> {
        self.state.regions.check(domain, key, va, len, access)
    }

    fn read(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        self.state.regions.read(domain, key, va, access, out)
    }

    fn read_summed(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
        crc: u32,
    ) -> Result<u32, AccessError> {
        self.state.regions.read_summed(domain, key, va, access, out, crc)
    }

    fn write(
        &mut self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        data: &[u8],
    ) -> Result<(), AccessError> {
        self.state.regions.write(domain, key, va, access, data)
    }

    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.state.regions.atomic(domain, key, va, op)
    }

    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.state.regions.flush(domain, key, range, access)
    }

    fn bind(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError> {
        self.state.regions.bind(domain, bind)
    }

    fn invalidate(&mut self, domain: Domain, key: u32) -> Result<(), AccessError> {
        self.state.regions.invalidate(domain, key)
    }
}

impl Host for QpHost<'_> {
    fn complete_send(&mut self, completion: WorkCompletion) {
        let left = std::mem::take(&mut self.taken.left);
        self.release(WorkQueue::Send, left);
        let wakes = completion.status != WcStatus::Success;
        self.state.complete(self.links.send_cq, self.shared, completion, wakes);
    }

    fn complete_recv(&mut self, xrc_srq: Option<u32>, mut completion: WorkCompletion, solicited: bool) {
        completion.pkey_index = self.pkey_index;
        let wakes = solicited || completion.status != WcStatus::Success;
        let cq = match xrc_srq {
            None => self.links.recv_cq,
            // `None` if the queue was destroyed while a message was being received into one of its buffers.
            Some(number) => self.links.xrcd.and_then(|xrcd| self.state.srqs.cq(number, xrcd)),
        };
        self.state.complete(cq, self.shared, completion, wakes);
    }

    fn release_send(&mut self) {
        self.taken.left += 1;
    }

    fn release_recv(&mut self) {
        self.release(WorkQueue::Recv, 1);
    }

    fn event(&mut self, qpn: Qpn, event: QpEvent) {
        self.state.events.push(AsyncEvent::QueuePair(qpn, event));
    }

    fn notice(&mut self, notice: Notice) {
        let qpn = self.shared.config.qpn;
        tracing::trace!(qp = %qpn, %notice, "a datagram is lost");
        if reasons::are_wanted() && self.shared.notices_first() {
            reasons::report(Reason::Other("lost messages", format_args!("queue pair {qpn}: {notice}")));
        }
    }

    fn take_shared_recv(&mut self, xrc_srq: Option<u32>) -> Result<SharedRecv, NoSharedRecv> {
        let srq = match xrc_srq {
            None => self.links.srq,
            Some(number) => self.links.xrcd.and_then(|xrcd| self.state.srqs.find(number, xrcd)),
        };
        let (recv, event) = self.state.srqs.take(srq.ok_or(NoSharedRecv::Unknown)?)?;
        if let Some(event) = event {
            self.state.events.push(event);
        }
        Ok(recv)
    }

    fn xrc_pd(&self, xrc_srq: u32) -> Option<PdId> {
        self.links.xrcd.and_then(|xrcd| self.state.srqs.pd(xrc_srq, xrcd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::numbers::Numbers;
    use crate::memory::KeySource;
    use qp::queue_pair::{QpConfig, Tuning};
    use qp::{Gather, Operation, QpCap, QpType, SendWr};

    /// Whoever finds the completion of a request posts again: the places of those before it are free by then.
    #[test]
    fn places_are_free_before_the_program_can_know_of_it() {
        let cap = QpCap { max_send_wr: 3, ..QpCap::default() };
        let shared = QpShared::new(QpConfig {
            qpn: Qpn::new(5),
            qp_type: QpType::Rc,
            pd: PdId(1),
            cap,
            sq_sig_all: false,
            has_srq: false,
            least_timeout: 0,
            tuning: Tuning::default(),
        });
        shared.set_state(QpState::Rts);
        let send = SendWr::new(1, Operation::Send { imm: None, invalidate: None }, Gather::Empty);
        let regions = RegionTable::new(1, KeySource::Seed([0; 32]));
        let mut objects = PortObjects::new(regions, SrqTable::new(Numbers::new(0, None)));
        let (links, mut taken) = (QpLinks::default(), Taken::default());
        for _ in 0..3 {
            shared.reserve_send(&send).expect("room");
            taken.add(WorkQueue::Send);
        }
        // Two leave, in two calls, and nobody can know of it.
        for _ in 0..2 {
            objects.of(&links, &shared, &mut taken).release_send();
        }
        shared.reserve_send(&send).expect_err("no room yet");
        objects.of(&links, &shared, &mut taken).complete_send(WorkCompletion::default());
        for _ in 0..2 {
            shared.reserve_send(&send).expect("the two places are free");
            taken.add(WorkQueue::Send);
        }
        shared.reserve_send(&send).expect_err("no more than two");
        // The third leaves without a completion, and is settled.
        objects.of(&links, &shared, &mut taken).release_send();
        taken.settle([2, 0], &shared);
        shared.reserve_send(&send).expect("its place");
        shared.reserve_send(&send).expect_err("only its place");
        taken.add(WorkQueue::Send);
        objects.of(&links, &shared, &mut taken).complete_send(WorkCompletion::default());
        shared.reserve_send(&send).expect_err("no place is freed twice");
    }
}
