//! Tasks that await completions over real sockets, in both kinds of tokio runtime.

use rnic::{CompletionQueue, Error, Gather, QpInit, RcEnd, WcStatus, WorkCompletion};
use rnic_tests::open;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fails a test whose tasks are not woken.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("nobody was woken")
}

async fn success(cq: &CompletionQueue) -> Result<WorkCompletion, Error> {
    let wc = cq.next().await?;
    assert_eq!(wc.status, WcStatus::Success);
    Ok(wc)
}

/// Sends `count` messages, each after receiving the previous one, and answers incoming messages. Two receives are
/// posted in advance, so that the peer always finds one.
async fn play(end: RcEnd, begins: bool, count: u64) -> Result<(), Error> {
    let (mut sent, mut received, mut completed) = (0, 0, 0);
    if begins {
        end.qp.send(1 << 32, Gather::Empty)?;
        sent += 1;
    }
    while received < count || completed < count {
        let wc = success(end.cq()).await?;
        if wc.wr_id >> 32 == 1 {
            assert_eq!(wc.wr_id - (1 << 32), completed, "in order");
            completed += 1;
            continue;
        }
        assert_eq!(wc.wr_id, received, "in order");
        received += 1;
        end.qp.recv(received + 1, Gather::Empty)?;
        if sent < count {
            end.qp.send((1 << 32) + sent, Gather::Empty)?;
            sent += 1;
        }
    }
    Ok(())
}

/// Many parallel conversations, each end a task that sleeps between messages.
async fn converse(conversations: usize, count: u64) {
    let mut tasks = JoinSet::new();
    let (a, b) = (open(), open());
    for _ in 0..conversations {
        let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
        for end in [&left, &right] {
            (0..2).try_for_each(|id| end.qp.recv(id, Gather::Empty)).expect("posted");
        }
        tasks.spawn(play(right, false, count));
        tasks.spawn(play(left, true, count));
    }
    while let Some(task) = in_time(tasks.join_next()).await {
        task.expect("no panic").expect("a conversation without errors");
    }
    let counters = a.counters().qp;
    assert_eq!(counters.rdma_recvs, conversations as u64 * count);
    assert_eq!(counters.rcvd_rnr_err, 0);
}

#[tokio::test]
async fn many_queues_in_one_thread() {
    converse(1, 3000).await;
    converse(30, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_queues_in_several_threads() {
    converse(1, 3000).await;
    converse(30, 100).await;
}

/// Futures that are dropped at every possible moment, while completions arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_that_is_dropped_loses_no_completion() -> Result<(), Error> {
    const COUNT: u64 = 5000;
    let (a, b) = (open(), open());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let sender = tokio::spawn(async move {
        for id in 0..COUNT {
            left.qp.send(id, Gather::Empty)?;
            assert_eq!(success(left.cq()).await?.wr_id, id);
        }
        Ok::<_, Error>(left)
    });
    (0..64).try_for_each(|id| right.qp.recv(id, Gather::Empty))?;
    let (mut received, mut dropped) = (0, 0);
    let all = async {
        while received < COUNT {
            tokio::select! {
                biased;
                wc = success(right.cq()) => {
                    assert_eq!(wc?.wr_id, received);
                    received += 1;
                    right.qp.recv(received + 63, Gather::Empty)?;
                }
                () = tokio::task::yield_now() => dropped += 1,
            }
        }
        Ok::<_, Error>(())
    };
    in_time(all).await?;
    let left = in_time(sender).await.expect("no panic")?;
    assert!(left.cq().is_empty() && right.cq().is_empty());
    assert!(dropped > 100, "{dropped} futures dropped: the test did not test dropping");
    Ok(())
}

/// Each completion goes to one of the tasks, and no task sleeps while completions are waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn several_tasks_share_a_queue() -> Result<(), Error> {
    const COUNT: u64 = 3000;
    let (a, b) = (open(), open());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (right, seen) = (Arc::new(right), Arc::new(AtomicU64::new(0)));
    (0..100).try_for_each(|id| right.qp.recv(id, Gather::Empty))?;
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (right, seen) = (Arc::clone(&right), Arc::clone(&seen));
        tasks.spawn(async move {
            let mut mine = Vec::new();
            while seen.load(Ordering::Relaxed) < COUNT {
                // The last completion goes to one task only: the others check periodically whether it has arrived.
                let next = tokio::time::timeout(Duration::from_millis(200), success(right.cq()));
                let Ok(wc) = next.await else { continue };
                mine.push(wc?.wr_id);
                seen.fetch_add(1, Ordering::Relaxed);
                right.qp.recv(0, Gather::Empty)?;
            }
            Ok::<_, Error>(mine)
        });
    }
    for id in 0..COUNT {
        left.qp.send(id, Gather::Empty)?;
        assert_eq!(in_time(success(left.cq())).await?.wr_id, id);
    }
    let mut shares = Vec::new();
    while let Some(task) = in_time(tasks.join_next()).await {
        shares.push(task.expect("no panic")?.len());
    }
    println!("{shares:?}");
    assert_eq!(shares.iter().sum::<usize>() as u64, COUNT);
    Ok(())
}

