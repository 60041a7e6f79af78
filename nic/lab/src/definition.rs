//! What a lab's `lab.toml` says.

use crate::error::LabError;
use crate::expression::{ExpressionError, evaluate};
use crate::value::{Value, Values};
use serde::Deserialize;
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher as _;

/// A lab.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Its title.
    pub title: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// How long it takes.
    pub minutes: u32,
    /// What follows from the student's ID.
    #[serde(default)]
    pub parameter: BTreeMap<String, Parameter>,
    /// Formulas over parameters and over one another.
    #[serde(default)]
    pub derived: BTreeMap<String, String>,
    /// What runs.
    #[serde(default)]
    pub experiment: Vec<ExperimentConfig>,
    /// What a run shows beside its picture.
    #[serde(default)]
    pub show: Vec<Show>,
    /// What the student writes down before the first run. There is no wrong prediction.
    #[serde(default)]
    pub before: Vec<Prediction>,
    /// What the runs answer.
    #[serde(default)]
    pub after: Vec<Question>,
    /// What the student chooses.
    #[serde(default)]
    pub task: Vec<Choice>,
    /// What the choice must achieve.
    #[serde(default)]
    pub goal: Vec<Goal>,
    /// The student's program, if the task is to write one.
    #[serde(default)]
    pub program: Option<Program>,
}

/// A parameter, which follows from the student's ID.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Parameter {
    /// A number.
    Range {
        /// The least.
        from: f64,
        /// The greatest.
        to: f64,
        /// The distance between two.
        #[serde(default = "one")]
        step: f64,
    },
    /// One of these.
    OneOf {
        /// These.
        of: Vec<Value>,
    },
}

const fn one() -> f64 {
    1.0
}

/// What an experiment is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Two NICs and a cable.
    Transport,
    /// A scenario of `rnic fabric`.
    Fabric,
    /// A key-value store and its clients.
    Store,
}

/// An experiment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentConfig {
    /// Its name: values that it measures have it in front.
    pub name: String,
    /// What it is made of.
    pub kind: Kind,
    /// The file.
    pub file: String,
    /// Whether it runs with what the student chose, and is judged by the goals. All others are for the questions.
    #[serde(default)]
    pub task: bool,
}

/// A value that a run shows.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// What it is.
    pub label: String,
    /// A name, or a formula.
    pub value: String,
    /// Its unit.
    #[serde(default)]
    pub unit: String,
}

/// A question to be answered before the first run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// The key in the file of answers.
    pub key: String,
    /// The question.
    pub ask: String,
}

/// A question that the runs answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The key in the file of answers.
    pub key: String,
    /// The question.
    pub ask: String,
    /// The words to choose from, if it is no number.
    #[serde(default)]
    pub choices: Vec<String>,
    /// The answer: a formula, or the name of a text.
    #[serde(default)]
    pub is: Option<String>,
    /// The answer, if it is a text that is not measured.
    #[serde(default)]
    pub says: Option<String>,
    /// Measurements that tell the answer: `rnic lab run --all` does not print them, like that which `is` names.
    #[serde(default)]
    pub hides: Vec<String>,
    /// A share of the answer by which a number may differ.
    #[serde(default)]
    pub tolerance: f64,
    /// Where to look again. It gives nothing away.
    pub hint: String,
}

/// Something that the student chooses.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The key in the file of answers.
    pub key: String,
    /// What it is.
    pub ask: String,
    /// The words to choose from, if it is no number.
    #[serde(default)]
    pub choices: Vec<String>,
    /// The least number.
    #[serde(default)]
    pub min: Option<f64>,
    /// The greatest number.
    #[serde(default)]
    pub max: Option<f64>,
    /// Whether the number is whole.
    #[serde(default)]
    pub whole: bool,
    /// The keys that it sets, each with the name of the experiment in front.
    #[serde(default)]
    pub sets: Vec<String>,
    /// How it is written there, with `{}` for the value.
    #[serde(default = "plain")]
    pub text: String,
}

fn plain() -> String {
    "{}".to_owned()
}

