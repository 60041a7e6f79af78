//! Numbers and texts by name: parameters, measurements, answers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A number or a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub const fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The number that a person wrote, also if it stands in quotation marks, or has commas between thousands.
    #[must_use]
    pub fn read_number(&self) -> Option<f64> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Text(text) => {
                let mut groups = text.trim().split(',');
                let first = groups.next()?;
                let are_thousands =
                    groups.clone().all(|group| group.split('.').next().is_some_and(|whole| whole.len() == 3));
                let is_grouped = groups.clone().next().is_some();
                if is_grouped && (!are_thousands || first.trim_start_matches('-').len() > 3) {
                    return None;
                }
                groups.fold(first.to_owned(), |number, group| number + group).parse().ok()?
            }
        };
        number.is_finite().then_some(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Numbers have at most four digits behind the point.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => {
                let text = format!("{number:.4}");
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Values by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(pub BTreeMap<String, Value>);

impl Values {
    /// The value of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Sets a value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Adds all values of `others`, whose names get `prefix` and a dot in front.
    pub fn join(&mut self, prefix: &str, others: &Self) {
        self.0.extend(others.0.iter().map(|(name, value)| (format!("{prefix}.{name}"), value.clone())));
    }

    /// The known name that is nearest to one that is not known.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<&str> {
        cc::nearest(name, self.0.keys().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [(3.0, "3"), (0.5, "0.5"), (1.0 / 3.0, "0.3333"), (120.0, "120"), (0.0, "0")] {
            assert_eq!(Value::from(number).to_string(), text);
        }
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        let text = |text: &str| Value::from(text).read_number();
        for (written, number) in
            [("4", 4.0), (" 1,234 ", 1234.0), ("1,234,567.5", 1_234_567.5), ("-2.5", -2.5)]
        {
            assert_eq!(text(written), Some(number), "{written}");
        }
        for written in ["105,4", "1,23", "1234,567", "nan", "inf", "4 us", ""] {
            assert_eq!(text(written), None, "{written}");
        }
    }
}
