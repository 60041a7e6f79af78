//! Pictures of `rnic fabric`: samples over time, and how flow completion times are distributed.

use super::figure::{Across, Color, Figure, Item, Look, PALETTE, Panel, Shape};
use super::series::{Gauge, Point, Span};
use super::units::{SIZES, unit};
use super::{PlotError, WIDTH};
use rnic_fabric::report::{Line, Report, Series};

/// From so many finished flows on, the distribution of their completion times is drawn.
pub(crate) const ENOUGH: usize = 20;

/// The most averages of a line: more look like noise.
const MOST: usize = 400;

/// The most points of a distribution.
const STEPS: usize = 1000;

/// The ratio from which on completion times need a logarithmic axis.
const WIDE: f64 = 20.0;

/// A run, with the name that tells it apart from others in the same picture.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Its name. Nothing, if there is one run only.
    pub name: &'a str,
    /// What came out.
    pub report: &'a Report,
}

/// Whether a run has something to draw.
#[must_use]
pub fn can_draw(report: &Report) -> bool {
    let finished = report.flows.iter().filter(|flow| flow.fct_us.is_some()).count();
    report.series.as_ref().is_some_and(|series| !series.lines.is_empty()) || finished >= ENOUGH
}

/// The picture of the runs, with shared axes.
///
/// # Errors
/// There is nothing to draw.
pub fn figure(title: &str, subtitle: &str, runs: &[Run<'_>]) -> Result<Figure, PlotError> {
    let ends = runs.iter().filter_map(|run| run.report.series.as_ref()?.time_us.last());
    let to = ends.copied().fold(0.0, f64::max) / 1e6;
    // Without samples there are no panels over time, and any span does.
    let to = if to > 0.0 { to } else { 1.0 };
    let span = Span { from: 0.0, to, columns: WIDTH as usize, window: to };
    let with = |layout| {
        let lines = Lines::of(runs, layout);
        let mut panels = lines.queue(&span);
        panels.extend(lines.rate(&span));
        panels.extend(lines.paused(&span));
        panels.extend(completion(runs, layout));
        let columns = if layout == Layout::Columns { lines.runs } else { Vec::new() };
        let columns = columns.into_iter().map(str::to_owned).collect();
        Figure { title: title.to_owned(), subtitle: subtitle.to_owned(), span, columns, panels }
    };
    let stacked = with(Layout::Stacked);
    if stacked.panels.is_empty() {
        return Err(PlotError::Nothing);
    }
    let (width, height) = HIGHEST;
    let is_too_high = crate::height(&stacked, WIDTH) * width > WIDTH * height;
    let lines = Lines::of(runs, Layout::Stacked);
    let is_crowded = |panel: &Panel| lines.shares_a_panel(panel.name) && travel(panel) > RESTLESS;
    let is_crowded = lines.runs.len() < MANY && stacked.panels.iter().any(is_crowded);
    Ok(if (is_too_high && runs.len() > 1) || is_crowded { with(Layout::Columns) } else { stacked })
}

/// How often lines may cross the height of a panel, all together, until those of several runs hide one another. The collectives of
/// 8 hosts need some 50: the ring alone rises and falls 14 times.
const RESTLESS: f64 = 40.0;

/// How often the lines of a panel cross its height, all together.
fn travel(panel: &Panel) -> f64 {
    let of = |points: &[Point]| -> f64 {
        let steps = points.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs());
        steps.filter(|step| step.is_finite()).sum()
    };
    let lines = panel.items.iter().map(|item| match &item.shape {
        Shape::Line(points) => of(points),
        _ => 0.0,
    });
    lines.sum::<f64>() / panel.top().max(f64::MIN_POSITIVE)
}

/// The proportions of the highest picture that fits on a slide.
const HIGHEST: (u32, u32) = (4, 3);

/// How the panels of several runs stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One below the other.
    Stacked,
    /// Each run in a column.
    Columns,
}

