//! The memory of a device, and its expected content.
//!
//! A shadow holds the value of every byte that no operation in progress may change. A byte in the target of an
//! operation in progress may have its old or its new value, and no other. All other bytes must match the shadow:
//! the regions are separated by zones that nobody may access.

use super::Check;
use super::rng::Rng;
use rnic::UserMemory;
use rnic::memory::MemoryBuffer;
use std::ops::Range;
use std::sync::Arc;

/// An operation in progress on a part of the memory.
struct Open {
    /// The work request that writes it.
    id: u64,
    at: usize,
    len: usize,
    /// The expected new content; `None` if it is not known in advance.
    new: Option<Vec<u8>>,
}

impl Open {
    fn end(&self) -> usize {
        self.at + self.len
    }
}

/// Memory, its shadow, and the operations in progress on it.
pub(crate) struct Arena {
    buffer: Arc<MemoryBuffer>,
    shadow: Vec<u8>,
    actual: Vec<u8>,
    expected: Vec<u8>,
    open: Vec<Open>,
    /// Ranges in use by work requests.
    taken: Vec<Range<usize>>,
}

impl Arena {
    /// Memory of `len` bytes, all of them non-zero, so that a cleared byte is detected too.
    pub(crate) fn new(len: usize, seed: u64) -> Check<Self> {
        let buffer = MemoryBuffer::new(len).map_err(|e| e.to_string())?;
        let shadow = super::rng::pattern(seed, len);
        buffer.write_at(0, &shadow).map_err(|e| e.to_string())?;
        Ok(Self {
            buffer: Arc::new(buffer),
            actual: vec![0; len],
            expected: vec![0; len],
            shadow,
            open: Vec::new(),
            taken: Vec::new(),
        })
    }

    /// A part of it, to be registered.
    #[expect(unsafe_code, reason = "a region smaller than its buffer has neighbours that can be watched")]
    pub(crate) fn memory(&self, range: Range<usize>) -> UserMemory {
        assert!(range.end <= self.buffer.len(), "a part of the buffer");
        // SAFETY: the bytes are inside the buffer, which the memory keeps alive and to which no reference exists.
        let part = unsafe { UserMemory::new(self.buffer.addr() + range.start, range.len() as u64) };
        part.keeping(Arc::clone(&self.buffer) as Arc<_>)
    }

    /// The expected bytes without operations in progress.
    pub(crate) fn shadow(&self, range: Range<usize>) -> &[u8] {
        &self.shadow[range]
    }

    /// The actual bytes.
    pub(crate) fn actual(&self, range: Range<usize>) -> Check<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.buffer.read_at(range.start, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }

