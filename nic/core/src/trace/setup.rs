//! The configuration of a port, in the header of a trace.

use super::{Header, LinkHeader};
use crate::link::{LinkConfig, LinkProfile, Model};
use cc::{Algorithm, Rate};
use qp::Mtu;

impl Header {
    /// The same header, with the link and the congestion control of a port. Settings without effect are left out.
    #[must_use]
    pub fn of_port(self, link: &LinkConfig, cc: &Algorithm) -> Self {
        // The MTU decides on nothing that stands here. Settings that do not fit together have no port.
        let Ok(profile) = link.at(cc, Mtu::B4096) else { return self };
        let configured = (*link != LinkConfig::default()).then(|| {
            let red = profile.red.clone().filter(|_| profile.rate.is_some());
            LinkHeader {
                name: link_name(link, &profile),
                rate: profile.rate.map(Rate::bits_per_second),
                buffer: profile.rate.map(|_| profile.buffer),
                kmin: red.as_ref().map(|red| red.kmin),
                kmax: red.as_ref().map(|red| red.kmax),
            }
        });
        Self { link: configured, cc: cc_name(cc), ..self }
    }
}

fn link_name(link: &LinkConfig, profile: &LinkProfile) -> String {
    let mut parts = vec![link.model.name().to_owned()];
    if let Some(rate) = link.rate {
        parts.push(rate.to_string());
        if link.model == Model::Ethernet {
            parts.push(format!("buffer {} KB", profile.buffer as f64 / 1e3));
        }
    }
    if !link.delay.is_zero() {
        parts.push(format!("delay {:?}", link.delay));
    }
    if let Some(rate) = link.receiver_rate {
        parts.push(format!("receiver reads {rate}"));
    }
    if !link.pfc.is_empty() {
        let priorities: Vec<_> = link.pfc.iter().map(u8::to_string).collect();
        let xoff = profile.thresholds.iter().flatten().map(|of| of.xoff).next().unwrap_or_default();
        // The buffer is that of lossy priorities: the queue of a lossless one is longer.
        parts.push(format!(
            "pauses each peer on priority {} above {} KB",
            priorities.join(" and "),
            xoff as f64 / 1e3
        ));
    }
    parts.join(", ")
}

fn cc_name(cc: &Algorithm) -> Option<String> {
    match cc {
        Algorithm::Off => None,
        Algorithm::Dcqcn(options) => {
            let different = options.different.iter().map(|(word, value)| format!(", {word}={value}"));
            Some(format!("dcqcn, preset {}{}", options.preset.name(), different.collect::<String>()))
        }
        Algorithm::Dctcp(_) => Some("dctcp".to_owned()),
        Algorithm::Timely(_) => Some("timely".to_owned()),
        Algorithm::Swift(_) => Some("swift".to_owned()),
        Algorithm::Nscc(_) => Some("nscc".to_owned()),
        Algorithm::Ibcc(_) => Some("ibcc".to_owned()),
        Algorithm::Hpcc(_) => Some("hpcc".to_owned()),
    }
}
