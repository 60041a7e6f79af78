//! What a program asks for and says over a connection, and what it gets: everything but the bytes.

use crate::nic::{Nic, Outgoing};
use crate::programs::{self, make_report};
use crate::server::{Limited, Server};
use bytes::BytesMut;
use rnic::cm::{Binding, Claim};
use rnic::daemon::protocol::{
    ConnectedWith, FrameError, Hello, Host, LedgerEntry, PortFault, Refusal, Reply, Request, VERSION,
    read_frame,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The process at the other end of a connection, according to the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gids: Vec<u32>,
    /// In the daemon's namespace: for people.
    pub(crate) pid: i32,
}

/// A slot, and what its user has there.
struct Seat {
    nic: Arc<Nic>,
    slot: u8,
    services: BTreeSet<u64>,
    connections: BTreeMap<u32, ConnectedWith>,
    host: watch::Receiver<Host>,
}

/// What follows from a request.
pub(crate) enum Answer {
    /// One reply.
    Reply(Outgoing),
    /// A reply for each program that this one [sees](Session::seen), then [`Reply::Done`].
    Programs,
    /// Nothing is said.
    Silence,
}

/// A connection. Whoever holds it calls [`leave`](Self::leave) at its end.
pub(crate) struct Session {
    server: Arc<Server>,
    peer: Peer,
    hello: Option<Hello>,
    seat: Option<Seat>,
    /// What it holds of the ports.
    bindings: BTreeSet<Binding>,
    /// Where datagrams for its slot go.
    line: mpsc::Sender<Outgoing>,
}

