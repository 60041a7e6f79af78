//! Formulas over values by name: `2 * bdp`, `{loss.resent_packets} / packets`. Names with dots and other signs stand in braces.

use crate::value::{Value, Values};
use exmex::{Express, FlatEx};

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
        /// A similar name, in words.
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
    match values.get(text) {
        Some(Value::Number(number)) => return Ok(*number),
        Some(Value::Text(_)) => {
            return Err(ExpressionError::Text { text: text.to_owned(), name: text.to_owned() });
        }
        None => {}
    }
    let syntax =
        |why: exmex::ExError| ExpressionError::Syntax { text: text.to_owned(), why: why.to_string() };
    let formula: FlatEx<f64> = exmex::parse(text).map_err(syntax)?;
    let number = |name: &String| match values.get(name) {
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::Text(_)) => Err(ExpressionError::Text { text: text.to_owned(), name: name.clone() }),
        None => {
            let near = values.nearest(name).map(|near| format!(": did you mean `{near}`?"));
            let advice = near.unwrap_or_default();
            Err(ExpressionError::Unknown { text: text.to_owned(), name: name.clone(), advice })
        }
    };
    let numbers = formula.var_names().iter().map(number).collect::<Result<Vec<_>, _>>()?;
    formula.eval(&numbers).map_err(syntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_have_precedence_names_and_functions() {
        let mut values = Values::default();
        values.set("a", 6.0);
        values.set("b.x>y-z", 2.0);
        values.set("word", "text");
        for (text, value) in [
            ("a", 6.0),
            ("1 + 2 * a", 13.0),
            ("{b.x>y-z} * (a - 1)", 10.0),
            ("ceil(a / 4)", 2.0),
            ("2 ^ 3", 8.0),
            ("-3", -3.0),
            ("b.x>y-z", 2.0),
        ] {
            assert_eq!(evaluate(text, &values), Ok(value), "{text}");
        }
        let error = evaluate("aa + 1", &values).expect_err("there is no aa").to_string();
        assert_eq!(error, "`aa + 1`: nothing is known of `aa`: did you mean `a`?");
        assert!(matches!(evaluate("word", &values), Err(ExpressionError::Text { .. })));
        assert!(matches!(evaluate("1 +", &values), Err(ExpressionError::Syntax { .. })));
        assert!(matches!(evaluate("", &values), Err(ExpressionError::Syntax { .. })));
    }
}
