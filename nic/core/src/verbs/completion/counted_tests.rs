//! Counted events, completions with times, and lists of work requests: the style of C programs.

use crate::sim::Net;
use crate::{
    Access, CompletionQueue, ConnectOptions, Device, Error, Gather, Gid, MemoryRegion, Operation, PostError,
    QKey, QpAttr, QpCap, QpInit, QpState, QpType, QueuePair, RcEnd, RecvWr, Result, SendFlags, SendWr,
    WcStatus,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::AsFd;
use time::Duration;

/// Far longer than any operation takes in virtual time.
const LIMIT: Duration = Duration::from_secs(10);

/// A queue pair of a device, which completes to one queue with events, and flushes posted work requests.
fn flushing(device: &Device, cq: &CompletionQueue) -> Result<QueuePair> {
    let qp = device.alloc_pd()?.create_qp(&QpInit::rc(cq, cq))?;
    qp.modify(&QpAttr::to_init(1, 0, Access::empty()))?;
    qp.modify(&QpAttr::to_state(QpState::Err))?;
    Ok(qp)
}

#[test]
fn events_that_are_kept_are_acknowledged_by_number_and_carry_the_number_of_their_queue() -> Result<()> {
    let device = Net::new().device();
    let channel = device.create_comp_channel()?;
    let cq = device.create_cq_with_channel(8, &channel)?;
    cq.set_context(0xfeed);
    let qp = flushing(&device, &cq)?;
    assert!(cq.is_used());
    for id in 0..3 {
        cq.arm(false)?;
        qp.recv(id, Gather::Empty)?;
        let event = channel.wait(LIMIT)?;
        assert_eq!(event.context(), Some(0xfeed));
        event.keep();
        assert_eq!(cq.poll_one().map(|wc| wc.wr_id), Some(id));
    }
    assert_eq!(cq.unacknowledged_events(), 3);
    cq.acknowledge(2);
    assert_eq!(cq.unacknowledged_events(), 1);
    drop(qp);
    assert!(!cq.is_used());
    let cq = cq.destroy().expect_err("one event is not acknowledged").object;
    cq.acknowledge(7);
    assert_eq!(cq.unacknowledged_events(), 0, "more than there are is as many as there are");
    Ok(cq.destroy()?)
}

#[test]
fn a_channel_does_not_wait_where_a_program_made_its_descriptor_a_blocking_one() -> Result<()> {
    let device = Net::new().device();
    let channel = device.create_comp_channel()?;
    fcntl(channel.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).expect("a flag of a descriptor");
    assert!(channel.next_event().is_none());
    let cq = device.create_cq_with_channel(8, &channel)?;
    let qp = flushing(&device, &cq)?;
    cq.arm(false)?;
    qp.recv(1, Gather::Empty)?;
    assert!(channel.next_event().is_some_and(|event| event.is_for(&cq)));
    assert!(channel.next_event().is_none());
    Ok(())
}

#[test]
fn completions_tell_when_they_were_delivered_if_they_are_asked_to() -> Result<()> {
    let net = Net::new();
    let (left, right) = RcEnd::pair(&net.device(), &net.device())?;
    let (source, target) = (left.register(b"stamp")?, right.register_remote(5)?);
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.timestamp, 0, "not asked for");
    left.cq().stamp_completions();
    left.cq().stamp_completions();
    left.qp.write(2, source.all(), target.remote(0))?;
    let (completion, now) = (left.wait()?, left.pd().device().clock());
    assert!(completion.timestamp > 0 && completion.timestamp <= now, "{} of {now}", completion.timestamp);
    assert_eq!(Duration::from_nanos(now), net.elapsed());
    Ok(())
}

/// Two ends; the left one has room for three sends.
struct Small {
    net: Net,
    left: QueuePair,
    right: QueuePair,
    cq: CompletionQueue,
    right_cq: CompletionQueue,
    source: MemoryRegion,
}

fn small() -> Result<Small> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (cq, right_cq) = (a.create_cq(16)?, b.create_cq(16)?);
    let init = QpInit::rc(&cq, &cq);
    let pd = a.alloc_pd()?;
    let left = pd.create_qp(&QpInit { cap: QpCap { max_send_wr: 3, ..init.cap }, ..init })?;
    let right = b.alloc_pd()?.create_qp(&QpInit::rc(&right_cq, &right_cq))?;
    left.connect(&right.address(), &ConnectOptions::default())?;
    right.connect(&left.address(), &ConnectOptions::default())?;
    let source = pd.register_bytes(b"x", Access::LOCAL_WRITE)?;
    Ok(Small { net, left, right, cq, right_cq, source })
}

