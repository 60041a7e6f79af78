//! Prints all values of a lab for a student: for authors of labs.
//!
//! ```text
//! cargo run -p rnic-lab --example values -- LAB|FOLDER STUDENT [KEY=VALUE ...]
//! ```
//!
//! With a value for each key of the task, what the task's experiments measure is printed, too.

#![allow(clippy::print_stdout, reason = "it prints")]

use rnic_lab::{Lab, LabError, Value, Values, experiment, find, judge, sheet};
use std::path::Path;

fn main() -> Result<(), LabError> {
    let mut words = std::env::args().skip(1);
    let (name, id) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let lab = &if Path::new(&name).is_dir() { Lab::read(Path::new(&name))? } else { find(&name)? };
    let definition = lab.definition()?;
    let mut values = sheet::parameters(lab, &definition, &rnic_lab::definition::student(&id)?)?;
    judge::measure(lab, &definition, &mut values)?;
    let mut chosen = Values::default();
    for (key, value) in
        words.filter_map(|word| word.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())))
    {
        chosen.set(key, value.parse().map_or_else(|_| Value::Text(value.clone()), Value::Number));
    }
    for config in definition.experiment.iter().filter(|config| config.task) {
        let mut table = experiment::table(config, lab.file(&config.file)?, &values)?;
        experiment::choose(&definition, config, &mut table, &chosen)?;
        values.join(&config.name, &experiment::run(config, &table)?.values);
    }
    for (name, value) in &values.0 {
        println!("{name} = {value}");
    }
    Ok(())
}
