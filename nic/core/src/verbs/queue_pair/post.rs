//! Posting work requests.

use super::QueuePair;
use crate::engine::ResourceError;
use crate::error::{Error, Result};
use crate::queue::{QpShared, Work, WorkQueue};
use crate::verbs::address_handle::AddressHandle;
use qp::queue_pair::PostError;
use qp::{Gather, Operation, QKey, Qpn, RecvWr, Remote, SendFlags, SendWr};
use std::cell::Cell;
use std::thread::LocalKey;

/// A buffer for more work requests than this is not kept: longer lists take far longer to post than memory to allocate.
const KEPT: usize = 256;

thread_local! {
    /// Buffers for the lists that this thread posts.
    static SENDS: Cell<Vec<SendWr>> = const { Cell::new(Vec::new()) };
    static RECVS: Cell<Vec<RecvWr>> = const { Cell::new(Vec::new()) };
}

impl QueuePair {
    /// Posts a send work request.
    ///
    /// # Errors
    /// [`Error::Post`](crate::Error::Post). Nothing was queued then.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, wr: SendWr) -> Result<()> {
        let port = self.device.intact_port()?;
        self.shared.reserve_send(&wr)?;
        port.post(&self.shared, Work::Send(wr))?;
        Ok(())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`Error::Post`](crate::Error::Post). Nothing was queued then.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr: RecvWr) -> Result<()> {
        let port = self.device.intact_port()?;
        self.shared.reserve_recv(&wr)?;
        port.post(&self.shared, Work::Recv(wr))?;
        Ok(())
    }

    /// Posts send work requests, in order, up to the first that is refused.
    ///
    /// # Errors
    /// The number of requests that were posted, and the error of [`post_send`](Self::post_send) for the next one.
    pub fn post_sends(
        &self,
        wrs: impl IntoIterator<Item = SendWr>,
    ) -> std::result::Result<(), (usize, Error)> {
        self.post_list(wrs.into_iter(), QpShared::reserve_send, WorkQueue::Send, Work::Send, &SENDS)
    }

    /// Posts receive work requests, in order, up to the first that is refused.
    ///
    /// # Errors
    /// The number of requests that were posted, and the error of [`post_recv`](Self::post_recv) for the next one.
    pub fn post_recvs(
        &self,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> std::result::Result<(), (usize, Error)> {
        self.post_list(wrs.into_iter(), QpShared::reserve_recv, WorkQueue::Recv, Work::Recv, &RECVS)
    }

    /// Posts a list. It is the program's, in its memory or an iterator that runs its code: to read it may take a page
    /// fault, or anything else. So it is read before the port's lock is taken, into a buffer of the thread.
    fn post_list<W: 'static>(
        &self,
        mut wrs: impl Iterator<Item = W>,
        reserve: impl Fn(&QpShared, &W) -> std::result::Result<(), PostError>,
        queue: WorkQueue,
        work: impl Fn(W) -> Work,
        buffer: &'static LocalKey<Cell<Vec<W>>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let port = self.device.intact_port().map_err(|error| (0, error))?;
        let refused = |(before, error): (usize, PostError)| (before, error.into());
        let Some(first) = wrs.next() else { return Ok(()) };
        reserve(&self.shared, &first).map_err(|error| refused((0, error)))?;
        let Some(second) = wrs.next() else {
            // Most lists are of this kind.
            return port.post(&self.shared, work(first)).map_err(|error| refused((0, error)));
        };
        // A thread that is exiting no longer has a buffer. Neither has a list that is posted while another is read.
        let mut list = buffer.try_with(Cell::take).unwrap_or_default();
        list.push(first);
        let mut wrong = None;
        for wr in std::iter::once(second).chain(wrs) {
            if let Err(error) = reserve(&self.shared, &wr) {
                wrong = Some(error);
                break;
            }
            list.push(wr);
        }
        let taken = list.len();
        let posted = port.post_list(&self.shared, queue, &mut list.drain(..).map(&work));
        if list.capacity() <= KEPT {
            let _ = buffer.try_with(|buffer| buffer.set(list));
        }
        posted.map_err(refused)?;
        wrong.map_or(Ok(()), |error| Err(refused((taken, error))))
    }

    /// Posts all of these send work requests and empties the list, or posts none and leaves the list unchanged.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send), for the first request that is refused.
    pub fn post_sends_or_none(&self, wrs: &mut Vec<SendWr>) -> Result<()> {
        let port = self.device.intact_port()?;
        for (taken, wr) in wrs.iter().enumerate() {
            self.shared.reserve_send(wr).inspect_err(|_| {
                // At most the size of the queue, which has 32 bits.
                self.shared.finish(WorkQueue::Send, u32::try_from(taken).unwrap_or(u32::MAX));
            })?;
        }
        let posted = port.post_list(&self.shared, WorkQueue::Send, &mut wrs.drain(..).map(Work::Send));
        Ok(posted.map_err(|(_, error)| error)?)
    }

    /// Posts a signalled operation.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    pub fn post(&self, wr_id: u64, operation: Operation, data: impl Into<Gather>) -> Result<()> {
        self.post_send(SendWr::new(wr_id, operation, data).flags(SendFlags::SIGNALED))
    }

    /// Posts a signalled SEND.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_wr_send")]
    pub fn send(&self, wr_id: u64, data: impl Into<Gather>) -> Result<()> {
        self.post(wr_id, Operation::Send { imm: None, invalidate: None }, data)
    }

    /// Posts a signalled datagram to queue pair `qpn` at the address of `ah`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send); [`Error::Resource`](crate::Error::Resource) if the address handle is of
    /// another protection domain than the queue pair (IBTA 10.2.3).
    pub fn send_to(
        &self,
        wr_id: u64,
        data: impl Into<Gather>,
        ah: &AddressHandle,
        qpn: Qpn,
        qkey: QKey,
    ) -> Result<()> {
        if !self.parts.pd.as_ref().is_some_and(|pd| ah.is_of(pd)) {
            let why = "its protection domain is not that of the queue pair";
            return Err(ResourceError::Address { why }.into());
        }
        let operation = Operation::Send { imm: None, invalidate: None };
        self.post_send(
            SendWr::new(wr_id, operation, data).flags(SendFlags::SIGNALED).to(ah.datagram(qpn, qkey)),
        )
    }

    /// Posts a signalled RDMA WRITE.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_wr_rdma_write")]
    pub fn write(&self, wr_id: u64, data: impl Into<Gather>, remote: Remote) -> Result<()> {
        self.post(wr_id, Operation::Write { remote, imm: None }, data)
    }

    /// Posts a signalled RDMA READ.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_wr_rdma_read")]
    pub fn read(&self, wr_id: u64, data: impl Into<Gather>, remote: Remote) -> Result<()> {
        self.post(wr_id, Operation::Read { remote }, data)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn recv(&self, wr_id: u64, data: impl Into<Gather>) -> Result<()> {
        self.post_recv(RecvWr { wr_id, data: data.into() })
    }
}

#[cfg(test)]
mod tests;
