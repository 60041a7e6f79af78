//! What agents have refused, so that people see what their programs ask for in vain.

use super::mad::{Mad, Refusal};
use std::collections::BTreeMap;

/// The most kinds that are told apart: programs choose classes and attributes, and may send any.
const MOST_KINDS: usize = 64;

/// A kind of request that agents refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedKind {
    /// The management class.
    pub class: u8,
    /// The method.
    pub method: u8,
    /// The attribute.
    pub attribute: u16,
    /// The status in the answers (IBTA volume 1, section 13.4.7).
    pub status: u16,
}

/// What was refused, and how often.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    kinds: BTreeMap<RefusedKind, u64>,
    others: u64,
    /// Programs that wanted to be the subnet manager of a node that has one.
    pub(super) managers: u64,
}

impl Refusals {
    pub(super) fn note(&mut self, request: &Mad, refusal: Refusal) {
        let kind = RefusedKind {
            class: request.class(),
            method: request.method(),
            attribute: request.attribute(),
            status: refusal.status(),
        };
        if self.kinds.len() < MOST_KINDS || self.kinds.contains_key(&kind) {
            *self.kinds.entry(kind).or_default() += 1;
        } else {
            self.others += 1;
        }
    }

    /// The kinds, and how often each was refused.
    pub fn kinds(&self) -> impl Iterator<Item = (RefusedKind, u64)> {
        self.kinds.iter().map(|(kind, times)| (*kind, *times))
    }

    /// Requests of further kinds.
    #[must_use]
    pub const fn others(&self) -> u64 {
        self.others
    }

    /// Programs that wanted to be the subnet manager of a node that has one.
    #[must_use]
    pub const fn managers(&self) -> u64 {
        self.managers
    }
}

impl std::fmt::Display for RefusedKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { class, method, attribute, status } = self;
        let why = match status >> 2 {
            1 => "no agent of this class and version",
            2 => "no such method",
            3 => "no such attribute, or not with this method",
            _ => "a value that cannot be",
        };
        write!(f, "class {class:#04x}, method {method:#04x}, attribute {attribute:#06x}: {why}")
    }
}
