//! Two senders share the port of one receiver: without congestion control, and with DCQCN.

use super::flows::{Plan, Run, chart};
use super::link::{counter, show_counters};
use super::page::Page;
use super::{Args, Failure, Outcome, expect, program};
use rnic::Mtu;
use rnic::cc::{Algorithm, Rate};
use rnic::link::LinkConfig;
use std::path::PathBuf;
use std::time::Duration;

/// The default rate of the ports. An unoptimised build cannot fill 5 Gb/s.
const RATE: Rate = if cfg!(debug_assertions) { Rate::from_mbps(500) } else { Rate::from_gbps(5) };

/// How long the senders send, normally and in a quick demo. With DCQCN this is at least four times the 0.4 s that the
/// laptop preset needs until the shares are fair.
const TIME_OFF: [Duration; 2] = [Duration::from_millis(1000), Duration::from_millis(600)];
const TIME_ON: [Duration; 2] = [Duration::from_millis(3000), Duration::from_millis(1600)];

/// The length of the queue at which the laptop preset ([`rnic::cc::dcqcn::Preset::Laptop`]) marks every packet, as time at
/// the rate of the port.
const ALL_MARKED: Duration = Duration::from_micros(2500);

/// The lowest acceptable Jain's index with DCQCN: one sender gets 2.6 times as much as the other. On a busy host the senders
/// compete for processor time as well.
const FAIR: f64 = 0.8;

/// The share of the port that senders use on a host that is not too busy, headers not counted.
const FULL: f64 = 0.75;

/// The parameters of the demo.
pub(super) struct Scene<'a> {
    pub(super) link: &'a LinkConfig,
    pub(super) cc: &'a Algorithm,
    pub(super) cc_words: &'a str,
    pub(super) args: &'a Args,
}

impl Scene<'_> {
    /// Runs the demo.
    pub(super) fn tell(&self, page: &Page, part: &mut &'static str) -> Outcome {
        let link = LinkConfig { rate: self.link.rate.or(Some(RATE)), ..self.link.clone() };
        let rate = link.line();
        page.title("rnic demo: congestion control between three RoCEv2 NICs in software");

        *part = "'In virtual time'";
        page.section(
            "1. In virtual time",
            &format!(
                "A flow has a port of {rate} to itself. Another one joins it, and leaves again. The port marks packets (CE) when \
                 its queue grows, and the receiver answers marks with congestion notifications (CNPs). A sender that receives a \
                 CNP slows down, then speeds up again. These runs are the same on every host, however busy it is."
            ),
        );
        super::story::tell(page, self.args, &link, self.cc, self.cc_words)?;

        *part = "'On this host, without congestion control'";
        page.section(
            "2. On this host, without congestion control",
            &format!(
                "Two senders WRITE to one receiver over sockets, as fast as they can. Each NIC has an emulated port of {rate}: \
                 packets pass the queue of a switch port of that rate. Nothing tells the senders that together they exceed it."
            ),
        );
        let off = self.run(&link, &Algorithm::Off, "off")?;
        without(page, &off, rate)?;

        *part = "'On this host, with DCQCN'";
        page.section("3. On this host, with DCQCN", &format!("The same with `{}`.", self.cc_words));
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

/// Prints the shares of the senders, and the queue.
fn shares(page: &Page, run: &Run, top: f64) {
    let [one, two] = run.goodput().map(|bits| bits / 1e9);
    page.row(
        "goodput   ",
        &format!(
            "sender 1 {one:.2} Gb/s, sender 2 {two:.2} Gb/s in the second half; Jain's index {:.3}",
            run.jain()
        ),
    );
    let stats = run.receiver.link_stats().unwrap_or_default();
    let kib = |bytes: f64| bytes / 1024.0;
    page.line(&format!("queue     {}", chart(&run.queue(), top)));
    page.line(&format!(
        "          scale 0 to {:.0} KiB; mean {:.0} KiB, longest {:.0} KiB",
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
    if dropped + waits == 0 || is_too_busy(run, rate) {
        page.paragraph(&format!(
            "This host is too busy to judge by: it fills {:.0} % of the port. The runs in virtual time do not depend on it.",
            used(run, rate) * 100.0
        ));
        return Ok(());
    }
    page.proved(&format!(
        "{}: the queue grew to {longest} bytes, which take {:.0} us at {rate}",
        match (dropped, waits) {
            (0, _) => "only their windows limited the senders",
            (_, 0) => "only losses limited the senders",
            _ => "only losses and their windows limited the senders",
        },
        rate.time_for(longest).as_secs_f64() * 1e6
    ));
    Ok(())
}

/// The share of the port that both senders use in the second half.
fn used(run: &Run, rate: Rate) -> f64 {
    run.goodput().iter().sum::<f64>() / rate.as_f64()
}

/// Whether the host is too slow for a verdict on congestion control: two senders that nothing holds back do not fill the port.
fn is_too_busy(run: &Run, rate: Rate) -> bool {
    used(run, rate) < FULL
}

/// The longest queue, which sets the scale of charts.
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
        page.line(&format!("{who}  {}", chart(&allowed, rate.as_f64())));
        page.line(&format!("          allowed rate, scale 0 to {rate}; finally {:.2} Gb/s", last / 1e9));
    }
    shares(page, run, peak(off));
    if is_too_busy(off, rate) {
        page.paragraph("This host is too busy to judge queue and shares by.");
        return Ok(());
    }
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
    // Without DCQCN a busy host may be too slow to fill the port; then the length at which every packet is marked counts.
    let all_marked = rate.bytes_in(ALL_MARKED) as f64;
    expect(after < before.max(all_marked), || {
        format!("the mean queue is {after:.0} bytes, and {before:.0} without DCQCN")
    })?;
    expect(run.jain() > FAIR, || format!("Jain's index of the senders is only {:.3}", run.jain()))?;
    page.proved(&format!(
        "{} CNPs were obeyed; the mean queue is {:.0} % of that without DCQCN, and both senders get a fair share",
        run.of_senders("rp_cnp_handled"),
        after / before * 100.0
    ));
    Ok(())
}

/// Shows how to draw the traces.
fn traces(page: &Page, on: &Run, off: &Run) {
    page.section(
        "4. The traces",
        "Rates, queue, marks and CNPs were recorded every millisecond. To draw them:",
    );
    for run in [off, on] {
        let files: Vec<_> = run.files.iter().map(|file| file.display().to_string()).collect();
        page.line(&format!("  {} plot {}", program(), files.join(" ")));
    }
}
