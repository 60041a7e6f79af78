//! The slots of an address: who has which.

use rnic_core::engine::Share;
use std::time::{Duration, Instant};

/// How long a slot rests after its user is gone before another gets it, while there are slots that nobody had yet: late
/// packets and peers' retries are over by then.
const REST: Duration = Duration::from_secs(10);

/// How long a slot is kept for a program that lost the daemon. It looks for it many times a second; but it may be stopped, by
/// a debugger for example.
const KEPT: Duration = Duration::from_secs(60);

/// How many queue pair numbers lie between the first of one user and the first of the next. A program with no more queue
/// pairs than that never has a number that one of the last 15 users of its slot had.
const STRIDE: u16 = 1 << 12;

/// The user of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum User {
    /// Nobody, since then; `None` if nobody ever had it.
    Nobody(Option<Instant>),
    /// The program that knows the token.
    Program { token: u128, uid: u32 },
    /// The program that knows the token, if it comes back by then.
    Awaited { token: u128, uid: u32, until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    user: User,
    rounds: [u8; 4],
    uses: u16,
}

/// What is kept of a slot while no daemon runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Kept {
    rounds: [u8; 4],
    uses: u16,
    token: Option<u128>,
    uid: u32,
}

/// The slots that have a socket, with slot 0, which is the daemon's.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<Slot>);

/// A slot that was given to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    pub(crate) slot: u8,
    pub(crate) token: u128,
    pub(crate) share: Share,
}

impl Slots {
    /// Adds a slot, whose socket was just made.
    pub(crate) fn grow(&mut self) {
        let rounds = rand::random();
        self.0.push(Slot { user: User::Nobody(None), rounds, uses: 0 });
    }

    /// The slots of an earlier daemon. Their programs are awaited.
    pub(crate) fn awaited(kept: &[Kept], now: Instant) -> Self {
        let slot = |kept: &Kept| {
            let user = match kept.token {
                Some(token) => User::Awaited { token, uid: kept.uid, until: now + KEPT },
                None => User::Nobody(Some(now)),
            };
            Slot { user, rounds: kept.rounds, uses: kept.uses }
        };
        Self(kept.iter().map(slot).collect())
    }

    /// What is to be kept.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let kept = |slot: &Slot| {
            let (token, uid) = match slot.user {
                User::Nobody(_) => (None, 0),
                User::Program { token, uid } | User::Awaited { token, uid, .. } => (Some(token), uid),
            };
            Kept { rounds: slot.rounds, uses: slot.uses, token, uid }
        };
        self.0.iter().map(kept).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Chooses a free slot. While slots can be added (`may_grow`), only one that has rested will do; otherwise any free one.
    /// Returns `None` if no slot qualifies.
    pub(crate) fn free(&self, now: Instant, may_grow: bool) -> Option<u8> {
        let since = |slot: &Slot| match slot.user {
            User::Nobody(since) => Some(since),
            User::Awaited { until, .. } if until <= now => Some(Some(until)),
            _ => None,
        };
        let free =
            self.0.iter().enumerate().skip(1).filter_map(|(number, slot)| Some((since(slot)?, number)));
        // Those that nobody had come first, then those that have rested longest.
        let (since, number) = free.min()?;
        let has_rested = since.is_none_or(|since| now.saturating_duration_since(since) >= REST);
        (has_rested || !may_grow).then(|| u8::try_from(number).ok()).flatten()
    }

    /// Gives a slot to a program.
    pub(crate) fn give(&mut self, slot: u8, uid: u32) -> Option<Given> {
        let place = self.0.get_mut(usize::from(slot))?;
        let token = rand::random();
        place.user = User::Program { token, uid };
        let first = place.uses.wrapping_mul(STRIDE);
        place.uses = place.uses.wrapping_add(1);
        Some(Given { slot, token, share: Share { rounds: place.rounds, first } })
    }

    /// A program is back that had a slot; `None` if that is not so, or the slot was given to another one.
    pub(crate) fn resume(&mut self, slot: u8, token: u128, uid: u32) -> Option<()> {
        let place = self.0.get_mut(usize::from(slot)).filter(|_| slot > 0)?;
        match place.user {
            User::Awaited { token: known, uid: of, .. } if known == token && of == uid => {
                place.user = User::Program { token, uid };
                Some(())
            }
            _ => None,
        }
    }

    /// The program of a slot is gone.
    pub(crate) fn free_up(&mut self, slot: u8, now: Instant) {
        if let Some(place) = self.0.get_mut(usize::from(slot)) {
            place.user = User::Nobody(Some(now));
        }
    }

    /// How many slots a user has.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        let is_of = |slot: &&Slot| matches!(slot.user, User::Program { uid: of, .. } if of == uid);
        self.0.iter().filter(is_of).count()
    }

    /// The scrambling of the daemon\'s own slot.
    pub(crate) fn own(&mut self) -> Share {
        if self.0.is_empty() {
            self.grow();
        }
        let Slot { rounds, uses, .. } = &mut self.0[0];
        let first = uses.wrapping_mul(STRIDE);
        *uses = uses.wrapping_add(1);
        Share { rounds: *rounds, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Slots {
        let mut slots = Slots::default();
        (0..count).for_each(|_| slots.grow());
        slots
    }

    #[test]
    fn a_slot_rests_after_its_user_is_gone() {
        let (mut slots, now) = (slots(3), Instant::now());
        assert_eq!(slots.free(now, true), Some(1), "slot 0 is the daemon\'s");
        let first = slots.give(1, 7).expect("a slot");
        assert_eq!((slots.free(now, true), slots.of_user(7), slots.of_user(8)), (Some(2), 1, 0));
        slots.give(2, 8).expect("a slot");
        assert_eq!((slots.free(now, true), slots.free(now, false)), (None, None));
        slots.free_up(1, now);
        assert_eq!(slots.free(now, true), None, "another one is added instead");
        assert_eq!(slots.free(now, false), Some(1), "unless there can be no more");
        assert_eq!(slots.free(now + REST, true), Some(1));
        let second = slots.give(1, 9).expect("a slot");
        assert_eq!(second.share, Share { first: first.share.first + STRIDE, ..first.share });
        assert_ne!(second.token, first.token);
    }

    #[test]
    fn a_program_gets_its_slot_back_from_the_next_daemon() {
        let (mut before, now) = (slots(4), Instant::now());
        let [one, two, three] = [1, 2, 3].map(|slot| before.give(slot, 7).expect("a slot"));
        before.free_up(three.slot, now);
        let mut slots = Slots::awaited(&before.kept(), now);
        assert_eq!(slots.len(), 4);
        assert_eq!(slots.resume(one.slot, one.token, 8), None, "another user");
        assert_eq!(slots.resume(one.slot, two.token, 7), None, "another program");
        assert_eq!(slots.resume(0, one.token, 7), None);
        assert_eq!(slots.resume(9, one.token, 7), None);
        assert_eq!(slots.resume(one.slot, one.token, 7), Some(()));
        assert_eq!(slots.resume(one.slot, one.token, 7), None, "it is there already");
        assert_eq!(slots.free(now, false), Some(3));
        // The other one does not come back.
        slots.give(3, 7).expect("a slot");
        assert_eq!(slots.free(now + KEPT - Duration::from_secs(1), false), None);
        assert_eq!(slots.free(now + KEPT, false), Some(2));
        slots.give(2, 9).expect("a slot");
        assert_eq!(slots.resume(two.slot, two.token, 7), None, "it has another user");
    }
}
