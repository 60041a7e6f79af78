//! Services, and what goes together with them.

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
    /// Unreliable connection: SEND and WRITE.
    Uc,
    /// Unreliable datagrams: SEND of one packet.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// As the field spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }

    /// Whether everything that is sent arrives.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl Params {
    /// Whether the service has what is asked of it.
    pub(super) fn check_service(&self) -> Result<(), Failure> {
        let (service, op) = (self.service.name(), self.op.name());
        let rules: [(bool, &str); 8] = [
            (
                !self.service.is_reliable() && self.op.is_answered(),
                "nobody answers there; --op write or send",
            ),
            (self.service == Service::Ud && self.op != Op::Send, "datagrams name no memory; --op send"),
            (
                !self.service.is_reliable() && self.bidirectional,
                "--bidirectional: what arrives is counted on one side",
            ),
            (self.service == Service::Ud && self.mtu.is_some(), "--mtu: datagrams have no path MTU"),
            (self.imm && self.op.is_answered(), "--imm: only WRITE and SEND carry immediate data"),
            (self.srq && self.op != Op::Send, "--srq: only SEND is measured with shared receive queues"),
            (
                self.srq && self.service == Service::Uc,
                "--srq: unreliable connections have a receive queue of their own",
            ),
            (self.srq && self.service == Service::Xrc, "--srq: there is nothing else to receive through"),
        ];
        if let Some((_, why)) = rules.iter().find(|(broken, _)| *broken) {
            return Err(format!("{op} over {service}: {why}").into());
        }
        let odd = self.sizes.iter().find(|size| self.op.is_atomic() && **size != 8);
        if let Some(size) = odd {
            return Err(format!("--size {size}: atomics work on 8 bytes").into());
        }
        if self.service == Service::Ud {
            // The largest that any port carries; the ports' own come later.
            self.check_datagrams(4096)?;
        }
        Ok(())
    }

    /// Whether all messages are datagrams of at most `mtu` bytes, what the ports carry.
    pub(super) fn check_datagrams(&self, mtu: u32) -> Result<(), Failure> {
        match self.sizes.iter().find(|size| **size > mtu) {
            Some(size) => {
                Err(format!("--size {size} over UD: a datagram is one packet, of at most {mtu} bytes here")
                    .into())
            }
            None => Ok(()),
        }
    }

    /// Whether messages take receives.
    pub(super) fn takes_receives(&self) -> bool {
        self.op == Op::Send || self.imm
    }

    /// Whether a message is seen in memory only, because nothing completes where it arrives.
    pub(super) fn polls_memory(&self) -> bool {
        self.op == Op::Write && !self.imm
    }

    /// Whether the receiver's count of messages is the figure.
    pub(super) fn counts_arrivals(&self) -> bool {
        !self.service.is_reliable() && self.test == Test::Bw
    }
}
