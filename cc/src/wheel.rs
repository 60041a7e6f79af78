//! A hierarchical timing wheel: one timer for each of very many flows, at a constant cost.
//!
//! Time is counted in ticks. Eleven wheels of 64 slots cover all 64 bits of them: a timer waits in the slot of the
//! highest group of six bits in which its tick differs from the present, and moves to a finer wheel when the present
//! gets there. Setting, cancelling and expiring a timer takes a constant number of steps (a timer moves at most once
//! per wheel), whatever the number of timers; bit maps skip empty slots. (Varghese and Lauck, SOSP 1987, scheme 7.)

use std::time::{Duration, Instant};

/// Bits of a tick that select a slot in one wheel.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Enough wheels for 64 bits.
const WHEELS: usize = 64usize.div_ceil(BITS as usize);
/// No timer: the end of a list.
const NONE: u32 = u32::MAX;

/// A timer. Its index is the number of its flow.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// The tick at which it expires.
    tick: u64,
    next: u32,
    previous: u32,
    /// The wheel and slot in which it waits; `UNSET` if it is not set.
    wheel: u8,
    slot: u8,
}

const UNSET: u8 = u8::MAX;

impl Timer {
    const EMPTY: Self = Self { tick: 0, next: NONE, previous: NONE, wheel: UNSET, slot: 0 };
}

/// First and last timer of a slot.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

/// Timers of numbered flows. See the [module](self).
#[derive(Clone, Debug)]
pub struct Wheel {
    epoch: Instant,
    /// Nanoseconds of a tick, as a power of two.
    shift: u32,
    /// The present tick: all timers before it have been handed out.
    present: u64,
    timers: Vec<Timer>,
    most: usize,
    set: usize,
    slots: [[List; SLOTS]; WHEELS],
    /// Slots that are not empty.
    occupied: [u64; WHEELS],
}

impl Wheel {
    /// A wheel that begins at `epoch`, with ticks of 2^`tick_bits` nanoseconds (at most 2^40), for flows with numbers
    /// below `flows`. It takes 24 bytes for each number up to the largest one in use. 10 bits, a microsecond, suit
    /// pacing: a timer expires up to one tick late.
    #[must_use]
    pub fn new(epoch: Instant, tick_bits: u32, flows: u32) -> Self {
        Self {
            epoch,
            shift: tick_bits.min(40),
            present: 0,
            timers: Vec::new(),
            most: flows as usize,
            set: 0,
            slots: [[List { first: NONE, last: NONE }; SLOTS]; WHEELS],
            occupied: [0; WHEELS],
        }
    }

