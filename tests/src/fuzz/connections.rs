//! Two connection managers: any calls in any order, any datagrams, any time.

use super::{byte, bytes};
use arbitrary::Unstructured;
use cm::{
    Accept, Connect, ConnectionId, ConnectionState, Endpoint, Event, IpCm, Limits, Listen, ListenerId, Path,
    Placement, QueryId, RejReason, Reply, Resolve, ServiceId, SidrStatus, Source, StalePolicy, Transmit,
};
use qp::wire::mad::MAD_LEN;
use qp::{Gid, Mtu, QpState, QpType, Qpn};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;
use time::Instant;

/// Steps of an input that are carried out.
const STEPS: usize = 400;
/// Datagrams that the network holds.
const FLYING: usize = 32;
/// Times that an endpoint may ask to be woken before it is at rest: retries of all its connections, and more.
const WAKES: usize = 10_000;

/// Small bounds, so that an input reaches them.
const LIMITS: Limits = Limits {
    connections: 12,
    requests_per_peer: 5,
    half_open: 6,
    half_open_proven: 2,
    half_open_per_source: 4,
    half_open_grace: Duration::from_millis(500),
    half_open_life: Duration::from_secs(60),
    unproven_retries: 2,
    time_wait: 3,
    listeners: 5,
    backlog: 3,
    held: 2,
    held_per_source: 1,
    answers: 4,
    answers_per_source: 3,
    resolutions: 2,
    queries: 3,
    queries_per_source: 2,
    events: 16,
};

/// What the program on a host knows.
#[derive(Default)]
struct Program {
    /// Connections, and whether their end was told.
    connections: HashMap<ConnectionId, bool>,
    /// The same in the order in which they came.
    order: Vec<ConnectionId>,
    listeners: Vec<ListenerId>,
    queries: Vec<QueryId>,
}

struct World {
    now: Instant,
    hosts: [Endpoint; 2],
    programs: [Program; 2],
    flying: VecDeque<(usize, Transmit)>,
}

fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

/// Runs the input as a sequence of steps.
///
/// # Panics
///
/// Panics if an endpoint exceeds its bounds, tells of a connection after its end, asks to be woken again for the same
/// time, or keeps something after everything was given back.
pub fn connections(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let stale = if byte(&mut input) & 1 == 0 { StalePolicy::Confirm } else { StalePolicy::Believe };
    let endpoint = |host: u8| {
        let config = cm::Config { limits: LIMITS, stale, ..cm::Config::new(u64::from(host)) };
        Endpoint::new(config, [host; 32])
    };
    let mut world = World {
        now: Instant::at(Duration::from_secs(100)),
        hosts: [endpoint(1), endpoint(2)],
        programs: Default::default(),
        flying: VecDeque::new(),
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.look();
    }
    world.end();
}

impl World {
    fn step(&mut self, input: &mut Unstructured<'_>) {
        let selector = byte(input);
        let host = usize::from(selector >> 7);
        match selector & 0x1f {
            0..=9 => self.deliver(input, None),
            10 => self.deliver(input, Some(())),
            11 => self.raw(host, input),
            12 => {
                self.now += Duration::from_millis(1 << (byte(input) % 18));
                for host in &mut self.hosts {
                    host.handle_timeout(self.now);
                    assert!(host.poll_timeout().is_none_or(|at| at > self.now), "time stands still");
                }
            }
            other => self.call(host, other, input),
        }
    }

    /// Delivers a datagram, or loses it, or delivers it twice; with changes if wanted.
    fn deliver(&mut self, input: &mut Unstructured<'_>, change: Option<()>) {
        let how = byte(input);
        let at = usize::from(how >> 4) % self.flying.len().max(1);
        let found = if how & 1 == 0 { self.flying.remove(at) } else { self.flying.get(at).copied() };
        let Some((from, mut transmit)) = found else { return };
        if how & 0x0e == 0x0e {
            return;
        }
        if change.is_some() {
            for _ in 0..=byte(input) % 4 {
                let at = usize::from(byte(input)) % MAD_LEN;
                transmit.mad[at] ^= byte(input);
            }
        }
        let Some(to) = (0..2).find(|host| gid(*host) == transmit.to.remote) else { return };
        let source = Source { remote: gid(from), local: gid(to), proven: how & 2 != 0 };
        self.hosts[to].handle_mad(self.now, &source, &transmit.mad);
    }

