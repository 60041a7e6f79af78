//! A ticker that sends to a multicast group: datagrams, their senders, joining, answering and leaving.
//!
//! ```text
//! cargo run -p rnic-examples --bin multicast           a ticker and two listeners, each in its own process
//! multicast listen GROUP NAME [TICKS]                  joins, and leaves after TICKS ticks or at the end
//! multicast ticker GROUP LISTENERS                     sends each tick after all joined listeners answered the previous one
//! ```
//!
//! The ticker does not know its listeners: it sends each tick once, to the group, and every port in the group
//! receives a copy. Each datagram is preceded by the network header that it arrived with (GRH), which identifies
//! the sender. Listeners use it to answer. The answers let the ticker say goodbye to every listener with a unicast
//! datagram, so a listener that left the group receives that one but none of the preceding ticks.
//!
//! The group uses IPv4. On a single host it needs no route and no privileges; between hosts it needs a switch that
//! floods or supports IGMP.

use rnic::{
    Access, AddressHandle, AddressVector, CompletionQueue, Device, Gather, Gid, MemoryRegion,
    ProtectionDomain, QKey, QpInit, Qpn, QueuePair, WcStatus, WorkCompletion,
};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The Q_Key of all members of the group: datagrams with another key are dropped.
const QKEY: QKey = QKey(0x1071_c4e5);
/// Length of the network header in front of a datagram (IBTA 11.4.1.2), and offsets of the IPv4 addresses in it.
const GRH: usize = 40;
const IPV4_TTL: usize = 28;
const IPV4_DESTINATION: usize = 36;
/// Buffer size of a receive in bytes, and the number of receives: more than there are datagrams.
const SLOT: usize = GRH + 64;
const SLOTS: usize = 32;

const TICKS: usize = 8;
const INTERVAL: Duration = Duration::from_millis(20);
/// Number of ticks after which the second listener of the demonstration leaves.
const EARLY: usize = 3;
/// How long to wait for anything: much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The listeners' answer, and the ticker's goodbye.
const HEARD: &str = "hears you";
const LEAVES: &str = "leaves";
const BYE: &str = "bye ";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => demonstrate(),
        ["listen", group, name] => listen(group.parse()?, name, usize::MAX),
        ["listen", group, name, ticks] => listen(group.parse()?, name, ticks.parse()?),
        ["ticker", group, listeners] => tick(group.parse()?, listeners.parse()?),
        _ => Err("multicast [listen GROUP NAME [TICKS] | ticker GROUP LISTENERS]".into()),
    }
}

/// A UD queue pair with posted receives.
struct Station {
    qp: QueuePair,
    sent: CompletionQueue,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    slots: MemoryRegion,
    device: Device,
}

/// A received datagram.
struct Datagram {
    text: String,
    /// The path back to the sender, from the network header.
    from: AddressHandle,
    /// The destination: our address, or a group.
    to: Ipv4Addr,
    ttl: u8,
    wc: WorkCompletion,
}

impl Station {
    fn new() -> Outcome<Self> {
        let device = rnic::open()?;
        let pd = device.alloc_pd()?;
        // Sends and receives have separate completion queues, so that waiting for a datagram is not interrupted by
        // sends.
        let (sent, cq) = (device.create_cq(128)?, device.create_cq(128)?);
        let qp = pd.create_qp(&QpInit::ud(&sent, &cq))?;
        qp.activate(QKEY)?;
        let slots = pd.register(SLOT * SLOTS, Access::LOCAL_WRITE)?;
        for slot in 0..SLOTS {
            qp.recv(slot as u64, slots.slice(slot * SLOT..(slot + 1) * SLOT)?)?;
        }
        Ok(Self { qp, sent, cq, pd, slots, device })
    }

    /// Waits for the next datagram, and posts its buffer again.
    fn receive(&self) -> Outcome<Datagram> {
        let wc = self.cq.wait(PATIENCE)?;
        if wc.status != WcStatus::Success {
            return Err(wc.status.explain().into());
        }
        let start = usize::try_from(wc.wr_id)? * SLOT;
        let mut bytes = vec![0; wc.byte_len as usize];
        self.slots.read_at(start, &mut bytes)?;
        let from = self.pd.create_ah_from_wc(&wc, &bytes)?;
        let to = bytes[IPV4_DESTINATION..].first_chunk::<4>().copied().unwrap_or_default().into();
        let text = String::from_utf8_lossy(&bytes[GRH..]).into_owned();
        self.qp.recv(wc.wr_id, self.slots.slice(start..start + SLOT)?)?;
        Ok(Datagram { text, from, to, ttl: bytes[IPV4_TTL], wc })
    }