/// The most lines of a panel whose ranges are drawn, too: more would hide one another.
const FEW: usize = 4;

/// A line as it is drawn.
struct Curve {
    points: Vec<Point>,
    /// The lowest and the highest sample behind each point, if points are averages.
    ranges: Vec<(f64, f64, f64)>,
}

impl From<Vec<Point>> for Curve {
    fn from(points: Vec<Point>) -> Self {
        Self { points, ranges: Vec::new() }
    }
}

/// A line of a run.
struct Drawn<'a> {
    /// The run.
    run: &'a str,
    series: &'a Series,
    line: &'a Line,
}

impl Drawn<'_> {
    /// What it is called: with the name of its run if several runs share a panel.
    fn legend(&self, with_run: bool) -> String {
        if with_run { format!("{}: {}", self.run, self.line.name) } else { self.line.name.clone() }
    }

    /// What has a colour of its own: the port or the flow, whatever the class.
    fn owner(&self, with_run: bool) -> String {
        let legend = self.legend(with_run);
        legend.split(" class ").next().unwrap_or_default().to_owned()
    }
}

/// From so many runs on, their lines share panels: panels for each would be too low.
const MANY: usize = 5;

/// What was given in all runs alike: congestion control, MTU and buffers, for the line below the title.
#[must_use]
pub fn conditions<'a>(reports: impl Iterator<Item = &'a Report> + Clone) -> String {
    let common = |what: &str| {
        let mut values =
            reports.clone().map(|report| report.inputs.get(what).map(String::as_str).unwrap_or_default());
        let first = values.next().filter(|first| !first.is_empty())?;
        values.all(|value| value == first).then_some(first)
    };
    let control = common("congestion control").map(|control| match control {
        "off" => "no congestion control".to_owned(),
        control => control.to_owned(),
    });
    let mtu = common("path MTU").map(|mtu| format!("MTU {mtu}"));
    let buffer = common("buffer of a switch").map(|buffer| format!("buffer {buffer}"));
    [control, mtu, buffer].into_iter().flatten().map(|part| format!("  ·  {part}")).collect()
}

/// All lines of all runs.
struct Lines<'a> {
    /// The runs that have any.
    runs: Vec<&'a str>,
    lines: Vec<Drawn<'a>>,
    layout: Layout,
}

impl<'a> Lines<'a> {
    fn of(runs: &[Run<'a>], layout: Layout) -> Self {
        let of = |run: &Run<'a>| {
            let (name, series) = (run.name, run.report.series.as_ref());
            let lines =
                series.into_iter().flat_map(|series| series.lines.iter().map(move |line| (series, line)));
            lines.map(move |(series, line)| Drawn { run: name, series, line })
        };
        let lines: Vec<Drawn<'a>> = runs.iter().flat_map(of).collect();
        let has_lines = |name: &&str| lines.iter().any(|drawn| drawn.run == *name);
        Self { runs: runs.iter().map(|run| run.name).filter(has_lines).collect(), lines, layout }
    }

