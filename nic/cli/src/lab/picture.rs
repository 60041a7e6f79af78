//! `rnic lab plot`.

use super::Place;
use super::folder::Folder;
use rnic_lab::experiment::Ran;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// Draw the experiments in a lab's folder.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Draw PNG files. [default: SVG]
    #[arg(long)]
    png: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let folder = Folder::open(&args.place.folder)?;
    let (mut count, mut failed) = (0, 0);
    for config in &folder.definition.experiment {
        if !folder.lacks(config).is_empty() {
            outln!("{}: it waits for {} in answers.toml", config.name, folder.lacks(config).join(", "));
            continue;
        }
        let file = folder.path.join(format!("{}.{}", config.name, if args.png { "png" } else { "svg" }));
        let title = folder.definition.picture_title(config);
        // One that cannot be drawn keeps no other from it.
        match folder.run(config).and_then(|ran| draw(&title, &ran, &file)) {
            Ok(drawn) if drawn.is_empty() => {}
            Ok(drawn) => {
                outln!("{}: {}", file.display(), drawn.join(", "));
                count += 1;
            }
            Err(why) => {
                eprintln!("rnic: {}: {why}", config.name);
                failed += 1;
            }
        }
    }
    if failed > 0 {
        return Err(format!("{failed} could not be drawn").into());
    }
    if count == 0 {
        outln!("This lab has no picture yet: `rnic lab run` shows its numbers.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws what an experiment measured. Returns what is drawn: nothing if there is no picture of it.
pub(super) fn draw(title: &str, ran: &Ran, file: &Path) -> Result<Vec<&'static str>, Box<dyn Error>> {
    match rnic_plot::of_lab(title, ran)? {
        Some(figure) => crate::plot::save(&figure, file),
        None => Ok(Vec::new()),
    }
}
