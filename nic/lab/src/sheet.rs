//! The files of a student: the sheet, the experiments, and the file of answers.

use crate::builtin::Lab;
use crate::definition::{Definition, student};
use crate::error::LabError;
use crate::template::fill;
use crate::value::{Value, Values};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// The name of the file of answers.
pub const ANSWERS: &str = "answers.toml";

/// What a student wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// The name of the lab.
    pub lab: String,
    /// The student's ID.
    pub student: String,
    /// Predictions.
    pub before: BTreeMap<String, Value>,
    /// What the runs show.
    pub after: BTreeMap<String, Value>,
    /// What the student chose.
    pub task: BTreeMap<String, Value>,
}

impl Answers {
    /// Reads the file of answers.
    ///
    /// # Errors
    /// Says what is wrong there.
    pub fn read(text: &str) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::file(ANSWERS, why);
        let table: toml::Table = toml::from_str(text).map_err(|why| match misspelt(text, why.span()) {
            Some(advice) => wrong(advice),
            None => wrong(why.to_string()),
        })?;
        let mut answers = Self::default();
        let (mut lab, mut id) = (None, None);
        for (key, value) in &table {
            match key.as_str() {
                "lab" => lab = Some(word(key, value).map_err(wrong)?),
                "student" => id = Some(word(key, value).map_err(wrong)?),
                "before" => answers.before = part(key, value).map_err(wrong)?,
                "after" => answers.after = part(key, value).map_err(wrong)?,
                "task" => answers.task = part(key, value).map_err(wrong)?,
                other => {
                    let advice = cc::unknown(other, &["lab", "student", "before", "after", "task"]);
                    return Err(wrong(format!("there is no place for `{other}`: {advice}")));
                }
            }
        }
        answers.lab = lab.ok_or_else(|| wrong("lab = \"...\" is missing".to_owned()))?;
        answers.student = student(&id.ok_or_else(|| wrong("student = \"...\" is missing".to_owned()))?)?;
        Ok(answers)
    }
}

/// A text; an ID may be a number.
fn word(key: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        other => Err(format!("{key} = {other}: write a text in quotation marks")),
    }
}

/// What is written in a part of the file.
fn part(name: &str, value: &toml::Value) -> Result<BTreeMap<String, Value>, String> {
    let toml::Value::Table(table) = value else {
        return Err(format!("{name} = {value}: answers stand below a line [{name}]"));
    };
    let read = |(key, value): (&String, &toml::Value)| {
        let value = match value {
            toml::Value::Integer(number) => Value::Number(*number as f64),
            toml::Value::Float(number) => Value::Number(*number),
            toml::Value::String(text) => Value::Text(text.clone()),
            other => {
                // A value may have many lines.
                let shown = other.to_string().replace('\n', " ");
                return Err(format!("{name}.{key} = {shown}: write a number, or a text in quotation marks"));
            }
        };
        Ok((key.clone(), value))
    };
    table.iter().map(read).collect()
}

/// What to write instead, if a file cannot be read because of a value that has no quotation marks.
fn misspelt(text: &str, span: Option<Range<usize>>) -> Option<String> {
    let before = text.get(..span?.start)?;
    let number = before.matches('\n').count();
    let line = text.lines().nth(number)?.trim();
    let value = line.split_once('=')?.1.trim();
    let advice = match value.chars().next()? {
        first if first.is_alphabetic() => "write words in quotation marks",
        '0'..='9' | '-' | '+' | '.' => {
            "write a number with a point and without its unit, or a text in quotation marks"
        }
        _ => return None,
    };
    Some(format!("line {} ({line}): {advice}", number + 1))
}

/// An answer that says something: a number, or a text that is not empty.
pub(crate) fn given<'a>(answers: &'a BTreeMap<String, Value>, key: &str) -> Option<&'a Value> {
    answers.get(key).filter(|value| !matches!(value, Value::Text(text) if text.trim().is_empty()))
}

/// The parameters of a student, with `student` and `lab`.
///
/// # Errors
/// A formula of the lab is wrong.
pub fn parameters(lab: &Lab, definition: &Definition, id: &str) -> Result<Values, LabError> {
    let mut values = definition.parameters(&lab.name, id)?;
    values.set("student", id);
    values.set("lab", &*lab.name);
    Ok(values)
}

/// The files of a student's folder, by their path in it.
///
/// # Errors
/// The lab is wrong, or the ID.
pub fn folder(lab: &Lab, id: &str) -> Result<Vec<(String, String)>, LabError> {
    let (definition, id) = (lab.definition()?, student(id)?);
    let values = parameters(lab, &definition, &id)?;
    let mut files = vec![
        ("README.md".to_owned(), fill(lab.file("sheet.md")?, &values)?),
        (ANSWERS.to_owned(), answers(lab, &definition, &id, &values)?),
    ];
    for experiment in &definition.experiment {
        if !files.iter().any(|(name, _)| *name == experiment.file) {
            files.push((experiment.file.clone(), fill(lab.file(&experiment.file)?, &values)?));
        }
    }
    for (path, text) in &lab.files {
        if let Some(name) = path.strip_prefix("start/") {
            files.push((name.to_owned(), fill(text, &values)?));
        }
    }
    Ok(files)
}

