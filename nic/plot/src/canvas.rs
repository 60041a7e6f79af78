//! Draws lines, areas and text on a backend of plotters, with fractions of pixels.

use super::PlotError;
use super::figure::{Color, Marker};
use super::text::Text;
use plotters_backend::text_anchor::HPos;
use plotters_backend::{BackendColor, BackendStyle, DrawingBackend, FontTransform};

/// The anchor of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Left,
    Middle,
    Right,
}

/// The properties of a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The number of the backend's (whole) pixels per pixel of the picture.
    pub(crate) scale: f64,
    /// The font size of plotters in em.
    pub(crate) font_size: f64,
    /// The distance from the anchor of a text to its baseline, in font sizes.
    pub(crate) baseline: f64,
    /// Whether thick lines are drawn segment by segment. As one polygon they have holes at sharp turns.
    pub(crate) by_segment: bool,
}

/// SVG, at ten times the resolution. The text sizes are those of `draw_text` in plotters-svg.
pub(crate) const VECTOR: Manner =
    Manner { scale: 10.0, font_size: 1.24, baseline: 0.76 / 1.24, by_segment: false };

/// Bitmaps with the font engine `ab_glyph`, at three times the resolution; pixels are averaged afterwards.
/// There, the size of a font is its ascent plus descent: 1.362 em for Noto Sans (table `hhea`).
#[cfg(feature = "png")]
pub(crate) const BITMAP: Manner = Manner { scale: 3.0, font_size: 1.362, baseline: 0.5, by_segment: true };

/// A colour as backends have it.
const fn opaque(color: Color) -> BackendColor {
    BackendColor { alpha: 1.0, rgb: (color.0, color.1, color.2) }
}

/// The style of a line or of an area.
struct Stroke {
    color: Color,
    width: u32,
}

impl BackendStyle for Stroke {
    fn color(&self) -> BackendColor {
        opaque(self.color)
    }

    fn stroke_width(&self) -> u32 {
        self.width
    }
}

/// A backend with fractional pixels.
pub(crate) struct Canvas<'a, B> {
    backend: &'a mut B,
    manner: Manner,
}

impl<'a, B: DrawingBackend> Canvas<'a, B> {
    pub(crate) fn new(backend: &'a mut B, manner: Manner) -> Self {
        Self { backend, manner }
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let whole = |value: f64| (value * self.manner.scale).round() as i32;
        (whole(x), whole(y))
    }

    fn style(&self, color: Color, width: f64) -> Stroke {
        Stroke { color, width: (width * self.manner.scale).round().max(1.0) as u32 }
    }

