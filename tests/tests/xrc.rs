//! Extended reliable connections: one queue pair receives for many shared receive queues.

use rnic::engine::{AsyncEvent, ResourceError};
use rnic::sim::Net;
use rnic::{
    Access, AccessError, CompletionQueue, ConnectOptions, Destination, Device, Error, Gather, MemoryRegion,
    Operation, PostError, ProtectionDomain, QpAttr, QpEvent, QpInit, QpState, QueuePair, Remote, SendFlags,
    SendWr, SharedReceiveQueue, SrqInit, WcOpcode, WcStatus, WorkCompletion, XrcDomain,
};
use rnic_tests::{open, pattern};
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const SLOT: usize = 8192;

/// A user of an XRC domain: a shared receive queue with a protection domain and a completion queue of its own.
struct User {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    buffers: MemoryRegion,
}

impl User {
    fn new(device: &Device, xrcd: &XrcDomain, init: SrqInit) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1024)?;
        let srq = pd.create_xrc_srq(&init, xrcd, &cq)?;
        let buffers = pd.register(SLOT * init.max_wr as usize, Access::LOCAL_WRITE)?;
        Ok(Self { pd, cq, srq, buffers })
    }

    fn post(&self, slot: u64) -> Result<(), Error> {
        let start = SLOT * slot as usize;
        self.srq.recv(slot, self.buffers.slice(start..start + SLOT)?)
    }

    fn message(&self, wc: &WorkCompletion) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; wc.byte_len as usize];
        self.buffers.read_at(SLOT * wc.wr_id as usize, &mut bytes)?;
        Ok(bytes)
    }
}

/// The sending half, with memory to send from.
struct Source {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Source {
    fn new(device: &Device) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1024)?;
        let qp = pd.create_qp(&QpInit::xrc_send(&cq))?;
        let memory = pd.register(SLOT, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq, memory })
    }

    /// Connects it with a new receiving half.
    fn connect(
        &self,
        there: &Device,
        xrcd: &XrcDomain,
        options: &ConnectOptions,
    ) -> Result<QueuePair, Error> {
        let target = there.create_qp(&QpInit::xrc_recv(xrcd))?;
        self.qp.connect(&target.address(), options)?;
        target.connect(&self.qp.address(), options)?;
        Ok(target)
    }

    /// Posts a signalled request that names a queue.
    fn post(&self, wr_id: u64, to: u32, operation: Operation, data: impl Into<Gather>) -> Result<(), Error> {
        let wr = SendWr::new(wr_id, operation, data).flags(SendFlags::SIGNALED);
        self.qp.post_send(wr.to(Destination::XrcSrq(to)))
    }

    /// Sends bytes that are copied at once.
    fn send(&self, wr_id: u64, to: &SharedReceiveQueue, bytes: &[u8]) -> Result<(), Error> {
        self.post(wr_id, to.srqn(), SEND, Gather::Inline(bytes.into()))
    }

    fn wait(&self) -> Result<WorkCompletion, Error> {
        self.cq.wait(PATIENCE)
    }
}

const SEND: Operation = Operation::Send { imm: None, invalidate: None };

fn events(device: &Device) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| device.poll_event().expect("not forked"))
        .filter(|e| !matches!(e, AsyncEvent::QueuePair(_, QpEvent::CommunicationEstablished)))
        .collect()
}

const SMALL: SrqInit = SrqInit { max_wr: 8, max_sge: 1, limit: 0 };

#[test]
fn one_queue_pair_delivers_to_several_queues_by_number() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let users: Vec<User> = (0..3).map(|_| User::new(&there, &xrcd, SMALL)).collect::<Result<_, _>>()?;
    let source = Source::new(&here)?;
    let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    for user in &users {
        for slot in 0..8 {
            user.post(slot)?;
        }
    }
    let order = [0, 1, 2, 2, 1, 0, 0, 2, 1, 1, 1, 0];
    for (id, user) in order.iter().enumerate() {
        source.send(id as u64, &users[*user].srq, format!("message {id} for {user}").as_bytes())?;
    }
    for id in 0..order.len() {
        let wc = source.wait()?;
        assert_eq!((wc.wr_id, wc.status), (id as u64, WcStatus::Success), "in order, whoever they are for");
    }
    for (number, user) in users.iter().enumerate() {
        let theirs = order.iter().enumerate().filter(|(_, to)| **to == number);
        let mut count = 0;
        for (slot, (id, _)) in theirs.enumerate() {
            let wc = user.cq.poll_one().expect("it was acknowledged, so it is there");
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (slot as u64, WcStatus::Success, WcOpcode::Recv));
            assert_eq!((wc.qpn, wc.src_qpn), (target.qpn(), source.qp.qpn()));
            assert_eq!(user.message(&wc)?, format!("message {id} for {number}").as_bytes());
            count += 1;
        }
        assert_eq!((user.cq.poll_one(), user.srq.outstanding()), (None, 8 - count));
    }
    assert_eq!(events(&there), []);
    Ok(())
}