    /// The number of timers that are set.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.set
    }

    /// Whether no timer is set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// Sets the timer of `flow` to `at`, whether it was set before or not. A past time expires at once. Returns
    /// whether the flow exists.
    pub fn set(&mut self, flow: u32, at: Instant) -> bool {
        let place = flow as usize;
        if place >= self.most {
            return false;
        }
        self.cancel(flow);
        if place >= self.timers.len() {
            self.timers.resize(place + 1, Timer::EMPTY);
        }
        // Rounded up: no timer expires early.
        let tick = self.nanos(at).div_ceil(1 << self.shift).max(self.present);
        if let Some(timer) = self.timers.get_mut(place) {
            timer.tick = tick;
            self.set += 1;
            self.insert(flow, tick);
        }
        true
    }

    /// Cancels the timer of `flow`; returns whether it was set.
    pub fn cancel(&mut self, flow: u32) -> bool {
        let Some(timer) = self.timers.get_mut(flow as usize) else { return false };
        if timer.wheel == UNSET {
            return false;
        }
        let old = std::mem::replace(timer, Timer::EMPTY);
        self.set -= 1;
        match self.timers.get_mut(old.previous as usize) {
            Some(previous) => previous.next = old.next,
            None => self.slots[usize::from(old.wheel)][usize::from(old.slot)].first = old.next,
        }
        match self.timers.get_mut(old.next as usize) {
            Some(next) => next.previous = old.previous,
            None => self.slots[usize::from(old.wheel)][usize::from(old.slot)].last = old.previous,
        }
        if self.slots[usize::from(old.wheel)][usize::from(old.slot)].first == NONE {
            self.occupied[usize::from(old.wheel)] &= !(1 << old.slot);
        }
        true
    }

    /// When the timer of `flow` expires; `None` if it is not set.
    #[must_use]
    pub fn expiry(&self, flow: u32) -> Option<Instant> {
        let timer = self.timers.get(flow as usize).filter(|t| t.wheel != UNSET)?;
        self.instant(timer.tick)
    }

    /// Returns a flow whose timer has expired by `now`, in the order of ticks; call it until it returns `None`. The
    /// timer is then no longer set. A caller that sets it to a past time gets it again at once, and has to bound
    /// that.
    pub fn poll_expired(&mut self, now: Instant) -> Option<u32> {
        let until = (self.nanos(now) >> self.shift).max(self.present);
        while let Some((wheel, slot, begins)) = self.next_slot() {
            if begins > until {
                break;
            }
            self.present = self.present.max(begins);
            if wheel == 0 {
                let flow = self.slots[0][slot].first;
                self.cancel(flow);
                return Some(flow);
            }
            self.unroll(wheel, slot);
        }
        self.present = until;
        None
    }

    /// A time before which no timer expires; `None` if none is set. [`Wheel::poll_expired`] then has something to do,
    /// if only to move timers to a finer wheel.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_slot().and_then(|(_, _, begins)| self.instant(begins))
    }

    /// The first nonempty slot, with the tick at which it begins. Timers in finer wheels precede those in coarser
    /// ones: they share more leading bits with the present.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let wheel = self.occupied.iter().position(|o| *o != 0)?;
        // No timer waits in a slot that has passed: the first occupied slot is the next one.
        let slot = self.occupied[wheel].trailing_zeros() as usize;
        let low = BITS * wheel as u32;
        let high = low + BITS;
        let above = if high < u64::BITS { self.present >> high << high } else { 0 };
        Some((wheel, slot, above | ((slot as u64) << low)))
    }

    /// Moves the timers of a slot that is due to finer wheels.
    fn unroll(&mut self, wheel: usize, slot: usize) {
        let mut flow =
            std::mem::replace(&mut self.slots[wheel][slot], List { first: NONE, last: NONE }).first;
        self.occupied[wheel] &= !(1 << slot);
        while let Some(timer) = self.timers.get(flow as usize) {
            let (tick, next) = (timer.tick, timer.next);
            self.insert(flow, tick);
            flow = next;
        }
    }

    /// Appends a timer to its slot.
    fn insert(&mut self, flow: u32, tick: u64) {
        let differs = (tick ^ self.present).checked_ilog2().unwrap_or(0);
        let wheel = (differs / BITS) as usize;
        let slot = ((tick >> (BITS * wheel as u32)) % SLOTS as u64) as usize;
        let list = &mut self.slots[wheel][slot];
        let last = std::mem::replace(&mut list.last, flow);
        if last == NONE {
            list.first = flow;
        }
        self.occupied[wheel] |= 1 << slot;
        if let Some(before) = self.timers.get_mut(last as usize) {
            before.next = flow;
        }
        if let Some(timer) = self.timers.get_mut(flow as usize) {
            *timer = Timer { tick, next: NONE, previous: last, wheel: wheel as u8, slot: slot as u8 };
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    fn instant(&self, tick: u64) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_nanos(tick.checked_mul(1 << self.shift)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::{BTreeMap, BinaryHeap};

    #[test]
    fn timers_expire_in_order_and_never_early() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start, 10, 8);
        let at = |us: u64| start + Duration::from_micros(us);
        for (flow, us) in [(0, 300), (1, 5), (2, 1_000_000), (3, 5), (7, 40_000)] {
            assert!(wheel.set(flow, at(us)));
        }
        assert_eq!((wheel.len(), wheel.poll_expired(at(4))), (5, None));
        assert_eq!(wheel.poll_expired(at(7)), Some(1));
        assert_eq!(wheel.poll_expired(at(7)), Some(3));
        assert_eq!(wheel.poll_expired(at(299)), None);
        assert!(wheel.cancel(7) && !wheel.cancel(7) && !wheel.cancel(100));
        wheel.set(0, at(2_000_000));
        assert_eq!(wheel.poll_expired(at(999_999)), None);
        let timeout = wheel.poll_timeout().expect("two timers are set");
        assert!(timeout <= at(1_000_002), "{:?}", timeout - start);
        assert_eq!(wheel.poll_expired(at(3_000_000)), Some(2));
        assert_eq!(wheel.poll_expired(at(3_000_000)), Some(0));
        assert_eq!((wheel.poll_expired(at(u64::from(u32::MAX))), wheel.is_empty()), (None, true));
    }

    #[test]
    fn odd_times_are_in_order() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start, 0, 4);
        let far = start + Duration::from_secs(500 * 365 * 24 * 3600);
        wheel.set(1, start.checked_sub(Duration::from_secs(1)).unwrap_or(start));
        wheel.set(2, far);
        assert!(!wheel.set(4, start) && !wheel.set(u32::MAX, start), "no such flows");
        assert_eq!((wheel.len(), wheel.expiry(1), wheel.expiry(9)), (2, Some(start), None));
        assert_eq!(wheel.poll_expired(start), Some(1));
        assert_eq!(wheel.poll_expired(start + Duration::from_secs(1 << 33)), None);
        assert_eq!(wheel.poll_expired(far), Some(2));
        // Time that goes back counts as the present.
        wheel.set(3, start);
        assert_eq!(wheel.poll_expired(start), Some(3));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Distances of every magnitude, so that all wheels are used.
        let distance = (0..44u32, any::<u64>()).prop_map(|(bits, n)| n & ((1 << bits) - 1));
        let step = prop_oneof![
            4 => (0..64u32, distance.clone()).prop_map(|(flow, ns)| Step::Set(flow, ns)),
            1 => (0..64u32).prop_map(Step::Cancel),
            3 => distance.prop_map(Step::Advance),
        ];
        prop::collection::vec(step, 1..300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// A heap of (tick, flow), with a table of current timers, does the same.
        #[test]
        fn it_does_what_a_heap_does(steps in steps(), tick_bits in 0..14u32) {
            let start = Instant::now();
            let mut wheel = Wheel::new(start, tick_bits, 64);
            let mut heap = BinaryHeap::new();
            let mut current = BTreeMap::new();
            let mut now = 0u64;
            for step in steps {
                match step {
                    Step::Set(flow, ns) => {
                        wheel.set(flow, start + Duration::from_nanos(now + ns));
                        let tick = (now + ns).div_ceil(1 << tick_bits);
                        heap.push(Reverse((tick, flow)));
                        current.insert(flow, tick);
                    }
                    Step::Cancel(flow) => {
                        prop_assert_eq!(wheel.cancel(flow), current.remove(&flow).is_some());
                    }
                    Step::Advance(ns) => {
                        now += ns;
                        let at = start + Duration::from_nanos(now);
                        let mut wanted = Vec::new();
                        while let Some(Reverse((tick, flow))) = heap.peek().copied() {
                            if tick > now >> tick_bits {
                                break;
                            }
                            heap.pop();
                            if current.get(&flow) == Some(&tick) {
                                current.remove(&flow);
                                wanted.push((tick, flow));
                            }
                        }
                        let mut found = Vec::new();
                        while let Some(flow) = wheel.poll_expired(at) {
                            prop_assert!(found.len() <= 64);
                            found.push(flow);
                        }
                        // Within a tick the order is that of setting, which the heap does not know.
                        let ticks: BTreeMap<_, _> = wanted.iter().map(|(tick, flow)| (*flow, *tick)).collect();
                        let in_order: Vec<_> = found.iter().map(|flow| ticks.get(flow).copied()).collect();
                        prop_assert!(in_order.is_sorted() && !in_order.contains(&None), "{in_order:?}");
                        prop_assert_eq!(found.len(), wanted.len());
                    }
                }
                prop_assert_eq!(wheel.len(), current.len());
                let first = current.values().min().map(|tick| start + Duration::from_nanos(tick << tick_bits));
                prop_assert_eq!(wheel.poll_timeout().is_some(), first.is_some());
                prop_assert!(wheel.poll_timeout() <= first);
            }
        }
    }
}
