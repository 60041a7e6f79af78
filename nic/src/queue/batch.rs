//! The work requests of one call, read before the port's lock is taken.

use super::inbox::Work;

/// Work requests that need no allocation: programs that post lists mostly post the segments of one message, or refill
/// a receive queue by as many completions as they poll at once, which is 16 in most programs.
const FEW: usize = 16;

/// The work requests of one call.
///
/// Programs hand over lists of their own: a linked list in their memory, or an iterator that runs their code. Reading
/// them may take a page fault, and may run anything; nothing of that may happen under the port's lock.
pub(crate) struct Batch {
    few: [Option<Work>; FEW],
    more: Vec<Work>,
    len: usize,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { few: [const { None }; FEW], more: Vec::new(), len: 0 }
    }

    pub(crate) fn push(&mut self, work: Work) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = Some(work),
            None => self.more.push(work),
        }
        self.len += 1;
    }

    /// The number of work requests.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Removes and returns them, in order. They are moved one by one, as they are taken.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Work> {
        let few = self.few.iter_mut().take(self.len);
        self.len = 0;
        few.filter_map(Option::take).chain(self.more.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::RecvWr;

    fn batch(len: u64) -> Batch {
        let mut batch = Batch::new();
        (0..len).for_each(|wr_id| batch.push(Work::Recv(RecvWr { wr_id, ..RecvWr::default() })));
        batch
    }

    fn numbers(works: impl Iterator<Item = Work>) -> Vec<u64> {
        works.map(|work| if let Work::Recv(wr) = work { wr.wr_id } else { u64::MAX }).collect()
    }

    #[test]
    fn work_requests_come_out_in_order_whatever_their_number() {
        for len in [0, 1, FEW as u64 - 1, FEW as u64, FEW as u64 + 1, 100] {
            let mut batch = batch(len);
            assert_eq!(batch.len() as u64, len);
            assert!(numbers(batch.drain()).into_iter().eq(0..len), "{len}");
            assert_eq!((batch.len(), batch.drain().count()), (0, 0));
        }
    }

    #[test]
    fn a_short_list_allocates_nothing() {
        assert_eq!(batch(FEW as u64).more.capacity(), 0);
        assert_ne!(batch(FEW as u64 + 1).more.capacity(), 0);
    }
}
