//! Draws lines, areas and text on a backend of plotters, with fractions of pixels.

use super::Failure;
use super::figure::{Color, Marker};
use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{
    Color as _, FontDesc, FontFamily, FontStyle, FontTransform, IntoFont, RGBColor, ShapeStyle, TextStyle,
    register_font,
};
use std::sync::Once;

/// The anchor of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

/// The properties of a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// The number of the backend's (whole) pixels per pixel of the picture.
    pub(super) scale: f64,
    /// The font size of plotters in em.
    pub(super) font_size: f64,
    /// The distance from the anchor of a text to its baseline, in font sizes.
    pub(super) baseline: f64,
    /// Whether thick lines are drawn segment by segment. As one polygon they have holes at sharp turns.
    pub(super) by_segment: bool,
}

/// SVG, at ten times the resolution. The text sizes are those of `draw_text` in plotters.
pub(super) const VECTOR: Manner =
    Manner { scale: 10.0, font_size: 1.24, baseline: 0.76 / 1.24, by_segment: false };

/// Bitmaps with the font engine `ab_glyph`, at three times the resolution; pixels are averaged afterwards.
/// There, the size of a font is its ascent plus descent: 1.362 em for Noto Sans (table `hhea`).
pub(super) const BITMAP: Manner = Manner { scale: 3.0, font_size: 1.362, baseline: 0.5, by_segment: true };

/// The font of bitmaps and of text measurement: Noto Sans (SIL Open Font License 1.1). An SVG is shown in a font of the
/// viewer.
fn font(size: f64) -> FontDesc<'static> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        if register_font("sans-serif", FontStyle::Normal, notosans::REGULAR_TTF).is_err() {
            tracing::warn!("cannot read the built-in font");
        }
    });
    (FontFamily::SansSerif, size).into_font()
}

/// The width of a text in em, with a margin for viewers with a wider font.
pub(super) fn text_width(text: &str) -> f64 {
    const SIZE: f64 = 1000.0;
    const SPARE: f64 = 1.1;
    let measured = font(SIZE * BITMAP.font_size).box_size(text).map(|(width, _)| f64::from(width) / SIZE);
    // Without a font, assume half an em per letter.
    SPARE * measured.unwrap_or(0.5 * text.chars().count() as f64)
}

/// A text cut to at most `width` em.
pub(super) fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut short: String = text.to_owned();
    while short.pop().is_some() && text_width(&short) + text_width("…") > width {}
    short + "…"
}

/// A backend with fractional pixels.
pub(super) struct Canvas<'a, B> {
    backend: &'a mut B,
    manner: Manner,
}

impl<'a, B: DrawingBackend> Canvas<'a, B> {
    pub(super) fn new(backend: &'a mut B, manner: Manner) -> Self {
        Self { backend, manner }
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let whole = |value: f64| (value * self.manner.scale).round() as i32;
        (whole(x), whole(y))
    }

    fn style(&self, color: Color, width: f64) -> ShapeStyle {
        let color = RGBColor(color.0, color.1, color.2);
        let width = (width * self.manner.scale).round().max(1.0) as u32;
        ShapeStyle { color: color.into(), filled: true, stroke_width: width }
    }

    /// A line through points.
    pub(super) fn line(&mut self, points: &[(f64, f64)], color: Color, width: f64) -> Result<(), Failure> {
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
    fn segment(&mut self, from: (f64, f64), to: (f64, f64), color: Color, width: f64) -> Result<(), Failure> {
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
    pub(super) fn dashes(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        color: Color,
        width: f64,
    ) -> Result<(), Failure> {
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
    pub(super) fn surface(&mut self, points: &[(f64, f64)], color: Color) -> Result<(), Failure> {
        let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
        self.backend.fill_polygon(points, &self.style(color, 1.0)).map_err(failure)
    }

    /// A filled rectangle.
    pub(super) fn rectangle(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        color: Color,
    ) -> Result<(), Failure> {
        let (from, to) = (self.at(from), self.at(to));
        self.backend.draw_rect(from, to, &self.style(color, 1.0), true).map_err(failure)
    }

    fn disc(&mut self, center: (f64, f64), radius: f64, color: Color) -> Result<(), Failure> {
        let radius = (radius * self.manner.scale).round() as u32;
        let center = self.at(center);
        self.backend.draw_circle(center, radius, &self.style(color, 1.0), true).map_err(failure)
    }

    /// A marker of `size` around a point, with a white rim that separates it from lines.
    pub(super) fn marker(
        &mut self,
        marker: Marker,
        (x, y): (f64, f64),
        size: f64,
        color: Color,
    ) -> Result<(), Failure> {
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
    pub(super) fn text(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        em: f64,
        color: Color,
        anchor: Anchor,
    ) -> Result<(), Failure> {
        let down = em * self.manner.font_size * self.manner.baseline;
        self.write(text, (x, y - down), em, color, anchor, FontTransform::None)
    }

    /// A text rotated by 90 degrees, with the middle of its baseline at a point.
    pub(super) fn text_upward(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        em: f64,
        color: Color,
    ) -> Result<(), Failure> {
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
    ) -> Result<(), Failure> {
        let h = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        // Titles come from files, which may contain characters that XML forbids.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let font = font(em * self.manner.font_size * self.manner.scale).transform(turn);
        let color = RGBColor(color.0, color.1, color.2).to_backend_color();
        let style = TextStyle { font, color, pos: Pos::new(h, VPos::Top) };
        let at = self.at(at);
        self.backend.draw_text(&text, &style, at).map_err(failure)
    }

    /// Finishes the drawing.
    pub(super) fn present(&mut self) -> Result<(), Failure> {
        self.backend.present().map_err(failure)
    }
}

fn failure(error: impl std::fmt::Display) -> Failure {
    format!("cannot draw the picture: {error}").into()
}
