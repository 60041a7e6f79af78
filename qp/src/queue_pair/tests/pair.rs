//! Two queue pairs over a network that loses, duplicates and reorders packets, in virtual time: the received data
//! matches the sent data.
//!
//! Every run is a function of its seed, which a failure names.

use super::*;
use std::collections::BTreeMap;

/// SplitMix64: a small generator with good statistical quality for any seed.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance as usize
    }
}

/// Packet impairments, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) loss: u32,
    pub(super) double: u32,
    pub(super) reorder: u32,
}

pub(super) const CALM: Weather = Weather { loss: 0, double: 0, reorder: 0 };

/// The latency of the network.
const LATENCY: Duration = Duration::from_micros(5);
/// Packets that each side may have in flight; polls restore the budget, answers do not.
const BUDGET: u32 = 24;

/// Two queue pairs connected by a network.
pub(super) struct Pair {
    pub(super) sides: [Bench; 2],
    rng: Rng,
    weather: Weather,
    /// Packets in transit, by arrival time and order of sending: the destination side and the packet.
    wire: BTreeMap<(Instant, u64), (usize, Out)>,
    packets: u64,
}

impl Pair {
    fn new(setup: &Setup, weather: Weather, seed: u64) -> Self {
        Self::of(setup, setup, weather, seed)
    }

    /// The second side sends the PSNs that the first one expects.
    pub(super) fn of(setup: &Setup, other: &Setup, weather: Weather, seed: u64) -> Self {
        let swapped = Setup { sq_psn: setup.rq_psn, rq_psn: setup.sq_psn, ..other.clone() };
        let mut sides = [setup.rts(), swapped.rts()];
        let now = sides[0].now;
        sides[1].now = now;
        let mut pair = Self { sides, rng: Rng(seed), weather, wire: BTreeMap::new(), packets: 0 };
        let both = pair.sides.iter().all(|side| side.qp.config.tuning.selective_repeat);
        for side in &mut pair.sides {
            side.qp.set_selective_peer(both);
            side.host.register(SOURCE, 0, BIG, all_rights());
            side.host.register(TARGET, 0, BIG, all_rights());
        }
        let mut fill = Rng(!seed);
        for side in &mut pair.sides {
            side.host.bytes(SOURCE).fill_with(|| fill.next() as u8);
        }
        pair
    }

    /// Lets a side send what it can, and puts the packets on the wire.
    fn transmit(&mut self, from: usize) {
        let side = &mut self.sides[from];
        let flight = side.qp.next_psn().distance_from(side.qp.unacked_psn()).unsigned_abs();
        let mut budget = BUDGET.saturating_sub(flight).max(side.qp.repetitions_due());
        let packets = side.poll(64, &mut budget);
        // Packets on the last retry are not dropped: giving up after eight lost tries in a row would be correct.
        let desperate = |s: &Bench| s.qp.sends_outstanding() > 0 && s.qp.requester.retries == 0;
        let mercy = self.sides.iter().any(|s| s.qp.config.qp_type.is_reliable() && desperate(s));
        for packet in packets {
            if self.rng.percent(self.weather.loss) && !mercy {
                continue;
            }
            let copies = 1 + u32::from(self.rng.percent(self.weather.double));
            for _ in 0..copies {
                let late = if self.rng.percent(self.weather.reorder) { self.rng.below(20) as u32 } else { 0 };
                self.packets += 1;
                let arrival = self.sides[from].now + LATENCY + late * LATENCY / 4;
                self.wire.insert((arrival, self.packets), (1 - from, packet.clone()));
            }
        }
    }