impl Session {
    pub(crate) const fn new(server: Arc<Server>, peer: Peer, line: mpsc::Sender<Outgoing>) -> Self {
        Self { server, peer, hello: None, seat: None, bindings: BTreeSet::new(), line }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the program has said who it is. If its first message does not, the connection is over.
    pub(crate) const fn has_greeted(&self) -> bool {
        self.hello.is_some()
    }

    /// The state of the host, once the program has a slot there.
    pub(crate) fn host(&mut self) -> Option<&mut watch::Receiver<Host>> {
        self.seat.as_mut().map(|seat| &mut seat.host)
    }

    /// Takes the first request out of what has arrived; `None` if it is not complete yet.
    pub(crate) fn take(&mut self, incoming: &mut BytesMut) -> Result<Option<Answer>, FrameError> {
        let Some(request) = read_frame::<Request>(incoming)? else { return Ok(None) };
        if request == Request::Programs && self.is_current() {
            return Ok(Some(Answer::Programs));
        }
        Ok(Some(self.answer(request).map_or(Answer::Silence, Answer::Reply)))
    }

    /// The reply to a request, if it has one.
    fn answer(&mut self, request: Request) -> Option<Outgoing> {
        self.handle(request).unwrap_or_else(|refusal| {
            tracing::info!(pid = self.peer.pid, uid = self.peer.uid, %refusal, "a program is refused");
            only(Reply::Refused(refusal))
        })
    }

    fn handle(&mut self, request: Request) -> Result<Option<Outgoing>, Refusal> {
        Ok(match request {
            Request::Hello(hello) => {
                let program = hello.version;
                self.hello = Some(hello);
                if program != VERSION {
                    return Err(Refusal::Version { daemon: VERSION, program });
                }
                None
            }
            Request::Addresses => {
                self.admit()?;
                only(Reply::Addresses(self.server.nics().iter().map(|nic| nic.shared()).collect()))
            }
            Request::Attach { address } => Some(self.attach(address)?),
            Request::Resume { address, slot, token } => Some(self.resume(address, slot, token)?),
            Request::Ledger { entries, number } => {
                if self.seat.is_none() {
                    return Err(Refusal::Malformed("changes at no slot".to_owned()));
                }
                entries.into_iter().for_each(|entry| self.note(entry));
                number.and_then(|number| only(Reply::Done(Some(number))))
            }
            Request::Bind(claim) => only(self.bind(&claim.into())?),
            Request::Hold { claim, listens } => {
                let reply = self.bind(&claim.into())?;
                if let (true, Reply::Bound(binding)) = (listens, &reply) {
                    self.server
                        .ports()
                        .listen((*binding).into())
                        .map_err(|error| Refusal::Port(error.into()))?;
                }
                only(reply)
            }
            Request::Listen(binding) => {
                let binding = self.own(binding.into())?;
                self.server.ports().listen(binding).map_err(|error| Refusal::Port(error.into()))?;
                only(Reply::Done(None))
            }
            Request::Release(binding) => {
                let binding = self.own(binding.into())?;
                self.bindings.remove(&binding);
                self.server.ports().release(binding);
                self.server.give_back(self.peer.uid, Limited::Ports);
                only(Reply::Done(None))
            }
            Request::Join { address, group } => {
                self.admit()?;
                Some((Reply::Done(None), vec![self.server.nic(Some(address))?.join(group)?]))
            }
            Request::Route { from, to } => {
                self.admit()?;
                only(Reply::Source(route(from, to)?))
            }
            // Answered elsewhere, because there are several replies.
            Request::Programs => {
                self.admit()?;
                None
            }
        })
    }

    /// The programs that this one may see: numbers at their addresses.
    pub(crate) fn seen(&self) -> Result<Vec<(Arc<Nic>, u64)>, Refusal> {
        let uid = self.peer.uid;
        let sees_all = self.server.observes(uid);
        if !sees_all {
            self.admit()?;
        }
        let at = |nic: Arc<Nic>| {
            let numbers = nic.programs().list(|of| sees_all || of == uid);
            numbers.into_iter().map(move |number| (Arc::clone(&nic), number))
        };
        Ok(self.server.nics().into_iter().flat_map(at).collect())
    }

    /// Whether the program speaks this version.
    fn is_current(&self) -> bool {
        self.hello.as_ref().is_some_and(|hello| hello.version == VERSION)
    }

    /// Whether the program may ask for anything.
    fn admit(&self) -> Result<(), Refusal> {
        let Some(hello) = &self.hello else {
            return Err(Refusal::Malformed("the program did not say who it is".to_owned()));
        };
        if hello.version != VERSION {
            return Err(Refusal::Version { daemon: VERSION, program: hello.version });
        }
        let Peer { uid, gids, .. } = &self.peer;
        if self.server.admits(*uid, gids) {
            return Ok(());
        }
        let name = nix::unistd::User::from_uid((*uid).into()).ok().flatten().map(|user| user.name);
        let user = name.map_or_else(|| format!("user {uid}"), |name| format!("user {name} ({uid})"));
        Err(Refusal::User { user })
    }

    fn attach(&mut self, address: Option<IpAddr>) -> Result<Outgoing, Refusal> {
        self.admit()?;
        if self.seat.is_some() {
            return Err(Refusal::Malformed("a second slot over one connection".to_owned()));
        }
        let uid = self.peer.uid;
        let nic = self.server.nic(address)?;
        let limit = self.server.limits().slots;
        if self.server.nics().iter().map(|nic| nic.slots_of(uid)).sum::<usize>() >= limit as usize {
            return Err(Refusal::Limit { what: "slots".to_owned(), have: limit });
        }
        let life = self.server.life().map_err(|error| no_descriptor(&error))?;
        let (written, read) = make_report().map_err(|error| no_descriptor(&error))?;
        let (attached, sockets) = nic.attach(uid)?;
        let Peer { pid, .. } = self.peer;
        let program = self.describe(&nic, attached.slot);
        tracing::info!(address = %nic.address, slot = attached.slot, pid, uid, program = program.name, "a program has a slot");
        nic.programs().begin(program, read);
        self.sit(nic, attached.slot);
        self.server.keep();
        let first = [sockets.receiver, life].into_iter().chain(written);
        Ok((Reply::Attached(Box::new(attached)), first.chain(sockets.senders).collect()))
    }

    /// The program as `rnic show` and the log name it.
    fn describe(&self, nic: &Nic, slot: u8) -> rnic::daemon::protocol::Program {
        let said = self.hello.as_ref().map_or("", |hello| &hello.program);
        programs::describe(nic.address.ip, slot, (self.peer.pid, self.peer.uid), said)
    }

    fn resume(&mut self, address: IpAddr, slot: u8, token: u128) -> Result<Outgoing, Refusal> {
        self.admit()?;
        if self.seat.is_some() {
            return Err(Refusal::Malformed("a second slot over one connection".to_owned()));
        }
        let nic = self.server.nic(Some(address))?;
        let (written, read) = make_report().map_err(|error| no_descriptor(&error))?;
        nic.resume(slot, token, self.peer.uid)?;
        nic.programs().begin(self.describe(&nic, slot), read);
        tracing::info!(address = %nic.address, slot, pid = self.peer.pid, "a program is back");
        let host = nic.host.borrow().clone();
        self.sit(nic, slot);
        Ok((Reply::Host(host), written.into()))
    }

    fn sit(&mut self, nic: Arc<Nic>, slot: u8) {
        nic.connect_line(slot, self.line.clone());
        let host = nic.host.subscribe();
        self.seat = Some(Seat { nic, slot, services: BTreeSet::new(), connections: BTreeMap::new(), host });
    }

    /// The program says what has changed.
    fn note(&mut self, entry: LedgerEntry) {
        let Some(seat) = self.seat.as_mut() else { return };
        let routes = &seat.nic.routes;
        match entry {
            LedgerEntry::Listens(service) => {
                if seat.services.len() < MOST_SERVICES && seat.services.insert(service) {
                    seat.nic.listens(service, seat.slot);
                }
            }
            LedgerEntry::Silent(service) => {
                if seat.services.remove(&service) {
                    routes.is_silent(service, seat.slot);
                }
            }
            LedgerEntry::Connected(with) => {
                // A program may report connections of its own slot only. Those beyond the limit are not noted, and so not closed
                // when it dies.
                let is_own = with.local().to_be_bytes()[0] == seat.slot;
                let limit = self.server.limits().connections;
                if is_own && self.server.take(self.peer.uid, Limited::Connections, limit) {
                    routes.is_connected(with.peer());
                    if let Some(before) = seat.connections.insert(with.local(), with) {
                        routes.has_ended(before.peer());
                        self.server.give_back(self.peer.uid, Limited::Connections);
                    }
                }
            }
            LedgerEntry::Ended(local) => {
                if let Some(with) = seat.connections.remove(&local) {
                    routes.has_ended(with.peer());
                    self.server.give_back(self.peer.uid, Limited::Connections);
                }
            }
        }
    }

    fn bind(&mut self, claim: &Claim) -> Result<Reply, Refusal> {
        self.admit()?;
        let limit = self.server.limits().ports;
        if !self.server.take(self.peer.uid, Limited::Ports, limit) {
            return Err(Refusal::Limit { what: "ports".to_owned(), have: limit });
        }
        // Only root may say that it may use low ports: what another program says of itself proves nothing.
        let claim = Claim { privileged: claim.privileged && self.peer.uid == 0, ..*claim };
        match self.server.ports().bind(&claim) {
            Ok(binding) => {
                self.bindings.insert(binding);
                Ok(Reply::Bound(binding.into()))
            }
            Err(error) => {
                self.server.give_back(self.peer.uid, Limited::Ports);
                Err(Refusal::Port(error.into()))
            }
        }
    }

    /// A port, if this connection holds it.
    fn own(&self, binding: Binding) -> Result<Binding, Refusal> {
        let unknown = Refusal::Port(PortFault::Unknown);
        if self.bindings.contains(&binding) { Ok(binding) } else { Err(unknown) }
    }

    /// The program is gone.
    pub(crate) fn leave(&mut self) {
        let uid = self.peer.uid;
        self.server.give_back(uid, Limited::Lines);
        for binding in std::mem::take(&mut self.bindings) {
            self.server.ports().release(binding);
            self.server.give_back(uid, Limited::Ports);
        }
        let Some(seat) = self.seat.take() else { return };
        let Seat { nic, slot, services, connections, .. } = seat;
        let connections: Vec<_> = connections.into_values().collect();
        connections.iter().for_each(|_| self.server.give_back(uid, Limited::Connections));
        if self.server.ends() {
            // The programs go on without the daemon, or have been told that it ends.
            return;
        }
        let open = connections.len();
        tracing::info!(address = %nic.address, slot, pid = self.peer.pid, open, "a program has ended");
        nic.detach(slot, &services.into_iter().collect::<Vec<_>>(), &connections);
        self.server.keep();
    }
}

/// The most services that one program listens for: as many as an endpoint has listeners.
const MOST_SERVICES: usize = 4096;

/// A reply without descriptors.
fn only(reply: Reply) -> Option<Outgoing> {
    Some((reply, Vec::new()))
}

pub(crate) fn no_descriptor(error: &io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
    Refusal::Os { what: "the daemon has no descriptor left".to_owned(), errno }
}

/// The address from which this host sends to `to`. Nothing is sent.
fn route(from: Option<IpAddr>, to: SocketAddr) -> Result<IpAddr, Refusal> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let os = |error: io::Error| Refusal::Os {
        what: format!("no route to {}", to.ip()),
        errno: error.raw_os_error().unwrap_or(libc::ENETUNREACH),
    };
    let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0)).map_err(os)?;
    socket.connect(to).map_err(os)?;
    Ok(socket.local_addr().map_err(os)?.ip())
}
