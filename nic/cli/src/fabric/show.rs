//! `rnic fabric list` and `rnic fabric show`.

use super::Output;
use super::error::{Problem, Status};
use super::source::Source;
use super::table::wrapped;
use rnic_fabric::scenario::BUILTIN;
use rnic_fabric::switch::{PRESETS, Preset};
use std::path::PathBuf;

/// Print a scenario as a file, or write it to one, to be changed; or print a preset of a switch.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// A name of `rnic fabric list`, or a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Write it to this file, which must not exist yet.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints or writes the text of a scenario.
pub(super) fn show(args: &ShowArgs, out: &mut Output<'_>) -> Result<Status, Problem> {
    let source = match Preset::find(&args.scenario) {
        Ok(preset) if args.output.is_none() => {
            out.print(preset.text)?;
            return Ok(Status::Passed);
        }
        _ => Source::find(&args.scenario)?,
    };
    let Some(path) = &args.output else {
        out.print(&source.text)?;
        return Ok(Status::Passed);
    };
    // What the user may have changed is not overwritten.
    let file = std::fs::File::create_new(path);
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, source.text.as_bytes()));
    written.map_err(Problem::write(path))?;
    out.print(&format!("{0}: change it, and run it with: rnic fabric run {0}\n", path.display()))?;
    Ok(Status::Passed)
}

/// Prints the names of the scenarios, and what they show; and of the presets, and what they are.
pub(super) fn list(out: &mut Output<'_>) -> Result<Status, Problem> {
    for builtin in BUILTIN {
        let source =
            Source { name: builtin.name.to_owned(), text: builtin.text.to_owned(), base: ".".into() };
        let about = source.read()?.about;
        out.print(&format!("{}\n{}\n", builtin.name, wrapped(first_sentence(&about), 100, "    ")))?;
    }
    out.print("\nPresets of switches, for `switch.preset`\n\n")?;
    for preset in PRESETS {
        let comment =
            preset.text.lines().map_while(|line| line.strip_prefix("# ")).collect::<Vec<_>>().join(" ");
        out.print(&format!("{}\n{}\n", preset.name, wrapped(first_sentence(&comment), 100, "    ")))?;
    }
    Ok(Status::Passed)
}

/// Up to the first full stop at the end of a word.
fn first_sentence(text: &str) -> &str {
    let text = text.trim();
    let ends = text.match_indices('.').map(|(at, _)| at + 1);
    let end = ends.into_iter().find(|end| text[*end..].chars().next().is_none_or(char::is_whitespace));
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_with_a_full_stop_and_a_space() {
        assert_eq!(first_sentence("\nTakes 0.5 s\nor so. And\nmore."), "Takes 0.5 s\nor so.");
        assert_eq!(first_sentence("No end"), "No end");
        assert_eq!(first_sentence(""), "");
    }
}