/// Each of several senders sends to each of several queues, over a network that loses packets.
#[test]
fn many_senders_and_many_queues_lose_nothing() -> Result<(), Error> {
    const EACH: u64 = 600;
    let net = Net::with_seed(11);
    let there = net.device();
    let xrcd = there.open_xrcd()?;
    let init = SrqInit { max_wr: 16, ..SMALL };
    let users: Vec<User> = (0..3).map(|_| User::new(&there, &xrcd, init)).collect::<Result<_, _>>()?;
    let options = ConnectOptions { timeout: 8, ..ConnectOptions::default() };
    let mut sources = Vec::new();
    for _ in 0..4 {
        let peer = net.device();
        for fault in ["tx p=0.02 drop", "rx p=0.02 drop", "tx p=0.02 dup"] {
            peer.add_fault(fault)?;
        }
        let source = Source::new(&peer)?;
        let target = source.connect(&there, &xrcd, &options)?;
        source.memory.write_at(0, &pattern::bytes(3, SLOT))?;
        sources.push((peer, source, target, 0, 0));
    }
    for user in &users {
        for slot in 0..16 {
            user.post(slot)?;
        }
    }
    let bytes = pattern::bytes(3, SLOT);
    // The received messages, by queue pair and queue.
    let mut seen: BTreeMap<(u32, usize), Vec<u32>> = BTreeMap::new();
    let mut idle = false;
    while seen.values().map(Vec::len).sum::<usize>() < 4 * EACH as usize {
        for (_, source, _, posted, done) in &mut sources {
            while let Some(wc) = source.cq.poll_one() {
                assert_eq!((wc.wr_id, wc.status), (*done, WcStatus::Success), "{:?}", source.qp.failure());
                *done += 1;
            }
            while *posted < EACH && *posted - *done < 16 {
                // The immediate data is a counter; the length depends on it.
                let nth = *posted as u32;
                let part = source.memory.slice(0..length(nth))?;
                let operation = Operation::Send { imm: Some(nth), invalidate: None };
                source.post(*posted, users[(nth % 3) as usize].srq.srqn(), operation, part)?;
                *posted += 1;
            }
        }
        for (number, user) in users.iter().enumerate() {
            while let Some(wc) = user.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
                let nth = wc.imm().expect("it was sent with immediate data");
                assert!(user.message(&wc)? == bytes[..length(nth)], "message {nth} is damaged");
                seen.entry((wc.qpn.value(), number)).or_default().push(nth);
                user.post(wc.wr_id)?;
            }
        }
        // Newly posted work can continue the simulation; nothing else can.
        let moved = net.step();
        assert!(moved || !idle, "stalled");
        idle = !moved;
    }
    assert_eq!(seen.len(), 12);
    for ((_, number), messages) in &seen {
        assert!(messages.iter().copied().eq((*number as u32..EACH as u32).step_by(3)), "{messages:?}");
    }
    for rule in 0..3 {
        let hits: u64 = sources.iter().map(|(peer, ..)| peer.faults()[rule].hits).sum();
        assert!(hits > 0, "rule {rule}: a network in which nothing was lost proves nothing");
    }
    Ok(())
}

fn length(nth: u32) -> usize {
    [1, 64, 1024, 4096, 4097, SLOT][nth as usize % 6]
}

