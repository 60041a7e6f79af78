//! Asynchronous events: what a program should know that is not a completion (IBTA 11.6.3).

use qp::Qpn;
use qp::memory::QpEvent;
use std::collections::VecDeque;
use std::fmt;

/// Number of events that may wait to be read. Most programs read none; then the oldest event is discarded and counted.
pub const MAX_EVENTS: usize = 1024;

/// An asynchronous event: something the program should know that is not a completion. It names its object.
///
/// Verbs require a program to acknowledge events, because destroying an object waits until no event that points to it
/// is held. Here an event contains a number, so there is nothing to acknowledge: pending events of a destroyed object
/// are removed, and an event that was read earlier names a number that no longer exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias("ibv_async_event", "ibv_event_type", "ibv_ack_async_event"))]
pub enum AsyncEvent {
    /// An event of a queue pair.
    QueuePair(Qpn, QpEvent),
    /// A completion queue overran: completions were lost (IBTA C9-218). The queue is identified by its number in the
    /// port.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CompletionQueueError(usize),
    /// The shared receive queue with this number holds fewer work requests than its limit. The limit is now 0: set it
    /// again to get another event.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SrqLimitReached(u32),
    /// The shared receive queue with this number provides no more work requests: the completion queue assigned to it as
    /// an XRC shared receive queue overran.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    SrqError(u32),
    /// Packets can flow again.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive,
    /// Packets cannot flow: the link is down, or the address is not configured on the host. Queue pairs keep their
    /// states, and the packets that they send count as lost.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError,
    /// The GID table changed: the address was removed from the host, or restored.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange,
    /// The device is permanently unusable. All its queue pairs are in ERR.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
}

/// The object of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// The queue pair with this number.
    QueuePair(Qpn),
    /// The completion queue with this number.
    CompletionQueue(usize),
    /// The shared receive queue with this number.
    SharedReceiveQueue(u32),
    /// The port.
    Port,
    /// The device.
    Device,
}

impl AsyncEvent {
    /// The names of all events that a device reports, as verbs spell them without the `IBV_EVENT_` prefix.
    pub const NAMES: &[&str] = &[
        "COMM_EST",
        "SQ_DRAINED",
        "QP_LAST_WQE_REACHED",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "CQ_ERR",
        "SRQ_LIMIT_REACHED",
        "SRQ_ERR",
        "PORT_ACTIVE",
        "PORT_ERR",
        "GID_CHANGE",
        "DEVICE_FATAL",
    ];

    /// The name, as verbs spell it without the `IBV_EVENT_` prefix.
    #[must_use]
    #[doc(alias = "ibv_event_type_str")]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueuePair(_, event) => match event {
                QpEvent::CommunicationEstablished => "COMM_EST",
                QpEvent::SendQueueDrained => "SQ_DRAINED",
                QpEvent::LastWqeReached => "QP_LAST_WQE_REACHED",
                QpEvent::Fatal => "QP_FATAL",
                QpEvent::RequestError => "QP_REQ_ERR",
                QpEvent::AccessError => "QP_ACCESS_ERR",
            },
            Self::CompletionQueueError(_) => "CQ_ERR",
            Self::SrqLimitReached(_) => "SRQ_LIMIT_REACHED",
            Self::SrqError(_) => "SRQ_ERR",
            Self::PortActive => "PORT_ACTIVE",
            Self::PortError => "PORT_ERR",
            Self::GidChange => "GID_CHANGE",
            Self::DeviceFatal => "DEVICE_FATAL",
        }
    }

    /// The object of the event.
    #[must_use]
    pub const fn source(self) -> EventSource {
        match self {
            Self::QueuePair(qpn, _) => EventSource::QueuePair(qpn),
            Self::CompletionQueueError(number) => EventSource::CompletionQueue(number),
            Self::SrqLimitReached(number) | Self::SrqError(number) => EventSource::SharedReceiveQueue(number),
            Self::PortActive | Self::PortError | Self::GidChange => EventSource::Port,
            Self::DeviceFatal => EventSource::Device,
        }
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueuePair(qpn) => write!(f, "queue pair {qpn}"),
            Self::CompletionQueue(number) => write!(f, "completion queue {number}"),
            Self::SharedReceiveQueue(number) => write!(f, "shared receive queue {number}"),
            Self::Port => f.write_str("the port"),
            Self::Device => f.write_str("the device"),
        }
    }
}

/// `PORT_ERR of the port`.
impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name(), self.source())
    }
}

