//! Text: how wide it is, and what backends ask for its style.
//!
//! An SVG is shown in a font of the viewer, so no font is needed to write one. Bitmaps take Noto Sans (SIL Open Font License 1.1).

use plotters_backend::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, FontFamily, FontTransform};

/// Units of an em in the font (table `head`).
const EM: f64 = 2048.0;

/// Advances of the characters from the space on, up to the tilde, in Noto Sans (tables `cmap` and `hmtx`).
const ADVANCES: [u16; 95] = [
    532, 551, 836, 1323, 1171, 1702, 1499, 461, 614, 614, 1128, 1171, 549, 659, 549, 762, 1171, 1171, 1171,
    1171, 1171, 1171, 1171, 1171, 1171, 1171, 549, 549, 1171, 1171, 1171, 889, 1841, 1309, 1331, 1294, 1495,
    1139, 1063, 1491, 1518, 694, 559, 1268, 1073, 1858, 1556, 1599, 1239, 1599, 1274, 1124, 1139, 1497, 1229,
    1905, 1200, 1159, 1171, 674, 762, 674, 1171, 909, 1188, 1149, 1260, 983, 1260, 1155, 705, 1260, 1266,
    528, 528, 1094, 528, 1915, 1266, 1239, 1260, 1260, 846, 981, 739, 1266, 1040, 1610, 1083, 1044, 963, 778,
    1128, 778, 1171,
];

/// Those of other characters that pictures have.
const OTHERS: [(char, u16); 6] =
    [('µ', 1276), ('·', 549), ('…', 1620), ('→', 2048), ('←', 2048), ('×', 1171)];

/// That of any other character: a digit's.
const UNKNOWN: u16 = 1171;

fn advance(letter: char) -> u16 {
    let index = (letter as usize).checked_sub(' ' as usize);
    let other = || OTHERS.iter().find(|(known, _)| *known == letter).map(|(_, width)| *width);
    index.and_then(|index| ADVANCES.get(index).copied()).or_else(other).unwrap_or(UNKNOWN)
}

/// The width of a text in em, with a margin for viewers with a wider font.
pub(crate) fn text_width(text: &str) -> f64 {
    const SPARE: f64 = 1.1;
    let units: u32 = text.chars().map(|letter| u32::from(advance(letter))).sum();
    SPARE * f64::from(units) / EM
}

/// A text cut to at most `width` em.
pub(crate) fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut short: String = text.to_owned();
    while short.pop().is_some() && text_width(&short) + text_width("…") > width {}
    short + "…"
}

/// The style of a text.
pub(crate) struct Text {
    /// The size that backends expect.
    pub(crate) size: f64,
    pub(crate) color: BackendColor,
    pub(crate) h: HPos,
    pub(crate) turn: FontTransform,
}

impl BackendTextStyle for Text {
    type FontError = std::io::Error;

    fn color(&self) -> BackendColor {
        self.color
    }

    fn size(&self) -> f64 {
        self.size
    }

    fn transform(&self) -> FontTransform {
        self.turn.clone()
    }

    fn anchor(&self) -> Pos {
        Pos::new(self.h, VPos::Top)
    }

    fn family(&self) -> FontFamily<'_> {
        FontFamily::SansSerif
    }

    #[cfg(not(feature = "png"))]
    fn layout_box(&self, _: &str) -> Result<((i32, i32), (i32, i32)), Self::FontError> {
        Err(without_font())
    }

    #[cfg(not(feature = "png"))]
    fn draw<E, F: FnMut(i32, i32, BackendColor) -> Result<(), E>>(
        &self,
        _: &str,
        _: BackendCoord,
        _: F,
    ) -> Result<Result<(), E>, Self::FontError> {
        Err(without_font())
    }

    #[cfg(feature = "png")]
    fn layout_box(&self, text: &str) -> Result<((i32, i32), (i32, i32)), Self::FontError> {
        font(self).layout_box(text).map_err(std::io::Error::other)
    }

    #[cfg(feature = "png")]
    fn draw<E, F: FnMut(i32, i32, BackendColor) -> Result<(), E>>(
        &self,
        text: &str,
        at: BackendCoord,
        draw: F,
    ) -> Result<Result<(), E>, Self::FontError> {
        BackendTextStyle::draw(&font(self), text, at, draw).map_err(std::io::Error::other)
    }
}

/// Backends that draw letters themselves never ask for the font.
#[cfg(not(feature = "png"))]
fn without_font() -> std::io::Error {
    std::io::Error::other("this was built without a font")
}

/// The same style with the font.
#[cfg(feature = "png")]
fn font(text: &Text) -> plotters::style::TextStyle<'static> {
    use plotters::style::{FontStyle, IntoFont, TextStyle, register_font};
    static REGISTER: std::sync::Once = std::sync::Once::new();
    // If the font cannot be read, drawing says so.
    REGISTER.call_once(|| {
        let _ = register_font("sans-serif", FontStyle::Normal, notosans::REGULAR_TTF);
    });
    let font = (FontFamily::SansSerif, text.size).into_font().transform(text.turn.clone());
    TextStyle { font, color: text.color, pos: text.anchor() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_wide_is_cut() {
        assert_eq!(fitted("time (µs)", 10.0), "time (µs)");
        let short = fitted("a title that is much too long for the picture", 10.0);
        assert!(short.ends_with('…') && text_width(&short) <= 10.0, "{short}");
    }

    /// Bitmaps are drawn with the font that the widths are those of.
    #[cfg(feature = "png")]
    #[test]
    fn widths_are_those_of_the_font() {
        // Ascent plus descent of the font (table `hhea`) are 2,789 units, and that is the size that its library expects.
        let size = 10.0 * (2189.0 + 600.0);
        let style = Text {
            size,
            color: BackendColor { alpha: 1.0, rgb: (0, 0, 0) },
            h: HPos::Left,
            turn: FontTransform::None,
        };
        for letter in (' '..='~').chain(OTHERS.map(|(letter, _)| letter)) {
            // Ten letters, so that rounding to whole pixels does not matter.
            let text = letter.to_string().repeat(10);
            let ((left, _), (right, _)) = style.layout_box(&text).expect("a font");
            let width = f64::from(right - left) / 100.0;
            assert!((width - f64::from(advance(letter))).abs() < 0.5, "{letter}: {width}");
        }
    }
}
