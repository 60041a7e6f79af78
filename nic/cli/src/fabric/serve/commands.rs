//! What `rnic fabric serve` is told on its standard input.

use rnic::cc::quantity::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A cable is cut.
    Cut(String),
    /// A cable is whole again.
    Mend(String),
    /// Virtual time moves on.
    Run(Duration),
    /// Tables are saved to this file, or to that of `--save`.
    Save(Option<PathBuf>),
    /// The state is printed.
    Status,
    /// The commands are printed.
    Help,
    /// The end.
    Quit,
}

/// The commands, for people.
pub(super) const HELP: &str = "\
cut leaf0>spine1     cuts a cable
mend leaf0>spine1    mends it
run 5 ms             has virtual time move on
status               prints the LIDs and what is active
save FILE            saves the tables (TOML, or JSON if it ends in .json)
quit                 ends
";

impl Command {
    /// Reads a line. None if it is empty.
    pub(super) fn read(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let cable = || match rest {
            "" => Err(format!("`{word}` needs the name of a cable, such as leaf0>spine1")),
            // Directions have the names of cables with another sign.
            name => Ok(name.replace('>', "-")),
        };
        Ok(Some(match word {
            "" => return Ok(None),
            "cut" => Self::Cut(cable()?),
            "mend" => Self::Mend(cable()?),
            "run" => {
                Self::Run(parse_duration(rest).map_err(|why| format!("`{rest}`: {why}; write `run 5 ms`"))?)
            }
            "save" => Self::Save((!rest.is_empty()).then(|| rest.into())),
            "status" => Self::Status,
            "help" => Self::Help,
            "quit" | "exit" => Self::Quit,
            other => return Err(format!("there is no command `{other}`: write `help`")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words_with_what_follows() {
        let read = |line: &str| Command::read(line).expect("a command");
        assert_eq!(read("cut leaf0>spine1\n"), Some(Command::Cut("leaf0-spine1".to_owned())));
        assert_eq!(read(" mend  leaf0-spine1.2 "), Some(Command::Mend("leaf0-spine1.2".to_owned())));
        assert_eq!(read("run 5 ms"), Some(Command::Run(Duration::from_millis(5))));
        assert_eq!(
            (read("save"), read("save a b")),
            (Some(Command::Save(None)), Some(Command::Save(Some("a b".into()))))
        );
        assert_eq!((read(""), read("quit")), (None, Some(Command::Quit)));
        for wrong in ["cut", "run", "run five", "fly"] {
            assert!(Command::read(wrong).is_err(), "{wrong}");
        }
    }
}