/// The student whom a sheet names: the lab's own has a place for the ID in one of its lines.
///
/// # Errors
/// The lab has no sheet.
pub fn whose(lab: &Lab, sheet: &str) -> Result<Option<String>, LabError> {
    let named = lab.file("sheet.md")?.lines().find_map(|line| line.split_once("$(student)"));
    let Some((before, after)) = named else { return Ok(None) };
    // Up to the next place, whatever is filled in there.
    let after = after.split("$(").next().unwrap_or_default();
    let id = |line: &str| line.strip_prefix(before)?.split_once(after).map(|(id, _)| id.to_owned());
    Ok(sheet.lines().find_map(id).filter(|id| student(id).is_ok()))
}

/// The instructor's page of a lab, with the answers of a student filled in.
///
/// # Errors
/// The lab is wrong, or the ID.
pub fn instructor(lab: &Lab, id: &str) -> Result<String, LabError> {
    let (definition, id) = (lab.definition()?, student(id)?);
    let mut values = parameters(lab, &definition, &id)?;
    crate::judge::measure(lab, &definition, &mut values)?;
    Ok(fill(lab.file("instructor.md")?, &values)?)
}

/// The file of answers, with nothing answered.
fn answers(lab: &Lab, definition: &Definition, id: &str, values: &Values) -> Result<String, LabError> {
    let mut text = format!(
        "# {}: the answers of {id}. `rnic lab check` reads this file.\n# Write numbers as they are, and words in quotation marks.\n\nlab = \"{}\"\nstudent = \"{id}\"\n",
        definition.title, lab.origin
    );
    let mut part = |name: &str, about: &str, asks: &mut dyn Iterator<Item = (&str, &str, &[String])>| {
        let mut asks = asks.peekable();
        if asks.peek().is_none() {
            return Ok(());
        }
        let _ = write!(text, "\n# {about}\n[{name}]\n");
        for (key, ask, choices) in asks {
            let mut ask = fill(ask, values)?;
            if !choices.is_empty() {
                let _ = write!(ask, " Write one of: {}.", choices.join(", "));
            }
            for line in wrapped(&ask) {
                let _ = writeln!(text, "# {line}");
            }
            let _ = writeln!(text, "{key} = \"\"\n");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        Ok::<(), LabError>(())
    };
    part(
        "before",
        "Before you run anything: write down what you expect. No prediction is wrong.",
        &mut definition.before.iter().map(|of| (&*of.key, &*of.ask, &[][..])),
    )?;
    part(
        "after",
        "What the runs show.",
        &mut definition.after.iter().map(|of| (&*of.key, &*of.ask, &*of.choices)),
    )?;
    part(
        "task",
        "Your task: what you choose.",
        &mut definition.task.iter().map(|of| (&*of.key, &*of.ask, &*of.choices)),
    )?;
    Ok(text)
}

/// Lines of comments.
fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 100;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| line.is_empty() || line.len() + 1 + word.len() <= WIDTH);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_quotation_marks_is_named_with_its_line() {
        let read = |line: &str| Answers::read(&format!("lab = \"x\"\nstudent = \"y\"\n[after]\n{line}\n"));
        assert!(read("naks = 2").is_ok() && read("naks = \"two\"").is_ok());
        let error = read("naks = two").expect_err("a bare word").to_string();
        assert!(error.contains("line 4 (naks = two): write words in quotation marks"), "{error}");
        let error = read("naks 2").expect_err("no equals sign").to_string();
        assert!(!error.contains("quotation marks"), "{error}");
    }

    #[test]
    fn a_sheet_says_whose_it_is() {
        for lab in crate::LABS.iter().map(crate::Builtin::lab) {
            let files = folder(&lab, "Alice.B").expect("a folder");
            let sheet = &files.iter().find(|(name, _)| name == "README.md").expect("a sheet").1;
            assert_eq!(whose(&lab, sheet).expect("a sheet").as_deref(), Some("alice.b"), "{}", lab.name);
            assert_eq!(whose(&lab, "# Notes\n\nMine.\n").expect("a sheet"), None);
        }
    }

    /// They once named types of Rust, and no key.
    #[test]
    fn values_of_a_wrong_kind_are_named_with_their_keys() {
        for (text, part) in [
            (
                "lab = \"x\"\nstudent = \"y\"\n[after]\npsns = [4, 5]",
                "after.psns = [4, 5]: write a number, or a text in",
            ),
            (
                "lab = \"x\"\nstudent = \"y\"\n[task]\nlane = true",
                "task.lane = true: write a number, or a text in",
            ),
            ("lab = \"x\"\nstudent = \"y\"\n[before]\na.b = 3", "before.a = { b = 3 }: write a number"),
            (
                "lab = \"x\"\nstudent = \"y\"\n[after]\npsns = 4,5",
                "line 4 (psns = 4,5): write a number with a point",
            ),
            ("lab = \"x\"\nstudent = \"y\"\n[after]\ntime = 4 us", "without its unit"),
            ("lab = \"x\"\nstudent = \"y\"\nafter = 3", "below a line [after]"),
            ("lab = \"x\"\nstudent = true", "student = true: write a text in quotation marks"),
            ("lab = \"x\"", "student = \"...\" is missing"),
            ("lab = \"x\"\nstudent = \"y\"\n[afer]", "no place for `afer`: did you mean `after`?"),
        ] {
            let error = Answers::read(text).expect_err(text).to_string();
            assert!(error.starts_with("answers.toml: ") && error.contains(part), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let answers = Answers::read("lab = \"x\"\nstudent = 12345").expect("an ID of digits");
        assert_eq!(answers.student, "12345");
    }
}
