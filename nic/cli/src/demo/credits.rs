//! Link credits: a slow receiver without them and with them.

use super::link::{counter, show_counters};
use super::messages::pattern;
use super::page::Page;
use super::{Args, Failure, Outcome, expect};
use rnic::cc::Rate;
use rnic::ladder::Ladder;
use rnic::link::{LinkConfig, Model};
use rnic::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpInit, QueuePair,
    WcStatus, WorkCompletion,
};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The default rate of the slow receiver: a message every 160 us, slower than any host sends.
const RECEIVER_RATE: Rate = Rate::from_mbps(200);

/// The size of a message in bytes: one packet of the largest path MTU.
const LEN: usize = 4096;

/// The number of messages, and that of a quick demo: many times the fifty that the socket buffer holds.
const MESSAGES: (u64, u64) = (3000, 800);

/// The size of the socket buffer in bytes: the default of Linux (`net.core.rmem_default`).
const RECV_BUFFER: usize = 212_992;

/// Longer than any step takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most packets of the ladder.
const RUNGS: usize = 14;

/// Runs the demo.
pub(super) fn tell(link: &LinkConfig, args: &Args, page: &Page, part: &mut &'static str) -> Outcome {
    let receiver = LinkConfig { receiver_rate: link.receiver_rate.or(Some(RECEIVER_RATE)), ..link.clone() };
    let sender = LinkConfig { receiver_rate: None, ..link.clone() };
    // The same port without credits, and without the settings that only those have.
    let without = LinkConfig {
        model: Model::Ethernet,
        rate: receiver.rate,
        buffer: receiver.buffer,
        delay: receiver.delay,
        receiver_rate: receiver.receiver_rate,
        ..LinkConfig::default()
    };
    let messages = if args.quick { MESSAGES.1 } else { MESSAGES.0 };
    let rate = receiver.receiver_rate.unwrap_or(RECEIVER_RATE);
    page.title("rnic demo: link credits between two RoCEv2 NICs in software on this host");

    *part = "'Without credits'";
    page.section(
        "1. Without credits",
        &format!(
            "A sender has {messages} messages of {LEN} bytes for a receiver that reads its socket at only {rate}. UC has no \
             acknowledgements and repeats nothing. The kernel drops packets that do not fit into the socket buffer."
        ),
    );
    lossy(page, &Ends::open(args.seed, &LinkConfig::default(), &without, messages)?)?;

    *part = "'Two ports exchange credits'";
    let ends = Ends::open(args.seed, &sender, &receiver, messages)?;
    let first = introduce(page, &ends)?;

    *part = "'With credits'";
    page.section(
        "3. With credits",
        "The remaining messages go to an equally slow receiver. It grants credits: a limit (FCCL), in blocks, up to which \
         the sender may send. Without credits the sender waits, as an InfiniBand port does, and nothing is lost.",
    );
    lossless(page, &ends, first..messages)
}

/// Sends to a receiver that grants no credits.
fn lossy(page: &Page, ends: &Ends) -> Outcome {
    let flood = ends.flood(0..ends.messages)?;
    show_counters(page, "receiver", &ends.receiver, &["rx_packets", "socket_rx_overrun"]);
    flood.show(page);
    expect(flood.lost > 0, || "nothing was lost: the sender was slower than the receiver".to_owned())?;
    ends.compare(0..flood.received)?;
    page.proved(&format!(
        "{} of {} messages were lost, and the counters agree; the {} that arrived are intact",
        flood.lost, ends.messages, flood.received
    ));
    Ok(())
}

