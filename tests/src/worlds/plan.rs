//! The content of a world and its events: everything derives from a seed, and can be saved and run again.

use super::fabric::{self, FabricPlan};
use super::rng::Rng;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A world: its devices, its connections, and the script of its programs.
///
/// An [`Action`] carries all its randomness in its `salt`, and does nothing if it is impossible at its time. Any
/// part of a script is therefore a valid script, which shrinking requires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The seed of keys and of the randomness of faults.
    pub seed: u64,
    /// The devices.
    pub hosts: Vec<HostPlan>,
    /// The connections, and pairs of datagram queue pairs.
    pub conns: Vec<ConnPlan>,
    /// The actions, in order.
    pub script: Vec<Action>,
    /// What is between the devices; `None` for a cable from each to each.
    #[serde(default)]
    pub fabric: Option<FabricPlan>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Latency of packets to the device, in nanoseconds.
    pub latency: u64,
    /// The largest path MTU, in bytes.
    pub mtu: u32,
    /// Its link, in the syntax of [`rnic::link::LinkConfig`].
    pub link: String,
    /// Congestion control, in the syntax of [`rnic::cc::Algorithm`].
    pub cc: String,
    /// Fault rules from the start.
    pub faults: Vec<String>,
    /// Entries of its completion queue; 0 for as many as may be needed.
    pub cqe: u32,
    /// Its program polls for completions only occasionally.
    pub slow: bool,
    /// It does not identify itself as rnic.
    pub foreign: bool,
    /// Its queue pairs repeat only what was lost, towards others that do so, too.
    #[serde(default)]
    pub selective: bool,
    /// Number of receives in its shared receive queue.
    pub srq: u32,
    /// When it is restarted, it comes up at the same address, with the same UDP port.
    #[serde(default)]
    pub keeps_address: bool,
    /// Maximum number of bytes in flight to each peer; 0 for as many as a stock buffer holds.
    #[serde(default)]
    pub window: u32,
}

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// Extended reliable connection: side 0 sends, side 1 receives.
    Xrc,
}

impl Service {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }

    /// Whether lost packets are retransmitted.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnPlan {
    /// Its service.
    pub service: Service,
    /// Its devices, by number.
    pub hosts: [usize; 2],
    /// The path MTU, in bytes.
    pub mtu: u32,
    /// `timeout`.
    pub timeout: u8,
    /// `retry_cnt`.
    pub retry_cnt: u8,
    /// `rnr_retry`.
    pub rnr_retry: u8,
    /// `min_rnr_timer`.
    pub rnr_timer: u8,
    /// `max_rd_atomic` and `max_dest_rd_atomic`.
    pub rd_atomic: u8,
    /// The first PSN of each side.
    pub psn: [u32; 2],
    /// Capacity of the send queue.
    pub sends: u32,
    /// Capacity of the receive queue.
    pub recvs: u32,
    /// Whether each side receives through the shared receive queue of its device.
    pub srq: [bool; 2],
    /// Whether all sends of each side are signalled.
    pub sig_all: [bool; 2],
    /// Whether each side posts receives only when its script does.
    pub lazy: [bool; 2],
    /// Length of the longest message, and of the memory that a peer may access, in bytes.
    pub longest: usize,
    /// Whether its memory windows are of type 1.
    pub type1: bool,
    /// Whether it is first set up in the middle of the script, when others send.
    #[serde(default)]
    pub late: bool,
}

impl ConnPlan {
    /// The acknowledgement timeout; `None` if what is lost is never sent again.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout > 0).then(|| Duration::from_nanos(4096 << self.timeout))
    }
}

/// An action of a program, or an event that affects it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Nanoseconds to wait before it.
    pub after: u32,
    /// The connection.
    pub conn: usize,
    /// The side.
    pub side: usize,
    /// Number of repetitions.
    pub times: u32,
    /// The action.
    pub what: What,
    /// The source of sizes, places and flags.
    pub salt: u64,
}

