//! What pyverbs has in `base.py` and `utils.py`: two players with all that they need, and traffic between them.

use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QpInit,
    QueuePair, WcStatus, WorkCompletion,
};
use std::time::Duration;

/// Bytes of each message, as in the suite.
pub(crate) const MESSAGE: usize = 1024;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Two devices that reach each other.
pub(crate) struct World {
    pub(crate) a: Device,
    pub(crate) b: Device,
    /// `None` on loopback.
    net: Option<Net>,
}

impl World {
    /// Lets something happen.
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
    let net = Net::new();
    case(&World { a: net.device(), b: net.device(), net: Some(net) })?;
    case(&World { a: rnic_tests::open(), b: rnic_tests::open(), net: None })
}

/// One side: client or server.
pub(crate) struct Player {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    mr: MemoryRegion,
    pd: ProtectionDomain,
}

impl Player {
    /// A reliable connection that completes to `cq`.
    pub(crate) fn rc(device: &Device, cq: CompletionQueue) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let mr = pd.register(MESSAGE, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
        Ok(Self { qp, cq, mr, pd })
    }
}

/// Connects two players (`pre_run`).
pub(crate) fn connect(client: &Player, server: &Player) -> Result<(), Error> {
    client.qp.connect(&server.qp.address(), &ConnectOptions::default())?;
    server.qp.connect(&client.qp.address(), &ConnectOptions::default())
}

/// Takes one completion, which must be a success.
pub(crate) type Poll<'a> = dyn Fn(&CompletionQueue) -> Result<WorkCompletion, Error> + 'a;

/// Client and server send each other a message in turn, `iters` times, and check every byte (`traffic`).
pub(crate) fn traffic(client: &Player, server: &Player, iters: u64, poll: &Poll<'_>) -> Result<(), Error> {
    for player in [client, server] {
        player.qp.recv(0, player.mr.all())?;
    }
    for round in 0..iters {
        for (from, to, letter) in [(client, server, b'c'), (server, client, b's')] {
            to.mr.write_at(0, &[0; MESSAGE])?;
            let message = [letter.wrapping_add((round % 100) as u8); MESSAGE];
            let source = from.pd.register_bytes(&message, Access::LOCAL_WRITE)?;
            from.qp.send(round, source.all())?;
            let sent = poll(&from.cq)?;
            assert_eq!((sent.wr_id, sent.status), (round, WcStatus::Success));
            let received = poll(&to.cq)?;
            assert_eq!((received.wr_id, received.status), (round, WcStatus::Success));
            assert_eq!(received.byte_len as usize, MESSAGE);
            assert!(to.mr.to_vec()? == message, "round {round}");
            to.qp.recv(round + 1, to.mr.all())?;
        }
    }
    Ok(())
}
