//! The way to one neighbour: a queue pair, slots from which messages leave, slots in which they arrive, and credit for those at
//! the other end. Only for the communicator.
//!
//! Message k is a WRITE with immediate data into slot k mod `slots` at the receiver. The immediate data say which message it is,
//! and how many messages of the other direction their receiver has consumed; both are counted modulo 2^16. A WRITE
//! without bytes says only the latter.
//!
//! Why a slot is never overwritten too early: message k is posted only when the peer has said that it has consumed message
//! k - `slots`, the one before it in the slot. The peer says so after it has read the slot, and never takes it back.
//!
//! Why receives never run out: at most `slots` messages are posted that are not consumed, and each consumed one has had its
//! receive posted again. A WRITE without bytes reports a quarter of the slots at least, and all that are not polled yet report
//! no more than `slots` messages: there are four at most.
//!
//! A message is copied into a slot of ours before it is posted. It may have to be sent again until it is acknowledged, and
//! then it must be what it was; the data themselves may change at once. Without the copy each step of an exchange would take
//! a round trip. Message k is posted only when message k - `slots`, the one before it in our slot, is acknowledged.
//!
//! A WRITE without bytes and without immediate data asks whether the peer is there: it needs no receive, and its
//! acknowledgement is the answer. A SEND without bytes says which rank is gone, in its immediate data; it is the last
//! message of a link.

use crate::communicator::{CollectiveError, Settings};
use crate::schedule::Peer;
use rnic_core::{
    Access, CompletionQueue, ConnectOptions, Error, Gather, MemoryRegion, Operation, ProtectionDomain,
    QpAddress, QpInit, QueuePair, RecvWr, Remote, SendFlags, SendWr,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// WRITEs without bytes that may wait at a time, for which there are receives.
const REPORTS: u16 = 4;

/// A question and the last message, in the send queue; the last message, in the receive queue.
const MORE_SENDS: u32 = 2;
const MORE_RECEIVES: u32 = 1;

/// What was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Message,
    Report,
    Question,
}

/// What a rank has to know of a neighbour to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The rank that offers.
    pub rank: usize,
    /// Its queue pair for us.
    pub qp: QpAddress,
    /// Where its slots are.
    pub addr: u64,
    /// Their key.
    pub rkey: u32,
    /// The bytes of a slot.
    pub piece: usize,
    /// How many there are.
    pub slots: u16,
}

/// A neighbour.
pub(crate) struct Link {
    pub(crate) peer: usize,
    qp: QueuePair,
    /// Its place among the links.
    number: u64,
    /// Where its messages arrive, and behind that from where ours leave.
    slots: MemoryRegion,
    piece: usize,
    count: u16,
    /// The slots at the other end.
    remote: Option<Remote>,
    /// Messages that were posted, and those of them that the peer has consumed.
    sent: u64,
    credited: u64,
    /// Messages that have arrived, those that we have consumed, and those of which the peer knows that.
    arrived: VecDeque<u32>,
    received: u64,
    consumed: u64,
    reported: u64,
    /// Messages that were acknowledged.
    acknowledged: u64,
    /// What is posted and not completed.
    posted: VecDeque<Posted>,
    /// When something came from the peer.
    pub(crate) heard: Duration,
    /// Operations that wait, in their order.
    pub(crate) to_send: VecDeque<u64>,
    pub(crate) to_receive: VecDeque<u64>,
}

/// The difference of a count to its lower 16 bits as a peer said them.
const fn ahead(said: u16, known: u64) -> u64 {
    said.wrapping_sub(known as u16) as u64
}

impl Link {
    /// The completions that a link may have at a time.
    pub(crate) fn completions(settings: &Settings) -> u32 {
        2 * (u32::from(settings.slots) + u32::from(REPORTS)) + MORE_SENDS + MORE_RECEIVES
    }

