//! `rnic lab check`.

use super::Place;
use super::folder::Folder;
use rnic_lab::judge::{Item, State, Verdict, judge};
use std::error::Error;
use std::process::ExitCode;

/// Judge the answers in a lab's folder.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Judge only if the folder is this student's: for graders.
    #[arg(long, value_name = "ID")]
    student: Option<String>,
    /// Judge only if the folder is that of this lab: for graders.
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Something is missing.
const NOT_YET: u8 = 1;

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let folder = Folder::open(&args.place.folder)?;
    let student = &folder.answers.student;
    if let Some(wanted) = &args.student
        && rnic_lab::definition::student(wanted)? != *student
    {
        return Err(format!("the folder is that of {student}, not of {wanted}").into());
    }
    if let Some(wanted) = &args.lab
        && super::folder::find(wanted)? != folder.lab
    {
        return Err(format!("the folder is that of the lab {}, not of {wanted}", folder.answers.lab).into());
    }
    let mut verdict = judge(&folder.lab, &folder.answers)?;
    if folder.definition.program.is_some() {
        super::program::judge(&folder, &mut verdict)?;
    }
    match args.json {
        true => outln!("{}", document(&folder, &verdict)),
        false => {
            print(&folder, &verdict);
            let changed = folder.changed()?;
            if !verdict.passed() && !changed.is_empty() {
                outln!(
                    "These files differ from the lab's own, which the check runs: {}.",
                    changed.join(", ")
                );
            }
        }
    }
    Ok(ExitCode::from(if verdict.passed() { 0 } else { NOT_YET }))
}

/// The parts of a lab, with their headings.
const PARTS: [(&str, &str); 4] = [
    (PREDICTION, "Predictions"),
    ("after", "Answers"),
    ("task", "Task"),
    ("goal", "What the task must achieve"),
];

fn print(folder: &Folder, verdict: &Verdict) {
    outln!("{}, {}", folder.definition.title, folder.answers.student);
    let width = verdict.items.iter().map(|item| item.key.chars().count()).max().unwrap_or(0);
    for (part, heading) in PARTS {
        let items: Vec<&Item> = verdict.items.iter().filter(|item| item.part == part).collect();
        if !items.is_empty() {
            outln!("\n{heading}");
        }
        for item in items {
            outln!("{}", format!("  {:<7} {:<width$}  {}", word(item), item.key, item.remark).trim_end());
        }
    }
    // No prediction is wrong, and so none is right.
    let judged = verdict.items.iter().filter(|item| item.part != PREDICTION);
    let (all, right) = (judged.clone().count(), judged.filter(|item| item.state == State::Right).count());
    match verdict.passed() {
        true => outln!("\nDone: all {right} are right."),
        false if right == all => {
            outln!("\nNot yet: all {right} are right, but write down what you expected.")
        }
        false => outln!("\nNot yet: {right} of {all} are right."),
    }
}

/// The part of the predictions.
const PREDICTION: &str = "before";

fn word(item: &Item) -> &'static str {
    match item.state {
        State::Right if item.part == PREDICTION => "written",
        State::Right => "right",
        State::Wrong => "wrong",
        State::Missing => "missing",
    }
}

fn document(folder: &Folder, verdict: &Verdict) -> serde_json::Value {
    let item = |item: &Item| serde_json::json!({ "part": item.part, "key": item.key, "state": word(item), "remark": item.remark });
    serde_json::json!({
        "lab": folder.answers.lab,
        "student": folder.answers.student,
        "passed": verdict.passed(),
        "items": verdict.items.iter().map(item).collect::<Vec<_>>(),
    })
}
