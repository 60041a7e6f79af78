use super::*;
use crate::link::{Direction, LinkConfig, wire_bytes};
use cc::pfc::Quanta;
use cc::{Algorithm, Rate};
use qp::Mtu;

mod lossless;
mod marks;
mod sharing;

/// A packet of this length takes 1000 bytes on Ethernet over IPv4.
const KILOBYTE: usize = 1000 - 66;

const NANOSECOND: Duration = Duration::from_nanos(1);
const MICROSECOND: Duration = Duration::from_micros(1);

/// Not ECN-capable, and ECN-capable, both of priority 0.
const PLAIN: u8 = 0;
const ECT: u8 = 2;

const fn of_priority(priority: u8) -> u8 {
    priority << 5
}

fn frame(host: u8, tos: u8, len: usize) -> Frame {
    let ip = IpHeader { src: [10, 0, 0, host].into(), tos, ..IpHeader::to([10, 0, 0, 99].into()) };
    Frame::new(Direction::Rx, ip, vec![0x0a; len])
}

/// An emulation in virtual time.
struct Bench {
    link: Emulation,
    start: Instant,
    now: Duration,
    /// The frames that came out, and when.
    out: Vec<(Duration, Frame)>,
}

impl Bench {
    fn new(link: &str) -> Self {
        Self::with(link, "off", 1)
    }

    fn with(link: &str, cc: &str, seed: u64) -> Self {
        let config: LinkConfig = link.parse().expect("a link");
        let cc: Algorithm = cc.parse().expect("an algorithm");
        let profile = config.at(&cc, Mtu::B4096).expect("in order");
        let start = Instant::EPOCH;
        let link = Emulation::new(&profile, start, seed).expect("something to emulate");
        Self { link, start, now: Duration::ZERO, out: Vec::new() }
    }

    fn arrive(&mut self, frame: Frame) {
        self.arrive_at(None, frame);
    }

    /// Takes a packet that arrived at `arrived`, if that is known.
    fn arrive_at(&mut self, arrived: Option<Duration>, frame: Frame) {
        let Self { link, start, now, out } = self;
        link.handle(*start + *now, arrived.map(|at| *start + at), frame, &mut |f| out.push((*now, f)));
    }

    /// When the emulation has something to do, as the clock of a driver has it: in nanoseconds, and not before.
    fn due(&self) -> Option<Duration> {
        self.link.poll_timeout().map(|at| at.plus_picos(999) - self.start)
    }

    /// Lets time pass, and handles each timeout of the emulation.
    fn run_to(&mut self, end: Duration) {
        while let Some(due) = self.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.look();
            while self.link.poll_pause(self.start + self.now).is_some() {}
        }
        self.now = self.now.max(end);
    }

    fn look(&mut self) {
        let Self { link, start, now, out } = self;
        link.handle_timeout(*start + *now, &mut |f| out.push((*now, f)));
    }

    /// When frames that were not dropped came out, in nanoseconds.
    fn times(&self) -> Vec<u128> {
        let left = self.out.iter().filter(|(_, f)| f.fate == Fate::Pending);
        left.map(|(at, _)| at.as_nanos()).collect()
    }

    fn dropped(&self) -> usize {
        self.out.iter().filter(|(_, f)| f.fate != Fate::Pending).count()
    }
}

#[test]
fn packets_count_as_on_ethernet() {
    assert_eq!(wire_bytes(4096 + 16, false), 4096 + 16 + 66);
    assert_eq!(wire_bytes(0, true), 86);
    assert_eq!(wire_bytes(usize::MAX, true), u32::MAX);
    assert_eq!([0x00, 0x1f, 0x20, 0x68, 0xc2, 0xff].map(priority_of), [0, 0, 1, 3, 6, 7]);
}

#[test]
fn a_link_that_does_nothing_is_none() {
    let profile = LinkConfig::default().at(&Algorithm::Off, Mtu::B4096).expect("in order");
    assert!(Emulation::new(&profile, Instant::EPOCH, 0).is_none());
}

