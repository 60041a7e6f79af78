//! Selective repeat between complete devices, in virtual time: what a program sees is what it sees with go-back-N, and only what
//! was lost is sent again.
//!
//! Every failure names its seed; `RNIC_SEED=n cargo test -p rnic-tests --test selective` runs a single one.

use rnic::engine::PartnerSetup;
use rnic::sim::{DeviceSetup, Net};
use rnic::{
    Access, ConnectOptions, Device, Error, MemoryRegion, Mtu, Operation, RcEnd, SendFlags, SendWr, WcStatus,
};
use std::time::Duration;

/// A small generator with a fixed algorithm (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RNIC_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Two connected devices that lose packets in both directions.
struct Lab {
    net: Net,
    devices: [Device; 2],
    left: RcEnd,
    right: RcEnd,
}

impl Lab {
    fn new(seed: u64, selective: [bool; 2], loss: &str, mtu: Mtu) -> Result<Self, Error> {
        let net = Net::with_seed(seed);
        net.set_latency(Duration::from_micros(5));
        let device = |selective| {
            let partner = PartnerSetup::offering(selective);
            net.device_with(&DeviceSetup { partner, peer_window: Some(400_000), ..DeviceSetup::default() })
        };
        let devices = [device(selective[0])?, device(selective[1])?];
        let options = ConnectOptions { mtu: Some(mtu), timeout: 10, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&devices[0], &devices[1], &options)?;
        let lab = Self { net, devices, left, right };
        lab.meet()?;
        for device in &lab.devices {
            device.add_fault(&format!("tx p={loss} drop"))?;
        }
        Ok(lab)
    }

    /// The ports introduce themselves to each other, which takes a packet that is as long as their greetings.
    fn meet(&self) -> Result<(), Error> {
        let (here, there) = (Self::memory(&self.left, 1024)?, Self::memory(&self.right, 1024)?);
        let operation = Operation::Write { remote: there.remote(0), imm: None };
        self.left.qp.post_send(SendWr::new(0, operation, here.all()).flags(SendFlags::SIGNALED))?;
        assert_eq!(self.left.wait()?.status, WcStatus::Success);
        self.net.run_for(Duration::from_millis(1));
        Ok(())
    }

    fn memory(end: &RcEnd, len: usize) -> Result<MemoryRegion, Error> {
        end.pd().register(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)
    }

    /// Packets that were lost, and those that the left side sent again.
    fn lost_and_repeated(&self) -> (u64, u64) {
        let lost = self.devices.iter().flat_map(|device| device.faults()).map(|fault| fault.hits).sum();
        (lost, self.left.qp.counters().retransmitted_pkts)
    }
}

/// How a message gets from where it is to where its last byte is polled.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Write,
    Read,
}

/// A message is a slot of equal bytes. Whenever the last byte of a slot is that of a message, all the others are at least as new:
/// programs that poll the last byte rely on it. Messages overlap those before them. Returns how many packets were lost, and how
/// many were sent again; of READs, how many bytes of responses were sent for each thousand that were needed.
fn poll_last_bytes(seed: u64, selective: bool, way: Way) -> Result<(u64, u64), Error> {
    const SLOT: usize = 20_000;
    const MESSAGES: u8 = 120;
    let lab = Lab::new(seed, [selective; 2], "0.05", Mtu::B1024)?;
    let ends = if way == Way::Write { [&lab.left, &lab.right] } else { [&lab.right, &lab.left] };
    let (here, there) = (Lab::memory(ends[0], SLOT * 250)?, Lab::memory(ends[1], 2 * SLOT)?);
    let mut random = Random::new(seed);
    let mut expected = vec![0; 2 * SLOT];
    let mut ranges = Vec::new();
    let mut needed = 0;
    for number in 1..=MESSAGES {
        let len = 1 + random.below(SLOT as u64) as usize;
        let to = random.below((2 * SLOT - len) as u64) as usize;
        let from = usize::from(number) * SLOT;
        here.write_at(from, &vec![number; len])?;
        expected[to..to + len].fill(number);
        ranges.push((number, to..to + len));
        needed += len as u64;
        let (operation, local) = match way {
            Way::Write => (
                Operation::Write { remote: there.remote(to as u64), imm: None },
                here.slice(from..from + len)?,
            ),
            Way::Read => (Operation::Read { remote: here.remote(from as u64) }, there.slice(to..to + len)?),
        };
        let wr = SendWr::new(number.into(), operation, local);
        lab.left.qp.post_send(wr.flags(SendFlags::SIGNALED))?;
    }
    let (mut completed, mut looks) = (0, 0);
    while completed < MESSAGES.into() {
        assert!(lab.net.step(), "seed {seed}: {completed} of {MESSAGES} done");
        let now = there.to_vec()?;
        for (number, range) in &ranges {
            if now[range.end - 1] == *number {
                looks += 1;
                let old = now[range.clone()].iter().position(|byte| byte < number);
                assert_eq!(
                    old, None,
                    "seed {seed}: the last byte of message {number} is there, this one is not"
                );
            }
        }
        while let Some(wc) = lab.left.cq().poll_one() {
            completed += 1;
            assert_eq!((wc.wr_id, wc.status), (completed, WcStatus::Success), "seed {seed}");
        }
    }
    // Selective repeat takes so few steps for so many messages that most are seen once.
    assert!(looks > u64::from(MESSAGES) / 3, "the last bytes were seen {looks} times");
    assert!(there.to_vec()? == expected, "seed {seed}: messages that overlap");
    let (lost, repeated) = lab.lost_and_repeated();
    Ok((lost, if way == Way::Write { repeated } else { 1000 * lab.right.qp.counters().sent_bytes / needed }))
}

