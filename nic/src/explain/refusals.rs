//! Why requests of peers were refused, stored where those peers may look: see the module documentation of `explain`.

use super::state;
use crate::process::{ReasonFile, reason_files};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// How many refusals a process keeps: a requester looks as soon as it learns of its own.
const KEPT: usize = 64;

/// A request that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Refusal {
    /// Address and queue pair of the responder.
    pub(super) responder: (IpAddr, u32),
    /// Address and queue pair of the requester.
    pub(super) requester: (IpAddr, u32),
    /// The reason.
    pub(super) reason: String,
}

/// The refusals of this process, and where to find those of others.
pub(super) struct Refusals {
    run_dir: Option<PathBuf>,
    file: Option<ReasonFile>,
    kept: VecDeque<Refusal>,
}

impl Refusals {
    pub(super) fn new(run_dir: Option<&Path>) -> Self {
        Self { run_dir: run_dir.map(Path::to_path_buf), file: None, kept: VecDeque::new() }
    }

    /// Keeps a refusal, and stores it where its requester may look.
    fn keep(&mut self, refusal: Refusal) {
        self.kept.truncate(KEPT - 1);
        self.kept.push_front(refusal);
        let is_ours = self.file.as_ref().is_some_and(ReasonFile::is_ours);
        if !is_ours {
            let made = self.run_dir.as_deref().map(ReasonFile::new);
            self.file = made.and_then(|made| {
                made.inspect_err(|error| tracing::warn!(%error, "reasons of refusals are not left for peers"))
                    .ok()
            });
        }
        if let Some(file) = &self.file {
            let lines = self.kept.iter().filter_map(|refusal| serde_json::to_string(refusal).ok());
            file.write(&lines.fold(String::new(), |text, line| text + &line + "\n"));
        }
    }

    /// Why `responder` refused a request of `requester`, if it published the reason.
    fn find(&self, responder: (IpAddr, u32), requester: (IpAddr, u32)) -> Option<String> {
        let is_it = |refusal: &&Refusal| refusal.responder == responder && refusal.requester == requester;
        if let Some(own) = self.kept.iter().find(is_it) {
            return Some(own.reason.clone());
        }
        let texts = reason_files(self.run_dir.as_deref()?);
        let all = texts.iter().flat_map(|text| text.lines());
        let all: Vec<Refusal> = all.filter_map(|line| serde_json::from_str(line).ok()).collect();
        all.iter().find(is_it).map(|refusal| refusal.reason.clone())
    }

    pub(super) fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }
}

impl Refusal {
    /// Keeps the refusal for its requester.
    pub(super) fn tell(self) {
        if let Some(refusals) = state().as_mut().and_then(|state| state.refusals.as_mut()) {
            refusals.keep(self);
        }
    }
}

/// Why `responder` refused a request of `requester`, if it published the reason.
pub(super) fn told_by(responder: (IpAddr, u32), requester: (IpAddr, u32)) -> Option<String> {
    state()?.refusals.as_ref()?.find(responder, requester)
}

/// The run folder, if there is one.
pub(super) fn run_dir() -> Option<PathBuf> {
    state()?.refusals.as_ref()?.run_dir().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(responder: [u8; 4], requester: u32) -> Refusal {
        let ends = ((IpAddr::from(responder), 0x11), (IpAddr::from([127, 0, 0, 1]), requester));
        Refusal { responder: ends.0, requester: ends.1, reason: format!("of {requester}") }
    }

    #[test]
    fn a_reason_is_found_by_the_queue_pair_that_was_refused_alone() {
        let folder = std::env::temp_dir().join(format!("rnic-refusals-{}", std::process::id()));
        let (mut ours, theirs) = (Refusals::new(Some(&folder)), Refusals::new(Some(&folder)));
        let (at, from) = ((IpAddr::from([127, 0, 0, 2]), 0x11), |qpn| (IpAddr::from([127, 0, 0, 1]), qpn));
        assert_eq!(theirs.find(at, from(0x12)), None);
        ours.keep(refusal([127, 0, 0, 2], 0x12));
        assert_eq!(theirs.find(at, from(0x12)).as_deref(), Some("of 18"));
        assert_eq!(ours.find(at, from(0x12)).as_deref(), Some("of 18"));
        assert_eq!(theirs.find(at, from(0x13)), None, "another queue pair of the same process");
        assert_eq!(theirs.find((at.0, 0x10), from(0x12)), None, "another responder");
        for requester in 0..2 * KEPT as u32 {
            ours.keep(refusal([127, 0, 0, 2], 0x100 + requester));
        }
        assert_eq!(theirs.find(at, from(0x12)), None, "old ones are forgotten");
        assert_eq!((ours.kept.len(), theirs.find(at, from(0x100 + 127)).is_some()), (KEPT, true));
        std::fs::remove_dir_all(folder).expect("a folder");
    }
}
