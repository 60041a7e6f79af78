//! Completion queues and channels in virtual time.

use crate::engine::{AsyncEvent, CQ_USERS, ResourceError};
use crate::sim::Net;
use crate::{
    Access, CompletionQueue, ConnectOptions, Device, Error, Gather, MemoryRegion, Operation,
    ProtectionDomain, QpCap, QpInit, QpState, QueuePair, Result, SendFlags, SendWr, WcOpcode, WcStatus,
};
use time::Duration;

/// Far longer than any operation takes in virtual time.
const LIMIT: Duration = Duration::from_secs(10);

/// Two queue pairs, connected, with a completion queue for each direction of the left one.
struct Pair {
    net: Net,
    device: Device,
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    left: QueuePair,
    right: QueuePair,
    /// Of the right side.
    right_cq: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
}

/// The completion queues of the left side hold `sends` and `recvs`.
fn pair(sends: u32, recvs: u32) -> Result<Pair> {
    let net = Net::new();
    let (device, peer) = (net.device(), net.device());
    let (pd, far) = (device.alloc_pd()?, peer.alloc_pd()?);
    let (send_cq, recv_cq) = (device.create_cq(sends)?, device.create_cq(recvs)?);
    let right_cq = peer.create_cq(1000)?;
    let left = pd.create_qp(&QpInit::rc(&send_cq, &recv_cq))?;
    let right = far.create_qp(&QpInit::rc(&right_cq, &right_cq))?;
    left.connect(&right.address(), &ConnectOptions::default())?;
    right.connect(&left.address(), &ConnectOptions::default())?;
    let source = pd.register_bytes(&[7; 64], Access::LOCAL_WRITE)?;
    let target = far.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    Ok(Pair { net, device, pd, send_cq, recv_cq, left, right, right_cq, source, target })
}

impl Pair {
    fn write(&self, count: u64) -> Result<()> {
        (0..count).try_for_each(|id| self.left.write(id, self.source.all(), self.target.remote(0)))
    }

    fn settle(&self) {
        assert!(self.net.run_until_idle(LIMIT));
    }