/// How the queue changed since the last check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventNews {
    /// Events were added, and at least one is pending.
    Added,
    /// No event is pending any more.
    Empty,
}

/// Pending events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    waiting: VecDeque<AsyncEvent>,
    lost: u64,
    added: bool,
    taken: bool,
}

impl EventQueue {
    /// Adds an event. If the queue is full, the oldest event is lost.
    pub(crate) fn push(&mut self, event: AsyncEvent) {
        if self.waiting.len() == MAX_EVENTS {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(event);
        self.added = true;
    }

    /// Removes and returns the oldest event.
    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        let oldest = self.waiting.pop_front();
        self.taken |= oldest.is_some();
        oldest
    }

    /// Removes the events of an object that is destroyed.
    pub(crate) fn forget(&mut self, source: EventSource) {
        let before = self.waiting.len();
        self.waiting.retain(|event| event.source() != source);
        self.taken |= self.waiting.len() < before;
    }

    /// Number of events lost because they were not read.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the change that the event descriptor has to reflect.
    pub(crate) fn take_news(&mut self) -> Option<EventNews> {
        let (added, taken) = (std::mem::take(&mut self.added), std::mem::take(&mut self.taken));
        if self.waiting.is_empty() {
            (added || taken).then_some(EventNews::Empty)
        } else {
            added.then_some(EventNews::Added)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(qpn: u32) -> AsyncEvent {
        AsyncEvent::QueuePair(Qpn::new(qpn), QpEvent::SendQueueDrained)
    }

    #[test]
    fn the_oldest_of_too_many_is_lost_and_counted() {
        let mut queue = EventQueue::default();
        for qpn in 0..MAX_EVENTS as u32 {
            queue.push(of(qpn));
        }
        assert_eq!(queue.lost(), 0, "the bound itself");
        queue.push(of(5000));
        queue.push(of(5001));
        assert_eq!(queue.lost(), 2);
        assert_eq!(queue.pop(), Some(of(2)), "0 and 1 gave way");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), MAX_EVENTS - 1);
    }

    #[test]
    fn events_of_an_object_that_is_gone_are_taken_back() {
        let mut queue = EventQueue::default();
        let kept = [of(2), AsyncEvent::CompletionQueueError(1), AsyncEvent::PortError];
        queue.push(of(1));
        for event in kept {
            queue.push(event);
        }
        queue.push(AsyncEvent::QueuePair(Qpn::new(1), QpEvent::Fatal));
        queue.forget(EventSource::QueuePair(Qpn::new(1)));
        assert!(std::iter::from_fn(|| queue.pop()).eq(kept));
    }

    #[test]
    fn a_descriptor_is_told_when_events_come_and_when_none_is_left() {
        let mut queue = EventQueue::default();
        assert_eq!((queue.pop(), queue.take_news()), (None, None), "nothing came, nothing went");
        queue.push(of(1));
        queue.push(of(2));
        assert_eq!(queue.take_news(), Some(EventNews::Added));
        assert_eq!(queue.take_news(), None, "told already");
        queue.pop();
        assert_eq!(queue.take_news(), None, "one is left");
        queue.pop();
        assert_eq!(queue.take_news(), Some(EventNews::Empty));
        queue.push(of(3));
        queue.forget(EventSource::QueuePair(Qpn::new(3)));
        assert_eq!(queue.take_news(), Some(EventNews::Empty), "it came and went unseen");
    }

    #[test]
    fn every_event_has_a_name_of_its_own() {
        let all = [
            QpEvent::CommunicationEstablished,
            QpEvent::SendQueueDrained,
            QpEvent::LastWqeReached,
            QpEvent::Fatal,
            QpEvent::RequestError,
            QpEvent::AccessError,
        ]
        .map(|event| AsyncEvent::QueuePair(Qpn::new(17), event))
        .into_iter()
        .chain([
            AsyncEvent::CompletionQueueError(3),
            AsyncEvent::SrqLimitReached(4),
            AsyncEvent::SrqError(4),
            AsyncEvent::PortActive,
            AsyncEvent::PortError,
            AsyncEvent::GidChange,
            AsyncEvent::DeviceFatal,
        ]);
        assert!(all.map(AsyncEvent::name).eq(AsyncEvent::NAMES.iter().copied()));
        assert_eq!(of(17).to_string(), "SQ_DRAINED of queue pair 0x000011");
        assert_eq!(AsyncEvent::CompletionQueueError(3).to_string(), "CQ_ERR of completion queue 3");
    }
}
