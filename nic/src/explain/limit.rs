//! The rate limit of each kind of line.

use super::{BURST, WINDOW};
use time::Instant;

/// The kinds of lines seen, with the counts of each.
pub(super) struct Limits {
    kinds: Vec<Kind>,
}

struct Kind {
    name: &'static str,
    /// When the window began.
    since: Instant,
    /// Lines printed since then.
    printed: u32,
    /// Lines suppressed since the last printed one.
    suppressed: u64,
}

/// The decision about a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Print it, preceded by the number of suppressed lines of its kind.
    Print {
        /// The number of suppressed lines.
        suppressed: u64,
    },
    /// Only count it.
    Suppress,
}

impl Limits {
    pub(super) const fn new() -> Self {
        Self { kinds: Vec::new() }
    }

    /// Decides about a line of this kind.
    pub(super) fn ask(&mut self, name: &'static str, now: Instant) -> Verdict {
        let Some(kind) = self.kinds.iter_mut().find(|kind| kind.name == name) else {
            self.kinds.push(Kind { name, since: now, printed: 1, suppressed: 0 });
            return Verdict::Print { suppressed: 0 };
        };
        if now.saturating_duration_since(kind.since) >= WINDOW {
            (kind.since, kind.printed) = (now, 0);
        }
        if kind.printed >= BURST {
            kind.suppressed += 1;
            return Verdict::Suppress;
        }
        kind.printed += 1;
        Verdict::Print { suppressed: std::mem::take(&mut kind.suppressed) }
    }

    /// Suppressed lines that have not been reported yet.
    pub(super) fn rest(&mut self) -> impl Iterator<Item = (&'static str, u64)> {
        let left = |kind: &mut Kind| (kind.name, std::mem::take(&mut kind.suppressed));
        self.kinds.iter_mut().map(left).filter(|(_, suppressed)| *suppressed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn lines_of_a_kind_are_limited_and_those_left_out_are_counted() {
        let (mut limits, start) = (Limits::new(), Instant::EPOCH);
        for _ in 0..BURST {
            assert_eq!(limits.ask("a", start), Verdict::Print { suppressed: 0 });
        }
        assert_eq!([limits.ask("a", start), limits.ask("a", start)], [Verdict::Suppress; 2]);
        assert_eq!(limits.ask("b", start), Verdict::Print { suppressed: 0 }, "another kind");
        let later = start + WINDOW;
        assert_eq!(limits.ask("a", later - Duration::from_nanos(1)), Verdict::Suppress);
        assert_eq!(limits.ask("a", later), Verdict::Print { suppressed: 3 });
        assert_eq!(limits.rest().count(), 0);
        for _ in 0..BURST {
            limits.ask("a", later);
        }
        assert_eq!(limits.rest().collect::<Vec<_>>(), [("a", 1)]);
    }
}
