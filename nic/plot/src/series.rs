//! Turns the samples of a quantity into a line. Memory does not depend on the length of the trace.

/// A point of a line: a time in seconds, and a value. NaN is a gap.
pub type Point = (f64, f64);

/// The time span that is drawn, in seconds, and its resolution.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// The number of pixel columns.
    pub columns: usize,
    /// The window of averages in seconds. The last one may be cut.
    pub window: f64,
}

impl Span {
    /// How long it is.
    #[must_use]
    pub fn length(&self) -> f64 {
        self.to - self.from
    }

    fn windows(&self) -> usize {
        ((self.length() / self.window - 1e-6).ceil() as usize).max(1)
    }

    /// The start and the end of a window.
    fn window_at(&self, index: usize) -> (f64, f64) {
        let begin = self.from + index as f64 * self.window;
        (begin, (begin + self.window).min(self.to))
    }

    fn window_of(&self, at: f64) -> usize {
        (((at - self.from) / self.window) as usize).min(self.windows() - 1)
    }

    /// Whether a time is in it.
    #[must_use]
    pub fn contains(&self, at: f64) -> bool {
        (self.from..=self.to).contains(&at)
    }

    /// The column of a time. The end of the span belongs to the last column.
    fn column(&self, at: f64) -> usize {
        let column = ((at - self.from) / self.length() * self.columns as f64) as usize;
        column.min(self.columns.saturating_sub(1))
    }
}

/// A quantity that goes up and down. Each column keeps its first, last, lowest and highest value. A line through these has
/// the same pixels as a line through all values, so no peak is lost (Jugel et al., "M4", VLDB 2014).
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    points: Vec<Point>,
    /// The current column, and its first, lowest, highest and last point.
    column: Option<(usize, [Point; 4])>,
}

impl Gauge {
    /// Adds a value. Times must not decrease.
    pub fn add(&mut self, span: &Span, at: f64, value: Option<f64>) {
        if !span.contains(at) {
            return;
        }
        let Some(value) = value.filter(|value| value.is_finite()) else {
            self.flush();
            if self.points.last().is_some_and(|(_, value)| !value.is_nan()) {
                self.points.push((at, f64::NAN));
            }
            return;
        };
        let (column, point) = (span.column(at), (at, value));
        match &mut self.column {
            Some((current, [_, low, high, last])) if *current == column => {
                if value < low.1 {
                    *low = point;
                }
                if value > high.1 {
                    *high = point;
                }
                *last = point;
            }
            _ => {
                self.flush();
                self.column = Some((column, [point; 4]));
            }
        }
    }

    fn flush(&mut self) {
        let Some((_, mut points)) = self.column.take() else { return };
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for point in points {
            if self.points.last() != Some(&point) {
                self.points.push(point);
            }
        }
    }

    /// The line.
    #[must_use]
    pub fn finish(mut self) -> Vec<Point> {
        self.flush();
        while self.points.last().is_some_and(|(_, value)| value.is_nan()) {
            self.points.pop();
        }
        self.points
    }
}

/// A counter whose rate is drawn. The increase between two samples is spread over the windows between them, so that the
/// picture shows all of it.
#[derive(Clone, Debug, Default)]
pub struct Counter {
    /// The previous sample.
    before: Option<(f64, u64)>,
    /// The increase of the counter in each window, and the time that samples cover.
    windows: Vec<(f64, f64)>,
}

impl Counter {
    /// Starts at 0 at the time `at`, for objects created since the last sample.
    #[must_use]
    pub fn born(at: f64) -> Self {
        Self { before: Some((at, 0)), windows: Vec::new() }
    }

