//! `--plot`.

use super::error::Problem;
use crate::plot;
use rnic_fabric::report::Report;
use rnic_plot::fabric::{self, Run};
use std::path::Path;

/// Whether the file can be a picture: asked before anything runs.
pub(super) fn check(path: Option<&Path>) -> Result<(), Problem> {
    path.map_or(Ok(()), plot::check).map_err(|error| Problem::Picture(error.to_string()))
}

/// Draws runs, each with its name, with shared axes, and says what was drawn.
pub(super) fn draw(title: &str, runs: &[(&str, &Report)], path: &Path) -> Result<String, Problem> {
    let mut seeds: Vec<u64> = runs.iter().map(|(_, report)| report.seed).collect();
    seeds.dedup();
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let conditions = fabric::conditions(runs.iter().map(|(_, report)| *report));
    let subtitle = format!("virtual time  ·  seed {}{conditions}", seeds.join(", "));
    let alone = runs.len() == 1;
    // One run needs no name.
    let name = |name| if alone { "" } else { name };
    let all: Vec<Run<'_>> = runs.iter().map(|(of, report)| Run { name: name(*of), report }).collect();
    let drawn = fabric::figure(title, &subtitle, &all).map_err(Into::into);
    let drawn = drawn.and_then(|figure| plot::save(&figure, path));
    let drawn = drawn.map_err(|error| Problem::Picture(error.to_string()))?;
    Ok(format!("{}: {}\n", path.display(), drawn.join(", ")))
}
