//! Services of datagrams: the queue pair behind an address and port.

use super::connection::Ready;
use super::desk::{Incoming, Mailbox};
use super::listener::path_to;
use super::office::Office;
use super::ports::{Claim, PortError};
use crate::error::{ConnectError, Error, Result};
use crate::verbs::device::Device;
use crate::verbs::queue_pair::{ConnectOptions, QueuePair};
use ::cm::{Ece, IpCm, PortSpace, QueryId, Reply, ResolutionId, Resolve, ServiceId, SidrStatus, UDP_QKEY};
use qp::attr::AddressVector;
use qp::{Gid, QKey, Qpn};
use std::net::SocketAddr;
use std::sync::Arc;
use time::Duration;

/// The key of datagrams between programs that connect by port (`RDMA_UDP_QKEY`): activate queue pairs with it.
pub const DATAGRAM_QKEY: QKey = UDP_QKEY;

/// A peer's question for the queue pair of a service. Dropping it refuses it.
pub struct ServiceRequest {
    office: Office,
    /// `None` once it is answered.
    id: Option<QueryId>,
    about: Box<::cm::Query>,
}

impl ServiceRequest {
    pub(super) fn of(office: &Office, incoming: Incoming) -> Option<Self> {
        match incoming {
            Incoming::Query(id, about) => Some(Self { office: office.clone(), id: Some(id), about }),
            Incoming::Connection(..) => None,
        }
    }

    /// The peer: its address, and its port in the port space of datagrams.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let port = self.about.addresses.map_or(0, |addresses| addresses.src_port);
        SocketAddr::new(self.about.to.remote.ip(), port)
    }

    /// What the peer's program says: 180 bytes, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.about.private_data
    }

    /// Names the queue pair to which the peer may send, active with [`DATAGRAM_QKEY`], and says up to 136 bytes to the peer's
    /// program.
    ///
    /// # Errors
    /// [`Error::Connect`] for more bytes.
    #[doc(alias = "rdma_accept")]
    pub fn accept(mut self, qp: &QueuePair, private_data: &[u8]) -> Result<()> {
        self.answer(SidrStatus::Valid, qp.qpn(), private_data)
    }

    /// Refuses, with up to 136 bytes for the peer's program.
    ///
    /// # Errors
    /// [`Error::Connect`] for more bytes.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.answer(SidrStatus::Rejected, Qpn::default(), private_data)
    }

    fn answer(&mut self, status: SidrStatus, qpn: Qpn, private_data: &[u8]) -> Result<()> {
        let Some(id) = self.id else { return Ok(()) };
        let qkey = if status == SidrStatus::Valid { DATAGRAM_QKEY } else { QKey(0) };
        let reply = Reply { status, qpn, qkey, ece: Ece::default(), private_data };
        match self.office.manager.call(|endpoint, now| endpoint.reply(now, id, &reply))? {
            // It is too old.
            Ok(()) | Err(::cm::CallError::UnknownQuery) => self.id = None,
            Err(error) => return Err(ConnectError::from(error).into()),
        }
        Ok(())
    }
}

impl Drop for ServiceRequest {
    fn drop(&mut self) {
        // It expires if the device is gone.
        let _ = self.answer(SidrStatus::Rejected, Qpn::default(), &[]);
    }
}

impl std::fmt::Debug for ServiceRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceRequest(of {})", self.peer())
    }
}

/// The answer to a question.
#[derive(Clone, Default)]
pub(super) enum Answer {
    #[default]
    None,
    Resolved(Box<::cm::Resolved>),
    NotResolved(Option<SidrStatus>),
}

/// The queue pair behind a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// The way to it, for an [address handle](crate::ProtectionDomain::create_ah).
    pub way: AddressVector,
    /// Its number.
    pub qpn: Qpn,
    /// The key that datagrams to it must carry.
    pub qkey: QKey,
    /// What the peer's program says: 136 bytes, padded with zeros.
    pub private_data: Box<[u8]>,
}

/// A question for the queue pair of a service: see [`Device::ask`]. Dropping it gives it up.
pub struct Question {
    office: Office,
    id: ResolutionId,
    mailbox: Arc<Mailbox<Answer>>,
    to: SocketAddr,
}