#[test]
fn a_queue_that_is_not_in_the_domain_is_an_invalid_request() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let (xrcd, other) = (there.open_xrcd()?, there.open_xrcd()?);
    let user = User::new(&there, &xrcd, SMALL)?;
    let stranger = User::new(&there, &other, SMALL)?;
    let basic = user.pd.create_srq(&SMALL)?;
    basic.recv(1, user.buffers.slice(0..64)?)?;
    user.post(0)?;
    stranger.post(0)?;
    let unknown = 0xab_cdef;
    for number in [unknown, stranger.srq.srqn(), basic.srqn()] {
        for operation in [SEND, Operation::Write { remote: Remote::default(), imm: None }] {
            let source = Source::new(&here)?;
            let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
            source.post(1, number, operation, Gather::Empty)?;
            assert_eq!(source.wait()?.status, WcStatus::RemInvReqErr);
            assert_eq!((source.qp.state(), target.state()), (QpState::Err, QpState::Err));
            let qpn = target.qpn();
            assert_eq!(
                events(&there),
                [QpEvent::RequestError, QpEvent::LastWqeReached].map(|e| AsyncEvent::QueuePair(qpn, e))
            );
            let why = target.failure().expect("it failed").to_string();
            assert!(why.contains("no such shared receive queue"), "{why}");
        }
    }
    assert_eq!((user.srq.outstanding(), stranger.srq.outstanding(), basic.outstanding()), (1, 1, 1));
    assert!(user.cq.is_empty() && stranger.cq.is_empty());
    // A queue that has been destroyed.
    let source = Source::new(&here)?;
    let _target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    let number = user.srq.srqn();
    source.send(1, &user.srq, b"before")?;
    assert_eq!(source.wait()?.status, WcStatus::Success);
    user.srq.destroy()?;
    source.post(2, number, SEND, Gather::Empty)?;
    assert_eq!(source.wait()?.status, WcStatus::RemInvReqErr);
    Ok(())
}

#[test]
fn peers_wait_for_the_queue_that_they_name() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let (empty, filled) = (User::new(&there, &xrcd, SMALL)?, User::new(&there, &xrcd, SMALL)?);
    let source = Source::new(&here)?;
    let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    filled.post(0)?;
    source.send(1, &empty.srq, b"first")?;
    source.send(2, &filled.srq, b"second")?;
    net.run_for(Duration::from_millis(3));
    // Requests of one queue pair stay in order, so the second waits for the first.
    assert!(empty.cq.is_empty() && filled.cq.is_empty());
    let refusals = target.counters().send_rnr_err;
    assert!(refusals >= 3 && source.qp.counters().rcvd_rnr_err == refusals, "{refusals}");
    empty.post(0)?;
    for id in 1..3 {
        let wc = source.wait()?;
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
    }
    for (user, message) in [(&empty, b"first".as_slice()), (&filled, b"second")] {
        let wc = user.cq.poll_one().expect("a message");
        assert_eq!(user.message(&wc)?, message);
    }
    // The limit event of an XRC queue is like that of any other.
    empty.post(0)?;
    empty.post(1)?;
    empty.srq.modify(rnic::SrqModify::limit(2))?;
    source.send(3, &empty.srq, b"third")?;
    assert_eq!(source.wait()?.status, WcStatus::Success);
    assert_eq!(events(&there), [AsyncEvent::SrqLimitReached(empty.srq.srqn())]);
    Ok(())
}

