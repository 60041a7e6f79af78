//! Draws a figure on a canvas: stacked panels with axes, and legends on the right.

use super::PlotError;
use super::canvas::{Anchor, Canvas};
use super::figure::{Color, Figure, Item, Look, Panel, Shape};
use super::series::Point;
use super::text::{fitted, text_width};
use super::ticks::Axis;
use super::units::time_unit;
use plotters_backend::DrawingBackend;

const INK: Color = Color(0x22, 0x22, 0x22);
const SOFT: Color = Color(0x59, 0x59, 0x59);
const GRID: Color = Color(0xe3, 0xe3, 0xe3);
const FRAME: Color = Color(0x99, 0x99, 0x99);

/// The width of the picture for which the sizes below are designed: 1280 by 720.
const SLIDE: f64 = 1280.0;

/// Sizes in pixels.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    title: f64,
    subtitle: f64,
    text: f64,
    margin: f64,
    gap: f64,
    swatch: f64,
    marker: f64,
    /// The distance between markers on a line.
    spacing: f64,
    /// The width of lines.
    stroke: f64,
}

impl Sizes {
    fn of(width: f64) -> Self {
        let unit = (width / SLIDE).clamp(0.7, 4.0);
        Self {
            title: 26.0 * unit,
            subtitle: 17.0 * unit,
            // Nine pixels are left of it in half the size, which can still be read.
            text: 18.0 * unit,
            margin: 18.0 * unit,
            gap: 18.0 * unit,
            swatch: 32.0 * unit,
            marker: 9.5 * unit,
            spacing: 120.0 * unit,
            stroke: unit,
        }
    }

    /// Where panels begin, below the title.
    fn head(&self) -> f64 {
        self.margin + 0.8 * self.title + 1.6 * self.subtitle + 1.2 * self.gap
    }

    /// The height of a line of a legend.
    fn line(&self) -> f64 {
        1.45 * self.text
    }
}

/// The position of a panel.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, time: &Axis, at: f64) -> f64 {
        self.left + time.place(at) * (self.right - self.left)
    }

    fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.bottom - axis.place(value) * (self.bottom - self.top)
    }

    fn height(&self) -> f64 {
        self.bottom - self.top
    }
}

/// Draws a figure.
pub(crate) fn draw<B: DrawingBackend>(
    figure: &Figure,
    (width, height): (f64, f64),
    canvas: &mut Canvas<'_, B>,
) -> Result<(), PlotError> {
    let sizes = Sizes::of(width);
    canvas.rectangle((0.0, 0.0), (width, height), Color(255, 255, 255))?;
    let room = (width - 2.0 * sizes.margin) / sizes.title;
    let y = sizes.margin + 0.8 * sizes.title;
    canvas.text(&fitted(&figure.title, room), (sizes.margin, y), sizes.title, INK, Anchor::Left)?;
    let y = y + 1.6 * sizes.subtitle;
    let room = (width - 2.0 * sizes.margin) / sizes.subtitle;
    canvas.text(&fitted(&figure.subtitle, room), (sizes.margin, y), sizes.subtitle, SOFT, Anchor::Left)?;
    let top = sizes.head();
    let left = left_of(figure, &sizes, unit_of(figure, &sizes, height - top));
    panels(figure, &sizes, (width, height), (left, top), canvas)?;
    canvas.present()
}

/// The height at which all legends fit.
pub(crate) fn height_for_legends(figure: &Figure, width: f64) -> f64 {
    let sizes = Sizes::of(width);
    let rows = figure.rows();
    let unit = |row: &&[Panel]| {
        // Half a line keeps it apart from the legend below.
        ((named(row).len() as f64 + 0.5) * sizes.line() - sizes.gap) / weight(row)
    };
    let least = rows.iter().map(unit).fold(0.0, f64::max);
    let weights: f64 = rows.iter().map(|row| weight(row)).sum();
    // The pixel is for what rounding takes.
    sizes.head() + around(figure, &sizes) + least * weights + 1.0
}

/// The height of a row relative to others.
fn weight(row: &[Panel]) -> f64 {
    row.iter().map(|panel| panel.weight).fold(0.0, f64::max)
}

/// What the legend of a row names, each look and name once.
fn named(row: &[Panel]) -> Vec<&Item> {
    let mut all: Vec<&Item> = Vec::new();
    for item in row.iter().flat_map(|panel| &panel.items).filter(|item| item.legend.is_some()) {
        if !all.iter().any(|other| (&other.legend, other.look) == (&item.legend, item.look)) {
            all.push(item);
        }
    }
    all
}

