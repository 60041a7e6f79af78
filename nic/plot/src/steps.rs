//! Pictures of two NICs: PSNs over time.

use super::WIDTH;
use super::figure::{Color, Figure, Item, Look, Marker, PALETTE, Panel, Shape};
use super::series::Span;
use rnic_lab::experiment::Step;

/// The picture of packets.
#[must_use]
pub fn figure(title: &str, subtitle: &str, steps: &[Step]) -> Figure {
    let end = steps.iter().map(|step| step.at_us).fold(0.0, f64::max) / 1e6;
    let end = if end > 0.0 { end } else { 1e-6 };
    // Packets of one train leave at the same time: the first must not be on the axis.
    let span = Span { from: -0.03 * end, to: 1.03 * end, columns: WIDTH as usize, window: end };
    let kinds = [
        ("data", PALETTE[0], Marker::Circle),
        ("sent again", PALETTE[1], Marker::Square),
        ("acknowledged", PALETTE[2], Marker::Triangle),
        ("NAK", PALETTE[3], Marker::Diamond),
        ("RNR NAK", PALETTE[4], Marker::Ring),
        ("lost", Color::BLACK, Marker::Cross),
    ];
    let mut items = Vec::new();
    for (what, color, marker) in kinds {
        let is_of = |step: &&Step| if what == "lost" { step.is_lost } else { step.what == what };
        // A NAK comes just before what it causes, which would cover it.
        let left = if what == "NAK" { 0.008 * end } else { 0.0 };
        let points: Vec<_> =
            steps.iter().filter(is_of).map(|step| (step.at_us / 1e6 - left, f64::from(step.psn))).collect();
        if !points.is_empty() {
            let look = Look { color, width: 1.0, marker: Some(marker) };
            items.push(Item::new(Shape::Dots(points), look, what));
        }
    }
    let panel = Panel { name: "PSNs", label: "PSN".to_owned(), across: None, weight: 3.0, items, reach: 0.0 };
    Figure { title: title.to_owned(), subtitle: subtitle.to_owned(), span, panels: vec![panel] }
}
