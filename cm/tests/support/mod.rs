//! Two endpoints, and a network in virtual time that loses, repeats and reorders their datagrams.
#![allow(dead_code, reason = "each test program uses a part")]

use cm::{
    Accept, Config, Connect, ConnectionId, Endpoint, Event, Listen, ListenerId, Path, PortSpace, ServiceId,
    Source, Transmit,
};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Attribute, Message};
use qp::{Gid, Mtu, QpType, Qpn};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use time::{Duration, Instant};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

pub(crate) fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

/// The service that tests listen on.
pub(crate) const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);

pub(crate) fn listen() -> Listen {
    Listen { service_id: SERVICE, address: None, with_addresses: false, qp_type: QpType::Rc, backlog: 1024 }
}

pub(crate) fn path(from: usize, to: usize) -> Path {
    Path::new(gid(from), gid(to), Mtu::B1024)
}

pub(crate) fn connect<'a>(from: usize, to: usize, qpn: u32) -> Connect<'a> {
    Connect::new(SERVICE, path(from, to), Qpn::new(qpn))
}

/// What the network does to a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Of 256 datagrams, how many are lost.
    pub(crate) loss: u8,
    /// Of 256 datagrams, how many arrive twice.
    pub(crate) repeat: u8,
    /// Of 256 datagrams, how many have a byte changed.
    pub(crate) corrupt: u8,
    /// The longest time in the network. Each takes its own, so that they change places.
    pub(crate) delay: Duration,
}

impl Faults {
    pub(crate) const NONE: Self = Self { loss: 0, repeat: 0, corrupt: 0, delay: Duration::ZERO };
}