/// The room below a horizontal axis: for its numbers and its label.
const BELOW: f64 = 3.0;

/// The height of what is below panels and between them, and of the names of columns.
fn around(figure: &Figure, sizes: &Sizes) -> f64 {
    let own = figure.panels.iter().filter(|panel| panel.across.is_some()).count();
    // All panels over time have one axis.
    let axes = own + usize::from(own < figure.panels.len());
    let gaps = sizes.gap * figure.rows().len().saturating_sub(1) as f64;
    sizes.margin + names_of_columns(figure, sizes) + BELOW * sizes.text * axes as f64 + gaps
}

/// The height of the names of columns.
fn names_of_columns(figure: &Figure, sizes: &Sizes) -> f64 {
    if figure.columns.is_empty() { 0.0 } else { sizes.text }
}

/// The height of a row of weight 1, if all rows have this room together with what is below them.
fn unit_of(figure: &Figure, sizes: &Sizes, room: f64) -> f64 {
    let weights: f64 = figure.rows().iter().map(|row| weight(row)).sum();
    (room - around(figure, sizes)) / weights
}

/// The vertical axis of a panel: one tick per two lines of text, at most 6.
fn upward(panel: &Panel, sizes: &Sizes, unit: f64) -> Axis {
    let most = (panel.weight * unit / (2.2 * sizes.text)) as usize;
    match panel.is_whole {
        true => Axis::whole(panel.top(), most.clamp(1, 6)),
        false => Axis::upward(panel.top(), most.clamp(1, 6)),
    }
}

/// Where panels begin: behind the widest number of an axis.
fn left_of(figure: &Figure, sizes: &Sizes, unit: f64) -> f64 {
    let axes = figure.panels.iter().map(|panel| upward(panel, sizes, unit));
    let width = |axis: Axis| axis.ticks.iter().map(|tick| text_width(&axis.label(*tick))).fold(0.0, f64::max);
    let widest = axes.map(width).fold(0.0, f64::max);
    sizes.margin + 2.0 * sizes.text + (widest + 0.5) * sizes.text
}

/// Draws all panels, from the top downwards.
fn panels<B: DrawingBackend>(
    figure: &Figure,
    sizes: &Sizes,
    (width, height): (f64, f64),
    (left, top): (f64, f64),
    canvas: &mut Canvas<'_, B>,
) -> Result<(), PlotError> {
    let right = width - sizes.margin - legend_width(figure, sizes, width) - sizes.gap;
    let unit = unit_of(figure, sizes, height - top);
    let (factor, time_name) = time_unit(figure.span.length());
    let rows = figure.rows();
    // Numbers below neighbouring columns must not touch, and narrow columns need some all the same.
    let (apart, per_tick) = (2.0 * sizes.text, if figure.columns.len() > 1 { 4.5 } else { 7.0 });
    let mut top = top + names_of_columns(figure, sizes);
    for (index, row) in rows.iter().enumerate() {
        let bottom = top + weight(row) * unit;
        let cell = (right - left - apart * (row.len() - 1) as f64) / row.len() as f64;
        let ticks = ((cell / (per_tick * sizes.text)) as usize).clamp(1, 12);
        let mut is_first = true;
        for (column, panel) in row.iter().enumerate().filter(|(_, panel)| !panel.items.is_empty()) {
            let left = left + (cell + apart) * column as f64;
            let own = panel.across.as_ref().map(|across| match across.is_log {
                true => Axis::logarithmic(across.low, across.high, ticks),
                false => Axis::between(across.low, across.high, ticks),
            });
            let is_over_time = own.is_none();
            let across = own
                .unwrap_or_else(|| Axis::between(figure.span.from * factor, figure.span.to * factor, ticks));
            let mut painter = Painter {
                canvas: &mut *canvas,
                frame: Frame { left, right: left + cell, top, bottom },
                sizes: *sizes,
                time: &across,
                axis: &upward(panel, sizes, unit),
                factor: if is_over_time { factor } else { 1.0 },
                edge: width - sizes.margin,
            };
            painter.panel(panel, is_first)?;
            if std::mem::take(&mut is_first) {
                painter.legend(&named(row), right)?;
            }
            let is_there = |row: &&[Panel]| {
                row.get(column).is_some_and(|of| of.across.is_none() && !of.items.is_empty())
            };
            if !rows[..index].iter().any(is_there)
                && let Some(name) = figure.columns.get(column).filter(|_| is_over_time)
            {
                painter.name(name)?;
            }
            if !is_over_time || !rows[index + 1..].iter().any(is_there) {
                let time = || format!("time ({time_name})");
                painter.below(&panel.across.as_ref().map_or_else(time, |own| own.label.clone()))?;
            }
        }
        let is_last = rows.get(index + 1).is_none_or(|next| next.iter().any(|next| next.across.is_some()));
        top = bottom + sizes.gap + if is_last { BELOW * sizes.text } else { 0.0 };
    }
    Ok(())
}

