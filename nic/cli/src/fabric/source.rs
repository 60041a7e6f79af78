//! Scenarios by name, and in files.

use super::error::Problem;
use super::set::{Assignment, Changes};
use rnic::cc;
use rnic_fabric::scenario::{BUILTIN, Scenario, ScenarioError, builtin};
use std::path::{Path, PathBuf};

/// The text of a scenario, and where it is from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The name or the file, as it was written.
    pub(super) name: String,
    /// The file's text.
    pub(super) text: String,
    /// The folder from which it names other files.
    pub(super) base: PathBuf,
}

impl Source {
    /// The scenario of this name, or that in this file.
    pub(super) fn find(name: &str) -> Result<Self, Problem> {
        let path = Path::new(name);
        let is_file = path.components().count() > 1 || path.extension().is_some_and(|end| end == "toml");
        if let Some(builtin) = builtin(name).filter(|_| !is_file) {
            return Ok(Self { name: name.to_owned(), text: builtin.text.to_owned(), base: ".".into() });
        }
        if !is_file && !path.is_file() {
            let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
            return Err(Problem::NoScenario { name: name.to_owned(), advice: cc::unknown(name, &names) });
        }
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|why| Problem::Read { path: path.to_owned(), why })?;
        // The folder of `file.toml` is an empty path.
        let base = path.parent().filter(|base| base.components().next().is_some());
        Ok(Self { name: name.to_owned(), text, base: base.unwrap_or(Path::new(".")).to_owned() })
    }

    /// The scenario as it is in the file.
    pub(super) fn read(&self) -> Result<Scenario, Problem> {
        Scenario::read(&self.text).map_err(|error| {
            let place = match &error {
                ScenarioError::Syntax(syntax) => self.place(syntax),
                _ => self.name.clone(),
            };
            Problem::scenario(place, &error)
        })
    }

    /// The file, with the line of an error.
    fn place(&self, error: &toml::de::Error) -> String {
        let before = error.span().and_then(|span| self.text.get(..span.start));
        match before {
            Some(before) => format!("{}:{}", self.name, before.matches('\n').count() + 1),
            None => self.name.clone(),
        }
    }

    /// The scenario with changes.
    pub(super) fn with(&self, changes: &Changes) -> Result<Scenario, Problem> {
        self.with_all(&changes.assignments())
    }

    /// The scenario with these keys changed.
    pub(super) fn with_all(&self, assignments: &[Assignment]) -> Result<Scenario, Problem> {
        // Errors in the file itself are reported with their lines.
        let scenario = self.read()?;
        if assignments.is_empty() {
            return Ok(scenario);
        }
        let syntax = |error: toml::de::Error| Problem::scenario(&*self.name, &error.into());
        let mut table: toml::Table = toml::from_str(&self.text).map_err(syntax)?;
        for assignment in assignments {
            assignment.apply(&mut table)?;
        }
        let words: Vec<String> = assignments.iter().map(ToString::to_string).collect();
        Scenario::from_table(&table).map_err(|error| Problem::scenario(words.join(" "), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files_are_found() {
        assert_eq!(Source::find("incast").expect("it comes with rnic").base, Path::new("."));
        let error = Source::find("incats").expect_err("no such scenario").to_string();
        assert!(error.contains("did you mean `incast`?"), "{error}");
        let error = Source::find("missing/file.toml").expect_err("no such file").to_string();
        assert!(error.starts_with("cannot read missing/file.toml: "), "{error}");
    }

    #[test]
    fn an_error_in_a_file_names_its_line() {
        let text =
            "name = \"x\"\nabout = \"y\"\nuntil = \"1 parsec\"\n[topology]\nkind = \"star\"\nhosts = 2\n";
        let source = Source { name: "x.toml".into(), text: text.into(), base: ".".into() };
        let error = source.read().expect_err("no such unit").to_string();
        assert!(error.starts_with("x.toml:3: ") && error.lines().count() == 1, "{error}");
    }
}