#[test]
fn memory_is_that_of_the_user_whose_queue_is_named() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let users = [User::new(&there, &xrcd, SMALL)?, User::new(&there, &xrcd, SMALL)?];
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let source = Source::new(&here)?;
    let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    for (number, user) in users.iter().enumerate() {
        let region = user.pd.register(SLOT, rights)?;
        let to = user.srq.srqn();
        let data = pattern::bytes(number as u64, SLOT);
        source.memory.write_at(0, &data)?;
        source.post(1, to, Operation::Write { remote: region.remote(0), imm: None }, source.memory.all())?;
        assert_eq!(source.wait()?.status, WcStatus::Success);
        assert!(region.to_vec()? == data);
        source.memory.write_at(0, &[0; SLOT])?;
        source.post(2, to, Operation::Read { remote: region.remote(0) }, source.memory.all())?;
        let wc = source.wait()?;
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::RdmaRead, SLOT as u32));
        assert!(source.memory.to_vec()? == data);
        region.store_u64(8, 40)?;
        let word = source.memory.slice(16..24)?;
        source.post(3, to, Operation::FetchAdd { remote: region.remote(8), add: 2 }, word)?;
        assert_eq!(source.wait()?.status, WcStatus::Success);
        assert_eq!((region.load_u64(8)?, source.memory.load_u64(16)?), (42, 40));
        let swap = Operation::CompareSwap { remote: region.remote(8), compare: 42, swap: 7 };
        source.post(4, to, swap, word)?;
        assert_eq!(source.wait()?.status, WcStatus::Success);
        assert_eq!((region.load_u64(8)?, source.memory.load_u64(16)?), (7, 42));
        user.post(5)?;
        let with_imm = Operation::Write { remote: region.remote(64), imm: Some(99) };
        source.post(5, to, with_imm, source.memory.slice(0..8)?)?;
        assert_eq!(source.wait()?.status, WcStatus::Success);
        let wc = user.cq.poll_one().expect("a completion");
        assert_eq!((wc.wr_id, wc.opcode, wc.imm()), (5, WcOpcode::RecvRdmaWithImm, Some(99)));
        assert_eq!((wc.byte_len, wc.qpn), (8, target.qpn()));
    }
    let counters = target.counters();
    assert_eq!((counters.rx_write_requests, counters.rx_read_requests), (4, 2));
    assert_eq!(counters.rx_atomic_requests, 4);
    // One user's key with the other's queue number.
    let region = users[0].pd.register(SLOT, rights)?;
    let word = source.memory.slice(0..8)?;
    for operation in [
        Operation::Write { remote: region.remote(0), imm: None },
        Operation::Read { remote: region.remote(0) },
        Operation::FetchAdd { remote: region.remote(0), add: 1 },
    ] {
        let source = Source::new(&here)?;
        let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
        source.post(1, users[1].srq.srqn(), operation, source.memory.slice(0..8)?)?;
        assert_eq!(source.wait()?.status, WcStatus::RemAccessErr);
        let why = target.failure().and_then(|f| f.access);
        assert_eq!(why, Some(AccessError::WrongDomain { key: region.rkey() }));
    }
    assert_eq!(region.to_vec()?, [0; SLOT]);
    source.post(6, users[0].srq.srqn(), Operation::Write { remote: region.remote(0), imm: None }, word)?;
    assert_eq!(source.wait()?.status, WcStatus::Success);
    Ok(())
}

/// A READ whose response is lost is answered again, in the domain of the queue that it named.
#[test]
fn a_lost_answer_to_a_read_is_sent_again() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let user = User::new(&there, &xrcd, SMALL)?;
    let region = user.pd.register_bytes(&pattern::bytes(8, SLOT), Access::REMOTE_READ)?;
    let source = Source::new(&here)?;
    let target =
        source.connect(&there, &xrcd, &ConnectOptions { timeout: 8, ..ConnectOptions::default() })?;
    here.add_fault("rx xrc.read.resp.last drop 1 times")?;
    source.post(1, user.srq.srqn(), Operation::Read { remote: region.remote(0) }, source.memory.all())?;
    assert_eq!(source.wait()?.status, WcStatus::Success);
    assert_eq!((here.faults()[0].hits, target.counters().duplicate_request), (1, 1));
    assert!(source.memory.to_vec()? == pattern::bytes(8, SLOT));
    Ok(())
}