fn sends(ids: std::ops::Range<u64>) -> impl Iterator<Item = SendWr> {
    let send = Operation::Send { imm: None, invalidate: None };
    ids.map(move |id| SendWr::new(id, send, Gather::Empty).flags(SendFlags::SIGNALED))
}

fn ids(cq: &CompletionQueue) -> Vec<u64> {
    std::iter::from_fn(|| cq.poll_one()).map(|wc| wc.wr_id).collect()
}

#[test]
fn a_list_is_posted_up_to_the_first_request_that_is_refused() -> Result<()> {
    let Small { net, left, right, cq, right_cq, source } = small()?;
    let receives = (0..8).map(|wr_id| RecvWr { wr_id, data: Gather::Empty });
    right.post_recvs(receives).map_err(|(_, error)| error)?;
    let full = PostError::QueueFull { queue: "send", max: 3 };
    let refused = left.post_sends(sends(0..5)).expect_err("no room for the fourth");
    assert!(matches!(refused, (3, Error::Post(error)) if error == full), "{refused:?}");
    assert!(net.run_until_idle(LIMIT));
    assert_eq!((ids(&cq), ids(&right_cq)), (vec![0, 1, 2], vec![0, 1, 2]));
    let wrong = SendWr::new(9, Operation::LocalInvalidate { key: 1 }, Gather::Many([source.all(); 5].into()));
    let refused = left.post_sends(sends(3..4).chain([wrong]).chain(sends(4..5)));
    assert!(matches!(refused, Err((1, Error::Post(PostError::TooManySges { .. })))), "{refused:?}");
    assert!(net.run_until_idle(LIMIT));
    assert_eq!(ids(&cq), [3], "what stands behind it is not posted");
    let refused = right.post_recvs([RecvWr { wr_id: 1, data: Gather::Many([source.all(); 5].into()) }]);
    assert!(matches!(refused, Err((0, Error::Post(_)))), "{refused:?}");
    Ok(())
}

#[test]
fn a_batch_is_posted_as_a_whole_or_not_at_all() -> Result<()> {
    let Small { net, left, right, cq, .. } = small()?;
    right
        .post_recvs((0..8).map(|wr_id| RecvWr { wr_id, data: Gather::Empty }))
        .map_err(|(_, error)| error)?;
    let mut batch: Vec<_> = sends(0..4).collect();
    assert!(matches!(left.post_sends_or_none(&mut batch), Err(Error::Post(PostError::QueueFull { .. }))));
    assert!(net.run_until_idle(LIMIT));
    assert_eq!((batch.len(), ids(&cq).len()), (4, 0));
    batch.truncate(3);
    left.post_sends_or_none(&mut batch)?;
    assert!(net.run_until_idle(LIMIT));
    assert_eq!((batch.len(), ids(&cq)), (0, vec![0, 1, 2]), "the places of the first try came back");
    Ok(())
}

#[test]
fn completions_of_a_queue_pair_can_be_taken_out_of_the_queue_that_it_shares() -> Result<()> {
    let device = Net::new().device();
    let cq = device.create_cq(8)?;
    let (one, other) = (flushing(&device, &cq)?, flushing(&device, &cq)?);
    for id in 0..3 {
        one.recv(id, Gather::Empty)?;
        other.recv(10 + id, Gather::Empty)?;
    }
    assert_eq!((one.discard_completions(), one.discard_completions()), (3, 0));
    one.recv(3, Gather::Empty)?;
    let left: Vec<_> = std::iter::from_fn(|| cq.poll_one()).collect();
    assert!(left.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
    assert_eq!(
        left.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        [10, 11, 12, 3],
        "in order, and it goes on"
    );
    Ok(())
}

/// A queue pair in use stays, and so do its completions.
#[test]
fn a_queue_pair_that_is_not_destroyed_keeps_its_completions() -> Result<()> {
    let device = Net::new().device();
    let cq = device.create_cq(8)?;
    let init = QpInit { qp_type: QpType::Ud, ..QpInit::rc(&cq, &cq) };
    let qp = device.alloc_pd()?.create_qp(&init)?;
    qp.activate(QKey(1))?;
    let group = Gid::from(std::net::Ipv4Addr::new(239, 1, 1, 1));
    qp.attach_mcast(group)?;
    qp.modify(&QpAttr::to_state(QpState::Err))?;
    qp.recv(1, Gather::Empty)?;
    let qp = qp.destroy_with_completions().expect_err("it is attached to a group").object;
    assert_eq!(cq.poll_one().map(|wc| wc.wr_id), Some(1));
    qp.recv(2, Gather::Empty)?;
    qp.detach_mcast(group)?;
    assert_eq!(qp.destroy_with_completions()?, 1);
    assert_eq!(cq.poll_one(), None);
    Ok(())
}