    /// A write by the program.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> Check {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        self.buffer.write_at(at, bytes).map_err(|e| e.to_string())
    }

    /// A range of `len` bytes in `pool` that nothing else uses, with at least one byte between it and its
    /// neighbours.
    pub(crate) fn take(
        &mut self,
        pool: &Range<usize>,
        len: usize,
        align: usize,
        rng: &mut Rng,
    ) -> Option<usize> {
        let room = pool.len().checked_sub(len + align)?;
        for _ in 0..8 {
            let at = (pool.start + rng.size(0, room)).next_multiple_of(align);
            let wanted = at.saturating_sub(1)..at + len + 1;
            if self.taken.iter().all(|used| used.end <= wanted.start || wanted.end <= used.start) {
                self.taken.push(at..at + len);
                return Some(at);
            }
        }
        None
    }

    /// Releases a range.
    pub(crate) fn release(&mut self, at: usize) {
        if let Some(index) = self.taken.iter().position(|used| used.start == at) {
            self.taken.swap_remove(index);
        }
    }

    /// Starts an operation that will write `new` to these bytes.
    pub(crate) fn expect(&mut self, id: u64, at: usize, new: Vec<u8>) {
        self.open.push(Open { id, at, len: new.len(), new: Some(new) });
    }

    /// Starts an operation with unknown content.
    pub(crate) fn expect_any(&mut self, id: u64, at: usize, len: usize) {
        self.open.push(Open { id, at, len, new: None });
    }

    fn close(&mut self, id: u64) -> Option<Open> {
        let index = self.open.iter().position(|open| open.id == id)?;
        Some(self.open.remove(index))
    }

    /// Completes an operation: its bytes must be in memory, unless another operation in progress overwrote them.
    pub(crate) fn settle(&mut self, id: u64) -> Check {
        let Some(open) = self.close(id) else { return Ok(()) };
        let range = open.at..open.end();
        if let Some(new) = open.new {
            self.shadow[range.clone()].copy_from_slice(&new);
        }
        self.check_range(range)
    }

    /// Completes an operation with unknown content: these bytes arrived; the rest of the range must be unchanged if
    /// `alone` is set.
    pub(crate) fn settle_as(&mut self, id: u64, bytes: &[u8], alone: bool) -> Check {
        if !alone {
            return self.give_up(id);
        }
        let Some(open) = self.close(id) else { return Err(format!("nothing was under way for {id:#x}")) };
        self.shadow[open.at..open.at + bytes.len()].copy_from_slice(bytes);
        self.check_range(open.at..open.end())
    }

    /// Checks that all of it has arrived, or been overwritten by a later operation in progress.
    pub(crate) fn check_arrived(&self, id: u64) -> Check {
        let Some(index) = self.open.iter().position(|open| open.id == id) else { return Ok(()) };
        let open = &self.open[index];
        let Some(new) = &open.new else { return Ok(()) };
        let actual = self.actual(open.at..open.end())?;
        let mut expected = new.clone();
        for later in &self.open[index + 1..] {
            admit(later, open.at, &mut expected, &actual);
        }
        compare(open.at, &expected, &actual)
    }

    /// An operation ended with an unknown result: the current content becomes the expected one.
    pub(crate) fn give_up(&mut self, id: u64) -> Check {
        let Some(open) = self.close(id) else { return Ok(()) };
        let actual = self.actual(open.at..open.end())?;
        self.shadow[open.at..open.end()].copy_from_slice(&actual);
        Ok(())
    }

    /// An operation will have no further effect: for each byte, the current value is accepted if it may come from
    /// the operation.
    pub(crate) fn expire(&mut self, id: u64) -> Check {
        let Some(open) = self.close(id) else { return Ok(()) };
        let Some(new) = &open.new else { return Ok(()) };
        let actual = self.actual(open.at..open.end())?;
        for (index, (now, new)) in actual.iter().zip(new).enumerate() {
            if now == new {
                self.shadow[open.at + index] = *now;
            }
        }
        Ok(())
    }

    /// Resolves the operations in progress of a failed queue pair, in order: some of them took effect, the others
    /// never will. The effect must be a prefix: whole messages, and whole packets of the next one.
    pub(crate) fn resolve(&mut self, ids: &[u64], packet: usize) -> Check {
        let mut opens: Vec<Open> = Vec::new();
        for id in ids {
            opens.extend(self.close(*id));
        }
        let Some(start) = opens.iter().map(|open| open.at).min() else { return Ok(()) };
        let end = opens.iter().map(Open::end).max().unwrap_or(start);
        let actual = self.actual(start..end)?;
        let mut state = self.shadow[start..end].to_vec();
        let mut fits = state == actual;
        'all: for open in &opens {
            if fits {
                break;
            }
            for (index, piece) in open.new.iter().flat_map(|new| new.chunks(packet).enumerate()) {
                let at = open.at - start + index * packet;
                state[at..at + piece.len()].copy_from_slice(piece);
                fits = state == actual;
                if fits {
                    break 'all;
                }
            }
        }
        if !fits {
            let at = state.iter().zip(&actual).position(|(a, b)| a != b).unwrap_or(0) + start;
            return Err(format!(
                "after a failure bytes {start}..{end} are no beginning of the {} writes that were under way (with all of \
                 them byte {at} would be different)",
                opens.len()
            ));
        }
        self.shadow[start..end].copy_from_slice(&actual);
        Ok(())
    }

    fn check_range(&self, range: Range<usize>) -> Check {
        let actual = self.actual(range.clone())?;
        if actual == self.shadow[range.clone()] {
            return Ok(());
        }
        let mut expected = self.shadow[range.clone()].to_vec();
        for open in self.open.iter().filter(|open| open.at < range.end && range.start < open.end()) {
            admit(open, range.start, &mut expected, &actual);
        }
        compare(range.start, &expected, &actual)
    }

    /// Compares every byte with its expected value.
    pub(crate) fn check(&mut self) -> Check {
        self.buffer.read_at(0, &mut self.actual).map_err(|e| e.to_string())?;
        if self.actual == self.shadow {
            return Ok(());
        }
        self.expected.copy_from_slice(&self.shadow);
        for open in &self.open {
            admit(open, 0, &mut self.expected, &self.actual);
        }
        compare(0, &self.expected, &self.actual)
    }
}

/// Accepts the effects of operations in progress, in `expected`, which starts at `start`.
fn admit(open: &Open, start: usize, expected: &mut [u8], actual: &[u8]) {
    let from = open.at.max(start);
    let to = open.end().min(start + expected.len());
    for at in from..to {
        let there = actual[at - start];
        if open.new.as_ref().is_none_or(|new| new[at - open.at] == there) {
            expected[at - start] = there;
        }
    }
}

fn compare(start: usize, expected: &[u8], actual: &[u8]) -> Check {
    let Some(first) = expected.iter().zip(actual).position(|(a, b)| a != b) else { return Ok(()) };
    let count = expected.iter().zip(actual).filter(|(a, b)| a != b).count();
    Err(format!(
        "memory: byte {} is {:#04x}, not {:#04x} ({count} bytes of {} are wrong)",
        start + first,
        actual[first],
        expected[first],
        actual.len()
    ))
}
