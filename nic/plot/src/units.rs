//! Units of axes.

/// Sizes in bytes.
pub const SIZES: [(f64, &str); 3] = [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")];

/// A unit for values up to `top`: the divisor, and its name.
#[must_use]
pub fn unit(top: f64, units: [(f64, &'static str); 3]) -> (f64, &'static str) {
    // Up to 2 of the larger unit, the smaller one is easier to read.
    let fitting = units.into_iter().find(|(factor, _)| top >= 2.0 * factor);
    fitting.unwrap_or(units[2])
}

/// The unit of a time axis of so many seconds: its number per second, and its name.
#[must_use]
pub fn time_unit(length: f64) -> (f64, &'static str) {
    match length {
        length if length > 1.0 => (1.0, "s"),
        length if length > 1e-3 => (1e3, "ms"),
        _ => (1e6, "µs"),
    }
}