#[test]
fn packets_leave_when_their_last_byte_has_left_the_port() {
    // 1,000 bytes take 8,000 bits.
    for (rate, times) in
        [("10Gb/s", [800, 1600, 2400]), ("5Gb/s", [1600, 3200, 4800]), ("3Gb/s", [2667, 5334, 8000])]
    {
        let mut bench = Bench::new(&format!("rate={rate}"));
        for _ in 0..3 {
            bench.arrive(frame(1, PLAIN, KILOBYTE));
        }
        bench.run_to(MICROSECOND * 100);
        assert_eq!(bench.times(), times, "{rate}");
        // The port was idle: it begins when a packet arrives.
        bench.arrive(frame(1, PLAIN, KILOBYTE));
        bench.run_to(MICROSECOND * 200);
        assert_eq!(bench.times().last(), Some(&(100_000 + times[0])), "{rate}");
    }
}

#[test]
fn every_packet_leaves_an_800_gbps_port_at_its_picosecond() {
    let Bench { mut link, start, .. } = Bench::new("rate=800Gb/s");
    let lengths: Vec<usize> = (0..100).map(|n| 85 + 2 * (n * 7919 % 2069)).collect();
    for len in &lengths {
        link.handle(start, None, frame(1, PLAIN, *len), &mut |_| panic!("it takes time"));
    }
    let mut due = start;
    for len in lengths {
        due = due.plus_picos(10 * u128::from(wire_bytes(len, false)));
        assert_eq!(link.poll_timeout(), Some(due));
        let mut left = 0;
        link.handle_timeout(due, &mut |frame| left = frame.bytes.len());
        assert_eq!(left, len);
    }
}

#[test]
fn nothing_drifts_over_a_million_packets() {
    let mut bench = Bench::new("rate=3Gb/s");
    let rate = Rate::from_gbps(3);
    for n in 1..=1_000_000u64 {
        // Always two in the queue: the port never idles.
        if n == 1 {
            bench.arrive(frame(1, PLAIN, KILOBYTE));
        }
        bench.arrive(frame(1, PLAIN, KILOBYTE));
        bench.run_to(rate.time_for(1000 * n));
        assert_eq!(bench.out.len(), 1);
        let (at, _) = bench.out.pop().expect("one");
        assert_eq!(at, rate.time_for(1000 * n), "packet {n}");
    }
    assert_eq!(bench.link.stats().dequeued_bytes, 1_000_000_000);
}

#[test]
fn who_looks_late_finds_the_same() {
    let run = |looks: bool| {
        let mut bench = Bench::with("rate=8Gb/s,buffer=20KB,kmin=2000,kmax=9000,pmax=0.5", "off", 7);
        for burst in 0..50u32 {
            bench.run_to(MICROSECOND * (12 * burst));
            for _ in 0..1 + burst % 14 {
                bench.arrive(frame(1, ECT, KILOBYTE));
            }
            if looks {
                bench.run_to(MICROSECOND * (12 * burst + 11));
            } else {
                bench.now = MICROSECOND * (12 * burst + 11);
            }
        }
        bench.run_to(Duration::from_millis(10));
        let frames: Vec<_> = bench.out.into_iter().map(|(_, f)| (f.ip.tos, f.fate, f.notes)).collect();
        (frames, bench.link.stats())
    };
    let (prompt, late) = (run(true), run(false));
    assert_eq!(prompt, late);
    assert!(prompt.1.marked > 0 && prompt.1.dequeued_packets > 0, "{:?}", prompt.1);
}

