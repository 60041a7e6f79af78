//! Two reliable queue pairs with random operations over a network that loses, duplicates and reorders packets:
//! every work request is executed exactly once and in order.
//!
//! Every run is a function of its seed, which a failure names.

use super::host::XRC_SRQ;
use super::pair::{BIG, CALM, Pair, Rng, SOURCE, TARGET, Weather, remote, rough, sge, split};
use super::*;
use crate::memory::Bind;
use crate::work::FlushKind;

/// Number of work requests on each side.
const WORK: u64 = 60;
const MESSAGE: usize = 3000;
/// Layout of the target: the remote counter, bytes that WRITEs change, results of READs and atomics, receives.
const COUNTER: usize = BIG - 8;
const WRITTEN: usize = 16 << 10;
const RESULTS: usize = WRITTEN;
const RECEIVES: usize = 512 << 10;
/// Keys that the other side may invalidate, bound from the start, one for each message; and the key of our own
/// window.
const REVOCABLE: u32 = 0x10_0000;
const OWN_WINDOW: u32 = 0x20_0000;

/// A message for the other side to receive.
struct Message {
    payload: Vec<u8>,
    flags: WcFlags,
    imm_or_rkey: u32,
}

/// A minimal model of the effect of one side's work on the other side.
struct Model {
    target: Vec<u8>,
    counter: u64,
    messages: Vec<Message>,
    /// The expected result of each READ and atomic: where it is stored, and the bytes.
    results: Vec<(usize, Vec<u8>)>,
    flushes: u32,
    /// The key of our own window, and whether it is bound.
    window: (u32, bool),
    posted: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            target: vec![0; WRITTEN],
            counter: 0,
            messages: vec![],
            results: vec![],
            flushes: 0,
            window: (OWN_WINDOW, false),
            posted: 0,
        }
    }
}

/// A SEND: plain, with immediate data, or with the invalidation of an unused key.
fn any_send(model: &mut Model, rng: &mut Rng, payload: Vec<u8>) -> Operation {
    let number = model.messages.len() as u32;
    let (operation, flags, imm_or_rkey) = match rng.below(3) {
        0 => (SEND, WcFlags::empty(), 0),
        1 => (Operation::Send { imm: Some(number), invalidate: None }, WcFlags::WITH_IMM, number),
        _ => {
            let key = REVOCABLE + number;
            (Operation::Send { imm: None, invalidate: Some(key) }, WcFlags::WITH_INV, key)
        }
    };
    model.messages.push(Message { payload, flags, imm_or_rkey });
    operation
}

fn any_write(model: &mut Model, rng: &mut Rng, payload: &[u8]) -> Operation {
    let at = rng.below(WRITTEN - MESSAGE);
    model.target[at..at + payload.len()].copy_from_slice(payload);
    let imm = rng.percent(40).then_some(model.messages.len() as u32);
    if let Some(number) = imm {
        model.messages.push(Message { payload: vec![], flags: WcFlags::WITH_IMM, imm_or_rkey: number });
    }
    Operation::Write { remote: remote(TARGET, at), imm }
}

fn any_atomic(model: &mut Model, rng: &mut Rng) -> Operation {
    let remote = remote(TARGET, COUNTER);
    let before = model.counter;
    if rng.percent(50) {
        let add = rng.next();
        model.counter = before.wrapping_add(add);
        return Operation::FetchAdd { remote, add };
    }
    let swap = rng.next();
    let compare = if rng.percent(50) { before } else { !before };
    model.counter = if compare == before { swap } else { before };
    Operation::CompareSwap { remote, compare, swap }
}

/// Binds our own window, or invalidates it. Either changes the meaning of the key, so neither succeeds twice.
fn next_local(model: &mut Model) -> Operation {
    let (key, bound) = model.window;
    if bound {
        model.window.1 = false;
        return Operation::LocalInvalidate { key };
    }
    model.window = (key + 1, true);
    Operation::BindWindow(Bind {
        window: key,
        key: key + 1,
        lkey: TARGET,
        access: Access::REMOTE_READ,
        addr: 0,
        len: 8,
    })
}

