//! Services, and which options each supports.

use super::Failure;
use super::params::{Op, Params, Test};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The service, as perftest's `-c` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection (SEND and WRITE).
    Uc,
    /// Unreliable datagram (SEND of one packet).
    Ud,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// The name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }

    /// Whether the service retransmits lost packets.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl Params {
    /// Checks that the service supports the operation and the options.
    pub(super) fn check_service(&self) -> Result<(), Failure> {
        let (service, op) = (self.service.name(), self.op.name());
        let rules: [(bool, &str); 8] = [
            (
                !self.service.is_reliable() && self.op.is_answered(),
                "the service has no responses; use --op send (or write over UC)",
            ),
            (
                self.service == Service::Ud && self.op != Op::Send,
                "datagrams cannot access remote memory; use --op send",
            ),
            (!self.service.is_reliable() && self.bidirectional, "--bidirectional requires RC or XRC"),
            (
                self.service == Service::Ud && self.mtu.is_some(),
                "--mtu does not apply; a datagram is one packet",
            ),
            (self.imm && self.op.is_answered(), "--imm applies to WRITE and SEND only"),
            (self.srq && self.op != Op::Send, "--srq applies to SEND only"),
            (self.srq && self.service == Service::Uc, "--srq requires RC or UD"),
            (self.srq && self.service == Service::Xrc, "--srq is implied; leave it out"),
        ];
        if let Some((_, why)) = rules.iter().find(|(broken, _)| *broken) {
            return Err(format!("{op} over {service}: {why}").into());
        }
        let odd = self.sizes.iter().find(|size| self.op.is_atomic() && **size != 8);
        if let Some(size) = odd {
            return Err(format!("--size {size}: atomics operate on 8 bytes").into());
        }
        if self.service == Service::Ud {
            // The limit of any port. The limit of these ports is checked when both are known.
            self.check_datagrams(4096)?;
        }
        Ok(())
    }

    /// Checks that every message fits into a datagram of `mtu` bytes.
    pub(super) fn check_datagrams(&self, mtu: u32) -> Result<(), Failure> {
        match self.sizes.iter().find(|size| **size > mtu) {
            Some(size) => {
                Err(format!("--size {size} over UD: a datagram is one packet of at most {mtu} bytes").into())
            }
            None => Ok(()),
        }
    }

    /// Whether messages consume receives.
    pub(super) fn takes_receives(&self) -> bool {
        self.op == Op::Send || self.imm
    }

    /// Whether a message is visible in memory only, because nothing completes at the target.
    pub(super) fn polls_memory(&self) -> bool {
        self.op == Op::Write && !self.imm
    }

    /// Whether the bandwidth is computed from the messages that arrived.
    pub(super) fn counts_arrivals(&self) -> bool {
        !self.service.is_reliable() && self.test == Test::Bw
    }
}
