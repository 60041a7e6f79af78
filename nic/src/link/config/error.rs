//! What can be wrong with the words of a link.

use super::LinkConfig;
use cc::SettingError;

/// A link that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkConfigError {
    /// There is no such word.
    #[error("there is no setting `{word}` of a link; the settings are {known}")]
    Unknown {
        /// The word.
        word: String,
        /// The words that exist.
        known: String,
    },
    /// The value is not of the kind that the word takes.
    #[error("`{word}` cannot be `{value}`: {wanted} is wanted")]
    Malformed {
        /// The word.
        word: String,
        /// The value.
        value: String,
        /// What would do.
        wanted: String,
    },
    /// The value is out of range, or does not fit the other words.
    #[error("`{word}` cannot be {value}: {wanted}")]
    Unfit {
        /// The word.
        word: String,
        /// The value.
        value: String,
        /// What is wanted.
        wanted: String,
    },
    /// A setting of the congestion control cannot be used.
    #[error("congestion control: {0}")]
    Cc(SettingError),
}

impl LinkConfigError {
    pub(super) fn unknown(word: &str) -> Self {
        Self::Unknown { word: word.to_owned(), known: LinkConfig::WORDS.join(", ") }
    }

    pub(super) fn malformed(word: &str, value: &str, wanted: &str) -> Self {
        Self::Malformed { word: word.to_owned(), value: value.to_owned(), wanted: wanted.to_owned() }
    }

    pub(super) fn unfit(word: &str, value: impl ToString, wanted: impl Into<String>) -> Self {
        Self::Unfit { word: word.to_owned(), value: value.to_string(), wanted: wanted.into() }
    }

    /// The word that is at fault.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Unknown { word, .. } | Self::Malformed { word, .. } | Self::Unfit { word, .. } => word,
            Self::Cc(SettingError::Unknown { word, .. } | SettingError::Malformed { word, .. }) => word,
            Self::Cc(SettingError::OutOfRange { word, .. }) => word,
        }
    }
}
