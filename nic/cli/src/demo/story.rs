//! The story of two flows in virtual time: one alone, joined by another, and alone again. It is the same on every host.

use super::flows::{chart, jain};
use super::page::Page;
use super::{Args, Failure, Outcome, expect};
use rnic::Mtu;
use rnic::cc::{Algorithm, Rate};
use rnic::link::LinkConfig;
use rnic_fabric::report::Report;
use rnic_fabric::scenario::Scenario;
use std::path::Path;
use std::time::Duration;

/// How long each part lasts: the laptop preset needs 0.4 s until shares are fair.
const PART: Duration = Duration::from_millis(500);

/// The least share of the port that is used in each part, once flows have settled.
const USED: f64 = 0.9;

/// The lowest acceptable Jain's index of the two flows, once they have settled.
const FAIR: f64 = 0.95;

/// The names of the runs.
const OFF: &str = "off";
const ON: &str = "dcqcn";

/// What came out of a run.
struct Told<'a> {
    report: &'a Report,
}

/// Tells the story.
pub(super) fn tell(page: &Page, args: &Args, link: &LinkConfig, cc: &Algorithm, cc_words: &str) -> Outcome {
    let wrong = |error: &dyn std::fmt::Display| Failure::new(format!("--link: {error}"));
    let profile = link.at(cc, Mtu::B4096).map_err(|error| wrong(&error))?;
    let rate = link.line();
    // The second flow ends after its part if it gets half of the port.
    let half = rate.bytes_in(PART) / 2;
    let red = profile.red.as_ref().map_or_else(String::new, |red| {
        format!("switch.red = {{ kmin = {}, kmax = {}, pmax = {} }}\n", red.kmin, red.kmax, red.pmax)
    });
    let text = format!(
        "name = \"story\"\nabout = \"Two flows.\"\nuntil = \"{until} ms\"\nseeds = [{seed}]\n\
         [topology]\nkind = \"star\"\nhosts = 3\nlink = {{ rate = \"{rate}\", delay = \"1 us\" }}\n\
         [switch]\nbuffer = {{ shared = {buffer} }}\n\
         [[workload]]\npattern = \"flows\"\nflow = [\n\
         {{ from = \"host1\", to = \"host0\", name = \"flow 1\" }},\n\
         {{ from = \"host2\", to = \"host0\", name = \"flow 2\", start = \"{start} ms\", bytes = {half} }} ]\n\
         [sample]\ninterval = \"5 ms\"\nports = [\"s0>host0\"]\nflows = [\"flow 1\", \"flow 2\"]\n\
         [[variant]]\nname = \"{OFF}\"\n[[variant]]\nname = \"{ON}\"\nnic.cc = \"{cc_words}\"\n{red}",
        until = 3 * PART.as_millis(),
        start = PART.as_millis(),
        seed = args.seed,
        buffer = profile.buffer,
    );
    let scenario = Scenario::read(&text).map_err(|error| wrong(&error))?;
    let outcome =
        scenario.run_all(Path::new("."), args.seed, &mut |_| true).map_err(|error| wrong(&error))?;
    let mut queues = Vec::new();
    for (name, report) in &outcome.reports {
        let told = Told { report };
        page.line(if name == OFF { "Without congestion control:" } else { "With congestion control:" });
        queues.push(told.show(page, rate, if name == ON { queues.first().copied() } else { None })?);
    }
    if let [_, (_, on)] = &*outcome.reports {
        Told { report: on }.judge(rate)?;
    }
    let [before, after] = queues[..] else { return Err(Failure::new("a run is missing")) };
    expect(after < before, || format!("the mean queue is {after:.0} bytes, and {before:.0} without"))?;
    draw(page, args, &outcome.reports)?;
    page.proved(&format!(
        "the port stays busy, the flows share it, and while they do the queue has {:.0} % of its length without congestion control",
        after / before * 100.0
    ));
    Ok(())
}

impl Told<'_> {
    /// Samples of a line.
    fn line(&self, name: &str, kind: &str) -> Vec<(Duration, f64)> {
        let Some(series) = &self.report.series else { return Vec::new() };
        let found = series.lines.iter().find(|line| line.name == name && line.kind == kind);
        let values = found.map(|line| line.values.iter().copied()).into_iter().flatten();
        let times = series.time_us.iter().map(|us| Duration::from_secs_f64(us / 1e6));
        times.zip(values).collect()
    }

    /// The mean of a line from one part of the run to another, in thirds: 1.5 is the middle of the second.
    fn mean(&self, name: &str, kind: &str, from: f64, to: f64) -> f64 {
        let is_in = |at: &Duration| (from..to).contains(&(at.as_secs_f64() / PART.as_secs_f64()));
        let values: Vec<f64> =
            self.line(name, kind).into_iter().filter(|(at, _)| is_in(at)).map(|(_, value)| value).collect();
        values.iter().sum::<f64>() / (values.len() as f64).max(1.0)
    }

    /// Draws rates and the queue. Returns the mean queue while both send.
    fn show(&self, page: &Page, rate: Rate, scale: Option<f64>) -> Outcome<f64> {
        for flow in ["flow 1", "flow 2"] {
            page.line(&format!("{flow}    {}", chart(&self.line(flow, "rate"), rate.as_f64() / 1e9)));
        }
        let queue = self.line("s0>host0", "queue");
        let longest = queue.iter().map(|(_, bytes)| *bytes).fold(1.0, f64::max);
        page.line(&format!("queue     {}", chart(&queue, longest.max(scale.unwrap_or(0.0)))));
        let mean = self.mean("s0>host0", "queue", 1.0, 1.5);
        page.row(
            "          ",
            &format!(
                "rates: scale 0 to {rate}; queue: mean {:.0} KiB while both send, longest {:.0} KiB",
                mean / 1024.0,
                longest / 1024.0
            ),
        );
        Ok(mean)
    }

    /// Whether the port was used in every part, and shared.
    fn judge(&self, rate: Rate) -> Outcome {
        let most = rate.as_f64() / 1e9;
        for (what, from, to) in
            [("one flow is alone", 0.1, 1.0), ("both send", 1.1, 1.9), ("it is alone again", 2.5, 3.0)]
        {
            let used = self.mean("s0>host0", "rate", from, to) / most;
            expect(used > USED, || format!("only {:.0} % of the port are used while {what}", used * 100.0))?;
        }
        let shares = ["flow 1", "flow 2"].map(|flow| self.mean(flow, "rate", 1.4, 1.9));
        expect(jain(shares) > FAIR, || format!("the flows get {:.2} and {:.2} Gb/s", shares[0], shares[1]))
    }
}

/// Draws both runs beside each other.
#[cfg(feature = "plot")]
fn draw(page: &Page, args: &Args, reports: &[(String, Report)]) -> Outcome {
    use rnic_plot::fabric::{Run, figure};
    let mut file = args.traces.clone().into_os_string();
    file.push("-story.svg");
    let runs: Vec<Run<'_>> = reports.iter().map(|(name, report)| Run { name, report }).collect();
    let title = "Two flows: one, joined by another, and alone again";
    let drawn = figure(title, "virtual time", &runs).map_err(Into::into);
    let drawn = drawn.and_then(|figure| crate::plot::save(&figure, Path::new(&file)));
    drawn.map_err(|error| Failure::new(error.to_string()))?;
    page.row("picture   ", &Path::new(&file).display().to_string());
    Ok(())
}

#[cfg(not(feature = "plot"))]
fn draw(_: &Page, _: &Args, _: &[(String, Report)]) -> Outcome {
    Ok(())
}
