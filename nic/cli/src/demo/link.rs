//! The demos of links: which of the two runs, and what both need.

use super::page::Page;
use super::{Args, Failure, Outcome, congestion, credits};
use rnic::Device;
use rnic::cc::Algorithm;
use rnic::link::{LinkConfig, Model};

/// The preset of DCQCN unless the command line names another: the only one designed for links of a few Gb/s.
const PRESET: &str = "preset=laptop";

/// A demo of a link.
pub(super) enum Story {
    /// Credits between two ports.
    Credits(LinkConfig),
    /// Congestion control between two senders.
    Congestion {
        /// The port of each device.
        link: LinkConfig,
        /// DCQCN, parsed and as text.
        cc: Algorithm,
        cc_words: String,
    },
}

impl Story {
    /// The demo that the command line requests, if any.
    pub(super) fn of(args: &Args) -> Outcome<Option<Self>> {
        if args.link.is_none() && args.cc.is_none() {
            return Ok(None);
        }
        let mut link = LinkConfig::default();
        if let Some(words) = &args.link {
            link.apply(words).map_err(|error| Failure::new(format!("--link: {error}")))?;
        }
        if link.model == Model::IbCredits {
            return match &args.cc {
                None => Ok(Some(Self::Credits(link))),
                Some(_) => Err(Failure::new("--cc: this demo requires `--link ethernet`")),
            };
        }
        let cc_words = words_of(args.cc.as_deref().unwrap_or("dcqcn"));
        let cc: Algorithm = cc_words.parse().map_err(|error| Failure::new(format!("--cc: {error}")))?;
        if !matches!(cc, Algorithm::Dcqcn(_)) {
            return Err(Failure::new(
                "--cc: the demo shows `dcqcn` only; use `rnic perf` for other algorithms",
            ));
        }
        Ok(Some(Self::Congestion { link, cc, cc_words }))
    }

    /// Runs it. `part` names the current part, for errors.
    pub(super) fn tell(&self, args: &Args, page: &Page, part: &mut &'static str) -> Outcome {
        match self {
            Self::Credits(link) => credits::tell(link, args, page, part)?,
            Self::Congestion { link, cc, cc_words } => {
                congestion::Scene { link, cc, cc_words, args }.tell(page, part)?;
            }
        }
        page.title("\nAll checks passed.");
        page.flush();
        Ok(())
    }
}

/// Adds the preset to DCQCN unless one is named.
fn words_of(cc: &str) -> String {
    match cc.split_once(':') {
        None if cc == "dcqcn" => format!("dcqcn:{PRESET}"),
        Some(("dcqcn", settings)) if !settings.contains("preset") => format!("dcqcn:{PRESET},{settings}"),
        _ => cc.to_owned(),
    }
}

/// A counter of a device.
pub(super) fn counter(device: &Device, name: &str) -> u64 {
    device.counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// Prints counters of the device `who` with their meanings.
pub(super) fn show_counters(page: &Page, who: &str, device: &Device, names: &[&str]) {
    for name in names {
        let meaning = rnic::Counters::describe().find(|(n, _)| n == name).map_or("", |(_, meaning)| meaning);
        // Only the first clause fits into a line.
        let meaning = meaning.split(['.', ',', ':']).next().unwrap_or_default();
        page.row(&format!("{who:<8}  {name:<26} {:>7}  ", counter(device, name)), meaning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcqcn_has_the_laptop_preset_unless_another_is_named() {
        assert_eq!(words_of("dcqcn"), "dcqcn:preset=laptop");
        assert_eq!(words_of("dcqcn:rpg_ai_rate=9"), "dcqcn:preset=laptop,rpg_ai_rate=9");
        assert_eq!(words_of("dcqcn:preset=paper"), "dcqcn:preset=paper");
        assert_eq!(words_of("timely"), "timely");
    }
}