    pub(crate) fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        number: usize,
        peer: Peer,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let piece = peer.longest.clamp(1, settings.piece);
        let mut init = QpInit::rc(cq, cq);
        let depth = u32::from(settings.slots) + u32::from(REPORTS);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth + MORE_SENDS, depth + MORE_RECEIVES);
        (init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data) = (1, 1, 0);
        let qp = pd.create_qp(&init)?;
        let bytes = 2 * piece * usize::from(settings.slots);
        let slots = pd.register(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self {
            peer: peer.rank,
            qp,
            number: number as u64,
            slots,
            piece,
            count: settings.slots,
            remote: None,
            sent: 0,
            credited: 0,
            arrived: VecDeque::new(),
            received: 0,
            consumed: 0,
            reported: 0,
            acknowledged: 0,
            posted: VecDeque::new(),
            heard: Duration::ZERO,
            to_send: VecDeque::new(),
            to_receive: VecDeque::new(),
        })
    }

    pub(crate) fn offer(&self, rank: usize) -> Offer {
        let Remote { addr, rkey } = self.slots.remote(0);
        Offer { rank, qp: self.qp.address(), addr, rkey, piece: self.piece, slots: self.count }
    }

    pub(crate) fn connect(&mut self, offer: &Offer, options: &ConnectOptions) -> Result<(), CollectiveError> {
        if (offer.piece, offer.slots) != (self.piece, self.count) {
            return Err(CollectiveError::OtherSettings { peer: self.peer });
        }
        self.qp.connect(&offer.qp, options)?;
        for _ in 0..u32::from(self.count) + u32::from(REPORTS) + MORE_RECEIVES {
            self.post_receive()?;
        }
        self.remote = Some(Remote { addr: offer.addr, rkey: offer.rkey });
        Ok(())
    }

    /// The bytes of a slot: of the longest message, or of a piece of it.
    pub(crate) const fn piece(&self) -> usize {
        self.piece
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.remote.is_some()
    }

    fn post_receive(&self) -> Result<(), Error> {
        self.qp.post_recv(RecvWr { wr_id: self.number, data: Gather::Empty })
    }

    /// Whether there is a place in the send queue.
    fn has_place(&self) -> bool {
        self.posted.len() < usize::from(self.count) + usize::from(REPORTS)
    }

    /// Whether a message may be posted: its slots at both ends are free, and the send queue has a place.
    pub(crate) fn may_send(&self) -> bool {
        let free = self.credited.min(self.acknowledged);
        self.sent - free < u64::from(self.count) && self.has_place()
    }

    /// Where the slot of a message begins.
    fn slot(&self, message: u64) -> usize {
        (message % u64::from(self.count)) as usize * self.piece
    }

    /// Posts a message, or a report.
    fn post(&mut self, data: Gather) -> Result<(), Error> {
        let Some(Remote { addr, rkey }) = self.remote else { return Ok(()) };
        let slot = self.slot(self.sent) as u64;
        let what = if data == Gather::Empty { Posted::Report } else { Posted::Message };
        let imm = u32::from(self.sent as u16) << 16 | u32::from(self.consumed as u16);
        let operation = Operation::Write { remote: Remote { addr: addr + slot, rkey }, imm: Some(imm) };
        self.qp.post_send(SendWr::new(self.number, operation, data).flags(SendFlags::SIGNALED))?;
        self.posted.push_back(what);
        self.reported = self.consumed;
        Ok(())
    }

    /// Posts a message that [may be sent](Self::may_send), never an empty one.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let ours = usize::from(self.count) * self.piece + self.slot(self.sent);
        self.slots.write_at(ours, message)?;
        self.post(self.slots.slice(ours..ours + message.len())?.into())?;
        self.sent += 1;
        Ok(())
    }

    /// Tells the peer what was consumed, if that is worth a packet of its own and the send queue has a place.
    pub(crate) fn report(&mut self) -> Result<(), Error> {
        if self.consumed - self.reported < u64::from(self.count.div_ceil(4)) || !self.has_place() {
            return Ok(());
        }
        self.post(Gather::Empty)
    }

    /// A WRITE was acknowledged.
    pub(crate) fn completed(&mut self) {
        let what = self.posted.pop_front();
        self.acknowledged += u64::from(what == Some(Posted::Message));
    }

    /// When the peer is to be asked whether it is there: an operation waits for it, and nothing is on its way that it has to
    /// acknowledge.
    pub(crate) fn asks_at(&self, silence: Duration) -> Option<Duration> {
        let waits = !(self.to_send.is_empty() && self.to_receive.is_empty());
        (waits && self.posted.is_empty()).then(|| self.heard.saturating_add(silence))
    }

    /// Asks the peer whether it is there.
    pub(crate) fn ask(&mut self) -> Result<(), Error> {
        let Some(remote) = self.remote else { return Ok(()) };
        let operation = Operation::Write { remote, imm: None };
        self.qp.post_send(SendWr::new(self.number, operation, Gather::Empty).flags(SendFlags::SIGNALED))?;
        self.posted.push_back(Posted::Question);
        Ok(())
    }

    /// Tells the peer that a rank is gone.
    pub(crate) fn tell(&self, rank: usize) {
        let operation = Operation::Send { imm: Some(rank as u32), invalidate: None };
        // It cannot be sent if the link has failed itself. The peer then asks, and finds out.
        let _ =
            self.qp.post_send(SendWr::new(self.number, operation, Gather::Empty).flags(SendFlags::SIGNALED));
    }

    /// A WRITE of the peer has arrived.
    pub(crate) fn take(&mut self, imm: u32, bytes: u32) -> Result<(), CollectiveError> {
        let (number, consumed) = ((imm >> 16) as u16, imm as u16);
        let news = ahead(consumed, self.credited);
        if number != self.received as u16 || news > self.sent - self.credited || bytes as usize > self.piece {
            return Err(CollectiveError::Unexpected { peer: self.peer });
        }
        self.credited += news;
        if bytes > 0 {
            self.received += 1;
            self.arrived.push_back(bytes);
        }
        Ok(self.post_receive()?)
    }

    /// The bytes of the first message that is not consumed.
    pub(crate) fn waiting(&self) -> Option<usize> {
        self.arrived.front().map(|bytes| *bytes as usize)
    }

    /// Reads the first message, and consumes it: its slot is free from now on.
    pub(crate) fn consume(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.slots.read_at(self.slot(self.consumed), bytes)?;
        self.arrived.pop_front();
        self.consumed += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a work request belong to the device until it has completed (IBTA volume 1, section 10.8.2), even if the
    /// peer has said meanwhile that it has consumed the message: the acknowledgement may be lost.
    #[test]
    fn a_slot_is_free_when_both_ends_are_done_with_it() -> Result<(), Error> {
        let pd = rnic_core::sim::Net::new().device().alloc_pd()?;
        let (cq, settings) = (pd.device().create_cq(64)?, Settings::default());
        let mut link = Link::new(&pd, &cq, 0, Peer { rank: 1, longest: 8 }, &settings)?;
        link.sent = u64::from(settings.slots);
        for (credited, acknowledged, is_free) in [(0, 0, false), (1, 0, false), (0, 1, false), (1, 1, true)] {
            (link.credited, link.acknowledged) = (credited, acknowledged);
            assert_eq!(link.may_send(), is_free, "{credited} consumed, {acknowledged} acknowledged");
        }
        Ok(())
    }

    #[test]
    fn counts_of_sixteen_bits_go_round() {
        assert_eq!(ahead(3, 1), 2);
        assert_eq!(ahead(2, 0xffff), 3);
        assert_eq!(ahead(0xffff, 0x2_ffff), 0);
        assert_eq!(ahead(1, 0x2_fffe), 3);
    }
}
