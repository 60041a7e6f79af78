//! Options that say how a device is set up: the same for every command that opens one.

use rnic::cc::Algorithm;
use rnic::{DeviceConfig, Mtu};
use std::error::Error;
use std::path::PathBuf;

/// A configuration file, and the link and congestion control of the command line, which come before those of the file.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct Setup {
    /// A configuration file (TOML): mtu, faults and so on, and tables [link] and [cc].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The link: the port that the device behaves like, such as `ethernet:rate=5Gb/s,buffer=1MB,pfc=3` or `ib-credits`.
    /// What it does not name stays as the file has it.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Congestion control, such as `dcqcn:preset=laptop`; instead of the file's.
    #[arg(long, value_name = "CC")]
    cc: Option<Algorithm>,
}

impl Setup {
    /// What the file and the command line say.
    pub(crate) fn device(&self) -> Result<DeviceConfig, Box<dyn Error>> {
        let mut config = match &self.config {
            Some(path) => DeviceConfig::load(path)?,
            None => DeviceConfig::default(),
        };
        if let Some(link) = &self.link {
            config.link.apply(link).map_err(|error| format!("--link: {error}"))?;
        }
        if let Some(cc) = &self.cc {
            config.cc = cc.clone();
        }
        let mtu = config.mtu.unwrap_or(Mtu::B4096);
        config.link.at(&config.cc, mtu).map_err(|error| format!("--link, --cc or --config: {error}"))?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rnic::cc::Rate;
    use rnic::cc::dcqcn::{Options, Preset};
    use rnic::link::LinkConfig;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        setup: Setup,
    }

    fn device(args: &[&str]) -> Result<DeviceConfig, String> {
        let line = Line::try_parse_from(std::iter::once(&"rnic").chain(args)).map_err(|e| e.to_string())?;
        line.setup.device().map_err(|e| e.to_string())
    }

    #[test]
    fn without_options_a_device_is_as_it_always_is() {
        let config = device(&[]).expect("in order");
        assert_eq!(format!("{config:?}"), format!("{:?}", DeviceConfig::default()));
    }

    #[test]
    fn the_command_line_comes_before_the_file() {
        let path = std::env::temp_dir().join(format!("rnic-setup-{}.toml", std::process::id()));
        let text =
            "fault_seed = 7\n[link]\nrate = \"5 Gb/s\"\nbuffer = \"1 MB\"\n[cc]\nalgorithm = \"dctcp\"\n";
        std::fs::write(&path, text).expect("a file");
        let file = path.to_str().expect("a path in UTF-8");
        let config = device(&["--config", file, "--link", "rate=2Gb/s", "--cc", "dcqcn:preset=laptop"]);
        let alone = device(&["--config", file]);
        std::fs::remove_file(&path).expect("the file");
        let config = config.expect("in order");
        let link = |gbps| LinkConfig {
            rate: Some(Rate::from_gbps(gbps)),
            buffer: Some(1_000_000),
            ..LinkConfig::default()
        };
        assert_eq!((config.link, config.fault_seed), (link(2), 7));
        assert_eq!(config.cc, Algorithm::Dcqcn(Options::new(Preset::Laptop)));
        let alone = alone.expect("in order");
        assert_eq!(alone.link, link(5));
        assert!(matches!(alone.cc, Algorithm::Dctcp(_)));
    }

    #[test]
    fn errors_say_which_option_they_are_of() {
        for (args, says) in [
            (["--link", "ethernet:speed=1"], "--link"),
            (["--link", "pfc=3"], "`rate`"),
            (["--cc", "bbr"], "--cc"),
            (["--config", "/nowhere/at.toml"], "/nowhere/at.toml"),
        ] {
            let error = device(&args).expect_err("not in order");
            assert!(error.contains(says), "{error}");
        }
    }
}