impl Choice {
    /// What a student chose, as experiments and formulas take it: a word is written as the lab writes it, whether in capital letters
    /// or small ones.
    ///
    /// # Errors
    /// Says what to write.
    pub fn take(&self, value: &Value) -> Result<Value, String> {
        if !self.choices.is_empty() {
            let given = value.to_string().trim().to_lowercase();
            let word = self.choices.iter().find(|word| word.to_lowercase() == given);
            return match word {
                Some(word) => Ok(Value::Text(word.clone())),
                None => Err(format!("write one of: {}", self.choices.join(", "))),
            };
        }
        let Some(number) = value.read_number() else {
            return Err("write a number, without its unit".to_owned());
        };
        match (self.min, self.max) {
            (Some(min), _) if number < min => Err(format!("it is at least {}", Value::Number(min))),
            (_, Some(max)) if number > max => Err(format!("it is at most {}", Value::Number(max))),
            _ if self.whole && number.fract() != 0.0 => Err("write a whole number".to_owned()),
            _ => Ok(Value::Number(number)),
        }
    }
}

/// What a choice must achieve.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// What it is called, with the unit of its value.
    pub name: String,
    /// A formula over parameters, choices (`task.key`, and `task.key.word` among words: 1 if it was chosen, or 0) and measurements.
    pub value: String,
    /// It is at least this formula.
    #[serde(default)]
    pub min: Option<String>,
    /// It is at most this formula.
    #[serde(default)]
    pub max: Option<String>,
    /// What is missing if it is not, with places to fill in. It gives nothing away.
    pub missing: String,
}

/// The student's program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The languages that there is a start for, each with a command that builds it, if need be, and one that runs it.
    pub language: BTreeMap<String, Language>,
    /// The text that the program must WRITE, and nothing else in the same message.
    pub payload: String,
    /// A formula: how far behind the beginning of the remote region. The program prints where that is ([`BEGINS`](crate::program::BEGINS)).
    pub offset: String,
}

/// How a program is built and run, in the folder of its language.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// The command that builds it.
    #[serde(default)]
    pub build: Vec<String>,
    /// The command that runs it.
    pub run: Vec<String>,
    /// Whether it needs the C interface, and so runs under `rnic run`.
    #[serde(default)]
    pub verbs: bool,
}

/// The longest ID.
const LONGEST: usize = 64;

/// Checks the ID of a student. Capital letters and small ones are the same.
///
/// # Errors
/// It is empty, too long, or has other signs.
pub fn student(id: &str) -> Result<String, LabError> {
    let id = id.trim().to_lowercase();
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-@".contains(letter);
    if id.is_empty() || id.chars().count() > LONGEST || !id.chars().all(is_plain) {
        return Err(LabError::Student { id });
    }
    Ok(id)
}

