//! Two senders into one receiver's port: without congestion control, and with DCQCN.

use super::flows::{Plan, Run, chart};
use super::link::{counter, show_counters};
use super::page::Page;
use super::{Args, Failure, Outcome, expect, program};
use rnic::Mtu;
use rnic::cc::{Algorithm, Rate};
use rnic::link::LinkConfig;
use std::path::PathBuf;
use std::time::Duration;

/// The rate of the ports unless the command line says it. A program that was built without optimisation would never fill
/// the first.
const RATE: Rate = if cfg!(debug_assertions) { Rate::from_mbps(500) } else { Rate::from_gbps(5) };

/// How long the senders send, and in a quick demo: with DCQCN at least four times as long as the laptop
/// preset takes at most until the shares are fair, 0.4 s.
const TIME_OFF: [Duration; 2] = [Duration::from_millis(1000), Duration::from_millis(600)];
const TIME_ON: [Duration; 2] = [Duration::from_millis(3000), Duration::from_millis(1600)];

/// The time for which the port sends what waits when every packet is marked, with the preset for laptops
/// ([`rnic::cc::dcqcn::Preset::Laptop`]).
const ALL_MARKED: Duration = Duration::from_micros(2500);

/// The least that Jain's index may be with DCQCN: where one sender has 2.6 times as much as the other. A host without a
/// core to spare shares out processor time, not only the port.
const FAIR: f64 = 0.8;

/// What is shown, and of what.
pub(super) struct Scene<'a> {
    pub(super) link: &'a LinkConfig,
    pub(super) cc: &'a Algorithm,
    pub(super) cc_words: &'a str,
    pub(super) args: &'a Args,
}

impl Scene<'_> {
    /// Tells the story.
    pub(super) fn tell(&self, page: &Page, part: &mut &'static str) -> Outcome {
        let link = LinkConfig { rate: self.link.rate.or(Some(RATE)), ..self.link.clone() };
        let rate = link.line();
        page.title("rnic demo: congestion control, between three RoCEv2 NICs in software, on this host");

        *part = "'Without congestion control'";
        page.section(
            "1. Without congestion control",
            &format!(
                "Two senders WRITE to one receiver as fast as they can. Each of the three has a port of {rate}, which is \
                 emulated: what arrives has passed a switch port of that rate, with its queue. Nobody tells the senders \
                 that there is one of the two too many."
            ),
        );
        let off = self.run(&link, &Algorithm::Off, "off")?;
        without(page, &off, rate)?;

        *part = "'With DCQCN'";
        page.section(
            "2. With DCQCN",
            &format!(
                "The same with `{}`. The port marks packets when its queue grows (CE), the receiver answers marks with \
                 CNPs, and a sender that gets one slows down, then tries to be faster again.",
                self.cc_words
            ),
        );
        let on = self.run(&link, self.cc, "dcqcn")?;
        with(page, &on, &off, rate)?;

        *part = "'The traces'";
        traces(page, &on, &off);
        Ok(())
    }

    fn run(&self, link: &LinkConfig, cc: &Algorithm, name: &str) -> Outcome<Run> {
        link.at(cc, Mtu::B4096).map_err(|error| Failure::new(format!("--link: {error}")))?;
        let is_off = *cc == Algorithm::Off;
        let time = if is_off { TIME_OFF } else { TIME_ON }[usize::from(self.args.quick)];
        let mut stem = self.args.traces.clone().into_os_string();
        stem.push(format!("-{name}"));
        let cc_words = if is_off { "off" } else { self.cc_words };
        Plan { link, cc, cc_words, time, seed: self.args.seed, stem: &PathBuf::from(stem) }.run()
    }
}

/// What the senders got, and the queue.
fn shares(page: &Page, run: &Run, top: f64) {
    let [one, two] = run.goodput().map(|bits| bits / 1e9);
    page.line(&format!(
        "sender 1 {one:.2} Gb/s, sender 2 {two:.2} Gb/s of messages, in the second half of the time; Jain's index {:.3}",
        run.jain()
    ));
    let stats = run.receiver.link_stats().unwrap_or_default();
    let kib = |bytes: f64| bytes / 1024.0;
    page.line(&format!(
        "queue    {}  0 to {:.0} KiB; mean {:.0} KiB, longest {:.0} KiB",
        chart(&run.queue(), top),
        kib(top),
        kib(run.mean_queue()),
        kib(stats.queue_bytes_max as f64),
    ));
}

