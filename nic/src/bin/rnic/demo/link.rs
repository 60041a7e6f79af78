//! What links do against loss: which of the two stories is told, and what both need.

use super::page::Page;
use super::{Args, Failure, Outcome, congestion, credits};
use rnic::Device;
use rnic::cc::Algorithm;
use rnic::link::{LinkConfig, Model};

/// How DCQCN is chosen where the command line does not name a preset: the only one that is made for such links.
const PRESET: &str = "preset=laptop";

/// A story of a link.
pub(super) enum Story {
    /// Credits between two ports.
    Credits(LinkConfig),
    /// Congestion control between two senders.
    Congestion {
        /// The port of each.
        link: LinkConfig,
        /// DCQCN, and as it stands on a command line.
        cc: Algorithm,
        cc_words: String,
    },
}

impl Story {
    /// The story that the command line asks for, if it asks for one.
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
                Some(_) => Err(Failure::new("--cc: congestion control is shown with `--link ethernet`")),
            };
        }
        let cc_words = words_of(args.cc.as_deref().unwrap_or("dcqcn"));
        let cc: Algorithm = cc_words.parse().map_err(|error| Failure::new(format!("--cc: {error}")))?;
        if !matches!(cc, Algorithm::Dcqcn(_)) {
            return Err(Failure::new("--cc: the demo shows `dcqcn`; `rnic perf` measures the others, too"));
        }
        Ok(Some(Self::Congestion { link, cc, cc_words }))
    }

    /// Tells it. `part` follows where it is.
    pub(super) fn tell(&self, args: &Args, page: &Page, part: &mut &'static str) -> Outcome {
        match self {
            Self::Credits(link) => credits::tell(link, args, page, part)?,
            Self::Congestion { link, cc, cc_words } => {
                congestion::Scene { link, cc, cc_words, args }.tell(page, part)?;
            }
        }
        page.title("\nEverything was as it should be.");
        page.flush();
        Ok(())
    }
}

/// DCQCN with a preset, whatever else is asked for.
fn words_of(cc: &str) -> String {
    match cc.split_once(':') {
        None if cc == "dcqcn" => format!("dcqcn:{PRESET}"),
        Some(("dcqcn", settings)) if !settings.contains("preset") => format!("dcqcn:{PRESET},{settings}"),
        _ => cc.to_owned(),
    }
}

/// A counter of a device by its name.
pub(super) fn counter(device: &Device, name: &str) -> u64 {
    device.counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// Counters with their meaning, one line each, under the name of whose they are.
pub(super) fn show_counters(page: &Page, who: &str, device: &Device, names: &[&str]) {
    for name in names {
        let meaning = rnic::Counters::describe().find(|(n, _)| n == name).map_or("", |(_, meaning)| meaning);
        // The first sentence is enough here.
        let meaning = meaning.split(['.', ',', ':']).next().unwrap_or_default();
        page.line(&format!("{who:<10} {name:<31} {:>9}  {meaning}", counter(device, name)));
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