    /// Adds a total. Times must not decrease.
    pub fn add(&mut self, span: &Span, at: f64, total: u64) {
        let Some((since, before)) = self.before.replace((at, total)) else { return };
        let (from, to) = (since.max(span.from), at.min(span.to));
        if from >= to {
            return;
        }
        if self.windows.is_empty() {
            self.windows = vec![(0.0, 0.0); span.windows()];
        }
        let per_second = total.saturating_sub(before) as f64 / (at - since);
        let (first, last) = (span.window_of(from), span.window_of(to));
        for (window, index) in self.windows.iter_mut().skip(first).zip(first..=last) {
            let (begin, end) = span.window_at(index);
            let overlap = to.min(end) - from.max(begin);
            if overlap > 0.0 {
                window.0 += per_second * overlap;
                window.1 += overlap;
            }
        }
    }

    /// The increase of the counter in the time span that is drawn.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.windows.iter().map(|(grown, _)| grown).sum()
    }

    /// The increase per second, at the middle of each window of which samples cover at least half.
    #[must_use]
    pub fn rate(&self, span: &Span) -> Vec<Point> {
        let windows = self.windows.iter().enumerate();
        let seen = windows.filter(|(_, (_, looked))| *looked >= 0.5 * span.window);
        seen.map(|(index, (grown, looked))| {
            let (begin, end) = span.window_at(index);
            (0.5 * (begin + end), grown / looked)
        })
        .collect()
    }

    /// The increase per second in each window, from its start to its end, regardless of how much of it samples cover.
    #[must_use]
    pub fn steps(&self, span: &Span) -> Vec<(f64, f64, f64)> {
        let windows = self.windows.iter().enumerate();
        windows
            .map(|(index, (grown, _))| {
                let (begin, end) = span.window_at(index);
                (begin, end, grown / (end - begin))
            })
            .collect()
    }

    /// Adds another counter with the same windows. A time is covered if either counter has samples of it.
    pub fn absorb(&mut self, other: &Self) {
        if self.windows.is_empty() {
            self.windows = vec![(0.0, 0.0); other.windows.len()];
        }
        for (ours, theirs) in self.windows.iter_mut().zip(&other.windows) {
            *ours = (ours.0 + theirs.0, ours.1.max(theirs.1));
        }
    }
}

