//! The panels of a figure.

use super::gather::{Flow, Gathered, Lane};
use rnic::trace::{Header, LinkHeader};
use rnic_plot::figure::{Color, Item, Look, PALETTE, Panel, Shape};
use rnic_plot::series::{Counter, Point, Span};
use rnic_plot::units::{SIZES, unit};
use std::collections::BTreeMap;

/// A file, and its name in legends.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) header: Header,
    pub(super) data: Gathered,
}

/// The data of a queue pair in one direction.
struct Stream {
    name: String,
    qpn: u32,
    /// The other side.
    peer: Option<String>,
    /// The index of the file.
    source: usize,
    sends: bool,
    bytes: Counter,
    allowed: Vec<Point>,
    alpha: Vec<Point>,
}

/// A direction of a queue pair is drawn if it moves at least this share of the other. Less than that is requests and
/// short responses.
const WORTH_A_LINE: f64 = 0.05;

/// The names of the panels, in order.
pub(super) const NAMES: [&str; 6] =
    ["goodput", "queue", "alpha", "congestion notifications", "credits and pauses", "losses"];

/// All panels that have data.
pub(super) fn all(mut sources: Vec<Source>, span: &Span) -> Vec<Panel> {
    let mut streams = Vec::new();
    for (index, source) in sources.iter_mut().enumerate() {
        for (qpn, flow) in std::mem::take(&mut source.data.flows) {
            streams.extend(directions(index, &source.name, qpn, flow));
        }
    }
    let totals = fold_receivers(&mut streams, &sources);
    tell_apart(&mut streams);
    let looks = looks(&streams);
    let queues = queues(&mut sources);
    // The link of interest is the one with a queue.
    let fullest =
        queues.first().filter(|queue| queue.top() > 0.0).and_then(|queue| sources.get(queue.source));
    let first = || sources.iter().find(|source| source.header.link.is_some());
    let link = fullest.or_else(first).and_then(|source| source.header.link.clone()).unwrap_or_default();
    let panels = [
        goodput(&mut streams, &looks, &totals, &link, span),
        queue(&queues, &link),
        alpha(&mut streams, &looks),
        notifications(&sources, span),
        credits(&mut sources, span),
        losses(&sources, span),
    ];
    panels.into_iter().flatten().collect()
}

/// The directions of a queue pair that move data.
fn directions(source: usize, name: &str, qpn: u32, flow: Flow) -> Vec<Stream> {
    let (sent, received) = (flow.sent.total(), flow.received.total());
    let peer = flow.label;
    let of = |sends: bool| {
        let arrow = if sends { "→" } else { "←" };
        let name = match &peer {
            Some(peer) => format!("{name} {arrow} {peer}"),
            None => format!("QP {qpn}: {name} {arrow}"),
        };
        let (bytes, allowed, alpha) = (Counter::default(), Vec::new(), Vec::new());
        Stream { name, qpn, peer: peer.clone(), source, sends, bytes, allowed, alpha }
    };
    let mut streams = Vec::new();
    if sent > 0.0 && sent >= WORTH_A_LINE * received {
        let (allowed, alpha) = (flow.allowed.finish(), flow.alpha.finish());
        streams.push(Stream { bytes: flow.sent, allowed, alpha, ..of(true) });
    }
    if received > 0.0 && received >= WORTH_A_LINE * sent {
        streams.push(Stream { bytes: flow.received, ..of(false) });
    }
    streams
}

/// Data received from a device that also has a trace is the same as what that device sends. A file with several such
/// streams keeps only their sum. Returns the sums.
fn fold_receivers(streams: &mut Vec<Stream>, sources: &[Source]) -> Vec<(String, Counter)> {
    let senders: Vec<&str> = {
        let sending = streams.iter().filter(|stream| stream.sends);
        sending.map(|stream| sources[stream.source].name.as_str()).collect()
    };
    let mut sums: BTreeMap<usize, (usize, Counter)> = BTreeMap::new();
    streams.retain(|stream| {
        let own = &sources[stream.source].name;
        let shown = |peer: &String| peer != own && senders.contains(&peer.as_str());
        let twice = !stream.sends && stream.peer.as_ref().is_some_and(shown);
        if twice {
            let (count, sum) = sums.entry(stream.source).or_default();
            *count += 1;
            sum.absorb(&stream.bytes);
        }
        !twice
    });
    let several = sums.into_iter().filter(|(_, (count, _))| *count > 1);
    several.map(|(source, (_, sum))| (sources[source].name.clone(), sum)).collect()
}

