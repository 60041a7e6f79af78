//! Pictures as bitmaps.

use super::PlotError;
use super::canvas::{BITMAP, Canvas};
use super::draw::draw;
use super::figure::Figure;
use plotters::backend::BitMapBackend;

/// The picture as RGB pixels.
fn bitmap(figure: &Figure, (width, height): (u32, u32)) -> Result<Vec<u8>, PlotError> {
    let times = BITMAP.scale as u32;
    let (fine_width, fine_height) = (width * times, height * times);
    let mut fine = vec![255; 3 * fine_width as usize * fine_height as usize];
    let mut backend = BitMapBackend::with_buffer(&mut fine, (fine_width, fine_height));
    draw(figure, (width.into(), height.into()), &mut Canvas::new(&mut backend, BITMAP))?;
    drop(backend);
    Ok(mixed(&fine, fine_width as usize, times as usize))
}

/// The picture as a PNG file.
///
/// # Errors
/// It cannot be drawn.
pub fn png(figure: &Figure, size: (u32, u32)) -> Result<Vec<u8>, PlotError> {
    let pixels = bitmap(figure, size)?;
    let mut file = Vec::new();
    encode(&mut file, size, &pixels).map_err(|why| PlotError::Backend(why.to_string()))?;
    Ok(file)
}

/// Averages each square of `times` by `times` pixels: plotters smooths the edges of thin lines only.
fn mixed(fine: &[u8], width: usize, times: usize) -> Vec<u8> {
    let row = 3 * width;
    let mut pixels = Vec::with_capacity(fine.len() / (times * times));
    for rows in fine.chunks_exact(row * times) {
        for x in (0..row).step_by(3 * times) {
            for part in 0..3 {
                let square = (0..times).flat_map(|dy| (0..times).map(move |dx| dy * row + x + 3 * dx + part));
                let sum: u32 = square.map(|at| u32::from(rows[at])).sum();
                pixels.push((sum / (times * times) as u32) as u8);
            }
        }
    }
    pixels
}

fn encode(out: &mut Vec<u8>, (width, height): (u32, u32), pixels: &[u8]) -> Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()
}