/// The kind of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum What {
    /// Post a SEND.
    Send,
    /// Post a SEND with immediate data.
    SendImm,
    /// Post a SEND that invalidates the peer's window.
    SendInv,
    /// Post an RDMA WRITE.
    Write,
    /// Post an RDMA WRITE with immediate data.
    WriteImm,
    /// Post an RDMA READ.
    Read,
    /// Post a FetchAdd to a word shared by several connections.
    SharedAdd,
    /// Post a FetchAdd to a word of this connection.
    FetchAdd,
    /// Post a CmpSwap to a word of this connection.
    CompareSwap,
    /// Post an ATOMIC_WRITE.
    AtomicWrite,
    /// Post a FLUSH.
    Flush,
    /// Post a BIND_MW.
    Bind,
    /// Post a LOCAL_INV of a window.
    LocalInv,
    /// Post a request with a key that does not exist.
    WrongKey,
    /// Post a request for one byte more than the region has.
    Beyond,
    /// Post a request with the key of a region in another protection domain.
    OtherDomain,
    /// Post a request with a previous key of the window.
    StaleWindow,
    /// Post an atomic to a misaligned address.
    Misaligned,
    /// Post a request with a local key that does not exist.
    WrongLocalKey,
    /// Post a datagram longer than the path MTU.
    TooLong,
    /// Post receives.
    Recv,
    /// Post a receive that is too short.
    ShortRecv,
    /// Poll for completions.
    Poll,
    /// Move the queue pair to ERR.
    Break,
    /// Move it to SQD, and back.
    Drain,
    /// Set up the connection again if it failed.
    Recover,
    /// Take the connection down in any state, and set it up again.
    Renew,
    /// The same without ERR: outstanding work requests end without completions.
    Abrupt,
    /// Destroy the queue pair, so that its peer gets no answers.
    Vanish,
    /// Deregister the memory that the peer accesses.
    Deregister,
    /// Register it again without the right to write.
    Restrict,
    /// Register it again as before.
    Reregister,
    /// Pull the cable for a while.
    Unplug,
    /// Let the device fail.
    Fatal,
    /// Remove the device and start another in its place.
    Restart,
    /// Let a forger send.
    Forge,
    /// Add a fault to the link for a while.
    Fault,
    /// Compare all memory with its expected content.
    Check,
}

/// Fault rules that devices may get.
const FAULTS: &[&str] = &[
    "rx p=0.01 drop",
    "rx p=0.05 drop",
    "tx p=0.002 drop",
    "tx p=0.02 drop",
    "tx data p=0.1 drop",
    "rx ack p=0.3 drop",
    "rx nak p=0.5 drop",
    "rx rnr p=0.3 drop",
    "rx atomic p=0.2 drop",
    "rx read.resp.middle p=0.1 drop",
    "tx p=0.05 dup 2",
    "rx p=0.2 dup 1",
    "rx p=0.05 reorder 2",
    "tx p=0.02 reorder 5",
    "rx p=0.1 delay 20us +-20us",
    "tx p=0.02 delay 2ms +-1ms",
    "rx p=0.02 corrupt payload",
    "tx p=0.02 corrupt header",
    "rx p=0.01 corrupt icrc",
    "rx p=0.1 mark ce",
    "tx every=97 drop",
    "rx nth=40 drop",
    "rx data psn=#5 drop",
    "rx size>1000 drop from 200us for 400us",
    "tx size>300 drop from 100us for 5ms",
    "tx drop from 300us for 1ms",
];

/// Faults that cause neither loss nor reordering.
const HARMLESS: &[&str] = &["rx p=0.1 mark ce"];

/// A fault rule, selected by a number.
pub(super) fn fault(number: u64) -> &'static str {
    FAULTS[(number % FAULTS.len() as u64) as usize]
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let lossless = rng.percent(25);
        let mtu = *rng.pick(&[256, 256, 512, 1024, 1024, 2048, 4096]);
        let (link, cc) = link(&mut rng, lossless);
        let cc = if cc.is_empty() { String::new() } else { cc.to_owned() };
        let mut hosts: Vec<HostPlan> = (0..*rng.weighted(&[(5, 2), (3, 3), (1, 4), (1, 6)]))
            .map(|_| host(&mut rng, lossless, mtu, link, &cc))
            .collect();
        let conns: Vec<ConnPlan> = (0..*rng.weighted(&[(3, 1), (4, 2), (3, 4), (1, 8)]))
            .map(|_| conn(&mut rng, lossless, mtu, hosts.len()))
            .collect();
        let script = script(&mut rng, &conns);
        if rng.percent(12) {
            // So small that it is often full.
            hosts.iter_mut().for_each(|host| host.window = rng.between(1_000, 40_000) as u32);
        }
        let mut plan = Self { seed, hosts, conns, script, fabric: None };
        plan.select();
        plan.join();
        plan
    }

    /// Has most devices use selective repeat, in a quarter of the worlds.
    fn select(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x5e1e_c7ed);
        if rng.percent(25) {
            self.hosts.iter_mut().for_each(|host| host.selective = rng.percent(90));
        }
    }

    /// The timeouts that a requester of a connection waits for before it gives up on a silent peer. With selective repeat there are
    /// shorter waits before, each twice as long as the last and free of charge: less than two timeouts together.
    pub(super) fn waits(&self, conn: &ConnPlan) -> u32 {
        let early = conn.hosts.iter().any(|host| self.hosts.get(*host).is_some_and(|host| host.selective));
        u32::from(conn.retry_cnt) + if early { 3 } else { 1 }
    }

    /// Joins the devices by a fabric, in some of the worlds without emulated ports.
    fn join(&mut self) {
        if self.hosts.iter().any(|host| !host.link.is_empty()) {
            return;
        }
        let marks = self.hosts.iter().any(|host| !host.cc.is_empty());
        self.fabric = FabricPlan::new(self.seed, self.is_lossy(), marks);
        if self.fabric.is_some() {
            for host in &mut self.hosts {
                // A fabric has as many hosts as a world, and a device that is restarted is at the same.
                (host.latency, host.keeps_address) = (fabric::LATENCY, true);
            }
        }
    }

    /// Whether packets can be lost or overtaken without a cable being pulled.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        let drops = |link: &str| link.contains("rate=") && !link.contains("ib-credits");
        self.hosts.iter().any(|host| {
            drops(&host.link) || host.faults.iter().any(|rule| !HARMLESS.contains(&rule.as_str()))
        }) || self.script.iter().any(|action| action.what == What::Fault)
            || self.fabric.as_ref().is_some_and(|fabric| fabric.lossy)
    }
}

