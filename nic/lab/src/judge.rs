//! Holds what a student wrote against what the lab's experiments show.
//!
//! The experiments are the lab's own, with the student's parameters and choices. What else the student's folder has is not read,
//! and so it cannot make an answer right.

use crate::builtin::Lab;
use crate::definition::{Definition, Goal, Question};
use crate::error::LabError;
use crate::experiment::{self, Ran};
use crate::expression::evaluate;
use crate::sheet::{Answers, given, parameters};
use crate::template::fill;
use crate::value::{Value, Values};

/// What a judge says of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Right.
    Right,
    /// Wrong.
    Wrong,
    /// Nothing is there yet.
    Missing,
}

/// A prediction, an answer, a choice or a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its part: `before`, `after`, `task` or `goal`.
    pub part: &'static str,
    /// Its key; of a goal, its name.
    pub key: String,
    /// What the judge says.
    pub state: State,
    /// What is missing.
    pub remark: String,
}

/// What a judge says of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// All items.
    pub items: Vec<Item>,
}

impl Verdict {
    /// Whether everything is right.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.items.iter().all(|item| item.state == State::Right)
    }

    /// Adds an item.
    pub fn say(
        &mut self,
        part: &'static str,
        key: impl Into<String>,
        state: State,
        remark: impl Into<String>,
    ) {
        self.items.push(Item { part, key: key.into(), state, remark: remark.into() });
    }
}

/// Runs the experiments that are for the questions, and adds what they measure.
///
/// # Errors
/// The lab is wrong.
pub fn measure(lab: &Lab, definition: &Definition, values: &mut Values) -> Result<(), LabError> {
    for config in definition.experiment.iter().filter(|config| !config.task) {
        let table = experiment::table(config, lab.file(&config.file)?, values)?;
        values.join(&config.name, &experiment::run(config, &table)?.values);
    }
    Ok(())
}

/// Runs the experiments of the task with what the student chose.
///
/// # Errors
/// What was chosen makes an experiment impossible.
fn try_out(lab: &Lab, definition: &Definition, values: &mut Values, chosen: &Values) -> Result<(), LabError> {
    for config in definition.experiment.iter().filter(|config| config.task) {
        let mut table = experiment::table(config, lab.file(&config.file)?, values)?;
        experiment::choose(definition, config, &mut table, chosen)?;
        let Ran { values: measured, .. } = experiment::run(config, &table)?;
        values.join(&config.name, &measured);
    }
    Ok(())
}

/// Judges what a student wrote.
///
/// # Errors
/// The lab is wrong.
pub fn judge(lab: &Lab, answers: &Answers) -> Result<Verdict, LabError> {
    let definition = lab.definition()?;
    let mut values = parameters(lab, &definition, &answers.student)?;
    let mut verdict = Verdict { items: Vec::new() };
    unknown_keys(&definition, answers, &mut verdict);
    for prediction in &definition.before {
        match given(&answers.before, &prediction.key) {
            Some(_) => verdict.say("before", &prediction.key, State::Right, ""),
            None => verdict.say("before", &prediction.key, State::Missing, "write down what you expect"),
        }
    }
    if !definition.after.is_empty() {
        measure(lab, &definition, &mut values)?;
    }
    for question in &definition.after {
        let (state, remark) = judge_answer(question, given(&answers.after, &question.key), &values)?;
        verdict.say("after", &question.key, state, remark);
    }
    let mut chosen = Values::default();
    for choice in &definition.task {
        match given(&answers.task, &choice.key).map(|value| choice.take(value)) {
            None => verdict.say("task", &choice.key, State::Missing, "not chosen yet"),
            Some(Err(why)) => verdict.say("task", &choice.key, State::Wrong, why),
            Some(Ok(value)) => {
                chosen.set(choice.key.clone(), value);
                verdict.say("task", &choice.key, State::Right, "");
            }
        }
    }
    let is_invalid = |item: &Item| item.part == "task" && item.state == State::Wrong;
    let not_yet = match verdict.items.iter().any(is_invalid) {
        true => "it is judged when what you chose is valid",
        false => "it is judged when all of the task is chosen",
    };
    if chosen.0.len() < definition.task.len() {
        definition.goal.iter().for_each(|goal| verdict.say("goal", &goal.name, State::Missing, not_yet));
        return Ok(verdict);
    }
    if let Err(why) = try_out(lab, &definition, &mut values, &chosen) {
        verdict.say("goal", "run", State::Wrong, format!("what you chose cannot run: {why}"));
        return Ok(verdict);
    }
    values.join("task", &with_words(&definition, &chosen));
    for goal in &definition.goal {
        let (state, remark) = judge_goal(goal, &values)?;
        verdict.say("goal", &goal.name, state, remark);
    }
    Ok(verdict)
}