impl Definition {
    /// Reads it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn read(text: &str) -> Result<Self, LabError> {
        toml::from_str(text).map_err(|why| LabError::file("lab.toml", why))
    }

    /// The parameters of a student, and what is derived from them. `lab` is the name of the lab: each has parameters of its own.
    ///
    /// # Errors
    /// A formula is wrong.
    pub fn parameters(&self, lab: &str, student: &str) -> Result<Values, LabError> {
        let mut values = Values::default();
        for (name, parameter) in &self.parameter {
            values.set(name.clone(), parameter.pick(&format!("{lab}/{student}/{name}")));
        }
        // Each round finds at least one formula whose parts are known.
        let mut open: Vec<_> = self.derived.iter().collect();
        while !open.is_empty() {
            let mut later = Vec::new();
            let mut wrong = None;
            for (name, formula) in open.iter().copied() {
                match evaluate(formula, &values) {
                    Ok(number) => values.set(name.clone(), number),
                    Err(why @ ExpressionError::Unknown { .. }) => {
                        later.push((name, formula));
                        wrong = Some(why);
                    }
                    Err(why) => return Err(why.into()),
                }
            }
            match wrong {
                Some(why) if later.len() == open.len() => return Err(why.into()),
                _ => open = later,
            }
        }
        Ok(values)
    }

    /// What the student chooses before an experiment can run.
    pub fn choices<'a>(&'a self, config: &ExperimentConfig) -> impl Iterator<Item = &'a Choice> {
        let is_set = |set: &String| set.split('.').next() == Some(&*config.name);
        self.task.iter().filter(move |choice| choice.sets.iter().any(is_set))
    }

    /// Whether an experiment may have a picture.
    #[must_use]
    pub fn has_pictures(&self) -> bool {
        self.experiment.iter().any(|config| matches!(config.kind, Kind::Transport | Kind::Fabric))
    }

    /// The title of an experiment's picture.
    #[must_use]
    pub fn picture_title(&self, config: &ExperimentConfig) -> String {
        format!("{}: {}", self.title, config.name)
    }

    /// Whether this measurement answers a question after the runs, and the lab does not show it: the student is to find
    /// it in the ladders.
    #[must_use]
    pub fn is_to_be_found(&self, name: &str) -> bool {
        let answers =
            |of: &Question| of.is.as_deref() == Some(name) || of.hides.iter().any(|hidden| hidden == name);
        let is_asked = self.after.iter().any(answers);
        let shows = |show: &Show| show.value == name || show.value.contains(&format!("{{{name}}}"));
        is_asked && !self.show.iter().any(shows)
    }

    /// What a run shows, as far as it was measured: labels, and values with their units.
    #[must_use]
    pub fn shown(&self, values: &Values) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        for of in &self.show {
            let value = match values.get(&of.value) {
                Some(value) => Some(value.clone()),
                None => evaluate(&of.value, values).ok().map(Value::Number),
            };
            if let Some(value) = value {
                rows.push((of.label.clone(), format!("{value} {}", of.unit).trim_end().to_owned()));
            }
        }
        rows
    }

    /// The experiment of this name.
    #[must_use]
    pub fn experiment(&self, name: &str) -> Option<&ExperimentConfig> {
        self.experiment.iter().find(|experiment| experiment.name == name)
    }
}

impl Parameter {
    /// The value that follows from a text: the same on every machine.
    fn pick(&self, text: &str) -> Value {
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        let hash = hasher.finish();
        match self {
            Self::Range { from, to, step } => {
                let count = ((to - from) / step).round() as u64 + 1;
                Value::Number(from + step * (hash % count) as f64)
            }
            Self::OneOf { of } => match of.get((hash % of.len().max(1) as u64) as usize) {
                Some(value) => value.clone(),
                None => Value::Text(String::new()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        title = "A lab"
        about = "A test."
        minutes = 1
        [parameter]
        count = { from = 4, to = 9 }
        size = { from = 0.5, to = 2.0, step = 0.5 }
        word = { of = ["a", "b"] }
        [derived]
        bytes = "kilobytes * 1000"
        kilobytes = "count * size"
    "#;

    #[test]
    fn parameters_follow_from_the_student() {
        let lab = Definition::read(TEXT).expect("a lab");
        let of = |id: &str| lab.parameters("a", &student(id).expect("an ID")).expect("parameters");
        assert_eq!(of("alice"), of(" Alice "));
        let values = of("alice");
        let number = |name| values.get(name).and_then(Value::number).expect("a number");
        assert!((4.0..=9.0).contains(&number("count")) && [0.5, 1.0, 1.5, 2.0].contains(&number("size")));
        assert_eq!(number("bytes"), number("count") * number("size") * 1000.0);
        let distinct: std::collections::BTreeSet<String> =
            (0..50).map(|n| format!("{:?}", of(&n.to_string()))).collect();
        assert!(distinct.len() > 20, "{}", distinct.len());
    }

    #[test]
    fn ids_are_checked() {
        for wrong in ["", " ", "a/b", "a b", "../x", &"a".repeat(65)] {
            assert!(student(wrong).is_err(), "{wrong}");
        }
        assert_eq!(student("B.Müller_1@x-y").expect("an ID"), "b.müller_1@x-y");
    }

    #[test]
    fn a_formula_that_cannot_be_known_is_an_error() {
        let text = TEXT.replace("count * size", "bytes * 2");
        let error = Definition::read(&text).expect("a lab").parameters("a", "x").expect_err("a circle");
        assert!(error.to_string().contains("nothing is known of"), "{error}");
    }
}
