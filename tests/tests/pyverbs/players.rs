//! Two players for tests about memory: the equivalent of `RCResources`, `UDResources`, `traffic`, `rdma_traffic`
//! and `atomic_traffic` in pyverbs.

use rnic::sim::Net;
use rnic::{
    Access, AddressVector, CompletionQueue, ConnectOptions, Device, Error, Gather, MemoryRegion, Operation,
    ProtectionDomain, QKey, QpAttr, QpInit, QpState, QueuePair, Remote, WcFlags, WcStatus, WorkCompletion,
};
use std::time::Duration;

/// Length of each message in bytes, as in the suite.
pub(crate) const MESSAGE: usize = 1024;

/// Length of a global routing header, in front of every received datagram, in bytes.
pub(crate) const GRH: usize = 40;

/// The immediate data of the suite.
pub(crate) const IMM: u32 = 0x0321_4354;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a case in virtual time, then on loopback.
pub(crate) fn everywhere(case: impl Fn(&Device, &Device) -> Result<(), Error>) -> Result<(), Error> {
    let net = Net::new();
    case(&net.device(), &net.device())?;
    case(&rnic_tests::open(), &rnic_tests::open())
}

/// Registers a player's memory.
pub(crate) type Memory<'a> = dyn Fn(&ProtectionDomain) -> Result<MemoryRegion, Error> + 'a;

/// One side: client or server.
pub(crate) struct Player {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) mr: MemoryRegion,
    /// The peer's memory.
    pub(crate) remote: Remote,
}

impl Player {
    fn new(device: &Device, memory: &Memory<'_>) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(100)?;
        let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
        let mr = memory(&pd)?;
        Ok(Self { device: device.clone(), pd, cq, qp, mr, remote: Remote::default() })
    }

    pub(crate) fn poll(&self) -> Result<WorkCompletion, Error> {
        self.cq.wait(PATIENCE)
    }

    /// Polls one completion, which must be a success.
    pub(crate) fn succeed(&self) -> Result<WorkCompletion, Error> {
        let wc = self.poll()?;
        assert_eq!(wc.status, WcStatus::Success, "{:?}", self.qp.failure().map(|f| f.to_string()));
        Ok(wc)
    }

    /// Posts a signalled operation with the whole region, and returns its status.
    pub(crate) fn run(&self, operation: Operation) -> Result<WcStatus, Error> {
        self.run_with(operation, self.mr.all())
    }

    /// Posts a signalled operation, and returns its status.
    pub(crate) fn run_with(&self, operation: Operation, data: impl Into<Gather>) -> Result<WcStatus, Error> {
        self.qp.post(1, operation, data)?;
        Ok(self.poll()?.status)
    }
}

/// Two connected players that know each other's memory (`create_players`).
pub(crate) fn players(a: &Device, b: &Device, memory: &Memory<'_>) -> Result<(Player, Player), Error> {
    players_with(a, b, memory, &ConnectOptions::default())
}

/// The same, with options for both connections.
pub(crate) fn players_with(
    a: &Device,
    b: &Device,
    memory: &Memory<'_>,
    options: &ConnectOptions,
) -> Result<(Player, Player), Error> {
    let (mut client, mut server) = (Player::new(a, memory)?, Player::new(b, memory)?);
    connect(&client, &server, options)?;
    (client.remote, server.remote) = (server.mr.remote(0), client.mr.remote(0));
    Ok((client, server))
}

fn connect(client: &Player, server: &Player, options: &ConnectOptions) -> Result<(), Error> {
    client.qp.connect(&server.qp.address(), options)?;
    server.qp.connect(&client.qp.address(), options)
}

/// Brings the queue pairs back from ERR to RTS (`restate_qps`).
pub(crate) fn restate(client: &Player, server: &Player) -> Result<(), Error> {
    for player in [client, server] {
        player.qp.modify(&QpAttr::to_state(QpState::Reset))?;
        // Flushed completions.
        while player.cq.poll_one().is_some() {}
    }
    connect(client, server, &ConnectOptions::default())
}

/// The message of a round.
pub(crate) fn message(side: u8, round: u64) -> [u8; MESSAGE] {
    [side.wrapping_add((round % 100) as u8); MESSAGE]
}

/// Client and server send each other a message in turn, `iters` times, and check every byte (`traffic`). Returns the
/// status of the first send that failed.
pub(crate) fn traffic(client: &Player, server: &Player, iters: u64) -> Result<WcStatus, Error> {
    traffic_by(client, server, iters, |_| Operation::Send { imm: None, invalidate: None })
}

