//! Options that configure a device. `rnic perf server` and `rnic perf client` share them.

use crate::number::whole;
use rnic::cc::Algorithm;
use rnic::link::faults::FaultRule;
use rnic::{DeviceConfig, Mtu};
use std::error::Error;
use std::path::PathBuf;

/// A configuration file, and options that override what it says.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct Setup {
    /// Read a configuration file (TOML). Options override its settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Emulate a link, such as `ethernet:rate=5Gb/s,buffer=1MB,pfc=3` or `ib-credits`. Settings that are not named keep
    /// the value from the file.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Control congestion, such as `dcqcn:preset=laptop` [off, dcqcn, dctcp, timely, swift, nscc, ibcc, hpcc].
    #[arg(long, value_name = "CC")]
    cc: Option<Algorithm>,
    /// Repeat only the packets that were lost, towards rnic peers that do so, too.
    #[arg(long)]
    selective_repeat: bool,
    /// Inject a fault, such as `tx data psn=#3 drop`. Repeat for several. Replaces the rules of the file.
    #[arg(long, value_name = "RULE", value_parser = fault_rule)]
    fault: Vec<String>,
    /// Seed the randomness of fault rules. [default: the file's seed, or 0]
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// Write all packets of this device to a pcapng file.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

/// A rule as it was written, if it can be parsed.
fn fault_rule(text: &str) -> Result<String, rnic::link::faults::ParseError> {
    text.parse::<FaultRule>().map(|_| text.to_owned())
}

impl Setup {
    /// The device configuration: the file, overridden by the options.
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
        if !self.fault.is_empty() {
            config.faults.clone_from(&self.fault);
        }
        config.selective_repeat |= self.selective_repeat;
        config.fault_seed = self.seed.unwrap_or(config.fault_seed);
        config.capture = self.capture.clone().or(config.capture);
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
    fn without_options_a_device_has_the_default_configuration() {
        let config = device(&[]).expect("in order");
        assert_eq!(format!("{config:?}"), format!("{:?}", DeviceConfig::default()));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let path = std::env::temp_dir().join(format!("rnic-setup-{}.toml", std::process::id()));
        let text = "faults = [\"rx nak drop\"]\nfault_seed = 7\n[link]\nrate = \"5 Gb/s\"\nbuffer = \"1 MB\"\n[cc]\nalgorithm = \"dctcp\"\n";
        std::fs::write(&path, text).expect("a file");
        let file = path.to_str().expect("a path in UTF-8");
        let config = device(&[
            "--config",
            file,
            "--link",
            "rate=2Gb/s",
            "--cc",
            "dcqcn:preset=laptop",
            "--fault",
            "tx ack drop",
            "--seed",
            "9",
            "--capture",
            "x.pcapng",
        ]);
        let alone = device(&["--config", file]);
        std::fs::remove_file(&path).expect("the file");
        let config = config.expect("in order");
        let link = |gbps| LinkConfig {
            rate: Some(Rate::from_gbps(gbps)),
            buffer: Some(1_000_000),
            ..LinkConfig::default()
        };
        assert_eq!((config.link, config.fault_seed), (link(2), 9));
        assert_eq!(
            (config.faults, config.capture),
            (vec!["tx ack drop".to_owned()], Some("x.pcapng".into()))
        );
        assert_eq!(config.cc, Algorithm::Dcqcn(Options::new(Preset::Laptop)));
        let alone = alone.expect("in order");
        assert_eq!((alone.link, alone.fault_seed), (link(5), 7));
        assert_eq!(alone.faults, ["rx nak drop"]);
        assert!(matches!(alone.cc, Algorithm::Dctcp(_)));
    }

    #[test]
    fn errors_name_the_option() {
        for (args, says) in [
            (["--link", "ethernet:speed=1"], "--link"),
            (["--link", "pfc=3"], "`rate`"),
            (["--cc", "bbr"], "--cc"),
            (["--fault", "tx data dorp"], "did you mean 'drop'?"),
            (["--config", "/nowhere/at.toml"], "/nowhere/at.toml"),
        ] {
            let error = device(&args).expect_err("not in order");
            assert!(error.contains(says), "{error}");
        }
    }
}
