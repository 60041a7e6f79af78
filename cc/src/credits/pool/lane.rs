//! A lane of a peer, as its pool sees it.

use crate::credits::message::{is_later, next};
use crate::credits::{CreditMessage, Kind, ahead};
use crate::vl::Vl;
use time::Instant;

/// The receiving end of a lane. What its sender may still send is `received..ceiling`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) generation: u32,
    vl: Vl,
    /// It is a member, or its last blocks are still to come.
    pub(super) is_member: bool,
    /// It is on trial: its peer may have no business here.
    pub(super) is_on_trial: bool,
    /// Blocks received (ABR): counted here, and corrected by what the sender says that it sent.
    received: u32,
    /// The limit that the sender is to obey (FCCL).
    limit: u32,
    /// The highest limit that the sender may still obey: above `limit` from when that is lowered until the sender says
    /// that it has heard of it.
    ceiling: u32,
    /// The sender's count in its latest ask.
    said: u32,
    /// The number of the grant that lowered the limit last.
    lowered: u16,
    /// The number of the latest grant, and of the latest ask; 0 if there was none.
    granted: u16,
    asked: u16,
    /// When everything that was granted is void, if nothing more is granted.
    pub(super) expires: Instant,
    /// Blocks that arrived and have not been read.
    pub(super) occupied: u32,
    /// The blocks of the packet that waits for credit; 0 if none does.
    pub(super) want: u16,
    /// Whether it is in the queue of lanes that wait, of those that will wait soon, and of those to be told.
    pub(super) is_waiting: bool,
    pub(super) is_low: bool,
    pub(super) is_changed: bool,
    /// When it was last heard from, or last granted something.
    pub(super) last_active: Instant,
}

impl Lane {
    /// A lane without credit.
    pub(super) const fn new(generation: u32, vl: Vl, is_on_trial: bool, now: Instant) -> Self {
        Self {
            generation,
            vl,
            is_member: true,
            is_on_trial,
            received: 0,
            limit: 0,
            ceiling: 0,
            said: 0,
            lowered: 0,
            granted: 0,
            asked: 0,
            expires: now,
            occupied: 0,
            want: 0,
            is_waiting: false,
            is_low: false,
            is_changed: false,
            last_active: now,
        }
    }

    /// Blocks that it may send once its sender has heard of the latest limit.
    pub(super) const fn lent(&self) -> u32 {
        ahead(self.received, self.limit)
    }

    /// Blocks that may still arrive.
    pub(super) const fn outstanding(&self) -> u32 {
        ahead(self.received, self.ceiling)
    }

    /// Blocks that were taken back, and may still arrive until the sender answers.
    pub(super) const fn returning(&self) -> u32 {
        self.outstanding() - self.lent()
    }

    /// Whether it has or wants something.
    pub(super) const fn is_active(&self) -> bool {
        self.is_member && !self.is_on_trial && (self.want > 0 || self.lent() > 0)
    }

    /// Accounts for `n` blocks that arrived. Returns whether as many had been granted; if not, the sender counts
    /// differently, for example because the network made copies, and its next ask corrects that.
    pub(super) const fn receive(&mut self, n: u32) -> bool {
        let was_granted = n <= self.outstanding();
        self.received = self.received.wrapping_add(n);
        self.occupied += n;
        self.keep_up();
        was_granted
    }

    /// Handles an ask. Everything that its sender sent before has arrived, or is lost: its count replaces the one kept
    /// here. Returns false if the ask was overtaken by another. As long as anything that was granted may be used, that
    /// is; after that, any number counts, so that a wrong one does no harm for longer.
    pub(super) fn hear(&mut self, now: Instant, ask: &CreditMessage) -> bool {
        if now < self.expires && self.asked != 0 && !is_later(ask.number, self.asked) {
            return false;
        }
        // A sender neither counts backwards nor sends more than was granted. If it seems to, the two ends have lost
        // track of each other, and start again from its count with nothing.
        let is_possible = ask.count.wrapping_sub(self.said) <= self.ceiling.wrapping_sub(self.said);
        (self.asked, self.want, self.received, self.said) = (ask.number, ask.want, ask.count, ask.count);
        if !is_possible {
            self.forfeit();
        }
        if self.returning() > 0 && self.is_obeyed(ask.echo) {
            self.ceiling = self.limit;
        }
        self.keep_up();
        true
    }

    /// Whether the sender of an ask knows its limit, or neither end believes that it has credit.
    pub(super) const fn knows_limit(&self, ask: &CreditMessage) -> bool {
        ask.limit == self.limit || self.lent() == 0 && ahead(ask.count, ask.limit) == 0
    }

    /// A limit behind the count is no credit.
    const fn keep_up(&mut self) {
        if self.lent() == 0 {
            self.limit = self.received;
        }
        if self.outstanding() == 0 {
            self.ceiling = self.received;
        }
    }

    /// Whether a sender that has heard grant `echo` obeys the limit that was lowered last: limits only rose since.
    const fn is_obeyed(&self, echo: u16) -> bool {
        echo != 0 && !is_later(self.lowered, echo)
    }

    /// Raises the limit.
    pub(super) const fn lend(&mut self, more: u32) {
        self.limit = self.limit.wrapping_add(more);
        if ahead(self.ceiling, self.limit) > 0 {
            self.ceiling = self.limit;
        }
    }

    /// Lowers the limit, so that at most `keep` blocks may be sent once the sender has heard of it.
    pub(super) const fn take_back(&mut self, keep: u32) {
        let lent = self.lent();
        self.limit = self.received.wrapping_add(if keep < lent { keep } else { lent });
        self.lowered = next(self.granted);
    }

    /// Nothing that was granted can arrive any more.
    pub(super) const fn forfeit(&mut self) {
        (self.limit, self.ceiling) = (self.received, self.received);
    }

    /// The next grant, which is void at `expires`.
    pub(super) const fn grant(&mut self, expires: Instant) -> CreditMessage {
        self.granted = next(self.granted);
        (self.is_changed, self.expires) = (false, expires);
        let (number, echo) = (self.granted, self.asked);
        CreditMessage {
            kind: Kind::Grant,
            vl: self.vl,
            want: 0,
            number,
            echo,
            count: self.received,
            limit: self.limit,
        }
    }
}