/// Hosts 0, 1, ... with an endpoint each.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Endpoint>,
    pub(crate) events: Vec<Vec<Event>>,
    pub(crate) faults: Faults,
    /// Whether sources are known to be genuine.
    pub(crate) proven: bool,
    /// All datagrams that were sent: host, destination, bytes.
    pub(crate) sent: Vec<(usize, Transmit)>,
    flying: BTreeMap<(Instant, u64), (Gid, Gid, [u8; MAD_LEN])>,
    number: u64,
    rng: ChaCha8Rng,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, |_| {})
    }

    pub(crate) fn with(seed: u64, change: impl Fn(&mut Config)) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let hosts = (0..2u64).map(|host| {
            let mut config = Config::new(0x5054_00ff_fe77_0001 + host);
            change(&mut config);
            let mut seed = [0; 32];
            rng.fill_bytes(&mut seed);
            Endpoint::new(config, seed)
        });
        let hosts: Vec<_> = hosts.collect();
        Self {
            now: Instant::at(Duration::from_secs(1000)),
            events: vec![Vec::new(); hosts.len()],
            hosts,
            faults: Faults::NONE,
            proven: false,
            sent: Vec::new(),
            flying: BTreeMap::new(),
            number: 0,
            rng,
        }
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn chance(&mut self, of_256: u8) -> bool {
        self.below(256) < u64::from(of_256)
    }

    /// Sends what the hosts have to send.
    pub(crate) fn transmit(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(transmit) = self.hosts[host].poll_transmit(self.now) {
                assert_eq!(transmit.to.local, gid(host), "hosts send from their own address");
                self.sent.push((host, transmit));
                self.post(gid(host), &transmit);
            }
        }
    }

    /// Puts a datagram into the network.
    pub(crate) fn post(&mut self, from: Gid, transmit: &Transmit) {
        let copies =
            if self.chance(self.faults.loss) { 0 } else { 1 + u8::from(self.chance(self.faults.repeat)) };
        for _ in 0..copies {
            let most = self.faults.delay.as_nanos() as u64 + 1;
            let at = self.now + Duration::from_nanos(self.below(most));
            self.number += 1;
            let mut mad = transmit.mad;
            if self.chance(self.faults.corrupt) {
                // The header and the fields; not private data.
                let at = self.below(24 + 140) as usize;
                mad[at] ^= 1 << self.below(8);
            }
            self.flying.insert((at, self.number), (from, transmit.to.remote, mad));
        }
    }

    /// When something happens next.
    pub(crate) fn next_at(&mut self) -> Option<Instant> {
        self.transmit();
        let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
        let timer = self.hosts.iter().filter_map(Endpoint::poll_timeout).min();
        [arrival, timer].into_iter().flatten().min()
    }

    /// Delivers the next datagram, or fires the next timer, whichever is first. `false` if there is neither.
    pub(crate) fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
        let timer = self.hosts.iter().filter_map(Endpoint::poll_timeout).min();
        let Some(next) = [arrival, timer].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= next) {
            if let Some((_, (from, to, mad))) = self.flying.pop_first() {
                self.deliver(from, to, &mad);
            }
        } else {
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
        }
        self.collect();
        true
    }

    /// Hands a datagram to the host with this address.
    pub(crate) fn deliver(&mut self, from: Gid, to: Gid, mad: &[u8]) {
        let source = Source { remote: from, local: to, proven: self.proven };
        for host in 0..self.hosts.len() {
            if gid(host) == to {
                self.hosts[host].handle_mad(self.now, &source, mad);
            }
        }
        self.collect();
    }

    pub(crate) fn collect(&mut self) {
        for (host, events) in self.hosts.iter_mut().zip(&mut self.events) {
            events.extend(std::iter::from_fn(|| host.poll_event()));
        }
    }

    /// Lets time pass, with whatever happens in it.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.next_at().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Delivers everything that is under way now, without timers.
    pub(crate) fn settle(&mut self) {
        self.transmit();
        while let Some(((at, _), (from, to, mad))) = self.flying.pop_first() {
            self.now = self.now.max(at);
            self.deliver(from, to, &mad);
            self.transmit();
        }
    }

    /// Drops everything that is under way.
    pub(crate) fn lose(&mut self) {
        self.transmit();
        self.flying.clear();
    }

    pub(crate) fn take(&mut self, host: usize) -> Vec<Event> {
        std::mem::take(&mut self.events[host])
    }

    /// The only event of a host.
    pub(crate) fn one(&mut self, host: usize) -> Event {
        let events = self.take(host);
        assert_eq!(events.len(), 1, "{events:?}");
        events.into_iter().next().expect("one")
    }

    /// The names of the messages sent so far, each with its host.
    pub(crate) fn messages(&self) -> Vec<(usize, Attribute)> {
        self.sent.iter().map(|(host, t)| (*host, parse(&t.mad).attribute())).collect()
    }

    /// Takes the only event of a host, which must be a request.
    pub(crate) fn request(&mut self, host: usize) -> (ConnectionId, cm::Request) {
        match self.one(host) {
            Event::ConnectRequest { connection, request } => (connection, *request),
            other => panic!("{other:?}"),
        }
    }

    /// Host A connects to host B up to the REQ's arrival.
    pub(crate) fn requested(&mut self) -> (ConnectionId, ConnectionId) {
        self.listen();
        let now = self.now;
        let a = self.hosts[A].connect(now, &connect(A, B, 0x11)).expect("a connection");
        self.settle();
        (a, self.request(B).0)
    }

    /// The same up to the REP's arrival.
    pub(crate) fn replied(&mut self) -> (ConnectionId, ConnectionId) {
        let (a, b) = self.requested();
        self.accept(b, 0x22);
        self.settle();
        assert!(matches!(self.one(A), Event::ConnectResponse { .. }));
        (a, b)
    }

    /// The same up to an established connection.
    pub(crate) fn established(&mut self) -> (ConnectionId, ConnectionId) {
        let (a, b) = self.replied();
        let now = self.now;
        self.hosts[A].establish(now, a, &[]).expect("a connection with a REP");
        self.settle();
        assert!(matches!(self.one(B), Event::Established { .. }));
        (a, b)
    }

    pub(crate) fn listen(&mut self) -> ListenerId {
        let now = self.now;
        self.hosts[B].listen(now, &listen()).expect("a listener")
    }

    pub(crate) fn accept(&mut self, connection: ConnectionId, qpn: u32) {
        let now = self.now;
        let accept = Accept {
            qpn: Qpn::new(qpn),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            flow_control: false,
            ece: cm::Ece::default(),
            private_data: &[],
        };
        self.hosts[B].accept(now, connection, &accept).expect("a request");
    }
}

pub(crate) fn parse(mad: &[u8]) -> Message<'_> {
    Message::parse(mad).expect("a message of connection management")
}

pub(crate) fn emit(message: &Message<'_>) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    message.emit(&mut bytes).expect("a message that fits");
    bytes
}
