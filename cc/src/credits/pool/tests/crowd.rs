//! Many senders with backlog or bursts, one socket buffer, a slow reader, updates and data delayed and lost.

use super::*;
use proptest::prelude::*;

/// Packets and asks in flight to the receiver.
enum Up {
    Packet(u32),
    Ask(CreditMessage),
}

/// A sender, and its backlog.
struct Peer {
    member: Member,
    sender: CreditSender,
    /// Sizes of packets, in blocks.
    waiting: VecDeque<u32>,
    answers: bool,
    /// It neither reads nor sends.
    is_dead: bool,
    asks_again: Option<Instant>,
    delivered: u32,
    /// Since when a packet has been waiting, and the longest wait so far.
    waits_since: Option<Instant>,
    longest: Duration,
}

impl Peer {
    /// The size of the packet that it sends now.
    fn next_packet(&mut self, now: Instant) -> Option<u32> {
        let blocks = *self.waiting.front().filter(|_| !self.is_dead)?;
        if !self.sender.try_take(now, blocks) {
            return None;
        }
        self.waiting.pop_front();
        self.asks_again = None;
        if let Some(since) = self.waits_since.take() {
            self.longest = self.longest.max(now - since);
        }
        Some(blocks)
    }
}

/// Counts of the packets and messages sent.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    packets: u32,
    grants: u32,
    /// Asks for a packet that waits, and others.
    wants: u32,
    answers: u32,
}

struct Crowd {
    config: PoolConfig,
    pool: Pool,
    peers: Vec<Peer>,
    up: VecDeque<(Instant, usize, Up)>,
    down: VecDeque<(Instant, usize, CreditMessage)>,
    buffer: VecDeque<(usize, u32)>,
    occupied: u32,
    most: u32,
    said: Said,
    now: Instant,
    delay: Duration,
    loss: f64,
    lots: crate::random::Lots,
}

const STEP: Duration = us(10);
const PACKET: u32 = 9;

