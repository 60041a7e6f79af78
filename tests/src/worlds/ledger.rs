//! The work requests posted to a queue pair, and the completions that they permit.

use super::Check;
use rnic::{WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::time::Duration;

/// Set in the IDs of receives.
pub(crate) const RECV: u64 = 1 << 63;

/// The required outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Success, unless the connection fails for another reason.
    Success,
    /// This error, unless the connection fails first.
    Failure(WcStatus),
}

/// The effect of a work request on a memory window of the other side, or of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowChange {
    /// Binds the window of this side.
    Open,
    /// Invalidates the window of this side.
    Close,
    /// Invalidates the peer's window, which has this key.
    ClosePeers(u32),
}

/// A send work request.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) name: &'static str,
    pub(crate) opcode: WcOpcode,
    pub(crate) signalled: bool,
    /// The byte count that the completion must report.
    pub(crate) byte_len: u32,
    pub(crate) posted: Duration,
    pub(crate) expect: Expect,
    /// The local range of its data, which no other request uses.
    pub(crate) place: Option<usize>,
    /// Whether it returns known data: an operation on this side's memory is recorded under its ID.
    pub(crate) brings: bool,
    /// Whether it changes the other side's memory, recorded under its ID.
    pub(crate) takes: bool,
    /// If it consumes a receive at the other side, the number of its side's messages up to and including it.
    pub(crate) message: Option<usize>,
    /// The shared word that it adds to.
    pub(crate) shared: Option<usize>,
    pub(crate) window: Option<WindowChange>,
    /// Whether it uses the key of the peer's window.
    pub(crate) through_window: bool,
}

/// A send queue.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pub(crate) entries: VecDeque<Sent>,
    /// The first error.
    pub(crate) failed: Option<WcStatus>,
    /// When a work request last completed.
    pub(crate) ended: Duration,
}

impl SendQueue {
    /// The requests that a completion completes, with their outcomes. `excused` tells whether an error is expected.
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
        // Earlier requests without a completion are done.
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
    /// Whether its key is invalid.
    pub(crate) wrong_key: bool,
}

/// A message that consumes a receive at the other side.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The ID of the send.
    pub(crate) id: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    /// Whether it is an RDMA WRITE with immediate data: the payload is not in the receive.
    pub(crate) is_write: bool,
    /// How often it was delivered.
    pub(crate) delivered: u32,
}

/// The messages in one direction.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) all: Vec<Message>,
    /// Number of messages delivered or, on an unreliable service, skipped.
    pub(crate) next: usize,
}

impl Messages {
    /// Finds the message that a receive got. On a reliable service it is the next one. On an unreliable service it
    /// is one that was sent but not delivered, and later than those delivered, unless the network duplicates and
    /// reorders.
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