/// Posts a random work request and records its expected effect in the model.
fn post_random(side: &mut Bench, other_source: &[u8], model: &mut Model, rng: &mut Rng) {
    let xrc = side.qp.config.qp_type == QpType::XrcSend;
    let len = rng.below(MESSAGE);
    let from = rng.below(BIG - MESSAGE);
    let payload = side.host.bytes(SOURCE)[from..from + len].to_vec();
    let pieces = split(rng, SOURCE, from, len);
    let result_at = RESULTS + model.results.len() * MESSAGE;
    let (operation, data) = match rng.below(10) {
        0..3 => (any_send(model, rng, payload), pieces),
        3 | 4 => (any_write(model, rng, &payload), pieces),
        5 => {
            model.results.push((result_at, other_source[from..from + len].to_vec()));
            (Operation::Read { remote: remote(SOURCE, from) }, split(rng, TARGET, result_at, len))
        }
        6 => {
            model.results.push((result_at, model.counter.to_ne_bytes().to_vec()));
            (any_atomic(model, rng), vec![sge(TARGET, result_at, 8)])
        }
        // XRC has no opcodes for the next two.
        7 if !xrc => {
            model.flushes += 1;
            let whole_region = rng.percent(30);
            let flush = FlushKind { global: true, persistent: false, whole_region };
            (Operation::Flush { remote: remote(TARGET, from), len: len as u32, flush }, vec![])
        }
        8 if !xrc => {
            let at = 8 * rng.below(WRITTEN / 8);
            model.target[at..at + 8].copy_from_slice(&side.host.bytes(SOURCE)[from..from + 8]);
            (Operation::AtomicWrite { remote: remote(TARGET, at) }, vec![sge(SOURCE, from, 8)])
        }
        _ => (next_local(model), vec![]),
    };
    let flags = if rng.percent(20) { SendFlags::FENCE } else { SendFlags::empty() } | SendFlags::SIGNALED;
    let to = if xrc { Destination::XrcSrq(XRC_SRQ) } else { Destination::Connected };
    let wr = SendWr::new(model.posted, operation, &data[..]).flags(flags).to(to);
    side.qp.post_send(wr, &mut side.host).unwrap();
    model.posted += 1;
}

fn prepare(side: &mut Bench) {
    for region in &mut side.host.regions {
        region.access |= Access::FLUSH_GLOBAL;
    }
    let revocable = (0..WORK as u32).map(|i| Window { key: REVOCABLE + i, bound_by: Some(OURS) });
    side.host.windows.extend(revocable);
    side.host.windows.push(Window { key: OWN_WINDOW, bound_by: None });
}

/// Posts receive number `number` to the side's receive queue.
fn post_receive(side: &mut Bench, number: usize, rng: &mut Rng) {
    let data = split(rng, TARGET, RECEIVES + number * MESSAGE, MESSAGE);
    let wr = RecvWr { wr_id: number as u64, data: data[..].into() };
    if side.qp.config.has_srq {
        side.host.shared.push_back(wr);
    } else {
        side.qp.post_recv(wr, &mut side.host).unwrap();
    }
}

/// The outcome of a run.
#[derive(Default)]
struct Sum {
    retransmitted: u64,
    signs_of_loss: u64,
}

/// Both sides post random work; receives are occasionally posted late.
fn run(setups: [&Setup; 2], weather: Weather, seed: u64) -> Sum {
    let what = format!("seed {seed}, {weather:?}, {setups:?}");
    let mut pair = Pair::of(setups[0], setups[1], weather, seed);
    pair.sides.iter_mut().for_each(prepare);
    let sources = [0, 1].map(|i: usize| pair.sides[i].host.bytes(SOURCE).clone());
    let mut models = [Model::default(), Model::default()];
    let mut rng = Rng(seed ^ 4);
    let mut receives = [0; 2];
    let busy = setups.map(|s| if s.qp_type == QpType::XrcRecv { 0 } else { WORK });
    let mut feed = |pair: &mut Pair| {
        for i in 0..2 {
            let side = &mut pair.sides[i];
            if models[i].posted < busy[i] && side.qp.sends_outstanding() < 60 && rng.percent(30) {
                post_random(side, &sources[1 - i], &mut models[i], &mut rng);
            }
            if receives[i] < models[1 - i].messages.len() && rng.percent(10) {
                post_receive(side, receives[i], &mut rng);
                receives[i] += 1;
            }
        }
        (0..2).any(|i| models[i].posted < busy[i] || receives[i] < models[1 - i].messages.len())
    };
    let mut more = true;
    while more {
        more = feed(&mut pair);
        pair.run(|pair| _ = feed(pair));
    }
    let mut sum = Sum::default();
    for (i, model) in models.iter().enumerate() {
        let [ours, theirs] = [i, 1 - i].map(|i| &pair.sides[i]);
        check(model, ours, theirs, &what);
        let c = ours.qp.counters();
        sum.retransmitted += c.retransmitted_pkts;
        sum.signs_of_loss += c.local_ack_timeout_err + c.implied_nak_seq_err + c.rcvd_seq_err;
    }
    sum
}