/// What a student chose, for formulas: a choice among words also has `KEY.WORD`, which is 1 for the word and 0 for all others.
#[must_use]
pub fn with_words(definition: &Definition, chosen: &Values) -> Values {
    let mut all = chosen.clone();
    for choice in &definition.task {
        let Some(Value::Text(text)) = chosen.get(&choice.key) else { continue };
        for word in &choice.choices {
            all.set(format!("{}.{word}", choice.key), f64::from(u8::from(word == text)));
        }
    }
    all
}

/// Keys that the lab does not ask for.
fn unknown_keys(definition: &Definition, answers: &Answers, verdict: &mut Verdict) {
    let before = definition.before.iter().map(|of| of.key.as_str()).collect::<Vec<_>>();
    let after = definition.after.iter().map(|of| of.key.as_str()).collect::<Vec<_>>();
    let task = definition.task.iter().map(|of| of.key.as_str()).collect::<Vec<_>>();
    for (part, given, known) in
        [("before", &answers.before, before), ("after", &answers.after, after), ("task", &answers.task, task)]
    {
        for key in given.keys().filter(|key| !known.contains(&key.as_str())) {
            let remark = format!("the lab does not ask for this: {}", cc::unknown(key, &known));
            verdict.say(part, key, State::Wrong, remark);
        }
    }
}

/// What two texts have in common if they say the same.
fn plain(text: &str) -> String {
    text.to_lowercase()
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn judge_answer(
    question: &Question,
    answer: Option<&Value>,
    values: &Values,
) -> Result<(State, String), LabError> {
    let Some(answer) = answer else { return Ok((State::Missing, "not answered yet".to_owned())) };
    let hint = || Ok((State::Wrong, fill(&question.hint, values)?));
    if !question.choices.is_empty()
        && !question.choices.iter().any(|word| plain(word) == name(&plain(&answer.to_string())))
    {
        return Ok((State::Wrong, format!("write one of: {}", question.choices.join(", "))));
    }
    let text = match (&question.is, &question.says) {
        (Some(is), _) => match values.get(is) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        },
        (None, Some(says)) => Some(fill(says, values)?),
        (None, None) => None,
    };
    let right = match (text, &question.is) {
        (Some(text), _) => plain(&text) == name(&plain(&answer.to_string())),
        (None, Some(is)) => {
            let is = evaluate(is, values)?;
            let Some(number) = answer.read_number() else {
                return Ok((State::Wrong, "write a number, without its unit".to_owned()));
            };
            // Numbers that were read off a table have four digits.
            (number - is).abs() <= question.tolerance.max(1e-3) * is.abs() + 1e-9
        }
        (None, None) => false,
    };
    if right { Ok((State::Right, String::new())) } else { hint() }
}

/// A name as libibverbs has it, without its prefix.
fn name(text: &str) -> &str {
    text.strip_prefix("ibv_wc_").unwrap_or(text)
}

fn judge_goal(goal: &Goal, values: &Values) -> Result<(State, String), LabError> {
    let value = evaluate(&goal.value, values)?;
    let bound = |text: &Option<String>| text.as_ref().map(|text| evaluate(text, values)).transpose();
    let (min, max) = (bound(&goal.min)?, bound(&goal.max)?);
    let is_within = min.is_none_or(|min| value >= min - 1e-9) && max.is_none_or(|max| value <= max + 1e-9);
    match is_within && (min.is_some() || max.is_some()) {
        true => Ok((State::Right, String::new())),
        false => Ok((State::Wrong, fill(&goal.missing, values)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_say_the_same_are_equal() {
        for (left, right) in [("3,4,5", "3, 4 and 5"), ("Go-back-N", "go back n")] {
            assert_eq!(plain(left) == plain(right), left.starts_with('G'), "{left} {right}");
        }
        assert_eq!(plain(" 3, 4,5 "), plain("3,4,5"));
        assert_ne!(plain("3,4"), plain("34"));
    }

    #[test]
    fn names_of_libibverbs_need_no_prefix() {
        assert_eq!(name(&plain("IBV_WC_REM_ACCESS_ERR")), plain("REM_ACCESS_ERR"));
    }
}
