//! The experiments of the labs in a page: run as `rnic lab run` runs them, and drawn as `rnic lab plot` draws them.

use crate::words;
use rnic_lab::definition::{Definition, ExperimentConfig};
use rnic_lab::experiment::{self, Ran};
use rnic_lab::sheet::parameters;
use rnic_lab::{Builtin, LABS, Lab, Value, Values, definition, template};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The ID of a student who gives none, as for `rnic lab start`.
const NOBODY: &str = "student";

/// Which experiment of which lab, which a URL carries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabSetup {
    /// The name of the lab.
    pub lab: String,
    /// The name of the experiment.
    pub experiment: String,
    /// The student, from whom the parameters follow.
    #[serde(default)]
    pub student: String,
    /// The experiment's file, if somebody changed it.
    #[serde(default)]
    pub file: Option<String>,
    /// What the student chose for the task.
    #[serde(default)]
    pub task: BTreeMap<String, Value>,
}

/// A lab, for the lists of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabEntry {
    /// Its name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Its experiments: none, if its task is a program.
    pub experiments: Vec<String>,
}

/// The file of an experiment, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabFile {
    /// The name of the file.
    pub name: String,
    /// The file, with the student's parameters.
    pub text: String,
    /// What the student chooses before it can run: keys, questions, and the words to choose from if it is no number.
    pub asks: Vec<(String, String, Vec<String>)>,
}

/// What an experiment showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabShown {
    /// The title of the picture.
    pub title: String,
    /// The picture as SVG, if the experiment has one.
    pub picture: Option<String>,
    /// The ladder of the packets, or nothing.
    pub text: String,
    /// What was measured: labels, and values with their units.
    pub values: Vec<(String, String)>,
}

/// An experiment of a student.
struct Chosen {
    lab: Lab,
    definition: Definition,
    config: ExperimentConfig,
    values: Values,
    setup: LabSetup,
}

/// All labs.
///
/// # Errors
/// A lab is wrong: that is a bug.
pub fn labs() -> Result<Vec<LabEntry>, String> {
    let mut entries = Vec::new();
    for lab in LABS.iter().map(Builtin::lab) {
        let definition = lab.definition().map_err(words)?;
        let experiments = definition.experiment.iter().map(|of| of.name.clone()).collect();
        entries.push(LabEntry { name: lab.name, title: definition.title, experiments });
    }
    Ok(entries)
}

impl Chosen {
    fn new(text: &str) -> Result<Self, String> {
        let mut setup: LabSetup = serde_json::from_str(text).map_err(words)?;
        let lab = rnic_lab::find(&setup.lab).map_err(words)?;
        let definition = lab.definition().map_err(words)?;
        let known: Vec<&str> = definition.experiment.iter().map(|of| &*of.name).collect();
        let config = definition.experiment(&setup.experiment).cloned();
        let config = config.ok_or_else(|| {
            format!(
                "there is no experiment `{}`: {}",
                setup.experiment,
                cc::unknown(&setup.experiment, &known)
            )
        })?;
        let student = if setup.student.trim().is_empty() { NOBODY } else { &setup.student };
        let values =
            parameters(&lab, &definition, &definition::student(student).map_err(words)?).map_err(words)?;
        // A field that is empty is no choice yet.
        setup.task.retain(|_, value| !matches!(value, Value::Text(text) if text.trim().is_empty()));
        Ok(Self { lab, definition, config, values, setup })
    }

    fn file(&self) -> Result<LabFile, String> {
        let text = template::fill(self.lab.file(&self.config.file).map_err(words)?, &self.values);
        let mut asks = Vec::new();
        for choice in self.definition.choices(&self.config) {
            let ask = template::fill(&choice.ask, &self.values).map_err(words)?;
            asks.push((choice.key.clone(), ask, choice.choices.clone()));
        }
        Ok(LabFile { name: self.config.file.clone(), text: text.map_err(words)?, asks })
    }

    fn run(&self) -> Result<Ran, String> {
        let missing = self.definition.choices(&self.config);
        let missing: Vec<&str> =
            missing.map(|of| &*of.key).filter(|key| !self.setup.task.contains_key(*key)).collect();
        if !missing.is_empty() {
            return Err(format!("choose {} first", missing.join(", ")));
        }
        let own = self.lab.file(&self.config.file).map_err(words)?;
        let text = self.setup.file.as_deref().unwrap_or(own);
        let mut table = experiment::table(&self.config, text, &self.values).map_err(words)?;
        if self.config.task {
            let chosen = Values(self.setup.task.clone());
            experiment::choose(&self.definition, &self.config, &mut table, &chosen).map_err(words)?;
        }
        experiment::run(&self.config, &table).map_err(words)
    }
}

/// The file of an experiment, for a page to show and to change.
///
/// # Errors
/// There is no such experiment, or the student's ID is wrong.
pub fn lab_file(text: &str) -> Result<LabFile, String> {
    Chosen::new(text)?.file()
}

/// Runs an experiment.
///
/// # Errors
/// There is no such experiment, its file is wrong, or a choice is missing.
pub fn lab_run(text: &str) -> Result<LabShown, String> {
    let chosen = Chosen::new(text)?;
    let ran = chosen.run()?;
    let title = chosen.definition.picture_title(&chosen.config);
    let figure = rnic_plot::of_lab(&title, &ran).map_err(words)?;
    let draw = |figure: rnic_plot::figure::Figure| {
        rnic_plot::svg(&figure, (rnic_plot::WIDTH, rnic_plot::height(&figure, rnic_plot::WIDTH)))
            .map_err(words)
    };
    let picture = figure.map(draw).transpose()?;
    let mut values = chosen.values.clone();
    values.join(&chosen.config.name, &ran.values);
    Ok(LabShown { title, picture, text: ran.text, values: chosen.definition.shown(&values) })
}

#[cfg(test)]
mod tests;
