//! Pictures: panels with quantities over a common time axis, as SVG or, with the feature `png`, as bitmaps.
//!
//! A [`Figure`] says what is drawn, and not how. [`fabric`] makes one of what a fabric samples, [`steps`] of the packets
//! of two NICs, and [`of_lab`] of either; `rnic plot` makes its own of traces. Everything is computed alike on all machines, so a
//! picture is the same, byte for byte, also in a browser.

mod canvas;
mod draw;
pub mod fabric;
pub mod figure;
pub mod series;
pub mod steps;
mod text;
mod ticks;
pub mod units;

use canvas::{Canvas, VECTOR};
use figure::Figure;
use plotters_svg::SVGBackend;
use rnic_lab::experiment::{Picture, Ran};

#[cfg(feature = "png")]
mod bitmap;
#[cfg(feature = "png")]
pub use bitmap::png;

/// The default width in pixels.
pub const WIDTH: u32 = 1280;

/// The default height in pixels, the number of rows of panels that it suits, and the pixels that each further row adds.
const HEIGHT: (u32, usize, u32) = (720, 4, 140);

/// The default height of a picture of this width: more for more rows of panels, and for longer legends.
#[must_use]
pub fn height(figure: &Figure, width: u32) -> u32 {
    let (slide, enough, each) = HEIGHT;
    let usual = slide + each * u32::try_from(figure.rows().len().saturating_sub(enough)).unwrap_or(0);
    // A legend without end is cut.
    (draw::height_for_legends(figure, width.into()).ceil() as u32).clamp(usual, 2 * usual)
}

/// Units of an SVG's coordinates per pixel.
pub const FINENESS: f64 = VECTOR.scale;

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlotError {
    /// Whatever draws has failed.
    #[error("cannot draw the picture: {0}")]
    Backend(String),
    /// A run of a fabric has neither samples nor enough flows that ended.
    #[error(
        "nothing to draw: add `interval`, `ports` or `flows` to the table [sample] of the scenario; from {} finished flows on there \
         are completion times",
        fabric::ENOUGH
    )]
    Nothing,
}

/// The picture as SVG.
///
/// # Errors
/// It cannot be drawn.
pub fn svg(figure: &Figure, (width, height): (u32, u32)) -> Result<String, PlotError> {
    let fine = |pixels: u32| (f64::from(pixels) * VECTOR.scale) as u32;
    let mut text = String::new();
    let mut backend = SVGBackend::with_string(&mut text, (fine(width), fine(height)));
    draw::draw(figure, (width.into(), height.into()), &mut Canvas::new(&mut backend, VECTOR))?;
    drop(backend);
    // The picture is drawn at a higher resolution than the size in its first tag.
    let drawn = format!("width=\"{}\" height=\"{}\"", fine(width), fine(height));
    Ok(text.replacen(&drawn, &format!("width=\"{width}\" height=\"{height}\""), 1))
}

/// The picture of what a lab's experiment measured. `None` if it has none.
///
/// # Errors
/// There is nothing to draw.
pub fn of_lab(title: &str, ran: &Ran) -> Result<Option<Figure>, PlotError> {
    match &ran.picture {
        Picture::Steps(all) => Ok(Some(steps::figure(title, "virtual time, the requester's port", all))),
        Picture::Fabric(reports) if reports.iter().any(|(_, report)| fabric::can_draw(report)) => {
            let runs: Vec<_> = reports.iter().map(|(name, report)| fabric::Run { name, report }).collect();
            let conditions = fabric::conditions(reports.iter().map(|(_, report)| report));
            fabric::figure(title, &format!("virtual time{conditions}"), &runs).map(Some)
        }
        Picture::Fabric(_) | Picture::None => Ok(None),
    }
}
