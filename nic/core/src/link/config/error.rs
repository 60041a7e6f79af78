//! Errors in the settings of a link.

use cc::{SettingError, known_settings};

/// A link that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkConfigError {
    /// The setting does not exist.
    #[error("unknown setting `{word}`; {}", known_settings(word, known))]
    Unknown {
        /// The name as given.
        word: String,
        /// The settings that exist.
        known: &'static [&'static str],
    },
    /// A setting has a name only.
    #[error("`{word}` has no value; write `{word}=VALUE`")]
    NoValue {
        /// The setting.
        word: String,
    },
    /// The value is not of the kind that the setting takes.
    #[error("invalid value `{value}` for `{word}`: {why}")]
    Malformed {
        /// The setting.
        word: String,
        /// The value.
        value: String,
        /// What to write instead.
        why: String,
    },
    /// The value is out of range, or does not fit the other settings.
    #[error("invalid value {value} for `{word}`: {why}")]
    Unfit {
        /// The setting.
        word: String,
        /// The value.
        value: String,
        /// The range, or the setting that it contradicts.
        why: String,
    },
    /// A setting that others require is not set.
    #[error("`{word}` is missing: {why}")]
    Missing {
        /// The setting.
        word: String,
        /// Why it is required.
        why: String,
    },
    /// A setting of the congestion control cannot be used.
    #[error("congestion control: {0}")]
    Cc(SettingError),
}

impl LinkConfigError {
    pub(super) fn unfit(word: &str, value: impl ToString, why: impl Into<String>) -> Self {
        Self::Unfit { word: word.to_owned(), value: value.to_string(), why: why.into() }
    }

    /// The setting that is at fault.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Unknown { word, .. }
            | Self::NoValue { word }
            | Self::Malformed { word, .. }
            | Self::Unfit { word, .. }
            | Self::Missing { word, .. } => word,
            Self::Cc(
                SettingError::Unknown { word, .. }
                | SettingError::NoValue { word }
                | SettingError::Malformed { word, .. },
            ) => word,
            Self::Cc(SettingError::OutOfRange { word, .. }) => word,
        }
    }
}