/// A link and a congestion control, in configuration syntax.
fn link(rng: &mut Rng, lossless: bool) -> (&'static str, &'static str) {
    if lossless {
        return *rng.weighted(&[(6, ("", "")), (2, ("ib-credits", "")), (1, ("", "dcqcn"))]);
    }
    *rng.weighted(&[
        (10, ("", "")),
        (3, ("ib-credits", "")),
        (2, ("ethernet:rate=10Gb/s,buffer=64KB", "")),
        (2, ("ethernet:rate=5Gb/s,buffer=200KB,kmin=5000,kmax=50000,pmax=0.1", "dcqcn:preset=laptop")),
        (2, ("ethernet:rate=5Gb/s,pfc=0,buffer=400KB", "")),
        (1, ("ib-credits:rate=10Gb/s", "")),
        (1, ("ethernet:rate=10Gb/s,kmin=5000,kmax=50000,pmax=0.1", "dctcp")),
        (1, ("", "timely")),
        (1, ("", "swift:base_target=30")),
        (1, ("ethernet:rate=10Gb/s,kmin=5000,kmax=50000,pmax=0.1", "nscc:rtt=30")),
        (1, ("ethernet:rate=10Gb/s,kmin=5000,kmax=50000,pmax=0.1", "ibcc")),
        (2, ("ethernet:rate=10Gb/s", "hpcc:rtt=30")),
    ])
}

fn host(rng: &mut Rng, lossless: bool, mtu: u32, link: &str, cc: &str) -> HostPlan {
    let faults = if lossless { 0 } else { rng.between(0, 3) };
    HostPlan {
        latency: *rng.pick(&[200, 1_000, 1_000, 3_000, 10_000, 50_000]),
        mtu: if rng.percent(70) { mtu } else { 4096 },
        link: link.to_owned(),
        cc: cc.to_owned(),
        faults: (0..faults).map(|_| (*rng.pick(FAULTS)).to_owned()).collect(),
        cqe: if rng.percent(4) { rng.between(2, 40) as u32 } else { 0 },
        slow: rng.percent(10),
        foreign: rng.percent(5),
        selective: false,
        srq: *rng.pick(&[2, 8, 32]),
        keeps_address: rng.percent(60),
        window: 0,
    }
}