impl Device {
    /// Asks for the queue pair that receives the datagrams of a service at an address and port. Returns at once.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// use rnic::cm::DATAGRAM_QKEY;
    /// use rnic::{Access, QpInit};
    /// use std::time::Duration;
    ///
    /// let net = rnic::sim::Net::new(); // or `(rnic::open()?, rnic::open()?)`, on the network
    /// let (a, b) = (net.device(), net.device());
    /// let (pd, cq) = (b.alloc_pd()?, b.create_cq(16)?);
    /// let receiver = pd.create_qp(&QpInit::ud(&cq, &cq))?;
    /// receiver.activate(DATAGRAM_QKEY)?;
    /// let inbox = pd.register(40 + 5, Access::LOCAL_WRITE)?; // behind the space of a GRH
    /// receiver.recv(1, inbox.all())?;
    ///
    /// let listener = b.listen_datagrams(7471)?;
    /// let question = a.ask((b.address(), 7471))?;
    /// listener.accept()?.accept(&receiver, b"welcome")?;
    /// let service = question.wait()?;
    /// assert!(service.private_data.starts_with(b"welcome"));
    ///
    /// let (pd, own_cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// let sender = pd.create_qp(&QpInit::ud(&own_cq, &own_cq))?;
    /// sender.activate(DATAGRAM_QKEY)?;
    /// let message = pd.register_bytes(b"hello", Access::LOCAL_WRITE)?;
    /// sender.send_to(2, message.all(), &pd.create_ah(&service.way)?, service.qpn, service.qkey)?;
    /// cq.wait(Duration::from_secs(1))?;
    /// assert_eq!(inbox.to_vec()?[40..], *b"hello");
    /// # Ok::<(), rnic::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Connect`]: the address is of the other IP family, or there are too many questions; those of
    /// [`connection_manager`](Self::connection_manager).
    #[doc(alias = "rdma_connect")]
    pub fn ask(&self, to: impl Into<SocketAddr>) -> Result<Question> {
        self.ask_with(to, &[])
    }

    /// As [`ask`](Self::ask), with up to 180 bytes for the peer's program.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and [`Error::Connect`] for more private data.
    pub fn ask_with(&self, to: impl Into<SocketAddr>, private_data: &[u8]) -> Result<Question> {
        let (office, to) = (Office::of(self)?, to.into());
        let ours = office.address_for(to)?;
        let remote = to.ip().to_canonical();
        let claim = Claim { remote: Some(to), ..Claim::new(PortSpace::Udp, SocketAddr::new(ours, 0)) };
        let src_port = office.passing_port(&claim)?;
        let resolve = Resolve {
            addresses: Some(IpCm { src_port, src: ours, dst: remote }),
            response_timeout: super::listener::ANSWER,
            private_data,
            ..Resolve::new(
                ServiceId::udp(to.port()),
                path_to(self, Gid::from(remote), &ConnectOptions::default()),
            )
        };
        let mailbox = Arc::<Mailbox<Answer>>::default();
        let id = office.manager.call(|endpoint, now| {
            let id = endpoint.resolve(now, &resolve)?;
            office.desk().resolutions.insert(id, Arc::clone(&mailbox));
            Ok::<_, ::cm::CallError>(id)
        })?;
        let id = id.map_err(ConnectError::from)?;
        Ok(Question { office, id, mailbox, to })
    }
}

impl Office {
    /// A port for a message that carries one. The peer does not need it afterwards.
    pub(super) fn passing_port(&self, claim: &Claim) -> std::result::Result<u16, ConnectError> {
        let binding = self.ports().bind(claim).map_err(|error: PortError| ConnectError::from(error))?;
        self.ports().release(binding);
        Ok(binding.port)
    }
}

impl Question {
    /// Waits for the answer. Without one that takes some ten seconds to fail.
    ///
    /// # Errors
    /// [`Error::Connect`] says why the peer names no queue pair; in virtual time [`Error::Stalled`] if none can come any more.
    pub fn wait(&self) -> Result<Service> {
        // Longer than all repetitions of the question.
        let timeout = Duration::from_secs(600);
        let is_there = |answer: &Answer| !matches!(answer, Answer::None);
        let service = self
            .mailbox
            .wait(self.office.device(), timeout, is_there, |answer| (self.service(answer), true))?;
        Ok(service.ok_or(Error::Stalled)??)
    }

    /// Awaits the answer: [`wait`](Self::wait) for tasks.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn answer(&self) -> Result<Service> {
        Ok(self.mailbox.listen(self.office.device(), |answer| (self.service(answer), true)).await??)
    }

    /// An object with a descriptor that is readable once the answer is there.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor left; [`Error::Forked`].
    pub fn ready(&self) -> Result<Ready> {
        Ok(Ready(self.mailbox.flag(self.office.device(), |answer| !matches!(answer, Answer::None))?))
    }

    fn service(&self, answer: &Answer) -> Option<std::result::Result<Service, ConnectError>> {
        let to = self.to;
        Some(match answer {
            Answer::None => return None,
            Answer::Resolved(resolved) => Ok(Service {
                way: AddressVector {
                    traffic_class: resolved.path.to.traffic_class,
                    hop_limit: resolved.path.to.hop_limit,
                    ..AddressVector::new(resolved.path.to.remote, 0)
                },
                qpn: resolved.qpn,
                qkey: resolved.qkey,
                private_data: resolved.private_data.clone(),
            }),
            Answer::NotResolved(status) => Err(ConnectError::not_resolved(to, *status)),
        })
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let _ = self.office.manager.call(|endpoint, _| {
            endpoint.cancel(self.id);
            self.office.desk().resolutions.remove(&self.id);
        });
    }
}

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Question(for {})", self.to)
    }
}