/// Adds the QP number to the names of queue pairs between the same two devices.
fn tell_apart(streams: &mut [Stream]) {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for stream in streams.iter() {
        *count.entry(stream.name.clone()).or_default() += 1;
    }
    for stream in streams {
        if count.get(&stream.name).is_some_and(|count| *count > 1) {
            stream.name = format!("QP {}: {}", stream.qpn, stream.name);
        }
    }
}

/// The look of each stream. The streams that move most get colours.
fn looks(streams: &[Stream]) -> Vec<Look> {
    let mut ranks: Vec<usize> = (0..streams.len()).collect();
    ranks.sort_by(|a, b| streams[*b].bytes.total().total_cmp(&streams[*a].bytes.total()));
    ranks.truncate(PALETTE.len());
    ranks.sort_unstable();
    let look = |index: usize| {
        let place = ranks.iter().position(|ranked| *ranked == index);
        Look::of(place.unwrap_or(PALETTE.len()), streams.len())
    };
    (0..streams.len()).map(look).collect()
}

/// Whether a stream has a colour, and therefore a legend.
fn is_named(look: &Look) -> bool {
    look.width > 1.0
}

const RATES: [(f64, &str); 3] = [(1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")];

fn scaled(points: &[Point], factor: f64) -> Vec<Point> {
    points.iter().map(|(at, value)| (*at, value * factor)).collect()
}

fn top<'a>(lines: impl IntoIterator<Item = &'a Vec<Point>>) -> f64 {
    lines.into_iter().flatten().map(|point| point.1).fold(0.0, f64::max)
}

fn goodput(
    streams: &mut [Stream],
    looks: &[Look],
    totals: &[(String, Counter)],
    link: &LinkHeader,
    span: &Span,
) -> Option<Panel> {
    let bits = |counter: &Counter| scaled(&counter.rate(span), 8.0);
    let rates: Vec<_> = streams.iter().map(|stream| bits(&stream.bytes)).collect();
    let sums: Vec<_> = totals.iter().map(|(_, sum)| bits(sum)).collect();
    let allowed: Vec<_> = streams.iter_mut().map(|stream| std::mem::take(&mut stream.allowed)).collect();
    if rates.iter().chain(&allowed).all(Vec::is_empty) {
        return None;
    }
    let (factor, name) = unit(top(&rates).max(top(&sums)).max(top(&allowed)), RATES);
    let mut items = Vec::new();
    if let Some(rate) = link.rate {
        let rate = rate as f64 / factor;
        items.push(Item::new(
            Shape::Level(rate),
            Look::plain(Color::GREY, 1.2),
            format!("link, {rate} {name}"),
        ));
    }
    for (points, (device, _)) in sums.iter().zip(totals) {
        let look = Look::plain(Color::GREY, 2.0);
        items.push(Item::new(
            Shape::Line(scaled(points, 1.0 / factor)),
            look,
            format!("{device} receives in total"),
        ));
    }
    let limited = allowed.iter().any(|points| !points.is_empty());
    for (points, look) in allowed.iter().zip(looks) {
        if !points.is_empty() {
            items.push(Item::silent(Shape::Line(scaled(points, 1.0 / factor)), look.thin()));
        }
    }
    let mut unnamed = 0;
    for ((stream, points), look) in streams.iter().zip(&rates).zip(looks) {
        let shape = Shape::Line(scaled(points, 1.0 / factor));
        if is_named(look) {
            items.push(Item::new(shape, *look, stream.name.clone()));
        } else {
            unnamed += 1;
            // Drawn after those with a colour.
            items.insert(0, Item::silent(shape, *look));
        }
    }
    if unnamed > 0 {
        items.push(Item::new(Shape::Note, Look::of(PALETTE.len(), 0), format!("{unnamed} more")));
    }
    if limited {
        items.push(Item::new(Shape::Note, Look::plain(Color::GREY, 1.0), "thin: rate allowed"));
    }
    Some(Panel {
        name: NAMES[0],
        label: format!("goodput ({name})"),
        across: None,
        weight: 2.6,
        items,
        reach: 0.0,
        is_whole: false,
    })
}

/// The queue of a port.
struct Queue {
    source: usize,
    name: String,
    now: Vec<Point>,
    /// The maximum since the previous sample.
    most: Vec<Point>,
}

impl Queue {
    fn top(&self) -> f64 {
        top([&self.now, &self.most])
    }
}

/// The queues, longest first. Queues that are short in comparison, such as those of acknowledgements at senders, are left
/// out.
fn queues(sources: &mut [Source]) -> Vec<Queue> {
    let mut queues = Vec::new();
    for (index, source) in sources.iter_mut().enumerate() {
        let now = std::mem::take(&mut source.data.queue).finish();
        let most = std::mem::take(&mut source.data.queue_max).finish();
        if !now.is_empty() || !most.is_empty() {
            queues.push(Queue { source: index, name: source.name.clone(), now, most });
        }
    }
    queues.sort_by(|a, b| b.top().total_cmp(&a.top()));
    let fullest = queues.first().map_or(0.0, Queue::top);
    queues.retain(|queue| queue.top() >= WORTH_A_LINE * fullest);
    queues
}

fn queue(queues: &[Queue], link: &LinkHeader) -> Option<Panel> {
    let fullest = queues.first()?.top();
    let (factor, name) = unit(fullest, SIZES);
    let alone = queues.len() == 1;
    let mut items = Vec::new();
    for (index, queue) in queues.iter().enumerate() {
        let dark = Look::plain(Color(0x40, 0x40, 0x40), 1.5);
        let look = if alone { dark } else { Look { width: 1.5, ..Look::of(index, queues.len()) } };
        if !queue.most.is_empty() {
            let pale = Look::plain(look.color.lighter(0.7), 1.0);
            let legend = alone.then(|| "maximum between samples".to_owned());
            items.insert(
                0,
                Item { shape: Shape::Area(scaled(&queue.most, 1.0 / factor)), look: pale, legend },
            );
        }
        items.push(Item::new(
            Shape::Line(scaled(&queue.now, 1.0 / factor)),
            look,
            format!("queue of {}", queue.name),
        ));
    }
    for (what, bytes, color) in [("Kmax", link.kmax, PALETTE[1]), ("Kmin", link.kmin, PALETTE[0])] {
        let Some(bytes) = bytes else { continue };
        let value = bytes as f64 / factor;
        items.push(Item::new(
            Shape::Level(value),
            Look::plain(color, 1.5),
            format!("{what}, {value} {name}"),
        ));
    }
    Some(Panel {
        name: NAMES[1],
        label: format!("queue ({name})"),
        across: None,
        weight: 1.6,
        items,
        reach: 0.0,
        is_whole: false,
    })
}

fn alpha(streams: &mut [Stream], looks: &[Look]) -> Option<Panel> {
    let mut items = Vec::new();
    for (stream, look) in streams.iter_mut().zip(looks) {
        let points = std::mem::take(&mut stream.alpha);
        if !points.is_empty() {
            let legend = is_named(look).then(|| stream.name.clone());
            items.push(Item { shape: Shape::Line(points), look: *look, legend });
        }
    }
    (!items.is_empty()).then(|| Panel {
        name: NAMES[2],
        label: "alpha".into(),
        across: None,
        weight: 1.2,
        items,
        reach: 0.0,
        is_whole: false,
    })
}

/// Events per millisecond in each window.
fn events(counter: &Counter, span: &Span) -> Vec<(f64, f64, f64)> {
    let steps = counter.steps(span).into_iter();
    steps.map(|(from, to, a_second)| (from, to, a_second / 1e3)).collect()
}

fn notifications(sources: &[Source], span: &Span) -> Option<Panel> {
    let counted = |what: &str, pick: fn(&Gathered) -> &Counter| -> Vec<(String, Counter)> {
        let all =
            sources.iter().map(|source| (format!("{what} {}", source.name), pick(&source.data).clone()));
        all.filter(|(_, counter)| counter.total() > 0.0).collect()
    };
    let marked = counted("packets marked by", |data| &data.marked);
    let mut cnps = counted("CNPs that slow down", |data| &data.cnps_handled);
    if cnps.is_empty() {
        // CNPs sent are drawn only if their receivers have no trace; otherwise they would repeat the sum.
        cnps = counted("CNPs sent by", |data| &data.cnps_sent);
    }
    let mut items = Vec::new();
    for (index, (legend, counter)) in marked.iter().enumerate() {
        let pale = Color::GREY.lighter(0.55 - 0.15 * (index % 3) as f64);
        items.push(Item::new(Shape::Bars(events(counter, span)), Look::plain(pale, 1.0), legend.clone()));
    }
    let count = cnps.len();
    for (index, (legend, counter)) in cnps.into_iter().enumerate() {
        let look = Look { width: 1.5, ..Look::of(index, count) };
        items.push(Item::new(Shape::Steps(events(&counter, span)), look, legend));
    }
    (!items.is_empty()).then(|| Panel {
        name: NAMES[3],
        label: "packets / ms".into(),
        across: None,
        weight: 1.3,
        items,
        reach: 0.0,
        is_whole: false,
    })
}

/// The share of each window in which a clock of nanoseconds ran.
fn share(counter: &Counter, span: &Span) -> Vec<(f64, f64, f64)> {
    let steps = counter.steps(span).into_iter();
    steps.map(|(from, to, nanos)| (from, to, (nanos / 1e9).clamp(0.0, 1.0))).collect()
}

fn credits(sources: &mut [Source], span: &Span) -> Option<Panel> {
    let (mut lines, mut stalled, mut paused) = (Vec::new(), Counter::default(), Counter::default());
    for source in sources {
        for ((peer, vl), lane) in std::mem::take(&mut source.data.lanes) {
            let Lane { credits, stalled: stall, paused: pause } = lane;
            stalled.absorb(&stall);
            paused.absorb(&pause);
            lines.push((format!("{} → {peer}, VL {vl}", source.name), credits.finish()));
        }
    }
    lines.retain(|(_, points)| !points.is_empty());
    let shades = [("waits for credit", PALETTE[1], stalled), ("is paused", PALETTE[5], paused)];
    let shades: Vec<_> = shades.into_iter().filter(|(_, _, counter)| counter.total() > 0.0).collect();
    if lines.is_empty() && shades.is_empty() {
        return None;
    }
    let mut items: Vec<Item> = Vec::new();
    for (legend, color, counter) in &shades {
        let look = Look::plain(color.lighter(0.45), 1.0);
        items.push(Item::new(Shape::Shade(share(counter, span)), look, *legend));
    }
    if lines.is_empty() {
        // With pauses only, draw their share of the time.
        for (_, color, counter) in &shades {
            let steps = share(counter, span).into_iter().map(|(from, to, share)| (from, to, 100.0 * share));
            items.push(Item::silent(Shape::Steps(steps.collect()), Look::plain(*color, 1.5)));
        }
        return Some(Panel {
            name: NAMES[4],
            label: "stopped (%)".into(),
            across: None,
            weight: 1.3,
            items,
            reach: 0.0,
            is_whole: false,
        });
    }
    let points: Vec<_> = lines.iter().map(|(_, points)| points.clone()).collect();
    let block = 64.0;
    let (factor, name) = unit(top(&points) * block, SIZES);
    let count = lines.len();
    for (index, (legend, points)) in lines.into_iter().enumerate() {
        let look = Look::of(index, count);
        let shape = Shape::Line(scaled(&points, block / factor));
        items.push(Item { shape, look, legend: is_named(&look).then_some(legend) });
    }
    Some(Panel {
        name: NAMES[4],
        label: format!("credits ({name})"),
        across: None,
        weight: 1.4,
        items,
        reach: 0.0,
        is_whole: false,
    })
}

fn losses(sources: &[Source], span: &Span) -> Option<Panel> {
    let sum = |pick: fn(&Gathered) -> &Counter| {
        let mut sum = Counter::default();
        sources.iter().for_each(|source| sum.absorb(pick(&source.data)));
        sum
    };
    let sums = [
        ("dropped by the link", sum(|data| &data.link_dropped)),
        ("dropped on arrival", sum(|data| &data.dropped)),
        ("retransmitted", sum(|data| &data.retransmitted)),
    ];
    let mut items = Vec::new();
    for (index, (legend, counter)) in
        sums.iter().enumerate().filter(|(_, (_, counter))| counter.total() > 0.0)
    {
        let steps = events(counter, span);
        let (shape, look) = match index {
            0 => (Shape::Bars(steps), Look::plain(PALETTE[1].lighter(0.35), 1.0)),
            1 => (Shape::Bars(steps), Look::plain(Color::GREY, 1.0)),
            _ => (Shape::Steps(steps), Look::plain(PALETTE[0], 1.5)),
        };
        items.push(Item::new(shape, look, format!("{legend}, {:.0} in total", counter.total())));
    }
    (!items.is_empty()).then(|| Panel {
        name: NAMES[5],
        label: "lost / ms".into(),
        across: None,
        weight: 1.2,
        items,
        reach: 0.0,
        is_whole: false,
    })
}
