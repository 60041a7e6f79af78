//! Texts with places to fill in: `$(name)`, `$(rate / 8)`, and `$(rate / 8; 2)` with two digits behind the point.
//! `$(count|switch|switches)` adds the first word to the number 1, and the second to all others.

use crate::expression::{ExpressionError, evaluate};
use crate::value::{Value, Values};

/// Fills in values.
///
/// # Errors
/// A place names what is not known.
pub fn fill(text: &str, values: &Values) -> Result<String, ExpressionError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("$(") {
        out += before;
        let Some(end) = end_of(after) else {
            out += "$(";
            rest = after;
            continue;
        };
        out += &place(&after[..end], values)?;
        rest = &after[end + 1..];
    }
    Ok(out + rest)
}

/// Where the parenthesis closes.
fn end_of(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, letter)| {
        match letter {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
        None
    })
}

fn place(text: &str, values: &Values) -> Result<String, ExpressionError> {
    if let Some((count, (one, many))) =
        text.split_once('|').and_then(|(count, words)| Some((count, words.split_once('|')?)))
    {
        let count = place(count, values)?;
        let word = if count == "1" { one } else { many };
        return Ok(format!("{count} {}", word.trim()));
    }
    if let Some(value) = values.get(text.trim()) {
        return Ok(value.to_string());
    }
    let (formula, digits) = text.split_once(';').unwrap_or((text, ""));
    let number = evaluate(formula.trim(), values)?;
    Ok(match digits.trim().parse::<usize>() {
        Ok(digits) => format!("{number:.digits$}"),
        Err(_) => Value::Number(number).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in() {
        let mut values = Values::default();
        values.set("n", 8.0);
        values.set("who", "bob");
        for (text, filled) in [
            ("no place, $ and () stay", "no place, $ and () stay"),
            ("$(who) has $(n) and $((n + 1) * 2).", "bob has 8 and 18."),
            ("$(n / 3; 2) of it", "2.67 of it"),
            ("$(n|flow|flows), $(n - 7 | flow | flows)", "8 flows, 1 flow"),
            ("$(n / 3; 1|us|us)", "2.7 us"),
            ("it does not end: $(n", "it does not end: $(n"),
        ] {
            assert_eq!(fill(text, &values).as_deref(), Ok(filled));
        }
        assert!(fill("$(m)", &values).is_err());
    }
}