/// A queue is not bound to the runtime in which it was first awaited.
#[test]
fn a_queue_outlives_runtimes() -> Result<(), Error> {
    let (a, b) = (open(), open());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let mut kept = Vec::new();
    for round in 0..4 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        right.qp.recv(round, Gather::Empty)?;
        let wc = runtime.block_on(async {
            // Leaves a waker behind, and possibly more than one.
            let early = tokio::time::timeout(Duration::from_millis(1), right.cq().next()).await;
            assert!(early.is_err(), "nothing was sent yet");
            left.qp.send(round, Gather::Empty)?;
            in_time(success(right.cq())).await
        })?;
        assert_eq!(wc.wr_id, round);
        // Some runtimes are dropped, others stay and are never driven again.
        if round % 2 == 0 {
            kept.push(runtime);
        }
    }
    assert_eq!(kept.len(), 2);
    Ok(())
}

/// A busy queue yields to the other tasks of its thread.
#[tokio::test]
async fn a_queue_that_is_never_empty_does_not_starve_other_tasks() -> Result<(), Error> {
    const COUNT: u64 = 1000;
    let (a, b) = (open(), open());
    let pd = a.alloc_pd()?;
    let cq = a.create_cq(COUNT as u32)?;
    let mut init = QpInit::rc(&cq, &cq);
    init.cap.max_send_wr = COUNT as u32;
    let qp = pd.create_qp(&init)?;
    qp.connect(&RcEnd::new(&b)?.qp.address(), &rnic::ConnectOptions::default())?;
    qp.modify(&rnic::QpAttr::to_state(rnic::QpState::Err))?;
    for id in 0..COUNT {
        // Flushed at once, or as soon as the background thread releases the engine.
        qp.send(id, Gather::Empty)?;
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while (cq.len() as u64) < COUNT {
        assert!(std::time::Instant::now() < deadline, "not all are flushed");
        a.progress();
    }
    let turns = AtomicU64::new(0);
    let count = async {
        loop {
            turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let take = async {
        for id in 0..COUNT {
            assert_eq!(cq.next().await.expect("a completion").wr_id, id);
        }
    };
    tokio::select! {
        () = count => unreachable!("it never ends"),
        () = take => {}
    }
    let turns = turns.load(Ordering::Relaxed);
    assert!((5..50).contains(&turns), "{turns} turns during {COUNT} completions");
    Ok(())
}

/// The descriptor of a channel in tokio's own reactor, which is edge-triggered.
#[tokio::test]
async fn a_channel_can_be_watched_by_tokio() -> Result<(), Error> {
    const COUNT: u64 = 2000;
    let (a, b) = (open(), open());
    let left = RcEnd::new(&a)?;
    let channel = b.create_comp_channel()?;
    let cq = b.create_cq_with_channel(100, &channel)?;
    let pd = b.alloc_pd()?;
    let right = pd.create_qp(&QpInit::rc(&cq, &cq))?;
    left.qp.connect(&right.address(), &rnic::ConnectOptions::default())?;
    right.connect(&left.qp.address(), &rnic::ConnectOptions::default())?;
    (0..64).try_for_each(|id| right.recv(id, Gather::Empty))?;
    // One at a time, so that the receiver repeatedly finds its queue empty; with pauses in between, because on a
    // busy host it might never do so.
    let sender = std::thread::spawn(move || {
        (0..COUNT).try_for_each(|id| {
            if id % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            left.qp.send(id, Gather::Empty)?;
            assert_eq!(left.wait()?.status, WcStatus::Success);
            Ok::<_, Error>(())
        })
    });
    #[expect(unsafe_code, reason = "tokio cannot know whose descriptor it is")]
    // SAFETY: the channel keeps its descriptor open for its whole life.
    let channel = unsafe { AsyncFd::register(channel) }.expect("a descriptor that can be watched");
    let (mut received, mut slept) = (0, 0);
    let all = async {
        while received < COUNT {
            if let Some(wc) = cq.poll_one() {
                assert_eq!((wc.wr_id, wc.status), (received, WcStatus::Success));
                right.recv(received + 64, Gather::Empty)?;
                received += 1;
                continue;
            }
            cq.arm(false)?;
            if !cq.is_empty() {
                continue;
            }
            let mut ready = channel.readable().await.expect("a reactor");
            match channel.get_ref().next_event() {
                Some(event) => event.acknowledge(),
                None => ready.clear_ready(),
            }
            slept += 1;
        }
        Ok::<_, Error>(())
    };
    in_time(all).await?;
    sender.join().expect("no panic")?;
    println!("slept {slept} times");
    assert!(slept > 20, "slept {slept} times only: the test did not test sleeping");
    Ok(())
}
