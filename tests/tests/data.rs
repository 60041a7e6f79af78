//! Two processes transfer data, and every byte is compared.

use rnic_tests::namespace::Namespace;
use rnic_tests::peer::{Peer, Region, connect};
use rnic_tests::protocol::{Command, Connection, Data, Opening, Piece, Reply, Traffic, Verb};
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;

/// The three operations that transfer data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Send,
    Write,
    Read,
}

const WAYS: [Way; 3] = [Way::Send, Way::Write, Way::Read];

/// Two connected peers.
struct Pair {
    a: Peer,
    b: Peer,
    left: usize,
    right: usize,
    seed: u64,
}

impl Pair {
    fn new(options: Connection) -> Self {
        Self::between(Peer::start(), Peer::start(), options)
    }

    fn between(mut a: Peer, mut b: Peer, options: Connection) -> Self {
        let (left, right) = connect(&mut a, &mut b, options);
        Self { a, b, left, right, seed: 0 }
    }

    /// Transfers `len` bytes from one end to the other and compares them, and checks that the bytes after them are
    /// unchanged.
    fn transfer(&mut self, way: Way, len: usize) {
        const GUARD: usize = 64;
        self.seed += 2;
        let (seed, guard) = (self.seed, self.seed + 1);
        // A region has at least one byte.
        let full = self.a.register(len.max(1), seed);
        let target = self.b.register(len + GUARD, guard);
        let part = |region: &Region| if len == 0 { vec![] } else { vec![region.part(0, len)] };
        match way {
            Way::Send => {
                self.b.recv(self.right, 8, &part(&target));
                self.a.post(self.left, 7, Verb::Send(Some(seed as u32)), &part(&full));
                let wc = self.b.succeed(self.right, 1).remove(0);
                assert_eq!((wc.wr_id, wc.byte_len as usize, wc.imm), (8, len, Some(seed as u32)));
                self.a.succeed(self.left, 1);
            }
            Way::Write => {
                self.a.post(self.left, 7, Verb::Write(target.place, None), &part(&full));
                self.a.succeed(self.left, 1);
            }
            Way::Read => {
                self.b.post(self.right, 7, Verb::Read(full.place), &part(&target));
                let wc = self.b.succeed(self.right, 1).remove(0);
                assert_eq!((wc.wr_id, wc.byte_len as usize), (7, len));
            }
        }
        self.b.check(target.part(0, len), seed, 0);
        self.b.check(target.part(len, GUARD), guard, len as u64);
        self.a.ask(&Command::Deregister(full.id));
        self.b.ask(&Command::Deregister(target.id));
    }

    /// Checks that packets flowed both ways, and that none was dropped or retransmitted.
    fn undisturbed(&mut self) {
        for peer in [&mut self.a, &mut self.b] {
            let counters = peer.counters();
            assert!(counters["rx_packets"] > 0 && counters["tx_packets"] > 0, "{counters:?}");
            for (name, value) in &counters {
                assert!(!name.starts_with("dropped_") || *value == 0, "{name} is {value}");
            }
            assert_eq!(counters["resp_remote_access_errors"], 0);
            assert_eq!(counters["req_cqe_error"], 0);
        }
    }
}

/// Sizes close to multiples of a path MTU, and some far from them.
fn sizes(mtu: usize) -> [usize; 9] {
    [0, 1, 3, mtu - 1, mtu, mtu + 1, 3 * mtu - 1, 65_536, MIB]
}

fn every_size(pair: &mut Pair, mtu: usize) {
    for way in WAYS {
        for len in sizes(mtu) {
            pair.transfer(way, len);
        }
    }
}

#[test]
fn all_sizes_at_every_mtu() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let mut pair = Pair::new(Connection { mtu: Some(mtu), ..Connection::default() });
        every_size(&mut pair, mtu as usize);
        pair.undisturbed();
    }
}

#[test]
fn single_datagrams_without_offload() {
    let open = || {
        let address = Some(rnic_tests::fresh_address());
        Peer::open(&Opening { address, offload: Some(false), ..Opening::default() })
    };
    let mut pair = Pair::between(open(), open(), Connection::default());
    every_size(&mut pair, 4096);
    pair.undisturbed();
    // Only one end without offload: a socket that splits trains receives them, and the other way round.
    let mut pair = Pair::between(open(), Peer::start(), Connection::default());
    for way in WAYS {
        pair.transfer(way, MIB + 1);
    }
    std::mem::swap(&mut pair.a, &mut pair.b);
    std::mem::swap(&mut pair.left, &mut pair.right);
    for way in WAYS {
        pair.transfer(way, MIB + 1);
    }
    pair.undisturbed();
}

