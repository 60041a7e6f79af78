//! The descriptor of a completion channel, as programs watch it: it is readable as long as there are events, and each
//! event is an edge.
//!
//! In virtual time everything that is under way has arrived after `run_until_idle`, so a descriptor that is not
//! readable then never becomes so.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rnic::sim::Net;
use rnic::{CompletionChannel, CompletionQueue, Error, Gather, RcEnd, SendFlags, SendWr};
use std::os::fd::AsFd;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// Two queue pairs that receive into completion queues of one channel, and their peers.
struct Scene {
    net: Net,
    channel: CompletionChannel,
    edges: Epoll,
    ends: Vec<(RcEnd, Receiver)>,
}

struct Receiver {
    cq: CompletionQueue,
    qp: rnic::QueuePair,
}

impl Scene {
    fn new(count: usize) -> Result<Self, Error> {
        let net = Net::new();
        let (a, b) = (net.device(), net.device());
        let channel = b.create_comp_channel()?;
        let pd = b.alloc_pd()?;
        let mut ends = Vec::new();
        for _ in 0..count {
            let (left, sent) = (RcEnd::new(&a)?, b.create_cq(64)?);
            let cq = b.create_cq_with_channel(64, &channel)?;
            let qp = pd.create_qp(&rnic::QpInit::rc(&sent, &cq))?;
            qp.connect(&left.qp.address(), &Default::default())?;
            left.qp.connect(&qp.address(), &Default::default())?;
            ends.push((left, Receiver { cq, qp }));
        }
        let edges = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
        let edge = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        edges.add(channel.as_fd(), edge).expect("a descriptor to watch");
        Ok(Self { net, channel, edges, ends })
    }

    /// Whether the descriptor is readable.
    fn readable(&self) -> bool {
        let mut fds = [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
    }

    /// Whether there was an edge since the last call.
    fn edge(&self) -> bool {
        self.edges.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).expect("epoll") == 1
    }

    /// One message to a receiver.
    fn send(&self, to: usize, flags: SendFlags) -> Result<(), Error> {
        let (left, right) = &self.ends[to];
        right.qp.recv(1, Gather::Empty)?;
        let operation = rnic::Operation::Send { imm: None, invalidate: None };
        left.qp.post_send(SendWr::new(1, operation, Gather::Empty).flags(flags | SendFlags::SIGNALED))?;
        assert!(self.net.run_until_idle(LIMIT));
        left.wait().map(drop)
    }

    fn cq(&self, of: usize) -> &CompletionQueue {
        &self.ends[of].1.cq
    }

    /// Takes an event, which must be of this receiver's queue.
    fn take(&self, of: usize) {
        let event = self.channel.next_event().expect("an event");
        assert!(event.is_for(self.cq(of)), "an event of queue {of}");
    }

    fn polled(&self, of: usize) -> usize {
        std::iter::from_fn(|| self.cq(of).poll_one()).count()
    }
}

/// The ways in which programs go from one event to the next.
#[derive(Clone, Copy, Debug)]
enum Order {
    TakeArmPoll,
    TakePollArm,
    ArmTakePoll,
    PollTakeArm,
}

#[test]
fn the_descriptor_tells_of_every_event_whatever_the_program_does_first() -> Result<(), Error> {
    for order in [Order::TakeArmPoll, Order::TakePollArm, Order::ArmTakePoll, Order::PollTakeArm] {
        let scene = Scene::new(1)?;
        assert!(!scene.readable(), "{order:?}: nothing happened yet");
        scene.cq(0).arm(false)?;
        for round in 0..5 {
            scene.send(0, SendFlags::empty())?;
            assert!(scene.readable() && scene.edge(), "{order:?}, round {round}: an event");
            assert!(
                !scene.edge() && scene.readable(),
                "{order:?}, round {round}: one edge, and it stays readable"
            );
            let poll = || assert_eq!(scene.polled(0), 1, "{order:?}, round {round}");
            let take = || {
                scene.take(0);
                assert!(scene.channel.next_event().is_none(), "{order:?}, round {round}: one event");
                assert!(!scene.readable(), "{order:?}, round {round}: it was the only event");
            };
            match order {
                Order::TakeArmPoll => {
                    take();
                    scene.cq(0).arm(false)?;
                    poll();
                }
                Order::TakePollArm => {
                    take();
                    poll();
                    scene.cq(0).arm(false)?;
                }
                Order::ArmTakePoll => {
                    scene.cq(0).arm(false)?;
                    take();
                    poll();
                }
                Order::PollTakeArm => {
                    poll();
                    take();
                    scene.cq(0).arm(false)?;
                }
            }
            assert!(!scene.readable() && !scene.edge(), "{order:?}, round {round}: no event is left");
        }
    }
    Ok(())
}