#[test]
fn the_buffer_drops_at_its_tail_and_not_a_byte_before() {
    // Room for five packets, of which one is on the line.
    for (buffer, kept) in [(5000, 5), (4999, 4), (5999, 5)] {
        let mut bench = Bench::new(&format!("rate=8Gb/s,buffer={buffer}"));
        for _ in 0..10 {
            bench.arrive(frame(1, PLAIN, KILOBYTE));
        }
        assert_eq!((bench.dropped(), bench.link.stats().queue_bytes), (10 - kept, 1000 * kept as u64));
        let (_, dropped) = bench.out.last().expect("a drop");
        assert_eq!(dropped.fate, Fate::Dropped { by: "link".into() });
        assert_eq!(dropped.notes, ["link: dropped: buffer full"]);
        // A packet leaves, and at that instant there is room for another.
        bench.out.clear();
        bench.now = MICROSECOND - NANOSECOND;
        bench.arrive(frame(1, PLAIN, KILOBYTE));
        assert_eq!(bench.dropped(), 1);
        bench.now = MICROSECOND;
        bench.arrive(frame(1, PLAIN, KILOBYTE));
        assert_eq!((bench.dropped(), bench.times().len()), (1, 1));
        let stats = bench.link.stats();
        assert_eq!((stats.dropped, stats.queue_bytes_max), (11 - kept as u64, 1000 * kept as u64));
    }
}

#[test]
fn the_peak_of_a_queue_begins_with_what_stands_in_it() {
    let mut bench = Bench::new("rate=8Gb/s,buffer=5000");
    for _ in 0..3 {
        bench.arrive(frame(1, PLAIN, KILOBYTE));
    }
    assert_eq!(bench.link.take_queue_peak(), Some(3000));
    assert_eq!(bench.link.take_queue_peak(), Some(3000), "it is still there");
    bench.run_to(MICROSECOND * 5 / 2);
    assert_eq!(bench.link.take_queue_peak(), Some(3000), "it was there");
    assert_eq!(bench.link.take_queue_peak(), Some(1000), "two packets have left");
}

#[test]
fn a_cable_delays_and_keeps_the_order() {
    let mut bench = Bench::new("delay=10us");
    for n in 0..3u32 {
        bench.now = MICROSECOND * n;
        bench.arrive(frame(1, PLAIN, KILOBYTE + n as usize));
    }
    bench.run_to(MICROSECOND * 100);
    assert_eq!(bench.times(), [10_000, 11_000, 12_000]);
    assert!(bench.out.iter().is_sorted_by_key(|(_, f)| f.bytes.len()));
    // With a port behind it, the queue begins where the cable ends.
    let mut bench = Bench::new("delay=10us,rate=8Gb/s");
    bench.arrive(frame(1, PLAIN, KILOBYTE));
    bench.arrive(frame(1, PLAIN, KILOBYTE));
    assert_eq!(bench.link.stats().queue_bytes, 0);
    // A late look: packets that left meanwhile left on time.
    bench.now = MICROSECOND * 11 + NANOSECOND * 500;
    bench.look();
    assert_eq!((bench.out.len(), bench.link.stats().queue_bytes), (1, 1000));
    bench.run_to(MICROSECOND * 20);
    assert_eq!(bench.times(), [11_500, 12_000]);
}

#[test]
fn a_cable_holds_so_much_and_no_more() {
    let mut bench = Bench::new("delay=1s");
    let fits = MAX_ON_CABLE as usize / 4096;
    for _ in 0..fits + 2 {
        bench.arrive(frame(1, PLAIN, 4096));
    }
    assert_eq!((bench.dropped(), bench.link.stats().dropped), (2, 2));
    bench.run_to(Duration::from_secs(1));
    assert_eq!(bench.times().len(), fits);
    bench.arrive(frame(1, PLAIN, 4096));
    assert_eq!(bench.dropped(), 2);
}