    /// Advances time to the next packet or timer; false if there is none.
    fn step(&mut self) -> bool {
        let timer = self.sides.iter().filter_map(|s| s.qp.poll_timeout()).min();
        let arrival = self.wire.first_key_value().map(|(key, _)| key.0);
        let Some(next) = timer.into_iter().chain(arrival).min() else { return false };
        for side in &mut self.sides {
            assert!(next >= side.now, "a timer in the past");
            side.now = next;
        }
        if arrival == Some(next) {
            let (_, (to, packet)) = self.wire.pop_first().unwrap();
            // The counters record packets that are dropped.
            let _: Result<(), PacketDrop> = self.sides[to].feed(&packet);
        } else {
            for side in &mut self.sides {
                side.qp.handle_timeout(next, &mut side.host);
            }
        }
        true
    }

    /// Runs until nothing is left to do; `each` is called before every step.
    pub(super) fn run(&mut self, mut each: impl FnMut(&mut Self)) {
        for _ in 0..3_000_000 {
            each(self);
            self.transmit(0);
            self.transmit(1);
            if !self.step() {
                return;
            }
        }
        panic!("no end");
    }
}

/// The source and target regions of payloads, on both sides. Addresses start at 0.
pub(super) const SOURCE: u32 = 0x50;
pub(super) const TARGET: u32 = 0x51;
pub(super) const BIG: usize = (1 << 20) + 4096;
/// Offsets of messages in the source and the target; both are odd.
const FROM: usize = 1031;
const TO: usize = 13;

pub(super) fn sge(lkey: u32, addr: usize, len: usize) -> Sge {
    Sge { addr: addr as u64, length: len as u32, lkey }
}

/// `len` bytes at `addr`, split into up to four elements at odd places.
pub(super) fn split(rng: &mut Rng, lkey: u32, addr: usize, len: usize) -> Vec<Sge> {
    let mut cuts: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| sge(lkey, addr + w[0], w[1] - w[0])).collect()
}

pub(super) fn remote(rkey: u32, addr: usize) -> Remote {
    Remote { addr: addr as u64, rkey }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
}

/// Transfers one message of this size between two others, and compares memory byte by byte.
fn transfer(kind: Kind, len: usize, setup: &Setup, weather: Weather, seed: u64) {
    let mut pair = Pair::new(setup, weather, seed);
    let sides = &mut pair.sides;
    let source = sides[usize::from(kind == Kind::Read)].host.bytes(SOURCE)[FROM..FROM + len].to_vec();
    let mut rng = Rng(seed ^ 1);
    sides[1].post_recv(1, &[]);
    sides[1].post_recv(2, &split(&mut rng, TARGET, TO, if kind == Kind::Send { len } else { 0 }));
    sides[1].post_recv(3, &[]);
    sides[0].post(1, SEND, &[]);
    let (operation, local) = match kind {
        Kind::Send => (Operation::Send { imm: Some(9), invalidate: None }, SOURCE),
        Kind::Write => (Operation::Write { remote: remote(TARGET, TO), imm: None }, SOURCE),
        Kind::WriteImm => (Operation::Write { remote: remote(TARGET, TO), imm: Some(9) }, SOURCE),
        Kind::Read => (Operation::Read { remote: remote(SOURCE, FROM) }, TARGET),
    };
    let place = if kind == Kind::Read { TO } else { FROM };
    sides[0].post(2, operation, &split(&mut rng, local, place, len));
    sides[0].post(3, SEND, &[]);
    pair.run(|_| {});
    let what = format!("{kind:?} of {len}, {setup:?}, {weather:?}, seed {seed}");
    let notes = pair.sides[0].notes();
    let reason = pair.sides[0].qp.failure();
    assert_eq!(notes, [1, 2, 3].map(|id| Note::Sent(id, WcStatus::Success)), "{what}: {reason:?}");
    let recvs = if matches!(kind, Kind::Send | Kind::WriteImm) { 3 } else { 2 };
    assert_eq!(pair.sides[1].host.recvs.len(), recvs, "{what}");
    let target = pair.sides[usize::from(kind != Kind::Read)].host.bytes(TARGET);
    assert!(target[TO..TO + len] == source, "{what}: the received data differs");
    let around = target[..TO].iter().chain(&target[TO + len..]);
    assert!(around.copied().all(|b| b == 0), "{what}: bytes outside the message changed");
    if weather.loss + weather.reorder == 0 {
        let counters = pair.sides[0].qp.counters();
        assert_eq!(counters.retransmitted_pkts, 0, "{what}");
    }
}

