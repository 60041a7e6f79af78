//! Why a lab cannot be run.

use crate::expression::ExpressionError;

/// Why a lab cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no such lab.
    #[error("there is no lab `{name}`: {advice}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What to write instead.
        advice: String,
    },
    /// The ID cannot be used.
    #[error("`{id}` is not a valid student ID: use 1 to 64 letters, digits and . _ - @")]
    Student {
        /// The ID.
        id: String,
    },
    /// A file is not what it should be.
    #[error("{file}: {why}")]
    File {
        /// Its name.
        file: String,
        /// What is wrong, in one line.
        why: String,
    },
    /// What a student chose cannot be chosen.
    #[error("task.{key} = {value}: {why}")]
    Choice {
        /// The key in the file of answers.
        key: String,
        /// What is written there.
        value: String,
        /// What to write.
        why: String,
    },
    /// A formula of the lab.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// An experiment with two NICs.
    #[error("experiment {name}: {why}")]
    Devices {
        /// Its name.
        name: String,
        /// What is wrong.
        why: Box<rnic_core::Error>,
    },
}

impl LabError {
    /// A file that is not what it should be.
    pub(crate) fn file(file: impl Into<String>, why: impl ToString) -> Self {
        // Errors of TOML draw the place in further lines, behind the number of the line and a bar.
        let is_drawn = |line: &&str| {
            line.trim_start_matches(|sign: char| sign == ' ' || sign.is_ascii_digit()).starts_with('|')
        };
        let why = why.to_string();
        let why = why.lines().filter(|line| !is_drawn(line)).collect::<Vec<_>>().join(" ");
        Self::File { file: file.into(), why: why.trim().to_owned() }
    }
}