/// [`traffic`] with an operation that consumes a receive at the peer.
pub(crate) fn traffic_by(
    client: &Player,
    server: &Player,
    iters: u64,
    operation: impl Fn(Remote) -> Operation,
) -> Result<WcStatus, Error> {
    for round in 0..iters {
        for (from, to, side) in [(client, server, b'c'), (server, client, b's')] {
            to.qp.recv(round, to.mr.all())?;
            from.mr.write_at(0, &message(side, round))?;
            let operation = operation(from.remote);
            let status = from.run(operation)?;
            if status != WcStatus::Success {
                return Ok(status);
            }
            let received = to.succeed()?;
            assert_eq!(received.byte_len as usize, to.mr.len());
            let (Operation::Send { imm, .. } | Operation::Write { imm, .. }) = operation else {
                panic!("{operation:?} takes no receive");
            };
            assert_eq!(received.imm(), imm);
            assert!(holds(to, &message(side, round)), "round {round}");
        }
    }
    Ok(WcStatus::Success)
}

/// Client and server write to or read from each other's memory in turn, `iters` times, and check every byte
/// (`rdma_traffic`). Returns the status of the first operation that failed.
pub(crate) fn rdma_traffic(
    client: &Player,
    server: &Player,
    iters: u64,
    operation: impl Fn(Remote) -> Operation,
) -> Result<WcStatus, Error> {
    for round in 0..iters {
        for (from, to, side) in [(client, server, b'c'), (server, client, b's')] {
            let operation = operation(from.remote);
            let (source, target) = if operation.brings_data() { (to, from) } else { (from, to) };
            source.mr.write_at(0, &message(side, round)[..source.mr.len().min(MESSAGE)])?;
            let status = from.run(operation)?;
            if status != WcStatus::Success {
                return Ok(status);
            }
            assert!(holds(target, &message(side, round)), "round {round}");
        }
    }
    Ok(WcStatus::Success)
}

/// An RDMA WRITE, for [`rdma_traffic`].
pub(crate) fn write(remote: Remote) -> Operation {
    Operation::Write { remote, imm: None }
}

/// An RDMA READ, for [`rdma_traffic`].
pub(crate) fn read(remote: Remote) -> Operation {
    Operation::Read { remote }
}

/// The client runs atomics on the server's word, `iters` times, and checks both values (`atomic_traffic`).
pub(crate) fn atomic_traffic(
    client: &Player,
    server: &Player,
    iters: u64,
    operation: impl Fn(Remote) -> (Operation, fn(u64) -> u64),
) -> Result<(), Error> {
    for round in 0..iters {
        server.mr.store_u64(0, round)?;
        let (operation, becomes) = operation(client.remote);
        assert_eq!(client.run(operation)?, WcStatus::Success);
        assert_eq!((client.mr.load_u64(0)?, server.mr.load_u64(0)?), (round, becomes(round)));
    }
    Ok(())
}

pub(crate) fn holds(player: &Player, message: &[u8]) -> bool {
    let mut bytes = vec![0; player.mr.len().min(message.len())];
    player.mr.read_at(0, &mut bytes).is_ok() && bytes == message[..bytes.len()]
}

/// Invalidates a key of the peer with an empty message.
pub(crate) fn send_with_invalidate(from: &Player, to: &Player, key: u32) -> Result<(), Error> {
    to.qp.recv(0, Gather::Empty)?;
    from.qp.post(0, Operation::Send { imm: None, invalidate: Some(key) }, Gather::Empty)?;
    from.succeed()?;
    let received = to.succeed()?;
    assert_eq!(received.imm_or_rkey, key);
    assert!(received.flags.contains(WcFlags::WITH_INV));
    Ok(())
}

/// The Q_Key of the suite's datagrams.
const QKEY: QKey = QKey(0x1111_1111);

/// The client sends `iters` datagrams to the server, and every byte is checked (`traffic` between `UDResources`).
/// `before` is called with the source before each. Received data follows room for the GRH.
pub(crate) fn ud_traffic(
    [a, b]: [&Device; 2],
    [source, target]: [&Memory<'_>; 2],
    iters: u64,
    before: impl Fn(&MemoryRegion),
) -> Result<(), Error> {
    let side = |device: &Device| {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let qp = pd.create_qp(&QpInit::ud(&cq, &cq))?;
        qp.activate(QKEY)?;
        Ok::<_, Error>((pd, cq, qp))
    };
    let ((client, sent, from), (server, received, to)) = (side(a)?, side(b)?);
    let ah = client.create_ah(&AddressVector::new(b.gid(), 0))?;
    let (source, target) = (source(&client)?, target(&server)?);
    for round in 0..iters {
        before(&source);
        source.write_at(GRH, &message(b'c', round))?;
        to.recv(round, target.slice(0..GRH + MESSAGE)?)?;
        from.send_to(round, source.slice(GRH..GRH + MESSAGE)?, &ah, to.qpn(), QKEY)?;
        assert_eq!(sent.wait(PATIENCE)?.status, WcStatus::Success);
        let wc = received.wait(PATIENCE)?;
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, GRH + MESSAGE));
        assert!(wc.flags.contains(WcFlags::GRH));
        let mut bytes = [0; MESSAGE];
        target.read_at(GRH, &mut bytes)?;
        assert!(bytes == message(b'c', round), "round {round}");
    }
    Ok(())
}

/// The peers' access rights in most cases.
pub(crate) const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