/// Sends the first messages between two ports with credits and shows their packets; returns the number of messages.
fn introduce(page: &Page, ends: &Ends) -> Outcome<u64> {
    page.section(
        "2. Two ports exchange credits",
        "Now both ports use `ib-credits`. The sender asks who the receiver is (HELLO), gets a token from it, and proves its \
         own address with that. Nothing else leaves before the receiver grants credits (limit).",
    );
    let ladder = Ladder::attach(&ends.sender, "sender", "receiver", RUNGS)?;
    ends.flood(0..1)?;
    until("the ports did not exchange credits", || {
        ends.progress();
        let lanes = ends.sender.sample().lanes;
        counter(&ends.receiver, "partners_met") > 0
            && lanes.iter().any(|lane| lane.credits.is_some_and(|credits| credits > 0))
    })?;
    ends.flood(1..2)?;
    Ladder::detach(&ends.sender);
    page.line(&ladder.render(&page.ladder_style()));
    for lane in ends.sender.sample().lanes {
        let credits = lane.credits.unwrap_or_default();
        page.line(&format!("sender    lane {} to {}: credits for {credits} blocks", lane.vl, lane.peer));
    }
    for (who, device) in [("sender", &ends.sender), ("receiver", &ends.receiver)] {
        expect(counter(device, "rx_flow_control") > 0, || format!("the {who} received no credits"))?;
    }
    page.proved("the ports have identified each other, and the sender has credits");
    Ok(2)
}

/// Sends to a receiver that grants credits.
fn lossless(page: &Page, ends: &Ends, messages: Range<u64>) -> Outcome {
    let flood = ends.flood(messages)?;
    let names = ["rx_packets", "socket_rx_overrun", "tx_flow_control", "excessive_buffer_overrun_errors"];
    show_counters(page, "receiver", &ends.receiver, &names);
    show_counters(page, "sender", &ends.sender, &["rx_flow_control", "credit_stalls"]);
    let lanes = ends.sender.sample().lanes;
    for lane in &lanes {
        let (stalls, stalled) = (lane.stalls, lane.stalled.as_secs_f64() * 1e3);
        page.row(
            "sender    ",
            &format!(
                "lane {} to {}: {stalls} stalls; waited {stalled:.0} ms for credits (PortXmitWait)",
                lane.vl, lane.peer
            ),
        );
    }
    flood.show(page);
    let lost = flood.lost;
    expect(lost == 0, || format!("{lost} messages were lost despite the credits"))?;
    expect(lanes.iter().any(|lane| lane.stalls > 0 && !lane.stalled.is_zero()), || {
        "the sender never waited for credits".to_owned()
    })?;
    ends.compare(0..ends.messages)?;
    page.proved(&format!("none of {} messages was lost, and all are intact", ends.messages));
    Ok(())
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        expect(Instant::now() < deadline, || what.to_owned())?;
    }
    Ok(())
}

/// The result of sending messages.
struct Flood {
    received: u64,
    lost: u64,
    took: Duration,
}

impl Flood {
    fn show(&self, page: &Page) {
        let seconds = self.took.as_secs_f64();
        let rate = self.received as f64 * LEN as f64 * 8.0 / seconds / 1e6;
        page.line(&format!(
            "{} messages arrived and {} were lost in {:.0} ms; goodput {rate:.0} Mb/s",
            self.received,
            self.lost,
            seconds * 1e3
        ));
    }
}

/// A sender and a receiver, with an unreliable connection between them.
struct Ends {
    sender: Device,
    receiver: Device,
    out: QueuePair,
    out_cq: CompletionQueue,
    in_cq: CompletionQueue,
    source: MemoryRegion,
    sink: MemoryRegion,
    messages: u64,
    /// The receiving queue pair.
    _in: QueuePair,
    _pds: [ProtectionDomain; 2],
}