fn conn(rng: &mut Rng, lossless: bool, mtu: u32, hosts: usize) -> ConnPlan {
    let service = *rng.weighted(&[(12, Service::Rc), (2, Service::Uc), (2, Service::Ud), (3, Service::Xrc)]);
    let here = rng.size(0, hosts - 1);
    // Occasionally a device is connected to itself.
    let there = if rng.percent(5) { here } else { (here + rng.size(1, hosts - 1)) % hosts };
    let psn = |rng: &mut Rng| match rng.below(4) {
        0 => 0xff_ffff - rng.below(300) as u32,
        1 => 0x7f_ffff - rng.below(300) as u32,
        2 => rng.below(3) as u32,
        _ => rng.below(1 << 24) as u32,
    };
    let longest = match rng.below(20) {
        0 => 65_536,
        1..5 => 16_384,
        5..10 => mtu as usize * 6,
        _ => mtu as usize * 3,
    };
    let longest = if service == Service::Ud { mtu as usize } else { longest };
    ConnPlan {
        service,
        hosts: [here, there],
        mtu,
        // If nothing is lost, nothing may time out: four times the longest round trip, and 100 us for queues.
        timeout: if lossless { rng.between(13, 16) as u8 } else { *rng.pick(&[5, 7, 8, 9, 10, 12, 14, 0]) },
        retry_cnt: rng.between(0, 7) as u8,
        rnr_retry: *rng.weighted(&[(5, 7), (1, 0), (1, 1), (2, 3), (1, 6)]),
        rnr_timer: *rng.pick(&[1, 1, 2, 5, 8, 12, 31]),
        rd_atomic: *rng.pick(&[1, 2, 4, 16]),
        psn: [psn(rng), psn(rng)],
        sends: *rng.pick(&[1, 2, 8, 16, 64]),
        recvs: *rng.pick(&[1, 3, 16, 64]),
        srq: [rng.percent(20), rng.percent(20)],
        sig_all: [rng.percent(20), rng.percent(20)],
        lazy: [rng.percent(15), rng.percent(15)],
        longest,
        type1: rng.percent(40),
        late: rng.percent(25),
    }
}

/// The operations of programs on each service, with weights.
const RELIABLE: &[(u32, What)] = &[
    (22, What::Send),
    (8, What::SendImm),
    (6, What::SendInv),
    (24, What::Write),
    (8, What::WriteImm),
    (16, What::Read),
    (8, What::SharedAdd),
    (4, What::FetchAdd),
    (5, What::CompareSwap),
    (4, What::AtomicWrite),
    (3, What::Flush),
    (5, What::Bind),
    (2, What::LocalInv),
];

const UNRELIABLE: &[(u32, What)] =
    &[(22, What::Send), (8, What::SendImm), (20, What::Write), (10, What::WriteImm)];

const DATAGRAM: &[(u32, What)] = &[(3, What::Send), (1, What::SendImm)];

/// Other events, with weights.
const ELSE: &[(u32, What)] = &[
    (60, What::Recv),
    (60, What::Poll),
    (60, What::Recover),
    (10, What::Check),
    (6, What::Drain),
    (4, What::Break),
    (5, What::Renew),
    (3, What::Abrupt),
    (2, What::Vanish),
    (3, What::WrongKey),
    (3, What::Beyond),
    (2, What::OtherDomain),
    (6, What::StaleWindow),
    (2, What::Misaligned),
    (3, What::WrongLocalKey),
    (2, What::TooLong),
    (3, What::ShortRecv),
    (3, What::Deregister),
    (2, What::Restrict),
    (4, What::Reregister),
    (2, What::Unplug),
    (1, What::Fatal),
    (2, What::Restart),
];

/// How often a forger acts in a world that has one, in percent of the actions.
const FORGED: u64 = 3;

fn script(rng: &mut Rng, conns: &[ConnPlan]) -> Vec<Action> {
    // Some programs cause no failures: long runs without a failure reach other situations.
    let troubled = rng.percent(75);
    let hurried = rng.percent(50);
    let forged = if rng.percent(30) { FORGED } else { 0 };
    let count = rng.between(900, 1900);
    (0..count)
        .map(|_| {
            let conn = rng.size(0, conns.len() - 1);
            let plan = &conns[conn];
            let work = rng.percent(80);
            let what = if work {
                *rng.weighted(match plan.service {
                    Service::Rc | Service::Xrc => RELIABLE,
                    Service::Uc => UNRELIABLE,
                    Service::Ud => DATAGRAM,
                })
            } else {
                let usual = if troubled { ELSE } else { &ELSE[..5] };
                *rng.weighted(usual)
            };
            let after = match rng.below(20) {
                0 => rng.below(300_000),
                1..4 => rng.below(30_000),
                4..10 => rng.below(2_000),
                _ if hurried => 0,
                _ => rng.below(5_000),
            };
            let side = if plan.service == Service::Xrc && work { 0 } else { rng.size(0, 1) };
            let times = if work && rng.percent(30) { rng.between(2, 8) as u32 } else { 1 };
            if rng.percent(forged) {
                let (what, times) = (What::Forge, rng.between(1, 30) as u32);
                return Action {
                    after: after as u32,
                    conn,
                    side: rng.size(0, 1),
                    times,
                    what,
                    salt: rng.word() >> 16,
                };
            }
            Action { after: after as u32, conn, side, times, what, salt: rng.word() >> 16 }
        })
        .collect()
}
