//! The notifications that a program has requested from a completion queue, which the engine sees without a lock.

use super::primitives::{AtomicU8, Ordering, fence};

bitflags::bitflags! {
    /// The notifications that wake a sleeping program.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Wish: u8 {
        /// An event on the channel for the next solicited completion, or error.
        const SOLICITED = 1;
        /// An event on the channel for the next completion.
        const ANY = 2;
        /// Wake the tasks that await a completion at the next one.
        const AWAITED = 4;
        /// Either kind of event.
        const EVENT = Self::SOLICITED.bits() | Self::ANY.bits();
    }
}

/// The pending wishes.
///
/// The program makes a wish and then checks the queue once more; the engine publishes a completion and then checks
/// the wishes. A fence between the two steps of each ensures that at least one of them sees the other's step, so no
/// completion goes unnoticed.
pub(crate) struct Wishes(AtomicU8);

impl Wishes {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Makes a wish. A thread that wants to sleep has to check the queue in between.
    pub(crate) fn make(&self, wish: Wish) {
        // A wish for any completion is not weakened by a later one for solicited ones (IBTA 11.4.2.2).
        self.0.fetch_or(wish.bits(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes the wishes fulfilled by a completion that was just published. `wakes`: it is solicited, or an error.
    pub(crate) fn grant(&self, wakes: bool) -> Wish {
        fence(Ordering::SeqCst);
        let standing = Wish::from_bits_truncate(self.0.load(Ordering::Relaxed));
        let granted = if wakes || standing.contains(Wish::ANY) { standing } else { standing & Wish::AWAITED };
        if !granted.is_empty() {
            // A wish of another kind that was made meanwhile stands; one that was withdrawn meanwhile is not granted.
            let stood = self.0.fetch_and(!granted.bits(), Ordering::Relaxed);
            return granted & Wish::from_bits_truncate(stood);
        }
        granted
    }

    /// Withdraws wishes; returns those that were still pending.
    pub(crate) fn withdraw(&self, wishes: Wish) -> Wish {
        wishes & Wish::from_bits_truncate(self.0.fetch_and(!wishes.bits(), Ordering::Relaxed))
    }
}
