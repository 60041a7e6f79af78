//! The equivalent of `base.py` and `utils.py` in pyverbs: two players with their resources, and traffic between
//! them.

use rnic::sim::Net;
use rnic::{
    Access, AddressVector, CompletionQueue, ConnectOptions, Destination, Device, Error, Gather, MemoryRegion,
    Operation, ProtectionDomain, QKey, QpInit, QueuePair, SendFlags, SendWr, WcFlags, WcStatus,
    WorkCompletion,
};
use rnic_tests::datagram::GRH;
use std::time::Duration;

/// Length of each message in bytes, as in the suite.
pub(crate) const MESSAGE: usize = 1024;

/// The Q_Key of datagrams, as in the suite.
pub(crate) const QKEY: QKey = QKey(0x1111_1111);

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Two devices that can reach each other.
pub(crate) struct World {
    pub(crate) a: Device,
    pub(crate) b: Device,
    /// `None` on loopback.
    net: Option<Net>,
}

impl World {
    /// Lets time pass.
    pub(crate) fn pass(&self) {
        match &self.net {
            Some(net) => drop(net.step()),
            None => {
                self.a.progress();
                self.b.progress();
            }
        }
    }
}

/// Runs a case in virtual time, then on loopback.
pub(crate) fn everywhere(case: impl Fn(&World) -> Result<(), Error>) -> Result<(), Error> {
    in_virtual_time(&case)?;
    case(&World { a: rnic_tests::open(), b: rnic_tests::open(), net: None })
}

/// Runs a case in virtual time only.
pub(crate) fn in_virtual_time(case: impl Fn(&World) -> Result<(), Error>) -> Result<(), Error> {
    let net = Net::new();
    case(&World { a: net.device(), b: net.device(), net: Some(net) })
}

/// One side: client or server.
pub(crate) struct Player {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) mr: MemoryRegion,
    pub(crate) pd: ProtectionDomain,
    /// The destination of its messages.
    pub(crate) to: Destination,
    /// Number of bytes in front of each message that it receives.
    header: usize,
}

impl Player {
    /// A reliable connection that completes to `cq`.
    pub(crate) fn rc(device: &Device, cq: CompletionQueue) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let mr = pd.register(MESSAGE, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
        Ok(Self { qp, cq, mr, pd, to: Destination::Connected, header: 0 })
    }

    /// Datagrams, without a destination so far.
    fn ud(device: &Device, cq: CompletionQueue, access: Access) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let mr = pd.register(GRH + MESSAGE, access)?;
        let qp = pd.create_qp(&QpInit::ud(&cq, &cq))?;
        qp.activate(QKEY)?;
        Ok(Self { qp, cq, mr, pd, to: Destination::Connected, header: GRH })
    }

    /// Posts a signalled operation to the destination.
    pub(crate) fn send(
        &self,
        wr_id: u64,
        operation: Operation,
        data: impl Into<Gather>,
    ) -> Result<(), Error> {
        let wr = SendWr::new(wr_id, operation, data).flags(SendFlags::SIGNALED);
        self.qp.post_send(wr.to(self.to.clone()))
    }
}

/// Two players that send each other datagrams, with these memory access rights (`UDResources`).
pub(crate) fn datagram_players(
    world: &World,
    cqs: [CompletionQueue; 2],
    access: Access,
) -> Result<(Player, Player), Error> {
    let World { a, b, .. } = world;
    let [left, right] = cqs;
    let (mut client, mut server) = (Player::ud(a, left, access)?, Player::ud(b, right, access)?);
    client.to = client.pd.create_ah(&AddressVector::new(b.gid(), 0))?.datagram(server.qp.qpn(), QKEY);
    server.to = server.pd.create_ah(&AddressVector::new(a.gid(), 0))?.datagram(client.qp.qpn(), QKEY);
    Ok((client, server))
}

/// Connects two players (`pre_run`).
pub(crate) fn connect(client: &Player, server: &Player) -> Result<(), Error> {
    client.qp.connect(&server.qp.address(), &ConnectOptions::default())?;
    server.qp.connect(&client.qp.address(), &ConnectOptions::default())
}

/// Polls one completion, which must be a success.
pub(crate) type Poll<'a> = dyn Fn(&CompletionQueue) -> Result<WorkCompletion, Error> + 'a;

/// Client and server send each other a message in turn, `iters` times, and check every byte (`traffic`).
pub(crate) fn traffic(client: &Player, server: &Player, iters: u64, poll: &Poll<'_>) -> Result<(), Error> {
    traffic_of(client, server, iters, poll, MESSAGE, None)
}

/// [`traffic`] with messages of `len` bytes, with or without immediate data.
pub(crate) fn traffic_of(
    client: &Player,
    server: &Player,
    iters: u64,
    poll: &Poll<'_>,
    len: usize,
    imm: Option<u32>,
) -> Result<(), Error> {
    for player in [client, server] {
        player.qp.recv(0, player.mr.all())?;
    }
    for round in 0..iters {
        for (from, to, letter) in [(client, server, b'c'), (server, client, b's')] {
            to.mr.write_at(0, &vec![0; to.mr.len()])?;
            let mut message = [0; MESSAGE];
            message[..len].fill(letter.wrapping_add((round % 100) as u8));
            let source = from.pd.register_bytes(&message, Access::LOCAL_WRITE)?;
            let data = if len == 0 { Gather::Empty } else { source.slice(0..len)?.into() };
            from.send(round, Operation::Send { imm, invalidate: None }, data)?;
            let sent = poll(&from.cq)?;
            assert_eq!((sent.wr_id, sent.status), (round, WcStatus::Success));
            let received = poll(&to.cq)?;
            assert_eq!((received.wr_id, received.status), (round, WcStatus::Success));
            assert_eq!((received.byte_len as usize, received.imm()), (to.header + len, imm));
            if to.header > 0 {
                assert_eq!(received.src_qpn, from.qp.qpn());
                assert!(received.flags.contains(WcFlags::GRH));
            }
            assert!(to.mr.to_vec()?[to.header..] == message, "round {round}");
            to.qp.recv(round + 1, to.mr.all())?;
        }
    }
    Ok(())
}
