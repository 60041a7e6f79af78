//! A flow between two queue pairs.

use super::RunError;
use super::host::HostEnd;
use crate::workload::{Flow, Operation, Service};
use qp::counters::QpCounters;
use qp::{Destination, RecvWr, SendFlags, SendWr};
use rnic_core::{
    AddressHandle, AddressVector, ConnectOptions, Error, MemoryRegion, NullRegion, QKey, QpInit, QueuePair,
    WcStatus, WorkCompletion,
};
use serde::Serialize;
use std::sync::Arc;
use time::Duration;

/// The Q_Key of datagrams.
const QKEY: QKey = QKey(0x1111_1111);

/// The bytes in front of a datagram in its receive: room for the GRH.
const GRH: u64 = 40;

/// What has become of a flow.
#[derive(Clone, Debug)]
pub struct FlowState {
    /// The flow.
    pub flow: Flow,
    /// When it began.
    pub started: Option<Duration>,
    /// When its last byte was acknowledged; without acknowledgements, when the last message was received.
    pub finished: Option<Duration>,
    /// When and how a work request failed.
    pub failed: Option<(Duration, WcStatus)>,
    /// Bytes of messages that are completed.
    pub completed: u64,
    /// Messages that were posted, completed and, without acknowledgements, received.
    posted: u64,
    sent: u64,
    received: u64,
    /// Counters of both queue pairs, the sender's first.
    pub counters: [QpCounters; 2],
    /// When measuring began, if not with the flow, and what the receiver had accepted until then.
    mark: Option<(Duration, u64)>,
}

/// What has become of a flow, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowOutcome {
    /// Its time has not come.
    Waiting,
    /// It goes on.
    Running,
    /// It is complete.
    Finished,
    /// A work request failed.
    Failed,
}

impl FlowState {
    pub(super) fn new(flow: Flow) -> Self {
        Self {
            flow,
            started: None,
            finished: None,
            failed: None,
            completed: 0,
            posted: 0,
            sent: 0,
            received: 0,
            counters: [QpCounters::default(); 2],
            mark: None,
        }
    }

    /// What has become of it.
    #[must_use]
    pub const fn outcome(&self) -> FlowOutcome {
        match (self.started, self.finished, self.failed) {
            (_, _, Some(_)) => FlowOutcome::Failed,
            (_, Some(_), _) => FlowOutcome::Finished,
            (Some(_), ..) => FlowOutcome::Running,
            (None, ..) => FlowOutcome::Waiting,
        }
    }

    /// Bytes that the receiver of the data has accepted.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        let [src, dst] = &self.counters;
        if matches!(self.flow.common.operation, Operation::Read) { src.rcvd_bytes } else { dst.rcvd_bytes }
    }

    /// Measuring begins anew.
    pub(super) fn mark(&mut self, now: Duration) {
        self.mark = Some((now, self.delivered()));
    }

    /// Since when the flow is measured, and how many bytes its receiver has accepted since then.
    pub(crate) fn measured(&self) -> (Option<Duration>, u64) {
        let (at, before) = self.mark.unwrap_or_default();
        (self.started.map(|start| start.max(at)), self.delivered() - before)
    }

    /// The time from its first work request to its last completion.
    #[must_use]
    pub fn completion_time(&self) -> Option<Duration> {
        Some(self.finished? - self.started?)
    }

    /// The number of its messages, and the bytes of message `number`.
    fn messages(&self) -> Option<u64> {
        self.flow.bytes.map(|bytes| bytes.div_ceil(self.flow.common.message).max(1))
    }

    fn length(&self, number: u64) -> u64 {
        let message = self.flow.common.message;
        match self.flow.bytes {
            None => message,
            Some(bytes) => bytes.saturating_sub(number * message).min(message),
        }
    }

    /// Whether the receiver says that a flow is complete, and not the sender.
    fn is_unreliable(&self) -> bool {
        self.flow.common.service != Service::Rc
    }

    pub(super) fn is_done(&self) -> bool {
        let done = if self.is_unreliable() { self.received } else { self.sent };
        self.messages().is_some_and(|messages| done >= messages)
    }

    /// Notes the counters of its queue pairs.
    pub(super) fn note(&mut self, ends: &Ends) {
        self.counters = [ends.src.counters(), ends.dst.counters()];
    }
}

/// The number of a flow, and whether a receive was completed, from the ID of a work request.
pub(super) const fn read_id(wr_id: u64) -> (usize, bool) {
    ((wr_id >> 1) as usize, wr_id & 1 == 1)
}

const fn id(flow: usize, is_recv: bool) -> u64 {
    (flow as u64) << 1 | is_recv as u64
}

/// The queue pairs of a flow, while it goes on.
pub(super) struct Ends {
    src: QueuePair,
    dst: QueuePair,
    /// Zeros to send; what READs bring goes nowhere.
    source: Arc<NullRegion>,
    target: Arc<MemoryRegion>,
    to: Destination,
}

