//! The slots behind the keys: which are in use, which are free, and which tag is next.

use super::key::{KeyMaker, KeySource, MAX_SLOTS};
use super::region::Region;
use super::window::{MwType, Window};
use std::cell::Cell;

/// The number of free slots kept in quarantine before the oldest is used again. With 256 tags per slot, a dead key
/// stays dead for at least a quarter of a million registrations. Costs 64 KiB at most.
pub(super) const QUARANTINE: u32 = 1024;

/// Reserved slots, whose keys could be 0, which means "no key" to programs, or all ones, a common marker. They stay
/// unused, so that a consumer may choose any low byte for a memory window.
const RESERVED: u32 = 2;

/// The largest number of slots that can be in use at a time.
pub(super) const MAX_LIVE: u32 = MAX_SLOTS - QUARANTINE - RESERVED;

/// No slot: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The content of a slot.
#[derive(Debug)]
pub(super) enum Entry {
    /// Nothing; `next` links the free slots in the order in which they became free.
    Free { next: u32 },
    /// A memory region.
    Region(Region),
    /// A null region: it reads as zeroes and discards writes.
    Null(Region),
    /// A memory window.
    Window(MwType, Window),
}

/// A place for a region or window. It has the size and alignment of a cache line: a lookup among a million misses the
/// cache once.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) entry: Entry,
    /// The first window bound to the region in this slot.
    pub(super) windows: u32,
    /// The low byte of the slot's current or last key.
    pub(super) tag: u8,
}

/// Number of keys whose slots are remembered.
const FOUND: usize = 64;

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    keys: KeyMaker,
    /// Which slots keys led to last: the upper 24 bits of a key, and the index of its slot, which never change. Computing
    /// it takes four multiplications that wait for each other.
    found: [Cell<(u32, u32)>; FOUND],
    /// The oldest free slot, and the newest.
    oldest_free: u32,
    youngest_free: u32,
    free: u32,
    /// The maximum number of slots.
    limit: u32,
}

impl Slots {
    /// For `live` slots in use at a time, at most [`MAX_LIVE`].
    pub(super) fn new(live: u32, source: KeySource) -> Self {
        Self {
            slots: Vec::new(),
            keys: KeyMaker::new(source),
            found: [const { Cell::new((NONE, 0)) }; FOUND],
            oldest_free: NONE,
            youngest_free: NONE,
            free: 0,
            limit: live.min(MAX_LIVE) + QUARANTINE + RESERVED,
        }
    }