    /// The numbers of the completion queues that reported an error since the last call.
    fn errors(&self) -> Result<Vec<usize>> {
        let mut numbers = Vec::new();
        while let Some(event) = self.device.poll_event()? {
            if let AsyncEvent::CompletionQueueError(number) = event {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }
}

fn size_error(result: Result<impl Sized>) -> bool {
    matches!(result, Err(Error::Resource(ResourceError::Size { what: "cqe", .. })))
}

/// The number of users that kept an object from being destroyed, and their kind.
fn busy(error: &Error) -> Option<(usize, &'static str)> {
    match error {
        Error::Resource(ResourceError::Busy { users, by, .. }) => Some((*users, by)),
        _ => None,
    }
}

#[test]
fn sizes_are_bounded_in_creating_and_in_resizing() -> Result<()> {
    let device = Net::new().device();
    let max = device.attr().max_cqe;
    for cqe in [1, max] {
        assert_eq!(device.create_cq(cqe)?.capacity(), cqe);
        let cq = device.create_cq(10)?;
        cq.resize(cqe)?;
        assert_eq!(cq.capacity(), cqe);
    }
    let cq = device.create_cq(10)?;
    for cqe in [0, max + 1, u32::MAX] {
        assert!(size_error(device.create_cq(cqe)) && size_error(cq.resize(cqe)), "{cqe}");
    }
    assert_eq!(cq.capacity(), 10);
    Ok(())
}

#[test]
fn a_queue_does_not_become_smaller_than_what_waits_in_it() -> Result<()> {
    let pair = pair(20, 20)?;
    pair.write(8)?;
    pair.settle();
    let refused = pair.send_cq.resize(7);
    assert!(
        matches!(refused, Err(Error::Resource(ResourceError::Waiting { waiting: 8, cqe: 7 }))),
        "{refused:?}"
    );
    assert_eq!(pair.send_cq.capacity(), 20);
    pair.send_cq.resize(8)?;
    assert_eq!((pair.send_cq.wait(LIMIT)?.wr_id, pair.send_cq.wait(LIMIT)?.wr_id), (0, 1));
    pair.send_cq.resize(300)?;
    pair.write(128)?;
    pair.settle();
    for wr_id in (2..8).chain(0..128) {
        let wc = pair.send_cq.wait(LIMIT)?;
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    assert!(pair.send_cq.is_empty() && !pair.send_cq.is_overrun());
    Ok(())
}

/// IBTA C9-218, C11-37.
#[test]
fn one_completion_past_the_bound_is_an_error_for_good() -> Result<()> {
    let pair = pair(4, 4)?;
    let other = pair.pd.create_qp(&QpInit::rc(&pair.send_cq, &pair.recv_cq))?;
    pair.write(4)?;
    pair.settle();
    assert!(!pair.send_cq.is_overrun() && pair.left.state() == QpState::Rts, "at the bound");
    assert!(pair.errors()?.is_empty());
    pair.left.recv(50, Gather::Empty)?;
    pair.write(2)?;
    pair.settle();
    assert!(pair.send_cq.is_overrun() && pair.left.state() == QpState::Err, "past it");
    assert_eq!(pair.errors()?, [pair.send_cq.number()], "told once, for two that were lost");
    assert_eq!(other.state(), QpState::Reset, "a queue pair in RESET has nothing to lose yet");
    // The completions in the queue remain, and the other queue works.
    pair.send_cq.resize(100)?;
    assert!(pair.send_cq.is_overrun());
    for wr_id in 0..4 {
        assert_eq!(pair.send_cq.wait(LIMIT)?.wr_id, wr_id);
    }
    assert!(matches!(pair.send_cq.wait(LIMIT), Err(Error::Overrun)));
    let flushed = pair.recv_cq.wait(LIMIT)?;
    assert_eq!((flushed.wr_id, flushed.status), (50, WcStatus::WrFlushErr));
    // A queue pair that uses the queue later fails as soon as it would lose a completion.
    let far = pair.right.address();
    other.connect(&far, &ConnectOptions { timeout: 1, retry_cnt: 0, ..ConnectOptions::default() })?;
    assert_eq!(other.state(), QpState::Rts);
    other.write(9, pair.source.all(), pair.target.remote(0))?;
    other.write(10, pair.source.all(), pair.target.remote(0))?;
    pair.settle();
    assert_eq!(other.state(), QpState::Err);
    assert!(pair.send_cq.is_empty());
    assert!(pair.errors()?.is_empty());
    Ok(())
}

#[test]
fn a_queue_that_overruns_takes_the_queue_pairs_of_both_directions_along() -> Result<()> {
    let pair = pair(10, 3)?;
    // Completes its sends to the small queue.
    let init = QpInit::rc(&pair.recv_cq, &pair.send_cq);
    let crossed = pair.pd.create_qp(&init)?;
    crossed.connect(&pair.right.address(), &ConnectOptions::default())?;
    (0..4).try_for_each(|id| pair.left.recv(id, pair.source.all()))?;
    for id in 0..3 {
        pair.right.send(id, pair.target.all())?;
    }
    pair.settle();
    assert!(!pair.recv_cq.is_overrun());
    pair.right.send(3, pair.target.all())?;
    pair.settle();
    assert!(pair.recv_cq.is_overrun());
    assert_eq!((pair.left.state(), crossed.state()), (QpState::Err, QpState::Err));
    assert_eq!(pair.errors()?, [pair.recv_cq.number()]);
    for wr_id in 0..3 {
        assert_eq!(pair.recv_cq.wait(LIMIT)?.wr_id, wr_id);
    }
    assert!(matches!(pair.recv_cq.wait(LIMIT), Err(Error::Overrun)));
    Ok(())
}

/// A receiver that armed for solicited events only, and which operations wake it.
#[test]
fn solicited_events_are_for_solicited_receives_and_errors_only() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let channel = b.create_comp_channel()?;
    let (cq, other) = (b.create_cq_with_channel(64, &channel)?, b.create_cq(64)?);
    let (left_pd, right_pd) = (a.alloc_pd()?, b.alloc_pd()?);
    let left_cq = a.create_cq(64)?;
    let left = left_pd.create_qp(&QpInit::rc(&left_cq, &left_cq))?;
    let right = right_pd.create_qp(&QpInit::rc(&cq, &cq))?;
    let _quiet = right_pd.create_qp(&QpInit::rc(&other, &other))?;
    left.connect(&right.address(), &ConnectOptions::default())?;
    right.connect(&left.address(), &ConnectOptions::default())?;
    // Several packets long: the solicited event bit travels in the last.
    let source = left_pd.register(10_000, Access::LOCAL_WRITE)?;
    let target = right_pd.register(10_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let post = |operation, solicited| {
        let flags = if solicited { SendFlags::SIGNALED | SendFlags::SOLICITED } else { SendFlags::SIGNALED };
        right.recv(1, target.all())?;
        left.post_send(SendWr::new(1, operation, source.all()).flags(flags))?;
        assert_eq!(left_cq.wait(LIMIT)?.status, WcStatus::Success);
        Ok::<_, Error>(channel.next_event().inspect(|event| assert!(event.is_for(&cq))).is_some())
    };
    let send = Operation::Send { imm: None, invalidate: None };
    let write = Operation::Write { remote: target.remote(0), imm: None };
    let write_imm = Operation::Write { remote: target.remote(0), imm: Some(5) };
    // Completions that wait to be taken would cause an event at once.
    let mut received = Vec::new();
    let arm = |received: &mut Vec<_>| {
        received.extend(std::iter::from_fn(|| cq.poll_one()));
        cq.arm(true)
    };
    arm(&mut received)?;
    assert!(!post(send, false)?, "a receive that is not solicited");
    assert!(!post(write, true)?, "a WRITE completes nothing here");
    left.recv(3, Gather::Empty)?;
    right.send(2, Gather::Empty)?;
    assert_eq!(left_cq.wait(LIMIT)?.wr_id, 3);
    assert!(net.run_until_idle(LIMIT) && channel.next_event().is_none(), "a send that succeeded");
    assert!(post(send, true)?, "a solicited receive");
    assert!(!post(send, true)?, "disarmed");
    arm(&mut received)?;
    assert!(post(write_imm, true)?, "a solicited WRITE with immediate data");
    arm(&mut received)?;
    assert!(!post(write_imm, false)?);
    right.modify(&crate::QpAttr::to_state(QpState::Err))?;
    assert!(channel.next_event().is_some(), "receives that failed");
    received.extend(std::iter::from_fn(|| cq.poll_one()));
    let of = |opcode, status| received.iter().filter(|wc| (wc.opcode, wc.status) == (opcode, status)).count();
    assert_eq!(of(WcOpcode::Recv, WcStatus::Success), 3);
    assert_eq!(of(WcOpcode::RecvRdmaWithImm, WcStatus::Success), 2);
    assert_eq!(received.iter().filter(|wc| wc.status == WcStatus::WrFlushErr).count(), 1);
    Ok(())
}

#[test]
fn a_queue_in_use_is_not_destroyed_but_handed_back() -> Result<()> {
    let Pair { device, send_cq, left, right, recv_cq, source, target, net, .. } = pair(10, 10)?;
    let refused = send_cq.destroy().expect_err("a queue pair completes to it");
    assert_eq!(busy(&refused.error), Some((1, CQ_USERS)));
    // It works as before.
    left.write(1, source.all(), target.remote(0))?;
    assert_eq!(refused.object.wait(LIMIT)?.status, WcStatus::Success);
    let send_cq = refused.object;
    let copy = send_cq.clone();
    drop((left, recv_cq));
    let refused = send_cq.destroy().expect_err("there is another handle");
    assert_eq!(busy(&refused.error), Some((1, "other handles")));
    drop(copy);
    refused.object.destroy()?;
    let cq = device.create_cq(1)?;
    let qp = device.alloc_pd()?.create_qp(&QpInit::rc(&cq, &cq))?;
    let error = cq.destroy().map_err(Error::from).expect_err("in use");
    assert_eq!(busy(&error), Some((1, CQ_USERS)), "one user, although it completes there twice");
    assert_eq!(error.to_string(), format!("the completion queue is still in use by {CQ_USERS} (1)"));
    drop((qp, right, net));
    Ok(())
}

#[test]
fn a_channel_in_use_is_not_destroyed_but_handed_back() -> Result<()> {
    let net = Net::new();
    let device = net.device();
    let channel = device.create_comp_channel()?;
    let cqs = (0..3).map(|_| device.create_cq_with_channel(4, &channel)).collect::<Result<Vec<_>>>()?;
    let refused = channel.destroy().expect_err("completion queues deliver to it");
    assert_eq!(busy(&refused.error), Some((3, "completion queues")));
    let channel = refused.object;
    cqs.into_iter().try_for_each(CompletionQueue::destroy)?;
    let copy = channel.clone();
    let refused = channel.destroy().expect_err("there is another handle");
    assert_eq!(busy(&refused.error), Some((1, "other handles")));
    drop(copy);
    refused.object.destroy()?;
    let channel = net.device().create_comp_channel()?;
    let foreign = device.create_cq_with_channel(4, &channel).expect_err("of another device");
    assert!(matches!(foreign, Error::Resource(ResourceError::Unknown { what: "completion channel" })));
    channel.destroy()?;
    Ok(())
}

#[test]
fn events_are_acknowledged_before_their_queue_is_destroyed() -> Result<()> {
    let net = Net::new();
    let device = net.device();
    let channel = device.create_comp_channel()?;
    let cq = device.create_cq_with_channel(4, &channel)?;
    let pd = device.alloc_pd()?;
    let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
    qp.modify(&crate::QpAttr::to_init(1, 0, Access::empty()))?;
    let fail = || {
        cq.arm(false)?;
        qp.modify(&crate::QpAttr::to_state(QpState::Err))?;
        qp.recv(1, Gather::Empty)
    };
    fail()?;
    assert!(cq.poll_one().is_some());
    fail()?;
    assert!(cq.poll_one().is_some());
    let (first, second) = (channel.wait(LIMIT)?, channel.wait(LIMIT)?);
    assert!(first.is_for(&cq) && second.is_for(&cq));
    assert!(matches!(channel.wait(LIMIT), Err(Error::Stalled)));
    fail()?;
    drop(qp);
    first.acknowledge();
    let refused = cq.destroy().expect_err("an event is not acknowledged");
    assert_eq!(busy(&refused.error), Some((1, "unacknowledged events")));
    drop(second);
    refused.object.destroy()?;
    assert!(channel.next_event().is_none(), "what was not handed out went with the queue");
    channel.destroy()?;
    Ok(())
}

#[test]
fn a_channel_waits_in_virtual_time() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let channel = b.create_comp_channel()?;
    let cq = b.create_cq_with_channel(4, &channel)?;
    let pd = b.alloc_pd()?;
    let right = pd.create_qp(&QpInit {
        cap: QpCap { max_send_wr: 1, ..QpInit::rc(&cq, &cq).cap },
        ..QpInit::rc(&cq, &cq)
    })?;
    let left = crate::RcEnd::new(&a)?;
    left.qp.connect(&right.address(), &ConnectOptions::default())?;
    right.connect(&left.qp.address(), &ConnectOptions::default())?;
    right.recv(5, Gather::Empty)?;
    cq.arm(false)?;
    left.qp.send(1, Gather::Empty)?;
    assert!(matches!(channel.wait(Duration::from_nanos(1)), Err(Error::Timeout(_))));
    assert!(channel.wait(Duration::MAX)?.is_for(&cq));
    assert_eq!(net.elapsed(), Duration::from_micros(1), "one way");
    assert_eq!(cq.poll_one().map(|wc| wc.wr_id), Some(5));
    Ok(())
}

#[tokio::test]
async fn a_task_gets_what_comes_in_virtual_time() -> Result<()> {
    let pair = pair(200, 200)?;
    // More than one task takes in a row, so that other tasks get their turn in between.
    pair.send_cq.resize(1000)?;
    for _ in 0..3 {
        pair.write(100)?;
        for wr_id in 0..100 {
            assert_eq!(pair.send_cq.next().await?.wr_id, wr_id);
        }
    }
    assert!(matches!(pair.send_cq.next().await, Err(Error::Stalled)));
    pair.left.recv(1, Gather::Empty)?;
    pair.right.send(2, Gather::Empty)?;
    // Two at once, each advancing virtual time.
    let (received, sent) = tokio::join!(pair.recv_cq.next(), pair.right_cq.next());
    assert_eq!((received?.wr_id, sent?.wr_id), (1, 2));
    Ok(())
}

#[tokio::test]
async fn a_task_that_awaits_gives_others_time_to_post() -> Result<()> {
    let pair = pair(10, 10)?;
    pair.left.recv(1, Gather::Empty)?;
    let (first, second) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let chain = async {
        first.notified().await;
        second.notify_one();
    };
    let post = async {
        second.notified().await;
        pair.right.send(2, Gather::Empty)
    };
    let start = async { first.notify_one() };
    let (received, posted, (), ()) = tokio::join!(pair.recv_cq.next(), post, chain, start);
    posted?;
    assert_eq!(received?.wr_id, 1);
    Ok(())
}

#[tokio::test]
async fn a_task_learns_of_an_overrun_once_it_has_everything_else() -> Result<()> {
    let pair = pair(2, 2)?;
    pair.write(3)?;
    pair.settle();
    assert_eq!((pair.send_cq.next().await?.wr_id, pair.send_cq.next().await?.wr_id), (0, 1));
    assert!(matches!(pair.send_cq.next().await, Err(Error::Overrun)));
    Ok(())
}
