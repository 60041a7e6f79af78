//! What surrounds queue pairs: memory, completion queues and events.

use crate::memory::RegionTable;
use crate::queue::{CqProducer, CqShared, Direction, Pushed, QpShared};
use qp::memory::{Bind, BindError, NoSharedRecv, QpEvent, SharedRecv};
use qp::{Access, AccessError, AtomicOp, Domain, Host, Memory, QpState, Qpn, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::sync::Arc;

/// A completion queue of this port, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CqId(pub(crate) usize);

/// Something that the program should hear of and that is not a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// An event of a queue pair.
    QueuePair(Qpn, QpEvent),
    /// A completion queue overran: completions were lost. Counted by its number in the port.
    CompletionQueueError(usize),
}

/// How many events may wait to be read before the oldest is lost: nobody reads them in most programs.
const MAX_EVENTS: usize = 1024;

/// A completion queue, as the engine holds it.
pub(crate) struct Cq {
    pub(crate) producer: CqProducer,
    /// Queue pairs that complete here.
    pub(crate) users: usize,
}

/// What the queue pairs of a port share.
pub(crate) struct HostState {
    pub(crate) regions: RegionTable,
    pub(crate) cqs: slab::Slab<Cq>,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Completion queues whose channel wants to be told.
    pub(crate) notify: Vec<Arc<CqShared>>,
    /// Completion queues that overran since the engine last looked.
    pub(crate) overrun: Vec<CqId>,
}

impl HostState {
    pub(crate) fn new(regions: RegionTable) -> Self {
        Self {
            regions,
            cqs: slab::Slab::new(),
            events: VecDeque::new(),
            notify: Vec::new(),
            overrun: Vec::new(),
        }
    }

    /// The surroundings of one queue pair. `accepted` counts the work requests in its queues that hold a place.
    pub(crate) fn of<'a>(
        &'a mut self,
        send_cq: CqId,
        recv_cq: CqId,
        shared: &'a QpShared,
        accepted: &'a mut [u32; 2],
    ) -> QpHost<'a> {
        QpHost { state: self, send_cq, recv_cq, shared, accepted }
    }

    pub(crate) fn push_event(&mut self, event: AsyncEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn complete(&mut self, cq: CqId, qp: &QpShared, completion: WorkCompletion, wakes: bool) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        let already = queue.producer.shared.is_overrun();
        match queue.producer.push(completion, wakes) {
            Pushed::Quiet => {}
            Pushed::Notify => self.notify.push(Arc::clone(&queue.producer.shared)),
            Pushed::Overrun if already && qp.state() == QpState::Err => {}
            Pushed::Overrun => {
                // A queue pair that was in RESET when the queue overran, or made later, fails once it loses one too.
                if !self.overrun.contains(&cq) {
                    self.overrun.push(cq);
                }
                if !already {
                    self.notify.push(Arc::clone(&queue.producer.shared));
                    self.push_event(AsyncEvent::CompletionQueueError(cq.0));
                }
            }
        }
    }
}

/// The surroundings of one queue pair, while it is at work.
pub(crate) struct QpHost<'a> {
    state: &'a mut HostState,
    send_cq: CqId,
    recv_cq: CqId,
    shared: &'a QpShared,
    accepted: &'a mut [u32; 2],
}

impl QpHost<'_> {
    fn release(&mut self, direction: Direction) {
        let accepted = &mut self.accepted[direction as usize];
        *accepted = accepted.wrapping_sub(1);
        self.shared.finish(direction, 1);
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
        let wakes = completion.status != WcStatus::Success;
        self.state.complete(self.send_cq, self.shared, completion, wakes);
    }

    fn complete_recv(&mut self, _xrc_srq: Option<u32>, completion: WorkCompletion, solicited: bool) {
        let wakes = solicited || completion.status != WcStatus::Success;
        self.state.complete(self.recv_cq, self.shared, completion, wakes);
    }

    fn release_send(&mut self) {
        self.release(Direction::Send);
    }

    fn release_recv(&mut self) {
        self.release(Direction::Recv);
    }

    fn event(&mut self, qpn: Qpn, event: QpEvent) {
        self.state.push_event(AsyncEvent::QueuePair(qpn, event));
    }

    fn take_shared_recv(&mut self, _xrc_srq: Option<u32>) -> Result<SharedRecv, NoSharedRecv> {
        Err(NoSharedRecv::Unknown)
    }
}