    /// Delivers a datagram of somebody: a message with these bytes.
    fn raw(&mut self, host: usize, input: &mut Unstructured<'_>) {
        let selector = byte(input);
        let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0];
        mad.extend(bytes(input, 8));
        mad.resize(17, 0);
        mad.extend([0x10 + selector % 12, 0, 0, 0, 0, 0, 0]);
        let len = usize::from(byte(input)) % 233;
        mad.extend(bytes(input, len));
        mad.resize(MAD_LEN - usize::from(selector == 0xff), 0);
        let source =
            Source { remote: gid(usize::from(selector >> 5)), local: gid(host), proven: selector & 16 != 0 };
        self.hosts[host].handle_mad(self.now, &source, &mad);
    }

    fn call(&mut self, host: usize, which: u8, input: &mut Unstructured<'_>) {
        let (now, first) = (self.now, byte(input));
        let (endpoint, program) = (&mut self.hosts[host], &mut self.programs[host]);
        let which_one = usize::from(first) % program.order.len().max(1);
        let connection = program.order.get(which_one).copied();
        let private = [first; 256];
        let private_data = &private[..usize::from(byte(input)) / 4];
        // Calls that mean nothing are refused; what they change is seen below.
        match (which, connection) {
            (13 | 14, _) => {
                if let Ok(id) = endpoint.connect(now, &connect(host, first, private_data)) {
                    program.connections.insert(id, false);
                    program.order.push(id);
                }
            }
            (15 | 16, _) => program.listeners.extend(endpoint.listen(now, &listen(host, first))),
            (17, _) => {
                let at = usize::from(first) % program.listeners.len().max(1);
                if at < program.listeners.len() {
                    endpoint.unlisten(program.listeners.remove(at)).expect("a listener");
                }
            }
            (18 | 19, Some(id)) => {
                endpoint.accept(now, id, &accept(first, private_data)).ok();
            }
            (20, Some(id)) => {
                let reason = RejReason::from_code(u16::from(first));
                if endpoint.reject(now, id, reason, &[], private_data).is_ok() {
                    program.forget(id);
                }
            }
            (21 | 22, Some(id)) => drop(endpoint.establish(now, id, private_data)),
            (23, Some(id)) => drop(endpoint.disconnect(now, id, private_data)),
            (24, Some(id)) if endpoint.destroy(now, id).is_ok() => program.forget(id),
            (25, Some(id)) => drop(endpoint.wait(now, id, cm::CmTimeout::new(first))),
            (26, Some(id)) => drop(endpoint.communication_established(now, id)),
            (27, Some(id)) => drop(endpoint.confirm_stale(now, id)),
            (28, Some(id)) => {
                for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
                    endpoint.attributes(id, state, &Placement::default()).ok();
                }
            }
            (29, _) => {
                let path = Path::new(gid(host), gid(1 - host), Mtu::B1024);
                endpoint.resolve(now, &Resolve { private_data, ..Resolve::new(service(first), path) }).ok();
            }
            (30, _) => {
                if let Some(query) = program.queries.pop() {
                    let reply = Reply {
                        status: SidrStatus::from_code(first & 3),
                        qpn: Qpn::new(9),
                        qkey: cm::UDP_QKEY,
                        ece: cm::Ece::default(),
                        private_data,
                    };
                    endpoint.reply(now, query, &reply).ok();
                }
            }
            _ => {}
        }
    }

    /// Takes what the endpoints have to say, and checks it.
    fn look(&mut self) {
        for (host, endpoint) in self.hosts.iter_mut().enumerate() {
            while let Some(transmit) = endpoint.poll_transmit(self.now) {
                assert_eq!(transmit.to.local, gid(host));
                self.flying.push_back((host, transmit));
            }
            while self.flying.len() > FLYING {
                self.flying.pop_front();
            }
            while let Some(event) = endpoint.poll_event() {
                self.programs[host].hear(&event);
            }
            let (all, half_open, time_wait) = endpoint.sizes();
            assert!(
                all <= LIMITS.connections && half_open <= LIMITS.half_open && time_wait <= LIMITS.time_wait
            );
        }
    }

    /// Gives everything back, and waits until the endpoints are at rest.
    fn end(mut self) {
        for (endpoint, program) in self.hosts.iter_mut().zip(&mut self.programs) {
            endpoint.destroy_all(self.now);
            // What happened while some were not given back yet.
            while let Some(event) = endpoint.poll_event() {
                program.hear(&event);
            }
            program.connections.clear();
            let mut wakes = 0;
            while let Some(at) = endpoint.poll_timeout() {
                endpoint.handle_timeout(at);
                while endpoint.poll_transmit(at).is_some() {}
                while let Some(event) = endpoint.poll_event() {
                    program.hear(&event);
                }
                wakes += 1;
                assert!(wakes < WAKES, "an endpoint does not come to rest");
            }
            assert_eq!(endpoint.sizes(), (0, 0, 0), "something is left over");
            for id in &program.order {
                assert_eq!(endpoint.state(*id), ConnectionState::Closed);
            }
        }
    }
}