impl Ends {
    /// Opens both, with memory and a receive for each of `messages`.
    fn open(seed: u64, sender: &LinkConfig, receiver: &LinkConfig, messages: u64) -> Outcome<Self> {
        let config = |link: &LinkConfig| DeviceConfig {
            // Without credits packets leave one by one, because the kernel counts a dropped train as one packet.
            offload: Some(link.model == Model::IbCredits),
            recv_buffer: Some(RECV_BUFFER),
            fault_seed: seed,
            link: link.clone(),
            ..DeviceConfig::default()
        };
        let (sender, receiver) = (config(sender).open()?, config(receiver).open()?);
        let depth = u32::try_from(messages).unwrap_or(u32::MAX);
        let room = LEN * usize::try_from(messages).unwrap_or(usize::MAX);
        let end = |device: &Device| -> Outcome<_> {
            let (pd, cq) = (device.alloc_pd()?, device.create_cq(depth)?);
            let mut init = QpInit::uc(&cq, &cq);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth, depth);
            Ok((pd.create_qp(&init)?, pd, cq))
        };
        let (out, out_pd, out_cq) = end(&sender)?;
        let (into, in_pd, in_cq) = end(&receiver)?;
        out.connect(&into.address(), &rnic::ConnectOptions::default())?;
        into.connect(&out.address(), &rnic::ConnectOptions::default())?;
        let mut bytes = pattern(seed, 0, room);
        for (number, message) in (0u64..).zip(bytes.chunks_exact_mut(LEN)) {
            message[..8].copy_from_slice(&number.to_le_bytes());
        }
        let source = out_pd.register_bytes(&bytes, Access::empty())?;
        let sink = in_pd.register(room, Access::LOCAL_WRITE)?;
        for slot in 0..messages {
            into.recv(slot, sink.slice(place(slot))?)?;
        }
        let pds = [out_pd, in_pd];
        Ok(Self { sender, receiver, out, out_cq, in_cq, source, sink, messages, _in: into, _pds: pds })
    }

    fn progress(&self) {
        self.sender.progress();
        self.receiver.progress();
    }

    /// Messages that the receiver's kernel or port dropped.
    fn lost(&self) -> u64 {
        counter(&self.receiver, "socket_rx_overrun") + counter(&self.receiver, "link_rx_dropped")
    }

    /// Sends messages and waits until each has arrived or is lost.
    fn flood(&self, messages: Range<u64>) -> Outcome<Flood> {
        let (start, before, count) = (Instant::now(), self.lost(), messages.end - messages.start);
        for number in messages {
            self.out.send(number, self.source.slice(place(number))?)?;
        }
        let mut done = [WorkCompletion::default(); 32];
        let (mut sent, mut received, mut lost) = (0, 0, 0);
        while sent < count || received + lost < count {
            sent += succeeded(&self.out_cq, &mut done)?;
            received += succeeded(&self.in_cq, &mut done)?;
            lost = self.lost() - before;
            expect(start.elapsed() < PATIENCE, || {
                format!("of {count} messages, {sent} were sent, {received} arrived and {lost} were lost")
            })?;
        }
        Ok(Flood { received, lost, took: start.elapsed() })
    }

    /// Compares the messages in these slots of the receiver with those that were sent.
    fn compare(&self, places: Range<u64>) -> Outcome {
        let (mut found, mut wanted) = (vec![0; LEN], vec![0; LEN]);
        let mut next = 0;
        for slot in places {
            self.sink.read_at(place(slot).start, &mut found)?;
            let number = found.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
            expect((next..self.messages).contains(&number), || {
                format!("receive {slot} holds message {number} instead of {next} or a later one")
            })?;
            self.source.read_at(place(number).start, &mut wanted)?;
            expect(found == wanted, || format!("message {number} differs from what was sent"))?;
            next = number + 1;
        }
        Ok(())
    }
}

/// The bytes of a message in the buffers.
fn place(number: u64) -> Range<usize> {
    let start = LEN * usize::try_from(number).unwrap_or(usize::MAX / LEN - 1);
    start..start + LEN
}

/// The number of new completions, all of which must be successful.
fn succeeded(cq: &CompletionQueue, done: &mut [WorkCompletion]) -> Outcome<u64> {
    let n = cq.poll(done);
    match done[..n].iter().find(|wc| wc.status != WcStatus::Success) {
        None => Ok(n as u64),
        Some(wc) => Err(Failure::new(format!("{}: {}", wc.status, wc.status.explain()))),
    }
}
