//! Formulas over values by name: `2 * bdp`, `ceil({loss.sent_again} / packets)`. Names with dots and other signs stand in braces.
//!
//! Operators are `+ - * / ^` with their usual precedence, `^` from right to left, and a minus in front. Functions: `abs`, `ceil`,
//! `floor`, `round`, `sqrt`, `ln`, `log2`. (The library that was tried first folded constants wrongly behind a function.)

use crate::value::{Value, Values};

/// Why a formula has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It is no formula.
    #[error("`{text}` is no formula: {why}")]
    Syntax {
        /// The formula.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// It names something unknown.
    #[error("`{text}`: nothing is known of `{name}`{advice}")]
    Unknown {
        /// The formula.
        text: String,
        /// The name.
        name: String,
        /// Suggests a similar name, if there is one.
        advice: String,
    },
    /// It names a text.
    #[error("`{text}`: `{name}` is no number")]
    Text {
        /// The formula.
        text: String,
        /// The name.
        name: String,
    },
}

/// The value of a formula, or of the value that it names.
///
/// # Errors
/// It is no formula, or names what is not known.
pub fn evaluate(text: &str, values: &Values) -> Result<f64, ExpressionError> {
    if values.get(text).is_some() {
        return number(text, text, values);
    }
    let mut parser = Parser { text, rest: text, values, depth: 0 };
    let result = parser.sum()?;
    match parser.rest.trim_start() {
        "" => Ok(result),
        rest => Err(parser.wrong(&format!("`{rest}` is left over"))),
    }
}

/// The number of this name.
fn number(name: &str, text: &str, values: &Values) -> Result<f64, ExpressionError> {
    match values.get(name) {
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::Text(_)) => Err(ExpressionError::Text { text: text.to_owned(), name: name.to_owned() }),
        None => {
            let near = values.nearest(name).map(|near| format!(": did you mean `{near}`?"));
            let advice = near.unwrap_or_default();
            Err(ExpressionError::Unknown { text: text.to_owned(), name: name.to_owned(), advice })
        }
    }
}

/// How deep parentheses may be: a text must not use up the stack.
const DEEPEST: u32 = 50;

/// A formula that is read from left to right.
struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    values: &'a Values,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn wrong(&self, why: &str) -> ExpressionError {
        ExpressionError::Syntax { text: self.text.to_owned(), why: why.to_owned() }
    }

    /// Takes one of these signs, if it is next.
    fn take(&mut self, signs: &[char]) -> Option<char> {
        let rest = self.rest.trim_start();
        let sign = rest.chars().next().filter(|sign| signs.contains(sign))?;
        self.rest = &rest[sign.len_utf8()..];
        Some(sign)
    }

    /// Takes letters as long as they are of a kind.
    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn sum(&mut self) -> Result<f64, ExpressionError> {
        let mut result = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let next = self.product()?;
            result = if sign == '+' { result + next } else { result - next };
        }
        Ok(result)
    }

    fn product(&mut self) -> Result<f64, ExpressionError> {
        let mut result = self.signed()?;
        while let Some(sign) = self.take(&['*', '/']) {
            let next = self.signed()?;
            result = if sign == '*' { result * next } else { result / next };
        }
        Ok(result)
    }

    /// -2^2 is -4.
    fn signed(&mut self) -> Result<f64, ExpressionError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.wrong("it is nested too deep"));
        }
        let result = match self.take(&['-']) {
            Some(_) => -self.signed()?,
            None => self.power()?,
        };
        self.depth -= 1;
        Ok(result)
    }

    fn power(&mut self) -> Result<f64, ExpressionError> {
        let base = self.atom()?;
        match self.take(&['^']) {
            Some(_) => Ok(base.powf(self.signed()?)),
            None => Ok(base),
        }
    }

    fn atom(&mut self) -> Result<f64, ExpressionError> {
        match self.take(&['(', '{']) {
            Some('(') => {
                let result = self.sum()?;
                return self.take(&[')']).map(|_| result).ok_or_else(|| self.wrong("a `)` is missing"));
            }
            Some(_) => {
                let name = self.word(|letter| letter != '}');
                return match self.take(&['}']) {
                    Some(_) => number(name.trim(), self.text, self.values),
                    None => Err(self.wrong("a `}` is missing")),
                };
            }
            None => {}
        }
        let word = self.word(|letter| letter.is_alphanumeric() || letter == '_' || letter == '.');
        if word.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.') {
            return word.parse().map_err(|_| self.wrong(&format!("`{word}` is no number")));
        }
        if word.is_empty() {
            let rest = self.rest.trim_start();
            return Err(self.wrong(&if rest.is_empty() {
                "it ends too early".to_owned()
            } else {
                format!("a number or a name is missing before `{rest}`")
            }));
        }
        match function(word).filter(|_| self.rest.trim_start().starts_with('(')) {
            Some(function) => Ok(function(self.atom()?)),
            None => number(word, self.text, self.values),
        }
    }
}

/// The function of this name.
fn function(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "abs" => f64::abs,
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        "round" => f64::round,
        "sqrt" => f64::sqrt,
        "ln" => f64::ln,
        "log2" => f64::log2,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        values.set("a", 6.0);
        values.set("b.x>y-z", 2.0);
        values.set("word", "text");
        values
    }

    #[test]
    fn formulas_have_precedence_names_and_functions() {
        for (text, value) in [
            ("a", 6.0),
            ("1 + 2 * a", 13.0),
            ("{b.x>y-z} * (a - 1)", 10.0),
            ("b.x>y-z", 2.0),
            ("ceil(a / 4)", 2.0),
            ("sqrt(a * 6 * 4)", 12.0),
            ("round(a * 4178 * 8 / 400)", 501.0),
            ("12 / a / 2", 1.0),
            ("10 - a - 1", 3.0),
            ("2 ^ 3", 8.0),
            ("2 ^ 3 ^ 2", 512.0),
            ("-2 ^ 2", -4.0),
            ("2 ^ -1", 0.5),
            ("-(a)--1", -5.0),
            (" 1.5e0 ", 1.5),
        ] {
            assert_eq!(evaluate(text, &values()), Ok(value), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = evaluate("aa + 1", &values()).expect_err("there is no aa").to_string();
        assert_eq!(error, "`aa + 1`: nothing is known of `aa`: did you mean `a`?");
        assert!(matches!(evaluate("word", &values()), Err(ExpressionError::Text { .. })));
        let deep = "(".repeat(10_000);
        for text in
            ["", "1 +", "(1", "{a", "1 2", "1..2", "* 3", "a)", "ceil", "@", &deep, &"-".repeat(10_000)]
        {
            assert!(evaluate(text, &values()).is_err(), "{text}");
        }
    }
}
