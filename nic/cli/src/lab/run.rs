//! `rnic lab run`.

use super::Place;
use super::folder::Folder;
use super::progress::Progress;
use rnic_lab::expression::evaluate;
use rnic_lab::judge::with_words;
use rnic_lab::{Value, Values};
use std::error::Error;
use std::process::ExitCode;

/// Run the experiments in a lab's folder.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Run this experiment only. May be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print everything that was measured, but for what answers the questions.
    #[arg(long, short)]
    all: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let folder = Folder::open(&args.place.folder)?;
    let known: Vec<&str> = folder.definition.experiment.iter().map(|of| &*of.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--only {unknown}: {}", rnic::cc::unknown(unknown, &known)).into());
    }
    let mut values = folder.values.clone();
    for config in &folder.definition.experiment {
        if !args.only.is_empty() && !args.only.contains(&config.name) {
            continue;
        }
        let lacks = folder.lacks(config);
        if !lacks.is_empty() {
            outln!("{}: it waits for {} in answers.toml\n", config.name, lacks.join(", "));
            continue;
        }
        let mut progress = Progress::new(&config.name);
        let ran = folder.run_watched(config, &mut |share| progress.show(share))?;
        drop(progress);
        if !ran.text.is_empty() {
            outln!("{} ({})\n\n{}", config.name, config.file, ran.text);
        }
        values.join(&config.name, &ran.values);
    }
    let end = super::program::show(&folder)?;
    match args.all {
        true => {
            // Not the parameters: some of them are what the task asks for.
            let is_printed =
                |name: &str| folder.values.get(name).is_none() && !folder.definition.is_to_be_found(name);
            let measured = values.0.iter().filter(|(name, _)| is_printed(name));
            measured.for_each(|(name, value)| outln!("{name:<48} {value}"));
        }
        false => print(&folder, &values),
    }
    Ok(match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rnic: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Prints what the lab shows, as far as it was measured.
fn print(folder: &Folder, values: &Values) {
    let mut rows = folder.definition.shown(values);
    // What the task is judged by, as far as it was tried.
    let mut all = values.clone();
    all.join("task", &with_words(&folder.definition, &folder.chosen()));
    for goal in &folder.definition.goal {
        let is_choice =
            goal.value.starts_with("{task.") && goal.value.find('}') == Some(goal.value.len() - 1);
        if !is_choice && let Ok(value) = evaluate(&goal.value, &all) {
            rows.push((format!("task: {}", goal.name), Value::Number(value).to_string()));
        }
    }
    let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    rows.iter().for_each(|(label, value)| outln!("{label:<width$}  {value}"));
}
