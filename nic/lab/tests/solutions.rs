//! Every lab: its solution passes, and the start, another student's solution and typical mistakes do not.
//!
//! `solutions.toml` in a lab's folder has the answers of two students as numbers, not as formulas: they were found by doing the lab.

use rnic_lab::judge::{State, Verdict, judge};
use rnic_lab::sheet::{ANSWERS, Answers, folder};
use rnic_lab::{Builtin, LABS, Lab};
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Solutions {
    solution: Vec<toml::Table>,
    wrong: Vec<Wrong>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrong {
    /// The mistake.
    why: String,
    /// What is said to be wrong: `after.key`, or `goal.1` for the first goal, whatever its name is.
    says: String,
    /// What is laid over the first solution.
    answers: toml::Table,
}

/// All labs; with the variable RNIC_LABS the folders that it names, with colons between them.
fn labs() -> Vec<Lab> {
    match std::env::var("RNIC_LABS") {
        Ok(folders) => {
            folders.split(':').map(|folder| Lab::read(Path::new(folder)).expect("a lab")).collect()
        }
        Err(_) => LABS.iter().map(Builtin::lab).collect(),
    }
}

fn solutions(lab: &Lab) -> Solutions {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/labs").join(&lab.name);
    let text = std::fs::read_to_string(path.join("solutions.toml")).expect("solutions of each lab");
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", lab.name))
}

fn answers(lab: &Lab, table: &toml::Table) -> Answers {
    let mut table = table.clone();
    table.insert("lab".to_owned(), lab.name.clone().into());
    Answers::read(&toml::to_string(&table).expect("a table")).expect("answers")
}

fn wrong(verdict: &Verdict) -> Vec<String> {
    let items = verdict.items.iter().filter(|item| item.state != State::Right);
    items.map(|item| format!("{}.{}: {}", item.part, item.key, item.remark)).collect()
}

/// Lays tables over tables.
fn lay(over: &toml::Table, base: &mut toml::Table) {
    for (key, value) in over {
        match (value, base.get_mut(key)) {
            (toml::Value::Table(over), Some(toml::Value::Table(base))) => lay(over, base),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[test]
fn every_lab_is_judged_right() {
    for lab in &labs() {
        let Solutions { solution, wrong: mistakes } = solutions(lab);
        assert!(solution.len() >= 2 && mistakes.len() >= 3, "{}", lab.name);
        for table in &solution {
            let verdict = judge(lab, &answers(lab, table)).expect("a verdict");
            assert!(verdict.passed(), "{} {}: {:#?}", lab.name, table["student"], wrong(&verdict));
        }
        let students: Vec<toml::Value> = solution.iter().map(|table| table["student"].clone()).collect();
        for (table, other) in solution.iter().zip(students.iter().rev()) {
            let mut copied = table.clone();
            copied.insert("student".to_owned(), other.clone());
            let verdict = judge(lab, &answers(lab, &copied)).expect("a verdict");
            assert!(
                !verdict.passed(),
                "{}: {other} passes with the answers of {}",
                lab.name,
                table["student"]
            );
        }
        let goals = lab.definition().expect("a definition").goal;
        for Wrong { why, says, answers: over } in &mistakes {
            let number = says.strip_prefix("goal.").and_then(|number| number.parse::<usize>().ok());
            let says = number.map_or(says.clone(), |number| format!("goal.{}", goals[number - 1].name));
            let mut table = solution[0].clone();
            lay(over, &mut table);
            let found = wrong(&judge(lab, &answers(lab, &table)).expect("a verdict"));
            assert!(
                found.iter().any(|of| of.starts_with(&format!("{says}: "))),
                "{} {why}: {found:#?}",
                lab.name
            );
        }
    }
}

#[test]
fn what_a_question_hides_is_measured() {
    for lab in &labs() {
        let definition = lab.definition().expect("a definition");
        let mut values = rnic_lab::sheet::parameters(lab, &definition, "alice").expect("parameters");
        if definition.after.iter().all(|question| question.hides.is_empty()) {
            continue;
        }
        rnic_lab::judge::measure(lab, &definition, &mut values).expect("measurements");
        for name in definition.after.iter().flat_map(|question| &question.hides) {
            assert!(values.get(name).is_some(), "{}: there is no measurement {name}", lab.name);
            assert!(definition.is_to_be_found(name), "{}: a run shows {name}", lab.name);
        }
    }
}

#[test]
fn a_start_has_everything_but_the_answers() {
    for lab in &labs() {
        let files = folder(lab, "alice").expect("a folder");
        let text = |name: &str| &files.iter().find(|(path, _)| path == name).expect("a file").1;
        let verdict = judge(lab, &Answers::read(text(ANSWERS)).expect("answers")).expect("a verdict");
        assert!(
            !verdict.passed() && verdict.items.iter().all(|item| item.state == State::Missing),
            "{verdict:#?}"
        );
        for (name, text) in &files {
            assert!(!text.contains("$("), "{} {name}", lab.name);
        }
        let sheet = text("README.md");
        for part in [
            "## What you will see",
            "## Before you run",
            "## Steps",
            "## Measure",
            "## Your task",
            "## Further reading",
        ] {
            assert!(sheet.contains(part), "{}: {part}", lab.name);
        }
        let page = rnic_lab::sheet::instructor(lab, "alice").expect("a page");
        for part in ["minutes", "## Solution", "## Typical mistakes"] {
            assert!(page.contains(part), "{}: {part}", lab.name);
        }
        assert_ne!(
            folder(lab, "alice").expect("a folder"),
            folder(lab, "bob").expect("a folder"),
            "{}",
            lab.name
        );
    }
}