/// The default length of a window: a round number, at least two samples, such that there are a few hundred windows.
#[must_use]
pub fn window(length: f64, interval: f64) -> f64 {
    /// The most windows: more look like noise.
    const MOST: f64 = 250.0;
    let least = (length / MOST).max(2.0 * interval).max(1e-9);
    let power = libm::pow(10.0, libm::log10(least).floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    nice.into_iter().find(|window| *window >= least * (1.0 - 1e-9)).unwrap_or(least).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { from: 0.0, to: 10.0, columns: 10, window: 1.0 };

    #[test]
    fn few_values_are_kept_as_they_are() {
        let mut gauge = Gauge::default();
        for (at, value) in [(0.5, 1.0), (3.25, 7.0), (10.0, 2.0)] {
            gauge.add(&SPAN, at, Some(value));
        }
        gauge.add(&SPAN, 11.0, Some(99.0));
        assert_eq!(gauge.finish(), [(0.5, 1.0), (3.25, 7.0), (10.0, 2.0)]);
    }

    #[test]
    fn of_many_values_the_peaks_stay() {
        let mut gauge = Gauge::default();
        for step in 0..100_000 {
            let value = match step {
                77_777 => 1000.0,
                12_345 => -1000.0,
                _ => f64::from(step % 7),
            };
            gauge.add(&SPAN, f64::from(step) / 10_000.0, Some(value));
        }
        let points = gauge.finish();
        assert!(points.len() <= 4 * SPAN.columns, "{}", points.len());
        assert!(points.contains(&(7.7777, 1000.0)) && points.contains(&(1.2345, -1000.0)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn what_is_not_known_is_a_gap() {
        let mut gauge = Gauge::default();
        for (at, value) in [
            (0.1, None),
            (1.0, Some(1.0)),
            (2.0, None),
            (2.5, Some(f64::INFINITY)),
            (3.0, Some(3.0)),
            (4.0, None),
        ] {
            gauge.add(&SPAN, at, value);
        }
        let points = gauge.finish();
        assert_eq!(points.len(), 3);
        assert_eq!((points[0], points[2]), ((1.0, 1.0), (3.0, 3.0)));
        assert!(points[1].1.is_nan());
    }

    #[test]
    fn all_that_was_counted_is_in_some_window() {
        let mut counter = Counter::default();
        // Samples that are late, and a counter that did not start at 0.
        for (at, total) in [(0.0, 1000), (0.4, 1400), (3.7, 1400), (3.9, 2000), (10.0, 8100)] {
            counter.add(&SPAN, at, total);
        }
        assert!((counter.total() - 7100.0).abs() < 1e-6);
        let rate = counter.rate(&SPAN);
        assert_eq!(rate.len(), 10);
        assert!((rate[0].0, rate[9].0) == (0.5, 9.5));
        assert!((rate[3].1 - 700.0).abs() < 1e-6, "600 in a burst and a tenth of 1000: {rate:?}");
        assert!((rate[7].1 - 1000.0).abs() < 1e-6, "{rate:?}");
        assert!((counter.steps(&SPAN)[3].2 - 700.0).abs() < 1e-6);
    }

    #[test]
    fn counters_that_are_cut_or_born_late_have_the_rate_of_what_is_seen() {
        let mut counter = Counter::default();
        counter.add(&SPAN, -5.0, 0);
        counter.add(&SPAN, 5.0, 1000);
        counter.add(&SPAN, 15.0, 2000);
        assert!(counter.rate(&SPAN).iter().all(|(_, rate)| (rate - 100.0).abs() < 1e-6));
        assert!((counter.total() - 1000.0).abs() < 1e-6);
        let mut late = Counter::born(8.2);
        late.add(&SPAN, 9.2, 10);
        late.add(&SPAN, 9.2, 10);
        assert_eq!(late.rate(&SPAN).len(), 1, "windows that were hardly looked at say nothing");
        assert!((late.rate(&SPAN)[0].1 - 10.0).abs() < 1e-6);
        late.add(&SPAN, 9.3, 5);
        assert!((late.total() - 10.0).abs() < 1e-6, "a counter that goes back counts nothing");
    }

    #[test]
    fn sums_of_counters() {
        let mut sum = Counter::default();
        for _ in 0..2 {
            let mut counter = Counter::born(0.0);
            counter.add(&SPAN, 10.0, 50);
            sum.absorb(&counter);
        }
        sum.absorb(&Counter::default());
        assert!((sum.total() - 100.0).abs() < 1e-6);
        assert!((sum.rate(&SPAN)[4].1 - 10.0).abs() < 1e-6);
    }

    #[test]
    fn windows_have_round_lengths() {
        assert!((window(2.0, 0.001) - 0.01).abs() < 1e-9);
        assert!((window(6.58, 0.001) - 0.05).abs() < 1e-9);
        assert!((window(1.0, 0.001) - 0.005).abs() < 1e-9);
        assert!((window(0.01, 0.001) - 0.002).abs() < 1e-9);
        assert!((window(3600.0, 0.001) - 20.0).abs() < 1e-9);
        assert!((window(0.001, 0.001) - 0.001).abs() < 1e-9);
    }

    #[test]
    fn the_last_window_may_be_cut() {
        let span = Span { to: 9.6, ..SPAN };
        let mut counter = Counter::born(0.0);
        counter.add(&span, 9.6, 960);
        assert_eq!(counter.steps(&span).len(), 10);
        let (last, rate) = (counter.steps(&span)[9], counter.rate(&span)[9]);
        assert!((last.0 - 9.0).abs() < 1e-9 && (last.1 - 9.6).abs() < 1e-9 && (last.2 - 100.0).abs() < 1e-6);
        assert!((rate.0 - 9.3).abs() < 1e-9 && (rate.1 - 100.0).abs() < 1e-6);
    }
}