#[test]
fn each_half_takes_the_requests_that_are_its_own() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let user = User::new(&there, &xrcd, SMALL)?;
    let source = Source::new(&here)?;
    let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    let post = |result: Result<(), Error>| match result {
        Err(Error::Post(error)) => error,
        other => panic!("{other:?}"),
    };
    let refused = [
        post(source.qp.send(1, Gather::Empty)),
        post(source.qp.recv(1, Gather::Empty)),
        post(target.recv(1, Gather::Empty)),
        post(target.send(1, Gather::Empty)),
    ];
    assert!(matches!(refused[0], PostError::Destination { .. }), "{refused:?}");
    for error in &refused[1..] {
        assert!(matches!(error, PostError::NoQueue { .. }), "{refused:?}");
    }
    // Attributes of the other half do not apply, as in verbs.
    let spare = there.create_qp(&QpInit::xrc_recv(&xrcd))?;
    spare.modify(&QpAttr::to_init(1, 0, Access::REMOTE_WRITE))?;
    assert_eq!(spare.query().cap.map(|cap| (cap.max_send_wr, cap.max_recv_wr)), Some((0, 0)));
    // Parts that a type does not have, and parts that it needs.
    let parts = |result: Result<QueuePair, Error>| match result {
        Err(Error::Resource(error @ ResourceError::QpParts { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let own = user.pd.create_qp(&QpInit::xrc_recv(&xrcd));
    assert!(parts(own).contains("XRC_RECV queue pairs have no protection domain"));
    let without = there.create_qp(&QpInit::rc(&user.cq, &user.cq));
    assert!(parts(without).contains("RC queue pairs need a protection domain"));
    let through = user.pd.create_qp(&QpInit::rc(&user.cq, &user.cq).with_srq(&user.srq));
    assert!(parts(through).contains("cannot use a queue of an XRC domain"));
    // Objects in use are not destroyed.
    let refused = xrcd.clone().close().expect_err("in use");
    let by = "queue pairs and shared receive queues";
    let busy = ResourceError::Busy { what: "XRC domain", users: 3, by };
    assert!(matches!(&refused.error, Error::Resource(error) if *error == busy), "{refused:?}");
    drop((refused, spare, target));
    let copy = xrcd.clone();
    drop(user);
    xrcd.close()?;
    assert!(there.create_qp(&QpInit::xrc_recv(&copy)).is_err(), "it is closed");
    assert!(here.create_qp(&QpInit::xrc_recv(&there.open_xrcd()?)).is_err(), "of another device");
    Ok(())
}

#[test]
fn a_queue_whose_completion_queue_overran_fails() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let sound = User::new(&there, &xrcd, SMALL)?;
    sound.post(0)?;
    let pd = there.alloc_pd()?;
    let short = there.create_cq(1)?;
    let srq = pd.create_xrc_srq(&SMALL, &xrcd, &short)?;
    for id in 0..4 {
        srq.recv(id, Gather::Empty)?;
    }
    let source = Source::new(&here)?;
    let target = source.connect(&there, &xrcd, &ConnectOptions::default())?;
    for id in 0..2 {
        source.post(id, srq.srqn(), SEND, Gather::Empty)?;
        assert_eq!(source.wait()?.status, WcStatus::Success);
    }
    assert!(short.is_overrun());
    let told = events(&there);
    assert!(told.contains(&AsyncEvent::SrqError(srq.srqn())), "{told:?}");
    assert_eq!(target.state(), QpState::Rts, "others may use it");
    source.send(2, &sound.srq, b"unharmed")?;
    assert_eq!(source.wait()?.status, WcStatus::Success);
    source.post(3, srq.srqn(), SEND, Gather::Empty)?;
    assert_eq!(source.wait()?.status, WcStatus::RemOpErr);
    assert_eq!((target.state(), srq.outstanding()), (QpState::Err, 2));
    Ok(())
}

#[test]
fn a_queue_that_is_destroyed_under_a_message_takes_its_receive_along() -> Result<(), Error> {
    let net = Net::new();
    let (here, there) = (net.device(), net.device());
    let xrcd = there.open_xrcd()?;
    let User { pd: _pd, cq, srq, buffers } = User::new(&there, &xrcd, SMALL)?;
    let source = Source::new(&here)?;
    let options = ConnectOptions { timeout: 8, ..ConnectOptions::default() };
    let _target = source.connect(&there, &xrcd, &options)?;
    srq.recv(0, buffers.all())?;
    here.add_fault("tx xrc.send.last drop 1 times")?;
    let number = srq.srqn();
    source.post(1, number, SEND, source.memory.all())?;
    net.run_for(Duration::from_micros(50));
    assert_eq!(srq.outstanding(), 0, "taken");
    srq.destroy()?;
    // The rest of the message arrives, and finds no receive.
    assert_eq!(source.wait()?.status, WcStatus::Success);
    assert!(cq.is_empty());
    source.post(2, number, SEND, Gather::Empty)?;
    assert_eq!(source.wait()?.status, WcStatus::RemInvReqErr);
    Ok(())
}

#[test]
fn over_sockets() -> Result<(), Error> {
    let (here, there) = (open(), open());
    let xrcd = there.open_xrcd()?;
    let users = [User::new(&there, &xrcd, SMALL)?, User::new(&there, &xrcd, SMALL)?];
    let source = Source::new(&here)?;
    let target =
        source.connect(&there, &xrcd, &ConnectOptions { timeout: 18, ..ConnectOptions::default() })?;
    source.memory.write_at(0, &pattern::bytes(6, SLOT))?;
    for user in &users {
        assert!(user.srq.srqn() < 1 << 24);
        for slot in 0..8 {
            user.post(slot)?;
        }
    }
    for round in 0..500u64 {
        let user = &users[(round % 2) as usize];
        source.post(round, user.srq.srqn(), SEND, source.memory.all())?;
        let wc = user.cq.wait(PATIENCE)?;
        assert_eq!((wc.status, wc.qpn), (WcStatus::Success, target.qpn()));
        assert!(user.message(&wc)? == pattern::bytes(6, SLOT));
        user.post(wc.wr_id)?;
        assert_eq!(source.wait()?.wr_id, round);
    }
    Ok(())
}