    /// A line through points.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], color: Color, width: f64) -> Result<(), PlotError> {
        let style = self.style(color, width);
        if !self.manner.by_segment {
            let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
            return self.backend.draw_path(points, &style).map_err(failure);
        }
        for pair in points.windows(2) {
            self.segment(pair[0], pair[1], color, width)?;
        }
        // Round joints; thin lines do not need them.
        if width >= 1.5 && points.len() > 2 {
            for point in &points[1..points.len() - 1] {
                self.disc(*point, 0.5 * width, color)?;
            }
        }
        Ok(())
    }

    /// A straight line as a polygon.
    fn segment(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        color: Color,
        width: f64,
    ) -> Result<(), PlotError> {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        if length < 1e-6 {
            return Ok(());
        }
        let (nx, ny) = (-dy / length * 0.5 * width, dx / length * 0.5 * width);
        self.surface(
            &[
                (from.0 + nx, from.1 + ny),
                (to.0 + nx, to.1 + ny),
                (to.0 - nx, to.1 - ny),
                (from.0 - nx, from.1 - ny),
            ],
            color,
        )
    }

    /// A dashed straight line.
    pub(crate) fn dashes(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        color: Color,
        width: f64,
    ) -> Result<(), PlotError> {
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let (dash, gap) = (7.0, 5.0);
        let place = |at: f64| {
            let share = (at / length).min(1.0);
            (from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1))
        };
        let mut at = 0.0;
        while at < length {
            self.line(&[place(at), place(at + dash)], color, width)?;
            at += dash + gap;
        }
        Ok(())
    }

    /// A filled polygon.
    pub(crate) fn surface(&mut self, points: &[(f64, f64)], color: Color) -> Result<(), PlotError> {
        let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
        self.backend.fill_polygon(points, &self.style(color, 1.0)).map_err(failure)
    }

    /// A filled rectangle.
    pub(crate) fn rectangle(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        color: Color,
    ) -> Result<(), PlotError> {
        let (from, to) = (self.at(from), self.at(to));
        self.backend.draw_rect(from, to, &self.style(color, 1.0), true).map_err(failure)
    }

    fn disc(&mut self, center: (f64, f64), radius: f64, color: Color) -> Result<(), PlotError> {
        let radius = (radius * self.manner.scale).round() as u32;
        let center = self.at(center);
        self.backend.draw_circle(center, radius, &self.style(color, 1.0), true).map_err(failure)
    }

    /// A marker of `size` around a point, with a white rim that separates it from lines.
    pub(crate) fn marker(
        &mut self,
        marker: Marker,
        (x, y): (f64, f64),
        size: f64,
        color: Color,
    ) -> Result<(), PlotError> {
        let white = Color(255, 255, 255);
        let half = 0.5 * size;
        let square = |r: f64| [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)];
        let diamond = |r: f64| [(x - r, y), (x, y - r), (x + r, y), (x, y + r)];
        let triangle = |r: f64| [(x - r, y + 0.8 * r), (x, y - 1.1 * r), (x + r, y + 0.8 * r)];
        match marker {
            Marker::Circle => {
                self.disc((x, y), half + 1.2, white)?;
                self.disc((x, y), half, color)
            }
            Marker::Ring => {
                self.disc((x, y), half + 1.2, white)?;
                self.disc((x, y), half + 0.2, color)?;
                self.disc((x, y), half - 1.8, white)
            }
            Marker::Square => {
                self.surface(&square(half + 0.8), white)?;
                self.surface(&square(half - 0.2), color)
            }
            Marker::Diamond => {
                self.surface(&diamond(1.3 * half + 1.4), white)?;
                self.surface(&diamond(1.3 * half), color)
            }
            Marker::Triangle => {
                self.surface(&triangle(1.2 * half + 1.8), white)?;
                self.surface(&triangle(1.2 * half), color)
            }
            Marker::Wedge => {
                let wedge = |r: f64| [(x - r, y - 0.8 * r), (x, y + 1.1 * r), (x + r, y - 0.8 * r)];
                self.surface(&wedge(1.2 * half + 1.8), white)?;
                self.surface(&wedge(1.2 * half), color)
            }
            Marker::Cross => {
                self.line(&[(x - half, y - half), (x + half, y + half)], color, 2.4)?;
                self.line(&[(x - half, y + half), (x + half, y - half)], color, 2.4)
            }
            Marker::Plus => {
                self.line(&[(x - 1.2 * half, y), (x + 1.2 * half, y)], color, 2.4)?;
                self.line(&[(x, y - 1.2 * half), (x, y + 1.2 * half)], color, 2.4)
            }
        }
    }

    /// A text with its baseline at `y` and the size `em`.
    pub(crate) fn text(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        em: f64,
        color: Color,
        anchor: Anchor,
    ) -> Result<(), PlotError> {
        let down = em * self.manner.font_size * self.manner.baseline;
        self.write(text, (x, y - down), em, color, anchor, FontTransform::None)
    }

    /// A text rotated by 90 degrees, with the middle of its baseline at a point.
    pub(crate) fn text_upward(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        em: f64,
        color: Color,
    ) -> Result<(), PlotError> {
        let down = em * self.manner.font_size * self.manner.baseline;
        self.write(text, (x - down, y), em, color, Anchor::Middle, FontTransform::Rotate270)
    }

    fn write(
        &mut self,
        text: &str,
        at: (f64, f64),
        em: f64,
        color: Color,
        anchor: Anchor,
        turn: FontTransform,
    ) -> Result<(), PlotError> {
        let h = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        // Titles come from files, which may contain characters that XML forbids.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let style =
            Text { size: em * self.manner.font_size * self.manner.scale, color: opaque(color), h, turn };
        let at = self.at(at);
        self.backend.draw_text(&text, &style, at).map_err(failure)
    }

    /// Finishes the drawing.
    pub(crate) fn present(&mut self) -> Result<(), PlotError> {
        self.backend.present().map_err(failure)
    }
}

fn failure(error: impl std::fmt::Display) -> PlotError {
    PlotError::Backend(error.to_string())
}