fn without(page: &Page, run: &Run, rate: Rate) -> Outcome {
    show_counters(page, "receiver", &run.receiver, &["link_rx_packets", "link_rx_dropped", "link_rx_marked"]);
    for (who, sender) in ["sender 1", "sender 2"].into_iter().zip(&run.senders) {
        show_counters(page, who, sender, &["window_stalls", "retransmitted_pkts", "rp_cnp_handled"]);
    }
    shares(page, run, peak(run));
    let (dropped, waits) = (counter(&run.receiver, "link_rx_dropped"), run.of_senders("window_stalls"));
    let longest = run.receiver.link_stats().map_or(0, |stats| stats.queue_bytes_max);
    expect(counter(&run.receiver, "np_cnp_sent") == 0, || "a CNP was sent without DCQCN".to_owned())?;
    expect(dropped + waits > 0, || "the port was never full: this host is slower than it".to_owned())?;
    page.proved(&format!(
        "only {}: the queue grew to {longest} bytes, which take {:.0} us at {rate}",
        match (dropped, waits) {
            (0, _) => "the windows of the senders held them back",
            (_, 0) => "losses held the senders back",
            _ => "losses and the windows held the senders back",
        },
        rate.time_for(longest).as_secs_f64() * 1e6
    ));
    Ok(())
}

/// The longest queue, for the scale of charts.
fn peak(run: &Run) -> f64 {
    run.queue().iter().map(|(_, bytes)| *bytes).fold(1.0, f64::max)
}

fn with(page: &Page, run: &Run, off: &Run, rate: Rate) -> Outcome {
    let receiver = &run.receiver;
    let names =
        ["link_rx_packets", "link_rx_dropped", "link_rx_marked", "np_ecn_marked_roce_packets", "np_cnp_sent"];
    show_counters(page, "receiver", receiver, &names);
    for (who, sender) in ["sender 1", "sender 2"].into_iter().zip(&run.senders) {
        show_counters(page, who, sender, &["rp_cnp_handled", "rp_cnp_ignored", "retransmitted_pkts"]);
    }
    for (who, sender) in [("sender 1", 0), ("sender 2", 1)] {
        let allowed = run.allowed(sender);
        let last = allowed.last().map_or(0.0, |(_, bits)| *bits);
        page.line(&format!(
            "{who} {}  0 to {rate}; at last {:.2} Gb/s allowed",
            chart(&allowed, rate.as_f64()),
            last / 1e9
        ));
    }
    shares(page, run, peak(off));
    for (what, count) in [
        ("packet was marked", counter(receiver, "link_rx_marked")),
        ("CNP was sent", counter(receiver, "np_cnp_sent")),
        ("CNP was obeyed by sender 1", counter(&run.senders[0], "rp_cnp_handled")),
        ("CNP was obeyed by sender 2", counter(&run.senders[1], "rp_cnp_handled")),
    ] {
        expect(count > 0, || format!("no {what}"))?;
    }
    for sender in [0, 1] {
        let slowest = run.allowed(sender).iter().map(|(_, bits)| *bits).fold(f64::INFINITY, f64::min);
        expect(slowest < rate.as_f64(), || format!("sender {} never slowed down", sender + 1))?;
    }
    let (before, after) = (off.mean_queue(), run.mean_queue());
    // A busy host may be too slow to fill the port without it; then the length at which every packet is marked counts.
    let all_marked = rate.bytes_in(ALL_MARKED) as f64;
    expect(after < before.max(all_marked), || {
        format!("the queue is {after:.0} bytes on average, and was {before:.0} without")
    })?;
    expect(run.jain() > FAIR, || format!("Jain's index of the two is {:.3}", run.jain()))?;
    page.proved(&format!(
        "{} CNPs were obeyed; the queue is {:.0} % of what it was without, and both get their share",
        run.of_senders("rp_cnp_handled"),
        after / before * 100.0
    ));
    Ok(())
}

/// Says where the traces are.
fn traces(page: &Page, on: &Run, off: &Run) {
    page.section(
        "3. The traces",
        "Rates, queue, marks and CNPs were recorded each millisecond. The charts above come from there; to draw them:",
    );
    for run in [off, on] {
        let files: Vec<_> = run.files.iter().map(|file| file.display().to_string()).collect();
        page.line(&format!("  {} plot {}", program(), files.join(" ")));
    }
}