/// The width of the legends: that of the widest, up to a share of the figure.
fn legend_width(figure: &Figure, sizes: &Sizes, width: f64) -> f64 {
    const MOST: f64 = 0.27;
    let widest = |panel: &Panel| {
        let axis = upward(panel, sizes, 0.0);
        panel
            .items
            .iter()
            .filter_map(|item| legend_of(item, &axis))
            .map(|text| text_width(&text))
            .fold(0.0, f64::max)
    };
    let widest = figure.panels.iter().map(widest).fold(0.0, f64::max) * sizes.text;
    (widest + sizes.swatch + sizes.text).min(MOST * width)
}

/// The text of an item in the legend. A level that the axis does not reach is said to be above.
fn legend_of(item: &Item, axis: &Axis) -> Option<String> {
    let legend = item.legend.as_ref()?;
    match item.shape {
        Shape::Level(level) if level > axis.high => Some(format!("{legend} (above)")),
        _ => Some(legend.clone()),
    }
}

/// Draws one panel.
struct Painter<'a, 'b, B> {
    canvas: &'a mut Canvas<'b, B>,
    frame: Frame,
    sizes: Sizes,
    /// The horizontal axis.
    time: &'a Axis,
    axis: &'a Axis,
    /// The number of units of the horizontal axis per second, if it is time.
    factor: f64,
    /// The right edge of the legends.
    edge: f64,
}

impl<B: DrawingBackend> Painter<'_, '_, B> {
    /// Draws a panel, and what its vertical axis measures, if it is the first of its row.
    fn panel(&mut self, panel: &Panel, is_first: bool) -> Result<(), PlotError> {
        let (behind, before): (Vec<_>, Vec<_>) = panel.items.iter().partition(|item| item.shape.is_filled());
        for item in behind {
            self.item(item)?;
        }
        self.grid(is_first)?;
        for item in &before {
            self.item(item)?;
        }
        for (index, item) in before.iter().enumerate() {
            self.markers(index, before.len(), item)?;
        }
        let Frame { left, right, top, bottom } = self.frame;
        let axis = [(left, top), (left, bottom), (right, bottom)];
        self.canvas.line(&axis, FRAME, self.sizes.stroke)?;
        if !is_first {
            return Ok(());
        }
        let middle = (self.sizes.margin + self.sizes.text, 0.5 * (top + bottom));
        let label = fitted(&panel.label, (self.frame.height() + self.sizes.gap) / self.sizes.text);
        self.canvas.text_upward(&label, middle, self.sizes.text, INK)
    }

    /// The name of a column, above its first panel.
    fn name(&mut self, name: &str) -> Result<(), PlotError> {
        let (frame, sizes) = (self.frame, self.sizes);
        let name = fitted(name, (frame.right - frame.left) / sizes.text);
        self.canvas.text(&name, (frame.left, frame.top - 0.3 * sizes.text), sizes.text, INK, Anchor::Left)
    }

    /// The numbers of the horizontal axis, and its label.
    fn below(&mut self, label: &str) -> Result<(), PlotError> {
        let (frame, sizes) = (self.frame, self.sizes);
        for tick in &self.time.ticks {
            let at = (frame.x(self.time, *tick), frame.bottom + 1.4 * sizes.text);
            self.canvas.text(&self.time.label(*tick), at, sizes.text, INK, Anchor::Middle)?;
        }
        let at = (0.5 * (frame.left + frame.right), frame.bottom + 2.9 * sizes.text);
        self.canvas.text(label, at, sizes.text, INK, Anchor::Middle)
    }

