//! What happens in a world.

use super::Outcome;
use super::side::{Life, Nonce, Side};
use super::stranger::{Ear, is_forged};
use crate::worlds::Rng;
use rnic::cm::{ConnectError, ConnectionEvent, Listener, Request};
use rnic::sim::{DeviceSetup, Net};
use rnic::{ConnectOptions, Device, Error, RcEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub(super) const PORT: u16 = 7471;

/// How long a refusal is remembered at least, so that a repeated request is answered by it again: four intervals of the peer's
/// repetitions, 2^17 x 4.096 us each.
const REMEMBERED: Duration = Duration::from_millis(4 * 536);

/// The longest time that a message takes through the network, in worlds whose messages are not later than ports assume.
const LIFETIME: Duration = Duration::from_millis(67);

/// A host, in one of its lives.
pub(super) struct Host {
    pub(super) number: usize,
    pub(super) life: u32,
    pub(super) device: Device,
    listener: Option<Listener>,
    /// Requests that the program has not answered yet.
    waiting: Vec<(Request, Nonce)>,
    pub(super) sides: Vec<Side>,
}

/// What is known of an attempt to connect.
pub(super) struct Attempt {
    /// The host that made it, and the host that it was sent to.
    pub(super) from: Life,
    to: Life,
    /// Which lives of the passive host were asked, what their program did, and when.
    pub(super) answers: BTreeMap<Life, (Answer, Duration)>,
    /// Whether somebody has listened there all the time, in one life.
    pub(super) always_listened: bool,
    /// Whether anybody has.
    pub(super) ever_listened: bool,
    /// Whether any program has accepted.
    pub(super) ever_accepted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    None,
    Accepted,
    /// Accepting failed on this side: the peer had given up.
    TooLate,
    Refused,
    /// Accepted, but the connection failed on this side, or its program dropped it at once.
    GivenUp,
    /// Accepted, but the peer took its request back.
    TakenBack,
}

impl Answer {
    /// Whether the host may know nothing of a request any more, this long after its program answered so.
    fn may_be_forgotten(self, after: Duration) -> bool {
        match self {
            Self::None | Self::Accepted => false,
            // The peer took it back, or this side refused it because nobody answered; when, the program does not know.
            Self::TooLate => true,
            // If the peer's repetitions are lost, a refusal is forgotten before they end. A new one is a new request.
            Self::Refused | Self::GivenUp => after >= REMEMBERED,
            // A copy of the request that was on its way.
            Self::TakenBack => after <= LIFETIME + LONGEST_PAUSE,
        }
    }
}

pub(super) struct World {
    pub(super) net: Net,
    pub(super) rng: Rng,
    pub(super) hosts: Vec<Host>,
    pub(super) attempts: BTreeMap<Nonce, Attempt>,
    next: Nonce,
    faults: Vec<String>,
    /// The link of all ports.
    link: &'static str,
    /// Whether messages may take longer than ports assume.
    is_late: bool,
    /// When events were last looked at.
    looked: Duration,
    /// What was said.
    pub(super) ear: Ear,
    /// Whether there are strangers.
    has_strangers: bool,
    /// Connections that their passive side gave up before it was told that they are established.
    pub(super) given_up: BTreeSet<Nonce>,
    /// Lives that ended, so that their peers may have been told nothing.
    pub(super) ended: Vec<Life>,
    reached: BTreeMap<&'static str, u64>,
    hash: u64,
}

/// The longest time between two looks at what programs learned.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);

fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number as u8 + 1)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let net = Net::with_seed(rng.word());
        net.set_latency(Duration::from_micros(*rng.pick(&[1, 50, 2000])));
        let count = rng.size(2, 4);
        let mut world = Self {
            net,
            rng,
            hosts: Vec::new(),
            attempts: BTreeMap::new(),
            next: seed << 16,
            faults: Vec::new(),
            link: "",
            is_late: false,
            looked: Duration::ZERO,
            ear: Ear::default(),
            has_strangers: false,
            given_up: BTreeSet::new(),
            ended: Vec::new(),
            reached: BTreeMap::new(),
            hash: seed,
        };
        world.choose_faults();
        if world.rng.percent(15) {
            // Later than any repetition; so also in connections of the future.
            let delay = *world.rng.pick(&[200, 1000, 5000]);
            world.faults.push(format!("cm p=0.{} delay {delay}ms +-{delay}ms", world.rng.between(1, 3)));
            world.is_late = true;
            world.reach("messages are later than ports assume");
        }
        world.has_strangers = world.rng.percent(40);
        if world.rng.percent(25) {
            world.link = "ib-credits";
            world.reach("ports have credits");
        }
        for number in 0..count {
            let host = world.boot(number, 0);
            world.hosts.push(host);
        }
        world
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome { violation: None, reached: self.reached.clone(), hash: self.hash }
    }

    pub(super) fn reach(&mut self, situation: &'static str) {
        *self.reached.entry(situation).or_default() += 1;
    }

    fn choose_faults(&mut self) {
        let rng = &mut self.rng;
        let all = [
            format!("cm p=0.{:02} drop", rng.between(1, 45)),
            format!("cm p=0.{:02} dup {}", rng.between(1, 40), rng.between(1, 3)),
            // Within the lifetime of packets that both sides assume, 67 ms, at the sender and the receiver together.
            format!("cm p=0.{:02} delay 15ms +-{}ms", rng.between(1, 40), rng.between(1, 15)),
            format!("cm p=0.{:02} reorder {}", rng.between(1, 30), rng.between(1, 3)),
            format!("tx cm={} p=0.7 drop", rng.pick(&["REQ", "REP", "RTU", "REJ", "DREQ", "DREP", "MRA"])),
            format!("data p=0.0{} drop", rng.between(1, 9)),
        ];
        self.faults = all.into_iter().filter(|_| rng.percent(40)).collect();
    }

    fn boot(&mut self, number: usize, life: u32) -> Host {
        let setup = DeviceSetup {
            address: Some(address(number)),
            slot: self.rng.word() as u8,
            seed: Some(self.rng.word()),
            link: self.link.parse().expect("a valid link"),
            ..DeviceSetup::default()
        };
        let device = self.net.device_with(&setup).expect("a valid setup");
        for fault in &self.faults {
            device.add_fault(fault).expect("a valid rule");
        }
        device.observe(self.ear.clone()).expect("an observer");
        let mut host = Host { number, life, device, listener: None, waiting: Vec::new(), sides: Vec::new() };
        if self.rng.percent(70) {
            host.listener = host.device.listen(PORT).ok();
        }
        host
    }

    pub(super) fn play(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.between(10, 60) {
            self.step().map_err(|error| error.to_string())?;
            if self.has_strangers && self.rng.percent(50) {
                self.forge();
            }
            let pause = *self.rng.pick(&[0, 1, 10, 300, LONGEST_PAUSE.as_millis() as u64]);
            self.net.run_for(Duration::from_millis(pause));
            self.look()?;
        }
        self.judge()
    }

    fn step(&mut self) -> Result<(), Error> {
        let host = self.rng.size(0, self.hosts.len() - 1);
        match self.rng.below(100) {
            0..30 => self.dial(host),
            30..60 => self.answer(host),
            60..70 => self.hosts[host].sides.iter().filter(|side| side.is_open()).try_for_each(Side::send),
            70..85 => self.end_one(host),
            85..92 => {
                self.toggle_listener(host);
                Ok(())
            }
            92..96 => {
                self.restart(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn dial(&mut self, from: usize) -> Result<(), Error> {
        let to = self.rng.size(0, self.hosts.len());
        let nonce = self.next;
        self.next += 1;
        // One address more than there are hosts.
        let at = SocketAddr::from((address(to), PORT));
        let life = self.hosts.get(to).map_or(0, |host| host.life);
        let listens = self.hosts.get(to).is_some_and(|host| host.listener.is_some());
        let host = &mut self.hosts[from];
        let end = RcEnd::new(&host.device)?;
        let connection =
            host.device.connect_with(&end.qp, at, &ConnectOptions::default(), &nonce.to_be_bytes())?;
        let own = (from, host.life);
        host.sides.push(Side::new(nonce, true, own, end, connection)?);
        let attempt = Attempt {
            from: own,
            to: (to, life),
            answers: BTreeMap::new(),
            always_listened: listens,
            ever_listened: listens,
            ever_accepted: false,
        };
        self.attempts.insert(nonce, attempt);
        Ok(())
    }

    /// The program of a host looks at its requests, and answers one of those that wait.
    fn answer(&mut self, host: usize) -> Result<(), Error> {
        if self.hosts[host].waiting.is_empty() {
            return Ok(());
        }
        let (number, life) = (self.hosts[host].number, self.hosts[host].life);
        let at = self.rng.size(0, self.hosts[host].waiting.len() - 1);
        let (request, nonce) = self.hosts[host].waiting.swap_remove(at);
        let (answer, situation) = match self.rng.below(10) {
            0 => {
                request.reject(b"no")?;
                (Answer::Refused, "a program refuses")
            }
            1 => {
                drop(request);
                (Answer::Refused, "a program drops a request")
            }
            2 => {
                // Longer than the peer waits before it repeats its request; sometimes longer than it waits at all.
                self.net.run_for(Duration::from_millis(*self.rng.pick(&[700, 3000, 15_000])));
                self.reach("a program answers late");
                self.accept(host, request, nonce)?
            }
            _ => self.accept(host, request, nonce)?,
        };
        self.reach(situation);
        if let Some(attempt) = self.attempts.get_mut(&nonce) {
            attempt.ever_accepted |= answer == Answer::Accepted;
            attempt.answers.insert((number, life), (answer, self.net.elapsed()));
        }
        Ok(())
    }

    fn accept(
        &mut self,
        host: usize,
        request: Request,
        nonce: Nonce,
    ) -> Result<(Answer, &'static str), Error> {
        let host = &mut self.hosts[host];
        let end = RcEnd::new(&host.device)?;
        match request.accept(&end.qp) {
            Ok(connection) => {
                let own = (host.number, host.life);
                host.sides.push(Side::new(nonce, false, own, end, connection)?);
                Ok((Answer::Accepted, "a program accepts"))
            }
            Err(Error::Connect(error)) if matches!(*error, ConnectError::Call(_)) => {
                Ok((Answer::TooLate, "a peer gives up before it is answered"))
            }
            Err(error) => Err(error),
        }
    }

    fn end_one(&mut self, host: usize) -> Result<(), Error> {
        let sides = &mut self.hosts[host].sides;
        if sides.is_empty() {
            return Ok(());
        }
        let at = self.rng.size(0, sides.len() - 1);
        let side = &mut sides[at];
        let (nonce, own, is_early) = (side.nonce, side.own, !side.is_active && side.events.is_empty());
        let situation = match self.rng.below(3) {
            0 => {
                if !side.is_open() || side.connection.disconnect().is_err() {
                    return Ok(());
                }
                side.has_closed = true;
                "a side disconnects"
            }
            1 => {
                side.end = None;
                "a queue pair is destroyed first"
            }
            _ => {
                sides.swap_remove(at);
                "a side drops its connection"
            }
        };
        if let (true, Some(attempt)) = (is_early, self.attempts.get_mut(&nonce)) {
            self.given_up.insert(nonce);
            attempt.answers.insert(own, (Answer::GivenUp, self.net.elapsed()));
        }
        self.reach(situation);
        Ok(())
    }

    fn toggle_listener(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        host.listener = match host.listener.take() {
            // What waits in it is refused.
            Some(_) => None,
            None => host.device.listen(PORT).ok(),
        };
        let listens = host.listener.is_some();
        let number = host.number;
        for attempt in self.attempts.values_mut().filter(|attempt| attempt.to.0 == number) {
            attempt.always_listened &= listens;
        }
    }

    fn restart(&mut self, number: usize) {
        let is_killed = self.rng.percent(60);
        self.reach(if is_killed { "a host is killed" } else { "a host is closed" });
        let life = self.hosts[number].life;
        if is_killed {
            // Nothing leaves any more.
            let _ = self.hosts[number].device.inject_port_state(false);
        }
        self.ended.push((number, life));
        for attempt in self.attempts.values_mut().filter(|attempt| attempt.to.0 == number) {
            attempt.always_listened = false;
        }
        let old = &mut self.hosts[number];
        (old.listener, old.waiting, old.sides) = (None, Vec::new(), Vec::new());
        let new = self.boot(number, life + 1);
        self.hosts[number] = new;
    }

    /// Takes in what happened to the programs.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let now = self.net.elapsed().as_nanos() as u64;
        let mut arrived = 0;
        for host in &mut self.hosts {
            while let Some(request) = host.listener.as_ref().and_then(Listener::poll) {
                let nonce = request.private_data().first_chunk().map(|bytes| Nonce::from_be_bytes(*bytes));
                let nonce = nonce.ok_or("a request without its private data")?;
                if is_forged(nonce) {
                    host.waiting.push((request, nonce));
                    continue;
                }
                let attempt = self.attempts.get_mut(&nonce).ok_or("a request that nobody made")?;
                let at = self.net.elapsed();
                let before = attempt.answers.insert((host.number, host.life), (Answer::None, at));
                if before.is_some_and(|(answer, since)| !answer.may_be_forgotten(at - since)) && !self.is_late
                {
                    return Err(format!(
                        "request {nonce:#x} came twice to host {}, at {at:?}: {before:?}",
                        host.number
                    ));
                }
                host.waiting.push((request, nonce));
            }
            for side in &mut host.sides {
                let before = side.events.len();
                arrived += side.look()?;
                if is_forged(side.nonce) && side.events.contains(&ConnectionEvent::Established) {
                    return Err(format!("{} is connected to nobody", side.name()));
                }
                if side.events.len() > before {
                    self.hash = (self.hash ^ now ^ side.nonce).wrapping_mul(0x0100_0000_01b3);
                }
                if let ([ConnectionEvent::Failed(error)], false) = (&side.events[..], side.is_active)
                    && side.events.len() > before
                    && let Some(attempt) = self.attempts.get_mut(&side.nonce)
                {
                    self.given_up.insert(side.nonce);
                    let by_peer = matches!(error, ConnectError::Refused { .. });
                    let answer = if by_peer { Answer::TakenBack } else { Answer::GivenUp };
                    attempt.answers.insert(side.own, (answer, self.looked));
                }
            }
        }
        self.looked = self.net.elapsed();
        for _ in 0..arrived {
            self.reach("a message arrives");
        }
        for attempt in self.attempts.values_mut() {
            let host = self.hosts.get(attempt.to.0).filter(|host| host.listener.is_some());
            attempt.ever_listened |= host.is_some();
            attempt.always_listened &= host.is_some_and(|host| host.life == attempt.to.1);
        }
        Ok(())
    }

    /// The network is whole again, and the programs answer what waits.
    pub(super) fn mend(&mut self) -> Result<(), String> {
        for host in &mut self.hosts {
            host.device.clear_faults();
            host.waiting.clear();
            host.listener = None;
        }
        self.attempts.values_mut().for_each(|attempt| attempt.always_listened = false);
        self.faults.clear();
        // Longer than all repetitions of all messages.
        for _ in 0..400 {
            self.net.run_for(Duration::from_millis(500));
            self.look()?;
        }
        Ok(())
    }
}