#[test]
fn a_hundred_mebibytes_each_way() {
    let mut pair = Pair::new(Connection::default());
    for way in WAYS {
        pair.transfer(way, 100 * MIB);
    }
    assert!(pair.a.counter("tx_bytes") > 300 * MIB as u64);
}

#[test]
fn over_ipv6() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return rnic_tests::skipped(&why),
    };
    let (a, b) = (namespace.peer(0, &Opening::default()), namespace.peer(1, &Opening::default()));
    assert!(a.address().is_ipv6() && b.address().is_ipv6());
    let mut pair = Pair::between(a, b, Connection::default());
    every_size(&mut pair, 4096);
    pair.transfer(Way::Write, 10 * MIB);
    pair.undisturbed();
}

/// Divides `len` bytes of a region into pieces of odd lengths, including empty ones.
fn odd_pieces(region: &Region, len: usize, lengths: &[usize]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    for length in lengths {
        pieces.push(region.part(at, *length));
        at += length;
    }
    pieces.push(region.part(at, len - at));
    pieces
}

#[test]
fn scatter_and_gather_of_odd_pieces() {
    const LEN: usize = 20_011;
    let mut pair = Pair::new(Connection { mtu: Some(1024), ..Connection::default() });
    let there = odd_lengths();
    let here: Vec<usize> = there.iter().rev().copied().collect();
    let source = pair.a.register(LEN, 1);
    let target = pair.b.register_zeroes(LEN);
    let (from, to) = (odd_pieces(&source, LEN, &here), odd_pieces(&target, LEN, &there));
    pair.b.recv(pair.right, 1, &to);
    pair.a.post(pair.left, 1, Verb::Send(None), &from);
    pair.b.succeed(pair.right, 1);
    pair.a.succeed(pair.left, 1);
    pair.b.check(target.all(), 1, 0);
    let back = pair.a.register_zeroes(LEN);
    let into = odd_pieces(&back, LEN, &there);
    pair.a.post(pair.left, 2, Verb::Read(target.place), &into);
    pair.a.succeed(pair.left, 1);
    pair.a.check(back.all(), 1, 0);
    // Pieces out of order: the second half first.
    let half = LEN / 2;
    let swapped = [source.part(half, LEN - half), source.part(0, half)];
    pair.a.post(pair.left, 3, Verb::Write(target.place, None), &swapped);
    pair.a.succeed(pair.left, 1);
    pair.b.check(target.part(0, LEN - half), 1, half as u64);
    pair.b.check(target.part(LEN - half, half), 1, 0);
    pair.undisturbed();
}

/// Lengths that share no boundary with packets of any size: primes, zero, and one above a packet.
fn odd_lengths() -> [usize; 11] {
    [1, 0, 7, 1021, 3, 1025, 0, 4099, 2, 5003, 13]
}

#[test]
fn inline_data() {
    let mut pair = Pair::new(Connection::default());
    let target = pair.b.register_zeroes(256);
    for (id, len) in [0, 1, 63, 256].into_iter().enumerate() {
        let seed = 100 + id as u64;
        pair.a.ask(&Command::Post(
            pair.left,
            id as u64,
            Verb::Write(target.place, None),
            Data::Inline(seed, len),
        ));
        pair.a.succeed(pair.left, 1);
        pair.b.check(target.part(0, len), seed, 0);
    }
    let refused =
        pair.a.try_ask(&Command::Post(pair.left, 9, Verb::Write(target.place, None), Data::Inline(1, 257)));
    assert!(matches!(&refused, Reply::Failed(why) if why.contains("257")), "{refused:?}");
    pair.undisturbed();
}