fn sizes(mtu: Mtu) -> [usize; 8] {
    let mtu = mtu.bytes() as usize;
    [0, 1, 3, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20]
}

pub(super) fn rough(mtu: Mtu, seed: u64) -> Setup {
    Setup {
        mtu,
        timeout: 6,
        retry_cnt: 7,
        rnr_retry: 7,
        // Close to the largest PSN, so that every run of some length wraps.
        sq_psn: 0xff_fff0 + (seed as u32 & 0xf),
        rq_psn: 0xff_ffff,
        tuning: Tuning { ack_interval: 4, read_chunk: 8 * mtu.bytes(), ..Setup::default().tuning },
        ..Setup::default()
    }
}

/// Every size, MTU and operation over a network with this loss rate; if it is not 0, the network also duplicates
/// and reorders.
fn transfers(loss: u32) {
    let weather = Weather { loss, double: loss, reorder: loss };
    let mut seed = u64::from(loss) << 32;
    for mtu in Mtu::ALL {
        for len in sizes(mtu) {
            for kind in [Kind::Send, Kind::Write, Kind::WriteImm, Kind::Read] {
                seed += 1;
                transfer(kind, len, &rough(mtu, seed), weather, seed);
            }
        }
    }
}

#[test]
fn transfers_without_loss() {
    transfers(0);
}

#[test]
fn transfers_with_1_percent_loss() {
    transfers(1);
}

#[test]
fn transfers_with_5_percent_loss() {
    transfers(5);
}

#[test]
fn transfers_with_20_percent_loss() {
    transfers(20);
}

#[test]
fn duplicated_packets_cause_no_retransmission() {
    for seed in 0..20 {
        let weather = Weather { loss: 0, double: 50, reorder: 0 };
        for kind in [Kind::Send, Kind::Write, Kind::Read] {
            transfer(kind, 10_000, &rough(Mtu::B1024, seed), weather, seed);
        }
    }
}

/// One side of a random conversation: a minimal model of its effect on the other side's memory.
struct Model {
    target: Vec<u8>,
    counter: u64,
    /// Messages for the other side to receive, in order.
    messages: Vec<Vec<u8>>,
    /// The expected result of each READ and atomic: where it is stored, and the bytes.
    results: Vec<(usize, Vec<u8>)>,
    posted: u64,
}

/// The remote counter for atomics, after the bytes that WRITEs change.
const COUNTER: usize = BIG - 8;
/// WRITEs change the first bytes of the target; results of READs and atomics follow, then receives.
const WRITTEN: usize = 32 << 10;
const RESULTS: usize = 32 << 10;
const RECEIVES: usize = 512 << 10;
const MESSAGE: usize = 4096;

/// Posts a random work request and records its expected effect in the model.
fn post_random(side: &mut Bench, other_source: &[u8], model: &mut Model, rng: &mut Rng) {
    let len = rng.below(MESSAGE);
    let from = rng.below(BIG - MESSAGE);
    let payload = side.host.bytes(SOURCE)[from..from + len].to_vec();
    let pieces = split(rng, SOURCE, from, len);
    let result_at = RESULTS + model.results.len() * MESSAGE;
    let flags = if rng.percent(20) { SendFlags::FENCE } else { SendFlags::empty() } | SendFlags::SIGNALED;
    let id = model.posted;
    model.posted += 1;
    match rng.below(5) {
        0 => {
            model.messages.push(payload);
            side.post_with(id, SEND, &pieces, flags);
        }
        1 => {
            let at = rng.below(WRITTEN - MESSAGE);
            model.target[at..at + len].copy_from_slice(&payload);
            let operation = Operation::Write { remote: remote(TARGET, at), imm: None };
            side.post_with(id, operation, &pieces, flags);
        }
        2 | 3 => {
            model.results.push((result_at, other_source[from..from + len].to_vec()));
            let operation = Operation::Read { remote: remote(SOURCE, from) };
            side.post_with(id, operation, &split(rng, TARGET, result_at, len), flags);
        }
        _ => {
            model.results.push((result_at, model.counter.to_ne_bytes().to_vec()));
            let remote = remote(TARGET, COUNTER);
            let operation = if rng.percent(50) {
                let add = rng.next();
                model.counter = model.counter.wrapping_add(add);
                Operation::FetchAdd { remote, add }
            } else {
                let (before, swap) = (model.counter, rng.next());
                let compare = if rng.percent(50) { before } else { !before };
                model.counter = if compare == before { swap } else { before };
                Operation::CompareSwap { remote, compare, swap }
            };
            side.post_with(id, operation, &[sge(TARGET, result_at, 8)], flags);
        }
    }
}