    fn grid(&mut self, has_numbers: bool) -> Result<(), PlotError> {
        let (frame, sizes) = (self.frame, self.sizes);
        for tick in &self.axis.ticks {
            let y = frame.y(self.axis, *tick);
            self.canvas.line(&[(frame.left, y), (frame.right, y)], GRID, sizes.stroke)?;
            if !has_numbers {
                continue;
            }
            let at = (frame.left - 0.5 * sizes.text, y + 0.36 * sizes.text);
            self.canvas.text(&self.axis.label(*tick), at, sizes.text, INK, Anchor::Right)?;
        }
        for tick in &self.time.ticks {
            let x = frame.x(self.time, *tick);
            self.canvas.line(&[(x, frame.top), (x, frame.bottom)], GRID, sizes.stroke)?;
            let end = frame.bottom + 0.3 * sizes.text;
            self.canvas.line(&[(x, frame.bottom), (x, end)], FRAME, sizes.stroke)?;
        }
        Ok(())
    }

    fn place(&self, (at, value): Point) -> (f64, f64) {
        let value = value.clamp(self.axis.low, self.axis.high);
        (self.frame.x(self.time, at * self.factor), self.frame.y(self.axis, value))
    }

    fn item(&mut self, item: &Item) -> Result<(), PlotError> {
        let Look { color, width, .. } = item.look;
        let width = width * self.sizes.stroke;
        match &item.shape {
            Shape::Line(points) => {
                for run in runs(points) {
                    let places: Vec<_> = run.iter().map(|point| self.place(*point)).collect();
                    match places[..] {
                        // A value of a single sample.
                        [(x, y)] => self.canvas.line(&[(x - width, y), (x + width, y)], color, width)?,
                        _ => self.canvas.line(&places, color, width)?,
                    }
                }
            }
            Shape::Area(points) => {
                for run in runs(points) {
                    let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
                    let mut places: Vec<_> = run.iter().map(|point| self.place(*point)).collect();
                    places.extend([self.place((last.0, 0.0)), self.place((first.0, 0.0))]);
                    self.canvas.surface(&places, color)?;
                }
            }
            Shape::Band(ranges) if !ranges.is_empty() => {
                let high = ranges.iter().map(|(at, _, high)| self.place((*at, *high)));
                let low = ranges.iter().rev().map(|(at, low, _)| self.place((*at, *low)));
                let places: Vec<_> = high.chain(low).collect();
                self.canvas.surface(&places, color)?;
            }
            Shape::Steps(steps) => {
                let corners = steps.iter().flat_map(|(from, to, value)| [(*from, *value), (*to, *value)]);
                let places: Vec<_> = corners.map(|corner| self.place(corner)).collect();
                self.canvas.line(&places, color, width)?;
            }
            Shape::Bars(steps) => {
                for (from, to, value) in steps.iter().filter(|step| step.2 > 0.0) {
                    let (left, right) = (self.place((*from, *value)), self.place((*to, 0.0)));
                    self.canvas.rectangle(left, right, color)?;
                }
            }
            Shape::Level(value) => {
                if *value <= self.axis.high {
                    let y = self.frame.y(self.axis, *value);
                    self.canvas.dashes((self.frame.left, y), (self.frame.right, y), color, width)?;
                }
            }
            Shape::Moment(at) => {
                let x = self.frame.x(self.time, at * self.factor);
                self.canvas.dashes((x, self.frame.top), (x, self.frame.bottom), color, width)?;
            }
            Shape::Shade(steps) => {
                for (from, to, share) in steps.iter().filter(|step| step.2 > 0.0) {
                    let (left, right) = (self.place((*from, 0.0)).0, self.place((*to, 0.0)).0);
                    // Keep it at least visible.
                    let color = color.lighter(0.75 * (1.0 - share));
                    self.canvas.rectangle((left, self.frame.top), (right, self.frame.bottom), color)?;
                }
            }
            // Their markers are drawn over everything else.
            Shape::Dots(_) | Shape::Band(_) | Shape::Note | Shape::Heading => {}
        }
        Ok(())
    }

    /// Markers at equal distances on each line, offset from those of other lines; for steps, at the highest of each part.
    fn markers(&mut self, index: usize, count: usize, item: &Item) -> Result<(), PlotError> {
        let Some(marker) = item.look.marker else { return Ok(()) };
        let places = match &item.shape {
            Shape::Line(points) => self.along(points, (index as f64 + 0.5) / count as f64),
            Shape::Steps(steps) => self.peaks(steps),
            Shape::Dots(points) => points.iter().map(|point| self.place(*point)).collect(),
            _ => return Ok(()),
        };
        for place in places {
            self.canvas.marker(marker, place, self.sizes.marker, item.look.color)?;
        }
        Ok(())
    }

