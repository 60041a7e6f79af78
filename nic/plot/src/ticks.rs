//! Axes: the positions of ticks, and their labels.

/// An axis from `low` to `high`, with ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    /// Digits after the decimal point.
    decimals: usize,
    /// Whether equal distances are equal ratios.
    is_log: bool,
}

/// The functions of `libm` give the same picture on all machines, and in a browser.
fn power_of_ten(power: i32) -> f64 {
    libm::pow(10.0, f64::from(power))
}

/// The distance between ticks: 1, 2 or 5 times a power of ten, such that there are at most `most` steps.
fn step(length: f64, most: usize) -> f64 {
    let least = length / most.max(1) as f64;
    let power = power_of_ten(libm::log10(least).floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    // The tolerance is for rounding errors: 0.1 + 0.2 is not 0.3.
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

impl Axis {
    /// An axis from 0 to a little above `high`, so that a line at the top is not cut.
    pub(crate) fn upward(high: f64, most: usize) -> Self {
        const HEADROOM: f64 = 1.06;
        let high = if high > 0.0 && high.is_finite() { high } else { 1.0 };
        Self::with(0.0, HEADROOM * high, step(high, most))
    }

    /// An axis of whole numbers from 0 to `high`, with room for markers at both ends.
    pub(crate) fn whole(high: f64, most: usize) -> Self {
        const ROOM: f64 = 0.5;
        let high = if high > 0.0 && high.is_finite() { high } else { 0.0 };
        let room = ROOM.max(0.04 * high);
        Self::with(-room, high + room, step(high, most).max(1.0))
    }

    /// An axis of exactly this span, with ticks within it.
    pub(crate) fn between(low: f64, high: f64, most: usize) -> Self {
        // One number alone shows no scale, and up to three have room: two steps more always make two of an axis that begins at 0.
        let of = |most| Self::with(low, high, step(high - low, most));
        (most..=most + 2).map(of).find(|axis| axis.ticks.len() >= 2).unwrap_or_else(|| of(most))
    }

    fn with(low: f64, high: f64, step: f64) -> Self {
        let tolerance = step * 1e-6;
        let first = ((low - tolerance) / step).ceil();
        let last = ((high + tolerance) / step).floor();
        // A bound of `most` + 1 ticks, for any numbers.
        let count = (last - first).clamp(0.0, 1000.0) as usize;
        let ticks = (0..=count).map(|index| (first + index as f64) * step).collect();
        let decimals = (-libm::log10(step).floor()).clamp(0.0, 9.0) as usize;
        Self { low, high, ticks, decimals, is_log: false }
    }

    /// An axis of this span, of positive numbers, on which equal distances are equal ratios.
    pub(crate) fn logarithmic(low: f64, high: f64, most: usize) -> Self {
        let (first, last) = (libm::log10(low).floor() as i32, libm::log10(high).ceil() as i32);
        let of = |digits: &[f64]| {
            let powers = (first..=last.min(first.saturating_add(400))).map(power_of_ten);
            let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
            all.filter(|tick| (low..=high).contains(tick)).collect::<Vec<_>>()
        };
        let fitting =
            [&[1.0, 2.0, 5.0][..], &[1.0, 3.0]].into_iter().map(of).find(|ticks| ticks.len() <= most + 1);
        let ticks = fitting.unwrap_or_else(|| {
            let tens = of(&[1.0]);
            let every = tens.len().div_ceil(most.max(1)).max(1);
            tens.into_iter().step_by(every).collect()
        });
        Self { low, high, ticks, decimals: 0, is_log: true }
    }

    /// The position of a value on the axis, from 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        if self.is_log {
            return libm::log(value.max(self.low) / self.low) / libm::log(self.high / self.low);
        }
        (value - self.low) / (self.high - self.low)
    }

    /// The label of a tick.
    pub(crate) fn label(&self, tick: f64) -> String {
        if self.is_log {
            return tick.to_string();
        }
        let text = format!("{tick:.*}", self.decimals);
        // Small negative numbers round to -0.
        if text.trim_start_matches(['-', '0', '.']).is_empty() {
            text.trim_start_matches('-').to_owned()
        } else {
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(labels(&Axis::upward(23.0, 5)), ["0", "5", "10", "15", "20"]);
        assert_eq!(labels(&Axis::upward(1.0, 5)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Axis::upward(0.3, 3)), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&Axis::upward(40.0, 4)), ["0", "10", "20", "30", "40"]);
        assert_eq!(labels(&Axis::upward(8999.0, 3)), ["0", "5000"]);
        assert_eq!(labels(&Axis::between(0.5, 2.0, 4)), ["0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(labels(&Axis::between(-0.1, 0.1, 4)), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
    }

    /// A narrow panel of 448 us had a 0 and nothing else.
    #[test]
    fn an_axis_of_time_has_two_numbers() {
        for (high, most, expected) in
            [(448.0, 1, 3), (448.0, 2, 3), (125.0, 1, 2), (199.0, 1, 2), (201.0, 1, 2), (500.0, 1, 2)]
        {
            let ticks = Axis::between(0.0, high, most).ticks;
            assert_eq!(ticks.len(), expected, "{high} {most}: {ticks:?}");
        }
        for tenth in 10..10_000 {
            let axis = Axis::between(0.0, 0.1 * f64::from(tenth), 1);
            assert!((2..=4).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn whole_numbers_have_whole_ticks() {
        assert_eq!(labels(&Axis::whole(0.0, 6)), ["0"]);
        assert_eq!(labels(&Axis::whole(3.0, 6)), ["0", "1", "2", "3"]);
        assert_eq!(labels(&Axis::whole(21.0, 6)), ["0", "5", "10", "15", "20"]);
        assert!(Axis::whole(f64::NAN, 6).place(0.0) > 0.0, "nothing is on the axis itself");
    }

    #[test]
    fn no_value_is_above_the_axis_and_no_number_is_too_odd() {
        for high in [1e-9, 0.07, 1.0, 3.0, 9.99, 10.0, 10.01, 1e12, 0.0, f64::NAN, f64::INFINITY] {
            for most in [0, 1, 3, 6] {
                let axis = Axis::upward(high, most);
                assert!((1..=most.max(1) + 1).contains(&axis.ticks.len()), "{axis:?}");
                assert!(!high.is_finite() || axis.high >= high, "{high}: {axis:?}");
            }
        }
    }

    #[test]
    fn a_logarithmic_axis_has_round_ticks_at_equal_ratios() {
        let axis = Axis::logarithmic(9.0, 1500.0, 8);
        assert_eq!(labels(&axis), ["10", "20", "50", "100", "200", "500", "1000"]);
        assert_eq!(labels(&Axis::logarithmic(9.0, 1500.0, 5)), ["10", "30", "100", "300", "1000"]);
        assert_eq!(labels(&Axis::logarithmic(0.05, 90_000.0, 4)), ["0.1", "10", "1000"]);
        let (one, two) = (axis.place(20.0) - axis.place(10.0), axis.place(1000.0) - axis.place(500.0));
        assert!(
            (one - two).abs() < 1e-9 && axis.place(9.0) == 0.0 && (axis.place(1500.0) - 1.0).abs() < 1e-9
        );
    }

    #[test]
    fn places_are_linear() {
        let axis = Axis::between(2.0, 4.0, 4);
        assert_eq!((axis.place(2.0), axis.place(3.0), axis.place(4.0)), (0.0, 0.5, 1.0));
    }
}
