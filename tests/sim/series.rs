//! Time series of measurements.

/// Values sampled at equal intervals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The standard deviation.
    pub(crate) fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / self.0.len() as f64).sqrt()
    }
}

/// The mean of `of` over all elements.
pub(crate) fn mean<T>(all: &[T], of: impl Fn(&T) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len() as f64
}
