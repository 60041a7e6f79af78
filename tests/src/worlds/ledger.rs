//! What was posted to a queue pair, and what its completions may say.

use super::Check;
use rnic::{WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::time::Duration;

/// Set in the numbers of receives.
pub(crate) const RECV: u64 = 1 << 63;

/// How a work request must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// With success, unless the connection fails for another reason.
    Success,
    /// With this error, unless the connection fails before.
    Failure(WcStatus),
}

/// What a work request does to memory window number so many of the other side, or its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowChange {
    /// Opens the window of this side.
    Open,
    /// Closes the window of this side.
    Close,
    /// Closes the peer's, which has this key.
    ClosePeers(u32),
}

/// A send work request.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) name: &'static str,
    pub(crate) opcode: WcOpcode,
    pub(crate) signalled: bool,
    /// Bytes that the completion must tell of.
    pub(crate) byte_len: u32,
    pub(crate) posted: Duration,
    pub(crate) expect: Expect,
    /// Where its data lies on this side, for nobody else.
    pub(crate) place: Option<usize>,
    /// It brings something known to this side: bytes are under way in this side's memory under its number.
    pub(crate) brings: bool,
    /// It takes something to the other side's memory, under its number.
    pub(crate) takes: bool,
    /// How many of its side's messages there are with it, if it takes a receive at the other side.
    pub(crate) message: Option<usize>,
    /// The shared word that it adds to.
    pub(crate) shared: Option<usize>,
    pub(crate) window: Option<WindowChange>,
    /// It names the peer's window.
    pub(crate) through_window: bool,
}

/// A send queue.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pub(crate) entries: VecDeque<Sent>,
    /// The first error.
    pub(crate) failed: Option<WcStatus>,
    /// When something last ended.
    pub(crate) ended: Duration,
}

impl SendQueue {
    /// What a completion ends, with how it ended. `excused` says whether there was a reason for an error.
    pub(crate) fn complete(
        &mut self,
        wc: &WorkCompletion,
        excused: impl Fn(WcStatus) -> bool,
    ) -> Check<Vec<(Sent, WcStatus)>> {
        let found = self.entries.iter().position(|sent| sent.id == wc.wr_id);
        let index =
            found.ok_or_else(|| format!("a completion of {:#x}, which is not outstanding", wc.wr_id))?;
        if let Some(skipped) = self.entries.iter().take(index).find(|sent| sent.signalled) {
            return Err(format!(
                "{} {:#x} completed before {} {:#x}, which was posted before it and is signalled",
                self.entries[index].name, wc.wr_id, skipped.name, skipped.id
            ));
        }
        if index > 0 && self.failed.is_some() {
            return Err(format!(
                "after an error {} {:#x} completed, and {} {:#x} before it was not flushed",
                self.entries[index].name, wc.wr_id, self.entries[0].name, self.entries[0].id
            ));
        }
        // That those before it have no completion says that they are done.
        let mut done: Vec<_> = self.entries.drain(..index).map(|sent| (sent, WcStatus::Success)).collect();
        let Some(sent) = self.entries.pop_front() else { return Err("an empty queue".to_owned()) };
        self.judge(&sent, wc, excused).map_err(|what| format!("{} {:#x}: {what}", sent.name, sent.id))?;
        if wc.status != WcStatus::Success {
            self.failed.get_or_insert(wc.status);
        }
        done.push((sent, wc.status));
        for (sent, status) in &done {
            if let (Expect::Failure(wanted), WcStatus::Success) = (sent.expect, status) {
                return Err(format!(
                    "{} {:#x} succeeded, and should have failed with {wanted}",
                    sent.name, sent.id
                ));
            }
        }
        Ok(done)
    }

    fn judge(&self, sent: &Sent, wc: &WorkCompletion, excused: impl Fn(WcStatus) -> bool) -> Check {
        match (self.failed, wc.status) {
            (Some(first), WcStatus::Success) => return Err(format!("succeeded after {first}")),
            (Some(_), WcStatus::WrFlushErr) => return Ok(()),
            (Some(first), status) => {
                return Err(format!("ended with {status} after {first} instead of a flush"));
            }
            (None, WcStatus::Success) => {}
            (None, status) => {
                let foreseen = match sent.expect {
                    Expect::Success => false,
                    Expect::Failure(wanted) => status == wanted,
                };
                return if foreseen || excused(status) {
                    Ok(())
                } else {
                    Err(format!("ended with {status}, for which there is no reason"))
                };
            }
        }
        if !sent.signalled {
            return Err("completed, and was not signalled".to_owned());
        }
        if wc.opcode != sent.opcode {
            return Err(format!("completed as {:?}, not as {:?}", wc.opcode, sent.opcode));
        }
        if wc.byte_len != sent.byte_len {
            return Err(format!("brought {} bytes, not {}", wc.byte_len, sent.byte_len));
        }
        Ok(())
    }
}

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Its key is of nothing.
    pub(crate) wrong_key: bool,
}

/// A message that takes a receive at the other side.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The send that it is of.
    pub(crate) id: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    /// It is an RDMA WRITE with immediate data: the bytes are not in the receive.
    pub(crate) is_write: bool,
    /// How many times it was delivered.
    pub(crate) delivered: u32,
}

/// The messages of one direction.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) all: Vec<Message>,
    /// How many were delivered; of an unreliable service, or passed over.
    pub(crate) next: usize,
}

impl Messages {
    /// Which message a receive got: over a reliable service the next one, over others one that was sent and not
    /// delivered, behind those that were, unless the network copies and reorders.
    pub(crate) fn deliver(
        &mut self,
        matches: impl Fn(&Message) -> bool,
        reliable: bool,
        any_order: bool,
    ) -> Option<&Message> {
        let index = if reliable {
            Some(self.next).filter(|next| self.all.get(*next).is_some_and(&matches))
        } else {
            let found = self.all.iter().skip(self.next).position(&matches).map(|at| at + self.next);
            found.or_else(|| if any_order { self.all.iter().position(&matches) } else { None })
        }?;
        self.next = self.next.max(index + 1);
        let message = self.all.get_mut(index)?;
        message.delivered += 1;
        Some(message)
    }
}