    /// Sends a datagram and waits for its completion: destroying the queue pair would discard a datagram that is
    /// not sent yet.
    fn send(&self, text: &str, to: &AddressHandle, qpn: Qpn) -> Outcome<()> {
        self.qp.send_to(0, Gather::Inline(text.as_bytes().into()), to, qpn, QKEY)?;
        let wc = self.sent.wait(PATIENCE)?;
        if wc.status == WcStatus::Success { Ok(()) } else { Err(wc.status.explain().into()) }
    }
}

/// Sends the ticks, waits until all joined listeners answer each, and says goodbye to all that ever joined.
fn tick(group: Ipv4Addr, mut listeners: usize) -> Outcome<()> {
    let station = Station::new()?;
    let everybody = station.pd.create_ah(&AddressVector::new(Gid::from(group), 0))?;
    println!("ticking to {group} from {} qp {}", station.device.address(), station.qp.qpn());
    let mut known = Vec::new();
    for number in 1..=TICKS {
        station.send(&format!("tick {number} of {TICKS}"), &everybody, Qpn::MULTICAST)?;
        let mut leaving = 0;
        for _ in 0..listeners {
            let Datagram { text, from, wc, .. } = station.receive()?;
            if number == 1 || text.ends_with(LEAVES) {
                println!("{text:?}: from {} qp {}", from.ip(), wc.src_qpn);
            }
            leaving += usize::from(text.ends_with(LEAVES));
            if number == 1 {
                known.push((from, wc.src_qpn));
            }
        }
        listeners -= leaving;
        std::thread::sleep(INTERVAL);
    }
    for (way, qpn) in &known {
        station.send(&format!("{BYE}after {TICKS} ticks"), way, *qpn)?;
    }
    println!("said goodbye to {} listeners", known.len());
    Ok(())
}

/// Joins the group, leaves it after `ticks` ticks, and stays until the ticker says goodbye.
fn listen(group: Ipv4Addr, name: &str, ticks: usize) -> Outcome<()> {
    let station = Station::new()?;
    station.qp.attach_mcast(Gid::from(group))?;
    println!("joined {group} at {} qp {}", station.device.address(), station.qp.qpn());
    let mut heard = 0;
    loop {
        let Datagram { text, from, to, ttl, wc } = station.receive()?;
        println!(
            "{text:?}, {} bytes after the network header: from {} qp {}, to {to}, TTL {ttl}",
            text.len(),
            from.ip(),
            wc.src_qpn,
        );
        if text.starts_with(BYE) {
            break;
        }
        heard += 1;
        let mut answer = HEARD;
        if heard == ticks {
            station.qp.detach_mcast(Gid::from(group))?;
            println!("left the group");
            answer = LEAVES;
        }
        station.send(&format!("{name} {answer}"), &from, wc.src_qpn)?;
    }
    println!("{heard} ticks");
    Ok(())
}

/// A child process, killed if it is still running when dropped; a thread forwards its output.
struct Process {
    name: &'static str,
    child: Child,
    echo: Option<JoinHandle<Option<String>>>,
}

impl Process {
    /// Starts a process and waits for its first line: by then it has joined, or is about to tick.
    fn start(name: &'static str, arguments: &[&str]) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut process = Self { name, child, echo: None };
        let mut first = String::new();
        lines.read_line(&mut first)?;
        print!("{name:>6} | {first}");
        process.echo = Some(std::thread::spawn(move || echo(name, lines)));
        Ok(process)
    }

    /// Waits for the process to exit; returns its last line.
    fn finish(mut self) -> Outcome<String> {
        let last = self.echo.take().and_then(|thread| thread.join().ok()).flatten();
        if !self.child.wait()?.success() {
            return Err(format!("{} failed", self.name).into());
        }
        last.ok_or_else(|| format!("{} said nothing", self.name).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards lines; returns the last one.
fn echo(name: &str, lines: BufReader<ChildStdout>) -> Option<String> {
    let mut last = None;
    for line in lines.lines().map_while(Result::ok) {
        println!("{name:>6} | {line}");
        last = Some(line);
    }
    last
}

fn demonstrate() -> Outcome<()> {
    // A group that no other run uses at the same time, from the range for use inside a site (RFC 2365).
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 255, high, low).to_string();
    let early = EARLY.to_string();
    let stays = Process::start("ann", &["listen", &group, "ann"])?;
    let leaves = Process::start("ben", &["listen", &group, "ben", &early])?;
    let ticker = Process::start("ticker", &["ticker", &group, "2"])?;
    let told = ticker.finish()?;
    let (all, some) = (stays.finish()?, leaves.finish()?);
    let wanted = (format!("{TICKS} ticks"), format!("{EARLY} ticks"), "said goodbye to 2 listeners");
    if (&all, &some, told.as_str()) != (&wanted.0, &wanted.1, wanted.2) {
        return Err(format!("ann heard {all}, ben {some}, and the ticker {told}").into());
    }
    println!(
        "ok: {TICKS} datagrams sent; ann, who stayed, heard {all}, and ben, who left after {EARLY}, heard {some}"
    );
    Ok(())
}