/// Two queues share a channel: each event is an edge, and the descriptor stays readable until the last is taken.
#[test]
fn events_of_two_queues_are_two_edges_and_one_descriptor() -> Result<(), Error> {
    let scene = Scene::new(2)?;
    for round in 0..4 {
        scene.cq(0).arm(false)?;
        scene.cq(1).arm(false)?;
        scene.send(round % 2, SendFlags::empty())?;
        assert!(scene.readable() && scene.edge(), "round {round}");
        scene.send(1 - round % 2, SendFlags::empty())?;
        assert!(scene.edge(), "round {round}: an edge although it was readable");
        scene.take(round % 2);
        assert!(scene.readable(), "round {round}: one event is left");
        scene.take(1 - round % 2);
        assert!(!scene.readable(), "round {round}");
        assert_eq!((scene.polled(0), scene.polled(1)), (1, 1));
    }
    Ok(())
}

/// A queue that raises two events before the program takes one: both are taken, one after the other.
#[test]
fn a_queue_may_have_several_events() -> Result<(), Error> {
    let scene = Scene::new(2)?;
    for queues in [[0, 0, 0], [0, 1, 0], [0, 0, 1]] {
        for queue in queues {
            scene.cq(queue).arm(false)?;
            scene.send(queue, SendFlags::empty())?;
            assert!(scene.edge(), "{queues:?}");
        }
        let mut taken = [0, 0];
        for left in (0..3).rev() {
            assert!(scene.readable(), "{queues:?}: {} events are left", left + 1);
            let event = scene.channel.next_event().expect("an event");
            taken[usize::from(event.is_for(scene.cq(1)))] += 1;
        }
        assert!(!scene.readable() && scene.channel.next_event().is_none(), "{queues:?}");
        assert_eq!(taken, [3 - queues.iter().sum::<usize>(), queues.iter().sum()], "{queues:?}");
        assert_eq!(scene.polled(0) + scene.polled(1), 3);
    }
    Ok(())
}

/// Armed for solicited completions only: others leave the descriptor silent, and the queue armed.
#[test]
fn a_queue_armed_for_solicited_completions_is_silent_about_others() -> Result<(), Error> {
    let scene = Scene::new(1)?;
    for round in 0..3 {
        scene.cq(0).arm(true)?;
        scene.send(0, SendFlags::empty())?;
        scene.send(0, SendFlags::empty())?;
        assert!(!scene.readable() && !scene.edge(), "round {round}: nobody solicited these");
        scene.send(0, SendFlags::SOLICITED)?;
        assert!(scene.readable() && scene.edge(), "round {round}");
        scene.take(0);
        scene.send(0, SendFlags::SOLICITED)?;
        assert!(!scene.readable() && !scene.edge(), "round {round}: it is not armed any more");
        assert_eq!(scene.polled(0), 4);
    }
    Ok(())
}

/// The event of a queue that is gone makes no descriptor readable.
#[test]
fn events_of_a_queue_that_is_gone_are_gone() -> Result<(), Error> {
    let mut scene = Scene::new(2)?;
    scene.cq(0).arm(false)?;
    scene.send(0, SendFlags::empty())?;
    assert!(scene.readable());
    let (left, Receiver { cq, qp }) = scene.ends.remove(0);
    drop((left, qp, cq));
    assert!(!scene.readable() && scene.channel.next_event().is_none());
    scene.edge();
    scene.cq(0).arm(false)?;
    scene.send(0, SendFlags::empty())?;
    assert!(scene.readable() && scene.edge());
    scene.take(0);
    Ok(())
}