fn connect(host: usize, selector: u8, private_data: &[u8]) -> Connect<'_> {
    let mut path = Path::new(gid(host), gid(1 - host), Mtu::B1024);
    path.to.flow_label = u32::from(selector);
    let addresses = IpCm { src_port: 1, src: gid(host).ip(), dst: gid(1 - host).ip() };
    Connect {
        addresses: (selector & 1 == 0).then_some(addresses),
        qp_type: [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::Ud][usize::from(selector >> 6)],
        max_cm_retries: selector,
        private_data,
        ..Connect::new(service(selector), path, Qpn::new(2 + u32::from(selector & 7)))
    }
}

fn listen(host: usize, selector: u8) -> Listen {
    Listen {
        service_id: service(selector),
        address: (selector & 2 != 0).then(|| gid(host)),
        with_addresses: selector & 1 == 0,
        qp_type: [QpType::Rc, QpType::Uc, QpType::XrcRecv, QpType::Ud][usize::from(selector >> 6)],
        backlog: u32::from(selector & 3),
    }
}

const fn accept(selector: u8, private_data: &[u8]) -> Accept<'_> {
    Accept {
        qpn: Qpn::new(2 + (selector & 7) as u32),
        srq: false,
        responder_resources: selector,
        initiator_depth: selector,
        rnr_retry_count: selector,
        flow_control: false,
        ece: cm::Ece { vendor_id: selector as u32, options: 1 },
        private_data,
    }
}

/// One of a few services.
fn service(selector: u8) -> ServiceId {
    ServiceId::tcp(u16::from(selector >> 2 & 1))
}

impl Program {
    fn forget(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    fn hear(&mut self, event: &Event) {
        match event {
            Event::ConnectRequest { connection, .. } => {
                let before = self.connections.insert(*connection, false);
                assert!(before.is_none_or(|ended| ended), "{connection:?} is requested twice");
                self.order.push(*connection);
            }
            Event::ConnectResponse { connection, .. }
            | Event::Established { connection, .. }
            | Event::StaleSuspected { connection, .. } => {
                assert_eq!(self.connections.get(connection), Some(&false), "{event:?}");
            }
            Event::Rejected { connection, .. }
            | Event::Failed { connection, .. }
            | Event::Disconnected { connection, .. } => {
                assert_eq!(self.connections.insert(*connection, true), Some(false), "{event:?}");
            }
            Event::TimeWaitExit { connection } => {
                assert_eq!(self.connections.remove(connection), Some(true), "{event:?}");
            }
            Event::ResolveRequest { query, .. } => self.queries.push(*query),
            Event::Resolved { .. } | Event::NotResolved { .. } => {}
        }
    }
}
