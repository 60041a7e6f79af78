//! The files of a student: the sheet, the experiments, and the file of answers.

use crate::builtin::Lab;
use crate::definition::{Definition, student};
use crate::error::LabError;
use crate::template::fill;
use crate::value::{Value, Values};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// The name of the file of answers.
pub const ANSWERS: &str = "answers.toml";

/// What a student wrote.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// The name of the lab.
    pub lab: String,
    /// The student's ID.
    pub student: String,
    /// Predictions.
    #[serde(default)]
    pub before: BTreeMap<String, Value>,
    /// What the runs show.
    #[serde(default)]
    pub after: BTreeMap<String, Value>,
    /// What the student chose.
    #[serde(default)]
    pub task: BTreeMap<String, Value>,
}

impl Answers {
    /// Reads the file of answers.
    ///
    /// # Errors
    /// Says what is wrong there.
    pub fn read(text: &str) -> Result<Self, LabError> {
        let answers: Self = toml::from_str(text).map_err(|why| match bare_word(text, why.span()) {
            Some((line, bare)) => {
                LabError::file(ANSWERS, format_args!("line {line} ({bare}): write words in quotation marks"))
            }
            None => LabError::file(ANSWERS, why),
        })?;
        Ok(Self { student: student(&answers.student)?, ..answers })
    }
}

/// The line in which a file is wrong, with its number, if that is because a word has no quotation marks.
fn bare_word(text: &str, span: Option<Range<usize>>) -> Option<(usize, &str)> {
    let before = text.get(..span?.start)?;
    let number = before.matches('\n').count();
    let line = text.lines().nth(number)?.trim();
    let value = line.split_once('=')?.1.trim();
    value.starts_with(|first: char| first.is_alphabetic()).then_some((number + 1, line))
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
}