impl Crowd {
    fn new(config: PoolConfig, delay: Duration, seed: u64) -> Self {
        Self {
            config,
            pool: Pool::new(config).expect("large enough"),
            peers: Vec::new(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            buffer: VecDeque::new(),
            occupied: 0,
            most: 0,
            said: Said::default(),
            now: Instant::EPOCH,
            delay,
            loss: 0.0,
            lots: crate::random::Lots::new(seed),
        }
    }

    fn join(&mut self, waiting: impl IntoIterator<Item = u32>) -> usize {
        self.peers.push(Peer {
            member: self.pool.join(self.now, lane()),
            sender: CreditSender::new(self.config.lease, Duration::ZERO),
            waiting: waiting.into_iter().collect(),
            answers: true,
            is_dead: false,
            asks_again: None,
            delivered: 0,
            waits_since: None,
            longest: Duration::ZERO,
        });
        self.peers.len() - 1
    }

    /// When something sent now arrives: sometimes a step or two late, and in order.
    fn arrival(&mut self, last: Option<Instant>) -> Instant {
        let mut at = self.now + self.delay;
        while self.loss > 0.0 && self.lots.happens(0.3) {
            at += STEP;
        }
        at.max(last.unwrap_or(at))
    }

    fn send(&mut self, n: usize, up: Up) {
        match &up {
            Up::Ask(ask) if ask.want > 0 => self.said.wants += 1,
            Up::Ask(_) => self.said.answers += 1,
            Up::Packet(_) => {}
        }
        if self.lots.happens(self.loss) {
            if let Up::Packet(blocks) = up {
                self.peers[n].waiting.push_back(blocks);
            }
            return;
        }
        let at = self.arrival(self.up.back().map(|(at, ..)| *at));
        self.up.push_back((at, n, up));
    }

    fn receive(&mut self) {
        while let Some((_, n, up)) = self.up.pop_front_if(|(at, ..)| *at <= self.now) {
            let peer = &mut self.peers[n];
            match up {
                Up::Packet(blocks) => {
                    self.pool.handle_packet(self.now, peer.member, blocks).expect("never more than lent");
                    self.buffer.push_back((n, blocks));
                    self.occupied += blocks;
                    self.most = self.most.max(self.occupied);
                    peer.delivered += 1;
                    self.said.packets += 1;
                }
                Up::Ask(ask) => self.pool.handle_ask(self.now, peer.member, &ask),
            }
        }
        // One packet is read in each step.
        if let Some((n, blocks)) = self.buffer.pop_front() {
            self.occupied -= blocks;
            self.pool.release(self.peers[n].member, blocks);
        }
        while let Some((member, grant)) = self.pool.poll_grant(self.now) {
            self.said.grants += 1;
            if !self.lots.happens(self.loss) {
                let at = self.arrival(self.down.back().map(|(at, ..)| *at));
                self.down.push_back((at, member.index(), grant));
            }
        }
    }

    fn act(&mut self, n: usize) {
        let now = self.now;
        let mut has_sent = false;
        while let Some(blocks) = self.peers[n].next_packet(now) {
            self.send(n, Up::Packet(blocks));
            has_sent = true;
        }
        let peer = &mut self.peers[n];
        if !peer.is_dead && !peer.waiting.is_empty() && peer.asks_again.is_none_or(|at| at <= now) {
            peer.waits_since.get_or_insert(now);
            peer.asks_again = Some(now + us(2000));
            let want = peer.waiting.front().copied().unwrap_or(0);
            let ask = peer.sender.ask(now, lane(), want);
            self.send(n, Up::Ask(ask));
        } else if !peer.is_dead && has_sent && peer.sender.is_renewal_due(now) {
            let ask = peer.sender.ask(now, lane(), 0);
            self.send(n, Up::Ask(ask));
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        self.receive();
        while let Some((_, n, grant)) = self.down.pop_front_if(|(at, ..)| *at <= now) {
            let peer = &mut self.peers[n];
            if !peer.is_dead && peer.sender.handle_grant(now, &grant) && peer.answers {
                let answer = peer.sender.ask(now, lane(), 0);
                self.send(n, Up::Ask(answer));
            }
        }
        (0..self.peers.len()).for_each(|n| self.act(n));
    }

    /// Runs until every live peer has sent everything; returns whether that was within `limit`.
    fn run(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        let is_done = |c: &Self| c.up.is_empty() && c.peers.iter().all(|p| p.is_dead || p.waiting.is_empty());
        while !is_done(self) && self.now < end {
            self.step();
        }
        is_done(self)
    }
}

/// Packets of different sizes, the largest of the maximum size.
fn mixed(n: u32) -> impl Iterator<Item = u32> {
    (0..n).map(|n| n * 7 % 10 + 1)
}

/// Timers that are shorter than a round trip, and timers that are longer.
fn timers() -> impl Strategy<Value = PoolConfig> {
    let long = PoolConfig { idle: us(2000), lease: us(10_000), transit: us(10_000), ..config() };
    prop::sample::select(vec![config(), long])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The buffer is never overrun, everything arrives, and in the end no block is missing, whichever peers answer
    /// and whatever is lost.
    #[test]
    fn nothing_is_overrun_and_nobody_starves(
        backlog in prop::collection::vec((0..60u32, any::<bool>(), prop::bool::weighted(0.8)), 1..25),
        loss in prop::sample::select(vec![0.0, 0.05, 0.3]),
        config in timers(),
        seed in any::<u64>(),
    ) {
        let mut crowd = Crowd::new(config, us(400), seed);
        crowd.loss = loss;
        for (packets, is_mixed, answers) in &backlog {
            let n = if *is_mixed {
                crowd.join(mixed(*packets))
            } else {
                crowd.join(std::iter::repeat_n(PACKET, *packets as usize))
            };
            crowd.peers[n].answers = *answers;
        }
        let end = crowd.now + us(10_000_000);
        while crowd.peers.iter().any(|p| !p.waiting.is_empty()) {
            crowd.step();
            crowd.pool.audit();
            prop_assert!(crowd.most <= 100, "{} blocks in a buffer of 100", crowd.most);
            prop_assert!(crowd.now < end, "stuck: {:?}", crowd.peers.iter().map(|p| p.delivered).collect::<Vec<_>>());
        }
        // Packets in flight arrive, and lost blocks settle.
        for peer in 0..crowd.peers.len() {
            crowd.peers[peer].is_dead = true;
        }
        for _ in 0..3000 {
            crowd.step();
        }
        for n in 0..crowd.peers.len() {
            crowd.pool.leave(crowd.peers[n].member);
        }
        // One that wants everything has it.
        let last = crowd.pool.join(crowd.now, lane());
        let later = crowd.now + config.lease + config.transit;
        crowd.pool.handle_ask(later, last, &ask(1, 10, 0));
        while crowd.pool.poll_grant(later).is_some() {}
        crowd.pool.audit();
        prop_assert_eq!(crowd.pool.free(), 0);
    }

    /// A newcomer has a packet's worth two round trips after it reported that it waits, whatever the others hold and
    /// do.
    #[test]
    fn a_newcomer_waits_two_round_trips_for_peers_that_answer(
        others in prop::collection::vec((prop::sample::select(vec![0, 1, 3, 20, 10_000]), any::<bool>()), 1..10),
        before in 0..20_000u64,
        config in timers(),
    ) {
        let mut crowd = Crowd::new(config, us(400), 0);
        for (packets, is_mixed) in others {
            if is_mixed {
                crowd.join(mixed(packets));
            } else {
                crowd.join(std::iter::repeat_n(PACKET, packets as usize));
            }
        }
        let newcomer = crowd.join([]);
        let begin = crowd.now + us(before);
        while crowd.now < begin {
            crowd.step();
        }
        crowd.peers[newcomer].waiting.push_back(10);
        while !crowd.peers[newcomer].waiting.is_empty() {
            crowd.step();
            crowd.pool.audit();
            // Each of the four transits begins and ends with a step.
            prop_assert!(crowd.now <= begin + 4 * (us(400) + 2 * STEP), "waits for {:?}", crowd.now - begin);
        }
    }

    /// Dead peers keep a newcomer waiting for a lease and the time to settle, and no longer.
    #[test]
    fn a_newcomer_waits_for_the_dead_no_longer_than_it_takes_to_settle(
        dead in 1..10usize,
        before in 0..20_000u64,
        config in timers(),
    ) {
        let mut crowd = Crowd::new(config, us(400), 0);
        for n in 0..dead {
            crowd.join(std::iter::repeat_n(PACKET, 100 * n));
        }
        let newcomer = crowd.join([]);
        let begin = crowd.now + us(before);
        while crowd.now < begin {
            crowd.step();
        }
        for peer in &mut crowd.peers[..dead] {
            peer.is_dead = true;
        }
        crowd.peers[newcomer].waiting.push_back(10);
        let most = 2 * config.lease + config.transit + 2 * (us(400) + 2 * STEP);
        while !crowd.peers[newcomer].waiting.is_empty() {
            crowd.step();
            prop_assert!(crowd.now <= begin + most, "waits for {:?}", crowd.now - begin);
        }
    }
}

#[test]
fn those_with_backlog_share_the_buffer() {
    let mut crowd = Crowd::new(config(), us(400), 1);
    for _ in 0..20 {
        crowd.join(std::iter::repeat_n(PACKET, 1000));
    }
    assert!(!crowd.run(us(100_000)), "it is too much for that");
    let delivered: Vec<_> = crowd.peers.iter().map(|p| p.delivered).collect();
    let (least, most) = (delivered.iter().min(), delivered.iter().max());
    println!("each of 20 delivered between {least:?} and {most:?} packets in 100 ms");
    assert!(least > Some(&0) && most <= least.map(|l| 2 * l).as_ref(), "{delivered:?}");
}

/// The socket buffer that the system grants by default, in packets of 4 KiB; timers for processes that may not get to
/// run for a while.
fn ports() -> PoolConfig {
    PoolConfig {
        blocks: 44 * 66,
        packet_blocks: 66,
        lag: u32::MAX,
        idle: us(10_000),
        lease: us(400_000),
        transit: us(100_000),
        member_blocks: 0,
        reserve_blocks: 0,
        read_blocks: 0,
        newcomers: 0,
    }
}

/// Runs `peers` senders with `packets` packets of `blocks` each to one port, and returns the outcome.
fn exchange(peers: usize, packets: usize, blocks: u32) -> (Crowd, Duration) {
    let mut crowd = Crowd::new(ports(), us(50), 1);
    for _ in 0..peers {
        crowd.join(std::iter::repeat_n(blocks, packets));
    }
    let start = crowd.now;
    let is_done = crowd.run(us(10_000_000));
    crowd.pool.audit();
    let took = crowd.now - start;
    let said = crowd.said;
    let each = |n: u32| f64::from(n) / f64::from(said.packets);
    let longest = crowd.peers.iter().map(|p| p.longest).max().unwrap_or_default();
    println!(
        "{peers} peers, {packets} packets of {blocks} blocks each: {took:?}, a packet waits for {longest:?} at most, of \
         each packet {:.2} grants, {:.2} asks, {:.3} answers",
        each(said.grants),
        each(said.wants),
        each(said.answers),
    );
    assert!(is_done, "it does not finish");
    (crowd, took)
}

#[test]
fn few_updates_are_said_for_each_packet() {
    for peers in [1, 2, 8, 64] {
        for blocks in [66, 12] {
            let (crowd, _) = exchange(peers, 300, blocks);
            let said = crowd.said;
            assert!(said.grants <= 2 * said.packets && said.wants <= said.packets, "{said:?}");
            assert!(10 * said.answers <= said.packets, "{said:?}");
        }
    }
}

#[test]
fn the_first_message_of_64_peers_does_not_wait_for_timers() {
    let (crowd, took) = exchange(64, 1, 66);
    // 44 of them at once, 20 after a round trip or two.
    assert!(took < us(1000), "{took:?}, {:?}", crowd.said);
}

#[test]
fn a_thousand_lanes_take_turns_at_44_packets() {
    let (crowd, took) = exchange(1000, 5, 66);
    // The reader needs 10 us for each packet.
    assert!(took < 4 * us(50_000), "{took:?}, {:?}", crowd.said);
    let (_, took) = exchange(1000, 1, 12);
    assert!(took < us(100_000), "{took:?}");
}

#[test]
fn peers_that_speak_one_after_the_other_do_not_wait_for_those_that_spoke_before() {
    let mut crowd = Crowd::new(ports(), us(50), 1);
    for _ in 0..200 {
        crowd.join([]);
    }
    for n in 0..200 {
        crowd.peers[n].waiting.extend([66; 8]);
        assert!(crowd.run(us(5000)), "peer {n} waits");
    }
    let longest = crowd.peers.iter().map(|p| p.longest).max();
    println!("200 peers, one after the other: a packet waits for {longest:?} at most; {:?}", crowd.said);
    assert!(longest <= Some(us(4 * 50 + 80)));
}

#[test]
fn one_that_sends_much_has_the_pool_for_itself_soon_after_others_fell_silent() {
    let (mut crowd, _) = exchange(64, 1, 66);
    let start = crowd.now;
    crowd.peers[0].waiting.extend(vec![66; 5000]);
    assert!(crowd.run(us(1_000_000)));
    let took = crowd.now - start;
    println!("5000 packets of one of 64 peers: {took:?}, {:?}", crowd.said);
    // The reader needs 10 us for each. The others' leftovers come back within two periods.
    assert!(took < us(50_000 + 2 * 10_000), "{took:?}");
}