impl Ends {
    /// Creates and connects the queue pairs of a flow.
    pub(super) fn new(
        number: usize,
        flow: &Flow,
        src: &mut HostEnd,
        dst: &mut HostEnd,
    ) -> Result<Self, RunError> {
        Self::try_new(number, flow, src, dst)
            .map_err(|why| RunError::Verbs { what: format!("the queue pairs of {}", flow.name), why })
    }

    fn try_new(number: usize, flow: &Flow, src: &mut HostEnd, dst: &mut HostEnd) -> Result<Self, Error> {
        let init = |end: &HostEnd| {
            let mut init = match flow.common.service {
                Service::Rc => QpInit::rc(&end.cq, &end.cq),
                Service::Uc => QpInit::uc(&end.cq, &end.cq),
                Service::Ud => QpInit::ud(&end.cq, &end.cq),
            };
            init.tuning = end.tuning;
            init.cap.max_send_wr = flow.common.depth;
            init.cap.max_recv_wr = 2 * flow.common.depth;
            (init.cap.max_inline_data, init.cap.max_send_sge, init.cap.max_recv_sge) = (0, 1, 1);
            init
        };
        let (a, b) = (src.pd.create_qp(&init(src))?, dst.pd.create_qp(&init(dst))?);
        let (timeout, retry_cnt) = src.options;
        let tos = flow.common.priority << 5;
        let (label, hops) = (flow.label, flow.common.hop_limit);
        let mut to = Destination::Connected;
        if flow.common.service == Service::Ud {
            a.activate(QKEY)?;
            b.activate(QKEY)?;
            let mut way = AddressVector::new(dst.device.gid(), 0);
            (way.traffic_class, way.flow_label, way.hop_limit) = (tos, label, hops);
            let handle: AddressHandle = src.pd.create_ah(&way)?;
            to = handle.datagram(b.qpn(), QKEY);
        } else {
            let options = ConnectOptions {
                timeout,
                retry_cnt,
                traffic_class: tos,
                flow_label: label,
                hop_limit: hops,
                ..ConnectOptions::default()
            };
            a.connect(&b.address(), &options)?;
            b.connect(&a.address(), &options)?;
        }
        let target = dst.target(flow.common.message + GRH)?;
        let ends = Self { source: Arc::clone(&src.source), src: a, dst: b, target, to };
        if ends.takes_receives(flow) {
            for _ in 0..2 * flow.common.depth {
                ends.post_recv(number, flow)?;
            }
        }
        Ok(ends)
    }

    /// Whether its messages consume receives: a WRITE does where no acknowledgement says that it arrived.
    fn takes_receives(&self, flow: &Flow) -> bool {
        flow.common.operation == Operation::Send || flow.common.service != Service::Rc
    }

    fn post_recv(&self, number: usize, flow: &Flow) -> Result<(), Error> {
        let len = usize::try_from(flow.common.message + GRH).unwrap_or(usize::MAX);
        self.dst.post_recv(RecvWr { wr_id: id(number, true), data: self.target.slice(0..len)?.into() })
    }

    /// Posts messages, up to the depth of the flow.
    pub(super) fn post(&mut self, number: usize, state: &mut FlowState) -> Result<(), RunError> {
        let depth = u64::from(state.flow.common.depth);
        while state.posted - state.sent < depth
            && state.messages().is_none_or(|messages| state.posted < messages)
        {
            let len = state.length(state.posted);
            let remote = self.target.remote(0);
            let operation = match (state.flow.common.operation, state.is_unreliable()) {
                (Operation::Write, is_unreliable) => {
                    qp::Operation::Write { remote, imm: is_unreliable.then_some(0) }
                }
                (Operation::Send, _) => qp::Operation::Send { imm: None, invalidate: None },
                (Operation::Read, _) => qp::Operation::Read { remote },
            };
            let wr = SendWr::new(
                id(number, false),
                operation,
                self.source.bytes(u32::try_from(len).unwrap_or(u32::MAX)),
            );
            let wr = wr.flags(SendFlags::SIGNALED).to(self.to.clone());
            self.src
                .post_send(wr)
                .map_err(|why| RunError::Verbs { what: format!("a message of {}", state.flow.name), why })?;
            state.posted += 1;
        }
        Ok(())
    }

    /// A message was sent, and acknowledged if the service does that.
    pub(super) fn sent(&mut self, state: &mut FlowState) {
        if !state.is_unreliable() {
            state.completed += state.length(state.sent);
        }
        state.sent += 1;
    }

    /// A receive was completed.
    pub(super) fn received(
        &mut self,
        number: usize,
        state: &mut FlowState,
        completion: &WorkCompletion,
    ) -> Result<(), RunError> {
        state.received += 1;
        if state.is_unreliable() {
            let grh = if state.flow.common.service == Service::Ud { GRH } else { 0 };
            state.completed += u64::from(completion.byte_len).saturating_sub(grh);
        }
        self.post_recv(number, &state.flow)
            .map_err(|why| RunError::Verbs { what: format!("a receive of {}", state.flow.name), why })
    }
}