fn check(model: &Model, ours: &Bench, theirs: &Bench, what: &str) {
    let done: Vec<_> = ours.host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let all: Vec<_> = (0..model.posted).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(done, all, "{what}: {:?}", ours.qp.failure());
    for (at, bytes) in &model.results {
        assert!(ours.host.behind(sge(TARGET, *at, bytes.len())) == bytes, "{what}: result at {at}");
    }
    assert!(theirs.host.behind(sge(TARGET, 0, WRITTEN)) == model.target, "{what}: WRITEs");
    assert_eq!(theirs.host.behind(sge(TARGET, COUNTER, 8)), model.counter.to_ne_bytes(), "{what}");
    assert_eq!(theirs.host.flushes.get(), model.flushes, "{what}");
    assert_eq!(theirs.host.recvs.len(), model.messages.len(), "{what}");
    for (k, (message, (wc, _))) in model.messages.iter().zip(&theirs.host.recvs).enumerate() {
        assert_eq!((wc.wr_id, wc.status, wc.flags), (k as u64, WcStatus::Success, message.flags), "{what}");
        assert_eq!(wc.imm_or_rkey, message.imm_or_rkey, "{what}: message {k}");
        let stored = theirs.host.behind(sge(TARGET, RECEIVES + k * MESSAGE, message.payload.len()));
        assert!(stored == message.payload, "{what}: message {k}");
    }
    // The state of our window is that set by our last local operation.
    let window = ours.host.windows.last().unwrap();
    assert_eq!((window.key, window.bound_by.is_some()), model.window, "{what}");
    for (number, message) in (0u32..).zip(&model.messages) {
        let revoked = theirs.host.windows[number as usize].bound_by.is_none();
        assert_eq!(revoked, message.flags == WcFlags::WITH_INV, "{what}: key of message {number}");
    }
}

fn setup(seed: u64) -> Setup {
    let mtu = Mtu::ALL[(seed % 5) as usize];
    let base = rough(mtu, seed);
    let depth = 1 + (seed % 4) as u8;
    Setup {
        rights: all_rights() | Access::FLUSH_GLOBAL,
        max_rd_atomic: depth,
        max_dest_rd_atomic: depth,
        min_rnr_timer: 1,
        has_srq: seed % 7 == 3,
        tuning: Tuning { e2e_credits: !seed.is_multiple_of(3), read_chunk: 2 * mtu.bytes(), ..base.tuning },
        ..base
    }
}

fn storms() -> impl Iterator<Item = (u64, Weather)> {
    (0..60).map(|seed| (seed, Weather { loss: [1, 5, 20][seed as usize % 3], double: 5, reorder: 10 }))
}

#[test]
fn every_operation_in_calm_weather() {
    for seed in 0..30 {
        let setup = setup(seed);
        // Any retransmission is due to a missing receive.
        assert_eq!(run([&setup, &setup], CALM, seed).signs_of_loss, 0, "seed {seed}");
    }
}

#[test]
fn every_operation_in_bad_weather() {
    let mut retransmitted = 0;
    for (seed, weather) in storms() {
        // Sides with and without credits, in all combinations.
        let (ours, theirs) = (setup(seed), setup(seed + 5 * (seed % 2)));
        let theirs = Setup { tuning: theirs.tuning, has_srq: theirs.has_srq, ..ours.clone() };
        retransmitted += run([&ours, &theirs], weather, seed).retransmitted;
    }
    assert!(retransmitted > 1000, "{retransmitted}");
}

/// Selective repeat: the same outcome, with fewer packets; also where only one side has it.
#[test]
fn every_operation_with_selective_repeat() {
    let mut retransmitted = [0; 3];
    for (seed, weather) in storms() {
        let base = setup(seed);
        let with =
            |selective_repeat| Setup { tuning: Tuning { selective_repeat, ..base.tuning }, ..base.clone() };
        for (sum, sides) in retransmitted.iter_mut().zip([[false, false], [true, true], [true, false]]) {
            let [ours, theirs] = sides.map(with);
            *sum += run([&ours, &theirs], weather, seed).retransmitted;
        }
        let ours = Setup { qp_type: QpType::XrcSend, ..with(true) };
        let theirs = Setup { qp_type: QpType::XrcRecv, has_srq: true, ..with(true) };
        run([&ours, &theirs], weather, seed);
    }
    let [neither, both, one] = retransmitted;
    assert!(both > 0 && 2 * both < neither && one > neither / 2, "{retransmitted:?}");
}

#[test]
fn extended_connections_in_bad_weather() {
    let mut retransmitted = 0;
    for (seed, weather) in storms() {
        let ours = Setup { qp_type: QpType::XrcSend, ..setup(seed) };
        let theirs = Setup { qp_type: QpType::XrcRecv, has_srq: true, ..setup(seed) };
        retransmitted += run([&ours, &theirs], weather, seed).retransmitted;
    }
    assert!(retransmitted > 1000, "{retransmitted}");
}

/// Credits avoid sending packets that find no receive, and never deadlock.
#[test]
fn credits_do_not_deadlock() {
    let mut again = [0, 0];
    for seed in 0..60 {
        for (sum, e2e_credits) in again.iter_mut().zip([false, true]) {
            let base = setup(seed);
            let tuning = Tuning { e2e_credits, ..base.tuning };
            let setup = Setup { tuning, has_srq: false, ..base };
            *sum += run([&setup, &setup], CALM, seed).retransmitted;
        }
    }
    let [without, with] = again;
    assert!(with > 0 && with < without, "retransmitted: {without} packets without credits, {with} with");
}