    /// The slot that `key` currently names.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<&Slot> {
        self.slots.get(self.family(key) as usize).filter(|slot| slot.tag == key as u8)
    }

    /// The index of the slot that `key` currently names.
    pub(super) fn index(&self, key: u32) -> Option<u32> {
        self.find(key).map(|_| self.family(key))
    }

    /// The index of the slot for all keys with the upper 24 bits of `key`.
    #[inline]
    pub(super) fn family(&self, key: u32) -> u32 {
        let family = key >> 8;
        let found = &self.found[family as usize % FOUND];
        let (known, index) = found.get();
        if known == family {
            return index;
        }
        let index = self.keys.slot(key);
        found.set((family, index));
        index
    }

    /// The key of a slot.
    pub(super) fn key(&self, index: u32) -> Option<u32> {
        Some(self.keys.key(index, self.get(index)?.tag))
    }

    pub(super) fn get(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)
    }

    /// All slots with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().zip(0u32..).map(|(slot, index)| (self.keys.key(index, slot.tag), slot))
    }

    /// The memory that the slots take in bytes.
    pub(super) fn footprint(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Puts `entry` into a slot and returns its index and key; `None` if all are in use.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<(u32, u32)> {
        let index = if self.free >= QUARANTINE { None } else { self.grow() };
        let index = index.or_else(|| self.reuse())?;
        let slot = self.slots.get_mut(index as usize)?;
        (slot.entry, slot.windows) = (entry, NONE);
        Some((index, self.keys.key(index, slot.tag)))
    }

    /// Empties a slot and returns its content; `None` if it is free.
    pub(super) fn remove(&mut self, index: u32) -> Option<Entry> {
        let slot = self.slots.get_mut(index as usize)?;
        if let Entry::Free { .. } = slot.entry {
            return None;
        }
        let entry = std::mem::replace(&mut slot.entry, Entry::Free { next: NONE });
        match self.slots.get_mut(self.youngest_free as usize) {
            Some(Slot { entry: Entry::Free { next }, .. }) => *next = index,
            _ => self.oldest_free = index,
        }
        self.youngest_free = index;
        self.free += 1;
        Some(entry)
    }

    /// A slot that was never used.
    fn grow(&mut self) -> Option<u32> {
        loop {
            let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < self.limit)?;
            let tag = self.keys.first_tag(index);
            self.slots.push(Slot { entry: Entry::Free { next: NONE }, windows: NONE, tag });
            if !matches!(self.keys.key(index, 0), 0 | 0xffff_ff00) {
                return Some(index);
            }
        }
    }

    /// The oldest free slot, with its next tag.
    fn reuse(&mut self) -> Option<u32> {
        let index = self.oldest_free;
        let slot = self.slots.get_mut(index as usize)?;
        let Entry::Free { next } = slot.entry else { return None };
        slot.tag = slot.tag.wrapping_add(1);
        self.oldest_free = next;
        if next == NONE {
            self.youngest_free = NONE;
        }
        self.free -= 1;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::PdId;

    fn entry() -> Entry {
        Entry::Null(Region::null(PdId(0)))
    }

    fn slots(live: u32) -> Slots {
        Slots::new(live, KeySource::Seed([42; 32]))
    }

    #[test]
    fn a_slot_is_a_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
        assert_eq!(align_of::<Slot>(), 64);
    }

    #[test]
    fn a_dead_key_stays_dead() {
        let mut s = slots(10);
        let mut seen = std::collections::HashSet::new();
        let (_, first) = s.insert(entry()).expect("room");
        for _ in 0..200_000 {
            let (index, key) = s.insert(entry()).expect("room");
            assert!(seen.insert(key), "key {key:#x} came back after {} registrations", seen.len());
            s.remove(index).expect("it is there");
            assert!(s.remove(index).is_none(), "it is gone");
        }
        assert!(s.find(first).is_some());
        assert!(s.slots.len() <= 10 + QUARANTINE as usize);
    }

    #[test]
    fn slots_are_used_again_only_when_many_wait_or_none_is_left() {
        let mut s = slots(1);
        let (first, _) = s.insert(entry()).expect("room");
        s.remove(first).expect("it is there");
        let mut used = 0;
        while s.insert(entry()).is_some() {
            used += 1;
        }
        assert_eq!(used, 1 + QUARANTINE + RESERVED, "each of them once");
    }

    /// Slots whose key with index `wanted` in its upper 24 bits comes early.
    fn slots_with_early(wanted: u32) -> (Slots, u32) {
        let mut seed = [0; 32];
        for number in 0u64.. {
            seed[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            seed[8..16].copy_from_slice(&number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).to_le_bytes());
            let slots = Slots::new(10_000, KeySource::Seed(seed));
            let index = slots.family(wanted << 8);
            if index < 10_000 {
                return (slots, index);
            }
        }
        unreachable!("one seed in two thousand will do");
    }

    #[test]
    fn the_keys_0_and_all_ones_are_never_handed_out() {
        for reserved in [0, 0xff_ffff] {
            let (mut s, index) = slots_with_early(reserved);
            for _ in 0..10_000 {
                let (_, key) = s.insert(entry()).expect("room");
                assert_ne!(key >> 8, reserved);
            }
            assert!(matches!(s.get(index).map(|slot| &slot.entry), Some(Entry::Free { .. })));
        }
    }
}
