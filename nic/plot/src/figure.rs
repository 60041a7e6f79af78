//! A figure, independent of how it is drawn: panels with quantities over a common time axis.

use super::series::{Point, Span};

/// An RGB colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(
    /// Red.
    pub u8,
    /// Green.
    pub u8,
    /// Blue.
    pub u8,
);

impl Color {
    /// Black.
    pub const BLACK: Self = Self(0, 0, 0);
    /// A grey that is dark enough for lines.
    pub const GREY: Self = Self(0x76, 0x76, 0x76);

    /// The colour mixed with a `share` of white, from 0 to 1.
    #[must_use]
    pub fn lighter(self, share: f64) -> Self {
        let mix = |part: u8| (f64::from(part) + (255.0 - f64::from(part)) * share).round() as u8;
        Self(mix(self.0), mix(self.1), mix(self.2))
    }
}

/// Colours that can be told apart with any kind of colour vision (Okabe and Ito, "Color Universal Design"), without the
/// yellow, which is too pale for lines on white.
pub const PALETTE: [Color; 8] = [
    Color(0x00, 0x72, 0xb2),
    Color(0xd5, 0x5e, 0x00),
    Color(0x00, 0x9e, 0x73),
    Color(0xcc, 0x79, 0xa7),
    Color(0xe6, 0x9f, 0x00),
    Color(0x56, 0xb4, 0xe9),
    Color::BLACK,
    // Wine, of Tol's scheme "muted": switches often have eight ports.
    Color(0x88, 0x22, 0x55),
];

/// Markers on lines, which tell them apart in print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A filled circle.
    Circle,
    /// A filled square.
    Square,
    /// A filled triangle.
    Triangle,
    /// A filled diamond.
    Diamond,
    /// An X.
    Cross,
    /// An empty circle.
    Ring,
    /// A plus sign.
    Plus,
    /// A filled triangle that points down.
    Wedge,
}

const MARKERS: [Marker; PALETTE.len()] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Ring,
    Marker::Plus,
    Marker::Wedge,
];

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// The colour.
    pub color: Color,
    /// The width in pixels.
    pub width: f64,
    /// What is drawn on the line, if anything.
    pub marker: Option<Marker>,
}

impl Look {
    /// The look of line number `index`. It is grey if there are more lines than colours.
    #[must_use]
    pub fn of(index: usize, count: usize) -> Self {
        match (PALETTE.get(index), MARKERS.get(index)) {
            (Some(color), Some(marker)) => {
                Self { color: *color, width: 2.0, marker: (count > 1).then_some(*marker) }
            }
            _ => Self::plain(Color::GREY.lighter(0.3), 1.0),
        }
    }

    /// A line without markers.
    #[must_use]
    pub fn plain(color: Color, width: f64) -> Self {
        Self { color, width, marker: None }
    }

    /// A thin line of the same colour.
    #[must_use]
    pub fn thin(self) -> Self {
        Self { color: self.color.lighter(0.3), width: 1.0, marker: None }
    }
}

/// The way in which a quantity is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line through points.
    Line(Vec<Point>),
    /// The area between a line and 0.
    Area(Vec<Point>),
    /// The area between the lowest and the highest value at each time.
    Band(Vec<(f64, f64, f64)>),
    /// A value for each time span, as an outline.
    Steps(Vec<(f64, f64, f64)>),
    /// The same as an area.
    Bars(Vec<(f64, f64, f64)>),
    /// A constant value, as a dashed line.
    Level(f64),
    /// A time in seconds, as a dashed line over the full height of the panel.
    Moment(f64),
    /// The full height of the panel, darker for higher values from 0 to 1.
    Shade(Vec<(f64, f64, f64)>),
    /// A marker for each point.
    Dots(Vec<Point>),
    /// A line of the legend only.
    Note,
    /// A heading in the legend.
    Heading,
}

impl Shape {
    /// Whether it covers what is behind it, so that it is drawn before the grid and the lines.
    pub(crate) const fn is_filled(&self) -> bool {
        matches!(self, Self::Area(_) | Self::Band(_) | Self::Bars(_) | Self::Shade(_))
    }
}

/// A quantity in a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// How it is drawn.
    pub shape: Shape,
    /// The look of its lines.
    pub look: Look,
    /// The text of the legend, if any.
    pub legend: Option<String>,
}

impl Item {
    /// A quantity with a place in the legend.
    #[must_use]
    pub fn new(shape: Shape, look: Look, legend: impl Into<String>) -> Self {
        Self { shape, look, legend: Some(legend.into()) }
    }

    /// A quantity without one.
    #[must_use]
    pub fn silent(shape: Shape, look: Look) -> Self {
        Self { shape, look, legend: None }
    }

    /// The highest value.
    fn top(&self) -> f64 {
        let highest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        match &self.shape {
            Shape::Line(points) | Shape::Area(points) | Shape::Dots(points) => {
                highest(&mut points.iter().map(|point| point.1))
            }
            Shape::Band(ranges) => highest(&mut ranges.iter().map(|range| range.2)),
            Shape::Steps(steps) | Shape::Bars(steps) => highest(&mut steps.iter().map(|step| step.2)),
            Shape::Level(_) | Shape::Moment(_) | Shape::Shade(_) | Shape::Note | Shape::Heading => 0.0,
        }
    }
}

/// A horizontal axis that is not time.
#[derive(Clone, Debug, PartialEq)]
pub struct Across {
    /// The label, with the unit.
    pub label: String,
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// Whether equal distances are equal ratios.
    pub is_log: bool,
}

/// A diagram of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// The name in messages.
    pub name: &'static str,
    /// The label of the axis, with the unit.
    pub label: String,
    /// The horizontal axis. `None`: time, which all panels share.
    pub across: Option<Across>,
    /// Its height relative to other panels.
    pub weight: f64,
    /// The quantities, in drawing order.
    pub items: Vec<Item>,
    /// The axis reaches at least this value: panels of the same quantity share one.
    pub reach: f64,
    /// Whether all values are whole numbers.
    pub is_whole: bool,
}

impl Panel {
    /// A panel over time.
    #[must_use]
    pub fn new(name: &'static str, label: impl Into<String>, weight: f64, items: Vec<Item>) -> Self {
        Self { name, label: label.into(), across: None, weight, items, reach: 0.0, is_whole: false }
    }

    /// The highest value of the axis. A constant level counts unless it is far above the data.
    #[must_use]
    pub fn top(&self) -> f64 {
        /// A level counts up to this multiple of the data.
        const WORTH: f64 = 2.0;
        let measured = self.items.iter().map(Item::top).fold(0.0, f64::max);
        let levels = self.items.iter().filter_map(|item| match item.shape {
            Shape::Level(level) if level <= WORTH * measured => Some(level),
            _ => None,
        });
        levels.fold(measured, f64::max).max(self.reach)
    }
}

/// A whole figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The title.
    pub title: String,
    /// The line below it.
    pub subtitle: String,
    /// The time that is drawn.
    pub span: Span,
    /// The names of columns, if panels over time stand side by side. Each row of them then has a panel for each column, which has no
    /// items if nothing is to be drawn there; and the panels of a row share the vertical axis and the legend.
    pub columns: Vec<String>,
    /// Those over time come first.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// The panels from the top downwards, those side by side together.
    #[must_use]
    pub fn rows(&self) -> Vec<&[Panel]> {
        let over_time = self.panels.iter().take_while(|panel| panel.across.is_none()).count();
        let (over_time, others) = self.panels.split_at(over_time);
        over_time.chunks(self.columns.len().max(1)).chain(others.chunks(1)).collect()
    }
}