#[test]
fn a_last_byte_never_comes_before_the_rest() -> Result<(), Error> {
    let mut sums = [(0, 0); 2];
    for seed in seeds(6) {
        for (sum, selective) in sums.iter_mut().zip([false, true]) {
            let (lost, repeated) = poll_last_bytes(seed, selective, Way::Write)?;
            *sum = (sum.0 + lost, sum.1 + repeated);
        }
    }
    let [(_, back), (lost, selective)] = sums;
    assert!(lost > 100 && selective < 2 * lost, "{selective} packets sent again, {lost} lost");
    assert!(back > 3 * selective, "go-back-N: {back}, selective repeat: {selective}");
    Ok(())
}

#[test]
fn the_last_byte_of_a_read_never_comes_before_the_rest() -> Result<(), Error> {
    for seed in seeds(6) {
        let [back, selective] = [false, true].map(|selective| poll_last_bytes(seed, selective, Way::Read));
        let (back, selective) = (back?.1, selective?.1);
        // A packet in twenty is lost on the way there, and an answer in twenty on the way back.
        assert!(
            selective < 1250 && back > selective + 200,
            "seed {seed}: {back} with go-back-N, {selective}"
        );
    }
    Ok(())
}

/// Sends 2 MB at this loss. Returns the counters of both sides.
fn transfer(selective: [bool; 2], loss: &str) -> Result<[rnic::QpCounters; 2], Error> {
    const LEN: usize = 2_000_000;
    let lab = Lab::new(7, selective, loss, Mtu::B4096)?;
    let (here, there) = (Lab::memory(&lab.left, LEN)?, Lab::memory(&lab.right, LEN)?);
    here.write_at(0, &(0..LEN).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>())?;
    for _ in 0..5 {
        let operation = Operation::Write { remote: there.remote(0), imm: None };
        lab.left.qp.post_send(SendWr::new(1, operation, here.all()).flags(SendFlags::SIGNALED))?;
    }
    for _ in 0..5 {
        assert_eq!(lab.left.wait()?.status, WcStatus::Success);
    }
    assert!(here.to_vec()? == there.to_vec()?);
    Ok([lab.left.qp.counters(), lab.right.qp.counters()])
}

#[test]
fn it_takes_two_ports_that_offer_it() -> Result<(), Error> {
    let [left, right] = transfer([true, true], "0.02")?;
    assert!(right.held_pkts > 0 && right.sent_selective_acks > 0);
    assert!(left.rcvd_selective_acks > 0 && left.retransmitted_pkts > 0);
    for one in [[true, false], [false, true], [false, false]] {
        let [left, right] = transfer(one, "0.02")?;
        assert_eq!((right.held_pkts, right.sent_selective_acks, left.rcvd_selective_acks), (0, 0, 0));
        assert!(left.rcvd_seq_err > 0, "{one:?}: go-back-N");
    }
    Ok(())
}

#[test]
fn a_queue_pair_may_decline_it() -> Result<(), Error> {
    let lab = Lab::new(3, [true; 2], "0.02", Mtu::B1024)?;
    let cq = lab.devices[1].create_cq(10)?;
    let mut init = rnic::QpInit::rc(&cq, &cq);
    init.tuning.selective_repeat = false;
    let declines = lab.right.pd().create_qp(&init)?;
    let cq = lab.devices[0].create_cq(10)?;
    let sender = lab.left.pd().create_qp(&rnic::QpInit::rc(&cq, &cq))?;
    let options = ConnectOptions { mtu: Some(Mtu::B1024), timeout: 10, ..ConnectOptions::default() };
    sender.connect(&declines.address(), &options)?;
    declines.connect(&sender.address(), &options)?;
    let (here, there) = (Lab::memory(&lab.left, 1 << 20)?, Lab::memory(&lab.right, 1 << 20)?);
    let operation = Operation::Write { remote: there.remote(0), imm: None };
    sender.post_send(SendWr::new(1, operation, here.all()).flags(SendFlags::SIGNALED))?;
    let done = std::iter::from_fn(|| lab.net.step().then(|| cq.poll_one())).flatten().next();
    assert_eq!(done.map(|wc| wc.status), Some(WcStatus::Success));
    assert_eq!((declines.counters().held_pkts, sender.counters().rcvd_selective_acks), (0, 0));
    assert!(sender.counters().rcvd_seq_err > 0, "it was asked for by NAKs");
    Ok(())
}

/// No loss, nothing sent again, and nothing said that RoCEv2 does not know.
#[test]
fn without_loss_it_does_not_show() -> Result<(), Error> {
    let [left, right] = transfer([true, true], "0.0")?;
    assert_eq!((left.retransmitted_pkts, left.rcvd_selective_acks, right.held_pkts), (0, 0, 0));
    Ok(())
}
