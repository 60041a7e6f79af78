//! The labs of the page, without a page.

use super::{LabShown, lab_file, lab_run, labs};
use rnic_lab::experiment::{self, Ran};
use rnic_lab::{Definition, Lab, sheet};
use serde_json::json;

fn run(setup: &serde_json::Value) -> Result<LabShown, String> {
    lab_run(&setup.to_string())
}

/// What an experiment gives that runs from a student's folder, as `rnic lab plot` has it.
fn from_folder(lab: &Lab, definition: &Definition, name: &str, student: &str) -> Ran {
    let config = definition.experiment(name).expect("an experiment");
    let files = sheet::folder(lab, student).expect("a folder");
    let text = &files.iter().find(|(file, _)| *file == config.file).expect("its file").1;
    let values = sheet::parameters(lab, definition, student).expect("parameters");
    let table = experiment::table(config, text, &values).expect("a table");
    experiment::run(config, &table).expect("a run")
}

/// For a student who is not the usual one.
#[test]
fn every_picture_is_that_of_the_students_folder() {
    let mut drawn = 0;
    for entry in labs().expect("labs") {
        let lab = rnic_lab::find(&entry.name).expect("a lab");
        let definition = lab.definition().expect("a definition");
        for config in definition.experiment.iter().filter(|config| !config.task) {
            let shown = run(&json!({ "lab": entry.name, "experiment": config.name, "student": "Alice" }));
            let shown = shown.expect("a run");
            let ran = from_folder(&lab, &definition, &config.name, "alice");
            let title = format!("{}: {}", definition.title, config.name);
            let figure = rnic_plot::of_lab(&title, &ran).expect("a picture");
            let picture = figure.map(|figure| {
                let size = (rnic_plot::WIDTH, rnic_plot::height(&figure, rnic_plot::WIDTH));
                assert!(3 * size.0 >= 4 * size.1, "{title} is too high for a slide: {size:?}");
                rnic_plot::svg(&figure, size).expect("a picture")
            });
            assert!(shown.picture == picture, "{title}: another picture");
            assert_eq!((shown.title, shown.text), (title, ran.text));
            drawn += usize::from(picture.is_some());
        }
    }
    assert!(drawn >= 15, "{drawn} pictures");
}

#[test]
fn a_task_waits_for_choices() {
    let mut setup = json!({ "lab": "go-back-n", "experiment": "yours", "task": { "lost_psn": " " } });
    assert_eq!(run(&setup).expect_err("nothing is chosen"), "choose lost_psn first");
    let file = lab_file(&setup.to_string()).expect("a file");
    assert_eq!(file.asks.iter().map(|(key, ..)| &**key).collect::<Vec<_>>(), ["lost_psn"]);
    setup["task"]["lost_psn"] = json!(2);
    let shown = run(&setup).expect("a run");
    assert!(shown.text.contains("psn #2") && shown.picture.is_some(), "{}", shown.text);
}

#[test]
fn a_file_that_was_changed_runs_as_it_is() {
    let mut setup = json!({ "lab": "go-back-n", "experiment": "loss", "student": "alice" });
    let own = run(&setup).expect("a run");
    let file = lab_file(&setup.to_string()).expect("a file").text;
    setup["file"] = json!(file);
    assert_eq!(run(&setup), Ok(own.clone()));
    setup["file"] = json!(file.split("[faults]").next());
    let without = run(&setup).expect("a run");
    assert!(own.text.contains("dropped") && !without.text.contains("dropped"), "{}", without.text);
    assert_ne!(own.picture, without.picture);
}

#[test]
fn mistakes_are_told() {
    for (setup, part) in [
        (json!({ "lab": "go-back-m", "experiment": "loss" }), "did you mean `go-back-n`?"),
        (json!({ "lab": "go-back-n", "experiment": "los" }), "did you mean `loss`?"),
        (json!({ "lab": "go-back-n", "experiment": "loss", "student": "../x" }), "not a valid student ID"),
        (json!({ "lab": "go-back-n", "experiment": "loss", "file": "latency = 3" }), "loss.toml: "),
        (json!({ "lab": "pause", "experiment": "victim", "file": "name = \"x\"" }), "victim"),
        (json!({ "lab": "pause" }), "missing field `experiment`"),
    ] {
        let error = run(&setup).expect_err("a mistake");
        assert!(error.contains(part), "{setup}: {error}");
    }
}