#[test]
fn many_outstanding_on_several_queue_pairs_both_ways() {
    const QPS: usize = 4;
    const SIZE: usize = 9001;
    const SLOTS: u64 = 64;
    const COUNT: u64 = 512;
    let (mut a, mut b) = (Peer::start(), Peer::start());
    let len = SIZE * SLOTS as usize;
    let ends: Vec<_> = (0..QPS).map(|_| connect(&mut a, &mut b, Connection::default())).collect();
    let mut checks = Vec::new();
    // Each queue pair has its own direction and operation. A peer runs its commands in sequence, so the two peers
    // work at the same time.
    for (i, (left, right)) in ends.iter().enumerate() {
        let seed = 50 + i as u64;
        let (there, here) = (b.register(len, seed), a.register(len, seed + 100));
        let (from_b, from_a) = (a.register_zeroes(len), b.register_zeroes(len));
        let traffic = |verb, region: &Region| Traffic {
            verb,
            region: region.id,
            size: SIZE,
            count: COUNT,
            depth: SLOTS,
            slots: SLOTS,
        };
        a.tell(&Command::Run(*left, traffic(Verb::Read(there.place), &from_b)));
        b.tell(&Command::Run(*right, traffic(Verb::Read(here.place), &from_a)));
        a.ran(COUNT);
        b.ran(COUNT);
        let (to_b, to_a) = (b.register_zeroes(len), a.register_zeroes(len));
        a.tell(&Command::Run(*left, traffic(Verb::Write(to_b.place, None), &here)));
        b.tell(&Command::Run(*right, traffic(Verb::Write(to_a.place, None), &there)));
        a.ran(COUNT);
        b.ran(COUNT);
        checks.push((seed, from_b, from_a, to_b, to_a));
    }
    for (seed, from_b, from_a, to_b, to_a) in checks {
        a.check(from_b.all(), seed, 0);
        a.check(to_a.all(), seed, 0);
        b.check(from_a.all(), seed + 100, 0);
        b.check(to_b.all(), seed + 100, 0);
    }
    for peer in [&mut a, &mut b] {
        let counters = peer.counters();
        assert_eq!(counters["retry_exceeded_err"], 0);
        assert!(counters["rx_read_requests"] >= QPS as u64 * COUNT, "{counters:?}");
        assert!(counters["rx_write_requests"] >= QPS as u64 * COUNT, "{counters:?}");
    }
}

/// All sizes and operations over a link that both ends impair with these rules, each with its own seed. Returns the
/// sums of both ends' counters.
fn spoiled(rules: &[&str], seed: u64, ends: impl Fn(usize, &Opening) -> Peer) -> BTreeMap<String, u64> {
    println!("{rules:?} with seeds {seed} and {}", seed + 1);
    let open = |which: usize| {
        let faults = rules.iter().map(|r| (*r).to_owned()).collect();
        ends(which, &Opening { faults, fault_seed: seed + which as u64, ..Opening::default() })
    };
    // 33 ms: the last packet of a message may be lost, and only the timeout reveals it.
    let options = Connection { mtu: Some(1024), timeout: 13, ..Connection::default() };
    let mut pair = Pair::between(open(0), open(1), options);
    every_size(&mut pair, 1024);
    let mut sums = pair.a.counters();
    for (name, value) in pair.b.counters() {
        *sums.entry(name).or_default() += value;
    }
    println!("{sums:?}");
    assert_eq!(sums["retry_exceeded_err"], 0);
    sums
}

/// Peers at addresses of their own.
fn over_ipv4(_: usize, opening: &Opening) -> Peer {
    Peer::open(&Opening { address: Some(rnic_tests::fresh_address()), ..opening.clone() })
}

#[test]
fn with_little_loss() {
    let counters = spoiled(&["tx drop p=0.001"], 11, over_ipv4);
    assert!(counters["retransmitted_pkts"] > 0);
}

#[test]
fn with_much_loss() {
    let counters = spoiled(&["tx drop p=0.05"], 12, over_ipv4);
    assert!(counters["retransmitted_pkts"] > 50);
    assert!(counters["out_of_seq_request"] > 0 && counters["rcvd_seq_err"] > 0);
}

#[test]
fn with_duplicates() {
    let counters = spoiled(&["tx dup p=0.05"], 13, over_ipv4);
    assert!(counters["duplicate_request"] > 0);
}

#[test]
fn with_reordering() {
    let counters = spoiled(&["tx reorder 3 p=0.02"], 14, over_ipv4);
    assert!(counters["out_of_seq_request"] > 0);
}

#[test]
fn with_damaged_packets() {
    let counters = spoiled(&["tx corrupt payload p=0.01", "tx corrupt header p=0.01"], 15, over_ipv4);
    assert!(counters["dropped_bad_icrc"] > 0 && counters["retransmitted_pkts"] > 0);
}

#[test]
fn with_everything_at_once_over_both_families() {
    let rules =
        ["tx drop p=0.02", "rx drop p=0.02", "tx dup p=0.02", "tx reorder 4 p=0.01", "tx delay 1ms p=0.01"];
    let counters = spoiled(&rules, 16, over_ipv4);
    assert!(counters["retransmitted_pkts"] > 0 && counters["duplicate_request"] > 0);
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return rnic_tests::skipped(&why),
    };
    let counters = spoiled(&rules, 18, |which, opening| namespace.peer(which, opening));
    assert!(counters["retransmitted_pkts"] > 0 && counters["duplicate_request"] > 0);
}
