//! `--set key=value` and `--vary key=a,b`: changes of a scenario before it is read.

use super::error::Problem;
use rnic_fabric::scenario::set_key;
use std::fmt;
use toml::{Table, Value};

/// The options that change a scenario.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Changes {
    /// Change a key of the file, such as switch.buffer.shared=1MB or workload.0.bytes="4 MB". May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = Assignment::parse)]
    set: Vec<Assignment>,
    /// The congestion control of the NICs, such as off, dcqcn:preset=laptop or timely: short for --set nic.cc=TEXT.
    #[arg(long, value_name = "TEXT")]
    cc: Option<String>,
}

impl Changes {
    /// All changes, in the order in which they are made.
    pub(super) fn assignments(&self) -> Vec<Assignment> {
        let cc = self.cc.clone().map(|text| Assignment {
            option: "--cc",
            key: "nic.cc".to_owned(),
            value: Value::String(text),
        });
        self.set.iter().cloned().chain(cc).collect()
    }
}

/// A new value for a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Assignment {
    /// The option that said so.
    option: &'static str,
    /// Names of tables, and numbers of entries of lists, with dots between them.
    pub(super) key: String,
    /// The value.
    pub(super) value: Value,
}

impl Assignment {
    /// Reads `key=value`.
    fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = split(text)?;
        Ok(Self { option: "--set", key, value: read(value) })
    }

    /// Changes the table.
    pub(super) fn apply(&self, table: &mut Table) -> Result<(), Problem> {
        set_key(table, &self.key, self.value.clone())
            .map_err(|why| Problem::Scenario { place: self.to_string(), why })
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}={}", self.option, self.key, plain(&self.value))
    }
}

/// A value for people and file names: text without quotation marks.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The key and the value of an option.
fn split(text: &str) -> Result<(String, &str), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    let key = key.trim();
    if key.split('.').any(str::is_empty) {
        return Err("write a key such as switch.buffer.shared in front of the `=`".to_owned());
    }
    Ok((key.to_owned(), value.trim()))
}

/// A value of TOML, or else text.
fn read(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let alone = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    alone.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A key, and all values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vary {
    /// The key.
    pub(super) key: String,
    /// Its values.
    pub(super) values: Vec<Value>,
}

impl Vary {
    /// Reads `key=a,b,c`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (key, list) = split(text)?;
        let values: Vec<Value> = cut(list).into_iter().map(|word| read(word.trim())).collect();
        if values.iter().any(|value| value.as_str() == Some("")) {
            return Err("write values with commas between them, such as KEY=A,B,C".to_owned());
        }
        Ok(Self { key, values })
    }

    /// The changes that it stands for.
    pub(super) fn assignments(&self) -> impl Iterator<Item = Assignment> {
        let new =
            |value: &Value| Assignment { option: "--vary", key: self.key.clone(), value: value.clone() };
        self.values.iter().map(new)
    }
}

/// Cuts a list at its commas, but not inside of brackets and quotation marks.
fn cut(list: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth, mut quoted) = (Vec::new(), 0, 0_u32, None);
    for (at, letter) in list.char_indices() {
        match (quoted, letter) {
            (Some(mark), _) if mark == letter => quoted = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quoted = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    parts
}

/// All combinations of the values: the last key changes fastest.
pub(super) fn grid(varied: &[Vary]) -> Vec<Vec<Assignment>> {
    varied.iter().fold(vec![Vec::new()], |points, vary| {
        let with = |point: Vec<Assignment>| {
            vary.assignments().map(move |more| point.iter().cloned().chain([more]).collect())
        };
        points.into_iter().flat_map(with).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, change: &str) -> Result<String, String> {
        let mut table: Table = toml::from_str(text).expect("a table");
        let assignment = Assignment::parse(change)?;
        assignment.apply(&mut table).map_err(|error| error.to_string())?;
        Ok(toml::to_string(&table).expect("it was a table"))
    }

    #[test]
    fn values_are_toml_or_text() {
        for (change, expected) in [
            ("a=1", "a = 1\n"),
            ("a=1.5", "a = 1.5\n"),
            ("a=true", "a = true\n"),
            ("a=1MB", "a = \"1MB\"\n"),
            ("a=\"1\"", "a = \"1\"\n"),
            ("a=[1, 2]", "a = [1, 2]\n"),
            ("a=10 us", "a = \"10 us\"\n"),
            ("a=x=y", "a = \"x=y\"\n"),
        ] {
            assert_eq!(changed("", change).as_deref(), Ok(expected), "{change}");
        }
    }

    #[test]
    fn keys_lead_into_tables_and_lists() {
        let text = "[[workload]]\nbytes = 1\n[[workload]]\nbytes = 2\n";
        assert_eq!(
            changed(text, "workload.1.bytes=3").as_deref(),
            Ok("[[workload]]\nbytes = 1\n\n[[workload]]\nbytes = 3\n")
        );
        assert_eq!(changed("", "a.b.c=1").as_deref(), Ok("[a.b]\nc = 1\n"));
        let error = changed(text, "workload.2.bytes=3").expect_err("there are two");
        assert_eq!(error, "--set workload.2.bytes=3: there is no entry `2`: write a number from 0 to 1");
        let error = changed("a = 1", "a.b=3").expect_err("a is a number");
        assert_eq!(error, "--set a.b=3: `b` is not inside a table: what has it is of the type integer");
        for wrong in ["", "a", "=1", "a..b=1", ".a=1"] {
            assert!(Assignment::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_grid_has_all_combinations() {
        let vary = |text: &str| Vary::parse(text).expect("a list");
        let points = grid(&[vary("a=1,2"), vary("b=x,[3, 4],\"y,z\"")]);
        let texts: Vec<String> = points
            .iter()
            .map(|point| point.iter().map(|of| plain(&of.value)).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(texts, ["1 x", "1 [3, 4]", "1 y,z", "2 x", "2 [3, 4]", "2 y,z"]);
        assert_eq!(grid(&[]), [Vec::new()]);
        assert!(Vary::parse("a=1,,2").is_err() && Vary::parse("a=").is_err());
    }
}