    /// Points on a line at equal distances, starting at `phase` of the distance.
    fn along(&self, points: &[Point], phase: f64) -> Vec<(f64, f64)> {
        let spacing = self.sizes.spacing;
        let mut next = self.frame.left + spacing * phase;
        let mut places = Vec::new();
        for pair in points.windows(2).filter(|pair| pair.iter().all(|(_, value)| !value.is_nan())) {
            let (from, to) = (self.place(pair[0]), self.place(pair[1]));
            while next < from.0 {
                next += spacing;
            }
            while next <= to.0 && to.0 > from.0 {
                let share = (next - from.0) / (to.0 - from.0);
                places.push((next, from.1 + share * (to.1 - from.1)));
                next += spacing;
            }
        }
        places
    }

    /// The highest step of each part of equal length, unless all are 0.
    fn peaks(&self, steps: &[(f64, f64, f64)]) -> Vec<(f64, f64)> {
        let mut peaks: Vec<(usize, Point)> = Vec::new();
        for (from, to, value) in steps.iter().filter(|step| step.2 > 0.0) {
            let place = self.place((0.5 * (from + to), *value));
            let stretch = ((place.0 - self.frame.left) / self.sizes.spacing) as usize;
            match peaks.last_mut() {
                Some((last, peak)) if *last == stretch => {
                    if place.1 < peak.1 {
                        *peak = place;
                    }
                }
                _ => peaks.push((stretch, place)),
            }
        }
        peaks.into_iter().map(|(_, place)| place).collect()
    }

    /// The legend of a row that ends at `right`, cut to the lines that fit.
    fn legend(&mut self, items: &[&Item], right: f64) -> Result<(), PlotError> {
        let (frame, sizes) = (self.frame, self.sizes);
        let named: Vec<_> =
            items.iter().filter_map(|item| Some((*item, legend_of(item, self.axis)?))).collect();
        let line = sizes.line();
        let room = (((frame.height() + sizes.gap) / line) as usize).max(1);
        let left = right + sizes.gap;
        let width = (self.edge - left - sizes.swatch - 0.6 * sizes.text) / sizes.text;
        let shown = if named.len() > room { room - 1 } else { named.len() };
        let mut y = frame.top + 0.5 * line;
        for (item, text) in &named[..shown] {
            self.swatch(item, (left, y))?;
            // A heading stands in the place of the samples.
            let indent = if item.shape == Shape::Heading { 0.0 } else { sizes.swatch + 0.6 * sizes.text };
            let at = (left + indent, y + 0.36 * sizes.text);
            self.canvas.text(&fitted(text, width), at, sizes.text, INK, Anchor::Left)?;
            y += line;
        }
        if shown < named.len() {
            let at = (left + sizes.swatch + 0.6 * sizes.text, y + 0.36 * sizes.text);
            let text = format!("and {} more", named.len() - shown);
            self.canvas.text(&text, at, sizes.text, SOFT, Anchor::Left)?;
        }
        Ok(())
    }

    /// A sample of a quantity's look, centred at `y`.
    fn swatch(&mut self, item: &Item, (x, y): (f64, f64)) -> Result<(), PlotError> {
        let Look { color, width, marker } = item.look;
        let (width, length) = (width * self.sizes.stroke, self.sizes.swatch);
        match item.shape {
            Shape::Line(_) | Shape::Steps(_) | Shape::Note => {
                self.canvas.line(&[(x, y), (x + length, y)], color, width)?
            }
            Shape::Dots(_) | Shape::Heading => {}
            Shape::Level(_) => self.canvas.dashes((x, y), (x + length, y), color, width)?,
            Shape::Moment(_) => {
                let (x, half) = (x + 0.5 * length, 0.5 * self.sizes.text);
                self.canvas.line(&[(x, y - half), (x, y + half)], color, width)?;
            }
            Shape::Area(_) | Shape::Band(_) | Shape::Bars(_) | Shape::Shade(_) => {
                let half = 0.35 * self.sizes.text;
                self.canvas.rectangle((x, y - half), (x + length, y + half), color)?;
            }
        }
        match marker {
            Some(marker) => self.canvas.marker(marker, (x + 0.5 * length, y), self.sizes.marker, color),
            None => Ok(()),
        }
    }
}

/// The parts of a line between gaps.
fn runs(points: &[Point]) -> impl Iterator<Item = &[Point]> {
    points.split(|(_, value)| value.is_nan()).filter(|run| !run.is_empty())
}