/// Both sides post random work; receives are occasionally posted late.
fn conversation(weather: Weather, seed: u64) {
    const WORK: u64 = 60;
    let mtu = Mtu::ALL[(seed % 5) as usize];
    let setup = Setup { max_rd_atomic: 1 + (seed % 4) as u8, min_rnr_timer: 1, ..rough(mtu, seed) };
    let setup = Setup { max_dest_rd_atomic: setup.max_rd_atomic, ..setup };
    let mut pair = Pair::new(&setup, weather, seed);
    let sources = [0, 1].map(|i: usize| pair.sides[i].host.bytes(SOURCE).clone());
    let mut models = [0, 1].map(|_| Model {
        target: vec![0; WRITTEN],
        counter: 0,
        messages: vec![],
        results: vec![],
        posted: 0,
    });
    let mut rng = Rng(seed ^ 2);
    let mut receives = [0; 2];
    pair.run(|pair| {
        for i in 0..2 {
            let side = &mut pair.sides[i];
            if models[i].posted < WORK && side.qp.sends_outstanding() < 60 && rng.percent(30) {
                post_random(side, &sources[1 - i], &mut models[i], &mut rng);
            }
            if receives[i] < models[1 - i].messages.len() && rng.percent(10) {
                let at = RECEIVES + receives[i] * MESSAGE;
                side.post_recv(receives[i] as u64, &split(&mut rng, TARGET, at, MESSAGE));
                receives[i] += 1;
            }
        }
    });
    let what = format!("seed {seed}, {weather:?}, {setup:?}");
    for (i, model) in models.iter().enumerate() {
        let [ours, theirs] = [i, 1 - i].map(|i| &pair.sides[i]);
        let done: Vec<_> = ours.host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let all: Vec<_> = (0..model.posted).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(done, all, "{what}: {:?}", ours.qp.failure());
        for (at, bytes) in &model.results {
            let stored = ours.host.behind(sge(TARGET, *at, bytes.len()));
            assert!(stored == bytes, "{what}: result at {at}");
        }
        assert!(theirs.host.behind(sge(TARGET, 0, WRITTEN)) == model.target, "{what}: WRITEs");
        assert_eq!(theirs.host.behind(sge(TARGET, COUNTER, 8)), model.counter.to_ne_bytes(), "{what}");
        for (k, message) in model.messages.iter().enumerate() {
            let stored = theirs.host.behind(sge(TARGET, RECEIVES + k * MESSAGE, message.len()));
            assert!(stored == message, "{what}: message {k}");
            assert_eq!(theirs.host.recvs[k].0.byte_len as usize, message.len(), "{what}");
        }
    }
}

#[test]
fn conversations_in_calm_weather() {
    (0..30).for_each(|seed| conversation(CALM, seed));
}

#[test]
fn conversations_in_bad_weather() {
    for seed in 0..60 {
        let loss = [1, 5, 20][seed as usize % 3];
        conversation(Weather { loss, double: 5, reorder: 10 }, seed);
    }
}