    /// The panels of a kind, whose lines `points` makes into curves: one for each run, with the same colour for a flow, or, if they
    /// are not columns, one for all if a run has no more than a line of the kind.
    fn panels(
        &self,
        kind: &'static str,
        label: &str,
        weight: f64,
        points: &dyn Fn(&Drawn<'_>) -> Curve,
    ) -> Vec<Panel> {
        let all: Vec<&Drawn<'_>> = self.lines.iter().filter(|drawn| drawn.line.kind == kind).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let of = |run: &str| all.iter().copied().filter(|drawn| drawn.run == run).collect::<Vec<_>>();
        let count = self.runs.iter().filter(|run| !of(run).is_empty()).count();
        let (alone, is_stacked) = (count < 2, self.layout == Layout::Stacked);
        let together = self.shares_a_panel(kind);
        let mut owners: Vec<String> = Vec::new();
        for owner in self.lines.iter().map(|drawn| drawn.owner(together)) {
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        let looks = Looks { owners: &owners, with_run: together };
        if together {
            return vec![looks.panel((kind, label, weight), &all, points)];
        }
        // Several panels of a kind take more room than one, and less than each by itself.
        let weight = if is_stacked { weight / (count as f64).sqrt() } else { weight };
        let mut panels = Vec::new();
        for run in &self.runs {
            let own = of(run);
            if own.is_empty() && is_stacked {
                continue;
            }
            let mut panel = looks.panel((kind, label, weight), &own, points);
            if !alone && is_stacked {
                panel.items.insert(0, Item::new(Shape::Heading, Look::plain(Color::BLACK, 1.0), *run));
            }
            panels.push(panel);
        }
        panels
    }

    /// Whether lines of several runs are in one panel of a kind.
    fn shares_a_panel(&self, kind: &str) -> bool {
        let all = || self.lines.iter().filter(|drawn| drawn.line.kind == kind);
        let count = self.runs.iter().filter(|run| all().any(|drawn| drawn.run == **run)).count();
        self.layout == Layout::Stacked && count >= 2 && (all().count() <= count || count >= MANY)
    }

    /// Adds a level to panels of a kind, if it is the same for all lines that have one. `named` gives its place on the axis and
    /// its name.
    fn level(
        &self,
        panels: &mut [Panel],
        kind: &str,
        value: impl Fn(&Line) -> Option<f64>,
        color: Color,
        named: impl Fn(f64) -> (f64, String),
    ) {
        let of_kind = self.lines.iter().filter(|drawn| drawn.line.kind == kind);
        let mut values: Vec<f64> = of_kind.filter_map(|drawn| value(drawn.line)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let [value] = values[..] else { return };
        let (at, name) = named(value);
        for panel in panels.iter_mut().filter(|panel| !panel.items.is_empty()) {
            panel.items.push(Item::new(Shape::Level(at), Look::plain(color, 1.2), name.clone()));
        }
    }

    fn queue(&self, span: &Span) -> Vec<Panel> {
        let values = self.lines.iter().filter(|drawn| drawn.line.kind == "queue");
        let top = values.flat_map(|drawn| &drawn.line.values).copied().fold(0.0, f64::max);
        let (factor, name) = unit(top, SIZES);
        let mut panels = self.panels("queue", &format!("queue ({name})"), 1.8, &|drawn| {
            let mut gauge = Gauge::default();
            for (time, value) in drawn.series.time_us.iter().zip(&drawn.line.values) {
                gauge.add(span, time / 1e6, Some(value / factor));
            }
            gauge.finish().into()
        });
        for (what, which, color) in [("Kmax", 1, Color::BLACK), ("Kmin", 0, Color::GREY)] {
            let bytes = |line: &Line| line.marking.map(|marking| marking[which]);
            self.level(&mut panels, "queue", bytes, color, |bytes| {
                let (own, name) = unit(bytes, SIZES);
                (bytes / factor, format!("{what}, {} {name}", bytes / own))
            });
        }
        alike(panels)
    }

    fn rate(&self, span: &Span) -> Vec<Panel> {
        let mut panels = self.panels("rate", "rate (Gb/s)", 1.8, &|drawn| averages(drawn, span, 1.0));
        self.level(
            &mut panels,
            "rate",
            |line| line.link_gbps,
            Color::GREY,
            |rate| (rate, format!("link, {rate} Gb/s")),
        );
        alike(panels)
    }

    fn paused(&self, span: &Span) -> Vec<Panel> {
        let mut panels = self.panels("paused", "paused (%)", 1.3, &|drawn| averages(drawn, span, 100.0));
        panels.iter_mut().for_each(|panel| panel.reach = 100.0);
        panels
    }
}

/// The same axis for all panels.
fn alike(mut panels: Vec<Panel>) -> Vec<Panel> {
    let reach = panels.iter().map(Panel::top).fold(0.0, f64::max);
    panels.iter_mut().for_each(|panel| panel.reach = reach);
    panels
}

/// The colours of ports and flows.
struct Looks<'a> {
    owners: &'a [String],
    with_run: bool,
}

impl Looks<'_> {
    /// A panel of lines, with its kind, label and weight.
    fn panel(
        &self,
        (name, label, weight): (&'static str, &str, f64),
        lines: &[&Drawn<'_>],
        points: &dyn Fn(&Drawn<'_>) -> Curve,
    ) -> Panel {
        let (mut items, mut bands, mut unnamed) = (Vec::new(), Vec::new(), 0);
        for drawn in lines {
            let owner = drawn.owner(self.with_run);
            let color = self.owners.iter().position(|known| *known == owner).unwrap_or(PALETTE.len());
            let look = Look { width: 1.6, ..Look::of(color, self.owners.len()) };
            let Curve { points, ranges } = points(drawn);
            let shape = Shape::Line(points);
            if lines.len() <= FEW && !ranges.is_empty() {
                bands.push(Item::silent(Shape::Band(ranges), Look::plain(look.color.lighter(0.75), 1.0)));
            }
            if color < PALETTE.len() {
                items.push(Item::new(shape, look, drawn.legend(self.with_run)));
            } else {
                unnamed += 1;
                // Behind those with a colour.
                items.insert(0, Item::silent(shape, Look::of(PALETTE.len(), 0)));
            }
        }
        if !bands.is_empty() {
            let pale = Look::plain(Color::GREY.lighter(0.7), 1.0);
            items.push(Item::new(Shape::Band(Vec::new()), pale, "lowest to highest"));
            items.splice(0..0, bands);
        }
        if unnamed > 0 {
            items.push(Item::new(Shape::Note, Look::of(PALETTE.len(), 0), format!("{unnamed} more")));
        }
        Panel::new(name, label, weight, items)
    }
}

/// A line that says what happened since the last sample. If there are many samples, it consists of averages, with ranges.
fn averages(drawn: &Drawn<'_>, span: &Span, factor: f64) -> Curve {
    let interval = drawn.series.interval_us / 1e6;
    let samples = (span.length() / interval.max(1e-12)).ceil() as usize;
    let each = samples.div_ceil(MOST).max(1);
    // The first sample looks back on nothing.
    let values = drawn.line.values.get(1..).unwrap_or_default();
    let times = drawn.series.time_us.get(1..).unwrap_or_default();
    let mut curve = Curve { points: Vec::new(), ranges: Vec::new() };
    for (times, values) in times.chunks(each).zip(values.chunks(each)) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let at = mean(times) / 1e6 - 0.5 * interval;
        if !span.contains(at) {
            continue;
        }
        curve.points.push((at, factor * mean(values)));
        if each > 1 {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            curve.ranges.push((at, factor * low, factor * values.iter().copied().fold(0.0, f64::max)));
        }
    }
    curve
}

/// How completion times are distributed, if there are enough.
fn completion(runs: &[Run<'_>], layout: Layout) -> Option<Panel> {
    let times = |run: &Run<'_>| {
        let mut times: Vec<f64> = run.report.flows.iter().filter_map(|flow| flow.fct_us).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let all: Vec<(&str, Vec<f64>)> = runs.iter().map(|run| (run.name, times(run))).collect();
    let drawn: Vec<_> = all.into_iter().filter(|(_, times)| times.len() >= ENOUGH).collect();
    let least = drawn.iter().filter_map(|(_, times)| times.first().copied()).reduce(f64::min)?;
    let most = drawn.iter().filter_map(|(_, times)| times.last().copied()).reduce(f64::max)?;
    let (factor, name) = if most > 2000.0 { (1e3, "ms") } else { (1.0, "µs") };
    let is_log = least > 0.0 && most > WIDE * least;
    // Room on both sides: a ratio on a logarithmic axis, and a distance otherwise.
    let room = 0.05 * (most - least).max(0.2 * most);
    let (low, high) = if is_log { (least / 1.1, most * 1.1) } else { ((least - room).max(0.0), most + room) };
    let (low, high) = (low / factor, (high / factor).max(1e-9));
    let count = drawn.len();
    let item = |(index, (run, times)): (usize, &(&str, Vec<f64>))| {
        let look = Look { width: 1.8, ..Look::of(index, count) };
        let legend = if run.is_empty() {
            format!("{} flows", times.len())
        } else {
            format!("{run}: {} flows", times.len())
        };
        Item::new(Shape::Line(distribution(times, factor, (low, high))), look, legend)
    };
    let items = drawn.iter().enumerate().map(item).collect();
    let label = format!("flow completion time ({name})");
    let across = Some(Across { label, low, high, is_log });
    Some(Panel {
        name: "completion times",
        label: "flows done (%)".to_owned(),
        across,
        // Below columns, with their longer legends, there is less room.
        weight: if layout == Layout::Stacked { 2.0 } else { 1.5 },
        items,
        reach: 0.0,
        is_whole: false,
    })
}

/// For each time the share of flows that took no longer, in percent.
fn distribution(times: &[f64], factor: f64, (low, high): (f64, f64)) -> Vec<Point> {
    let count = times.len();
    let share = |flows: usize| 100.0 * flows as f64 / count as f64;
    let mut points = vec![(low, 0.0)];
    let every = count.div_ceil(STEPS).max(1);
    let mut before = 0;
    for flows in (every..count).step_by(every).chain([count]) {
        let at = times[flows - 1] / factor;
        points.extend([(at, share(before)), (at, share(flows))]);
        before = flows;
    }
    points.push((high, 100.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four algorithms, each of which pauses after each step, hid one another in one panel.
    #[test]
    fn runs_that_would_hide_one_another_are_drawn_in_columns() {
        let lab = rnic_lab::find("collectives").unwrap();
        let definition = lab.definition().unwrap();
        for student in ["alice", "bob", "carol", "dave"] {
            let values = rnic_lab::sheet::parameters(&lab, &definition, student).unwrap();
            for (name, columns) in [("incast", 0), ("large", 4)] {
                let config = definition.experiment(name).unwrap();
                let text = lab.file(&config.file).unwrap();
                let table = rnic_lab::experiment::table(config, text, &values).unwrap();
                let ran = rnic_lab::experiment::run(config, &table).unwrap();
                let figure = crate::of_lab("", &ran).unwrap().unwrap();
                assert_eq!(figure.columns.len(), columns, "{name} of {student}");
            }
        }
    }

    #[test]
    fn lines_travel_the_height_of_a_panel() {
        let line =
            |points: &[Point]| Item::new(Shape::Line(points.to_vec()), Look::plain(Color::BLACK, 1.0), "");
        let panel = |items| Panel::new("rate", "", 1.0, items);
        let up = line(&[(0.0, 0.0), (1.0, 10.0), (2.0, 5.0)]);
        assert!((travel(&panel(vec![up.clone(), up.clone()])) - 3.0).abs() < 1e-9);
        // A gap is no travel.
        assert!(travel(&panel(vec![line(&[(0.0, 10.0), (1.0, f64::NAN), (2.0, 0.0)])])) < 1e-9);
        assert!(travel(&panel(vec![line(&[(0.0, 0.0), (1.0, 0.0)])])) < 1e-9);
    }

    #[test]
    fn a_distribution_goes_from_nothing_to_all() {
        let times: Vec<f64> = (1..=5000).map(f64::from).collect();
        let points = distribution(&times, 10.0, (0.0, 510.0));
        assert!(points.len() <= 2 * STEPS + 2, "{}", points.len());
        assert_eq!((points[0], points[points.len() - 1]), ((0.0, 0.0), (510.0, 100.0)));
        assert!(points.contains(&(250.0, 50.0)), "half of them took 2500 or less");
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }
}
