//! Pictures of two NICs: PSNs over time.

use super::WIDTH;
use super::figure::{Color, Figure, Item, Look, Marker, PALETTE, Panel, Shape};
use super::series::Span;
use rnic_lab::experiment::{Step, Steps};

/// What there is to see: kinds of packets, with their look.
const KINDS: [(&str, Color, Marker); 5] = [
    ("data", PALETTE[0], Marker::Circle),
    ("sent again", PALETTE[1], Marker::Square),
    ("acknowledged", PALETTE[2], Marker::Triangle),
    ("NAK", PALETTE[3], Marker::Diamond),
    ("RNR NAK", PALETTE[4], Marker::Ring),
];

/// The picture of packets.
#[must_use]
pub fn figure(title: &str, subtitle: &str, steps: &Steps) -> Figure {
    let times = steps.packets.iter().map(|step| step.at_us).chain(steps.end.map(|(at, _)| at));
    let end = times.fold(0.0, f64::max) / 1e6;
    let end = if end > 0.0 { end } else { 1e-6 };
    // Packets of one train leave at the same time: the first must not be on the axis.
    let span = Span { from: -0.03 * end, to: 1.03 * end, columns: WIDTH as usize, window: end };
    let mut items = Vec::new();
    for is_lost in [false, true] {
        for (what, color, marker) in KINDS {
            // A NAK comes just before what it causes, which would cover it.
            let left = if what == "NAK" { 0.008 * end } else { 0.0 };
            let of = steps.packets.iter().filter(|step| step.what == what && step.is_lost == is_lost);
            let points: Vec<_> = of.map(|step| place(step, left)).collect();
            if points.is_empty() {
                continue;
            }
            let marker = if is_lost { Marker::Cross } else { marker };
            let look = Look { color, width: 1.0, marker: Some(marker) };
            let legend = if is_lost { format!("{what}, lost") } else { what.to_owned() };
            items.push(Item::new(Shape::Dots(points), look, legend));
        }
    }
    if let Some((at, status)) = steps.end {
        let look = Look::plain(Color::BLACK, 1.2);
        items.push(Item::new(Shape::Moment(at / 1e6), look, format!("end: {status}")));
    }
    let mut panel = Panel::new("PSNs", "PSN", 3.0, items);
    panel.is_whole = true;
    Figure {
        title: title.to_owned(),
        subtitle: subtitle.to_owned(),
        span,
        columns: Vec::new(),
        panels: vec![panel],
    }
}

fn place(step: &Step, left: f64) -> (f64, f64) {
    (step.at_us / 1e6 - left, f64::from(step.psn))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(at_us: f64, psn: i32, what: &'static str, is_lost: bool) -> Step {
        Step { at_us, psn, what, is_lost }
    }

    /// It once ended with the last packet, which a timeout follows, and had ticks between whole numbers.
    #[test]
    fn the_end_of_the_run_is_drawn_and_psns_are_whole() {
        let packets = vec![step(0.0, 0, "data", true), step(16_000.0, 0, "sent again", true)];
        let steps = Steps { packets, end: Some((33_000.0, "RETRY_EXC_ERR")) };
        let figure = figure("gone", "", &steps);
        assert!(figure.span.contains(0.033));
        let legends: Vec<_> =
            figure.panels[0].items.iter().filter_map(|item| item.legend.as_deref()).collect();
        assert_eq!(legends, ["data, lost", "sent again, lost", "end: RETRY_EXC_ERR"]);
        let svg = crate::svg(&figure, (1280, 720)).expect("a picture");
        let numbers: Vec<&str> = svg.lines().filter(|line| line.parse::<f64>().is_ok()).collect();
        assert!(!svg.contains("0.5\n") && numbers.contains(&"0") && numbers.contains(&"30"), "{numbers:?}");
        let running = super::figure("gone", "", &Steps { end: None, ..steps });
        assert!(!crate::svg(&running, (1280, 720)).expect("a picture").contains("end:"));
    }
}
