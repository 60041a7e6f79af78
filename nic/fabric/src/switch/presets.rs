//! Settings of switches that exist, by name.

use super::SwitchConfig;

/// The settings of a switch that exists.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name, for `preset`.
    pub name: &'static str,
    /// The text of its file. Comments say where the settings are from.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal)*) => {
        /// All of them.
        pub const PRESETS: &[Preset] = &[
            $(Preset { name: $name, text: include_str!(concat!("../../presets/", $name, ".toml")) },)*
        ];
    };
}

presets! { "hpcc" "htsim-lossless" "opensm" "sonic-spectrum3" "sonic-tomahawk5" }

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// No preset has this name. The text lists the names, or suggests the closest one.
    pub fn find(name: &str) -> Result<Self, String> {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let found = PRESETS.iter().copied().find(|preset| preset.name == name);
        found.ok_or_else(|| cc::unknown(name, &names))
    }

    /// Its settings as a table.
    ///
    /// # Panics
    /// Its file is no table: a test reads all of them.
    #[must_use]
    #[allow(clippy::expect_used, reason = "the file is part of the program, and a test reads it")]
    pub fn table(self) -> toml::Table {
        toml::from_str(self.text).expect("presets are tables")
    }

    /// Its settings.
    ///
    /// # Panics
    /// Its file has an error: a test reads all of them.
    #[must_use]
    #[allow(clippy::expect_used, reason = "the file is part of the program, and a test reads it")]
    pub fn config(self) -> SwitchConfig {
        let config: SwitchConfig = toml::from_str(self.text).expect("presets are settings of switches");
        SwitchConfig { preset: Some(self.name.to_owned()), ..config }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::Model;

    #[test]
    fn all_presets_can_be_read() {
        for preset in PRESETS {
            let config = preset.config();
            assert_eq!(config.preset.as_deref(), Some(preset.name));
            assert!(preset.text.starts_with("# "), "{} says where it is from", preset.name);
            let classes = config.classes();
            let is_infiniband = config.model == Model::Infiniband;
            assert!(is_infiniband || classes.iter().any(|class| class.lossless), "{}", preset.name);
        }
        assert_eq!(Preset::find("hpcc").map(|found| found.name), Ok("hpcc"));
        let error = Preset::find("sonic-spectrum").expect_err("not quite");
        assert!(error.contains("sonic-spectrum3"), "{error}");
    }

    /// What makes `misconfigured-pfc` of a switch that is not configured at all.
    #[test]
    fn sonic_loses_what_a_nic_believes_to_be_lossless() {
        let sonic = Preset::find("sonic-spectrum3").expect("it is there").config();
        let (map, classes) = (sonic.classes_of_dscps(), sonic.classes());
        let is_lossless = |dscp: usize| classes[usize::from(map[dscp])].lossless;
        assert!(is_lossless(3) && is_lossless(4));
        assert!(!is_lossless(24) && !is_lossless(26) && !is_lossless(48));
        assert_eq!((map[5], map[8], map[46], map[48], map[63]), (2, 0, 5, 6, 1));
    }
}
