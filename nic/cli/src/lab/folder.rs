//! The folder of a student.

use rnic_lab::definition::{Definition, ExperimentConfig};
use rnic_lab::experiment::{self, Ran};
use rnic_lab::sheet::{self, ANSWERS, Answers, parameters};
use rnic_lab::{Lab, Value, Values};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// The lab of this name or number, or in this folder.
pub(super) fn find(name: &str) -> Result<Lab, Box<dyn Error>> {
    let path = Path::new(name);
    if path.join("lab.toml").is_file() {
        return Ok(Lab::read(path)?);
    }
    Ok(rnic_lab::find(name)?)
}

/// The folder of a student.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) lab: Lab,
    pub(super) definition: Definition,
    pub(super) answers: Answers,
    pub(super) values: Values,
}

impl Folder {
    /// Whether this is a folder that `rnic lab start` made.
    pub(super) fn is_at(path: &Path) -> bool {
        path.join(ANSWERS).is_file()
    }

    /// Reads a folder that `rnic lab start` made. Says so if its sheet is that of another student.
    pub(super) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let file = path.join(ANSWERS);
        let text = fs::read_to_string(&file).map_err(|why| match why.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{} is no lab's folder: `rnic lab start NAME` makes one", path.display())
            }
            _ => format!("cannot read {}: {why}", file.display()),
        })?;
        let answers = Answers::read(&text)?;
        let lab = find(&answers.lab)?;
        let definition = lab.definition()?;
        let values = parameters(&lab, &definition, &answers.student)?;
        let folder = Self { path: path.to_owned(), lab, definition, answers, values };
        folder.note_owner()?;
        Ok(folder)
    }

    /// A folder that was copied has the numbers of whom it was made for, whatever its answers say.
    fn note_owner(&self) -> Result<(), Box<dyn Error>> {
        let Ok(sheet) = fs::read_to_string(self.path.join("README.md")) else { return Ok(()) };
        let id = &self.answers.student;
        if let Some(owner) = sheet::whose(&self.lab, &sheet)?.filter(|owner| owner != id) {
            eprintln!(
                "rnic: the sheet and the experiments here have the numbers of {owner}, but {ANSWERS} names {id}, and is judged by the \
                 numbers of {id}: `rnic lab start {} --student {id}` makes a folder with these",
                self.answers.lab
            );
        }
        Ok(())
    }

    /// What the student has chosen so far, in the lab's own words where it can be chosen.
    pub(super) fn chosen(&self) -> Values {
        let is_given = |value: &Value| !matches!(value, Value::Text(text) if text.trim().is_empty());
        let mut chosen = Values::default();
        for (key, value) in self.answers.task.iter().filter(|(_, value)| is_given(value)) {
            let choice = self.definition.task.iter().find(|choice| choice.key == *key);
            let taken = choice.and_then(|choice| choice.take(value).ok());
            chosen.set(key.clone(), taken.unwrap_or_else(|| value.clone()));
        }
        chosen
    }

    /// What keeps an experiment from being run: choices that are not made yet.
    pub(super) fn lacks(&self, config: &ExperimentConfig) -> Vec<&str> {
        let chosen = self.chosen();
        self.definition
            .choices(config)
            .map(|choice| &*choice.key)
            .filter(|key| chosen.get(key).is_none())
            .collect()
    }

    /// The files of experiments that are not as the lab has them for this student: changed, or another student's.
    pub(super) fn changed(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let own = sheet::folder(&self.lab, &self.answers.student)?;
        let is_changed = |(name, text): &(String, String)| {
            let is_run = self.definition.experiment.iter().any(|config| config.file == *name);
            is_run && fs::read(self.path.join(name)).is_ok_and(|found| found != text.as_bytes())
        };
        Ok(own.into_iter().filter(is_changed).map(|(name, _)| name).collect())
    }

    /// Runs an experiment as it is in the folder, with what the student has chosen.
    pub(super) fn run(&self, config: &ExperimentConfig) -> Result<Ran, Box<dyn Error>> {
        self.run_watched(config, &mut |_| ())
    }

    /// The same; `watch` hears what share of it is done.
    pub(super) fn run_watched(
        &self,
        config: &ExperimentConfig,
        watch: &mut dyn FnMut(f64),
    ) -> Result<Ran, Box<dyn Error>> {
        let path = self.path.join(&config.file);
        let text =
            fs::read_to_string(&path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
        let mut table = experiment::table(config, &text, &self.values)?;
        if config.task {
            experiment::choose(&self.definition, config, &mut table, &self.chosen())?;
        }
        Ok(experiment::run_watched(config, &table, watch)?)
    }
}