#[test]
fn flow_control_does_not_stand_in_the_queue() {
    let mut bench = Bench::new("rate=1Mb/s,buffer=1MB,pfc=0");
    for _ in 0..10 {
        bench.arrive(frame(1, PLAIN, KILOBYTE));
    }
    for opcode in [0xbf, 0xc0, 0xc1, 0xc2, 0x81] {
        let mut packet = frame(1, PLAIN, 100);
        packet.bytes[0] = opcode;
        bench.arrive(packet);
    }
    let passed: Vec<u8> = bench.out.iter().map(|(_, f)| f.bytes[0]).collect();
    assert_eq!(passed, [0xc0, 0xc1]);
    // The cable is as long for them as for others.
    let mut bench = Bench::new("rate=1Mb/s,delay=5us");
    bench.arrive(frame(1, PLAIN, KILOBYTE));
    let mut packet = frame(1, PLAIN, 100);
    packet.bytes[0] = 0xc0;
    bench.arrive(packet);
    bench.run_to(MICROSECOND * 10);
    assert_eq!(bench.times(), [5_000]);
}

#[test]
fn time_that_goes_backwards_stands_still() {
    let mut bench = Bench::new("rate=8Gb/s");
    bench.now = MICROSECOND * 10;
    bench.arrive(frame(1, PLAIN, KILOBYTE));
    bench.now = MICROSECOND * 5;
    bench.arrive(frame(1, PLAIN, KILOBYTE));
    bench.run_to(MICROSECOND * 20);
    assert_eq!(bench.times(), [11_000, 12_000]);
}

#[test]
fn arrivals_are_told_where_credits_are_given_for_them() {
    let mut bench = Bench::new("ib-credits:rate=8Gb/s,buffer=5000");
    for _ in 0..6 {
        bench.arrive(frame(1, ECT, KILOBYTE));
    }
    let told: Vec<Entered> = std::iter::from_fn(|| bench.link.poll_entered()).collect();
    let first = Entered { ip: frame(1, ECT, KILOBYTE).ip, head: [0x0a; 8], len: KILOBYTE, dropped: false };
    assert_eq!(told, [first; 6], "senders with credit keep to the buffer");
    let mut ethernet = Bench::new("rate=8Gb/s");
    ethernet.arrive(frame(1, ECT, KILOBYTE));
    assert_eq!(ethernet.link.poll_entered(), None);
    // Without a poll, the list ends at its bound.
    for _ in 0..MAX_ENTERED + 5 {
        bench.arrive(frame(1, ECT, KILOBYTE));
    }
    assert_eq!(std::iter::from_fn(|| bench.link.poll_entered()).count(), MAX_ENTERED);
}

/// A stream at the rate of the port; the receiver reads 5 ms of it late: half of the packets at once.
fn read_late(stamped: bool) -> EmulationStats {
    let mut bench = Bench::new("rate=1Gb/s,buffer=100KB,kmin=5KB,kmax=5KB,pmax=1");
    // 8 us for each packet of 1,000 bytes.
    let at = |n: u32| MICROSECOND * 8 * n;
    for n in 0..625 {
        bench.now = at(n);
        bench.arrive(frame(1, ECT, KILOBYTE));
    }
    bench.now = at(1250);
    for n in 625..1250 {
        bench.arrive_at(stamped.then(|| at(n)), frame(1, ECT, KILOBYTE));
    }
    bench.look();
    bench.link.stats()
}

#[test]
fn packets_that_are_read_late_enter_the_queue_when_they_arrived() {
    let late = read_late(true);
    assert_eq!((late.dropped, late.marked, late.dequeued_packets), (0, 0, 1250));
    assert!(late.queue_bytes_max <= 2000, "{late:?}");
    let now = read_late(false);
    assert!(now.dropped > 500 && now.marked == 0, "as a burst they would not fit: {now:?}");
}

#[test]
fn stamps_of_the_future_and_out_of_order_do_no_harm() {
    let mut bench = Bench::new("rate=8Gb/s");
    bench.now = MICROSECOND * 10;
    for stamp in [5, 3, 50, 7].map(|us| MICROSECOND * us) {
        bench.arrive_at(Some(stamp), frame(1, PLAIN, KILOBYTE));
    }
    bench.run_to(MICROSECOND * 20);
    // Two that arrived after 5 us, and two after 10, which is now.
    assert_eq!(bench.times(), [10_000, 10_000, 11_000, 12_000]);
}
